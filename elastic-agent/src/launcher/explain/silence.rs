//! How long a launcher waits for an answer of the workers' store before it reports on its own workers only. Pure: times
//! are counted from any moment.

use std::time::Duration;

/// A store on a busy host may answer late.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// How long after a missing answer the store is asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The answers of a store.
#[derive(Debug, Default)]
pub(super) struct Silence {
    has_answered: bool,
    /// When the store was first asked without an answer.
    since: Option<Duration>,
}

impl Silence {
    pub(super) const fn note_answer(&mut self) {
        self.has_answered = true;
        self.since = None;
    }

    /// Notes that there was no answer at `now` to the request of `asked`. Returns when to ask again before anything is
    /// reported. `None` if the store has been silent for too long, or if it never answers: without `can_answer`, it has
    /// to have answered before.
    pub(super) fn retry(
        &mut self,
        asked: Duration,
        now: Duration,
        can_answer: bool,
    ) -> Option<Duration> {
        self.has_answered |= can_answer;
        let since = *self.since.get_or_insert(asked);
        (self.has_answered && now < since + SILENT_MAX).then_some(RETRY_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_store_that_answers_late_is_asked_again_for_5_s() {
        let mut silence = Silence::default();
        silence.note_answer();
        let again = Some(RETRY_INTERVAL);
        assert_eq!(silence.retry(seconds(30), seconds(32), false), again);
        silence.note_answer();
        assert_eq!(silence.retry(seconds(60), seconds(62), false), again);
        assert_eq!(silence.retry(seconds(64), seconds(66), false), None);
        assert_eq!(silence.retry(seconds(90), seconds(90), false), None);
    }

    #[test]
    fn a_store_that_never_answers_delays_nothing() {
        let mut silence = Silence::default();
        assert_eq!(silence.retry(seconds(5), seconds(5), false), None);
        // The launcher has reached it now.
        let mut silence = Silence::default();
        let again = Some(RETRY_INTERVAL);
        assert_eq!(silence.retry(seconds(5), seconds(5), true), again);
        assert_eq!(silence.retry(seconds(7), seconds(7), false), again);
        assert_eq!(silence.retry(seconds(9), seconds(10), false), None);
    }
}
