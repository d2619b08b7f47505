//! What follows when the workers of a round have ended: the table of docs/reference/restarts.md, "When to restart".

use std::time::Duration;

use log::Level;

use super::blame::{blame_for_stall, failed_workers};
use super::ending::{RoundCause, RoundEnding};
use super::error::AgentError;
use super::input::{Effect, Effects, Facts, Joins, Stopped};
use super::machine::{Round, finish, log};
use super::outcome::AgentOutcome;
use super::phase::{End, Failure, Phase, Stall};
use crate::failure::Failures;
use crate::restart_policy::{Decision, RestartPolicy};

/// What follows from a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This node ends the job on all nodes, for this reason.
    EndJob(String),
    /// Another node has ended it, for this reason.
    Ended(String),
    /// No restart is left. As in PyTorch, nodes that still run are left alone.
    GiveUp,
    /// Nodes that have finished would be missing in another round.
    OthersFinished(usize),
    /// The workers are started again, and another node counts the restart.
    JoinUncounted,
    /// The workers are started again. The restart is counted.
    Restart,
}

impl Round {
    pub(super) fn after_stop(
        &mut self,
        nodes: usize,
        end: End,
        stopped: Stopped,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        let stall = match end.clone() {
            End::Succeeded => {
                self.report_round(RoundEnding::Succeeded, None, now, out);
                return self.enter_barrier(nodes, now, out);
            }
            End::JobEnded(reason) => {
                let ending = RoundEnding::JobEnded(reason.clone());
                self.report_round(ending, Some(reason.clone()), now, out);
                let failures = None;
                return finish(Ok(AgentOutcome::Ended { reason, failures }), out);
            }
            End::Signalled(signal) => {
                self.report_round(RoundEnding::Signalled, None, now, out);
                let had_workers = true;
                let outcome = AgentOutcome::Signalled {
                    signal,
                    had_workers,
                };
                return finish(Ok(outcome), out);
            }
            End::MembersChanged(why) => {
                return self.after_change(why, Joins::Next, stopped, now, out);
            }
            End::Evicted(why) => {
                // The others may have gone on.
                let joins = match self.settings.keep {
                    Some(_) => Joins::Running,
                    None => Joins::Next,
                };
                return self.after_change(why, joins, stopped, now, out);
            }
            End::Failed | End::GivenUp => None,
            End::Stuck(stall) => Some(stall),
        };
        let is_given_up = end == End::GivenUp;
        let mut failures = stopped.failures;
        let failed = failed_workers(failures.as_ref());
        if let (Some(stall), Some(failures)) = (stall, &mut failures) {
            blame_for_stall(failures, &stopped.progress, stall.silent_for);
        }
        let failure = Failure {
            stall,
            is_given_up,
            failures,
            failed,
            has_abandoned: stopped.has_abandoned,
            progress: stopped.progress.round,
        };
        // The store is not asked about what is decided without it.
        if failure.has_abandoned || self.policy.final_exit(&failure.failed).is_some() {
            return self.judge(nodes, failure, Facts::default(), now, out);
        }
        out.push(Effect::ReadFacts);
        let failure = Box::new(failure);
        Phase::Judging { nodes, failure }
    }

    /// The members of the round changed. A worker may have failed at the same time, most often because of that.
    fn after_change(
        &mut self,
        why: String,
        joins: Joins,
        stopped: Stopped,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        self.policy.note_progress(stopped.progress.round);
        let ending = RoundEnding::MembersChanged(why.clone());
        let failures = stopped.failures.filter(|_| stopped.has_own_failure);
        if let Some(reason) = self.policy.final_exit(&failed_workers(failures.as_ref())) {
            out.push(Effect::PublishEnd(reason.clone()));
            self.report_round(ending, Some(reason.clone()), now, out);
            return finish(Ok(AgentOutcome::Ended { reason, failures }), out);
        }
        self.report_round(ending, None, now, out);
        self.join_again(RoundCause::MembersChanged(why), None, joins, now, out)
    }

    pub(super) fn judge(
        &mut self,
        nodes: usize,
        failure: Failure,
        facts: Facts,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        if self.may_be_loss(nodes, &failure, &facts, now) {
            return self.await_loss(nodes, failure, out);
        }
        let verdict = verdict(&mut self.policy, &failure, facts, now);
        if let Verdict::EndJob(reason) = &verdict {
            out.push(Effect::PublishEnd(reason.clone()));
        }
        let Failure {
            stall,
            is_given_up,
            failures,
            ..
        } = failure;
        let (ending, cause) = ending_of(stall);
        let (why, counted) = match stall {
            None => ("a worker failed", "a failure"),
            Some(_) => ("the workers were stuck", "they were stuck"),
        };
        let outcome = match verdict {
            Verdict::Restart => {
                let left = self.policy.left(now);
                let all = self.policy.used().saturating_add(left);
                out.push(log(
                    Level::Warn,
                    format!(
                        "restarting the workers after {counted}: {left} of {all} restarts left"
                    ),
                ));
                out.push(Effect::TellRestarting(why.to_owned()));
                self.report_round(ending, None, now, out);
                self.is_count_open = self.settings.loss_wait.is_some() && !is_given_up;
                let joins = match is_given_up {
                    true => Joins::Running,
                    false => Joins::Next,
                };
                return self.join_again(cause, failures, joins, now, out);
            }
            Verdict::JoinUncounted => {
                let why = "the workers of another node were stuck first";
                return self.restart_uncounted(why, (ending, cause), failures, now, out);
            }
            Verdict::OthersFinished(finished) => {
                let error = AgentError::OthersFinished {
                    finished,
                    world_size: nodes,
                };
                self.report_round(ending, None, now, out);
                return finish(Err(error.with_failures(failures)), out);
            }
            Verdict::EndJob(reason) | Verdict::Ended(reason) => {
                AgentOutcome::Ended { reason, failures }
            }
            Verdict::GiveUp => match (stall, failures) {
                (None, Some(failures)) => AgentOutcome::Failed(failures),
                (_, failures) => AgentOutcome::Ended {
                    reason: match stall {
                        None => "a worker failed, and no restart is left".to_owned(),
                        Some(_) => {
                            "the workers made no progress, and no restart is left".to_owned()
                        }
                    },
                    failures,
                },
            },
        };
        let reason = match &outcome {
            AgentOutcome::Ended { reason, .. } => Some(reason.clone()),
            _ => None,
        };
        self.report_round(ending, reason, now, out);
        finish(Ok(outcome), out)
    }

    /// Starts the workers again, which uses up no restart of this node.
    pub(super) fn restart_uncounted(
        &mut self,
        why: &str,
        (ending, cause): (RoundEnding, RoundCause),
        failures: Option<Failures>,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        out.push(log(Level::Info, format!("restarting the workers: {why}")));
        out.push(Effect::TellRestarting(why.to_owned()));
        self.report_round(ending, None, now, out);
        self.join_again(cause, failures, Joins::Next, now, out)
    }
}

/// Each row of the table is one `if` or arm, in its order. Counts the restart, if one follows.
pub(super) fn verdict(
    policy: &mut RestartPolicy,
    failure: &Failure,
    facts: Facts,
    now: Duration,
) -> Verdict {
    if let Some(reason) = policy.final_exit(&failure.failed) {
        return Verdict::EndJob(reason);
    }
    if failure.has_abandoned {
        return Verdict::GiveUp;
    }
    let is_counted_elsewhere = is_counted_elsewhere(failure, &facts);
    if let Some(reason) = facts.job_end.filter(|_| policy.left(now) > 0) {
        return Verdict::Ended(reason);
    }
    if is_counted_elsewhere {
        policy.note_progress(failure.progress);
        return Verdict::JoinUncounted;
    }
    match policy.after_failure(now, &failure.failed, failure.progress) {
        Decision::EndJob(reason) => Verdict::EndJob(reason),
        Decision::Exhausted => Verdict::GiveUp,
        // They wait in the exit barrier of this round and join no other.
        Decision::Restart if facts.finished > 0 => Verdict::OthersFinished(facts.finished),
        Decision::Restart => Verdict::Restart,
    }
}

/// Whether another node counts the restart.
pub(super) fn is_counted_elsewhere(failure: &Failure, facts: &Facts) -> bool {
    match failure.stall {
        Some(stall) => !stall.is_first,
        None => facts.is_any_stuck,
    }
}

pub(super) const fn ending_of(stall: Option<Stall>) -> (RoundEnding, RoundCause) {
    match stall {
        None => (RoundEnding::Failed, RoundCause::Failure),
        Some(_) => (RoundEnding::Stuck, RoundCause::Stuck),
    }
}
