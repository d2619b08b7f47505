//! Jobs in order of the time at which they are due. The thread that polls runs them.

use std::collections::BTreeMap;

use crate::future::Job;
use crate::sync::Lock;

/// The jobs that wait for their time, in milliseconds of the agent's clock, rounded up: none begins early.
#[derive(Default)]
pub(crate) struct Timers(Lock<Waiting>);

#[derive(Default)]
struct Waiting {
    /// None of the lists is empty.
    jobs: BTreeMap<u64, Vec<Job>>,
    is_stopped: bool,
}

impl Timers {
    /// Keeps a job until its time. After [`Timers::stop`] it is dropped.
    pub(super) fn schedule(&self, at_ms: u64, job: Job) {
        let mut waiting = self.0.lock();
        if !waiting.is_stopped {
            return waiting.jobs.entry(at_ms).or_default().push(job);
        }
        // Without the lock: a job may hold anything.
        drop(waiting);
        drop(job);
    }

    /// Takes out the jobs that are due, by time, then in the order in which they were scheduled.
    pub(super) fn due(&self, now_ms: u64) -> impl Iterator<Item = Job> + use<> {
        let mut waiting = self.0.lock();
        let later = waiting.jobs.split_off(&now_ms.saturating_add(1));
        let due = std::mem::replace(&mut waiting.jobs, later);
        drop(waiting);
        due.into_values().flatten()
    }

    /// When the next job is due.
    pub(super) fn next_ms(&self) -> Option<u64> {
        let waiting = self.0.lock();
        waiting.jobs.first_key_value().map(|(at_ms, _)| *at_ms)
    }

    /// Drops the jobs that are not due, and those that are scheduled from now on.
    pub(super) fn stop(&self) {
        let mut waiting = self.0.lock();
        waiting.is_stopped = true;
        let dropped = std::mem::take(&mut waiting.jobs);
        drop(waiting);
        drop(dropped);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn jobs_leave_when_they_are_due_by_time_then_in_order() {
        let (timers, (sender, ran)) = (Timers::default(), mpsc::channel());
        for (at_ms, name) in [(5, 'c'), (3, 'a'), (9, 'e'), (3, 'b'), (5, 'd')] {
            let sender = sender.clone();
            timers.schedule(at_ms, Box::new(move || sender.send(name).unwrap()));
        }
        let run = |now_ms| {
            timers.due(now_ms).for_each(|job| job());
            ran.try_iter().collect::<String>()
        };
        assert_eq!((timers.next_ms(), run(2)), (Some(3), String::new()));
        assert_eq!((run(5), timers.next_ms()), ("abcd".to_owned(), Some(9)));
        assert_eq!((run(u64::MAX), timers.next_ms()), ("e".to_owned(), None));
    }

    #[test]
    fn any_history_agrees_with_a_sorted_list() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let (timers, (sender, ran)) = (Timers::default(), mpsc::channel());
        let (mut plain, mut now_ms) = (Vec::new(), 0_u64);
        for number in 0..2_000 {
            if random.bool() {
                // Some are due already.
                let at_ms = random.u64(now_ms.saturating_sub(5)..now_ms + 20);
                let sender = sender.clone();
                timers.schedule(at_ms, Box::new(move || sender.send(number).unwrap()));
                plain.push((at_ms, number));
                plain.sort_unstable();
            } else {
                now_ms += random.u64(..8);
                timers.due(now_ms).for_each(|job| job());
                let due = plain.extract_if(.., |(at_ms, _)| *at_ms <= now_ms);
                assert!(
                    ran.try_iter().eq(due.map(|(_, number)| number)),
                    "seed {seed}"
                );
            }
            let first = plain.first().map(|(at_ms, _)| *at_ms);
            assert_eq!(timers.next_ms(), first, "seed {seed}");
        }
    }

    #[test]
    fn a_stop_drops_the_waiting_jobs_and_later_ones() {
        let (timers, held) = (Timers::default(), Arc::new(()));
        for _ in 0..2 {
            let held = Arc::clone(&held);
            timers.schedule(1, Box::new(move || drop(held)));
            timers.stop();
        }
        assert_eq!((Arc::strong_count(&held), timers.due(9).count()), (1, 0));
    }
}
