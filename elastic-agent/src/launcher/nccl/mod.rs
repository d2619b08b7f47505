//! Asks NCCL's RAS service on this node what is wrong, from time to time, for the announcements of the workers.

mod ask;
mod pace;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use c10d_inspect::AnnouncedNode;
use c10d_inspect::nccl::{ANSWER_BYTES_MAX, AnnouncedNccl, NcclReport, NcclWatch, RAS_ADDRESS};
use c10d_socket::{Cancel, HostPort, sleep};

use super::processes::Scanner;
use crate::threads::JoinedThread;
use pace::{Outcome, pause};

const THREAD: &str = "nccl-ras";

/// Asks until it is dropped, which joins its thread at once.
#[derive(Debug)]
pub(super) struct NcclAsker {
    cancel: Cancel,
    _thread: JoinedThread,
}

/// The address of the service for workers with this environment; `None` if they have none.
pub(super) fn service(environment: &[(OsString, OsString)]) -> Option<HostPort> {
    let variable = |name: &str| {
        let mut variables = environment.iter().rev();
        let (_, value) = variables.find(|(known, _)| *known == name)?;
        value.to_str()
    };
    if variable("NCCL_RAS_ENABLE").is_some_and(|value| value.trim() == "0") {
        return None;
    }
    // NCCL does not start the service at an address that it cannot read.
    let address = variable("NCCL_RAS_ADDR").unwrap_or(RAS_ADDRESS);
    address.parse().ok().filter(|it: &HostPort| it.port() != 0)
}

impl NcclAsker {
    /// Starts the thread. `node` tells what the launcher knows about its workers, `note` takes what their NCCL says; `None`
    /// if it says nothing.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(
        service: HostPort,
        node: impl Fn() -> AnnouncedNode + Send + 'static,
        note: impl Fn(Option<AnnouncedNccl>) + Send + 'static,
    ) -> io::Result<Self> {
        let cancel = Cancel::new();
        let thread = Thread {
            service,
            cancel: cancel.clone(),
            scanner: Scanner::new(PathBuf::from("/proc")),
            watch: NcclWatch::default(),
            epoch: Instant::now(),
            reads_json: true,
            had_answer: false,
        };
        Ok(Self {
            cancel,
            _thread: JoinedThread::start(THREAD, move || thread.run(&node, &note))?,
        })
    }
}

impl Drop for NcclAsker {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

struct Thread {
    service: HostPort,
    cancel: Cancel,
    scanner: Scanner,
    watch: NcclWatch,
    epoch: Instant,
    /// Whether an answer in JSON is short enough.
    reads_json: bool,
    had_answer: bool,
}

impl Thread {
    fn run(mut self, node: &impl Fn() -> AnnouncedNode, note: &impl Fn(Option<AnnouncedNccl>)) {
        let mut outcome = Outcome::NoAnswer;
        loop {
            let known = node();
            let pause = pause(&known, &outcome);
            if sleep(pause, [&self.cancel]).is_err() {
                return;
            }
            let known = node();
            if !pace::is_asking(&known) {
                outcome = Outcome::NoAnswer;
                continue;
            }
            let answer = self.ask(&known);
            outcome = match &answer {
                Some(nccl) => Outcome::of(nccl),
                None => Outcome::NoAnswer,
            };
            if answer.is_some() || self.had_answer {
                self.had_answer = answer.is_some();
                note(answer);
            }
        }
    }

    fn ask(&mut self, node: &AnnouncedNode) -> Option<AnnouncedNccl> {
        let workers = node.workers.iter().filter(|worker| worker.end.is_none());
        let pids: Vec<u32> = workers
            .flat_map(|worker| &worker.processes)
            .map(|process| process.pid)
            .collect();
        let is_ours = |local, remote| self.scanner.holds(&pids, local, remote);
        let bytes = ask::ask(&self.service, self.reads_json, &is_ours, &self.cancel);
        let bytes = match bytes {
            Ok(bytes) => bytes?,
            Err(error) => {
                log::debug!("NCCL's RAS service at {}: {error}", self.service);
                return None;
            }
        };
        // A text is shorter by far.
        self.reads_json &= bytes.len() < ANSWER_BYTES_MAX;
        match NcclReport::parse(&bytes) {
            Ok(report) => Some(self.watch.note(&report, self.epoch.elapsed())),
            Err(error) => {
                log::debug!("NCCL's RAS service at {}: {error}", self.service);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
