//! Events in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

/// A clock, and the events that are still to happen.
#[derive(Debug)]
pub struct Timeline<E> {
    now: Duration,
    /// By time, a random number, and the number of events that were added before.
    events: BTreeMap<(Duration, u32, u64), E>,
    added: u64,
}

impl<E> Default for Timeline<E> {
    fn default() -> Self {
        Self {
            now: Duration::ZERO,
            events: BTreeMap::new(),
            added: 0,
        }
    }
}

impl<E> Timeline<E> {
    /// The time since the start of the simulation.
    #[must_use]
    pub const fn now(&self) -> Duration {
        self.now
    }

    /// The number of events that were added since the start.
    #[must_use]
    pub const fn added(&self) -> u64 {
        self.added
    }

    /// Adds an event. `random` determines the order of events at the same time.
    pub fn add(&mut self, at: Duration, event: E, random: &mut Rng) {
        self.added += 1;
        let key = (at, random.u32(..), self.added);
        self.events.insert(key, event);
    }

    /// Removes the next event and advances the time to it. If there is none until `end`, the time is `end`.
    pub fn next_until(&mut self, end: Duration) -> Option<E> {
        let next = self.events.first_entry().filter(|it| it.key().0 <= end);
        let Some(next) = next else {
            self.now = end;
            return None;
        };
        self.now = next.key().0;
        Some(next.remove())
    }

    /// Removes the events for which `keeps` is false.
    pub fn retain(&mut self, mut keeps: impl FnMut(&E) -> bool) {
        self.events.retain(|_, event| keeps(event));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use fastrand::Rng;

    use super::Timeline;

    const SECOND: Duration = Duration::from_secs(1);

    fn all(timeline: &mut Timeline<u32>, end: Duration) -> Vec<u32> {
        std::iter::from_fn(|| timeline.next_until(end)).collect()
    }

    #[test]
    fn events_happen_at_their_time() {
        let (mut timeline, mut random) = (Timeline::default(), Rng::with_seed(1));
        for event in [3, 1, 2] {
            timeline.add(SECOND * event, event, &mut random);
        }
        assert_eq!(timeline.next_until(SECOND * 2), Some(1));
        assert_eq!(timeline.now(), SECOND);
        assert_eq!(all(&mut timeline, SECOND * 5 / 2), [2]);
        assert_eq!(timeline.now(), SECOND * 5 / 2);
        timeline.add(SECOND * 4, 4, &mut random);
        timeline.retain(|event| *event != 3);
        assert_eq!(all(&mut timeline, SECOND * 9), [4]);
        assert_eq!(timeline.added(), 4);
    }

    #[test]
    fn the_seed_determines_the_order_of_simultaneous_events() {
        let order = |seed| {
            let (mut timeline, mut random) = (Timeline::default(), Rng::with_seed(seed));
            for event in 0..3 {
                timeline.add(SECOND, event, &mut random);
            }
            all(&mut timeline, SECOND)
        };
        assert_eq!(order(1), order(1));
        let orders: BTreeSet<_> = (0..100).map(order).collect();
        assert_eq!(orders.len(), 6);
    }
}
