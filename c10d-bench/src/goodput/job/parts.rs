//! The parts of a job, and the lasting effects of faults on it.

use super::super::plan::NODES;
use crate::process::Process;

/// The role of a supervised process, in the order of the processes' numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Launcher(usize),
    Relay(usize),
    Candidate(usize),
    Etcd(usize),
}

impl Role {
    /// The hosts after the nodes have a member of etcd and a candidate each.
    pub(super) const fn host(self) -> usize {
        match self {
            Self::Launcher(node) | Self::Relay(node) => node,
            Self::Candidate(number) | Self::Etcd(number) => NODES + number,
        }
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Launcher(node) => format!("launcher-{node}"),
            Self::Relay(node) => format!("relay-{node}"),
            Self::Candidate(number) => format!("candidate-{number}"),
            Self::Etcd(number) => format!("etcd-{number}"),
        }
    }
}

/// The effect of a fault until the fault is over.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lasting {
    Stopped(Process),
    LinkDown(usize),
    LinkSlow(usize),
    DiskFull,
}
