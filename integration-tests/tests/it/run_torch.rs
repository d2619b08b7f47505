//! Jobs of PyTorch workers under `c10d run`, alone and together with torchrun.
//!
//! The workers run `python/elastic_worker.py`: they form gloo groups and run all-reduces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{Secret, ServerOptions, Store, TcpStore, TcpStoreServer};
use integration_tests::launcher::{Job, Kind, Launcher, free_address};
use integration_tests::torch::{Feature, Release};
use integration_tests::watchdog::Watchdog;
use rustix::process::Signal;
use serde_json::{Value, json};

/// The timeout for each step, including the start of Python on a busy machine.
pub(crate) const STEP_LIMIT: Duration = Duration::from_secs(120);

pub(crate) const LIMIT: Duration = Duration::from_secs(400);

fn serve() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server")
}

/// The launcher's options of a node whose rendezvous uses `store`.
pub(crate) fn options(store: SocketAddr, nodes: &str, more: &[&str]) -> Vec<String> {
    let mut options = vec![
        format!("--nnodes={nodes}"),
        "--rdzv-backend=c10d".to_owned(),
        "--rdzv-id=job".to_owned(),
        format!("--rdzv-endpoint={store}"),
    ];
    if !more.iter().any(|option| option.starts_with("--local-addr")) {
        options.push("--local-addr=127.0.0.1".to_owned());
    }
    options.extend(more.iter().map(|option| (*option).to_owned()));
    options
}

/// Asserts that all launchers exit with 0 and leave no processes. The first that fails is reported: others may wait for
/// it.
#[track_caller]
pub(crate) fn expect_success(mut launchers: Vec<Launcher>) {
    let deadline = Instant::now() + STEP_LIMIT;
    let mut all_have_exited = false;
    while !all_have_exited && Instant::now() < deadline {
        all_have_exited = true;
        for launcher in &mut launchers {
            match launcher.process().try_wait() {
                Some(status) => assert!(
                    status.success(),
                    "{launcher:?}: {status}: {}",
                    launcher.process().stderr()
                ),
                None => all_have_exited = false,
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    for mut launcher in launchers {
        let code = launcher.wait(Duration::ZERO);
        assert_eq!(code, Some(0), "{}", launcher.process().stderr());
        assert!(launcher.processes().is_empty(), "{launcher:?}");
    }
}

/// Asserts that all workers of a job finished with the same sum and the same master; returns their results by rank.
#[track_caller]
pub(crate) fn expect_done(job: &Job, world_size: usize) -> Vec<Value> {
    let found = expect_sums(job, world_size);
    for worker in &found {
        assert_eq!(worker["master"], found[0]["master"], "{worker}");
    }
    found
}

/// Asserts that all workers of a job finished with the same sum; returns their results by rank.
#[track_caller]
fn expect_sums(job: &Job, world_size: usize) -> Vec<Value> {
    let found: Vec<Value> = (0..world_size)
        .map(|rank| {
            let found = job.read(&format!("done.{rank}"));
            found.unwrap_or_else(|| panic!("rank {rank} of {world_size} wrote nothing"))
        })
        .collect();
    for (rank, worker) in found.iter().enumerate() {
        assert_eq!(worker["rank"], json!(rank), "{worker}");
        assert_eq!(worker["sum"], sum(world_size), "{worker}");
    }
    found
}

/// Count, sum, and sum of squares of the ranks.
fn sum(world_size: usize) -> Value {
    let squares: usize = (0..world_size).map(|rank| rank * rank).sum();
    json!([world_size, (0..world_size).sum::<usize>(), squares])
}

/// Waits until a group of `world_size` workers runs; returns their results.
#[track_caller]
pub(crate) fn wait_for_world(
    job: &Job,
    launchers: &mut [Launcher],
    world_size: usize,
) -> Vec<Value> {
    let started = Instant::now();
    loop {
        let now = job.now();
        let ranks: Vec<usize> = (0..world_size)
            .filter(|rank| {
                now.iter()
                    .any(|worker| worker["rank"] == json!(rank) && worker["sum"] == sum(world_size))
            })
            .collect();
        if ranks.len() == world_size && now.len() == world_size {
            return now;
        }
        if started.elapsed() > STEP_LIMIT {
            let texts = launchers.iter_mut().map(|it| it.process().stderr());
            let texts: Vec<String> = texts.collect();
            panic!(
                "no world of {world_size} but {now:?}; stderr of the launchers:\n{}",
                texts.join("\n\n")
            );
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn workers_of_two_nodes_form_one_gloo_group() {
    let _watchdog = Watchdog::start("workers_of_two_nodes_form_one_gloo_group", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let store = free_address();
    let options = options(store, "2", &["--nproc-per-node=2"]);
    let nodes = ["a", "b"].map(|name| job.start(Kind::C10d, name, &options, &["sum"]));
    expect_success(nodes.into());
    let found = expect_done(&job, 4);
    let groups: Vec<&Value> = found.iter().map(|worker| &worker["group_rank"]).collect();
    assert_eq!(json!(groups), json!([0, 0, 1, 1]));
}

/// Runs a job with one `c10d run` node and one torchrun node; `host` hosts the store of the rendezvous.
fn run_mixed(host: Kind) {
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let store = free_address();
    let nodes = [Kind::C10d, Kind::Torchrun].map(|kind| {
        let is_host = if kind == host { 1 } else { 0 };
        let conf = format!("--rdzv-conf=is_host={is_host}");
        let options = options(store, "2", &["--nproc-per-node=2", &conf]);
        job.start(kind, &format!("{kind:?}"), options, &["sum"])
    });
    expect_success(nodes.into());
    expect_done(&job, 4);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn torchrun_joins_a_job_that_c10d_hosts() {
    let _watchdog = Watchdog::start("torchrun_joins_a_job_that_c10d_hosts", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    run_mixed(Kind::C10d);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn c10d_joins_a_job_that_torchrun_hosts() {
    let _watchdog = Watchdog::start("c10d_joins_a_job_that_torchrun_hosts", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    run_mixed(Kind::Torchrun);
}

/// Runs a job of two nodes in which one worker fails twice. Each failure restarts all workers.
fn fail_twice(kinds: [Kind; 2]) {
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let server = serve();
    let more = ["--max-restarts=2", "--rdzv-conf=is_host=0"];
    let options = options(server.local_addr(), "2", &more);
    let mut names = ["a", "b"].into_iter();
    let nodes = kinds.map(|kind| {
        let name = names.next().unwrap_or_default();
        job.start(kind, name, &options, &["fail", "2"])
    });
    expect_success(nodes.into());
    expect_done(&job, 2);

    // Each agent starts its worker three times. The agent of the failing worker counts each restart. The other
    // agent counts a restart only if its own worker failed too before the agent stopped it.
    let mut restarts: BTreeMap<String, Vec<(bool, u64)>> = BTreeMap::new();
    for attempt in job.attempts() {
        let launcher = attempt["launcher"].to_string();
        let count = attempt["restart_count"].as_u64().expect("a count");
        let counts = restarts.entry(launcher).or_default();
        counts.push((attempt["rank"] == json!(0), count));
    }
    assert_eq!(restarts.len(), 2, "{restarts:?}");
    let mut failing = 0;
    for counts in restarts.values_mut() {
        counts.sort_unstable();
        assert_eq!(counts.len(), 3, "{counts:?}");
        if counts[0].0 {
            assert_eq!(*counts, [(true, 0), (true, 1), (true, 2)]);
            failing += 1;
        } else {
            assert_eq!(counts[0], (false, 0));
            assert!(
                counts.iter().all(|count| *count <= (false, 2)),
                "{counts:?}"
            );
        }
    }
    assert_eq!(failing, 1, "the same node has rank 0 in each attempt");
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn two_failures_restart_the_workers_of_both_nodes() {
    let _watchdog = Watchdog::start("two_failures_restart_the_workers_of_both_nodes", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    fail_twice([Kind::C10d, Kind::C10d]);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn two_failures_restart_the_workers_of_c10d_and_torchrun() {
    let _watchdog = Watchdog::start(
        "two_failures_restart_the_workers_of_c10d_and_torchrun",
        LIMIT,
    );
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    fail_twice([Kind::C10d, Kind::Torchrun]);
}

/// One rank stops in its Python code, so that all others wait in gloo. Each launcher notices, the ranks are named with
/// their steps, and the restart counts once.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_rank_that_makes_no_progress_restarts_the_job_once() {
    let _watchdog = Watchdog::start("a_rank_that_makes_no_progress_restarts_the_job_once", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let server = serve();
    let more = [
        "--max-restarts=1",
        "--progress-timeout=5s",
        "--rdzv-conf=is_host=0",
    ];
    let options = options(server.local_addr(), "2", &more);
    let mut nodes = ["a", "b"].map(|name| job.start(Kind::C10d, name, &options, &["stall", "1"]));
    let codes = nodes.each_mut().map(|node| node.wait(STEP_LIMIT));
    let text = nodes
        .each_mut()
        .map(|node| node.process().stderr())
        .concat();
    assert_eq!(codes, [Some(0); 2], "{text}");
    expect_done(&job, 2);
    assert_eq!(job.attempts().len(), 4, "{text}");
    let counted = text.matches("restarting the workers after ").count();
    assert_eq!(counted, 1, "{text}");
    assert!(text.contains(" was at step 4"), "{text}");
    assert!(
        text.contains("when the workers were found stuck: "),
        "{text}"
    );
}

/// A third node joins a job of two nodes and is then killed; the job continues with two nodes.
fn grow_and_shrink(newcomer: &str, rank_of_newcomer: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let server = serve();
    let node = |name: &str, address: &str| {
        let more = [
            "--max-restarts=3",
            "--rdzv-conf=is_host=0,last_call_timeout=1,keep_alive_interval=1",
            &format!("--local-addr={address}"),
        ];
        let options = options(server.local_addr(), "2:4", &more);
        job.start(Kind::C10d, name, options, &["loop"])
    };
    let mut nodes = vec![node("a", "127.0.0.2"), node("b", "127.0.0.2")];
    wait_for_world(&job, &mut nodes, 2);

    nodes.push(node("c", newcomer));
    let found = wait_for_world(&job, &mut nodes, 3);
    let of_newcomer = nodes[2].processes();
    let mut of_newcomer = found.iter().filter(|worker| {
        let pid = worker["pid"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok());
        pid.is_some_and(|pid| of_newcomer.contains(&pid))
    });
    let worker = of_newcomer.next().expect("the newcomer has a worker");
    assert_eq!(worker["rank"], json!(rank_of_newcomer), "{found:?}");
    for other in &found {
        assert_eq!(other["master"], found[0]["master"], "{found:?}");
    }

    nodes[2].signal(Signal::KILL);
    wait_for_world(&job, &mut nodes, 2);
    drop(nodes.pop());
    job.stop();
    expect_success(nodes);
    expect_done(&job, 2);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_job_survives_the_death_of_a_node_that_joined_late() {
    let _watchdog = Watchdog::start("a_job_survives_the_death_of_a_node_that_joined_late", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    grow_and_shrink("127.0.0.3", 2);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_late_node_gets_the_last_rank_though_its_name_is_the_first() {
    let _watchdog = Watchdog::start("a_late_node_gets_the_last_rank", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    grow_and_shrink("127.0.0.1", 2);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn sigterm_ends_torch_workers_within_the_grace_period() {
    let _watchdog = Watchdog::start("sigterm_ends_torch_workers", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let options = ["--standalone", "--nproc-per-node=2"];
    let mut nodes = [job.start(Kind::C10d, "node", options, &["loop"])];
    wait_for_world(&job, &mut nodes, 2);
    let [mut node] = nodes;
    let started = Instant::now();
    node.signal(Signal::TERM);
    assert_eq!(node.wait(STEP_LIMIT), Some(1));
    let text = node.process().stderr();
    // The default grace period is 30 s.
    assert!(started.elapsed() < Duration::from_secs(30), "{text}");
    assert!(!text.contains("sent SIGKILL to worker"), "{text}");
    assert!(node.processes().is_empty());
    assert!(job.now().is_empty());
}

/// A file with a new secret.
fn secret_file(folder: &Path) -> String {
    let path = folder.join("secret");
    let secret = Secret::random().expect("random numbers");
    fs::write(&path, secret.to_text()).expect("written");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("permissions");
    format!("--secret-file={}", path.display())
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn ranks_of_one_node_use_a_store_that_only_their_user_reaches() {
    let _watchdog = Watchdog::start("ranks_of_one_node_use_a_store", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let secrets = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let secret = secret_file(secrets.path());
    let options = ["--standalone", "--nproc-per-node=2", &secret];
    expect_success(vec![job.start(Kind::C10d, "node", options, &["sum"])]);
    expect_done(&job, 2);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn nodes_with_a_secret_meet_and_one_with_another_does_not_get_in() {
    let _watchdog = Watchdog::start("nodes_with_a_secret_meet", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (secrets, others) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let job = Job::new(folder.path());
    let secret = secret_file(secrets.path());
    let store = free_address();
    let start = |name: &str, is_host: u8, secret: &str| {
        let conf = format!("--rdzv-conf=is_host={is_host}");
        let options = options(store, "2", &["--nproc-per-node=1", &conf, secret]);
        job.start(Kind::C10d, name, options, &["sum"])
    };
    let first = start("first", 1, &secret);
    let mut stranger = start("stranger", 0, &secret_file(others.path()));
    assert_ne!(stranger.wait(STEP_LIMIT), Some(0));
    let text = stranger.process().stderr();
    assert!(text.contains("it has a different secret"), "{text}");
    expect_success(vec![first, start("second", 0, &secret)]);
    expect_done(&job, 2);
}

/// The host and the port of the store in the result of a worker.
fn master(worker: &Value) -> SocketAddr {
    let text = worker["master"].as_str().expect("a text");
    text.parse().expect("an address")
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn ranks_of_two_nodes_reach_a_store_with_a_secret_through_relays() {
    let _watchdog = Watchdog::start("ranks_of_two_nodes_reach_a_store_with_a_secret", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let secrets = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let secret = secret_file(secrets.path());
    let more = ["--nproc-per-node=2", "--max-restarts=1", "--relay", &secret];
    let options = options(free_address(), "2", &more);
    // The second round has new relays.
    let nodes = ["a", "b"].map(|name| job.start(Kind::C10d, name, &options, &["fail", "1"]));
    expect_success(nodes.into());

    let found = expect_sums(&job, 4);
    let masters: Vec<SocketAddr> = found.iter().map(master).collect();
    for address in &masters {
        assert!(address.ip().is_loopback(), "{masters:?}");
        assert_eq!(address.port(), masters[0].port(), "{masters:?}");
    }
    assert_eq!((masters[0], masters[2]), (masters[1], masters[3]));
    assert_ne!(masters[0], masters[2], "a node has a relay of its own");
}

/// Nodes of which one of ours writes for all, and two of torchrun that write on their own: two rounds.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn two_nodes_of_torchrun_take_part_in_a_group() {
    let _watchdog = Watchdog::start("two_nodes_of_torchrun_take_part_in_a_group", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let server = serve();
    // More than 32 nodes form a group.
    let count = 33;
    let nodes = format!("{count}");
    let more = [
        "--nproc-per-node=1",
        "--max-restarts=2",
        "--rdzv-conf=is_host=0",
    ];
    let options = options(server.local_addr(), &nodes, &more);
    let launchers = (0..count).map(|node| {
        let kind = if node < 2 { Kind::Torchrun } else { Kind::C10d };
        job.start(kind, &format!("node{node}"), &options, &["twice"])
    });
    expect_success(launchers.collect());
    let mut launchers = BTreeSet::new();
    let mut masters = BTreeSet::new();
    for rank in 0..count {
        let found = job.read(&format!("env.{rank}"));
        let found = found.unwrap_or_else(|| panic!("rank {rank} wrote nothing"));
        assert_eq!(found["WORLD_SIZE"], json!(nodes));
        assert_eq!(found["GROUP_RANK"], json!(rank.to_string()));
        masters.insert(format!("{}:{}", found["MASTER_ADDR"], found["MASTER_PORT"]));
        launchers.insert(found["C10D_TEST_LAUNCHER"].to_string());
    }
    assert_eq!((launchers.len(), masters.len()), (count, 1));
    // Somebody held the lease.
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a connection");
    assert!(store.check(&["torch.rendezvous.job/h"]).expect("an answer"));
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn workers_have_the_environment_that_torchrun_gives_them() {
    let _watchdog = Watchdog::start("workers_have_the_environment_of_torchrun", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let environments = [Kind::C10d, Kind::Torchrun].map(|kind| {
        let folder = tempfile::tempdir().expect("a folder");
        let job = Job::new(folder.path());
        let options = [
            "--standalone",
            "--nproc-per-node=2",
            "--max-restarts=3",
            "--role=trainer",
        ];
        expect_success(vec![job.start(kind, "node", options, &["env"])]);
        ["env.0", "env.1"].map(|name| {
            let found = job.read(name).expect("each worker writes its environment");
            let found: BTreeMap<String, String> = serde_json::from_value(found).expect("text");
            found
        })
    });
    let [mut of_c10d, of_torchrun] = environments;
    if !Release::tested().allows(Feature::SignalsVariable) {
        for found in &mut of_c10d {
            found.remove("TORCHELASTIC_SIGNALS_TO_HANDLE");
        }
    }
    for (mut c10d, mut torchrun) in of_c10d.into_iter().zip(of_torchrun) {
        // Variables set by the tests.
        for name in [
            "PYTHON_EXEC",
            "PYTHONUNBUFFERED",
            "RES_OPTIONS",
            "C10D_TEST_LAUNCHER",
            "C10D_TEST_DIE_WITH_LAUNCHER",
        ] {
            c10d.remove(name);
            torchrun.remove(name);
        }
        // Values that differ between runs: set and not empty.
        for name in [
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_ERROR_FILE",
        ] {
            for (kind, values) in [("c10d", &mut c10d), ("torchrun", &mut torchrun)] {
                let value = values.remove(name).unwrap_or_default();
                assert!(!value.is_empty(), "{kind}: {name}");
            }
        }
        assert_eq!(c10d, torchrun);
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn the_watchdog_ends_a_worker_whose_timer_expires_and_the_job_restarts() {
    let _watchdog = Watchdog::start("the_watchdog_ends_a_worker", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path()).with_variable("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
    let options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1"];
    let mut node = job.start(Kind::C10d, "node", options, &["timer"]);
    assert_eq!(
        node.wait(STEP_LIMIT),
        Some(0),
        "{}",
        node.process().stderr()
    );
    for name in ["done.0", "done.1"] {
        assert_eq!(job.read(name), Some(json!({ "restarts": 1 })), "{name}");
    }
    let text = node.process().stderr();
    let expired: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("have expired"))
        .collect();
    assert_eq!(expired.len(), 1, "{text}");
    let expected = "have expired: \"too slow\"; the watchdog has sent SIGKILL";
    assert!(expired[0].contains(expected), "{text}");
}
