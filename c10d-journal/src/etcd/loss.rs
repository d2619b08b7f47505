//! The part of a store that a process has read or written, and that etcd must still have.
//!
//! Pure. etcd can lose data that it has confirmed: it is restored from a copy or emptied, keys are deleted, or a member returns
//! with an older disk. A process that leads or follows detects this. It stops, and leaves a [mark](Layout::lost), because processes
//! that start later would serve the rest.

use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use c10d_socket::printable;
use c10d_store::journal::JournalError;
use serde_json::{Value, json};

use crate::etcd::layout::{Head, Layout, Leader};
use crate::etcd::message::{Compare, KeyValue, Keys, Op, Range, Request, Txn};

/// The most characters that are shown of a mark.
const FOUND_CHARS_MAX: usize = 400;

const NO_HEAD: &str = "its head is missing";

/// Up to where a process has followed or led a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    store: [u8; 16],
    epoch: u64,
    position: u64,
    /// Identifies the batch at this position; `None` if it was not read.
    record: Option<u64>,
}

/// Reasons why a process cannot continue with the data in etcd.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// etcd lacks data that this process has read or written, which must be reported to other processes.
    Lost(String),
    /// Another process leads, or may.
    Deposed(Option<Leader>),
    Other(JournalError),
}

/// The data of etcd, after the check that nothing is lost.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) leader: Option<KeyValue>,
    pub(crate) head: Option<Head>,
    /// The revision at which the head was written; 0 without a head.
    pub(crate) head_revision: u64,
}

impl Known {
    pub(crate) const fn of(head: &Head, record: Option<u64>) -> Self {
        Self {
            store: head.store,
            epoch: head.epoch,
            position: head.position,
            record,
        }
    }

    /// Has followed on to this batch.
    pub(crate) fn follow(&mut self, position: u64, record: u64) {
        if position >= self.position {
            (self.position, self.record) = (position, Some(record));
        }
    }

    /// Adds the later data of the other process of the same store.
    fn join(&mut self, other: &Self) {
        self.epoch = self.epoch.max(other.epoch);
        if other.position > self.position
            || other.position == self.position && self.record.is_none()
        {
            (self.position, self.record) = (other.position, other.record);
        }
    }

    /// Adds `known` to the data that was kept so far.
    pub(crate) fn keep(kept: &mut Option<Self>, known: Option<&Self>) {
        match (kept, known) {
            (Some(kept), Some(known)) => kept.join(known),
            (kept, Some(known)) => *kept = Some(known.clone()),
            (_, None) => {}
        }
    }

    /// The rule. `record` is what etcd has at this position of the log.
    pub(crate) fn check(&self, head: Option<&Head>, record: Option<&Keys>) -> Result<(), String> {
        let Some(head) = head else {
            return Err(NO_HEAD.to_owned());
        };
        if head.store != self.store {
            return Err("its head is of another store".to_owned());
        }
        let (epoch, position) = (head.epoch, head.position);
        if epoch < self.epoch || position < self.position {
            return Err(format!("its head is of batch {position}, epoch {epoch}"));
        }
        let own = self.position;
        if own <= head.snapshot_position() {
            return Ok(());
        }
        match (record.map(Keys::first), self.record) {
            (Some(None), _) => Err(format!("batch {own} is missing")),
            (Some(Some(found)), Some(record)) if record_of(&found.value) != record => {
                Err(format!("batch {own} is a different one"))
            }
            _ => Ok(()),
        }
    }

    /// The text for users.
    pub(crate) fn lost(&self, layout: &Layout, found: &str) -> String {
        let Self {
            epoch, position, ..
        } = self;
        let advice = match found {
            NO_HEAD => begin_anew(layout),
            _ => format!("to serve the rest, delete {}", layout.lost()),
        };
        format!(
            "{found}, but batch {position} of epoch {epoch} was there: etcd's data has gone back; {advice}"
        )
    }
}

/// The advice without a head, for nothing can be served.
fn begin_anew(layout: &Layout) -> String {
    let prefix = layout.prefix();
    format!("to begin with an empty store, delete all keys that begin with {prefix}/")
}

impl Unfit {
    pub(crate) fn into_error(self, layout: &Layout) -> JournalError {
        match self {
            Self::Lost(what) => layout.damaged(what),
            Self::Deposed(leader) => Stopped::Deposed(leader).into_error(layout, "lead"),
            Self::Other(error) => error,
        }
    }
}

/// Identifies the value of a key of the log.
pub(crate) fn record_of(value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(value);
    hasher.finish()
}

/// Like the full check, but without the value of the last batch, which can be large: the leader checks this every
/// second.
pub(crate) fn glimpse(layout: &Layout, known: Option<&Known>) -> Vec<Op> {
    let mut look = sight(layout, known);
    if let Some(Op::Range(log)) = look.last_mut() {
        log.is_without_values = true;
    }
    look
}

/// What to read for [`judge`].
pub(crate) fn sight(layout: &Layout, known: Option<&Known>) -> Vec<Op> {
    let log = match known {
        Some(known) if known.position > 0 => Range::key(layout.log(known.position)),
        // Anything of a store, which has a head.
        _ => Range {
            end: Some(layout.snapshots_end()),
            limit: 1,
            ..Range::key(layout.log(0))
        },
    };
    let keys = [layout.leader(), layout.head(), layout.lost()].map(Range::key);
    keys.into_iter().chain([log]).map(Op::Range).collect()
}

/// The comparison for a process that has found no head: since then, another process can have written a head, and etcd
/// can have lost it.
pub(crate) fn nothing_of_a_store(layout: &Layout) -> Compare {
    Compare::NoneCreatedAfter {
        key: layout.log(0),
        end: layout.snapshots_end(),
        revision: 0,
    }
}

/// Checks that the [answer](sight) has everything that is known.
pub(crate) fn judge(
    layout: &Layout,
    known: Option<&Known>,
    ranges: &[Keys],
) -> Result<Sight, Unfit> {
    let [leader, head, lost, log] = ranges else {
        let error = Stopped::Broken.into_error(layout, "read");
        return Err(Unfit::Other(error));
    };
    if let Some(lost) = lost.first() {
        return Err(Unfit::Other(layout.damaged(found_in(&lost.value))));
    }
    let head_revision = head.first().map_or(0, |it| it.modified);
    let head = head.first().map(|it| layout.parse_head(&it.value));
    let head = head.transpose().map_err(Unfit::Other)?;
    match known {
        Some(known) => {
            let record = (known.position > 0).then_some(log);
            let checked = known.check(head.as_ref(), record);
            checked.map_err(|found| Unfit::Lost(known.lost(layout, &found)))?;
        }
        None if head.is_none() && log.first().is_some() => {
            let advice = begin_anew(layout);
            let what = format!("{NO_HEAD}, though batches or a snapshot are there; {advice}");
            return Err(Unfit::Other(layout.damaged(what)));
        }
        None => {}
    }
    Ok(Sight {
        leader: leader.first().cloned(),
        head,
        head_revision,
    })
}

/// Checks the same of a [`glimpse`] for the leader with this writer, and that its key is there.
pub(crate) fn judge_leader(
    layout: &Layout,
    known: Option<&Known>,
    writer: u64,
    ranges: &[Keys],
) -> Result<(), Unfit> {
    let known = known.map(|known| Known {
        record: None,
        ..known.clone()
    });
    let leader = judge(layout, known.as_ref(), ranges)?.leader;
    let leader = leader.and_then(|it| Leader::parse(&it.value));
    match leader {
        Some(leader) if leader.writer == writer => Ok(()),
        leader => Err(Unfit::Deposed(leader)),
    }
}

/// Reports the loss to other processes, unless another process has already reported it.
pub(crate) fn mark(layout: &Layout, what: &str) -> Request {
    Request::Txn(Txn {
        compare: vec![Compare::Created {
            key: layout.lost(),
            revision: 0,
        }],
        success: vec![Op::Put {
            key: layout.lost(),
            value: json!({ "found": what }).to_string().into_bytes(),
            lease: 0,
        }],
        failure: Vec::new(),
    })
}

/// The text of a mark.
pub(crate) fn found_in(mark: &[u8]) -> String {
    let mark: Option<Value> = serde_json::from_slice(mark).ok();
    let found = mark.as_ref().and_then(|mark| mark["found"].as_str());
    let found = found.unwrap_or("another server has found that etcd's data has gone back");
    printable(found, FOUND_CHARS_MAX).to_string()
}

/// The knowledge of all journals of one process: after a takeover, the process opens a new journal and is a standby.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Option<Known>>>);

impl Memory {
    pub(crate) fn get(&self) -> Option<Known> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    pub(crate) fn keep(&self, known: Option<&Known>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Known::keep(&mut kept, known);
    }
}

/// Options are equal, even if different data was read with them.
impl PartialEq for Memory {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Memory {}

/// Found by a leader whose write etcd refuses.
pub(crate) const OVERWRITTEN: &str = "its head is not what this leader has written";

/// Why a writer can write nothing more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// This process no longer leads. Another process may lead.
    Deposed(Option<Leader>),
    /// The head is not what this leader has written.
    Overwritten,
    /// etcd refuses the writes.
    Refused { code: u64, message: String },
    /// An answer is not one to its request.
    Broken,
}

impl Stopped {
    /// Converts it to the journal's error.
    pub(crate) fn into_error(self, layout: &Layout, operation: &'static str) -> JournalError {
        let place = layout.place();
        match self {
            Self::Deposed(leader) => JournalError::Deposed {
                place,
                reason: leader.map_or_else(
                    || "its lease has expired".to_owned(),
                    |leader| format!("{leader} leads now"),
                ),
            },
            Self::Overwritten => layout.damaged(OVERWRITTEN.to_owned()),
            Self::Refused { code, message } => {
                let advice = if message.contains("database space exceeded") {
                    "; compact and defragment etcd, then disarm its NOSPACE alarm"
                } else {
                    ""
                };
                JournalError::Engine {
                    operation,
                    place,
                    source: format!("etcd refuses: {message} (code {code}){advice}").into(),
                }
            }
            Self::Broken => JournalError::Engine {
                operation,
                place,
                source: "etcd's answer is not one to this request".into(),
            },
        }
    }
}
