//! Keeps the other workers running when one dies: docs/how-to/keep-workers.md.
//!
//! The membership service coordinates the remaining workers. This module decides whether only the dead worker is
//! started again, or all workers are stopped and restarted, which is the behaviour without `--keep-workers`.

use std::time::Duration;

use log::Level;

use super::input::{Death, Effect, Effects, GroupNews};
use super::machine::{End, Replacement, Round, Running, failed_worker, failed_workers, log};
use crate::restart_policy::Decision;
use crate::worker::WorkerExit;

/// How often the group is asked for evicted workers, also while it does not answer, and how much less often in a large job, for
/// each worker.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
const OUTAGE_INTERVAL: Duration = Duration::from_secs(60);
const LOOK_INTERVAL_OF_ONE: Duration = Duration::from_millis(10);

impl Round {
    /// Whether the other workers may keep running after this failure, as far as the exit alone decides this.
    pub(super) fn may_keep(&self, exit: &WorkerExit) -> bool {
        self.keep().is_some() && self.policy.final_exit(&[failed_worker(exit)]).is_none()
    }

    /// Handles a dead worker whose death was reported to the service. Returns why the other workers are stopped; `None`
    /// if they keep running.
    pub(super) fn worker_died(
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
    pub(super) fn look_at_evicted(
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
    pub(super) fn warn_without_members(&mut self, group: &GroupNews, out: &mut Effects) {
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

    pub(super) fn replace(&self, local_rank: usize, now: Duration, out: &mut Effects) {
        let used = self.policy.used();
        out.push(Effect::Replace {
            local_rank,
            restarts: (used, used.saturating_add(self.policy.left(now))),
        });
    }
}
