//! Pins the client and the servers to cores.
//!
//! A wake-up on the same core costs a quarter of one on an idle core. Without pinning, other load on the
//! machine decides which one a call pays, and so decides the figures; see the README.

use std::io;
use std::thread;

use crate::error::CompareError;

/// The cores of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Servers on one core, clients on another.
    Apart { server: usize, client: usize },
    /// Not pinned.
    Free,
}

impl Placement {
    /// The first two cores that this process may use. `Free` with only one core, and where the system cannot
    /// pin.
    pub(crate) fn apart() -> Result<Self, CompareError> {
        let mut cores = allowed_cores()
            .map_err(CompareError::system("cannot read the allowed cores"))?
            .into_iter();
        Ok(match (cores.next(), cores.next()) {
            (Some(server), Some(client)) => Self::Apart { server, client },
            _ => Self::Free,
        })
    }

    /// Pins this thread, and all threads that it starts later, to the clients' core.
    pub(crate) fn enter(self) -> Result<(), CompareError> {
        match self {
            Self::Apart { client, .. } => pin_this_thread(client),
            Self::Free => Ok(()),
        }
    }

    /// Runs `start` on the servers' core. A process that it starts inherits the core.
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
            Self::Apart { .. } => "each pinned to its own core",
            Self::Free => "not pinned to cores",
        }
    }
}

/// The number of cores that this process may use. Call it before pinning.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn pin_this_thread(core: usize) -> Result<(), CompareError> {
    pin(core).map_err(CompareError::system("cannot pin to a core"))
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

/// Empty: pinning is not supported.
#[cfg(not(target_os = "linux"))]
fn allowed_cores() -> io::Result<Vec<usize>> {
    Ok(Vec::new())
}

#[cfg(not(target_os = "linux"))]
fn pin(_core: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
