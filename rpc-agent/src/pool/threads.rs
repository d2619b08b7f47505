//! The threads of a pool, which obey the [`Scheduler`].

use std::cell::Cell;
use std::io;
use std::sync::PoisonError;
use std::time::Instant;

use c10d_socket::Process;

use super::scheduler::{
    Effects, IDLE_MAX, Look, Next, PoolGauges, QueuedRequest, Scheduler, Sleep, TICK, Task, Thread,
};
use crate::future::contained;
use crate::segmented_queue::SegmentedQueue;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, JoinHandle, ThreadId};
use crate::sync::{self, Arc, Condvar, Mutex, MutexGuard, thread_local};

/// The work of a pool. The pool calls these functions without a lock.
pub(crate) trait Work<R>: Send + Sync {
    /// Sends what has collected. Called before a thread sleeps or polls.
    fn flush(&self);

    /// Whether something has collected that is still to be sent.
    fn has_unsent(&self) -> bool;

    /// Whether anything has collected since the last call.
    fn has_collected(&self) -> bool;

    /// Waits for the sockets once, and appends the requests that it read to `found`. One thread at a time
    /// is in it.
    fn poll(&self, found: &mut SegmentedQueue<R>);

    /// Ends a [`Work::poll`] that waits, or the next one.
    fn wake_poller(&self);

    /// Runs a request. Does not panic.
    fn run(&self, request: R);

    /// Answers a request that cannot run, because all `threads` wait.
    fn refuse(&self, request: R, threads: usize);

    /// Whether a request will take long.
    fn is_slow(&self, request: &R) -> bool;

    fn arrived_at(&self, request: &R) -> Instant;

    /// Returns the process's free memory to the system. Called when the threads of a burst have ended.
    fn return_free_memory(&self);
}

/// A callback of a future. Does not panic.
pub(crate) type Callback = Box<dyn FnOnce() + Send>;

/// A pool of threads for requests of type `R` and callbacks.
pub(crate) struct Pool<R> {
    state: Mutex<State<R>>,
    /// Idle threads, except the standby thread.
    idle: Condvar,
    standby: Condvar,
    /// Notifies [`Pool::stop`], which waits until no thread is being started.
    started: Condvar,
    /// [`Scheduler::is_watched`], to be read without the lock.
    is_watched: AtomicBool,
    threads_max: usize,
    name: String,
}

struct State<R> {
    scheduler: Scheduler<R, Callback>,
    /// `None` before the start and after the stop.
    work: Option<Arc<dyn Work<R>>>,
    handles: Vec<JoinHandle<()>>,
    /// Threads whose handle is not in `handles` yet.
    starting: usize,
    /// Threads that have nothing more to do but to end, and are to be joined.
    ended: Vec<ThreadId>,
}

impl<R> State<R> {
    fn take_ended(&mut self) -> Vec<JoinHandle<()>> {
        let ended = &mut self.ended;
        let has_ended = |handle: &mut JoinHandle<()>| {
            let id = handle.thread().id();
            let index = ended.iter().position(|ended| *ended == id);
            index.map(|index| ended.swap_remove(index)).is_some()
        };
        self.handles.extract_if(.., has_ended).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// No thread of a pool, or one between tasks.
    None,
    Runs(Task),
    Polls,
    /// Runs a task that waits.
    Waits,
}

thread_local! {
    /// The pool of this thread, by address, and the thread's role in it.
    static HERE: Cell<(usize, Role)> = const { Cell::new((0, Role::None)) };
}

impl<R: Send + 'static> Pool<R> {
    /// A pool without threads. At most `handlers_max` requests run at a time, `callers_back_max` callbacks that do not
    /// block, and `threads_max` requests and callbacks, those that wait or block among them.
    pub(crate) fn new(
        name: &str,
        handlers_max: usize,
        threads_max: usize,
        callers_back_max: usize,
    ) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            state: Mutex::new(State {
                scheduler: Scheduler::new(handlers_max, threads_max, callers_back_max, now),
                work: None,
                handles: Vec::new(),
                starting: 0,
                ended: Vec::new(),
            }),
            idle: Condvar::new(),
            standby: Condvar::new(),
            started: Condvar::new(),
            is_watched: AtomicBool::new(false),
            threads_max,
            name: name.to_owned(),
        })
    }

    /// Starts the first two threads. The pool owns `work` until [`Pool::stop`].
    ///
    /// # Errors
    /// When the system has no thread; call [`Pool::stop`] to end those that were started.
    pub(crate) fn start(self: &Arc<Self>, work: Arc<dyn Work<R>>) -> io::Result<()> {
        let mut state = self.lock();
        state.work = Some(work);
        state.scheduler.start();
        self.carry_out(state)
    }

    /// Runs a callback on a thread of the pool; after [`Pool::stop`] at once on this one.
    pub(crate) fn call_back(self: &Arc<Self>, callback: Callback) {
        if let Err(callback) = self.queue_callback(callback) {
            callback();
        }
    }

    /// Runs a callback on a thread of the pool; returns it after [`Pool::stop`].
    pub(crate) fn queue_callback(self: &Arc<Self>, callback: Callback) -> Result<(), Callback> {
        let mut state = self.lock();
        // Callbacks that are queued together get one time: a clock is not free.
        let at = state.scheduler.last_callback_at();
        let now = at.unwrap_or_else(Instant::now);
        let caller_polls = self.role_here() == Role::Polls;
        state
            .scheduler
            .queue_callback(callback, now, caller_polls)?;
        self.unlock(state);
        Ok(())
    }

    /// Makes an attempt to connect on a thread of the pool; drops it once [`Pool::stop`] has begun.
    pub(crate) fn dial(self: &Arc<Self>, attempt: Callback) {
        let mut state = self.lock();
        let refused = state.scheduler.queue_dial(attempt, Instant::now());
        self.unlock(state);
        drop(refused);
    }

    /// Runs requests that were not read by [`Work::poll`]. Drops them before [`Pool::start`] and once
    /// [`Pool::stop`] has begun.
    pub(crate) fn submit(self: &Arc<Self>, requests: impl IntoIterator<Item = R>) {
        let Some(work) = self.lock().work.clone() else {
            return;
        };
        let mut requests = queued(&*work, requests);
        // Usually one: without an allocation.
        let first = requests.next();
        let more: Vec<_> = requests.collect();
        let caller_polls = self.role_here() == Role::Polls;
        let mut state = self.lock();
        let batch = first.into_iter().chain(more);
        let refused = state.scheduler.submit(batch, caller_polls);
        self.unlock(state);
        drop(refused);
    }

    /// Call this before a thread blocks on a future: if it is a thread of this pool, another thread takes its place
    /// until the guard is dropped. The caller has flushed.
    pub(crate) fn enter_wait(self: &Arc<Self>) -> Waiting<'_, R> {
        let Role::Runs(task) = self.role_here() else {
            return Waiting(None);
        };
        self.continue_as(Role::Waits);
        let mut state = self.lock();
        state.scheduler.enter_wait(task);
        self.unlock(state);
        Waiting(Some((self, task)))
    }

    /// Whether what collects is sent soon, at the latest by the standby thread. If not, the caller sends
    /// what it has; a standby thread that sleeps is woken, so that the answer is yes from then on.
    pub(crate) fn is_watched(&self) -> bool {
        if self.is_watched.load(Ordering::SeqCst) {
            return true;
        }
        let mut state = self.lock();
        if state.scheduler.watch() {
            self.publish(&state);
            drop(state);
            self.standby.notify_one();
        }
        false
    }

    /// Whether the calling thread is one of this pool that is working: it flushes before it sleeps. A
    /// thread that waits sleeps already.
    pub(crate) fn is_own_thread(&self) -> bool {
        !matches!(self.role_here(), Role::None | Role::Waits)
    }

    /// Drops the queued requests, runs the callbacks, waits for the running functions, joins all threads and drops
    /// the work. If a function never returns, this does not return either.
    ///
    /// Called on a thread of the pool, it joins only the other threads. To be called once.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        let dropped = state.scheduler.stop();
        let work = state.work.clone();
        drop(state);
        drop(dropped);
        let (dropped, callbacks) = loop {
            self.idle.notify_all();
            self.standby.notify_all();
            if let Some(work) = &work {
                work.wake_poller();
            }
            let mut state = self.lock();
            while state.handles.is_empty() && state.starting > 0 {
                state = self
                    .started
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let handles = std::mem::take(&mut state.handles);
            if handles.is_empty() {
                // Not the last reference: `work` is dropped without the lock.
                state.work = None;
                break state.scheduler.finish();
            }
            drop(state);
            for handle in handles {
                if handle.thread().id() != thread::current().id() && handle.join().is_err() {
                    log::error!("{}: a thread of the pool panicked", self.name);
                }
            }
        };
        drop(dropped);
        for callback in callbacks {
            callback();
        }
    }

    pub(crate) fn gauges(&self) -> PoolGauges {
        self.lock().scheduler.gauges()
    }
}

impl<R: Send + 'static> Pool<R> {
    /// The life of a thread.
    fn run_thread(self: &Arc<Self>, work: &dyn Work<R>) {
        self.continue_as(Role::None);
        let mut thread = Thread::new();
        let (mut found, mut batch) = (SegmentedQueue::new(), SegmentedQueue::new());
        let mut state = self.lock();
        loop {
            state = match state.scheduler.next(&mut thread) {
                Next::CallBack(callback) => {
                    self.unlock(state);
                    self.run_task(&mut thread, Task::Callback, callback)
                }
                Next::Dial(attempt) => {
                    self.unlock(state);
                    self.run_task(&mut thread, Task::Dial, attempt)
                }
                Next::Run(request) => {
                    self.unlock(state);
                    self.run_task(&mut thread, Task::Handler, || work.run(request))
                }
                Next::Refuse(request) => {
                    self.unlock(state);
                    work.refuse(request, self.threads_max);
                    self.lock()
                }
                Next::Poll => {
                    self.unlock(state);
                    work.flush();
                    self.continue_as(Role::Polls);
                    work.poll(&mut found);
                    self.continue_as(Role::None);
                    batch.extend(queued(work, found.drain()));
                    let now = Instant::now();
                    self.lock_and(|scheduler| scheduler.polled(&mut thread, batch.drain(), now))
                }
                Next::Flush => {
                    self.unlock(state);
                    work.flush();
                    self.lock()
                }
                Next::Look => {
                    self.unlock(state);
                    let flushed = work.has_unsent();
                    if flushed {
                        work.flush();
                    }
                    let collected = work.has_collected();
                    let look = Look { flushed, collected };
                    let now = Instant::now();
                    self.lock_and(|scheduler| scheduler.looked(&mut thread, look, now))
                }
                Next::Sleep(_) if state.scheduler.has_effects() => {
                    self.unlock(state);
                    self.lock()
                }
                Next::Sleep(sleep) => {
                    self.publish(&state);
                    let (state, has_timed_out) = self.sleep(sleep, state);
                    thread.woke(has_timed_out);
                    state
                }
                Next::End { burst_is_over } => {
                    state.ended.push(thread::current().id());
                    self.unlock(state);
                    if burst_is_over {
                        work.return_free_memory();
                    }
                    return;
                }
            };
        }
    }

    /// Runs a task, which contains the panics of the program's functions itself. A panic of a value that is dropped
    /// after them must not cost the pool a thread.
    fn run_task(
        &self,
        thread: &mut Thread,
        task: Task,
        run: impl FnOnce(),
    ) -> MutexGuard<'_, State<R>> {
        self.continue_as(Role::Runs(task));
        let started_in = Process::this();
        if cfg!(shuttle) {
            // The model checker reports panics.
            run();
        } else {
            contained("a task", run);
        }
        if !started_in.is_this() {
            // A function forked, and its child returned: it would take the events of its parent's sockets. Without a line
            // in the log, whose locks may be held by threads that the child does not have.
            std::process::abort();
        }
        self.continue_as(Role::None);
        self.lock_and(|scheduler| scheduler.returned(thread))
    }

    fn sleep<'a>(
        &'a self,
        sleep: Sleep,
        state: MutexGuard<'a, State<R>>,
    ) -> (MutexGuard<'a, State<R>>, bool) {
        match sleep {
            Sleep::Idle => sync::wait_timeout(&self.idle, state, &self.state, IDLE_MAX),
            Sleep::Tick => {
                let state = sync::wait_tick(&self.standby, state, &self.state, TICK);
                (state, true)
            }
            Sleep::Standby => {
                let state = self.standby.wait(state);
                (state.unwrap_or_else(PoisonError::into_inner), false)
            }
        }
    }

    /// Unlocks, and wakes or starts other threads as the scheduler requires.
    fn unlock(self: &Arc<Self>, state: MutexGuard<'_, State<R>>) {
        if !state.scheduler.has_effects() {
            return self.publish(&state);
        }
        if let Err(error) = self.carry_out(state) {
            log::warn!("{}: cannot start another thread: {error}", self.name);
        }
    }

    /// [`Pool::unlock`]; fails when a thread cannot be started.
    fn carry_out(self: &Arc<Self>, mut state: MutexGuard<'_, State<R>>) -> io::Result<()> {
        self.publish(&state);
        let Effects {
            wake_idle,
            wake_standby,
            wake_poller,
            spawn,
        } = state.scheduler.take_effects();
        let work = if wake_poller || !spawn.is_empty() {
            state.work.clone()
        } else {
            None
        };
        state.starting += spawn.clone().count();
        drop(state);
        for _ in 0..wake_idle {
            self.idle.notify_one();
        }
        if wake_standby {
            self.standby.notify_one();
        }
        let mut result = Ok(());
        if let Some(work) = work {
            for number in spawn {
                result = result.and(self.spawn(number, &work));
            }
            if wake_poller {
                work.wake_poller();
            }
        }
        result
    }

    fn spawn(self: &Arc<Self>, number: u64, work: &Arc<dyn Work<R>>) -> io::Result<()> {
        let (pool, work) = (Arc::clone(self), Arc::clone(work));
        let spawned = thread::Builder::new()
            .name(format!("rpc-{number}"))
            .spawn(move || pool.run_thread(&*work));
        let mut state = self.lock();
        state.starting -= 1;
        let ended = state.take_ended();
        let result = match spawned {
            Ok(handle) => {
                state.handles.push(handle);
                Ok(())
            }
            Err(error) => {
                state.scheduler.not_started();
                Err(error)
            }
        };
        drop(state);
        self.started.notify_all();
        for handle in ended {
            let _ = handle.join();
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State<R>> {
        // The code that runs under this lock does not panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_and(
        &self,
        report: impl FnOnce(&mut Scheduler<R, Callback>),
    ) -> MutexGuard<'_, State<R>> {
        let mut state = self.lock();
        report(&mut state.scheduler);
        state
    }

    /// Makes it known whether the standby thread watches. Called under the lock.
    fn publish(&self, state: &State<R>) {
        let is_watched = state.scheduler.is_watched();
        if self.is_watched.load(Ordering::Relaxed) != is_watched {
            self.is_watched.store(is_watched, Ordering::SeqCst);
        }
    }

    /// The calling thread's role in this pool.
    fn role_here(&self) -> Role {
        match HERE.with(Cell::get) {
            (pool, role) if pool == self.address() => role,
            _ => Role::None,
        }
    }

    fn continue_as(&self, role: Role) {
        HERE.with(|here| here.set((self.address(), role)));
    }

    #[cfg(all(test, not(shuttle)))]
    pub(super) fn ask<T>(&self, question: impl FnOnce(&Scheduler<R, Callback>) -> T) -> T {
        question(&self.lock().scheduler)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

fn queued<R>(
    work: &dyn Work<R>,
    requests: impl IntoIterator<Item = R>,
) -> impl Iterator<Item = QueuedRequest<R>> {
    requests.into_iter().map(|request| QueuedRequest {
        arrived_at: work.arrived_at(&request),
        is_slow: work.is_slow(&request),
        request,
    })
}

/// A thread of the pool waits while this lives. Means nothing for any other thread.
pub(crate) struct Waiting<'a, R: Send + 'static>(Option<(&'a Pool<R>, Task)>);

impl<R: Send + 'static> Drop for Waiting<'_, R> {
    fn drop(&mut self) {
        if let Some((pool, task)) = self.0 {
            pool.lock().scheduler.leave_wait(task);
            pool.continue_as(Role::Runs(task));
        }
    }
}
