//! Starts programs that end with this one, and finds those that were left behind.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use crate::child::end_with_measurement;
use crate::failure::{Context as _, Failure};
use crate::process::Process;

/// Names the owner of a process, and of all that it starts.
const OWNER_VARIABLE: &str = "C10D_SOAK_OWNER";

/// A command with its arguments.
#[derive(Debug, Args)]
pub(crate) struct CommandArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    words: Vec<OsString>,
}

impl CommandArgs {
    /// Replaces this process. Returns only if that fails.
    pub(crate) fn become_command(&self) -> Result<(), Failure> {
        end_with_measurement();
        let error = Command::new(&self.words[0]).args(&self.words[1..]).exec();
        Err(error).with_context(|| format!("cannot run {}", self.words[0].display()))
    }
}

/// The programs of a run, and what is in their environment.
#[derive(Debug)]
pub(super) struct Programs {
    /// The measured command.
    c10d: PathBuf,
    /// This program.
    pub(super) own: PathBuf,
    /// The directory for temporary files.
    pub(super) temporary: PathBuf,
    /// Different for each run.
    run: String,
}

impl Programs {
    /// Without a path, `c10d` is that of the environment, or where this program is.
    pub(super) fn find(c10d: Option<&Path>, temporary: PathBuf) -> Result<Self, Failure> {
        let own = env::current_exe().context("cannot find the executable of this process")?;
        let given = c10d.map(Path::to_path_buf);
        let given = given.or_else(|| env::var_os("C10D").map(PathBuf::from));
        let c10d = given.unwrap_or_else(|| own.with_file_name("c10d"));
        if !c10d.is_file() {
            return Err(Failure::usage(format!(
                "{} is missing: build it (cargo build -p c10d-cli), or name it with --c10d",
                c10d.display()
            )));
        }
        Ok(Self {
            c10d,
            own,
            temporary,
            run: format!("{}-", std::process::id()),
        })
    }

    /// `c10d` with these arguments, which ends with this program.
    pub(super) fn c10d(&self, owner: &str, words: &[String]) -> Command {
        let mut command = Command::new(&self.own);
        command.arg("end-with-parent").arg(&self.c10d).args(words);
        let given = env::vars_os().map(|(name, _)| name);
        for name in given.filter(|name| name.as_encoded_bytes().starts_with(b"PET_")) {
            command.env_remove(name);
        }
        command
            .env_remove("RUST_LOG")
            .env("TMPDIR", &self.temporary)
            .env("C10D", &self.c10d)
            .env(OWNER_VARIABLE, format!("{}{owner}", self.run))
            .stdin(Stdio::null());
        command
    }

    /// The processes that this run has started, directly or not, with their owners. That of a guardian, which has no
    /// environment, begins with its job's.
    pub(super) fn running(&self) -> Vec<(Process, String)> {
        let owner_of = |process: Process| {
            let owner = process.variable(OWNER_VARIABLE);
            let owner = owner.and_then(|it| Some(it.strip_prefix(&self.run)?.to_owned()));
            owner.or_else(|| self.guarded(process.0))
        };
        Process::all()
            .filter_map(|process| Some((process, owner_of(process)?)))
            .collect()
    }

    /// The address of the store that a worker of this owner uses; `None` if no worker runs.
    pub(super) fn workers_store(&self, owner: &str) -> Option<(String, u16)> {
        let running = self.running();
        let mut of_owner = running.iter().filter(|(_, it)| it == owner);
        of_owner.find_map(|(process, _)| {
            let port = process.variable("MASTER_PORT")?.parse().ok()?;
            Some((process.variable("MASTER_ADDR")?, port))
        })
    }

    /// The log directory of the job that a guardian has, without the path.
    fn guarded(&self, id: u32) -> Option<String> {
        let words = fs::read(format!("/proc/{id}/cmdline")).ok()?;
        let mut words = words.split(|byte| *byte == 0);
        words.find(|word| *word == b"elastic-guardian")?;
        let logs = Path::new(OsStr::from_bytes(words.next()?));
        let of_this_run = logs.starts_with(self.temporary.parent()?);
        let name = logs.file_name().filter(|_| of_this_run)?;
        Some(name.to_string_lossy().into_owned())
    }

    /// The answer of `c10d store stats`.
    pub(super) fn stats(
        &self,
        store: &str,
    ) -> Result<BTreeMap<String, serde_json::Value>, Failure> {
        let words = ["store", "stats", "--json", "--connect", store].map(str::to_owned);
        let output = self
            .c10d("stats", &words)
            .output()
            .context("c10d store stats")?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Failure::new(error)).context("c10d store stats");
        }
        serde_json::from_slice(&output.stdout).context("c10d store stats")
    }
}

/// How many files and directories are below a directory, and the bytes of the files. One that is missing has none.
pub(super) fn files_below(directory: &Path) -> (usize, u64) {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        files += 1;
        match entry.metadata() {
            Ok(it) if it.is_dir() => {
                let (more, its_bytes) = files_below(&entry.path());
                files += more;
                bytes += its_bytes;
            }
            Ok(it) => bytes += it.len(),
            // Removed meanwhile.
            Err(_) => {}
        }
    }
    (files, bytes)
}
