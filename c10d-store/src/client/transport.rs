//! State shared by all calls of one store: connections, default timeout and limits.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::pool::Pool;
use crate::limits::WireLimits;

#[derive(Debug)]
pub(super) struct Transport {
    pub(super) pool: Arc<Pool>,
    /// The store's name in errors.
    pub(super) label: String,
    pub(super) limits: WireLimits,
    timeout: Mutex<Option<Duration>>,
}

impl Transport {
    pub(super) const fn new(
        pool: Arc<Pool>,
        label: String,
        limits: WireLimits,
        timeout: Option<Duration>,
    ) -> Self {
        Self {
            pool,
            label,
            limits,
            timeout: Mutex::new(timeout),
        }
    }

    /// The default timeout.
    pub(super) fn timeout(&self) -> Option<Duration> {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_timeout(&self, timeout: Option<Duration>) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }
}
