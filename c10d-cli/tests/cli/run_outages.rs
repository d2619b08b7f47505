//! `c10d run` with silent connections to an external store, or with a lost store.
//!
//! More outages: `elastic-rendezvous/tests/it/outages.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use c10d_sim::Proxy;
use rustix::process::Signal;

use crate::process::{Running, Server, until};
use crate::run::Job;

/// Notes each start, and runs until it is stopped.
const SCRIPT: &str = "
    cd $C10D_TEST_FOLDER
    echo $$ > $NODE.pid
    echo $WORLD_SIZE >> $NODE.starts
    exec sleep 1000";

const NODES: [&str; 3] = ["a", "b", "c"];

/// Nodes are lost after 5 s.
const QUICK: &str = "--rdzv-conf=is_host=0,keep_alive_interval=1,keep_alive_max_attempt=5";

/// Three launchers, each with a worker and a proxy in front of the store. Two of them are enough.
struct Nodes {
    job: Job,
    proxies: Vec<Proxy>,
    _store: Server,
    _launchers: Vec<Running>,
}

impl Nodes {
    /// Starts them, and waits until all workers run in a round of three.
    fn start() -> Self {
        let (job, store) = (Job::new(), Server::start());
        let proxies: Vec<Proxy> = NODES.iter().map(|_| Proxy::to(store.address)).collect();
        let launchers = NODES.iter().zip(&proxies).map(|(name, proxy)| {
            let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", proxy.port());
            let options = [
                "--nnodes=2:3",
                "--max-restarts=5",
                "--rdzv-backend=c10d",
                "--rdzv-id=job",
                "--local-addr=127.0.0.1",
                &endpoint,
                QUICK,
            ];
            let mut command = job.command(&options, SCRIPT);
            command.env("NODE", name);
            Running::start(command)
        });
        let launchers = launchers.collect();
        let nodes = Self {
            job,
            proxies,
            _store: store,
            _launchers: launchers,
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
}

/// docs/spec/rendezvous.md, OUTAGE 3.
#[test]
fn a_node_in_silence_stops_its_workers_and_comes_back() {
    let nodes = Nodes::start();
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
