//! The format of a batch of effects, the same for every engine.
//!
//! ```text
//! version, 1 byte: 1 up to that of this program
//! effects: kind, 1 byte; length of the key, 4 bytes; the key; then
//!     1 put, 3 append, 4 push   length, 4 bytes; the value, addition or element
//!     2 delete                  nothing
//!     5 pop                     number of elements, 4 bytes
//!     6 own                     of the owner: length, 4 bytes; the session's id, or nothing; client, 4 bytes. Of the
//!                               will: length, 4 bytes; its key; length, 4 bytes; its value
//!     7 schedule                here the key is a prefix, whose names are deleted after so many ms, 4 bytes; 0 for not.
//!                               An empty prefix means nothing
//!     8 group                   of members, which the key names: length, 4 bytes; what a restarted server needs of it,
//!                               or nothing if the group is gone
//!    16 begin a session         how long it lasts without a link, in ms, 4 bytes; here the key is the session's id
//!    17 end a session           nothing
//!    18 executed                client, request, answered, 4 bytes each; whether it waits, 1 byte; length, 4 bytes; reply
//!    19 end a client            client, 4 bytes. If the key is longer than a session's id, END_WAITS was carried out for the
//!                               prefix behind the first 17 bytes, by the server with this number; releases that have no
//!                               END_WAITS 4 (docs/spec/wire-extensions.md) read that as the end of a client that is not there
//!    20 silence                 client, 4 bytes; the longest silence in ms, 4 bytes; whether it was silent, 1 byte
//! checksum, 8 bytes: SipHash-1-3 with a zero key of all before it, then the position, 8 bytes
//! ```
//!
//! Integers are little-endian. The position in the checksum distinguishes a batch from a batch that was kept under
//! another number.

use std::hash::Hasher;

use byteorder::{ByteOrder, LE};
use siphasher::sip::SipHasher13;

use super::error::DamagedBatch;
use super::format::{FORMAT_VERSION, Formats};

/// The bytes after which a chunk of a snapshot ends.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

const LENGTH_BYTES: usize = size_of::<u32>();

const CHECKSUM_BYTES: usize = 8;

/// The bytes before the prefix of END_WAITS: one byte more than a session's id has.
const NO_SESSION: [u8; 17] = [0; 17];

/// A change of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "a field is the key, or is explained by the variant's comment"
)]
pub enum Effect<'a> {
    /// The key has this value.
    Put { key: &'a [u8], value: &'a [u8] },
    /// The key has no value. Its queue stays.
    Delete { key: &'a [u8] },
    /// These bytes were added to the end of the key's value, which is empty if there was none.
    Append { key: &'a [u8], bytes: &'a [u8] },
    /// The key's queue has one more element, the last.
    Push { key: &'a [u8], element: &'a [u8] },
    /// The key's queue has lost this number of its first elements.
    Pop { key: &'a [u8], count: u32 },
    /// The key, which has a value, expires with its owner. The owner is a client of a session, or (with an empty id)
    /// a connection, which has ended with the server. When the key expires, the will is written, unless the will's
    /// key is empty.
    Own {
        key: &'a [u8],
        session: &'a [u8],
        client: u32,
        will_key: &'a [u8],
        will_value: &'a [u8],
    },
    /// The names with this prefix are deleted after this delay, which starts again with the server. A delay of 0
    /// cancels the deletion.
    Schedule { prefix: &'a [u8], delay_millis: u32 },
    /// The state that a restarted server needs to continue a group of members (docs/spec/wire-extensions.md,
    /// MEMBERSHIP); empty if the group was removed.
    Group { group: &'a [u8], bytes: &'a [u8] },
    /// A session begins. Its peer can send requests again after a restart (docs/spec/wire-extensions.md, SESSION 12).
    BeginSession { session: &'a [u8], keep_millis: u32 },
    /// This session and its clients have ended.
    EndSession { session: &'a [u8] },
    /// A request of a client was carried out.
    Executed {
        session: &'a [u8],
        client: u32,
        /// The number of the request, from 1.
        request: u32,
        /// Up to this request the client has its replies.
        answered: u32,
        /// Whether the request has arrived at a barrier, and waits there: there is no reply yet.
        waits: bool,
        /// The bytes of the reply.
        reply: &'a [u8],
    },
    /// A client of a session has ended.
    EndClient { session: &'a [u8], client: u32 },
    /// The server with this number has ended the waits for names with this prefix, and later servers end those of sessions
    /// that were away (docs/spec/wire-extensions.md, END_WAITS 4).
    EndWaits { prefix: &'a [u8], server: u32 },
    /// The keys of a client expire after a silence of this number of milliseconds; 0 for any silence. They may have
    /// expired after such a silence without the client's knowledge.
    Silence {
        session: &'a [u8],
        client: u32,
        millis: u32,
        was_silent: bool,
    },
}

mod kind {
    pub(super) const PUT: u8 = 1;
    pub(super) const DELETE: u8 = 2;
    pub(super) const APPEND: u8 = 3;
    pub(super) const PUSH: u8 = 4;
    pub(super) const POP: u8 = 5;
    pub(super) const OWN: u8 = 6;
    pub(super) const SCHEDULE: u8 = 7;
    pub(super) const GROUP: u8 = 8;
    pub(super) const BEGIN_SESSION: u8 = 16;
    pub(super) const END_SESSION: u8 = 17;
    pub(super) const EXECUTED: u8 = 18;
    pub(super) const END_CLIENT: u8 = 19;
    pub(super) const SILENCE: u8 = 20;
}

/// Collects effects into a batch.
#[derive(Debug)]
pub struct BatchWriter {
    /// Empty, or starts with the version.
    bytes: Vec<u8>,
    format: u8,
}

impl Default for BatchWriter {
    /// Creates an empty batch in the newest version of the format.
    fn default() -> Self {
        Self::new(FORMAT_VERSION)
    }
}

impl BatchWriter {
    /// Creates an empty batch in this version of the format.
    #[must_use]
    pub const fn new(format: u8) -> Self {
        Self {
            bytes: Vec::new(),
            format,
        }
    }

    /// Batches that begin from now on have this version.
    pub(crate) const fn set_format(&mut self, format: u8) {
        self.format = format;
    }

    /// Adds an effect after the previous effects. Returns the offset where it begins.
    pub fn push(&mut self, effect: Effect<'_>) -> usize {
        if self.bytes.is_empty() {
            self.bytes.push(self.format);
        }
        let at = self.bytes.len();
        match effect {
            Effect::Put { key, value } => self.with_bytes(kind::PUT, key, value),
            Effect::Delete { key } => self.with_key(kind::DELETE, key),
            Effect::Append { key, bytes } => self.with_bytes(kind::APPEND, key, bytes),
            Effect::Push { key, element } => self.with_bytes(kind::PUSH, key, element),
            Effect::Pop { key, count } => {
                self.with_key(kind::POP, key);
                self.with_u32(count);
            }
            Effect::Own {
                key,
                session,
                client,
                will_key,
                will_value,
            } => {
                self.with_bytes(kind::OWN, key, session);
                self.with_u32(client);
                self.with_length(will_key);
                self.with_length(will_value);
            }
            Effect::Schedule {
                prefix,
                delay_millis,
            } => {
                self.with_key(kind::SCHEDULE, prefix);
                self.with_u32(delay_millis);
            }
            Effect::Group { group, bytes } => self.with_bytes(kind::GROUP, group, bytes),
            Effect::BeginSession {
                session,
                keep_millis,
            } => {
                self.with_key(kind::BEGIN_SESSION, session);
                self.with_u32(keep_millis);
            }
            Effect::EndSession { session } => self.with_key(kind::END_SESSION, session),
            Effect::Executed {
                session,
                client,
                request,
                answered,
                waits,
                reply,
            } => {
                self.with_key(kind::EXECUTED, session);
                for number in [client, request, answered] {
                    self.with_u32(number);
                }
                self.bytes.push(u8::from(waits));
                self.with_length(reply);
            }
            Effect::EndClient { session, client } => {
                self.with_key(kind::END_CLIENT, session);
                self.with_u32(client);
            }
            Effect::EndWaits { prefix, server } => {
                self.with_key(kind::END_CLIENT, &[&NO_SESSION, prefix].concat());
                self.with_u32(server);
            }
            Effect::Silence {
                session,
                client,
                millis,
                was_silent,
            } => {
                self.with_key(kind::SILENCE, session);
                self.with_u32(client);
                self.with_u32(millis);
                self.bytes.push(u8::from(was_silent));
            }
        }
        at
    }

    /// Replaces the value of the effect that begins here, if it puts one of the same length.
    pub(crate) fn replace(&mut self, at: usize, value: &[u8]) -> bool {
        let Some((&mut kind::PUT, put)) = self.bytes[at..].split_first_mut() else {
            return false;
        };
        let key_bytes = LE::read_u32(put) as usize;
        let (length, rest) = put[LENGTH_BYTES + key_bytes..].split_at_mut(LENGTH_BYTES);
        if LE::read_u32(length) as usize != value.len() {
            return false;
        }
        rest[..value.len()].copy_from_slice(value);
        true
    }

    /// Returns whether the batch has no effect.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the number of bytes so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the batch, to be kept under this position. Starts the next batch, in `memory`.
    #[must_use]
    pub fn finish(&mut self, position: u64, mut memory: Vec<u8>) -> Vec<u8> {
        memory.clear();
        if self.bytes.is_empty() {
            self.bytes.push(self.format);
        }
        let sum = checksum(position, &self.bytes);
        let end = self.bytes.len();
        self.bytes.resize(end + CHECKSUM_BYTES, 0);
        LE::write_u64(&mut self.bytes[end..], sum);
        std::mem::replace(&mut self.bytes, memory)
    }

    fn with_key(&mut self, kind: u8, key: &[u8]) {
        self.bytes.push(kind);
        self.with_length(key);
    }

    fn with_bytes(&mut self, kind: u8, key: &[u8], bytes: &[u8]) {
        self.bytes
            .reserve(1 + 2 * LENGTH_BYTES + key.len() + bytes.len());
        self.with_key(kind, key);
        self.with_length(bytes);
    }

    fn with_length(&mut self, bytes: &[u8]) {
        // The wire's limits are below 4 GiB.
        self.with_u32(bytes.len() as u32);
        self.bytes.extend_from_slice(bytes);
    }

    fn with_u32(&mut self, number: u32) {
        let mut bytes = [0; LENGTH_BYTES];
        LE::write_u32(&mut bytes, number);
        self.bytes.extend_from_slice(&bytes);
    }
}

/// Reads a batch, or a chunk of a snapshot, that was kept under this position.
///
/// # Errors
/// [`DamagedBatch`] if its bytes have changed since it was written, or a later version has written it.
pub fn effects(position: u64, batch: &[u8]) -> Result<Effects<'_>, DamagedBatch> {
    let (format, effects) = effects_with_format(position, batch)?;
    if (Formats::OWN.oldest..=Formats::OWN.newest).contains(&format) {
        Ok(effects)
    } else {
        let what = "has a format that this program does not know";
        Err(DamagedBatch { position, what })
    }
}

/// Like [`effects`] for any version, which the caller must check.
pub(crate) fn effects_with_format(
    position: u64,
    batch: &[u8],
) -> Result<(u8, Effects<'_>), DamagedBatch> {
    let damaged = |what| DamagedBatch { position, what };
    let Some(end) = batch.len().checked_sub(CHECKSUM_BYTES) else {
        return Err(damaged("is cut off"));
    };
    let (body, sum) = batch.split_at(end);
    if LE::read_u64(sum) != checksum(position, body) {
        return Err(damaged("does not match its checksum"));
    }
    match body.split_first() {
        None => Err(damaged("is cut off")),
        Some((format, body)) => Ok((*format, Effects { position, body })),
    }
}

/// The effects of a batch, in order. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Effects<'a> {
    position: u64,
    body: &'a [u8],
}

impl<'a> Iterator for Effects<'a> {
    type Item = Result<Effect<'a>, DamagedBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.body.is_empty() {
            return None;
        }
        let effect = self.read();
        if effect.is_none() {
            self.body = &[];
        }
        Some(effect.ok_or(DamagedBatch {
            position: self.position,
            what: "has an effect that this program cannot read",
        }))
    }
}

impl<'a> Effects<'a> {
    fn read(&mut self) -> Option<Effect<'a>> {
        let kind = self.byte()?;
        let key = self.blob()?;
        Some(match kind {
            kind::PUT => Effect::Put {
                key,
                value: self.blob()?,
            },
            kind::DELETE => Effect::Delete { key },
            kind::APPEND => Effect::Append {
                key,
                bytes: self.blob()?,
            },
            kind::PUSH => Effect::Push {
                key,
                element: self.blob()?,
            },
            kind::POP => Effect::Pop {
                key,
                count: self.number()?,
            },
            kind::OWN => Effect::Own {
                key,
                session: self.blob()?,
                client: self.number()?,
                will_key: self.blob()?,
                will_value: self.blob()?,
            },
            kind::SCHEDULE => Effect::Schedule {
                prefix: key,
                delay_millis: self.number()?,
            },
            kind::GROUP => Effect::Group {
                group: key,
                bytes: self.blob()?,
            },
            kind::BEGIN_SESSION => Effect::BeginSession {
                session: key,
                keep_millis: self.number()?,
            },
            kind::END_SESSION => Effect::EndSession { session: key },
            kind::EXECUTED => Effect::Executed {
                session: key,
                client: self.number()?,
                request: self.number()?,
                answered: self.number()?,
                waits: self.flag()?,
                reply: self.blob()?,
            },
            kind::END_CLIENT => match key.strip_prefix(&NO_SESSION) {
                Some(prefix) => Effect::EndWaits {
                    prefix,
                    server: self.number()?,
                },
                None => Effect::EndClient {
                    session: key,
                    client: self.number()?,
                },
            },
            kind::SILENCE => Effect::Silence {
                session: key,
                client: self.number()?,
                millis: self.number()?,
                was_silent: self.flag()?,
            },
            _ => return None,
        })
    }

    fn blob(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        let (blob, rest) = self.body.split_at_checked(length as usize)?;
        self.body = rest;
        Some(blob)
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.body.split_first()?;
        self.body = rest;
        Some(byte)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.body.split_at_checked(size_of::<u32>())?;
        self.body = rest;
        Some(LE::read_u32(number))
    }
}

pub(crate) fn checksum(position: u64, body: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(body);
    let mut bytes = [0; size_of::<u64>()];
    LE::write_u64(&mut bytes, position);
    hasher.write(&bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Effect<'static>> {
        vec![
            Effect::Put {
                key: b"a",
                value: b"1",
            },
            Effect::Put {
                key: b"",
                value: b"",
            },
            Effect::Append {
                key: b"a",
                bytes: b"2",
            },
            Effect::Delete { key: b"a" },
            Effect::Push {
                key: b"q",
                element: b"e",
            },
            Effect::Pop {
                key: b"q",
                count: 1,
            },
            Effect::BeginSession {
                session: &[1; 16],
                keep_millis: 7,
            },
            Effect::Executed {
                session: &[1; 16],
                client: 2,
                request: 3,
                answered: 1,
                waits: true,
                reply: b"r",
            },
            Effect::EndClient {
                session: &[1; 16],
                client: 2,
            },
            Effect::EndSession { session: &[1; 16] },
            Effect::Own {
                key: b"a",
                session: &[1; 16],
                client: 2,
                will_key: b"w",
                will_value: b"gone",
            },
            Effect::Schedule {
                prefix: b"p/",
                delay_millis: 9,
            },
            Effect::Group {
                group: b"g",
                bytes: b"kept",
            },
            Effect::Silence {
                session: &[1; 16],
                client: 2,
                millis: 500,
                was_silent: true,
            },
            Effect::EndWaits {
                prefix: b"",
                server: 3,
            },
            Effect::EndWaits {
                prefix: &[0; 16],
                server: 4,
            },
        ]
    }

    fn batch_of(position: u64, effects: &[Effect<'_>]) -> Vec<u8> {
        let mut writer = BatchWriter::default();
        for effect in effects {
            writer.push(*effect);
        }
        writer.finish(position, Vec::new())
    }

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let batch = batch_of(7, &all());
        let read: Result<Vec<_>, _> = effects(7, &batch).expect("intact").collect();
        assert_eq!(read, Ok(all()));
        assert_eq!(effects(7, &batch_of(7, &[])).expect("intact").count(), 0);
    }

    #[test]
    fn a_changed_byte_a_cut_or_another_position_is_found() {
        let batch = batch_of(7, &all());
        assert!(effects(8, &batch).is_err());
        for at in 0..batch.len() {
            assert!(effects(7, &batch[..at]).is_err(), "cut at {at}");
            let mut changed = batch.clone();
            changed[at] ^= 0x40;
            assert!(effects(7, &changed).is_err(), "changed at {at}");
        }
    }

    /// A later version may add kinds: the effects after them cannot be read either.
    #[test]
    fn an_effect_of_a_later_version_is_an_error_and_the_last_one() {
        let mut writer = BatchWriter::default();
        writer.push(all()[0]);
        writer.with_key(99, b"k");
        writer.push(all()[0]);
        let batch = writer.finish(1, Vec::new());
        let read: Vec<_> = effects(1, &batch).expect("intact").collect();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0], Ok(all()[0]));
        assert!(read[1].is_err());
    }
}
