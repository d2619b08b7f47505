//! One worker's part of termination detection: it decides the next step.
//!
//! Pure: has no store, clock or thread. The parent module describes the rule and why it is correct.

/// The next step of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait until the worker is idle; count the calls started so far before and after the wait.
    AwaitIdle,
    /// Add `started` to the round's sum of started calls.
    AddStarted { started: u64 },
    /// Mark this worker as arrived in the round, and increment the count.
    Arrive,
    /// All workers have arrived: publish the sum of the round.
    Publish,
    /// Wait until the sum of the round is published.
    AwaitSum,
    /// All workers have terminated: report that this worker no longer needs the store.
    Depart,
    /// Wait briefly until all workers have reported so, because this process may serve the store.
    AwaitDepartures,
    /// This worker may leave.
    Finished,
}

/// Steps through the rounds. After an error the current step can be repeated.
#[derive(Debug)]
pub(crate) struct Detector {
    world_size: u64,
    serves_store: bool,
    round: u32,
    previous_sum: Option<u64>,
    step: Step,
}

impl Detector {
    pub(crate) const fn new(world_size: u64, serves_store: bool) -> Self {
        Self {
            world_size,
            serves_store,
            round: 1,
            previous_sum: None,
            step: Step::AwaitIdle,
        }
    }

    pub(crate) const fn step(&self) -> Step {
        self.step
    }

    /// The current round, from 1.
    pub(crate) const fn round(&self) -> u32 {
        self.round
    }

    /// The worker was idle at a moment between these two counts of started calls. The count at that
    /// moment is known only if they are equal; otherwise the worker waits again.
    pub(crate) fn was_idle(&mut self, before: u64, after: u64) {
        debug_assert_eq!(self.step, Step::AwaitIdle);
        if before == after {
            self.step = Step::AddStarted { started: after };
        }
    }

    pub(crate) fn added(&mut self) {
        debug_assert!(matches!(self.step, Step::AddStarted { .. }));
        self.step = Step::Arrive;
    }

    /// `count` workers have arrived in the round, this one included.
    pub(crate) fn arrived(&mut self, count: u64) {
        debug_assert_eq!(self.step, Step::Arrive);
        self.step = if count == self.world_size {
            Step::Publish
        } else {
            Step::AwaitSum
        };
    }

    /// The sum of the round is known. Two equal sums in a row end the detection.
    pub(crate) fn sum_known(&mut self, sum: u64) {
        debug_assert!(matches!(self.step, Step::Publish | Step::AwaitSum));
        if self.previous_sum == Some(sum) {
            self.step = Step::Depart;
        } else {
            self.previous_sum = Some(sum);
            self.round = self.round.saturating_add(1);
            self.step = Step::AwaitIdle;
        }
    }

    pub(crate) fn departed(&mut self) {
        debug_assert_eq!(self.step, Step::Depart);
        self.step = if self.serves_store && self.world_size > 1 {
            Step::AwaitDepartures
        } else {
            Step::Finished
        };
    }

    /// All other workers have departed, or the wait for them timed out.
    pub(crate) fn others_departed(&mut self) {
        debug_assert_eq!(self.step, Step::AwaitDepartures);
        self.step = Step::Finished;
    }
}
