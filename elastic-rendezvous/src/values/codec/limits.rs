//! Limits on the size of a decoded state.

/// Limits on a stored state, each checked before memory is reserved.
///
/// PyTorch has none. The defaults allow tens of thousands of nodes, and bound the memory for a hostile state
/// at about 100 MB.
///
/// ```
/// use elastic_rendezvous::codec::CodecLimits;
///
/// let limits = CodecLimits::new().with_nodes_max(1000);
/// assert_eq!(limits.text_bytes_max(), 8 << 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct CodecLimits {
    text_bytes_max: usize,
    nodes_max: usize,
    stack_max: usize,
    objects_max: usize,
}

impl Default for CodecLimits {
    fn default() -> Self {
        Self::new()
    }
}

impl CodecLimits {
    /// The default limits.
    pub const fn new() -> Self {
        Self {
            text_bytes_max: 8 << 20,
            nodes_max: 1 << 16,
            stack_max: 1 << 18,
            objects_max: 1 << 19,
        }
    }

    /// The longest state, in bytes of base64. Default: 8 MiB, the longest value in PyTorch's stores, enough for
    /// about 70,000 nodes.
    #[must_use]
    pub const fn text_bytes_max(&self) -> usize {
        self.text_bytes_max
    }

    /// The most nodes; a repeated node counts each time. Default: 65,536.
    #[must_use]
    pub const fn nodes_max(&self) -> usize {
        self.nodes_max
    }

    /// The most values on the pickle machine's stack. PyTorch needs about 2,000, because it writes maps in
    /// batches of 1000 entries; other writers need two per node. Default: 262,144, which is not reached before
    /// the other limits.
    #[must_use]
    pub const fn stack_max(&self) -> usize {
        self.stack_max
    }

    /// The most objects of each kind: memo slots, containers, entries of containers. PyTorch needs seven memo
    /// slots per node. Default: 524,288.
    #[must_use]
    pub const fn objects_max(&self) -> usize {
        self.objects_max
    }

    /// Sets [`text_bytes_max`](Self::text_bytes_max).
    pub const fn with_text_bytes_max(mut self, bytes: usize) -> Self {
        self.text_bytes_max = bytes;
        self
    }

    /// Sets [`nodes_max`](Self::nodes_max).
    pub const fn with_nodes_max(mut self, nodes: usize) -> Self {
        self.nodes_max = nodes;
        self
    }

    /// Sets [`stack_max`](Self::stack_max).
    pub const fn with_stack_max(mut self, values: usize) -> Self {
        self.stack_max = values;
        self
    }

    /// Sets [`objects_max`](Self::objects_max).
    pub const fn with_objects_max(mut self, objects: usize) -> Self {
        self.objects_max = objects;
        self
    }

    /// The longest pickle: that of the longest text, and at most the range of the machine's positions.
    pub(super) fn pickle_bytes_max(&self) -> usize {
        (self.text_bytes_max / 4)
            .saturating_mul(3)
            .min(u32::MAX as usize)
    }
}
