//! The step that is recorded for an action.

use super::Action;
use crate::values::step::Step;

/// The step of `action`. `round` is the round before the action, `completes` whether the action completes it.
pub(crate) fn step_of_action(action: Action, round: i64, completes: bool) -> Option<Step> {
    match action {
        _ if completes => Some(Step::MarksComplete { round }),
        Action::MarkClosed => Some(Step::MarksClosed),
        _ => None,
    }
}
