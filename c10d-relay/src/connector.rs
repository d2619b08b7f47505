//! The thread that connects to the store, as that can block: names are looked up, and handshakes made.
//!
//! It does not see the bytes of the session.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::{Backoff, BackoffOptions, Deadline};
use c10d_store::{Closer, SessionDialer, SessionError, SessionLink};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use mio::Waker;

/// The longest time of one attempt. Thousands of relays can come back at once, each of which costs the server a
/// handshake.
const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(10);

/// What to connect.
#[derive(Debug)]
pub(crate) struct Order {
    /// How many bytes of the session have arrived; `None` for a new session.
    pub(crate) received: Option<u64>,
    pub(crate) give_up_at: Instant,
}

/// A [`SessionLink`], or why there is none.
pub(crate) type Outcome = Result<SessionLink, SessionError>;

/// The owner of the thread: stops and joins it on drop.
#[derive(Debug)]
pub(crate) struct Connector {
    orders: Option<Sender<Order>>,
    outcomes: Receiver<Outcome>,
    closer: Closer,
    thread: Option<JoinHandle<()>>,
}

impl Connector {
    /// Starts the thread. It wakes `waker` for each outcome.
    pub(crate) fn start(dialer: SessionDialer, waker: Arc<Waker>) -> io::Result<Self> {
        let (orders, to_do) = crossbeam_channel::unbounded();
        let (done, outcomes) = crossbeam_channel::unbounded();
        let closer = dialer.closer().clone();
        let thread = thread::Builder::new()
            .name("c10d-relay-dial".to_owned())
            .spawn(move || work(dialer, &to_do, &done, &waker))?;
        Ok(Self {
            orders: Some(orders),
            outcomes,
            closer,
            thread: Some(thread),
        })
    }

    /// Orders a connection. There is one outcome for each order.
    pub(crate) fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // It fails only if the thread has panicked; then no outcome comes.
            let _ = orders.send(order);
        }
    }

    /// The outcome of an order, if it is there.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.outcomes.try_recv().ok()
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
) {
    while let Ok(order) = orders.recv() {
        let received = order.received.unwrap_or_else(|| {
            dialer.start_anew();
            0
        });
        let Some(outcome) = connect(&mut dialer, received, order.give_up_at, orders) else {
            return;
        };
        if outcomes.send(outcome).is_err() {
            return;
        }
        if let Err(error) = waker.wake() {
            log::error!("the relay cannot be woken: {error}");
        }
    }
}

/// Tries until the time is over; `None` if the relay stops.
fn connect(
    dialer: &mut SessionDialer,
    received: u64,
    give_up_at: Instant,
    orders: &Receiver<Order>,
) -> Option<Outcome> {
    let mut backoff = Backoff::new(BackoffOptions::default(), fastrand::u64(..));
    loop {
        let attempt = Deadline::after(Instant::now(), ATTEMPT_TIME_MAX);
        let error = match dialer.connect(received, attempt.min(Deadline::at(give_up_at))) {
            Ok(link) => return Some(Ok(link)),
            Err(SessionError::Cancelled) => return None,
            Err(error) => error,
        };
        let again_at = Instant::now() + backoff.next_delay();
        if !error.is_transient() || again_at >= give_up_at {
            return Some(Err(error));
        }
        log::debug!("not connected to the store yet: {error}");
        match orders.recv_timeout(again_at.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            // One order at a time; the end of the channel is the end of the relay.
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}
