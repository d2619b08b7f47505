//! The steps that PyTorch's nodes record for an action.

use super::Action;
use crate::values::step::Step;

/// The steps of `action`, in PyTorch's order. `round` is the round before the action, `completes` whether the
/// action completes it.
pub(crate) fn steps_of_action(action: Action, round: i64, completes: bool) -> Vec<Step> {
    let next = round.saturating_add(1);
    let mut steps = match action {
        Action::KeepAlive => vec![Step::KeepsAlive],
        Action::AddToParticipants | Action::EnterRound => {
            vec![Step::AddsToParticipants { round }, Step::KeepsAlive]
        }
        Action::AddToWaitList => vec![Step::AddsToWaitList { round: next }, Step::KeepsAlive],
        Action::AddToRedundancyList => {
            vec![Step::AddsToRedundancyList { round: next }, Step::KeepsAlive]
        }
        Action::RemoveFromParticipants => vec![Step::RemovesFromParticipants { round }],
        Action::RemoveFromWaitList => vec![Step::RemovesFromWaitList { round: next }],
        Action::RemoveFromRedundancyList => vec![Step::RemovesFromRedundancyList { round: next }],
        Action::MarkClosed => vec![Step::MarksClosed],
        // `completes` adds the step of `MarkComplete`.
        Action::MarkComplete
        | Action::Sync
        | Action::Finish
        | Action::ErrorClosed
        | Action::ErrorTimeout
        | Action::GracefulExit => vec![],
    };
    if completes {
        steps.push(Step::MarksComplete { round });
    }
    steps
}
