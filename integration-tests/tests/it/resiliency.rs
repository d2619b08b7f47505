//! Jobs with NVIDIA's `nvidia-resiliency-ext`, behind relays whose store is killed and started again with its directory:
//! its restarts in the process, and its launcher.

use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use c10d_relay::{HostPort, Relay, RelayOptions};
use c10d_store::{StoreExt, TcpStore};
use integration_tests::durable_store::DurableStore;
use integration_tests::process::ChildProcess;
use integration_tests::torch::{print_skipped, python, script};
use integration_tests::watchdog::Watchdog;
use tempfile::TempDir;

use crate::durable::seeded;

const LIMIT: Duration = Duration::from_secs(400);
const NODES: usize = 2;
const RANKS_PER_NODE: usize = 2;
const KILLS: u64 = 20;

/// Longer than Python starts and a group forms on a busy machine.
const END_LIMIT: Duration = Duration::from_secs(120);

/// The store, and a relay for each node.
struct Job {
    relays: Vec<Relay>,
    store: DurableStore,
    _folder: TempDir,
}

impl Job {
    /// `None` if Python does not have the package.
    fn new() -> Option<Self> {
        let import = ["-c", "import nvidia_resiliency_ext"];
        let found = prepared_python(0).args(import).output();
        if !found.expect("Python runs").status.success() {
            print_skipped(
                "nvidia-resiliency-ext: set C10D_RESILIENCY to a folder that has it (LEFT OUT)",
            );
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let store = DurableStore::start(&folder.path().join("store"), &[]);
        let relay = |_| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let target = HostPort::new("127.0.0.1", store.address().port());
            let relay = Relay::start(target, vec![listener], RelayOptions::default());
            relay.expect("a relay")
        };
        Some(Self {
            relays: (0..NODES).map(relay).collect(),
            store,
            _folder: folder,
        })
    }

    fn port(&self, node: usize) -> u16 {
        self.relays[node].local_addrs()[0].port()
    }

    /// Kills the store again and again while the processes, which all print what their ranks do, train and restart twice.
    fn train_under_kills(&mut self, mut processes: Vec<ChildProcess>) {
        let mut random = seeded();
        let per_process = NODES * RANKS_PER_NODE / processes.len();
        for restarts in 0..3 {
            for process in &mut processes {
                for _ in 0..per_process {
                    assert_eq!(process.read_json()["restarts"], restarts);
                }
            }
            for kill in 0..KILLS / 2 {
                if kill == KILLS / 4 && restarts < 2 {
                    self.set(&format!("fail {restarts}"));
                }
                thread::sleep(Duration::from_millis(random.u64(50..400)));
                self.store.kill();
                thread::sleep(Duration::from_millis(random.u64(..300)));
                self.store.restart();
            }
        }
        self.set("stop");
        let mut steps = Vec::new();
        for process in &mut processes {
            for _ in 0..per_process {
                let result = process.read_json();
                assert_eq!(result["same"], true, "{result}");
                steps.push(result["steps"].as_u64().unwrap_or_default());
            }
        }
        assert!(
            steps[0] > 0 && steps.iter().all(|it| *it == steps[0]),
            "{steps:?}"
        );
        for process in &mut processes {
            let status = process.wait(END_LIMIT);
            assert!(status.success(), "{status}: {}", process.stderr());
        }
    }

    fn set(&self, key: &str) {
        let port = self.store.address().port();
        let store = TcpStore::connect("127.0.0.1", port).expect("a client");
        store.set(key, b"1").expect("set");
        store.ping().expect("ping");
    }
}

/// Python with the package of the folder C10D_RESILIENCY, for a node whose relay has this port.
fn prepared_python(port: u16) -> Command {
    let mut command = python();
    if let Some(folder) = std::env::var_os("C10D_RESILIENCY") {
        command.env("PYTHONPATH", folder);
    }
    command
        .env("C10D_TEST_STORE_PORT", port.to_string())
        .env("GLOO_SOCKET_IFNAME", "lo");
    command
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn in_process_restarts_go_on_over_kills_of_the_store() {
    let name = "in_process_restarts_go_on_over_kills_of_the_store";
    let _watchdog = Watchdog::start(name, LIMIT);
    let Some(mut job) = Job::new() else {
        return;
    };
    let start = |rank: usize| {
        let mut command = prepared_python(job.port(rank / RANKS_PER_NODE));
        command
            .arg(script("resiliency_rank.py"))
            .arg("inprocess")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", (NODES * RANKS_PER_NODE).to_string());
        ChildProcess::start(format!("rank {rank}"), &mut command)
    };
    let ranks = (0..NODES * RANKS_PER_NODE).map(start).collect();
    job.train_under_kills(ranks);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn the_launchers_restarts_go_on_over_kills_of_the_store() {
    let name = "the_launchers_restarts_go_on_over_kills_of_the_store";
    let _watchdog = Watchdog::start(name, LIMIT);
    let Some(mut job) = Job::new() else {
        return;
    };
    let start = |node: usize| {
        let port = job.port(node);
        let mut command = prepared_python(port);
        // As the script `ft_launcher`.
        let program = "from nvidia_resiliency_ext.fault_tolerance.launcher import main; main()";
        command
            .args(["-c", program])
            .arg(format!("--nnodes={NODES}"))
            .arg(format!("--nproc-per-node={RANKS_PER_NODE}"))
            .arg(format!("--rdzv-endpoint=127.0.0.1:{port}"))
            .args(["--rdzv-backend=c10d", "--rdzv-id=job", "--max-restarts=3"])
            .arg("--rdzv-conf=is_host=false")
            .arg(script("resiliency_rank.py"))
            .arg("launcher");
        ChildProcess::start(format!("launcher {node}"), &mut command)
    };
    let launchers = (0..NODES).map(start).collect();
    job.train_under_kills(launchers);
}
