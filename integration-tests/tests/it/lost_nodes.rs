//! Nodes whose launchers are killed, or whose connections are cut: the other nodes continue without them, or do not notice.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use c10d_sim::Proxy;
use c10d_store::{ServerOptions, Store, StoreExt, TcpStore, TcpStoreServer};
use integration_tests::eventually::eventually;
use integration_tests::launcher::{Job, Kind, Launcher, c10d, free_address};
use integration_tests::process::ChildProcess;
use integration_tests::torch::{Feature, Release, print_skipped};
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

/// A node that was away for less time is not dropped: 2.5 s (LINK 3), less the time that this test needs to see it return.
const AWAY_MAX: Duration = Duration::from_millis(2300);

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

/// The workers fail although all nodes are connected, so the job fails.
#[test]
fn a_failure_without_a_restart_left_ends_the_job_if_no_node_was_lost() {
    let _watchdog = Watchdog::start("a_failure_without_a_restart_left", LIMIT);
    let nodes = Nodes::new(&["--nnodes=1:2"]);
    let mut first = nodes.start_host();
    let mut second = nodes.start("second");
    let attempt = nodes.await_world(2, 0);
    let pid = attempt["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw).expect("a pid");
    let killed = Instant::now();
    rustix::process::kill_process(pid, Signal::KILL).expect("the worker runs");
    for launcher in [&mut first, &mut second] {
        assert_eq!(launcher.wait(STEP_LIMIT), Some(1));
    }
    // The keep-alive time, and the time to stop.
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(35), "{took:?}");
    assert_eq!(nodes.attempt(1, 0), None);
}

#[test]
fn nodes_that_are_lost_and_replaced_use_up_no_restart() {
    let _watchdog = Watchdog::start("nodes_that_are_lost_and_replaced", LIMIT);
    let conf = "--rdzv-conf=last_call_timeout=1";
    let nodes = Nodes::new(&["--nnodes=1:2", "--max-restarts=1", conf]);
    let mut first = nodes.start_host();
    for count in 0..3 {
        let before = times_both_connected(&mut first);
        let other = nodes.start(&format!("other{count}"));
        let attempt = nodes.await_world(2, count);
        assert_eq!(attempt["restarts"], 0, "{attempt}");
        await_both_connected(&mut first, before);
        other.signal(Signal::KILL);
        let before = nodes.job.attempts().len();
        eventually("the node is alone", || nodes.job.attempts().len() > before);
    }
    nodes.stop();
    assert_eq!(first.wait(STEP_LIMIT), Some(0));
}

/// docs/spec/rendezvous.md, LINK 3.
#[test]
fn connections_that_are_cut_and_return_cost_no_restart() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::start("connections_that_are_cut", LIMIT);
    let nodes = Nodes::new(&["--nnodes=1:2", "--max-restarts=3"]);
    let mut first = nodes.start_host();
    let proxy = Proxy::to(nodes.address);
    let through = SocketAddr::from(([127, 0, 0, 1], proxy.port()));
    let mut options = nodes.all_options(through);
    // The proxy is not a store of this node.
    options.push("--rdzv-conf=is_host=0".into());
    let mut second = nodes.job.start_ranks("second", "lost_peer.py", options);
    nodes.await_world(2, 0);
    await_both_connected(&mut first, 0);
    let store = TcpStore::connect("127.0.0.1", nodes.address.port()).expect("a client");
    for refused in [0, 500, 1500] {
        let accepted = proxy.accepted();
        let cut = Instant::now();
        proxy.cut(true);
        thread::sleep(Duration::from_millis(refused));
        proxy.mend();
        let is_back = || proxy.accepted() > accepted && Group(&store).connected_nodes().len() == 2;
        while !is_back() {
            assert!(
                cut.elapsed() < STEP_LIMIT,
                "not back after a cut of {refused} ms; connected: {:?}\nfirst: {}\nsecond: {}",
                Group(&store).connected_nodes(),
                first.process().stderr(),
                second.process().stderr()
            );
            thread::sleep(Duration::from_millis(5));
        }
        let away = cut.elapsed();
        if away > AWAY_MAX {
            print_skipped(&format!(
                "a cut of {refused} ms, after which the node was away for {away:?}"
            ));
            break;
        }
        // Within this time a lost node is dropped.
        thread::sleep(Duration::from_secs(5));
        assert_eq!(
            nodes.job.attempts().len(),
            2,
            "refused for {refused} ms, away for {away:?}\nfirst: {}\nsecond: {}",
            first.process().stderr(),
            second.process().stderr()
        );
    }
    nodes.stop();
    assert_eq!(first.wait(STEP_LIMIT), Some(0));
    assert_eq!(second.wait(STEP_LIMIT), Some(0));
}

/// A job of more than 32 nodes, whose store no node hosts. A member is killed, and then the node that writes for all.
/// docs/spec/rendezvous.md, LINK 7 to 9.
#[test]
fn a_killed_launcher_of_a_group_of_40_nodes_is_noticed_in_seconds() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::start("a_killed_launcher_of_a_group", LIMIT * 2);
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let address = server.local_addr();
    let store = TcpStore::connect("127.0.0.1", address.port()).expect("a client");
    let mut nodes = Nodes::new(&["--nnodes=2:40", "--rdzv-conf=is_host=0"]);
    nodes.address = address;
    let launchers = (0..40).map(|index| nodes.start(&format!("node{index}")));
    let mut launchers: Vec<Launcher> = launchers.collect();
    let within = |what: &str, condition: &mut dyn FnMut() -> bool| {
        let deadline = Instant::now() + STEP_LIMIT;
        while !condition() {
            assert!(
                Instant::now() < deadline,
                "not within {STEP_LIMIT:?}: {what}"
            );
            thread::sleep(Duration::from_millis(5));
        }
    };
    let group = Group(&store);
    for lost in 0..2 {
        let size = 40 - lost;
        let world = u64::try_from(size).expect("a small number");
        within("a world", &mut || nodes.attempt(world, 0).is_some());
        within("the marks of all nodes", &mut || {
            group.connected().len() == size
        });
        let read_by = group.lease().renewals + 4;
        // The holder reads the marks as often as it renews the lease.
        within("the holder has read them", &mut || {
            group.lease().renewals >= read_by
        });
        let holder_index = group.lease().index;
        if lost == 1 {
            // The next holder must have been connected for longer than keep-alive. A holder writes no own heartbeats.
            let is_older = |it: &u32| *it == holder_index || group.heartbeats(*it) >= 5;
            within("five heartbeats of each node", &mut || {
                group.connected().keys().all(is_older)
            });
        }
        let holder = group.connected()[&holder_index];
        let is_victim = |it: &Launcher| (it.id() == holder) == (lost == 1);
        let victim = launchers.iter().position(is_victim).expect("a launcher");
        let victim = launchers.swap_remove(victim);
        victim.signal(Signal::KILL);
        let killed = Instant::now();
        let named = format!("(pid {}): its connection closed", victim.id());
        within("the loss is noticed", &mut || {
            let mut others = launchers.iter_mut();
            others.any(|it| it.process().stderr().contains(&named))
        });
        let took = killed.elapsed();
        assert!(took < NOTICED_BY_HEARTBEATS, "lost node {lost}: {took:?}");
    }
    within("a world without both", &mut || {
        nodes.attempt(38, 0).is_some()
    });
    nodes.stop();
    for launcher in &mut launchers {
        assert_eq!(launcher.wait(STEP_LIMIT), Some(0));
    }
}

/// The keys of a group (docs/spec/rendezvous.md, sections 10 and 10.3).
struct Group<'s>(&'s TcpStore);

struct Lease {
    index: u32,
    renewals: u64,
}

impl Group<'_> {
    fn lease(&self) -> Lease {
        let lease = self.0.get("torch.rendezvous.job/h").expect("a lease");
        let lease = String::from_utf8(lease).expect("text");
        let fields: Vec<&str> = lease.split(' ').collect();
        Lease {
            index: fields[1].parse().expect("an index"),
            renewals: fields[2].parse().expect("a number"),
        }
    }

    fn heartbeats(&self, index: u32) -> u64 {
        let key = format!("torch.rendezvous.job/b/{index}");
        let count = String::from_utf8(self.0.get(&key).expect("a heartbeat"));
        count.expect("text").parse().expect("a number")
    }

    /// The pids of the connected nodes, by their indices.
    fn connected(&self) -> BTreeMap<u32, u32> {
        self.connected_nodes().into_iter().collect()
    }

    /// The handler numbers, which are indices in a group, and the pids of the connected nodes.
    fn connected_nodes(&self) -> Vec<(u32, u32)> {
        let keys = self.0.list_keys().expect("keys");
        let is_connected = |key: &str| {
            let value = self.0.try_get(key).expect("an answer");
            value.as_deref() == Some(b"connected") && !key.ends_with("/bell")
        };
        let nodes = keys.iter().filter_map(|key| {
            let node = key.strip_prefix("torch.rendezvous.job/link/")?;
            let (pid, rest) = node.split_once(' ')?;
            let (index, _) = rest.split_once(' ')?;
            is_connected(key).then(|| index.parse().ok().zip(pid.parse().ok()))?
        });
        nodes.collect()
    }
}

/// A stopped process keeps its connection, and is lost only after the keep-alive time.
#[test]
fn a_launcher_that_stands_still_for_seconds_is_not_lost() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::start("a_launcher_that_stands_still", LIMIT);
    let nodes = Nodes::new(&["--nnodes=1:2", "--max-restarts=3"]);
    let mut first = nodes.start_host();
    let mut second = nodes.start("second");
    nodes.await_world(2, 0);
    await_both_connected(&mut first, 0);
    second.process().pause();
    thread::sleep(Duration::from_secs(6));
    second.process().resume();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(nodes.job.attempts().len(), 2);
    nodes.stop();
    assert_eq!(first.wait(STEP_LIMIT), Some(0));
    assert_eq!(second.wait(STEP_LIMIT), Some(0));
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
