//! How long a group waits for what, and how much it keeps.

use std::time::Duration;

/// The waits and limits of a [`Group`](crate::Group). Every wait ends with one of these.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GroupOptions {
    /// A generation has at least this many members.
    pub size_min: usize,
    /// The first attempt begins as soon as this many members are there. By default `size_min`.
    pub size_first: usize,
    /// How long the first members wait for `size_first`. Then `size_min` suffices, or the group ends. 10 min, as long as
    /// torchrun's nodes wait for each other.
    pub form_timeout: Duration,
    /// How long members have to leave the old mesh and say that they are ready; the silent ones are evicted. 10 s:
    /// freeing a stuck thread takes milliseconds, a process that is swapped in takes seconds.
    pub ready_timeout: Duration,
    /// How long members have for torch's call. 15 s: it lasts five times its own timeout of 2 s if a member died after it
    /// published its address.
    pub ack_timeout: Duration,
    /// How long fewer than `size_min` members wait for others before the group ends. 10 min, for a node to be replaced.
    pub below_min_timeout: Duration,
    /// How long members of a broken generation wait for replacements, before they go on with fewer. 0: at once.
    pub replace_wait: Duration,
    /// How long a change waits for a step boundary, and after the first member has stopped there for the others. Longer
    /// than a step or a checkpoint: 10 min.
    pub boundary_timeout: Duration,
    /// How long a restarted service waits for a message from the members that it has kept. 30 s, as long as clients try
    /// to reach a server that refuses connections.
    pub return_timeout: Duration,
    /// After this many failed calls without a generation the group ends. 16. After 2, newcomers are left out.
    pub failed_calls_max: u32,
    /// Members at a time, those that wait included. 65,536, as many as a store has connections.
    pub members_max: usize,
    /// Newcomers that wait for a change at a time. 65,536.
    pub newcomers_max: usize,
    /// Bytes of a handle. 256: torch's have 27 to 45.
    pub handle_bytes_max: usize,
    /// Evicted members that are remembered, with the reason; an older one that asks is unknown. 65,536.
    pub evicted_max: usize,
}

impl GroupOptions {
    /// The defaults, for generations of at least `size_min` members (at least 1).
    pub fn new(size_min: usize) -> Self {
        let size_min = size_min.max(1);
        Self {
            size_min,
            size_first: size_min,
            form_timeout: Duration::from_secs(600),
            ready_timeout: Duration::from_secs(10),
            ack_timeout: Duration::from_secs(15),
            below_min_timeout: Duration::from_secs(600),
            replace_wait: Duration::ZERO,
            boundary_timeout: Duration::from_secs(600),
            return_timeout: Duration::from_secs(30),
            failed_calls_max: 16,
            members_max: 65_536,
            newcomers_max: 65_536,
            handle_bytes_max: 256,
            evicted_max: 65_536,
        }
    }
}
