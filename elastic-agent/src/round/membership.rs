//! The consequences of changes of the members of a round: the text that explains a restart, and rounds whose workers failed
//! because another node was lost.
//!
//! A restart after the loss of a node does not count if the job can continue without that node. The node learns whether it
//! was such a restart when the next round completes, or when it notices the loss.

use std::time::Duration;

use elastic_rendezvous::Membership;
use log::Level;

use super::input::{Effect, Effects, Facts, Input};
use super::machine::{AwaitingLoss, Failure, Known, Phase, Round, finish, log};
use super::outcome::{AgentOutcome, RoundEnding};
use super::verdict::{ending_of, is_counted_elsewhere};

impl Round {
    /// Whether no restart is left, and another node that is not known to be lost yet may be the cause.
    pub(super) fn may_be_loss(
        &mut self,
        nodes: usize,
        failure: &Failure,
        facts: &Facts,
        now: Duration,
    ) -> bool {
        let is_decided = self.has_awaited_loss
            || failure.known != Known::Nothing
            || failure.has_abandoned
            || facts.job_end.is_some()
            || facts.finished > 0
            || is_counted_elsewhere(failure, facts)
            || self.policy.final_exit(&failure.failed).is_some()
            || self.policy.why_hopeless(&failure.failed).is_some();
        if is_decided || nodes < 2 || self.settings.loss_wait.is_none() {
            return false;
        }
        self.policy.note_progress(failure.progress);
        self.policy.left(now) == 0
    }

    pub(super) fn await_loss(&self, nodes: usize, failure: Failure, out: &mut Effects) -> Phase {
        let wait = self.settings.loss_wait.unwrap_or_default();
        let text = format!(
            "no restart is left: waiting for up to {} s for the news that another node was lost, because then this failure \
             does not count",
            wait.as_secs()
        );
        out.push(log(Level::Warn, text));
        out.push(Effect::AwaitLoss(wait));
        out.push(Effect::ReadMembership);
        Phase::AwaitingLoss(AwaitingLoss {
            nodes,
            failure: Box::new(failure),
            is_late: false,
        })
    }

    pub(super) fn awaiting_loss(
        &mut self,
        mut awaiting: AwaitingLoss,
        input: Input,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        match input {
            Input::MembersChanged => out.push(Effect::ReadMembership),
            Input::NoLoss => return self.judge_again(awaiting, out),
            Input::LossDue => {
                awaiting.is_late = true;
                out.push(Effect::ReadMembership);
            }
            Input::Membership(membership) => {
                let membership = membership.as_deref();
                let is_member_lost = membership.is_some_and(|it| is_any_lost(it, awaiting.is_late));
                if is_member_lost {
                    let why = "another node was lost, and this failure does not count";
                    let ending = ending_of(awaiting.failure.stall);
                    let failures = awaiting.failure.failures;
                    return self.restart_uncounted(why, ending, failures, now, out);
                }
                if awaiting.is_late || membership.is_some_and(|it| it.is_closed) {
                    return self.judge_again(awaiting, out);
                }
            }
            Input::Signal(signal) => {
                self.report_round(RoundEnding::Signalled, None, now, out);
                return finish(Ok(AgentOutcome::signalled(signal)), out);
            }
            _ => {}
        }
        Phase::AwaitingLoss(awaiting)
    }

    /// Ends the wait without the news of a lost member.
    fn judge_again(&mut self, awaiting: AwaitingLoss, out: &mut Effects) -> Phase {
        self.has_awaited_loss = true;
        // Another node may have ended the job in the meantime.
        out.push(Effect::ReadFacts);
        Phase::Judging {
            nodes: awaiting.nodes,
            failure: awaiting.failure,
        }
    }

    /// Records that the restart that led to the current round does not count.
    pub(super) fn do_not_count(&mut self, now: Duration, out: &mut Effects) {
        self.policy.take_back();
        let left = self.policy.left(now);
        let text = format!(
            "the restart does not count, because a node of the last round was lost: {left} restarts left"
        );
        out.push(log(Level::Info, text));
    }
}

/// Whether a member was lost. A member that has left may be about to join again, and counts only at the end of the wait.
fn is_any_lost(membership: &Membership, is_late: bool) -> bool {
    let has_left = membership.left.iter().any(|node| !node.is_joining);
    !membership.is_closed
        && (membership.is_evicted
            || !membership.lost.is_empty()
            || (is_late && (has_left || membership.unnamed > 0)))
}

/// How many changes one log line names.
const REASONS_SHOWN_MAX: usize = 8;

/// The consequence of a membership for the workers of this node, if the rendezvous is not closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MembersChange {
    None,
    /// The workers have to restart, for this reason.
    Certain(String),
    /// The workers have to restart, unless this many nodes have left because their workers have succeeded.
    UnlessFinished {
        why: String,
        departed: usize,
    },
}

impl MembersChange {
    pub(crate) fn of(membership: &Membership) -> Self {
        match why_members_changed(membership) {
            _ if membership.is_closed => Self::None,
            None => Self::None,
            // A PyTorch node writes no heartbeat while it waits in the exit barrier.
            Some(why) if membership.waiting.is_empty() && !membership.is_evicted => {
                Self::UnlessFinished {
                    why,
                    departed: membership.departed(),
                }
            }
            Some(why) => Self::Certain(why),
        }
    }
}

/// Returns the changes of the members of a round: lost nodes, nodes that have left, and nodes that wait to join.
pub(super) fn why_members_changed(membership: &Membership) -> Option<String> {
    let mut reasons = Vec::new();
    for lost in &membership.lost {
        reasons.push(format!("lost {lost}"));
    }
    if membership.is_evicted {
        reasons.push("the other nodes removed this one from the round".to_owned());
    } else {
        reasons.extend(membership.left.iter().map(ToString::to_string));
        match membership.unnamed {
            0 => {}
            1 => reasons.push("one more member was lost".to_owned()),
            more => reasons.push(format!("{more} more members were lost")),
        }
        let others = membership.waiting.iter();
        let newcomers = others.filter(|node| membership.left.iter().all(|it| it.node != **node));
        reasons.extend(newcomers.map(|node| format!("{} waits to join", node.named())));
    }
    let more = reasons.len().saturating_sub(REASONS_SHOWN_MAX);
    reasons.truncate(REASONS_SHOWN_MAX);
    if more > 0 {
        reasons.push(format!("and {more} more"));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use elastic_rendezvous::{LeftNode, LostNode, NodeId};

    use crate::round::membership::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name, 7, 0)
    }

    #[test]
    fn a_restart_reason_distinguishes_lost_nodes_from_restarting_ones() {
        let mut membership = Membership::default();
        assert_eq!(why_members_changed(&membership), None);
        membership.lost = vec![LostNode::new(node("c"), Duration::from_millis(15_300))];
        membership.left = vec![
            LeftNode::new(node("b"), true),
            LeftNode::new(node("d"), false),
        ];
        membership.waiting = vec![node("b"), node("e")];
        assert_eq!(
            why_members_changed(&membership).as_deref(),
            Some(
                "lost c (pid 7): no heartbeat for 15 s; b (pid 7) left the round to restart; \
                 d (pid 7) left the round; e (pid 7) waits to join"
            )
        );
        membership.is_evicted = true;
        assert_eq!(
            why_members_changed(&membership).as_deref(),
            Some(
                "lost c (pid 7): no heartbeat for 15 s; the other nodes removed this one from the round"
            )
        );
    }

    #[test]
    fn a_restart_reason_stays_short_for_a_thousand_nodes() {
        let mut membership = Membership::default();
        membership.left = (0..1000).map(|_| LeftNode::new(node("b"), true)).collect();
        let why = why_members_changed(&membership).unwrap();
        assert!(why.ends_with("; and 992 more"), "{why}");
    }
}
