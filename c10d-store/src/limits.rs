//! Limits on the size of requests.

/// Limits on requests. Each is checked as soon as the length word has arrived, before any memory is
/// reserved for the announced length.
///
/// The defaults for keys, values and key counts are those of PyTorch's libuv server, so requests that
/// are legal there are legal here.
///
/// ```
/// use c10d_store::WireLimits;
///
/// let limits = WireLimits::default().with_value_bytes_max(64 << 20);
/// assert_eq!(limits.key_bytes_max(), 8192);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct WireLimits {
    key_bytes_max: usize,
    value_bytes_max: usize,
    keys_per_request_max: usize,
    request_bytes_max: usize,
}

impl Default for WireLimits {
    fn default() -> Self {
        Self {
            key_bytes_max: 8192,
            value_bytes_max: 8 << 20,
            keys_per_request_max: 131_072,
            request_bytes_max: 1 << 30,
        }
    }
}

impl WireLimits {
    /// Any request that fits into memory.
    pub(crate) const fn unlimited() -> Self {
        let bytes_max = isize::MAX as usize;
        Self {
            key_bytes_max: bytes_max,
            value_bytes_max: bytes_max,
            keys_per_request_max: bytes_max,
            request_bytes_max: bytes_max,
        }
    }

    /// The longest key in bytes, including the `/` that clients put before it. Default 8192, as in
    /// PyTorch.
    #[must_use]
    pub const fn key_bytes_max(&self) -> usize {
        self.key_bytes_max
    }

    /// The longest value, expected value, queue element or known bytes (of a WAIT_CHANGE) in a request,
    /// in bytes. APPEND can make a stored value longer. Default 8 MiB, as in PyTorch.
    #[must_use]
    pub const fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    /// The most keys in one CHECK, WAIT, MULTI_GET, MULTI_SET or WAIT_GET. Default 131,072, as in
    /// PyTorch.
    #[must_use]
    pub const fn keys_per_request_max(&self) -> usize {
        self.keys_per_request_max
    }

    /// The longest request as a whole, in bytes. Default 1 GiB, far more than any known use. PyTorch has
    /// no such limit, so that one MULTI_SET can announce a tebibyte.
    #[must_use]
    pub const fn request_bytes_max(&self) -> usize {
        self.request_bytes_max
    }

    /// Sets [`key_bytes_max`](Self::key_bytes_max).
    pub const fn with_key_bytes_max(mut self, bytes: usize) -> Self {
        self.key_bytes_max = bytes;
        self
    }

    /// Sets [`value_bytes_max`](Self::value_bytes_max).
    pub const fn with_value_bytes_max(mut self, bytes: usize) -> Self {
        self.value_bytes_max = bytes;
        self
    }

    /// Sets [`keys_per_request_max`](Self::keys_per_request_max).
    pub const fn with_keys_per_request_max(mut self, keys: usize) -> Self {
        self.keys_per_request_max = keys;
        self
    }

    /// Sets [`request_bytes_max`](Self::request_bytes_max).
    pub const fn with_request_bytes_max(mut self, bytes: usize) -> Self {
        self.request_bytes_max = bytes;
        self
    }
}
