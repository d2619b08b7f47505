//! State shared by all calls of one store: connections, default timeout and limits.

use std::sync::Arc;
use std::time::Duration;

use super::pool::Pool;
use crate::default_timeout::DefaultTimeout;
use crate::limits::WireLimits;

#[derive(Debug)]
pub(super) struct Transport {
    pub(super) pool: Arc<Pool>,
    /// The store's name in errors.
    pub(super) label: String,
    pub(super) limits: WireLimits,
    pub(super) timeout: DefaultTimeout,
}

impl Transport {
    pub(super) fn new(
        pool: Arc<Pool>,
        label: String,
        limits: WireLimits,
        timeout: Option<Duration>,
    ) -> Self {
        Self {
            pool,
            label,
            limits,
            timeout: DefaultTimeout::new(timeout),
        }
    }
}
