//! The pool with real threads. Each wait is for an event of another thread, none for a duration.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Instant;

use super::fake::{FakeWork, Gate, LONG};
use crate::pool::scheduler::{PoolGauges, Scheduler};

fn gate() -> Arc<Gate> {
    Arc::default()
}

/// Waits until the condition holds for the pool's gauges.
fn until(work: &Arc<FakeWork>, what: &str, is_so: impl Fn(PoolGauges) -> bool) {
    let began = Instant::now();
    while !is_so(work.pool.gauges()) {
        assert!(
            began.elapsed() < LONG,
            "not within {LONG:?}: {what}: {:?}",
            work.pool.gauges()
        );
        thread::yield_now();
    }
}

#[test]
fn requests_run_whether_polled_or_submitted() {
    let work = FakeWork::start(4, 8);
    work.arrive(0, |_| {});
    work.submit(1, |_| {});
    work.call_back(7, || {});
    work.until("all tasks ran", |fates| {
        fates.requests() == [0, 1] && fates.called_back == [7]
    });
    work.pool.stop();
}

#[test]
fn a_burst_of_short_requests_starts_few_threads() {
    let work = FakeWork::start(16, 256);
    for number in 0..500 {
        work.submit(number, |_| {});
        work.call_back(number, || {});
    }
    work.until("all tasks ran", |fates| {
        fates.ran.len() == 500 && fates.called_back.len() == 500
    });
    let begun = work.pool.ask(Scheduler::threads_begun);
    assert!(begun < 50, "{begun} threads for 1000 short tasks");
    work.pool.stop();
}

#[test]
fn at_most_handlers_max_functions_run_at_a_time() {
    let work = FakeWork::start(2, 8);
    let (gate, inside, most) = (gate(), Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
    for number in 0..10 {
        let (gate, inside, most) = (Arc::clone(&gate), Arc::clone(&inside), Arc::clone(&most));
        work.arrive(number, move |_| {
            let now_inside = {
                let mut inside = inside.lock().unwrap();
                *inside += 1;
                *inside
            };
            let mut most = most.lock().unwrap();
            *most = (*most).max(now_inside);
            drop(most);
            gate.pass();
            *inside.lock().unwrap() -= 1;
        });
    }
    gate.await_arrivals(2);
    until(&work, "the others are queued", |gauges| gauges.queued == 8);
    // The limit applies to requests, not to callbacks.
    work.call_back(0, || {});
    work.until("the callback ran", |fates| fates.called_back == [0]);
    assert_eq!(gate.arrivals(), 2);
    gate.open();
    work.until("all tasks ran", |fates| fates.ran.len() == 10);
    assert_eq!(*most.lock().unwrap(), 2);
    work.pool.stop();
}

#[test]
fn another_thread_replaces_one_whose_function_waits() {
    let work = FakeWork::start(1, 4);
    let gate = gate();
    let nested = Arc::clone(&gate);
    work.arrive(0, move |work| work.wait_at(&nested));
    gate.await_arrivals(1);
    assert_eq!(work.pool.gauges().waiting, 1);
    let opened = Arc::clone(&gate);
    work.arrive(1, move |_| opened.open());
    work.until("both ran", |fates| fates.requests() == [0, 1]);
    assert_eq!(work.pool.gauges().waiting, 0);
    work.pool.stop();
}

#[test]
fn unsent_output_of_a_callback_is_sent_while_it_blocks() {
    let work = FakeWork::start(4, 8);
    let gate = gate();
    let blocking = Arc::clone(&gate);
    let own = Arc::clone(&work);
    work.call_back(0, move || {
        own.leave_unsent();
        blocking.pass();
    });
    gate.await_arrivals(1);
    work.until("it was sent", |fates| fates.flushed > 0);
    gate.open();
    work.pool.stop();
}

#[test]
fn a_thread_that_waits_is_not_an_own_thread() {
    let work = FakeWork::start(4, 8);
    let (sender, receiver) = mpsc::channel();
    let foreign = work.pool.is_own_thread();
    work.arrive(0, move |work| {
        let before = work.pool.is_own_thread();
        let waiting = work.pool.enter_wait();
        let while_waiting = work.pool.is_own_thread();
        // A nested wait does not count again.
        drop(work.pool.enter_wait());
        let gauges = work.pool.gauges();
        drop(waiting);
        let after = work.pool.is_own_thread();
        sender
            .send((before, while_waiting, gauges.waiting, after))
            .unwrap();
    });
    assert_eq!(receiver.recv_timeout(LONG), Ok((true, false, 1, true)));
    assert!(!foreign);
    work.pool.stop();
}

#[test]
fn waits_of_other_threads_do_not_count() {
    let work = FakeWork::start(1, 1);
    let other = FakeWork::start(1, 1);
    let waiting = work.pool.enter_wait();
    assert_eq!(work.pool.gauges().waiting, 0);
    drop(waiting);
    // Waits of another pool's threads do not count either.
    let foreign = Arc::clone(&work);
    let (sender, receiver) = mpsc::channel();
    other.arrive(0, move |_| {
        let _waiting = foreign.pool.enter_wait();
        sender
            .send((foreign.pool.gauges().waiting, foreign.pool.is_own_thread()))
            .unwrap();
    });
    assert_eq!(receiver.recv_timeout(LONG), Ok((0, false)));
    work.pool.stop();
    other.pool.stop();
}

#[test]
fn idle_threads_end_except_for_two() {
    let work = FakeWork::start(16, 32);
    let gate = gate();
    for number in 0..10 {
        let gate = Arc::clone(&gate);
        work.arrive(number, move |_| gate.pass());
    }
    gate.await_arrivals(10);
    assert!(work.pool.gauges().threads >= 11);
    gate.open();
    until(&work, "two threads are left", |gauges| gauges.threads == 2);
    work.arrive(10, |_| {});
    work.until("the last one ran", |fates| fates.ran.len() == 11);
    work.pool.stop();
    assert_eq!(work.pool.gauges(), PoolGauges::default());
}

#[test]
fn after_a_stop_callbacks_run_on_the_calling_thread() {
    let work = FakeWork::start(2, 2);
    work.pool.stop();
    let (sender, ran_on) = mpsc::channel();
    work.call_back(0, move || sender.send(thread::current().id()).unwrap());
    assert_eq!(ran_on.try_recv(), Ok(thread::current().id()));
    work.submit(0, |_| {});
    assert_eq!(work.fates.lock().dropped, [0]);
}

#[test]
fn an_idle_pool_polls_and_does_not_spin() {
    let work = FakeWork::start(2, 4);
    until(&work, "the standby thread sleeps", |_| {
        work.pool.ask(Scheduler::is_standby_asleep)
    });
    let polls = work.polls();
    work.arrive(0, |_| {});
    work.until("the task ran", |fates| fates.ran == [0]);
    until(&work, "the standby thread sleeps again", |_| {
        work.pool.ask(Scheduler::is_standby_asleep)
    });
    assert!(
        work.polls() <= polls + 2,
        "{polls} polls, then {}",
        work.polls()
    );
    work.pool.stop();
}
