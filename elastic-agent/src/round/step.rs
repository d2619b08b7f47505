//! What each phase makes of an input.

use std::collections::BTreeMap;
use std::time::Duration;

use super::input::{Effect, Effects, Input, StartTimes};
use super::machine::Round;
use super::phase::{Known, Phase, Running, Waiting};

impl Round {
    /// Takes an input, and returns what to do. Ignores what comes too late for the phase, as the end of a worker that is
    /// being stopped.
    pub(crate) fn step(&mut self, now: Duration, input: Input) -> Effects {
        let mut effects = Effects::new();
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        self.phase = self.next_phase(phase, input, now, &mut effects);
        effects
    }

    fn next_phase(
        &mut self,
        phase: Phase,
        input: Input,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        match (phase, input) {
            (Phase::Joining { failures }, Input::Joined { nodes, has_lost }) => {
                self.clock.end(now, |phases| &mut phases.rendezvous);
                if std::mem::take(&mut self.is_count_open) && has_lost {
                    self.do_not_count(now, out);
                }
                let restarts = self.policy.used();
                out.push(Effect::Prepare {
                    restarts,
                    restarts_max: restarts.saturating_add(self.policy.left(now)),
                });
                Phase::Preparing { nodes, failures }
            }
            (Phase::Preparing { nodes, failures }, Input::Prepared { keeps }) => {
                self.keeps = keeps;
                self.has_looked_at_group = false;
                self.clock.end(now, |phases| &mut phases.ranks);
                let phases = self.clock.phases();
                out.push(Effect::Start(StartTimes {
                    restarts: self.policy.used(),
                    rendezvous: phases.rendezvous,
                    ranks: phases.ranks,
                }));
                Phase::Starting { nodes, failures }
            }
            (Phase::Starting { nodes, .. }, Input::Started) => {
                self.clock.end(now, |phases| &mut phases.start);
                self.has_had_workers = true;
                out.push(Effect::TellStarted);
                if let Some(keep) = self.keep() {
                    out.push(Effect::OpenRound);
                    out.push(Effect::ExpectMembers(keep.members_expected_after));
                }
                out.push(Effect::ReadMembership);
                Phase::Running(Running {
                    nodes,
                    succeeded: 0,
                    gone: 0,
                    at_exit: 0,
                    evicted: BTreeMap::new(),
                    failed: None,
                    known: Known::Nothing,
                    ended: None,
                    waiting: Waiting::Nothing,
                })
            }
            (Phase::Joining { failures }, Input::NotStarted { error, signal }) => {
                self.clock.end(now, |phases| &mut phases.rendezvous);
                self.not_started(error, signal, failures, now, out)
            }
            (Phase::Preparing { failures, .. }, Input::NotStarted { error, signal }) => {
                self.clock.end(now, |phases| &mut phases.ranks);
                self.not_started(error, signal, failures, now, out)
            }
            (Phase::Starting { failures, .. }, Input::NotStarted { error, signal }) => {
                self.clock.end(now, |phases| &mut phases.start);
                self.not_started(error, signal, failures, now, out)
            }
            (Phase::NotStarted { error, failures }, input) => {
                self.in_not_started(error, failures, input, now, out)
            }
            (Phase::Running(running), input) => self.in_running(running, input, now, out),
            (Phase::Ending { nodes, end, first }, Input::Facts(facts)) => {
                self.stop_knowing(nodes, end, first, facts, out)
            }
            (Phase::Stopping { nodes, end }, Input::Stopped(stopped)) => {
                self.clock.end(now, |phases| &mut phases.stop);
                self.after_stop(nodes, end, *stopped, now, out)
            }
            (Phase::Judging { nodes, failure }, Input::Facts(facts)) => {
                self.judge(nodes, *failure, facts, now, out)
            }
            (Phase::AwaitingOthers(awaiting), input) => {
                self.awaiting_others(awaiting, input, now, out)
            }
            (Phase::AwaitingLoss(awaiting), input) => self.awaiting_loss(awaiting, input, now, out),
            (Phase::AtBarrier(barrier), input) => self.in_barrier(barrier, input, now, out),
            (phase, _) => phase,
        }
    }
}
