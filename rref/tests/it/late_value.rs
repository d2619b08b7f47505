//! References whose value is set after they were created.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rref::{RRef, RRefError, ValueState};

use crate::common::{
    Alive, Counted, List, PATIENCE, Worker, ask, end, group, group_that_has, make, shut_down, stop,
    until,
};

/// Worker 0 owns a reference without a value. Worker 1 holds a user of it, which `take` returns.
struct Shared<T> {
    workers: Vec<Worker>,
    own: RRef<T>,
    user: RRef<T>,
}

impl<T: Send + Sync + 'static> Shared<T> {
    fn new() -> Self {
        let taken: Arc<Mutex<Option<RRef<T>>>> = Arc::default();
        let workers = group_that_has(3, |functions| {
            let taken = Arc::clone(&taken);
            let take = move |_: &_, user| {
                *taken.lock().unwrap() = Some(user);
                Ok(())
            };
            functions.register("take", take).unwrap();
        });
        let own: RRef<T> = workers[0].rrefs.rref_without_value().unwrap();
        let given: Result<(), _> = ask(&workers[0], "worker1", "take", &own);
        given.unwrap();
        let user = taken.lock().unwrap().take().unwrap();
        Self { workers, own, user }
    }

    /// Waits until the given number of requests wait for the value.
    fn await_parked(&self, requests: usize) {
        until("the requests are parked", || {
            self.workers[0].rrefs.sizes().unwrap().parked_fetches == requests
        });
    }

    fn end(self) {
        drop((self.own, self.user));
        end(&self.workers);
    }
}

#[test]
fn setting_a_value_answers_all_waits() {
    let shared = Shared::<i64>::new();
    let Shared { workers, own, user } = &shared;
    let here = own.value_future().unwrap();
    let there = user.fetch(Some(PATIENCE)).unwrap();
    let third = workers[1]
        .rrefs
        .call("worker2", "read")
        .send::<_, i64>(user);
    shared.await_parked(3);
    assert!(!own.has_value().unwrap() && !here.is_complete() && !there.is_complete());
    own.set_value(7).unwrap();
    assert!(own.has_value().unwrap());
    assert_eq!(*here.wait().unwrap(), 7);
    assert_eq!(there.wait().unwrap(), 7);
    assert_eq!(third.unwrap().wait().unwrap(), 7);
    // A later fetch succeeds as well.
    assert_eq!(user.to_here(Some(PATIENCE)).unwrap(), 7);
    assert!(Arc::ptr_eq(
        &own.value_future().unwrap().wait().unwrap(),
        &own.local_value(Some(PATIENCE)).unwrap()
    ));
    shared.end();
}

#[test]
fn setting_an_error_fails_all_waits() {
    let shared = Shared::<i64>::new();
    let Shared { own, user, .. } = &shared;
    let here = own.value_future().unwrap();
    let there = user.fetch(Some(PATIENCE)).unwrap();
    shared.await_parked(2);
    assert!(own.set_error("no luck").unwrap());
    assert!(own.has_value().unwrap());
    for error in [
        here.wait().unwrap_err(),
        there.wait().unwrap_err(),
        user.to_here(Some(PATIENCE)).unwrap_err(),
        user.wait_ready(Some(Duration::ZERO)).unwrap_err(),
        own.wait_ready(Some(Duration::ZERO)).unwrap_err(),
        own.value_future().unwrap().wait().unwrap_err(),
    ] {
        assert!(
            matches!(&error, RRefError::Creation { message, .. } if &**message == "no luck"),
            "{error}"
        );
    }
    shared.end();
}

#[test]
fn a_value_is_set_once_and_on_its_owner() {
    let shared = Shared::<Counted>::new();
    let Shared { workers, own, user } = &shared;
    let alive = Alive::default();
    let elsewhere = [
        user.set_value_opaque(Counted::new(&alive)).unwrap_err(),
        user.set_error("no").unwrap_err(),
        user.has_value().unwrap_err(),
        user.value_future().unwrap_err(),
    ];
    for (error, operation) in
        elsewhere
            .iter()
            .zip(["setValue", "setError", "hasValue", "getFuture"])
    {
        let text = format!(
            "For {user}, can't call {operation}() on user WorkerInfo(id=1, name=worker1). Call it on owner \
             WorkerInfo(id=0, name=worker0)"
        );
        assert_eq!(error.to_string(), text);
    }
    assert_eq!(alive.load(Ordering::SeqCst), 0);

    own.set_value_opaque(Counted::new(&alive)).unwrap();
    let again = own.set_value_opaque(Counted::new(&alive)).unwrap_err();
    assert!(matches!(again, RRefError::AlreadySet { .. }), "{again}");
    assert!(!own.set_error("too late").unwrap());
    until("the second value is dropped", || {
        alive.load(Ordering::SeqCst) == 1
    });
    own.local_value(Some(PATIENCE)).unwrap();

    let made: RRef<i64> = make(&workers[0], "worker0", "number", 1_i64);
    made.wait_ready(Some(PATIENCE)).unwrap();
    assert!(matches!(
        made.set_value(2),
        Err(RRefError::AlreadySet { .. })
    ));
    drop(made);
    shared.end();
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn a_future_of_an_opaque_value_needs_no_encoding_and_methods_wait_for_the_value() {
    let shared = Shared::<List>::new();
    let Shared { own, user, .. } = &shared;
    let future = own.value_future().unwrap();
    let sum = user.call("sum").send::<_, i64>(());
    shared.await_parked(2);
    own.set_value_opaque(Mutex::new(vec![1, 2])).unwrap();
    assert_eq!(sum.unwrap().wait().unwrap(), 3);
    assert_eq!(*future.wait().unwrap().lock().unwrap(), [1, 2]);
    let error = user.to_here(Some(PATIENCE)).unwrap_err();
    assert!(matches!(error, RRefError::Opaque { .. }), "{error}");
    shared.end();
}

#[test]
fn a_timeout_of_zero_checks_once_for_the_value() {
    let shared = Shared::<i64>::new();
    let Shared { own, user, .. } = &shared;
    let is_late =
        |error: &RRefError| matches!(error, RRefError::TimedOut { after, .. } if after.is_zero());
    let zero = Some(Duration::ZERO);
    for rref in [own, user] {
        for error in [
            rref.wait_ready(zero).unwrap_err(),
            rref.to_here(zero).unwrap_err(),
            rref.fetch(zero).unwrap().wait().unwrap_err(),
        ] {
            assert!(is_late(&error), "{error}");
        }
    }
    let error = own.local_value(zero).unwrap_err();
    assert!(is_late(&error), "{error}");
    assert_eq!(shared.workers[0].rrefs.sizes().unwrap().parked_fetches, 0);
    own.set_value(1).unwrap();
    for rref in [own, user] {
        rref.wait_ready(zero).unwrap();
        assert_eq!(rref.to_here(zero).unwrap(), 1);
        assert_eq!(rref.fetch(zero).unwrap().wait().unwrap(), 1);
    }
    assert_eq!(*own.local_value(zero).unwrap(), 1);
    shared.end();
}

#[test]
fn a_value_that_was_never_set_is_in_the_leak_report() {
    let shared = Shared::<i64>::new();
    let Shared { workers, own, user } = shared;
    let future = own.value_future().unwrap();
    let reports = shut_down(&workers);
    let [held] = &reports[0].values[..] else {
        panic!("{}", reports[0]);
    };
    assert_eq!(
        (held.state, held.handles, held.held_by.len()),
        (ValueState::Promised, 1, 1)
    );
    assert!(
        reports[0].to_string().contains("`i64`, promised"),
        "{}",
        reports[0]
    );
    let error = future.wait().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("shut down before it set the value"),
        "{error}"
    );
    assert!(matches!(own.set_value(1), Err(RRefError::Shutdown)));
    assert!(matches!(own.set_error("late"), Err(RRefError::Shutdown)));
    assert!(matches!(own.has_value(), Err(RRefError::Shutdown)));
    assert!(matches!(
        user.to_here(Some(PATIENCE)),
        Err(RRefError::Shutdown)
    ));
}

#[test]
fn an_owner_that_leaves_fails_the_wait_for_an_unset_value() {
    let shared = Shared::<i64>::new();
    let waiting = shared.user.fetch(None).unwrap();
    shared.await_parked(1);
    let Shared { workers, own, user } = shared;
    thread::scope(|scope| {
        let leaving = scope.spawn(|| workers[0].rrefs.leave(Some(PATIENCE)));
        let error = waiting.wait().unwrap_err();
        assert!(
            error
                .to_string()
                .contains("shut down before it set the value"),
            "{error}"
        );
        drop(user);
        leaving.join().unwrap().unwrap();
    });
    drop(own);
    stop(&workers);
}

#[test]
fn a_future_whose_reference_is_dropped_before_the_value_is_set_fails() {
    let workers = group(1);
    let own: RRef<i64> = workers[0].rrefs.rref_without_value().unwrap();
    let future = own.value_future().unwrap();
    drop(own);
    let error = future.wait().unwrap_err();
    assert!(matches!(error, RRefError::Deleted { .. }), "{error}");
    end(&workers);
}
