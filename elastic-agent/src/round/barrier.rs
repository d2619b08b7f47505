//! The exit barrier: a node whose workers have succeeded waits for the others, as the store ends with the node that hosts
//! it. Heartbeats go on meanwhile.

use std::time::Duration;

use elastic_rendezvous::Membership;
use log::Level;

use super::input::{Effect, Effects, Input};
use super::machine::{Round, STOP_GRACE, finish, log};
use super::outcome::AgentOutcome;
use super::phase::{Barrier, Phase};

/// How long a node waits at most until it looks around.
const SLICE: Duration = Duration::from_secs(1);

impl Round {
    pub(super) fn enter_barrier(&self, nodes: usize, now: Duration, out: &mut Effects) -> Phase {
        out.push(Effect::EnterBarrier {
            nodes,
            wait: self.barrier_slice(Duration::ZERO),
        });
        Phase::AtBarrier(Barrier {
            nodes,
            since: now,
            is_late: false,
        })
    }

    /// How long a node that has waited for this long waits until it looks around.
    fn barrier_slice(&self, waited: Duration) -> Duration {
        let timeout = self.settings.exit_barrier_timeout;
        timeout.map_or(SLICE, |timeout| timeout.saturating_sub(waited).min(SLICE))
    }

    pub(super) fn in_barrier(
        &self,
        barrier: Barrier,
        input: Input,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        let waited = now.saturating_sub(barrier.since);
        let ending = match input {
            Input::BarrierOpen => None,
            Input::BarrierFailed(error) => Some(format!(
                "; cannot wait for the other nodes to finish: {error}"
            )),
            Input::Finished(arrived) if barrier.is_late => Some(format!(
                "; after {} s, {} of {} nodes have reported success: exiting without the others",
                waited.as_secs(),
                arrived.map_or("an unknown number".to_owned(), |arrived| arrived
                    .to_string()),
                barrier.nodes,
            )),
            Input::BarrierClosed {
                signal: Some(signal),
                ..
            } => {
                let had_workers = true;
                let outcome = AgentOutcome::Signalled {
                    signal,
                    had_workers,
                };
                return finish(Ok(outcome), out);
            }
            Input::BarrierClosed { membership, .. } => {
                if self.barrier_slice(waited).is_zero() {
                    out.push(Effect::ReadFinished);
                    return Phase::AtBarrier(Barrier {
                        is_late: true,
                        ..barrier
                    });
                }
                if !membership.is_some_and(|it| have_others_gone(&it, barrier.nodes, waited)) {
                    out.push(Effect::WaitAtBarrier(self.barrier_slice(waited)));
                    return Phase::AtBarrier(barrier);
                }
                Some(", but the other nodes left the job without reporting success".to_owned())
            }
            _ => return Phase::AtBarrier(barrier),
        };
        if let Some(why) = ending {
            let text = format!("the workers of this node succeeded{why}");
            out.push(log(Level::Warn, text));
        }
        finish(Ok(AgentOutcome::Succeeded), out)
    }
}

/// Whether nobody is left to wait for.
fn have_others_gone(membership: &Membership, nodes: usize, waited: Duration) -> bool {
    let is_alone = membership.departed() + 1 >= nodes;
    // A node that fails without a restart left closes the rendezvous and never checks in.
    is_alone || (membership.is_closed && waited >= STOP_GRACE)
}
