//! A server that runs all the time, with a log file, and is restarted at the same port.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::programs::Programs;
use crate::child::announced;
use crate::failure::{Context as _, Failure};
use crate::process::Process;

/// How long a process may take to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// How long it may take to serve, with all that is in its directory.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Killed on drop.
#[derive(Debug)]
pub(super) struct LongLived {
    pub(super) name: &'static str,
    pub(super) address: String,
    pub(super) log: PathBuf,
    /// How often it was restarted.
    pub(super) incarnation: u32,
    pub(super) started: Instant,
    /// Its words but for the address.
    words: Vec<String>,
    /// Its words for a listening address, with `{host}` and `{port}`.
    listen: &'static [&'static str],
    child: Child,
}

impl LongLived {
    /// `c10d` with these words; those of `listen` follow.
    pub(super) fn start(
        programs: &Programs,
        name: &'static str,
        log: PathBuf,
        words: &[&str],
        listen: &'static [&'static str],
    ) -> Result<Self, Failure> {
        let words: Vec<_> = words.iter().copied().map(str::to_owned).collect();
        let (child, address) = spawn(programs, name, &log, &words, listen, "127.0.0.1:0")?;
        Ok(Self {
            name,
            address,
            log,
            incarnation: 0,
            started: Instant::now(),
            words,
            listen,
            child,
        })
    }

    pub(super) fn process(&self) -> Process {
        Process(self.child.id())
    }

    /// Ends it with the signal, and starts it at the same address.
    pub(super) fn restart(&mut self, programs: &Programs, signal: Signal) -> Result<(), Failure> {
        let failed = |how: &str| {
            let log = self.log.display();
            Failure::check(format!("the {} {how}; its log is {log}", self.name))
        };
        if let Some(status) = self.child.try_wait()? {
            return Err(failed(&format!("ended: {status}")));
        }
        Process(self.child.id()).signal(signal)?;
        let Some(status) = ends(&mut self.child, END_TIMEOUT)? else {
            return Err(failed("does not end"));
        };
        let is_right = match signal {
            Signal::KILL => status.signal() == Some(signal.as_raw()),
            _ => status.success(),
        };
        if !is_right {
            return Err(failed(&format!("ended by {status} when it was told to")));
        }
        let (words, listen, address) = (&self.words, self.listen, self.address.as_str());
        (self.child, self.address) = spawn(programs, self.name, &self.log, words, listen, address)?;
        self.incarnation += 1;
        self.started = Instant::now();
        Ok(())
    }

    /// How it has ended; `None` while it runs.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

impl Drop for LongLived {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(
    programs: &Programs,
    name: &str,
    log: &PathBuf,
    words: &[String],
    listen: &[&str],
    address: &str,
) -> Result<(Child, String), Failure> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let listen = listen
        .iter()
        .map(|word| word.replace("{host}", host).replace("{port}", port));
    let words: Vec<_> = words.iter().cloned().chain(listen).collect();
    let mut child = programs
        .c10d("servers", &words)
        .stdout(Stdio::piped())
        .stderr(append_to(log)?)
        .spawn()
        .with_context(|| format!("cannot start the {name}"))?;
    match announced(&mut child, START_TIMEOUT) {
        Ok(address) => Ok((child, address)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            let log = log.display();
            Err(Failure::new(format!(
                "the {name}: {error}; its log is {log}"
            )))
        }
    }
}

pub(super) fn append_to(log: &PathBuf) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).open(log);
    file.with_context(|| format!("cannot write {}", log.display()))
}

/// Waits for the end of a process; `None` if it still runs then.
pub(super) fn ends(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}
