//! Pins threads, and the threads and processes that they start, to cores.

use crate::failure::{Context as _, Failure};
use std::io;

/// One core for the servers, and one for the load generator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cores {
    pub(super) server: usize,
    pub(super) generator: usize,
}

/// The cores to use if the machine has two.
const FIRST_TWO: Cores = Cores {
    server: 0,
    generator: 1,
};

impl Cores {
    /// The first two cores; `None` if not wanted or not possible. Adds a note with the reason.
    pub(super) fn choose(is_wanted: bool, notes: &mut Vec<String>) -> Option<Self> {
        if !is_wanted {
            return None;
        }
        // Leaves this thread on the generator's core.
        let pinned = pin_this_thread(FIRST_TWO.server);
        match pinned.and_then(|()| pin_this_thread(FIRST_TWO.generator)) {
            Ok(()) => Some(FIRST_TWO),
            Err(error) => {
                notes.push(format!(
                    "server and load generator are not pinned to cores: {error}"
                ));
                None
            }
        }
    }
}

/// Runs `start` on the servers' core, which threads and processes inherit that it starts.
pub(super) fn on_server_core<T>(
    cores: Option<Cores>,
    start: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let Some(cores) = cores else {
        return start();
    };
    pin_this_thread(cores.server)?;
    let started = start();
    pin_this_thread(cores.generator)?;
    started
}

/// Lets this thread, and everything that it starts, run on all cores.
pub(super) fn unpin_this_thread() -> Result<(), Failure> {
    pin(None).context("cannot take a thread off its core")
}

fn pin_this_thread(core: usize) -> Result<(), Failure> {
    pin(Some(core)).context("cannot pin a thread to a core")
}

#[cfg(target_os = "linux")]
fn pin(core: Option<usize>) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};

    if core >= Some(CpuSet::MAX_CPU) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    // The system leaves out those that it does not have.
    for each in 0..CpuSet::MAX_CPU {
        if core.is_none_or(|core| core == each) {
            set.set(each);
        }
    }
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(not(target_os = "linux"))]
fn pin(_core: Option<usize>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
