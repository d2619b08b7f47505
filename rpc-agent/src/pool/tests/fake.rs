//! Work for the tests of the pool: the network is a queue, and the requests are closures.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;

use crate::pool::threads::{Pool, Work};
use crate::segmented_queue::SegmentedQueue;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Monitor};

/// After this time a test that hangs fails.
pub(in crate::pool) const LONG: Duration = Duration::from_secs(30);

pub(in crate::pool) type Body = Box<dyn FnOnce(&Arc<FakeWork>) + Send>;

pub(in crate::pool) struct FakeWork {
    pub(in crate::pool) pool: Arc<Pool<FakeRequest>>,
    /// How requests and callbacks ended so far.
    pub(in crate::pool) fates: Arc<Monitor<Fates>>,
    network: Monitor<Network>,
    unsent: AtomicBool,
    collected: AtomicBool,
}

#[derive(Debug, Default)]
struct Network {
    arrived: VecDeque<FakeRequest>,
    is_woken: bool,
    polls: u64,
    /// The thread of each poll is the only one.
    is_polled: bool,
}

/// Numbers of requests and callbacks, in order of time.
#[derive(Debug, Default)]
pub(in crate::pool) struct Fates {
    pub(in crate::pool) ran: Vec<u32>,
    pub(in crate::pool) refused: Vec<u32>,
    pub(in crate::pool) dropped: Vec<u32>,
    pub(in crate::pool) called_back: Vec<u32>,
    pub(in crate::pool) flushed: u32,
    pub(in crate::pool) is_work_dropped: bool,
}

impl Fates {
    /// Every request that ran, was refused or was dropped.
    pub(in crate::pool) fn requests(&self) -> Vec<u32> {
        let mut all = [&*self.ran, &self.refused, &self.dropped].concat();
        all.sort_unstable();
        all
    }
}

/// The work that the pool owns while it runs.
struct OwnedWork(Arc<FakeWork>);

impl Drop for OwnedWork {
    fn drop(&mut self) {
        self.0.note(|fates| fates.is_work_dropped = true);
    }
}

/// A request with a number; how it ends is noted.
pub(in crate::pool) struct FakeRequest {
    number: u32,
    is_slow: bool,
    arrived_at: Instant,
    /// `None` once it was run or refused.
    body: Option<Body>,
    fates: Arc<Monitor<Fates>>,
}

impl std::fmt::Debug for FakeRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FakeRequest({})", self.number)
    }
}

impl Drop for FakeRequest {
    fn drop(&mut self) {
        if self.body.is_some() {
            self.fates.lock().dropped.push(self.number);
            self.fates.notify_all();
        }
    }
}

impl Work<FakeRequest> for OwnedWork {
    fn flush(&self) {
        self.0.flush();
    }

    fn has_unsent(&self) -> bool {
        self.0.unsent.load(Ordering::SeqCst)
    }

    fn has_collected(&self) -> bool {
        self.0.collected.swap(false, Ordering::SeqCst)
    }

    fn poll(&self, found: &mut SegmentedQueue<FakeRequest>) {
        let monitor = &self.0.network;
        let mut network = monitor.lock();
        assert!(
            !std::mem::replace(&mut network.is_polled, true),
            "two threads poll"
        );
        network.polls += 1;
        while network.arrived.is_empty() && !network.is_woken {
            (network, _) = monitor.wait_until(network, Deadline::NEVER);
        }
        network.is_woken = false;
        network.is_polled = false;
        found.extend(network.arrived.drain(..));
    }

    fn wake_poller(&self) {
        self.0.network.lock().is_woken = true;
        self.0.network.notify_all();
    }

    fn run(&self, mut request: FakeRequest) {
        let number = request.number;
        let body = request.body.take();
        body.expect("a request is run once")(&self.0);
        self.0.note(|fates| fates.ran.push(number));
    }

    fn refuse(&self, mut request: FakeRequest, _threads: usize) {
        let number = request.number;
        drop(request.body.take());
        self.0.note(|fates| fates.refused.push(number));
    }

    fn is_slow(&self, request: &FakeRequest) -> bool {
        request.is_slow
    }

    fn arrived_at(&self, request: &FakeRequest) -> Instant {
        request.arrived_at
    }

    fn return_free_memory(&self) {}
}

impl FakeWork {
    /// Starts a pool.
    pub(in crate::pool) fn start(handlers_max: usize, threads_max: usize) -> Arc<Self> {
        let work = Arc::new(Self {
            pool: Pool::new("test", handlers_max, threads_max, 2),
            fates: Arc::default(),
            network: Monitor::default(),
            unsent: AtomicBool::new(false),
            collected: AtomicBool::new(false),
        });
        let owned = Arc::new(OwnedWork(Arc::clone(&work)));
        work.pool.start(owned).expect("two threads");
        work
    }

    fn flush(&self) {
        if self.unsent.swap(false, Ordering::SeqCst) {
            self.note(|fates| fates.flushed += 1);
        }
    }

    pub(in crate::pool) fn request(
        &self,
        number: u32,
        body: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> FakeRequest {
        FakeRequest {
            number,
            is_slow: false,
            arrived_at: Instant::now(),
            body: Some(Box::new(body)),
            fates: Arc::clone(&self.fates),
        }
    }

    /// A request arrives from the network.
    pub(in crate::pool) fn arrive(
        &self,
        number: u32,
        body: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let request = self.request(number, body);
        self.arrive_together([request]);
    }

    pub(in crate::pool) fn arrive_together(&self, requests: impl IntoIterator<Item = FakeRequest>) {
        self.network.lock().arrived.extend(requests);
        self.network.notify_all();
    }

    /// A request is submitted.
    pub(in crate::pool) fn submit(
        self: &Arc<Self>,
        number: u32,
        body: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let request = self.request(number, body);
        self.pool.submit([request]);
    }

    pub(in crate::pool) fn call_back(
        self: &Arc<Self>,
        number: u32,
        callback: impl FnOnce() + Send + 'static,
    ) {
        let fates = Arc::clone(&self.fates);
        let noted = move || {
            callback();
            fates.lock().called_back.push(number);
            fates.notify_all();
        };
        self.pool.call_back(Box::new(noted));
    }

    /// Leaves something to be sent, as a function on a thread of the pool does.
    pub(in crate::pool) fn leave_unsent(self: &Arc<Self>) {
        self.unsent.store(true, Ordering::SeqCst);
        if !self.pool.is_own_thread() || !self.pool.is_watched() {
            self.flush();
        }
    }

    /// Waits at a gate in the same way in which a function waits for a nested call.
    pub(in crate::pool) fn wait_at(self: &Arc<Self>, gate: &Gate) {
        self.flush();
        let _waiting = self.pool.enter_wait();
        gate.pass();
    }

    pub(in crate::pool) fn note(&self, note: impl FnOnce(&mut Fates)) {
        note(&mut self.fates.lock());
        self.fates.notify_all();
    }

    /// Waits until the condition holds.
    pub(in crate::pool) fn until(&self, what: &str, is_so: impl Fn(&Fates) -> bool) {
        let deadline = deadline();
        let mut fates = self.fates.lock();
        while !is_so(&fates) {
            let has_passed;
            (fates, has_passed) = self.fates.wait_until(fates, deadline);
            assert!(
                !has_passed,
                "not within {LONG:?}: {what}: {fates:?} {:?}",
                self.pool.gauges()
            );
        }
    }

    /// Takes the requests that were not polled.
    #[cfg(shuttle)]
    pub(in crate::pool) fn unread(&self) -> Vec<u32> {
        let arrived = std::mem::take(&mut self.network.lock().arrived);
        let numbers = arrived.iter().map(|request| request.number).collect();
        // They were not the pool's to drop.
        arrived
            .into_iter()
            .for_each(|mut request| drop(request.body.take()));
        numbers
    }

    #[cfg(not(shuttle))]
    pub(in crate::pool) fn polls(&self) -> u64 {
        self.network.lock().polls
    }
}

/// Where threads wait until it is opened.
#[derive(Debug, Default)]
pub(in crate::pool) struct Gate(Monitor<GateState>);

#[derive(Debug, Default)]
struct GateState {
    is_open: bool,
    arrivals: usize,
}

impl Gate {
    pub(in crate::pool) fn pass(&self) {
        let deadline = deadline();
        let mut gate = self.0.lock();
        gate.arrivals += 1;
        self.0.notify_all();
        while !gate.is_open {
            let has_passed;
            (gate, has_passed) = self.0.wait_until(gate, deadline);
            assert!(!has_passed, "a gate was not opened within {LONG:?}");
        }
    }

    pub(in crate::pool) fn open(&self) {
        self.0.lock().is_open = true;
        self.0.notify_all();
    }

    /// Waits until this number of threads have arrived in all.
    pub(in crate::pool) fn await_arrivals(&self, arrivals: usize) {
        let deadline = deadline();
        let mut gate = self.0.lock();
        while gate.arrivals < arrivals {
            let has_passed;
            (gate, has_passed) = self.0.wait_until(gate, deadline);
            assert!(
                !has_passed,
                "{arrivals} did not arrive within {LONG:?}: {gate:?}"
            );
        }
    }

    #[cfg(not(shuttle))]
    pub(in crate::pool) fn arrivals(&self) -> usize {
        self.0.lock().arrivals
    }
}

/// In a model a thread that is never woken is reported as a deadlock.
fn deadline() -> Deadline {
    if cfg!(shuttle) {
        Deadline::NEVER
    } else {
        Deadline::after(Instant::now(), LONG)
    }
}
