//! Servers of one store in etcd: one serves, another takes over. Needs etcd: `C10D_ETCD`.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::ChildStdout;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_store::{Store, StoreExt, TcpStore};
use rustix::process::Signal;

use crate::etcd::Etcd;
use crate::process::{PROGRAM, Running, Server, command_of, run, until};

pub(crate) struct Candidate {
    pub(crate) running: Running,
    stdout: BufReader<ChildStdout>,
    pub(crate) address: String,
}

impl Candidate {
    pub(crate) fn start(etcd: &Etcd) -> Self {
        Self::start_of(PROGRAM, etcd)
    }

    pub(crate) fn start_of(program: &str, etcd: &Etcd) -> Self {
        Self::start_with(program, etcd, &[])
    }

    pub(crate) fn start_with(program: &str, etcd: &Etcd, more: &[&str]) -> Self {
        let members = format!("--etcd={}", etcd.client);
        let words = ["store", "serve", "--port=0", &members, "--etcd-prefix=job"];
        let mut running = Running::start(command_of(program, [&words, more].concat()));
        let mut stdout = BufReader::new(running.stdout());
        let address = line(&mut stdout, "standing by on ");
        Self {
            running,
            stdout,
            address,
        }
    }

    /// The address at which the server serves, if it does.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Waits until it is a standby again.
    pub(crate) fn await_standby(&mut self) {
        assert_eq!(line(&mut self.stdout, "standing by on "), self.address);
    }

    /// Waits until it serves.
    pub(crate) fn store(&mut self) -> TcpStore {
        assert_eq!(line(&mut self.stdout, "listening on "), self.address);
        let (host, port) = self.address.rsplit_once(':').unwrap();
        TcpStore::connect(host, port.parse().unwrap()).unwrap()
    }
}

/// The rest of the next line, which begins so.
fn line(stdout: &mut BufReader<ChildStdout>, start: &str) -> String {
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let rest = line.trim_end().strip_prefix(start);
    rest.unwrap_or_else(|| panic!("the server wrote {line:?}"))
        .to_owned()
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_server_that_was_stopped_answers_nothing_and_stands_by_again() {
    let etcd = Etcd::start();
    let mut first = Candidate::start(&etcd);
    let old = first.store();
    assert_eq!(old.add("sum", 5).unwrap(), 5);
    let mut second = Candidate::start(&etcd);
    first.running.signal(Signal::STOP);
    let new = second.store();
    assert_eq!(new.add("sum", 1).unwrap(), 6);
    first.running.signal(Signal::CONT);
    let answer = old.get("sum");
    assert!(answer.is_err(), "the first one still answers: {answer:?}");
    first.await_standby();
    // It takes over in its turn.
    drop(second);
    assert_eq!(first.store().add("sum", 1).unwrap(), 7);
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn clients_of_a_relay_do_not_notice_that_another_server_takes_over() {
    let etcd = Etcd::start();
    let place = etcd.place("job");
    let mut first = Candidate::start(&etcd);
    first.store();
    let mut second = Candidate::start(&etcd);
    let upstream = format!("--upstream={place}");
    let relay = Server::start_with(["relay", "--listen=127.0.0.1:0", &upstream]);
    let client = TcpStore::connect("127.0.0.1", relay.address.port()).unwrap();
    assert_eq!(client.add("sum", 5).unwrap(), 5);
    let before = first.address.clone();
    drop(first);
    assert_eq!(client.add("sum", 2).unwrap(), 7);
    second.store();
    let connect = format!("--connect={place}");
    let status = run(["store", "status", "--json", &connect]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["leader"]["address"], second.address, "{status}");
    assert_eq!(status["leader"]["epoch"], 2, "{status}");
    assert!(status["candidates"].is_array(), "{status}");
    assert_eq!(status["takeover"]["from"], before, "{status}");
    assert!(status["takeover"]["seconds"].is_f64(), "{status}");
    assert!(status["log_bytes"].as_u64().unwrap() > 0, "{status}");
    assert_eq!(status["snapshot_bytes"], serde_json::Value::Null);
    let text = String::from_utf8(run(["store", "status", &connect]).stdout).unwrap();
    assert!(
        text.contains(&format!("serves    {}", second.address)),
        "{text}"
    );
    run(["store", "get", "sum", &connect]).assert_prints("7");
    // It is no longer a standby.
    second.running.signal(Signal::TERM);
    assert_eq!(second.running.end().code, Some(0));
    let nobody = run(["store", "get", "sum", &connect]);
    nobody.assert_fails(3, "no process serves the store");
}

/// docs/how-to/etcd-operate.md: the position of a standby in etcd is up to 45 s old. The command reads the newer position of the standby itself.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_status_shows_what_a_standby_has_read_just_now() {
    const AT_ONCE: Duration = Duration::from_secs(20);
    let etcd = Etcd::start();
    let mut first = Candidate::start(&etcd);
    let store = first.store();
    let second = Candidate::start(&etcd);
    let connect = format!("--connect={}", etcd.place("job"));
    let status = || {
        let status = run(["store", "status", "--json", &connect]);
        serde_json::from_slice::<serde_json::Value>(&status.stdout).unwrap()
    };
    until("both are listed", || {
        status()["candidates"].as_array().map(Vec::len) == Some(2)
    });
    for number in 1..=50 {
        assert_eq!(store.add("sum", 1).unwrap(), number);
    }
    let written = Instant::now();
    let lags = |status: &serde_json::Value| {
        let candidates = status["candidates"].as_array().unwrap();
        let lags = candidates.iter().map(|it| it["lag"].as_u64().unwrap());
        lags.collect::<Vec<_>>()
    };
    let mut shown = status();
    while lags(&shown) != [0, 0] {
        assert!(written.elapsed() < AT_ONCE, "{shown}");
        thread::sleep(Duration::from_millis(50));
        shown = status();
    }
    assert!(shown["position"].as_u64().unwrap() >= 50, "{shown}");
    // A stopped process reads nothing and does not answer.
    second.running.signal(Signal::STOP);
    for number in 51..=100 {
        assert_eq!(store.add("sum", 1).unwrap(), number);
    }
    let shown = status();
    second.running.signal(Signal::CONT);
    assert!(lags(&shown).iter().any(|lag| *lag >= 50), "{shown}");
}

/// The status is printed even if no server leads, and one member does not answer.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_status_says_how_each_member_of_etcd_is() {
    let etcd = Etcd::start();
    // It behaves like a stopped process: the system accepts connections for it.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    let connect = format!("--connect=etcd://{},{silent}/job", etcd.client);
    let mut status = serde_json::Value::Null;
    until("etcd answers", || {
        let ended = run(["store", "status", "--json", &connect]);
        status = serde_json::from_slice(&ended.stdout).unwrap();
        ended.code == Some(0) && status["members"][0]["leads"] == true
    });
    let member = &status["members"][0];
    assert_eq!(member["address"], etcd.client, "{status}");
    assert!(member["database_bytes"].as_u64().unwrap() > 0, "{status}");
    assert_eq!(member["errors"], serde_json::json!([]), "{status}");
    let stopped = status["members"][1]["error"].as_str().unwrap();
    assert!(stopped.contains("no answer in time"), "{status}");
    assert_eq!(status["leader"], serde_json::Value::Null);
    let ended = run(["store", "status", &connect]);
    let text = ended.stdout_text();
    let line = |start: &str, part: &str| {
        let is_it = |line: &str| line.starts_with(start) && line.contains(part);
        assert!(text.lines().any(is_it), "{start:?} {part:?}: {text}");
    };
    line(&format!("etcd      {}  ", etcd.client), "leads");
    line(&format!("etcd      {silent}  "), "no answer in time");
    line("serves    nobody", "");

    // Without a member that answers, there are only these lines.
    let ended = run(["store", "status", &format!("--connect=etcd://{silent}/job")]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(
        ended.stdout_text().contains("no answer in time"),
        "{ended:?}"
    );
}

/// A standby sees that the process that serves has ended, and waits for no lease. Prints the longest pauses of a client.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
#[expect(clippy::print_stdout, reason = "the figures are for readers")]
fn a_killed_server_is_followed_before_its_lease_ends() {
    let rounds = std::env::var("ROUNDS").map_or(10, |text| text.parse().unwrap());
    let etcd = Etcd::start();
    let upstream = format!("--upstream={}", etcd.place("job"));
    let mut serving = Candidate::start(&etcd);
    serving.store();
    let relay = Server::start_with(["relay", "--listen=127.0.0.1:0", &upstream]);
    let store = TcpStore::connect("127.0.0.1", relay.address.port()).unwrap();
    let client = Paced::start(store, "sum");
    let mut killed = Vec::new();
    let mut logs = Vec::new();
    for _ in 0..rounds {
        let mut next = Candidate::start(&etcd);
        let mut log = BufReader::new(next.running.stderr());
        await_line(&mut log, &["will be noticed at once"]);
        client.wait_for_calls();
        client.longest();
        drop(std::mem::replace(&mut serving, next));
        let seen = await_line(&mut log, &["the leader has exited", "leads from now on"]);
        assert!(
            seen.contains("the leader has exited"),
            "by its lease only: {seen}"
        );
        serving.store();
        client.wait_for_calls();
        killed.push(client.longest());
        // The process continues to write.
        logs.push(log);
    }
    let mut other = Candidate::start(&etcd);
    client.wait_for_calls();
    client.longest();
    serving.running.signal(Signal::STOP);
    other.store();
    client.wait_for_calls();
    let stopped = client.longest();
    serving.running.signal(Signal::CONT);
    let sum = client.end();
    let store = TcpStore::connect("127.0.0.1", relay.address.port()).unwrap();
    assert_eq!(store.add("sum", 0).unwrap(), sum);
    killed.sort_unstable();
    println!("longest pauses: killed {killed:?}, stopped {stopped:?}");
}

/// The next line that has one of these texts.
fn await_line(log: &mut impl BufRead, texts: &[&str]) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "it has ended");
        if texts.iter().any(|text| line.contains(text)) {
            return line;
        }
    }
}

/// A client that adds 1 all the time.
pub(crate) struct Paced {
    longest: Arc<Mutex<(Duration, u64)>>,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<i64>,
}

impl Paced {
    pub(crate) fn start(store: TcpStore, key: &str) -> Self {
        let key = key.to_owned();
        let longest = Arc::new(Mutex::new((Duration::ZERO, 0)));
        let ends = Arc::new(AtomicBool::new(false));
        let (measured, stop) = (Arc::clone(&longest), Arc::clone(&ends));
        let thread = thread::spawn(move || {
            let mut sum = 0;
            while !stop.load(Ordering::SeqCst) {
                let start = Instant::now();
                sum += 1;
                assert_eq!(store.add(&key, 1).unwrap(), sum);
                let mut measured = measured.lock().unwrap();
                measured.0 = measured.0.max(start.elapsed());
                measured.1 += 1;
                drop(measured);
                thread::sleep(Duration::from_millis(5));
            }
            sum
        });
        Self {
            longest,
            ends,
            thread,
        }
    }

    /// Waits until calls that begin from now on were answered.
    pub(crate) fn wait_for_calls(&self) {
        let before = self.longest.lock().unwrap().1;
        while self.longest.lock().unwrap().1 < before + 3 {
            assert!(!self.thread.is_finished(), "the client has failed");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the longest of the calls since the last question.
    fn longest(&self) -> Duration {
        std::mem::take(&mut self.longest.lock().unwrap().0)
    }

    pub(crate) fn end(self) -> i64 {
        self.ends.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

#[test]
fn a_journal_in_etcd_needs_members_and_a_prefix() {
    for (words, text) in [
        (&["--etcd=127.0.0.1:1"][..], "--etcd-prefix"),
        (&["--etcd-prefix=job"], "--etcd"),
        (&["--etcd=a", "--etcd-prefix=job", "--dir=d"], "--dir"),
        (&["--etcd=a", "--etcd-prefix=a b"], "a space"),
    ] {
        let ended = run([&["store", "serve"], words].concat());
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(text), "{ended:?}");
    }
}
