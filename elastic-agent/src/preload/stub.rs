//! Systems on which no process can be given the orphans of another: workers always start as programs.

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
