//! Publishes to the other nodes of a round why none of them starts workers again.
//!
//! The reason is written to the board of the round before the rendezvous is closed, so a node that learns of the closing
//! finds it. PyTorch's nodes only see that the rendezvous is closed.

use c10d_socket::printable;
use c10d_store::{StoreError, StoreExt};
use elastic_rendezvous::{NodeId, RoundBoard};
use serde_json::{Value, json};

use crate::failure::{Decision, ExitRecord, RootExit};

const END: &str = "c10d/job_end";

/// How many nodes of the round will read the reason, and how many have. Below the second name, each of these nodes.
const READERS: &str = "c10d/job_end/readers";
const READ: &str = "c10d/job_end/read";

/// How many nodes wait for the end of the other nodes' programs, because their own workers failed at the end of the
/// program.
const AT_EXIT: &str = "c10d/at_exit";

/// The first failure of the job.
const FIRST: &str = "c10d/first_failure";

/// How often a node tries to replace the first failure while other nodes replace it.
const TRIES_MAX: usize = 8;

/// How many nodes found their workers stuck.
const STUCK: &str = "c10d/stuck";

/// The longest value that is parsed, and the longest texts that are shown, in characters.
const VALUE_BYTES_MAX: usize = 64 << 10;
const REASON_CHARS_MAX: usize = 600;
const HOST_CHARS_MAX: usize = 255;

/// The reason why another node ended the job on all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndNotice {
    /// The name of that node's host.
    pub host: String,
    /// The reason, as text for a log.
    pub reason: String,
    /// The exit of the worker that was the reason; `None` if it was something else, or the node is of an earlier release.
    pub exit: Option<ExitRecord>,
    /// Whether that worker had reached the end of its program, so that the workers of other nodes are not stopped.
    pub is_at_exit: bool,
    /// The first failure of the job, if workers were restarted after it.
    pub first_failure: Option<ExitRecord>,
    /// The root cause that this node has found in the exits of all nodes; `None` if that is `exit`, or the reason.
    pub root: Option<RootExit>,
}

/// The reason for which this node stops the job on all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnEnd {
    pub(crate) reason: String,
    /// The rank of the worker that is the reason.
    pub(crate) rank: Option<usize>,
    pub(crate) is_at_exit: bool,
}

impl EndNotice {
    /// A node has closed the rendezvous without a reason.
    pub(crate) fn unknown() -> Self {
        Self {
            host: "another node".to_owned(),
            reason: "it closed the rendezvous without a reason, as torchrun does after a failure"
                .to_owned(),
            exit: None,
            is_at_exit: false,
            first_failure: None,
            root: None,
        }
    }

    /// Adopts what this node has decided about the root cause, if that is more than the exit in the notice.
    pub(crate) fn explain(&mut self, decision: Option<Decision>) {
        let telling = decision.filter(|it| it.tells_more_than(self.exit.as_ref()));
        self.root = telling.map(|it| it.root);
    }

    /// `node0 ended the job: worker with rank 1 ended with exit code 93, after which the job is not to be restarted`.
    #[must_use]
    pub fn reason_text(&self) -> String {
        format!("{} ended the job: {}", self.host, self.reason)
    }

    fn to_json(&self) -> Value {
        let mut json = json!({ "host": self.host, "reason": self.reason });
        if let Some(exit) = &self.exit {
            json["exit"] = exit.to_json();
        }
        if self.is_at_exit {
            json["at_exit"] = true.into();
        }
        if let Some(first) = &self.first_failure {
            json["first_failure"] = first.to_json();
        }
        json
    }

    /// Accepts any bytes: a missing field counts as unknown.
    fn from_json(value: &[u8]) -> Self {
        let short = Some(value).filter(|value| value.len() <= VALUE_BYTES_MAX);
        let json: Value = short
            .and_then(|value| serde_json::from_slice(value).ok())
            .unwrap_or_default();
        let text = |field: &str, chars_max| {
            let text = json.get(field).and_then(Value::as_str);
            printable(text.unwrap_or("unknown"), chars_max).to_string()
        };
        let record = |field: &str| ExitRecord::from_json(json.get(field)?).ok();
        Self {
            host: text("host", HOST_CHARS_MAX),
            reason: text("reason", REASON_CHARS_MAX),
            exit: record("exit"),
            is_at_exit: json.get("at_exit").and_then(Value::as_bool) == Some(true),
            first_failure: record("first_failure"),
            root: None,
        }
    }
}

/// The root cause with its last words, otherwise the node and its reason.
impl std::fmt::Display for EndNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.root, &self.exit) {
            (Some(root), _) => {
                f.write_str(&root.text)?;
                let line = root.record.last_line.as_ref();
                line.map_or(Ok(()), |line| write!(f, "; its last line: {line}"))
            }
            (None, Some(exit)) => f.write_str(&exit_text(exit)),
            (None, None) => f.write_str(&self.reason_text()),
        }
    }
}

/// `rank 1 on node1 ended with exit code 3: bad shard 17`.
pub(crate) fn exit_text(exit: &ExitRecord) -> String {
    let last_line = exit.last_line.as_ref();
    let last_line = last_line.map_or_else(String::new, |line| format!(": {line}"));
    format!(
        "rank {} on {} ended with {}{last_line}",
        exit.rank, exit.host, exit.exit
    )
}

impl OwnEnd {
    /// A worker has failed.
    pub(crate) const fn of(reason: String, rank: Option<usize>) -> Self {
        Self {
            reason,
            rank,
            is_at_exit: false,
        }
    }

    /// A worker has failed at the end of its program.
    pub(crate) const fn at_exit(reason: String, rank: Option<usize>) -> Self {
        Self {
            reason,
            rank,
            is_at_exit: true,
        }
    }

    /// Returns the notice that the other nodes read, from the node `host`.
    pub(crate) fn notice(
        self,
        host: &str,
        exit: Option<ExitRecord>,
        first_failure: Option<ExitRecord>,
    ) -> EndNotice {
        EndNotice {
            host: host.to_owned(),
            reason: self.reason,
            exit,
            is_at_exit: self.is_at_exit,
            first_failure,
            root: None,
        }
    }
}

/// Writes why a node stops the job on all nodes, unless a node has done so already.
pub(crate) fn publish(board: &RoundBoard, notice: &EndNotice) -> Result<(), StoreError> {
    board.put_if_missing(END, notice.to_json().to_string())
}

/// Returns why a node ended the job; `None` if no node did, or if the store does not answer.
pub(crate) fn read(board: &RoundBoard) -> Option<EndNotice> {
    match board.read(END) {
        Ok(value) => value.map(|value| EndNotice::from_json(&value)),
        Err(error) => {
            log::debug!("cannot read why the rendezvous was closed: {error}");
            None
        }
    }
}

/// Lists this node among those that [confirm](confirm) that they have read a reason.
pub(crate) fn list_reader(board: &RoundBoard) -> Result<(), StoreError> {
    board.count(READERS, 1).map(drop)
}

/// Confirms that this node, with this id, no longer needs the store to learn why the job is over.
pub(crate) fn confirm(board: &RoundBoard, node: Option<&NodeId>) -> Result<(), StoreError> {
    if let Some(node) = node {
        board.put(&confirmation(node), "1")?;
    }
    board.count(READ, 1).map(drop)
}

fn confirmation(node: &NodeId) -> String {
    format!("{READ}/{node}")
}

/// Whether no listed node of a round of `nodes` nodes is left that has neither confirmed nor departed.
#[cfg_attr(
    not(feature = "launcher"),
    allow(dead_code, reason = "only a launcher needs it")
)]
pub(crate) fn have_all_read(
    board: &RoundBoard,
    nodes: usize,
    departed: &[NodeId],
) -> Result<bool, StoreError> {
    let (listed, confirmed) = (board.counted(READERS)?, board.counted(READ)?);
    let names: Vec<String> = departed.iter().map(confirmation).collect();
    let silent = match confirmed >= listed || names.is_empty() {
        true => 0,
        false => board
            .read_all(&names)?
            .iter()
            .filter(|it| it.is_none())
            .count(),
    };
    Ok(is_none_awaited(nodes, listed, confirmed, silent))
}

/// Whether each of the listed nodes has confirmed, or has departed without that. `silent` nodes have departed without
/// confirming. Any node that is not listed may be one of them, for example a node of torchrun.
const fn is_none_awaited(nodes: usize, listed: usize, confirmed: usize, silent: usize) -> bool {
    let lost = silent.saturating_sub(nodes.saturating_sub(listed));
    confirmed.saturating_add(lost) >= listed
}

/// Counts this node among those whose workers failed at the end of their program.
pub(crate) fn count_at_exit(board: &RoundBoard) -> Result<(), StoreError> {
    board.count(AT_EXIT, 1).map(drop)
}

/// Returns how many nodes have counted themselves with [`count_at_exit`].
pub(crate) fn counted_at_exit(board: &RoundBoard) -> Result<usize, StoreError> {
    board.counted(AT_EXIT)
}

/// Returns the earliest failure that a node of the round has recorded, and stores it for the nodes that arrive later.
pub(crate) fn merge_first(
    board: &RoundBoard,
    own: Option<&ExitRecord>,
) -> Result<Option<ExitRecord>, StoreError> {
    for _ in 0..TRIES_MAX {
        let value = board.read(FIRST)?.unwrap_or_default();
        let short = Some(&value).filter(|value| value.len() <= VALUE_BYTES_MAX);
        let json = short.and_then(|value| serde_json::from_slice(value).ok());
        let known = json.and_then(|json: Value| ExitRecord::from_json(&json).ok());
        let is_earlier = |own: &&ExitRecord| {
            known
                .as_ref()
                .is_none_or(|it| own.ended_unix_ms < it.ended_unix_ms)
        };
        let Some(own) = own.filter(is_earlier) else {
            return Ok(known);
        };
        let json = own.to_json().to_string();
        // The next turn reads whether this write has succeeded.
        board.store().compare_set(FIRST, &value, json.as_bytes())?;
    }
    Ok(own.cloned())
}

/// Reports that the workers of this node are stuck. True for the first node of the round to do so: when all nodes wait
/// for the same rank, the restart that follows counts once.
pub(crate) fn report_stuck(board: &RoundBoard) -> Result<bool, StoreError> {
    board.is_first(STUCK)
}

/// Whether a node of the round found its workers stuck and is about to stop them.
pub(crate) fn is_any_stuck(board: &RoundBoard) -> bool {
    board.has(STUCK).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use c10d_store::HashStore;

    use super::*;

    fn board() -> RoundBoard {
        RoundBoard::new(Arc::new(HashStore::new()))
    }

    fn notice() -> EndNotice {
        let reason = "worker with rank 1 ended with exit code 93".to_owned();
        OwnEnd::of(reason, Some(1)).notice("node0", None, None)
    }

    fn record() -> ExitRecord {
        let json = r#"{"rank": 1, "host": "node1", "code": 3, "ended_unix_ms": 5, "last_line": "bad shard 17"}"#;
        ExitRecord::from_json(&serde_json::from_str(json).unwrap()).unwrap()
    }

    /// docs/spec/rendezvous.md, END 3.
    #[test]
    fn the_other_nodes_learn_the_worker_or_the_reason() {
        let board = board();
        assert_eq!(read(&board), None);
        let mut sent = notice();
        publish(&board, &sent).unwrap();
        let text = "node0 ended the job: worker with rank 1 ended with exit code 93";
        assert_eq!(read(&board).unwrap().to_string(), text);
        // The first reason counts.
        sent.exit = Some(record());
        publish(&board, &sent).unwrap();
        assert_eq!(read(&board).unwrap().exit, None);
        let text = "rank 1 on node1 ended with exit code 3: bad shard 17";
        assert_eq!(sent.to_string(), text);
    }

    /// The launcher of another node has stopped its workers, which publishes no exit. The lost connection follows from that.
    #[cfg(feature = "launcher")]
    #[test]
    fn a_lost_connection_that_no_exit_explains_is_not_the_root_cause_of_another_reason() {
        let victim = r#"{"rank": 0, "host": "node1", "pid": 7, "code": 1, "ended_unix_ms": 5, "last_line": "RuntimeError: [pair.cc:561] Connection closed by peer [10.8.8.1]:4711"}"#;
        let victim = ExitRecord::from_json(&serde_json::from_str(victim).unwrap()).unwrap();
        let decide = || Decision::of(&[vec![], vec![victim.clone()]], Some(2), &|_| None);
        assert!(decide().is_some());
        let mut told = notice();
        told.explain(decide());
        assert_eq!(told.root, None);
        told.exit = Some(record());
        told.explain(decide());
        assert_eq!(told.root, None);
        told.exit = Some(victim.clone());
        told.explain(decide());
        assert_eq!(told.root.map(|it| it.record), Some(victim.clone()));
    }

    /// docs/spec/rendezvous.md, END 3.
    #[test]
    fn a_reason_survives_its_json_and_earlier_nodes_read_it() {
        let mut sent = notice();
        let json = sent.to_json().to_string();
        let old = r#"{"host":"node0","reason":"worker with rank 1 ended with exit code 93"}"#;
        assert_eq!(json, old);
        sent.exit = Some(record());
        sent.first_failure = Some(record());
        sent.is_at_exit = true;
        let json = sent.to_json();
        assert_eq!(EndNotice::from_json(json.to_string().as_bytes()), sent);
        assert_eq!(json["reason"], sent.reason);
    }

    /// docs/spec/rendezvous.md, END 3.
    #[test]
    fn a_strange_value_is_shown_shortened_and_printable() {
        for (value, text) in [
            (&b"\xff"[..], "unknown ended the job: unknown"),
            (b"[]", "unknown ended the job: unknown"),
            (
                b"{\"host\": 1, \"reason\": \"a\\u001b[31m\", \"exit\": 7, \"at_exit\": 1}",
                "unknown ended the job: a\\u{1b}[31m",
            ),
        ] {
            let board = board();
            board.put(END, value).unwrap();
            assert_eq!(read(&board).unwrap().to_string(), text);
        }
        for chars in [9999, 99999] {
            let board = board();
            let sent = OwnEnd::of("r".repeat(chars), None).notice(&"h".repeat(chars), None, None);
            publish(&board, &sent).unwrap();
            assert!(read(&board).unwrap().to_string().len() < 1000);
        }
    }

    /// docs/spec/rendezvous.md, END 6.
    #[test]
    fn a_node_that_is_lost_is_not_waited_for() {
        let board = board();
        let node = |pid| NodeId::new("node0", pid, 0);
        assert!(have_all_read(&board, 3, &[]).unwrap());
        for _ in 0..3 {
            list_reader(&board).unwrap();
        }
        confirm(&board, Some(&node(0))).unwrap();
        for (departed, expected) in [
            (&[][..], false),
            (&[1], false),
            (&[1, 2], true),
            // Node 0 has confirmed before it was lost, so that another node is still awaited.
            (&[0, 1], false),
            (&[0, 1, 2], true),
        ] {
            let departed: Vec<NodeId> = departed.iter().copied().map(node).collect();
            let all = have_all_read(&board, 3, &departed).unwrap();
            assert_eq!(all, expected, "{departed:?}");
        }
        // A node that is not listed may be the lost node.
        assert!(!have_all_read(&board, 4, &[node(1), node(2)]).unwrap());
        confirm(&board, None).unwrap();
        confirm(&board, None).unwrap();
        assert!(have_all_read(&board, 4, &[]).unwrap());
    }

    /// docs/spec/rendezvous.md, END 8.
    #[test]
    fn the_earliest_failure_remains() {
        let board = board();
        assert_eq!(merge_first(&board, None).unwrap(), None);
        let (first, mut later) = (record(), record());
        later.ended_unix_ms += 1;
        later.rank = 0;
        for (own, expected) in [(&later, &later), (&first, &first), (&later, &first)] {
            assert_eq!(
                merge_first(&board, Some(own)).unwrap().as_ref(),
                Some(expected)
            );
        }
        assert_eq!(merge_first(&board, None).unwrap(), Some(first.clone()));
        for strange in [&b"\xff"[..], b"[]", b"{}"] {
            board.put(FIRST, strange).unwrap();
            assert_eq!(merge_first(&board, None).unwrap(), None);
            assert_eq!(
                merge_first(&board, Some(&first)).unwrap(),
                Some(first.clone())
            );
        }
    }

    /// docs/spec/rendezvous.md, END 2.
    #[test]
    fn only_the_first_of_the_stuck_nodes_counts() {
        let board = board();
        assert!(!is_any_stuck(&board));
        assert!(report_stuck(&board).unwrap());
        assert!(is_any_stuck(&board));
        assert!(!report_stuck(&board).unwrap());
    }
}
