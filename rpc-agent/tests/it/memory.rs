//! The memory of a worker after bursts of calls.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use c10d_store::{FileStore, Store};
use peak_alloc::PeakAlloc;
use rpc_agent::Agent;

use crate::common::{PATIENCE, ask, options, registry};

const TEST: &str = "memory::a_burst_of_calls_leaves_no_memory_behind";

/// Environment variable of the callee's process: the path of the store.
const STORE: &str = "C10D_TEST_CALLEE_STORE";

const CALLS: usize = 100_000;

/// How much memory may stay in use after the bursts, beyond what was in use before.
const KEPT_MAX: u64 = 1 << 20;

/// How much more may stay resident: glibc keeps the free end of each thread's arena, up to twice the size of the largest
/// block that was ever freed, and `malloc_trim` returns the free end of the main arena alone.
const KEPT_BY_GLIBC_MAX: u64 = 64 << 20;

#[global_allocator]
static IN_USE: PeakAlloc = PeakAlloc;

/// The memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
struct Memory {
    in_use: u64,
    resident: u64,
}

impl Memory {
    fn of_this_process() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        Self {
            in_use: u64::try_from(IN_USE.current_usage()).unwrap(),
            resident: kib.unwrap().parse::<u64>().unwrap() << 10,
        }
    }

    fn to_bytes(self) -> Vec<u8> {
        format!("{} {}", self.in_use, self.resident).into_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (in_use, resident) = text.split_once(' ').unwrap();
        Self {
            in_use: in_use.parse().unwrap(),
            resident: resident.parse().unwrap(),
        }
    }
}

fn start(rank: u32, store: &PathBuf) -> Agent {
    let store: Arc<dyn Store> = Arc::new(FileStore::open(store, None).unwrap());
    let registry = registry(|registry| {
        registry
            .register_bytes("memory", |_, _| {
                Ok(Memory::of_this_process().to_bytes().into())
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

/// The callee has a separate process, so that the caller's memory is not counted. `BURSTS=n` makes n bursts.
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
    let memory = || Memory::from_bytes(&ask(caller, "worker1", "memory", "").unwrap());
    let at_start = memory();
    eprintln!("{at_start:?} before the first burst");
    let bursts = env::var("BURSTS").map_or(4, |bursts| bursts.parse().unwrap());
    for burst in 1..=bursts {
        let calls: Vec<_> = (0..CALLS)
            .map(|_| caller.call("worker1", "echo").send_bytes("12345678"))
            .collect();
        for call in calls {
            call.wait().unwrap();
        }
        eprintln!("{:?} after burst {burst}", memory());
    }
    // Idle threads end, and free memory is returned, some time after the last burst.
    let began = Instant::now();
    let idle = loop {
        let now = memory();
        if now.in_use <= at_start.in_use + KEPT_MAX
            && now.resident <= at_start.resident + KEPT_BY_GLIBC_MAX
        {
            break now;
        }
        let waited = began.elapsed();
        assert!(
            waited < PATIENCE,
            "{now:?} {waited:?} after {bursts} bursts, {at_start:?} before"
        );
        thread::sleep(Duration::from_secs(1));
    };
    eprintln!("{idle:?} {:?} after the last", began.elapsed());
    agent.shutdown(PATIENCE).unwrap();
    assert!(callee.0.wait().unwrap().success());
    let _ = fs::remove_file(&store);
}
