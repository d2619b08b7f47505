//! The time limits and the size limits of a group.

use std::time::Duration;

/// The time limits and size limits of a [`Group`](crate::Group). Every wait ends with one of these.
///
/// ```
/// use c10d_membership::GroupOptions;
///
/// let mut options = GroupOptions::new(6);
/// options.size_first = 8; // the first generation waits for all eight workers
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GroupOptions {
    /// The fewest members of a generation.
    pub size_min: usize,
    /// The first attempt begins as soon as this many members are present. By default `size_min`.
    pub size_first: usize,
    /// How long the first members wait for `size_first`. After that, `size_min` members suffice; with fewer, the
    /// group closes. Default 10 min, as long as torchrun's nodes wait for each other.
    pub form_timeout: Duration,
    /// How long members have to leave the old mesh and report that they are ready; members that do not are evicted.
    /// Default 10 s, because freeing a stuck thread takes milliseconds, and a process that is swapped in takes
    /// seconds.
    pub ready_timeout: Duration,
    /// How long members have for torch's call. Default 15 s: the call lasts five times its own timeout of 2 s if a
    /// member died after it published its address.
    pub ack_timeout: Duration,
    /// How long fewer than `size_min` members wait for more members before the group closes. Default 10 min, enough
    /// to replace a node.
    pub below_min_timeout: Duration,
    /// How long members of a broken generation wait for replacements, before they continue with fewer members.
    /// Default 0: they do not wait.
    pub replace_wait: Duration,
    /// How long a change waits for a step boundary, and how long the first member that stops there waits for the
    /// other members. Default 10 min: longer than a step or a checkpoint.
    pub boundary_timeout: Duration,
    /// How long a restarted service waits for a message from each member that it has kept, up to
    /// [`RETURN_TIMEOUT_MAX`]. Default 30 s, which earlier releases use as a whole.
    pub return_timeout: Duration,
    /// The number of failed calls without a generation after which the group closes. Default 16. After 2 failed
    /// calls, the next list is made without newcomers.
    pub failed_calls_max: u32,
    /// The most members at a time, including the waiting ones. Default 65,536, the most connections of a store.
    pub members_max: usize,
    /// The most newcomers that wait for a change at a time. Default 65,536.
    pub newcomers_max: usize,
    /// The most bytes of a handle. Default 256; torch's handles have 27 to 45 bytes.
    pub handle_bytes_max: usize,
    /// The most evicted members that are remembered, with the reason; older evicted members are unknown to the
    /// service. Default 65,536.
    pub evicted_max: usize,
}

/// The longest time for which a restarted service waits for its members: longer than one attempt of a session to reach a
/// server (10 s). Members wait for longer before they consider a failed collective their own failure.
pub const RETURN_TIMEOUT_MAX: Duration = Duration::from_secs(15);

impl GroupOptions {
    /// Creates the default options, for generations of at least `size_min` members (at least 1).
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
