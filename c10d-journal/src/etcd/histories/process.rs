//! A process that is a candidate: this test program, started again.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use c10d_socket::{Cancel, HostPort};
use c10d_store::journal::{
    Authority, Journal, JournalError, JournalIdentity, JournalSource, Recovered,
};
use c10d_store::{ServerOptions, TcpStoreServer};

use super::super::journal::EtcdJournal;
use super::super::mutant::{Defect, Mutant};
use super::super::options::EtcdOptions;

/// The instructions for the process: the address of the store in etcd, the seconds of its lease, and its defect.
const CANDIDATE: &str = "C10D_HISTORY_CANDIDATE";

/// The mark of a line that is not a message of the test program.
const MARK: &str = "@ ";

/// A second of a history's traffic, about.
const SNAPSHOT_AFTER_BYTES: usize = 16 << 10;

/// How long a process takes at most to listen.
const LONG: Duration = Duration::from_secs(60);

/// A process leads since this time, in microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) process: u64,
    pub(super) epoch: u64,
    pub(super) at: u64,
    pub(super) lease: u64,
}

/// The reports of all processes of a history.
#[derive(Debug, Default)]
pub(super) struct Reports {
    claims: Mutex<Vec<Claim>>,
    /// Processes that have read a part of the log.
    followers: Mutex<Vec<u64>>,
    snapshots: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Reports {
    pub(super) fn claims(&self) -> MutexGuard<'_, Vec<Claim>> {
        self.claims.lock().expect("no panic")
    }

    /// Whether this process has read a part of the log, and so has looked who leads.
    pub(super) fn has_followed(&self, process: u64) -> bool {
        let followers = self.followers.lock().expect("no panic");
        followers.contains(&process)
    }

    /// How many snapshots are complete.
    pub(super) fn snapshots(&self) -> usize {
        self.snapshots.load(Ordering::Relaxed)
    }

    /// Processes that exited unexpectedly.
    pub(super) fn failures(&self) -> MutexGuard<'_, Vec<String>> {
        self.failures.lock().expect("no panic")
    }

    /// The newest one.
    pub(super) fn last_claim(&self) -> Option<Claim> {
        self.claims().iter().max_by_key(|it| it.epoch).cloned()
    }
}

/// A candidate. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) number: u64,
    pub(super) address: SocketAddr,
    child: Child,
    /// The input of the process, whose end stops it.
    stdin: Option<ChildStdin>,
    /// Whether the process is expected to exit.
    may_end: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    pub(super) fn start(
        number: u64,
        etcd: &str,
        ttl_seconds: u64,
        mutant: Mutant,
        reports: &Arc<Reports>,
    ) -> Self {
        let name = concat!(module_path!(), "::candidate");
        let name = name.split_once("::").expect("it is in a crate").1;
        let stderr = if env::var_os("RUST_LOG").is_some() {
            Stdio::inherit()
        } else {
            Stdio::null()
        };
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", name, "--ignored", "--nocapture"])
            .env(CANDIDATE, format!("{etcd} {ttl_seconds} {mutant:?}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("a process");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let may_end = Arc::new(AtomicBool::new(false));
        let (sender, listens) = channel();
        let (reports, expected, process) = (Arc::clone(reports), Arc::clone(&may_end), number);
        let reader = thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let Some((_, said)) = line.split_once(MARK) else {
                    continue;
                };
                let (what, rest) = said.split_once(' ').unwrap_or((said, ""));
                match what {
                    "listens" => {
                        let _ = sender.send(rest.parse().expect("an address"));
                    }
                    "leads" => {
                        let mut numbers = rest.split(' ').map(|it| it.parse().expect("a number"));
                        let mut number = || numbers.next().expect("three numbers");
                        reports.claims().push(Claim {
                            process,
                            epoch: number(),
                            lease: number(),
                            at: number(),
                        });
                    }
                    "kept" => {
                        reports.snapshots.fetch_add(1, Ordering::Relaxed);
                    }
                    "follows" => reports.followers.lock().expect("no panic").push(process),
                    _ => reports
                        .failures()
                        .push(format!("process {process}: {rest}")),
                }
            }
            if !expected.load(Ordering::Acquire) {
                let ended = format!("process {process} exited on its own");
                reports.failures().push(ended);
            }
        });
        let address = listens.recv_timeout(LONG).expect("it listens");
        Self {
            number,
            address,
            stdin: child.stdin.take(),
            child,
            may_end,
            reader: Some(reader),
        }
    }

    pub(super) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status();
        assert!(status.is_ok_and(|status| status.success()));
    }

    /// Kills the process with SIGKILL.
    pub(super) fn kill(&mut self) {
        self.may_end.store(true, Ordering::Release);
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            reader.join().expect("no panic");
        }
    }

    /// Stops in order. Does not wait for its end.
    pub(super) fn stop(&mut self) {
        self.may_end.store(true, Ordering::Release);
        self.stdin = None;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reports the epoch in which it leads, before it serves.
#[derive(Debug)]
struct Claiming(EtcdJournal);

impl Journal for Claiming {
    fn identity(&self) -> JournalIdentity {
        self.0.identity()
    }

    fn place(&self) -> String {
        self.0.place()
    }

    fn authority(&self) -> Option<Authority> {
        let authority = self.0.authority();
        authority.filter(|_| self.0.defect.mutant != Mutant::NoGuard)
    }

    fn recover(
        &mut self,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError> {
        let mut follows = false;
        let position = self.0.recover(&mut |piece| {
            if !std::mem::replace(&mut follows, true) {
                say("follows");
            }
            visit(piece)
        })?;
        let epoch = self.0.identity().epoch;
        let lease = self.0.lease_id().expect("it leads");
        say(&format!("leads {epoch} {lease} {}", now_us()));
        Ok(position)
    }

    /// Few bytes, so that snapshots are taken during a history.
    fn snapshot_after_bytes(&self) -> usize {
        SNAPSHOT_AFTER_BYTES
    }

    fn append(&mut self, position: u64, batch: &[u8]) -> Result<(), JournalError> {
        self.0.append(position, batch)
    }

    fn begin_snapshot(&mut self, position: u64) -> Result<(), JournalError> {
        self.0.begin_snapshot(position)
    }

    fn add_to_snapshot(&mut self, chunk: &[u8]) -> Result<(), JournalError> {
        self.0.add_to_snapshot(chunk)
    }

    fn finish_snapshot(&mut self) -> Result<(), JournalError> {
        self.0.finish_snapshot()?;
        say("kept");
        Ok(())
    }
}

/// Returns the time in microseconds since 1970.
pub(super) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.expect("after 1970").as_micros() as u64
}

#[expect(clippy::print_stdout, reason = "the test that has started it reads it")]
fn say(what: &str) {
    println!("\n{MARK}{what}");
    let _ = std::io::stdout().flush();
}

/// Serves or follows as a standby until its input ends, like `c10d store serve --etcd`.
#[test]
#[ignore = "a process of the histories"]
fn candidate() {
    let Ok(what) = env::var(CANDIDATE) else {
        return;
    };
    let _ = env_logger::builder().format_timestamp_millis().try_init();
    let [etcd, ttl, mutant] = *what.split(' ').collect::<Vec<_>>() else {
        panic!("{what}");
    };
    let ttl = Duration::from_secs(ttl.parse().expect("seconds"));
    let mutant: Mutant = mutant.parse().expect("a mutant");
    let options: EtcdOptions = etcd.parse().expect("an address");
    let options = options.with_lease_ttl(ttl);

    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ends.store(true, Ordering::Release);
    });
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let others = HostPort::new(address.ip().to_string(), address.port());
    let open = move |cancel: &Cancel| {
        let mut journal = EtcdJournal::open(&options, &others, cancel)?;
        journal.defect = Defect::new(mutant);
        Ok(Box::new(Claiming(journal)) as Box<dyn Journal>)
    };
    let source = JournalSource {
        open: Arc::new(open),
        on_failure: None,
    };
    let options = ServerOptions::default().with_journal(source);
    say(&format!("listens {address}"));
    while !is_over.load(Ordering::Acquire) {
        let listener = listener.try_clone().expect("a descriptor");
        let server = TcpStoreServer::stand_by(vec![listener], options.clone());
        let server = server.expect("it listens");
        while server.is_running() && !is_over.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(10));
        }
        if let Some(error) = server.journal_failure()
            && !matches!(error, JournalError::Deposed { .. })
        {
            return say(&format!("failed {error}"));
        }
    }
}
