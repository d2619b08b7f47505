//! Workers that are replaced by another process, in a dynamic group.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{HashStore, Store};
use rpc_agent::{Agent, AgentOptions, NotSent, Registry, RetryOptions, RpcError};
use rref::{RRef, RRefs};

use crate::common::{PATIENCE, functions, options, quick, until};

fn member(
    rank: u32,
    store: &Arc<dyn Store>,
    adjust: impl FnOnce(AgentOptions) -> AgentOptions,
) -> (Agent, RRefs) {
    member_with(Registry::new(), rank, store, adjust)
}

fn member_with(
    mut registry: Registry,
    rank: u32,
    store: &Arc<dyn Store>,
    adjust: impl FnOnce(AgentOptions) -> AgentOptions,
) -> (Agent, RRefs) {
    let rrefs = RRefs::register_with(&mut registry, functions(|_| {}), quick()).unwrap();
    let options = adjust(options(&format!("worker{rank}"), rank));
    let agent = Agent::start(options, registry, store.clone_store().unwrap()).unwrap();
    rrefs.attach(agent.handle()).unwrap();
    (agent, rrefs)
}

/// The other members refuse it, and they live.
#[test]
fn a_replaced_process_that_lives_on_releases_no_references_of_living_workers() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let (agent, rrefs) = member(0, &store, |options| options);
    let (old, old_rrefs) = member(1, &store, |options| {
        options.with_handler_threads(1).with_threads_max(1)
    });
    // The only thread runs callbacks in the order of their registration, so this one runs after the
    // callback of the references.
    let is_notified = Arc::new(AtomicBool::new(false));
    {
        let is_notified = Arc::clone(&is_notified);
        old.handle()
            .on_peer_lost(move |_, _| is_notified.store(true, Ordering::SeqCst));
    }
    let held: RRef<i64> = rrefs.call("worker1", "number").remote(1_i64).unwrap();
    held.wait_ready(Some(PATIENCE)).unwrap();

    let (new, _new_rrefs) = member(1, &store, |options| options);
    until("the old process has lost its connection and asked", || {
        is_notified.load(Ordering::SeqCst) && old.handle().metrics().calls_in_flight == 0
    });
    // Everything that follows from the answer runs before this call.
    let refused = old
        .handle()
        .call("worker0", "nothing")
        .send_bytes("")
        .wait();
    assert!(
        matches!(
            &refused,
            Err(RpcError::NotSent {
                cause: NotSent::Excluded(_),
                ..
            })
        ),
        "{refused:?}"
    );
    assert_eq!(old_rrefs.sizes().unwrap().owners, 1);
    old.shutdown_now();
    new.shutdown_now();
    agent.shutdown_now();
    drop(held);
}

#[test]
fn a_creation_on_a_worker_that_was_just_replaced_is_usable_or_freed() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let (agent, rrefs) = member(0, &store, |options| options);
    let mut leaked = Vec::new();
    let mut succeeded = 0;
    for round in 0..20 {
        let (other, other_rrefs) = member(1, &store, |options| options);
        let made: Result<RRef<i64>, _> = rrefs.call("worker1", "number").remote(7_i64);
        if let Ok(made) = made {
            let read = made.to_here(Some(PATIENCE));
            succeeded += u32::from(read.is_ok());
            drop(made);
            let began = Instant::now();
            while other_rrefs.sizes().unwrap().owners > 0 {
                if began.elapsed() > PATIENCE / 6 {
                    leaked.push((round, read.err().map(|e| e.to_string())));
                    break;
                }
                thread::yield_now();
            }
        }
        other.shutdown_now();
    }
    agent.shutdown_now();
    assert!(leaked.is_empty(), "{leaked:?}");
    assert!(succeeded > 0, "no creation succeeded");
}

#[test]
fn a_retried_call_of_the_program_reaches_the_next_process_of_a_departed_worker() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let (agent, rrefs) = member(0, &store, |options| {
        options.with_handler_threads(1).with_threads_max(1)
    });
    // The only thread runs callbacks in the order of their registration, so this one runs after the
    // callback of the references.
    let is_notified = Arc::new(AtomicBool::new(false));
    {
        let is_notified = Arc::clone(&is_notified);
        agent
            .handle()
            .on_peer_left(move |_, _| is_notified.store(true, Ordering::SeqCst));
    }
    let held = Arc::new(Mutex::new(Vec::new()));
    let mut silent = Registry::new();
    {
        let held = Arc::clone(&held);
        silent
            .register_deferred("ask", move |_, _, reply| held.lock().unwrap().push(reply))
            .unwrap();
    }
    let (old, _old_rrefs) = member_with(silent, 1, &store, |options| options);
    let made: RRef<i64> = rrefs.call("worker1", "number").remote(1_i64).unwrap();
    made.wait_ready(Some(PATIENCE)).unwrap();
    let retries = RetryOptions::default()
        .with_max_retries(10_000)
        .with_retry_duration(Duration::from_millis(20))
        .with_backoff(1.0);
    let call = agent
        .handle()
        .call("worker1", "ask")
        .with_retries(&retries)
        .send_bytes(Vec::new());
    until("the first attempt has arrived", || {
        !held.lock().unwrap().is_empty()
    });
    old.shutdown_now();
    until(
        "the references have handled the departure of the first process",
        || is_notified.load(Ordering::SeqCst),
    );
    let mut answering = Registry::new();
    answering
        .register("ask", |_, _| Ok(b"from the next process".to_vec()))
        .unwrap();
    let (new, _new_rrefs) = member_with(answering, 1, &store, |options| options);
    let answer = call.wait_timeout(PATIENCE).expect("the call completes");
    assert_eq!(answer.unwrap(), "from the next process");
    drop(made);
    new.shutdown_now();
    agent.shutdown_now();
}
