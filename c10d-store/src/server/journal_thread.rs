//! The thread that appends to the journal, so that the event loop never waits for a disk.
//!
//! It takes one batch at a time; effects that arrive in the meantime form the next batch. Between two batches it
//! writes a chunk of a snapshot, if there is one.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use c10d_socket::Cancel;
use mio::Waker;

use crate::journal::{Journal, JournalError};

/// How long the end of the server waits for the last batch. A disk that takes longer may never answer.
const LAST_APPEND_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an engine that can be cancelled may take to return. A disk cannot be.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// How often an idle journal is [checked](Journal::check).
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

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

/// The server's side.
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
