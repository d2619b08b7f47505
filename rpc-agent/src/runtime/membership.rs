//! The published incarnation decides which process of a worker is connected, in a dynamic group.
//!
//! A worker that joins with the name and the id of a member replaces its process, which may still live: it was stopped,
//! or cut off. The new process connects to all members, which read the list when they see an incarnation that they do not
//! know, and then close the connection to the previous process. They refuse that one from then on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;

use super::driver::Driver;
use super::peers::{Core, PeerEntry};
use crate::error::RpcError;
use crate::future::catch_panic;

/// The time limit of one look at the list.
const REFRESH_MAX: Duration = Duration::from_secs(2);

/// The list is read at most this often because calls have timed out.
const AFTER_TIMEOUT_MS: u64 = 1_000;

impl Driver {
    /// Connects to all members, because this process has replaced another process.
    pub(super) fn contact_all(&self) {
        let now = Instant::now();
        for peer in self.peers.all() {
            self.step(&peer, |core| core.contact(now));
        }
    }

    /// Why other members do not accept this process, if the list does not have it.
    pub(super) fn exclusion(&self) -> Option<Arc<str>> {
        let (directory, me) = (&self.directory, self.me());
        if !directory.is_dynamic() || directory.is_published(me, self.config.incarnation) {
            return None;
        }
        Some(if directory.is_superseded(me, self.config.incarnation) {
            format!("another process has joined the group as {me}: end this one").into()
        } else {
            format!("{me} is no longer a member of the group").into()
        })
    }

    /// Has a thread read the list, unless one does already. Does not block.
    pub(super) fn refresh_members(&self) {
        if self.membership.is_refreshing.swap(true, Ordering::SeqCst) {
            return;
        }
        let this = self.this.clone();
        let refresh = move || {
            let Some(driver) = this.upgrade() else {
                return;
            };
            let by = Deadline::after(Instant::now(), REFRESH_MAX);
            // The store is the program's.
            let read = catch_panic(|| driver.directory.refresh(by, &driver.ended));
            driver
                .membership
                .is_refreshing
                .store(false, Ordering::SeqCst);
            match read {
                Ok(Ok(())) => driver.check_members(),
                Ok(Err(error)) => log::debug!("{}: {error}", driver.me()),
                Err(text) => log::error!("{}: the store panicked: {text}", driver.me()),
            }
        };
        self.pool.dial(Box::new(refresh));
    }

    /// Reads the list after a time-out: the callee may have been replaced by a process that cannot connect to this one.
    pub(super) fn suspect(&self, error: &RpcError) {
        if !matches!(error, RpcError::Timeout { .. }) || !self.directory.is_dynamic() {
            return;
        }
        let now_ms = self.clock.ms_of(Instant::now());
        let last = &self.membership.timed_out_ms;
        let before_ms = last.load(Ordering::Relaxed);
        let is_due = before_ms == 0 || now_ms >= before_ms + AFTER_TIMEOUT_MS;
        let change =
            || last.compare_exchange(before_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        if is_due && change().is_ok() {
            self.refresh_members();
        }
    }

    /// Ends the connections to replaced processes, if the list has changed.
    pub(super) fn check_members(&self) {
        let changes = self.directory.changes();
        let checked = &self.membership.checked;
        if checked.load(Ordering::Relaxed) >= changes
            || checked.fetch_max(changes, Ordering::Relaxed) >= changes
        {
            return;
        }
        let (me, incarnation) = (self.me(), self.config.incarnation);
        if self.directory.is_superseded(me, incarnation)
            && !self.membership.is_replaced.swap(true, Ordering::Relaxed)
        {
            log::warn!(
                "another process has joined the group as {me}: end this one, which is refused"
            );
        }
        for peer in self.peers.all() {
            self.check_member(&peer);
        }
    }

    /// Ends the connection to a worker if another process of it is published.
    pub(super) fn check_member(&self, peer: &Arc<PeerEntry>) {
        let connected = peer.connected_incarnation();
        if connected
            .is_some_and(|incarnation| self.directory.is_superseded(&peer.info, incarnation))
        {
            self.step(peer, Core::superseded);
        }
    }
}
