//! Limits on the size of a decoded state.

/// Limits on a stored state, each checked before memory is reserved.
///
/// PyTorch has none. The defaults allow tens of thousands of nodes, and bound the memory for a hostile state
/// at about 100 MB.
///
/// ```
/// use elastic_rendezvous::codec::CodecLimits;
///
/// let limits = CodecLimits { nodes_max: 1000, ..CodecLimits::default() };
/// assert_eq!(limits.text_bytes_max, 8 << 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecLimits {
    /// The longest state, in bytes of base64. Default: 8 MiB, the longest value in PyTorch's stores, enough for
    /// about 70,000 nodes.
    pub text_bytes_max: usize,
    /// The most nodes; a repeated node counts each time. Default: 65,536.
    pub nodes_max: usize,
    /// The most values on the pickle machine's stack. PyTorch needs about 2,000, because it writes maps in
    /// batches of 1000 entries; other writers need two per node. Default: 262,144, which is not reached before
    /// the other limits.
    pub stack_max: usize,
    /// The most objects of each kind: memo slots, containers, entries of containers. PyTorch needs seven memo
    /// slots per node. Default: 524,288.
    pub objects_max: usize,
}

impl Default for CodecLimits {
    fn default() -> Self {
        Self {
            text_bytes_max: 8 << 20,
            nodes_max: 1 << 16,
            stack_max: 1 << 18,
            objects_max: 1 << 19,
        }
    }
}

impl CodecLimits {
    /// The longest pickle: that of the longest text, and at most the range of the machine's positions.
    pub(super) fn pickle_bytes_max(&self) -> usize {
        (self.text_bytes_max / 4)
            .saturating_mul(3)
            .min(u32::MAX as usize)
    }
}
