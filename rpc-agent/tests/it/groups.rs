//! Joining and leaving groups, over loopback and a shared store.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use c10d_store::{Store, StoreExt};
use rpc_agent::{
    Agent, AgentOptions, Destination, NotSent, Outcome, Registry, RetryOptions, RpcError,
    WorkerInfo,
};

use crate::common::{
    Held, PATIENCE, ask, assert_connection_lost, assert_reaches, begin, named, options, retry,
    shared_store, start_one, until, wait,
};
use crate::raw::{HELLO, MEMBER_LIST, REFUSE, REQUEST, RawWorker, WELCOME, connect};
use crate::raw::{await_closed, listed_address_of, read_frame, request, send, welcome};

fn start(store: &Arc<dyn Store>, options: AgentOptions) -> Agent {
    start_one(store, options, |_| {})
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
fn a_worker_finds_one_that_joins_later() {
    let store = shared_store();
    let first = start(&store, named("ps-0", 0));
    for to_late in ["ps-1", "ps-2"] {
        let error = ask(first.handle(), to_late, "echo", "").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("name:ps-0,rank:0 could not find destination name {to_late}")
        );
    }
    let second = start(&store, named("ps-1", 1));
    let third = start(&store, named("ps-2", 7));
    let calls: [(&Agent, Destination<'_>); 5] = [
        (&first, "ps-1".into()),
        (&second, 0.into()),
        (&first, 7.into()),
        (&second, third.handle().me().into()),
        (&third, "ps-1".into()),
    ];
    for (from, to) in calls {
        assert_reaches(from, to);
    }
    assert_eq!(
        first.handle().worker("ps-2").unwrap(),
        WorkerInfo::new("ps-2", 7).unwrap()
    );
}

#[test]
fn a_worker_that_left_is_no_longer_found() {
    let store = shared_store();
    let agents = [0, 1, 2].map(|rank| start(&store, options(rank)));
    let [first, second, third] = agents;
    let echo = |from: &Agent, to: Destination<'_>| ask(from.handle(), to, "echo", "x");
    assert_eq!(echo(&first, "worker1".into()).unwrap(), "x");
    second.shutdown(PATIENCE).unwrap();
    // A call that is sent before the Goodbye arrives gets no answer.
    until("the Goodbye has arrived", || {
        let error = echo(&first, "worker1".into()).unwrap_err();
        !matches!(error, RpcError::ConnectionLost { .. })
    });
    let (by_name, by_id) = (echo(&first, "worker1".into()), echo(&third, 1.into()));
    for (from, error) in [(0, by_name.unwrap_err()), (2, by_id.unwrap_err())] {
        let expected_text =
            format!("name:worker{from},rank:{from} could not find destination name worker1");
        assert!(error.to_string().contains(&expected_text), "{error}");
        assert_eq!(error.outcome(), Outcome::NotExecuted);
    }
    assert_eq!(echo(&first, 2.into()).unwrap(), "x");

    // New workers reuse its name and its id.
    let again = start(&store, named("worker1", 5));
    assert_eq!(echo(&first, "worker1".into()).unwrap(), "x");
    assert_eq!(
        first.handle().worker("worker1").unwrap(),
        *again.handle().me()
    );
    let other = start(&store, named("other", 1));
    assert_eq!(echo(&first, 1.into()).unwrap(), "x");
    assert_eq!(first.handle().worker(1).unwrap(), *other.handle().me());
    assert_eq!(echo(&third, "worker1".into()).unwrap(), "x");
}

/// A worker with two functions: the first answers with `incarnation`, the second is answered by the test through
/// `replies`.
fn start_incarnation(store: &Arc<dyn Store>, incarnation: u32, replies: &Held) -> Agent {
    start_one(store, options(1), |registry| {
        registry
            .register("incarnation", move |_, _| {
                Ok(incarnation.to_string().into_bytes())
            })
            .unwrap();
        replies.register(registry, "later");
    })
}

#[test]
fn a_restarted_worker_has_a_new_incarnation_and_connection() {
    let store = shared_store();
    let replies = Held::default();
    let first = start(&store, options(0));
    for incarnation in 1..=4 {
        let agent = start_incarnation(&store, incarnation, &replies);
        if incarnation == 3 {
            // The restarted worker makes the first call.
            assert_reaches(&agent, 0);
        }
        // A call that is sent before the previous incarnation's Goodbye arrives gets no answer.
        until("the new incarnation answers", || {
            let answer = ask(first.handle(), "worker1", "incarnation", "");
            answer.is_ok_and(|answer| answer == incarnation.to_string())
        });
        let pending = first.handle().call(1, "later").send_bytes("");
        replies.await_len(1);
        if incarnation % 2 == 0 {
            // The agent stops without leaving the member list.
            agent.shutdown_now();
        } else {
            replies.take();
            assert!(matches!(pending.wait(), Err(RpcError::Remote { .. })));
            agent.shutdown(PATIENCE).unwrap();
            continue;
        }
        let error = pending.wait().unwrap_err();
        assert_connection_lost(&error);
        assert_eq!(error.outcome(), Outcome::Unknown);
        // The next incarnation must not complete a pending call of the previous one.
        let next = start_incarnation(&store, incarnation * 10, &replies);
        let pending = first.handle().call(1, "later").send_bytes("");
        replies.await_len(2);
        let mut both = replies.take().into_iter();
        both.next().unwrap().send(Ok(&b"former"[..]));
        both.next().unwrap().send(Ok(&b"present"[..]));
        assert_eq!(pending.wait().unwrap(), "present");
        assert_eq!(
            ask(first.handle(), 1, "incarnation", "").unwrap(),
            (incarnation * 10).to_string()
        );
        next.shutdown(PATIENCE).unwrap();
    }
    let metrics = first.handle().metrics();
    assert_eq!((metrics.connections_opened, metrics.reconnects), (6, 5));
    assert_eq!((metrics.late_responses, metrics.calls_in_flight), (0, 0));
}

#[test]
fn calls_to_a_replaced_worker_fail_at_once() {
    let store = shared_store();
    let me = named("a", 0).with_connect_timeout(Duration::from_secs(3600));
    let agent = start(&store, me);
    let raw = RawWorker::join_list(&*store, 1, "b", 5);
    // The raw worker accepts the connection but sends no Welcome.
    let call = begin(agent.handle(), "b", "f", "x");
    let mut silent = raw.accept();
    assert_eq!(read_frame(&mut silent).kind, HELLO);
    let retries = RetryOptions::default().with_max_retries(1);
    let retries = retries.with_retry_duration(Duration::from_millis(1));
    let retries = retries.with_attempt_timeout(Duration::MAX);
    let retried = retry(agent.handle(), "b", "f", &retries, "x");

    let successor = RawWorker::join_list(&*store, 1, "c", 77);
    let mut link = dial_until_welcome(&successor, &*store);
    assert_replaced(&wait(&call).unwrap_err());
    // The second attempt makes no connection either.
    let error = wait(&retried).unwrap_err();
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
    let caller = start(&store, options(0));
    let stopped = RawWorker::join_list(&*store, 1, "worker1", 5);
    let call = |timeout| {
        let call = caller.handle().call("worker1", "echo");
        call.with_timeout(timeout).send_bytes("x")
    };
    let pending = call(None);
    let mut link = stopped.accept_link();
    assert_eq!(read_frame(&mut link).kind, REQUEST);

    let _present = start(&store, options(1));
    // The call fails because the successor has connected.
    let error = wait(&pending).unwrap_err();
    assert_connection_lost(&error);
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
    let caller = start(&store, options(0));
    let replies = Held::default();
    let former = start_incarnation(&store, 1, &replies);
    let to_caller = |agent: &Agent| ask(agent.handle(), 0, "echo", "x");
    let asked = || ask(caller.handle(), 1, "incarnation", "");
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
    let caller = start(&store, options(0));
    let call = |timeout: Duration| {
        let call = caller.handle().call("worker1", "echo");
        call.with_timeout(timeout).send_bytes("x")
    };
    let stopped = RawWorker::join_list(&*store, 1, "worker1", 5);
    let pending = call(PATIENCE);
    let mut link = stopped.accept_link();
    assert_eq!(read_frame(&mut link).kind, REQUEST);
    let present = RawWorker::join_list(&*store, 1, "worker1", 6);
    let error = wait(&call(Duration::from_secs(1))).unwrap_err();
    assert!(matches!(error, RpcError::Timeout { .. }), "{error:?}");
    // The agent has read the list, and closes the connection to the previous process.
    let error = wait(&pending).unwrap_err();
    assert_connection_lost(&error);
    let next = call(PATIENCE);
    let mut link = present.accept_link();
    assert_eq!(read_frame(&mut link).kind, REQUEST);
    drop((next, caller));
}

/// Another store simulates a network in which only the new process reaches the store.
#[test]
fn a_member_that_cannot_read_the_list_says_so_and_shows_that_it_lives() {
    let (store, readable) = (shared_store(), shared_store());
    let _member = start(&store, options(0));
    for key in ["rpcIsStaticGroup", MEMBER_LIST] {
        readable.set(key, store.get(key).unwrap()).unwrap();
    }
    store.set(MEMBER_LIST, b"garbage").unwrap();
    let connect_timeout = Duration::from_secs(2);
    let joins = start(&readable, options(1).with_connect_timeout(connect_timeout));
    let error = wait(&joins.handle().call(0, "echo").send_bytes("x")).unwrap_err();
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
    start(&store, options(0)).shutdown_now();
    let silent = (2..66).map(|id| RawWorker::join_list(&*store, id, &format!("silent{id}"), 5));
    let silent: Vec<RawWorker> = silent.collect();
    let caller = start(&store, options(0));
    until("it contacts members", || silent.iter().any(has_caller));
    let _callee = start(&store, options(1));
    let call = caller.handle().call(1, "echo").send_bytes("x");
    assert_eq!(call.wait_timeout(PATIENCE).unwrap().unwrap(), "x");
    // Each attempt takes 2 s, so the call did not wait for all of them.
    assert!(silent.iter().any(|member| !has_caller(member)));
}

fn has_caller(member: &RawWorker) -> bool {
    member.accept_within(Duration::ZERO).is_some()
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
