//! Decides the next step when the workers of a round have exited: the rules of docs/reference/restarts.md, "When to
//! restart".

use std::time::Duration;

use log::Level;

use super::input::{Effect, Effects, Facts, Joins, Stopped};
use super::machine::{
    End, Failure, First, Known, Phase, Round, Stall, failed_workers, finish, log,
};
use super::outcome::{AgentError, AgentOutcome, RoundCause, RoundEnding};
use crate::failure::Failures;
use crate::job_end::{EndNotice, OwnEnd};
use crate::progress::ProgressSeen;
use crate::restart_policy::{Decision, RestartPolicy};

/// The consequence of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This node stops the job on all nodes, for this reason.
    EndJob(String),
    /// Another node has ended the job.
    Ended(Box<EndNotice>),
    /// The job has failed, because no restart is left.
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
        let is_at_exit = matches!(end, End::AtExit(_));
        let (stall, known) = match end {
            End::Succeeded => {
                self.report_round(RoundEnding::Succeeded, None, now, out);
                return self.enter_barrier(nodes, now, out);
            }
            End::JobEnded(mut notice) => {
                notice.explain(stopped.decision);
                let reason = notice.reason_text();
                let ending = RoundEnding::JobEnded(reason.clone());
                self.report_round(ending, Some(reason), now, out);
                if notice.is_at_exit {
                    out.push(Effect::Confirm);
                }
                // The exits of workers that this node has stopped explain nothing.
                let failures = stopped.failures.filter(|_| stopped.has_own_failure);
                return finish(Ok(AgentOutcome::ended_by(*notice, failures)), out);
            }
            End::Signalled(signal) => {
                self.report_round(RoundEnding::Signalled, None, now, out);
                return finish(Ok(AgentOutcome::signalled(signal)), out);
            }
            End::MembersChanged(why) => {
                return self.after_change(why, Joins::Next, stopped, now, out);
            }
            End::Evicted(why) => {
                // The other nodes may have continued.
                let joins = match self.keep() {
                    Some(_) => Joins::Running,
                    None => Joins::Next,
                };
                return self.after_change(why, joins, stopped, now, out);
            }
            End::Failed(known) | End::AtExit(known) => (None, known),
            End::Stuck(stall, known) => (Some(stall), known),
        };
        let mut failures = stopped.failures;
        let failed = failed_workers(failures.as_ref());
        if let (Some(stall), Some(failures)) = (stall, &mut failures) {
            blame_for_stall(failures, &stopped.progress, stall.silent_for);
        }
        let failure = Failure {
            stall,
            failures,
            failed,
            has_abandoned: stopped.has_abandoned,
            known,
            progress: stopped.progress.round,
        };
        if is_at_exit {
            return self.after_exits(nodes, failure, now, out);
        }
        // If the decision does not depend on the store, this node does not read the store.
        let is_certain = failure.known != Known::Nothing || failure.has_abandoned;
        if is_certain || self.policy.final_exit(&failure.failed).is_some() {
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
            let rank = first_of(failures.as_ref()).map(|(rank, _)| rank);
            self.publish(OwnEnd::of(reason.clone(), rank), out);
            self.report_round(ending, Some(reason.clone()), now, out);
            return finish(Ok(AgentOutcome::ended(reason, failures)), out);
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
        let Failure {
            stall,
            failures,
            known,
            ..
        } = failure;
        let first = first_of(failures.as_ref());
        match &verdict {
            Verdict::EndJob(reason) => {
                let rank = first.filter(|_| stall.is_none()).map(|(rank, _)| rank);
                self.publish(OwnEnd::of(reason.clone(), rank), out);
            }
            Verdict::GiveUp | Verdict::OthersFinished(_)
                if known == Known::Nothing && self.settings.stops_on_failure =>
            {
                self.publish(used_up(stall, first), out);
            }
            _ => {}
        }
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
                self.is_count_open = self.settings.loss_wait.is_some();
                return self.join_again(cause, failures, Joins::Next, now, out);
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
            Verdict::EndJob(reason) => AgentOutcome::ended(reason, failures),
            Verdict::Ended(notice) => {
                out.push(Effect::Confirm);
                AgentOutcome::ended_by(*notice, failures)
            }
            Verdict::GiveUp => match (stall, failures) {
                (None, Some(failures)) => AgentOutcome::Failed(failures),
                (_, failures) => AgentOutcome::ended(used_up(stall, first).reason, failures),
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

pub(super) fn first_of(failures: Option<&Failures>) -> Option<First> {
    let first = failures?.first();
    Some((first.rank, first.exit))
}

/// Returns why the job is over if no restart is left.
pub(super) fn used_up(stall: Option<Stall>, first: Option<First>) -> OwnEnd {
    let (what, rank) = match (stall, first) {
        (Some(_), _) => ("the workers made no progress".to_owned(), None),
        (None, None) => ("a worker failed".to_owned(), None),
        (None, Some((rank, exit))) => (
            format!("worker with rank {rank} ended with {exit}"),
            Some(rank),
        ),
    };
    OwnEnd::of(what + ", and no restart is left", rank)
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
    match &failure.known {
        Known::Nothing if !failure.has_abandoned => {}
        Known::Ended(notice) => return Verdict::Ended(notice.clone()),
        _ => return Verdict::GiveUp,
    }
    let is_counted_elsewhere = is_counted_elsewhere(failure, &facts);
    if let Some(notice) = facts.job_end {
        return Verdict::Ended(notice);
    }
    if is_counted_elsewhere {
        policy.note_progress(failure.progress);
        return Verdict::JoinUncounted;
    }
    match policy.after_failure(now, &failure.failed, failure.progress) {
        Decision::EndJob(reason) => Verdict::EndJob(reason),
        Decision::Exhausted => Verdict::GiveUp,
        // The finished nodes wait in the exit barrier of this round and join no other round.
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

/// Makes the worker with the lowest step the root cause: the agent stopped all of them, and the other workers most often wait
/// for that one.
fn blame_for_stall(failures: &mut Failures, seen: &ProgressSeen, silent_for: Duration) {
    let step_of = |local_rank: usize| seen.steps.get(local_rank).copied().flatten();
    let known = failures.all().iter();
    let behind = known
        .filter_map(|it| Some((step_of(it.local_rank)?, it.rank)))
        .min();
    let silent = silent_for.as_secs_f64();
    match (behind, failures.all().first().map(|it| it.rank)) {
        (Some((step, rank)), _) => {
            failures.blame(
                rank,
                format!("alive at step {step}, without progress for {silent:.1} s"),
            );
        }
        (None, Some(rank)) => {
            failures.blame(rank, format!("alive, without progress for {silent:.1} s"));
        }
        (None, None) => {}
    }
}
