//! User code that runs inside operations: serialization and destructors, including those that panic.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rref::{RRef, RRefError, RRefs};
use serde::{Serialize, Serializer};

use crate::common::{
    Alive, Counted, PATIENCE, group, group_that_has, shut_down, until, until_empty_within,
};
use crate::own_process::in_own_process;

/// Runs `run` on its own thread, so that a deadlock fails the test.
fn soon<R: Send + 'static>(what: &str, run: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(run()));
    is_done
        .recv_timeout(Duration::from_secs(20))
        .unwrap_or_else(|_| panic!("timed out: {what}"))
}

/// A tuple whose serialization panics after a reference was encoded.
#[derive(Serialize)]
struct RefThenPanic<'a>(&'a RRef<i64>, PanicsOnEncode);

struct PanicsOnEncode;

impl Serialize for PanicsOnEncode {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("not to be encoded")
    }
}

#[test]
fn an_encoding_that_panics_leaves_no_reference_behind() {
    let workers = group(2);
    let rrefs = &workers[0].rrefs;
    let own = rrefs.rref(1_i64).unwrap();
    let user: RRef<i64> = rrefs.call("worker1", "number").remote(1_i64).unwrap();
    for number in [&own, &user] {
        let called = catch_unwind(AssertUnwindSafe(|| {
            rrefs
                .call("worker1", "read")
                .run::<_, i64>(RefThenPanic(number, PanicsOnEncode))
        }));
        assert!(called.is_err());
    }
    drop((own, user));
    until_empty_within(PATIENCE / 3, &workers);
    shut_down(&workers);
}

/// A value whose destructor reads the reference tables.
struct TableReader(RRefs);

impl Drop for TableReader {
    fn drop(&mut self) {
        let _ = self.0.sizes();
    }
}

#[test]
fn a_value_refused_after_the_shutdown_is_dropped_under_no_lock() {
    // Not dropped: dropping an agent whose lock is still held would hang the test.
    let workers = ManuallyDrop::new(group(1));
    let rrefs = workers[0].rrefs.clone();
    rrefs.leave(Some(PATIENCE)).unwrap();
    soon("the destructor", move || {
        let refused = rrefs.rref_opaque(TableReader(rrefs.clone()));
        assert!(matches!(refused, Err(RRefError::Shutdown)), "{refused:?}");
    });
    ManuallyDrop::into_inner(workers)[0].agent.shutdown_now();
}

#[test]
fn a_value_of_the_wrong_type_is_dropped_under_no_lock() {
    // Not dropped: dropping an agent whose lock is still held would hang the test.
    let workers = ManuallyDrop::new(group_that_has(1, |functions| {
        functions
            .register_opaque("curious", |context, ()| {
                Ok(TableReader(context.rrefs().clone()))
            })
            .unwrap();
    }));
    let rrefs = workers[0].rrefs.clone();
    soon("the destructor", move || {
        let wrong: RRef<i64> = rrefs.call("worker0", "curious").remote(()).unwrap();
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
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
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
    let held: Vec<_> = (0..3).map(|_| rrefs.rref(PanicsOnDrop).unwrap()).collect();
    let counted = rrefs.rref_opaque(Counted::new(&alive)).unwrap();
    drop((held, counted));
    // Frees both values together.
    rrefs.leave(Some(PATIENCE)).unwrap();
    until("the other value is freed", || {
        alive.load(Ordering::SeqCst) == 0
    });
    workers[0].agent.shutdown_now();
}
