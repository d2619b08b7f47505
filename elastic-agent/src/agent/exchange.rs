//! The thread that exchanges the exits of workers with other nodes, while this node stops its workers.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};
use elastic_rendezvous::{BoardError, RoundBoard};

use crate::exit_exchange::{self, NodeExits, Reader};
use crate::threads::JoinedThread;

const THREAD: &str = "exits";

/// How long a node waits for the exits of other nodes when the exits of this node do not explain each other.
pub(super) const PATIENCE: Duration = Duration::from_millis(700);

/// How long the store may take to answer beyond that.
const STORE_PATIENCE: Duration = Duration::from_millis(800);

/// An exchange of exits. Dropping it joins the thread.
#[derive(Debug)]
pub(super) struct ExitExchange {
    own: Sender<Own>,
    others: Receiver<Vec<NodeExits>>,
    cancel: Cancel,
    /// How long to wait for other nodes when the exits of this node do not explain each other.
    pub(super) patience: Duration,
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
