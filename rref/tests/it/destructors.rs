//! Code of the program that runs in the midst of it all: encodings and destructors, those that panic too.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rref::{RRef, RRefError, RRefs};
use serde::{Serialize, Serializer};

use crate::common::{Alive, Counted, PATIENCE, group, group_with, shut_down, until};
use crate::own_process::in_own_process;

/// Has it done on a thread of its own, so that a test that would hang fails.
fn soon<R: Send + 'static>(what: &str, run: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(run()));
    is_done
        .recv_timeout(Duration::from_secs(20))
        .unwrap_or_else(|_| panic!("it hangs: {what}"))
}

/// Its encoding panics behind a reference.
#[derive(Serialize)]
struct Explosive<'a>(&'a RRef<i64>, Bomb);

struct Bomb;

impl Serialize for Bomb {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("not to be encoded")
    }
}

#[test]
fn an_encoding_that_panics_leaves_no_reference_behind() {
    let workers = group(2);
    let rrefs = &workers[0].rrefs;
    let own = rrefs.rref(1_i64).unwrap();
    let user: RRef<i64> = rrefs.remote("worker1", "number", 1_i64).unwrap();
    for number in [&own, &user] {
        let called = catch_unwind(AssertUnwindSafe(|| {
            rrefs.call::<_, i64>("worker1", "read", Explosive(number, Bomb))
        }));
        assert!(called.is_err());
    }
    drop((own, user));
    let began = Instant::now();
    until("the tables are empty", || {
        assert!(
            began.elapsed() < PATIENCE / 3,
            "{}",
            rrefs.snapshot().unwrap()
        );
        workers.iter().all(crate::common::is_empty)
    });
    shut_down(&workers);
}

/// A value that looks at the tables when it goes.
struct Curious(RRefs);

impl Drop for Curious {
    fn drop(&mut self) {
        let _ = self.0.sizes();
    }
}

#[test]
fn a_value_refused_after_the_shutdown_is_dropped_under_no_lock() {
    // An agent whose lock is held forever would not end.
    let workers = ManuallyDrop::new(group(1));
    let rrefs = workers[0].rrefs.clone();
    rrefs.leave(Some(PATIENCE)).unwrap();
    soon("the destructor", move || {
        let refused = rrefs.rref_opaque(Curious(rrefs.clone()));
        assert!(matches!(refused, Err(RRefError::Shutdown)), "{refused:?}");
    });
    ManuallyDrop::into_inner(workers)[0].agent.shutdown_now();
}

#[test]
fn a_value_of_the_wrong_type_is_dropped_under_no_lock() {
    // An agent whose lock is held forever would not end.
    let workers = ManuallyDrop::new(group_with(
        1,
        |_, options| options,
        |_, functions| {
            functions
                .register_opaque("curious", |context, ()| {
                    Ok(Curious(context.rrefs().clone()))
                })
                .unwrap();
        },
    ));
    let rrefs = workers[0].rrefs.clone();
    soon("the destructor", move || {
        let wrong: RRef<i64> = rrefs.remote("worker0", "curious", ()).unwrap();
        let error = wrong.wait_ready(Some(PATIENCE)).unwrap_err();
        assert!(
            error.to_string().contains("the function returns"),
            "{error}"
        );
    });
    shut_down(&ManuallyDrop::into_inner(workers));
}

/// A value whose destructor panics.
#[derive(Serialize)]
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic!("not to be dropped")
    }
}

#[test]
fn a_panicking_destructor_affects_no_other_value() {
    let name = "destructors::a_panicking_destructor_affects_no_other_value";
    if !in_own_process(name) {
        return;
    }
    let workers = group(1);
    let rrefs = &workers[0].rrefs;
    let alive = Alive::default();
    let held: Vec<_> = (0..3).map(|_| rrefs.rref(Grenade).unwrap()).collect();
    let counted = rrefs.rref_opaque(Counted::new(&alive)).unwrap();
    drop((held, counted));
    // At one go.
    rrefs.leave(Some(PATIENCE)).unwrap();
    until("the other is freed", || alive.load(Ordering::SeqCst) == 0);
    workers[0].agent.shutdown_now();
}
