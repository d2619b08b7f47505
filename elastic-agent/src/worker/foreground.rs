//! The foreground of a terminal, for a worker that a person debugs: typed text and Ctrl-C reach this worker only.

use std::io::{self, IsTerminal};

use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

use crate::sys;

/// A terminal whose foreground this process can give to a worker, and takes back from it.
#[derive(Debug, Clone)]
pub(super) struct Foreground {
    own_group: Pid,
    settings: Termios,
}

impl Foreground {
    /// That of standard input, if it is a terminal and this process has its foreground: not if a shell runs this process in
    /// the background, or without a session that has the terminal.
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

    /// Takes it back when the worker has ended, with the settings of the terminal: a debugger may have changed them.
    pub(super) fn take_back(&self) {
        let taken = sys::give_foreground(self.own_group);
        let restored = tcsetattr(io::stdin(), OptionalActions::Now, &self.settings);
        if let Err(error) = taken.and(restored.map_err(Into::into)) {
            log::debug!("cannot take back the foreground of the terminal: {error}");
        }
    }
}
