//! Workers that are forked from a process that has imported their modules already (`c10d run --preload`).
//!
//! One *template* for each agent, an interpreter, imports the modules while the node waits in the rendezvous. A start
//! of workers then costs a fork of each instead of its imports. The template's side is `bootstrap.py`.
//!
//! This module has no notion of rounds, ranks or restarts, and does not run workers: it hands [`ForkedWorkers`],
//! which wait at their gate, to [`worker`](crate::worker). That module starts workers without a template whenever no
//! forked workers are available.

#[cfg(target_os = "linux")]
mod forks;
#[cfg(target_os = "linux")]
mod keeper;
#[cfg(target_os = "linux")]
mod life;
mod options;
#[cfg(target_os = "linux")]
mod packet;
#[cfg(target_os = "linux")]
mod process;

#[cfg(target_os = "linux")]
pub(crate) use self::forks::ForkedWorkers;
#[cfg(not(target_os = "linux"))]
pub(crate) use self::stub::{ForkedWorkers, Preloader};
#[cfg(target_os = "linux")]
pub(crate) use keeper::Preloader;
pub use options::PreloadOptions;
pub(crate) use options::{NotForked, WorkerStart};

/// Systems on which no process can be given the orphans of another: workers always start as programs.
#[cfg(not(target_os = "linux"))]
mod stub {
    use std::io;

    use c10d_socket::Cancel;
    use rustix::process::Pid;

    use super::options::{NotForked, TemplatePlan, WorkerStart};

    /// There are none.
    #[derive(Debug)]
    pub(crate) enum ForkedWorkers {}

    impl ForkedWorkers {
        pub(crate) fn start(self, _: &[WorkerStart<'_>]) -> io::Result<Vec<Pid>> {
            match self {}
        }
    }

    /// Declines to fork.
    #[derive(Debug)]
    pub(crate) struct Preloader {
        is_required: bool,
    }

    impl Preloader {
        pub(crate) fn start(plan: TemplatePlan) -> io::Result<Self> {
            let is_required = plan.preload.is_required;
            Ok(Self { is_required })
        }

        pub(crate) const fn is_required(&self) -> bool {
            self.is_required
        }

        pub(crate) fn fork_ahead(&mut self) {}

        pub(crate) fn fork(&mut self, _: &Cancel) -> Result<ForkedWorkers, NotForked> {
            Err(NotForked::Declined("it needs Linux".to_owned()))
        }
    }
}
