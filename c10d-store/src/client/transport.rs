//! What every call of one store shares: its connections, its default timeout and its limits.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::pool::Pool;
use crate::limits::WireLimits;

#[derive(Debug)]
pub(super) struct Transport {
    pub(super) pool: Pool,
    /// What errors call the store.
    pub(super) label: String,
    pub(super) limits: WireLimits,
    timeout: Mutex<Option<Duration>>,
}

impl Transport {
    pub(super) const fn new(
        pool: Pool,
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

    /// The timeout of calls that have none of their own.
    pub(super) fn timeout(&self) -> Option<Duration> {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_timeout(&self, timeout: Option<Duration>) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }
}
