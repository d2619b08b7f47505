//! The thread that exchanges the exits of workers with other nodes, while this node stops its workers.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use c10d_socket::{Cancel, Deadline, sleep};
use elastic_rendezvous::{BoardError, RoundBoard};

use super::runtime::Runtime;
use super::site::Site;
use super::started::StartedWorkers;
use crate::exit_exchange::{self, NodeExits, Reader};
use crate::failure::ExitRecord;
use crate::threads::JoinedThread;
use crate::worker::WorkerExit;

const THREAD: &str = "exits";

/// How long a node waits for the exits of other nodes when the exits of this node do not explain each other.
const PATIENCE: Duration = Duration::from_millis(700);

/// How long workers run on after one of them has lost another rank: the rank that has left may take this long to exit, after it
/// has closed its connections. This time is a part of [`PATIENCE`].
const CAUSE_PATIENCE: Duration = Duration::from_millis(500);

/// How often the exits of workers are looked at in this time.
const CAUSE_PAUSE: Duration = Duration::from_millis(10);

/// How long the store may take to answer beyond that.
const STORE_PATIENCE: Duration = Duration::from_millis(800);

/// An exchange of exits. Dropping it joins the thread.
#[derive(Debug)]
pub(super) struct ExitExchange {
    own: Sender<Own>,
    others: Receiver<Vec<NodeExits>>,
    cancel: Cancel,
    /// How long to wait for other nodes when the exits of this node do not explain each other.
    patience: Duration,
    _thread: JoinedThread,
}

/// The exits of this node, when its workers have all exited.
#[derive(Debug)]
struct Own {
    exits: NodeExits,
    /// How long to wait for the exits of other nodes.
    patience: Duration,
}

impl ExitExchange {
    /// Publishes these exits. Does not block. `None` if the system has no thread left: then this node publishes nothing.
    pub(super) fn start(board: &RoundBoard, reader: Reader, first: NodeExits) -> Option<Self> {
        let cancel = Cancel::new();
        let board = board.with_cancel(&cancel);
        let (own, inbox) = channel();
        let (outbox, others) = channel();
        let run = move || {
            let found = run(&board, &reader, &first, &inbox).unwrap_or_else(|error| {
                log::debug!("cannot exchange the exits of workers with other nodes: {error}");
                Vec::new()
            });
            // The owner may no longer wait.
            let _ = outbox.send(found);
        };
        let thread = JoinedThread::start(THREAD, run)
            .inspect_err(|error| log::warn!("cannot start a thread: {error}"))
            .ok()?;
        Some(Self {
            own,
            others,
            cancel,
            patience: PATIENCE,
            _thread: thread,
        })
    }

    /// Publishes all exits of this node, and returns the exits of other nodes, with the times of this node's clock. Waits for
    /// them for 0.7 s at most, and for the store for 1.5 s.
    pub(super) fn finish(self, exits: NodeExits, is_explained: bool) -> Vec<NodeExits> {
        let patience = match is_explained {
            true => Duration::ZERO,
            false => self.patience,
        };
        // Fails if the store has failed.
        let _ = self.own.send(Own { exits, patience });
        let found = self.others.recv_timeout(patience + STORE_PATIENCE);
        found.unwrap_or_default()
    }
}

impl Drop for ExitExchange {
    fn drop(&mut self) {
        self.cancel.cancel();
        // Ends the wait for the exits of this node.
        self.own = channel().0;
    }
}

impl Runtime<'_> {
    /// Tells the other nodes about the failure of this worker, if there are other nodes.
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
            let outcomes = ranks().filter_map(|rank| running.workers.outcome_of(rank));
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
            // Some of them may be the cause of a failure on another node.
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

fn run(
    board: &RoundBoard,
    reader: &Reader,
    first: &NodeExits,
    inbox: &Receiver<Own>,
) -> Result<Vec<NodeExits>, BoardError> {
    let number = exit_exchange::take_number(board)?;
    exit_exchange::publish(board, number, first)?;
    let Ok(own) = inbox.recv() else {
        return Ok(Vec::new());
    };
    exit_exchange::publish(board, number, &own.exits)?;
    let deadline = Deadline::after(Instant::now(), own.patience);
    exit_exchange::collect(board, Some(number), reader, deadline, |nodes| {
        nodes.iter().any(NodeExits::explains_others)
    })
}
