//! Unit tests of the scheduler's decisions.

mod exploration;

use super::*;

type Decisions = Next<&'static str, u32>;

/// How many callbacks may run that do not block.
const CALLERS_BACK_MAX: usize = 3;

struct Pool {
    scheduler: Scheduler<&'static str, u32>,
    epoch: Instant,
}

/// A pool with two threads: the first one polls, the second one is the standby thread and ticks.
fn running(handlers_max: usize, threads_max: usize) -> (Pool, Thread, Thread) {
    let epoch = Instant::now();
    let mut scheduler = Scheduler::new(handlers_max, threads_max, CALLERS_BACK_MAX, epoch);
    scheduler.start();
    assert_eq!(scheduler.take_effects(), spawned(1..3));
    let mut pool = Pool { scheduler, epoch };
    let (mut polling, mut standby) = (Thread::new(), Thread::new());
    assert_eq!(pool.next(&mut polling), Next::Poll);
    assert_eq!(pool.next(&mut standby), Next::Flush);
    assert_eq!(pool.next(&mut standby), Next::Sleep(Sleep::Tick));
    assert!(pool.scheduler.is_watched());
    (pool, polling, standby)
}

impl Pool {
    fn next(&mut self, thread: &mut Thread) -> Decisions {
        self.scheduler.next(thread)
    }

    /// The thread has polled and found requests. A name that starts with `slow` marks a slow one.
    fn found(&mut self, thread: &mut Thread, names: &[&'static str]) {
        let batch = self.queued(names);
        self.scheduler.polled(thread, batch, self.epoch);
    }

    fn submit(&mut self, names: &[&'static str]) {
        let batch = self.queued(names);
        self.scheduler.submit(batch, false).expect("not stopping");
    }

    fn queued(&self, names: &[&'static str]) -> Vec<QueuedRequest<&'static str>> {
        let queued = |name: &&'static str| QueuedRequest {
            request: *name,
            arrived_at: self.epoch,
            is_slow: name.starts_with("slow"),
        };
        names.iter().map(queued).collect()
    }

    fn call_back(&mut self, callback: u32) {
        self.scheduler
            .queue_callback(callback, self.epoch, false)
            .expect("not stopped");
    }

    /// The standby thread wakes from a tick and looks, `after` the start of the test.
    fn tick(&mut self, standby: &mut Thread, after: Duration, look: Look) {
        standby.woke(true);
        assert_eq!(self.next(standby), Next::Look);
        self.scheduler.looked(standby, look, self.epoch + after);
    }

    /// The standby thread is woken for a task. It looks once more before it takes the task.
    fn call_standby(&mut self, standby: &mut Thread) {
        standby.woke(false);
        if standby.phase == (Phase::Ticks { quiet_ticks: 0 }) {
            self.look(standby);
        }
        self.look(standby);
    }

    fn look(&mut self, standby: &mut Thread) {
        assert_eq!(self.next(standby), Next::Look);
        self.scheduler.looked(standby, Look::default(), self.epoch);
    }

    /// Adds an idle thread.
    fn add_idle(&mut self) -> Thread {
        self.scheduler.spawn(1);
        self.scheduler.take_effects();
        let mut thread = Thread::new();
        assert_eq!(self.next(&mut thread), Next::Flush);
        assert_eq!(self.next(&mut thread), Next::Sleep(Sleep::Idle));
        thread
    }

    fn effects(&mut self) -> Effects {
        self.scheduler.take_effects()
    }
}

const NO_EFFECTS: Effects = spawned(0..0);

const fn spawned(spawn: Range<u64>) -> Effects {
    Effects {
        wake_idle: 0,
        wake_standby: false,
        wake_poller: false,
        spawn,
    }
}

const fn woken(wake_idle: usize, wake_standby: bool) -> Effects {
    Effects {
        wake_idle,
        wake_standby,
        wake_poller: false,
        spawn: 0..0,
    }
}

/// Brings the standby thread from a tick to its sleep.
fn put_to_sleep(pool: &mut Pool, standby: &mut Thread) {
    for _ in 0..QUIET_TICKS_MAX {
        assert!(pool.scheduler.is_watched());
        pool.tick(standby, Duration::ZERO, Look::default());
        let next = pool.next(standby);
        assert!(matches!(next, Next::Sleep(Sleep::Tick) | Next::Look));
    }
    assert!(!pool.scheduler.is_watched(), "in its last look");
    let now = pool.epoch;
    pool.scheduler.looked(standby, Look::default(), now);
    assert_eq!(pool.next(standby), Next::Sleep(Sleep::Standby));
}

#[test]
fn a_thread_runs_the_requests_it_polled_and_wakes_no_other() {
    let (mut pool, mut polling, _standby) = running(4, 8);
    pool.found(&mut polling, &["a"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    assert_eq!(pool.effects(), NO_EFFECTS, "the standby thread watches");
    pool.scheduler.returned(&mut polling);
    assert_eq!(pool.next(&mut polling), Next::Poll);
    assert_eq!(pool.effects(), NO_EFFECTS);
}

#[test]
fn callbacks_run_before_requests_and_requests_before_the_poller() {
    let (mut pool, mut polling, _standby) = running(4, 8);
    pool.found(&mut polling, &["a"]);
    pool.call_back(7);
    for next in [Next::CallBack(7), Next::Run("a")] {
        assert_eq!(pool.next(&mut polling), next);
        pool.scheduler.returned(&mut polling);
    }
    assert_eq!(pool.next(&mut polling), Next::Poll);
}

#[test]
fn a_thread_that_runs_a_request_wakes_a_sleeping_standby_thread() {
    let (mut pool, mut polling, mut standby) = running(4, 8);
    put_to_sleep(&mut pool, &mut standby);
    pool.found(&mut polling, &["a"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    assert_eq!(pool.effects(), woken(0, true), "the poller is free");
    assert!(pool.scheduler.is_watched());
    assert_eq!(pool.next(&mut standby), Next::Sleep(Sleep::Tick));
}

#[test]
fn a_thread_that_runs_a_request_starts_another_if_none_is_idle() {
    let (mut pool, mut polling, mut standby) = running(4, 8);
    pool.found(&mut polling, &["a", "b", "c"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    pool.tick(&mut standby, STALE, Look::default());
    // The standby thread takes one of the two queued requests itself.
    pool.look(&mut standby);
    assert_eq!(pool.effects(), NO_EFFECTS);
    assert_eq!(pool.next(&mut standby), Next::Run("b"));
    assert_eq!(pool.effects(), spawned(3..4));
}

#[test]
fn the_standby_thread_takes_over_polling_only_when_it_is_stale() {
    let (mut pool, mut polling, mut standby) = running(4, 8);
    pool.found(&mut polling, &["a"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    pool.tick(
        &mut standby,
        STALE - Duration::from_nanos(1),
        Look::default(),
    );
    assert_eq!(pool.next(&mut standby), Next::Sleep(Sleep::Tick));
    pool.tick(&mut standby, STALE, Look::default());
    assert!(!pool.scheduler.is_watched());
    // The last look sends output that relied on this thread.
    pool.look(&mut standby);
    assert_eq!(pool.next(&mut standby), Next::Poll);
}

#[test]
fn the_next_idle_thread_becomes_the_standby_thread() {
    let (mut pool, mut polling, mut standby) = running(4, 8);
    let mut idle = pool.add_idle();
    pool.found(&mut polling, &["a"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    pool.tick(&mut standby, STALE, Look::default());
    assert_eq!(pool.effects(), woken(1, false));
    idle.woke(false);
    assert_eq!(pool.next(&mut idle), Next::Sleep(Sleep::Tick));
    assert!(pool.scheduler.is_watched());
}

#[test]
fn a_standby_thread_that_takes_over_stale_requests_calls_others_for_the_rest() {
    let (mut pool, mut polling, mut standby) = running(4, 8);
    let _idle = pool.add_idle();
    pool.found(&mut polling, &["a", "b", "c", "d"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    pool.tick(&mut standby, STALE, Look::default());
    // The standby thread takes \"b\". It wakes the idle thread twice: as the new standby thread, and for \"c\". It
    // counts itself as available for \"d\", so no thread is started.
    let effects = pool.effects();
    assert_eq!((effects.wake_idle, effects.spawn), (2, 0..0));
}

#[test]
fn the_standby_thread_sleeps_after_quiet_ticks_and_a_last_look() {
    let (mut pool, _polling, mut standby) = running(4, 8);
    put_to_sleep(&mut pool, &mut standby);
    // Without a task the woken thread sleeps again.
    standby.woke(false);
    assert_eq!(pool.next(&mut standby), Next::Sleep(Sleep::Standby));
    assert!(pool.scheduler.watch());
    assert!(!pool.scheduler.watch(), "a second wake-up is not needed");
    standby.woke(false);
    assert_eq!(pool.next(&mut standby), Next::Sleep(Sleep::Tick));
}

#[test]
fn output_keeps_the_standby_thread_awake() {
    let collected = Look {
        collected: true,
        flushed: false,
    };
    let (mut pool, _polling, mut standby) = running(4, 8);
    for _ in 0..3 * QUIET_TICKS_MAX {
        pool.tick(&mut standby, Duration::ZERO, collected);
        assert_eq!(pool.next(&mut standby), Next::Sleep(Sleep::Tick));
    }
    // Output found in the last look has the same effect.
    for _ in 0..QUIET_TICKS_MAX {
        pool.tick(&mut standby, Duration::ZERO, Look::default());
        let _ = pool.next(&mut standby);
    }
    let flushed = Look {
        collected: false,
        flushed: true,
    };
    let now = pool.epoch;
    pool.scheduler.looked(&mut standby, flushed, now);
    assert_eq!(pool.next(&mut standby), Next::Sleep(Sleep::Tick));
    assert!(pool.scheduler.is_watched());
}

#[test]
fn a_task_left_during_the_last_look_keeps_the_standby_thread_awake() {
    let (mut pool, mut polling, mut standby) = running(4, 8);
    for _ in 0..QUIET_TICKS_MAX {
        pool.tick(&mut standby, Duration::ZERO, Look::default());
        let _ = pool.next(&mut standby);
    }
    pool.found(&mut polling, &["a"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    assert_eq!(pool.effects(), NO_EFFECTS);
    let now = pool.epoch;
    pool.scheduler.looked(&mut standby, Look::default(), now);
    assert_eq!(pool.next(&mut standby), Next::Sleep(Sleep::Tick));
}

#[test]
fn a_callback_wakes_an_idle_thread_or_the_standby_thread_or_starts_one() {
    let (mut pool, _polling, mut standby) = running(4, 8);
    let mut idle = pool.add_idle();
    pool.call_back(1);
    assert_eq!(pool.effects(), woken(1, false));
    pool.call_back(2);
    // The standby thread is the only other sleeping thread.
    assert_eq!(pool.effects(), woken(1, true));
    pool.call_back(3);
    assert_eq!(pool.effects(), spawned(4..5));
    idle.woke(false);
    assert_eq!(pool.next(&mut idle), Next::CallBack(1));
    pool.call_standby(&mut standby);
    assert_eq!(pool.next(&mut standby), Next::CallBack(2));
}

#[test]
fn more_callbacks_than_processors_start_no_thread_unless_they_block() {
    let (mut pool, _polling, mut standby) = running(4, 8);
    let mut callers = [(); CALLERS_BACK_MAX].map(|()| pool.add_idle());
    for callback in 0..100 {
        pool.call_back(callback);
    }
    assert_eq!(pool.effects(), woken(CALLERS_BACK_MAX, false));
    for caller in &mut callers {
        caller.woke(false);
        assert!(matches!(pool.next(caller), Next::CallBack(_)));
    }
    let mut late = STALE;
    for callback in 3..50 {
        // However old the first of those that wait is: one has returned in the meantime.
        pool.tick(&mut standby, late, Look::default());
        assert_eq!(pool.next(&mut standby), Next::Sleep(Sleep::Tick));
        late += BLOCKED;
        pool.scheduler.returned(&mut callers[0]);
        assert_eq!(pool.next(&mut callers[0]), Next::CallBack(callback));
    }
    assert_eq!(pool.effects(), NO_EFFECTS);
    pool.tick(&mut standby, late, Look::default());
    assert_eq!(pool.next(&mut standby), Next::Sleep(Sleep::Tick));
    pool.tick(&mut standby, late + BLOCKED, Look::default());
    assert_eq!(pool.next(&mut standby), Next::Look, "it resigns");
    assert_eq!(pool.next(&mut standby), Next::CallBack(50));
    assert_eq!(pool.effects(), spawned(6..7), "which watches");
    // A callback that blocked makes room when it returns.
    pool.scheduler.returned(&mut callers[0]);
    assert_eq!(pool.next(&mut callers[0]), Next::CallBack(51));
    pool.scheduler.returned(&mut callers[0]);
    assert_eq!(pool.next(&mut callers[0]), Next::CallBack(52));
}

#[test]
fn a_callback_queued_by_the_thread_that_polls_wakes_no_other() {
    let (mut pool, mut polling, _standby) = running(4, 8);
    pool.scheduler
        .queue_callback(1, pool.epoch, true)
        .expect("not stopped");
    assert_eq!(pool.effects(), NO_EFFECTS);
    pool.found(&mut polling, &[]);
    assert_eq!(pool.next(&mut polling), Next::CallBack(1));
}

#[test]
fn slow_requests_get_a_thread_each_up_to_the_limit() {
    let (mut pool, mut polling, _standby) = running(3, 8);
    pool.found(
        &mut polling,
        &["slow 1", "b", "slow 2", "slow 3", "slow 4", "slow 5"],
    );
    // The standby thread is woken. The polling thread takes a request itself.
    let effects = pool.effects();
    assert_eq!((effects.wake_idle, effects.wake_standby), (1, true));
    assert_eq!(effects.spawn, 3..4, "three in all: handlers_max");
    let (mut pool, mut polling, _standby) = running(16, 3);
    pool.found(&mut polling, &["slow 1", "slow 2", "slow 3", "slow 4"]);
    let effects = pool.effects();
    assert_eq!(effects.spawn, 3..5, "four in all: threads_max and one");
    assert!(!effects.wake_poller);
}

#[test]
fn the_poller_is_woken_when_no_thread_may_be_started() {
    let (mut pool, _polling, mut standby) = running(1, 1);
    pool.call_back(1);
    pool.call_standby(&mut standby);
    assert_eq!(pool.next(&mut standby), Next::CallBack(1));
    pool.effects();
    pool.submit(&["a"]);
    assert_eq!(pool.effects(), NO_EFFECTS, "it cannot run yet");
    pool.scheduler.enter_wait(Task::Callback);
    // The polling thread refuses the request.
    let effects = pool.effects();
    assert_eq!((effects.wake_poller, effects.spawn), (true, 0..0));
}

#[test]
fn the_limit_of_concurrent_requests_does_not_apply_to_callbacks() {
    let (mut pool, mut polling, mut standby) = running(1, 8);
    pool.found(&mut polling, &["a", "b"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    pool.call_back(1);
    pool.call_standby(&mut standby);
    assert_eq!(pool.next(&mut standby), Next::CallBack(1));
    pool.scheduler.returned(&mut standby);
    assert_eq!(pool.next(&mut standby), Next::Poll);
    pool.scheduler.returned(&mut polling);
    assert_eq!(pool.next(&mut polling), Next::Run("b"));
}

#[test]
fn another_thread_replaces_one_that_waits() {
    let (mut pool, mut polling, mut standby) = running(1, 8);
    pool.found(&mut polling, &["a", "b"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    pool.scheduler.enter_wait(Task::Handler);
    assert_eq!(pool.effects(), woken(1, true));
    pool.call_standby(&mut standby);
    assert_eq!(pool.next(&mut standby), Next::Run("b"));
    assert_eq!(pool.scheduler.gauges().waiting, 1);
    pool.scheduler.leave_wait(Task::Handler);
    pool.scheduler.returned(&mut polling);
    pool.scheduler.returned(&mut standby);
    assert_eq!(pool.scheduler.busy(), 0);
}

#[test]
fn requests_are_refused_while_all_threads_wait() {
    let (mut pool, mut polling, mut standby) = running(1, 1);
    pool.found(&mut polling, &["a", "b"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    pool.scheduler.enter_wait(Task::Handler);
    pool.call_standby(&mut standby);
    assert_eq!(pool.next(&mut standby), Next::Refuse("b"));
    assert_eq!(pool.next(&mut standby), Next::Poll);
}

#[test]
fn one_callback_at_a_time_runs_beyond_the_limit() {
    let (mut pool, mut polling, mut standby) = running(1, 1);
    pool.found(&mut polling, &["a"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    pool.scheduler.enter_wait(Task::Handler);
    pool.call_back(1);
    pool.call_back(2);
    pool.effects();
    pool.call_standby(&mut standby);
    assert_eq!(pool.next(&mut standby), Next::CallBack(1));
    // Another thread starts to poll the sockets.
    assert_eq!(pool.effects(), spawned(3..4));
    let mut third = Thread::new();
    assert_eq!(pool.next(&mut third), Next::Poll);
    pool.scheduler.enter_wait(Task::Callback);
    pool.found(&mut third, &[]);
    assert_eq!(pool.next(&mut third), Next::CallBack(2));
}

#[test]
fn the_poller_is_woken_to_refuse_a_request_while_a_callback_runs_beyond_the_limit() {
    let (mut pool, mut polling, mut standby) = running(1, 1);
    pool.found(&mut polling, &["a"]);
    assert_eq!(pool.next(&mut polling), Next::Run("a"));
    pool.scheduler.enter_wait(Task::Handler);
    pool.call_standby(&mut standby);
    assert_eq!(pool.next(&mut standby), Next::Poll);
    pool.call_back(1);
    assert!(pool.effects().wake_poller);
    pool.found(&mut standby, &[]);
    assert_eq!(pool.next(&mut standby), Next::CallBack(1));
    assert_eq!(pool.effects(), spawned(3..4));
    assert_eq!(pool.next(&mut Thread::new()), Next::Poll);
    pool.scheduler.returned(&mut standby);
    pool.call_back(2);
    pool.submit(&["b"]);
    assert_eq!(pool.effects(), NO_EFFECTS, "a thread is on its way");
    // The standby thread takes the callback but no request.
    assert_eq!(pool.next(&mut standby), Next::CallBack(2));
    assert!(pool.effects().wake_poller);
}

#[test]
fn an_idle_thread_ends_unless_it_is_one_of_the_last_two() {
    let (mut pool, _polling, mut standby) = running(4, 8);
    let (mut third, mut fourth) = (pool.add_idle(), pool.add_idle());
    third.woke(true);
    assert_eq!(
        pool.next(&mut third),
        Next::End {
            burst_is_over: false
        }
    );
    // A thread that is wanted for a task does not end.
    pool.call_back(1);
    fourth.woke(true);
    assert_eq!(pool.next(&mut fourth), Next::CallBack(1));
    pool.scheduler.returned(&mut fourth);
    assert_eq!(pool.next(&mut fourth), Next::Flush);
    assert_eq!(pool.next(&mut fourth), Next::Sleep(Sleep::Idle));
    fourth.woke(true);
    assert_eq!(
        pool.next(&mut fourth),
        Next::End {
            burst_is_over: false
        }
    );
    assert_eq!(pool.scheduler.gauges().threads, 2);
    assert_eq!(pool.next(&mut standby), Next::Look);
}

#[test]
fn after_a_burst_the_last_thread_to_end_returns_the_memory() {
    let (mut pool, mut polling, _standby) = running(4, 8);
    let (mut third, mut fourth) = (pool.add_idle(), pool.add_idle());
    pool.found(&mut polling, &["a"; BURST_REQUESTS_MIN]);
    for _ in 0..BURST_REQUESTS_MIN {
        assert_eq!(pool.next(&mut polling), Next::Run("a"));
        pool.scheduler.returned(&mut polling);
    }
    assert_eq!(pool.next(&mut polling), Next::Poll);
    let mut end = |thread: &mut Thread| {
        thread.woke(true);
        pool.next(thread)
    };
    let is_over = |burst_is_over| Next::End { burst_is_over };
    assert_eq!(end(&mut third), is_over(false), "not the last");
    assert_eq!(end(&mut fourth), is_over(true));
    let mut fifth = pool.add_idle();
    fifth.woke(true);
    assert_eq!(pool.next(&mut fifth), is_over(false), "once for each burst");
}

#[test]
fn a_thread_that_could_not_be_started_does_not_count() {
    let (mut pool, _polling, _standby) = running(4, 8);
    pool.scheduler.spawn(1);
    pool.scheduler.not_started();
    assert_eq!(pool.scheduler.gauges().threads, 2);
}

#[test]
fn a_stop_drops_requests_and_ends_threads_after_the_callbacks() {
    let (mut pool, mut polling, mut standby) = running(4, 8);
    pool.submit(&["a"]);
    let queued = pool.scheduler.queue_callback(1, pool.epoch, true);
    queued.expect("not stopped");
    let dropped = pool.scheduler.stop();
    assert_eq!(dropped.0.len(), 1);
    let batch = pool.queued(&["b"]);
    assert!(pool.scheduler.submit(batch, false).is_err());
    pool.found(&mut polling, &["c"]);
    assert_eq!(pool.next(&mut polling), Next::CallBack(1));
    pool.call_standby(&mut standby);
    assert_eq!(
        pool.next(&mut standby),
        Next::End {
            burst_is_over: false
        }
    );
    // The running callback waits for another callback, so a thread is started for that one.
    pool.effects();
    pool.scheduler.enter_wait(Task::Callback);
    pool.call_back(2);
    assert_eq!(pool.effects(), spawned(3..4));
    let mut third = Thread::new();
    assert_eq!(pool.next(&mut third), Next::CallBack(2));
    pool.scheduler.returned(&mut third);
    assert_eq!(
        pool.next(&mut third),
        Next::End {
            burst_is_over: false
        }
    );
    pool.scheduler.leave_wait(Task::Callback);
    pool.scheduler.returned(&mut polling);
    assert_eq!(
        pool.next(&mut polling),
        Next::End {
            burst_is_over: false
        }
    );
    assert_eq!(pool.scheduler.gauges().threads, 0);
    let (dropped, callbacks) = pool.scheduler.finish();
    assert_eq!(dropped.len(), 1, "\"c\" was polled during the stop");
    assert!(callbacks.is_empty());
    let now = pool.epoch;
    assert_eq!(pool.scheduler.queue_callback(3, now, false), Err(3));
}

#[test]
fn tasks_queued_before_the_start_run_after_it() {
    let epoch = Instant::now();
    let mut scheduler = Scheduler::<u32, u32>::new(1, 1, 1, epoch);
    scheduler
        .queue_callback(1, epoch, false)
        .expect("not stopped");
    assert_eq!(scheduler.take_effects(), NO_EFFECTS);
    scheduler.start();
    assert_eq!(scheduler.next(&mut Thread::new()), Next::CallBack(1));
}
