//! Joining and leaving groups, over loopback and a shared store.

use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use c10d_store::{Store, StoreExt};
use rpc_agent::{
    Agent, AgentOptions, DirectoryError, FutureMessage, NotSent, Outcome, Registry, Reply,
    RetryOptions, RpcError, StartError, WorkerInfo, join_all,
};

use crate::common::{PATIENCE, named, options, registry, shared_store, start_all, until};
use crate::raw::{HELLO, MEMBER_LIST, REFUSE, REQUEST, RawWorker, WELCOME, connect};
use crate::raw::{await_closed, listed_address_of, read_frame, request, send, welcome};

/// Starts workers concurrently. Each has the function `echo`.
fn start(store: &Arc<dyn Store>, options: impl IntoIterator<Item = AgentOptions>) -> Vec<Started> {
    let workers = options.into_iter();
    let workers = workers.map(|options| (options, registry(|_| {})));
    start_all(store, workers.collect())
}

type Started = Result<Agent, StartError>;

fn start_one(store: &Arc<dyn Store>, options: AgentOptions) -> Agent {
    start_with(store, options, |_| {})
}

fn start_with(
    store: &Arc<dyn Store>,
    options: AgentOptions,
    fill: impl FnOnce(&mut Registry),
) -> Agent {
    Agent::start(options, registry(fill), store.clone_store().unwrap()).unwrap()
}

fn directory_error(error: &StartError) -> &DirectoryError {
    match error {
        StartError::Directory(error) => error,
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn a_duplicate_name_fails_on_every_rank_and_names_both_workers() {
    let same = ["same", "other", "same", "fourth"];
    let options = (0..4).map(|rank| named(same[rank as usize], rank).with_world_size(4));
    for started in start(&shared_store(), options) {
        let error = started.unwrap_err();
        assert!(
            matches!(directory_error(&error), DirectoryError::NameTaken { name, first, second }
                if name == "same" && (first.0, second.0) == (0, 2)),
            "{error:?}"
        );
        let error_text = error.to_string();
        assert!(
            error_text.starts_with(
                "RPC worker name same is not unique. Workers 0 and 2 share the same name. \
                 (0 is at 127.0.0.1:"
            ),
            "{error_text}"
        );
    }
}

#[test]
fn a_duplicate_rank_fails_on_every_rank_and_names_both_workers() {
    // A launch mistake: two workers have rank 1, and rank 2 is missing.
    let workers = [("a", 0), ("b", 1), ("c", 1)];
    let options = workers.map(|(name, rank)| named(name, rank).with_world_size(3));
    for started in start(&shared_store(), options) {
        let error = started.unwrap_err();
        let DirectoryError::IdTaken {
            id: 1,
            holder,
            refused,
        } = directory_error(&error)
        else {
            unreachable!("{error:?}");
        };
        let mut both = [&*holder.0, &*refused.0];
        let expected_text = format!(
            "RPC worker id 1 is not unique. Worker {} and already has ID and {} cannot be added.",
            both[0], both[1]
        );
        let error_text = error.to_string();
        assert!(error_text.starts_with(&expected_text), "{error_text}");
        both.sort_unstable();
        assert_eq!(both, ["b", "c"]);
    }
}

#[test]
fn an_invalid_name_or_rank_is_refused() {
    let store = shared_store();
    let refused = |options: AgentOptions| {
        let started = Agent::start(options, Registry::new(), store.clone_store().unwrap());
        started.unwrap_err().to_string()
    };
    assert_eq!(
        refused(named("a b", 0)),
        "Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than 128 chars, \
         but got a b"
    );
    assert_eq!(
        refused(named("a", 32_768)),
        "RPC worker id 32768 out of bound of int16_t."
    );
    assert_eq!(
        refused(named("a", 2).with_world_size(2)),
        "rank 2 is not below the world size 2, or the world size is not in 1..=32768"
    );
}

#[test]
fn the_first_worker_waits_for_a_late_one() {
    let store = shared_store();
    let in_group = |rank| options(rank).with_world_size(3);
    thread::scope(|scope| {
        let first = scope.spawn(|| start(&store, [in_group(2), in_group(0)]));
        // Both workers are registered, and wait for rank 1.
        store
            .wait_timeout(&["names/0", "names/2"], Some(PATIENCE))
            .unwrap();
        let late = start_one(&store, in_group(1));
        let first = first.join().unwrap().into_iter();
        let agents: Vec<Agent> = first.map(Result::unwrap).chain([late]).collect();
        for agent in &agents {
            let names: Vec<_> = agent
                .handle()
                .workers()
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(
                names,
                [0, 1, 2].map(|rank| format!("WorkerInfo(id={rank}, name=worker{rank})"))
            );
            let answers =
                (0..3).map(|to| agent.handle().call(to, "echo").send_bytes(to.to_string()));
            assert_eq!(join_all(answers.collect()).wait().unwrap(), ["0", "1", "2"]);
        }
    });
}

#[test]
fn a_start_timeout_lists_the_missing_ranks() {
    let store = shared_store();
    let in_group = |rank| {
        options(rank)
            .with_world_size(20)
            .with_start_timeout(Duration::from_secs(1))
    };
    let mut error_text = Vec::new();
    for rank in [2, 0] {
        let error = start(&store, [in_group(rank)]).remove(0).unwrap_err();
        assert!(
            matches!(
                directory_error(&error),
                DirectoryError::WorkersMissing { .. }
            ),
            "{error:?}"
        );
        error_text.push(error.to_string());
    }
    assert!(
        error_text[0].starts_with("only 1 of 20 workers joined within "),
        "{error_text:?}"
    );
    assert!(
        error_text[1].starts_with("only 2 of 20 workers joined within "),
        "{error_text:?}"
    );
    assert!(
        error_text[0]
            .ends_with("for rank 0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 3 more"),
        "{error_text:?}"
    );
    assert!(
        error_text[1].ends_with(
            "for rank 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17 and 2 more"
        ),
        "{error_text:?}"
    );
}

#[test]
fn static_and_dynamic_workers_cannot_be_mixed() {
    let store = shared_store();
    let _first = start_one(&store, options(0));
    let error = start(&store, [options(1).with_world_size(2)])
        .remove(0)
        .unwrap_err();
    assert!(
        error.to_string().starts_with(
            "RPC group mixes statically and dynamically initialized members which is not supported."
        ),
        "{error}"
    );
}

#[test]
fn a_worker_finds_one_that_joins_later() {
    let store = shared_store();
    let first = start_one(&store, named("ps-0", 0));
    for to_late in ["ps-1", "ps-2"] {
        let error = first
            .handle()
            .call(to_late, "echo")
            .send_bytes("")
            .wait()
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("name:ps-0,rank:0 could not find destination name {to_late}")
        );
    }
    let second = start_one(&store, named("ps-1", 1));
    assert_eq!(
        first
            .handle()
            .call("ps-1", "echo")
            .send_bytes("by name")
            .wait()
            .unwrap(),
        "by name"
    );
    assert_eq!(
        second
            .handle()
            .call(0, "echo")
            .send_bytes("back")
            .wait()
            .unwrap(),
        "back"
    );
    let third = start_one(&store, named("ps-2", 7));
    assert_eq!(
        first
            .handle()
            .call(7, "echo")
            .send_bytes("by id")
            .wait()
            .unwrap(),
        "by id"
    );
    assert_eq!(
        second
            .handle()
            .call(third.handle().me(), "echo")
            .send_bytes("by both")
            .wait()
            .unwrap(),
        "by both"
    );
    assert_eq!(
        third
            .handle()
            .call("ps-1", "echo")
            .send_bytes("back")
            .wait()
            .unwrap(),
        "back"
    );
    assert_eq!(
        first.handle().worker("ps-2").unwrap(),
        WorkerInfo::new("ps-2", 7).unwrap()
    );
}

#[test]
fn many_workers_that_join_at_once_find_each_other() {
    const WORKERS: u32 = 12;
    let started = start(&shared_store(), (0..WORKERS).map(options));
    let agents: Vec<Agent> = started.into_iter().map(Result::unwrap).collect();
    thread::scope(|scope| {
        for agent in &agents {
            scope.spawn(move || {
                for to in 0..WORKERS {
                    let name = format!("worker{to}");
                    assert_eq!(
                        agent
                            .handle()
                            .call(&name, "echo")
                            .send_bytes(name.clone())
                            .wait()
                            .unwrap(),
                        name
                    );
                }
            });
        }
    });
}

#[test]
fn a_second_worker_with_the_same_name_or_id_is_refused_and_the_first_one_continues() {
    let store = shared_store();
    let agents = ["a", "b"].map(|name| start_one(&store, named(name, u32::from(name == "b"))));
    let by_name = start(&store, [named("b", 2)]).remove(0).unwrap_err();
    let error_text = by_name.to_string();
    assert!(
        error_text
            .starts_with("RPC worker name b is not unique. Workers 1 and 2 share the same name."),
        "{error_text}"
    );
    let by_id = start(&store, [named("c", 1)]).remove(0).unwrap_err();
    let error_text = by_id.to_string();
    assert!(
        error_text.starts_with(
            "RPC worker id 1 is not unique. Worker b and already has ID and c cannot be added."
        ),
        "{error_text}"
    );
    assert_eq!(
        agents[0]
            .handle()
            .call("b", "echo")
            .send_bytes("on")
            .wait()
            .unwrap(),
        "on"
    );
}

#[test]
fn a_worker_that_left_is_no_longer_found() {
    let store = shared_store();
    let agents = [0, 1, 2].map(|rank| start_one(&store, options(rank)));
    let [first, second, third] = agents;
    assert_eq!(
        first
            .handle()
            .call("worker1", "echo")
            .send_bytes("here")
            .wait()
            .unwrap(),
        "here"
    );
    second.shutdown(PATIENCE).unwrap();
    let expected_text = "name:worker0,rank:0 could not find destination name worker1";
    // A call that is sent before the Goodbye arrives gets no answer.
    until("the Goodbye has arrived", || {
        let error = first
            .handle()
            .call("worker1", "echo")
            .send_bytes("")
            .wait()
            .unwrap_err();
        !matches!(error, RpcError::ConnectionLost { .. })
    });
    for _ in 0..2 {
        let error = first
            .handle()
            .call("worker1", "echo")
            .send_bytes("")
            .wait()
            .unwrap_err();
        assert!(error.to_string().contains(expected_text), "{error}");
        assert_eq!(error.outcome(), Outcome::NotExecuted);
    }
    let error = third
        .handle()
        .call(1, "echo")
        .send_bytes("")
        .wait()
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("name:worker2,rank:2 could not find destination name worker1"),
        "{error}"
    );
    assert_eq!(
        first
            .handle()
            .call(2, "echo")
            .send_bytes("on")
            .wait()
            .unwrap(),
        "on"
    );

    // New workers reuse its name and its id.
    let again = start_one(&store, named("worker1", 5));
    assert_eq!(
        first
            .handle()
            .call("worker1", "echo")
            .send_bytes("moved")
            .wait()
            .unwrap(),
        "moved"
    );
    assert_eq!(
        first.handle().worker("worker1").unwrap(),
        *again.handle().me()
    );
    let other = start_one(&store, named("other", 1));
    assert_eq!(
        first
            .handle()
            .call(1, "echo")
            .send_bytes("other")
            .wait()
            .unwrap(),
        "other"
    );
    assert_eq!(first.handle().worker(1).unwrap(), *other.handle().me());
    assert_eq!(
        third
            .handle()
            .call("worker1", "echo")
            .send_bytes("moved")
            .wait()
            .unwrap(),
        "moved"
    );
}

/// A worker with two functions: the first answers with `incarnation`, the second is answered by the test through
/// `replies`.
fn start_incarnation(
    store: &Arc<dyn Store>,
    incarnation: u32,
    replies: &Arc<Mutex<Vec<Reply>>>,
) -> Agent {
    start_with(store, options(1), |registry| {
        registry
            .register("incarnation", move |_, _| {
                Ok(incarnation.to_string().into_bytes())
            })
            .unwrap();
        let replies = Arc::clone(replies);
        registry
            .register_deferred("later", move |_, _, reply| {
                replies.lock().unwrap().push(reply);
            })
            .unwrap();
    })
}

#[test]
fn a_restarted_worker_has_a_new_incarnation_and_connection() {
    let store = shared_store();
    let replies = Arc::default();
    let first = start_one(&store, options(0));
    for incarnation in 1..=4 {
        let agent = start_incarnation(&store, incarnation, &replies);
        if incarnation == 3 {
            // The restarted worker makes the first call.
            assert_eq!(
                agent
                    .handle()
                    .call(0, "echo")
                    .send_bytes("back")
                    .wait()
                    .unwrap(),
                "back"
            );
        }
        // A call that is sent before the previous incarnation's Goodbye arrives gets no answer.
        until("the new incarnation answers", || {
            let answer = first
                .handle()
                .call("worker1", "incarnation")
                .send_bytes("")
                .wait();
            answer.is_ok_and(|answer| answer == incarnation.to_string())
        });
        let pending = first.handle().call(1, "later").send_bytes("");
        until("the request has arrived", || {
            replies.lock().unwrap().len() == 1
        });
        if incarnation % 2 == 0 {
            // The agent stops without leaving the member list.
            agent.shutdown_now();
        } else {
            let reply = replies.lock().unwrap().pop().unwrap();
            drop(reply);
            assert!(matches!(pending.wait(), Err(RpcError::Remote { .. })));
            agent.shutdown(PATIENCE).unwrap();
            continue;
        }
        let error = pending.wait().unwrap_err();
        assert!(
            matches!(error, RpcError::ConnectionLost { .. }),
            "{error:?}"
        );
        assert_eq!(error.outcome(), Outcome::Unknown);
        // The next incarnation must not complete a pending call of the previous one.
        let next = start_incarnation(&store, incarnation * 10, &replies);
        let pending = first.handle().call(1, "later").send_bytes("");
        until("the request has arrived", || {
            replies.lock().unwrap().len() == 2
        });
        let mut both = std::mem::take(&mut *replies.lock().unwrap()).into_iter();
        both.next().unwrap().send(Ok(&b"former"[..]));
        both.next().unwrap().send(Ok(&b"present"[..]));
        assert_eq!(pending.wait().unwrap(), "present");
        assert_eq!(
            first
                .handle()
                .call(1, "incarnation")
                .send_bytes("")
                .wait()
                .unwrap(),
            (incarnation * 10).to_string()
        );
        next.shutdown(PATIENCE).unwrap();
    }
    let metrics = first.handle().metrics();
    assert_eq!((metrics.connections_opened, metrics.reconnects), (6, 5));
    assert_eq!((metrics.late_responses, metrics.calls_in_flight), (0, 0));
}

#[test]
fn a_call_to_a_worker_that_stopped_without_leaving_fails_at_once() {
    let store = shared_store();
    let first = start_one(&store, options(0));
    let second = start_one(&store, options(1));
    let third = start_one(&store, options(2));
    assert_eq!(
        first
            .handle()
            .call(1, "echo")
            .send_bytes("")
            .wait()
            .unwrap(),
        ""
    );
    drop(second);
    // One caller has a connection that was just lost, the second caller has none.
    for caller in [&first, &third] {
        until("the caller knows that the worker has stopped", || {
            let error = caller
                .handle()
                .call(1, "echo")
                .send_bytes("")
                .wait()
                .unwrap_err();
            assert!(
                matches!(
                    error,
                    RpcError::NotSent { .. } | RpcError::ConnectionLost { .. }
                ),
                "{error:?}"
            );
            matches!(error, RpcError::NotSent { .. })
        });
    }
}

#[test]
fn calls_to_a_replaced_worker_fail_at_once() {
    let store = shared_store();
    let me = named("a", 0).with_connect_timeout(Duration::from_secs(3600));
    let agent = start_one(&store, me);
    let raw = RawWorker::join_list(&*store, 1, "b", 5);
    // The raw worker accepts the connection but sends no Welcome.
    let call = agent
        .handle()
        .call("b", "f")
        .with_timeout(None)
        .send_bytes("x");
    let mut silent = raw.accept();
    assert_eq!(read_frame(&mut silent).kind, HELLO);
    let retries = RetryOptions::default().with_max_retries(1);
    let retries = retries.with_retry_duration(Duration::from_millis(1));
    let retries = retries.with_attempt_timeout(Duration::MAX);
    let retried = agent
        .handle()
        .call("b", "f")
        .with_retries(&retries)
        .send_bytes("x");

    let successor = RawWorker::join_list(&*store, 1, "c", 77);
    let mut link = dial_until_welcome(&successor, &*store);
    assert_replaced(&error_of(&call));
    // The second attempt makes no connection either.
    let error = error_of(&retried);
    let RpcError::RetriesExhausted {
        attempts: 2, last, ..
    } = &error
    else {
        unreachable!("{error:?}");
    };
    assert_replaced(last);
    assert_eq!(agent.handle().metrics().calls_in_flight, 0);

    // The previous worker's Welcome is too late; the agent serves the new worker.
    let _ = silent.write_all(&welcome(raw.incarnation, 1));
    await_closed(&mut silent);
    send(&mut link, &request(1, "echo", b"c"));
    assert_eq!(read_frame(&mut link).body, b"c");
}

/// Dials worker 0, which may have to read the list first.
fn dial_until_welcome(raw: &RawWorker, store: &dyn Store) -> TcpStream {
    let address = listed_address_of(store, 0).0;
    loop {
        let mut link = connect(address);
        send(&mut link, &raw.hello(0, 0, 0));
        let answer = read_frame(&mut link);
        if answer.kind == WELCOME {
            return link;
        }
        assert_eq!(answer.kind, REFUSE, "{answer:?}");
    }
}

/// The previous process is connected and reads nothing, like a stopped one.
#[test]
fn callers_of_a_stopped_worker_use_the_process_that_replaces_it() {
    let store = shared_store();
    let caller = start_one(&store, options(0));
    let stopped = RawWorker::join_list(&*store, 1, "worker1", 5);
    let call = |timeout| {
        let call = caller.handle().call("worker1", "echo");
        call.with_timeout(timeout).send_bytes("x")
    };
    let pending = call(None);
    let mut link = stopped.accept_link();
    assert_eq!(read_frame(&mut link).kind, REQUEST);

    let _present = start_one(&store, options(1));
    // The call fails because the successor has connected.
    let error = error_of(&pending);
    assert!(
        matches!(error, RpcError::ConnectionLost { .. }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("another worker has taken its place"),
        "{text}"
    );
    for _ in 0..25 {
        assert_eq!(call(Some(PATIENCE)).wait().unwrap(), "x");
    }
    // If the previous process continues, it is refused.
    send(
        &mut connect(listed_address_of(&*store, 0).0),
        &stopped.hello(0, 0, 1),
    );
    let mut again = connect(listed_address_of(&*store, 0).0);
    send(&mut again, &stopped.hello(0, 0, 1));
    assert_eq!(read_frame(&mut again).kind, REFUSE);
    assert_eq!(caller.handle().metrics().connections_lost, 1);
}

#[test]
fn a_replaced_worker_that_lives_on_is_refused_and_told() {
    let store = shared_store();
    let caller = start_one(&store, options(0));
    let replies: Arc<Mutex<Vec<Reply>>> = Arc::default();
    let former = start_incarnation(&store, 1, &replies);
    let to_caller = |agent: &Agent| agent.handle().call(0, "echo").send_bytes("x").wait();
    let asked = || caller.handle().call(1, "incarnation").send_bytes("").wait();
    assert_eq!(to_caller(&former).unwrap(), "x");
    assert_eq!(asked().unwrap(), "1");

    let present = start_incarnation(&store, 2, &replies);
    until("the callers use the new process", || {
        asked().is_ok_and(|incarnation| incarnation == "2")
    });
    until("the former process has lost its connection", || {
        to_caller(&former).is_err_and(|error| matches!(error, RpcError::NotSent { .. }))
    });
    // The former process gets errors, and the other workers are not disturbed.
    for _ in 0..50 {
        let error = to_caller(&former).unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotExecuted);
        assert!(
            matches!(
                &error,
                RpcError::NotSent {
                    cause: NotSent::Excluded(_),
                    ..
                }
            ),
            "{error:?}"
        );
        let told = "another process has joined the group as WorkerInfo(id=1, name=worker1)";
        assert!(error.to_string().contains(told), "{error}");
        assert_eq!(to_caller(&present).unwrap(), "x");
        assert_eq!(asked().unwrap(), "2");
    }
    assert_eq!(caller.handle().metrics().connections_lost, 1);
    // Its end does not remove the new process from the group.
    former.shutdown(PATIENCE).unwrap();
    assert_eq!(asked().unwrap(), "2");
}

#[test]
fn a_timeout_shows_a_successor_that_cannot_connect() {
    let store = shared_store();
    let caller = start_one(&store, options(0));
    let call = |timeout: Duration| {
        let call = caller.handle().call("worker1", "echo");
        call.with_timeout(timeout).send_bytes("x")
    };
    let stopped = RawWorker::join_list(&*store, 1, "worker1", 5);
    let pending = call(PATIENCE);
    let mut link = stopped.accept_link();
    assert_eq!(read_frame(&mut link).kind, REQUEST);
    let present = RawWorker::join_list(&*store, 1, "worker1", 6);
    let error = error_of(&call(Duration::from_secs(1)));
    assert!(matches!(error, RpcError::Timeout { .. }), "{error:?}");
    // The agent has read the list, and closes the connection to the previous process.
    let error = error_of(&pending);
    assert!(
        matches!(error, RpcError::ConnectionLost { .. }),
        "{error:?}"
    );
    let next = call(PATIENCE);
    let mut link = present.accept_link();
    assert_eq!(read_frame(&mut link).kind, REQUEST);
    drop((next, caller));
}

/// Another store simulates a network in which only the new process reaches the store.
#[test]
fn a_member_that_cannot_read_the_list_says_so_and_shows_that_it_lives() {
    let (store, readable) = (shared_store(), shared_store());
    let _member = start_one(&store, options(0));
    for key in ["rpcIsStaticGroup", MEMBER_LIST] {
        readable.set(key, store.get(key).unwrap()).unwrap();
    }
    store.set(MEMBER_LIST, b"garbage").unwrap();
    let connect_timeout = Duration::from_secs(2);
    let joins = start_one(&readable, options(1).with_connect_timeout(connect_timeout));
    let error = error_of(&joins.handle().call(0, "echo").send_bytes("x"));
    assert!(
        matches!(&error, RpcError::NotSent { cause: NotSent::Excluded(cause), .. }
            if cause.contains("is not on its list of members, which it could not read again: ")),
        "{error:?}"
    );
}

/// The node of the members has disappeared silently: attempts to connect to them get no answer.
#[test]
fn a_new_process_calls_while_it_contacts_silent_members() {
    let store = shared_store();
    start_one(&store, options(0)).shutdown_now();
    let silent = (2..66).map(|id| RawWorker::join_list(&*store, id, &format!("silent{id}"), 5));
    let silent: Vec<RawWorker> = silent.collect();
    let caller = start_one(&store, options(0));
    until("it contacts members", || silent.iter().any(has_caller));
    let _callee = start_one(&store, options(1));
    let call = caller.handle().call(1, "echo").send_bytes("x");
    assert_eq!(call.wait_timeout(PATIENCE).unwrap().unwrap(), "x");
    // Each attempt takes 2 s, so the call did not wait for all of them.
    assert!(silent.iter().any(|member| !has_caller(member)));
}

fn has_caller(member: &RawWorker) -> bool {
    member.accept_within(Duration::ZERO).is_some()
}

#[track_caller]
fn error_of(call: &FutureMessage) -> RpcError {
    let ended = call.wait_timeout(PATIENCE).expect("the call completes");
    ended.unwrap_err()
}

#[track_caller]
fn assert_replaced(error: &RpcError) {
    assert!(
        matches!(error, RpcError::NotSent { cause: NotSent::Connect(cause), .. }
            if cause.contains("another worker has taken its place")),
        "{error:?}"
    );
    assert_eq!(error.outcome(), Outcome::NotExecuted);
}
