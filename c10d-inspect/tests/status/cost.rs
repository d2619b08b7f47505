//! The cost of an open page and a Prometheus on the store's thread, in a job of 16,384 ranks.

use std::env;
use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::front::{Front, LIMIT};
use crate::ranks::Rank;

const RANKS: usize = 16_384;

/// The rank that all other ranks wait for.
const MISSING: usize = 9001;

/// How long to measure.
const TIME: Duration = Duration::from_secs(10);

/// A snapshot is kept at least this many times as long as it took the store's thread, and its explanation the server.
const STORE_SHARE: f64 = 333.0;
const EXPLAIN_SHARE: f64 = 4.0;

/// Tells a process that it is to measure.
const MEASURE_VARIABLE: &str = "C10D_TEST_MEASURE";

/// Tells the child process which store to connect to.
const STORE_VARIABLE: &str = "C10D_TEST_STORE";

#[test]
#[ignore = "16,384 connections; a measurement of 20 s"]
fn an_open_page_and_a_scrape_take_snapshots_as_rarely_as_they_are_expensive() {
    let mut child = run_alone("cost::measure", MEASURE_VARIABLE, "1");
    let status = child.wait().expect("its end");
    assert!(status.success(), "{status}");
}

#[test]
#[ignore = "runs in a process of its own"]
fn measure() {
    if env::var_os(MEASURE_VARIABLE).is_none() {
        return;
    }
    raise_limit();
    let front = Front::of_a_store();
    let fleet = Fleet::start(front.address);
    let start = Instant::now();
    while front.store.waiting_count() < RANKS - 1 {
        assert!(
            start.elapsed() < 3 * LIMIT,
            "{} wait",
            front.store.waiting_count()
        );
        thread::sleep(Duration::from_millis(50));
    }
    let idle = cost_of(|| {});
    // A page requests the summary and the chosen rank once a second, and a Prometheus requests the metrics.
    let mut bytes = 0;
    let mut cheapest = f64::MAX;
    let watched = cost_of(|| {
        for path in ["/ranks.json?rank=9001", "/metrics"] {
            let answer = front.get(path);
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let answer = front.get("/status.json");
        assert_eq!(answer.status, 200, "{answer:?}");
        bytes = bytes.max(answer.body.len());
        let status = answer.json();
        let milliseconds = |name: &str| status[name].as_f64().expect("a number");
        cheapest = cheapest.min(milliseconds("snapshot_ms"));
        let least = (cheapest * STORE_SHARE).max(milliseconds("explain_ms") * EXPLAIN_SHARE);
        // Whole milliseconds.
        assert!(milliseconds("interval_ms") + 1.0 >= least, "{status}");
    });
    let status = front.get("/status.json").json();
    let figures = format!(
        "store thread: {idle:.2} ms/s without requests, {watched:.2} ms/s with; a snapshot each {} ms; \
         it takes {} ms of the store's thread, and its explanation {} ms; /status.json {bytes} bytes; {}",
        status["interval_ms"], status["snapshot_ms"], status["explain_ms"], status["headline"]
    );
    // People run this test for these numbers.
    io::Write::write_all(&mut io::stderr(), format!("{figures}\n").as_bytes()).expect("written");
    drop(fleet);
}

/// The CPU time of the store's thread, in milliseconds per second, while `work` runs once a second.
fn cost_of(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    let before = store_thread_time();
    while start.elapsed() < TIME {
        let round = Instant::now();
        work();
        thread::sleep(Duration::from_secs(1).saturating_sub(round.elapsed()));
    }
    let spent = store_thread_time() - before;
    spent.as_secs_f64() * 1000.0 / start.elapsed().as_secs_f64()
}

/// The CPU time of the thread `c10d-store` of this process (Linux).
fn store_thread_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let mut found = tasks.filter_map(|task| {
        let folder = task.ok()?.path();
        let name = fs::read_to_string(folder.join("comm")).ok()?;
        let times = fs::read_to_string(folder.join("schedstat")).ok()?;
        let nanoseconds = times.split(' ').next()?.parse().ok()?;
        (name.trim() == "c10d-store").then(|| Duration::from_nanos(nanoseconds))
    });
    let time = found.next().expect("the store's thread");
    assert!(found.next().is_none(), "one store in this process");
    time
}

/// Runs one test of this program in a separate process, because other tests also have stores and connections.
fn run_alone(test: &str, variable: &str, value: &str) -> Child {
    let child = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(variable, value)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    child.expect("a process")
}

/// A process that holds the connections: a process has 20,000 descriptors here, and each connection has two ends.
#[derive(Debug)]
struct Fleet(Child);

impl Fleet {
    fn start(store: SocketAddr) -> Self {
        let test = "cost::the_child_holds_the_connections";
        Self(run_alone(test, STORE_VARIABLE, &store.to_string()))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn the_child_holds_the_connections() {
    let Ok(store) = env::var(STORE_VARIABLE) else {
        return;
    };
    let store = store.parse().expect("an address");
    raise_limit();
    let ranks: Vec<Rank> = (0..RANKS)
        .filter(|rank| *rank != MISSING)
        .map(|rank| {
            // The size of the group would make each address 128 KiB: 2 GiB in all.
            let mut rank = Rank::connect(store, rank, 0);
            rank.publish("gpu-node-1");
            rank.start_to_wait(MISSING);
            rank
        })
        .collect();
    // Until the parent ends.
    let _ = io::stdin().read(&mut [0]);
    drop(ranks);
}

fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let needed = u64::try_from(RANKS + 200).expect("small");
    let raised = Rlimit {
        current: Some(limit.maximum.unwrap_or(u64::MAX).min(needed.max(20_000))),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised to the hard one");
}
