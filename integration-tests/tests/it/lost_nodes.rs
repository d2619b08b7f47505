//! Nodes whose launchers are killed, or whose connections are cut: the other nodes continue without them, or do not notice.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use integration_tests::eventually::eventually;
use integration_tests::launcher::{Job, Kind, Launcher, c10d, free_address};
use integration_tests::process::ChildProcess;
use integration_tests::torch::{Feature, Release};
use integration_tests::watchdog::Watchdog;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(180);
const STEP_LIMIT: Duration = Duration::from_secs(60);

/// Missing heartbeats show a lost node after 15 s, and a closed connection shows it after about 3 s.
const NOTICED_BY_HEARTBEATS: Duration = Duration::from_secs(14);

/// Forty launchers and their workers leave little of the processors to a test that measures times.
static ALONE: Mutex<()> = Mutex::new(());

/// A job whose first node hosts the store.
struct Nodes {
    _folder: TempDir,
    job: Job,
    address: SocketAddr,
    options: Vec<OsString>,
}

impl Nodes {
    fn new(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let job = Job::new(folder.path())
            .with_variable("C10D_TEST_FOLDER", folder.path())
            .with_variable("RUST_LOG", "warn,elastic_rendezvous::shell::marks=debug");
        Self {
            job,
            _folder: folder,
            address: free_address(),
            options: options.iter().map(OsString::from).collect(),
        }
    }

    fn all_options(&self, address: SocketAddr) -> Vec<OsString> {
        let endpoint = format!("--rdzv-endpoint={address}");
        let own = ["--rdzv-backend=c10d", "--rdzv-id=job", &endpoint];
        let own = own.iter().map(OsString::from);
        own.chain(self.options.iter().cloned()).collect()
    }

    /// Starts a node that reaches the store at `address`.
    fn start_at(&self, name: &str, address: SocketAddr) -> Launcher {
        let options = self.all_options(address);
        self.job.start_ranks(name, "lost_peer.py", options)
    }

    fn start(&self, name: &str) -> Launcher {
        self.start_at(name, self.address)
    }

    /// Starts the node that hosts the store, and waits for the store.
    fn start_host(&self) -> Launcher {
        let host = self.start("first");
        eventually("the store is there", || {
            TcpStream::connect(self.address).is_ok()
        });
        host
    }

    /// The latest attempt of the worker with rank 0 in a world of this size, if there are more than `after`.
    fn attempt(&self, world_size: u64, after: usize) -> Option<Value> {
        let mut attempts: Vec<Value> = self.job.attempts();
        attempts.retain(|it| it["rank"] == 0 && it["world_size"] == world_size);
        (attempts.len() > after).then(|| {
            let at = |it: &&Value| it["at"].as_f64().expect("a time").to_bits();
            attempts.iter().max_by_key(at).expect("an attempt").clone()
        })
    }

    /// Waits for the next attempt in a world of this size.
    fn await_world(&self, world_size: u64, after: usize) -> Value {
        let what = format!("a world of {world_size}, after {after} others");
        eventually(&what, || self.attempt(world_size, after).is_some());
        self.attempt(world_size, after).expect("an attempt")
    }

    fn stop(&self) {
        self.job.stop();
    }
}

/// How often the launcher has logged that it has read the marks of two connected nodes.
fn times_both_connected(launcher: &mut Launcher) -> usize {
    let stderr = launcher.process().stderr();
    stderr.matches("marks of nodes: 2 connected").count()
}

/// Waits until the launcher has seen the marks of two connected nodes once more than `before`.
fn await_both_connected(launcher: &mut Launcher, before: usize) {
    eventually("both nodes are connected", || {
        times_both_connected(launcher) > before
    });
}

/// The time from `then` until the attempt began.
fn since(then: SystemTime, attempt: &Value) -> Duration {
    let at = Duration::from_secs_f64(attempt["at"].as_f64().expect("a time"));
    let then = then.duration_since(SystemTime::UNIX_EPOCH).expect("a time");
    at.saturating_sub(then)
}

/// With restarts and without: the failure of workers that have lost their peers does not count.
#[test]
fn a_killed_launcher_costs_the_other_node_seconds_and_no_restart() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::start("a_killed_launcher_costs_seconds", LIMIT);
    for restarts in ["--max-restarts=3", "--max-restarts=0"] {
        let conf = "--rdzv-conf=last_call_timeout=60";
        let nodes = Nodes::new(&["--nnodes=1:2", restarts, conf]);
        let mut first = nodes.start_host();
        let second = nodes.start("second");
        nodes.await_world(2, 0);
        await_both_connected(&mut first, 0);
        let killed = SystemTime::now();
        second.signal(Signal::KILL);
        let alone = nodes.await_world(1, 0);
        let took = since(killed, &alone);
        assert!(took < NOTICED_BY_HEARTBEATS, "{took:?}");
        assert_eq!(alone["restarts"], 0, "{alone}");
        nodes.stop();
        assert_eq!(first.wait(STEP_LIMIT), Some(0));
    }
}

/// The launcher is a client of the relay's session, which remains open when the launcher is killed.
#[test]
fn a_killed_launcher_behind_a_relay_is_noticed_as_soon() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::start("a_killed_launcher_behind_a_relay", LIMIT);
    let nodes = Nodes::new(&["--nnodes=1:2"]);
    let mut first = nodes.start_host();
    let relay = free_address();
    let mut command = Command::new(c10d());
    command.args(["relay", "--upstream", &nodes.address.to_string()]);
    command.args(["--listen", &relay.to_string()]);
    let _relay = ChildProcess::start("relay", &mut command);
    eventually("the relay is there", || TcpStream::connect(relay).is_ok());
    let mut options = nodes.all_options(relay);
    options.push("--rdzv-conf=is_host=0".into());
    let second = nodes.job.start_ranks("second", "lost_peer.py", options);
    nodes.await_world(2, 0);
    await_both_connected(&mut first, 0);
    let killed = SystemTime::now();
    second.signal(Signal::KILL);
    let took = since(killed, &nodes.await_world(1, 0));
    assert!(took < NOTICED_BY_HEARTBEATS, "{took:?}");
    nodes.stop();
    assert_eq!(first.wait(STEP_LIMIT), Some(0));
}

/// Nodes are lost while ranks of PyTorch run collectives. A node of torchrun has no mark, so only its missing
/// heartbeats show the loss.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn ranks_of_pytorch_go_on_without_a_killed_launcher() {
    let _watchdog = Watchdog::start("ranks_of_pytorch_go_on", LIMIT * 2);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    for kind in [Kind::C10d, Kind::Torchrun] {
        let nodes = Nodes::new(&["--nnodes=1:2", "--max-restarts=3"]);
        let start = |name: &str, kind| {
            let mut options = nodes.all_options(nodes.address);
            options.push("--rdzv-conf=last_call_timeout=30".into());
            nodes.job.start(kind, name, options, &["loop"])
        };
        let mut first = start("first", Kind::C10d);
        // Torchrun would take the place of the host.
        let address = nodes.address;
        eventually("the store is there", || TcpStream::connect(address).is_ok());
        let second = start("second", kind);
        let world = |size: u64| {
            let now = nodes.job.now();
            now.len() == size as usize && now.iter().all(|it| it["world_size"] == size)
        };
        let within = |size| {
            let deadline = Instant::now() + STEP_LIMIT;
            while !world(size) {
                assert!(Instant::now() < deadline, "{:?}", nodes.job.now());
                thread::sleep(Duration::from_millis(20));
            }
        };
        within(2);
        if kind == Kind::C10d {
            await_both_connected(&mut first, 0);
        }
        let killed = Instant::now();
        for pid in second.processes() {
            let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        within(1);
        let took = killed.elapsed();
        if kind == Kind::C10d {
            assert!(took < NOTICED_BY_HEARTBEATS, "{took:?}");
        }
        let restarts = nodes.job.now()[0]["restart_count"].clone();
        assert_eq!(restarts, 0, "a lost node uses up no restart");
        nodes.stop();
        assert_eq!(first.wait(STEP_LIMIT), Some(0));
    }
}
