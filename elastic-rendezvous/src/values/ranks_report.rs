//! The progress of a static rendezvous: joined nodes and missing ranks.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use c10d_socket::HostPort;

use crate::values::node::NodeId;

/// How many ranks of each kind a text lists at most.
const RANKS_SHOWN_MAX: usize = 16;

/// The progress of a static rendezvous. Its `Display` text is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RanksReport {
    /// The job's name, the same on all nodes.
    pub run_id: String,
    /// The address at which node rank 0 hosts the store.
    pub endpoint: HostPort,
    /// This node's rank, from 0.
    pub rank: usize,
    /// The number of nodes.
    pub world_size: usize,
    /// Whether this node is connected to the store. Until then, `joined` and `named` are empty.
    pub is_connected: bool,
    /// The number of nodes that have joined.
    pub joined: usize,
    /// Whether this node reads the names of the other nodes: in a world of more than 64 nodes, only node rank 0
    /// does.
    pub has_names: bool,
    /// The nodes that have written their name, by rank. PyTorch's nodes write none and are only counted.
    pub named: BTreeMap<usize, NodeId>,
    /// The time that this node has waited.
    pub waited: Duration,
    /// The time that this node will still wait.
    pub time_left: Duration,
}

impl RanksReport {
    /// The ranks without a name. They are the missing ones if all joined nodes have a name.
    pub fn unnamed_ranks(&self) -> impl Iterator<Item = usize> {
        (0..self.world_size).filter(|rank| !self.named.contains_key(rank))
    }

    /// Returns the number of missing nodes.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.world_size.saturating_sub(self.joined)
    }

    /// The number of nodes that have joined, and the missing ranks, for a line of a log.
    pub(crate) fn in_brief(&self) -> String {
        if !self.is_connected {
            return format!("no store of node rank 0 at {}", self.endpoint);
        }
        let mut text = format!("{} of {} nodes", self.joined, self.world_size);
        if self.has_names && self.missing() > 0 {
            let unnamed = self.unnamed_ranks().count();
            let ranks = self.unnamed_ranks().take(RANKS_SHOWN_MAX);
            let ranks: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
            let of = match self.missing() < unnamed {
                // PyTorch's nodes have joined without a name.
                true => format!("{} of ", self.missing()),
                false => String::new(),
            };
            text += &format!("; missing: {of}node rank {}", ranks.join(", "));
        }
        text
    }
}

/// One line: `2 of 3 nodes have joined run "job" at node0:29500: rank 0 is a (pid 1), rank 2 is c (pid
/// 7); missing: node rank 1`.
impl fmt::Display for RanksReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            endpoint,
            world_size,
            joined,
            ..
        } = self;
        if !self.is_connected {
            return write!(
                f,
                "waiting for the store of node rank 0 at {endpoint}; this is node rank {} of {world_size}",
                self.rank,
            );
        }
        let (nodes, have) = match *world_size {
            1 => ("node", "has"),
            _ => ("nodes", "have"),
        };
        let run_id = &self.run_id;
        write!(
            f,
            "{joined} of {world_size} {nodes} {have} joined run {run_id:?} at {endpoint}"
        )?;
        if !self.has_names {
            return write!(f, "; node rank 0 reports the missing nodes");
        }
        for (index, (rank, node)) in self.named.iter().take(RANKS_SHOWN_MAX).enumerate() {
            let separator = if index == 0 { ":" } else { "," };
            write!(f, "{separator} rank {rank} is {}", node.named())?;
        }
        rest(f, self.named.len())?;
        let without_name = joined.saturating_sub(self.named.len());
        if without_name > 0 {
            write!(f, "; {without_name} without a name (PyTorch's nodes)")?;
        }
        let missing = self.missing();
        if missing == 0 {
            return Ok(());
        }
        let unnamed = self.unnamed_ranks().count();
        f.write_str("; missing: ")?;
        if missing < unnamed {
            write!(f, "{missing} of ")?;
        }
        f.write_str(if unnamed == 1 {
            "node rank"
        } else {
            "node ranks"
        })?;
        for (index, rank) in self.unnamed_ranks().take(RANKS_SHOWN_MAX).enumerate() {
            write!(f, "{} {rank}", if index == 0 { "" } else { "," })?;
        }
        rest(f, unnamed)
    }
}

fn rest(f: &mut fmt::Formatter<'_>, count: usize) -> fmt::Result {
    match count.saturating_sub(RANKS_SHOWN_MAX) {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(joined: usize, named: &[usize]) -> RanksReport {
        let node = |rank: &usize| (*rank, NodeId::new(format!("node{rank}"), 7, 0));
        RanksReport {
            run_id: "job".to_owned(),
            endpoint: HostPort::new("node0", 29500),
            rank: 1,
            world_size: 4,
            is_connected: true,
            joined,
            has_names: true,
            named: named.iter().map(node).collect(),
            waited: Duration::from_secs(5),
            time_left: Duration::from_secs(895),
        }
    }

    #[test]
    fn a_brief_text_names_the_missing_ranks() {
        assert_eq!(
            report(2, &[0, 2]).in_brief(),
            "2 of 4 nodes; missing: node rank 1, 3"
        );
        assert_eq!(
            report(3, &[0]).in_brief(),
            "3 of 4 nodes; missing: 1 of node rank 1, 2, 3"
        );
        let alone = RanksReport {
            is_connected: false,
            ..report(0, &[])
        };
        assert_eq!(alone.in_brief(), "no store of node rank 0 at node0:29500");
    }

    #[test]
    fn the_text_names_joined_nodes_and_missing_ranks() {
        let waiting = RanksReport {
            is_connected: false,
            ..report(0, &[])
        };
        for (report, text) in [
            (
                waiting,
                "waiting for the store of node rank 0 at node0:29500; this is node rank 1 of 4",
            ),
            (
                report(2, &[0, 2]),
                "2 of 4 nodes have joined run \"job\" at node0:29500: rank 0 is node0 (pid 7), \
                 rank 2 is node2 (pid 7); missing: node ranks 1, 3",
            ),
            (
                report(3, &[0, 1, 2]),
                "3 of 4 nodes have joined run \"job\" at node0:29500: rank 0 is node0 (pid 7), \
                 rank 1 is node1 (pid 7), rank 2 is node2 (pid 7); missing: node rank 3",
            ),
            (
                report(2, &[0]),
                "2 of 4 nodes have joined run \"job\" at node0:29500: rank 0 is node0 (pid 7); \
                 1 without a name (PyTorch's nodes); missing: 2 of node ranks 1, 2, 3",
            ),
        ] {
            assert_eq!(report.to_string(), text);
        }
    }

    /// docs/spec/rendezvous.md, STATIC 2.
    #[test]
    fn a_node_of_a_large_world_refers_to_rank_0() {
        let report = RanksReport {
            world_size: 1000,
            has_names: false,
            ..report(999, &[])
        };
        assert_eq!(
            report.to_string(),
            "999 of 1000 nodes have joined run \"job\" at node0:29500; node rank 0 reports the missing nodes",
        );
    }

    #[test]
    fn a_text_about_a_thousand_ranks_stays_short() {
        let report = RanksReport {
            world_size: 1000,
            ..report(1, &[0])
        };
        let text = report.to_string();
        assert!(text.ends_with(" and 983 more"), "{text}");
        assert!(text.len() < 300, "{text}");
    }
}
