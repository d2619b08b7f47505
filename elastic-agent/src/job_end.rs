//! Publishes to the other nodes of a round why none of them starts workers again.
//!
//! The reason is written to the board of the round before the rendezvous is closed, so a node that learns of the closing
//! finds it. PyTorch's nodes only see that the rendezvous is closed.

use c10d_socket::printable;
use c10d_store::{StoreError, StoreExt};
use elastic_rendezvous::RoundBoard;
use serde_json::{Value, json};

use crate::failure::ExitRecord;

const END: &str = "c10d/job_end";

/// How many nodes of the round will read the reason, and how many have.
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

/// Why another node ended the job on all nodes.
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
        }
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
        }
    }
}

/// The worker that failed with its last words, otherwise the node and its reason.
impl std::fmt::Display for EndNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.exit {
            Some(exit) => f.write_str(&exit_text(exit)),
            None => f.write_str(&self.reason_text()),
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

/// Confirms that this node no longer needs the store to learn why the job is over.
pub(crate) fn confirm(board: &RoundBoard) -> Result<(), StoreError> {
    board.count(READ, 1).map(drop)
}

/// Whether all listed nodes except `lost` of them have confirmed.
#[cfg_attr(
    not(feature = "launcher"),
    allow(dead_code, reason = "only a launcher needs it")
)]
pub(crate) fn have_all_read(board: &RoundBoard, lost: usize) -> Result<bool, StoreError> {
    Ok(board.counted(READ)? + lost >= board.counted(READERS)?)
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
        assert!(have_all_read(&board, 0).unwrap());
        for _ in 0..3 {
            list_reader(&board).unwrap();
        }
        confirm(&board).unwrap();
        for (lost, expected) in [(0, false), (1, false), (2, true)] {
            assert_eq!(have_all_read(&board, lost).unwrap(), expected, "{lost}");
        }
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
