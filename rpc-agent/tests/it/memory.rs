//! The memory of a worker after bursts of calls.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use c10d_store::{FileStore, Store};
use rpc_agent::{Agent, CallOptions};

use crate::common::{PATIENCE, options, registry};

const TEST: &str = "memory::a_burst_of_calls_leaves_no_memory_behind";

/// Environment variable of the callee's process: the path of the store.
const STORE: &str = "C10D_TEST_CALLEE_STORE";

const CALLS: usize = 100_000;

/// Resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.unwrap().parse().unwrap()
}

fn start(rank: u32, store: &PathBuf) -> Agent {
    let store: Arc<dyn Store> = Arc::new(FileStore::open(store, None).unwrap());
    let registry = registry(|registry| {
        registry
            .register_bytes("resident KiB", |_, _| {
                Ok(resident_kib().to_string().into_bytes().into())
            })
            .unwrap();
    });
    Agent::start(options(rank).with_world_size(2), registry, store).unwrap()
}

/// The process of the callee. Killed if the test fails.
struct Callee(Child);

impl Drop for Callee {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The callee has a process of its own, so that the caller's memory is not counted. `BURSTS=n` makes n bursts.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(clippy::print_stderr, reason = "the measured memory")]
fn a_burst_of_calls_leaves_no_memory_behind() {
    if let Some(store) = env::var_os(STORE) {
        return start(1, &store.into()).shutdown(PATIENCE * 60).unwrap();
    }
    let store = env::temp_dir().join(format!("c10d-bursts-{}", process::id()));
    let _ = fs::remove_file(&store);
    let callee = Command::new(env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(STORE, &store)
        .spawn();
    let mut callee = Callee(callee.unwrap());
    let agent = start(0, &store);
    let caller = agent.handle();
    let resident_mib = || {
        let kib = caller.call_bytes("worker1", "resident KiB", "").unwrap();
        String::from_utf8_lossy(&kib).parse::<u64>().unwrap() >> 10
    };
    let at_start = resident_mib();
    let bursts = env::var("BURSTS").map_or(4, |bursts| bursts.parse().unwrap());
    for burst in 1..=bursts {
        let calls: Vec<_> = (0..CALLS)
            .map(|_| caller.call_bytes_async("worker1", "echo", "12345678", CallOptions::default()))
            .collect();
        for call in calls {
            call.wait().unwrap();
        }
        eprintln!("{} MiB after burst {burst}", resident_mib());
    }
    // Idle threads end, and free memory is returned, some time after the last burst.
    let began = Instant::now();
    while resident_mib() > at_start + 8 {
        let now = resident_mib();
        let waited = began.elapsed();
        assert!(
            waited < PATIENCE,
            "{now} MiB, {at_start} MiB before {bursts} bursts"
        );
        thread::sleep(Duration::from_secs(1));
    }
    eprintln!(
        "{} MiB {:?} after the last, {at_start} MiB before the first",
        resident_mib(),
        began.elapsed()
    );
    agent.shutdown(PATIENCE).unwrap();
    assert!(callee.0.wait().unwrap().success());
    let _ = fs::remove_file(&store);
}
