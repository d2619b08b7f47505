//! PyTorch ranks behind relays, whose store is killed and started again with its directory.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use c10d_store::{Secret, StoreExt, TcpStore, TcpStoreOptions};
use integration_tests::durable_store::DurableStore;
use integration_tests::eventually::eventually;
use integration_tests::launcher::{Job, Launcher};
use integration_tests::torch::{Feature, Release};
use integration_tests::watchdog::Watchdog;

const LIMIT: Duration = Duration::from_secs(400);
pub(crate) const NODES: usize = 4;
const RANKS_PER_NODE: usize = 2;
const KILLS: usize = 20;

/// Longer than Python starts and a group forms on a busy machine.
const END_LIMIT: Duration = Duration::from_secs(120);

/// A launcher with two ranks behind its relay.
pub(crate) fn start_launcher(job: &Job, name: &str, options: &[String]) -> Launcher {
    let own = [
        format!("--nproc-per-node={RANKS_PER_NODE}"),
        "--rdzv-backend=c10d".to_owned(),
        "--rdzv-id=durable".to_owned(),
        "--workers-store=rendezvous".to_owned(),
        "--relay".to_owned(),
    ];
    job.start_ranks(name, "durable_rank.py", own.iter().chain(options))
}

/// A store that is lost while nodes meet can end their launchers.
pub(crate) fn await_meeting(launchers: &mut [Launcher]) {
    for launcher in launchers {
        let process = launcher.process();
        eventually("the nodes meet", || {
            process.stderr().contains("started ranks")
        });
    }
}

/// Waits until the ranks train in a round of all of these launchers.
pub(crate) fn await_round(launchers: &mut [Launcher]) {
    let world = launchers.len() * RANKS_PER_NODE;
    for launcher in launchers {
        for _ in 0..RANKS_PER_NODE {
            loop {
                let joined = launcher.process().read_json();
                assert!(joined["joined"].is_u64(), "{joined}");
                if joined["world"] == world {
                    break;
                }
            }
        }
    }
}

/// Waits until all launchers have ended, after the store got its key `stop`.
pub(crate) fn finish(launchers: &mut [Launcher]) {
    let mut steps = Vec::new();
    for launcher in launchers {
        for _ in 0..RANKS_PER_NODE {
            // A rank that was started again would join first.
            let result = launcher.process().read_json();
            let stderr = launcher.process().stderr();
            assert_eq!(result["same"], true, "{result}: {stderr}");
            steps.push(result["steps"].as_u64().unwrap_or_default());
        }
        let code = launcher.wait(END_LIMIT);
        assert_eq!(code, Some(0), "{}", launcher.process().stderr());
    }
    assert!(
        steps[0] > 0 && steps.iter().all(|it| *it == steps[0]),
        "{steps:?}"
    );
}

/// What repeats the kills, printed even if the watchdog ends the test.
pub(crate) fn seeded() -> fastrand::Rng {
    let seed = c10d_sim::seed();
    // Not `eprintln!`: an abort discards what libtest has captured.
    let _: io::Result<()> = writeln!(io::stderr(), "SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Four launchers with two ranks each, that train with DDP; the store is that of their rendezvous, too. The losses are those of a run in which nothing was killed.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn no_rank_notices_twenty_kills_of_the_store() {
    // The ranks use queues, too.
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let _watchdog = Watchdog::start("no_rank_notices_twenty_kills_of_the_store", LIMIT);
    let mut random = seeded();
    let folder = tempfile::tempdir().expect("a folder");
    let secret = Secret::random().expect("random numbers");
    let secret_file = folder.path().join("secret");
    write_secret(&secret_file, &secret);
    let mut option = OsString::from("--secret-file=");
    option.push(&secret_file);
    let mut server = DurableStore::start(&folder.path().join("store"), &[option]);
    let address = server.address();
    let job = Job::new(folder.path());
    let options = [
        format!("--nnodes={NODES}"),
        format!("--rdzv-endpoint=127.0.0.1:{}", address.port()),
        "--rdzv-conf=is_host=0".to_owned(),
        format!("--secret-file={}", secret_file.display()),
    ];
    let mut launchers: Vec<Launcher> = (0..NODES)
        .map(|node| start_launcher(&job, &format!("node {node}"), &options))
        .collect();
    let client = || {
        let options = TcpStoreOptions::default().with_secret(secret.clone());
        TcpStore::open("127.0.0.1", address.port(), options).expect("a client")
    };
    await_meeting(&mut launchers);

    // The first while Python starts and the group forms.
    for kill in 0..KILLS {
        thread::sleep(Duration::from_millis(random.u64(50..700)));
        server.kill();
        if kill % 5 == 4 {
            thread::sleep(Duration::from_millis(random.u64(..3000)));
        }
        server.restart();
        if kill == KILLS / 4 {
            await_round(&mut launchers);
        }
    }
    client().set("stop", b"1").expect("set");
    finish(&mut launchers);
    drop(server);
}

pub(crate) fn write_secret(path: &Path, secret: &Secret) {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(secret.to_text().as_bytes()));
    written.expect("a file");
}
