//! Errors of journals.

use std::error::Error;

/// A failure of an engine. Data that was not durable before it may be lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The engine failed in an operation.
    #[error("cannot {operation} the journal {place}: {source}")]
    Engine {
        /// The operation of the engine: `open`, `append to`, `write a snapshot into`.
        operation: &'static str,
        /// The place of the journal: see [`Journal::place`](super::Journal::place).
        place: String,
        /// The engine's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Another process serves this journal.
    #[error("the journal {place} is in use{}", by(.owner))]
    InUse {
        /// The place of the journal: see [`Journal::place`](super::Journal::place).
        place: String,
        /// The owner, if it is known: process and host.
        owner: Option<String>,
    },
    /// Another process leads now, or may lead.
    #[error("another process has taken over the journal {place}: {reason}")]
    Deposed {
        /// The place of the journal: see [`Journal::place`](super::Journal::place).
        place: String,
        /// The finding of the engine.
        reason: String,
    },
    /// The server was stopped before it led.
    #[error("cancelled while it waited for the journal {place}")]
    Cancelled {
        /// The place of the journal: see [`Journal::place`](super::Journal::place).
        place: String,
    },
    /// A later version of this program has written the journal.
    #[error(
        "the journal {place} has format {found}; this program reads up to format {known}, so a newer version of it is needed"
    )]
    Newer {
        /// The place of the journal: see [`Journal::place`](super::Journal::place).
        place: String,
        /// The format of the journal.
        found: u64,
        /// The newest that this program reads.
        known: u64,
    },
    /// An earlier version of this program has written the journal, and this version cannot read it.
    #[error(
        "the journal {place} has format {found}; this program reads format {known} and later, so a version that reads both must have written a snapshot first"
    )]
    Older {
        /// The place of the journal: see [`Journal::place`](super::Journal::place).
        place: String,
        /// The format of the journal.
        found: u64,
        /// The oldest that this program reads.
        known: u64,
    },
    /// The journal has process groups, but the server has no groups: see [`groups`](crate::groups).
    #[error("the store of the journal {place} has groups; serve it with c10d store serve")]
    HasGroups {
        /// The place of the journal: see [`Journal::place`](super::Journal::place).
        place: String,
    },
    /// The kept data differs from the written data.
    #[error("the journal {place} is damaged: {what}")]
    Damaged {
        /// The place of the journal: see [`Journal::place`](super::Journal::place).
        place: String,
        /// The description of the damage.
        what: String,
    },
}

/// A batch, or a chunk of a snapshot, whose bytes have changed since it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("batch {position} {what}")]
pub struct DamagedBatch {
    /// The position of the batch or snapshot.
    pub position: u64,
    /// The kind of the damage.
    pub what: &'static str,
}

fn by(owner: &Option<String>) -> String {
    owner
        .as_ref()
        .map_or_else(String::new, |owner| format!(" by {owner}"))
}
