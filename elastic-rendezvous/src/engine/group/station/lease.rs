//! When a node polls, claims and releases the lease of its group.

use std::time::Duration;

use c10d_socket::{Liveness, Silence};

use super::{LeaseView, Role, Station, Timer};
use crate::engine::group::ask::Ask;
use crate::engine::group::message::Lease;
use crate::values::timestamp::Now;

/// The additional poll interval of nodes that wait for an answer, for each node that may take part. Whatever their
/// number is, one of them polls every millisecond.
const LEASE_POLL_INTERVAL_PER_NODE: Duration = Duration::from_millis(1);

/// The longest interval of nodes that wait for an answer, as fewer than may take part can be there.
const LEASE_POLL_INTERVAL_MAX: Duration = Duration::from_secs(34);

/// How often the members with the lowest ranks poll the lease, at least.
const LEASE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The number of members that poll the lease at `LEASE_POLL_INTERVAL`.
const DEPUTIES: usize = 4;

/// A lease is free if a node has not seen its renewal for this time.
const LEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Added to [`LEASE_TIMEOUT`] for each node that may take part, because thousands of nodes that the holder wakes delay its
/// renewals, and each of them answers to a new holder.
const LEASE_TIMEOUT_PER_NODE: Duration = Duration::from_micros(100);

/// The longest timeout, however many nodes may take part.
const LEASE_TIMEOUT_MAX: Duration = Duration::from_secs(6);

/// The delay after this time before a node polls a second time.
const SECOND_POLL: Duration = Duration::from_millis(100);

impl Station {
    /// Releases the lease before the node stops; `None` if it does not hold it.
    pub(crate) fn release(&mut self) -> Option<Ask> {
        let follower = Role::Follower(LeaseView::Unknown);
        match std::mem::replace(&mut self.role, follower) {
            Role::Holder(tenure) => {
                self.timers.cancel(Timer::Renewal);
                let generation = self.leases.generation.unwrap_or_default();
                let lease = self.lease(tenure.holder.epoch(), None, generation);
                Some(Ask::Claim {
                    expected: tenure.lease,
                    lease,
                })
            }
            role @ Role::Follower(_) => {
                self.role = role;
                None
            }
        }
    }

    pub(super) fn lease(&self, epoch: u64, renewal: Option<u64>, generation: u64) -> Vec<u8> {
        let lease = Lease {
            epoch,
            index: self.index,
            renewal,
            generation,
        };
        lease.to_text()
    }

    pub(super) fn poll_lease(&mut self, at: Duration) -> Ask {
        if !self.timers.take_due(Timer::SecondPoll, at) && !self.polls_with_heartbeats() {
            let pause = self.lease_timeout().saturating_add(SECOND_POLL);
            self.timers.set_in(Timer::SecondPoll, at, pause);
        }
        let pause = self.lease_poll_interval();
        self.timers.set_in(Timer::LeasePoll, at, pause);
        Ask::ReadLease
    }

    pub(super) fn lease_timeout(&self) -> Duration {
        let more = self.per_node(LEASE_TIMEOUT_PER_NODE);
        LEASE_TIMEOUT.saturating_add(more).min(LEASE_TIMEOUT_MAX)
    }

    pub(super) fn lease_poll_interval(&self) -> Duration {
        let least = LEASE_POLL_INTERVAL;
        if self.is_requesting() {
            let more = self.per_node(LEASE_POLL_INTERVAL_PER_NODE);
            let most = least.saturating_add(more).min(LEASE_POLL_INTERVAL_MAX);
            return self.staggered(least, most);
        }
        if self.polls_with_heartbeats() {
            return self.settings.keep_alive_interval.saturating_mul(2);
        }
        self.staggered(least, least.saturating_add(least / 4))
    }

    /// Whether this node is a member that polls the lease only when a heartbeat interrupts its wait, in case the deputies die
    /// with the holder. Nodes that write alone may then form another world.
    pub(super) fn polls_with_heartbeats(&self) -> bool {
        let membership = self.membership.as_ref();
        !self.is_requesting() && membership.is_some_and(|it| it.rank >= DEPUTIES)
    }

    pub(super) fn on_lease(&mut self, current: Vec<u8>, now: Now) {
        let at = now.monotonic;
        let generation = Lease::from_text(&current).map(|lease| lease.generation);
        self.leases.has_lost_state |=
            self.leases.generation.is_some() && generation != self.leases.generation;
        self.leases.generation = self.leases.generation.or(generation);
        let timeout = self.lease_timeout();
        let Role::Follower(view) = &mut self.role else {
            return;
        };
        match view {
            LeaseView::Known {
                lease,
                silence,
                polled,
            } if *lease == current => {
                *polled = at;
                if let Liveness::Alive { until: Some(until) } = silence.check(at) {
                    self.timers.set(Timer::SecondPoll, until);
                }
            }
            LeaseView::Known { .. } | LeaseView::Unknown => {
                *view = LeaseView::new(current, at, timeout);
            }
        }
    }

    pub(super) fn on_claimed(&mut self, lease: &[u8], current: Vec<u8>, now: Now) {
        let at = now.monotonic;
        let is_mine = current == lease;
        let timeout = self.lease_timeout();
        match &mut self.role {
            Role::Holder(tenure) if is_mine => {
                tenure.lease = current;
                tenure.drains_queue |= tenure.silence.is_lost(at);
                tenure.silence = Silence::new(self.exchange.asked_at, timeout);
                // The renewal has succeeded, so there is no later holder that misses these requests.
                self.misdirected.clear();
            }
            Role::Holder(_) => self.follow(LeaseView::new(current, at, timeout), now),
            Role::Follower(_) => {
                self.on_lease(current, now);
                match Lease::from_text(lease) {
                    Some(Lease {
                        epoch,
                        renewal: Some(_),
                        ..
                    }) if is_mine => self.hold(lease.to_vec(), epoch, now),
                    _ => {
                        let pause = self.lease_poll_interval();
                        self.timers.set_in(Timer::LeasePoll, at, pause);
                        self.timers.cancel(Timer::SecondPoll);
                    }
                }
            }
        }
    }
}
