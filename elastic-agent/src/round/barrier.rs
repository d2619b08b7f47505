//! The exit barrier: a node whose workers have succeeded waits for the other nodes, because the store stops with the
//! node that hosts it. In the meantime, the node keeps sending heartbeats.

use std::time::Duration;

use elastic_rendezvous::Membership;
use log::Level;

use super::input::{Effect, Effects, Input};
use super::machine::{Barrier, Phase, Round, STOP_GRACE, finish, log};
use super::outcome::AgentOutcome;

/// PyTorch's: enough for nodes that finish some minutes apart.
pub(crate) const EXIT_BARRIER_TIMEOUT: Duration = Duration::from_secs(300);

/// The time for a wait without a limit, longer than any job.
const NEVER: Duration = Duration::from_secs(365 * 86400);

impl Round {
    pub(super) fn enter_barrier(&self, nodes: usize, now: Duration, out: &mut Effects) -> Phase {
        let is_fixed = self.keep().is_none();
        out.push(Effect::EnterBarrier(is_fixed.then_some(nodes)));
        Phase::AtBarrier(Barrier {
            nodes,
            since: now,
            is_late: false,
        })
    }

    /// Returns how many nodes of the round are left. The round had `nodes` nodes when it began.
    fn nodes_left(&self, membership: Option<&Membership>, nodes: usize) -> usize {
        let Some(membership) = membership else {
            return nodes;
        };
        match membership.members {
            // Other nodes may have entered the round.
            Some(members) if self.keep().is_some() => members,
            _ => nodes.saturating_sub(membership.departed()),
        }
    }

    pub(super) fn in_barrier(
        &mut self,
        barrier: Barrier,
        input: Input,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        let waited = now.saturating_sub(barrier.since);
        let ending = match input {
            Input::BarrierOpen => None,
            Input::BarrierFailed(_) if self.is_closing_known => {
                Some("; the store has ended with the job on another node".to_owned())
            }
            Input::BarrierFailed(error) => {
                Some(format!("; not waiting for the other nodes: {error}"))
            }
            Input::Finished(arrived) if barrier.is_late => Some(format!(
                "; after {} s, {} of {} nodes have reported success: not waiting for the other nodes",
                waited.as_secs(),
                arrived.map_or("an unknown number".to_owned(), |arrived| arrived
                    .to_string()),
                barrier.nodes,
            )),
            Input::BarrierClosed {
                signal: Some(signal),
                ..
            } => {
                return finish(Ok(AgentOutcome::signalled(signal)), out);
            }
            // The node that closed the rendezvous has written the reason before.
            Input::BarrierClosed {
                membership: Some(membership),
                ..
            } if membership.is_closed && !self.is_closing_known => {
                self.is_closing_known = true;
                out.push(Effect::ReadJobEnd);
                return Phase::AtBarrier(barrier);
            }
            Input::JobEnd(Some(notice)) => {
                out.push(Effect::Confirm);
                Some(format!(", but the job failed: {notice}"))
            }
            Input::JobEnd(None) => {
                // This wait is over at once, because the node has already seen the membership.
                out.push(Effect::WaitAtBarrier {
                    timeout: Duration::ZERO,
                    enough: None,
                    seen: None,
                });
                return Phase::AtBarrier(barrier);
            }
            Input::BarrierClosed { membership, .. } => {
                match self.why_not_waiting(barrier, membership, waited, out) {
                    Ok(why) => why,
                    Err(barrier) => return Phase::AtBarrier(barrier),
                }
            }
            _ => return Phase::AtBarrier(barrier),
        };
        if let Some(why) = ending {
            let text = format!("the workers succeeded{why}");
            out.push(log(Level::Warn, text));
        }
        finish(Ok(AgentOutcome::Succeeded), out)
    }

    /// Judges a wait that has ended. Returns the text about missing nodes, if there are some, or `Err` with the next wait if
    /// the node has to wait longer.
    fn why_not_waiting(
        &self,
        barrier: Barrier,
        membership: Option<Box<Membership>>,
        waited: Duration,
        out: &mut Effects,
    ) -> Result<Option<String>, Barrier> {
        let limit = match self.settings.has_exit_limit {
            true => EXIT_BARRIER_TIMEOUT,
            false => NEVER,
        };
        let mut left = limit.saturating_sub(waited);
        if left.is_zero() {
            out.push(Effect::ReadFinished);
            return Err(Barrier {
                is_late: true,
                ..barrier
            });
        }
        let seen = membership.as_deref();
        let enough = self.nodes_left(seen, barrier.nodes);
        if !seen.is_some_and(|it| have_others_gone(it, enough, waited)) {
            if seen.is_some_and(|it| it.is_closed) {
                left = left.min(STOP_GRACE.saturating_sub(waited));
            }
            out.push(Effect::WaitAtBarrier {
                timeout: left,
                enough: self.keep().map(|_| enough),
                seen: membership,
            });
            return Err(barrier);
        }
        // A node that was always alone has no others.
        let has_others = seen.is_some_and(|it| it.departed() > 0 || it.is_closed);
        let text = ", but the other nodes left the job without reporting success";
        Ok(has_others.then(|| text.to_owned()))
    }
}

/// Whether all of the remaining `nodes` have ended, so that this node has none to wait for.
fn have_others_gone(membership: &Membership, left: usize, waited: Duration) -> bool {
    let is_alone = left <= 1;
    // A node that fails without a restart left closes the rendezvous and never checks in.
    is_alone || (membership.is_closed && waited >= STOP_GRACE)
}
