//! The agent of one node: joins rounds, and runs the workers of this node in them.
//!
//! Starts workers when a round is complete, stops them when its members change, and reports how the job
//! ended. `elastic-rendezvous` decides which nodes are in a round; [`worker`](crate::worker) starts and
//! stops processes. Installs no signal handlers: callers report signals through an [`AgentHandle`].

mod error;
mod event;
mod fitness;
mod handle;
mod members;
mod options;
mod probes;
mod pulse;
mod record;
mod restarts;
mod started;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::HostPort;
use crossbeam_channel::{Receiver, unbounded};
use elastic_rendezvous::{
    RendezvousError, RendezvousEvent, RendezvousHandler, RendezvousInfo, STATIC_BACKEND, this_host,
};
use rustix::process::Signal;

pub use self::error::AgentError;
use self::event::Listeners;
pub use self::event::{AgentEvent, AgentListener, StuckWorkers};
pub use self::handle::AgentHandle;
use self::handle::{Event, Shared};
use self::members::why_members_changed;
pub use self::options::AgentOptions;
pub use self::probes::Pulse;
use self::record::RoundClock;
pub use self::record::{RoundCause, RoundEnding, RoundPhases, RoundRecord};
use self::restarts::{blame_for_stall, failed_worker, failed_workers};
pub use self::started::{StartedWorker, StartedWorkers};
use crate::clearing::clear_once;
use crate::environment::{self, WorkerEnvironment};
use crate::exit_barrier::{self, ExitBarrier};
use crate::failure::Failures;
use crate::job_end;
use crate::logs::{LinePrefix, LogDirectory};
use crate::old_round;
use crate::output::Console;
use crate::preload::{ForkedWorkers, NotForked, Preloader};
use crate::progress::{Poller, ProgressOptions, ProgressSeen};
use crate::ranks::{RankBlock, RanksError, RoleInfo, exchange_ranks};
use crate::relay::{NodeRelay, NodeRelayError};
use crate::restart_policy::{Decision, RestartPolicy};
use crate::signal_name::name_of;
use crate::watchdog::Watchdog;
use crate::worker::{
    GroupPlan, StartError, StopReport, WorkerExit, WorkerGroup, WorkerOutcome, WorkerPlan,
};
use crate::worker_list;

/// How long workers have to exit when the members of the round change or one of them has failed, as in
/// PyTorch.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// The same for workers that are stuck: most hang in native code, where Python handles no signal, so a longer wait
/// only costs time.
const STUCK_GRACE: Duration = Duration::from_secs(5);

/// How the work of an agent ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum AgentOutcome {
    /// All workers of this node succeeded.
    Succeeded,
    /// Workers of this node failed, and no restart was left.
    Failed(Failures),
    /// A rule for restarts, or another node, ended the job, and no node starts workers again.
    Ended {
        /// Why, as text for a log.
        reason: String,
        /// The workers of this node that failed, if any did.
        failures: Option<Failures>,
    },
    /// The job ended while this node was a spare.
    NotNeeded,
    /// A signal stopped the agent.
    Signalled {
        /// The signal's number.
        signal: i32,
        /// Whether the agent had started workers by then.
        had_workers: bool,
    },
}

/// Why an agent no longer supervises the workers of a round.
#[derive(Debug)]
enum RoundEnd {
    Succeeded,
    Failed,
    Stuck(Stall),
    MembersChanged(String),
    JobEnded(String),
    Signalled(i32),
}

/// Workers of this node that made no progress.
#[derive(Debug, Clone, Copy)]
struct Stall {
    silent_for: Duration,
    /// Whether this node was the first of the round to notice, so that it counts the restart.
    is_first: bool,
}

/// Supervises the workers of one node.
///
/// In PyTorch: `LocalElasticAgent`
/// (`torch/distributed/elastic/agent/server/local_elastic_agent.py`).
#[derive(Debug)]
pub struct ElasticAgent {
    options: AgentOptions,
    host: String,
    handler: Arc<dyn RendezvousHandler>,
    shared: Arc<Shared>,
    events: Receiver<Event>,
    logs: LogDirectory,
    policy: RestartPolicy,
    /// The policy's times are counted from here.
    epoch: Instant,
    /// Why the current round began, and how long its parts have taken.
    cause: RoundCause,
    clock: RoundClock,
    /// The workers of the current round, once they have started.
    started: Option<StartedWorkers>,
    progress: Option<Poller>,
    /// The last round and the one before, where another node may have left the reason for which it ended the job: it
    /// may do so when this node is in the next round already.
    last_rounds: [Option<RendezvousInfo>; 2],
    /// Failures whose restart has not started workers yet.
    failures: Option<Failures>,
    /// How often this agent has started workers.
    generation: u64,
    running: Option<WorkerGroup>,
    /// Of the workers that run.
    relay: Option<NodeRelay>,
    /// The number of the last round with a relay, and the relay's port.
    relay_port: Option<(i64, u16)>,
    preloader: Option<Preloader>,
    /// Why workers were not forked last time: said once.
    not_forked: Option<String>,
    listeners: Listeners,
    /// Of the workers that run.
    watchdog: Option<Watchdog>,
}

impl ElasticAgent {
    /// An agent that meets the other nodes through `handler`. Starts nothing yet. Blocks for up to 2 s if
    /// the options name no [host](AgentOptions::with_host).
    ///
    /// # Errors
    /// [`AgentError::InvalidOption`] for a value that no agent can use.
    pub fn new(
        options: AgentOptions,
        handler: Arc<dyn RendezvousHandler>,
    ) -> Result<Self, AgentError> {
        options.check()?;
        if options.has_relay && !handler.uses_agent_store() {
            return Err(AgentError::InvalidOption {
                option: "relay",
                reason: "needs a workers' store that an agent serves, not the worker with rank 0",
            });
        }
        let (sender, events) = unbounded();
        Ok(Self {
            logs: LogDirectory::new(options.logs.clone(), handler.run_id()),
            host: options.host.clone().unwrap_or_else(this_host::full_name),
            policy: RestartPolicy::new(options.restarts.clone()),
            epoch: Instant::now(),
            cause: RoundCause::Start,
            clock: RoundClock::start(0),
            started: None,
            progress: None,
            last_rounds: [None, None],
            failures: None,
            options,
            shared: Arc::new(Shared::new(Arc::clone(&handler), sender)),
            handler,
            events,
            generation: 0,
            running: None,
            relay: None,
            relay_port: None,
            preloader: None,
            not_forked: None,
            listeners: Listeners::default(),
            watchdog: None,
        })
    }

    /// Adds a listener for later [`AgentEvent`]s. It must not block, except as stated there.
    pub fn add_listener(&mut self, listener: AgentListener) {
        self.listeners.add(listener);
    }

    /// A handle through which other threads report signals.
    #[must_use]
    pub fn handle(&self) -> AgentHandle {
        AgentHandle::new(Arc::clone(&self.shared))
    }

    /// The log directory of this job on this node; `None` before the first workers start, and when nothing is
    /// written to files. When all workers have ended, `None` too if they have written nothing.
    #[must_use]
    pub fn log_directory(&self) -> Option<PathBuf> {
        self.logs.path().map(PathBuf::from)
    }

    /// Runs workers until they succeed, fail without a restart left, or a signal arrives.
    ///
    /// Blocks until then, for hours or days; [`AgentHandle::stop`] ends it. When it returns no worker is
    /// running. The caller closes or leaves the rendezvous: PyTorch closes it unless a signal arrived.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub fn run(&mut self) -> Result<AgentOutcome, AgentError> {
        let events = self.shared.events.clone();
        let listener = move |event: &RendezvousEvent<'_>| {
            if matches!(event, RendezvousEvent::MembershipChanged) {
                // Fails when the agent is dropped.
                let _ = events.send(Event::MembersChanged);
            }
        };
        self.handler.add_listener(Arc::new(listener));
        // Before the rendezvous: it imports while this node waits for others.
        self.start_preloader()?;
        let result = self.run_rounds();
        self.preloader = None;
        self.logs.remove_empty();
        result
    }

    fn run_rounds(&mut self) -> Result<AgentOutcome, AgentError> {
        loop {
            self.clock = RoundClock::start(self.policy.used());
            let round = match self.start_round() {
                Ok(round) => {
                    self.failures = None;
                    round
                }
                Err(error) => {
                    let ending = RoundEnding::NotStarted(error.to_string());
                    self.report_round(
                        ending,
                        &StopReport::default(),
                        &ProgressSeen::default(),
                        None,
                    );
                    if let Some(why) = self.why_join_again(&error) {
                        log::info!("joining another round: {why}");
                        self.cause = RoundCause::MembersChanged(why);
                        continue;
                    }
                    return self.without_round(error);
                }
            };
            self.shared.probes().set_supervising(true);
            let end = self.supervise(&round);
            self.shared.probes().set_supervising(false);
            if let Some(outcome) = self.end_round(&round, end)? {
                return Ok(outcome);
            }
        }
    }

    /// Stops the workers of a round, and decides what follows; `None` joins another round.
    fn end_round(
        &mut self,
        round: &RendezvousInfo,
        end: RoundEnd,
    ) -> Result<Option<AgentOutcome>, AgentError> {
        self.clock.end(|phases| &mut phases.run);
        let is_restart_likely = match &end {
            RoundEnd::MembersChanged(_) => true,
            RoundEnd::Failed | RoundEnd::Stuck(_) => self.policy.left(self.epoch.elapsed()) > 0,
            _ => false,
        };
        if let Some(preloader) = self.preloader.as_mut().filter(|_| is_restart_likely) {
            preloader.fork_ahead();
        }
        let report = match &end {
            // Also ends the processes that workers left behind.
            RoundEnd::Succeeded | RoundEnd::Failed | RoundEnd::JobEnded(_) => {
                self.stop(Signal::TERM, Some(STOP_GRACE))
            }
            RoundEnd::Stuck(_) => self.stop(Signal::TERM, Some(STUCK_GRACE)),
            RoundEnd::MembersChanged(why) => {
                log::info!("restarting the workers: {why}");
                self.listeners.notify(&AgentEvent::Restarting { why });
                self.stop(Signal::TERM, Some(STOP_GRACE))
            }
            RoundEnd::Signalled(signal) => self.stop_by_signal(*signal),
        };
        self.clock.end(|phases| &mut phases.stop);
        let seen = self.progress.take().map(Poller::finish).unwrap_or_default();
        let (ending, cause, next) = match end {
            RoundEnd::Succeeded => (RoundEnding::Succeeded, RoundCause::Start, Ok(None)),
            RoundEnd::Failed => {
                let next = self.after_failure(round, &report, &seen, None);
                (RoundEnding::Failed, RoundCause::Failure, next)
            }
            RoundEnd::Stuck(stall) => {
                let next = self.after_failure(round, &report, &seen, Some(stall));
                (RoundEnding::Stuck, RoundCause::Stuck, next)
            }
            RoundEnd::MembersChanged(why) => {
                let next = self.after_change(round, &report, &seen);
                (
                    RoundEnding::MembersChanged(why.clone()),
                    RoundCause::MembersChanged(why),
                    Ok(next),
                )
            }
            RoundEnd::JobEnded(reason) => {
                let outcome = AgentOutcome::Ended {
                    reason: reason.clone(),
                    failures: None,
                };
                (
                    RoundEnding::JobEnded(reason),
                    RoundCause::Start,
                    Ok(Some(outcome)),
                )
            }
            RoundEnd::Signalled(signal) => {
                let outcome = AgentOutcome::Signalled {
                    signal,
                    had_workers: true,
                };
                (RoundEnding::Signalled, RoundCause::Start, Ok(Some(outcome)))
            }
        };
        let has_succeeded = ending == RoundEnding::Succeeded;
        let reason = match &next {
            Ok(Some(AgentOutcome::Ended { reason, .. })) => Some(reason.clone()),
            _ => None,
        };
        self.report_round(ending, &report, &seen, reason);
        self.cause = cause;
        if has_succeeded {
            return Ok(Some(self.wait_for_others(round)));
        }
        next
    }

    fn report_round(
        &mut self,
        ending: RoundEnding,
        report: &StopReport,
        seen: &ProgressSeen,
        reason: Option<String>,
    ) {
        let (cause, started) = (self.cause.clone(), self.started.take());
        let mut record = self.clock.record(started, cause, ending, report, seen);
        record.reason = reason;
        record.restarts_left = self.policy.left(self.epoch.elapsed());
        self.listeners.notify(&AgentEvent::RoundEnded(&record));
    }

    /// What it means that no round could be joined, or that its workers did not start.
    fn without_round(&mut self, error: AgentError) -> Result<AgentOutcome, AgentError> {
        match error {
            AgentError::Rendezvous(RendezvousError::GracefulExit { .. }) => {
                return Ok(AgentOutcome::NotNeeded);
            }
            AgentError::Rendezvous(RendezvousError::Interrupted { .. })
            | AgentError::Ranks(RanksError::Interrupted)
            | AgentError::Relay(NodeRelayError::Interrupted)
            | AgentError::Start(StartError::Interrupted) => {
                return Ok(AgentOutcome::Signalled {
                    signal: self.shared.stop_signal().unwrap_or_default(),
                    had_workers: self.generation > 0,
                });
            }
            AgentError::Rendezvous(RendezvousError::Closed { .. }) => {
                if let Some(reason) = self.why_job_ended() {
                    let failures = self.failures.take();
                    return Ok(AgentOutcome::Ended { reason, failures });
                }
            }
            _ => {}
        }
        Err(self.with_failures(error))
    }

    /// Joins a round, starts the relay, gets the ranks, and starts the workers.
    ///
    /// The relay comes before the exchange of ranks, which no node leaves before all have come: so a node without a
    /// relay starts no workers in a round where others have one.
    fn start_round(&mut self) -> Result<RendezvousInfo, AgentError> {
        self.pass_health_check()?;
        let joined = self.handler.next_rendezvous();
        self.clock.end(|phases| &mut phases.rendezvous);
        let round = joined?;
        let old = self.last_rounds[1].take();
        self.last_rounds.swap(0, 1);
        self.last_rounds[0] = Some(round.clone());
        let relay = self.relay_in(&round)?;
        let relay_address = relay.as_ref().map(NodeRelay::address).cloned();
        let ranks = self.ranks_in(&round)?;
        self.watchdog = self.options.watchdog(&self.shared)?;
        let plan = self.plan(&round, &ranks, relay_address.as_ref())?;
        self.clock.end(|phases| &mut phases.ranks);
        // Waits for the imports: no time in which workers could make progress.
        let (forked, is_forked_only) = self.forked_workers()?;
        let progress = self.watch_progress()?;
        self.generation += 1;
        let generation = self.generation;
        let events = self.shared.events.clone();
        let listeners = self.listeners.clone();
        let on_exit = move |exit| {
            listeners.notify(&AgentEvent::WorkerExited(&exit));
            // Fails when the agent is dropped.
            let _ = events.send(Event::Exit(generation, exit));
        };
        let console = Console::inherited();
        let kill_switch = self.shared.kill_switch.clone();
        let group =
            WorkerGroup::start_from(forked, is_forked_only, kill_switch, plan, console, on_exit)?;
        if let Some(watchdog) = &self.watchdog {
            watchdog.watch(&group.pids());
        }
        log::debug!(
            "round {}: this node has group rank {} of {}; the workers' store is {}, served by {}{}",
            round.round,
            round.rank,
            round.world_size,
            round.bootstrap.master,
            if round.bootstrap.is_agent_store {
                "a launcher"
            } else {
                "the worker with rank 0"
            },
            relay_address.as_ref().map_or_else(String::new, |address| {
                format!(", and reached through the relay at {address}")
            }),
        );
        log::debug!(
            "world size {}: {}",
            ranks.world_size,
            worker_list::ranks_with_pids(ranks.first_rank, &group.pids()),
        );
        let started = self.started(&round, &ranks, relay_address, &group);
        self.clock.end_start();
        self.listeners.notify(&AgentEvent::WorkersStarted(&started));
        self.started = Some(started);
        self.progress = progress;
        self.running = Some(group);
        self.relay = relay;
        if let Some(old) = old.filter(|_| self.has_store_per_round()) {
            old_round::forget(&old, &round);
        }
        Ok(round)
    }

    fn start_preloader(&mut self) -> Result<(), AgentError> {
        let options = &self.options;
        let Some(preload) = options.preload.clone() else {
            return Ok(());
        };
        let inherited = options.environment.iter().cloned();
        let (variables, varying) = environment::common(inherited, options.virtual_local_rank);
        let workers = options.local_world_size;
        let plan = preload
            .plan(&options.command, workers, variables, varying)
            .map_err(|reason| AgentError::InvalidOption {
                option: "preload",
                reason,
            })?;
        let started = Preloader::start(plan).map_err(|source| StartError::System { source })?;
        self.preloader = Some(started);
        Ok(())
    }

    /// Workers of a template that wait to be started, and whether only these may be started.
    fn forked_workers(&mut self) -> Result<(Option<ForkedWorkers>, bool), StartError> {
        let Some(preloader) = &mut self.preloader else {
            return Ok((None, false));
        };
        let is_required = preloader.is_required();
        match preloader.fork(self.shared.stopping.triggered()) {
            Ok(forked) => Ok((Some(forked), is_required)),
            Err(NotForked::Interrupted) => Err(StartError::Interrupted),
            Err(NotForked::Declined(why)) if is_required => Err(StartError::Forked {
                source: io::Error::other(why),
            }),
            Err(NotForked::Declined(why)) => {
                if self.not_forked.as_ref() != Some(&why) {
                    log::warn!("preload: {why}; workers start without it");
                    self.not_forked = Some(why);
                }
                Ok((None, false))
            }
        }
    }

    /// Starts the relay of a round, if this agent has relays.
    fn relay_in(&mut self, round: &RendezvousInfo) -> Result<Option<NodeRelay>, AgentError> {
        if !self.options.has_relay {
            return Ok(None);
        }
        // A node of a static rendezvous starts its workers again without the others.
        let known = self.relay_port.filter(|(number, _)| *number == round.round);
        let relay = NodeRelay::start(
            round,
            self.options.relay_port,
            known.map(|(_, port)| port),
            &|| self.is_over(round),
        )?;
        self.relay_port = Some((round.round, relay.address().port()));
        Ok(Some(relay))
    }

    fn started(
        &self,
        round: &RendezvousInfo,
        ranks: &RankBlock,
        relay: Option<HostPort>,
        group: &WorkerGroup,
    ) -> StartedWorkers {
        let workers = group.pids().into_iter().enumerate();
        let first = ranks.assignment(
            round.rank,
            round.world_size,
            self.options.local_world_size,
            0,
        );
        StartedWorkers {
            round: round.round,
            node_rank: round.rank,
            nodes: round.world_size,
            world_size: ranks.world_size,
            first_role_rank: first.role_rank,
            role_world_size: first.role_world_size,
            master: round.bootstrap.master.clone(),
            relay,
            credentials: round.bootstrap.credentials.clone(),
            is_agent_store: round.bootstrap.is_agent_store,
            are_preloaded: group.are_forked(),
            restarts: usize::try_from(self.generation - 1).unwrap_or(usize::MAX),
            restarts_used: self.policy.used(),
            rendezvous: self.clock.phases().rendezvous,
            ranks: self.clock.phases().ranks,
            workers: workers
                .map(|(local_rank, pid)| {
                    StartedWorker::new(ranks.first_rank + local_rank, local_rank, pid)
                })
                .collect(),
        }
    }

    fn ranks_in(&self, round: &RendezvousInfo) -> Result<RankBlock, AgentError> {
        let local_world_size = self.options.local_world_size;
        if self.options.are_nodes_identical {
            return Ok(RankBlock::identical(
                round.rank,
                round.world_size,
                local_world_size,
            ));
        }
        clear_once(round).map_err(RanksError::Store)?;
        let own = RoleInfo {
            role: self.options.role.clone(),
            local_world_size,
        };
        Ok(exchange_ranks(
            &*round.store,
            round.rank,
            round.world_size,
            &own,
            round.store.timeout(),
            &|| self.is_over(round),
        )?)
    }

    /// Whether to stop waiting for the other nodes of a round: this agent is stopped, or the members have changed, as
    /// when a node was lost after it had joined.
    fn is_over(&self, round: &RendezvousInfo) -> bool {
        self.shared.stop_signal().is_some() || self.why_members_differ(round).is_some()
    }

    /// Why the members of a complete round are no longer the ones with which workers should run.
    fn why_members_differ(&self, round: &RendezvousInfo) -> Option<String> {
        match self.why_restart(round, &mut true) {
            Some(RoundEnd::MembersChanged(why)) => Some(why),
            _ => None,
        }
    }

    /// Why a round that has started no workers is followed by another one; `None` if it is not.
    fn why_join_again(&self, error: &AgentError) -> Option<String> {
        let is_cut = matches!(
            error,
            AgentError::Ranks(RanksError::Interrupted)
                | AgentError::Relay(NodeRelayError::Interrupted)
        );
        let round = self.last_rounds[0].as_ref().filter(|_| is_cut)?;
        match self.shared.stop_signal() {
            Some(_) => None,
            None => self.why_members_differ(round),
        }
    }

    fn plan(
        &mut self,
        round: &RendezvousInfo,
        ranks: &RankBlock,
        relay: Option<&HostPort>,
    ) -> Result<GroupPlan, AgentError> {
        let options = &self.options;
        let restart_count = self.policy.used();
        let restarts_max = restart_count.saturating_add(self.policy.left(self.epoch.elapsed()));
        let logs = self
            .logs
            .start_round(restart_count, options.local_world_size)?;
        let short_host = self.host.split('.').next().unwrap_or_default();
        let mut workers = Vec::with_capacity(options.local_world_size);
        for (local_rank, logs) in logs.workers.into_iter().enumerate() {
            let assignment = ranks.assignment(
                round.rank,
                round.world_size,
                options.local_world_size,
                local_rank,
            );
            let mut environment =
                WorkerEnvironment::new(assignment, self.handler.run_id(), &round.bootstrap.master)
                    .with_role(&options.role)
                    .with_restarts(restart_count, restarts_max)
                    .with_agent_store(round.bootstrap.is_agent_store)
                    .with_virtual_local_rank(options.virtual_local_rank);
            if let Some(relay) = relay {
                environment = environment.with_relay(relay);
            }
            if let Some(path) = &logs.error_file {
                environment = environment.with_error_file(path);
            }
            // Counted up when the workers have a plan.
            let starts = usize::try_from(self.generation).unwrap_or(usize::MAX);
            let progress_file = options.progress.as_ref().map(|progress| {
                ProgressOptions::worker_file(&progress.directory, starts, local_rank)
            });
            if let Some(path) = &progress_file {
                environment = environment.with_progress_file(path);
            }
            let debug_socket = options
                .debug_sockets
                .as_deref()
                .map(|directory| AgentOptions::debug_socket(directory, starts, local_rank));
            if let Some(path) = &debug_socket {
                environment = environment.with_debug_socket(path);
            }
            if let Some(watchdog) = &self.watchdog {
                environment = environment.with_timer_file(watchdog.path());
            }
            let prefix = LinePrefix {
                role: &options.role,
                local_rank,
                rank: assignment.rank,
                host: short_host,
            };
            let command = options.command.for_local_rank(local_rank);
            let worker = WorkerPlan::new(assignment.rank, local_rank, command)
                .with_environment(environment.variables(options.environment.iter().cloned())?)
                .with_logs(logs)
                .with_line_prefix(prefix.text(options.line_prefix_template.as_deref()));
            workers.push(worker);
        }
        Ok(GroupPlan::new(workers)
            .with_filtered_stdout(logs.filtered_stdout)
            .with_filtered_stderr(logs.filtered_stderr))
    }

    /// Waits for events of a round with running workers, until one of them ends the round.
    fn supervise(&mut self, round: &RendezvousInfo) -> RoundEnd {
        let mut succeeded = 0;
        let mut is_closing_logged = false;
        if let Some(end) = self.why_restart(round, &mut is_closing_logged) {
            return end;
        }
        loop {
            // The agent itself holds a sender.
            let Ok(event) = self.events.recv() else {
                return RoundEnd::Failed;
            };
            match event {
                Event::Exit(generation, exit) if generation == self.generation => {
                    if !exit.exit.is_success() {
                        log::error!(
                            "worker with rank {} (local rank {}, pid {}) failed: {}",
                            exit.rank,
                            exit.local_rank,
                            exit.pid,
                            exit.exit,
                        );
                        self.listeners.notify(&AgentEvent::WorkerFailed(&exit));
                        self.end_others_at(round, &exit);
                        return RoundEnd::Failed;
                    }
                    succeeded += 1;
                    if succeeded == self.options.local_world_size {
                        return RoundEnd::Succeeded;
                    }
                }
                Event::Exit(..) => {}
                Event::MembersChanged => {
                    if let Some(end) = self.why_restart(round, &mut is_closing_logged) {
                        return end;
                    }
                }
                Event::Stuck(generation, silent) if generation == self.generation => {
                    return self.stuck(round, silent);
                }
                Event::Stuck(..) => {}
                Event::Stop => {
                    return RoundEnd::Signalled(self.shared.stop_signal().unwrap_or_default());
                }
                Event::Probe(reply) => {
                    self.shared.probes().answer();
                    // The probe may no longer wait.
                    let _ = reply.send(());
                }
                Event::Forward(signal) => {
                    if let (Some(group), Some(signal)) =
                        (self.running.as_mut(), Signal::from_named_raw(signal))
                    {
                        group.signal(signal);
                    }
                }
            }
        }
    }

    /// Why the workers have to stop, mostly to restart in another round; `None` if they keep running.
    fn why_restart(
        &self,
        round: &RendezvousInfo,
        is_closing_logged: &mut bool,
    ) -> Option<RoundEnd> {
        // A store that does not answer, as when its host has failed, does not stop workers that run. The
        // handler has logged the error.
        let membership = self.handler.membership().ok()?;
        if membership.is_closed {
            if !*is_closing_logged {
                *is_closing_logged = true;
                // Written before the closing.
                if let Some(reason) = self.why_job_ended() {
                    log::warn!("stopping the workers: {reason}");
                    return Some(RoundEnd::JobEnded(reason));
                }
                log::warn!(
                    "another node closed the rendezvous: the workers keep running, but cannot be restarted"
                );
            }
            return None;
        }
        let why = why_members_changed(&membership)?;
        if membership.waiting.is_empty() && !membership.is_evicted {
            // A PyTorch node writes no heartbeat while it waits in the exit barrier.
            let finished = exit_barrier::checked_in(&*round.store).unwrap_or(0);
            if i64::try_from(membership.departed()).unwrap_or(i64::MAX) <= finished {
                return None;
            }
        }
        Some(RoundEnd::MembersChanged(why))
    }

    /// Starts to watch the progress of the workers that are about to start.
    fn watch_progress(&self) -> Result<Option<Poller>, AgentError> {
        let Some(progress) = &self.options.progress else {
            return Ok(None);
        };
        let starts = usize::try_from(self.generation).unwrap_or(usize::MAX);
        let local_ranks = 0..self.options.local_world_size;
        let own = local_ranks.map(|local_rank| {
            ProgressOptions::worker_file(&progress.directory, starts, local_rank)
        });
        let mut directories = vec![own.collect()];
        directories.extend(progress.file.clone().map(|file| vec![file]));
        let (events, generation) = (self.shared.events.clone(), self.generation + 1);
        let on_stuck = move |silent| {
            // Fails when the agent is dropped.
            let _ = events.send(Event::Stuck(generation, silent));
        };
        Poller::start(
            directories,
            progress.timeout,
            progress.first_timeout,
            on_stuck,
        )
        .map(Some)
        .map_err(|source| AgentError::Start(StartError::System { source }))
    }

    /// Reports workers that make no progress, which still run.
    fn stuck(&self, round: &RendezvousInfo, silent_for: Duration) -> RoundEnd {
        let seen = self.progress.as_ref().map(Poller::seen).unwrap_or_default();
        let workers = self.started.iter().flat_map(|started| &started.workers);
        let steps = workers
            .zip(&seen.steps)
            .map(|(worker, step)| (worker.rank, *step));
        let stuck = StuckWorkers {
            silent_for,
            steps: steps.collect(),
            shared_step: seen
                .steps
                .get(self.options.local_world_size)
                .copied()
                .flatten(),
        };
        log::error!("{stuck}");
        // Before the workers are stopped: those of other nodes may fail because of that.
        let is_first = !self.has_store_per_round()
            || job_end::report_stuck(&*round.store).unwrap_or_else(|error| {
                log::warn!("cannot tell the other nodes that the workers are stuck: {error}");
                true
            });
        self.listeners.notify(&AgentEvent::WorkersStuck(&stuck));
        RoundEnd::Stuck(Stall {
            silent_for,
            is_first,
        })
    }

    /// Whether keys of an earlier round are out of sight. All rounds of a static rendezvous have one store.
    fn has_store_per_round(&self) -> bool {
        self.handler.backend() != STATIC_BACKEND
    }

    /// What it means for the agent that workers failed, or were stuck; `None` joins another round.
    fn after_failure(
        &mut self,
        round: &RendezvousInfo,
        report: &StopReport,
        seen: &ProgressSeen,
        stall: Option<Stall>,
    ) -> Result<Option<AgentOutcome>, AgentError> {
        let mut failures = report.failures();
        let failed = failed_workers(failures.as_ref());
        let now = self.epoch.elapsed();
        if let (Some(stall), Some(failures)) = (stall, &mut failures) {
            blame_for_stall(failures, seen, stall.silent_for);
        }
        let may_restart = report.abandoned.is_empty() && self.policy.left(now) > 0;
        if let Some(reason) = self.policy.final_exit(&failed) {
            return Ok(Some(self.end_job(round, reason, failures)));
        }
        if may_restart && let Some(reason) = self.why_job_ended() {
            return Ok(Some(AgentOutcome::Ended { reason, failures }));
        }
        let is_counted_elsewhere = match stall {
            Some(stall) => !stall.is_first,
            None => self.has_store_per_round() && job_end::is_any_stuck(&*round.store),
        };
        if report.abandoned.is_empty() && is_counted_elsewhere {
            self.policy.note_progress(seen.round);
            self.failures = failures;
            let why = "the workers of another node were stuck first";
            log::info!("restarting the workers: {why}");
            self.listeners.notify(&AgentEvent::Restarting { why });
            return Ok(None);
        }
        let decision = if report.abandoned.is_empty() {
            self.policy.after_failure(now, &failed, seen.round)
        } else {
            Decision::Exhausted
        };
        match (decision, stall) {
            (Decision::Restart, _) => {}
            (Decision::Exhausted, None) => return Ok(failures.map(AgentOutcome::Failed)),
            (Decision::Exhausted, Some(_)) => {
                let reason = "the workers made no progress, and no restart is left".to_owned();
                return Ok(Some(AgentOutcome::Ended { reason, failures }));
            }
            (Decision::EndJob(reason), _) => {
                return Ok(Some(self.end_job(round, reason, failures)));
            }
        }
        self.failures = failures;
        let finished = exit_barrier::checked_in(&*round.store).unwrap_or(0);
        if finished > 0 {
            // They wait in the exit barrier of this round and join no other.
            return Err(self.with_failures(AgentError::OthersFinished {
                finished: usize::try_from(finished).unwrap_or(usize::MAX),
                world_size: round.world_size,
            }));
        }
        let (why, cause) = match stall {
            None => ("a worker failed", "a failure"),
            Some(_) => ("the workers were stuck", "they were stuck"),
        };
        let left = self.policy.left(now);
        log::warn!(
            "restarting the workers after {cause}: {left} of {} restarts left",
            self.policy.used().saturating_add(left),
        );
        self.listeners.notify(&AgentEvent::Restarting { why });
        Ok(None)
    }

    /// The same when the members of the round changed. A worker may have failed at the same time, most often because
    /// of that.
    fn after_change(
        &mut self,
        round: &RendezvousInfo,
        report: &StopReport,
        seen: &ProgressSeen,
    ) -> Option<AgentOutcome> {
        self.policy.note_progress(seen.round);
        let has_failed = |end: &WorkerOutcome| !end.exit.is_success() && !end.was_stopped;
        let failures = report
            .outcomes
            .iter()
            .any(has_failed)
            .then(|| report.failures())?;
        let reason = self.policy.final_exit(&failed_workers(failures.as_ref()))?;
        Some(self.end_job(round, reason, failures))
    }

    /// Ends the job on all nodes. The caller closes the rendezvous.
    fn end_job(
        &self,
        round: &RendezvousInfo,
        reason: String,
        failures: Option<Failures>,
    ) -> AgentOutcome {
        self.tell_end(round, &reason);
        AgentOutcome::Ended { reason, failures }
    }

    fn tell_end(&self, round: &RendezvousInfo, reason: &str) {
        if let Err(error) = job_end::publish(&*round.store, &self.host, reason) {
            log::warn!("cannot tell the other nodes why the job ends: {error}");
        }
    }

    /// Ends the job on the other nodes already now, if the exit code of a worker asks for it: the workers of this node
    /// may take their time to stop.
    fn end_others_at(&self, round: &RendezvousInfo, exit: &WorkerExit) {
        if let Some(reason) = self.policy.final_exit(&[failed_worker(exit)]) {
            self.tell_end(round, &reason);
            if let Err(error) = self.handler.set_closed() {
                log::warn!("cannot close the rendezvous: {error}");
            }
        }
    }

    /// Why another node ended the job; `None` if none did.
    fn why_job_ended(&self) -> Option<String> {
        let mut rounds = self.last_rounds.iter().flatten();
        rounds.find_map(|round| job_end::read(&*round.store))
    }

    /// Adds the failures that made a restart necessary to the error that prevented it.
    fn with_failures(&mut self, error: AgentError) -> AgentError {
        match self.failures.take() {
            None => error,
            Some(failures) => AgentError::NotRestarted {
                source: Box::new(error),
                failures,
            },
        }
    }

    /// The report on failures, as PyTorch's launcher writes it.
    #[must_use]
    pub fn summary(&self, failures: &Failures) -> String {
        failures.summary(
            &self.options.name,
            &self.host,
            crate::failure::local_time_text,
        )
    }

    fn wait_for_others(&self, round: &RendezvousInfo) -> AgentOutcome {
        let started = Instant::now();
        let is_cancelled = || {
            self.shared.stop_signal().is_some()
                || self.handler.membership().is_ok_and(|membership| {
                    let is_alone = membership.departed() + 1 >= round.world_size;
                    // A node that fails without a restart left closes the rendezvous and never checks in.
                    is_alone || (membership.is_closed && started.elapsed() >= STOP_GRACE)
                })
        };
        let timeout = self.options.exit_barrier_timeout;
        match exit_barrier::wait_for_others(&*round.store, round.world_size, timeout, &is_cancelled)
        {
            ExitBarrier::Open => {}
            ExitBarrier::Cancelled => {
                if let Some(signal) = self.shared.stop_signal() {
                    return AgentOutcome::Signalled {
                        signal,
                        had_workers: true,
                    };
                }
                log::warn!(
                    "the workers of this node succeeded, but the other nodes left the job without \
                     reporting success"
                );
            }
            ExitBarrier::TimedOut { arrived } => log::warn!(
                "the workers of this node succeeded; after {} s, {} of {} nodes have reported success: \
                 exiting without the others",
                started.elapsed().as_secs(),
                arrived.map_or("an unknown number".to_owned(), |arrived| arrived
                    .to_string()),
                round.world_size,
            ),
            ExitBarrier::Failed(error) => log::warn!(
                "the workers of this node succeeded; cannot wait for the other nodes to finish: {error}"
            ),
        }
        AgentOutcome::Succeeded
    }

    fn stop_by_signal(&mut self, signal: i32) -> StopReport {
        let timeout = self.options.shutdown_timeout;
        let sent = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
        let running = self.running.as_mut().map(WorkerGroup::running_text);
        self.begin_stop(sent);
        let kill = timeout.map_or_else(String::new, |timeout| {
            format!("after {} s, or ", timeout.as_secs())
        });
        log::info!(
            "received {}: passed it to the workers ({}); SIGKILL follows {kill}at once when the launcher \
             gets a second signal",
            name_of(signal),
            running.unwrap_or_default(),
        );
        self.finish_stop(sent, timeout)
    }

    fn stop(&mut self, signal: Signal, grace: Option<Duration>) -> StopReport {
        self.begin_stop(signal);
        self.finish_stop(signal, grace)
    }

    /// Sends the signal: before anything that could take time.
    fn begin_stop(&mut self, signal: Signal) {
        if let Some(group) = &mut self.running {
            self.listeners.notify(&AgentEvent::Stopping);
            group.send_stop(signal);
        }
    }

    fn finish_stop(&mut self, signal: Signal, grace: Option<Duration>) -> StopReport {
        let Some(group) = self.running.take() else {
            return StopReport::default();
        };
        let report = group.stop(signal, grace, &self.shared.kill_switch);
        // Until then, timers end workers that do not stop.
        self.watchdog = None;
        if let Some(relay) = self.relay.take() {
            relay.end();
        }
        if !report.killed.is_empty() {
            log::warn!(
                "killed workers that did not exit in time: local rank {}",
                worker_list::ranks(&report.killed),
            );
        }
        report
    }
}
