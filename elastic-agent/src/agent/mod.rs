//! The agent of one node: from rendezvous to rendezvous, with workers in between.
//!
//! Starts workers when a round is complete, stops them when the round is not what it was, and says how
//! it ended. How nodes meet is `elastic-rendezvous`'s business, how processes are started and stopped
//! `worker`'s. Installs no signal handlers: whoever does tells the agent through its [`AgentHandle`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use elastic_rendezvous::{
    Membership, RendezvousError, RendezvousEvent, RendezvousHandler, RendezvousInfo,
    clear_workers_store,
};
use rustix::process::Signal;

use crate::command_line::CommandLine;
use crate::environment::{EnvironmentError, WorkerEnvironment, worker_environment};
use crate::exit_barrier::{self, ExitBarrier};
use crate::failure::{Failures, signal_name};
use crate::logs::{LinePrefix, LogDirectory, LogDirectoryError, LogOptions};
use crate::output::Console;
use crate::ranks::{RankBlock, RanksError, RoleInfo, exchange_ranks};
use crate::worker::{
    GroupPlan, Hurry, StartError, StopReport, WorkerExit, WorkerGroup, WorkerPlan, roll,
};

/// How long nodes whose workers have succeeded wait for the others, as in PyTorch.
pub const EXIT_BARRIER_TIMEOUT: Duration = Duration::from_secs(300);

/// How long workers have to end when nodes come or go, or one of them has failed, as in PyTorch.
pub const STOP_GRACE: Duration = Duration::from_secs(30);

/// A message about changed members names this many at most.
const REASONS_SHOWN_MAX: usize = 8;

/// What an agent is to run, and how.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// What each worker executes.
    pub command: CommandLine,
    /// The name of what is run, for the report on failures.
    pub name: String,
    /// How many workers this node has.
    pub local_world_size: usize,
    /// What they do.
    pub role: String,
    /// How often workers are started again after one has failed.
    pub max_restarts: usize,
    /// How long workers have to end after a signal to the agent.
    pub shutdown_timeout: Duration,
    /// How long nodes whose workers have succeeded wait for the others.
    pub exit_barrier_timeout: Duration,
    /// Where output goes.
    pub logs: LogOptions,
    /// What stands before lines that are shown as well as written to files.
    pub line_prefix_template: Option<String>,
    /// Whether each worker sees one device only and takes itself for local rank 0.
    pub virtual_local_rank: bool,
    /// Whether all nodes have as many workers of one role, so that ranks need not be exchanged
    /// (`TORCH_ELASTIC_WORKER_IDENTICAL`). All nodes must agree.
    pub are_nodes_identical: bool,
    /// The environment that workers inherit.
    pub environment: Vec<(OsString, OsString)>,
    /// This machine's full name, for reports.
    pub host: String,
}

/// How the agent's work ended, when nothing was wrong with the agent itself.
#[derive(Debug)]
#[non_exhaustive]
pub enum AgentOutcome {
    /// All workers of this node have succeeded.
    Succeeded,
    /// Workers of this node have failed more often than they may.
    Failed(Failures),
    /// The job has ended while this node was a spare.
    NotNeeded,
    /// A signal came.
    Signalled {
        /// Its number.
        signal: i32,
        /// Whether workers had been started before.
        had_workers: bool,
    },
}

/// What keeps an agent from doing its work.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// There is no round, or no knowing.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// There is a round, but no ranks.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// Workers could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// There is no environment for a worker.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// There is no place for logs.
    #[error(transparent)]
    Logs(#[from] LogDirectoryError),
    /// Nodes of this round that would be needed for another one have finished.
    #[error("{finished} of {world_size} nodes have finished already")]
    OthersFinished {
        /// So many nodes have succeeded.
        finished: usize,
        /// Of so many.
        world_size: usize,
    },
    /// Workers have failed, and there are no others in their place.
    #[error(
        "the worker with rank {} has failed ({}), and the workers cannot be restarted: {source}",
        failures.first().rank,
        failures.first().exit
    )]
    NotRestarted {
        /// Why there are none.
        source: Box<Self>,
        /// Why others were needed.
        failures: Failures,
    },
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for AgentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Tells an agent about signals, from any thread.
#[derive(Debug, Clone)]
pub struct AgentHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    handler: Arc<dyn RendezvousHandler>,
    events: Sender<Event>,
    hurry: Hurry,
    /// The first signal that is to end the agent, 0 for none.
    ending_signal: AtomicI32,
}

#[derive(Debug)]
enum Event {
    /// A worker of the round with this number, counted by the agent, has ended.
    Exit(u64, WorkerExit),
    Membership,
    /// The agent is to end: look at the shared flag.
    End,
    /// To be passed on to the workers.
    Forward(i32),
}

/// How watching over running workers ended.
#[derive(Debug)]
enum Watched {
    Succeeded,
    Failed,
    MembersChanged(String),
    Signalled(i32),
}

/// Supervises the workers of one node.
///
/// In PyTorch: `LocalElasticAgent`
/// (`torch/distributed/elastic/agent/server/local_elastic_agent.py`).
#[derive(Debug)]
pub struct ElasticAgent {
    options: AgentOptions,
    handler: Arc<dyn RendezvousHandler>,
    shared: Arc<Shared>,
    events: Receiver<Event>,
    logs: LogDirectory,
    remaining_restarts: usize,
    /// Those after which workers have not started again yet.
    failures: Option<Failures>,
    generation: u64,
    running: Option<WorkerGroup>,
}

impl AgentHandle {
    /// Ends the agent: its workers get `signal` and have the shutdown timeout to end. The second call
    /// kills them at once. A join that waits is given up.
    pub fn end(&self, signal: i32) {
        let shared = &self.shared;
        let first =
            shared
                .ending_signal
                .compare_exchange(0, signal, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            log::warn!("{} again: killing what still runs", name_of(signal));
            shared.hurry.hurry();
        }
        shared.handler.interrupt();
        // The agent may have ended.
        let _ = shared.events.send(Event::End);
    }

    /// Passes a signal on to the workers, without any other effect.
    pub fn forward(&self, signal: i32) {
        // The agent may have ended.
        let _ = self.shared.events.send(Event::Forward(signal));
    }
}

impl ElasticAgent {
    /// An agent that meets the others through `handler`. Starts nothing yet.
    #[must_use]
    pub fn new(options: AgentOptions, handler: Arc<dyn RendezvousHandler>) -> Self {
        let (sender, events) = unbounded();
        let shared = Arc::new(Shared {
            handler: Arc::clone(&handler),
            events: sender,
            hurry: Hurry::new(),
            ending_signal: AtomicI32::new(0),
        });
        Self {
            logs: LogDirectory::new(options.logs.clone(), handler.run_id()),
            remaining_restarts: options.max_restarts,
            failures: None,
            options,
            handler,
            shared,
            events,
            generation: 0,
            running: None,
        }
    }

    /// To tell the agent about signals.
    #[must_use]
    pub fn handle(&self) -> AgentHandle {
        AgentHandle {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Where the logs of this job are, once workers have been started.
    #[must_use]
    pub fn log_directory(&self) -> Option<PathBuf> {
        self.logs.path().map(PathBuf::from)
    }

    /// Runs workers until they have succeeded, or have failed for good, or a signal has come. Blocks so
    /// long. Afterwards no worker is left; whether the rendezvous is closed is up to the caller (PyTorch
    /// closes it unless a signal came).
    ///
    /// # Errors
    /// See [`AgentError`].
    pub fn run(&mut self) -> Result<AgentOutcome, AgentError> {
        let events = self.shared.events.clone();
        let listener = move |event: &RendezvousEvent<'_>| {
            if matches!(event, RendezvousEvent::MembershipChanged) {
                // The agent may have ended.
                let _ = events.send(Event::Membership);
            }
        };
        self.handler.add_listener(Arc::new(listener));
        loop {
            let round = match self.begin_round() {
                Ok(round) => {
                    self.failures = None;
                    round
                }
                Err(AgentError::Rendezvous(RendezvousError::GracefulExit { .. })) => {
                    return Ok(AgentOutcome::NotNeeded);
                }
                Err(
                    AgentError::Rendezvous(RendezvousError::Interrupted { .. })
                    | AgentError::Ranks(RanksError::Interrupted),
                ) => {
                    return Ok(AgentOutcome::Signalled {
                        signal: self.shared.ending_signal.load(Ordering::Acquire),
                        had_workers: self.generation > 0,
                    });
                }
                Err(error) => return Err(self.with_failures(error)),
            };
            match self.watch(&round) {
                Watched::Succeeded => {
                    // Also ends what workers have left behind.
                    self.stop(Signal::TERM, STOP_GRACE);
                    return Ok(self.wait_for_others(&round));
                }
                Watched::Failed => {
                    let report = self.stop(Signal::TERM, STOP_GRACE);
                    if let Some(outcome) = self.after_failure(&round, &report)? {
                        return Ok(outcome);
                    }
                }
                Watched::MembersChanged(why) => {
                    log::info!("restarting the workers: {why}");
                    self.stop(Signal::TERM, STOP_GRACE);
                }
                Watched::Signalled(signal) => {
                    let timeout = self.options.shutdown_timeout;
                    let running = self.running.as_mut().map(WorkerGroup::running_text);
                    log::info!(
                        "{}: ending the workers, {}, which have {} s; the same signal again kills \
                         them at once",
                        name_of(signal),
                        running.unwrap_or_default(),
                        timeout.as_secs(),
                    );
                    self.stop(
                        Signal::from_named_raw(signal).unwrap_or(Signal::TERM),
                        timeout,
                    );
                    return Ok(AgentOutcome::Signalled {
                        signal,
                        had_workers: true,
                    });
                }
            }
        }
    }

    /// A rendezvous, ranks, and workers.
    fn begin_round(&mut self) -> Result<RendezvousInfo, AgentError> {
        let round = self.handler.next_rendezvous()?;
        let ranks = self.ranks_of(&round)?;
        let plan = self.plan(&round, &ranks)?;
        self.generation += 1;
        let generation = self.generation;
        let events = self.shared.events.clone();
        let group = WorkerGroup::start(plan, Console::inherited(), move |exit| {
            // The agent may have ended.
            let _ = events.send(Event::Exit(generation, exit));
        })?;
        log::info!(
            "round {}: this node has group rank {} of {}; the workers' store is {}, served by {}",
            round.round,
            round.rank,
            round.world_size,
            round.bootstrap.master,
            if round.bootstrap.is_agent_store {
                "a launcher"
            } else {
                "the worker with rank 0"
            },
        );
        log::info!(
            "world size {}: {}",
            ranks.world_size,
            roll::ranks_with_pids(ranks.first_rank, &group.pids()),
        );
        self.running = Some(group);
        Ok(round)
    }

    fn ranks_of(&self, round: &RendezvousInfo) -> Result<RankBlock, AgentError> {
        let local_world_size = self.options.local_world_size;
        if self.options.are_nodes_identical {
            return Ok(RankBlock::identical(
                round.rank,
                round.world_size,
                local_world_size,
            ));
        }
        // All old workers have ended, and none can begin before this node has told its part.
        clear_workers_store(&round.bootstrap);
        let own = RoleInfo {
            role: self.options.role.clone(),
            local_world_size,
        };
        let is_interrupted = || self.shared.ending_signal.load(Ordering::Acquire) != 0;
        Ok(exchange_ranks(
            &*round.store,
            round.rank,
            round.world_size,
            &own,
            round.store.timeout().unwrap_or(Duration::MAX),
            &is_interrupted,
        )?)
    }

    fn plan(&mut self, round: &RendezvousInfo, ranks: &RankBlock) -> Result<GroupPlan, AgentError> {
        let options = &self.options;
        let restart_count = options.max_restarts - self.remaining_restarts;
        let logs = self
            .logs
            .begin_round(restart_count, options.local_world_size)?;
        let short_host = options.host.split('.').next().unwrap_or_default();
        let mut workers = Vec::with_capacity(options.local_world_size);
        for (local_rank, logs) in logs.workers.into_iter().enumerate() {
            let assignment = ranks.assignment(
                round.rank,
                round.world_size,
                options.local_world_size,
                local_rank,
            );
            let environment = worker_environment(
                &WorkerEnvironment {
                    assignment,
                    role: &options.role,
                    master_addr: round.bootstrap.master.host(),
                    master_port: round.bootstrap.master.port(),
                    restart_count,
                    max_restarts: options.max_restarts,
                    run_id: self.handler.run_id(),
                    use_agent_store: round.bootstrap.is_agent_store,
                    error_file: logs.error_file.as_deref(),
                    virtual_local_rank: options.virtual_local_rank,
                },
                options.environment.iter().cloned(),
            )?;
            let prefix = LinePrefix {
                role: &options.role,
                local_rank,
                rank: assignment.rank,
                host: short_host,
            };
            workers.push(WorkerPlan {
                local_rank,
                rank: assignment.rank,
                command: options.command.for_local_rank(local_rank),
                environment,
                logs,
                line_prefix: prefix.text(options.line_prefix_template.as_deref()),
            });
        }
        Ok(GroupPlan {
            workers,
            filtered_stdout: logs.filtered_stdout,
            filtered_stderr: logs.filtered_stderr,
        })
    }

    /// Watches over running workers until something has to be done.
    fn watch(&mut self, round: &RendezvousInfo) -> Watched {
        let mut succeeded = 0;
        let mut is_closing_told = false;
        if let Some(why) = self.why_restart(round, &mut is_closing_told) {
            return Watched::MembersChanged(why);
        }
        loop {
            // The agent holds a sender itself.
            let Ok(event) = self.events.recv() else {
                return Watched::Failed;
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
                        return Watched::Failed;
                    }
                    succeeded += 1;
                    if succeeded == self.options.local_world_size {
                        return Watched::Succeeded;
                    }
                }
                Event::Exit(..) => {}
                Event::Membership => {
                    if let Some(why) = self.why_restart(round, &mut is_closing_told) {
                        return Watched::MembersChanged(why);
                    }
                }
                Event::End => {
                    return Watched::Signalled(self.shared.ending_signal.load(Ordering::Acquire));
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

    /// Why the workers have to start again in another round, if they have to.
    fn why_restart(&self, round: &RendezvousInfo, is_closing_told: &mut bool) -> Option<String> {
        // A store that does not answer, as when its host has gone, is no reason to end workers that
        // run: the handler has logged it.
        let membership = self.handler.membership().ok()?;
        if membership.is_closed {
            if !*is_closing_told {
                *is_closing_told = true;
                log::warn!(
                    "another node has closed the rendezvous: workers go on, but cannot be restarted"
                );
            }
            return None;
        }
        let why = why_members_changed(&membership)?;
        if membership.waiting.is_empty() && !membership.is_evicted {
            // A PyTorch node writes no heartbeat while it waits for the others to finish.
            let finished = exit_barrier::checked_in(&*round.store).unwrap_or(0);
            if i64::try_from(membership.departed()).unwrap_or(i64::MAX) <= finished {
                return None;
            }
        }
        Some(why)
    }

    /// What a failure of workers means for the agent; `None`: another round.
    fn after_failure(
        &mut self,
        round: &RendezvousInfo,
        report: &StopReport,
    ) -> Result<Option<AgentOutcome>, AgentError> {
        let failures = report.failures();
        if self.remaining_restarts > 0 && report.abandoned.is_empty() {
            self.failures = failures;
            let finished = exit_barrier::checked_in(&*round.store).unwrap_or(0);
            if self.failures.is_some() && finished > 0 {
                // They wait in the exit barrier of this round and join no other.
                return Err(self.with_failures(AgentError::OthersFinished {
                    finished: usize::try_from(finished).unwrap_or(usize::MAX),
                    world_size: round.world_size,
                }));
            }
            self.remaining_restarts -= 1;
            log::warn!(
                "restarting the workers: {} of {} restarts are left",
                self.remaining_restarts,
                self.options.max_restarts,
            );
            return Ok(None);
        }
        Ok(failures.map(AgentOutcome::Failed))
    }

    /// Why there are no other workers, with what made others necessary.
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
            &self.options.host,
            crate::failure::local_time_text,
        )
    }

    fn wait_for_others(&self, round: &RendezvousInfo) -> AgentOutcome {
        let started = Instant::now();
        let give_up = || {
            self.shared.ending_signal.load(Ordering::Acquire) != 0
                || self
                    .handler
                    .membership()
                    .is_ok_and(|membership: Membership| {
                        let is_alone = membership.departed() + 1 >= round.world_size;
                        // A node that has failed for good closes the rendezvous, and never comes.
                        is_alone || (membership.is_closed && started.elapsed() >= STOP_GRACE)
                    })
        };
        let timeout = self.options.exit_barrier_timeout;
        match exit_barrier::wait_for_others(&*round.store, round.world_size, timeout, &give_up) {
            ExitBarrier::Open => {}
            ExitBarrier::GivenUp => {
                let signal = self.shared.ending_signal.load(Ordering::Acquire);
                if signal != 0 {
                    return AgentOutcome::Signalled {
                        signal,
                        had_workers: true,
                    };
                }
                log::warn!(
                    "all workers of this node have succeeded; the other nodes have not, and are gone"
                );
            }
            ExitBarrier::TimedOut { arrived } => log::warn!(
                "all workers of this node have succeeded; waited {} s for those of {} nodes, of which \
                 {} have",
                started.elapsed().as_secs(),
                round.world_size,
                arrived.map_or("an unknown number".to_owned(), |arrived| arrived
                    .to_string()),
            ),
            ExitBarrier::Failed(error) => log::warn!(
                "all workers of this node have succeeded, but whether others need it is not known: \
                 {error}"
            ),
        }
        AgentOutcome::Succeeded
    }

    fn stop(&mut self, signal: Signal, grace: Duration) -> StopReport {
        let Some(group) = self.running.take() else {
            return StopReport::default();
        };
        let report = group.stop(signal, grace, &self.shared.hurry);
        if !report.killed.is_empty() {
            let ranks: Vec<String> = report.killed.iter().map(usize::to_string).collect();
            log::warn!(
                "workers with local rank {} did not end in time and were killed",
                roll::bounded(&ranks),
            );
        }
        report
    }
}

fn name_of(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("a signal")
}

/// What is different about the members of a round: who was lost, who has left, who waits to join.
fn why_members_changed(membership: &Membership) -> Option<String> {
    let mut reasons = Vec::new();
    for lost in &membership.lost {
        reasons.push(format!("lost {lost}"));
    }
    if membership.is_evicted {
        reasons.push("the other nodes have gone on without this one".to_owned());
    } else {
        reasons.extend(membership.left.iter().map(ToString::to_string));
        let others = membership.waiting.iter();
        let newcomers = others.filter(|node| membership.left.iter().all(|it| it.node != **node));
        reasons.extend(newcomers.map(|node| format!("{} waits to join", node.named())));
    }
    let more = reasons.len().saturating_sub(REASONS_SHOWN_MAX);
    reasons.truncate(REASONS_SHOWN_MAX);
    if more > 0 {
        reasons.push(format!("and {more} more"));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use elastic_rendezvous::{LeftNode, LostNode, NodeId};

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name, 7, 0)
    }

    #[test]
    fn the_reason_for_a_restart_tells_the_dead_from_those_that_restart() {
        let mut membership = Membership::default();
        assert_eq!(why_members_changed(&membership), None);
        membership.lost = vec![LostNode::new(node("c"), Duration::from_millis(15_300))];
        membership.left = vec![
            LeftNode::new(node("b"), true),
            LeftNode::new(node("d"), false),
        ];
        membership.waiting = vec![node("b"), node("e")];
        assert_eq!(
            why_members_changed(&membership).as_deref(),
            Some(
                "lost c (pid 7): no heartbeat for 15 s; b (pid 7) left the round to restart; \
                 d (pid 7) left the round; e (pid 7) waits to join"
            )
        );
        membership.is_evicted = true;
        assert_eq!(
            why_members_changed(&membership).as_deref(),
            Some(
                "lost c (pid 7): no heartbeat for 15 s; the other nodes have gone on without this one"
            )
        );
    }

    #[test]
    fn the_reason_for_a_restart_of_a_thousand_nodes_stays_short() {
        let mut membership = Membership::default();
        membership.left = (0..1000).map(|_| LeftNode::new(node("b"), true)).collect();
        let why = why_members_changed(&membership).unwrap();
        assert!(why.ends_with("; and 992 more"), "{why}");
    }
}
