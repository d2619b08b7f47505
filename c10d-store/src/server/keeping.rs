//! What the event loop of a store with a journal knows of it.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use mio::{Token, Waker};

use super::journal_thread::JournalThread;
use super::recover::OpenJournal;
use super::sessions::Sessions;
use crate::session::StoreId;
use crate::state::StoreState;

/// Beyond this many bytes of effects in no batch, requests wait.
pub(super) const GATHERED_BYTES_MAX: usize = 8 << 20;

/// Chunks of a snapshot in the memory. Copying waits until the thread has written some.
const CHUNK_BYTES_MAX: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) thread: JournalThread,
    /// What the loop knows to be durable.
    pub(super) durable: u64,
    /// Memory for a batch.
    pub(super) memory: Vec<u8>,
    /// The bytes of the batches since the last snapshot.
    pub(super) bytes_since_snapshot: usize,
    /// Whether a snapshot is being copied.
    pub(super) is_copying: bool,
    /// Connections whose requests wait, as too much is gathered.
    pub(super) paused: BTreeSet<Token>,
    /// Clients whose peers are told that requests are done when a position is durable, in its order.
    pub(super) done: VecDeque<(u64, Token, u32)>,
}

impl Keeping {
    /// Goes on with a journal. Returns the state and the sessions that it has kept.
    pub(super) fn start(
        open: OpenJournal,
        mut sessions: Sessions,
        waker: Arc<Waker>,
    ) -> io::Result<(StoreState, Sessions, Option<Self>)> {
        let identity = open.journal.identity();
        let store = StoreId::of_journal(&identity.store, identity.epoch);
        sessions.restore(store, open.carried, Instant::now());
        let keeping = Self {
            thread: JournalThread::start(open.journal, open.durable, waker)?,
            durable: open.durable,
            memory: Vec::new(),
            bytes_since_snapshot: open.batch_bytes,
            is_copying: false,
            paused: BTreeSet::new(),
            done: VecDeque::new(),
        };
        Ok((open.state, sessions, Some(keeping)))
    }

    /// Has the peer of a client told that this request is done, once the position is durable.
    pub(super) fn tell_later(&mut self, position: u64, token: Token, request: u32) {
        self.done.push_back((position, token, request));
    }

    /// Whether a snapshot for the journal is being copied, so that none of observers can start.
    pub(super) const fn is_copying(&self) -> bool {
        self.is_copying
    }

    /// Whether a snapshot can be copied further.
    pub(super) fn has_work(&self) -> bool {
        self.is_copying && self.thread.chunk_bytes() < CHUNK_BYTES_MAX
    }
}
