//! How much a state may hold.

/// Limits on what a stored state may make its reader keep, each checked before the memory is taken.
///
/// PyTorch has none. The defaults let pass a job of tens of thousands of nodes, and keep the memory
/// in which a hostile state is read at some 100 MB.
///
/// ```
/// use elastic_rendezvous::codec::CodecLimits;
///
/// let limits = CodecLimits::default().with_nodes_max(1000);
/// assert_eq!(limits.text_bytes_max(), 8 << 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecLimits {
    text_bytes_max: usize,
    nodes_max: usize,
    stack_max: usize,
    objects_max: usize,
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
    /// The longest state, in bytes of base64 as it is stored. The default is the longest value that
    /// PyTorch's stores take, 8 MiB, enough for about 70,000 nodes.
    #[must_use]
    pub const fn text_bytes_max(&self) -> usize {
        self.text_bytes_max
    }

    /// The most nodes. One that is written twice counts twice. The default is 65,536.
    #[must_use]
    pub const fn nodes_max(&self) -> usize {
        self.nodes_max
    }

    /// The most values on the pickle machine's stack. PyTorch needs about 2,000, as it fills maps in
    /// portions of 1000 entries; a writer that does not needs two for each node. The default of
    /// 262,144 lets either write as many nodes as the other limits.
    #[must_use]
    pub const fn stack_max(&self) -> usize {
        self.stack_max
    }

    /// The most objects of each kind that the pickle machine keeps: memo slots, containers, entries
    /// of containers. PyTorch needs seven memo slots for a node. The default is 524,288.
    #[must_use]
    pub const fn objects_max(&self) -> usize {
        self.objects_max
    }

    /// Changes [`text_bytes_max`](Self::text_bytes_max).
    #[must_use]
    pub const fn with_text_bytes_max(mut self, bytes: usize) -> Self {
        self.text_bytes_max = bytes;
        self
    }

    /// Changes [`nodes_max`](Self::nodes_max).
    #[must_use]
    pub const fn with_nodes_max(mut self, nodes: usize) -> Self {
        self.nodes_max = nodes;
        self
    }

    /// Changes [`stack_max`](Self::stack_max).
    #[must_use]
    pub const fn with_stack_max(mut self, values: usize) -> Self {
        self.stack_max = values;
        self
    }

    /// Changes [`objects_max`](Self::objects_max).
    #[must_use]
    pub const fn with_objects_max(mut self, objects: usize) -> Self {
        self.objects_max = objects;
        self
    }

    /// The longest pickle: what the longest text holds, and no more than the machine can count.
    pub(super) fn pickle_bytes_max(&self) -> usize {
        (self.text_bytes_max / 4)
            .saturating_mul(3)
            .min(u32::MAX as usize)
    }
}
