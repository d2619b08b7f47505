//! Tells the other nodes of a round why none of them shall start workers again.
//!
//! The reason is written to the board of the round before the rendezvous is closed, so a node that learns of the closing
//! finds it. PyTorch's nodes only see that the rendezvous is closed.

use c10d_socket::printable;
use c10d_store::StoreError;
use elastic_rendezvous::RoundBoard;
use serde_json::{Value, json};

const END: &str = "c10d/job_end";

/// How many nodes found their workers stuck.
const STUCK: &str = "c10d/stuck";

/// The longest texts that are shown, in characters.
const REASON_CHARS_MAX: usize = 600;
const HOST_CHARS_MAX: usize = 255;

/// Writes why the node `host` ends the job.
pub(crate) fn publish(board: &RoundBoard, host: &str, reason: &str) -> Result<(), StoreError> {
    let value = json!({ "host": host, "reason": reason });
    board.put(END, value.to_string())
}

/// Why another node ended the job; `None` if none did, or if the store does not say.
pub(crate) fn read(board: &RoundBoard) -> Option<String> {
    let value = match board.read(END) {
        Ok(value) => value?,
        Err(error) => {
            log::debug!("cannot read why the rendezvous was closed: {error}");
            return None;
        }
    };
    let value: Value = serde_json::from_slice(&value).unwrap_or_default();
    let text = |field: &str, chars_max| {
        let text = value
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or("unknown");
        printable(text, chars_max)
    };
    let host = text("host", HOST_CHARS_MAX);
    Some(format!(
        "{host} ended the job: {}",
        text("reason", REASON_CHARS_MAX)
    ))
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

    #[test]
    fn the_other_nodes_learn_the_host_and_the_reason() {
        let board = RoundBoard::new(Arc::new(HashStore::new()));
        assert_eq!(read(&board), None);
        publish(
            &board,
            "node0",
            "worker with rank 1 ended with exit code 93",
        )
        .unwrap();
        assert_eq!(
            read(&board).as_deref(),
            Some("node0 ended the job: worker with rank 1 ended with exit code 93")
        );
    }

    #[test]
    fn a_strange_value_is_shown_shortened_and_printable() {
        let board = RoundBoard::new(Arc::new(HashStore::new()));
        for (value, text) in [
            (&b"\xff"[..], "unknown ended the job: unknown"),
            (b"[]", "unknown ended the job: unknown"),
            (
                b"{\"host\": 1, \"reason\": \"a\\u001b[31m\"}",
                "unknown ended the job: a\\u{1b}[31m",
            ),
        ] {
            board.put(END, value).unwrap();
            assert_eq!(read(&board).as_deref(), Some(text));
        }
        publish(&board, &"h".repeat(9999), &"r".repeat(9999)).unwrap();
        assert!(read(&board).unwrap().len() < 1000);
    }

    /// docs/spec/rendezvous.md, END 2.
    #[test]
    fn only_the_first_of_the_stuck_nodes_counts() {
        let board = RoundBoard::new(Arc::new(HashStore::new()));
        assert!(!is_any_stuck(&board));
        assert!(report_stuck(&board).unwrap());
        assert!(is_any_stuck(&board));
        assert!(!report_stuck(&board).unwrap());
    }
}
