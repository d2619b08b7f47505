//! A network that delays, loses, repeats and cuts.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

/// The delays of most messages, and of slow ones, in microseconds.
const USUAL_US: std::ops::Range<u64> = 50..2_000;
const SLOW_US: std::ops::Range<u64> = 2_000..1_500_000;

/// The share of messages that each fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// Messages that take up to 1.5 s.
    pub slow: f64,
    /// Messages that do not arrive.
    pub lost: f64,
    /// Messages that arrive twice.
    pub twice: f64,
}

impl Faults {
    /// Messages arrive within 2 ms.
    pub const NONE: Self = Self {
        slow: 0.0,
        lost: 0.0,
        twice: 0.0,
    };
}

/// The links of a number of nodes to one other node.
#[derive(Debug, Default)]
pub struct Network {
    /// Its faults, which chance decides for each message.
    pub faults: Faults,
    cuts: BTreeMap<usize, Cut>,
    down_until: Duration,
}

/// Nothing passes a link until this time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cut {
    until: Duration,
    is_silent: bool,
}

impl Network {
    /// How long the next message takes.
    pub fn latency(&self, random: &mut Rng) -> Duration {
        let is_slow = random.f64() < self.faults.slow;
        let range = if is_slow { SLOW_US } else { USUAL_US };
        Duration::from_micros(random.u64(range))
    }

    /// Whether the next message is lost.
    pub fn is_lost(&self, random: &mut Rng) -> bool {
        random.f64() < self.faults.lost
    }

    /// Whether the next message arrives twice.
    pub fn is_doubled(&self, random: &mut Rng) -> bool {
        random.f64() < self.faults.twice
    }

    /// Cuts a node's link until this time, or longer if it is cut already. While a silent link is cut, a sender notices it only
    /// by the missing answer.
    pub fn cut(&mut self, node: usize, until: Duration, is_silent: bool) {
        let cut = self.cuts.entry(node).or_default();
        cut.until = cut.until.max(until);
        cut.is_silent = is_silent;
    }

    /// Cuts all links until this time; each sender notices it.
    pub fn cut_all(&mut self, until: Duration) {
        self.down_until = self.down_until.max(until);
    }

    /// Until when the node's own link was last cut, and whether silently.
    #[must_use]
    pub fn last_cut(&self, node: usize) -> (Duration, bool) {
        let cut = self.cuts.get(&node).copied().unwrap_or_default();
        (cut.until, cut.is_silent)
    }

    /// When a sender notices that its message at `now` does not pass; `None` if it passes. In silence, it waits for `timeout`.
    #[must_use]
    pub fn fails_at(&self, node: usize, now: Duration, timeout: Duration) -> Option<Duration> {
        let (until, is_silent) = self.last_cut(node);
        if now < until {
            return Some(if is_silent { now + timeout } else { now });
        }
        (now < self.down_until).then_some(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fastrand::Rng;

    use super::{Faults, Network};

    const SECOND: Duration = Duration::from_secs(1);
    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn faults_affect_their_share_of_messages() {
        let mut network = Network::default();
        let mut random = Rng::with_seed(1);
        let mut slow_lost_twice = |network: &Network| {
            [
                (0..1000)
                    .filter(|_| network.latency(&mut random) > 2 * MILLISECOND)
                    .count(),
                (0..1000).filter(|_| network.is_lost(&mut random)).count(),
                (0..1000)
                    .filter(|_| network.is_doubled(&mut random))
                    .count(),
            ]
        };
        assert_eq!(slow_lost_twice(&network), [0, 0, 0]);
        network.faults = Faults {
            slow: 0.5,
            lost: 0.2,
            twice: 1.0,
        };
        let [slow, lost, twice] = slow_lost_twice(&network);
        assert!((400..600).contains(&slow) && (150..250).contains(&lost) && twice == 1000);
    }

    #[test]
    fn a_cut_link_lets_nothing_through() {
        let mut network = Network::default();
        network.cut(1, 3 * SECOND, true);
        network.cut(2, 3 * SECOND, false);
        network.cut(2, 2 * SECOND, false);
        let fails_at = |network: &Network, node, now| network.fails_at(node, now, 5 * SECOND);
        assert_eq!(fails_at(&network, 1, SECOND), Some(6 * SECOND));
        assert_eq!(fails_at(&network, 2, 2 * SECOND), Some(2 * SECOND));
        assert_eq!(fails_at(&network, 2, 3 * SECOND), None);
        assert_eq!(fails_at(&network, 0, SECOND), None);
        network.cut_all(4 * SECOND);
        assert_eq!(fails_at(&network, 0, SECOND), Some(SECOND));
        assert_eq!(fails_at(&network, 0, 4 * SECOND), None);
    }
}
