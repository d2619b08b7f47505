//! The completion slot under a model checker: `RUSTFLAGS='--cfg shuttle' cargo test --lib shuttle`.

use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use c10d_socket::Deadline;

use super::*;
use crate::error::RpcError;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Monitor, Mutex, thread};

const LONG: Duration = Duration::from_secs(3600);

/// Random schedules, and schedules with few preemptions at unlucky points (PCT).
fn check(model: fn()) {
    shuttle::check_random(model, 2000);
    shuttle::check_pct(model, 2000, 3);
}

/// Every schedule, then random ones.
fn check_all(model: fn()) {
    shuttle::check_dfs(model, None);
    check(model);
}

/// An executor that spawns a thread for each job.
struct Spawning;

impl Executor for Spawning {
    fn execute(&self, job: Job) {
        thread::spawn(job);
    }

    fn drive(&self, _: &dyn Fn() -> bool, _: Deadline, _: Hint, block: &mut dyn FnMut()) {
        thread::yield_now();
        block();
    }
}

fn counted(counter: &Arc<AtomicUsize>) -> impl FnOnce(&Result<u32, RpcError>) + Send + 'static {
    let counter = Arc::clone(counter);
    move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn of_two_completions_one_wins_under_shuttle() {
    check_all(|| {
        let (promise, future) = RpcFuture::new();
        let promise = Arc::new(promise);
        let other = thread::spawn({
            let promise = Arc::clone(&promise);
            move || promise.complete(Ok(1))
        });
        let has_won = promise.complete(Ok(2));
        let other_has_won = other.join().unwrap();
        assert!(has_won != other_has_won);
        assert_eq!(future.wait().unwrap(), if has_won { 2 } else { 1 });
    });
}

#[test]
fn a_wait_returns_upon_completion_under_shuttle() {
    check_all(|| {
        let (promise, future) = RpcFuture::new();
        let completing = thread::spawn(move || promise.complete(Ok(1)));
        assert_eq!(future.wait().unwrap(), 1);
        assert!(completing.join().unwrap());
    });
}

#[test]
fn each_of_several_waits_returns_under_shuttle() {
    check(|| {
        let (promise, future) = RpcFuture::with_executor(Some(Arc::new(Spawning)), Hint(1));
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let future = future.clone();
                thread::spawn(move || future.wait().unwrap())
            })
            .collect();
        promise.complete(Ok(1));
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), 1);
        }
        assert_eq!(future.slot.waiting(), 0);
    });
}

#[test]
fn a_wait_with_a_timeout_returns_the_value_or_none_under_shuttle() {
    check(|| {
        let (promise, future) = RpcFuture::new();
        let waiting = thread::spawn({
            let future = future.clone();
            move || future.wait_timeout(LONG)
        });
        promise.complete(Ok(1));
        if let Some(result) = waiting.join().unwrap() {
            assert_eq!(result.unwrap(), 1);
        }
        assert_eq!(future.slot.waiting(), 0);
        assert_eq!(future.wait_timeout(LONG).unwrap().unwrap(), 1);
    });
}

#[test]
fn an_answer_and_a_timeout_complete_a_call_once_under_shuttle() {
    check(|| {
        let (promise, future) = RpcFuture::new();
        let promise = Arc::new(promise);
        let calls = Arc::new(AtomicUsize::new(0));
        future.on_complete(counted(&calls));
        let racing = [Ok(1), Err(RpcError::Broken("timeout".into()))].map(|result| {
            let promise = Arc::clone(&promise);
            thread::spawn(move || promise.complete(result))
        });
        let result = future.wait();
        let won = racing.map(|thread| thread.join().unwrap());
        assert_eq!(won, [result.is_ok(), result.is_err()]);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn a_callback_registered_during_the_completion_runs_once_under_shuttle() {
    check_all(|| {
        let (promise, future) = RpcFuture::new();
        let calls = Arc::new(AtomicUsize::new(0));
        let completing = thread::spawn(move || promise.complete(Ok(1)));
        future.on_complete(counted(&calls));
        assert!(completing.join().unwrap());
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn callbacks_of_several_threads_run_once_each_under_shuttle() {
    check(|| {
        let (promise, future) = RpcFuture::with_executor(Some(Arc::new(Spawning)), Hint::NONE);
        let calls = Arc::new(AtomicUsize::new(0));
        let registering: Vec<_> = (0..3)
            .map(|_| {
                let (future, calls) = (future.clone(), Arc::clone(&calls));
                thread::spawn(move || {
                    let count = move |_| {
                        calls.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    };
                    future.then(count).wait().unwrap();
                })
            })
            .collect();
        promise.complete(Ok(1));
        for registering in registering {
            registering.join().unwrap();
        }
        assert_eq!(calls.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn a_wait_returns_when_the_promise_is_dropped_under_shuttle() {
    check_all(|| {
        let (promise, future) = RpcFuture::<u32>::new();
        let dropping = thread::spawn(move || drop(promise));
        assert!(matches!(future.wait(), Err(RpcError::Broken(_))));
        dropping.join().unwrap();
    });
}

/// Polls only when woken: a lost wake-up is a deadlock, which the checker reports.
fn block_on(mut future: RpcFuture<u32>) -> Result<u32, RpcError> {
    struct Flag(Monitor<bool>);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            *self.0.lock() = true;
            self.0.notify_all();
        }
    }
    let flag = Arc::new(Flag(Monitor::new(false)));
    let waker = Waker::from(Arc::clone(&flag));
    loop {
        if let Poll::Ready(result) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        let mut is_woken = flag.0.lock();
        while !*is_woken {
            (is_woken, _) = flag.0.wait_until(is_woken, Deadline::NEVER);
        }
        *is_woken = false;
    }
}

#[test]
fn a_waker_registered_during_the_completion_is_not_lost_under_shuttle() {
    check_all(|| {
        let (promise, future) = RpcFuture::new();
        let completing = thread::spawn(move || promise.complete(Ok(1)));
        assert_eq!(block_on(future).unwrap(), 1);
        assert!(completing.join().unwrap());
    });
}

#[test]
fn a_future_that_moves_to_another_task_wakes_that_one_under_shuttle() {
    check(|| {
        let (promise, mut future) = RpcFuture::new();
        let completing = thread::spawn(move || promise.complete(Ok(1)));
        let _ = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
        let other = thread::spawn({
            let other = future.clone();
            move || block_on(other)
        });
        assert_eq!(block_on(future).unwrap(), 1);
        assert_eq!(other.join().unwrap().unwrap(), 1);
        assert!(completing.join().unwrap());
    });
}

#[test]
fn join_all_of_racing_completions_returns_all_values_under_shuttle() {
    check(|| {
        let (promises, futures): (Vec<_>, Vec<_>) = (0..3).map(|_| RpcFuture::new()).unzip();
        let all = join_all(futures);
        let lost = Arc::new(Mutex::new(0));
        for (n, promise) in promises.into_iter().enumerate() {
            let lost = Arc::clone(&lost);
            thread::spawn(move || {
                if !promise.complete(Ok(n)) {
                    *lost.lock().unwrap() += 1;
                }
            });
        }
        assert_eq!(all.wait().unwrap(), [0, 1, 2]);
        assert_eq!(*lost.lock().unwrap(), 0);
    });
}
