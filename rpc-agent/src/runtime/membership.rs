//! The published incarnation decides which process of a worker is connected, in a dynamic group.
//!
//! A worker that joins with the name and the id of a member replaces its process, which may still live: it was
//! stopped, or cut off. The new process connects to all members, which read the list when they see an unknown
//! incarnation, and then close the connection to the previous process. From then on, they refuse the previous
//! process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;

use super::driver::Driver;
use super::peers::{Core, PeerEntry};
use crate::error::RpcError;
use crate::future::catch_panic;
use crate::sync::Lock;
use crate::worker::{Destination, WorkerInfo};

/// The time limit of one check of the list.
const REFRESH_MAX: Duration = Duration::from_secs(2);

/// The time from one check of the list to the next, if a call has timed out.
const AFTER_TIMEOUT_MS: u64 = 1_000;

/// The time from one check of the list to the next, because of a Hello. Any peer can send a Hello, and the list may
/// have megabytes.
pub(super) const AFTER_HELLO_MS: u64 = 50;

/// How many members a new process contacts at a time: calls that need a connection have the other threads that dial.
const CONTACTS_MAX: usize = 4;

impl Driver {
    /// Connects to all members, because this process has replaced another process.
    pub(super) fn contact_all(&self) {
        let peers = Arc::new(Lock::new(self.peers.all()));
        for _ in 0..CONTACTS_MAX {
            let (this, peers) = (self.this.clone(), Arc::clone(&peers));
            let next = move || peers.lock().pop();
            self.pool.dial(Box::new(move || {
                while let Some(driver) = this.upgrade()
                    && !driver.ended.is_cancelled()
                    && let Some(peer) = next()
                {
                    if let Some(dial) = driver.step(&peer, Core::contact) {
                        driver.attempt(&peer, dial);
                    }
                }
            }));
        }
    }

    /// Whether the list has another process of this worker. Another worker may have its id after it has left.
    fn is_replaced(&self) -> bool {
        let (directory, me) = (&self.directory, self.me());
        let is_listed = directory.find(&Destination::Info(me)).is_some();
        is_listed && !directory.is_published(me, self.config.incarnation)
    }

    /// Returns why other members do not accept this process, if it is not in the list.
    pub(super) fn exclusion(&self) -> Option<Arc<str>> {
        let (directory, me) = (&self.directory, self.me());
        if !directory.is_dynamic() || directory.is_published(me, self.config.incarnation) {
            return None;
        }
        Some(if self.is_replaced() {
            format!("another process has joined the group as {me}: end this one").into()
        } else {
            format!("{me} is no longer a member of the group").into()
        })
    }

    /// Returns why a process that sends a Hello is refused.
    pub(super) fn not_listed(&self, worker: &WorkerInfo) -> String {
        let text = format!("this process of {worker} is not on its list of members");
        match &*self.membership.failure.lock() {
            None => text,
            Some(failure) => format!("{text}, which it could not read again: {failure}"),
        }
    }

    /// Has a thread read the list, unless one does already or did less than `pause_ms` ago. Does not block.
    pub(super) fn refresh_members(&self, pause_ms: u64) {
        let now_ms = self.clock.ms_of(Instant::now());
        if !self.membership.looks.lock().begin(now_ms, pause_ms) {
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
            let failure = match read {
                Ok(read) => read.err().map(|error| error.to_string()),
                Err(text) => Some(format!("the store panicked: {text}")),
            };
            if let Some(failure) = &failure {
                log::debug!("{}: {failure}", driver.me());
            }
            let membership = &driver.membership;
            *membership.failure.lock() = failure;
            let now_ms = driver.clock.ms_of(Instant::now());
            membership.looks.lock().end(now_ms);
            driver.check_members();
        };
        self.pool.dial(Box::new(refresh));
    }

    /// Reads the list after a time-out: the callee may have been replaced by a process that cannot connect to this one.
    pub(super) fn suspect(&self, error: &RpcError) {
        if !matches!(error, RpcError::Timeout { .. }) || !self.directory.is_dynamic() {
            return;
        }
        self.refresh_members(AFTER_TIMEOUT_MS);
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
        if self.is_replaced() && !self.membership.is_replaced.swap(true, Ordering::Relaxed) {
            let me = self.me();
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
