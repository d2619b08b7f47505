//! The wait of a node whose workers have failed for the news that another node was lost. Pure.

use std::time::{Duration, Instant};

use crate::round::Input;

/// How long the connection of a lost node may take to close after the workers of another node have failed.
const CLOSES_WITHIN: Duration = Duration::from_millis(1500);

/// How often the node checks after that time whether all members are connected.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct AwaitedLoss {
    /// From when on a connection shows that its node was not lost.
    shown_from: Instant,
    ask_at: Instant,
    until: Instant,
}

impl AwaitedLoss {
    /// A wait for at most `wait`.
    pub(super) fn new(wait: Duration, now: Instant) -> Self {
        let shown_from = now + CLOSES_WITHIN;
        Self {
            shown_from,
            ask_at: shown_from,
            until: now + wait,
        }
    }

    /// When the next call of [`end`](Self::end) is due.
    pub(super) fn due(&self) -> Instant {
        self.ask_at.min(self.until)
    }

    /// Returns how the wait ends, if it does. All other members were connected at `connected_at`.
    pub(super) fn end(&mut self, connected_at: Option<Instant>, now: Instant) -> Option<Input> {
        if connected_at.is_some_and(|at| at >= self.shown_from) {
            return Some(Input::NoLoss);
        }
        self.ask_at = now + ASK_INTERVAL;
        (now >= self.until).then_some(Input::LossDue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_ends_early_only_if_a_later_request_shows_all_members() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut loss = AwaitedLoss::new(Duration::from_secs(15), start);
        assert_eq!(loss.due(), at(1500));
        assert!(loss.end(None, at(1500)).is_none());
        // A node may have died after this request.
        assert!(loss.end(Some(at(1499)), at(1600)).is_none());
        assert_eq!(loss.due(), at(1700));
        assert!(matches!(
            loss.end(Some(at(1510)), at(1700)),
            Some(Input::NoLoss)
        ));
        assert!(loss.end(None, at(14_950)).is_none());
        assert_eq!(loss.due(), at(15_000));
        assert!(matches!(loss.end(None, at(15_000)), Some(Input::LossDue)));
    }
}
