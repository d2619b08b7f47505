//! When all workers may leave: the decisions of one worker.
//!
//! Pure: knows no store, clock or thread. What the numbers count is said in the parent module.

/// What a worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait until nothing is going on here, and count the calls started so far, before and after.
    BecomeIdle,
    /// Add so many started calls to the sum of the round.
    AddStarted { started: u64 },
    /// Mark oneself as having arrived in the round, and count oneself.
    Arrive,
    /// All have arrived: publish the sum of the round.
    Publish,
    /// Wait for the sum of the round.
    AwaitSum,
    /// All is over. Say that one needs the store no more.
    Depart,
    /// As the one whose process may serve the store: wait a little until all others have said so.
    AwaitDepartures,
    /// Leave.
    Finished,
}

/// The way of one worker to the end. Can be stopped after any step and gone on with later.
#[derive(Debug)]
pub(crate) struct JointEnd {
    world_size: u64,
    serves_store: bool,
    round: u32,
    previous_sum: Option<u64>,
    step: Step,
}

impl JointEnd {
    pub(crate) const fn new(world_size: u64, serves_store: bool) -> Self {
        Self {
            world_size,
            serves_store,
            round: 1,
            previous_sum: None,
            step: Step::BecomeIdle,
        }
    }

    pub(crate) const fn step(&self) -> Step {
        self.step
    }

    /// Counts from 1.
    pub(crate) const fn round(&self) -> u32 {
        self.round
    }

    /// Nothing was going on here at a moment between these two counts of started calls. Only if they
    /// are equal is the count of that moment known.
    pub(crate) fn was_idle(&mut self, before: u64, after: u64) {
        debug_assert_eq!(self.step, Step::BecomeIdle);
        if before == after {
            self.step = Step::AddStarted { started: after };
        }
    }

    pub(crate) fn added(&mut self) {
        debug_assert!(matches!(self.step, Step::AddStarted { .. }));
        self.step = Step::Arrive;
    }

    /// So many have arrived in the round, this worker included.
    pub(crate) fn arrived(&mut self, count: u64) {
        debug_assert_eq!(self.step, Step::Arrive);
        self.step = if count == self.world_size {
            Step::Publish
        } else {
            Step::AwaitSum
        };
    }

    /// So many calls had been started when the workers were idle in this round.
    pub(crate) fn learned(&mut self, sum: u64) {
        debug_assert!(matches!(self.step, Step::Publish | Step::AwaitSum));
        if self.previous_sum == Some(sum) {
            self.step = Step::Depart;
        } else {
            self.previous_sum = Some(sum);
            self.round = self.round.saturating_add(1);
            self.step = Step::BecomeIdle;
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

    /// All others have departed, or had the time to.
    pub(crate) fn others_departed(&mut self) {
        debug_assert_eq!(self.step, Step::AwaitDepartures);
        self.step = Step::Finished;
    }
}
