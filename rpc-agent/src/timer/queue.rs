//! Values in order of the time at which they are due, without a clock.
//!
//! Due times are rounded up to milliseconds: values that are due in the same one leave together, and none
//! leaves early.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::clock::Clock;

#[derive(Debug)]
pub(super) struct TimerQueue<T> {
    clock: Clock,
    /// By due time in ms; none of the lists is empty.
    values: BTreeMap<u64, Vec<T>>,
    len: usize,
}

impl<T> TimerQueue<T> {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            clock: Clock::new(now),
            values: BTreeMap::new(),
            len: 0,
        }
    }

    /// Keeps a value until `at`. Returns whether it is now due before all others.
    pub(super) fn schedule(&mut self, at: Instant, value: T) -> bool {
        let at_ms = self.clock.ms_until(at);
        let is_first = self
            .values
            .first_key_value()
            .is_none_or(|(first, _)| at_ms < *first);
        self.values.entry(at_ms).or_default().push(value);
        self.len += 1;
        is_first
    }

    /// Takes out the values that are due, in order of due time, then of insertion.
    pub(super) fn due(&mut self, now: Instant) -> Vec<T> {
        let now_ms = self.clock.ms_of(now);
        let mut due = Vec::new();
        while let Some(first) = self.values.first_entry()
            && *first.key() <= now_ms
        {
            due.append(&mut first.remove());
        }
        self.len -= due.len();
        due
    }

    /// The time until a value is due; `None` when none waits.
    pub(super) fn poll_timeout(&self, now: Instant) -> Option<Duration> {
        let (at_ms, _) = self.values.first_key_value()?;
        let present = now.saturating_duration_since(self.clock.start());
        Some(Duration::from_millis(*at_ms).saturating_sub(present))
    }

    /// Takes out the values for which `is_meant` is true, in the same order.
    pub(super) fn take_where(&mut self, is_meant: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        self.values.retain(|_, values| {
            taken.extend(values.extract_if(.., |value| is_meant(value)));
            !values.is_empty()
        });
        self.len -= taken.len();
        taken
    }

    /// Takes out all values, in the same order.
    pub(super) fn drain(&mut self) -> Vec<T> {
        self.len = 0;
        std::mem::take(&mut self.values)
            .into_values()
            .flatten()
            .collect()
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_due_at_the_same_instant_leave_together_and_in_order() {
        let now = Instant::now();
        let mut queue = TimerQueue::new(now);
        let at = now + Duration::from_millis(10);
        assert!(queue.schedule(at, "first"));
        assert!(!queue.schedule(at, "second"));
        assert!(!queue.schedule(at + Duration::from_millis(1), "later"));
        assert!(queue.schedule(now + Duration::from_millis(5), "earlier"));
        assert_eq!(queue.len(), 4);
        assert_eq!(
            queue.due(now + Duration::from_millis(4)),
            Vec::<&str>::new()
        );
        assert_eq!(queue.due(at), ["earlier", "first", "second"]);
        assert_eq!((queue.len(), queue.drain()), (1, vec!["later"]));
        assert_eq!((queue.len(), queue.drain()), (0, vec![]));
    }

    #[test]
    fn values_due_within_a_millisecond_leave_together_at_its_end() {
        let now = Instant::now();
        let mut queue = TimerQueue::new(now);
        queue.schedule(now + Duration::from_micros(9_999), 'b');
        queue.schedule(now + Duration::from_micros(9_001), 'a');
        assert_eq!(queue.poll_timeout(now), Some(Duration::from_millis(10)));
        assert_eq!(
            queue.due(now + Duration::from_micros(9_999)),
            Vec::<char>::new()
        );
        assert_eq!(queue.due(now + Duration::from_millis(10)), ['b', 'a']);
        assert_eq!(queue.poll_timeout(now), None);
    }

    #[test]
    fn a_value_due_before_the_queue_began_is_due_at_once() {
        let now = Instant::now();
        let mut queue = TimerQueue::new(now + Duration::from_secs(1));
        queue.schedule(now, ());
        assert_eq!(queue.poll_timeout(now), Some(Duration::ZERO));
        assert_eq!(queue.due(now), [()]);
    }

    #[test]
    fn values_taken_out_are_not_due_and_the_others_are() {
        let now = Instant::now();
        let mut queue = TimerQueue::new(now);
        let at = |ms| now + Duration::from_millis(ms);
        for (ms, value) in [(10, 1), (5, 2), (10, 3), (20, 4)] {
            queue.schedule(at(ms), value);
        }
        assert_eq!(queue.take_where(|value| *value != 3), [2, 1, 4]);
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.poll_timeout(now), Some(Duration::from_millis(10)));
        assert_eq!(queue.due(at(30)), [3]);
        assert_eq!(queue.take_where(|_| true), []);
    }

    /// Invariants: each value leaves once, not early, and in order. A thread that sleeps for `poll_timeout` wakes
    /// when a value is due.
    #[derive(Debug, Clone)]
    enum Step {
        Schedule { after_us: u64 },
        Pass { us: u64 },
        Sleep,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0_u64..20_000).prop_map(|after_us| Step::Schedule { after_us }),
            (0_u64..5_000).prop_map(|us| Step::Pass { us }),
            Just(Step::Sleep),
        ]
    }

    proptest! {
        #[test]
        fn any_history_agrees_with_a_sorted_list(steps in prop::collection::vec(step(), 0..60)) {
            let epoch = Instant::now();
            let mut now = epoch;
            let mut queue = TimerQueue::new(epoch);
            let mut model: Vec<(Duration, usize)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Schedule { after_us } => {
                        let at = now + Duration::from_micros(after_us);
                        let due = (at - epoch).as_micros().div_ceil(1000) as u64;
                        model.push((Duration::from_millis(due), number));
                        model.sort();
                        let is_first = model[0].1 == number;
                        prop_assert_eq!(queue.schedule(at, number), is_first);
                    }
                    Step::Pass { us } => now += Duration::from_micros(us),
                    Step::Sleep => {
                        let timeout = queue.poll_timeout(now);
                        prop_assert_eq!(timeout.is_some(), !model.is_empty());
                        now += timeout.unwrap_or_default();
                    }
                }
                let of_model = model.iter().take_while(|(at, _)| epoch + *at <= now).count();
                let expected: Vec<usize> = model.drain(..of_model).map(|(_, number)| number).collect();
                prop_assert_eq!(queue.due(now), expected);
                prop_assert_eq!(queue.len(), model.len());
            }
            let left: Vec<usize> = model.into_iter().map(|(_, number)| number).collect();
            prop_assert_eq!(queue.drain(), left);
        }
    }
}
