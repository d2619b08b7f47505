//! A simulated round.

use std::collections::BTreeSet;

use crate::job_end::EndNotice;

/// The round that all nodes are in, or the last one.
#[derive(Debug, Default)]
pub(super) struct Meeting {
    pub(super) number: usize,
    pub(super) members: BTreeSet<usize>,
    /// The members of the complete round, and the members whose workers have started.
    pub(super) first: BTreeSet<usize>,
    pub(super) started: BTreeSet<usize>,
    /// Whether it takes no node in any more.
    pub(super) is_entry_over: bool,
    pub(super) lost: BTreeSet<usize>,
    pub(super) left: BTreeSet<usize>,
    pub(super) finished: BTreeSet<usize>,
    pub(super) job_end: Option<EndNotice>,
    /// How many nodes' programs have reached their end although workers failed at their exit.
    pub(super) at_exit: usize,
    pub(super) stuck: usize,
    /// Whether the nodes have exchanged their ranks.
    pub(super) has_ranks: bool,
    /// How many nodes have counted a restart because their workers were stuck.
    pub(super) counted: usize,
    /// Whether the store did not answer for some time.
    pub(super) was_down: bool,
    /// Whether the remaining nodes have opened the exit barrier.
    pub(super) is_open: bool,
    /// The membership group: 0 while it is empty, 1 while its members work, 2 when too few members were left, 3 when it has
    /// finished.
    pub(super) group: usize,
}
