//! Requests snapshots and totals from the server's thread, on behalf of other threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant, SystemTime};

use c10d_socket::{Deadline, OtherProcess, ProcessBound};

use crate::snapshot::{Counters, Snapshot};
use crate::state::Image;

/// Reads the state of a server's connections and keys, without delaying its clients.
///
/// Clones share the server. An observer does not keep the server running.
///
/// ```
/// use std::time::Duration;
///
/// use c10d_store::{ServerOptions, Store, TcpStore, TcpStoreServer};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default())?;
/// let store = TcpStore::connect("127.0.0.1", server.local_addr().port())?;
/// assert_eq!(store.add("arrived", 1)?, 1);
///
/// let snapshot = server.observer().snapshot(Duration::from_secs(5))?;
/// let key = &snapshot.keys[0];
/// assert_eq!(&*key.key, b"/arrived");
/// assert_eq!(key.writer, snapshot.connections[0].id);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct StoreObserver(ProcessBound<Observer>);

#[derive(Debug, Clone)]
struct Observer {
    requests: Sender<Request>,
    waker: Arc<mio::Waker>,
    /// The server's start by the system's clock.
    started: SystemTime,
}

/// The error of an observer that has received no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A forked child used the observer of its parent's server.
    #[error("cannot ask the store server: {0}")]
    OtherProcess(#[from] OtherProcess),
    /// The server has stopped, before the call or during it.
    #[error("the store server has stopped")]
    Stopped,
    /// Another process serves the store, or will: see [`TcpStoreServer::stand_by`](super::TcpStoreServer::stand_by).
    #[error("this server is a standby: another server serves the store, or will soon")]
    StandsBy,
    /// Another process may have taken over: the server answers nothing until it has checked that it still leads.
    #[error("the store server does not answer while another server may have taken over")]
    MayBeDeposed,
    /// The server's thread was busy for longer than the timeout.
    #[error("the store server has not answered within {timeout:?}; it is overloaded")]
    TimedOut {
        /// The timeout of the call.
        timeout: Duration,
    },
}

impl StoreObserver {
    /// Returns the state of the server at one moment during this call, which includes everything that its clients
    /// have received before the call. Blocks for at most the timeout; `None` for no limit. Calls at the same time
    /// share the work.
    ///
    /// The server's thread copies the state in slices of less than a millisecond, between the requests of its
    /// clients; the rest of the work happens on the caller's thread. At 16,384 connections and keys that is
    /// about 10 MiB.
    ///
    /// # Errors
    /// [`SnapshotError::Stopped`] if the server has stopped or stops, and [`SnapshotError::TimedOut`] if its thread
    /// was busy for longer.
    pub fn snapshot(
        &self,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Snapshot, SnapshotError> {
        let taken = self.ask(Request::Snapshot, timeout.into())?;
        let mut snapshot = taken.image.to_snapshot(self.0.get()?.started);
        snapshot.server_time = taken.server_time;
        Ok(snapshot)
    }

    /// Returns only the totals, which cost the server microseconds. Blocks for at most the timeout; `None` for no
    /// limit.
    ///
    /// # Errors
    /// The errors of [`snapshot`](Self::snapshot).
    pub fn counters(
        &self,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Counters, SnapshotError> {
        self.ask(Request::Counters, timeout.into())
    }

    fn ask<T>(
        &self,
        request: impl FnOnce(SyncSender<Answered<T>>) -> Request,
        timeout: Option<Duration>,
    ) -> Result<T, SnapshotError> {
        let observer = self.0.get()?;
        let deadline = Deadline::after(Instant::now(), timeout);
        let (sender, answer) = mpsc::sync_channel(1);
        // The end of the server's thread drops the request, and with it the sender: that wakes this thread.
        let stopped = |_| SnapshotError::Stopped;
        observer.requests.send(request(sender)).map_err(stopped)?;
        if let Err(error) = observer.waker.wake() {
            // The request waits for the next one of a client.
            log::warn!("cannot wake the store server for a snapshot: {error}");
        }
        let answered = match deadline.remaining(Instant::now()) {
            Some(left) => answer.recv_timeout(left),
            None => answer.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let answered = answered.map_err(|error| match error {
            RecvTimeoutError::Disconnected => SnapshotError::Stopped,
            RecvTimeoutError::Timeout => SnapshotError::TimedOut {
                timeout: timeout.unwrap_or(Duration::MAX),
            },
        });
        answered?
    }
}

/// A request of an observer, with the channel for the answer.
#[derive(Debug)]
enum Request {
    Snapshot(SyncSender<Answered<Arc<Taken>>>),
    Counters(SyncSender<Answered<Counters>>),
}

type Answered<T> = Result<T, SnapshotError>;

/// A snapshot as the server's thread hands it out.
#[derive(Debug)]
struct Taken {
    image: Image,
    /// The time that the thread has spent on it.
    server_time: Duration,
}

/// The side of the server's thread.
#[derive(Debug)]
pub(super) struct Observed {
    observer: StoreObserver,
    requests: Receiver<Request>,
    /// Callers that wait for a snapshot that has not started.
    next: Vec<SyncSender<Answered<Arc<Taken>>>>,
    /// Callers that wait for the snapshot in progress.
    current: Vec<SyncSender<Answered<Arc<Taken>>>>,
    /// The time spent on the snapshot in progress, in earlier turns.
    server_time: Duration,
    /// The start of this turn, if a snapshot is requested.
    turn_started: Option<Instant>,
    /// The position on which the snapshot in progress depends.
    current_position: u64,
    /// Answers that wait until what they show is durable, with its position.
    held: VecDeque<(u64, Answer)>,
}

/// An answer with those that wait for it.
#[derive(Debug)]
enum Answer {
    Snapshot(Arc<Taken>, Vec<SyncSender<Answered<Arc<Taken>>>>),
    Counters(Counters, SyncSender<Answered<Counters>>),
}

impl Answer {
    fn send(self) {
        // An error means that the caller has stopped waiting.
        match self {
            Self::Snapshot(taken, callers) => {
                for caller in callers {
                    drop(caller.try_send(Ok(Arc::clone(&taken))));
                }
            }
            Self::Counters(counters, caller) => drop(caller.try_send(Ok(counters))),
        }
    }
}

impl Observed {
    /// `waker` must wake the server's thread.
    pub(super) fn new(waker: Arc<mio::Waker>) -> Self {
        let (sender, requests) = mpsc::channel();
        let observer = StoreObserver(ProcessBound::new(Observer {
            requests: sender,
            waker,
            started: SystemTime::now(),
        }));
        Self {
            observer,
            requests,
            next: Vec::new(),
            current: Vec::new(),
            server_time: Duration::ZERO,
            turn_started: None,
            current_position: 0,
            held: VecDeque::new(),
        }
    }

    /// The side of other threads.
    pub(super) fn observer(&self) -> StoreObserver {
        self.observer.clone()
    }

    /// Receives what has been asked since the last call, and answers with totals once what they depend on is durable:
    /// the batch with this position, 0 for none. With a `refusal`, all get that.
    pub(super) fn receive(
        &mut self,
        position: u64,
        refusal: impl Fn() -> Option<SnapshotError>,
        counters: impl Fn() -> Counters,
    ) {
        while let Ok(request) = self.requests.try_recv() {
            match (request, refusal()) {
                (Request::Snapshot(answer), Some(error)) => drop(answer.try_send(Err(error))),
                (Request::Counters(answer), Some(error)) => drop(answer.try_send(Err(error))),
                (Request::Snapshot(answer), None) => self.next.push(answer),
                (Request::Counters(answer), None) => {
                    self.answer(position, Answer::Counters(counters(), answer));
                }
            }
        }
        let is_awaited = !self.next.is_empty() || !self.current.is_empty();
        self.turn_started = is_awaited.then(Instant::now);
    }

    /// Ends what [`receive`](Self::receive) started: other work of the server follows.
    pub(super) fn turn_done(&mut self) {
        let turn_time = self.turn_time();
        self.server_time += turn_time;
    }

    fn turn_time(&mut self) -> Duration {
        let started = self.turn_started.take();
        started.map_or(Duration::ZERO, |started| started.elapsed())
    }

    /// Whether a snapshot is to be started.
    pub(super) fn is_snapshot_wanted(&self) -> bool {
        !self.next.is_empty()
    }

    /// A snapshot has started: all calls so far share it. Later ones get the next, as this one may not show what
    /// happened before them. It depends on the batch with this position; 0 for none.
    pub(super) fn snapshot_started(&mut self, position: u64) {
        self.current_position = position;
        self.current.append(&mut self.next);
    }

    /// The snapshot is complete.
    pub(super) fn snapshot_done(&mut self, image: Image) {
        let server_time = std::mem::take(&mut self.server_time) + self.turn_time();
        let taken = Arc::new(Taken { image, server_time });
        let callers = std::mem::take(&mut self.current);
        self.answer(self.current_position, Answer::Snapshot(taken, callers));
    }

    fn answer(&mut self, position: u64, answer: Answer) {
        if position == 0 {
            answer.send();
        } else {
            self.held.push_back((position, answer));
        }
    }

    /// Everything up to this position is durable.
    pub(super) fn release(&mut self, durable: u64) {
        let held = std::mem::take(&mut self.held);
        for (position, answer) in held {
            let waits = position > durable;
            self.answer(if waits { position } else { 0 }, answer);
        }
    }
}
