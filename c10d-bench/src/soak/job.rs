//! A short job: its launchers, what happens to them, and how they must end.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::long_lived::append_to;
use super::mix::{Kind, Plan};
use super::programs::Programs;
use crate::failure::{Context as _, Failure};
use crate::process::Process;

/// Far longer than any job takes, also while a store is restarted.
const TIMEOUT: Duration = Duration::from_secs(90);

/// What workers do, by the first argument. The second is the job's folder.
const WORKER: &str = r#"#!/bin/sh
case $1 in
use-store) "$C10D" store set "soak/$RANK" "of $RANK" && "$C10D" store get "soak/$RANK" >/dev/null ;;
say) echo "rank $RANK"; echo "rank $RANK" >&2 ;;
fail) exit 3 ;;
fail-once)
    if [ -e "$2/failed" ]; then exit 0; fi
    if [ "$RANK" != 0 ]; then : >"$2/waits-$RANK" && exec sleep 600; fi
    rank=1
    while [ "$rank" -lt "$WORLD_SIZE" ]; do
        if [ -e "$2/waits-$rank" ]; then rank=$((rank + 1)); else sleep 0.05; fi
    done
    : >"$2/failed"
    exit 3
    ;;
wait) : >"$2/started" && exec sleep 600 ;;
esac
"#;

/// The directories of all jobs.
#[derive(Debug)]
pub(super) struct Folders {
    jobs: PathBuf,
    /// Of the jobs that have files of their output.
    pub(super) logs: PathBuf,
    worker: PathBuf,
}

impl Folders {
    pub(super) fn new(directory: &Path) -> Result<Self, Failure> {
        let folders = Self {
            jobs: directory.join("jobs"),
            logs: directory.join("logs"),
            worker: directory.join("worker"),
        };
        let write = || {
            fs::create_dir_all(&folders.jobs)?;
            fs::create_dir_all(&folders.logs)?;
            fs::write(&folders.worker, WORKER)?;
            fs::set_permissions(&folders.worker, fs::Permissions::from_mode(0o755))
        };
        write().with_context(|| format!("cannot write to {}", directory.display()))?;
        Ok(folders)
    }
}

/// A running job. Its launchers are killed on drop.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) plan: Plan,
    pub(super) owner: String,
    endpoint: String,
    folder: PathBuf,
    launchers: Vec<Child>,
    began: Instant,
    /// A signal for the launcher, once its worker runs.
    signal: Option<Signal>,
    is_repetition: bool,
}

/// How a job has ended.
#[derive(Debug)]
pub(super) enum Outcome {
    AsExpected,
    /// Why it is another one.
    Otherwise(String),
}

impl Job {
    /// Nodes meet at `endpoint`, unless they do so in a file.
    pub(super) fn start(
        programs: &Programs,
        folders: &Folders,
        plan: Plan,
        endpoint: &str,
    ) -> Result<Self, Failure> {
        let folder = folders.jobs.join(plan.number.to_string());
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut job = Self {
            plan,
            owner: format!("job-{}", plan.number),
            endpoint: endpoint.to_owned(),
            folder,
            launchers: Vec::new(),
            began: Instant::now(),
            signal: match plan.kind {
                Kind::IsCancelled => Some(Signal::TERM),
                Kind::IsKilled | Kind::IsKilledAndRepeated => Some(Signal::KILL),
                _ => None,
            },
            is_repetition: false,
        };
        job.launch(programs, folders)?;
        Ok(job)
    }

    fn launch(&mut self, programs: &Programs, folders: &Folders) -> Result<(), Failure> {
        let words = self.words(folders);
        for _ in 0..self.plan.kind.nodes() {
            let launcher = programs
                .c10d(&self.owner, &words)
                .stdout(Stdio::null())
                .stderr(append_to(&self.folder.join("log"))?)
                .spawn()
                .context("cannot start a launcher")?;
            self.launchers.push(launcher);
        }
        Ok(())
    }

    fn words(&self, folders: &Folders) -> Vec<String> {
        let kind = self.plan.kind;
        let mut settings = vec!["is_host=0"];
        let mut endpoint = self.endpoint.clone();
        let nodes = match kind {
            Kind::TimesOut => {
                settings.push("join_timeout=1");
                2
            }
            _ => {
                settings.push("join_timeout=60");
                kind.nodes()
            }
        };
        if kind == Kind::MeetsInAFile {
            settings = vec!["store_type=file"];
            endpoint = self.folder.join("store").display().to_string();
        }
        if kind == Kind::IsKilledAndRepeated {
            // The second launcher waits until the first one counts as lost.
            settings.extend(["keep_alive_interval=1", "keep_alive_max_attempt=3"]);
        }
        let mode = match kind {
            Kind::Succeeds | Kind::TwoNodes | Kind::Relays | Kind::SharesTheStore => "use-store",
            Kind::IsKilledAndRepeated if self.is_repetition => "use-store",
            Kind::IsCancelled | Kind::IsKilled | Kind::IsKilledAndRepeated => "wait",
            Kind::Logs => "say",
            Kind::Fails => "fail",
            Kind::Restarts | Kind::TwoNodesRestart => "fail-once",
            Kind::TimesOut | Kind::MeetsInAFile => "succeed",
        };
        let mut words = vec![
            "run".to_owned(),
            format!("--nnodes={nodes}"),
            format!("--nproc-per-node={}", self.plan.workers),
            "--rdzv-backend=c10d".to_owned(),
            format!("--rdzv-endpoint={endpoint}"),
            format!("--rdzv-id={}", self.owner),
            format!("--rdzv-conf={}", settings.join(",")),
            "--local-addr=127.0.0.1".to_owned(),
        ];
        match kind {
            Kind::Restarts | Kind::TwoNodesRestart => words.push("--max-restarts=1".to_owned()),
            Kind::Relays => words.push("--relay".to_owned()),
            Kind::Logs => {
                words.push("--tee=3".to_owned());
                words.push(format!("--log-dir={}", folders.logs.display()));
            }
            _ if kind.shares_the_store() => words.push("--workers-store=rendezvous".to_owned()),
            _ => {}
        }
        words.extend([&folders.worker, &self.folder].map(|path| path.display().to_string()));
        words.insert(words.len() - 1, mode.to_owned());
        words
    }

    /// Does what is due; `None` while the job runs.
    pub(super) fn advance(
        &mut self,
        programs: &Programs,
        folders: &Folders,
    ) -> Result<Option<Outcome>, Failure> {
        if self.began.elapsed() > TIMEOUT {
            return Ok(Some(self.otherwise("it still runs after 90 s")));
        }
        if let Some(signal) = self.signal
            && self.folder.join("started").exists()
        {
            self.signal = None;
            for launcher in &self.launchers {
                Process(launcher.id()).signal(signal)?;
            }
        }
        let mut ended = Vec::new();
        for launcher in &mut self.launchers {
            match launcher.try_wait().context("cannot wait for a launcher")? {
                Some(status) => ended.push(status),
                None => return Ok(None),
            }
        }
        self.launchers.clear();
        if let Some(status) = ended.iter().find(|status| !self.expects(**status)) {
            return Ok(Some(self.otherwise(&status.to_string())));
        }
        if self.plan.kind == Kind::IsKilledAndRepeated && !self.is_repetition {
            self.is_repetition = true;
            self.launch(programs, folders)?;
            return Ok(None);
        }
        let removed = fs::remove_dir_all(&self.folder);
        removed.with_context(|| format!("cannot remove {}", self.folder.display()))?;
        Ok(Some(Outcome::AsExpected))
    }

    fn expects(&self, status: ExitStatus) -> bool {
        match self.plan.kind {
            Kind::IsKilled => status.signal() == Some(9),
            Kind::IsKilledAndRepeated if !self.is_repetition => status.signal() == Some(9),
            Kind::Fails | Kind::TimesOut | Kind::IsCancelled => status.code() == Some(1),
            _ => status.success(),
        }
    }

    fn otherwise(&self, what: &str) -> Outcome {
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let last = log.lines().next_back().unwrap_or_default();
        Outcome::Otherwise(format!(
            "job {} ({}, {:?}): {what}: {last}",
            self.plan.number,
            self.plan.kind.name(),
            self.plan.place
        ))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for launcher in &mut self.launchers {
            let _ = launcher.kill();
            let _ = launcher.wait();
        }
    }
}
