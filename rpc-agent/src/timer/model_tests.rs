//! The timer under a model checker: `RUSTFLAGS='--cfg shuttle' cargo test --lib shuttle`.

use std::io;
use std::time::{Duration, Instant};

use super::thread::TimerThread;
use crate::sync::{Arc, Mutex, thread};

const HOUR: Duration = Duration::from_secs(3600);

fn check(model: fn()) {
    shuttle::check_random(model, 2000);
    shuttle::check_pct(model, 2000, 3);
}

fn started<T: Send + 'static>(on_due: impl Fn(T) + Send + 'static) -> io::Result<TimerThread<T>> {
    let timer = TimerThread::new("test-timer");
    timer.start(on_due).map(|()| timer)
}

/// A timer, and the list of values that came due.
fn recording() -> (Arc<TimerThread<u32>>, Arc<Mutex<Vec<u32>>>) {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let thread = started({
        let sent = Arc::clone(&sent);
        move |value| sent.lock().unwrap().push(value)
    });
    (Arc::new(thread.unwrap()), sent)
}

#[test]
fn every_value_is_handed_over_or_returned_exactly_once_under_shuttle() {
    check(|| {
        let (retry, sent) = recording();
        let scheduling: Vec<_> = [[0, 1], [2, 3]]
            .into_iter()
            .map(|[due, late]| {
                let retry = Arc::clone(&retry);
                thread::spawn(move || {
                    let now = Instant::now();
                    let due = retry.schedule(now - Duration::from_secs(1), due);
                    let late = retry.schedule(now + HOUR, late);
                    [due, late]
                        .into_iter()
                        .filter_map(Result::err)
                        .collect::<Vec<u32>>()
                })
            })
            .collect();
        let mut seen = retry.stop();
        for scheduling in scheduling {
            seen.extend(scheduling.join().unwrap());
        }
        // The thread has ended, so no value comes due after this.
        seen.extend(sent.lock().unwrap().iter());
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
        assert!(retry.stop().is_empty());
    });
}

#[test]
fn two_threads_can_stop_the_timer_concurrently_under_shuttle() {
    check(|| {
        let (retry, sent) = recording();
        retry
            .schedule(Instant::now() - Duration::from_secs(1), 0)
            .unwrap();
        retry.schedule(Instant::now() + HOUR, 1).unwrap();
        let stop = |retry: Arc<TimerThread<u32>>, sent: Arc<Mutex<Vec<u32>>>| {
            move || (retry.stop(), sent.lock().unwrap().len())
        };
        let other = thread::spawn(stop(Arc::clone(&retry), Arc::clone(&sent)));
        let (mut given_back, sent_before) = stop(retry, Arc::clone(&sent))();
        let (given_back_there, sent_before_there) = other.join().unwrap();
        assert_eq!(sent_before, sent_before_there, "sent after a stop");
        given_back.extend(given_back_there);
        given_back.extend(sent.lock().unwrap().iter());
        given_back.sort_unstable();
        assert_eq!(given_back, [0, 1]);
    });
}

#[test]
fn an_earlier_value_wakes_the_thread_under_shuttle() {
    check(|| {
        let (sender, receiver) = shuttle::sync::mpsc::channel();
        let sender = Mutex::new(sender);
        let retry = started(move |value: u32| {
            sender.lock().unwrap().send(value).unwrap();
        })
        .unwrap();
        retry.schedule(Instant::now() + HOUR, 1).unwrap();
        retry
            .schedule(Instant::now() - Duration::from_secs(1), 0)
            .unwrap();
        // Without the wake-up, both threads would sleep forever, which the checker reports as a deadlock.
        assert_eq!(receiver.recv(), Ok(0));
        assert_eq!(retry.stop(), [1]);
    });
}

#[test]
fn the_callback_may_schedule_and_stop_under_shuttle() {
    check(|| {
        let own = Arc::new(Mutex::new(std::sync::Weak::<TimerThread<u32>>::new()));
        let given_back = Arc::new(Mutex::new(Vec::new()));
        let retry = started({
            let (own, given_back) = (Arc::clone(&own), Arc::clone(&given_back));
            move |value| {
                let Some(retry) = own.lock().unwrap().upgrade() else {
                    given_back.lock().unwrap().push(value);
                    return;
                };
                if value == 0 {
                    let again = retry.schedule(Instant::now() - Duration::from_secs(1), 1);
                    given_back.lock().unwrap().extend(again.err());
                } else {
                    given_back.lock().unwrap().push(value);
                    given_back.lock().unwrap().extend(retry.stop());
                }
            }
        });
        let retry = Arc::new(retry.unwrap());
        *own.lock().unwrap() = Arc::downgrade(&retry);
        retry
            .schedule(Instant::now() - Duration::from_secs(1), 0)
            .unwrap();
        let of_us = retry.stop();
        let of_it = given_back.lock().unwrap().clone();
        // Either value 0 was returned, or it came due and value 1 was returned or came due.
        let all: Vec<u32> = of_us.into_iter().chain(of_it).collect();
        assert!(all == [0] || all == [1], "{all:?}");
    });
}
