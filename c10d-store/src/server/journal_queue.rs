//! The journal of a server's store: the event loop's view of it, and the thread that appends to it, so that the event loop
//! never waits for a disk.
//!
//! The thread takes one batch at a time; effects that arrive in the meantime form the next batch, and [`BatchDelay`] decides
//! when that batch is complete. Between two batches the thread writes a chunk of a snapshot, if there is one.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Moment};
use mio::{Token, Waker};

use super::recover::OpenJournal;
use super::sessions::Sessions;
use crate::journal::{Authority, Journal, JournalError};
use crate::session::StoreId;
use crate::state::StoreState;

/// Beyond this many bytes of effects in no batch, requests wait.
pub(super) const GATHERED_BYTES_MAX: usize = 8 << 20;

/// Chunks of a snapshot in the memory. Copying waits until the thread has written some.
const CHUNK_BYTES_MAX: usize = 4 << 20;

/// How long a session that has returned at the last moment has to send its requests again.
const RESENT_WITHIN: Duration = Duration::from_secs(60);

/// How long the end of the server waits for the last batch. A disk that takes longer may never answer.
const LAST_APPEND_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an engine that can be cancelled may take to return. A disk cannot be.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// How often an idle journal is [checked](Journal::check).
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A batch of this many bytes is committed at once: half of what 256 clients with a counter each write. Larger ones
/// save little, and leave more clients without an answer, and so the loop without requests, during the sync.
const HELD_BYTES_MAX: usize = 6 << 10;

/// The longest that a batch waits, for a loop that always has requests which write little.
const HOLD_MAX: Duration = Duration::from_millis(1);

/// The shortest commit that is slow. The event loop sleeps for whole milliseconds.
const SLOW_COMMIT: Duration = Duration::from_millis(1);

/// The fewest clients that are waited for: a few are served sooner in two halves.
const AWAITED_MIN: usize = 16;

/// A batch of this many bytes does not wait for clients, because it takes the engine more time than a commit does.
const AWAITING_BYTES_MAX: usize = 256 << 10;

/// The longest wait for clients: a commit can take seconds, as during an election of etcd.
const AWAITING_MAX: Duration = Duration::from_millis(10);

/// How many commits do not wait, after a commit whose clients did not arrive.
const COMMITS_UNAWAITED: u32 = 16;

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
        let journal = Self {
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
        Ok((state, sessions, Some(journal)))
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

/// Decides how long a batch for the journal waits for requests that may share its commit. Pure: the clock is an
/// argument.
///
/// A commit costs as much processor time as dozens of requests, however small its batch is. Therefore, a batch waits
/// while the event loop has other requests to carry out, and is committed as soon as it has none.
///
/// A slow commit, for example by an engine behind a network, divides the clients into two halves: the requests of one
/// half gather while the requests of the other half are committed, so each commit has half of the requests that it could
/// have. Therefore, after a slow commit that has let many clients continue, the next batch also waits for most of these
/// clients, at most as long as that commit took. If they send no requests in this time, the batches after that do not wait.
#[derive(Debug, Default)]
pub(super) struct BatchDelay {
    /// The first iteration that has seen something of the batch that gathers.
    since: Option<Instant>,
    /// The time when the previous batch was handed to the journal.
    sent: Option<Instant>,
    awaited: Option<Awaited>,
    /// How many commits do not wait.
    unawaited: u32,
}

/// The clients that a batch waits for.
#[derive(Debug)]
struct Awaited {
    /// The clients that the batch waits for, including clients that are already in the batch.
    clients: usize,
    until: Instant,
}

/// The size of a batch so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gathered {
    pub(super) bytes: usize,
    /// That wait for its commit.
    pub(super) clients: usize,
}

impl BatchDelay {
    /// Whether what has gathered can go to the journal. `is_busy`: the iteration that began `now` had requests, so that
    /// there may be more.
    pub(super) fn may_go(&mut self, gathered: Gathered, is_busy: bool, now: Instant) -> bool {
        if gathered.bytes == 0 {
            return false;
        }
        if let Some(awaited) = &self.awaited {
            let are_here = gathered.clients >= awaited.clients;
            let is_large = gathered.bytes >= AWAITING_BYTES_MAX;
            let is_over = now >= awaited.until;
            if is_over && !are_here {
                self.unawaited = COMMITS_UNAWAITED;
            }
            return are_here || is_large || is_over;
        }
        let since = *self.since.get_or_insert(now);
        !is_busy
            || gathered.bytes >= HELD_BYTES_MAX
            || now.saturating_duration_since(since) >= HOLD_MAX
    }

    /// The batch has gone.
    pub(super) fn start_next(&mut self, now: Instant) {
        *self = Self {
            sent: Some(now),
            unawaited: self.unawaited,
            ..Self::default()
        };
    }

    /// The previous batch is kept, which lets `released` clients continue. In the meantime, `waiting` clients wait for the batch
    /// that gathers.
    pub(super) fn committed(&mut self, released: usize, waiting: usize, now: Instant) {
        let Some(sent) = self.sent.take() else {
            return;
        };
        let took = now.saturating_duration_since(sent);
        if took < SLOW_COMMIT || released < AWAITED_MIN {
            return;
        }
        if self.unawaited > 0 {
            self.unawaited -= 1;
            return;
        }
        self.awaited = Some(Awaited {
            clients: waiting + released - released / 8,
            until: now + took.min(AWAITING_MAX),
        });
    }

    /// When a batch has waited enough for clients; `None` if it waits for none.
    pub(super) fn until(&self) -> Option<Instant> {
        self.awaited.as_ref().map(|awaited| awaited.until)
    }
}

/// The next step of the thread, besides batches.
#[derive(Debug)]
pub(super) enum SnapshotStep {
    /// Agrees with other processes on the version that it has.
    Agree,
    Begin {
        position: u64,
    },
    Chunk(Vec<u8>),
    Finish,
}

/// The event loop's side of the thread.
#[derive(Debug)]
pub(super) struct JournalThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Ends the calls of the journal.
    cancel: Cancel,
    ended: Receiver<()>,
    place: String,
}

#[derive(Debug)]
struct Shared {
    work: Mutex<Work>,
    /// Called after each change of the work.
    changed: Condvar,
    /// The position of the last batch that is durable.
    durable: AtomicU64,
    /// The bytes of chunks that are not written.
    chunk_bytes: AtomicUsize,
    /// The version that was agreed on; 0 from the question to the answer.
    format: AtomicU8,
    failure: Mutex<Option<JournalError>>,
}

#[derive(Debug, Default)]
struct Work {
    batches: VecDeque<(u64, Vec<u8>)>,
    steps: VecDeque<SnapshotStep>,
    /// Memory of a batch that was appended.
    memory: Vec<u8>,
    is_ending: bool,
}

impl JournalThread {
    /// Everything up to this position is durable. `waker` wakes the event loop.
    pub(super) fn start(
        journal: Box<dyn Journal>,
        cancel: Cancel,
        durable: u64,
        waker: Arc<Waker>,
    ) -> io::Result<Self> {
        let place = journal.place();
        let shared = Arc::new(Shared {
            work: Mutex::default(),
            changed: Condvar::new(),
            durable: AtomicU64::new(durable),
            chunk_bytes: AtomicUsize::new(0),
            format: AtomicU8::new(journal.format()),
            failure: Mutex::default(),
        });
        let (ending, ended) = mpsc::sync_channel(1);
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("c10d-journal".to_owned())
            .spawn(move || of_thread.run(journal, &waker, ending))?;
        Ok(Self {
            shared,
            thread: Some(thread),
            cancel,
            ended,
            place,
        })
    }

    /// The position of the last batch that is durable.
    pub(super) fn durable(&self) -> u64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// Has a batch appended. `memory` receives the memory of an earlier batch.
    pub(super) fn append(&self, position: u64, batch: Vec<u8>, memory: &mut Vec<u8>) {
        let mut work = self.shared.work();
        work.batches.push_back((position, batch));
        *memory = std::mem::take(&mut work.memory);
        drop(work);
        self.shared.changed.notify_one();
    }

    /// Has a step of a snapshot made, after all before.
    pub(super) fn step(&self, step: SnapshotStep) {
        if let SnapshotStep::Chunk(chunk) = &step {
            let bytes = &self.shared.chunk_bytes;
            bytes.fetch_add(chunk.len(), Ordering::Relaxed);
        }
        self.shared.work().steps.push_back(step);
        self.shared.changed.notify_one();
    }

    /// Asks for an agreement on the version of the format.
    pub(super) fn ask_for_format(&self) {
        self.shared.format.store(0, Ordering::Release);
        self.step(SnapshotStep::Agree);
    }

    /// The version that was agreed on last; `None` while it is asked for.
    pub(super) fn format(&self) -> Option<u8> {
        let format = self.shared.format.load(Ordering::Acquire);
        (format != 0).then_some(format)
    }

    /// The bytes of chunks that are not written.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.shared.chunk_bytes.load(Ordering::Relaxed)
    }

    /// Returns the place of the journal: see [`Journal::place`].
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Why the thread has ended without being stopped.
    pub(super) fn take_failure(&self) -> Option<JournalError> {
        let failure = self.shared.failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Ends the thread once all batches are appended, with this last one. Blocks for at most 11 s.
    pub(super) fn end(mut self, last: Option<(u64, Vec<u8>)>) {
        let mut work = self.shared.work();
        work.batches.extend(last);
        work.steps.clear();
        work.is_ending = true;
        drop(work);
        self.shared.changed.notify_one();
        if self.ended.recv_timeout(LAST_APPEND_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            log::error!(
                "the journal {} did not confirm the last batch within {LAST_APPEND_TIMEOUT:?}, so it may be lost",
                self.place
            );
            self.cancel.cancel();
            if self.ended.recv_timeout(CANCEL_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread of the journal {} panicked", self.place);
        }
        if let Some(error) = self.take_failure() {
            log::error!("the last batch may be lost: {error}");
        }
    }
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dropping `_ending` reports that the thread has ended.
    fn run(&self, mut journal: Box<dyn Journal>, waker: &Waker, _ending: SyncSender<()>) {
        let result = self.work_until_the_end(&mut *journal, waker);
        // After the end the caller may open the journal again.
        drop(journal);
        if let Err(error) = result {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            *failure = Some(error);
            drop(failure);
            wake(waker);
        }
    }

    fn work_until_the_end(
        &self,
        journal: &mut dyn Journal,
        waker: &Waker,
    ) -> Result<(), JournalError> {
        loop {
            let (mut work, idle) = self
                .changed
                .wait_timeout_while(self.work(), CHECK_INTERVAL, |work| {
                    work.batches.is_empty() && work.steps.is_empty() && !work.is_ending
                })
                .unwrap_or_else(PoisonError::into_inner);
            if idle.timed_out() {
                drop(work);
                journal.check()?;
                continue;
            }
            if let Some((position, batch)) = work.batches.pop_front() {
                drop(work);
                journal.append(position, &batch)?;
                self.durable.store(position, Ordering::Release);
                wake(waker);
                self.work().memory = batch;
                continue;
            }
            let step = work.steps.pop_front();
            drop(work);
            match step {
                Some(SnapshotStep::Agree) => {
                    let format = journal.agree_on_format()?;
                    self.format.store(format, Ordering::Release);
                }
                Some(SnapshotStep::Begin { position }) => journal.begin_snapshot(position)?,
                Some(SnapshotStep::Chunk(chunk)) => {
                    journal.add_to_snapshot(&chunk)?;
                    self.chunk_bytes.fetch_sub(chunk.len(), Ordering::Relaxed);
                    // The event loop may wait for room.
                    wake(waker);
                }
                Some(SnapshotStep::Finish) => journal.finish_snapshot()?,
                None => return Ok(()),
            }
        }
    }
}

fn wake(waker: &Waker) {
    if let Err(error) = waker.wake() {
        log::warn!("cannot wake the store server after an append: {error}");
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

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Gathered = gathered(0, 0);

    const fn gathered(bytes: usize, clients: usize) -> Gathered {
        Gathered { bytes, clients }
    }

    /// A commit that takes this long and lets `released` clients continue, while `waiting` clients wait for the next commit.
    fn commit(hold: &mut BatchDelay, took: Duration, released: usize, waiting: usize) -> Instant {
        let sent = Instant::now();
        hold.start_next(sent);
        hold.committed(released, waiting, sent + took);
        sent + took
    }

    #[test]
    fn a_small_batch_waits_only_while_there_are_requests() {
        let mut hold = BatchDelay::default();
        let now = Instant::now();
        assert!(!hold.may_go(NONE, false, now), "there is nothing");
        assert!(!hold.may_go(gathered(40, 1), true, now));
        assert!(!hold.may_go(gathered(HELD_BYTES_MAX - 1, 1), true, now));
        assert!(hold.may_go(gathered(40, 1), false, now));
        assert!(hold.may_go(gathered(HELD_BYTES_MAX, 1), true, now));
    }

    #[test]
    fn the_wait_of_each_batch_is_bounded() {
        let mut hold = BatchDelay::default();
        let mut now = Instant::now();
        for batch in 0..3 {
            let start = now;
            while !hold.may_go(gathered(40, 1), true, now) {
                now += HOLD_MAX / 4;
            }
            assert_eq!(now - start, HOLD_MAX, "batch {batch}");
            hold.start_next(now);
        }
    }

    #[test]
    fn a_batch_waits_for_the_clients_of_a_slow_commit() {
        let mut hold = BatchDelay::default();
        let now = commit(&mut hold, SLOW_COMMIT, 128, 100);
        assert_eq!(hold.until(), Some(now + SLOW_COMMIT));
        assert!(!hold.may_go(NONE, false, now), "there is nothing");
        // Of the 128 clients, 112 have sent a request.
        for (clients, may_go) in [(100, false), (211, false), (212, true), (228, true)] {
            assert_eq!(hold.may_go(gathered(9000, clients), false, now), may_go);
        }
        let large = gathered(AWAITING_BYTES_MAX, 100);
        assert!(hold.may_go(large, true, now));
        hold.start_next(now);
        assert_eq!(hold.until(), None);
        let now = commit(&mut hold, Duration::from_secs(2), 128, 100);
        assert_eq!(hold.until(), Some(now + AWAITING_MAX));
    }

    #[test]
    fn nobody_waits_after_a_fast_commit_or_one_of_a_few_clients() {
        for (took, released) in [
            (SLOW_COMMIT / 2, 128),
            (SLOW_COMMIT * 9, AWAITED_MIN - 1),
            (SLOW_COMMIT * 9, 0),
        ] {
            let mut hold = BatchDelay::default();
            let now = commit(&mut hold, took, released, 200);
            assert!(hold.may_go(gathered(40, 200), false, now));
        }
    }

    #[test]
    fn clients_that_do_not_come_are_waited_for_once_in_a_while() {
        let mut hold = BatchDelay::default();
        for _ in 0..3 {
            let now = commit(&mut hold, 2 * SLOW_COMMIT, 64, 0);
            assert!(!hold.may_go(gathered(40, 1), false, now));
            assert!(hold.may_go(gathered(40, 1), true, now + 2 * SLOW_COMMIT));
            for _ in 0..COMMITS_UNAWAITED {
                let now = commit(&mut hold, 2 * SLOW_COMMIT, 64, 0);
                assert!(hold.may_go(gathered(40, 1), false, now));
            }
        }
    }
}
