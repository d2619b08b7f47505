//! A node's part in the lease: it holds it, or knows of the node that does.

use std::time::Duration;

use crate::group::holder::Holder;
use crate::group::message::Lease;

#[derive(Debug)]
pub(super) enum Role {
    Follower(LeaseView),
    Holder(Box<Tenure>),
}

/// The lease as a node that does not hold it knows it.
#[derive(Debug)]
pub(super) enum LeaseView {
    /// To be read at once.
    Unknown,
    Known {
        lease: Vec<u8>,
        /// When this lease was read first and last.
        since: Duration,
        polled: Duration,
    },
}

#[derive(Debug)]
pub(super) struct Tenure {
    pub(super) holder: Holder,
    /// The lease as it was written last.
    pub(super) lease: Vec<u8>,
    pub(super) renewals: u64,
    pub(super) phase: TenurePhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TenurePhase {
    /// The stored summary is to be read: that of the holder before, or one that was replaced meanwhile.
    Checking,
    Serving,
    /// Gives the lease back. The last summary lets the next holder know that this node has left.
    Leaving,
    /// Gives the lease back without a summary: the others have evicted the node, and may have a holder already.
    Evicted,
}

impl LeaseView {
    pub(super) fn new(lease: Vec<u8>, at: Duration) -> Self {
        Self::Known {
            lease,
            since: at,
            polled: at,
        }
    }

    /// Whether the lease was given back, or was seen without a renewal for `timeout`.
    pub(super) fn is_free(&self, timeout: Duration) -> bool {
        let Self::Known {
            lease,
            since,
            polled,
        } = self
        else {
            return false;
        };
        let lease = Lease::from_text(lease);
        lease.is_none_or(|lease| lease.renewal.is_none())
            || polled.saturating_sub(*since) >= timeout
    }

    /// The epoch of the lease; `None` before the first one.
    pub(super) fn epoch(&self) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::Known { lease, .. } => Lease::from_text(lease).map(|lease| lease.epoch),
        }
    }
}
