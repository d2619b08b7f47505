//! The foreground of a terminal, for a worker that a person debugs: typed text and Ctrl-C reach this worker only.

use std::io::{self, IsTerminal};

use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

use crate::sys;

/// A terminal whose foreground this process can give to a worker, and take back from it.
#[derive(Debug, Clone)]
pub(super) struct Foreground {
    own_group: Pid,
    settings: Termios,
}

impl Foreground {
    /// Returns the terminal of standard input, if this process has its foreground. Returns `None` if a shell runs this
    /// process in the background, or if the terminal does not control the session of this process.
    pub(super) fn here() -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let own_group = getpgrp();
        let has_foreground = tcgetpgrp(&stdin).ok()? == own_group;
        let settings = tcgetattr(&stdin).ok()?;
        has_foreground.then_some(Self {
            own_group,
            settings,
        })
    }

    /// Takes the foreground back when the worker has exited, and restores the settings of the terminal, because a
    /// debugger may have changed them.
    pub(super) fn take_back(&self) {
        let taken = sys::give_foreground(self.own_group);
        let restored = tcsetattr(io::stdin(), OptionalActions::Now, &self.settings);
        if let Err(error) = taken.and(restored.map_err(Into::into)) {
            log::debug!("cannot take back the foreground of the terminal: {error}");
        }
    }
}
