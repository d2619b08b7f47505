//! Workers whose programs are idle: due work must still happen.
//!
//! These tests do not read the tables, because a read would trigger the due work.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rpc_agent::{RetryOptions, RpcError};
use rref::{RRef, RRefError};

use crate::common::{
    Alive, Counted, Gate, PATIENCE, group_of, make, quick, register_counted, stop, until,
};
use crate::fault_plan::FaultPlan;

#[test]
fn a_reference_in_an_undelivered_answer_is_freed() {
    let alive = Alive::default();
    let gate = Gate::new();
    let options = quick().with_probe_after(Duration::from_millis(50));
    let workers = group_of(
        2,
        &options,
        |_, options| options,
        |_, functions| {
            let (alive, gate) = (Arc::clone(&alive), Arc::clone(&gate));
            functions
                .register("give", move |context, ()| {
                    let given = context.rrefs().rref_opaque(Counted::new(&alive))?;
                    gate.pass();
                    Ok(given)
                })
                .unwrap();
        },
    );
    let soon = Duration::from_millis(20);
    let error = workers[0]
        .rrefs
        .call("worker1", "give")
        .with_timeout(soon)
        .run::<_, RRef<Counted>>(())
        .unwrap_err();
    assert!(
        matches!(error, RRefError::Rpc(RpcError::Timeout { .. })),
        "{error}"
    );
    until("the function runs", || gate.arrived() == 1);
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    gate.open();
    until("the value is freed", || alive.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_deletion_whose_retries_are_exhausted_is_resent() {
    let alive = Alive::default();
    let once = RetryOptions::default()
        .with_max_retries(1)
        .with_retry_duration(Duration::from_millis(1));
    let options = quick()
        .with_retries(once)
        .with_resend_after(Duration::from_millis(20));
    let plan = FaultPlan::new(1).fail("rref/control", 7);
    let workers = group_of(2, &options, plan.of_rank(0), |_, functions| {
        register_counted(functions, &alive);
    });
    let made: RRef<Counted> = make(&workers[0], "worker1", "counted", ());
    made.wait_ready(Some(PATIENCE)).unwrap();
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    drop(made);
    until("the value is freed", || alive.load(Ordering::SeqCst) == 0);
    assert_eq!(plan.injected().total(), 7);
}

#[test]
fn values_held_by_a_worker_that_left_without_a_shutdown_are_freed() {
    let alive = Alive::default();
    let held: Arc<Mutex<Vec<RRef<Counted>>>> = Arc::default();
    let workers = group_of(
        2,
        &quick(),
        |_, options| options,
        |_, functions| {
            let held = Arc::clone(&held);
            functions
                .register("hold", move |_, counted: RRef<Counted>| {
                    held.lock().unwrap().push(counted);
                    Ok(())
                })
                .unwrap();
        },
    );
    let counted = workers[0].rrefs.rref_opaque(Counted::new(&alive)).unwrap();
    let rrefs = &workers[0].rrefs;
    rrefs
        .call("worker1", "hold")
        .run::<_, ()>(&counted)
        .unwrap();
    drop(counted);
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    workers[1].agent.shutdown_now();
    until("the value is freed", || alive.load(Ordering::SeqCst) == 0);
    let left = held.lock().unwrap()[0].wait_confirmed(None);
    assert!(matches!(left, Err(RRefError::Shutdown)), "{left:?}");
}

#[test]
fn an_unused_reference_among_the_arguments_of_a_creation_is_released() {
    let workers = group_of(
        2,
        &quick().with_probe_after(Duration::from_millis(100)),
        |_, options| options,
        |_, _| {},
    );
    // The worker still serves calls, but accepts no references.
    workers[1].rrefs.leave(Some(PATIENCE)).unwrap();
    let alive = Alive::default();
    let own = workers[0].rrefs.rref_opaque(Counted::new(&alive)).unwrap();
    let made: RRef<i64> = make(&workers[0], "worker1", "read", &own);
    made.wait_ready(Some(PATIENCE)).unwrap_err();
    drop((own, made));
    let began = Instant::now();
    until("the value is freed", || {
        assert!(
            began.elapsed() < PATIENCE / 3,
            "{:?}",
            workers[0].rrefs.sizes().unwrap()
        );
        alive.load(Ordering::SeqCst) == 0
    });
    stop(&workers);
}
