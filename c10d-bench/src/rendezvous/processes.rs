//! The processes of nodes, as the measurement sees them.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::process::ExitStatus;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::node::{Job, KEEP_ALIVE_ATTEMPTS, PATIENCE};
use super::nodes::{RendezvousNodesArgs, STACK_BYTES};
use super::protocol::{Order, Report};
use crate::failure::{Context as _, Failure};

/// How long the processes may report nothing, besides the time until a silent node counts as lost. Longer than
/// the timeout of the nodes, whose errors say more.
const SILENCE_MAX: Duration = Duration::from_secs(PATIENCE.as_secs() + 30);

/// Processes of nodes, numbered from 0. Killed on drop.
#[derive(Debug)]
pub(super) struct Processes {
    processes: Vec<NodeProcess>,
    inbox: Receiver<(usize, Received)>,
    silence_max: Duration,
}

#[derive(Debug)]
struct NodeProcess {
    child: Child,
    orders: Option<ChildStdin>,
    nodes: Range<usize>,
    /// Whether the measurement has killed it.
    is_killed: bool,
}

#[derive(Debug)]
enum Received {
    Report(Report),
    BadReport(String),
    /// The process has ended.
    End,
}

impl Processes {
    /// Starts a process for each of `groups`, and waits until all nodes are connected.
    pub(super) fn start(job: &Job, groups: &[Range<usize>]) -> Result<Self, Failure> {
        let (to_inbox, inbox) = channel();
        let mut this = Self {
            processes: Vec::with_capacity(groups.len()),
            inbox,
            silence_max: SILENCE_MAX + job.keep_alive() * (KEEP_ALIVE_ATTEMPTS + 1),
        };
        for (number, nodes) in groups.iter().enumerate() {
            let process = NodeProcess::start(job, nodes, number, &to_inbox)?;
            this.processes.push(process);
        }
        let is_connected = |report| matches!(report, Report::Connected).then_some(());
        this.collect("connecting", is_connected)?;
        Ok(this)
    }

    pub(super) fn len(&self) -> usize {
        self.processes.len()
    }

    /// Sends an order to one process.
    pub(super) fn order(&mut self, process: usize, order: &Order) -> Result<(), Failure> {
        self.processes[process].order(order)
    }

    /// Sends an order to all processes, and returns the answer of each.
    pub(super) fn ask_all<T>(
        &mut self,
        waited_for: &'static str,
        order: &Order,
        pick: impl Fn(Report) -> Option<T>,
    ) -> Result<Vec<T>, Failure> {
        for process in &mut self.processes {
            process.order(order)?;
        }
        self.collect(waited_for, pick)
    }

    /// Waits for one report of each process, and ignores others.
    fn collect<T>(
        &mut self,
        waited_for: &'static str,
        pick: impl Fn(Report) -> Option<T>,
    ) -> Result<Vec<T>, Failure> {
        let mut picked = Vec::with_capacity(self.processes.len());
        while picked.len() < self.processes.len() {
            picked.extend(pick(self.next(waited_for)?));
        }
        Ok(picked)
    }

    /// The next report of any process.
    pub(super) fn next(&mut self, waited_for: &'static str) -> Result<Report, Failure> {
        let limit = self.silence_max;
        self.next_within(limit)?
            .ok_or_else(|| silence(waited_for, limit))
    }

    /// The next report of any process, or `None` if there is none for so long.
    pub(super) fn next_within(&mut self, limit: Duration) -> Result<Option<Report>, Failure> {
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            let (number, received) = match self.inbox.recv_timeout(left) {
                Ok(received) => received,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                // All processes have ended, which the last loop has reported.
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            };
            match received {
                Received::Report(Report::Failed { text }) => {
                    return Err(Failure::new(text));
                }
                Received::Report(report) => return Ok(Some(report)),
                Received::BadReport(line) => {
                    return Err(Failure::new(format!(
                        "a process of nodes sent a line that is not a report: {line}"
                    )));
                }
                Received::End => self.processes[number].on_end()?,
            }
        }
    }

    /// Kills a process, so that its nodes end without leaving.
    pub(super) fn kill(&mut self, process: usize) -> Result<(), Failure> {
        let process = &mut self.processes[process];
        process.is_killed = true;
        let killed = process.child.kill().and_then(|()| process.child.wait());
        killed.map(drop).context("cannot kill a process of nodes")
    }
}

impl NodeProcess {
    fn start(
        job: &Job,
        nodes: &Range<usize>,
        number: usize,
        to_inbox: &Sender<(usize, Received)>,
    ) -> Result<Self, Failure> {
        let executable =
            env::current_exe().context("cannot find the executable of this process")?;
        let log_level = env::var_os("RUST_LOG").unwrap_or_else(|| "error".into());
        let mut child = Command::new(executable)
            .args(RendezvousNodesArgs::command_line(job, nodes))
            // A lost node would be a warning of every other node.
            .env("RUST_LOG", log_level)
            // For the threads of the handlers.
            .env("RUST_MIN_STACK", STACK_BYTES.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process of nodes")?;
        let (orders, reports) = (child.stdin.take(), child.stdout.take());
        let process = Self {
            child,
            orders,
            nodes: nodes.clone(),
            is_killed: false,
        };
        if let Some(reports) = reports {
            let to_inbox = to_inbox.clone();
            thread::Builder::new()
                .spawn(move || read_reports(reports, number, &to_inbox))
                .context("cannot start a thread")?;
        }
        Ok(process)
    }

    fn order(&mut self, order: &Order) -> Result<(), Failure> {
        if self.is_killed {
            return Ok(());
        }
        let Some(orders) = &mut self.orders else {
            return Ok(());
        };
        let mut write = || -> io::Result<()> {
            let mut line = serde_json::to_vec(order)?;
            line.push(b'\n');
            orders.write_all(&line)
        };
        match write() {
            // Its last report, or its status, says more; both are received next.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.context("cannot write to a process of nodes"),
        }
    }

    /// After the end of a process: fails unless the measurement has killed it.
    fn on_end(&mut self) -> Result<(), Failure> {
        if self.is_killed {
            return Ok(());
        }
        let status = self
            .child
            .wait()
            .context("cannot wait for a process of nodes")?;
        let Range { start, end } = self.nodes;
        Err(Failure::new(format!(
            "the process of nodes {start} to {} ended early ({status}){}",
            end.saturating_sub(1),
            memory_hint(status)
        )))
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn silence(waited_for: &str, limit: Duration) -> Failure {
    Failure::new(format!(
        "{waited_for}: no report of a process of nodes for {limit:?}"
    ))
}

/// The system ends a process by a signal when memory runs out; so does Rust when an allocation fails.
pub(super) fn memory_hint(status: ExitStatus) -> &'static str {
    if status.code().is_none() {
        ": memory may not suffice"
    } else {
        ""
    }
}

/// Passes on the reports of a process until it ends.
fn read_reports(reports: impl Read, number: usize, to_inbox: &Sender<(usize, Received)>) {
    for line in BufReader::new(reports).lines() {
        let Ok(line) = line else { break };
        let received = match serde_json::from_str(&line) {
            Ok(report) => Received::Report(report),
            Err(_) => Received::BadReport(line),
        };
        if to_inbox.send((number, received)).is_err() {
            return;
        }
    }
    // The measurement may have ended.
    let _ = to_inbox.send((number, Received::End));
}
