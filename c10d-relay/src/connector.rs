//! The thread that connects to the store, which can block: names are looked up, and handshakes made.
//!
//! It does not see the bytes of the session.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::SessionError;
use c10d_store::unstable::{Closer, SessionDialer, SessionLink};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use mio::Waker;

use crate::patience::{Decision, Patience};

/// What to connect.
#[derive(Debug)]
pub(crate) struct Order {
    /// How many bytes of the session have arrived; `None` for a new session.
    pub(crate) received: Option<u64>,
    /// The position of the store's journal that the session has seen.
    pub(crate) position: u64,
    pub(crate) give_up_at: Instant,
    /// How long connections of a continuing session may be refused.
    pub(crate) refused_timeout: Duration,
}

/// A [`SessionLink`], or why there is none.
pub(crate) type Outcome = Result<SessionLink, SessionError>;

/// The owner of the thread: stops and joins it on drop.
#[derive(Debug)]
pub(crate) struct Connector {
    orders: Option<Sender<Order>>,
    outcomes: Receiver<Outcome>,
    closer: Closer,
    /// See [`is_refused`](Self::is_refused).
    is_refused: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Connector {
    /// Starts the thread. It wakes `waker` for each outcome, and when the store's machine begins to refuse connections.
    pub(crate) fn start(dialer: SessionDialer, waker: Arc<Waker>) -> io::Result<Self> {
        let (orders, to_do) = crossbeam_channel::unbounded();
        let (done, outcomes) = crossbeam_channel::unbounded();
        let closer = dialer.closer().clone();
        let is_refused = Arc::new(AtomicBool::new(false));
        let refused = Arc::clone(&is_refused);
        let thread = thread::Builder::new()
            .name("c10d-relay-dial".to_owned())
            .spawn(move || work(dialer, &to_do, &done, &waker, &refused))?;
        Ok(Self {
            orders: Some(orders),
            outcomes,
            closer,
            is_refused,
            thread: Some(thread),
        })
    }

    /// One without a thread, the orders that it gets, and where to put their outcomes.
    #[cfg(test)]
    pub(crate) fn scripted() -> (Self, Receiver<Order>, Sender<Outcome>) {
        let (orders, to_do) = crossbeam_channel::unbounded();
        let (done, outcomes) = crossbeam_channel::unbounded();
        let connector = Self {
            orders: Some(orders),
            outcomes,
            closer: Closer::default(),
            is_refused: Arc::default(),
            thread: None,
        };
        (connector, to_do, done)
    }

    /// Orders a connection. There is one outcome for each order.
    pub(crate) fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // It fails only if the thread has panicked; then there is no outcome.
            let _ = orders.send(order);
        }
    }

    /// The outcome of an order, if it is there.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.outcomes.try_recv().ok()
    }

    /// Whether the last attempt of the present order was refused: the store's process has exited. Never with a directory,
    /// because another process may take over.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.orders = None;
        self.closer.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that connects the relay panicked");
        }
    }
}

fn work(
    mut dialer: SessionDialer,
    orders: &Receiver<Order>,
    outcomes: &Sender<Outcome>,
    waker: &Waker,
    is_refused: &AtomicBool,
) {
    let wake = || {
        if let Err(error) = waker.wake() {
            log::error!("the relay cannot be woken: {error}");
        }
    };
    let report = |has_ended| {
        if is_refused.swap(has_ended, Ordering::AcqRel) != has_ended {
            wake();
        }
    };
    while let Ok(order) = orders.recv() {
        let received = order.received.unwrap_or_else(|| {
            dialer.start_anew();
            0
        });
        if order.received.is_some() {
            dialer.set_position(order.position);
        }
        report(false);
        let Some(outcome) = connect(&mut dialer, received, &order, orders, report) else {
            return;
        };
        if outcomes.send(outcome).is_err() {
            return;
        }
        wake();
    }
}

/// Tries until the time is over; `None` if the relay stops. Reports after each attempt whether the store has exited.
fn connect(
    dialer: &mut SessionDialer,
    received: u64,
    order: &Order,
    orders: &Receiver<Order>,
    report: impl Fn(bool),
) -> Option<Outcome> {
    let give_up_at = order.give_up_at;
    let refused_timeout = order.received.map(|_| order.refused_timeout);
    let mut patience = Patience::new(give_up_at, refused_timeout, fastrand::u64(..));
    loop {
        let attempt = dialer.attempt_by(Deadline::at(give_up_at));
        let error = match dialer.connect(received, attempt) {
            Ok(link) => {
                report(false);
                return Some(Ok(link));
            }
            Err(SessionError::Cancelled) => return None,
            Err(error) => error,
        };
        if !error.is_transient() {
            return Some(Err(error));
        }
        // With a directory, another process may take over if the machine of the leader refuses connections.
        let has_ended = is_refused(&error) && !dialer.is_following();
        report(has_ended);
        let again_at = match patience.on_failure(has_ended, Instant::now()) {
            Decision::Retry(again_at) => again_at,
            Decision::GiveUp => return Some(Err(error)),
            Decision::StoreEnded(refused_for) => {
                return Some(Err(SessionError::Ended {
                    server: dialer.target().clone(),
                    refused_for,
                }));
            }
        };
        log::debug!("not connected to the store yet: {error}");
        match orders.recv_timeout(again_at.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            // One order at a time; the end of the channel is the end of the relay.
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Whether the store's machine is there, and nothing listens on the port.
fn is_refused(error: &SessionError) -> bool {
    let SessionError::Connect(error) = error else {
        return false;
    };
    let mut failures = error.failures().iter();
    let is_refused = |kind| kind == io::ErrorKind::ConnectionRefused;
    !error.failures().is_empty() && failures.all(|failure| is_refused(failure.error().kind()))
}
