//! References over agents in this process: creation, use, sharing and release.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};
use rpc_agent::HandlerError;
use rref::{Functions, RRef, RRefError, RRefFuture};
use serde::{Deserialize, Serialize};

use crate::common::{
    Alive, Counted, Gate, List, PATIENCE, Worker, ask, end, group, group_that_has, group_with,
    make, register_counted, remote_number, shut_down, until, until_empty,
};

#[test]
fn a_value_is_made_on_its_owner_fetched_and_freed_with_the_last_handle() {
    let workers = group(2);
    let rrefs = &workers[0].rrefs;
    let number: RRef<i64> = rrefs.call("worker1", "number").remote(7_i64).unwrap();
    assert!(!number.is_owner());
    assert_eq!(number.owner().name.as_str(), "worker1");
    assert_eq!(number.to_here(Some(PATIENCE)).unwrap(), 7);
    number.wait_confirmed(Some(PATIENCE)).unwrap();
    assert!(number.is_confirmed() && !number.has_timed_out());
    let another = number.clone();
    drop(number);
    assert_eq!(another.to_here(Some(PATIENCE)).unwrap(), 7);
    assert_eq!(workers[1].rrefs.sizes().unwrap().owners, 1);
    drop(another);
    end(&workers);
}

#[test]
fn ids_are_printed_as_pytorch_prints_them() {
    let workers = group(2);
    let number = remote_number(&workers, 1);
    // PyTorch's format. Ids for worker 1 have their own counter.
    let [first, second] = [1_u64 << 48, (1 << 48) + 1];
    assert_eq!(
        number.to_string(),
        format!(
            "UserRRef(RRefId = GloballyUniqueId(created_on=0, local_id={first}), \
             ForkId = GloballyUniqueId(created_on=0, local_id={second}))"
        )
    );
    let own = workers[0].rrefs.rref(1_i64).unwrap();
    assert_eq!(
        own.to_string(),
        "OwnerRRef(GloballyUniqueId(created_on=0, local_id=0))"
    );
    assert_eq!(
        number.local_value(Some(PATIENCE)).unwrap_err().to_string(),
        format!(
            "For {number}, can't call localValue() on user WorkerInfo(id=0, name=worker0). Call it \
             on owner WorkerInfo(id=1, name=worker1)"
        )
    );
    drop((number, own));
    shut_down(&workers);
}

#[test]
fn an_own_value_is_shared_and_not_copied() {
    let workers = group(1);
    let list = workers[0].rrefs.rref(Mutex::new(vec![1_i64])).unwrap();
    let first = list.local_value(Some(PATIENCE)).unwrap();
    first.lock().unwrap().push(2);
    let second = list.local_value(Some(PATIENCE)).unwrap();
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(list.call("sum").run::<_, i64>(()).unwrap(), 3);
    assert_eq!(
        *list.to_here(Some(PATIENCE)).unwrap().lock().unwrap(),
        [1, 2]
    );
    // The handle was dropped; the running function keeps the value alive.
    drop(list);
    until_empty(&workers);
    assert_eq!(second.lock().unwrap().len(), 2);
    shut_down(&workers);
}

#[test]
fn a_worker_can_make_values_on_itself() {
    let workers = group(1);
    let number: RRef<i64> = make(&workers[0], "worker0", "number", 5_i64);
    assert!(number.is_owner() && number.is_confirmed());
    assert_eq!(*number.local_value(Some(PATIENCE)).unwrap(), 5);
    assert_eq!(number.to_here(Some(PATIENCE)).unwrap(), 5);
    let failed: RRef<i64> = make(&workers[0], "worker0", "fail", "no luck");
    let error = failed.local_value(Some(PATIENCE)).unwrap_err();
    assert!(matches!(&error, RRefError::Creation { message, .. } if &**message == "no luck"));
    drop((number, failed));
    end(&workers);
}

#[test]
fn methods_run_on_the_owner() {
    let workers = group(2);
    let list: RRef<List> = make(&workers[0], "worker1", "list", vec![1_i64, 2]);
    assert_eq!(list.call("push").run::<_, usize>(3_i64).unwrap(), 3);
    let pushes: Vec<_> = (4..8_i64)
        .map(|item| list.call("push").send::<_, usize>(item).unwrap())
        .collect();
    let mut lengths: Vec<_> = pushes.iter().map(|push| push.wait().unwrap()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [4, 5, 6, 7]);
    let sum: RRef<i64> = list.call("sum").remote(()).unwrap();
    // The running method keeps the value alive without the handle.
    drop(list);
    assert_eq!(sum.to_here(Some(PATIENCE)).unwrap(), 28);
    assert_eq!(sum.owner().name.as_str(), "worker1");
    drop(sum);
    end(&workers);
}

#[test]
fn a_method_of_another_type_and_an_unknown_one_are_errors() {
    let workers = group(2);
    let number = remote_number(&workers, 7);
    let wrong = number.call("sum").run::<_, i64>(()).unwrap_err();
    assert!(wrong.to_string().contains("the method is for a"), "{wrong}");
    let unknown = number.call("no such").run::<_, i64>(()).unwrap_err();
    assert!(
        unknown.to_string().contains("no function named `no such`"),
        "{unknown}"
    );
    let plain = number.call("number").run::<_, i64>(1_i64).unwrap_err();
    assert!(plain.to_string().contains("is not a method"), "{plain}");
    let arguments = number.call("push").run::<_, usize>("text").unwrap_err();
    assert!(
        arguments.to_string().contains("wrong arguments"),
        "{arguments}"
    );
    // The owner detects that the result has the wrong type.
    let typed: RRef<String> = make(&workers[0], "worker1", "number", 7_i64);
    let error = typed.to_here(Some(PATIENCE)).unwrap_err();
    assert!(
        error.to_string().contains("the function returns a `i64`"),
        "{error}"
    );
    drop((number, typed));
    end(&workers);
}

#[test]
fn a_failed_creation_is_an_error_at_every_holder() {
    let workers = group(3);
    let failed: RRef<i64> = make(&workers[0], "worker1", "fail", "no luck");
    let read = ask::<i64>(&workers[0], "worker2", "read", &failed);
    assert!(read.unwrap_err().to_string().contains("no luck"));
    let error = failed.to_here(Some(PATIENCE)).unwrap_err();
    assert!(matches!(&error, RRefError::Creation { message, .. } if &**message == "no luck"));
    assert!(failed.is_confirmed(), "the function's failure is its value");
    drop(failed);

    // The owner cannot run these functions. The error arrives before any timeout.
    let began = Instant::now();
    let unknown: RRef<i64> = make(&workers[0], "worker1", "no such", ());
    let error = unknown.to_here(None).unwrap_err();
    assert!(matches!(&error, RRefError::Creation { .. }), "{error}");
    let read = ask::<i64>(&workers[0], "worker2", "read", &unknown);
    assert!(
        read.unwrap_err()
            .to_string()
            .contains("no function named `no such`")
    );
    let undecodable: RRef<i64> = make(&workers[0], "worker1", "number", "seven");
    let error = undecodable.to_here(None).unwrap_err();
    assert!(error.to_string().contains("wrong arguments"), "{error}");
    assert!(began.elapsed() < PATIENCE);
    drop((unknown, undecodable));
    end(&workers);
}

#[test]
fn a_panic_is_an_error() {
    let workers = group_that_has(2, |functions| {
        functions
            .register(
                "panic",
                |_, number: RRef<i64>| -> Result<i64, HandlerError> {
                    panic!("not with {}", number.to_here(Some(PATIENCE)).unwrap())
                },
            )
            .unwrap();
    });
    let number = workers[0].rrefs.rref(7_i64).unwrap();
    let called = ask::<i64>(&workers[0], "worker1", "panic", &number);
    assert!(called.unwrap_err().to_string().contains("not with 7"));
    let made: RRef<i64> = make(&workers[0], "worker1", "panic", &number);
    let error = made.to_here(Some(PATIENCE)).unwrap_err();
    assert!(error.to_string().contains("not with 7"), "{error}");
    drop((number, made));
    end(&workers);
}

#[test]
fn remote_does_not_wait_for_the_function_and_local_value_does() {
    let gate = Gate::new();
    let workers = group_that_has(2, |functions| gate.register(functions, "slow"));
    let slow: RRef<i64> = workers[0]
        .rrefs
        .call("worker1", "slow")
        .with_timeout(Some(Duration::from_secs(20)))
        .remote(())
        .unwrap();
    // The creation is confirmed while the function still runs.
    slow.wait_confirmed(Some(PATIENCE)).unwrap();
    let soon = Duration::from_millis(30);
    let error = slow.to_here(Some(soon)).unwrap_err();
    assert!(matches!(error, RRefError::TimedOut { .. }), "{error}");
    let error = slow.wait_ready(Some(soon)).unwrap_err();
    assert!(matches!(error, RRefError::TimedOut { .. }), "{error}");
    let own: RRef<i64> = make(&workers[1], "worker1", "slow", ());
    let error = own.local_value(Some(soon)).unwrap_err();
    assert!(matches!(error, RRefError::TimedOut { .. }), "{error}");
    let fetch = slow.fetch(Some(PATIENCE)).unwrap();
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let waits = scope.spawn(|| fetch.wait_until(Deadline::NEVER, &cancel).is_none());
        cancel.cancel();
        assert!(waits.join().unwrap(), "a cancel ends only the wait");
    });
    assert!(!fetch.is_complete());
    gate.open();
    assert_eq!(fetch.wait().unwrap(), 1);
    slow.wait_ready(Some(PATIENCE)).unwrap();
    assert_eq!(*own.local_value(Some(PATIENCE)).unwrap(), 1);
    drop((slow, own));
    end(&workers);
}

#[test]
fn a_reference_can_be_sent_between_users_to_its_owner_and_back() {
    let workers = group(3);
    let number = remote_number(&workers, 9);
    // From a user to a user, to the owner, and to itself.
    for to in ["worker2", "worker1", "worker0"] {
        let read: i64 = ask(&workers[0], to, "read", &number).unwrap();
        assert_eq!(read, 9, "{to}");
        let back: RRef<i64> = ask(&workers[0], to, "echo", &number).unwrap();
        assert_eq!(back, number);
        assert_eq!(back.to_here(Some(PATIENCE)).unwrap(), 9, "{to}");
    }
    // From the owner to a user.
    let own = workers[1].rrefs.rref(4_i64).unwrap();
    assert_eq!(ask::<i64>(&workers[1], "worker0", "read", &own).unwrap(), 4);
    drop((number, own));
    end(&workers);
}

#[test]
fn a_reference_twice_in_one_message_is_two_users_of_the_receiver() {
    let gate = Gate::new();
    let workers = group_that_has(3, |functions| {
        let gate = Arc::clone(&gate);
        functions
            .register("twice", move |_, both: (RRef<i64>, RRef<i64>)| {
                gate.pass();
                assert_ne!(both.0.fork_id(), both.1.fork_id());
                Ok(both.0.to_here(Some(PATIENCE))? + both.1.to_here(Some(PATIENCE))?)
            })
            .unwrap();
    });
    let own = workers[1].rrefs.rref(4_i64).unwrap();
    let sum = workers[1]
        .rrefs
        .call("worker2", "twice")
        .send::<_, i64>((&own, &own))
        .unwrap();
    until("both references have arrived", || {
        workers[2].rrefs.sizes().unwrap().confirmed_users == 2
    });
    assert_eq!(workers[1].rrefs.sizes().unwrap().forks, 2);
    gate.open();
    assert_eq!(sum.wait().unwrap(), 8);
    drop(own);
    end(&workers);
}

#[test]
fn references_can_be_anywhere_in_a_value() {
    #[derive(Serialize, Deserialize, Clone)]
    struct Node {
        name: String,
        parts: Vec<(u8, Option<RRef<i64>>)>,
    }
    let workers = group_that_has(3, |functions| {
        functions
            .register("total", |_, node: Node| {
                let mut total = 0;
                for (factor, part) in &node.parts {
                    if let Some(part) = part {
                        total += i64::from(*factor) * part.to_here(Some(PATIENCE))?;
                    }
                }
                Ok((node.name.clone(), total))
            })
            .unwrap();
        functions
            .register("keep", |_, node: Node| Ok(node))
            .unwrap();
    });
    let rrefs = &workers[0].rrefs;
    let node = Node {
        name: "n".to_owned(),
        parts: vec![
            (1, Some(rrefs.rref(10).unwrap())),
            (2, None),
            (
                3,
                Some(rrefs.call("worker1", "number").remote(100_i64).unwrap()),
            ),
            (
                5,
                Some(rrefs.call("worker2", "number").remote(1_000_i64).unwrap()),
            ),
        ],
    };
    let total: (String, i64) = rrefs.call("worker2", "total").run(&node).unwrap();
    assert_eq!(total, ("n".to_owned(), 5_310));
    // A value that holds references keeps them alive.
    let kept: RRef<Node> = rrefs.call("worker2", "keep").remote(&node).unwrap();
    drop(node);
    let node = kept.to_here(Some(PATIENCE)).unwrap();
    let parts: Vec<_> = node
        .parts
        .iter()
        .filter_map(|(_, part)| part.as_ref())
        .collect();
    let values = parts
        .iter()
        .map(|part| part.to_here(Some(PATIENCE)).unwrap());
    assert_eq!(values.sum::<i64>(), 1_110);
    drop(kept);
    drop(node);
    end(&workers);
}

#[test]
fn a_reference_has_no_encoding_outside_of_a_message() {
    let workers = group(2);
    let number = workers[0].rrefs.rref(1_i64).unwrap();
    assert!(rpc_agent::typed::encode(&number).is_err());
    assert!(rpc_agent::typed::decode::<RRef<i64>>(&[0]).is_err());
    let sent = workers[0]
        .agent
        .handle()
        .call("worker1", "anything")
        .run::<_, i64>(&number);
    assert!(sent.is_err());
    assert_eq!(workers[0].rrefs.sizes().unwrap().forks, 0);
    // A reference of another agent is refused as well.
    let sent = ask::<i64>(&workers[1], "worker0", "read", &number);
    assert!(matches!(sent, Err(RRefError::Foreign { .. })), "{sent:?}");
    drop(number);
    end(&workers);
}

#[test]
fn a_call_that_is_refused_leaves_no_fork() {
    let workers = group(3);
    let rrefs = &workers[0].rrefs;
    let own = rrefs.rref(1_i64).unwrap();
    let user: RRef<i64> = rrefs.call("worker1", "number").remote(2_i64).unwrap();
    for function in ["no such", "push"] {
        assert!(
            rrefs
                .call("worker2", function)
                .run::<_, i64>((&own, &user))
                .is_err()
        );
    }
    // The receiver decodes the arguments, but they have the wrong types.
    assert!(
        rrefs
            .call("worker2", "read")
            .run::<_, i64>((&own, &user))
            .is_err()
    );
    let created: RRef<i64> = rrefs
        .call("worker2", "no such")
        .remote((&own, &user))
        .unwrap();
    assert!(created.to_here(Some(PATIENCE)).is_err());
    drop((own, user, created));
    end(&workers);
}

/// Starts workers with one handler thread each. The function `hold` blocks that thread until the gate opens.
fn group_with_hold(world_size: u32, fill: impl Fn(&mut Functions)) -> (Vec<Worker>, Arc<Gate>) {
    let gate = Gate::new();
    let workers = group_with(
        world_size,
        |_, options| options.with_handler_threads(1).with_threads_max(1),
        |_, functions| {
            let gate = Arc::clone(&gate);
            functions
                .register("hold", move |_, ()| {
                    gate.pass();
                    Ok(())
                })
                .unwrap();
            fill(functions);
        },
    );
    (workers, gate)
}

/// Blocks the only handler thread of worker 1.
fn hold(workers: &[Worker], gate: &Gate) -> RRefFuture<()> {
    let held = workers[0]
        .rrefs
        .call("worker1", "hold")
        .with_timeout(PATIENCE)
        .send(());
    until("the thread is blocked", || gate.arrived() == 1);
    held.unwrap()
}

#[test]
fn a_function_waits_for_the_confirmation_of_its_references_without_a_thread() {
    let running = Arc::new(AtomicUsize::new(0));
    let its_running = Arc::clone(&running);
    let (workers, gate) = group_with_hold(3, move |functions| {
        let running = Arc::clone(&its_running);
        functions
            .register("count", move |_, number: RRef<i64>| {
                assert!(number.is_confirmed());
                running.fetch_add(1, Ordering::SeqCst);
                Ok(true)
            })
            .unwrap();
    });
    let rrefs = &workers[0].rrefs;
    let number: RRef<i64> = rrefs.call("worker1", "number").remote(3_i64).unwrap();
    number.wait_ready(Some(PATIENCE)).unwrap();
    // The owner is blocked and answers no registration.
    let held = hold(&workers, &gate);
    let calls: Vec<_> = (0..20)
        .map(|_| {
            rrefs
                .call("worker2", "count")
                .with_timeout(PATIENCE)
                .send::<_, bool>(&number)
                .unwrap()
        })
        .collect();
    until("all calls have arrived", || {
        workers[2].rrefs.sizes().unwrap().pending_users == 20
    });
    // The waiting worker still serves other calls.
    assert_eq!(
        rrefs
            .call("worker2", "number")
            .run::<_, i64>(1_i64)
            .unwrap(),
        1
    );
    assert_eq!(running.load(Ordering::SeqCst), 0);
    gate.open();
    held.wait().unwrap();
    for call in calls {
        assert!(call.wait().unwrap());
    }
    assert_eq!(running.load(Ordering::SeqCst), 20);
    drop(number);
    end(&workers);
}

#[test]
fn a_creation_that_is_not_answered_in_time_fails_and_is_undone() {
    let alive = Alive::default();
    let (workers, gate) = group_with_hold(2, |functions| register_counted(functions, &alive));
    let held = hold(&workers, &gate);
    let late: RRef<Counted> = workers[0]
        .rrefs
        .call("worker1", "counted")
        .with_timeout(Some(Duration::from_millis(50)))
        .remote(())
        .unwrap();
    let error = late.wait_confirmed(Some(PATIENCE)).unwrap_err();
    assert!(
        matches!(error, RRefError::CreationTimedOut { .. }),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .starts_with("RRef creation via rpc.remote() timed out"),
        "{error}"
    );
    // All operations on it fail at once.
    assert!(late.has_timed_out() && !late.is_confirmed());
    let sent = ask::<()>(&workers[0], "worker0", "hold", &late);
    for error in [
        late.confirmation().unwrap().wait().unwrap_err(),
        late.wait_ready(Some(Duration::MAX)).unwrap_err(),
        late.call("sum").run::<_, i64>(()).unwrap_err(),
        sent.unwrap_err(),
    ] {
        assert!(
            matches!(error, RRefError::CreationTimedOut { .. }),
            "{error}"
        );
    }
    drop(late);
    gate.open();
    held.wait().unwrap();
    until_empty(&workers);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    shut_down(&workers);
}

#[test]
fn freed_values_drop_the_references_that_they_hold() {
    // A chain of values, each holding the next one. They are freed one after the other.
    let workers = group_that_has(3, |functions| {
        functions
            .register("link", |_, next: Option<RRef<Link>>| Ok(Link(next)))
            .unwrap();
    });
    #[derive(Serialize, Deserialize)]
    struct Link(Option<RRef<Self>>);
    let rrefs = &workers[0].rrefs;
    let mut first: Option<RRef<Link>> = None;
    for place in 0..30 {
        let to = format!("worker{}", place % 3);
        first = Some(rrefs.call(to.as_str(), "link").remote(&first).unwrap());
    }
    let first = first.unwrap();
    first.wait_ready(Some(PATIENCE)).unwrap();
    until("all values exist", || {
        workers
            .iter()
            .map(|worker| worker.rrefs.sizes().unwrap().owners)
            .sum::<usize>()
            == 30
    });
    drop(first);
    end(&workers);
}
