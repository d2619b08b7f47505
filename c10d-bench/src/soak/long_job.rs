//! The job that runs all the time: its workers die, and nodes come and go.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use fastrand::Rng;
use rustix::process::Signal;

use super::long_lived::{append_to, ends};
use super::programs::Programs;
use crate::failure::{Context as _, Failure};
use crate::process::Process;

pub(super) const OWNER: &str = "long-job";

/// Two nodes stay, and up to two others come and go.
const NODES_MAX: usize = 4;

/// How long launchers may take to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct LongJob {
    /// The launchers that stay.
    pub(super) staying: Vec<Launcher>,
    passing: Vec<Launcher>,
    endpoint: String,
    directory: PathBuf,
    random: Rng,
    started: usize,
    /// How often each kind of event has been.
    pub(super) events: Events,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Events {
    pub(super) workers_killed: u64,
    pub(super) nodes_added: u64,
    pub(super) nodes_stopped: u64,
    pub(super) nodes_killed: u64,
}

/// Killed on drop.
#[derive(Debug)]
pub(super) struct Launcher {
    pub(super) name: &'static str,
    pub(super) log: PathBuf,
    child: Child,
    /// A signal has been sent.
    is_ending: bool,
}

impl Launcher {
    pub(super) fn process(&self) -> Process {
        Process(self.child.id())
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl LongJob {
    /// With two nodes, of which one meets the other at the relay.
    pub(super) fn start(
        programs: &Programs,
        directory: &Path,
        store: &str,
        relay: &str,
        seed: u64,
    ) -> Result<Self, Failure> {
        let mut job = Self {
            staying: Vec::new(),
            passing: Vec::new(),
            endpoint: store.to_owned(),
            directory: directory.to_owned(),
            random: Rng::with_seed(seed),
            started: 0,
            events: Events::default(),
        };
        for (name, endpoint) in [("launcher", store), ("launcher by relay", relay)] {
            let launcher = job.launch(programs, name, endpoint)?;
            job.staying.push(launcher);
        }
        Ok(job)
    }

    fn launch(
        &mut self,
        programs: &Programs,
        name: &'static str,
        endpoint: &str,
    ) -> Result<Launcher, Failure> {
        let log = self
            .directory
            .join(format!("long-job-{}.log", self.started));
        self.started += 1;
        let mut words: Vec<_> = [
            "run",
            "--nnodes=2:4",
            "--nproc-per-node=2",
            "--keep-workers",
            "--max-restarts=1000000000",
            "--rdzv-backend=c10d",
            "--rdzv-id=long-job",
            "--rdzv-conf=is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5",
            "--local-addr=127.0.0.1",
        ]
        .map(str::to_owned)
        .into();
        words.push(format!("--rdzv-endpoint={endpoint}"));
        words.push(programs.own.display().to_string());
        words.push("soak-member".to_owned());
        let child = programs
            .c10d(OWNER, &words)
            .stdout(Stdio::null())
            .stderr(append_to(&log)?)
            .spawn()
            .context("cannot start a launcher")?;
        Ok(Launcher {
            name,
            log,
            child,
            is_ending: false,
        })
    }

    /// One event: a worker is killed, or a node comes or goes.
    pub(super) fn disturb(&mut self, programs: &Programs) -> Result<(), Failure> {
        let room = self.staying.len() + self.passing.len() < NODES_MAX;
        match self.random.u8(..10) {
            0..4 => self.kill_worker(programs),
            4..7 if room => {
                let endpoint = self.endpoint.clone();
                let launcher = self.launch(programs, "passing launcher", &endpoint)?;
                self.passing.push(launcher);
                self.events.nodes_added += 1;
                Ok(())
            }
            other => self.end_node(if other.is_multiple_of(2) {
                Signal::TERM
            } else {
                Signal::KILL
            }),
        }
    }

    fn kill_worker(&mut self, programs: &Programs) -> Result<(), Failure> {
        let running = programs.running();
        let workers: Vec<_> = running
            .into_iter()
            .filter(|(process, owner)| owner == OWNER && is_worker(*process))
            .collect();
        if let Some((worker, _)) = self.random.choice(workers) {
            // It may have ended.
            let _ = worker.signal(Signal::KILL);
            self.events.workers_killed += 1;
        }
        Ok(())
    }

    fn end_node(&mut self, signal: Signal) -> Result<(), Failure> {
        let Some(launcher) = self.passing.iter_mut().find(|it| !it.is_ending) else {
            return Ok(());
        };
        launcher.is_ending = true;
        match signal {
            Signal::KILL => self.events.nodes_killed += 1,
            _ => self.events.nodes_stopped += 1,
        }
        launcher.process().signal(signal)
    }

    /// Removes launchers that have ended.
    ///
    /// # Errors
    /// If one has ended without a signal.
    pub(super) fn reap(&mut self) -> Result<(), Failure> {
        for launcher in &mut self.staying {
            if let Some(status) = launcher.child.try_wait()? {
                return Err(ended(launcher, &status.to_string()));
            }
        }
        let mut running = Vec::new();
        for mut launcher in self.passing.drain(..) {
            match launcher.child.try_wait()? {
                None => running.push(launcher),
                Some(_) if launcher.is_ending => {
                    let _ = fs::remove_file(&launcher.log);
                }
                Some(status) => return Err(ended(&launcher, &status.to_string())),
            }
        }
        self.passing = running;
        Ok(())
    }

    /// Stops all launchers.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        let mut launchers: Vec<_> = self
            .staying
            .drain(..)
            .chain(self.passing.drain(..))
            .collect();
        for launcher in &launchers {
            let _ = launcher.process().signal(Signal::TERM);
        }
        for launcher in &mut launchers {
            if ends(&mut launcher.child, END_TIMEOUT)?.is_none() {
                return Err(ended(launcher, "it still runs 60 s after SIGTERM"));
            }
        }
        Ok(())
    }
}

fn ended(launcher: &Launcher, how: &str) -> Failure {
    let log = fs::read_to_string(&launcher.log).unwrap_or_default();
    let last = log.lines().next_back().unwrap_or_default();
    Failure::check(format!(
        "the {} of the long job: {how}: {last}",
        launcher.name
    ))
}

fn is_worker(process: Process) -> bool {
    let words = fs::read(format!("/proc/{}/cmdline", process.0)).unwrap_or_default();
    // Its launcher has the word too, as an argument for it.
    words.ends_with(b"/c10d-bench\0soak-member\0")
        && words.iter().filter(|byte| **byte == 0).count() == 2
}
