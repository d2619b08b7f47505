//! Which core the client and the servers run on.
//!
//! A wake-up on the same core costs a quarter of one on a core that sleeps. Left to the system, what
//! else the machine does decides from one second to the next which of them a call pays, and so
//! decides the figures; see the README.

use std::io;
use std::thread;

use crate::error::CompareError;

/// Where both sides run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// A core for the servers and another one for the clients.
    Apart { server: usize, client: usize },
    /// As the system likes.
    Free,
}

impl Placement {
    /// The first and the second of the cores that this process may use. Free when there is one only,
    /// and where a core cannot be chosen.
    pub(crate) fn apart() -> Result<Self, CompareError> {
        let mut cores = allowed_cores()
            .map_err(CompareError::system("cannot read which cores there are"))?
            .into_iter();
        Ok(match (cores.next(), cores.next()) {
            (Some(server), Some(client)) => Self::Apart { server, client },
            _ => Self::Free,
        })
    }

    /// Puts this thread, and all that it starts later, on the clients' core.
    pub(crate) fn enter(self) -> Result<(), CompareError> {
        match self {
            Self::Apart { client, .. } => pin_this_thread(client),
            Self::Free => Ok(()),
        }
    }

    /// Runs `start` on the servers' core. A process started meanwhile inherits it, with all its
    /// threads.
    pub(crate) fn on_server_core<T>(
        self,
        start: impl FnOnce() -> Result<T, CompareError>,
    ) -> Result<T, CompareError> {
        let Self::Apart { server, client } = self else {
            return start();
        };
        pin_this_thread(server)?;
        let started = start();
        pin_this_thread(client)?;
        started
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Apart { .. } => "each pinned to a core of its own",
            Self::Free => "not pinned to cores",
        }
    }
}

/// How many cores this process may use, before it is pinned to one.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn pin_this_thread(core: usize) -> Result<(), CompareError> {
    pin(core).map_err(CompareError::system("cannot choose the core to run on"))
}

#[cfg(target_os = "linux")]
fn allowed_cores() -> io::Result<Vec<usize>> {
    use rustix::thread::{CpuSet, sched_getaffinity};

    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|core| allowed.is_set(*core))
        .collect())
}

#[cfg(target_os = "linux")]
fn pin(core: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};

    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// None that could be chosen.
#[cfg(not(target_os = "linux"))]
fn allowed_cores() -> io::Result<Vec<usize>> {
    Ok(Vec::new())
}

#[cfg(not(target_os = "linux"))]
fn pin(_core: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
