//! Dials that are interrupted by other connections, refused, or not answered.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use c10d_store::{Store, StoreExt};
use rpc_agent::{Agent, AgentHandle, FutureMessage, NotSent, Outcome, RpcError};

use crate::common::{
    PATIENCE, agent_and_raw, ask, assert_connection_lost, begin, named, registry, shared_store,
    start_all, until, wait,
};
use crate::raw::{GOODBYE, HELLO, REQUEST, RESPONSE, RawFrame, RawWorker};
use crate::raw::{frame, links_of, read_frame, send, welcome};

/// Starts the agents of a static group. Raw workers, played by the tests, fill the other ranks.
fn start(store: &Arc<dyn Store>, world_size: u32, workers: &[(&str, u32)]) -> Vec<Agent> {
    let workers = workers.iter().map(|(name, rank)| {
        let options = named(name, *rank).with_world_size(world_size);
        (options, registry(|_| {}))
    });
    let agents = start_all(store, workers.collect());
    agents.into_iter().map(Result::unwrap).collect()
}

fn call(agent: &AgentHandle, worker: &str) -> FutureMessage {
    begin(agent, worker, "f", "x")
}

/// Accepts the next Hello for a raw worker. A dialer that no longer needs the connection closes it without
/// a Hello.
fn next_hello(worker: &RawWorker) -> (TcpStream, RawFrame) {
    loop {
        let socket = worker.accept_within(PATIENCE);
        let mut socket = socket.expect("the worker is dialed");
        if has_data(&socket) {
            let hello = read_frame(&mut socket);
            assert_eq!(hello.kind, HELLO);
            return (socket, hello);
        }
    }
}

/// Sends a Welcome and reads the first request. On a loaded machine, the attempt may time out before the
/// Welcome arrives; then the dialer makes another attempt.
fn first_request(
    worker: &RawWorker,
    (mut socket, mut hello): (TcpStream, RawFrame),
) -> (TcpStream, RawFrame) {
    loop {
        let _ = socket.write_all(&welcome(worker.incarnation, links_of(&hello) + 1));
        if has_data(&socket) {
            let asked = read_frame(&mut socket);
            return (socket, asked);
        }
        (socket, hello) = next_hello(worker);
    }
}

fn has_data(socket: &TcpStream) -> bool {
    socket.peek(&mut [0]).is_ok_and(|bytes| bytes > 0)
}

#[test]
fn a_dial_overtaken_by_a_connection_does_not_disturb_the_next_dial() {
    /// Refuse reason after which the dialer dials again after a pause.
    const USE_THE_OTHER: u8 = 3;
    let store = shared_store();
    // The raw worker has the lower id, so the agent accepts its connection during the agent's own dial.
    let raw = RawWorker::join(&*store, 0, "raw", 5);
    let pace = RawWorker::join(&*store, 2, "pace", 6);
    let agent = start(&store, 3, &[("agent", 1)]).remove(0);
    // Two dials on two threads; both have reached the same pause.
    let (first, _paced) = (call(agent.handle(), "raw"), call(agent.handle(), "pace"));
    for _ in 0..4 {
        raw.refuse(USE_THE_OTHER);
        pace.refuse(USE_THE_OTHER);
    }
    // Before the next attempt is due, the worker connects to the agent and closes that connection.
    let mut link = raw.dial(&*store, 1, 0);
    assert_eq!(read_frame(&mut link).kind, REQUEST);
    drop(link);
    assert_connection_lost(&wait(&first).unwrap_err());

    let second = call(agent.handle(), "raw");
    let mut dialed = next_hello(&raw);
    while links_of(&dialed.1) == 0 {
        // The agent sent this Hello before the worker connected.
        dialed = next_hello(&raw);
    }
    // Three pauses of one dial are longer than one pause of the other dial, for any jitter. So the outdated
    // attempt has come due.
    for _ in 0..3 {
        pace.refuse(USE_THE_OTHER);
    }
    let (mut link, asked) = first_request(&raw, dialed);
    send(&mut link, &frame(RESPONSE, 0, 0, asked.id, b"ok"));
    assert_eq!(wait(&second).unwrap(), "ok");

    // Later dials work as well.
    drop(link);
    until("the connection is lost", || {
        agent.handle().metrics().connections_lost == 2
    });
    let third = call(agent.handle(), "raw");
    let (mut link, asked) = first_request(&raw, next_hello(&raw));
    send(&mut link, &frame(RESPONSE, 0, 0, asked.id, b"again"));
    assert_eq!(wait(&third).unwrap(), "again");
}

#[test]
fn a_silent_worker_does_not_delay_dials_of_others() {
    // The attempt to connect to the silent worker times out after two seconds. On a loaded machine, an
    // attempt may time out before the other call is answered; therefore the test repeats this.
    let is_answered_meanwhile = || {
        let store = shared_store();
        let silent = RawWorker::join(&*store, 3, "silent", 5);
        let names = [("agent", 0), ("known", 1), ("other", 2)];
        let agents = start(&store, 4, &names);
        let agent = agents[0].handle();
        // When the last of these calls is answered, the thread that dialed is idle.
        for _ in 0..20 {
            ask(agent, "known", "echo", "x").unwrap();
        }
        let _held = call(agent, "silent");
        assert_eq!(ask(agent, "other", "echo", "x").unwrap(), "x");
        let mut socket = silent.accept();
        assert_eq!(read_frame(&mut socket).kind, HELLO);
        socket.set_nonblocking(true).unwrap();
        let read = socket.read(&mut [0]);
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    // The operating system decides whether the same idle thread takes both dials, so each try has several
    // rounds.
    assert!((0..3).any(|_| (0..6).all(|_| is_answered_meanwhile())));
}

#[test]
fn a_call_without_a_timeout_fails_if_the_store_does_not_answer() {
    for record in [Some("what is this"), None] {
        let connect_timeout = Duration::from_millis(50);
        let (agent, _raw, store) =
            agent_and_raw(|options| options.with_connect_timeout(connect_timeout));
        match record {
            Some(record) => store.set("names/1", record.as_bytes()).unwrap(),
            None => assert!(store.delete_key("names/1").unwrap()),
        }
        let error = wait(&call(agent.handle(), "worker1")).unwrap_err();
        assert!(
            matches!(
                error,
                RpcError::NotSent {
                    cause: NotSent::Connect(_),
                    ..
                }
            ),
            "{record:?}: {error:?}"
        );
        assert_eq!(error.outcome(), Outcome::NotExecuted);
    }
}

#[test]
fn a_goodbye_right_after_the_welcome_counts_as_leaving() {
    let (agent, raw, _store) = agent_and_raw(|options| options);
    let call = call(agent.handle(), "worker1");
    let mut socket = raw.accept();
    assert_eq!(read_frame(&mut socket).kind, HELLO);
    let goodbye = frame(GOODBYE, 0, 0, 0, b"");
    let both = [welcome(raw.incarnation, 1), goodbye].concat();
    send(&mut socket, &both);
    let error = wait(&call).unwrap_err();
    // After its Goodbye, a worker does not read requests.
    assert_eq!(error.outcome(), Outcome::NotExecuted, "{error}");
    assert_eq!(agent.handle().metrics().connections_lost, 0);
}
