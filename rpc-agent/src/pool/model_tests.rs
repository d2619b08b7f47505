//! The pool under a model checker: `RUSTFLAGS='--cfg shuttle' cargo test --lib shuttle`.
//!
//! A lost wake-up leaves all threads asleep, which the checker reports as a deadlock.

use super::scheduler::PoolGauges;
use super::tests::fake::{FakeWork, Gate};
use crate::sync::{Arc, thread};

fn check(model: fn()) {
    shuttle::check_random(model, 2000);
    shuttle::check_pct(model, 2000, 3);
}

fn gate() -> Arc<Gate> {
    Arc::default()
}

#[test]
fn polled_and_submitted_requests_and_callbacks_run_under_shuttle() {
    check(|| {
        let work = FakeWork::start(2, 2);
        let senders = [
            thread::spawn({
                let work = Arc::clone(&work);
                move || {
                    work.arrive(0, |_| {});
                    work.arrive(1, |_| {});
                }
            }),
            thread::spawn({
                let work = Arc::clone(&work);
                move || {
                    work.submit(2, |_| {});
                    work.call_back(0, || {});
                }
            }),
        ];
        work.until("all ran", |fates| {
            fates.ran.len() == 3 && fates.called_back.len() == 1
        });
        for sender in senders {
            sender.join().unwrap();
        }
        work.pool.stop();
        assert_eq!(work.fates.lock().requests(), [0, 1, 2]);
        assert_eq!(work.pool.gauges(), PoolGauges::default());
    });
}

#[test]
fn at_a_stop_each_task_runs_once_or_is_dropped_under_shuttle() {
    check(|| {
        let work = FakeWork::start(1, 2);
        let senders = [
            thread::spawn({
                let work = Arc::clone(&work);
                move || {
                    work.arrive(0, |_| {});
                    work.call_back(0, || {});
                }
            }),
            thread::spawn({
                let work = Arc::clone(&work);
                move || {
                    work.submit(1, |work| {
                        let own = Arc::clone(work);
                        work.call_back(1, move || own.submit(2, |_| {}));
                    });
                    work.call_back(3, || {});
                }
            }),
        ];
        work.pool.stop();
        assert_eq!(work.pool.gauges(), PoolGauges::default());
        for sender in senders {
            sender.join().unwrap();
        }
        assert!(work.fates.lock().is_work_dropped);
        // Requests that no thread has read stay in the simulated network.
        let unread = work.unread();
        let fates = work.fates.lock();
        let mut requests = fates.requests();
        requests.extend(unread);
        requests.sort_unstable();
        let mut called_back = fates.called_back.clone();
        called_back.sort_unstable();
        if fates.ran.contains(&1) {
            assert_eq!(
                (&*requests, &*called_back),
                (&[0, 1, 2][..], &[0, 1, 3][..])
            );
        } else {
            assert_eq!((&*requests, &*called_back), (&[0, 1][..], &[0, 3][..]));
        }
    });
}

#[test]
fn a_blocked_function_does_not_delay_others_under_shuttle() {
    check(|| {
        let work = FakeWork::start(3, 3);
        let gate = gate();
        let blocked = [0, 1].map(|number| {
            let gate = Arc::clone(&gate);
            work.request(number, move |_| gate.pass())
        });
        work.arrive_together(blocked);
        let opened = Arc::clone(&gate);
        work.arrive(2, move |_| opened.open());
        work.until("all ran", |fates| fates.ran.len() == 3);
        work.pool.stop();
    });
}

#[test]
fn a_blocked_callback_does_not_delay_others_under_shuttle() {
    check(|| {
        let work = FakeWork::start(1, 3);
        let gate = gate();
        let blocked = Arc::clone(&gate);
        work.call_back(0, move || blocked.pass());
        let own = Arc::clone(&work);
        work.arrive(0, move |_| {
            let opened = Arc::clone(&gate);
            own.call_back(1, move || opened.open());
        });
        work.until("all ran", |fates| {
            fates.ran.len() == 1 && fates.called_back.len() == 2
        });
        work.pool.stop();
    });
}

#[test]
fn another_thread_replaces_one_that_waits_under_shuttle() {
    check(|| {
        let work = FakeWork::start(1, 2);
        let gate = gate();
        let nested = Arc::clone(&gate);
        work.arrive(0, move |work| work.wait_at(&nested));
        let opening = thread::spawn({
            let work = Arc::clone(&work);
            move || work.submit(1, move |_| gate.open())
        });
        work.until("both ran", |fates| fates.ran.len() == 2);
        opening.join().unwrap();
        work.pool.stop();
        assert_eq!(work.pool.gauges(), PoolGauges::default());
    });
}

#[test]
fn a_request_runs_early_or_is_refused_while_all_threads_wait_under_shuttle() {
    check(|| {
        let work = FakeWork::start(1, 1);
        let gate = gate();
        let nested = Arc::clone(&gate);
        work.arrive(0, move |work| work.wait_at(&nested));
        work.submit(1, |_| {});
        work.until("it ran or was refused", |fates| {
            fates.ran.contains(&1) || fates.refused.contains(&1)
        });
        gate.open();
        work.until("both ended", |fates| fates.requests() == [0, 1]);
        work.pool.stop();
    });
}

#[test]
fn callbacks_run_while_all_threads_wait_under_shuttle() {
    check(|| {
        let work = FakeWork::start(1, 1);
        let gates = [gate(), gate()];
        let nested = Arc::clone(&gates[0]);
        work.arrive(0, move |work| work.wait_at(&nested));
        // Without this wait, the callback could run first, and the request would be refused.
        gates[0].await_arrivals(1);
        let (first, its_work) = (Arc::clone(&gates[1]), Arc::clone(&work));
        work.call_back(0, move || its_work.wait_at(&first));
        work.call_back(1, move || gates.iter().for_each(|gate| gate.open()));
        work.until("all ran", |fates| {
            fates.ran.len() == 1 && fates.called_back.len() == 2
        });
        work.pool.stop();
        assert_eq!(work.pool.gauges(), PoolGauges::default());
    });
}

#[test]
fn a_function_that_waits_gets_its_callback_while_the_pool_stops_under_shuttle() {
    check(|| {
        let work = FakeWork::start(1, 1);
        let gate = gate();
        let nested = Arc::clone(&gate);
        work.arrive(0, move |work| work.wait_at(&nested));
        gate.await_arrivals(1);
        let calling_back = thread::spawn({
            let work = Arc::clone(&work);
            move || work.call_back(0, move || gate.open())
        });
        work.pool.stop();
        calling_back.join().unwrap();
        let fates = work.fates.lock();
        assert_eq!((&*fates.ran, &*fates.called_back), (&[0][..], &[0][..]));
    });
}

#[test]
fn a_function_can_stop_its_own_pool_under_shuttle() {
    check(|| {
        let work = FakeWork::start(1, 2);
        work.submit(0, |work| work.pool.stop());
        work.call_back(0, || {});
        work.arrive(1, |_| {});
        work.until("it ran", |fates| {
            fates.ran.contains(&0) && !fates.called_back.is_empty()
        });
    });
}

#[test]
fn unsent_output_is_sent_while_its_thread_blocks_under_shuttle() {
    check(|| {
        let work = FakeWork::start(2, 3);
        let gate = gate();
        let (own, blocked) = (Arc::clone(&work), Arc::clone(&gate));
        work.call_back(0, move || {
            own.leave_unsent();
            blocked.pass();
        });
        work.until("it was sent", |fates| fates.flushed > 0);
        gate.open();
        work.pool.stop();
    });
}
