//! Workers that fail when they have reached the end of their program: docs/reference/job-failure.md, "Failures at exit".
//!
//! The results of such a job are complete, or other workers are still writing them. Therefore no node stops its workers
//! because of such a failure, and no node restarts them if all programs have reached their end.

use std::time::Duration;

use log::Level;
use rustix::process::Signal;

use super::barrier::EXIT_BARRIER_TIMEOUT;
use super::input::{Crash, Effect, Effects, Facts, Input, Joins};
use super::machine::{AwaitingOthers, Failure, First, Known, Phase, Round, Running, finish, log};
use super::membership::{MembersChange, why_members_changed};
use super::outcome::{AgentOutcome, RoundCause, RoundEnding};
use super::verdict::first_of;
use crate::failure::{ExitRecord, is_abort_at_exit};
use crate::job_end::OwnEnd;
use crate::worker::{ExitKind, WorkerExit};

/// The interval in which a node reads how many other nodes have reached the end of their programs. No event wakes it
/// for that.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Whether a worker may have failed at the end of its program, by its exit alone.
pub(super) fn may_be_at_exit(exit: &WorkerExit) -> bool {
    let signals = [Signal::ABORT.as_raw(), Signal::SEGV.as_raw()];
    matches!(exit.exit, ExitKind::Signal { number, .. } if signals.contains(&number))
}

impl Running {
    fn is_at_exit(&self, crash: &Crash) -> bool {
        // Any other rank that has exited with 0.
        let finished = ExitRecord {
            rank: usize::MAX,
            exit: ExitKind::Code(0),
            ..crash.record.clone()
        };
        let has_finished = self.succeeded > 0 || crash.finished > 0;
        let others = has_finished.then_some(finished);
        is_abort_at_exit(&crash.record, others.as_slice())
    }
}

impl Round {
    /// Handles a worker that its own signal has killed. Returns whether the other workers keep running.
    pub(super) fn is_kept_to_its_end(
        &self,
        running: &mut Running,
        crash: &Crash,
        now: Duration,
        out: &mut Effects,
    ) -> bool {
        if !running.is_at_exit(crash) {
            return false;
        }
        let rank = crash.exit.rank;
        let text = format!(
            "rank {rank} had reached the end of its program: the other workers run on to theirs"
        );
        out.push(log(Level::Warn, text));
        out.push(Effect::TellFailed(crash.exit));
        if running.at_exit == 0 {
            running.failed = Some((rank, crash.exit.exit));
            // The node waits for the workers of other nodes only if a restart is impossible.
            if self.ends_job_at_once(running.nodes, now) {
                self.publish(failed_at_exit(running.failed), out);
                running.known = Known::Published;
            }
            out.push(Effect::ExpectExits(EXIT_BARRIER_TIMEOUT));
        }
        running.at_exit += 1;
        true
    }

    /// All workers of this node have ended, some of them at the end of their program.
    pub(super) fn after_exits(
        &mut self,
        nodes: usize,
        failure: Failure,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        if nodes == 1 || failure.known != Known::Nothing {
            return self.end_at_exit(nodes, failure, now, out);
        }
        self.seen = None;
        out.push(Effect::CountAtExit);
        out.push(Effect::ReadEnded);
        Phase::AwaitingOthers(Box::new(AwaitingOthers {
            nodes,
            since: now,
            failure,
        }))
    }

    pub(super) fn awaiting_others(
        &mut self,
        awaiting: Box<AwaitingOthers>,
        input: Input,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        let AwaitingOthers { nodes, since, .. } = *awaiting;
        match input {
            Input::Ended(Some(ended)) if ended >= nodes => {
                return self.end_at_exit(nodes, awaiting.failure, now, out);
            }
            Input::Ended(_) if now.saturating_sub(since) >= EXIT_BARRIER_TIMEOUT => {
                out.push(Effect::ReadFacts);
            }
            Input::Ended(Some(ended)) if self.has_lost_other(ended) => {
                let seen = self.seen.take();
                let why = seen.and_then(|seen| why_members_changed(&seen));
                return self.restart_with(why.unwrap_or_default(), *awaiting, now, out);
            }
            Input::Ended(_) => out.push(Effect::WaitAtBarrier {
                timeout: ASK_INTERVAL,
                enough: None,
                seen: self.seen.clone(),
            }),
            // The rules for any other failure apply.
            Input::Facts(facts) => return self.judge(nodes, awaiting.failure, facts, now, out),
            Input::BarrierClosed {
                signal: Some(signal),
                ..
            } => {
                self.report_round(RoundEnding::Signalled, None, now, out);
                return finish(Ok(AgentOutcome::signalled(signal)), out);
            }
            Input::BarrierClosed {
                membership: Some(membership),
                ..
            } => {
                let change = MembersChange::of(&membership);
                if membership.is_closed {
                    out.push(Effect::ReadFacts);
                } else if let MembersChange::Certain(why) = change {
                    return self.restart_with(why, *awaiting, now, out);
                } else {
                    self.seen = Some(membership);
                    out.push(Effect::ReadEnded);
                }
            }
            Input::BarrierClosed { .. } => {
                // Otherwise the unknown membership would end each wait at once.
                self.seen = None;
                out.push(Effect::ReadEnded);
            }
            Input::BarrierOpen | Input::BarrierFailed(_) => out.push(Effect::ReadFacts),
            _ => {}
        }
        Phase::AwaitingOthers(awaiting)
    }

    /// Whether a node has left the round without having ended. `ended` counts the nodes that have ended, including this
    /// node.
    fn has_lost_other(&self, ended: usize) -> bool {
        let departed = self.seen.as_ref().map_or(0, |seen| seen.departed());
        departed >= ended
    }

    /// Other nodes restart.
    fn restart_with(
        &mut self,
        why: String,
        awaiting: AwaitingOthers,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        let ending = RoundEnding::MembersChanged(why.clone());
        self.report_round(ending, None, now, out);
        let cause = RoundCause::MembersChanged(why);
        self.join_again(cause, awaiting.failure.failures, Joins::Next, now, out)
    }

    /// The programs of all ranks have reached their end, as far as this node can tell, or no restart was left anyway.
    fn end_at_exit(
        &mut self,
        nodes: usize,
        mut failure: Failure,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        if failure.known == Known::Nothing {
            if self.policy.left(now) > 0 {
                let text =
                    "not restarting the workers: the programs of all ranks had reached their end";
                out.push(log(Level::Info, text));
            }
            if self.settings.stops_on_failure {
                let first = first_of(failure.failures.as_ref());
                self.publish(failed_at_exit(first), out);
            }
            // Nodes that have succeeded no longer wait for this node.
            failure.known = Known::Published;
        }
        self.judge(nodes, failure, Facts::default(), now, out)
    }
}

fn failed_at_exit(first: Option<First>) -> OwnEnd {
    let who = first.map(|(rank, exit)| format!("worker with rank {rank} ended with {exit}"));
    let who = who.unwrap_or_else(|| "a worker failed".to_owned());
    let rank = first.map(|(rank, _)| rank);
    OwnEnd::at_exit(who + " at the end of its program", rank)
}
