//! The pool with real threads. Nothing waits for time: who waits, waits for what another thread does.

use std::sync::mpsc;
use std::thread;

use super::fake::{FakeWork, Gate, LONG};
use super::*;

fn gate() -> Arc<Gate> {
    Arc::default()
}

/// A body that waits at the gate and does not say so to the pool, as one that computes.
fn blocked(gate: &Arc<Gate>) -> impl FnOnce(&Arc<FakeWork>) + Send + 'static {
    let gate = Arc::clone(gate);
    move |_| gate.pass()
}

/// A body that waits at the gate for a call of its own.
fn waiting(gate: &Arc<Gate>) -> impl FnOnce(&Arc<FakeWork>) + Send + 'static {
    let gate = Arc::clone(gate);
    move |work| work.wait_at(&gate)
}

/// Waits until the pool's gauges are so.
fn until(work: &Arc<FakeWork>, what: &str, is_so: impl Fn(PoolGauges) -> bool) {
    let began = Instant::now();
    while !is_so(work.pool.gauges()) {
        assert!(
            began.elapsed() < LONG,
            "not within {LONG:?}: {what}: {:?}",
            work.pool
        );
        thread::yield_now();
    }
}

#[test]
fn requests_run_whether_they_come_from_the_poller_or_not() {
    let work = FakeWork::start(4, 8);
    work.arrive(0, |_| {});
    work.submit(1, |_| {});
    work.call_back(7, || {});
    work.until("all ran", |fates| {
        fates.requests() == [0, 1] && fates.called_back == [7]
    });
    work.pool.stop(&work);
}

#[test]
fn a_burst_of_short_requests_starts_no_thread_for_each() {
    let work = FakeWork::start(16, 256);
    for number in 0..500 {
        work.submit(number, |_| {});
        work.call_back(number, || {});
    }
    work.until("all ran", |fates| {
        fates.ran.len() == 500 && fates.called_back.len() == 500
    });
    let begun = work.pool.lock().threads_begun;
    assert!(begun < 50, "{begun} threads for 1000 short tasks");
    work.pool.stop(&work);
}

#[test]
fn the_stand_by_takes_the_poller_over_when_a_request_blocks() {
    let work = FakeWork::start(4, 8);
    let gate = gate();
    work.arrive(0, blocked(&gate));
    gate.await_arrivals(1);
    work.arrive(1, |_| {});
    work.until("the second one ran", |fates| fates.ran == [1]);
    gate.open();
    work.pool.stop(&work);
    assert_eq!(work.fates.lock().ran, [1, 0]);
}

#[test]
fn somebody_polls_however_many_requests_block_that_came_together() {
    let work = FakeWork::start(8, 16);
    let gate = gate();
    let together: Vec<_> = (0..7).map(|n| work.request(n, blocked(&gate))).collect();
    work.arrive_together(together);
    gate.await_arrivals(7);
    work.arrive(7, |_| {});
    work.until("the last one ran", |fates| fates.ran == [7]);
    gate.open();
    work.pool.stop(&work);
}

#[test]
fn somebody_polls_while_callbacks_block() {
    let work = FakeWork::start(2, 8);
    let gate = gate();
    for number in 0..5 {
        let gate = Arc::clone(&gate);
        work.call_back(number, move || gate.pass());
    }
    gate.await_arrivals(5);
    work.arrive(0, |_| {});
    work.until("the request ran", |fates| fates.ran == [0]);
    gate.open();
    work.pool.stop(&work);
    assert_eq!(work.fates.lock().called_back.len(), 5);
}

#[test]
fn no_more_functions_run_at_a_time_than_may() {
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
    // A callback is no function of a request, and is not held up.
    work.call_back(0, || {});
    work.until("the callback ran", |fates| fates.called_back == [0]);
    assert_eq!(gate.arrivals(), 2);
    gate.open();
    work.until("all ran", |fates| fates.ran.len() == 10);
    assert_eq!(*most.lock().unwrap(), 2);
    work.pool.stop(&work);
}

#[test]
fn who_waits_for_a_call_of_its_own_leaves_its_place_to_another() {
    let work = FakeWork::start(1, 4);
    let gate = gate();
    work.arrive(0, waiting(&gate));
    gate.await_arrivals(1);
    assert_eq!(work.pool.gauges().waiting, 1);
    let opened = Arc::clone(&gate);
    work.arrive(1, move |_| opened.open());
    work.until("both ran", |fates| fates.requests() == [0, 1]);
    assert_eq!(work.pool.gauges().waiting, 0);
    work.pool.stop(&work);
}

#[test]
fn when_all_threads_wait_requests_are_refused_and_afterwards_run() {
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
    work.pool.stop(&work);
    assert_eq!(work.fates.lock().requests(), [0, 1, 2, 3, 4]);
}

#[test]
fn callbacks_run_even_when_all_threads_wait_as_they_may_wait_for_them() {
    let work = FakeWork::start(2, 2);
    let gates = [gate(), gate(), gate()];
    work.arrive(0, waiting(&gates[0]));
    work.arrive(1, waiting(&gates[0]));
    gates[0].await_arrivals(2);
    // The first callback waits for the second one, which frees those that wait.
    let (first, its_work) = (Arc::clone(&gates[1]), Arc::clone(&work));
    work.call_back(0, move || its_work.wait_at(&first));
    gates[1].await_arrivals(1);
    let opened = gates.clone();
    work.call_back(1, move || opened.iter().for_each(|gate| gate.open()));
    work.until("all ran", |fates| {
        fates.ran.len() == 2 && fates.called_back.len() == 2
    });
    work.pool.stop(&work);
}

#[test]
fn the_poller_is_looked_after_while_a_callback_runs_and_all_others_wait() {
    let work = FakeWork::start(1, 1);
    let (nested, called) = (gate(), gate());
    work.arrive(0, waiting(&nested));
    nested.await_arrivals(1);
    let blocking = Arc::clone(&called);
    work.call_back(0, move || blocking.pass());
    called.await_arrivals(1);
    // Nobody is left but a thread beyond the limit: it takes what comes.
    work.arrive(1, |_| {});
    work.until("it was refused", |fates| fates.refused == [1]);
    called.open();
    nested.open();
    work.pool.stop(&work);
    assert_eq!(work.fates.lock().ran, [0]);
}

#[test]
fn what_a_function_leaves_unsent_is_sent_while_it_blocks() {
    let work = FakeWork::start(4, 8);
    let gate = gate();
    // Not on the thread that polled, which is not waited for.
    let blocking = Arc::clone(&gate);
    let own = Arc::clone(&work);
    work.call_back(0, move || {
        own.leave_unsent();
        blocking.pass();
    });
    gate.await_arrivals(1);
    work.until("it was sent", |fates| fates.flushed > 0);
    gate.open();
    work.pool.stop(&work);
}

#[test]
fn a_thread_that_waits_leaves_nothing_to_be_sent_later() {
    let work = FakeWork::start(4, 8);
    let (sender, said) = mpsc::channel();
    let foreign = work.pool.is_own_thread();
    work.arrive(0, move |work| {
        let before = work.pool.is_own_thread();
        let waiting = work.pool.enter_wait(work);
        let while_waiting = work.pool.is_own_thread();
        // A second wait inside the first one is no further one.
        drop(work.pool.enter_wait(work));
        let gauges = work.pool.gauges();
        drop(waiting);
        let after = work.pool.is_own_thread();
        sender
            .send((before, while_waiting, gauges.waiting, after))
            .unwrap();
    });
    assert_eq!(said.recv_timeout(LONG), Ok((true, false, 1, true)));
    assert!(!foreign);
    work.pool.stop(&work);
}

#[test]
fn a_wait_of_a_thread_that_is_not_the_pools_counts_for_nothing() {
    let work = FakeWork::start(1, 1);
    let other = FakeWork::start(1, 1);
    let waiting = work.pool.enter_wait(&work);
    assert_eq!(work.pool.gauges().waiting, 0);
    drop(waiting);
    // A thread of another pool is a stranger as well.
    let strange = Arc::clone(&work);
    let (sender, said) = mpsc::channel();
    other.arrive(0, move |_| {
        let _waiting = strange.pool.enter_wait(&strange);
        sender
            .send((strange.pool.gauges().waiting, strange.pool.is_own_thread()))
            .unwrap();
    });
    assert_eq!(said.recv_timeout(LONG), Ok((0, false)));
    work.pool.stop(&work);
    other.pool.stop(&other);
}

#[test]
fn threads_without_work_end_but_for_two() {
    let work = FakeWork::start(16, 32);
    let gate = gate();
    for number in 0..10 {
        work.arrive(number, blocked(&gate));
    }
    gate.await_arrivals(10);
    assert!(work.pool.gauges().threads >= 11);
    gate.open();
    until(&work, "two are left", |gauges| gauges.threads == 2);
    work.arrive(10, |_| {});
    work.until("the last one ran", |fates| fates.ran.len() == 11);
    work.pool.stop(&work);
    assert_eq!(work.pool.gauges(), PoolGauges::default());
}

#[test]
fn a_stop_waits_for_what_runs_and_drops_what_is_queued() {
    let work = FakeWork::start(1, 4);
    let gate = gate();
    work.arrive(0, blocked(&gate));
    gate.await_arrivals(1);
    work.arrive(1, |_| {});
    until(&work, "one is queued", |gauges| gauges.queued == 1);
    let stopping = thread::spawn({
        let work = Arc::clone(&work);
        move || {
            work.pool.stop(&work);
            work.fates.lock().ran.clone()
        }
    });
    work.until("the queued one was dropped", |fates| fates.dropped == [1]);
    // What comes from now on is not taken.
    work.submit(2, |_| {});
    work.call_back(0, || {});
    work.until("the callback ran", |fates| fates.called_back == [0]);
    gate.open();
    assert_eq!(stopping.join().unwrap(), [0]);
    let fates = work.fates.lock();
    assert_eq!(fates.requests(), [0, 1, 2]);
    assert!(fates.is_poller_dropped);
    drop(fates);
    assert_eq!(work.pool.gauges(), PoolGauges::default());
}

#[test]
fn while_a_pool_stops_a_function_that_waits_still_gets_its_callback() {
    let work = FakeWork::start(2, 2);
    let gate = gate();
    work.arrive(0, waiting(&gate));
    gate.await_arrivals(1);
    let stopping = thread::spawn({
        let work = Arc::clone(&work);
        move || work.pool.stop(&work)
    });
    until(&work, "all others have ended", |gauges| gauges.threads == 1);
    let opened = Arc::clone(&gate);
    work.call_back(0, move || opened.open());
    stopping.join().unwrap();
    let fates = work.fates.lock();
    assert_eq!((&*fates.ran, &*fates.called_back), (&[0][..], &[0][..]));
}

#[test]
fn after_a_stop_callbacks_run_where_they_come_from() {
    let work = FakeWork::start(2, 2);
    work.pool.stop(&work);
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
        work.pool.stop(work);
        sender.send(work.pool.gauges().threads).unwrap();
    });
    assert_eq!(gauges.recv_timeout(LONG), Ok(1));
    until(&work, "its thread ends too", |gauges| gauges.threads == 0);
    assert!(work.fates.lock().is_poller_dropped);
}

#[test]
fn an_idle_pool_polls_and_does_not_spin() {
    let work = FakeWork::start(2, 4);
    until(&work, "the stand-by sleeps", |_| {
        work.pool.lock().stand_by == StandBy::Sleeps
    });
    let polls = work.polls();
    work.arrive(0, |_| {});
    work.until("it ran", |fates| fates.ran == [0]);
    until(&work, "the stand-by sleeps again", |_| {
        work.pool.lock().stand_by == StandBy::Sleeps
    });
    assert!(
        work.polls() <= polls + 2,
        "{polls} polls, then {}",
        work.polls()
    );
    work.pool.stop(&work);
}
