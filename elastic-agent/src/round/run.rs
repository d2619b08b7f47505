//! The part of a round in which its workers run, until a failure, a success or a signal. With `--keep-workers`, the other
//! workers can keep running after a failure.

use std::time::Duration;

use elastic_rendezvous::Membership;
use log::Level;
use rustix::process::Signal;

use super::barrier::EXIT_BARRIER_TIMEOUT;
use super::exit_failure::may_be_at_exit;
use super::input::{Death, Effect, Effects, Facts, GroupNews, Input, Stop, StuckWorkers};
use super::machine::{
    End, First, Known, Phase, Replacement, Round, Running, STOP_GRACE, STUCK_GRACE, Stall, Waiting,
    failed_worker, failed_workers, log,
};
use super::membership::MembersChange;
use super::verdict::used_up;
use crate::job_end::{EndNotice, OwnEnd};
use crate::restart_policy::Decision;
use crate::worker::WorkerExit;

/// How often the group is asked for evicted workers, also while it does not answer, and how much less often in a large job, for
/// each worker.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
const OUTAGE_INTERVAL: Duration = Duration::from_secs(60);
const LOOK_INTERVAL_OF_ONE: Duration = Duration::from_millis(10);

impl Round {
    pub(super) fn in_running(
        &mut self,
        mut running: Running,
        input: Input,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        let waiting = std::mem::take(&mut running.waiting);
        let end = match (input, waiting) {
            (Input::WorkerExited(exit), _) => self.worker_exited(&mut running, exit, out),
            (Input::Crash(crash), _) => {
                match self.is_kept_to_its_end(&mut running, &crash, now, out) {
                    true => running.end_of_all(self.settings.local_world_size),
                    false => Some(self.failed(&mut running, crash.exit, out)),
                }
            }
            (Input::ExitsDue, _) => {
                let text = "stopping the workers that have not reached the end of their program";
                out.push(log(Level::Warn, text));
                Some(running.end_by_others())
            }
            (Input::Death(death), _) => self.worker_died(&mut running, *death, now, out),
            (Input::ReplaceDue { local_rank }, _) => {
                self.replace(local_rank, now, out);
                None
            }
            (Input::Group(GroupNews::Finished, _), Waiting::Group { .. }) => None,
            (Input::Group(..), Waiting::Group { why }) => Some(End::MembersChanged(why)),
            (Input::Group(group, evicted), _) => {
                self.warn_without_members(&group, out);
                self.look_at_evicted(&mut running, &group, &evicted, now, out);
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
                Some(End::Failed(Known::Nothing))
            }
            // The job has ended, and its store may end with another node.
            (Input::MembersChanged | Input::Membership(_), _) if running.ended.is_some() => None,
            (Input::MembersChanged, _) => {
                out.push(Effect::ReadMembership);
                None
            }
            (Input::Membership(membership), _) => {
                let membership = membership.as_deref();
                membership.and_then(|it| self.members_may_have_changed(&mut running, it, out))
            }
            (Input::JobEnd(notice), _) => self.job_end_read(&mut running, notice, out),
            (Input::Finished(count), Waiting::Closed) => running.closing_judged(count, out),
            (Input::Finished(finished), Waiting::Finished { why, departed }) => {
                (departed > finished.unwrap_or(0)).then_some(End::MembersChanged(why))
            }
            (Input::Stuck(stuck), _) => self.stuck(&mut running, stuck, out),
            (Input::IsFirstStuck(is_first), Waiting::IsFirst(stuck)) => {
                Some(are_stuck(stuck, is_first, out))
            }
            (Input::MembersDue, _) => {
                out.push(Effect::ReadGroup);
                None
            }
            (Input::Signal(signal), _) => Some(End::Signalled(signal)),
            (_, waiting) => {
                running.waiting = waiting;
                None
            }
        };
        match end {
            Some(end) => self.stop(&running, end, now, out),
            None => Phase::Running(running),
        }
    }

    fn worker_exited(
        &self,
        running: &mut Running,
        exit: WorkerExit,
        out: &mut Effects,
    ) -> Option<End> {
        if exit.exit.is_success() {
            running.succeeded += 1;
            if self.keep().is_some() && running.succeeded == 1 {
                out.push(Effect::EndEntry);
            }
            return running.end_of_all(self.settings.local_world_size);
        }
        let text = format!(
            "worker with rank {} (local rank {}, pid {}) failed: {}",
            exit.rank, exit.local_rank, exit.pid, exit.exit,
        );
        out.push(log(Level::Error, text));
        if self.may_keep(&exit) {
            out.push(Effect::ReadDeath(exit));
        } else if running.ended.is_some() {
            running.at_exit += 1;
            return running.end_of_all(self.settings.local_world_size);
        } else if self.asks_about(&exit) {
            out.push(Effect::ReadCrash(exit));
        } else {
            return Some(self.failed(running, exit, out));
        }
        None
    }

    /// Handles the answer to the question why the rendezvous was closed.
    fn job_end_read(
        &self,
        running: &mut Running,
        notice: Option<Box<EndNotice>>,
        out: &mut Effects,
    ) -> Option<End> {
        match notice {
            // The reason of this node, whose own workers run to the end of their program.
            Some(notice) if notice.is_at_exit && running.known == Known::Published => None,
            Some(notice) => running.job_ended(notice, out),
            None if self.settings.stops_on_failure => {
                out.push(Effect::ReadFinished);
                running.waiting = Waiting::Closed;
                None
            }
            None => {
                out.push(closed_without_reason());
                None
            }
        }
    }

    fn stuck(
        &self,
        running: &mut Running,
        stuck: Box<StuckWorkers>,
        out: &mut Effects,
    ) -> Option<End> {
        out.push(log(Level::Error, stuck.to_string()));
        if !self.settings.has_store_per_round {
            return Some(are_stuck(stuck, true, out));
        }
        // Published before the workers are stopped, because workers of other nodes may fail because of the stop.
        out.push(Effect::ReportStuck);
        running.waiting = Waiting::IsFirst(stuck);
        None
    }

    /// Returns why the workers have to stop, mostly to restart in another round; `None` if they keep running, or if that
    /// depends on a question. A store that does not answer, for example because its host has failed, does not stop running
    /// workers: there is no membership then, and the handler has logged the error.
    fn members_may_have_changed(
        &mut self,
        running: &mut Running,
        membership: &Membership,
        out: &mut Effects,
    ) -> Option<End> {
        running.nodes = membership
            .members
            .filter(|_| self.keep().is_some())
            .unwrap_or(running.nodes);
        if membership.is_closed {
            if !self.is_closing_known {
                self.is_closing_known = true;
                // The reason was written before the rendezvous was closed.
                out.push(Effect::ReadJobEnd);
            }
            return None;
        }
        match MembersChange::of(membership) {
            MembersChange::None => None,
            MembersChange::Certain(why) if membership.is_evicted => Some(End::Evicted(why)),
            MembersChange::Certain(why) if self.keep().is_some() => {
                out.push(Effect::ReadGroup);
                running.waiting = Waiting::Group { why };
                None
            }
            MembersChange::Certain(why) => Some(End::MembersChanged(why)),
            // No node replaces the lost nodes, and the service counts whether enough workers are left.
            MembersChange::UnlessFinished { .. } if self.keep().is_some() => None,
            MembersChange::UnlessFinished { why, departed } => {
                out.push(Effect::ReadFinished);
                running.waiting = Waiting::Finished { why, departed };
                None
            }
        }
    }

    /// Whether the last output of a worker decides if the other workers may keep running.
    fn asks_about(&self, exit: &WorkerExit) -> bool {
        self.keep().is_none()
            && may_be_at_exit(exit)
            && self.policy.final_exit(&[failed_worker(exit)]).is_none()
    }

    fn failed(&self, running: &mut Running, exit: WorkerExit, out: &mut Effects) -> End {
        let _ = running.failed.get_or_insert((exit.rank, exit.exit));
        match self.worker_failed(exit, out) {
            Known::Nothing => End::Failed(running.known.clone()),
            known => End::Failed(known),
        }
    }

    fn worker_failed(&self, exit: WorkerExit, out: &mut Effects) -> Known {
        out.push(Effect::TellFailed(exit));
        // Ends the job on the other nodes now, because the workers of this node may take long to stop.
        let Some(reason) = self.policy.final_exit(&[failed_worker(&exit)]) else {
            return Known::Nothing;
        };
        self.publish(OwnEnd::of(reason, Some(exit.rank)), out);
        Known::Published
    }

    fn stop(&mut self, running: &Running, end: End, now: Duration, out: &mut Effects) -> Phase {
        let nodes = running.nodes;
        self.clock.end(now, |phases| &mut phases.run);
        if let End::Failed(Known::Nothing) | End::Stuck(_, Known::Nothing) = &end
            && self.ends_job_at_once(nodes, now)
        {
            // This also stops the job at once, unless the store shows that a failure of another node has caused this
            // failure.
            out.push(Effect::BeginStop(how_to_stop(&end)));
            out.push(Effect::ReadFacts);
            let first = running.failed;
            return Phase::Ending { nodes, end, first };
        }
        let is_restart_likely = match &end {
            End::MembersChanged(_) | End::Evicted(_) => true,
            End::Failed(Known::Nothing) | End::Stuck(_, Known::Nothing) => {
                self.policy.left(now) > 0
            }
            _ => false,
        };
        if is_restart_likely {
            out.push(Effect::ForkAhead);
        }
        if let End::MembersChanged(why) | End::Evicted(why) = &end {
            out.push(log(Level::Info, format!("restarting the workers: {why}")));
            out.push(Effect::TellRestarting(why.clone()));
        }
        out.push(Effect::Stop(how_to_stop(&end)));
        Phase::Stopping { nodes, end }
    }

    /// Continues the stop of the workers when the content of the store is known.
    pub(super) fn stop_knowing(
        &self,
        nodes: usize,
        mut end: End,
        first: Option<First>,
        facts: Facts,
        out: &mut Effects,
    ) -> Phase {
        let (stall, known) = match &mut end {
            End::Failed(known) => (None, known),
            End::Stuck(stall, known) => (Some(*stall), known),
            _ => return Phase::Stopping { nodes, end },
        };
        let is_counted_elsewhere = stall.map_or(facts.is_any_stuck, |stall| !stall.is_first);
        if let Some(notice) = facts.job_end {
            *known = Known::Ended(notice);
        } else if !is_counted_elsewhere {
            self.publish(used_up(stall, first), out);
            *known = Known::Published;
        }
        out.push(Effect::Stop(how_to_stop(&end)));
        Phase::Stopping { nodes, end }
    }
}

/// Keeps the other workers running when one dies: docs/how-to/keep-workers.md.
///
/// The membership service coordinates the remaining workers. These functions decide whether only the dead worker is
/// started again, or all workers are stopped and restarted, which is the behaviour without `--keep-workers`.
impl Round {
    /// Whether the other workers may keep running after this failure, as far as the exit alone decides this.
    fn may_keep(&self, exit: &WorkerExit) -> bool {
        self.keep().is_some() && self.policy.final_exit(&[failed_worker(exit)]).is_none()
    }

    /// Handles a dead worker whose death was reported to the service. Returns why the other workers are stopped; `None`
    /// if they keep running.
    fn worker_died(
        &mut self,
        running: &mut Running,
        death: Death,
        now: Duration,
        out: &mut Effects,
    ) -> Option<End> {
        let why = match death.group {
            GroupNews::GoesOn => self.after_death(running, &death, now, out)?,
            GroupNews::Finished => {
                let text = format!(
                    "rank {} failed after the workers had finished: its results are complete",
                    death.exit.rank
                );
                out.push(log(Level::Warn, text));
                out.push(Effect::TellLost(death.exit));
                if running.succeeded + running.gone == 0 {
                    out.push(Effect::EndEntry);
                }
                running.gone += 1;
                return running.end_of_all(self.settings.local_world_size);
            }
            GroupNews::IsEmpty => {
                "no worker is a member of their group, as c10d_rs.torch.join() makes one".to_owned()
            }
            GroupNews::Ended(reason) => format!("their group has ended: {reason}"),
            GroupNews::OutOfReach(error) => format!("their group cannot be asked: {error}"),
        };
        let text = format!("--keep-workers does not keep the other workers: {why}");
        out.push(log(Level::Warn, text));
        running.failed = Some((death.exit.rank, death.exit.exit));
        let known = self.worker_failed(death.exit, out);
        Some(End::Failed(known))
    }

    /// Kills the workers that have run for too long after their group has evicted them, and looks again later.
    fn look_at_evicted(
        &self,
        running: &mut Running,
        group: &GroupNews,
        evicted: &[usize],
        now: Duration,
        out: &mut Effects,
    ) {
        let Some(keep) = self.keep() else {
            return;
        };
        running.evicted.retain(|worker, _| evicted.contains(worker));
        for worker in evicted {
            match running.evicted.get(worker) {
                None => {
                    running.evicted.insert(*worker, now);
                    let text = format!(
                        "worker with local rank {worker} still runs although its group has evicted it: it is killed in {} s",
                        keep.evicted_grace.as_secs()
                    );
                    out.push(log(Level::Warn, text));
                }
                Some(since) if now.saturating_sub(*since) >= keep.evicted_grace => {
                    out.push(Effect::Kill(*worker));
                }
                Some(_) => {}
            }
        }
        let workers = running.nodes.saturating_mul(self.settings.local_world_size);
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        let pause = match group {
            // Each look then takes 10 s, in which the launcher does nothing else.
            GroupNews::OutOfReach(_) => OUTAGE_INTERVAL,
            _ => LOOK_INTERVAL,
        };
        let pause = pause.min(keep.members_expected_after);
        out.push(Effect::ExpectMembers(
            pause.max(LOOK_INTERVAL_OF_ONE.saturating_mul(workers)),
        ));
    }

    /// The workers have had time to become members.
    fn warn_without_members(&mut self, group: &GroupNews, out: &mut Effects) {
        let is_first = !std::mem::replace(&mut self.has_looked_at_group, true);
        if is_first && *group == GroupNews::IsEmpty {
            let text = format!(
                "--keep-workers cannot keep the workers of {} so far: none has called c10d_rs.torch.join(), so the death \
                 of one restarts all",
                self.settings.name
            );
            out.push(log(Level::Warn, text));
        }
    }

    /// Replaces the worker if a rule allows it. Returns why the other workers cannot keep running; `None` if they can.
    fn after_death(
        &mut self,
        running: &mut Running,
        death: &Death,
        now: Duration,
        out: &mut Effects,
    ) -> Option<String> {
        let keep = self.keep()?.clone();
        let failed = failed_workers(death.failures.as_ref());
        let local_rank = death.exit.local_rank;
        if let Some(reason) = self.policy.why_hopeless(&failed) {
            return Some(reason);
        }
        let decision = match keep.replacement {
            Replacement::None => Decision::Exhausted,
            _ => self.policy.after_failure(now, &failed, death.progress),
        };
        match decision {
            Decision::EndJob(reason) => return Some(reason),
            Decision::Restart => {
                out.push(Effect::TellLost(death.exit));
                match keep.replace_after {
                    Duration::ZERO => self.replace(local_rank, now, out),
                    pause => out.push(Effect::ReplaceAfter(local_rank, pause)),
                }
            }
            Decision::Exhausted => {
                let ended = running.succeeded + running.gone + 1;
                let left = self.settings.local_world_size.saturating_sub(ended);
                // With several nodes, the service counts whether enough workers are left.
                let min = match running.nodes {
                    1 => keep.members_min.max(1),
                    _ => 1,
                };
                if left < min {
                    return Some(format!(
                        "{left} run on this node, and at least {min} are needed"
                    ));
                }
                running.gone += 1;
                out.push(Effect::TellLost(death.exit));
                let why = match keep.replacement {
                    Replacement::None => "as --replace none wants",
                    _ => "no restart is left",
                };
                let text =
                    format!("the worker is not replaced ({why}): {left} of this node are left");
                out.push(log(Level::Warn, text));
            }
        }
        None
    }

    fn replace(&self, local_rank: usize, now: Duration, out: &mut Effects) {
        let used = self.policy.used();
        out.push(Effect::Replace {
            local_rank,
            restarts: (used, used.saturating_add(self.policy.left(now))),
        });
    }
}

const fn how_to_stop(end: &End) -> Stop {
    match end {
        End::Signalled(signal) => Stop::BySignal(*signal),
        // The scripts may save their state before they exit.
        End::JobEnded(_) => Stop::Gently,
        // Workers of a world that no longer exists must not write to files that the workers of the next world use.
        End::Stuck(..) | End::Evicted(_) => Stop::With(Signal::TERM, STUCK_GRACE),
        // After a success, this stops the processes that workers left behind.
        _ => Stop::With(Signal::TERM, STOP_GRACE),
    }
}

impl Running {
    /// Returns how the round ends on this node, if all its workers have exited.
    pub(super) fn end_of_all(&self, local_world_size: usize) -> Option<End> {
        let ended = self.succeeded + self.gone + self.at_exit;
        let is_over = ended == local_world_size;
        is_over.then(|| match (&self.ended, self.at_exit) {
            (Some(notice), _) => End::JobEnded(notice.clone()),
            (None, 0) => End::Succeeded,
            (None, _) => End::AtExit(self.known.clone()),
        })
    }

    /// Returns how the round ends if workers keep running for too long after others have failed at the end of their
    /// program.
    fn end_by_others(&self) -> End {
        match &self.ended {
            Some(notice) => End::JobEnded(notice.clone()),
            None => End::Failed(self.known.clone()),
        }
    }

    /// Handles the number of finished nodes, because one of them may have closed the rendezvous: a finished node closes it if other
    /// nodes take longer than the timeout of the exit barrier.
    fn closing_judged(&mut self, finished: Option<usize>, out: &mut Effects) -> Option<End> {
        if finished == Some(0) {
            return self.job_ended(Box::new(EndNotice::unknown()), out);
        }
        out.push(closed_without_reason());
        None
    }

    /// Handles that another node has ended the job. Returns how the workers are stopped; `None` if they are left to
    /// exit.
    fn job_ended(&mut self, notice: Box<EndNotice>, out: &mut Effects) -> Option<End> {
        if notice.is_at_exit {
            let text = format!("the job fails when the workers of this node have ended: {notice}");
            out.push(log(Level::Warn, text));
            out.push(Effect::ExpectExits(EXIT_BARRIER_TIMEOUT));
            self.ended = Some(notice);
            return None;
        }
        let why = notice.reason_text();
        out.push(log(Level::Warn, format!("stopping the workers: {why}")));
        out.push(Effect::Confirm);
        Some(End::JobEnded(notice))
    }
}

fn closed_without_reason() -> Effect {
    let text =
        "another node closed the rendezvous: the workers keep running, but cannot be restarted";
    log(Level::Warn, text)
}

fn are_stuck(stuck: Box<StuckWorkers>, is_first: bool, out: &mut Effects) -> End {
    let stall = Stall {
        silent_for: stuck.silent_for,
        is_first,
    };
    out.push(Effect::TellStuck(stuck));
    End::Stuck(stall, Known::Nothing)
}
