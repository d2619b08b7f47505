//! Runs a [`Round`] in one loop, which carries out the round's effects and reports events to it.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use c10d_store::in_brief;
use crossbeam_channel::RecvTimeoutError;
use elastic_rendezvous::Membership;
use rustix::process::Signal;

use super::event::{AgentEvent, Event, RestartTimes, StartedWorkers};
use super::exchange::ExitExchange;
use super::node::Node;
use super::rounds::Rounds;
use super::site::{Due, Site};
use crate::exit_barrier;
use crate::exit_exchange::NodeExits;
use crate::round::{AgentError, AgentOutcome, Effect, Input, Round, Settings};

/// The log target of the lines of a round, for filters.
pub(super) const LOG: &str = "elastic_agent::agent";

/// The interval of checks for the first output or step after a restart, and their limit.
const FIRST_SIGN_INTERVAL: Duration = Duration::from_millis(100);
const FIRST_SIGN_TIMEOUT: Duration = Duration::from_secs(60);

/// The life of an agent.
#[derive(Debug)]
pub(super) struct Runtime<'a> {
    pub(super) node: &'a mut Node,
    pub(super) rounds: Rounds,
    pub(super) site: Site,
    /// The round's times are counted from here.
    epoch: Instant,
    /// When the current round began.
    pub(super) began_at: SystemTime,
    /// When the nodes of the round had exchanged their ranks, at the same moment for all of them.
    pub(super) met_at: Option<SystemTime>,
    /// The number of ranks in the current round, once they are known.
    pub(super) world_size: usize,
    /// Runs from the first failure of a worker, or the news that the job is over, until the workers are stopped.
    pub(super) exchange: Option<ExitExchange>,
    /// The unpublished exits of this node, if all its workers have succeeded.
    pub(super) untold: Option<NodeExits>,
    pub(super) has_store_per_round: bool,
    /// Whether this node has warned that others do not keep their workers.
    pub(super) is_mix_told: bool,
    /// How long the workers of the last round took to stop.
    stopping: Duration,
    /// A restart that was not reported to the listeners yet.
    restart: Option<RestartTimes>,
    /// The wait of a node whose workers have failed for the news that another node was lost.
    loss: Option<AwaitedLoss>,
}

/// The result of an effect.
#[derive(Debug)]
enum Done {
    Nothing,
    Answer(Input),
    Finished(Result<AgentOutcome, AgentError>),
}

impl<'a> Runtime<'a> {
    pub(super) fn new(node: &'a mut Node) -> Self {
        Self {
            has_store_per_round: node.shared.handler.has_store_per_round(),
            node,
            rounds: Rounds::default(),
            site: Site::Empty,
            epoch: Instant::now(),
            began_at: SystemTime::now(),
            stopping: Duration::ZERO,
            restart: None,
            met_at: None,
            world_size: 0,
            is_mix_told: false,
            exchange: None,
            untold: None,
            loss: None,
        }
    }

    pub(super) fn run(mut self) -> Result<AgentOutcome, AgentError> {
        let options = &self.node.options;
        let settings = Settings {
            restarts: options.restarts.clone(),
            stops_on_failure: options.stops_on_job_failure,
            local_world_size: options.local_world_size,
            has_store_per_round: self.has_store_per_round,
            loss_wait: self
                .node
                .shared
                .handler
                .loss_wait()
                .filter(|_| options.keep_workers.is_none()),
            keep: options.keep_workers.clone(),
            // A person may have stopped a worker of another node.
            has_exit_limit: options.debug_rank.is_none(),
            name: options.name.clone(),
        };
        let (mut round, effects) = Round::begin(settings, self.epoch.elapsed());
        let mut effects = VecDeque::from(effects);
        loop {
            let input = match effects.pop_front() {
                None => self.next_event(),
                Some(effect) => match self.run_effect(effect) {
                    Done::Nothing => continue,
                    Done::Answer(input) => input,
                    Done::Finished(result) => {
                        self.node.published = self.rounds.take_published_end();
                        return result;
                    }
                },
            };
            effects.extend(round.step(self.epoch.elapsed(), input));
        }
    }

    fn run_effect(&mut self, effect: Effect) -> Done {
        let input = match effect {
            Effect::Join(joins) => {
                self.loss = None;
                match self.join(joins) {
                    Ok(joined) => joined,
                    Err(error) => self.not_started(error),
                }
            }
            Effect::Prepare {
                restarts,
                restarts_max,
            } => match self.prepare((restarts, restarts_max)) {
                Ok(keeps) => Input::Prepared { keeps },
                Err(error) => self.not_started(error),
            },
            Effect::Start(times) => match self.start(times) {
                Ok(()) => Input::Started,
                Err(error) => self.not_started(error),
            },
            Effect::ReadMembership => Input::Membership(self.membership()),
            Effect::ReadJobEnd => Input::JobEnd(self.explained_end()),
            Effect::ReadCrash(exit) => self.read_crash(exit),
            Effect::ReadEnded => Input::Ended(self.rounds.ended(self.has_store_per_round)),
            Effect::ReadFinished => Input::Finished(self.rounds.finished()),
            Effect::ReportStuck => Input::IsFirstStuck(self.rounds.report_stuck()),
            Effect::ReadFacts => Input::Facts(self.facts()),
            Effect::Stop(stop) => Input::Stopped(Box::new(self.stop(stop))),
            Effect::EnterBarrier(nodes) => {
                self.at_barrier(|board| Ok(exit_barrier::check_in(board, nodes)?))
            }
            Effect::WaitAtBarrier {
                timeout,
                enough,
                seen,
            } => {
                let cancel = self.until_news(seen);
                self.at_barrier(|board| {
                    if let Some(enough) = enough {
                        exit_barrier::open_if(board, enough)?;
                    }
                    exit_barrier::wait(board, Some(timeout), &cancel)
                })
            }
            Effect::ReadDeath(exit) => self.read_death(exit),
            Effect::ReadGroup => self.read_group(),
            Effect::Replace {
                local_rank,
                restarts,
            } => self.replace(local_rank, restarts),
            Effect::Finish(result) => return Done::Finished(*result),
            other => {
                self.tell(other);
                return Done::Nothing;
            }
        };
        Done::Answer(input)
    }

    /// The effects without an answer.
    fn tell(&mut self, effect: Effect) {
        match effect {
            Effect::TellStarted => self.tell_started(),
            Effect::ForkAhead => self.node.forking.fork_ahead(),
            Effect::BeginStop(stop) => self.begin_stop(stop),
            Effect::PublishEnd(end) => self.publish_end(end),
            Effect::Confirm => self.confirm(),
            Effect::CountAtExit => self.rounds.count_at_exit(),
            Effect::ExpectExits(pause) => self.site.remind(Due::Exits, pause),
            Effect::Close => {
                if let Err(error) = self.node.shared.handler.set_closed() {
                    log::warn!("cannot close the rendezvous: {}", in_brief(&error));
                }
            }
            Effect::TellFailed(exit) => {
                // A later one would read what the first one has published as the exits of another node.
                if self.exchange.is_none() {
                    self.exchange = self.start_exchange(&exit);
                }
                self.node.listeners.notify(&AgentEvent::WorkerFailed(&exit));
                self.await_cause(exit.rank);
            }
            Effect::TellLost(exit) => {
                self.node.listeners.notify(&AgentEvent::WorkerLost(&exit));
            }
            Effect::TellStuck(stuck) => {
                self.node
                    .listeners
                    .notify(&AgentEvent::WorkersStuck(&stuck));
            }
            Effect::TellRestarting(why) => {
                self.node
                    .listeners
                    .notify(&AgentEvent::Restarting { why: &why });
            }
            Effect::RoundEnded(summary) => {
                self.stopping = summary.phases.stop;
                let record = self.site.record(*summary, self.began_at);
                let first = record.first_output.into_iter().chain(record.first_progress);
                if let Some(restart) = self.restart.take()
                    && let Some(first) = first.min()
                {
                    tell_restarted(self.node, restart, Some(first));
                }
                self.note_first_failure(&record);
                self.node.listeners.notify(&AgentEvent::RoundEnded(&record));
            }
            Effect::ReplaceAfter(local_rank, pause) => {
                self.site.remind(Due::Replacement(local_rank), pause);
            }
            Effect::AwaitLoss(wait) => self.loss = Some(AwaitedLoss::new(wait, Instant::now())),
            Effect::ExpectMembers(pause) => self.site.remind(Due::Members, pause),
            Effect::OpenRound => self.rounds.open(),
            Effect::EndEntry => self.rounds.end_entry(),
            Effect::TellReplaced(local_rank) => self.tell_replaced(local_rank),
            Effect::Kill(local_rank) => {
                if let Site::Running(running) = &mut self.site {
                    running.workers.kill(local_rank);
                }
            }
            Effect::Log(level, text) => log::log!(target: LOG, level, "{text}"),
            _ => {}
        }
    }

    /// Waits for the next event that concerns the round.
    fn next_event(&mut self) -> Input {
        loop {
            let loss_due = self.loss.as_ref().map(|loss| (loss.due(), Due::Loss));
            let due = self.site.next_due().or(loss_due);
            let event = match due {
                Some((at, _)) => self.node.events.recv_deadline(at),
                None => self.node.events.recv().map_err(RecvTimeoutError::from),
            };
            let event = match (event, due) {
                (Ok(event), _) => event,
                (Err(RecvTimeoutError::Timeout), Some((at, due))) => {
                    self.site.remove_due(due);
                    match due {
                        Due::Loss => {
                            let connected_at = self.node.shared.handler.members_connected_at();
                            let loss = self.loss.as_mut();
                            if let Some(end) = loss.and_then(|it| it.end(connected_at, at)) {
                                self.loss = None;
                                return end;
                            }
                        }
                        Due::Replacement(local_rank) => return Input::ReplaceDue { local_rank },
                        Due::Members => return Input::MembersDue,
                        Due::Exits => return Input::ExitsDue,
                        Due::FirstSign => self.look_for_first_sign(),
                    }
                    continue;
                }
                // The agent itself holds a sender.
                (Err(_), _) => return self.signal(),
            };
            let newest = self.node.starts;
            match event {
                Event::Exit(start, exit) if start == newest => return Input::WorkerExited(exit),
                Event::MembersChanged => return Input::MembersChanged,
                Event::Stuck(start, silent_for) if start == newest => {
                    if let Site::Running(running) = &self.site {
                        return Input::Stuck(Box::new(running.stuck(silent_for)));
                    }
                }
                Event::Exit(..) | Event::Stuck(..) => {}
                Event::Stop => return self.signal(),
                Event::Probe(reply) => {
                    self.node.shared.probes().answer();
                    // The probe may no longer wait.
                    let _ = reply.send(());
                }
                Event::Forward(signal) => {
                    if let (Site::Running(running), Some(signal)) =
                        (&mut self.site, Signal::from_named_raw(signal))
                    {
                        running.workers.signal(signal);
                    }
                }
            }
        }
    }

    /// Tells the listeners of a restart when the workers have written or reported something.
    pub(super) fn await_first_sign(&mut self, started: &StartedWorkers) {
        if started.restarts > 0 {
            self.restart = Some(RestartTimes {
                stopping: std::mem::take(&mut self.stopping),
                joining: started.rendezvous + started.ranks,
                first_sign: None,
                are_preloaded: started.are_preloaded,
            });
            self.site.remind(Due::FirstSign, FIRST_SIGN_INTERVAL);
        }
    }

    fn look_for_first_sign(&mut self) {
        let Site::Running(running) = &mut self.site else {
            return;
        };
        let program = Path::new(self.node.options.command.program());
        let sign = running.first_sign(program);
        if sign.is_none() && running.started_at.elapsed() < FIRST_SIGN_TIMEOUT {
            return self.site.remind(Due::FirstSign, FIRST_SIGN_INTERVAL);
        }
        if let Some(restart) = self.restart.take() {
            tell_restarted(self.node, restart, sign);
        }
    }

    pub(super) fn signal(&self) -> Input {
        Input::Signal(self.node.shared.stop_signal().unwrap_or_default())
    }

    fn not_started(&mut self, error: AgentError) -> Input {
        self.site = Site::Empty;
        Input::NotStarted {
            error: Box::new(error),
            signal: self.node.shared.stop_signal(),
        }
    }

    pub(super) fn membership(&self) -> Option<Box<Membership>> {
        self.node.shared.handler.membership().ok().map(Box::new)
    }
}

fn tell_restarted(node: &Node, restart: RestartTimes, first_sign: Option<Duration>) {
    let times = RestartTimes {
        first_sign,
        ..restart
    };
    node.listeners.notify(&AgentEvent::Restarted(&times));
}

/// How long the connection of a lost node may take to close after the workers of another node have failed.
const CLOSES_WITHIN: Duration = Duration::from_millis(1500);

/// How often the node checks after that time whether all members are connected.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct AwaitedLoss {
    /// The earliest time at which a connection proves that its node was not lost.
    shown_from: Instant,
    ask_at: Instant,
    until: Instant,
}

impl AwaitedLoss {
    /// A wait for at most `wait`.
    pub(super) fn new(wait: Duration, now: Instant) -> Self {
        let shown_from = now + CLOSES_WITHIN;
        Self {
            shown_from,
            ask_at: shown_from,
            until: now + wait,
        }
    }

    /// When the next call of [`end`](Self::end) is due.
    pub(super) fn due(&self) -> Instant {
        self.ask_at.min(self.until)
    }

    /// Returns how the wait ends, if it does. All other members were connected at `connected_at`.
    pub(super) fn end(&mut self, connected_at: Option<Instant>, now: Instant) -> Option<Input> {
        if connected_at.is_some_and(|at| at >= self.shown_from) {
            return Some(Input::NoLoss);
        }
        self.ask_at = now + ASK_INTERVAL;
        (now >= self.until).then_some(Input::LossDue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_ends_early_only_if_a_later_request_shows_all_members() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut loss = AwaitedLoss::new(Duration::from_secs(15), start);
        assert_eq!(loss.due(), at(1500));
        assert!(loss.end(None, at(1500)).is_none());
        // A node may have died after this request.
        assert!(loss.end(Some(at(1499)), at(1600)).is_none());
        assert_eq!(loss.due(), at(1700));
        assert!(matches!(
            loss.end(Some(at(1510)), at(1700)),
            Some(Input::NoLoss)
        ));
        assert!(loss.end(None, at(14_950)).is_none());
        assert_eq!(loss.due(), at(15_000));
        assert!(matches!(loss.end(None, at(15_000)), Some(Input::LossDue)));
    }
}
