//! The steps of a round that take time: join, prepare, start, stop, and wait at the exit barrier.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use c10d_socket::Cancel;
use c10d_store::in_brief;
use elastic_rendezvous::{BoardError, Membership, RendezvousInfo, RoundBoard, clear_workers_store};
use rustix::process::Signal;

use super::event::AgentEvent;
use super::group_link::{self, GroupLink};
use super::handle::Shared;
use super::plan::PlannedStart;
use super::runtime::{LOG, Runtime};
use super::site::{Ended, FirstWrite, Prepared, Running, Site};
use crate::environment::GLOO_SOCKET_IFNAME;
use crate::failure::{Decision, ExitRecord};
use crate::places::{self, Place};
use crate::progress::Poller;
use crate::ranks::{RankBlock, RoleInfo, exchange_ranks};
use crate::relay::NodeRelay;
use crate::round::{AgentError, Input, Joins, MembersChange, StartTimes, Stop, Stopped};
use crate::watchdog::Watchdog;
use crate::wording::name_of;
use crate::worker::{WorkerOutcome, WorkerSlots};
use crate::workers_network::WorkersNetwork;
use crate::{exit_barrier, wording};

/// How many nodes of a round keep the workers that survive another worker.
const KEEPERS: &str = "c10d/keepers";

impl Runtime<'_> {
    /// Joins a round.
    pub(super) fn join(&mut self, joins: Joins) -> Result<Input, AgentError> {
        self.began_at = SystemTime::now();
        self.node.pass_health_check()?;
        let handler = &self.node.shared.handler;
        let keeps = self.node.options.keep_workers.is_some();
        if self.has_store_per_round {
            handler.agree_on_keeping(keeps)?;
        }
        let round = match joins {
            Joins::Next => handler.next_rendezvous()?,
            Joins::Running => handler.enter_rendezvous()?,
        };
        if !self.has_store_per_round {
            handler.agree_on_keeping(keeps)?;
        }
        let joined = Input::Joined {
            nodes: round.world_size,
            has_lost: round.has_lost_members,
        };
        self.rounds.add(round);
        Ok(joined)
    }

    /// Starts the relay, gets the ranks, and plans the workers.
    ///
    /// The relay is started before the exchange of ranks, which a node leaves only when all nodes have arrived.
    /// Therefore a node without a relay starts no workers in a round where other nodes have a relay.
    ///
    /// Returns whether the workers that survive another worker are kept.
    pub(super) fn prepare(&mut self, restarts: (usize, usize)) -> Result<bool, AgentError> {
        let Some(round) = self.rounds.current().cloned() else {
            return Ok(false);
        };
        self.rounds.list_reader(self.node.shared.handler.node_id());
        self.carry_first_failure();
        let relay = self.relay_in(&round)?;
        self.count_keeper(&round)?;
        let place = self.place_in(&round)?;
        let keeps = self.do_all_keep(&round)?;
        if !keeps && self.node.options.keep_workers.is_some() {
            // A node of another release may have cleared the store.
            group_link::publish_name(&round, &self.node.shared, false);
        }
        // Otherwise the nodes are not at the same step of the exchange, or there is no exchange.
        let is_met = !round.has_entered
            && !self.node.options.are_nodes_identical
            && (self.has_store_per_round || restarts.0 == 0);
        self.met_at = is_met.then(SystemTime::now);
        self.untold = None;
        // All nodes have published their ranks by now.
        self.carry_first_failure();
        let ranks = place.ranks;
        self.world_size = ranks.world_size;
        self.look_at_network(&round);
        let watchdog = self.node.options.watchdog(&self.node.shared)?;
        let open = || GroupLink::open(&round, &self.node.shared, place, &self.own_role());
        let members = keeps.then(open).transpose()?;
        let start = PlannedStart {
            round: &round,
            restarts,
            replaced: None,
            group: members.as_ref().map(GroupLink::start),
            relay: relay.as_ref().map(NodeRelay::address),
            timer_file: watchdog.as_ref().map(Watchdog::path),
        };
        let plan = self.node.plan(&ranks, &start)?;
        self.site = Site::Prepared(Box::new(Prepared {
            relay,
            ranks,
            watchdog,
            plan,
            members,
        }));
        Ok(keeps)
    }

    /// Whether the nodes of the round may differ in whether they keep their workers: nodes of torchrun and of release 0.2
    /// publish nothing about it. A running round takes in only nodes that do.
    fn may_be_mixed(&self, round: &RendezvousInfo) -> bool {
        let options = &self.node.options;
        let has_exchange = !options.are_nodes_identical && !round.has_entered;
        options.keep_workers.is_some() && has_exchange && round.world_size > 1
    }

    /// Counts this node among the nodes of the round that keep their workers, before the exchange of ranks, which no node
    /// leaves before all have come.
    fn count_keeper(&self, round: &RendezvousInfo) -> Result<(), AgentError> {
        let board = round.board();
        let count = || match self.may_be_mixed(round) {
            // Once, however often this launcher and its predecessors join the round of a static rendezvous.
            true if board.is_first(&format!("{KEEPERS}/{}", round.rank))? => {
                board.count(KEEPERS, 1).map(drop)
            }
            _ => Ok(()),
        };
        Ok(count().map_err(BoardError::from)?)
    }

    /// Whether all nodes of the round keep their workers. Call it after the exchange of ranks.
    fn do_all_keep(&mut self, round: &RendezvousInfo) -> Result<bool, AgentError> {
        if !self.may_be_mixed(round) {
            return Ok(self.node.options.keep_workers.is_some());
        }
        let keepers = round.board().counted(KEEPERS).map_err(BoardError::from)?;
        let nodes = round.world_size;
        if keepers < nodes && !std::mem::replace(&mut self.is_mix_told, true) {
            log::warn!(
                target: LOG,
                "--keep-workers is off in this round: {} of its {nodes} nodes run torchrun or release 0.2",
                nodes - keepers,
            );
        }
        Ok(keepers >= nodes)
    }

    /// Finds out which interface leads to the other nodes, and reports it if gloo has to be told.
    fn look_at_network(&mut self, round: &RendezvousInfo) {
        let inherited = &self.node.options.environment;
        let is_given = inherited.iter().any(|(name, _)| name == GLOO_SOCKET_IFNAME);
        let cancel = (!is_given).then(|| self.until_over(round));
        let network = WorkersNetwork::of(round, cancel.as_ref());
        if let Some(interface) = network.for_gloo()
            && network != self.node.network
        {
            log::debug!(
                target: LOG,
                "set {GLOO_SOCKET_IFNAME}={interface} for the workers: the name of this host leads to loopback",
            );
        }
        self.node.network = network;
    }

    /// Starts the relay of a round, if this agent has relays.
    fn relay_in(&mut self, round: &RendezvousInfo) -> Result<Option<NodeRelay>, AgentError> {
        let options = &self.node.options;
        if !options.has_relay {
            return Ok(None);
        }
        let known = self.rounds.relay_port_in(round.round);
        let relay = NodeRelay::start(round, options.relay_port, known, &self.until_over(round))?;
        self.rounds
            .set_relay_port(round.round, relay.address().port());
        Ok(Some(relay))
    }

    /// The ranks of this node's workers. The nodes of a round exchange them; a node that enters a running round takes
    /// the ranks that are free.
    fn place_in(&self, round: &RendezvousInfo) -> Result<Place, AgentError> {
        let own = self.own_role();
        if round.has_entered {
            return Ok(places::take(&round.board(), round.rank, &own)?);
        }
        let ranks = self.ranks_in(round, &own)?;
        Ok(Place {
            ranks,
            first_size: ranks.world_size,
        })
    }

    fn own_role(&self) -> RoleInfo {
        let options = &self.node.options;
        RoleInfo {
            role: options.role.clone(),
            local_world_size: options.local_world_size,
        }
    }

    fn ranks_in(&self, round: &RendezvousInfo, own: &RoleInfo) -> Result<RankBlock, AgentError> {
        let options = &self.node.options;
        if options.are_nodes_identical {
            return Ok(RankBlock::identical(
                round.rank,
                round.world_size,
                options.local_world_size,
            ));
        }
        // All nodes of the round have stopped their earlier workers. No worker of the round starts before all nodes have taken
        // part in the exchange, including the node that clears the store.
        let has_cleared = clear_workers_store(round).map_err(BoardError::from)?;
        if options.keep_workers.is_some() && (has_cleared || !self.has_store_per_round) {
            group_link::publish_name(round, &self.node.shared, has_cleared);
        }
        Ok(exchange_ranks(
            &round.board(),
            round.rank,
            round.world_size,
            own,
            round.store.timeout(),
            &self.until_over(round),
        )?)
    }

    /// Ends a wait for the other nodes of a round when this agent is stopped, or the members have changed, as when a node
    /// was lost after it had joined.
    fn until_over(&self, round: &RendezvousInfo) -> Cancel {
        let board = round.board();
        let stops_on_failure = self.node.options.stops_on_job_failure;
        self.until(move |shared| {
            let membership = shared.handler.membership();
            membership.is_ok_and(|it| match MembersChange::of(&it) {
                MembersChange::None => stops_on_failure && it.is_closed,
                MembersChange::Certain(_) => true,
                MembersChange::UnlessFinished { departed, .. } => {
                    departed > exit_barrier::checked_in(&board).unwrap_or(0)
                }
            })
        })
    }

    /// Ends a wait when this agent is stopped, or `is_over` returns true.
    fn until(&self, is_over: impl Fn(&Shared) -> bool + Send + Sync + 'static) -> Cancel {
        let shared = Arc::downgrade(&self.node.shared);
        let cancel = Cancel::with_check(move || {
            let shared = shared.upgrade();
            shared.is_none_or(|shared| shared.stop_signal().is_some() || is_over(&shared))
        });
        self.node.shared.set_waiting(cancel.clone());
        cancel
    }

    pub(super) fn start(&mut self, times: StartTimes) -> Result<(), AgentError> {
        let (Site::Prepared(prepared), Some(round)) =
            (std::mem::take(&mut self.site), self.rounds.current())
        else {
            return Ok(());
        };
        let Prepared {
            relay,
            ranks,
            watchdog,
            plan,
            members,
        } = *prepared;
        let node = &mut *self.node;
        let progress = node.watch_progress()?;
        node.starts += 1;
        // The template forks them one by one, even in a round that keeps no workers.
        let plans = match node.options.keep_workers {
            Some(_) => plan.split(),
            None => vec![plan],
        };
        let groups = plans.into_iter().map(|plan| node.start_group(plan));
        let workers = WorkerSlots::new(groups.collect::<Result<_, _>>()?);
        if let Some(watchdog) = &watchdog {
            watchdog.watch(&workers.pids());
        }
        let started_at = Instant::now();
        let relay_address = relay.as_ref().map(|relay| relay.address().clone());
        let mut started = node.started(round, &ranks, relay_address, &workers, times);
        started.membership = members.as_ref().map(|group| group.name().to_owned());
        self.site = Site::Running(Box::new(Running {
            workers,
            members,
            due: Vec::new(),
            ranks,
            relay,
            watchdog,
            progress,
            started,
            started_at,
            is_stopping: false,
            first_write: FirstWrite::default(),
        }));
        Ok(())
    }

    pub(super) fn tell_started(&mut self) {
        let Site::Running(running) = &self.site else {
            return;
        };
        let started = &running.started;
        log::debug!(
            target: LOG,
            "round {}: this node has group rank {} of {}; the workers' store is {}, served by {}{}",
            started.round,
            started.node_rank,
            started.nodes,
            started.master,
            if started.is_agent_store {
                "a launcher"
            } else {
                "the worker with rank 0"
            },
            started.relay.as_ref().map_or_else(String::new, |address| {
                format!(", and reached through the relay at {address}")
            }),
        );
        let first_rank = started.workers.first().map_or(0, |worker| worker.rank);
        log::debug!(
            target: LOG,
            "world size {}: {}",
            started.world_size,
            wording::ranks_with_pids(first_rank, &running.workers.pids()),
        );
        self.node
            .listeners
            .notify(&AgentEvent::WorkersStarted(started));
        let started = started.clone();
        self.await_first_sign(&started);
        self.rounds.forget_old(&*self.node.shared.handler);
        self.node.logs.remove_replaced();
        self.node.shared.probes().set_supervising(true);
    }

    /// The signal that stops the workers, and how long they have to exit after it.
    fn signal_and_grace(&self, stop: Stop) -> (Signal, Option<Duration>) {
        let shutdown_timeout = self.node.options.shutdown_timeout;
        match stop {
            Stop::With(signal, grace) => (signal, Some(grace)),
            Stop::Gently => (Signal::TERM, shutdown_timeout),
            Stop::BySignal(signal) => {
                let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
                (signal, shutdown_timeout)
            }
        }
    }

    /// Sends the signal that stops the workers.
    pub(super) fn begin_stop(&mut self, stop: Stop) {
        let (signal, _) = self.signal_and_grace(stop);
        if let Site::Running(running) = &mut self.site
            && !std::mem::replace(&mut running.is_stopping, true)
        {
            self.node.listeners.notify(&AgentEvent::Stopping);
            running.workers.send_stop(signal);
        }
    }

    pub(super) fn stop(&mut self, stop: Stop) -> Stopped {
        self.node.shared.probes().set_supervising(false);
        // The signal is sent before anything that could take time.
        self.begin_stop(stop);
        let (signal, grace) = self.signal_and_grace(stop);
        let Site::Running(running) = std::mem::take(&mut self.site) else {
            return Stopped::default();
        };
        let running = *running;
        if let Stop::BySignal(signal) = stop {
            let kill = grace.map_or_else(String::new, |timeout| {
                format!("after {} s, or ", timeout.as_secs())
            });
            log::info!(
                target: LOG,
                "received {}: passed it to the workers; SIGKILL follows {kill}at once after a second signal",
                name_of(signal),
            );
        }
        let (report, replaced) = running
            .workers
            .stop(signal, grace, &self.node.shared.kill_switch);
        // Until then, timers end workers that do not stop.
        drop(running.watchdog);
        if let Some(relay) = running.relay {
            relay.end();
        }
        let seen = running.progress.map(Poller::finish).unwrap_or_default();
        let has_failed = |end: &WorkerOutcome| !end.exit.is_success() && !end.was_stopped;
        let host = &self.node.host;
        // The failure of a replaced worker does not count as a failure of the job.
        let exits = report.outcomes.iter();
        let exits: Vec<ExitRecord> = exits.map(|end| ExitRecord::of(end, host)).collect();
        let failures = report.failures();
        let others = self.exchange_exits(&running.started, exits.clone());
        let nodes: Vec<Vec<ExitRecord>> = [exits].into_iter().chain(others).collect();
        let has_others = nodes[1..].iter().any(|node| !node.is_empty());
        let world_size = running.started.world_size;
        let decide = || Decision::of(&nodes, Some(world_size), &|_| None);
        let decision = has_others.then(decide).flatten();
        let stopped = Stopped {
            failures: failures.map(|failures| failures.with_exits(nodes, world_size)),
            has_own_failure: report.outcomes.iter().any(has_failed),
            decision,
            has_abandoned: !report.abandoned.is_empty(),
            progress: seen.clone(),
        };
        self.site = Site::Ended(Box::new(Ended {
            started: running.started,
            started_at: running.started_at,
            report,
            replaced,
            seen,
        }));
        stopped
    }

    /// Ends a wait at the exit barrier when this agent is stopped, or the membership is not `seen` any more.
    pub(super) fn until_news(&self, seen: Option<Box<Membership>>) -> Cancel {
        self.until(move |shared| shared.handler.membership().ok().as_ref() != seen.as_deref())
    }

    /// Returns whether the barrier is open, according to `ask`.
    pub(super) fn at_barrier(
        &mut self,
        ask: impl FnOnce(&RoundBoard) -> Result<bool, BoardError>,
    ) -> Input {
        let Some(round) = self.rounds.current() else {
            return Input::BarrierOpen;
        };
        match ask(&round.board()) {
            Ok(true) => Input::BarrierOpen,
            Ok(false) => {
                self.tell_untold();
                Input::BarrierClosed {
                    signal: self.node.shared.stop_signal(),
                    membership: self.membership(),
                }
            }
            Err(error) => Input::BarrierFailed(in_brief(&error)),
        }
    }
}
