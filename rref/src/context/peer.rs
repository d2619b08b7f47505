//! The processes of another worker: the present one, and those that were declared dead.

/// How many former processes of a worker are remembered.
const FORMER_MAX: usize = 8;

/// Another worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    /// Of the process that was heard from last; `None` before that, and after its death.
    pub(super) incarnation: Option<u64>,
    /// Processes that were declared dead, the latest last. Their messages are refused, even if they live.
    pub(super) former: Vec<u64>,
    /// Declared dead, and no later process was heard from.
    pub(super) is_lost: bool,
}

impl Peer {
    pub(super) fn declare_dead(&mut self, incarnation: u64) {
        if self.former.contains(&incarnation) {
            return;
        }
        if self.former.len() == FORMER_MAX {
            self.former.remove(0);
        }
        self.former.push(incarnation);
    }
}
