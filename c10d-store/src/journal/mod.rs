//! Makes a store survive its process: an engine keeps the effects of requests in batches.
//!
//! The server's thread collects the effects of arriving requests while the engine keeps the previous batch; a
//! separate thread appends the batches. A reply waits until everything that it shows is durable; replies about other
//! keys do not wait. After a restart, the store has the contents of the newest snapshot and the batches after it.
//!
//! The engine is independent of keys, and this module of files: c10d-journal has an engine. Connections, waits and
//! sessions are not kept.

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
/// All calls are made from one thread, and none after an error: the server then stops without a reply to its clients.
/// The calls may block as long as the engine needs.
pub trait Journal: Send + fmt::Debug {
    /// Returns the identity of the kept store, with the number of this opening.
    fn identity(&self) -> JournalIdentity;

    /// Describes the store and its place, for messages: `/var/lib/c10d (SQLite)`.
    fn place(&self) -> String;

    /// Returns the permission to answer, for an engine that other processes may take over. The server calls this
    /// once, after [`recover`](Self::recover). `None` if only this process can serve, as long as it lives.
    fn authority(&self) -> Option<Authority> {
        None
    }

    /// Returns the versions of the format that this process reads.
    fn formats(&self) -> Formats {
        Formats::OWN
    }

    /// Returns the version of the next batches and chunks: the version [recovered](Self::recover) or [agreed
    /// on](Self::agree_on_format) last.
    fn format(&self) -> u8 {
        self.formats().newest
    }

    /// Raises [`format`](Self::format) as far as all processes read it that may serve the journal next. The server
    /// calls this before it starts a snapshot, until the version is its newest. Returns the version.
    ///
    /// # Errors
    /// [`JournalError`] of the engine.
    fn agree_on_format(&mut self) -> Result<u8, JournalError> {
        Ok(self.format())
    }

    /// Returns the number of bytes of batches since the last snapshot, after which the server starts the next
    /// snapshot. It does so only if they also exceed the size of the data.
    fn snapshot_after_bytes(&self) -> usize {
        64 << 20
    }

    /// Reads everything once, before anything is appended: the newest complete snapshot, chunk by chunk in the order
    /// they were written, then each batch after it, in order and without a gap. Returns the position of the last
    /// batch, or the position of the snapshot if no batch follows it, or 0.
    ///
    /// While another process leads, an engine that can follow it visits the batches of that process, and returns once
    /// this process leads. It may therefore block for days, until the `Cancel` that it was opened with interrupts it.
    /// [`Recovered::Restart`] makes all visited pieces void.
    ///
    /// # Errors
    /// [`JournalError`] of the engine, or of `visit`, which stops the reading; [`JournalError::Cancelled`].
    fn recover(
        &mut self,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError>;

    /// Keeps a batch. The batch is durable on return: a crash of the process or of the machine does not lose it.
    ///
    /// # Errors
    /// [`JournalError`] of the engine; the batch may be kept or not.
    fn append(&mut self, position: u64, batch: &[u8]) -> Result<(), JournalError>;

    /// Checks that the journal is still in its place, so that a server stops soon after its files were deleted. The server
    /// calls it twice a second while nothing is appended; [`append`](Self::append) is to check the same.
    ///
    /// # Errors
    /// [`JournalError`] of the engine.
    fn check(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    /// Starts a snapshot of everything up to this position. The batch of this position has been appended, and perhaps
    /// also the next batch. A snapshot in progress is dropped.
    ///
    /// # Errors
    /// [`JournalError`] of the engine.
    fn begin_snapshot(&mut self, position: u64) -> Result<(), JournalError>;

    /// Adds a chunk to the snapshot in progress. Batches are appended in between.
    ///
    /// # Errors
    /// [`JournalError`] of the engine.
    fn add_to_snapshot(&mut self, chunk: &[u8]) -> Result<(), JournalError>;

    /// Completes the snapshot in progress: on return it is durable, and [`recover`](Self::recover) starts with it.
    /// The engine deletes older snapshots and the batches that the snapshot contains, at once or little by little.
    ///
    /// # Errors
    /// [`JournalError`] of the engine.
    fn finish_snapshot(&mut self) -> Result<(), JournalError>;
}

/// The identity of the store of a journal, and how often it was opened. Final once everything is recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalIdentity {
    /// Random id of the store, generated with the journal.
    pub store: [u8; 16],
    /// The number of times that the store was opened to serve, 1 at the first. Below 2^32
    /// (docs/spec/wire-extensions.md, SESSION 12).
    pub epoch: u64,
}

/// A piece of the content of a journal.
#[derive(Debug, Clone, Copy)]
pub enum Recovered<'a> {
    /// A chunk of the snapshot of this position.
    Chunk {
        /// The position of the snapshot.
        position: u64,
        /// The bytes that were passed to [`Journal::add_to_snapshot`].
        bytes: &'a [u8],
    },
    /// The pieces visited so far are void, because the engine has lost its place in the log: everything follows
    /// again, beginning with a snapshot.
    Restart,
    /// A batch that was appended after that snapshot.
    Batch {
        /// The position that was passed to [`Journal::append`].
        position: u64,
        /// The bytes that were passed to [`Journal::append`].
        bytes: &'a [u8],
    },
}
