//! Who may change the list of members: one at a time, and a dead one not for ever.
//!
//! The lease makes turns, so that many who join at once need not all try again; it is no proof of
//! being alone. A holder that slept beyond its lease may find that another has it: what it writes
//! under the lease it has to write by compare-and-set.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::StoreError;

use super::bounded_store::BoundedStore;

/// How long a holder may show no sign of life. The list is changed in a few round trips, so this is
/// far more than a living holder needs, and what a crashed one costs the others.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// The bytes shown of a holder that is not ours to name.
const HOLDER_BYTES_SHOWN_MAX: usize = 200;

/// What one who wants the lease has seen of it.
///
/// Clocks of different machines are never compared: the lease is over when its value was the same for
/// as long as the lease lasts, by the clock of the one who looks.
#[derive(Default)]
pub(crate) struct LeaseWatch {
    seen: Option<(Vec<u8>, Instant)>,
}

impl std::fmt::Debug for LeaseWatch {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseWatch")
            .field("seen_at", &self.seen.as_ref().map(|(_, at)| at))
            .finish()
    }
}

/// What to do about a lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeaseStep {
    /// Replace the value that was seen by one's own.
    Take,
    /// Wait for a change, until then.
    Wait { until: Instant },
}

impl LeaseWatch {
    /// Decides, having seen `value` (empty: free) at `now`.
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

/// A turn. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Lease<'s> {
    store: &'s BoundedStore,
    key: &'s str,
    holder: String,
    /// Grows with each renewal, which is the sign of life.
    beat: u64,
    renewed: Instant,
    duration: Duration,
    by: Deadline,
}

/// Why there is no turn.
#[derive(Debug)]
pub(crate) enum LeaseError {
    /// Not by the deadline. Who had it last, as far as that can be shown.
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
    /// Waits for a turn until the deadline. `holder` differs from every other holder.
    pub(crate) fn acquire(
        store: &'s BoundedStore,
        key: &'s str,
        holder: String,
        duration: Duration,
        by: Deadline,
    ) -> Result<Self, LeaseError> {
        let mut watch = LeaseWatch::default();
        let mut present = store.get_if_there(key, by)?.unwrap_or_default();
        loop {
            let now = Instant::now();
            match watch.observe(&present, now, duration) {
                LeaseStep::Take => {
                    if !present.is_empty() {
                        log::warn!(
                            "{key}: no sign of life of {}, its turn is over",
                            shown(&present)
                        );
                    }
                    match store.replace(key, &present, value(&holder, 0).as_bytes(), by)? {
                        Ok(()) => {
                            return Ok(Self {
                                store,
                                key,
                                holder,
                                beat: 0,
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

    /// Shows a sign of life, when it is time for one. `false`: the turn is another's by now.
    pub(crate) fn renew(&mut self, now: Instant) -> Result<bool, StoreError> {
        if now.saturating_duration_since(self.renewed) < self.duration / 3 {
            return Ok(true);
        }
        let before = value(&self.holder, self.beat);
        self.beat += 1;
        let after = value(&self.holder, self.beat);
        let replaced =
            self.store
                .replace(self.key, before.as_bytes(), after.as_bytes(), self.by)?;
        self.renewed = now;
        Ok(replaced.is_ok())
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let present = value(&self.holder, self.beat);
        let released = self
            .store
            .replace(self.key, present.as_bytes(), b"", self.by);
        match released {
            Ok(Ok(())) => {}
            Ok(Err(_)) => log::debug!("{}: the turn was another's already", self.key),
            Err(error) => log::warn!("a turn is not given back, and will run out: {error}"),
        }
    }
}

fn value(holder: &str, beat: u64) -> String {
    format!("{holder} beat {beat}")
}

/// As much of a holder's value as a message can have.
fn shown(value: &[u8]) -> String {
    let head = &value[..value.len().min(HOLDER_BYTES_SHOWN_MAX)];
    String::from_utf8_lossy(head).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use c10d_store::{HashStore, Store};

    use super::*;

    const KEY: &str = "turn";

    #[test]
    fn a_free_lease_is_taken_and_a_held_one_waited_for() {
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
    fn each_sign_of_life_begins_the_lease_anew() {
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
        // So does another holder, and a holder that came after a pause.
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
    fn a_turn_is_given_back_however_it_ends() {
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
    fn a_turn_that_does_not_come_in_time_names_its_holder() {
        let store = BoundedStore::new(Arc::new(HashStore::new()));
        let _held = acquire(&store, "the holder", LEASE, Deadline::NEVER).unwrap();
        match acquire(&store, "b", LEASE, Deadline::at(Instant::now())) {
            Err(LeaseError::TimedOut { holder }) => assert_eq!(holder, "the holder beat 0"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_dead_holders_turn_runs_out_and_a_late_farewell_of_it_changes_nothing() {
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
    fn a_living_holder_renews_when_a_third_of_the_lease_is_over() {
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
