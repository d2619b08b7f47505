//! Finds the end of a request in linear time.
//!
//! PyTorch's server parses an unfinished request again from its start with every 4096 bytes that
//! arrive, which is quadratic for long lists; a [`FrameScan`] continues where it stopped.

use byteorder::{ByteOrder, LittleEndian};

use super::blob::{Blobs, LENGTH_BYTES};
use super::error::{WireError, WireErrorKind};
use super::opcode::{ANY_LENGTH, Field, HELLO_BYTES, Opcode};
use crate::limits::WireLimits;
use crate::message::{Keys, Payload, Request};
use crate::stored_value::{SHARED_VALUE_BYTES_MIN, Value};
#[cfg(feature = "extensions")]
use crate::{message::Extension, session::Hello};

/// The longest announcement of ANNOUNCE in bytes: enough for the workers of a node.
pub const ANNOUNCEMENT_BYTES_MAX: usize = 256 << 10;

/// The longest request to a group in bytes: a prefix of keys, or a handle, and some numbers.
const MEMBERSHIP_BYTES_MAX: usize = 16 << 10;

/// The progress of a [`FrameScan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The request is complete, with this length in bytes.
    Complete(usize),
    /// The scan needs at least this many bytes from the start of the request.
    NeedAtLeast(usize),
}

/// A resumable scan of one request.
///
/// Call [`advance`](Self::advance) with a growing prefix of the request until it returns
/// [`Progress::Complete`], then [`frame`](Self::frame). Each byte costs constant time for any split.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrameScan {
    /// Bytes checked so far. Invariant: at most the bytes received.
    checked: usize,
    opcode: Option<Opcode>,
    /// The index of the argument being scanned.
    field: usize,
    /// Remaining blobs of the list being scanned; `None` before its count was read.
    list_left: Option<usize>,
    list_len: usize,
    /// Start and end of each scanned argument, without the length or count word.
    spans: [Span; FIELDS_MAX],
    /// Length words read, for the test of linear cost.
    #[cfg(test)]
    length_reads: std::cell::Cell<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Span {
    start: usize,
    end: usize,
}

const FIELDS_MAX: usize = 4;

impl FrameScan {
    /// Scans the bytes of the request that have arrived; `bytes` starts at the first byte of the request
    /// and is never shorter than in an earlier call.
    ///
    /// # Errors
    /// The bytes cannot become a request within the limits. The call has not reserved memory for announced lengths.
    pub(crate) fn advance(
        &mut self,
        bytes: &[u8],
        limits: &WireLimits,
    ) -> Result<Progress, WireError> {
        let opcode = match self.opcode {
            Some(opcode) => opcode,
            None => {
                let Some(&byte) = bytes.first() else {
                    return Ok(Progress::NeedAtLeast(1));
                };
                let opcode = Opcode::from_byte(byte)
                    .ok_or_else(|| self.error(WireErrorKind::UnknownOpcode(byte)))?;
                self.opcode = Some(opcode);
                self.checked = 1;
                opcode
            }
        };
        let mut limits = *limits;
        match opcode {
            Opcode::Announce => limits.value_bytes_max = ANNOUNCEMENT_BYTES_MAX,
            Opcode::Membership | Opcode::MembershipPoll => {
                limits.value_bytes_max = MEMBERSHIP_BYTES_MAX
            }
            _ => {}
        }
        let limits = &limits;
        let fields = opcode.fields();
        while let Some(field) = fields.get(self.field) {
            let start = self.checked;
            let (start, end) = match field {
                Field::U32 => (start, start + 4),
                Field::I64 | Field::U64 => (start, start + 8),
                Field::Hello => (start, start + HELLO_BYTES),
                Field::Key | Field::Value => match self.blob_end(bytes, start, *field, limits)? {
                    Ok(end) => (start + LENGTH_BYTES, end),
                    Err(need) => return Ok(need),
                },
                Field::Keys | Field::Pairs => {
                    if let Some(need) = self.scan_list(bytes, *field, limits)? {
                        return Ok(need);
                    }
                    (self.spans[self.field].start, self.checked)
                }
            };
            if end > bytes.len() {
                return Ok(Progress::NeedAtLeast(end));
            }
            if opcode == Opcode::QueueTake
                && matches!(field, Field::U64)
                && LittleEndian::read_u64(&bytes[start..end]) == 0
            {
                return Err(self.error(WireErrorKind::NothingToTake));
            }
            if opcode == Opcode::DeletePrefix && matches!(field, Field::Key) && start == end {
                return Err(self.error(WireErrorKind::EmptyPrefix));
            }
            self.spans[self.field] = Span { start, end };
            self.checked = end;
            self.field += 1;
        }
        Ok(Progress::Complete(self.checked))
    }

    /// Starts over, for the next request.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The complete request in `bytes`, which must be the scanned bytes.
    pub(crate) fn frame<'a>(&self, bytes: &'a [u8]) -> Frame<'a> {
        Frame {
            opcode: self.opcode.unwrap_or(Opcode::Validate),
            spans: self.spans,
            list_len: self.list_len,
            bytes: &bytes[..self.checked],
        }
    }

    /// The complete request, with `head` as its bytes before the last argument and `value` as the last
    /// argument. `None` if the command does not end with a value.
    pub(crate) fn request_with_value<'a>(
        &self,
        head: &'a [u8],
        value: Value,
    ) -> Option<Request<'a>> {
        let arg = |index: usize| &head[self.spans[index].start..self.spans[index].end];
        let value = Payload::Owned(value);
        Some(match self.opcode? {
            Opcode::Set => Request::Set { key: arg(0), value },
            Opcode::Append => Request::Append { key: arg(0), value },
            Opcode::QueuePush => Request::QueuePush { key: arg(0), value },
            Opcode::CompareSet => Request::CompareSet {
                key: arg(0),
                expected: arg(1),
                desired: value,
            },
            #[cfg(feature = "extensions")]
            Opcode::CompareExchange => Request::Extension(Extension::CompareExchange {
                key: arg(0),
                expected: arg(1),
                desired: value,
            }),
            #[cfg(feature = "extensions")]
            Opcode::WaitChange => Request::Extension(Extension::WaitChange {
                key: arg(0),
                offset: read_position(arg(1)),
                length: read_known_length(arg(2)),
                known: value,
            }),
            _ => return None,
        })
    }

    /// The end of the blob whose length word is at `start`, or the number of bytes needed.
    #[inline]
    fn blob_end(
        &self,
        bytes: &[u8],
        start: usize,
        field: Field,
        limits: &WireLimits,
    ) -> Result<Result<usize, Progress>, WireError> {
        #[cfg(test)]
        {
            self.length_reads.set(self.length_reads.get() + 1);
        }
        let Some(word) = bytes.get(start..start + LENGTH_BYTES) else {
            return Ok(Err(Progress::NeedAtLeast(start + LENGTH_BYTES)));
        };
        let announced = LittleEndian::read_u64(word);
        let bytes_max = match field {
            Field::Key => limits.key_bytes_max,
            _ => limits.value_bytes_max,
        };
        let length = match usize::try_from(announced) {
            Ok(length) if length <= bytes_max => length,
            _ => {
                let bytes = announced;
                return Err(self.error(if field == Field::Key {
                    WireErrorKind::KeyTooLong { bytes, bytes_max }
                } else {
                    WireErrorKind::ValueTooLong { bytes, bytes_max }
                }));
            }
        };
        let end = start + LENGTH_BYTES + length;
        if end > limits.request_bytes_max {
            return Err(self.error(WireErrorKind::RequestTooLong {
                bytes: end,
                bytes_max: limits.request_bytes_max,
            }));
        }
        if end > bytes.len() {
            return Ok(Err(Progress::NeedAtLeast(end)));
        }
        Ok(Ok(end))
    }

    /// Scans a list as far as the bytes go. `None` once it is complete.
    fn scan_list(
        &mut self,
        bytes: &[u8],
        field: Field,
        limits: &WireLimits,
    ) -> Result<Option<Progress>, WireError> {
        let mut left = match self.list_left {
            Some(left) => left,
            None => {
                let Some(word) = bytes.get(self.checked..self.checked + LENGTH_BYTES) else {
                    return Ok(Some(Progress::NeedAtLeast(self.checked + LENGTH_BYTES)));
                };
                let announced = LittleEndian::read_u64(word);
                let keys_max = limits.keys_per_request_max;
                let count = match usize::try_from(announced) {
                    Ok(count) if count <= keys_max => count,
                    _ => {
                        return Err(self.error(WireErrorKind::TooManyKeys {
                            keys: announced,
                            keys_max,
                        }));
                    }
                };
                self.checked += LENGTH_BYTES;
                self.spans[self.field].start = self.checked;
                self.list_len = if field == Field::Pairs {
                    2 * count
                } else {
                    count
                };
                self.list_len
            }
        };
        while left > 0 {
            // In a list of pairs, an odd remainder means that a value is next.
            let kind = if field == Field::Pairs && left % 2 == 1 {
                Field::Value
            } else {
                Field::Key
            };
            match self.blob_end(bytes, self.checked, kind, limits)? {
                Ok(end) => self.checked = end,
                Err(need) => {
                    self.list_left = Some(left);
                    return Ok(Some(need));
                }
            }
            left -= 1;
        }
        self.list_left = Some(0);
        Ok(None)
    }

    fn error(&self, kind: WireErrorKind) -> WireError {
        WireError {
            opcode: self.opcode,
            offset: self.checked,
            kind,
        }
    }
}

/// A complete request, as bytes.
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Frame<'a> {
    opcode: Opcode,
    spans: [Span; FIELDS_MAX],
    list_len: usize,
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    pub(crate) const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The number of blobs of a command with a list.
    pub(crate) const fn list_len(&self) -> usize {
        self.list_len
    }

    /// The whole request.
    pub(crate) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The request, borrowing from the frame's bytes.
    #[inline]
    pub(crate) fn request(&self) -> Request<'a> {
        match self.opcode {
            Opcode::Validate => Request::Validate {
                magic: LittleEndian::read_u32(self.arg(0)),
            },
            Opcode::Set => Request::Set {
                key: self.arg(0),
                value: Payload::Borrowed(self.arg(1)),
            },
            Opcode::CompareSet => Request::CompareSet {
                key: self.arg(0),
                expected: self.arg(1),
                desired: Payload::Borrowed(self.arg(2)),
            },
            Opcode::Get => Request::Get { key: self.arg(0) },
            Opcode::Add => Request::Add {
                key: self.arg(0),
                delta: LittleEndian::read_i64(self.arg(1)),
            },
            Opcode::Check => Request::Check { keys: self.list() },
            Opcode::Wait => Request::Wait { keys: self.list() },
            Opcode::GetNumKeys => Request::GetNumKeys,
            Opcode::DeleteKey => Request::DeleteKey { key: self.arg(0) },
            Opcode::Append => Request::Append {
                key: self.arg(0),
                value: Payload::Borrowed(self.arg(1)),
            },
            Opcode::MultiGet => Request::MultiGet { keys: self.list() },
            Opcode::MultiSet => Request::MultiSet { pairs: self.list() },
            Opcode::CancelWait => Request::CancelWait,
            Opcode::Ping => Request::Ping {
                nonce: LittleEndian::read_u32(self.arg(0)),
            },
            Opcode::QueuePush => Request::QueuePush {
                key: self.arg(0),
                value: Payload::Borrowed(self.arg(1)),
            },
            Opcode::QueuePop => Request::QueuePop { key: self.arg(0) },
            Opcode::QueueLen => Request::QueueLen { key: self.arg(0) },
            Opcode::ListKeys => Request::ListKeys,
            Opcode::Barrier => Request::Barrier {
                key: self.arg(0),
                world_size: LittleEndian::read_i64(self.arg(1)),
            },
            #[cfg(feature = "extensions")]
            _ => Request::Extension(self.extension()),
            #[cfg(not(feature = "extensions"))]
            _ => unreachable!("the scan refuses other commands"),
        }
    }

    #[cfg(feature = "extensions")]
    fn extension(&self) -> Extension<'a> {
        match self.opcode {
            Opcode::CompareExchange => Extension::CompareExchange {
                key: self.arg(0),
                expected: self.arg(1),
                desired: Payload::Borrowed(self.arg(2)),
            },
            Opcode::TryAdd => Extension::TryAdd {
                key: self.arg(0),
                delta: LittleEndian::read_i64(self.arg(1)),
            },
            Opcode::WaitGet => Extension::WaitGet { keys: self.list() },
            Opcode::WaitChange => Extension::WaitChange {
                key: self.arg(0),
                offset: read_position(self.arg(1)),
                length: read_known_length(self.arg(2)),
                known: Payload::Borrowed(self.arg(3)),
            },
            Opcode::Announce => Extension::Announce {
                bytes: Payload::Borrowed(self.arg(0)),
            },
            Opcode::QueueTake => Extension::QueueTake {
                key: self.arg(0),
                max: read_position(self.arg(1)),
            },
            Opcode::SetEphemeral => Extension::SetEphemeral {
                key: self.arg(0),
                value: self.arg(1),
                will_key: self.arg(2),
                will_value: self.arg(3),
            },
            Opcode::KeepAlive => Extension::KeepAlive {
                millis: LittleEndian::read_u32(self.arg(0)),
            },
            Opcode::DeletePrefix => Extension::DeletePrefix {
                prefix: self.arg(0),
                delay_millis: LittleEndian::read_u32(self.arg(1)),
            },
            Opcode::EndWaits => Extension::EndWaits {
                prefix: self.arg(0),
            },
            Opcode::Membership | Opcode::MembershipPoll => Extension::Membership {
                name: self.arg(0),
                bytes: self.arg(1),
                waits: self.opcode == Opcode::MembershipPoll,
            },
            _ => {
                debug_assert_eq!(self.opcode, Opcode::Session);
                let mut hello = [0; HELLO_BYTES];
                hello.copy_from_slice(self.arg(0));
                Extension::Session(Hello::decode(&hello))
            }
        }
    }

    /// The offset of the last argument, if that is a value long enough to stay in its receive buffer.
    pub(crate) fn long_value_start(&self) -> Option<usize> {
        let last = match self.opcode {
            Opcode::Set | Opcode::Append | Opcode::QueuePush => 1,
            Opcode::CompareSet | Opcode::CompareExchange => 2,
            Opcode::WaitChange => 3,
            _ => return None,
        };
        let span = self.spans[last];
        (span.end - span.start >= SHARED_VALUE_BYTES_MIN).then_some(span.start)
    }

    #[inline]
    fn arg(&self, index: usize) -> &'a [u8] {
        let span = self.spans[index];
        &self.bytes[span.start..span.end]
    }

    fn list(&self) -> Keys<'a> {
        Keys::encoded(Blobs::checked(self.arg(0), self.list_len))
    }
}

/// An offset in a value, its length, or a number of elements. Numbers beyond `usize` become its maximum, which is also
/// beyond the end of every value and queue.
fn read_position(word: &[u8]) -> usize {
    usize::try_from(LittleEndian::read_u64(word)).unwrap_or(usize::MAX)
}

/// The known length of a WAIT_CHANGE; `None` matches any length.
fn read_known_length(word: &[u8]) -> Option<usize> {
    (LittleEndian::read_u64(word) != ANY_LENGTH).then(|| read_position(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RequestBuf;

    /// A long list arrives in small pieces. Each piece may reread only the length word that was
    /// incomplete. (PyTorch's server rereads all of them.)
    #[test]
    fn the_cost_is_linear_in_pieces_and_blobs() {
        let count = 5_000;
        let mut request = RequestBuf::new();
        request.opcode(Opcode::MultiSet).count(count);
        for _ in 0..count {
            request.raw_key(b"key").value(b"some value");
        }
        let bytes = request.to_bytes();
        let limits = WireLimits::default();
        for piece in [1, 7, 100, 4096, bytes.len()] {
            let mut scan = FrameScan::default();
            let mut pieces = 0;
            let mut seen = 0;
            while seen < bytes.len() {
                seen = (seen + piece).min(bytes.len());
                pieces += 1;
                let progress = scan.advance(&bytes[..seen], &limits).expect("legal bytes");
                let is_complete = progress == Progress::Complete(bytes.len());
                assert_eq!(is_complete, seen == bytes.len());
            }
            assert!(
                scan.length_reads.get() <= 2 * count + pieces,
                "pieces of {piece}"
            );
        }
    }

    fn refused(build: impl Fn(&mut RequestBuf<'_>)) -> WireError {
        let mut request = RequestBuf::new();
        build(&mut request);
        FrameScan::default()
            .advance(&request.to_bytes(), &WireLimits::default())
            .expect_err("too long")
    }

    #[cfg(feature = "extensions")]
    #[test]
    fn arguments_of_extensions_are_checked_on_the_length_word() {
        let (bytes, bytes_max) = ((8 << 20) + 1, 8 << 20);
        let error = refused(|r| {
            r.opcode(Opcode::WaitChange).raw_key(b"k");
            r.u64(0).u64(ANY_LENGTH).count((8 << 20) + 1);
        });
        assert_eq!(error.kind, WireErrorKind::ValueTooLong { bytes, bytes_max });
        let error = refused(|r| {
            r.opcode(Opcode::Announce).count((256 << 10) + 1);
        });
        let (bytes, bytes_max) = ((256 << 10) + 1, 256 << 10);
        assert_eq!(error.kind, WireErrorKind::ValueTooLong { bytes, bytes_max });
        let error = refused(|r| {
            r.opcode(Opcode::QueueTake).raw_key(b"q").count(0);
        });
        assert_eq!(error.kind, WireErrorKind::NothingToTake);
        let error = refused(|r| {
            r.opcode(Opcode::DeletePrefix).count(0);
        });
        assert_eq!(error.kind, WireErrorKind::EmptyPrefix);
    }

    #[test]
    fn limits_are_checked_on_the_length_word() {
        let error = refused(|r| {
            r.opcode(Opcode::Set).count(8193);
        });
        let (bytes, bytes_max) = (8193, 8192);
        assert_eq!(error.kind, WireErrorKind::KeyTooLong { bytes, bytes_max });
        assert_eq!((error.opcode, error.offset), (Some(Opcode::Set), 1));
        let error = refused(|r| {
            r.opcode(Opcode::Append).raw_key(b"k").count((8 << 20) + 1);
        });
        let (bytes, bytes_max) = ((8 << 20) + 1, 8 << 20);
        assert_eq!(error.kind, WireErrorKind::ValueTooLong { bytes, bytes_max });
        let error = refused(|r| {
            r.opcode(Opcode::Wait).count(usize::MAX);
        });
        let (keys, keys_max) = (u64::MAX, 131_072);
        assert_eq!(error.kind, WireErrorKind::TooManyKeys { keys, keys_max });
        assert_eq!(
            error.to_string(),
            "Wait, byte 1: 18446744073709551615 keys, limit 131072"
        );
    }
}
