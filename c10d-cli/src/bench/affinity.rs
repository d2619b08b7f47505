//! Which core a thread, and what it starts, runs on.

use std::io;

use super::error::BenchError;

/// A core for the servers and another one for the generator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cores {
    pub(super) server: usize,
    pub(super) generator: usize,
}

/// The cores that are used where there are two.
const FIRST_TWO: Cores = Cores {
    server: 0,
    generator: 1,
};

impl Cores {
    /// The first two cores, unless that is not wanted or not possible; the reason goes to the notes.
    pub(super) fn choose(is_wanted: bool, notes: &mut Vec<String>) -> Option<Self> {
        if !is_wanted {
            return None;
        }
        match FIRST_TWO.try_out() {
            Ok(()) => Some(FIRST_TWO),
            Err(error) => {
                notes.push(format!("server and generator share their cores: {error}"));
                None
            }
        }
    }

    /// Whether this machine lets a thread run on either, tried out. Leaves this thread on the
    /// generator's core.
    fn try_out(self) -> Result<(), BenchError> {
        pin_this_thread(self.server)?;
        pin_this_thread(self.generator)
    }
}

/// Runs `start` on another core. A process started meanwhile inherits it, with all its threads.
pub(super) fn on_server_core<T>(
    cores: Option<Cores>,
    start: impl FnOnce() -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let Some(cores) = cores else {
        return start();
    };
    pin_this_thread(cores.server)?;
    let started = start();
    pin_this_thread(cores.generator)?;
    started
}

fn pin_this_thread(core: usize) -> Result<(), BenchError> {
    pin(core).map_err(BenchError::system("cannot choose the core to run on"))
}

#[cfg(target_os = "linux")]
fn pin(core: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};

    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(not(target_os = "linux"))]
fn pin(_core: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
