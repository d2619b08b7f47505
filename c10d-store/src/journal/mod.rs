//! What makes a store survive its process: the effects of its requests, kept in batches by an engine.
//!
//! The server's thread collects the effects of what arrives while the engine keeps the batch before; a thread
//! of its own appends them. A reply waits until everything that it shows is durable, replies about other keys do not.
//! After a restart the store is what the newest snapshot and the batches after it say.
//!
//! The engine knows no keys, and this module knows no files: c10d-journal has an engine. Connections, waits and sessions are not kept.

mod authority;
pub(crate) mod batch;
pub(crate) mod contents;
mod error;
pub(crate) mod format;
mod source;

use std::fmt;

pub use authority::Authority;
pub use error::{DamagedBatch, JournalError};
pub use format::Formats;
pub use source::{JournalFailed, JournalSource, OpenJournal};

/// An engine that keeps batches of effects, each under its position: 1, 2, 3, ...
///
/// All calls come from one thread, and none after an error: the server then ends without a word to its clients.
/// They block as long as the engine needs.
pub trait Journal: Send + fmt::Debug {
    /// What is kept, by name and number.
    fn identity(&self) -> JournalIdentity;

    /// What is kept and where, for messages: `/var/lib/c10d (SQLite)`.
    fn place(&self) -> String;

    /// Until when the server may answer, for an engine that other processes may take over. It is asked for once, after
    /// [`recover`](Self::recover). `None` if only this process can serve, as long as it lives.
    fn authority(&self) -> Option<Authority> {
        None
    }

    /// The versions of the format that this process reads.
    fn formats(&self) -> Formats {
        Formats::OWN
    }

    /// The version that batches and chunks have next, [recovered](Self::recover) or [agreed on](Self::agree_on_format) last.
    fn format(&self) -> u8 {
        self.formats().newest
    }

    /// Raises [`format`](Self::format) as far as all processes read it that may serve the journal next. The server asks before it
    /// starts a snapshot, until the version is its newest.
    ///
    /// # Errors
    /// [`JournalError`].
    fn agree_on_format(&mut self) -> Result<u8, JournalError> {
        Ok(self.format())
    }

    /// With this many bytes of batches since the last snapshot, or as many as the data has, the server starts the next one.
    fn snapshot_after_bytes(&self) -> usize {
        64 << 20
    }

    /// Reads everything once, before anything is appended: the newest complete snapshot, chunk by chunk in the order
    /// they were written, then each batch after it, in order and without a gap. Returns the position of the last batch,
    /// or that of the snapshot if there is none after it, or 0.
    ///
    /// While another process leads, an engine that can follow it visits what that appends, and returns once this process
    /// leads: so it may block for days, until the `Cancel` that it was opened with. What was visited becomes void by
    /// [`Recovered::Restart`].
    ///
    /// # Errors
    /// [`JournalError`] of the engine, or of `visit`, which ends the reading; [`JournalError::Cancelled`].
    fn recover(
        &mut self,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError>;

    /// Keeps a batch. It is durable on return: neither the end of the process nor that of the machine loses it.
    ///
    /// # Errors
    /// [`JournalError`]; the batch may be kept or not.
    fn append(&mut self, position: u64, batch: &[u8]) -> Result<(), JournalError>;

    /// Checks that the journal is still in its place, so that a server stops soon after its files were deleted. The server
    /// calls it twice a second while nothing is appended; [`append`](Self::append) is to check the same.
    ///
    /// # Errors
    /// [`JournalError`].
    fn check(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    /// Starts a snapshot of everything up to this position. It has been appended, and perhaps the next one. A snapshot in
    /// progress is dropped.
    ///
    /// # Errors
    /// [`JournalError`].
    fn begin_snapshot(&mut self, position: u64) -> Result<(), JournalError>;

    /// Adds a chunk to the snapshot in progress. Batches are appended in between.
    ///
    /// # Errors
    /// [`JournalError`].
    fn add_to_snapshot(&mut self, chunk: &[u8]) -> Result<(), JournalError>;

    /// The snapshot in progress is complete: on return it is durable, and [`recover`](Self::recover) starts with it. The
    /// engine lets go of older ones and of the batches that it contains, at once or little by little.
    ///
    /// # Errors
    /// [`JournalError`].
    fn finish_snapshot(&mut self) -> Result<(), JournalError>;
}

/// Which store a journal is of, and how often it was opened. Final once everything is recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalIdentity {
    /// Random, made with the journal.
    pub store: [u8; 16],
    /// Rises with each opening to serve; 1 at the first. Below 2^32 (docs/spec/wire-extensions.md, SESSION 12).
    pub epoch: u64,
}

/// A piece of what a journal has kept.
#[derive(Debug, Clone, Copy)]
pub enum Recovered<'a> {
    /// A chunk of the snapshot of this position.
    Chunk {
        /// The position of the snapshot.
        position: u64,
        /// As given to [`Journal::add_to_snapshot`].
        bytes: &'a [u8],
    },
    /// What was visited before is void, as the engine has lost the thread: everything follows anew, a snapshot first.
    Restart,
    /// What was appended after that snapshot.
    Batch {
        /// As given to [`Journal::append`].
        position: u64,
        /// The same.
        bytes: &'a [u8],
    },
}
