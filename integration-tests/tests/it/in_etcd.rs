//! PyTorch ranks whose store is in etcd: another process takes over when the one that serves is killed. Needs etcd, too:
//! `C10D_ETCD`.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use c10d_store::Secret;
use integration_tests::eventually::eventually;
use integration_tests::launcher::{Job, Launcher, c10d};
use integration_tests::process::ChildProcess;
use integration_tests::torch::{Feature, Release};
use integration_tests::watchdog::Watchdog;
use serde_json::Value;

use crate::durable::{
    NODES, await_meeting, await_round, finish, seeded, start_launcher, write_secret,
};
use crate::etcd::Etcd;

const LIMIT: Duration = Duration::from_secs(500);
const TAKEOVERS: usize = 12;
const LOST_NODES: usize = 3;

/// `c10d store serve --etcd`, of which several are started.
struct Server {
    process: ChildProcess,
    address: String,
}

impl Server {
    fn start(etcd: &Etcd, secret: &Path) -> Self {
        let mut command = Command::new(c10d());
        command
            .args(["store", "serve", "--host=127.0.0.1", "--port=0"])
            .args(["--end-with-parent", "--etcd-prefix=job"])
            .arg(format!("--etcd={}", etcd.client))
            .arg(format!("--secret-file={}", secret.display()));
        let mut server = Self {
            process: ChildProcess::start("c10d store serve --etcd", &mut command),
            address: String::new(),
        };
        server.address = server.read("standing by on ");
        server
    }

    fn await_takeover(&mut self) {
        assert_eq!(self.read("listening on "), self.address);
    }

    /// The rest of the next line.
    fn read(&mut self, start: &str) -> String {
        let line = self.process.read_line();
        let rest = line.strip_prefix(start);
        let stderr = || self.process.stderr();
        rest.unwrap_or_else(|| panic!("{line:?}: {}", stderr()))
            .to_owned()
    }
}

/// The arguments of `c10d store` with the store of the job, which follow the command's own.
fn store<const N: usize>(words: [&str; N], etcd: &Etcd, secret: Option<&Path>) -> Vec<u8> {
    let mut command = Command::new(c10d());
    command
        .arg("store")
        .args(words)
        .arg(format!("--connect={}", etcd.place("job")));
    if let Some(secret) = secret {
        command.arg(format!("--secret-file={}", secret.display()));
    }
    let output = command.output().expect("c10d can be run");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output.stdout
}

/// The index of the launcher that serves the store at the moment.
fn serving(launchers: &[Launcher], etcd: &Etcd) -> usize {
    let mut found = None;
    eventually("a launcher serves", || {
        let status = store(["status", "--json"], etcd, None);
        let status: Value = serde_json::from_slice(&status).expect("JSON");
        let process = status["leader"]["process"].as_str().unwrap_or_default();
        found = launchers.iter().position(|launcher| {
            let name = format!("process {} ", launcher.id());
            process.starts_with(&name)
        });
        found.is_some()
    });
    found.expect("a launcher")
}

/// Four launchers with two ranks each, that train with DDP while servers of their store are killed, stopped and ended: as
/// in `durable.rs`. No launcher serves.
#[test]
#[ignore = "needs PyTorch and etcd: run with C10D_TORCH_PYTHON=... C10D_ETCD=... -- --ignored"]
fn no_rank_notices_that_other_servers_take_over() {
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let _watchdog = Watchdog::start("no_rank_notices_that_other_servers_take_over", LIMIT);
    let mut random = seeded();
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    write_secret(&secret, &Secret::random().expect("random numbers"));
    let etcd = Etcd::start();
    let mut serving = Server::start(&etcd, &secret);
    serving.await_takeover();
    let mut next = Server::start(&etcd, &secret);
    let job = Job::new(folder.path());
    let options = [
        format!("--nnodes={NODES}"),
        format!("--rdzv-endpoint={}", etcd.place("job")),
        "--store-candidates=0".to_owned(),
        // The next takeover may come before a node of a busy machine has written its heartbeat.
        "--rdzv-conf=keep_alive_max_attempt=60".to_owned(),
        format!("--secret-file={}", secret.display()),
    ];
    let mut launchers: Vec<Launcher> = (0..NODES)
        .map(|node| start_launcher(&job, &format!("node {node}"), &options))
        .collect();
    await_meeting(&mut launchers);

    // The first while Python starts and the group forms.
    for takeover in 0..TAKEOVERS {
        thread::sleep(Duration::from_millis(random.u64(50..1500)));
        match random.u8(..4) {
            0 => {
                serving.process.pause();
                next.await_takeover();
                serving.process.resume();
                assert_eq!(serving.read("standing by on "), serving.address);
                std::mem::swap(&mut serving, &mut next);
            }
            how => {
                match how {
                    1 => serving.process.signal(rustix::process::Signal::TERM),
                    _ => serving.process.kill(),
                }
                next.await_takeover();
                serving = std::mem::replace(&mut next, Server::start(&etcd, &secret));
            }
        }
        if takeover == TAKEOVERS / 4 {
            await_round(&mut launchers);
        }
    }
    store(["set", "stop", "1"], &etcd, Some(&secret));
    finish(&mut launchers);
}

/// The launcher that serves is killed with its ranks: the others form the next round, and another one serves. A new
/// launcher then takes its place. No launcher is named anywhere.
#[test]
#[ignore = "needs PyTorch and etcd: run with C10D_TORCH_PYTHON=... C10D_ETCD=... -- --ignored"]
fn the_others_train_on_when_the_node_that_serves_is_lost() {
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let _watchdog = Watchdog::start(
        "the_others_train_on_when_the_node_that_serves_is_lost",
        LIMIT,
    );
    let mut random = seeded();
    let folder = tempfile::tempdir().expect("a folder");
    let etcd = Etcd::start();
    let job = Job::new(folder.path());
    let start = |number: usize| {
        let options = [
            format!("--nnodes={}:{NODES}", NODES - 1),
            format!("--max-restarts={}", 10 * LOST_NODES),
            format!("--rdzv-endpoint={}", etcd.place("job")),
            // Of a job on one machine.
            "--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=10"
                .to_owned(),
        ];
        start_launcher(&job, &format!("node {number}"), &options)
    };
    let mut launchers: Vec<Launcher> = (0..NODES).map(start).collect();
    await_round(&mut launchers);
    for lost in 0..LOST_NODES {
        thread::sleep(Duration::from_millis(random.u64(50..2000)));
        let index = serving(&launchers, &etcd);
        // SIGKILL, as all its processes.
        drop(launchers.remove(index));
        await_round(&mut launchers);
        if lost + 1 < LOST_NODES {
            launchers.push(start(NODES + lost));
            await_round(&mut launchers);
        }
    }
    store(["set", "stop", "1"], &etcd, None);
    finish(&mut launchers);
}
