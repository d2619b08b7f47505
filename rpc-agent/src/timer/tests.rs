use std::io;
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::thread::TimerThread;

/// Far longer than any step of these tests takes.
const LONG: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const NAME: &str = "test-timer";

fn started<T: Send + 'static>(on_due: impl Fn(T) + Send + 'static) -> io::Result<TimerThread<T>> {
    let timer = TimerThread::new(NAME);
    timer.start(on_due).map(|()| timer)
}

/// A timer that sends each due value to a channel.
fn reporting<T: Send + 'static>() -> (TimerThread<T>, mpsc::Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    let thread = started(move |value| {
        let _ = sender.send(value);
    });
    (thread.unwrap(), receiver)
}

#[test]
fn a_value_is_handed_over_when_it_is_due_and_not_before() {
    let (thread, sent) = reporting();
    let at = Instant::now() + Duration::from_millis(20);
    thread.schedule(at, 'a').unwrap();
    assert_eq!(sent.recv_timeout(LONG), Ok('a'));
    assert!(Instant::now() >= at);
    assert_eq!(thread.len(), 0);
}

#[test]
fn the_callback_runs_on_the_named_thread() {
    let (sender, receiver) = mpsc::channel();
    let retry = started(move |()| {
        let name = thread::current().name().map(str::to_owned);
        let _ = sender.send(name);
    });
    let retry = retry.unwrap();
    retry.schedule(Instant::now(), ()).unwrap();
    assert_eq!(receiver.recv_timeout(LONG), Ok(Some(NAME.to_owned())));
}

#[test]
fn an_earlier_value_than_the_current_sleep_target_wakes_the_thread() {
    let (thread, sent) = reporting();
    thread.schedule(Instant::now() + HOUR, "late").unwrap();
    thread
        .schedule(Instant::now() + HOUR / 2, "less late")
        .unwrap();
    thread.schedule(Instant::now(), "now").unwrap();
    assert_eq!(sent.recv_timeout(LONG), Ok("now"));
    assert_eq!(thread.stop(), ["less late", "late"]);
}

#[test]
fn a_stop_returns_the_pending_values_and_later_ones_are_refused() {
    let (thread, sent) = reporting();
    let at = Instant::now() + HOUR;
    thread.schedule(at, 1).unwrap();
    thread.schedule(at, 2).unwrap();
    assert_eq!(thread.len(), 2);
    assert_eq!(thread.stop(), [1, 2]);
    assert!(thread.stop().is_empty());
    assert_eq!(thread.schedule(at, 3), Err(3));
    assert_eq!(thread.len(), 0);
    assert!(
        sent.recv_timeout(LONG).is_err(),
        "it was due, or the thread has not ended"
    );
}

#[test]
fn a_panic_of_the_callback_loses_only_one_value() {
    let (sender, sent) = mpsc::channel();
    let thread = started(move |value: u32| {
        assert_ne!(value, 1, "a bad value");
        let _ = sender.send(value);
    })
    .unwrap();
    let at = Instant::now() + Duration::from_millis(10);
    for value in [0, 1, 2] {
        thread.schedule(at, value).unwrap();
    }
    assert_eq!(sent.recv_timeout(LONG), Ok(0));
    assert_eq!(sent.recv_timeout(LONG), Ok(2));
    thread.schedule(Instant::now(), 3).unwrap();
    assert_eq!(sent.recv_timeout(LONG), Ok(3));
}

#[test]
fn a_callback_can_schedule_the_next_value_ten_thousand_times() {
    let retry = Arc::new(OnceLock::<Weak<TimerThread<u32>>>::new());
    let (sender, done) = mpsc::channel();
    let thread = Arc::new(
        started({
            let retry = Arc::clone(&retry);
            move |count| {
                if count == 10_000 {
                    let _ = sender.send(());
                } else if let Some(thread) = retry.get().and_then(Weak::upgrade) {
                    thread
                        .schedule(Instant::now() - Duration::from_millis(1), count + 1)
                        .unwrap();
                }
            }
        })
        .unwrap(),
    );
    retry.set(Arc::downgrade(&thread)).unwrap();
    thread.schedule(Instant::now(), 0).unwrap();
    assert_eq!(done.recv_timeout(LONG), Ok(()));
}

#[test]
fn the_callback_can_stop_the_timer_and_another_thread_join_it() {
    let own = Arc::new(OnceLock::<Weak<TimerThread<u32>>>::new());
    let (sender, returned) = mpsc::channel();
    let thread = Arc::new(
        started({
            let own = Arc::clone(&own);
            move |_| {
                let thread = own.get().and_then(Weak::upgrade).unwrap();
                let _ = sender.send(thread.stop());
            }
        })
        .unwrap(),
    );
    own.set(Arc::downgrade(&thread)).unwrap();
    thread.schedule(Instant::now() + HOUR, 1).unwrap();
    thread.schedule(Instant::now(), 0).unwrap();
    assert_eq!(returned.recv_timeout(LONG), Ok(vec![1]));
    assert!(thread.stop().is_empty());
    // The thread has ended and dropped its sender.
    assert_eq!(returned.try_recv(), Err(mpsc::TryRecvError::Disconnected));
}

#[test]
fn the_last_owner_can_be_the_timer_thread_itself() {
    let own = Arc::new(Mutex::new(None::<Arc<TimerThread<u32>>>));
    let (sender, ended) = mpsc::channel::<()>();
    let (resume, resumed) = mpsc::channel::<()>();
    let thread = Arc::new(
        started({
            let own = Arc::clone(&own);
            move |_| {
                let _sender = &sender;
                let _ = resumed.recv_timeout(LONG);
                drop(own.lock().unwrap().take());
            }
        })
        .unwrap(),
    );
    thread.schedule(Instant::now() + HOUR, 1).unwrap();
    thread.schedule(Instant::now(), 0).unwrap();
    *own.lock().unwrap() = Some(thread);
    resume.send(()).unwrap();
    assert_eq!(
        ended.recv_timeout(LONG),
        Err(mpsc::RecvTimeoutError::Disconnected)
    );
}

#[test]
fn stopping_races_with_starting_and_sleeping_ten_thousand_times() {
    for round in 0..10_000_u32 {
        let (thread, sent) = reporting();
        let mut scheduled = 0;
        if round % 2 == 1 {
            thread.schedule(Instant::now(), ()).unwrap();
            thread.schedule(Instant::now() + HOUR, ()).unwrap();
            scheduled = 2;
        }
        let returned = thread.stop().len();
        assert_eq!(returned + sent.iter().count(), scheduled, "round {round}");
    }
}

#[test]
fn two_threads_can_stop_the_timer_concurrently() {
    for _ in 0..200 {
        let (thread, sent) = reporting();
        thread.schedule(Instant::now() + HOUR, ()).unwrap();
        let returned = thread::scope(|scope| {
            let other = scope.spawn(|| thread.stop().len());
            let returned = thread.stop().len();
            // Both calls return after the thread has ended, whichever one joined it.
            assert_eq!(sent.try_recv(), Err(mpsc::TryRecvError::Disconnected));
            returned + other.join().unwrap()
        });
        assert_eq!(returned, 1);
    }
}

#[test]
fn values_scheduled_before_the_start_are_handed_over_after_it() {
    let timer = TimerThread::new(NAME);
    let (sender, due) = mpsc::channel();
    timer.schedule(Instant::now(), 'a').unwrap();
    assert_eq!(timer.len(), 1);
    timer
        .start(move |value| sender.send(value).unwrap())
        .unwrap();
    assert_eq!(due.recv_timeout(LONG), Ok('a'));
}

#[test]
fn a_timer_that_was_not_started_stops() {
    let timer = TimerThread::new(NAME);
    timer.schedule(Instant::now(), 'a').unwrap();
    assert_eq!(timer.stop(), ['a']);
}
