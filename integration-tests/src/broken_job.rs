//! A job of real PyTorch ranks that a test breaks, and the questions that are asked about it.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use c10d_inspect::Report;
use c10d_inspect::http::{HttpRequest, Target, fetch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::launcher::{Job, Kind, Launcher, c10d, free_address};
use crate::planned_ranks::{Plan, Rank, fork};
use crate::process::ChildProcess;

/// The longest wait for a condition: several starts of PyTorch on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The number of ranks of each job.
pub const WORLD_SIZE: usize = 4;

/// A job, its store and its ranks. Drop ends all of them.
#[derive(Debug)]
pub struct BrokenJob {
    // Dropped first: a launcher's drop kills its workers.
    launchers: Vec<Launcher>,
    ranks: BTreeMap<usize, Vec<Rank>>,
    /// Its drop ends the server.
    _server: Option<ChildProcess>,
    store: SocketAddr,
    job: Job,
    folder: TempDir,
}

/// An answer of `c10d why`.
#[derive(Debug)]
pub struct Answer {
    /// The exit code.
    pub code: Option<i32>,
    /// The report, as `c10d why --json` prints it.
    pub report: Report,
    /// How long the command ran, its start included.
    pub took: Duration,
}

/// A connection, as the store's `/clients.json` shows it.
#[derive(Debug, Clone)]
pub struct Client(Value);

impl BrokenJob {
    /// Starts `c10d store serve`; [`fork`](Self::fork) starts the ranks.
    ///
    /// # Panics
    /// When the server does not start.
    #[must_use]
    pub fn serve() -> Self {
        let mut command = Command::new(c10d());
        command.args(["store", "serve", "--port=0", "--end-with-parent"]);
        let mut server = ChildProcess::start("c10d store serve", &mut command);
        let line = server.read_line();
        let store = line
            .strip_prefix("listening on ")
            .and_then(|a| a.parse().ok());
        let store = store.unwrap_or_else(|| panic!("no address: {line}"));
        let folder = tempfile::tempdir().expect("a folder");
        Self {
            launchers: Vec::new(),
            ranks: BTreeMap::new(),
            _server: Some(server),
            store,
            job: Job::new(folder.path()),
            folder,
        }
    }

    /// Starts the nodes of a job, each with the same number of workers; node 0 hosts the store of the workers.
    ///
    /// Returns when each rank has executed `mark:here`, which tells where the store is.
    ///
    /// # Panics
    /// When a launcher does not start.
    #[must_use]
    pub fn launch(nodes: &[Kind], plan: &Plan, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let job = Job::new(folder.path());
        let rendezvous = free_address();
        let workers = WORLD_SIZE / nodes.len();
        let launchers = nodes.iter().enumerate().map(|(node, kind)| {
            let mut all = vec![format!("--nproc-per-node={workers}")];
            if nodes.len() == 1 {
                all.push("--standalone".to_owned());
            } else {
                // The ranks of a static rendezvous follow from the nodes' ranks.
                all.extend([
                    "--rdzv-backend=static".to_owned(),
                    format!("--rdzv-endpoint={rendezvous}"),
                    format!("--nnodes={}", nodes.len()),
                    format!("--node-rank={node}"),
                ]);
            }
            all.extend(options.iter().map(|option| (*option).to_owned()));
            job.start_planned(*kind, &format!("node{node}"), all, plan)
        });
        let mut broken = Self {
            launchers: launchers.collect(),
            ranks: BTreeMap::new(),
            _server: None,
            store: rendezvous,
            job,
            folder,
        };
        for rank in 0..WORLD_SIZE {
            let address = &broken.mark("here", rank)["store"];
            broken.store = format!("127.0.0.1:{}", address[1])
                .parse()
                .expect("an address");
        }
        broken
    }

    /// Starts ranks of `env://`, without a launcher.
    pub fn fork(&mut self, plan: &Plan, ranks: &[usize]) {
        for &rank in ranks {
            let forked = fork(self.folder.path(), plan, rank, WORLD_SIZE, self.store);
            self.ranks.entry(rank).or_default().push(forked);
        }
    }

    /// The address of the workers' store.
    #[must_use]
    pub const fn store(&self) -> SocketAddr {
        self.store
    }

    /// The launchers, in the order of the nodes.
    pub fn launchers(&mut self) -> &mut [Launcher] {
        &mut self.launchers
    }

    /// Lets the ranks that are at `await:name` continue.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn release(&self, name: &str) {
        fs::write(self.folder.path().join(name), "").expect("the folder can be written to");
    }

    /// Waits until `rank` has executed `mark:name`.
    ///
    /// # Panics
    /// When it does not.
    pub fn mark(&mut self, name: &str, rank: usize) -> Value {
        let file = format!("{name}.{rank}");
        self.eventually(&file, |job| job.job.read(&file))
    }

    /// Waits until all ranks have executed `mark:name`.
    ///
    /// # Panics
    /// When they do not.
    pub fn marks(&mut self, name: &str) {
        for rank in 0..WORLD_SIZE {
            self.mark(name, rank);
        }
    }

    /// Waits until `rank` has ended by itself, and returns how.
    ///
    /// # Panics
    /// When it does not end.
    pub fn end(&mut self, rank: usize) -> Value {
        self.mark("end", rank)
    }

    /// The last process that was started for `rank`.
    ///
    /// # Panics
    /// When the rank was not started, or a launcher has started it and it has not executed `mark:here`.
    pub fn pid(&mut self, rank: usize) -> u32 {
        if let Some(forked) = self.ranks.get(&rank).and_then(|all| all.last()) {
            return forked.pid();
        }
        let pid = self.mark("here", rank)["pid"].as_u64();
        pid.and_then(|pid| u32::try_from(pid).ok()).expect("a pid")
    }

    /// Sends a signal to the process of `rank`, and waits until it has stopped or ended.
    ///
    /// # Panics
    /// When it does neither.
    pub fn signal(&mut self, rank: usize, signal: Signal) {
        self.send(rank, signal);
        self.until_halted(rank);
    }

    /// Lets a stopped `rank` go on.
    ///
    /// # Panics
    /// When its process has ended.
    pub fn resume(&mut self, rank: usize) {
        self.send(rank, Signal::CONT);
    }

    fn send(&mut self, rank: usize, signal: Signal) {
        let pid = self.pid(rank);
        if let Some(forked) = self.ranks.get(&rank).and_then(|all| all.last()) {
            forked.signal(signal);
        } else if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
            kill_process(pid, signal).expect("the rank runs");
        }
    }

    /// Waits until the process of `rank` is stopped or has ended.
    ///
    /// # Panics
    /// When it is neither.
    pub fn until_halted(&mut self, rank: usize) {
        let stat = format!("/proc/{}/stat", self.pid(rank));
        self.eventually(&format!("rank {rank} halts"), |_| {
            let stat = fs::read_to_string(&stat).unwrap_or_default();
            // The state follows the name, which is in parentheses.
            let state = stat
                .rsplit(") ")
                .next()
                .and_then(|rest| rest.chars().next());
            matches!(state, None | Some('T' | 'Z' | 'X')).then_some(())
        });
    }

    /// Waits until the store's connections are as `condition` says, which `what` describes.
    ///
    /// # Panics
    /// When they are not in time.
    pub fn clients(&mut self, what: &str, condition: impl Fn(&[Client]) -> bool) {
        self.eventually(what, |job| {
            let clients = job.clients_now();
            condition(&clients).then_some(())
        });
    }

    fn clients_now(&self) -> Vec<Client> {
        let body = self.page("/clients.json");
        let value: Value = serde_json::from_slice(&body).expect("JSON");
        let clients = value["rows"].as_array().cloned().unwrap_or_default();
        clients.into_iter().map(Client).collect()
    }

    /// A page of the store.
    ///
    /// # Panics
    /// When the store does not answer with 200.
    #[must_use]
    pub fn page(&self, path: &str) -> Vec<u8> {
        let request = HttpRequest::get(Target::Tcp(self.store), path);
        let response = fetch(&request, LIMIT).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(response.status, 200, "{path}");
        response.body
    }

    /// Asks `c10d why --json`.
    ///
    /// # Panics
    /// When it prints no report.
    #[must_use]
    pub fn why(&self) -> Answer {
        let started = Instant::now();
        let output = self.ask(&["--json"]);
        let took = started.elapsed();
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        Answer {
            code: output.status.code(),
            report,
            took,
        }
    }

    /// What `c10d why` prints for a person.
    ///
    /// # Panics
    /// When it cannot be run.
    #[must_use]
    pub fn why_text(&self) -> String {
        String::from_utf8(self.ask(&[]).stdout).expect("UTF-8")
    }

    fn ask(&self, options: &[&str]) -> Output {
        let mut command = Command::new(c10d());
        command.arg("why").arg(format!("--connect={}", self.store));
        command.args(options).stdin(Stdio::null());
        command.output().expect("c10d can be run")
    }

    #[track_caller]
    fn eventually<T>(&mut self, what: &str, mut condition: impl FnMut(&Self) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(value) = condition(self) {
                return value;
            }
            if started.elapsed() > LIMIT {
                let launchers = self.launchers.iter_mut().map(|it| it.process().stderr());
                let texts: Vec<String> = launchers.collect();
                panic!("not within {LIMIT:?}: {what}\n{}", texts.join("\n\n"));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Client {
    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0["closed"].is_null()
    }

    /// The process id that PyTorch's clients send; launchers send none.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.0["pid"].as_u64()?.try_into().ok()
    }

    /// Whether its last request is a WAIT, or the cancel of one.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        ["WAIT", "CANCEL_WAIT"].contains(&self.last_command())
    }

    /// Whether its last request is a GET.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        self.last_command() == "GET"
    }

    /// Whether the key of its last request ends in `end`.
    #[must_use]
    pub fn has_last_key(&self, end: &str) -> bool {
        let key = self.0["last_key"].as_str();
        key.is_some_and(|key| key.ends_with(end))
    }

    fn last_command(&self) -> &str {
        self.0["last_command"].as_str().unwrap_or_default()
    }
}
