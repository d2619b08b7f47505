use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};

use super::*;
use crate::error::RpcError;

/// Far longer than any step of these tests takes.
const LONG: Duration = Duration::from_secs(60);

fn broken(text: &str) -> RpcError {
    RpcError::Broken(text.into())
}

fn text<T: fmt::Debug>(result: Option<Result<T, RpcError>>) -> String {
    match result {
        Some(Err(error)) => error.to_string(),
        other => panic!("no error: {other:?}"),
    }
}

/// Returns a list, and a function that appends to it; callbacks use it to record their order.
fn notes<T>() -> (Arc<Mutex<Vec<T>>>, impl Fn(T) + Clone) {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&notes);
    (notes, move |note| writer.lock().unwrap().push(note))
}

fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "the condition did not become true"
        );
        thread::yield_now();
    }
}

/// An executor that runs jobs when the test asks for it, and records the calls of `drive`.
#[derive(Default)]
struct ManualExecutor {
    jobs: Mutex<Vec<Job>>,
    driven: Mutex<Vec<(Hint, Deadline, bool)>>,
    on_drive: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl ManualExecutor {
    fn run_all(&self) {
        loop {
            let jobs = std::mem::take(&mut *self.jobs.lock().unwrap());
            if jobs.is_empty() {
                return;
            }
            jobs.into_iter().for_each(|job| job());
        }
    }

    fn future(self: &Arc<Self>, hint: Hint) -> (Promise<u32>, RpcFuture<u32>) {
        RpcFuture::with_executor(Some(Arc::clone(self) as Arc<dyn Executor>), hint)
    }
}

impl Executor for ManualExecutor {
    fn execute(&self, job: Job) {
        self.jobs.lock().unwrap().push(job);
    }

    fn drive(
        &self,
        is_complete: &dyn Fn() -> bool,
        deadline: Deadline,
        hint: Hint,
        block: &mut dyn FnMut(),
    ) {
        if hint == Hint::NONE {
            return block();
        }
        if let Some(action) = self.on_drive.lock().unwrap().take() {
            action();
        }
        self.driven
            .lock()
            .unwrap()
            .push((hint, deadline, is_complete()));
        block();
    }
}

#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counter() -> (Arc<Counter>, Waker) {
    let counter = Arc::new(Counter::default());
    let waker = Waker::from(Arc::clone(&counter));
    (counter, waker)
}

fn poll<T: Clone + Send + 'static>(
    future: &mut RpcFuture<T>,
    waker: &Waker,
) -> Poll<Result<T, RpcError>> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn only_the_first_completion_counts_and_later_ones_return_false() {
    let (promise, future) = RpcFuture::new();
    assert!(!future.is_complete() && future.try_get().is_none());
    assert!(promise.complete(Ok(1)));
    assert!(!promise.complete(Ok(2)));
    assert!(!promise.complete(Err(broken("late"))));
    assert!(promise.is_complete() && future.is_complete());
    assert_eq!(future.try_get().unwrap().unwrap(), 1);
}

#[test]
fn each_wait_on_each_clone_returns_the_same_result() {
    let (promise, future) = RpcFuture::new();
    promise.complete(Ok(5));
    let other = future.clone();
    for _ in 0..2 {
        assert_eq!(future.wait().unwrap(), 5);
        assert_eq!(other.wait_timeout(Duration::ZERO).unwrap().unwrap(), 5);
    }
    let failed = RpcFuture::<u32>::ready(Err(broken("lost")));
    assert_eq!(text(Some(failed.wait())), "lost");
    assert_eq!(text(Some(failed.wait())), "lost");
}

#[test]
fn a_wait_that_times_out_leaves_the_future_pending() {
    let (promise, future) = RpcFuture::new();
    let began = Instant::now();
    assert!(future.wait_timeout(Duration::from_millis(5)).is_none());
    assert!(began.elapsed() >= Duration::from_millis(5));
    assert!(future.wait_timeout(Duration::ZERO).is_none());
    assert!(
        future
            .wait_until(Deadline::at(began), &Cancel::NEVER)
            .is_none()
    );
    assert_eq!(future.slot.waiting(), 0);
    promise.complete(Ok(1));
    assert_eq!(
        future
            .wait_until(Deadline::at(began), &Cancel::NEVER)
            .unwrap()
            .unwrap(),
        1
    );
}

#[test]
fn dropping_a_promise_fails_its_future() {
    let (promise, future) = RpcFuture::<u32>::new();
    let waiting = thread::spawn({
        let future = future.clone();
        move || future.wait()
    });
    until(|| future.slot.waiting() == 1);
    drop(promise);
    let error_text = text(Some(waiting.join().unwrap()));
    assert_eq!(
        error_text,
        "the promise of this future was dropped before it was completed"
    );

    let (promise, future) = RpcFuture::new();
    promise.complete(Ok(1));
    drop(promise);
    assert_eq!(future.wait().unwrap(), 1);
}

#[test]
fn callbacks_of_a_pending_future_run_upon_completion_in_order() {
    for count in 0..4 {
        let (promise, future) = RpcFuture::new();
        let (seen, note) = notes();
        for n in 0..count {
            let note = note.clone();
            future.on_complete(move |result| note((n, *result.as_ref().unwrap())));
        }
        assert_eq!(*seen.lock().unwrap(), []);
        promise.complete(Ok(9));
        promise.complete(Ok(10));
        let expected: Vec<_> = (0..count).map(|n| (n, 9)).collect();
        assert_eq!(*seen.lock().unwrap(), expected);
    }
}

#[test]
fn a_callback_of_a_complete_future_runs_at_once_on_the_registering_thread() {
    let executor = Arc::new(ManualExecutor::default());
    let (promise, future) = executor.future(Hint::NONE);
    promise.complete(Ok(1));
    let (seen, note) = notes();
    future.on_complete(move |_| note(thread::current().id()));
    assert_eq!(*seen.lock().unwrap(), [thread::current().id()]);
    assert!(executor.jobs.lock().unwrap().is_empty());
}

#[test]
fn all_callbacks_of_one_completion_are_one_job_of_the_executor() {
    for count in [1, 2, 5] {
        let executor = Arc::new(ManualExecutor::default());
        let (promise, future) = executor.future(Hint::NONE);
        let (seen, note) = notes();
        for n in 0..count {
            let note = note.clone();
            future.on_complete(move |_| note(n));
        }
        promise.complete(Ok(1));
        assert!(seen.lock().unwrap().is_empty());
        assert_eq!(executor.jobs.lock().unwrap().len(), 1);
        executor.run_all();
        assert_eq!(*seen.lock().unwrap(), (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn a_completion_without_callbacks_submits_no_job() {
    let executor = Arc::new(ManualExecutor::default());
    let (promise, future) = executor.future(Hint::NONE);
    promise.complete(Ok(1));
    assert!(executor.jobs.lock().unwrap().is_empty());
    assert_eq!(future.wait().unwrap(), 1);
}

#[test]
fn a_panicking_callback_affects_neither_other_callbacks_nor_the_completing_thread() {
    let (promise, future) = RpcFuture::new();
    let (seen, note) = notes();
    future.on_complete(|_| panic!("first"));
    future.on_complete({
        let note = note.clone();
        move |_| note("second")
    });
    assert!(promise.complete(Ok(1)));
    future.on_complete(|_| panic!("at once"));
    future.on_complete(move |_| note("at once"));
    assert_eq!(*seen.lock().unwrap(), ["second", "at once"]);
    assert_eq!(future.wait().unwrap(), 1);
}

#[test]
fn a_callback_can_use_its_own_future() {
    let (promise, future) = RpcFuture::new();
    let (seen, note) = notes();
    let handle = future.clone();
    future.on_complete(move |_| {
        note(handle.wait().unwrap());
        handle.on_complete(move |result| note(*result.as_ref().unwrap() + 1));
    });
    promise.complete(Ok(1));
    assert_eq!(*seen.lock().unwrap(), [1, 2]);
}

#[test]
fn a_continuation_turns_a_value_or_an_error_into_either() {
    let (promise, future) = RpcFuture::new();
    let doubled = future.then(|result: Result<u32, _>| Ok(2 * result?));
    let failed = future.then(|_| Err::<u32, _>(broken("not wanted")));
    let panicked = future.then(|_| -> Result<u32, RpcError> { panic!("bad value {}", 1) });
    let further = doubled.then(|result| Ok(format!("{}", result?)));
    assert!(!doubled.is_complete());
    promise.complete(Ok(4));
    assert_eq!(doubled.wait().unwrap(), 8);
    assert_eq!(further.wait().unwrap(), "8");
    assert_eq!(text(failed.try_get()), "not wanted");
    assert_eq!(
        text(panicked.try_get()),
        "a continuation of a future panicked: bad value 1"
    );
    let mended = failed.then(|result| Ok(result.unwrap_or(0)));
    assert_eq!(mended.wait().unwrap(), 0);
}

#[test]
fn a_continuation_can_return_a_future() {
    let (promise, future) = RpcFuture::new();
    let (inner_promise, inner) = RpcFuture::new();
    let adopted = inner.clone();
    let child = future.and_then(move |n: u32| adopted.then(move |result| Ok(result? + n)));
    promise.complete(Ok(1));
    assert!(!child.is_complete());
    inner_promise.complete(Ok(10));
    assert_eq!(child.wait().unwrap(), 11);
    assert_eq!(
        future.and_then(|n| RpcFuture::ready(Ok(n))).wait().unwrap(),
        1
    );

    let panicked = future.and_then(|_| -> RpcFuture<u32> { panic!("no future") });
    assert_eq!(
        text(panicked.try_get()),
        "a continuation of a future panicked: no future"
    );
}

#[test]
fn an_error_skips_and_then_but_not_then_async() {
    let failed = RpcFuture::<u32>::ready(Err(broken("lost")));
    let passed = failed.and_then(|_| -> RpcFuture<u32> { unreachable!("there is no value") });
    assert_eq!(text(passed.try_get()), "lost");
    let again = failed.then_async(|result| {
        assert!(result.is_err());
        RpcFuture::ready(Ok(2))
    });
    assert_eq!(again.wait().unwrap(), 2);
}

#[test]
fn a_continuation_that_returns_its_own_future_fails_it() {
    let (promise, future) = RpcFuture::<u32>::new();
    let own = Arc::new(Mutex::new(None::<RpcFuture<u32>>));
    let child = future.and_then({
        let own = Arc::clone(&own);
        move |_| own.lock().unwrap().take().unwrap()
    });
    *own.lock().unwrap() = Some(child.clone());
    promise.complete(Ok(1));
    let error_text = text(child.try_get());
    assert_eq!(
        error_text,
        "a continuation returned the future that waits for it"
    );
}

#[test]
fn callbacks_of_a_child_run_on_its_parents_executor() {
    let executor = Arc::new(ManualExecutor::default());
    let (promise, future) = executor.future(Hint(7));
    let child = future.then(Ok::<_, RpcError>).then(|_| Ok(()));
    let grandchild = child.and_then(|()| RpcFuture::ready(Ok(3)));
    promise.complete(Ok(1));
    for _ in 0..3 {
        assert!(!grandchild.is_complete());
        let job = executor.jobs.lock().unwrap().pop().unwrap();
        job();
    }
    assert_eq!(grandchild.wait().unwrap(), 3);
    assert!(
        executor.driven.lock().unwrap().is_empty(),
        "a child was driven"
    );
}

#[test]
fn an_executor_that_drops_its_jobs_fails_the_futures_that_depend_on_them() {
    let executor = Arc::new(ManualExecutor::default());
    let (promise, future) = executor.future(Hint::NONE);
    let child = future.then(|_| Ok(()));
    promise.complete(Ok(1));
    executor.jobs.lock().unwrap().clear();
    assert_eq!(
        text(child.try_get()),
        "the promise of this future was dropped before it was completed"
    );
}

#[test]
fn a_waiting_thread_drives_first_with_hint_and_deadline() {
    let executor = Arc::new(ManualExecutor::default());
    let (promise, future) = executor.future(Hint(7));
    let deadline = Deadline::after(Instant::now(), LONG);
    *executor.on_drive.lock().unwrap() = Some(Box::new(move || {
        promise.complete(Ok(1));
    }));
    assert_eq!(
        future
            .wait_until(deadline, &Cancel::NEVER)
            .unwrap()
            .unwrap(),
        1
    );
    assert_eq!(
        *executor.driven.lock().unwrap(),
        [(Hint(7), deadline, true)]
    );
    assert_eq!(future.wait().unwrap(), 1);
    assert_eq!(
        executor.driven.lock().unwrap().len(),
        1,
        "a complete future was driven"
    );
}

#[test]
fn a_thread_whose_drive_had_no_result_continues_to_wait() {
    let executor = Arc::new(ManualExecutor::default());
    let (promise, future) = executor.future(Hint(7));
    assert!(future.wait_timeout(Duration::from_millis(1)).is_none());
    let waiting = thread::spawn({
        let future = future.clone();
        move || future.wait()
    });
    until(|| future.slot.waiting() == 1);
    promise.complete(Ok(2));
    assert_eq!(waiting.join().unwrap().unwrap(), 2);
    let driven = executor.driven.lock().unwrap();
    assert_eq!((driven[1].1, driven[1].2), (Deadline::NEVER, false));
}

#[test]
fn a_wait_of_zero_checks_once_without_waiting() {
    let executor = Arc::new(ManualExecutor::default());
    let (promise, future) = executor.future(Hint(7));
    assert!(future.wait_timeout(Duration::ZERO).is_none());
    assert!(executor.driven.lock().unwrap().is_empty(), "it was driven");
    promise.complete(Ok(1));
    assert_eq!(future.wait_timeout(Duration::ZERO).unwrap().unwrap(), 1);
}

#[test]
fn a_future_without_a_hint_is_not_driven() {
    let executor = Arc::new(ManualExecutor::default());
    let (_promise, future) = executor.future(Hint::NONE);
    assert!(future.wait_timeout(Duration::from_millis(1)).is_none());
    assert!(executor.driven.lock().unwrap().is_empty());
}

#[test]
fn a_poll_registers_the_waker_and_completion_wakes_it_once() {
    let (promise, mut future) = RpcFuture::new();
    let (count, waker) = counter();
    assert!(poll(&mut future, &waker).is_pending());
    assert!(poll(&mut future, &waker).is_pending());
    promise.complete(Ok(1));
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    for _ in 0..2 {
        assert!(matches!(poll(&mut future, &waker), Poll::Ready(Ok(1))));
    }
}

#[test]
fn only_the_latest_waker_of_each_handle_is_woken() {
    let (promise, mut first) = RpcFuture::new();
    let mut second = first.clone();
    let (old, old_waker) = counter();
    let (new, new_waker) = counter();
    let (other, other_waker) = counter();
    assert!(poll(&mut first, &old_waker).is_pending());
    assert!(poll(&mut second, &other_waker).is_pending());
    assert!(poll(&mut first, &new_waker).is_pending());
    // The future keeps no waker that was replaced.
    drop(old_waker);
    assert_eq!(Arc::strong_count(&old), 1);
    promise.complete(Ok(1));
    let woken = [&old, &new, &other].map(|counter| counter.0.load(Ordering::SeqCst));
    assert_eq!(woken, [0, 1, 1]);
}

#[test]
fn a_dropped_handle_removes_its_waker() {
    let (promise, future) = RpcFuture::<u32>::new();
    let (count, waker) = counter();
    let mut polled = future.clone();
    assert!(poll(&mut polled, &waker).is_pending());
    drop(waker);
    assert_eq!(Arc::strong_count(&count), 2);
    drop(polled);
    assert_eq!(Arc::strong_count(&count), 1);
    promise.complete(Ok(1));
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
}

#[test]
fn a_panicking_waker_affects_no_callback() {
    struct Panicking;
    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            panic!("a broken waker");
        }
    }
    let (promise, mut future) = RpcFuture::new();
    let (seen, note) = notes();
    future.on_complete(move |_| note(1));
    assert!(poll(&mut future, &Waker::from(Arc::new(Panicking))).is_pending());
    promise.complete(Ok(1));
    assert_eq!(*seen.lock().unwrap(), [1]);
}

#[test]
fn a_future_can_be_awaited_by_value_and_by_reference() {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (promise, future) = RpcFuture::new();
    let completing = thread::spawn(move || promise.complete(Ok(20)));
    let mut sum = std::pin::pin!(async {
        let first = (&future).await?;
        Ok::<u32, RpcError>(first + future.await?)
    });
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let total = loop {
        match sum.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(total) => break total.unwrap(),
            Poll::Pending => thread::park(),
        }
    };
    assert_eq!(total, 40);
    assert!(completing.join().unwrap());
}

#[test]
fn no_lock_is_held_while_wakers_and_callbacks_run() {
    struct Observer(RpcFuture<u32>, AtomicBool);
    impl Wake for Observer {
        fn wake(self: Arc<Self>) {
            self.1.store(self.0.wait().is_ok(), Ordering::SeqCst);
        }
    }
    let (promise, mut future) = RpcFuture::new();
    let looks = Arc::new(Observer(future.clone(), AtomicBool::new(false)));
    assert!(poll(&mut future, &Waker::from(Arc::clone(&looks))).is_pending());
    promise.complete(Ok(1));
    assert!(looks.1.load(Ordering::SeqCst));
}

#[test]
fn dropping_all_handles_neither_cancels_nor_leaks() {
    let (promise, future) = RpcFuture::new();
    let (sender, receiver) = mpsc::channel();
    future.on_complete(move |result| sender.send(*result.as_ref().unwrap()).unwrap());
    let child = future.then(|_| Ok(()));
    let slot = Arc::downgrade(&future.slot);
    drop(future);
    drop(child);
    promise.complete(Ok(1));
    assert_eq!(receiver.recv_timeout(LONG), Ok(1));
    // The sender was dropped with its callback.
    assert!(receiver.recv_timeout(LONG).is_err());
    drop(promise);
    assert!(slot.upgrade().is_none());
}

#[test]
fn a_dropped_promise_leaks_no_callback() {
    let (promise, future) = RpcFuture::<u32>::new();
    let slot = Arc::downgrade(&future.slot);
    future.on_complete(|_| {});
    drop(future);
    drop(promise);
    assert!(slot.upgrade().is_none());
}

#[test]
fn join_all_returns_all_values_in_order() {
    let (promises, futures): (Vec<_>, Vec<_>) = (0..5).map(|_| RpcFuture::new()).unzip();
    let all = join_all(futures);
    for n in [3, 0, 4, 1, 2] {
        assert!(!all.is_complete());
        promises[n].complete(Ok(n));
    }
    assert_eq!(all.wait().unwrap(), [0, 1, 2, 3, 4]);
    assert!(
        join_all(Vec::<RpcFuture<u32>>::new())
            .wait()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn the_first_error_completes_join_all() {
    let (promises, futures): (Vec<_>, Vec<_>) = (0..4).map(|_| RpcFuture::new()).unzip();
    let all = join_all(futures);
    promises[2].complete(Ok(2));
    promises[3].complete(Err(broken("third")));
    assert_eq!(text(all.try_get()), "third");
    promises[0].complete(Err(broken("zeroth")));
    promises[1].complete(Ok(1));
    assert_eq!(text(all.try_get()), "third");
}

#[test]
fn a_future_of_a_value_that_is_not_sync_is_sync() {
    let (promise, future) = RpcFuture::<Cell<u32>>::new();
    let waiting = thread::spawn(move || future.wait().unwrap().get());
    promise.complete(Ok(Cell::new(4)));
    assert_eq!(waiting.join().unwrap(), 4);
}

#[test]
fn debug_shows_the_state_and_not_the_value() {
    let (promise, future) = RpcFuture::<u32>::new();
    assert_eq!(
        format!("{future:?} {promise:?}"),
        "RpcFuture(pending) Promise(pending)"
    );
    promise.complete(Ok(1));
    assert_eq!(
        format!("{future:?} {promise:?}"),
        "RpcFuture(value) Promise(value)"
    );
}

#[test]
fn a_cancel_ends_the_wait_and_not_the_call() {
    let (promise, future) = RpcFuture::new();
    let (began, begins) = mpsc::channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let cancel = Cancel::with_check({
        let is_over = Arc::clone(&is_over);
        move || {
            let _ = began.send(());
            is_over.load(Ordering::SeqCst)
        }
    });
    thread::scope(|scope| {
        let waiting = scope.spawn(|| future.wait_until(Deadline::NEVER, &cancel));
        begins.recv().unwrap();
        is_over.store(true, Ordering::SeqCst);
        cancel.wake();
        assert!(waiting.join().unwrap().is_none());
    });
    assert_eq!(future.slot.waiting(), 0);
    promise.complete(Ok(1));
    let result = future.wait_until(Deadline::NEVER, &cancel);
    assert_eq!(result.unwrap().unwrap(), 1);
}
