//! Nodes whose workers failed tell each other the exits of their workers, so that each of them can name the root cause.
//!
//! A round that ends well makes no request. A node takes a number when one of its workers has failed: the store's order is the
//! order in which launchers noticed. The records of the first nodes are read, because they tell the cause.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::StoreError;
use elastic_rendezvous::{BoardError, RoundBoard, Wait};
use serde_json::{Value, json};

use crate::failure::ExitRecord;

const COUNT: &str = "c10d/exits";

/// The most nodes that publish their exits, and that are read.
const NODES_MAX: usize = 16;

/// The longest value that is parsed.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// How often values that may be incomplete are read again.
const PAUSE: Duration = Duration::from_millis(100);

/// An exit that happened so long before the workers of this node were started is of an earlier round: the `static`
/// rendezvous has one board for all rounds.
const OLD_MS: u64 = 5000;

/// The exits of the workers of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NodeExits {
    /// When the nodes had exchanged their ranks, in milliseconds since 1970 by the clock of this node. All nodes learn of it
    /// at the same moment, so the difference of two such times is that of two clocks.
    pub(crate) met_unix_ms: Option<u64>,
    pub(crate) exits: Vec<ExitRecord>,
    /// Whether all workers of the node have exited.
    pub(crate) is_complete: bool,
}

/// What a node needs to know to read the values of other nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader {
    pub(crate) world_size: usize,
    /// When this node began to start its workers, in milliseconds since 1970.
    pub(crate) started_unix_ms: u64,
    pub(crate) met_unix_ms: Option<u64>,
}

impl NodeExits {
    /// Whether this node has a worker that exited for no reason of another one, as far as its last line tells, and it is
    /// known how.
    pub(crate) fn explains_others(&self) -> bool {
        let mut exits = self.exits.iter();
        exits.any(|exit| {
            let is_own = !exit.was_stopped && !is_victim(exit);
            is_own && (exit.exit.is_success() || exit.last_line.is_some() || self.is_complete)
        })
    }

    /// Whether a worker exited before it was stopped.
    pub(crate) fn has_own_exit(&self) -> bool {
        self.exits.iter().any(|exit| !exit.was_stopped)
    }

    fn to_json(&self) -> Value {
        json!({
            "met_unix_ms": self.met_unix_ms,
            "complete": self.is_complete,
            "exits": ExitRecord::all_to_json(&self.exits),
        })
    }

    fn from_json(value: &[u8], world_size: usize) -> Result<Self, &'static str> {
        let short = Some(value).filter(|value| value.len() <= VALUE_BYTES_MAX);
        let json: Option<Value> = short.and_then(|value| serde_json::from_slice(value).ok());
        let json = json.ok_or("it is not JSON of at most 64 KiB")?;
        Ok(Self {
            met_unix_ms: json.get("met_unix_ms").and_then(Value::as_u64),
            exits: ExitRecord::all_from_json(
                json.get("exits").ok_or("it has no exits")?,
                world_size,
            )?,
            is_complete: json.get("complete").and_then(Value::as_bool) == Some(true),
        })
    }

    /// The same with the times of `reader`'s clock, and without the exits of earlier rounds.
    fn seen_by(mut self, reader: &Reader) -> Self {
        if let (Some(own), Some(other)) = (reader.met_unix_ms, self.met_unix_ms) {
            for exit in &mut self.exits {
                exit.ended_unix_ms = (exit.ended_unix_ms.saturating_add(own)).saturating_sub(other);
            }
        }
        let oldest = reader.started_unix_ms.saturating_sub(OLD_MS);
        self.exits.retain(|exit| exit.ended_unix_ms >= oldest);
        self
    }
}

/// Whether a worker failed because it had lost another one, or had waited for it.
#[cfg(feature = "launcher")]
pub(crate) fn is_victim(exit: &ExitRecord) -> bool {
    let line = exit.last_line.as_deref();
    !exit.exit.is_success() && line.is_some_and(c10d_inspect::is_symptom)
}

/// Without a launcher nobody asks for the root cause.
#[cfg(not(feature = "launcher"))]
pub(crate) const fn is_victim(_: &ExitRecord) -> bool {
    false
}

/// Takes the number under which this node publishes its exits, from 1.
pub(crate) fn take_number(board: &RoundBoard) -> Result<u64, StoreError> {
    board.take_numbers(COUNT, 1)
}

/// Publishes the exits of this node, or replaces them. A node with a high number has nothing that others read.
pub(crate) fn publish(
    board: &RoundBoard,
    number: u64,
    exits: &NodeExits,
) -> Result<(), StoreError> {
    match usize::try_from(number) {
        Ok(number) if number <= NODES_MAX => board.put(&name(number), exits.to_json().to_string()),
        _ => Ok(()),
    }
}

/// Whether a node of the round has published exits.
pub(crate) fn is_any_published(board: &RoundBoard) -> Result<bool, StoreError> {
    Ok(board.counted(COUNT)? > 0)
}

/// Reads the exits of the other nodes of the round, with the times of this node's clock. Waits until `is_enough` of them are
/// known, or until `deadline`.
pub(crate) fn collect(
    board: &RoundBoard,
    own: Option<u64>,
    reader: &Reader,
    deadline: Deadline,
    is_enough: impl Fn(&[NodeExits]) -> bool,
) -> Result<Vec<NodeExits>, BoardError> {
    let own = own.and_then(|own| usize::try_from(own).ok());
    loop {
        let count = board.counted(COUNT)?.min(NODES_MAX);
        let names: Vec<String> = (1..=count)
            .filter(|it| Some(*it) != own)
            .map(name)
            .collect();
        let values = board.read_all(&names)?;
        let parsed = names
            .iter()
            .zip(values.iter().flatten())
            .filter_map(|(name, value)| {
                NodeExits::from_json(value, reader.world_size)
                    .inspect_err(|why| log::debug!("cannot use the exits in {name}: {why}"))
                    .ok()
            });
        let nodes: Vec<NodeExits> = parsed.map(|it| it.seen_by(reader)).collect();
        let left = deadline.remaining(Instant::now());
        if is_enough(&nodes) || left.is_none_or(|left| left.is_zero()) {
            return Ok(nodes);
        }
        let pause = left.unwrap_or_default().min(PAUSE);
        match board.await_one(&name(count + 1), "exit", Wait::new(pause)) {
            Ok(_) | Err(BoardError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

fn name(number: usize) -> String {
    format!("{COUNT}/{number}")
}
