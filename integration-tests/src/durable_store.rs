//! `c10d store serve --dir` on an address that stays, for tests that kill it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::launcher::{c10d, free_address};
use crate::process::ChildProcess;

/// A store process and its directory. Drop kills it.
#[derive(Debug)]
pub struct DurableStore {
    arguments: Vec<OsString>,
    address: SocketAddr,
    process: Option<ChildProcess>,
}

impl DurableStore {
    /// Starts it with what is in the directory. `options` are those of `c10d store serve` besides.
    ///
    /// # Panics
    /// When it does not start, as the other functions.
    #[must_use]
    pub fn start(directory: &Path, options: &[OsString]) -> Self {
        let address = free_address();
        let mut arguments: Vec<OsString> =
            ["store", "serve", "--host=127.0.0.1", "--end-with-parent"]
                .map(OsString::from)
                .to_vec();
        arguments.push(format!("--port={}", address.port()).into());
        arguments.push("--dir".into());
        arguments.push(directory.into());
        arguments.extend_from_slice(options);
        let mut store = Self {
            arguments,
            address,
            process: None,
        };
        store.restart();
        store
    }

    /// Where it listens, before and after kills.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills the process (SIGKILL), and returns when it has ended.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Starts it again after [`kill`](Self::kill), and returns when it listens.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        let mut process = self.spawn();
        let line = process.read_line();
        let listening = format!("listening on {}", self.address);
        assert_eq!(line, listening, "{}", process.stderr());
        self.process = Some(process);
    }

    /// Starts it again, and kills it when this time has passed, whether it listens by then or not.
    pub fn restart_and_kill_after(&self, time: Duration) {
        let process = self.spawn();
        thread::sleep(time);
        process.kill();
    }

    fn spawn(&self) -> ChildProcess {
        let mut command = Command::new(c10d());
        ChildProcess::start("c10d store serve", command.args(&self.arguments))
    }
}
