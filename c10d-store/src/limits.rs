//! Limits on the size of requests.

/// Limits on requests. Each is checked as soon as the length word has arrived, before any memory is
/// reserved for the announced length.
///
/// The defaults for keys, values and key counts are the limits of PyTorch's libuv server, so its legal requests are
/// legal here as well.
///
/// ```
/// use c10d_store::WireLimits;
///
/// let mut limits = WireLimits::default();
/// limits.value_bytes_max = 64 << 20;
/// assert_eq!(limits.key_bytes_max, 8192);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct WireLimits {
    /// The longest key in bytes, including the `/` that clients put before it. Default 8192, like PyTorch.
    pub key_bytes_max: usize,
    /// The longest value, expected value, queue element or known bytes (of a WAIT_CHANGE) in a request, in bytes.
    /// APPEND can make a stored value longer. Default 8 MiB, like PyTorch.
    pub value_bytes_max: usize,
    /// The most keys in one CHECK, WAIT, MULTI_GET, MULTI_SET or WAIT_GET. Default 131,072, like PyTorch.
    pub keys_per_request_max: usize,
    /// The longest request as a whole, in bytes. Default 1 GiB, far more than any known use. PyTorch has
    /// no such limit, so that one MULTI_SET can announce a tebibyte.
    pub request_bytes_max: usize,
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
}
