//! What is known of another worker's processes.

/// How many former processes of a worker are remembered.
const FORMER_MAX: usize = 8;

/// Another worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    /// Of its process, once it was heard of.
    pub(super) incarnation: Option<u64>,
    /// Processes that were given up, the latest last. They are heard no more, even if they live.
    pub(super) former: Vec<u64>,
    /// Given up, and no later process was heard of.
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
