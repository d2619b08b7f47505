//! A round whose workers run, until something ends it.

use std::time::Duration;

use elastic_rendezvous::Membership;
use log::Level;
use rustix::process::Signal;

use super::blame::failed_worker;
use super::input::{Effect, Effects, Input, Stop};
use super::machine::{Round, STOP_GRACE, STUCK_GRACE, log};
use super::members::MembersChange;
use super::phase::{End, Phase, Running, Stall, Waiting};
use super::stuck::StuckWorkers;
use crate::worker::WorkerExit;

impl Round {
    pub(super) fn in_running(
        &mut self,
        mut running: Running,
        input: Input,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        let nodes = running.nodes;
        let waiting = std::mem::replace(&mut running.waiting, Waiting::Nothing);
        let end = match (input, waiting) {
            (Input::WorkerExited(exit), _) if exit.exit.is_success() => {
                running.succeeded += 1;
                if self.settings.keep.is_some() && running.succeeded == 1 {
                    out.push(Effect::EndEntry);
                }
                let ended = running.succeeded + running.gone;
                (ended == self.settings.local_world_size).then_some(End::Succeeded)
            }
            (Input::WorkerExited(exit), _) if self.may_keep(&exit) => {
                out.push(log(Level::Error, failure_text(&exit)));
                out.push(Effect::ReadDeath(exit));
                None
            }
            (Input::WorkerExited(exit), _) => {
                out.push(log(Level::Error, failure_text(&exit)));
                self.worker_failed(exit, out);
                Some(End::Failed)
            }
            (Input::Death(death), _) => self.worker_died(&mut running, *death, now, out),
            (Input::ReplaceDue { local_rank }, _) => {
                self.replace(local_rank, now, out);
                None
            }
            (Input::MembersDue, _) => {
                out.push(Effect::ReadGroup);
                None
            }
            (Input::Group(group), _) => {
                self.warn_without_members(&group, out);
                None
            }
            (Input::Replaced { local_rank, pid }, _) => {
                let text =
                    format!("worker with local rank {local_rank} (pid {pid}) starts instead");
                out.push(log(Level::Info, text));
                out.push(Effect::TellReplaced(local_rank));
                None
            }
            (Input::NotReplaced(why), _) => {
                let text = format!("stopping the workers: one cannot be replaced: {why}");
                out.push(log(Level::Error, text));
                Some(End::Failed)
            }
            (Input::MembersChanged, _) => {
                out.push(Effect::ReadMembership);
                None
            }
            (Input::Membership(membership), _) => {
                // A store that does not answer, as when its host has failed, does not stop workers that run. The
                // handler has logged the error.
                let keeps = self.settings.keep.is_some();
                let members = membership.as_ref().and_then(|it| it.members);
                running.nodes = members.filter(|_| keeps).unwrap_or(running.nodes);
                membership.and_then(|it| running.members_may_have_changed(&it, keeps, out))
            }
            (Input::JobEnd(Some(reason)), _) => {
                out.push(log(Level::Warn, format!("stopping the workers: {reason}")));
                Some(End::JobEnded(reason))
            }
            (Input::JobEnd(None), _) => {
                out.push(log(
                    Level::Warn,
                    "another node closed the rendezvous: the workers keep running, but cannot be restarted",
                ));
                None
            }
            (Input::Finished(finished), Waiting::Finished { why, departed }) => {
                (departed > finished.unwrap_or(0)).then_some(End::MembersChanged(why))
            }
            (Input::Stuck(stuck), _) => {
                out.push(log(Level::Error, stuck.to_string()));
                if self.settings.has_store_per_round {
                    // Before the workers are stopped: those of other nodes may fail because of that.
                    out.push(Effect::ReportStuck);
                    running.waiting = Waiting::IsFirst(stuck);
                    None
                } else {
                    Some(are_stuck(stuck, true, out))
                }
            }
            (Input::IsFirstStuck(is_first), Waiting::IsFirst(stuck)) => {
                Some(are_stuck(stuck, is_first, out))
            }
            (Input::Signal(signal), _) => Some(End::Signalled(signal)),
            (_, waiting) => {
                running.waiting = waiting;
                None
            }
        };
        match end {
            Some(end) => self.stop(nodes, end, now, out),
            None => Phase::Running(running),
        }
    }

    pub(super) fn worker_failed(&self, exit: WorkerExit, out: &mut Effects) {
        out.push(Effect::TellFailed(exit));
        // Ends the job on the other nodes already now: the workers of this node may take their time to stop.
        if let Some(reason) = self.policy.final_exit(&[failed_worker(&exit)]) {
            out.push(Effect::PublishEnd(reason));
            out.push(Effect::Close);
        }
    }

    fn stop(&mut self, nodes: usize, end: End, now: Duration, out: &mut Effects) -> Phase {
        self.clock.end(now, |phases| &mut phases.run);
        let is_restart_likely = match &end {
            End::MembersChanged(_) | End::Evicted(_) => true,
            End::Failed | End::GivenUp | End::Stuck(_) => self.policy.left(now) > 0,
            _ => false,
        };
        if is_restart_likely {
            out.push(Effect::ForkAhead);
        }
        if let End::MembersChanged(why) | End::Evicted(why) = &end {
            out.push(log(Level::Info, format!("restarting the workers: {why}")));
            out.push(Effect::TellRestarting(why.clone()));
        }
        out.push(Effect::Stop(match end {
            End::Signalled(signal) => Stop::BySignal(signal),
            // Workers of a world that no longer exists must not write to what those of the next one use.
            End::Stuck(_) | End::Evicted(_) => Stop::With(Signal::TERM, STUCK_GRACE),
            // After a success, this ends the processes that workers left behind.
            _ => Stop::With(Signal::TERM, STOP_GRACE),
        }));
        Phase::Stopping { nodes, end }
    }
}

impl Running {
    /// Why the workers have to stop, mostly to restart in another round; `None` if they keep running, or if that
    /// depends on a question.
    fn members_may_have_changed(
        &mut self,
        membership: &Membership,
        keeps: bool,
        out: &mut Effects,
    ) -> Option<End> {
        if membership.is_closed {
            if !self.is_closing_known {
                self.is_closing_known = true;
                // Written before the closing.
                out.push(Effect::ReadJobEnd);
            }
            return None;
        }
        match MembersChange::of(membership) {
            MembersChange::None => None,
            MembersChange::Certain(why) if membership.is_evicted => Some(End::Evicted(why)),
            MembersChange::Certain(why) => Some(End::MembersChanged(why)),
            // No node comes in the place of those that are gone, and the service knows whether enough workers are left.
            MembersChange::UnlessFinished { .. } if keeps => None,
            MembersChange::UnlessFinished { why, departed } => {
                out.push(Effect::ReadFinished);
                self.waiting = Waiting::Finished { why, departed };
                None
            }
        }
    }
}

fn failure_text(exit: &WorkerExit) -> String {
    format!(
        "worker with rank {} (local rank {}, pid {}) failed: {}",
        exit.rank, exit.local_rank, exit.pid, exit.exit,
    )
}

fn are_stuck(stuck: Box<StuckWorkers>, is_first: bool, out: &mut Effects) -> End {
    let stall = Stall {
        silent_for: stuck.silent_for,
        is_first,
    };
    out.push(Effect::TellStuck(stuck));
    End::Stuck(stall)
}
