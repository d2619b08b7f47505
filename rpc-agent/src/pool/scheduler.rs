//! The next steps of the threads of a pool, and the threads to wake or to start.
//!
//! A thread reports to the scheduler and obeys the [`Next`] that it returns. Steps of other threads are collected in
//! [`Effects`], which the caller takes after each step and carries out.

#[cfg(all(test, not(shuttle)))]
mod tests;

use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::segmented_queue::SegmentedQueue;

/// How often the standby thread checks, while there is something to do.
pub(super) const TICK: Duration = Duration::from_micros(250);

/// A task or a poller that has waited for this long is taken by the standby thread. A model has no time.
pub(super) const STALE: Duration = Duration::from_micros(if cfg!(shuttle) { 0 } else { 200 });

/// After this number of ticks in a row with nothing to do the standby thread sleeps until it is woken. Fewer
/// in tests, which visit every state.
const QUIET_TICKS_MAX: u32 = if cfg!(test) { 1 } else { 4 };

/// From this number of queued requests on they are a burst: megabytes, which the system's allocator would keep.
const BURST_REQUESTS_MIN: usize = 10_000;

/// Attempts to connect that may run at a time: more wait for each other.
const DIALS_MAX: usize = 8;

/// If no callback has returned for this long, those that run block: another thread runs the next one. A model has no
/// time.
const BLOCKED: Duration = if cfg!(any(test, shuttle)) {
    STALE
} else {
    Duration::from_millis(10)
};

/// A thread that had nothing to do for this long ends, unless it is one of the last two. Short in tests.
pub(super) const IDLE_MAX: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 10_000 });

/// The queues of a pool, and the activity of each of its threads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Scheduler<R, C> {
    handlers_max: usize,
    threads_max: usize,
    stage: Stage,
    requests: SegmentedQueue<QueuedRequest<R>>,
    slow_queued: usize,
    /// The queued callbacks, with the time at which they were queued, or somewhat earlier.
    callbacks: SegmentedQueue<(Instant, C)>,
    /// Attempts to connect. The limits do not count their threads.
    dials: SegmentedQueue<(Instant, C)>,
    /// `None` while a thread polls.
    poller_free_since: Option<Instant>,
    threads: usize,
    threads_begun: u64,
    /// Threads that run functions, and that run callbacks; those that wait in one are in `waiting`.
    handlers: usize,
    callers_back: usize,
    /// How many non-blocking callbacks of `callers_back` may run: more threads would not be faster.
    callers_back_max: usize,
    /// The part of `callers_back` that blocks, so that more callbacks may run.
    blocked: usize,
    /// How often callbacks were found to block.
    blockages: u32,
    /// The time since which callbacks have waited and none has returned.
    held_since: Option<Instant>,
    dialers: usize,
    waiting: usize,
    /// Threads that sleep, or that are about to sleep, including the standby thread.
    idle: usize,
    standby: Standby,
    /// Idle threads that were woken for a task and have not reported yet.
    wanted: usize,
    /// A burst of requests has arrived since free memory was returned to the system.
    had_burst: bool,
    effects: Effects,
}

/// A request on its way through the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QueuedRequest<R> {
    pub(super) request: R,
    pub(super) arrived_at: Instant,
    pub(super) is_slow: bool,
}

/// The next step of a thread.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<R, C> {
    /// Calls back, then reports [`Scheduler::returned`].
    CallBack(C),
    /// Makes an attempt to connect, then reports [`Scheduler::returned`].
    Dial(C),
    /// Runs a request, then reports [`Scheduler::returned`].
    Run(R),
    /// Answers that no thread can run the request.
    Refuse(R),
    /// Flushes, waits for the sockets once, then reports [`Scheduler::polled`].
    Poll,
    /// The thread flushes unsent answers.
    Flush,
    /// Flushes if something is unsent, then reports [`Scheduler::looked`].
    Look,
    /// Sleeps, then reports [`Thread::woke`].
    Sleep(Sleep),
    /// Ends. If set, first has the process's free memory returned to the system: a burst of requests is over.
    End { burst_is_over: bool },
}

/// How a thread sleeps. It may wake up without a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleep {
    /// The thread sleeps for [`IDLE_MAX`], or until [`Effects::wake_idle`].
    Idle,
    /// The standby thread sleeps for [`TICK`] or until [`Effects::wake_standby`].
    Tick,
    /// The standby thread sleeps until [`Effects::wake_standby`].
    Standby,
}

/// Steps of other threads than the reporting thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Effects {
    /// How many idle threads are to be woken.
    pub(super) wake_idle: usize,
    pub(super) wake_standby: bool,
    pub(super) wake_poller: bool,
    /// Numbers of the threads to be started. They count as threads already; when one cannot be started,
    /// report [`Scheduler::not_started`].
    pub(super) spawn: Range<u64>,
}

/// The result of the standby thread's check.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Look {
    /// Whether the standby thread had to flush.
    pub(super) flushed: bool,
    /// Something was produced since the last look.
    pub(super) collected: bool,
}

/// The numbers of threads by activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PoolGauges {
    pub(crate) threads: usize,
    /// Threads with nothing to do.
    pub(crate) idle: usize,
    /// Threads that wait for a call inside a function or a callback.
    pub(crate) waiting: usize,
    /// Requests that no thread runs yet.
    pub(crate) queued: usize,
}

/// The scheduler's note about one thread, which the thread carries.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Thread {
    phase: Phase,
    /// The [`Scheduler::blockages`] before its callback.
    blockages: u32,
}

impl Thread {
    pub(super) const fn new() -> Self {
        Self {
            phase: Phase::Free,
            blockages: 0,
        }
    }

    /// The thread has slept.
    pub(super) const fn woke(&mut self, has_timed_out: bool) {
        if let Phase::Idle { timed_out } = &mut self.phase {
            *timed_out = has_timed_out;
        }
    }
}

/// The kind of a task that a thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Task {
    Handler,
    Callback,
    Dial,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    /// Looks for something to do.
    Free,
    /// Has flushed and may sleep.
    Flushed,
    Runs(Task),
    Polls,
    Idle {
        timed_out: bool,
    },
    /// The standby thread, between ticks.
    Standby {
        quiet_ticks: u32,
    },
    /// The standby thread sleeps for a tick.
    Ticks {
        quiet_ticks: u32,
    },
    /// The standby thread looks, to sleep afterwards if `is_last`.
    Looks {
        quiet_ticks: u32,
        is_last: bool,
    },
    /// The standby thread has found nothing in its last look, and sleeps until it is to watch again.
    FallsAsleep,
    /// It is no longer the standby thread: no thread checks for its unsent messages.
    Resigns,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    /// No thread yet.
    New,
    Running,
    /// Requests are no longer taken or run.
    Stopping,
    /// All threads have ended, and none will be started.
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Standby {
    /// The standby thread is missing: no idle thread has this role.
    None,
    /// It checks every [`TICK`].
    Watching,
    /// It looks once more before it sleeps.
    LastLook,
    /// It sleeps until it is woken.
    Asleep,
}

impl<R, C> Scheduler<R, C> {
    /// Creates a scheduler that runs at most `callers_back_max` non-blocking callbacks at a time.
    pub(super) fn new(
        handlers_max: usize,
        threads_max: usize,
        callers_back_max: usize,
        now: Instant,
    ) -> Self {
        Self {
            handlers_max,
            threads_max,
            stage: Stage::New,
            requests: SegmentedQueue::new(),
            slow_queued: 0,
            callbacks: SegmentedQueue::new(),
            dials: SegmentedQueue::new(),
            poller_free_since: Some(now),
            threads: 0,
            threads_begun: 0,
            handlers: 0,
            callers_back: 0,
            callers_back_max,
            blocked: 0,
            blockages: 0,
            held_since: None,
            dialers: 0,
            waiting: 0,
            idle: 0,
            standby: Standby::None,
            wanted: 0,
            had_burst: false,
            effects: Effects::default(),
        }
    }

    /// Starts the first two threads.
    pub(super) fn start(&mut self) {
        self.stage = Stage::Running;
        self.spawn(2);
    }

    /// A thread of [`Effects::spawn`] could not be started.
    pub(super) const fn not_started(&mut self) {
        self.threads -= 1;
    }

    pub(super) fn has_effects(&self) -> bool {
        self.effects != Effects::default()
    }

    /// The steps of other threads after the steps since the last call.
    pub(super) fn take_effects(&mut self) -> Effects {
        mem::take(&mut self.effects)
    }

    /// Queues a callback, unless the pool has stopped.
    pub(super) fn queue_callback(
        &mut self,
        callback: C,
        now: Instant,
        caller_polls: bool,
    ) -> Result<(), C> {
        if self.stage == Stage::Stopped {
            return Err(callback);
        }
        self.callbacks.push_back((now, callback));
        // A thread that polls takes it itself, right after.
        if caller_polls {
            return Ok(());
        }
        // Threads that call back take the next callback, and a thread on its way takes this callback.
        if self.callers_back() + self.coming() + self.wanted < self.callers_back_max {
            self.call_threads(1);
        } else {
            self.have_watched();
        }
        Ok(())
    }

    /// Queues an attempt to connect, unless the pool is stopping.
    pub(super) fn queue_dial(&mut self, dial: C, now: Instant) -> Result<(), C> {
        if self.stage >= Stage::Stopping {
            return Err(dial);
        }
        self.dials.push_back((now, dial));
        self.call_threads(1);
        Ok(())
    }

    /// Returns when the last of the queued callbacks was queued.
    pub(super) fn last_callback_at(&self) -> Option<Instant> {
        self.callbacks.back().map(|(at, _)| *at)
    }

    /// Queues requests; returns them once the pool is stopping.
    pub(super) fn submit<I>(&mut self, batch: I, caller_polls: bool) -> Result<(), I>
    where
        I: IntoIterator<Item = QueuedRequest<R>>,
    {
        if self.stage >= Stage::Stopping {
            return Err(batch);
        }
        self.queue(batch);
        if !caller_polls {
            self.call_threads(self.slow_queued.min(self.handlers_max).max(1));
        }
        Ok(())
    }

    fn queue(&mut self, batch: impl IntoIterator<Item = QueuedRequest<R>>) {
        for queued in batch {
            self.slow_queued += usize::from(queued.is_slow);
            self.requests.push_back(queued);
        }
        self.had_burst |= self.requests.len() >= BURST_REQUESTS_MIN;
    }

    /// A thread that runs a task is about to wait: another thread may take its place.
    pub(super) fn enter_wait(&mut self, task: Task) {
        *self.running(task) -= 1;
        self.waiting += 1;
        // Otherwise what is queued would wait for the standby thread: this thread is known to block.
        self.call_threads(1);
    }

    /// The wait is over. More tasks may run now than would have been begun.
    pub(super) const fn leave_wait(&mut self, task: Task) {
        self.waiting -= 1;
        *self.running(task) += 1;
    }

    /// Whether the standby thread will soon send what collects.
    pub(super) fn is_watched(&self) -> bool {
        self.standby == Standby::Watching
    }

    /// Has the standby thread watch again. Whether it sleeps, and is to be woken.
    pub(super) fn watch(&mut self) -> bool {
        let was_asleep = self.standby == Standby::Asleep;
        if was_asleep {
            self.standby = Standby::Watching;
        }
        was_asleep
    }

    /// Stops the pool: all threads end once the running callbacks and functions have returned. Returns the requests
    /// and the dials that are dropped.
    pub(super) fn stop(
        &mut self,
    ) -> (
        SegmentedQueue<QueuedRequest<R>>,
        SegmentedQueue<(Instant, C)>,
    ) {
        self.stage = Stage::Stopping;
        self.slow_queued = 0;
        (mem::take(&mut self.requests), mem::take(&mut self.dials))
    }

    /// All threads have ended, except perhaps a thread that runs the stop itself. Returns the requests that are
    /// dropped because they were polled during the stop, and the remaining callbacks, which are to be run.
    pub(super) fn finish(&mut self) -> (SegmentedQueue<QueuedRequest<R>>, Vec<C>) {
        self.stage = Stage::Stopped;
        self.slow_queued = 0;
        let callbacks = mem::take(&mut self.callbacks);
        let callbacks = callbacks.into_iter().map(|(_, callback)| callback);
        (mem::take(&mut self.requests), callbacks.collect())
    }

    /// A thread has run its task.
    pub(super) fn returned(&mut self, thread: &mut Thread) {
        if let Phase::Runs(task) = thread.phase {
            *self.running(task) -= 1;
            if task == Task::Callback {
                self.held_since = None;
                let was_blocked = thread.blockages != self.blockages;
                self.blocked -= usize::from(was_blocked).min(self.blocked);
            }
        }
        thread.phase = Phase::Free;
    }

    /// A thread has polled, and found `batch`.
    pub(super) fn polled(
        &mut self,
        thread: &mut Thread,
        batch: impl IntoIterator<Item = QueuedRequest<R>>,
        now: Instant,
    ) {
        thread.phase = Phase::Free;
        self.poller_free_since = Some(now);
        let slow_before = self.slow_queued;
        self.queue(batch);
        let slow = self.slow_queued - slow_before;
        self.call_threads(slow.min(self.handlers_max));
    }

    /// A thread has looked.
    pub(super) fn looked(&mut self, thread: &mut Thread, look: Look, now: Instant) {
        let Phase::Looks {
            quiet_ticks,
            is_last,
        } = thread.phase
        else {
            return;
        };
        self.find_blocked(now);
        let is_quiet = self.poller_free_since.is_none()
            && !self.has_task()
            && !self.holds_back()
            && !look.collected;
        if is_last {
            thread.phase = if is_quiet && !look.flushed && self.standby == Standby::LastLook {
                Phase::FallsAsleep
            } else {
                self.standby = Standby::Watching;
                Phase::Standby { quiet_ticks: 0 }
            };
        } else if self.is_stale(now) {
            let more = self.requests.len().saturating_sub(1);
            self.end_rest(thread);
            self.call_threads(more.min(self.handlers_max.saturating_sub(self.handlers + 1)));
        } else {
            let quiet_ticks = if is_quiet { quiet_ticks + 1 } else { 0 };
            thread.phase = Phase::Standby { quiet_ticks };
        }
    }

    /// The next step of a thread.
    pub(super) fn next(&mut self, thread: &mut Thread) -> Next<R, C> {
        loop {
            match thread.phase {
                Phase::Free | Phase::Flushed => {
                    if let Some(next) = self.next_task(thread) {
                        return next;
                    }
                    if self.holds_back() {
                        self.have_watched();
                    }
                    if self.stage >= Stage::Stopping || self.threads > self.threads_limit() {
                        self.threads -= 1;
                        let burst_is_over = false;
                        return Next::End { burst_is_over };
                    }
                    if thread.phase == Phase::Free {
                        thread.phase = Phase::Flushed;
                        return Next::Flush;
                    }
                    self.idle += 1;
                    thread.phase = Phase::Idle { timed_out: false };
                }
                Phase::Idle { timed_out } => {
                    if let Some(next) = self.next_idle(thread, timed_out) {
                        return next;
                    }
                }
                Phase::Standby { quiet_ticks } => {
                    if self.is_called() {
                        self.end_rest(thread);
                    } else if quiet_ticks < QUIET_TICKS_MAX {
                        thread.phase = Phase::Ticks { quiet_ticks };
                        return Next::Sleep(Sleep::Tick);
                    } else {
                        // First this, then a last look: a thread that collects does it the other way round.
                        self.standby = Standby::LastLook;
                        let is_last = true;
                        thread.phase = Phase::Looks {
                            quiet_ticks,
                            is_last,
                        };
                        return Next::Look;
                    }
                }
                Phase::Ticks { quiet_ticks } => {
                    let is_last = false;
                    thread.phase = Phase::Looks {
                        quiet_ticks,
                        is_last,
                    };
                    return Next::Look;
                }
                Phase::FallsAsleep => {
                    if self.is_called() {
                        self.end_rest(thread);
                    } else if self.standby == Standby::Watching {
                        thread.phase = Phase::Standby { quiet_ticks: 0 };
                    } else {
                        self.standby = Standby::Asleep;
                        return Next::Sleep(Sleep::Standby);
                    }
                }
                Phase::Resigns => {
                    thread.phase = Phase::Free;
                    return Next::Look;
                }
                Phase::Looks { .. } | Phase::Polls | Phase::Runs(_) => {
                    unreachable!("a thread reports before it takes more work")
                }
            }
        }
    }

    /// Returns the next step of an idle thread; `None` if its phase has changed.
    fn next_idle(&mut self, thread: &mut Thread, timed_out: bool) -> Option<Next<R, C>> {
        if self.is_called() {
            self.end_rest(thread);
        } else if self.standby == Standby::None {
            self.standby = Standby::Watching;
            thread.phase = Phase::Standby { quiet_ticks: 0 };
        } else if timed_out && self.threads > 2 {
            self.idle -= 1;
            self.threads -= 1;
            let is_last = self.threads == 2;
            let burst_is_over = is_last && mem::take(&mut self.had_burst);
            return Some(Next::End { burst_is_over });
        } else {
            return Some(Next::Sleep(Sleep::Idle));
        }
        None
    }

    fn next_task(&mut self, thread: &mut Thread) -> Option<Next<R, C>> {
        if self.can_dial()
            && let Some((_, dial)) = self.dials.pop_front()
        {
            self.begin(thread, Task::Dial);
            return Some(Next::Dial(dial));
        }
        if self.can_call_back()
            && let Some((_, callback)) = self.callbacks.pop_front()
        {
            self.begin(thread, Task::Callback);
            return Some(Next::CallBack(callback));
        }
        if self.can_run()
            && let Some(request) = self.pop_request()
        {
            self.begin(thread, Task::Handler);
            return Some(Next::Run(request));
        }
        if self.must_refuse()
            && let Some(request) = self.pop_request()
        {
            thread.phase = Phase::Free;
            return Some(Next::Refuse(request));
        }
        if self.stage >= Stage::Stopping {
            return None;
        }
        self.poller_free_since.take()?;
        thread.phase = Phase::Polls;
        if self.holds_back() {
            self.have_watched();
        }
        Some(Next::Poll)
    }

    fn pop_request(&mut self) -> Option<R> {
        let queued = self.requests.pop_front()?;
        self.slow_queued -= usize::from(queued.is_slow);
        Some(queued.request)
    }

    /// A thread begins a task: another thread must take over the rest of its work.
    fn begin(&mut self, thread: &mut Thread, task: Task) {
        thread.phase = Phase::Runs(task);
        thread.blockages = self.blockages;
        *self.running(task) += 1;
        if task == Task::Dial {
            // It is known to block.
            return self.call_threads(1);
        }
        if self.has_task() || self.holds_back() {
            self.have_watched();
        }
    }

    /// Has a thread watch over what is queued.
    fn have_watched(&mut self) {
        match self.standby {
            Standby::Watching => {}
            Standby::LastLook => self.standby = Standby::Watching,
            Standby::Asleep => self.effects.wake_standby = self.watch(),
            // It becomes the standby thread when it wakes.
            Standby::None if self.idle > 0 => self.effects.wake_idle += 1,
            Standby::None if self.coming() > 0 => {}
            Standby::None => self.spawn_or_wake_poller(1),
        }
    }

    /// Gets further threads to come. Beyond the limit only the thread that polls is left.
    fn spawn_or_wake_poller(&mut self, count: usize) {
        let started = count.min(self.may_spawn());
        self.spawn(started);
        self.effects.wake_poller |= started < count;
    }

    /// Wakes or starts up to `wanted` threads for tasks that were just queued.
    fn call_threads(&mut self, wanted: usize) {
        if wanted == 0 || self.stage == Stage::New || !self.has_task() {
            // The thread that makes it possible to run more takes it.
            return;
        }
        let woken = self.idle.saturating_sub(self.wanted).min(wanted);
        self.wanted += woken;
        self.effects.wake_idle += woken;
        let plain_idle = self.idle - usize::from(self.standby != Standby::None);
        if woken > 0 && plain_idle < self.wanted {
            self.effects.wake_standby = true;
        }
        let missing = (wanted - woken).saturating_sub(self.coming());
        self.spawn_or_wake_poller(missing);
    }

    fn spawn(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let begun = self.threads_begun + count as u64;
        if self.effects.spawn.is_empty() {
            self.effects.spawn = self.threads_begun + 1..begun + 1;
        } else {
            self.effects.spawn.end = begun + 1;
        }
        self.threads_begun = begun;
        self.threads += count;
    }

    /// Whether an idle thread is to stop resting.
    fn is_called(&self) -> bool {
        self.wanted > 0 || self.stage >= Stage::Stopping
    }

    fn end_rest(&mut self, thread: &mut Thread) {
        self.idle -= 1;
        self.wanted = self.wanted.saturating_sub(1);
        if matches!(thread.phase, Phase::Idle { .. }) {
            thread.phase = Phase::Free;
            return;
        }
        self.standby = Standby::None;
        if self.idle > 0 {
            self.effects.wake_idle += 1;
        }
        thread.phase = Phase::Resigns;
    }

    const fn running(&mut self, task: Task) -> &mut usize {
        match task {
            Task::Handler => &mut self.handlers,
            Task::Callback => &mut self.callers_back,
            Task::Dial => &mut self.dialers,
        }
    }

    const fn busy(&self) -> usize {
        self.handlers + self.callers_back + self.waiting
    }

    fn can_run(&self) -> bool {
        self.stage < Stage::Stopping
            && self.busy() < self.threads_max
            && self.handlers < self.handlers_max
    }

    /// A function that waits may wait for a callback: one is run even if all threads wait.
    const fn can_call_back(&self) -> bool {
        self.may_call_back() && self.callers_back() < self.callers_back_max
    }

    /// [`Scheduler::can_call_back`] if one of those that run blocks.
    const fn may_call_back(&self) -> bool {
        self.busy() < self.threads_max || self.busy() == self.waiting
    }

    /// Callbacks that run and do not block. None counts during a stop, which runs all.
    const fn callers_back(&self) -> usize {
        if matches!(self.stage, Stage::Stopping | Stage::Stopped) {
            return 0;
        }
        self.callers_back.saturating_sub(self.blocked)
    }

    /// Whether callbacks are queued that run as soon as one of those that run returns or is found to block.
    fn holds_back(&self) -> bool {
        !self.callbacks.is_empty() && self.may_call_back() && !self.can_call_back()
    }

    /// Marks the running callbacks as blocking, if callbacks are held back and none has returned for a while.
    fn find_blocked(&mut self, now: Instant) {
        if !self.holds_back() {
            self.held_since = None;
        } else if now.saturating_duration_since(*self.held_since.get_or_insert(now)) >= BLOCKED {
            self.held_since = None;
            self.blocked = self.callers_back;
            self.blockages = self.blockages.wrapping_add(1);
        }
    }

    fn can_dial(&self) -> bool {
        !self.dials.is_empty() && self.dialers < DIALS_MAX
    }

    /// Whether requests are refused: every thread that may run a function waits inside one.
    fn must_refuse(&self) -> bool {
        self.stage < Stage::Stopping && self.waiting >= self.threads_max
    }

    /// Returns how many threads there may be: one more than are busy, and than may be busy, and the threads that
    /// connect.
    fn threads_limit(&self) -> usize {
        self.busy().max(self.threads_max) + 1 + self.dialers
    }

    fn may_spawn(&self) -> usize {
        if self.stage == Stage::Stopped {
            return 0;
        }
        self.threads_limit().saturating_sub(self.threads)
    }

    /// Threads that are about to look for something to do: neither busy, nor idle, nor polling.
    fn coming(&self) -> usize {
        let polling = usize::from(self.poller_free_since.is_none());
        self.threads
            .saturating_sub(self.busy() + self.dialers + self.idle + polling)
    }

    /// Whether a free thread finds a callback or a request.
    fn has_queued_task(&self) -> bool {
        !self.callbacks.is_empty() && self.can_call_back()
            || !self.requests.is_empty() && (self.can_run() || self.must_refuse())
            || self.can_dial()
    }

    /// Whether a free thread finds something to do.
    fn has_task(&self) -> bool {
        self.poller_free_since.is_some() && self.stage < Stage::Stopping || self.has_queued_task()
    }

    /// Whether something has waited for too long for which there could be a thread.
    fn is_stale(&self, now: Instant) -> bool {
        let is_old = |since: Instant| now.saturating_duration_since(since) >= STALE;
        let queues = [&self.callbacks, &self.dials];
        let queued = queues.into_iter().filter_map(SegmentedQueue::front);
        let request = self.requests.front().map(|queued| queued.arrived_at);
        self.poller_free_since.is_some_and(is_old)
            || self.has_queued_task() && queued.map(|(at, _)| *at).chain(request).any(is_old)
    }

    pub(super) fn gauges(&self) -> PoolGauges {
        PoolGauges {
            threads: self.threads,
            idle: self.idle,
            waiting: self.waiting,
            queued: self.requests.len(),
        }
    }

    #[cfg(all(test, not(shuttle)))]
    pub(super) fn threads_begun(&self) -> u64 {
        self.threads_begun
    }

    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_standby_asleep(&self) -> bool {
        self.standby == Standby::Asleep
    }
}
