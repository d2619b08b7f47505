//! Killed workers and lost connections: how their calls fail, and how workers reconnect.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::{env, thread};

use c10d_sim::Proxy;
use c10d_store::{ServerOptions, Store, TcpStore, TcpStoreServer};
use rpc_agent::{Agent, AgentHandle, FutureMessage, NotSent, Outcome, RpcError, WorkerInfo};

use crate::common::{
    Held, PATIENCE, ask, assert_reaches, begin, noise, options, shared_store, start_one, until,
    wait,
};
use crate::raw::{address_of, publish};

/// Environment variable with the world size (0: a dynamic group) and the store's port, for the process of worker 1.
const PART: &str = "RPC_AGENT_TEST_WORKER";

/// A worker in a child process.
struct WorkerProcess {
    child: Child,
    /// The child process exits when this pipe closes.
    _stdin: ChildStdin,
}

impl WorkerProcess {
    fn start(world_size: u32, store: &TcpStoreServer) -> Self {
        let port = store.local_addr().port();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "peer_death::worker_process", "--nocapture"])
            .env(PART, format!("{world_size} {port}"))
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
    let (world_size, port) = part.split_once(' ').unwrap();
    let store = TcpStore::connect("127.0.0.1", port.parse().unwrap()).unwrap();
    let (held, world_size) = (Held::default(), world_size.parse().unwrap());
    let agent = start_holding(&held, 1, world_size, Arc::new(store));
    println!("worker started");
    let _ = io::stdin().read_to_end(&mut Vec::new());
    drop(agent);
}

/// Makes calls of `hold` without timeouts, and waits until they have arrived.
fn hold(agent: &AgentHandle, worker: &str, count: usize) -> Vec<FutureMessage> {
    let calls = (0..count).map(|_| begin(agent, worker, "hold", ""));
    let calls = calls.collect();
    // Requests arrive in order, so the calls of `hold` have arrived.
    assert_eq!(ask(agent, worker, "echo", "here").unwrap(), "here");
    calls
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

/// Starts a worker whose calls of `hold` the test answers. A world size of 0 means a dynamic group.
fn start_holding(held: &Held, rank: u32, world_size: u32, store: Arc<dyn Store>) -> Agent {
    let options = match world_size {
        0 => options(rank),
        _ => options(rank).with_world_size(world_size),
    };
    start_one(&store, options, |registry| held.register(registry, "hold"))
}

/// Starts the workers of `ranks` concurrently.
fn start_group<const N: usize>(
    held: &Held,
    ranks: [u32; N],
    world_size: u32,
    store: &Arc<dyn Store>,
) -> [Agent; N] {
    thread::scope(|scope| {
        let starting = ranks.map(|rank| {
            let store = Arc::clone(store);
            scope.spawn(move || start_holding(held, rank, world_size, store))
        });
        starting.map(|agent| agent.join().unwrap())
    })
}

fn store_server() -> (TcpStoreServer, Arc<dyn Store>) {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).unwrap();
    (server, Arc::new(store))
}

#[test]
fn exactly_the_calls_in_flight_to_a_killed_worker_fail_at_once() {
    let (server, store) = store_server();
    let mut process = WorkerProcess::start(3, &server);
    let held = Held::default();
    let [agent, _other] = start_group(&held, [0, 2], 3, &store);
    process.await_started();
    let losses = losses(agent.handle());
    let doomed = hold(agent.handle(), "worker1", 20);
    let others = hold(agent.handle(), "worker2", 5);
    held.await_len(5);
    process.kill();
    for call in &doomed {
        // The calls have no timeout, so only the death of the worker can end them.
        assert_lost(&wait(call).unwrap_err(), "worker1");
    }
    let (peer, cause) = losses.recv_timeout(PATIENCE).unwrap();
    assert_eq!(peer, WorkerInfo::new("worker1", 1).unwrap());
    assert!(cause.contains("lost"), "{cause}");

    // The next call fails because the connection is refused.
    let next = begin(agent.handle(), "worker1", "echo", vec![]);
    assert_connection_refused(&wait(&next).unwrap_err());

    // Calls to another worker are unaffected.
    assert_reaches(&agent, "worker2");
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
fn a_restarted_worker_is_reachable_under_its_name() {
    let (server, store) = store_server();
    let agent = start_one(&store, options(0), |_| {});
    let losses = losses(agent.handle());
    for life in 0..3 {
        let mut process = WorkerProcess::start(0, &server);
        process.await_started();
        let calls = hold(agent.handle(), "worker1", 3);
        process.kill();
        for call in &calls {
            assert_lost(&wait(call).unwrap_err(), "worker1");
        }
        let (peer, _) = losses.recv_timeout(PATIENCE).unwrap();
        assert_eq!(peer.name.as_str(), "worker1", "life {life}");
        let next = begin(agent.handle(), "worker1", "echo", vec![]);
        assert_connection_refused(&wait(&next).unwrap_err());
    }
    assert_eq!(agent.handle().metrics().reconnects, 2);
    assert!(losses.try_recv().is_err());
}

/// Two agents. The first one reaches the second one through the proxy.
fn group_with_proxy() -> (Agent, Agent, Held, Proxy) {
    let store = shared_store();
    let held = Held::default();
    let [agent, peer] = start_group(&held, [0, 1], 2, &store);
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
        assert_reaches(&agent, "worker1");
        assert_reaches(&peer, "worker0");
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
    assert_reaches(&agent, "worker1");
    proxy.allow(1 << 20);
    // The calls exceed the socket buffers and the proxy's limit, so some stay queued in the agent.
    let payload = noise(1, 16 << 20);
    let calls: Vec<_> = (0..40)
        .map(|_| begin(agent.handle(), "worker1", "echo", payload.clone()))
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
    assert_reaches(&agent, "worker1");
}
