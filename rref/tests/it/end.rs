//! Shutdown: leak reports, reference cycles, order, and workers that die.

use std::env;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{ServerOptions, Store, TcpStore, TcpStoreServer};
use rpc_agent::HandlerError;
use rref::{Functions, MissingKind, RRef, RRefError, ShutdownError};
use serde::{Deserialize, Serialize};

use crate::common::{
    Alive, Counted, Gate, PATIENCE, Worker, functions, group, group_that_has, group_with, make,
    options, quick, remote_number, shut_down, start, stop, until,
};

/// A value that can refer to another value.
#[derive(Serialize, Deserialize)]
struct Node {
    next: Mutex<Option<RRef<Self>>>,
}

fn node_functions(functions: &mut Functions) {
    functions
        .register("node", |_, ()| {
            Ok(Node {
                next: Mutex::default(),
            })
        })
        .unwrap();
    functions
        .register_method("set next", |_, node: &Node, next: RRef<Node>| {
            *node.next.lock().unwrap() = Some(next);
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_report_names_each_value_its_holders_and_their_ages() {
    let workers = group(2);
    assert!(workers[1].rrefs.leak_report().unwrap().is_empty());
    let held = remote_number(&workers, 1);
    held.wait_ready(Some(PATIENCE)).unwrap();
    let own = workers[1].rrefs.rref(2_i64).unwrap();
    let report = workers[1].rrefs.leak_report().unwrap();
    let of_held = report.values.iter().find(|value| value.rref == held.id());
    let of_held = of_held.expect("the value is held");
    assert_eq!(of_held.type_name.as_deref(), Some("i64"));
    assert_eq!(of_held.handles, 0);
    assert_eq!(of_held.held_by.len(), 1);
    assert_eq!(of_held.held_by[0].worker.name.as_str(), "worker0");
    assert_eq!(Some(of_held.held_by[0].fork), held.fork_id());
    let of_own = report.values.iter().find(|value| value.rref == own.id());
    assert_eq!(of_own.map(|value| value.handles), Some(1));
    assert!(
        report
            .to_string()
            .contains("on WorkerInfo(id=0, name=worker0) for")
    );
    // The shutdown reports and frees the same values.
    let reports = shut_down(&workers);
    assert_eq!((reports[0].values.len(), reports[1].values.len()), (0, 2));
}

#[test]
fn cycles_over_workers_are_freed_by_the_shutdown() {
    let workers = group_that_has(3, node_functions);
    let nodes: Vec<RRef<Node>> = ["worker0", "worker1", "worker2"]
        .map(|worker| make(&workers[0], worker, "node", ()))
        .into();
    for (place, node) in nodes.iter().enumerate() {
        let next = &nodes[(place + 1) % nodes.len()];
        node.call("set next").run::<_, ()>(next).unwrap();
    }
    drop(nodes);
    let reports = shut_down(&workers);
    for report in reports {
        assert_eq!(report.values.len(), 1, "{report}");
    }
}

#[test]
fn a_shutdown_names_the_workers_that_do_not_call_it() {
    let workers = group(2);
    let short = Duration::from_millis(300);
    let error = workers[0]
        .rrefs
        .shutdown(&workers[0].agent, Some(short))
        .unwrap_err();
    assert!(matches!(error, ShutdownError::Barrier(_)), "{error}");
    assert!(error.to_string().contains("worker1"), "{error}");
    stop(&workers);
}

#[test]
fn leaving_names_the_workers_that_hold_values() {
    let workers = group(2);
    let held: RRef<i64> = make(&workers[1], "worker0", "number", 1_i64);
    held.wait_ready(Some(PATIENCE)).unwrap();
    let error = workers[0]
        .rrefs
        .leave(Some(Duration::from_millis(200)))
        .unwrap_err();
    let ShutdownError::Missing {
        missing, report, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(
        missing.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["WorkerInfo(id=1, name=worker1): 1 references to values of this worker"]
    );
    assert_eq!(missing[0].what, MissingKind::References);
    assert_eq!(report.values.len(), 1);
    // Until then, the value can be used. `leave` succeeds as soon as the other worker drops the reference.
    assert_eq!(held.to_here(Some(PATIENCE)).unwrap(), 1);
    drop(held);
    workers[0].rrefs.leave(Some(PATIENCE)).unwrap();
    workers[1].rrefs.leave(Some(PATIENCE)).unwrap();
    stop(&workers);
}

/// Environment variable with the store's port for a child process.
const PART: &str = "RREF_TEST_WORKER";

/// Worker 1 of two, in a child process.
struct WorkerProcess {
    child: Child,
    /// The child process exits when this pipe closes.
    _stdin: ChildStdin,
    lines: io::Lines<BufReader<ChildStdout>>,
}

impl WorkerProcess {
    fn start(store: &TcpStoreServer) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "end::worker_process", "--nocapture"])
            .env(PART, store.local_addr().port().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            _stdin: stdin,
            lines,
        }
    }

    fn await_started(&mut self) {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        assert!(lines.any(|line| line.contains("worker started")));
    }

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

fn start_worker(rank: u32, port: u16, functions: Functions) -> Worker {
    let store: Arc<dyn Store> = Arc::new(TcpStore::connect("127.0.0.1", port).unwrap());
    let options = options(&format!("worker{rank}"), rank)
        .with_world_size(2)
        .with_connect_timeout(Duration::from_secs(1));
    start(&store, options, functions, &quick())
}

/// Main function of the child process; not a test.
#[test]
#[expect(clippy::print_stdout, reason = "its parent reads it")]
fn worker_process() {
    let Ok(port) = env::var(PART) else { return };
    let held: Mutex<Vec<RRef<Counted>>> = Mutex::default();
    let functions = functions(|functions| {
        functions
            .register("hold", move |_, counted: RRef<Counted>| {
                held.lock().unwrap().push(counted);
                Ok(())
            })
            .unwrap();
        functions
            .register("never", |_, ()| -> Result<i64, HandlerError> {
                thread::sleep(PATIENCE);
                Ok(0)
            })
            .unwrap();
    });
    let worker = start_worker(1, port.parse().unwrap(), functions);
    println!("worker started");
    let _ = io::stdin().read_to_end(&mut Vec::new());
    drop(worker);
}

#[test]
fn a_killed_workers_references_are_released_and_its_values_are_lost_at_once() {
    let store = TcpStoreServer::bind(("127.0.0.1", 0), ServerOptions::default()).unwrap();
    let mut other = WorkerProcess::start(&store);
    let port = store.local_addr().port();
    let Worker { agent, rrefs } = start_worker(0, port, functions(|_| {}));
    other.await_started();

    // The other worker holds a value of this worker, and this worker holds a value of the other worker.
    let alive = Alive::default();
    let lent = rrefs.rref_opaque(Counted::new(&alive)).unwrap();
    rrefs.call("worker1", "hold").run::<_, ()>(&lent).unwrap();
    drop(lent);
    until("the handle is dropped", || {
        rrefs
            .leak_report()
            .unwrap()
            .values
            .iter()
            .all(|value| value.handles == 0)
    });
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    let lost: RRef<i64> = rrefs.call("worker1", "number").remote(3_i64).unwrap();
    assert_eq!(lost.to_here(Some(PATIENCE)).unwrap(), 3);
    let never: RRef<i64> = rrefs.call("worker1", "never").remote(()).unwrap();
    let waiting = never.fetch(None).unwrap();

    let began = Instant::now();
    other.kill();
    let error = waiting.wait().unwrap_err();
    assert!(matches!(error, RRefError::OwnerLost { .. }), "{error}");
    assert!(error.to_string().contains("name=worker1"), "{error}");
    until("the value that the dead worker held is freed", || {
        alive.load(Ordering::SeqCst) == 0
    });
    for error in [
        lost.to_here(None).unwrap_err(),
        never.wait_ready(Some(Duration::ZERO)).unwrap_err(),
        lost.call("sum").run::<_, i64>(()).unwrap_err(),
    ] {
        assert!(matches!(error, RRefError::OwnerLost { .. }), "{error}");
    }
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    drop((lost, never));
    until("all entries of the dead worker are removed", || {
        let sizes = rrefs.sizes().unwrap();
        sizes.owners + sizes.forks + sizes.confirmed_users + sizes.failed_users == 0
    });
    agent.shutdown_now();
}

/// The owner sends a Goodbye and refuses connections, but its process lives until the function returns.
#[test]
fn an_owner_that_ends_while_a_function_runs_is_lost_at_once() {
    let gate = Gate::new();
    let workers = group_with(
        2,
        |_, options| options.with_connect_timeout(Duration::from_secs(3600)),
        |_, functions| gate.register(functions, "slow"),
    );
    let rrefs = &workers[0].rrefs;
    let lost: RRef<i64> = rrefs.call("worker1", "number").remote(3_i64).unwrap();
    assert_eq!(lost.to_here(Some(PATIENCE)).unwrap(), 3);
    let slow: RRef<i64> = rrefs.call("worker1", "slow").remote(()).unwrap();
    let waiting = slow.fetch(None).unwrap();
    until("the function runs", || gate.arrived() == 1);
    thread::scope(|scope| {
        let end = scope.spawn(|| workers[1].agent.shutdown_now());
        let error = waiting.wait_timeout(Some(PATIENCE / 4)).expect("it ends");
        let error = error.unwrap_err();
        assert!(matches!(error, RRefError::OwnerLost { .. }), "{error}");
        let error = lost.to_here(Some(PATIENCE / 4)).unwrap_err();
        assert!(matches!(error, RRefError::OwnerLost { .. }), "{error}");
        assert!(!end.is_finished());
        gate.open();
    });
    drop((lost, slow));
    workers[0].agent.shutdown_now();
}

#[test]
fn an_owner_that_dies_together_with_the_store_counts_as_lost() {
    let store = TcpStoreServer::bind(("127.0.0.1", 0), ServerOptions::default()).unwrap();
    let mut other = WorkerProcess::start(&store);
    let port = store.local_addr().port();
    let Worker { agent, rrefs } = start_worker(0, port, functions(|_| {}));
    other.await_started();
    let lost: RRef<i64> = rrefs.call("worker1", "number").remote(3_i64).unwrap();
    assert_eq!(lost.to_here(Some(PATIENCE)).unwrap(), 3);
    // Without the store, the worker list is not available.
    drop(store);
    other.kill();
    let error = lost.to_here(Some(PATIENCE)).unwrap_err();
    assert!(matches!(error, RRefError::OwnerLost { .. }), "{error}");
    drop(lost);
    rrefs.leave(Some(PATIENCE)).unwrap();
    agent.shutdown_now();
}

#[test]
fn one_thread_shuts_down_the_references_of_its_own_agent() {
    let workers = group(2);
    let [first, second] = &workers[..] else {
        panic!("two workers");
    };
    let error = first
        .rrefs
        .shutdown(&second.agent, Some(PATIENCE))
        .unwrap_err();
    assert!(matches!(error, ShutdownError::OtherAgent { .. }), "{error}");
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..2 {
            let sender = sender.clone();
            scope.spawn(move || {
                let ended = first.rrefs.shutdown(&first.agent, Some(PATIENCE));
                sender.send(ended).unwrap();
            });
        }
        // The other worker has not arrived, so only the refused thread can have returned.
        let error = receiver.recv().unwrap().unwrap_err();
        assert!(matches!(error, ShutdownError::InProgress), "{error}");
        second
            .rrefs
            .shutdown(&second.agent, Some(PATIENCE))
            .unwrap();
        receiver.recv().unwrap().unwrap();
    });
    stop(&workers);
}

#[test]
fn unused_references_of_a_local_creation_are_released() {
    let gate = Gate::new();
    let workers = group_with(
        1,
        |_, options| options.with_handler_threads(1).with_threads_max(1),
        |_, functions| gate.register(functions, "slow"),
    );
    let rrefs = &workers[0].rrefs;
    // The slow functions occupy all threads.
    let slow: Vec<RRef<i64>> = (0..8)
        .map(|_| rrefs.call("worker0", "slow").remote(()).unwrap())
        .collect();
    until("the functions run", || gate.arrived() > 0);
    let own = rrefs.rref(1_i64).unwrap();
    let made: RRef<i64> = rrefs.call("worker0", "read").remote(&own).unwrap();
    drop((own, slow));
    let left = thread::scope(|scope| {
        let leaving = scope.spawn(|| rrefs.leave(Some(PATIENCE / 3)));
        until("the worker refuses new references", || {
            rrefs.rref(1_i64).is_err()
        });
        gate.open();
        leaving.join().unwrap()
    });
    drop(made);
    workers[0].agent.shutdown_now();
    left.unwrap();
}
