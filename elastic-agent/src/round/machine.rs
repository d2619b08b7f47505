//! The rounds of one node: their settings and data, the phases of a node in its round, each with its data, and the next
//! phase for each input.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_rendezvous::Membership;
use log::Level;

use super::input::{Effect, Effects, Input, Joins, RoundSummary, StartTimes, StuckWorkers};
use super::outcome::{AgentError, AgentOutcome, RoundCause, RoundClock, RoundEnding};
use crate::failure::Failures;
use crate::job_end::{EndNotice, OwnEnd};
use crate::restart_policy::{
    FailedWorker, RestartPolicy, RestartRules, RoundProgress, fatal_error,
};
use crate::worker::{ExitKind, WorkerExit};

/// Options for keeping the workers that survive another worker. Their script must use the membership service of the
/// workers' store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepOptions {
    /// The minimum number of workers that continue the work. Fewer workers wait for more.
    pub members_min: usize,
    /// The replacement of a dead worker, if a restart is left.
    pub replacement: Replacement,
    /// The time from the death of a worker to its replacement.
    pub replace_after: Duration,
    /// The time from the start of the workers until the launcher checks whether any of them is a member, and otherwise
    /// logs a warning. Workers may still join later. Default one minute.
    pub members_expected_after: Duration,
    /// The time that a worker may still run after its group has evicted it, for example to save its state. After this
    /// time it is killed, and replaced like any dead worker. Default 30 s.
    pub evicted_grace: Duration,
}

/// The replacement of a dead worker while other workers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// A new process on the same node replaces the worker.
    Fork,
    /// The worker is not replaced.
    None,
}

impl KeepOptions {
    /// Creates options that replace dead workers at once.
    #[must_use]
    pub const fn new(members_min: usize) -> Self {
        Self {
            members_min,
            replacement: Replacement::Fork,
            replace_after: Duration::ZERO,
            members_expected_after: Duration::from_secs(60),
            evicted_grace: Duration::from_secs(30),
        }
    }
}

/// How long workers have to exit when the members of the round change or one of them has failed. PyTorch has the
/// same limit.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(30);

/// How long stuck workers have to exit. Most of them hang in native code, where Python handles no signal, so a longer
/// wait only costs time.
pub(super) const STUCK_GRACE: Duration = Duration::from_secs(5);

/// The settings of a node, which do not change during its life.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The name of the program that the workers run.
    pub(crate) name: String,
    pub(crate) restarts: RestartRules,
    /// Whether a failure without a restart left, on this node or on another node, stops the job on all nodes.
    pub(crate) stops_on_failure: bool,
    pub(crate) local_world_size: usize,
    /// Whether keys of an earlier round are out of sight.
    pub(crate) has_store_per_round: bool,
    /// How long a node without a restart left waits for the news of a lost node; `None` if the job cannot continue
    /// without a node.
    pub(crate) loss_wait: Option<Duration>,
    /// Whether and how the other workers keep running when a worker dies.
    pub(crate) keep: Option<KeepOptions>,
    /// Whether the wait for the other nodes to finish is limited.
    pub(crate) has_exit_limit: bool,
}

/// The rounds of one node. Times are counted from any moment.
#[derive(Debug)]
pub(crate) struct Round {
    pub(super) settings: Settings,
    pub(super) policy: RestartPolicy,
    /// The reason why the current round began, and below it the clock of its parts.
    cause: RoundCause,
    pub(super) clock: RoundClock,
    pub(super) has_had_workers: bool,
    /// Whether the node has asked why the rendezvous was closed.
    pub(super) is_closing_known: bool,
    /// Whether the nodes of the current round keep the workers that survive another worker.
    pub(super) keeps: bool,
    /// Whether the group of the current round was asked for its members.
    pub(super) has_looked_at_group: bool,
    /// The members at the last time when this node read how many nodes had ended.
    pub(super) seen: Option<Box<Membership>>,
    /// Whether the last restart was counted, although that depends on the members of the next round.
    pub(super) is_count_open: bool,
    /// Whether the node has waited for the news that another node of the round was lost.
    pub(super) has_awaited_loss: bool,
    pub(super) phase: Phase,
}

impl Round {
    /// A node that joins its first round, with the effects that begin it.
    pub(crate) fn begin(settings: Settings, now: Duration) -> (Self, Effects) {
        let policy = RestartPolicy::new(settings.restarts.clone());
        let round = Self {
            policy,
            settings,
            cause: RoundCause::Start,
            clock: RoundClock::start(0, now),
            has_had_workers: false,
            is_closing_known: false,
            keeps: true,
            has_looked_at_group: false,
            seen: None,
            is_count_open: false,
            has_awaited_loss: false,
            phase: Phase::Joining { failures: None },
        };
        let joins = match round.settings.keep {
            Some(_) => Joins::Running,
            None => Joins::Next,
        };
        (round, vec![Effect::Join(joins)])
    }

    /// Takes an input, and returns what to do. Ignores an input that is too late for the phase, for example the exit of a
    /// worker that is being stopped.
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
                    ..Running::default()
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

    /// Returns the options for keeping the other workers when one dies; `None` in a round that restarts all of them.
    pub(super) fn keep(&self) -> Option<&KeepOptions> {
        self.settings.keep.as_ref().filter(|_| self.keeps)
    }

    /// Joins another round.
    pub(super) fn join_again(
        &mut self,
        cause: RoundCause,
        failures: Option<Failures>,
        joins: Joins,
        now: Duration,
        out: &mut Effects,
    ) -> Phase {
        self.cause = cause;
        self.has_awaited_loss = false;
        self.clock = RoundClock::start(self.policy.used(), now);
        out.push(Effect::Join(joins));
        Phase::Joining { failures }
    }

    /// Publishes the reason and closes the rendezvous, which stops the job on all nodes.
    pub(super) fn publish(&self, end: OwnEnd, out: &mut Effects) {
        out.push(Effect::PublishEnd(end));
        out.push(Effect::Close);
    }

    /// Whether a failure stops the job in any case, whatever the workers do until they have exited.
    pub(super) fn ends_job_at_once(&self, nodes: usize, now: Duration) -> bool {
        let may_be_loss = nodes > 1 && self.settings.loss_wait.is_some();
        self.settings.stops_on_failure && !may_be_loss && self.policy.is_used_up(now)
    }

    pub(super) fn report_round(
        &self,
        ending: RoundEnding,
        reason: Option<String>,
        now: Duration,
        out: &mut Effects,
    ) {
        out.push(Effect::RoundEnded(Box::new(RoundSummary {
            cause: self.cause.clone(),
            ending,
            reason,
            phases: *self.clock.phases(),
            restarts: self.clock.restarts(),
            restarts_left: self.policy.left(now),
        })));
    }
}

pub(super) fn log(level: Level, text: impl Into<String>) -> Effect {
    Effect::Log(level, text.into())
}

pub(super) fn finish(outcome: Result<AgentOutcome, AgentError>, out: &mut Effects) -> Phase {
    out.push(Effect::Finish(Box::new(outcome)));
    Phase::Over
}

/// A phase of a node in its round.
#[derive(Debug)]
pub(super) enum Phase {
    /// The node waits for the other nodes of the next round. `failures` are those whose restart has not started workers
    /// yet.
    Joining {
        failures: Option<Failures>,
    },
    /// The round is complete; the relay starts, and the nodes exchange ranks.
    Preparing {
        nodes: usize,
        failures: Option<Failures>,
    },
    /// The processes of the workers start.
    Starting {
        nodes: usize,
        failures: Option<Failures>,
    },
    /// The round has started no workers, and the next phase depends on the answer to a question.
    NotStarted {
        error: Box<AgentError>,
        failures: Option<Failures>,
    },
    Running(Running),
    /// The workers are exiting, and the content of the store decides whether this node stops the job.
    Ending {
        nodes: usize,
        end: End,
        first: Option<First>,
    },
    /// The workers are being stopped.
    Stopping {
        nodes: usize,
        end: End,
    },
    /// Workers have failed or were stuck, and the content of the store decides about the next phase.
    Judging {
        nodes: usize,
        failure: Box<Failure>,
    },
    /// Workers of this node have failed after they had reached the end of their program.
    AwaitingOthers(Box<AwaitingOthers>),
    /// Workers have failed or were stuck, and no restart is left unless another node of the round turns out to be lost.
    AwaitingLoss(AwaitingLoss),
    /// The workers of this node have succeeded.
    AtBarrier(Barrier),
    Over,
}

/// The worker that failed first: its rank and its exit.
pub(super) type First = (usize, ExitKind);

/// A round whose workers run.
#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) nodes: usize,
    /// How many workers have succeeded.
    pub(super) succeeded: usize,
    /// How many workers have died and are not replaced.
    pub(super) gone: usize,
    /// How many workers have failed at the end of their program. `failed` is the worker that failed first.
    pub(super) at_exit: usize,
    /// The workers that their group has evicted and that still run, by local rank, and when this node has noticed.
    pub(super) evicted: BTreeMap<usize, Duration>,
    pub(super) failed: Option<First>,
    pub(super) known: Known,
    /// The reason why another node has ended the job, if the workers of this node may exit without a signal.
    pub(super) ended: Option<Box<EndNotice>>,
    pub(super) waiting: Waiting,
}

/// The question to which a running node waits for an answer.
#[derive(Debug, Default)]
pub(super) enum Waiting {
    #[default]
    Nothing,
    /// The number of finished nodes, because the departure of a finished node is not a change of the members.
    Finished { why: String, departed: usize },
    /// Whether the group of the workers has finished, because nothing is then left to do for a node that waits.
    Group { why: String },
    /// Whether a node has finished. Otherwise the node that closed the rendezvous without a reason has failed.
    Closed,
    /// Whether this node is the first of its round whose workers are stuck.
    IsFirst(Box<StuckWorkers>),
}

/// The reason why the workers of a round are stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Succeeded,
    Failed(Known),
    /// Workers have failed, each at the end of its program, and the other workers have succeeded.
    AtExit(Known),
    Stuck(Stall, Known),
    MembersChanged(String),
    /// The other nodes have removed this node, or it must assume that they have, because another world may exist.
    Evicted(String),
    JobEnded(Box<EndNotice>),
    Signalled(i32),
}

/// Whether and why the job is over, as far as a node has learned it when it stops its workers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Known {
    #[default]
    Nothing,
    /// This node has ended the job.
    Published,
    /// Another node has ended the job.
    Ended(Box<EndNotice>),
}

/// Workers of this node that made no progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stall {
    pub(super) silent_for: Duration,
    /// Whether this node was the first of the round to notice, so that it counts the restart.
    pub(super) is_first: bool,
}

/// Workers that failed, or were stuck.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) stall: Option<Stall>,
    pub(super) failures: Option<Failures>,
    pub(super) failed: Vec<FailedWorker>,
    pub(super) has_abandoned: bool,
    pub(super) known: Known,
    pub(super) progress: RoundProgress,
}

/// The workers that failed, as the policy judges them.
pub(super) fn failed_workers(failures: Option<&Failures>) -> Vec<FailedWorker> {
    let failures = failures.map_or(&[][..], Failures::all);
    let failed = failures.iter().map(|failure| FailedWorker {
        rank: failure.rank,
        exit: failure.exit,
        was_stopped: failure.was_stopped,
        fatal_error: fatal_error(failure.exit, failure.error_message(), &failure.stderr_tail),
    });
    failed.collect()
}

/// A worker that has just ended, as the policy judges it by its exit alone.
pub(super) const fn failed_worker(exit: &WorkerExit) -> FailedWorker {
    FailedWorker {
        rank: exit.rank,
        exit: exit.exit,
        was_stopped: false,
        fatal_error: None,
    }
}

/// A node whose workers have failed at the end of their program. It waits for the end of the other nodes' programs before
/// it decides about a restart.
#[derive(Debug)]
pub(super) struct AwaitingOthers {
    pub(super) nodes: usize,
    pub(super) since: Duration,
    pub(super) failure: Failure,
}

/// A node without a restart left, which waits for the news of a lost node.
#[derive(Debug)]
pub(super) struct AwaitingLoss {
    pub(super) nodes: usize,
    pub(super) failure: Box<Failure>,
    /// Whether the time is over, and the membership is read for the last time.
    pub(super) is_late: bool,
}

/// A node that waits until the other nodes have finished.
#[derive(Debug, Clone, Copy)]
pub(super) struct Barrier {
    pub(super) nodes: usize,
    /// When the node arrived.
    pub(super) since: Duration,
    /// Whether it waited too long, and therefore asks how many other nodes have arrived.
    pub(super) is_late: bool,
}
