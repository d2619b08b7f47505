//! The thread that exchanges the exits of workers with other nodes, while this node stops its workers.
//!
//! A node whose worker has failed publishes its exits three times: the failure, the exits until the stop begins, and all
//! exits. A node that stops because of another node publishes only the workers that have exited before.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};
use c10d_store::StoreError;
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
    own: Sender<Message>,
    others: Receiver<Vec<NodeExits>>,
    cancel: Cancel,
    /// How long to wait for other nodes when the exits of this node do not explain each other.
    pub(super) patience: Duration,
    _thread: JoinedThread,
}

#[derive(Debug)]
enum Message {
    /// The exits of this node so far.
    More(NodeExits),
    /// The exits of this node, whose workers have all exited, and how long to wait for the exits of other nodes.
    All(NodeExits, Duration),
}

impl ExitExchange {
    /// Publishes these exits. Does not block. `None` if the system has no thread left: then this node publishes nothing.
    pub(super) fn start(board: &RoundBoard, reader: Reader, first: NodeExits) -> Option<Self> {
        Self::spawn(
            board,
            move |board, inbox| run(board, &reader, &first, inbox),
            || (),
        )
    }

    /// Reads the exits of other nodes for up to 0.7 s, after it has published the exits of this node if there are any. Then
    /// calls `then`, from the thread. Does not block. `None` if the system has no thread left; then `then` is not called.
    pub(super) fn read(
        board: &RoundBoard,
        reader: Reader,
        own: NodeExits,
        then: impl FnOnce() + Send + 'static,
    ) -> Option<Self> {
        let run = move |board: &RoundBoard, _: &Receiver<Message>| {
            let number = match own.has_own_exit() {
                true => Some(publish_first(board, &reader, &own)?),
                false => None,
            };
            collect(board, number, &reader, PATIENCE)
        };
        Self::spawn(board, run, then)
    }

    fn spawn(
        board: &RoundBoard,
        run: impl FnOnce(&RoundBoard, &Receiver<Message>) -> Result<Vec<NodeExits>, BoardError>
        + Send
        + 'static,
        then: impl FnOnce() + Send + 'static,
    ) -> Option<Self> {
        let cancel = Cancel::new();
        let board = board.with_cancel(&cancel);
        let (own, inbox) = channel();
        let (outbox, others) = channel();
        let run = move || {
            let found = run(&board, &inbox).unwrap_or_else(|error| {
                log::debug!("cannot exchange the exits of workers with other nodes: {error}");
                Vec::new()
            });
            // The owner may no longer wait.
            let _ = outbox.send(found);
            then();
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

    /// Publishes the exits of this node so far. Does not block.
    pub(super) fn update(&self, exits: NodeExits) {
        // Fails if the store has failed.
        let _ = self.own.send(Message::More(exits));
    }

    /// Publishes all exits of this node, and returns the exits of other nodes, with the times of this node's clock. Waits for
    /// them for 0.7 s at most, and for the store for 1.5 s.
    pub(super) fn finish(self, exits: NodeExits, is_explained: bool) -> Vec<NodeExits> {
        let patience = match is_explained {
            true => Duration::ZERO,
            false => self.patience,
        };
        // Fails if the store has failed.
        let _ = self.own.send(Message::All(exits, patience));
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
    inbox: &Receiver<Message>,
) -> Result<Vec<NodeExits>, BoardError> {
    let number = publish_first(board, reader, first)?;
    while let Ok(message) = inbox.recv() {
        match message {
            Message::More(exits) => exit_exchange::publish(board, reader, number, &exits)?,
            Message::All(exits, patience) => {
                exit_exchange::publish(board, reader, number, &exits)?;
                return collect(board, Some(number), reader, patience);
            }
        }
    }
    Ok(Vec::new())
}

/// Publishes these exits, and returns the number of this node.
pub(super) fn publish_first(
    board: &RoundBoard,
    reader: &Reader,
    exits: &NodeExits,
) -> Result<u64, StoreError> {
    let number = exit_exchange::take_number(board)?;
    exit_exchange::publish(board, reader, number, exits)?;
    Ok(number)
}

/// Reads the exits of other nodes, until one of them explains failures of other nodes.
pub(super) fn collect(
    board: &RoundBoard,
    own: Option<u64>,
    reader: &Reader,
    patience: Duration,
) -> Result<Vec<NodeExits>, BoardError> {
    let deadline = Deadline::after(Instant::now(), patience);
    exit_exchange::collect(board, own, reader, deadline, |nodes| {
        nodes.iter().any(NodeExits::explains_others)
    })
}
