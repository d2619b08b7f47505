//! Several agents in one process, concurrent and consecutive: they share nothing, and an ended agent is freed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;

use c10d_store::{HashStore, Store};
use rpc_agent::RpcError;
use rref::{RRef, RRefError, RRefs};
use serde::{Deserialize, Serialize};

use crate::common::{
    Alive, Counted, Gate, List, PATIENCE, Worker, ask, end, functions, group, group_that_has,
    is_empty, make, options, quick, register_counted, remote_number, shut_down, start, until,
    until_empty,
};

/// Asserts that every operation on the references fails after the end of their agent.
#[track_caller]
fn assert_ended(numbers: &[&RRef<i64>], rrefs: &RRefs) {
    for number in numbers {
        let name = number.to_string();
        let asked = [
            ("to_here", number.to_here(Some(PATIENCE)).map(drop)),
            (
                "fetch",
                number
                    .fetch(Some(PATIENCE))
                    .and_then(|fetch| fetch.wait())
                    .map(drop),
            ),
            ("wait_ready", number.wait_ready(Some(PATIENCE))),
            (
                "rpc_sync",
                number.call("double").run::<_, i64>(()).map(drop),
            ),
            (
                "remote",
                number.call("double").remote::<_, i64>(()).map(drop),
            ),
            (
                "call",
                rrefs
                    .call("worker0", "read")
                    .run::<_, i64>(number)
                    .map(drop),
            ),
        ];
        for (what, result) in asked {
            assert!(
                matches!(result, Err(RRefError::Shutdown)),
                "{what} of {name}: {result:?}"
            );
        }
        if number.is_owner() {
            let value = number.local_value(Some(PATIENCE));
            assert!(
                matches!(value, Err(RRefError::Shutdown)),
                "{name}: {value:?}"
            );
        } else {
            let confirmed = number.wait_confirmed(Some(PATIENCE));
            assert!(
                matches!(confirmed, Err(RRefError::Shutdown)),
                "{name}: {confirmed:?}"
            );
            assert!(!number.is_confirmed());
        }
    }
    assert!(matches!(rrefs.rref(1_i64), Err(RRefError::Shutdown)));
}

/// Creates references of all kinds, uses them, and drops them.
#[track_caller]
fn use_references(workers: &[Worker]) {
    let rrefs = &workers[0].rrefs;
    let list: RRef<List> = rrefs.call("worker1", "list").remote(vec![1_i64]).unwrap();
    assert_eq!(list.call("push").run::<_, usize>(2_i64).unwrap(), 2);
    let own = rrefs.rref(7_i64).unwrap();
    assert_eq!(
        rrefs.call("worker1", "read").run::<_, i64>(&own).unwrap(),
        7
    );
    let back: RRef<i64> = rrefs.call("worker1", "echo").run(&own).unwrap();
    assert_eq!(back, own);
    assert_eq!(list.call("sum").run::<_, i64>(()).unwrap(), 3);
}

#[test]
fn groups_with_the_same_names_in_one_process_are_independent() {
    let [alive_a, alive_b] = [Alive::default(), Alive::default()];
    let group_of =
        |alive: &Alive| group_that_has(2, |functions| register_counted(functions, alive));
    let (a, b) = (group_of(&alive_a), group_of(&alive_b));
    let in_a: RRef<Counted> = make(&a[0], "worker1", "counted", ());
    let in_b: RRef<Counted> = make(&b[0], "worker1", "counted", ());
    for made in [&in_a, &in_b] {
        made.wait_ready(Some(PATIENCE)).unwrap();
    }
    let count = |alive: &Alive| alive.load(Ordering::SeqCst);
    assert_eq!((count(&alive_a), count(&alive_b)), (1, 1));
    assert_eq!(
        in_a.to_string(),
        in_b.to_string(),
        "both are the first references of their groups"
    );
    assert_ne!(in_a, in_b);

    // Each group refuses the references of the other group, in both directions, and the attempts leave no entry.
    for (foreign, worker) in [
        (&in_a, &b[0]),
        (&in_a, &b[1]),
        (&in_b, &a[0]),
        (&in_b, &a[1]),
    ] {
        for to in ["worker0", "worker1"] {
            let rrefs = &worker.rrefs;
            let called = rrefs.call(to, "echo").run::<_, ()>(foreign);
            assert!(
                matches!(called, Err(RRefError::Foreign { .. })),
                "{called:?}"
            );
            let made = rrefs.call(to, "echo").remote::<_, i64>((1_i64, foreign));
            assert!(matches!(made, Err(RRefError::Foreign { .. })), "{made:?}");
        }
    }
    let mixed = a[0].rrefs.rref(1_i64).unwrap();
    let argument = in_b.call("push").run::<_, ()>(&mixed);
    assert!(
        matches!(argument, Err(RRefError::Foreign { .. })),
        "{argument:?}"
    );
    drop(mixed);

    // The shutdown of one group does not affect the other group.
    let reports = shut_down(&a);
    assert_eq!(reports[1].values.len(), 1);
    assert_eq!((count(&alive_a), count(&alive_b)), (0, 1));
    use_references(&b);
    until("only the own value is left", || {
        b[1].rrefs.sizes().unwrap().forks == 1
    });
    let ready = in_a.wait_ready(Some(PATIENCE));
    assert!(matches!(ready, Err(RRefError::Shutdown)), "{ready:?}");
    let called = ask::<()>(&b[0], "worker1", "echo", &in_a);
    assert!(
        matches!(called, Err(RRefError::Foreign { .. })),
        "{called:?}"
    );
    drop(in_a);
    in_b.wait_ready(Some(PATIENCE)).unwrap();
    drop(in_b);
    until_empty(&b);
    // The value leaves the tables before it is freed.
    until("its value is freed", || count(&alive_b) == 0);
    shut_down(&b);
}

#[test]
fn a_second_group_works_after_the_first_and_old_references_stay_shut_down() {
    let first = group(2);
    let old: RRef<i64> = make(&first[0], "worker1", "number", 1_i64);
    old.wait_ready(Some(PATIENCE)).unwrap();
    let own = first[0].rrefs.rref(2_i64).unwrap();
    shut_down(&first);

    let second = group(2);
    let new: RRef<i64> = make(&second[0], "worker1", "number", 2_i64);
    new.wait_ready(Some(PATIENCE)).unwrap();
    assert_eq!(new.to_string(), old.to_string(), "the ids start anew");
    assert_ne!(new.id(), old.id());
    assert_ended(&[&old, &own], &first[0].rrefs);
    let called = ask::<i64>(&second[0], "worker1", "read", &old);
    assert!(
        matches!(called, Err(RRefError::Foreign { .. })),
        "{called:?}"
    );
    // The second group sends deletions. (PyTorch's second group sends none.)
    use_references(&second);
    drop(old);
    assert_eq!(new.to_here(Some(PATIENCE)).unwrap(), 2);
    drop(new);
    end(&second);
}

#[test]
fn references_fail_after_leaving_while_the_agents_run() {
    let workers = group(2);
    let user = remote_number(&workers, 1);
    user.wait_ready(Some(PATIENCE)).unwrap();
    let kept = workers[0].rrefs.rref(2_i64).unwrap();
    workers[0].rrefs.leave(Some(PATIENCE)).unwrap();
    assert_ended(&[&user, &kept], &workers[0].rrefs);
    // The other worker still works, but gets an error for references that it sends.
    let own = workers[1].rrefs.rref(4_i64).unwrap();
    assert_eq!(own.to_here(Some(PATIENCE)).unwrap(), 4);
    let called = ask::<i64>(&workers[1], "worker0", "read", &own);
    assert!(called.unwrap_err().to_string().contains("were shut down"));
    drop(own);
    workers[1].rrefs.leave(Some(PATIENCE)).unwrap();
    for worker in &workers {
        assert!(is_empty(worker));
        worker.agent.shutdown_now();
    }
}

/// A value that can hold a reference to another value.
#[derive(Serialize, Deserialize)]
struct Node(Mutex<Option<RRef<Self>>>);

/// A worker alone in its group, whose functions hold `kept`. One of the functions waits at the gate.
fn worker_that_keeps(kept: &Arc<()>, gate: &Arc<Gate>) -> Worker {
    let kept = Arc::clone(kept);
    let functions = functions(|functions| {
        let also = Arc::clone(&kept);
        functions
            .register("node", move |_, next: Option<RRef<Node>>| {
                assert!(Arc::strong_count(&kept) > 1, "the test holds it as well");
                Ok(Node(Mutex::new(next)))
            })
            .unwrap();
        functions
            .register_method("point", move |_, node: &Node, next: RRef<Node>| {
                assert!(Arc::strong_count(&also) > 1, "the test holds it as well");
                *node.0.lock().unwrap() = Some(next);
                Ok(())
            })
            .unwrap();
        gate.register(functions, "slow");
    });
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    start(
        &store,
        options("solo", 0).with_world_size(1),
        functions,
        &quick(),
    )
}

/// A chain of two nodes, where the first value holds the only reference to the second; and a node that refers to
/// itself.
fn nodes(rrefs: &RRefs) -> [RRef<Node>; 2] {
    let inner: RRef<Node> = rrefs
        .call("solo", "node")
        .remote(None::<RRef<Node>>)
        .unwrap();
    let outer: RRef<Node> = rrefs.call("solo", "node").remote(Some(&inner)).unwrap();
    let cycle: RRef<Node> = rrefs
        .call("solo", "node")
        .remote(None::<RRef<Node>>)
        .unwrap();
    cycle.call("point").run::<_, ()>(&cycle).unwrap();
    outer.wait_ready(Some(PATIENCE)).unwrap();
    [outer, cycle]
}

#[track_caller]
fn until_released(kept: &Arc<()>) {
    until("nothing of the agent is left", || {
        Arc::strong_count(kept) == 1
    });
}

#[test]
fn an_agent_is_freed_after_its_shutdown_and_the_last_handle() {
    let kept = Arc::new(());
    let Worker { rrefs, agent } = worker_that_keeps(&kept, &Gate::new());
    let held = nodes(&rrefs);
    let number = rrefs.rref(1_i64).unwrap();
    rrefs.shutdown(&agent, Some(PATIENCE)).unwrap();
    agent.shutdown(PATIENCE).unwrap();
    assert!(Arc::strong_count(&kept) > 1);
    // Drop in an unusual order: the handles last.
    drop(agent);
    drop(rrefs);
    drop(held);
    drop(number);
    until_released(&kept);
}

#[test]
fn values_that_hold_references_are_freed_when_an_agent_stops_without_a_shutdown() {
    let kept = Arc::new(());
    let Worker { rrefs, agent } = worker_that_keeps(&kept, &Gate::new());
    let held = nodes(&rrefs);
    drop(agent);
    drop((held, rrefs));
    until_released(&kept);
}

#[test]
fn an_agent_with_calls_under_way_is_freed_after_it_stops() {
    let (kept, gate) = (Arc::new(()), Gate::new());
    let Worker { rrefs, agent } = worker_that_keeps(&kept, &gate);
    let slow: RRef<i64> = rrefs.call("solo", "slow").remote(()).unwrap();
    until("the function runs", || gate.arrived() == 1);
    let waiting: Vec<_> = (0..4)
        .map(|_| slow.fetch(Some(PATIENCE)).unwrap())
        .collect();
    let agent = thread::scope(|scope| {
        let ending = scope.spawn(|| {
            agent.shutdown_now();
            agent
        });
        for fetch in &waiting {
            let fetched = fetch.wait();
            assert!(
                matches!(fetched, Err(RRefError::Rpc(RpcError::Shutdown { .. }))),
                "{fetched:?}"
            );
        }
        // Shutdown waits for the running function.
        gate.open();
        ending.join().unwrap()
    });
    drop((waiting, slow, rrefs, agent));
    until_released(&kept);
}

#[test]
fn an_agent_that_was_started_with_another_registry_is_refused() {
    let kept = Arc::new(());
    let [first, second] = [0, 1].map(|_| worker_that_keeps(&kept, &Gate::new()));
    assert_eq!(first.agent.handle().me(), second.agent.handle().me());
    for _ in 0..2 {
        let error = first.rrefs.attach(second.agent.handle()).unwrap_err();
        assert!(matches!(error, RRefError::Refused(_)), "{error}");
        assert!(error.to_string().contains("another registry"), "{error}");
        // Attaching to the right agent does not change this.
        first.rrefs.attach(first.agent.handle()).unwrap();
    }
    assert!(is_empty(&first));
    for worker in [first, second] {
        shut_down(&[worker]);
    }
    until_released(&kept);
}
