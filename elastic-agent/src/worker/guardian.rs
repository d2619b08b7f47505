//! The process that ends the workers' own children when the agent is killed.
//!
//! Linux kills a worker together with its agent, but not what the worker has started, such as
//! processes that load data: they would stay, and hold memory and devices. An agent that is killed can
//! do nothing about it, so a small process waits for just that. It is a shell rather than a copy of
//! the agent, which would keep the agent's memory and sockets.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;

/// Nothing is ever written to its standard input: it ends when the agent does. The group ids can
/// hardly have been given to others by then, as no more than milliseconds have passed.
const SCRIPT: &str = "\
trap '' HUP INT QUIT TERM
while read -r line; do :; done
for group; do kill -s KILL -- \"-$group\"; done";

/// A running guardian; dropping it ends it, and leaves the groups alone.
#[derive(Debug)]
pub(super) struct Guardian(Child);

impl Guardian {
    /// Has these process groups killed when this process ends without having dropped the guardian.
    ///
    /// # Errors
    /// Those of the system: there is no `/bin/sh`, or no process left.
    pub(super) fn start(groups: impl Iterator<Item = Pid>) -> io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "elastic-guardian"])
            .args(groups.map(|group| group.as_raw_nonzero().to_string()))
            .env_clear()
            .current_dir("/")
            // What a terminal or a caller sends to the agent's group is not for the guardian.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().map(Self)
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // Killed before its input is closed, so that it does nothing.
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            log::warn!("cannot end the guardian process {}: {error}", self.0.id());
        }
    }
}
