//! The failure of a call, which C reads as a status, a text, an outcome and ranks.

use c10d::GroupError;
use c10d_socket::OtherProcess;
use c10d_store::StoreError;

use crate::status::{CallOutcome, Status};

/// A failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) outcome: CallOutcome,
    pub(crate) text: String,
    pub(crate) missing_ranks: Vec<usize>,
}

impl Failure {
    /// A failure before anything was sent or changed.
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Self {
            status,
            outcome: CallOutcome::C10D_OUTCOME_NOT_SENT,
            text: text.into(),
            missing_ranks: Vec::new(),
        }
    }

    /// An argument is null or has no meaning.
    pub(crate) fn invalid_argument(text: impl Into<String>) -> Self {
        Self::new(Status::C10D_ERROR_INVALID_ARGUMENT, text)
    }

    /// Marks the failure of a call that may have taken effect.
    #[must_use]
    pub(crate) fn with_unknown_outcome(mut self) -> Self {
        self.outcome = CallOutcome::C10D_OUTCOME_UNKNOWN;
        self
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self {
            outcome: CallOutcome::of(&error),
            ..Self::new(Status::of(&error), error.to_string())
        }
    }
}

impl From<OtherProcess> for Failure {
    fn from(error: OtherProcess) -> Self {
        Self::new(Status::C10D_ERROR_FORKED, error.to_string())
    }
}

impl From<GroupError> for Failure {
    fn from(error: GroupError) -> Self {
        let mut failure = Self::new(Status::of_group(&error), error.to_string());
        match error {
            GroupError::Store { source, .. } => failure.outcome = CallOutcome::of(&source),
            GroupError::Missing { ranks, .. } => failure.missing_ranks = ranks,
            _ => {}
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use c10d_store::{ErrorContext, Operation, Outcome};

    use super::*;

    #[test]
    fn a_lost_connection_keeps_its_outcome() {
        for (outcome, expected) in [
            (Outcome::NotSent, CallOutcome::C10D_OUTCOME_NOT_SENT),
            (Outcome::Unknown, CallOutcome::C10D_OUTCOME_UNKNOWN),
        ] {
            let lost = || StoreError::ConnectionLost {
                context: ErrorContext::new(Operation::Add, ["k"], "store", Duration::ZERO),
                outcome,
                source: std::io::ErrorKind::BrokenPipe.into(),
            };
            let of_group = GroupError::Store {
                group: "world".to_owned(),
                operation: "barrier",
                source: Box::new(lost()),
            };
            for failure in [Failure::from(lost()), Failure::from(of_group)] {
                assert_eq!(failure.status, Status::C10D_ERROR_CONNECTION_LOST);
                assert_eq!(failure.outcome, expected);
            }
        }
    }

    #[test]
    fn missing_ranks_are_kept() {
        let failure = Failure::from(GroupError::Missing {
            group: "world".to_owned(),
            operation: "broadcast",
            ranks: vec![1, 3],
            processes: Vec::new(),
            world_size: 4,
            elapsed: Duration::from_secs(1),
        });
        assert_eq!(failure.status, Status::C10D_ERROR_MISSING_RANKS);
        assert_eq!(failure.missing_ranks, [1, 3]);
        assert!(failure.text.contains("2 of 4 ranks are missing"));
    }
}
