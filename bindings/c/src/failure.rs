//! Why a call failed: what C reads as a status, a text, an outcome and ranks.

use c10d_store::StoreError;

use crate::status::{CallOutcome, Status};

/// A failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    status: Status,
    outcome: CallOutcome,
    text: String,
    missing_ranks: Vec<usize>,
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

    /// The same, of a call that can have taken effect.
    #[must_use]
    pub(crate) fn with_unknown_outcome(mut self) -> Self {
        self.outcome = CallOutcome::C10D_OUTCOME_UNKNOWN;
        self
    }

    pub(crate) const fn status(&self) -> Status {
        self.status
    }

    pub(crate) const fn outcome(&self) -> CallOutcome {
        self.outcome
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn missing_ranks(&self) -> &[usize] {
        &self.missing_ranks
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
