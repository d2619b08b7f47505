//! A lease in a store: one worker at a time may change the list of members.
//!
//! The lease only avoids contention when many workers join at once. It does not guarantee mutual
//! exclusion: a holder that was paused for longer than the lease may have lost it, so a holder must
//! write by compare-and-set.

use std::time::{Duration, Instant};

use c10d_socket::{Deadline, printable};
use c10d_store::StoreError;

use super::bounded_store::BoundedStore;

/// How long a lease lasts without a heartbeat of its holder. A holder changes the list in a few round
/// trips, so 5 s is far more than a live one needs; a crashed holder delays the others by as much.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// How many characters of a holder's value messages show.
const HOLDER_CHARS_SHOWN_MAX: usize = 200;

/// Decides whether another worker's lease has expired.
///
/// Clocks of different machines are never compared: a lease has expired when its value has not changed
/// for its whole duration, by the observer's clock.
#[derive(Default)]
pub(crate) struct LeaseWatch {
    seen: Option<(Vec<u8>, Instant)>,
}

/// What a worker that wants the lease does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeaseStep {
    /// Replace the observed value: the lease is free or expired.
    Take,
    /// Wait for a change of the value, at most until the lease expires.
    Wait { until: Instant },
}

impl LeaseWatch {
    /// Takes the lease's `value` as it was read at `now`. An empty value is a free lease.
    pub(crate) fn observe(&mut self, value: &[u8], now: Instant, lease: Duration) -> LeaseStep {
        if value.is_empty() {
            self.seen = None;
            return LeaseStep::Take;
        }
        let since = match &self.seen {
            Some((seen, since)) if seen == value => *since,
            _ => {
                self.seen = Some((value.to_vec(), now));
                now
            }
        };
        match since.checked_add(lease) {
            Some(until) if now < until => LeaseStep::Wait { until },
            _ => LeaseStep::Take,
        }
    }
}

/// An acquired lease. Dropping it releases it, which may block until the deadline.
#[derive(Debug)]
pub(crate) struct Lease<'s> {
    store: &'s BoundedStore,
    key: &'s str,
    holder: String,
    /// Incremented by each renewal, so that the value changes.
    heartbeat: u64,
    renewed: Instant,
    duration: Duration,
    by: Deadline,
}

/// Why a worker did not acquire a lease.
#[derive(Debug)]
pub(crate) enum LeaseError {
    /// Other workers held it until the deadline. `holder` is the last one's value, shortened.
    TimedOut {
        holder: String,
    },
    Store(StoreError),
}

impl From<StoreError> for LeaseError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl<'s> Lease<'s> {
    /// Blocks until the lease is acquired, or the deadline. `holder` must be unique.
    pub(crate) fn acquire(
        store: &'s BoundedStore,
        key: &'s str,
        holder: String,
        duration: Duration,
        by: Deadline,
    ) -> Result<Self, LeaseError> {
        let mut watch = LeaseWatch::default();
        let mut present = store.try_get(key, by)?.unwrap_or_default();
        loop {
            let now = Instant::now();
            match watch.observe(&present, now, duration) {
                LeaseStep::Take => {
                    if !present.is_empty() {
                        log::warn!(
                            "lease {key:?} of {} expired: no heartbeat for {:.0?}",
                            shown(&present),
                            duration
                        );
                    }
                    match store.replace(key, &present, value(&holder, 0).as_bytes(), by)? {
                        Ok(()) => {
                            return Ok(Self {
                                store,
                                key,
                                holder,
                                heartbeat: 0,
                                renewed: now,
                                duration,
                                by,
                            });
                        }
                        Err(other) => present = other,
                    }
                }
                LeaseStep::Wait { .. } if by.has_passed(now) => {
                    let holder = shown(&present);
                    return Err(LeaseError::TimedOut { holder });
                }
                LeaseStep::Wait { until } => {
                    let until = Deadline::at(until).min(by);
                    if let Some(changed) = store.wait_change(key, &present, until)? {
                        present = changed;
                    }
                }
            }
        }
    }

    /// Sends a heartbeat if one is due. Returns `false` if another worker has the lease by now.
    pub(crate) fn renew(&mut self, now: Instant) -> Result<bool, StoreError> {
        if now.saturating_duration_since(self.renewed) < self.duration / 3 {
            return Ok(true);
        }
        let before = value(&self.holder, self.heartbeat);
        self.heartbeat += 1;
        let after = value(&self.holder, self.heartbeat);
        let replaced =
            self.store
                .replace(self.key, before.as_bytes(), after.as_bytes(), self.by)?;
        self.renewed = now;
        Ok(replaced.is_ok())
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let present = value(&self.holder, self.heartbeat);
        let released = self
            .store
            .replace(self.key, present.as_bytes(), b"", self.by);
        match released {
            Ok(Ok(())) => {}
            Ok(Err(_)) => log::debug!(
                "lease {:?} was lost to another worker before it was released",
                self.key
            ),
            Err(error) => log::warn!(
                "cannot release lease {:?}, other workers wait until it expires: {error}",
                self.key
            ),
        }
    }
}

fn value(holder: &str, heartbeat: u64) -> String {
    format!("{holder} beat {heartbeat}")
}

/// A holder's value, for messages.
fn shown(value: &[u8]) -> String {
    printable(value, HOLDER_CHARS_SHOWN_MAX).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use c10d_store::{HashStore, Store};

    use super::*;

    const KEY: &str = "lease";

    #[test]
    fn a_free_lease_is_taken_and_a_held_one_is_waited_for() {
        let now = Instant::now();
        let mut watch = LeaseWatch::default();
        assert_eq!(watch.observe(b"", now, LEASE), LeaseStep::Take);
        let until = now + LEASE;
        assert_eq!(watch.observe(b"a 0", now, LEASE), LeaseStep::Wait { until });
        let later = until - Duration::from_millis(1);
        assert_eq!(
            watch.observe(b"a 0", later, LEASE),
            LeaseStep::Wait { until }
        );
        assert_eq!(watch.observe(b"a 0", until, LEASE), LeaseStep::Take);
    }

    #[test]
    fn each_heartbeat_restarts_the_lease() {
        let start = Instant::now();
        let mut watch = LeaseWatch::default();
        for beat in 0..10_u32 {
            let now = start + LEASE * beat;
            let value = format!("a {beat}");
            let until = now + LEASE;
            assert_eq!(
                watch.observe(value.as_bytes(), now, LEASE),
                LeaseStep::Wait { until }
            );
        }
        // Another holder also restarts the lease, including a holder after a release.
        let now = start + LEASE * 20;
        let until = now + LEASE;
        assert_eq!(watch.observe(b"b 0", now, LEASE), LeaseStep::Wait { until });
        assert_eq!(watch.observe(b"", now, LEASE), LeaseStep::Take);
        let now = now + LEASE * 2;
        let until = now + LEASE;
        assert_eq!(watch.observe(b"b 0", now, LEASE), LeaseStep::Wait { until });
    }

    fn acquire<'s>(
        store: &'s BoundedStore,
        holder: &str,
        duration: Duration,
        by: Deadline,
    ) -> Result<Lease<'s>, LeaseError> {
        Lease::acquire(store, KEY, holder.to_owned(), duration, by)
    }

    #[test]
    fn a_lease_is_released_when_its_holder_panics() {
        let inner = HashStore::new();
        let store = BoundedStore::new(Arc::new(inner.clone()));
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _lease = acquire(&store, "a", LEASE, Deadline::NEVER).unwrap();
                assert_eq!(inner.get(KEY).unwrap(), b"a beat 0");
                panic!("while holding it");
            });
            holder.join().is_err()
        });
        assert!(panicked);
        assert_eq!(inner.get(KEY).unwrap(), b"");
    }

    #[test]
    fn a_timeout_names_the_holder() {
        let store = BoundedStore::new(Arc::new(HashStore::new()));
        let _held = acquire(&store, "the holder", LEASE, Deadline::NEVER).unwrap();
        match acquire(&store, "b", LEASE, Deadline::at(Instant::now())) {
            Err(LeaseError::TimedOut { holder }) => assert_eq!(holder, "the holder beat 0"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_dead_holders_lease_expires_and_its_late_release_changes_nothing() {
        let inner = HashStore::new();
        let store = BoundedStore::new(Arc::new(inner.clone()));
        let short = Duration::from_millis(10);
        let mut dead = acquire(&store, "dead", short, Deadline::NEVER).unwrap();
        let _next = acquire(&store, "next", short, Deadline::NEVER).unwrap();
        assert_eq!(inner.get(KEY).unwrap(), b"next beat 0");
        assert!(!dead.renew(Instant::now()).unwrap());
        drop(dead);
        assert_eq!(inner.get(KEY).unwrap(), b"next beat 0");
    }

    #[test]
    fn a_holder_renews_after_a_third_of_the_lease() {
        let inner = HashStore::new();
        let store = BoundedStore::new(Arc::new(inner.clone()));
        let mut lease = acquire(&store, "a", LEASE, Deadline::NEVER).unwrap();
        let taken = lease.renewed;
        assert!(lease.renew(taken).unwrap());
        assert_eq!(inner.get(KEY).unwrap(), b"a beat 0");
        assert!(lease.renew(taken + LEASE / 3).unwrap());
        assert_eq!(inner.get(KEY).unwrap(), b"a beat 1");
        drop(lease);
        assert_eq!(inner.get(KEY).unwrap(), b"");
    }
}
