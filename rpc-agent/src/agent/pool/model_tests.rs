//! The pool under a model checker: `RUSTFLAGS='--cfg shuttle' cargo test --lib shuttle`.
//!
//! A wake-up that is lost leaves all threads asleep, which the checker reports as a deadlock.

use super::fake::{FakeWork, Gate};
use super::*;
use crate::sync::thread;

fn check(model: fn()) {
    shuttle::check_random(model, 2000);
    shuttle::check_pct(model, 2000, 3);
}

fn gate() -> Arc<Gate> {
    Arc::default()
}

#[test]
fn whatever_comes_from_wherever_is_run_under_shuttle() {
    check(|| {
        let work = FakeWork::start(2, 2);
        let coming = [
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
        for coming in coming {
            coming.join().unwrap();
        }
        work.pool.stop(&work);
        assert_eq!(work.fates.lock().requests(), [0, 1, 2]);
        assert_eq!(work.pool.gauges(), PoolGauges::default());
    });
}

#[test]
fn a_stop_at_any_time_leaves_nothing_undone_and_nothing_done_twice_under_shuttle() {
    check(|| {
        let work = FakeWork::start(1, 2);
        let coming = [
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
        work.pool.stop(&work);
        assert_eq!(work.pool.gauges(), PoolGauges::default());
        assert!(work.fates.lock().is_poller_dropped);
        for coming in coming {
            coming.join().unwrap();
        }
        // What nobody has read stays with the network.
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
fn a_function_that_blocks_holds_up_no_other_under_shuttle() {
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
        work.pool.stop(&work);
    });
}

#[test]
fn a_callback_that_blocks_holds_up_no_other_under_shuttle() {
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
        work.pool.stop(&work);
    });
}

#[test]
fn a_nested_wait_ends_as_others_take_the_place_under_shuttle() {
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
        work.pool.stop(&work);
        assert_eq!(work.pool.gauges(), PoolGauges::default());
    });
}

#[test]
fn when_all_wait_a_request_is_refused_or_was_early_enough_under_shuttle() {
    check(|| {
        let work = FakeWork::start(1, 1);
        let gate = gate();
        let nested = Arc::clone(&gate);
        work.arrive(0, move |work| work.wait_at(&nested));
        work.submit(1, |_| {});
        work.until("something became of it", |fates| {
            fates.ran.contains(&1) || fates.refused.contains(&1)
        });
        gate.open();
        work.until("both ended", |fates| fates.requests() == [0, 1]);
        work.pool.stop(&work);
    });
}

#[test]
fn callbacks_run_though_all_wait_for_them_under_shuttle() {
    check(|| {
        let work = FakeWork::start(1, 1);
        let gates = [gate(), gate()];
        let nested = Arc::clone(&gates[0]);
        work.arrive(0, move |work| work.wait_at(&nested));
        // Were the first callback first, the request would be refused.
        gates[0].await_arrivals(1);
        let (first, its_work) = (Arc::clone(&gates[1]), Arc::clone(&work));
        work.call_back(0, move || its_work.wait_at(&first));
        work.call_back(1, move || gates.iter().for_each(|gate| gate.open()));
        work.until("all ran", |fates| {
            fates.ran.len() == 1 && fates.called_back.len() == 2
        });
        work.pool.stop(&work);
        assert_eq!(work.pool.gauges(), PoolGauges::default());
    });
}

#[test]
fn while_a_pool_stops_a_function_that_waits_gets_its_callback_under_shuttle() {
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
        work.pool.stop(&work);
        calling_back.join().unwrap();
        let fates = work.fates.lock();
        assert_eq!((&*fates.ran, &*fates.called_back), (&[0][..], &[0][..]));
    });
}

#[test]
fn a_function_can_stop_its_own_pool_under_shuttle() {
    check(|| {
        let work = FakeWork::start(1, 2);
        work.submit(0, |work| work.pool.stop(work));
        work.call_back(0, || {});
        work.arrive(1, |_| {});
        work.until("it ran", |fates| {
            fates.ran.contains(&0) && !fates.called_back.is_empty()
        });
    });
}

#[test]
fn what_is_left_unsent_is_sent_though_its_thread_blocks_under_shuttle() {
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
        work.pool.stop(&work);
    });
}
