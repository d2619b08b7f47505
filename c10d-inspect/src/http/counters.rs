//! The counters of a store server as a page.

use c10d_store::{Counters, Opcode};
use serde::{Deserialize, Serialize};

/// The content of `/stats.json`: the counters of a server since its start, and its current sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StoreCounters {
    /// The number of requests of each command, by its name.
    pub requests: Vec<(String, u64)>,
    /// The number of all requests.
    pub requests_total: u64,
    /// The open connections now.
    pub connections: usize,
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that their peers closed.
    pub closed_by_peer: u64,
    /// Connections that were closed because of an error.
    pub closed_by_failure: u64,
    /// Connections that the server closed because the peer sent invalid data or did not read.
    pub closed_by_refusal: u64,
    /// Connections that were turned away because of the limit.
    pub rejected: u64,
    /// Connections that were HTTP.
    pub handed_over: u64,
    /// The current number of keys.
    pub keys: usize,
    /// The bytes of keys and values now.
    pub stored_bytes: usize,
    /// The open waits now.
    pub waits: usize,
    /// Waits that their clients cancelled.
    pub waits_cancelled: u64,
    /// Bytes that were read.
    pub received_bytes: u64,
    /// Bytes that were written.
    pub sent_bytes: u64,
}

impl StoreCounters {
    pub(super) fn new(counters: &Counters) -> Self {
        Self {
            requests: counters
                .requests
                .iter()
                .map(|(command, count)| (command_name(*command), *count))
                .collect(),
            requests_total: counters.requests.iter().map(|(_, count)| count).sum(),
            connections: counters.connections,
            opened: counters.opened,
            closed_by_peer: counters.closed_by_peer,
            closed_by_failure: counters.closed_by_failure,
            closed_by_refusal: counters.closed_by_refusal,
            rejected: counters.rejected,
            handed_over: counters.handed_over,
            keys: counters.keys,
            stored_bytes: counters.stored_bytes,
            waits: counters.waits,
            waits_cancelled: counters.waits_cancelled,
            received_bytes: counters.received_bytes,
            sent_bytes: counters.sent_bytes,
        }
    }
}

/// The name of a command in the protocol's document: `COMPARE_SET`.
pub(super) fn command_name(command: Opcode) -> String {
    let mut name = String::new();
    for (index, character) in format!("{command:?}").chars().enumerate() {
        if index > 0 && character.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(character.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_document() {
        assert_eq!(command_name(Opcode::Set), "SET");
        assert_eq!(command_name(Opcode::CompareSet), "COMPARE_SET");
        assert_eq!(command_name(Opcode::QueueTake), "QUEUE_TAKE");
    }
}
