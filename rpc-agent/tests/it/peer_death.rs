//! Killed workers and lost connections: how their calls fail, and how workers reconnect.

use std::env;
use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use c10d_sim::Proxy;
use c10d_store::{ServerOptions, Store, TcpStore, TcpStoreServer};
use rpc_agent::{
    Agent, AgentHandle, FutureMessage, NotSent, Outcome, Registry, Reply, RpcError,
    TerminationError, WorkerInfo,
};

use crate::common::{PATIENCE, noise, registry, shared_store, start_all, until};
use crate::raw::{REQUEST, RESPONSE, RawWorker, address_of, frame, publish, read_frame, send};

/// Environment variable with the arguments of a child process: rank, world size (0: dynamic group), store
/// port.
const PART: &str = "RPC_AGENT_TEST_WORKER";

/// A worker in a child process.
struct WorkerProcess {
    child: Child,
    /// The child process exits when this pipe closes.
    _stdin: ChildStdin,
}

impl WorkerProcess {
    fn start(rank: u32, world_size: u32, store: &TcpStoreServer) -> Self {
        let port = store.local_addr().port();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "peer_death::worker_process", "--nocapture"])
            .env(PART, format!("{rank} {world_size} {port}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        Self {
            child,
            _stdin: stdin,
        }
    }

    /// Waits until the child's agent has started.
    fn await_started(&mut self) {
        let mut lines = BufReader::new(self.child.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.unwrap().contains("worker started")),
            "the process has ended"
        );
    }

    /// Kills it with SIGKILL.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Main function of the child processes; not a test.
#[test]
#[expect(clippy::print_stdout, reason = "its parent reads it")]
fn worker_process() {
    let Ok(part) = env::var(PART) else { return };
    let numbers: Vec<u32> = part.split(' ').map(|word| word.parse().unwrap()).collect();
    let [rank, world_size, port] = numbers[..] else {
        panic!("{part:?}");
    };
    let store = TcpStore::connect("127.0.0.1", u16::try_from(port).unwrap()).unwrap();
    let mut options = crate::common::options(rank);
    if world_size > 0 {
        options = options.with_world_size(world_size);
    }
    let held = Held::default();
    let agent = Agent::start(options, held.registry(), Arc::new(store)).unwrap();
    println!("worker started");
    let _ = io::stdin().read_to_end(&mut Vec::new());
    drop(agent);
}

/// Unanswered calls of the function `hold`. The test answers them.
#[derive(Debug, Clone, Default)]
struct Held(Arc<Mutex<Vec<Reply>>>);

impl Held {
    fn registry(&self) -> Registry {
        let held = self.clone();
        registry(|registry| {
            registry
                .register_deferred("hold", move |_, _, reply| {
                    held.0.lock().unwrap().push(reply);
                })
                .unwrap();
        })
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn answer_all(&self) {
        for reply in std::mem::take(&mut *self.0.lock().unwrap()) {
            reply.send(Ok("answered"));
        }
    }
}

/// Makes calls of `hold` without timeouts, and waits until they have arrived.
fn hold(agent: &AgentHandle, worker: &str, count: usize) -> Vec<FutureMessage> {
    let calls: Vec<_> = (0..count)
        .map(|_| {
            agent
                .call(worker, "hold")
                .with_timeout(None)
                .send_bytes(vec![])
        })
        .collect();
    // Requests arrive in order, so the calls of `hold` have arrived.
    assert_eq!(echo(agent, worker).unwrap(), "here");
    calls
}

fn echo(agent: &AgentHandle, worker: &str) -> Result<Bytes, RpcError> {
    agent
        .call(worker, "echo")
        .with_timeout(PATIENCE)
        .send_bytes("here")
        .wait()
}

#[track_caller]
fn wait(future: &FutureMessage) -> Result<Bytes, RpcError> {
    future.wait_timeout(PATIENCE).expect("the call completes")
}

/// Receives the worker and the cause of each `on_peer_lost`.
fn losses(agent: &AgentHandle) -> Receiver<(WorkerInfo, String)> {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    agent.on_peer_lost(move |peer, cause| {
        let _ = sender
            .lock()
            .unwrap()
            .send((peer.clone(), cause.to_owned()));
    });
    receiver
}

#[track_caller]
fn assert_lost(error: &RpcError, worker: &str) {
    assert!(
        matches!(error, RpcError::ConnectionLost { .. }),
        "{error:?}"
    );
    assert_eq!(error.outcome(), Outcome::Unknown);
    assert_eq!(error.call().unwrap().to.name.as_str(), worker);
    let error_text = error.to_string();
    assert!(
        error_text.contains(worker) && error_text.contains("outcome unknown"),
        "{error_text}"
    );
}

/// Asserts the error of a call to a worker whose process has exited.
#[track_caller]
fn assert_connection_refused(error: &RpcError) {
    assert!(
        matches!(
            error,
            RpcError::NotSent { cause: NotSent::Connect(cause), .. }
                if cause.to_lowercase().contains("refused")
        ),
        "{error:?}"
    );
    assert_eq!(error.outcome(), Outcome::NotExecuted);
}

fn store_server() -> (TcpStoreServer, Arc<dyn Store>) {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).unwrap();
    (server, Arc::new(store))
}

/// A static group of three: agents with ranks 0 and 2 here, and a child process with rank 1.
fn group_with_process() -> (Vec<Agent>, Held, WorkerProcess, TcpStoreServer) {
    let (server, store) = store_server();
    let mut process = WorkerProcess::start(1, 3, &server);
    let held = Held::default();
    let workers = [0, 2].map(|rank| {
        (
            crate::common::options(rank).with_world_size(3),
            held.registry(),
        )
    });
    let agents = start_all(&store, workers.into());
    let agents = agents.into_iter().map(Result::unwrap).collect();
    process.await_started();
    (agents, held, process, server)
}

#[test]
fn exactly_the_calls_in_flight_to_a_killed_worker_fail_at_once() {
    let (agents, held, mut process, _server) = group_with_process();
    let agent = &agents[0];
    let losses = losses(agent.handle());
    let doomed = hold(agent.handle(), "worker1", 20);
    let others = hold(agent.handle(), "worker2", 5);
    until("the other calls run", || held.len() == 5);
    process.kill();
    for call in &doomed {
        // The calls have no timeout, so only the death of the worker can end them.
        assert_lost(&wait(call).unwrap_err(), "worker1");
    }
    let (peer, cause) = losses.recv_timeout(PATIENCE).unwrap();
    assert_eq!(peer, WorkerInfo::new("worker1", 1).unwrap());
    assert!(cause.contains("lost"), "{cause}");

    // The next call fails because the connection is refused.
    let next = agent
        .handle()
        .call("worker1", "echo")
        .with_timeout(None)
        .send_bytes(vec![]);
    assert_connection_refused(&wait(&next).unwrap_err());

    // Calls to another worker are unaffected.
    assert_eq!(echo(agent.handle(), "worker2").unwrap(), "here");
    assert!(others.iter().all(|call| !call.is_complete()));
    held.answer_all();
    for call in &others {
        assert_eq!(wait(call).unwrap(), "answered");
    }
    // A refused dial does not count as another loss.
    assert_eq!(losses.try_recv(), Err(mpsc::TryRecvError::Empty));
    let metrics = agent.handle().metrics();
    assert_eq!((metrics.connections_lost, metrics.calls_in_flight), (1, 0));
}

#[test]
fn coordinated_shutdown_fails_soon_and_names_the_killed_worker() {
    let (agents, _held, mut process, _server) = group_with_process();
    assert_eq!(echo(agents[0].handle(), "worker1").unwrap(), "here");
    process.kill();
    // No timeout.
    let error = agents[0].shutdown(None).unwrap_err();
    assert!(
        matches!(&error, TerminationError::WorkersDead { dead, .. }
            if dead.first() == [WorkerInfo::new("worker1", 1).unwrap()]),
        "{error:?}"
    );
    assert!(error.to_string().contains("worker1 (id 1)"), "{error}");
}

#[test]
fn a_restarted_worker_is_reachable_under_its_name() {
    let (server, store) = store_server();
    let agent = Agent::start(crate::common::options(0), registry(|_| {}), store).unwrap();
    let losses = losses(agent.handle());
    for life in 0..3 {
        let mut process = WorkerProcess::start(1, 0, &server);
        process.await_started();
        let calls = hold(agent.handle(), "worker1", 3);
        process.kill();
        for call in &calls {
            assert_lost(&wait(call).unwrap_err(), "worker1");
        }
        let (peer, _) = losses.recv_timeout(PATIENCE).unwrap();
        assert_eq!(peer.name.as_str(), "worker1", "life {life}");
        let next = agent
            .handle()
            .call("worker1", "echo")
            .with_timeout(None)
            .send_bytes(vec![]);
        assert_connection_refused(&wait(&next).unwrap_err());
    }
    assert_eq!(agent.handle().metrics().reconnects, 2);
    assert!(losses.try_recv().is_err());
}

/// Two agents. The first one reaches the second one through the proxy.
fn group_with_proxy() -> (Agent, Agent, Held, Proxy) {
    let store = shared_store();
    let held = Held::default();
    let workers = [0, 1].map(|rank| {
        (
            crate::common::options(rank).with_world_size(2),
            held.registry(),
        )
    });
    let agents = start_all(&store, workers.into());
    let mut agents = agents.into_iter().map(Result::unwrap);
    let (agent, peer) = (agents.next().unwrap(), agents.next().unwrap());
    let (address, incarnation) = address_of(&*store, 1);
    let proxy = Proxy::to(address);
    publish(&*store, 1, "worker1", proxy.port(), incarnation);
    (agent, peer, held, proxy)
}

#[test]
fn a_cut_connection_fails_its_calls_and_is_reestablished() {
    let (agent, peer, held, proxy) = group_with_proxy();
    let (here, there) = (losses(agent.handle()), losses(peer.handle()));
    for round in 1..=5_u64 {
        let calls = hold(agent.handle(), "worker1", 10);
        let back = hold(peer.handle(), "worker0", 10);
        proxy.cut(false);
        for call in &calls {
            assert_lost(&wait(call).unwrap_err(), "worker1");
        }
        for call in &back {
            assert_lost(&wait(call).unwrap_err(), "worker0");
        }
        // The next dial may arrive before or after the peer detects the loss. In both cases the peers make
        // one connection, and the callback has run once for the lost one.
        assert_eq!(
            here.recv_timeout(PATIENCE).unwrap().0.name.as_str(),
            "worker1"
        );
        assert_eq!(
            there.recv_timeout(PATIENCE).unwrap().0.name.as_str(),
            "worker0"
        );
        assert_eq!(echo(agent.handle(), "worker1").unwrap(), "here");
        assert_eq!(echo(peer.handle(), "worker0").unwrap(), "here");
        assert_eq!(agent.handle().metrics().reconnects, round);
        assert_eq!(peer.handle().metrics().reconnects, round);
        // Late answers to lost calls are dropped.
        held.answer_all();
    }
    assert!(here.try_recv().is_err());
    assert!(there.try_recv().is_err());
    assert_eq!(agent.handle().metrics().calls_in_flight, 0);
    assert_eq!(peer.handle().metrics().calls_in_flight, 0);
    until("no request is left", || {
        peer.handle().metrics().requests_active == 0
    });
}

#[test]
fn a_partly_sent_request_is_unknown_and_a_queued_one_is_not_executed() {
    let (agent, _peer, _held, proxy) = group_with_proxy();
    assert_eq!(echo(agent.handle(), "worker1").unwrap(), "here");
    proxy.allow(1 << 20);
    // The calls exceed the socket buffers and the proxy's limit, so some stay queued in the agent.
    let payload = noise(1, 16 << 20);
    let calls: Vec<_> = (0..40)
        .map(|_| {
            agent
                .handle()
                .call("worker1", "echo")
                .with_timeout(None)
                .send_bytes(payload.clone())
        })
        .collect();
    proxy.wait_until_used();
    proxy.allow_all();
    let outcomes: Vec<_> = calls
        .iter()
        .map(|call| {
            let error = wait(call).unwrap_err();
            match error {
                RpcError::ConnectionLost { .. } => {}
                RpcError::NotSent {
                    cause: NotSent::ConnectionLost(_) | NotSent::Backlog { .. },
                    ..
                } => {}
                _ => panic!("{error:?}"),
            }
            error.outcome()
        })
        .collect();
    assert_eq!(outcomes[0], Outcome::Unknown, "a part of it was sent");
    assert_eq!(outcomes[39], Outcome::NotExecuted, "none of it was sent");
    // Sent calls precede unsent ones.
    assert!(outcomes.is_sorted_by_key(|outcome| *outcome == Outcome::NotExecuted));
    assert_eq!(echo(agent.handle(), "worker1").unwrap(), "here");
}

#[test]
fn a_partial_frame_counts_as_sent_for_the_sender_and_is_ignored_by_the_receiver() {
    let store = shared_store();
    let raw = RawWorker::join(&*store, 1, "worker1", 5);
    let held = Held::default();
    let workers = vec![(
        crate::common::options(0).with_world_size(2),
        held.registry(),
    )];
    let agent = start_all(&store, workers).pop().unwrap().unwrap();

    // The receiver ignores a partial request.
    let mut socket: TcpStream = raw.dial(&*store, 0, 0);
    let request = crate::raw::request(1, "hold", &[1; 100]);
    send(&mut socket, &request);
    send(&mut socket, &request[..60]);
    until("the complete request runs", || held.len() == 1);
    drop(socket);
    until("the connection is lost", || {
        agent.handle().metrics().connections_lost == 1
    });
    assert_eq!(agent.handle().metrics().requests_received, 1);

    // A partial answer does not complete the call; the outcome stays unknown.
    let call = agent
        .handle()
        .call("worker1", "f")
        .with_timeout(None)
        .send_bytes(vec![]);
    let mut socket = raw.accept_link();
    let id = read_frame(&mut socket).id;
    let answer = frame(RESPONSE, 0, 0, id, &[1; 100]);
    send(&mut socket, &answer[..60]);
    drop(socket);
    assert_lost(&wait(&call).unwrap_err(), "worker1");

    // The same holds for a request that was read but not answered.
    let call = agent
        .handle()
        .call("worker1", "f")
        .with_timeout(None)
        .send_bytes(vec![]);
    let mut socket = raw.accept_link();
    assert_eq!(read_frame(&mut socket).kind, REQUEST);
    drop(socket);
    assert_lost(&wait(&call).unwrap_err(), "worker1");
}

#[test]
fn calls_wait_for_a_dial_and_fail_together_if_it_is_refused() {
    let store = shared_store();
    let raw = RawWorker::join(&*store, 1, "worker1", 5);
    let workers = vec![(
        crate::common::options(0).with_world_size(2),
        registry(|_| {}),
    )];
    let agent = start_all(&store, workers).pop().unwrap().unwrap();
    let call = |payload: Vec<u8>| {
        agent
            .handle()
            .call("worker1", "f")
            .with_timeout(None)
            .send_bytes(payload)
    };
    // The calls are queued during the dial, and sent after the Welcome.
    let early: Vec<_> = (0..10).map(|number| call(vec![number])).collect();
    let mut socket = raw.accept_link();
    for number in 0..10 {
        let request = read_frame(&mut socket);
        assert_eq!(request.body[5..], [number]);
        send(&mut socket, &frame(RESPONSE, 0, 0, request.id, &[number]));
    }
    for (number, call) in (0_u8..).zip(&early) {
        assert_eq!(wait(call).unwrap(), vec![number]);
    }
    // The worker stops and does not return.
    let late: Vec<_> = (0..10).map(|number| call(vec![number])).collect();
    let requests: Vec<_> = (0..10).map(|_| read_frame(&mut socket).kind).collect();
    assert_eq!(requests, [REQUEST; 10]);
    drop(raw);
    drop(socket);
    for call in &late {
        assert_lost(&wait(call).unwrap_err(), "worker1");
    }
    let after: Vec<_> = (0..10).map(|number| call(vec![number])).collect();
    for call in &after {
        assert_connection_refused(&wait(call).unwrap_err());
    }
}
