//! Sends the exits of the workers of this node to the other nodes of the round, and receives the exits of their workers.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use c10d_socket::{Deadline, interface_addresses, sleep};
use elastic_rendezvous::RoundBoard;

use super::event::StartedWorkers;
use super::exchange::{self, ExitExchange, PATIENCE, publish_first};
use super::runtime::Runtime;
use super::site::{Running, Site};
use crate::exit_exchange::{self, NodeExits, Reader};
use crate::failure::{Decision, ExitRecord};
use crate::wording::epoch_ms;
use crate::worker::WorkerExit;

/// How long workers continue after one of them has lost another rank. The rank that has left may take this long to exit after it
/// has closed its connections. This time is a part of [`PATIENCE`], so it does not make any node wait longer.
const CAUSE_PATIENCE: Duration = Duration::from_millis(500);

/// The time to wait if the lost rank is on this host, so that its exit must be reported here: as long as a later exit
/// counts as the cause of an earlier failure (`TEARDOWN_MS` in c10d-inspect).
const LOCAL_CAUSE_PATIENCE: Duration = Duration::from_secs(2);

/// The pause between two checks for such an exit during that time.
const CAUSE_PAUSE: Duration = Duration::from_millis(10);

impl Runtime<'_> {
    /// Reports the failure of this worker to the other nodes, if there are other nodes.
    pub(super) fn start_exchange(&mut self, exit: &WorkerExit) -> Option<ExitExchange> {
        let board = self.board_of_several()?;
        let exits = self
            .site
            .exit_record(exit.rank, &self.node.host)
            .into_iter()
            .collect();
        let first = self.own_exits(exits, false);
        ExitExchange::start(&board, self.reader(), first)
    }

    /// The running workers' board, how to read it, and their exits so far; `None` if there are no other nodes, or no worker
    /// runs.
    pub(super) fn exits_until_now(&mut self) -> Option<(RoundBoard, Reader, NodeExits)> {
        let board = self.board_of_several()?;
        let Site::Running(running) = &mut self.site else {
            return None;
        };
        let deadline = Deadline::after(Instant::now(), CAUSE_PATIENCE);
        let exits = running.exits(&self.node.host, deadline);
        Some((board, self.reader(), self.own_exits(exits, false)))
    }

    /// Waits for an exit on this node that explains the failures of its workers, if the first of them, with this rank, only
    /// lost another rank: for 0.5 s at most, or for 2 s if that rank is on this host, until all workers have exited, or until a
    /// signal. Then the workers are stopped.
    pub(super) fn await_cause(&mut self, first: usize) {
        let failed = self.site.exit_record(first, &self.node.host);
        let patience = match failed.and_then(|it| exit_exchange::lost_peer(&it)) {
            Some(peer) if is_of_this_host(peer) => LOCAL_CAUSE_PATIENCE,
            _ => CAUSE_PATIENCE,
        };
        let Site::Running(running) = &mut self.site else {
            return;
        };
        let (began, shared) = (Instant::now(), &self.node.shared);
        let deadline = Deadline::after(began, patience);
        let exits = loop {
            let own = NodeExits {
                met_unix_ms: None,
                exits: running.exits(&self.node.host, deadline),
                is_complete: true,
            };
            if own.explains_others()
                || own.exits.len() == running.started.workers.len()
                || deadline.has_passed(Instant::now())
                || shared.stop_signal().is_some()
                || sleep(CAUSE_PAUSE, [shared.kill_switch.cancel()]).is_err()
            {
                break own.exits;
            }
        };
        let known = (exits.len() > 1).then(|| self.own_exits(exits, false));
        if let Some(exchange) = &mut self.exchange {
            let awaited = began.elapsed().min(CAUSE_PATIENCE);
            exchange.patience = PATIENCE.saturating_sub(awaited);
            // Nodes without a failure read them when this node has published why the job is over.
            if let Some(known) = known {
                exchange.update(known);
            }
        }
    }

    /// The workers have exited. Returns the exits of other nodes, if a worker has failed and there are other nodes.
    pub(super) fn exchange_exits(
        &mut self,
        started: &StartedWorkers,
        exits: Vec<ExitRecord>,
    ) -> Vec<Vec<ExitRecord>> {
        let own = self.own_exits(exits, true);
        let Some(exchange) = self.exchange.take() else {
            // Some of these exits may be the cause of a failure on another node.
            self.untold = Some(own).filter(|own| started.nodes > 1 && own.has_own_exit());
            return Vec::new();
        };
        let is_explained = own.explains_others();
        let others = exchange.finish(own, is_explained);
        others.into_iter().map(|node| node.exits).collect()
    }

    /// Publishes the exits of a node whose workers did not fail, if a failure of another node is known. A failure is logged
    /// only.
    pub(super) fn tell_untold(&mut self) {
        let (Some(untold), Some(round)) = (&self.untold, self.rounds.current()) else {
            return;
        };
        let (board, reader) = (round.board(), self.reader());
        let tell = || match exit_exchange::is_any_published(&board)? {
            true => publish_first(&board, &reader, untold).map(|_| true),
            false => Ok(false),
        };
        match tell() {
            Ok(true) => self.untold = None,
            Ok(false) => {}
            Err(error) => log::debug!("cannot report the exits of workers: {error}"),
        }
    }

    /// Decides about the root cause from the exits of all nodes on the board where another node has ended the job. Blocks for
    /// 0.7 s at most, and for the store.
    pub(super) fn decide_from_board(&mut self) -> Option<Decision> {
        self.tell_untold();
        let board = self.rounds.told_board()?;
        let board = board.with_cancel(&self.node.shared.stopping);
        let found = exchange::collect(&board, None, &self.reader(), PATIENCE)
            .inspect_err(|error| log::debug!("cannot read the exits of workers: {error}"))
            .ok()?;
        // The exits of this node are among them.
        let nodes = found.into_iter().map(|node| node.exits);
        let nodes: Vec<Vec<ExitRecord>> = [Vec::new()].into_iter().chain(nodes).collect();
        Decision::of(&nodes, Some(self.world_size), &|_| None)
    }

    fn own_exits(&self, exits: Vec<ExitRecord>, is_complete: bool) -> NodeExits {
        NodeExits {
            met_unix_ms: self.met_at.map(epoch_ms),
            exits,
            is_complete,
        }
    }

    fn reader(&self) -> Reader {
        Reader {
            world_size: self.world_size,
            started_unix_ms: epoch_ms(self.began_at),
            met_unix_ms: self.met_at.map(epoch_ms),
            is_board_shared: !self.has_store_per_round,
        }
    }
}

impl Running {
    /// The exits of the workers so far. Some are missing if that is not known by `deadline`.
    fn exits(&mut self, host: &str, deadline: Deadline) -> Vec<ExitRecord> {
        let ranks = self.started.workers.iter().map(|worker| worker.rank);
        let in_time = ranks.take_while(|_| !deadline.has_passed(Instant::now()));
        let outcomes = in_time.filter_map(|rank| self.workers.outcome_of(rank));
        outcomes.map(|end| ExitRecord::of(&end, host)).collect()
    }
}

fn is_of_this_host(ip: IpAddr) -> bool {
    let interfaces = || interface_addresses().unwrap_or_default();
    ip.is_loopback() || interfaces().iter().any(|(_, own)| own.to_canonical() == ip)
}
