//! `async` functions: futures that are woken from other threads, that panic, and that end before they are ready.

use std::future::{self, Future};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use rpc_agent::{HandlerError, RpcError};
use rref::{CallContext, Functions, RRef, RRefError};

use crate::common::{
    Alive, Counted, PATIENCE, Worker, end, group_with, make, register_counted, shut_down, until,
};

/// A number that arrives later, and how often its future was polled.
#[derive(Clone, Default)]
struct Later(Arc<Mutex<LaterState>>);

#[derive(Default)]
struct LaterState {
    number: Option<i64>,
    waker: Option<Waker>,
    polls: usize,
}

impl Later {
    /// Wakes the future from this thread.
    fn set(&self, number: i64) {
        let mut state = self.0.lock().unwrap();
        state.number = Some(number);
        let waker = state.waker.take();
        drop(state);
        waker.expect("it was polled").wake();
    }

    fn waker(&self) -> Option<Waker> {
        self.0.lock().unwrap().waker.clone()
    }

    fn polls(&self) -> usize {
        self.0.lock().unwrap().polls
    }
}

impl Future for Later {
    type Output = i64;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<i64> {
        let mut state = self.0.lock().unwrap();
        state.polls += 1;
        state.waker = Some(context.waker().clone());
        state.number.map_or(Poll::Pending, Poll::Ready)
    }
}

fn group(world_size: u32, fill: impl Fn(&mut Functions)) -> Vec<Worker> {
    group_with(
        world_size,
        |_, options| options,
        |_, functions| fill(functions),
    )
}

#[test]
fn a_function_awaits_the_values_of_its_arguments_and_calls_other_workers() {
    async fn sum(context: CallContext, refs: Vec<RRef<i64>>) -> Result<i64, HandlerError> {
        let mut sum = 0;
        for number in &refs {
            sum += number.fetch(PATIENCE)?.await?;
        }
        let call = context.rrefs().call(context.caller().id, "number");
        Ok(call.send::<_, i64>(sum)?.await?)
    }
    let workers = group(3, |functions| {
        functions.register_async("sum of", sum).unwrap();
    });
    let rrefs = &workers[0].rrefs;
    let refs = ["worker0", "worker1", "worker2", "worker2"].map(|worker| {
        let number: RRef<i64> = rrefs.call(worker, "number").remote(10_i64).unwrap();
        number
    });
    let refs = Vec::from(refs);
    for worker in ["worker0", "worker1"] {
        let call = rrefs.call(worker, "sum of").with_timeout(PATIENCE);
        assert_eq!(call.run::<_, i64>(&refs).unwrap(), 40);
        // The result of a creation.
        let made: RRef<i64> = rrefs.call(worker, "sum of").remote(&refs).unwrap();
        assert_eq!(made.to_here(PATIENCE).unwrap(), 40);
    }
    drop(refs);
    end(&workers);
}

/// More calls wait than the worker has threads, and other functions run in the meantime.
#[test]
fn a_pending_function_holds_no_thread_and_continues_when_another_thread_wakes_it() {
    const CALLS: usize = 50;
    let pending: Arc<Mutex<Vec<Later>>> = Arc::default();
    let workers = group_with(
        2,
        |_, options| options.with_handler_threads(2).with_threads_max(4),
        |_, functions| {
            let pending = Arc::clone(&pending);
            let wait = move |_: CallContext, number: i64| {
                let later = Later::default();
                pending.lock().unwrap().push(later.clone());
                async move { Ok(later.await + number) }
            };
            functions.register_async("wait", wait).unwrap();
        },
    );
    let rrefs = &workers[0].rrefs;
    let answers: Vec<_> = (0..CALLS)
        .map(|_| {
            let call = rrefs.call("worker1", "wait").with_timeout(PATIENCE);
            call.send::<_, i64>(1_i64).unwrap()
        })
        .collect();
    let created: RRef<i64> = rrefs.call("worker1", "wait").remote(1_i64).unwrap();
    until("all calls wait", || {
        pending.lock().unwrap().len() == CALLS + 1
    });
    let call = rrefs.call("worker1", "number").with_timeout(PATIENCE);
    assert_eq!(call.run::<_, i64>(3_i64).unwrap(), 3);
    assert!(answers.iter().all(|answer| !answer.is_complete()));
    let to_wake = pending.lock().unwrap().clone();
    until("each is polled", || {
        to_wake.iter().all(|one| one.polls() == 1)
    });
    // A wake-up without the result, and several at a time, are only polls.
    for one in &to_wake {
        let waker = one.waker().unwrap();
        (0..10).for_each(|_| waker.wake_by_ref());
    }
    until("each is polled again", || {
        to_wake.iter().all(|one| one.polls() >= 2)
    });
    thread::spawn(move || to_wake.iter().for_each(|one| one.set(41)))
        .join()
        .unwrap();
    for answer in answers {
        assert_eq!(answer.wait().unwrap(), 42);
    }
    assert_eq!(created.to_here(PATIENCE).unwrap(), 42);
    drop(created);
    end(&workers);
}

/// A future that wakes itself while it is polled is polled again, on another turn of the pool.
#[test]
fn a_future_that_wakes_itself_is_polled_until_it_is_ready() {
    let workers = group(2, |functions| {
        let count = |_: CallContext, polls: usize| {
            let mut left = polls;
            future::poll_fn(move |context| {
                left -= 1;
                if left == 0 {
                    return Poll::Ready(Ok(polls));
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
        };
        functions.register_async("count", count).unwrap();
    });
    let call = workers[0].rrefs.call("worker1", "count");
    let polls: usize = call.with_timeout(PATIENCE).run(1000_usize).unwrap();
    assert_eq!(polls, 1000);
    shut_down(&workers);
}

#[test]
fn a_method_shares_its_value_while_it_awaits() {
    let alive = Alive::default();
    let pending: Arc<Mutex<Vec<Later>>> = Arc::default();
    let workers = group(2, |functions| {
        register_counted(functions, &alive);
        let pending = Arc::clone(&pending);
        let wait = move |_: CallContext, on: Arc<Counted>, number: i64| {
            let later = Later::default();
            pending.lock().unwrap().push(later.clone());
            async move {
                let number = number + later.await;
                drop(on);
                Ok(number)
            }
        };
        functions.register_async_method("wait", wait).unwrap();
    });
    let rrefs = &workers[0].rrefs;
    let counted: RRef<Counted> = rrefs.call("worker1", "counted").remote(()).unwrap();
    let answer = counted.call("wait").with_timeout(PATIENCE);
    let answer = answer.send::<_, i64>(1_i64).unwrap();
    let created: RRef<i64> = counted.call("wait").remote(2_i64).unwrap();
    until("both wait", || pending.lock().unwrap().len() == 2);
    drop(counted);
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    for one in pending.lock().unwrap().iter() {
        until("it is polled", || one.polls() > 0);
        one.set(10);
    }
    assert_eq!(answer.wait().unwrap(), 11);
    assert_eq!(created.to_here(PATIENCE).unwrap(), 12);
    until("the value is freed", || alive.load(Ordering::SeqCst) == 0);
    // The method of another type.
    let number: RRef<i64> = rrefs.call("worker1", "number").remote(1_i64).unwrap();
    let error = number.call("wait").run::<_, i64>(1_i64).unwrap_err();
    assert!(error.to_string().contains("the method is for a"), "{error}");
    drop((number, created));
    end(&workers);
}

/// Before its first await, after it, and where no future is made at all.
#[test]
fn a_panic_of_a_future_is_the_error_of_its_call() {
    let pending: Arc<Mutex<Vec<Later>>> = Arc::default();
    let workers = group(2, |functions| {
        let later = Arc::clone(&pending);
        let panics = move |_: CallContext, when: u8| {
            assert!(when > 0, "panic {when}");
            let later = Arc::clone(&later);
            async move {
                assert!(when > 1, "panic {when}");
                let one = Later::default();
                later.lock().unwrap().push(one.clone());
                let number = one.await;
                assert!(number > 0, "panic {when}");
                Ok(number)
            }
        };
        functions.register_async("panics", panics).unwrap();
    });
    let rrefs = &workers[0].rrefs;
    for when in 0..3_u8 {
        let call = rrefs.call("worker1", "panics").with_timeout(PATIENCE);
        let answer = call.send::<_, i64>(when).unwrap();
        let created: RRef<i64> = rrefs.call("worker1", "panics").remote(when).unwrap();
        if when == 2 {
            until("both are polled", || {
                let pending = pending.lock().unwrap();
                pending.len() == 2 && pending.iter().all(|one| one.polls() > 0)
            });
            pending.lock().unwrap().iter().for_each(|one| one.set(0));
        }
        let text = format!("function `panics` panicked: panic {when}");
        let error = answer.wait().unwrap_err();
        assert!(
            matches!(&error, RRefError::Function { message, .. } if **message == *text),
            "{error}"
        );
        let error = created.to_here(PATIENCE).unwrap_err();
        assert!(error.to_string().contains(&text), "{error}");
    }
    end(&workers);
}

/// A destructor reports that the future is dropped.
fn register_never(functions: &mut Functions, alive: &Alive, wakers: &Arc<Mutex<Vec<Waker>>>) {
    let (alive, wakers) = (Arc::clone(alive), Arc::clone(wakers));
    let never = move |_: CallContext, refs: Vec<RRef<i64>>| {
        let counted = Counted::new(&alive);
        let wakers = Arc::clone(&wakers);
        future::poll_fn(move |context| {
            let _held = (&counted, &refs);
            wakers.lock().unwrap().push(context.waker().clone());
            Poll::<Result<i64, HandlerError>>::Pending
        })
    };
    functions.register_async("never", never).unwrap();
}

#[test]
fn a_future_is_dropped_when_the_deadline_of_its_call_passes() {
    let (alive, wakers) = (Alive::default(), Arc::default());
    let workers = group(2, |functions| register_never(functions, &alive, &wakers));
    let rrefs = &workers[0].rrefs;
    let number: RRef<i64> = rrefs.call("worker1", "number").remote(1_i64).unwrap();
    // The second deadline is before the first one.
    let timeouts = [700, 300, 500].map(Duration::from_millis);
    let answers = timeouts.map(|timeout| {
        let call = rrefs.call("worker1", "never").with_timeout(timeout);
        call.send::<_, i64>(vec![number.clone()]).unwrap()
    });
    for answer in answers {
        let error = answer.wait().unwrap_err();
        assert!(
            matches!(&error, RRefError::Rpc(RpcError::Timeout { .. }))
                || error.to_string().contains("deadline passed"),
            "{error:?}"
        );
    }
    until("the futures are dropped", || {
        alive.load(Ordering::SeqCst) == 0
    });
    // Late wake-ups have no effect.
    let left = std::mem::take(&mut *wakers.lock().unwrap());
    assert!(!left.is_empty());
    left.into_iter().for_each(Waker::wake);
    drop(number);
    end(&workers);
}

#[test]
fn a_future_is_dropped_when_its_agent_ends() {
    let (alive, wakers) = (Alive::default(), Arc::default());
    let workers = group(2, |functions| register_never(functions, &alive, &wakers));
    let rrefs = &workers[0].rrefs;
    let call = rrefs.call("worker1", "never").with_timeout(None);
    let answer = call.send::<_, i64>(Vec::<RRef<i64>>::new()).unwrap();
    let created: RRef<i64> = rrefs
        .call("worker1", "never")
        .remote(Vec::<RRef<i64>>::new())
        .unwrap();
    until("both wait", || alive.load(Ordering::SeqCst) == 2);
    workers[1].agent.shutdown_now();
    assert_eq!(alive.load(Ordering::SeqCst), 0, "they are dropped by then");
    assert!(answer.wait().is_err());
    assert!(created.to_here(PATIENCE).is_err());
    // A waker may be called at any time later.
    let left = std::mem::take(&mut *wakers.lock().unwrap());
    left.into_iter().for_each(Waker::wake);
    workers[0].agent.shutdown_now();
}

/// A coordinated end waits for calls that are pending, as for functions that run.
#[test]
fn a_shutdown_waits_for_pending_functions() {
    let laters = [Later::default(), Later::default()];
    let ended = Arc::new(AtomicUsize::new(0));
    let workers = group(2, |functions| {
        let (laters, ended) = (laters.clone(), Arc::clone(&ended));
        let wait = move |_: CallContext, index: u8| {
            let (later, ended) = (laters[usize::from(index)].clone(), Arc::clone(&ended));
            async move {
                let number = later.await;
                ended.fetch_add(1, Ordering::SeqCst);
                Ok(number)
            }
        };
        functions.register_async("wait", wait).unwrap();
    });
    let call = workers[0].rrefs.call("worker1", "wait");
    let answer = call.with_timeout(PATIENCE).send::<_, i64>(0_u8).unwrap();
    // The call of a creation is answered before its function has run.
    let created: RRef<i64> = make(&workers[0], "worker1", "wait", 1_u8);
    drop(created);
    until("both are polled", || {
        laters.iter().all(|one| one.polls() > 0)
    });
    laters[0].set(5);
    assert_eq!(answer.wait().unwrap(), 5);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Long after the shutdown has begun, on an idle machine.
            thread::sleep(Duration::from_millis(300));
            laters[1].set(5);
        });
        shut_down(&workers);
    });
    assert_eq!(ended.load(Ordering::SeqCst), 2);
}
