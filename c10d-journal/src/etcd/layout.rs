//! The keys of the journal in etcd, and their values.
//!
//! | key, after the prefix and `/` | value |
//! |---|---|
//! | `leader` | the leader; expires with the lease of the leader |
//! | `candidates/WRITER` | a process that may lead, and its position in the log; expires with a separate lease |
//! | `head` | the position of the last batch, written with each batch |
//! | `log/POSITION` | a batch, or its last part |
//! | `part/POSITION-WRITER/NUMBER` | a part of a batch that is too large for one transaction |
//! | `lost` | a loss of data in etcd that a process has found: no process leads while this is there |
//! | `snapshot/POSITION-WRITER-SERIAL/NUMBER` | a part of a snapshot |
//!
//! Numbers in keys are in hexadecimal with leading zeros, so that etcd orders keys by number.

use std::fmt;

use c10d_socket::printable;
use c10d_store::journal::{Formats, JournalError};
use serde_json::{Value, json};

/// The format of the descriptions of processes.
const FORMAT: u64 = 1;

/// The most bytes of a value. etcd takes requests of 1.5 MiB.
pub(crate) const VALUE_BYTES_MAX: usize = 1 << 20;

/// The keys of one journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    prefix: String,
    /// How many bytes of a batch or a chunk go into one value.
    pub(crate) part_bytes: usize,
    /// The versions of the journal that this process reads.
    pub(crate) formats: Formats,
}

/// The state of the log, and the process that wrote this head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// The newest format version of the values below the prefix.
    pub(crate) format: u8,
    pub(crate) store: [u8; 16],
    /// How often the journal was opened to serve.
    pub(crate) epoch: u64,
    /// The position of the last batch; 0 before the first.
    pub(crate) position: u64,
    /// Random, one for each candidate of this epoch.
    pub(crate) writer: u64,
    /// The number of the commit among the writer's commits. Together with the writer, it identifies the commit.
    pub(crate) commit: u64,
    /// The bytes of the batches after the snapshot. `None` if the previous release has written it, until the next
    /// snapshot.
    pub(crate) log_bytes: Option<u64>,
    pub(crate) snapshot: Option<Snapshot>,
    /// The takeover of its writer, if another process had led.
    pub(crate) takeover: Option<Takeover>,
}

/// A complete snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) position: u64,
    pub(crate) writer: u64,
    /// Which of that writer's snapshots this is.
    pub(crate) serial: u64,
    /// How many parts it has.
    pub(crate) parts: u64,
    /// The bytes of its chunks. `None` if the previous release has written it.
    pub(crate) bytes: Option<u64>,
}

/// A process that has taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Takeover {
    /// The address of the previous leader.
    pub(crate) address: String,
    pub(crate) process: u64,
    pub(crate) host: String,
    /// Seconds since 1970, by the clock of the process after it.
    pub(crate) at: u64,
    /// The time from the moment when the new leader noticed the end of the previous leader.
    pub(crate) millis: u64,
}

/// The process that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leader {
    /// The address of its store.
    pub(crate) address: String,
    pub(crate) process: u64,
    pub(crate) host: String,
    /// Seconds since 1970, by its clock.
    pub(crate) since: u64,
    /// Random, one for each candidacy.
    pub(crate) writer: u64,
    /// The address where standbys can detect the exit of its process, if there is one.
    pub(crate) life: Option<Life>,
}

/// A listener of a process that holds every connection until it has ended: `life_line`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    /// The port, at the host of the leader's address.
    pub(crate) port: u16,
    /// A random number that identifies the listener.
    pub(crate) id: u64,
}

/// The entry of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registered {
    /// Its entry as a leader; the writer is the one of its first candidacy.
    pub(crate) leader: Leader,
    /// The last batch that it has read or written.
    pub(crate) position: u64,
    /// The versions of the journal that it reads.
    pub(crate) formats: Formats,
}

impl Layout {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.trim_end_matches('/').to_owned(),
            // The prefix of the parts is shorter.
            part_bytes: VALUE_BYTES_MAX - 64,
            formats: Formats::OWN,
        }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    pub(crate) fn leader(&self) -> String {
        self.key("leader")
    }

    pub(crate) fn candidate(&self, writer: u64) -> String {
        self.key(&format!("candidates/{writer:016x}"))
    }

    /// Returns the keys before and after all candidates.
    pub(crate) fn candidates(&self) -> (String, String) {
        (self.key("candidates/"), self.key("candidates0"))
    }

    pub(crate) fn head(&self) -> String {
        self.key("head")
    }

    /// Written by a process that has read more than etcd has now.
    pub(crate) fn lost(&self) -> String {
        self.key("lost")
    }

    pub(crate) fn log(&self, position: u64) -> String {
        self.key(&format!("log/{position:016x}"))
    }

    /// Returns a key after every key of the log.
    pub(crate) fn log_end(&self) -> String {
        self.key("log0")
    }

    /// The position of a key of the log.
    pub(crate) fn log_position(&self, key: &str) -> Option<u64> {
        let name = key.strip_prefix(&self.prefix)?.strip_prefix("/log/")?;
        (name.len() == 16).then(|| u64::from_str_radix(name, 16).ok())?
    }

    pub(crate) fn part(&self, position: u64, writer: u64, number: u64) -> String {
        self.key(&format!("part/{position:016x}-{writer:016x}/{number:08x}"))
    }

    /// Returns a key before every part of the batches from this position on.
    pub(crate) fn parts_from(&self, position: u64) -> String {
        self.key(&format!("part/{position:016x}"))
    }

    pub(crate) fn snapshot(&self, snapshot: &Snapshot, number: u64) -> String {
        let Snapshot {
            position,
            writer,
            serial,
            ..
        } = snapshot;
        self.key(&format!(
            "snapshot/{position:016x}-{writer:016x}-{serial:08x}/{number:08x}"
        ))
    }

    /// Returns a key before every part of every snapshot.
    pub(crate) fn snapshots(&self) -> String {
        self.key("snapshot/")
    }

    /// Returns a key after every part of every snapshot.
    pub(crate) fn snapshots_end(&self) -> String {
        self.key("snapshot0")
    }

    /// The range that a standby watches: `leader` and the log, from the first key to before the second.
    pub(crate) fn watched(&self) -> (String, String) {
        (self.leader(), self.log_end())
    }

    pub(crate) fn place(&self) -> String {
        format!("{} (etcd)", self.prefix)
    }

    pub(crate) fn damaged(&self, what: String) -> JournalError {
        JournalError::Damaged {
            place: self.place(),
            what,
        }
    }

    /// The head of a journal that this process reads.
    pub(crate) fn parse_head(&self, value: &[u8]) -> Result<Head, JournalError> {
        let head: Option<Value> = serde_json::from_slice(value).ok();
        if let Some(found) = head.as_ref().and_then(|head| head["format"].as_u64()) {
            self.formats.check(found, || self.place())?;
        }
        self.parse_head_of_any(value)
    }

    /// The head of a journal of any version: later versions have these fields as well, for clients that look up the
    /// leader.
    pub(crate) fn parse_head_of_any(&self, value: &[u8]) -> Result<Head, JournalError> {
        let head: Option<Value> = serde_json::from_slice(value).ok();
        head.as_ref()
            .and_then(Head::from_json)
            .ok_or_else(|| self.damaged("its head cannot be read".to_owned()))
    }
}

impl Head {
    /// The head of an empty store, before its first opening.
    pub(crate) const fn new(store: [u8; 16], format: u8) -> Self {
        Self {
            format,
            store,
            epoch: 0,
            position: 0,
            writer: 0,
            commit: 0,
            log_bytes: Some(0),
            snapshot: None,
            takeover: None,
        }
    }

    /// The position of the snapshot; 0 without one.
    pub(crate) fn snapshot_position(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |it| it.position)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let snapshot = self.snapshot.as_ref().map(|snapshot| {
            json!({
                "position": snapshot.position,
                "writer": hex(snapshot.writer),
                "serial": snapshot.serial,
                "parts": snapshot.parts,
                "bytes": snapshot.bytes,
            })
        });
        let store: String = self
            .store
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let takeover = self.takeover.as_ref().map(|takeover| {
            json!({
                "address": takeover.address,
                "process": takeover.process,
                "host": takeover.host,
                "at": takeover.at,
                "millis": takeover.millis,
            })
        });
        let head = json!({
            "format": self.format,
            "store": store,
            "epoch": self.epoch,
            "position": self.position,
            "writer": hex(self.writer),
            "commit": self.commit,
            "log_bytes": self.log_bytes,
            "snapshot": snapshot,
            "takeover": takeover,
        });
        head.to_string().into_bytes()
    }

    fn from_json(head: &Value) -> Option<Self> {
        let snapshot = match &head["snapshot"] {
            Value::Null => None,
            snapshot => Some(Snapshot {
                position: snapshot["position"].as_u64()?,
                writer: from_hex(&snapshot["writer"])?,
                serial: snapshot["serial"].as_u64()?,
                parts: snapshot["parts"].as_u64()?,
                bytes: snapshot["bytes"].as_u64(),
            }),
        };
        let position = head["position"].as_u64()?;
        if snapshot.as_ref().is_some_and(|it| it.position > position) {
            return None;
        }
        Some(Self {
            format: head["format"].as_u64()?.try_into().ok()?,
            store: parse_store(head["store"].as_str()?)?,
            epoch: head["epoch"].as_u64()?,
            position,
            writer: from_hex(&head["writer"])?,
            commit: head["commit"].as_u64()?,
            log_bytes: head["log_bytes"].as_u64(),
            snapshot,
            takeover: Takeover::parse(&head["takeover"]),
        })
    }
}

impl Takeover {
    fn parse(takeover: &Value) -> Option<Self> {
        let text = |name: &str| Some(takeover[name].as_str()?.to_owned());
        Some(Self {
            address: text("address")?,
            process: takeover["process"].as_u64()?,
            host: text("host")?,
            at: takeover["at"].as_u64()?,
            millis: takeover["millis"].as_u64()?,
        })
    }
}

impl Registered {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut candidate = self.leader.to_json();
        candidate["position"] = self.position.into();
        candidate["reads"] = json!([self.formats.oldest, self.formats.newest]);
        candidate.to_string().into_bytes()
    }

    /// `None` if it is not of this format.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let candidate: Value = serde_json::from_slice(value).ok()?;
        Some(Self {
            leader: Leader::parse(value)?,
            position: candidate["position"].as_u64()?,
            formats: match &candidate["reads"] {
                Value::Null => Formats::UNSAID,
                reads => Formats {
                    oldest: reads[0].as_u64()?.try_into().ok()?,
                    newest: reads[1].as_u64()?.try_into().ok()?,
                },
            },
        })
    }
}

impl Leader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.to_json().to_string().into_bytes()
    }

    fn to_json(&self) -> Value {
        let mut leader = json!({
            "format": FORMAT,
            "address": self.address,
            "process": self.process,
            "host": self.host,
            "since": self.since,
            "writer": hex(self.writer),
        });
        if let Some(life) = self.life {
            leader["life"] = json!({"port": life.port, "id": hex(life.id)});
        }
        leader
    }

    /// `None` if it is not of this format.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let leader: Value = serde_json::from_slice(value).ok()?;
        let text = |name: &str| Some(leader[name].as_str()?.to_owned());
        Some(Self {
            address: text("address")?,
            process: leader["process"].as_u64()?,
            host: text("host")?,
            since: leader["since"].as_u64()?,
            writer: from_hex(&leader["writer"])?,
            life: Life::parse(&leader["life"]),
        })
    }
}

impl Life {
    fn parse(life: &Value) -> Option<Self> {
        Some(Self {
            port: life["port"].as_u64()?.try_into().ok()?,
            id: from_hex(&life["id"])?,
        })
    }
}

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            process,
            host,
            ..
        } = self;
        // Another process has written them.
        let (host, address) = (printable(host, 255), printable(address, 300));
        write!(f, "process {process} on {host}, which serves at {address}")
    }
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

fn from_hex(value: &Value) -> Option<u64> {
    let text = value.as_str().filter(|text| text.len() == 16)?;
    u64::from_str_radix(text, 16).ok()
}

fn parse_store(text: &str) -> Option<[u8; 16]> {
    let digits = text.as_bytes();
    let mut store = [0; 16];
    for (byte, pair) in store.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    (digits.len() == 32).then_some(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let layout = Layout::new("c10d/job/");
        let snapshot = Snapshot {
            position: 5,
            writer: u64::MAX,
            serial: 2,
            parts: 3,
            bytes: Some(70),
        };
        let head = Head {
            format: 1,
            store: [0xab; 16],
            epoch: 7,
            position: 9,
            writer: 1 << 63,
            commit: 4,
            log_bytes: Some(1 << 40),
            snapshot: Some(snapshot),
            takeover: Some(Takeover {
                address: "node0:29500".to_owned(),
                process: 17,
                host: "node0".to_owned(),
                at: 1,
                millis: 30,
            }),
        };
        for head in [head.clone(), Head::new([7; 16], 1)] {
            assert_eq!(layout.parse_head(&head.encode()).expect("a head"), head);
        }
        let newer = br#"{"format":2}"#;
        let error = layout.parse_head(newer).expect_err("a newer one");
        assert!(matches!(error, JournalError::Newer { found: 2, .. }));
        let mut raised = head.clone();
        raised.format = 2;
        layout
            .parse_head(&raised.encode())
            .expect_err("a newer one");
        let any = layout.parse_head_of_any(&raised.encode());
        assert_eq!(any.expect("its leader can be found"), raised);
        let mut wrong = head;
        wrong.position = 4;
        for bytes in [b"".as_slice(), b"{}", &wrong.encode()] {
            let error = layout.parse_head(bytes).expect_err("none");
            assert!(matches!(error, JournalError::Damaged { .. }));
        }
    }

    #[test]
    fn the_keys_are_in_the_order_that_ranges_need() {
        let layout = Layout::new("p");
        let (from, to) = layout.watched();
        let is_watched = |key: &str| *from <= *key && *key < *to;
        assert!(is_watched(&layout.leader()) && is_watched(&layout.log(u64::MAX)));
        assert!(!is_watched(&layout.head()) && !is_watched(&layout.part(1, 2, 3)));
        assert_eq!(layout.log_position(&layout.log(300)), Some(300));
        assert_eq!(layout.log_position(&layout.head()), None);
        assert!(layout.parts_from(3) <= layout.part(3, 0, 0));
        assert!(layout.part(3, u64::MAX, 0) < layout.parts_from(4));
    }

    #[test]
    fn a_leader_is_read_as_it_was_written() {
        let mut leader = Leader {
            address: "node0:29500".to_owned(),
            process: 17,
            host: "node0".to_owned(),
            since: 1,
            writer: 3,
            life: None,
        };
        assert_eq!(Leader::parse(&leader.encode()), Some(leader.clone()));
        leader.life = Some(Life { port: 7, id: 9 });
        assert_eq!(Leader::parse(&leader.encode()), Some(leader.clone()));
        let candidate = Registered {
            leader,
            position: 5,
            formats: Formats {
                oldest: 2,
                newest: 3,
            },
        };
        assert_eq!(
            Registered::parse(&candidate.encode()),
            Some(candidate.clone())
        );
        // Of the release before versions were negotiated.
        let mut silent: Value = serde_json::from_slice(&candidate.encode()).expect("JSON");
        silent.as_object_mut().expect("fields").remove("reads");
        let silent = Registered::parse(silent.to_string().as_bytes()).expect("a candidate");
        assert_eq!(silent.formats, Formats::UNSAID);
        assert_eq!(Registered::parse(&candidate.leader.encode()), None);
        assert_eq!(Leader::parse(b"[1]"), None);
    }
}
