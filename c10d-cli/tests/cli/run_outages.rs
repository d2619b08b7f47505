//! `c10d run` with an external store: connections that are cut or fall silent, and a store that comes back empty.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use c10d_sim::Proxy;
use elastic_rendezvous::RendezvousState;
use elastic_rendezvous::codec::{self, CodecLimits};
use rustix::process::Signal;

use crate::process::{Running, Server, free_port, until};
use crate::run::Job;

/// Notes each start, runs until it is told to end, and fails when it is told to.
const SCRIPT: &str = "
    cd $C10D_TEST_FOLDER
    echo $$ > $NODE.pid
    echo $WORLD_SIZE >> $NODE.starts
    until [ -e stop ]; do
        mv fail.$NODE failed.$NODE 2>/dev/null && exit 1
        sleep 0.02
    done";

const NODES: [&str; 3] = ["a", "b", "c"];

/// With these settings, no node counts as lost, however busy the machine is, and heartbeats are sent every
/// second.
const PATIENT: &str = "is_host=0,keep_alive_interval=1,keep_alive_max_attempt=30";

/// Nodes are lost after 5 s.
const QUICK: &str = "is_host=0,keep_alive_interval=1,keep_alive_max_attempt=5";

/// Three launchers, each with a worker and a proxy in front of the store. Two of them are enough.
struct Nodes {
    job: Job,
    store: Option<Server>,
    proxies: Vec<Proxy>,
    launchers: Vec<Running>,
}

impl Nodes {
    /// Starts them, and waits until all workers run in a round of three.
    fn start(config: &str) -> Self {
        let (job, store) = (Job::new(), Server::start());
        let proxies: Vec<Proxy> = NODES.iter().map(|_| Proxy::to(store.address)).collect();
        let launchers = NODES.iter().zip(&proxies).map(|(name, proxy)| {
            let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", proxy.port());
            let config = format!("--rdzv-conf={config}");
            let options = [
                "--nnodes=2:3",
                "--max-restarts=5",
                "--rdzv-backend=c10d",
                "--rdzv-id=job",
                "--local-addr=127.0.0.1",
                &endpoint,
                &config,
            ];
            let mut command = job.command(&options, SCRIPT);
            command.env("NODE", name);
            Running::start(command)
        });
        let launchers = launchers.collect();
        let nodes = Self {
            job,
            store: Some(store),
            proxies,
            launchers,
        };
        nodes.await_world(&[0, 1, 2], 1);
        nodes
    }

    /// The sizes of the worlds in which the worker of this node has started.
    fn starts(&self, node: usize) -> Vec<usize> {
        let path = self.job.path(&format!("{}.starts", NODES[node]));
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// The file in /proc with the environment of the worker that this node has started last.
    fn worker(&self, node: usize) -> PathBuf {
        let pid = self.job.line(&format!("{}.pid", NODES[node]));
        PathBuf::from("/proc").join(pid).join("environ")
    }

    /// Whether this worker, and no later process with its number, runs.
    fn runs(&self, worker: &Path) -> bool {
        let environment = fs::read(worker).unwrap_or_default();
        let folder = format!(
            "={}\0",
            self.job.path("x").parent().expect("a folder").display()
        );
        String::from_utf8_lossy(&environment).contains(&folder)
    }

    /// Waits until these nodes run workers in a world of them, each after this many starts at least.
    fn await_world(&self, nodes: &[usize], starts_min: usize) {
        until("the workers run", || {
            nodes.iter().all(|&node| {
                let starts = self.starts(node);
                starts.len() >= starts_min
                    && starts.last() == Some(&nodes.len())
                    && self.runs(&self.worker(node))
            })
        });
    }

    fn state(&self) -> RendezvousState {
        let store = self.store.as_ref().expect("a store");
        let text = store.store(&["get", "torch.rendezvous.job", "--timeout=5s"]);
        codec::from_text(text.stdout.trim_ascii(), &CodecLimits::default()).expect("a state")
    }

    /// Waits until each member has written another heartbeat.
    fn await_heartbeats(&self) {
        let before = self.state().last_heartbeats;
        until("another heartbeat of each node", || {
            let now = self.state().last_heartbeats;
            before.iter().all(|(node, at)| now.get(node) != Some(at))
        });
    }

    /// The workers end, and all nodes with them.
    fn end(self) {
        fs::write(self.job.path("stop"), "").unwrap();
        for launcher in self.launchers {
            let ended = launcher.end();
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
        self.job.assert_nothing_runs();
    }
}

/// docs/spec/rendezvous.md, OUTAGE 1 and 4.
#[test]
fn a_connection_that_is_reset_restarts_nothing() {
    let nodes = Nodes::start(PATIENT);
    let accepted = nodes.proxies[2].accepted();
    nodes.proxies[2].cut(false);
    until("a new connection", || {
        nodes.proxies[2].accepted() > accepted
    });
    for _ in 0..3 {
        nodes.await_heartbeats();
    }
    for (node, name) in NODES.iter().enumerate() {
        assert_eq!(nodes.starts(node), [3], "node {name}");
    }
    assert_eq!(nodes.state().round, 0);
    nodes.end();
}

/// docs/spec/rendezvous.md, OUTAGE 2.
#[test]
fn nodes_that_were_all_cut_come_back_together_when_a_worker_fails() {
    let nodes = Nodes::start(PATIENT);
    for proxy in &nodes.proxies {
        proxy.cut(false);
    }
    fs::write(nodes.job.path("fail.a"), "").unwrap();
    nodes.await_world(&[0, 1, 2], 2);
    nodes.end();
}

/// docs/spec/rendezvous.md, OUTAGE 5.
#[test]
fn workers_restart_when_their_store_comes_back_empty() {
    let mut nodes = Nodes::start(PATIENT);
    for proxy in &nodes.proxies {
        proxy.cut(true);
    }
    // Killed with the process.
    drop(nodes.store.take());
    let store = Server::start();
    for proxy in &nodes.proxies {
        proxy.set_server(store.address);
        proxy.mend();
    }
    nodes.store = Some(store);
    nodes.await_world(&[0, 1, 2], 2);
    nodes.end();
}

/// docs/spec/rendezvous.md, OUTAGE 3.
#[test]
fn a_node_in_silence_stops_its_workers_and_comes_back() {
    let nodes = Nodes::start(QUICK);
    let silent = 2;
    let worker = nodes.worker(silent);
    let since = Instant::now();
    nodes.proxies[silent].be_silent();
    until("its worker has ended", || !nodes.runs(&worker));
    // 5 s of keep-alive, 2 s for the last attempt, and the end of the worker; the rest is for a busy machine.
    let took = since.elapsed();
    assert!(took < Duration::from_secs(25), "{took:?}");
    nodes.await_world(&[0, 1], 2);
    assert!(!nodes.runs(&nodes.worker(silent)));
    nodes.proxies[silent].mend();
    nodes.await_world(&[0, 1, 2], 2);
}

/// docs/spec/rendezvous.md, STATIC 3.
#[test]
fn a_node_of_a_static_rendezvous_restarts_its_workers_after_a_cut() {
    let job = Job::new();
    let port = free_port();
    let proxy = Proxy::to(SocketAddr::from(([127, 0, 0, 1], port)));
    let launchers = ["a", "b"].map(|name| {
        let (rank, port) = if name == "a" {
            ("0", port)
        } else {
            ("1", proxy.port())
        };
        let port = port.to_string();
        let options = [
            "--nnodes=2",
            "--max-restarts=5",
            "--node-rank",
            rank,
            "--master-addr=127.0.0.1",
            "--master-port",
            &port,
        ];
        let mut command = job.command(&options, SCRIPT);
        command.env("NODE", name);
        Running::start(command)
    });
    let starts = |name: &str| {
        let text = fs::read_to_string(job.path(&format!("{name}.starts")));
        text.unwrap_or_default().lines().count()
    };
    until("the workers run", || starts("a") == 1 && starts("b") == 1);
    proxy.cut(false);
    // Each node restarts its own workers, and reads its ranks from the store again.
    for name in ["b", "a"] {
        fs::write(job.path(&format!("fail.{name}")), "").unwrap();
        until("a restart", || starts(name) == 2);
    }
    // While the connection is idle: for longer than 0.5 s, within which a check-in could be lost (OUTAGE 2).
    proxy.cut(false);
    thread::sleep(Duration::from_secs(1));
    fs::write(job.path("stop"), "").unwrap();
    for launcher in launchers {
        let ended = launcher.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    job.assert_nothing_runs();
}

/// A launcher that waited for other nodes tried to reach its store for 15 s before it ended.
#[test]
fn a_waiting_node_whose_store_is_gone_ends_soon_after_sigterm() {
    let (job, store) = (Job::new(), Server::start());
    let endpoint = format!("--rdzv-endpoint={}", store.address);
    let options = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-conf=is_host=0",
        &endpoint,
    ];
    let mut command = job.command(&options, SCRIPT);
    let log = job.path("log");
    command.stderr(fs::File::create(&log).unwrap());
    let mut launcher = Running::start(command);
    let has = |text: &str| fs::read_to_string(&log).unwrap().contains(text);
    until("the node waits", || has("waiting up to"));
    drop(store);
    until("the store is gone", || has("lost the connection"));
    let start = Instant::now();
    launcher.signal(Signal::TERM);
    assert_eq!(launcher.exit_code(), 143);
    // It tries to leave for 5 s after the loss.
    let took = start.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}
