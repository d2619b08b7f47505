//! Replaces a dead worker while the other workers keep running.

use std::time::Duration;

use super::event::{AgentEvent, Event};
use super::node::Node;
use super::plan::PlannedStart;
use super::runtime::Runtime;
use super::site::Site;
use crate::output::Console;
use crate::progress::Poller;
use crate::relay::NodeRelay;
use crate::round::{AgentError, Death, GroupNews, Input};
use crate::watchdog::Watchdog;
use crate::worker::{GroupPlan, StopReport, WorkerExit, WorkerGroup};

/// How long the processes that a dead worker has left behind have to exit. They hold its devices, and other deaths wait.
const LEFTOVER_GRACE: Duration = Duration::from_secs(1);

impl Node {
    /// Starts workers. Waits for the imports of a template.
    pub(super) fn start_group(&mut self, plan: GroupPlan) -> Result<WorkerGroup, AgentError> {
        let stop = &self.shared.stopping;
        let (forked, is_forked_only) = self.forking.forked_workers(stop)?;
        let (events, start) = (self.shared.events.clone(), self.starts);
        let listeners = self.listeners.clone();
        let on_exit = move |exit| {
            listeners.notify(&AgentEvent::WorkerExited(&exit));
            // Fails when the agent is dropped.
            let _ = events.send(Event::Exit(start, exit));
        };
        let kill_switch = self.shared.kill_switch.clone();
        let console = Console::inherited();
        Ok(WorkerGroup::start_from(
            forked,
            is_forked_only,
            kill_switch,
            plan,
            console,
            on_exit,
        )?)
    }
}

impl Runtime<'_> {
    /// Tells the service that a worker is dead, ends what it has left behind, and finds out why it died.
    pub(super) fn read_death(&mut self, exit: WorkerExit) -> Input {
        let Site::Running(running) = &mut self.site else {
            return self.signal();
        };
        let group = match &mut running.members {
            Some(members) => members.dead(&exit),
            None => GroupNews::IsEmpty,
        };
        let is_out_of_reach = matches!(group, GroupNews::OutOfReach(_));
        if is_out_of_reach && self.node.shared.stop_signal().is_some() {
            return self.signal();
        }
        let kill_switch = &self.node.shared.kill_switch;
        let report = running
            .workers
            .end(exit.local_rank, LEFTOVER_GRACE, kill_switch);
        let seen = running.progress.as_ref().map(Poller::seen);
        Input::Death(Box::new(Death {
            exit,
            failures: report.and_then(StopReport::failures),
            progress: seen.unwrap_or_default().round,
            group,
        }))
    }

    pub(super) fn read_group(&mut self) -> Input {
        let Site::Running(running) = &mut self.site else {
            return Input::Group(GroupNews::IsEmpty, Vec::new());
        };
        let Some(members) = &mut running.members else {
            return Input::Group(GroupNews::IsEmpty, Vec::new());
        };
        let news = members.news();
        let mut evicted = match news {
            GroupNews::GoesOn => members.evicted(),
            _ => Vec::new(),
        };
        evicted.retain(|local_rank| running.workers.runs(*local_rank));
        Input::Group(news, evicted)
    }

    pub(super) fn replace(&mut self, local_rank: usize, restarts: (usize, usize)) -> Input {
        match self.try_replace(local_rank, restarts) {
            Ok(pid) => Input::Replaced { local_rank, pid },
            Err(_) if self.node.shared.stop_signal().is_some() => self.signal(),
            Err(error) => Input::NotReplaced(error.to_string()),
        }
    }

    fn try_replace(
        &mut self,
        local_rank: usize,
        restarts: (usize, usize),
    ) -> Result<u32, AgentError> {
        let node = &mut *self.node;
        let (Site::Running(running), Some(round)) = (&mut self.site, self.rounds.current()) else {
            return Ok(0);
        };
        let group = match &mut running.members {
            Some(members) => Some(members.next_start(local_rank, round)?),
            None => None,
        };
        let start = PlannedStart {
            round,
            restarts,
            replaced: Some(local_rank),
            group,
            relay: running.relay.as_ref().map(NodeRelay::address),
            timer_file: running.watchdog.as_ref().map(Watchdog::path),
        };
        let plan = node.plan(&running.ranks, &start)?;
        let group = node.start_group(plan)?;
        let pid = group.pids().first().copied().unwrap_or_default();
        running.workers.replace(local_rank, group);
        running.started.workers[local_rank].pid = pid;
        running.started.restarts_used = restarts.0;
        if let Some(watchdog) = &running.watchdog {
            watchdog.watch(&running.workers.pids());
        }
        Ok(pid)
    }

    pub(super) fn tell_replaced(&self, local_rank: usize) {
        if let Site::Running(running) = &self.site
            && let Some(worker) = running.started.workers.get(local_rank)
        {
            let event = AgentEvent::WorkerReplaced(&running.started, worker);
            self.node.listeners.notify(&event);
        }
    }
}
