//! The pool with real threads. Each wait is for an event of another thread, none for a duration.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Instant;

use super::fake::{FakeWork, Gate, LONG};
use crate::pool::scheduler::{PoolGauges, Scheduler};

fn gate() -> Arc<Gate> {
    Arc::default()
}

/// A function body that blocks at the gate without informing the pool, like a computation.
fn blocked(gate: &Arc<Gate>) -> impl FnOnce(&Arc<FakeWork>) + Send + 'static {
    let gate = Arc::clone(gate);
    move |_| gate.pass()
}

/// A function body that waits at the gate with a wait that is known to the pool, like a wait for a call.
fn waiting(gate: &Arc<Gate>) -> impl FnOnce(&Arc<FakeWork>) + Send + 'static {
    let gate = Arc::clone(gate);
    move |work| work.wait_at(&gate)
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
    work.arrive(0, waiting(&gate));
    gate.await_arrivals(1);
    assert_eq!(work.pool.gauges().waiting, 1);
    let opened = Arc::clone(&gate);
    work.arrive(1, move |_| opened.open());
    work.until("both ran", |fates| fates.requests() == [0, 1]);
    assert_eq!(work.pool.gauges().waiting, 0);
    work.pool.stop();
}

#[test]
fn requests_are_refused_while_all_threads_wait_and_run_afterwards() {
    let work = FakeWork::start(2, 2);
    let gate = gate();
    work.arrive(0, waiting(&gate));
    work.arrive(1, waiting(&gate));
    gate.await_arrivals(2);
    work.arrive(2, |_| {});
    work.submit(3, |_| {});
    work.until("two were refused", |fates| fates.refused.len() == 2);
    assert_eq!(work.pool.gauges().threads, 3);
    gate.open();
    work.until("those that waited ended", |fates| fates.ran.len() == 2);
    work.arrive(4, |_| {});
    work.until("the next one ran", |fates| fates.ran.last() == Some(&4));
    work.pool.stop();
    assert_eq!(work.fates.lock().requests(), [0, 1, 2, 3, 4]);
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
        work.arrive(number, blocked(&gate));
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
fn a_stop_waits_for_running_requests_and_drops_queued_ones() {
    let work = FakeWork::start(1, 4);
    let gate = gate();
    work.arrive(0, blocked(&gate));
    gate.await_arrivals(1);
    work.arrive(1, |_| {});
    until(&work, "one is queued", |gauges| gauges.queued == 1);
    let stopping = thread::spawn({
        let work = Arc::clone(&work);
        move || {
            work.pool.stop();
            work.fates.lock().ran.clone()
        }
    });
    work.until("the queued one was dropped", |fates| fates.dropped == [1]);
    // The pool takes no more requests.
    work.submit(2, |_| {});
    work.call_back(0, || {});
    work.until("the callback ran", |fates| fates.called_back == [0]);
    gate.open();
    assert_eq!(stopping.join().unwrap(), [0]);
    let fates = work.fates.lock();
    assert_eq!(fates.requests(), [0, 1, 2]);
    assert!(fates.is_work_dropped);
    drop(fates);
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
fn a_function_can_stop_its_own_pool() {
    let work = FakeWork::start(2, 4);
    let (sender, gauges) = mpsc::channel();
    work.arrive(0, move |work| {
        work.pool.stop();
        sender.send(work.pool.gauges().threads).unwrap();
    });
    assert_eq!(gauges.recv_timeout(LONG), Ok(1));
    work.until("its thread ends too", |fates| fates.is_work_dropped);
    assert_eq!(work.pool.gauges().threads, 0);
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
