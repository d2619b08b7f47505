use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::thread::RetryThread;

/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const SEED: u64 = 1;

/// A thread that tells what it sends.
fn telling<T: Send + 'static>() -> (RetryThread<T>, mpsc::Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    let thread = RetryThread::start(SEED, move |record| {
        let _ = sender.send(record);
    });
    (thread.unwrap(), receiver)
}

#[test]
fn a_record_is_sent_when_it_is_due_and_not_before() {
    let (thread, sent) = telling();
    let at = Instant::now() + Duration::from_millis(20);
    thread.schedule(at, 'a').unwrap();
    assert_eq!(sent.recv_timeout(LONG), Ok('a'));
    assert!(Instant::now() >= at);
    assert_eq!(thread.len(), 0);
}

#[test]
fn the_thread_has_its_name_and_sends_on_itself() {
    let (sender, receiver) = mpsc::channel();
    let retry = RetryThread::start(SEED, move |()| {
        let name = thread::current().name().map(str::to_owned);
        let _ = sender.send(name);
    });
    let retry = retry.unwrap();
    retry.schedule(Instant::now(), ()).unwrap();
    assert_eq!(
        receiver.recv_timeout(LONG),
        Ok(Some("rpc-retry".to_owned()))
    );
}

#[test]
fn two_records_due_at_the_same_instant_go_out_in_one_wake_up() {
    let (sender, receiver) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let thread = RetryThread::start_with_batches(SEED, move |batch: Vec<u32>| {
        let _ = sender.send(batch);
        let _ = may_go_on.recv_timeout(LONG);
    })
    .unwrap();
    // The thread is busy until both are there.
    let at = Instant::now();
    thread.schedule(at, 0).unwrap();
    assert_eq!(receiver.recv_timeout(LONG).unwrap(), [0]);
    thread.schedule(at, 1).unwrap();
    thread.schedule(at, 2).unwrap();
    go_on.send(()).unwrap();
    assert_eq!(receiver.recv_timeout(LONG).unwrap(), [1, 2]);
    drop(go_on);
}

#[test]
fn a_record_inserted_earlier_than_the_current_sleep_target_wakes_the_thread() {
    let (thread, sent) = telling();
    thread.schedule(Instant::now() + HOUR, "late").unwrap();
    thread
        .schedule(Instant::now() + HOUR / 2, "less late")
        .unwrap();
    thread.schedule(Instant::now(), "now").unwrap();
    assert_eq!(sent.recv_timeout(LONG), Ok("now"));
    assert_eq!(thread.stop(), ["less late", "late"]);
}

#[test]
fn what_waits_comes_back_when_it_stops_and_what_comes_later_too() {
    let (thread, sent) = telling();
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
        "it was sent, or the thread is still there"
    );
}

#[test]
fn a_panic_while_sending_costs_one_record() {
    let (sender, sent) = mpsc::channel();
    let thread = RetryThread::start(SEED, move |record: u32| {
        assert_ne!(record, 1, "a bad record");
        let _ = sender.send(record);
    })
    .unwrap();
    let at = Instant::now() + Duration::from_millis(10);
    for record in [0, 1, 2] {
        thread.schedule(at, record).unwrap();
    }
    assert_eq!(sent.recv_timeout(LONG), Ok(0));
    assert_eq!(sent.recv_timeout(LONG), Ok(2));
    thread.schedule(Instant::now(), 3).unwrap();
    assert_eq!(sent.recv_timeout(LONG), Ok(3));
}

#[test]
fn ten_thousand_immediate_failures_are_sent_one_after_the_other() {
    let retry = Arc::new(OnceLock::<Weak<RetryThread<u32>>>::new());
    let (sender, done) = mpsc::channel();
    let thread = Arc::new(
        RetryThread::start(SEED, {
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
fn it_can_be_stopped_from_within_a_send_and_joined_by_another() {
    let own = Arc::new(OnceLock::<Weak<RetryThread<u32>>>::new());
    let (sender, given_back) = mpsc::channel();
    let thread = Arc::new(
        RetryThread::start(SEED, {
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
    assert_eq!(given_back.recv_timeout(LONG), Ok(vec![1]));
    assert!(thread.stop().is_empty());
    // The thread has ended, and its sender with it.
    assert_eq!(given_back.try_recv(), Err(mpsc::TryRecvError::Disconnected));
}

#[test]
fn its_last_owner_can_be_the_thread_itself() {
    let own = Arc::new(Mutex::new(None::<Arc<RetryThread<u32>>>));
    let (sender, ended) = mpsc::channel::<()>();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let thread = Arc::new(
        RetryThread::start(SEED, {
            let own = Arc::clone(&own);
            move |_| {
                let _sender = &sender;
                let _ = may_go_on.recv_timeout(LONG);
                drop(own.lock().unwrap().take());
            }
        })
        .unwrap(),
    );
    thread.schedule(Instant::now() + HOUR, 1).unwrap();
    thread.schedule(Instant::now(), 0).unwrap();
    *own.lock().unwrap() = Some(thread);
    go_on.send(()).unwrap();
    assert_eq!(
        ended.recv_timeout(LONG),
        Err(mpsc::RecvTimeoutError::Disconnected)
    );
}

#[test]
fn stopping_races_with_starting_and_sleeping_ten_thousand_times() {
    for round in 0..10_000_u32 {
        let (thread, sent) = telling();
        let mut scheduled = 0;
        if round % 2 == 1 {
            thread.schedule(Instant::now(), ()).unwrap();
            thread.schedule(Instant::now() + HOUR, ()).unwrap();
            scheduled = 2;
        }
        let given_back = thread.stop().len();
        assert_eq!(given_back + sent.iter().count(), scheduled, "round {round}");
    }
}

#[test]
fn two_threads_can_stop_it_and_each_finds_it_ended() {
    for _ in 0..200 {
        let (thread, sent) = telling();
        thread.schedule(Instant::now() + HOUR, ()).unwrap();
        let given_back = thread::scope(|scope| {
            let other = scope.spawn(|| thread.stop().len());
            let given_back = thread.stop().len();
            // Whichever of the two joined it.
            assert_eq!(sent.try_recv(), Err(mpsc::TryRecvError::Disconnected));
            given_back + other.join().unwrap()
        });
        assert_eq!(given_back, 1);
    }
}
