//! Exchanges the exits of workers between the nodes whose workers failed, so that each node can name the root cause.
//!
//! A round that ends well makes no request. A node takes a number when one of its workers has failed: the store's order is the
//! order in which launchers noticed. Only the records of the first nodes are read, because they contain the cause. If rounds
//! share a board, the last nodes are read instead, because the first may be of an earlier round.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::StoreError;
use elastic_rendezvous::{BoardError, RoundBoard, Wait};
use serde_json::{Value, json};

use crate::failure::ExitRecord;

const COUNT: &str = "c10d/exits";

/// The most nodes whose exits are read.
const NODES_MAX: u64 = 16;

/// The longest value that is parsed.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// The interval in which values that may be incomplete are read again.
const PAUSE: Duration = Duration::from_millis(100);

/// An exit that happened this long before the workers of this node were started is of an earlier round: the `static`
/// rendezvous has one board for all rounds.
const OLD_MS: u64 = 5000;

/// The exits of the workers of one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NodeExits {
    /// When the nodes had exchanged their ranks, in milliseconds since 1970 by the clock of this node. All nodes learn of it
    /// at the same moment, so the difference of two such times is the difference of the two clocks.
    pub(crate) met_unix_ms: Option<u64>,
    pub(crate) exits: Vec<ExitRecord>,
    /// Whether all workers of the node have exited.
    pub(crate) is_complete: bool,
}

/// The facts that a node needs to read the values of other nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader {
    pub(crate) world_size: usize,
    /// When this node began to start its workers, in milliseconds since 1970.
    pub(crate) started_unix_ms: u64,
    pub(crate) met_unix_ms: Option<u64>,
    /// Whether other rounds have the same board.
    pub(crate) is_board_shared: bool,
}

impl NodeExits {
    /// Whether this node has a worker whose exit, as far as its last line shows, does not follow from another exit, and whose
    /// reason is known.
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

    /// Returns these exits with the times of `reader`'s clock, and without the exits of earlier rounds.
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

/// Whether a worker failed because it had lost another rank, or had waited for it.
#[cfg(feature = "launcher")]
pub(crate) fn is_victim(exit: &ExitRecord) -> bool {
    let line = exit.last_line.as_deref();
    !exit.exit.is_success() && line.is_some_and(c10d_inspect::is_symptom)
}

/// Returns false: without a launcher, reports do not need the root cause.
#[cfg(not(feature = "launcher"))]
pub(crate) const fn is_victim(_: &ExitRecord) -> bool {
    false
}

/// The address of the rank to which a worker has lost its connection, if its last line has it.
#[cfg(feature = "launcher")]
pub(crate) fn lost_peer(exit: &ExitRecord) -> Option<IpAddr> {
    let line = exit
        .last_line
        .as_deref()
        .filter(|_| !exit.exit.is_success())?;
    c10d_inspect::lost_peer(line).map(|address| address.ip())
}

#[cfg(not(feature = "launcher"))]
pub(crate) const fn lost_peer(_: &ExitRecord) -> Option<IpAddr> {
    None
}

/// Takes a number for the exits of this node, counted from 1.
pub(crate) fn take_number(board: &RoundBoard) -> Result<u64, StoreError> {
    board.take_numbers(COUNT, 1)
}

/// Publishes the exits of this node, or replaces them. In a board of one round, the other nodes do not read the exits of a
/// node with a high number.
pub(crate) fn publish(
    board: &RoundBoard,
    reader: &Reader,
    number: u64,
    exits: &NodeExits,
) -> Result<(), StoreError> {
    match number <= NODES_MAX || reader.is_board_shared {
        true => board.put(&name(number), exits.to_json().to_string()),
        false => Ok(()),
    }
}

/// Whether a node of the round has published exits.
pub(crate) fn is_any_published(board: &RoundBoard) -> Result<bool, StoreError> {
    Ok(board.counted(COUNT)? > 0)
}

/// Reads the exits of the other nodes of the round, with the times of this node's clock. Waits until `is_enough` of them are
/// known, or until `deadline`. `own` is the number of this node, if it has published exits.
pub(crate) fn collect(
    board: &RoundBoard,
    own: Option<u64>,
    reader: &Reader,
    deadline: Deadline,
    is_enough: impl Fn(&[NodeExits]) -> bool,
) -> Result<Vec<NodeExits>, BoardError> {
    loop {
        let count = u64::try_from(board.counted(COUNT)?).unwrap_or(u64::MAX);
        let numbers = match reader.is_board_shared {
            true => count.saturating_sub(NODES_MAX) + 1..=count,
            false => 1..=count.min(NODES_MAX),
        };
        let next = numbers.end().saturating_add(1);
        let names: Vec<String> = numbers.filter(|it| Some(*it) != own).map(name).collect();
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
        match board.await_one(&name(next), "exit", Wait::new(pause)) {
            Ok(_) | Err(BoardError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

fn name(number: u64) -> String {
    format!("{COUNT}/{number}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use c10d_store::HashStore;

    use super::*;
    use crate::worker::{ExitKind, WorkerOutcome};

    fn board() -> RoundBoard {
        RoundBoard::new(Arc::new(HashStore::new()))
    }

    fn record(rank: usize, code: i32, ended_unix_ms: u64, stderr: &str) -> ExitRecord {
        let exit = ExitKind::Code(code);
        let outcome = WorkerOutcome::for_test(rank, exit, ended_unix_ms, stderr);
        ExitRecord::of(&outcome, "node1")
    }

    const fn reader(met_unix_ms: Option<u64>) -> Reader {
        Reader {
            world_size: 4,
            started_unix_ms: 100_000,
            met_unix_ms,
            is_board_shared: false,
        }
    }

    fn node(met_unix_ms: Option<u64>, exits: Vec<ExitRecord>) -> NodeExits {
        NodeExits {
            met_unix_ms,
            exits,
            is_complete: true,
        }
    }

    fn within(patience: Duration) -> Deadline {
        Deadline::after(Instant::now(), patience)
    }

    /// docs/spec/rendezvous.md, EXITS 3.
    #[test]
    fn times_of_another_clock_are_corrected_by_the_common_moment() {
        let board = board();
        assert!(!is_any_published(&board).unwrap());
        let number = take_number(&board).unwrap();
        // The clock of that node is 30 s ahead.
        let other = node(Some(130_000), vec![record(1, 3, 131_500, "bad shard 17")]);
        publish(&board, &reader(None), number, &other).unwrap();
        assert!(is_any_published(&board).unwrap());
        let own = take_number(&board).unwrap();
        for (met, expected) in [(Some(100_000), 101_500), (None, 131_500)] {
            let zero = within(Duration::ZERO);
            let found = collect(&board, Some(own), &reader(met), zero, |_| false).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].exits[0].ended_unix_ms, expected);
            assert_eq!(found[0].exits[0].last_line.as_deref(), Some("bad shard 17"));
        }
    }

    /// docs/spec/rendezvous.md, EXITS 4.
    #[test]
    fn values_of_strangers_are_ignored() {
        let board = board();
        let valid = node(None, vec![record(3, 1, 100_000, "")])
            .to_json()
            .to_string();
        let values = [
            valid.clone(),
            // The rank does not exist.
            node(None, vec![record(4, 1, 100_000, "")])
                .to_json()
                .to_string(),
            "x".repeat(VALUE_BYTES_MAX + 1),
            "\u{0}".to_owned(),
            "{}".to_owned(),
            "[]".to_owned(),
            valid.replace("100000", "-1"),
        ];
        for value in &values {
            let number = take_number(&board).unwrap();
            board.put(&name(number), value).unwrap();
        }
        let zero = within(Duration::ZERO);
        let found = collect(&board, None, &reader(None), zero, |_| false).unwrap();
        assert_eq!(found.len(), 1);
        // This record is from an earlier round.
        let old = node(None, vec![record(3, 1, 94_000, "")]);
        let json = old.to_json().to_string();
        let old = NodeExits::from_json(json.as_bytes(), 4).unwrap();
        assert!(old.seen_by(&reader(None)).exits.is_empty());
        // The counter is not a number.
        board.put(COUNT, "many").unwrap();
        let found = collect(&board, None, &reader(None), zero, |_| false).unwrap();
        assert!(found.is_empty());
    }

    /// docs/spec/rendezvous.md, EXITS 5.
    #[test]
    fn a_node_waits_for_the_exits_that_explain_its_own() {
        let board = board();
        let own = take_number(&board).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let number = take_number(&board).unwrap();
                let other = node(None, vec![record(1, 0, 100_000, "")]);
                publish(&board, &reader(None), number, &other).unwrap();
            });
            let long = within(Duration::from_secs(60));
            let enough = |nodes: &[NodeExits]| nodes.iter().any(NodeExits::explains_others);
            let found = collect(&board, Some(own), &reader(None), long, enough).unwrap();
            assert_eq!(found[0].exits[0].rank, 1);
        });
    }

    /// docs/spec/rendezvous.md, EXITS 1.
    #[test]
    fn only_the_first_nodes_publish() {
        let board = board();
        for place in 0..20 {
            let number = take_number(&board).unwrap();
            let exits = node(None, vec![record(place % 4, 0, 100_000, "")]);
            publish(&board, &reader(None), number, &exits).unwrap();
        }
        let zero = within(Duration::ZERO);
        let found = collect(&board, None, &reader(None), zero, |_| false).unwrap();
        assert_eq!(found.len(), 16);
        assert!(!board.has(&name(17)).unwrap());
    }

    /// docs/spec/rendezvous.md, EXITS 1. The rounds of the `static` rendezvous share one board.
    #[test]
    fn the_last_nodes_are_read_if_rounds_share_a_board() {
        let board = board();
        let reader = Reader {
            is_board_shared: true,
            ..reader(None)
        };
        let found = || {
            let zero = within(Duration::ZERO);
            let nodes = collect(&board, None, &reader, zero, |_| false).unwrap();
            let exits = nodes.into_iter().flat_map(|node| node.exits);
            exits.map(|exit| exit.rank).collect::<Vec<_>>()
        };
        assert!(found().is_empty());
        // Twelve earlier rounds in which both nodes have failed.
        for (rank, ended) in (0..24)
            .map(|it| (it % 2, 10_000))
            .chain([(2, 100_000), (3, 100_010)])
        {
            let number = take_number(&board).unwrap();
            let exits = node(None, vec![record(rank, 1, ended, "")]);
            publish(&board, &reader, number, &exits).unwrap();
        }
        assert_eq!(found(), [2, 3]);
        // A counter that another program has written.
        board.put(COUNT, u64::MAX.to_string()).unwrap();
        assert!(found().is_empty());
    }

    #[cfg(feature = "launcher")]
    #[test]
    fn a_lost_connection_does_not_explain_others() {
        let lost = "RuntimeError: [pair.cc:561] Connection closed by peer [127.0.0.1]:4711";
        let explains = |record| node(None, vec![record]).explains_others();
        assert!(!explains(record(1, 1, 0, lost)));
        assert!(explains(record(1, 1, 0, "ValueError: bad shard")));
        assert!(explains(record(1, 0, 0, lost)));
        let mut stopped = record(1, 1, 0, "");
        assert!(explains(stopped.clone()));
        stopped.was_stopped = true;
        assert!(!explains(stopped));
    }
}
