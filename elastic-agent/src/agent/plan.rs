//! Plans the workers of a round: their commands, environments, logs and files of progress.

use std::path::Path;

use c10d_socket::HostPort;
use elastic_rendezvous::RendezvousInfo;
use tempfile::TempDir;

use super::event::{Event, StartedWorker, StartedWorkers};
use super::group_link::GroupStart;
use super::node::Node;
use super::options::AgentOptions;
use crate::environment::{
    DEBUG_SOCKET, EnvironmentError, GLOO_SOCKET_IFNAME, GroupMember, PROGRESS_FILE, TIMER_FILE,
    WorkerEnvironment,
};
use crate::logs::{LinePrefix, WorkerLogs};
use crate::progress::{Poller, ProgressOptions};
use crate::ranks::{Assignment, RankBlock};
use crate::round::{AgentError, StartTimes};
use crate::worker::{GroupPlan, Remains, StartError, WorkerInput, WorkerPlan, WorkerSlots};

/// A start of workers, for which they are planned.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedStart<'s> {
    pub(super) round: &'s RendezvousInfo,
    /// The number of restarts that this node has used, and the total number that it may use.
    pub(super) restarts: (usize, usize),
    /// The local rank of the worker that is replaced while the other workers run; `None` to start
    /// all workers.
    pub(super) replaced: Option<usize>,
    /// The membership group, and which processes these are in it.
    pub(super) group: Option<GroupStart<'s>>,
    /// The relay between the workers and their store.
    pub(super) relay: Option<&'s HostPort>,
    /// The pipe of the watchdog.
    pub(super) timer_file: Option<&'s Path>,
}

impl Node {
    /// Plans the workers of a round, or only the replaced worker.
    pub(super) fn plan(
        &mut self,
        ranks: &RankBlock,
        start: &PlannedStart<'_>,
    ) -> Result<GroupPlan, AgentError> {
        let options = &self.options;
        let (restart_count, _) = start.restarts;
        let logs = match start.replaced {
            None => self
                .logs
                .start_round(restart_count, options.local_world_size),
            Some(local_rank) => self.logs.replace_worker(restart_count, local_rank),
        }?;
        let local_ranks = start.replaced.unwrap_or_default()..;
        let workers = local_ranks.zip(logs.workers).map(|(local_rank, logs)| {
            let assignment = ranks.assignment(
                start.round.rank,
                start.round.world_size,
                options.local_world_size,
                local_rank,
            );
            self.plan_worker(&assignment, start, logs)
        });
        let workers = workers.collect::<Result<_, _>>()?;
        let progress = self.progress.as_ref().map(TempDir::path);
        let temporary = [progress, options.debug_sockets.as_deref(), start.timer_file];
        let temporary = temporary.into_iter().flatten();
        let remains = Remains {
            temporary: temporary.map(Path::to_owned).collect(),
            logs: self.logs.path().map(Path::to_owned),
            above_logs: self.logs.temporary_above().map(Path::to_owned),
        };
        Ok(GroupPlan {
            filtered_stdout: logs.filtered_stdout,
            filtered_stderr: logs.filtered_stderr,
            signal_target: options.signal_target,
            remains,
            ..GroupPlan::new(workers)
        })
    }

    fn plan_worker(
        &self,
        assignment: &Assignment,
        start: &PlannedStart<'_>,
        logs: WorkerLogs,
    ) -> Result<WorkerPlan, AgentError> {
        let options = &self.options;
        let local_rank = assignment.local_rank;
        let is_debugged = options.debug_rank.map(|rank| rank == assignment.rank);
        let mut environment = self.environment(assignment, start, logs.error_file.as_deref())?;
        if is_debugged == Some(false) {
            environment = environment.with_default("PYTHONBREAKPOINT", "0");
        }
        let prefix = LinePrefix {
            role: &options.role,
            local_rank,
            rank: assignment.rank,
            host: self.host.split('.').next().unwrap_or_default(),
        };
        let mut command = options.command.for_local_rank(local_rank);
        if is_debugged != Some(false) && !options.debugger.is_empty() {
            command = command.under_debugger(&options.debugger);
        }
        let (input, logs) = match is_debugged {
            None => (WorkerInput::Shared, logs),
            Some(true) => (WorkerInput::Alone, logs.on_console()),
            Some(false) => (WorkerInput::Empty, logs),
        };
        Ok(WorkerPlan {
            rank: assignment.rank,
            local_rank,
            command,
            environment: environment.into_variables(),
            logs,
            line_prefix: prefix.text(options.line_prefix_template.as_deref()),
            input,
        })
    }

    /// Returns the environment of a worker.
    fn environment(
        &self,
        assignment: &Assignment,
        start: &PlannedStart<'_>,
        error_file: Option<&Path>,
    ) -> Result<WorkerEnvironment, EnvironmentError> {
        let options = &self.options;
        let local_rank = assignment.local_rank;
        // The start that is planned is counted when it begins.
        let before = self.starts - usize::from(start.replaced.is_some());
        let progress = self.progress.as_ref().map(TempDir::path);
        let progress_file = |path| ProgressOptions::worker_file(path, before, local_rank);
        let debug_sockets = options.debug_sockets.as_deref();
        let debug_socket = |path| AgentOptions::debug_socket(path, before, local_rank);
        let run_id = self.shared.handler.run_id();
        let inherited = options.environment.iter().cloned();
        let bootstrap = &start.round.bootstrap;
        let (restarts, restarts_max) = start.restarts;
        let mut environment =
            WorkerEnvironment::new(inherited, assignment, run_id, &bootstrap.master)
                .with_role(&options.role)
                .with_restarts(restarts, restarts_max)
                .with_agent_store(bootstrap.is_agent_store)
                .with_some(PROGRESS_FILE, progress.map(progress_file))
                .with_some(DEBUG_SOCKET, debug_sockets.map(debug_socket))
                .with_some(TIMER_FILE, start.timer_file);
        if options.has_virtual_local_rank {
            environment = environment.with_one_device(local_rank)?;
        }
        if let Some((group, keep)) = start.group.zip(options.keep_workers.as_ref()) {
            environment = environment.with_membership(GroupMember {
                group: group.name,
                process: group.processes[local_rank],
                members_first: group.first_size,
                members_min: keep.members_min,
            });
        }
        if let Some(relay) = start.relay {
            environment = environment.with_relay(relay);
        }
        if let Some(path) = error_file {
            environment = environment.with_error_file(path);
        }
        if let Some(interface) = self.network.for_gloo() {
            environment = environment.with_default(GLOO_SOCKET_IFNAME, interface);
        }
        Ok(environment)
    }

    /// Starts to watch the progress of the workers that are about to start.
    pub(super) fn watch_progress(&self) -> Result<Option<Poller>, AgentError> {
        let (Some(progress), Some(directory)) = (&self.options.progress, &self.progress) else {
            return Ok(None);
        };
        let local_ranks = 0..self.options.local_world_size;
        let own = local_ranks.map(|local_rank| {
            ProgressOptions::worker_file(directory.path(), self.starts, local_rank)
        });
        let mut directories = vec![own.collect()];
        directories.extend(progress.file.clone().map(|file| vec![file]));
        let (events, start) = (self.shared.events.clone(), self.starts + 1);
        let on_stuck = move |silent| {
            // Fails when the agent is dropped.
            let _ = events.send(Event::Stuck(start, silent));
        };
        let poller = Poller::start(
            directories,
            progress.timeout,
            progress.first_timeout,
            on_stuck,
        )
        .map_err(|source| AgentError::Start(StartError::System { source }))?;
        self.shared.set_progress(poller.view());
        Ok(Some(poller))
    }

    /// Returns the description of running workers for listeners.
    pub(super) fn started(
        &self,
        round: &RendezvousInfo,
        ranks: &RankBlock,
        relay: Option<HostPort>,
        group: &WorkerSlots,
        times: StartTimes,
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
            address: round.bootstrap.address(),
            relay,
            interface: self.network.interface.clone(),
            credentials: round.bootstrap.credentials.clone(),
            is_agent_store: round.bootstrap.is_agent_store,
            are_preloaded: group.are_forked(),
            restarts: self.starts - 1,
            restarts_used: times.restarts,
            membership: None,
            rendezvous: times.rendezvous,
            ranks: times.ranks,
            workers: workers
                .map(|(local_rank, pid)| {
                    StartedWorker::new(ranks.first_rank + local_rank, local_rank, pid)
                })
                .collect(),
        }
    }
}
