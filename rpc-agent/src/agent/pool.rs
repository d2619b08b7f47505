//! The threads of an agent: one looks after the sockets, the others run functions and callbacks.
//!
//! Leader and followers, with one turn: the thread that polled runs what it found itself, without
//! waking anybody, and polls again afterwards. A hand-over costs nearly as much as the network does, and
//! most functions are short. Meanwhile the *stand-by*, another thread, looks at short intervals whether
//! anything lies about for too long, be it a request, the poller or an unsent answer. If so, the function
//! that runs is not a short one, and the stand-by takes over. A function known to be slow is not even
//! waited for. An agent that has nothing to do has no ticking stand-by.
//!
//! Threads that wait for calls of their own inside a function do not count as running, and others take
//! their place, up to a limit. One thread beyond the limit never runs a function, so that answers and
//! refusals always get through. A callback cannot be refused, and what waits may wait for it: when all
//! wait it is run beyond the limit, one at a time, and another thread is added to look after the sockets.
//!
//! Whoever goes to run something leaves nothing behind that nobody would come for: neither the poller nor
//! what is queued.
//!
//! Knows nothing of sockets, peers or what a task does.

#[cfg(test)]
mod fake;
#[cfg(all(test, shuttle))]
mod model_tests;
#[cfg(all(test, not(shuttle)))]
mod tests;

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, JoinHandle, ThreadId};
use crate::sync::{self, Arc, Condvar, Mutex, MutexGuard, thread_local};

/// How often the stand-by looks, while there is something to do.
const TICK: Duration = Duration::from_micros(250);

/// What lies about for this long is taken up by the stand-by. A model has no time.
const STALE: Duration = Duration::from_micros(if cfg!(shuttle) { 0 } else { 200 });

/// After so many looks in a row at nothing the stand-by sleeps until it is woken.
const QUIET_TICKS_MAX: u32 = 4;

/// A thread that had nothing to do for this long ends, unless it is one of the last two. A test does not
/// wait for long.
const IDLE_MAX: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 10_000 });

/// What the pool works for. All of it is called without a lock of the pool.
pub(crate) trait Work: Send + Sync + 'static {
    /// What looks after the sockets. One thread has it at a time.
    type Poller: Send;
    /// A request of a peer, to be run.
    type Request: Send;

    /// Sends what has collected. Called before a thread sleeps or polls.
    fn flush(self: &Arc<Self>);

    /// Whether something has collected that is still to be sent.
    fn has_unsent(&self) -> bool;

    /// Whether anything has collected since the last time that this was asked.
    fn has_collected(&self) -> bool;

    /// Waits for the sockets once, and puts what came into `found`.
    fn poll(self: &Arc<Self>, poller: &mut Self::Poller, found: &mut VecDeque<Self::Request>);

    /// Ends a [`Work::poll`] that waits.
    fn wake_poller(&self);

    /// Runs a request. Does not panic.
    fn run(self: &Arc<Self>, request: Self::Request);

    /// Answers a request that cannot be run, as all `threads` wait.
    fn refuse(self: &Arc<Self>, request: Self::Request, threads: usize);

    /// Whether a request will take long.
    fn is_slow(request: &Self::Request) -> bool;

    /// When a request came.
    fn arrived_at(request: &Self::Request) -> Instant;
}

/// A callback of a future.
pub(crate) type Callback = Box<dyn FnOnce() + Send>;

/// How many threads do what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PoolGauges {
    /// All.
    pub(crate) threads: usize,
    /// Those with nothing to do.
    pub(crate) idle: usize,
    /// Those that wait for a call inside a function or a callback.
    pub(crate) waiting: usize,
    /// Requests that no thread runs yet.
    pub(crate) queued: usize,
}

/// The threads, and what they have to do.
pub(crate) struct Pool<W: Work> {
    state: Mutex<State<W>>,
    /// Idle threads, but for the stand-by.
    idle: Condvar,
    stand_by: Condvar,
    /// Whether the stand-by looks at short intervals: what collects is then sent soon.
    is_watched: AtomicBool,
    handlers_max: usize,
    threads_max: usize,
    name: String,
}

struct State<W: Work> {
    requests: VecDeque<W::Request>,
    /// With the time at which they came, or somewhat earlier.
    callbacks: VecDeque<(Instant, Callback)>,
    /// `None` while a thread polls.
    poller: Option<W::Poller>,
    poller_free_since: Instant,
    threads: usize,
    /// Threads that run functions, and that run callbacks; those that wait in one are in `waiting`.
    handlers: usize,
    callers_back: usize,
    waiting: usize,
    idle: usize,
    stand_by: StandBy,
    /// Idle threads that were asked to come and have not come yet.
    wanted: usize,
    stopping: bool,
    /// All threads have ended, and none will be started.
    stopped: bool,
    handles: Vec<JoinHandle<()>>,
    /// Threads that have nothing more to do but to end, and are to be joined.
    ended: Vec<ThreadId>,
    threads_begun: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StandBy {
    /// No idle thread looks.
    Nobody,
    /// One does.
    Looks,
    /// One sleeps until it is woken.
    Sleeps,
}

enum Task<W: Work> {
    Callback(Callback),
    Request(W::Request),
    Refuse(W::Request),
    Poll(W::Poller),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// No thread of a pool, or one between tasks.
    None,
    Handler,
    Callback,
    Poller,
    /// A handler or a callback that waits.
    Waiting,
}

thread_local! {
    /// The pool whose thread this is, by address, and what it does.
    static HERE: Cell<(usize, Role)> = const { Cell::new((0, Role::None)) };
}

fn here() -> (usize, Role) {
    HERE.with(Cell::get)
}

impl<W: Work> Pool<W> {
    pub(crate) fn new(name: &str, handlers_max: usize, threads_max: usize, now: Instant) -> Self {
        Self {
            state: Mutex::new(State {
                requests: VecDeque::new(),
                callbacks: VecDeque::new(),
                poller: None,
                poller_free_since: now,
                threads: 0,
                handlers: 0,
                callers_back: 0,
                waiting: 0,
                idle: 0,
                stand_by: StandBy::Nobody,
                wanted: 0,
                stopping: false,
                stopped: false,
                handles: Vec::new(),
                ended: Vec::new(),
                threads_begun: 0,
            }),
            idle: Condvar::new(),
            stand_by: Condvar::new(),
            is_watched: AtomicBool::new(false),
            handlers_max,
            threads_max,
            name: name.to_owned(),
        }
    }

    /// Starts the first two threads.
    ///
    /// # Errors
    /// When the system has no thread; those that were started are to be ended with [`Pool::stop`].
    pub(crate) fn start(&self, work: &Arc<W>, poller: W::Poller) -> io::Result<()>
    where
        W: AsRef<Self>,
    {
        self.lock().poller = Some(poller);
        self.spawn(work, self.lock())?;
        self.spawn(work, self.lock())
    }

    /// Takes a callback, to be run on a thread of the pool; after [`Pool::stop`] it is run at once.
    pub(crate) fn call_back(&self, work: &Arc<W>, callback: Callback)
    where
        W: AsRef<Self>,
    {
        if let Err(callback) = self.queue_callback(work, callback) {
            callback();
        }
    }

    /// [`Pool::call_back`], but after [`Pool::stop`] the callback comes back.
    pub(crate) fn queue_callback(&self, work: &Arc<W>, callback: Callback) -> Result<(), Callback>
    where
        W: AsRef<Self>,
    {
        let mut state = self.lock();
        if state.stopped {
            return Err(callback);
        }
        // Those that come together are given one time: a clock is not free.
        let now = state
            .callbacks
            .back()
            .map_or_else(Instant::now, |(at, _)| *at);
        state.callbacks.push_back((now, callback));
        self.call_for_help(work, state, 1);
        Ok(())
    }

    /// Takes requests that did not come out of [`Work::poll`]; drops them once the end has begun.
    pub(crate) fn submit(&self, work: &Arc<W>, requests: impl IntoIterator<Item = W::Request>)
    where
        W: AsRef<Self>,
    {
        let mut state = self.lock();
        if state.stopping {
            return;
        }
        state.requests.extend(requests);
        let slow = state.requests.iter().filter(|request| W::is_slow(request));
        let wanted = slow.take(self.handlers_max).count().max(1);
        self.call_for_help(work, state, wanted);
    }

    /// To be called before a thread blocks on a future: if it is one of this pool, another takes its
    /// place until the guard is dropped.
    pub(crate) fn enter_wait<'a>(&'a self, work: &'a Arc<W>) -> Waiting<'a, W>
    where
        W: AsRef<Self>,
    {
        let (pool, role) = here();
        if pool != self.address() || !matches!(role, Role::Handler | Role::Callback) {
            return Waiting { pool: None, role };
        }
        work.flush();
        self.go_on_as(Role::Waiting);
        let mut state = self.lock();
        *state.busy_as(role) -= 1;
        state.waiting += 1;
        // Whatever is there would lie about until the stand-by looks: this thread is known not to come.
        self.call_for_help(work, state, 1);
        Waiting {
            pool: Some(self),
            role,
        }
    }

    /// Whether what collects is sent soon, by the stand-by if by nobody else. If not, it is woken, so that
    /// this is so from then on.
    pub(crate) fn is_watched(&self) -> bool {
        if self.is_watched.load(Ordering::SeqCst) {
            return true;
        }
        let mut state = self.lock();
        if state.stand_by == StandBy::Sleeps {
            state.stand_by = StandBy::Looks;
            self.is_watched.store(true, Ordering::SeqCst);
            drop(state);
            self.stand_by.notify_one();
        }
        false
    }

    /// Whether the calling thread is one of this pool, at work: before it sleeps it will flush. One that
    /// waits sleeps already.
    pub(crate) fn is_own_thread(&self) -> bool {
        let (pool, role) = here();
        pool == self.address() && !matches!(role, Role::None | Role::Waiting)
    }

    /// Ends all threads once the callbacks, and the functions that run, have run, and joins them. A
    /// function that never ends makes this never end. Requests still queued are dropped.
    ///
    /// Called on a thread of the pool it joins the others only. To be called once.
    pub(crate) fn stop(&self, work: &Arc<W>) {
        let mut state = self.lock();
        state.stopping = true;
        let dropped = std::mem::take(&mut state.requests);
        drop(state);
        drop(dropped);
        let left = loop {
            self.idle.notify_all();
            self.stand_by.notify_all();
            work.wake_poller();
            let mut state = self.lock();
            let handles = std::mem::take(&mut state.handles);
            if handles.is_empty() {
                state.stopped = true;
                let requests = std::mem::take(&mut state.requests);
                let callbacks = std::mem::take(&mut state.callbacks);
                break (state.poller.take(), requests, callbacks);
            }
            drop(state);
            for handle in handles {
                if handle.thread().id() != thread::current().id() && handle.join().is_err() {
                    log::error!("a thread of the agent panicked");
                }
            }
        };
        let (poller, requests, callbacks) = left;
        drop(poller);
        drop(requests);
        for (_, callback) in callbacks {
            callback();
        }
    }

    pub(crate) fn gauges(&self) -> PoolGauges {
        let state = self.lock();
        PoolGauges {
            threads: state.threads,
            idle: state.idle,
            waiting: state.waiting,
            queued: state.requests.len(),
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn lock(&self) -> MutexGuard<'_, State<W>> {
        // No code that can panic runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn go_on_as(&self, role: Role) {
        HERE.with(|here| here.set((self.address(), role)));
    }

    /// Sees to it that somebody comes for what was just queued.
    fn call_for_help(&self, work: &Arc<W>, mut state: MutexGuard<'_, State<W>>, wanted: usize)
    where
        W: AsRef<Self>,
    {
        if here() == (self.address(), Role::Poller) {
            // The caller comes itself, right after.
            return;
        }
        if !state.has_task(self) {
            // Who makes it possible to run more comes for it.
            return;
        }
        let idle_to_come = state.idle.saturating_sub(state.wanted).min(wanted);
        state.wanted += idle_to_come;
        let plain_idle = state.idle - usize::from(state.stand_by != StandBy::Nobody);
        let missing = (wanted - idle_to_come).saturating_sub(state.coming());
        let may_spawn = state.threads_limit(self).saturating_sub(state.threads);
        let stand_by_too = idle_to_come > 0 && plain_idle < state.wanted;
        drop(state);
        for _ in 0..idle_to_come {
            self.idle.notify_one();
        }
        if stand_by_too {
            self.stand_by.notify_one();
        }
        for _ in 0..missing.min(may_spawn) {
            self.spawn_or_warn(work, self.lock());
        }
        if missing > may_spawn {
            work.wake_poller();
        }
    }

    /// Before this thread goes to run something: somebody must look at what it leaves behind.
    fn see_to_stand_by(&self, work: &Arc<W>, mut state: MutexGuard<'_, State<W>>)
    where
        W: AsRef<Self>,
    {
        if !state.has_task(self) {
            return;
        }
        match state.stand_by {
            StandBy::Looks => {}
            StandBy::Sleeps => {
                state.stand_by = StandBy::Looks;
                self.is_watched.store(true, Ordering::SeqCst);
                drop(state);
                self.stand_by.notify_one();
            }
            StandBy::Nobody if state.idle > 0 => {
                // Some idle thread becomes the stand-by when it wakes.
                drop(state);
                self.idle.notify_one();
            }
            StandBy::Nobody if state.coming() > 0 => {}
            StandBy::Nobody => self.spawn_or_warn(work, state),
        }
    }

    fn spawn_or_warn(&self, work: &Arc<W>, state: MutexGuard<'_, State<W>>)
    where
        W: AsRef<Self>,
    {
        if state.stopped || state.threads >= state.threads_limit(self) {
            return;
        }
        if let Err(error) = self.spawn(work, state) {
            log::warn!("{}: cannot start a further thread: {error}", self.name);
        }
    }

    /// Starts a thread. Under the lock, so that who stops the pool finds every thread that lives.
    fn spawn(&self, work: &Arc<W>, mut state: MutexGuard<'_, State<W>>) -> io::Result<()>
    where
        W: AsRef<Self>,
    {
        let body = Arc::clone(work);
        let handle = thread::Builder::new()
            .name(format!("rpc-{}", state.threads_begun + 1))
            .spawn(move || (*body).as_ref().work(&body))?;
        state.threads += 1;
        state.threads_begun += 1;
        let ended = std::mem::take(&mut state.ended);
        let (ended, alive) = std::mem::take(&mut state.handles)
            .into_iter()
            .partition::<Vec<_>, _>(|handle| ended.contains(&handle.thread().id()));
        state.handles = alive;
        state.handles.push(handle);
        drop(state);
        for handle in ended {
            let _ = handle.join();
        }
        Ok(())
    }

    /// The life of a thread.
    fn work(&self, work: &Arc<W>)
    where
        W: AsRef<Self>,
    {
        self.go_on_as(Role::None);
        let mut found = VecDeque::new();
        let mut state = self.lock();
        loop {
            let Some(task) = state.next_task(self) else {
                if state.stopping {
                    break;
                }
                drop(state);
                work.flush();
                state = self.lock();
                if !state.has_task(self) {
                    let (now_state, goes_on) = self.rest(state, work);
                    state = now_state;
                    if !goes_on {
                        break;
                    }
                }
                continue;
            };
            match task {
                Task::Poll(mut poller) => {
                    drop(state);
                    work.flush();
                    self.go_on_as(Role::Poller);
                    work.poll(&mut poller, &mut found);
                    self.go_on_as(Role::None);
                    let now = Instant::now();
                    let slow = found.iter().filter(|request| W::is_slow(request));
                    let slow = slow.take(self.handlers_max).count();
                    state = self.lock();
                    state.poller = Some(poller);
                    state.poller_free_since = now;
                    state.requests.append(&mut found);
                    if slow > 0 {
                        self.call_for_help(work, state, slow);
                        state = self.lock();
                    }
                }
                Task::Callback(callback) => {
                    state.callers_back += 1;
                    self.see_to_stand_by(work, state);
                    self.go_on_as(Role::Callback);
                    callback();
                    self.go_on_as(Role::None);
                    state = self.lock();
                    state.callers_back -= 1;
                }
                Task::Request(request) => {
                    state.handlers += 1;
                    self.see_to_stand_by(work, state);
                    self.go_on_as(Role::Handler);
                    work.run(request);
                    self.go_on_as(Role::None);
                    state = self.lock();
                    state.handlers -= 1;
                }
                Task::Refuse(request) => {
                    drop(state);
                    work.refuse(request, self.threads_max);
                    state = self.lock();
                }
            }
        }
        state.threads -= 1;
        state.ended.push(thread::current().id());
    }

    /// Sleeps until this thread is wanted, as the stand-by if there is none. Returns whether it goes on.
    fn rest<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<W>>,
        work: &Arc<W>,
    ) -> (MutexGuard<'a, State<W>>, bool)
    where
        W: AsRef<Self>,
    {
        state.idle += 1;
        let mut quiet_ticks = 0;
        let mut is_stand_by = false;
        let goes_on = loop {
            if state.stopping {
                break true;
            }
            if state.wanted > 0 {
                state.wanted -= 1;
                break true;
            }
            if !is_stand_by && state.stand_by == StandBy::Nobody {
                is_stand_by = true;
                state.stand_by = StandBy::Looks;
                self.is_watched.store(true, Ordering::SeqCst);
            }
            if !is_stand_by {
                let timed_out;
                (state, timed_out) = sync::wait_timeout(&self.idle, state, &self.state, IDLE_MAX);
                let is_needed = state.wanted > 0 || state.stand_by == StandBy::Nobody;
                if timed_out && !is_needed && state.threads > 2 && !state.stopping {
                    break false;
                }
                continue;
            }
            if quiet_ticks >= QUIET_TICKS_MAX {
                // First this, then a last look: who collects does it the other way round.
                self.is_watched.store(false, Ordering::SeqCst);
                if work.has_unsent() {
                    quiet_ticks = 0;
                    self.is_watched.store(true, Ordering::SeqCst);
                    drop(state);
                    work.flush();
                    state = self.lock();
                    continue;
                }
                state.stand_by = StandBy::Sleeps;
                state = self
                    .stand_by
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.stand_by = StandBy::Looks;
                self.is_watched.store(true, Ordering::SeqCst);
                quiet_ticks = 0;
                continue;
            }
            state = sync::wait_tick(&self.stand_by, state, &self.state, TICK);
            if work.has_unsent() {
                drop(state);
                work.flush();
                state = self.lock();
            }
            let now = Instant::now();
            if state.is_stale(self, now) {
                let more = state.requests.len().saturating_sub(1);
                let more = more.min(self.handlers_max.saturating_sub(state.handlers + 1));
                if more > 0 {
                    self.call_for_help(work, state, more);
                    state = self.lock();
                }
                break true;
            }
            let is_quiet = state.poller.is_none() && !state.has_task(self) && !work.has_collected();
            quiet_ticks = if is_quiet { quiet_ticks + 1 } else { 0 };
        };
        state.idle -= 1;
        if is_stand_by {
            state.stand_by = StandBy::Nobody;
            self.is_watched.store(false, Ordering::SeqCst);
            if state.idle > 0 {
                self.idle.notify_one();
            }
            if work.has_unsent() {
                drop(state);
                work.flush();
                state = self.lock();
            }
        }
        (state, goes_on)
    }
}

impl<W: Work> std::fmt::Debug for Pool<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("gauges", &self.gauges())
            .finish_non_exhaustive()
    }
}

impl<W: Work> State<W> {
    fn busy(&self) -> usize {
        self.handlers + self.callers_back + self.waiting
    }

    fn busy_as(&mut self, role: Role) -> &mut usize {
        if role == Role::Handler {
            &mut self.handlers
        } else {
            &mut self.callers_back
        }
    }

    fn can_run(&self, pool: &Pool<W>) -> bool {
        !self.stopping && self.busy() < pool.threads_max && self.handlers < pool.handlers_max
    }

    /// What waits may wait for a callback: one is run even if all wait.
    fn can_call_back(&self, pool: &Pool<W>) -> bool {
        self.busy() < pool.threads_max || self.busy() == self.waiting
    }

    /// Whether requests are refused: every thread that may run a function waits inside one.
    fn must_refuse(&self, pool: &Pool<W>) -> bool {
        !self.stopping && self.waiting >= pool.threads_max
    }

    /// One thread more than are busy, and than may be.
    fn threads_limit(&self, pool: &Pool<W>) -> usize {
        self.busy().max(pool.threads_max) + 1
    }

    /// Threads that are about to look for something to do: neither busy, nor idle, nor polling.
    fn coming(&self) -> usize {
        let polling = usize::from(self.poller.is_none());
        self.threads
            .saturating_sub(self.busy() + self.idle + polling)
    }

    /// Whether a free thread finds a callback or a request.
    fn has_work(&self, pool: &Pool<W>) -> bool {
        !self.callbacks.is_empty() && self.can_call_back(pool)
            || !self.requests.is_empty() && (self.can_run(pool) || self.must_refuse(pool))
    }

    /// Whether a free thread finds something to do.
    fn has_task(&self, pool: &Pool<W>) -> bool {
        self.poller.is_some() && !self.stopping || self.has_work(pool)
    }

    fn next_task(&mut self, pool: &Pool<W>) -> Option<Task<W>> {
        if self.can_call_back(pool)
            && let Some((_, callback)) = self.callbacks.pop_front()
        {
            return Some(Task::Callback(callback));
        }
        if self.can_run(pool)
            && let Some(request) = self.requests.pop_front()
        {
            return Some(Task::Request(request));
        }
        if self.must_refuse(pool)
            && let Some(request) = self.requests.pop_front()
        {
            return Some(Task::Refuse(request));
        }
        if self.stopping {
            return None;
        }
        self.poller.take().map(Task::Poll)
    }

    /// Whether something lies about for which there could be a thread.
    fn is_stale(&self, pool: &Pool<W>, now: Instant) -> bool {
        let is_old = |since: Instant| now.saturating_duration_since(since) >= STALE;
        let callback = self.callbacks.front().map(|(at, _)| *at);
        let request = self.requests.front().map(W::arrived_at);
        self.poller.is_some() && is_old(self.poller_free_since)
            || self.has_work(pool) && callback.into_iter().chain(request).any(is_old)
    }
}

/// A thread of the pool waits while this lives, or any other thread, for which it means nothing.
pub(crate) struct Waiting<'a, W: Work> {
    pool: Option<&'a Pool<W>>,
    role: Role,
}

impl<W: Work> Drop for Waiting<'_, W> {
    fn drop(&mut self) {
        if let Some(pool) = self.pool {
            let mut state = pool.lock();
            state.waiting -= 1;
            *state.busy_as(self.role) += 1;
            drop(state);
            pool.go_on_as(self.role);
        }
    }
}
