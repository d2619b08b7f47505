//! A running agent, and how it ends.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};
use c10d_store::Store;

use super::driver::{Driver, Served};
use super::peers::Core;
use super::poller::Poller;
use super::retrier::Retrier;
use crate::future::{Job, contained};
use crate::metrics::MetricsSnapshot;
use crate::pool::Work;
use crate::segmented_queue::SegmentedQueue;
use crate::sync::{Lock, Monitor, WaitEnd};
use crate::termination::{Activity, Dead, Termination, TerminationError};

/// How long the end of an agent waits for a thread that is writing to a connection. None of them blocks.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// A running agent, without the functions that it serves.
pub(crate) struct Runtime {
    pub(crate) driver: Arc<Driver>,
    pub(crate) retries: Arc<Retrier>,
    pub(super) polling: Monitor<Polling>,
    /// Kept open for as long as the agent runs: it may host the server that the other workers use.
    pub(super) _store: Arc<dyn Store>,
    pub(super) turn: Arc<Monitor<Turn>>,
    /// Interrupts the waits of [`Runtime::join`] and [`Runtime::shutdown`].
    pub(super) cancel: Cancel,
    pub(super) ended: Lock<Vec<Job>>,
}

/// The poller, for one thread of the pool at a time.
pub(super) struct Polling {
    /// `None` while a thread polls, and after the end.
    poller: Option<Box<Poller>>,
    is_listening: bool,
}

impl Polling {
    pub(super) fn new(poller: Poller) -> Self {
        Self {
            poller: Some(Box::new(poller)),
            is_listening: true,
        }
    }

    /// Closes the listeners, unless a thread polls.
    fn close_listeners(&mut self) {
        if let Some(poller) = &mut self.poller {
            poller.close_listeners();
            self.is_listening = false;
        }
    }
}

/// The right to join the group or to end the agent in order, which one thread at a time has.
#[derive(Debug, Default)]
pub(super) struct Turn {
    is_taken: bool,
    /// How often the group was joined for its end.
    joins: u64,
    /// The place where the last join stopped.
    stopped: Option<Termination>,
}

impl Runtime {
    /// Starts the threads; the pool's threads do the `work`. After an error, [`Runtime::stop`] stops the started
    /// threads.
    pub(crate) fn start(&self, work: Arc<dyn Work<Served>>) -> io::Result<()> {
        self.retries.start()?;
        self.driver.pool.start(work)?;
        if self.driver.directory.has_replaced() {
            self.driver.contact_all();
        }
        Ok(())
    }

    /// Waits for the sockets once; requests that may run go to `admitted`.
    pub(crate) fn poll(&self, admitted: &mut SegmentedQueue<Served>) {
        let Some(mut poller) = self.polling.lock().poller.take() else {
            return;
        };
        poller.poll(admitted);
        let mut polling = self.polling.lock();
        polling.poller = Some(poller);
        // `Runtime::stop` changes the stage before it takes the lock.
        let closes = polling.is_listening && !self.driver.stage.is_running();
        if closes {
            polling.close_listeners();
        }
        drop(polling);
        if closes {
            self.polling.notify_all();
        }
    }

    /// Runs a job on a thread of the pool at `at`, unless the agent has ended before.
    pub(crate) fn spawn_at(&self, at: Instant, job: Job) {
        let driver = Arc::clone(&self.driver);
        self.driver.run_at(at, Box::new(move || driver.spawn(job)));
    }

    /// Runs a callback when the agent has ended; a late callback is dropped.
    pub(crate) fn on_end(&self, callback: Job) {
        let mut callbacks = self.ended.lock();
        // Checked under the lock: the thread that stops the agent takes the callbacks after that.
        if !self.driver.stage.is_stopped() {
            callbacks.push(callback);
        }
    }

    /// Ends the agent in order, once: leaves the group together with all other workers, or alone if its members join
    /// and leave at any time.
    pub(crate) fn shutdown(&self, deadline: Deadline) -> Result<(), TerminationError> {
        let result = self.leave(deadline);
        self.stop();
        result
    }

    /// Waits until no call is outstanding anywhere in the group. A failed join is continued by the next join, because
    /// the other workers wait in the same round.
    pub(crate) fn join(&self, deadline: Deadline) -> Result<(), TerminationError> {
        self.take_turn(deadline)?;
        let result = self.join_in_turn(deadline);
        self.turn.lock().is_taken = false;
        self.turn.notify_all();
        result
    }

    fn leave(&self, deadline: Deadline) -> Result<(), TerminationError> {
        let (began, stage) = (Instant::now(), &self.driver.stage);
        if stage.is_running() && self.driver.pool.is_own_thread() {
            return Err(self.busy(Duration::ZERO));
        }
        // It is not given back: the agent ends.
        self.take_turn(deadline)?;
        if !stage.is_running() {
            return Ok(());
        }
        if !self.driver.directory.is_dynamic() {
            return self.join_in_turn(deadline);
        }
        let waited = self.driver.activity.wait_idle(deadline, &self.cancel);
        waited.map_err(|end| self.not_ended(end, began))?;
        Ok(self.driver.directory.leave(deadline, &self.cancel)?)
    }

    /// Waits while another thread has the turn and the agent has not ended.
    fn take_turn(&self, deadline: Deadline) -> Result<(), TerminationError> {
        let began = Instant::now();
        let waited = self.turn.wait_for((deadline, &self.cancel), |turn| {
            !turn.is_taken || !self.driver.stage.is_running()
        });
        waited.map_err(|end| self.not_ended(end, began))?.is_taken = true;
        Ok(())
    }

    fn join_in_turn(&self, deadline: Deadline) -> Result<(), TerminationError> {
        let stopped = self.turn.lock().stopped.take();
        let mut termination = match stopped {
            Some(termination) => termination,
            None => {
                let directory = &self.driver.directory;
                let (store, workers) = (directory.clone_store(deadline)?, directory.workers());
                let mut turn = self.turn.lock();
                let (generation, me) = (turn.joins, self.driver.me().clone());
                turn.joins += 1;
                Termination::new(store, generation, me, workers)
            }
        };
        let result = termination.run(self, deadline, &self.cancel);
        self.turn.lock().stopped = result.is_err().then_some(termination);
        result
    }

    pub(crate) fn metrics(&self) -> MetricsSnapshot {
        let driver = &self.driver;
        driver
            .metrics
            .snapshot(driver.pool.gauges(), self.retries.waiting())
    }

    /// Ends everything, once; a second caller waits for nothing.
    pub(crate) fn stop(&self) {
        let driver = &self.driver;
        if !driver.stage.begin_stop() {
            return;
        }
        // First: a connection that is accepted from now on would have no answer while a function still runs.
        self.close_listeners();
        driver.activity.end_waits();
        driver.end_store_wait();
        // A thread that waits for its turn need not wait any longer. Locked, so that it sleeps
        // already, or has seen the stage.
        self.turn.ring();
        self.retries.stop();
        // Before attempts to connect have ended, which can take a moment: no call has to wait for that.
        driver.peers.close();
        self.end_connections();
        driver.ended.cancel();
        driver.pool.stop();
        drop(self.polling.lock().poller.take());
        driver.stage.end_stop();
        // This ends calls that a still running function or callback has begun.
        self.end_connections();
        let ended = std::mem::take(&mut *self.ended.lock());
        for callback in ended {
            contained("the callback of `on_end`", callback);
        }
    }

    /// Closes the listeners, if need be on the thread that polls.
    fn close_listeners(&self) {
        let by = Deadline::after(Instant::now(), FAREWELL_MAX);
        let (mut polling, mut has_passed) = (self.polling.lock(), false);
        polling.close_listeners();
        while polling.is_listening && !has_passed {
            self.driver.sockets.wake();
            (polling, has_passed) = self.polling.wait_until(polling, by);
        }
    }

    /// Sends a Goodbye to all peers, and fails the calls to them.
    fn end_connections(&self) {
        for peer in self.driver.peers.all() {
            self.driver.step(&peer, Core::say_goodbye);
            // A thread that is writing takes the farewell along, if it is given the time to.
            peer.wait_written(Deadline::after(Instant::now(), FAREWELL_MAX));
            self.driver.step(&peer, Core::end);
        }
    }

    fn not_ended(&self, end: WaitEnd, began: Instant) -> TerminationError {
        let elapsed = began.elapsed();
        match end {
            WaitEnd::Late => self.busy(elapsed),
            WaitEnd::Cancelled => TerminationError::Interrupted { round: 0, elapsed },
        }
    }

    fn busy(&self, elapsed: Duration) -> TerminationError {
        TerminationError::Busy {
            me: Box::new(self.driver.me().clone()),
            round: 0,
            calls_out: self.calls_out(),
            elapsed,
        }
    }
}

impl Activity for Runtime {
    fn wait_idle(&self, by: Deadline, cancel: &Cancel) -> Result<(), WaitEnd> {
        self.driver.activity.wait_idle(by, cancel)
    }

    fn calls_started(&self) -> u64 {
        self.driver.activity.calls_started()
    }

    fn calls_out(&self) -> usize {
        let peers = self.driver.peers.all();
        let calls = peers.iter().map(|peer| peer.lock().core.calls_in_flight());
        calls.sum()
    }

    fn is_interrupted(&self) -> bool {
        !self.driver.stage.is_running()
    }

    fn begin_store_wait(&self) -> Cancel {
        self.driver.begin_store_wait()
    }

    fn dead(&self) -> Dead {
        let now = Instant::now();
        let mut dead = Dead::default();
        for peer in self.driver.peers.all() {
            let ask = |core: &mut Core| (core.is_known_dead(now), core.is_lost());
            let (is_dead, is_lost) = self.driver.step(&peer, ask);
            if is_dead {
                dead.workers.push(peer.info.clone());
            }
            dead.is_any_lost |= is_lost;
        }
        dead
    }
}
