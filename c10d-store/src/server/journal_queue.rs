//! The event loop's view of the journal of its store.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::task::Wake;
use std::time::{Duration, Instant};

use c10d_socket::Moment;
use mio::{Token, Waker};

use super::batch_delay::BatchDelay;
use super::journal_thread::JournalThread;
use super::recover::OpenJournal;
use super::sessions::Sessions;
use crate::journal::Authority;
use crate::session::StoreId;
use crate::state::StoreState;

/// Beyond this many bytes of effects in no batch, requests wait.
pub(super) const GATHERED_BYTES_MAX: usize = 8 << 20;

/// Chunks of a snapshot in the memory. Copying waits until the thread has written some.
const CHUNK_BYTES_MAX: usize = 4 << 20;

/// How long a session that has returned at the last moment has to send its requests again.
const RESENT_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct JournalQueue {
    pub(super) thread: JournalThread,
    /// The last position that the event loop has recorded as durable.
    pub(super) durable: u64,
    /// Memory for a batch.
    pub(super) memory: Vec<u8>,
    pub(super) hold: BatchDelay,
    /// The bytes of the batches since the last snapshot.
    pub(super) bytes_since_snapshot: usize,
    /// The number of bytes of batches after which the journal wants a snapshot.
    pub(super) snapshot_after_bytes: usize,
    /// Whether a snapshot is being copied.
    pub(super) is_copying: bool,
    /// The version of the format that batches have, and the newest that this process writes.
    format: (u8, u8),
    /// Whether the other servers are being asked whether they read a newer version.
    is_agreeing: bool,
    /// Connections whose requests wait, as too much is gathered.
    pub(super) paused: BTreeSet<Token>,
    /// The time limit for sending, if another process can take over.
    pub(super) authority: Option<Authority>,
    /// Connections that are flushed once something may be sent.
    pub(super) withheld: BTreeSet<Token>,
    /// Clients whose requests are reported to their peers as done when a position is durable, in its order.
    pub(super) done: VecDeque<(u64, Token, u32)>,
    /// The time until sessions of earlier servers may return, and send their waits again.
    pub(super) ends_until: Option<Instant>,
}

impl JournalQueue {
    /// Continues with a journal. Returns the kept state and sessions.
    pub(super) fn start(
        open: OpenJournal,
        mut sessions: Sessions,
        waker: Arc<Waker>,
    ) -> io::Result<(StoreState, Sessions, Option<Self>)> {
        let identity = open.journal.identity();
        let store = StoreId::of_journal(&identity.store, identity.epoch);
        // 0 means that there is none.
        let begins = open.durable + 1;
        let may_come_back = open.carried.sessions().next().is_some();
        let expires = sessions.restore(store, begins, open.carried, Instant::now());
        let mut state = open.state;
        match u32::try_from(identity.epoch) {
            Ok(number) if may_come_back => state.expect_sessions(number),
            _ => state.forget_ends(),
        }
        let authority = open.journal.authority();
        let format = (open.journal.format(), open.journal.formats().newest);
        if let Some(authority) = &authority {
            authority.set_waker(Arc::new(WakeLoop(Arc::clone(&waker))).into());
        }
        let keeping = Self {
            snapshot_after_bytes: open.journal.snapshot_after_bytes(),
            authority,
            withheld: BTreeSet::new(),
            thread: JournalThread::start(open.journal, open.cancel, open.durable, waker)?,
            durable: open.durable,
            memory: Vec::new(),
            hold: BatchDelay::default(),
            bytes_since_snapshot: open.batch_bytes,
            is_copying: false,
            format,
            is_agreeing: false,
            paused: BTreeSet::new(),
            done: VecDeque::new(),
            ends_until: expires.and_then(|at| at.checked_add(RESENT_WITHIN)),
        };
        Ok((state, sessions, Some(keeping)))
    }

    /// Takes the connections to be flushed if something may be sent now. Otherwise, returns no connections, and the next extension
    /// of the authority wakes the event loop.
    pub(super) fn take_withheld(&mut self) -> BTreeSet<Token> {
        if self.is_authorized_or_woken() {
            std::mem::take(&mut self.withheld)
        } else {
            BTreeSet::new()
        }
    }

    /// Whether something may be sent now.
    pub(super) fn may_send(&self) -> bool {
        let authority = self.authority.as_ref();
        authority.is_none_or(|it| it.is_valid(Moment::now()))
    }

    fn is_authorized_or_woken(&self) -> bool {
        let authority = self.authority.as_ref();
        authority.is_none_or(|it| it.await_extension(Moment::now))
    }

    /// The version of the format for a due snapshot and for the batches after it. `None` until the other servers have
    /// been asked whether they read a newer version by now.
    pub(super) fn agreed_format(&mut self) -> Option<u8> {
        let (format, newest) = &mut self.format;
        if self.is_agreeing {
            *format = self.thread.format()?;
            self.is_agreeing = false;
        } else if *format < *newest {
            self.is_agreeing = true;
            self.thread.ask_for_format();
            return None;
        }
        Some(*format)
    }

    /// Queues the message to a client's peer that this request is done. It is sent once the position is durable.
    pub(super) fn tell_later(&mut self, position: u64, token: Token, request: u32) {
        self.done.push_back((position, token, request));
    }

    /// Whether a snapshot for the journal is being copied, so that no snapshot for observers can start.
    pub(super) const fn is_copying(&self) -> bool {
        self.is_copying
    }

    /// Whether connections are to be flushed that had to wait.
    pub(super) fn has_withheld(&self) -> bool {
        !self.withheld.is_empty() && self.is_authorized_or_woken()
    }

    /// Whether a snapshot can be copied further.
    pub(super) fn has_work(&self) -> bool {
        self.is_copying && self.thread.chunk_bytes() < CHUNK_BYTES_MAX
    }
}

struct WakeLoop(Arc<Waker>);

impl Wake for WakeLoop {
    fn wake(self: Arc<Self>) {
        if let Err(error) = self.0.wake() {
            log::warn!("cannot wake the store server after a change of its authority: {error}");
        }
    }
}
