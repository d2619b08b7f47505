//! Sends the exits of the workers of this node to the other nodes of the round, and receives the exits of their workers.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use c10d_socket::{Deadline, sleep};

use super::exchange::{ExitExchange, PATIENCE};
use super::runtime::Runtime;
use super::site::Site;
use super::started::StartedWorkers;
use crate::exit_exchange::{self, NodeExits, Reader};
use crate::failure::ExitRecord;
use crate::worker::WorkerExit;

/// How long workers continue after one of them has lost another rank. The rank that has left may take this long to exit after it
/// has closed its connections. This time is a part of [`PATIENCE`], so it does not make any node wait longer.
const CAUSE_PATIENCE: Duration = Duration::from_millis(500);

/// The pause between two checks for such an exit during that time.
const CAUSE_PAUSE: Duration = Duration::from_millis(10);

impl Runtime<'_> {
    /// Reports the failure of this worker to the other nodes, if there are other nodes.
    pub(super) fn start_exchange(&mut self, exit: &WorkerExit) -> Option<ExitExchange> {
        let round = self.rounds.current().filter(|round| round.world_size > 1)?;
        let exits = self
            .site
            .exit_record(exit.rank, &self.node.host)
            .into_iter()
            .collect();
        let Site::Running(running) = &self.site else {
            return None;
        };
        let exits = NodeExits {
            met_unix_ms: self.met_at.map(unix_ms),
            exits,
            is_complete: false,
        };
        ExitExchange::start(&round.board(), self.reader(&running.started), exits)
    }

    /// Waits for an exit on this node that explains the failures of its workers, if the first of them only lost another rank:
    /// for 0.5 s at most, until all workers have exited, or until a signal. Then the workers are stopped.
    pub(super) fn await_cause(&mut self) {
        let Site::Running(running) = &mut self.site else {
            return;
        };
        let (began, shared) = (Instant::now(), &self.node.shared);
        let deadline = Deadline::after(began, CAUSE_PATIENCE);
        let ranks = || running.started.workers.iter().map(|worker| worker.rank);
        loop {
            let in_time = ranks().take_while(|_| !deadline.has_passed(Instant::now()));
            let outcomes = in_time.filter_map(|rank| running.workers.outcome_of(rank));
            let own = NodeExits {
                met_unix_ms: None,
                exits: outcomes
                    .map(|end| ExitRecord::of(&end, &self.node.host))
                    .collect(),
                is_complete: true,
            };
            if own.explains_others()
                || own.exits.len() == ranks().count()
                || deadline.has_passed(Instant::now())
                || shared.stop_signal().is_some()
                || sleep(CAUSE_PAUSE, [shared.kill_switch.cancel()]).is_err()
            {
                break;
            }
        }
        if let Some(exchange) = &mut self.exchange {
            exchange.patience = PATIENCE.saturating_sub(began.elapsed());
        }
    }

    /// The workers have exited. Returns the exits of other nodes, if a worker has failed and there are other nodes.
    pub(super) fn exchange_exits(
        &mut self,
        started: &StartedWorkers,
        exits: Vec<ExitRecord>,
    ) -> Vec<Vec<ExitRecord>> {
        let own = NodeExits {
            met_unix_ms: self.met_at.map(unix_ms),
            exits,
            is_complete: true,
        };
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
        let board = round.board();
        let tell = || match exit_exchange::is_any_published(&board)? {
            true => {
                let number = exit_exchange::take_number(&board)?;
                exit_exchange::publish(&board, number, untold).map(|()| true)
            }
            false => Ok(false),
        };
        match tell() {
            Ok(true) => self.untold = None,
            Ok(false) => {}
            Err(error) => log::debug!("cannot tell the exits of workers: {error}"),
        }
    }

    fn reader(&self, started: &StartedWorkers) -> Reader {
        Reader {
            world_size: started.world_size,
            started_unix_ms: unix_ms(self.began_at),
            met_unix_ms: self.met_at.map(unix_ms),
        }
    }
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
