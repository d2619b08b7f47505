//! The progress of a join and the changes of a round, for logs, errors and progress displays.

use std::fmt;
use std::time::Duration;

use crate::values::node::NodeId;

/// How many nodes of each kind a text lists at most.
const NODES_SHOWN_MAX: usize = 16;

/// The progress of a join. Its `Display` text is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitReport {
    /// The job's name, the same on all nodes.
    pub run_id: String,
    /// The number of the current round.
    pub round: i64,
    /// Whether the round is complete; then a node that is not a member waits for the next.
    pub is_complete: bool,
    /// The number of nodes that suffice once the last call is over.
    pub min_nodes: usize,
    /// The number of nodes that complete a round at once.
    pub max_nodes: usize,
    /// The time that this node has waited.
    pub waited: Duration,
    /// The time that this node will still wait.
    pub time_left: Duration,
    /// Remaining time of the last call; `None` until the minimum number of nodes has joined.
    pub last_call_left: Option<Duration>,
    /// The number of nodes in the round.
    pub joined: usize,
    /// The nodes of the round. Empty in a [group](crate::GroupStore), whose nodes do not read the state.
    pub participants: Vec<NodeId>,
    /// The nodes that wait for the next round.
    pub waiting: Vec<NodeId>,
    /// The spare nodes, for which the round has no place.
    pub spares: Vec<NodeId>,
    /// Participants from before this node's first read, with a heartbeat so old that they may be dead.
    pub suspects: Vec<NodeId>,
    /// The listed nodes without a heartbeat for more than half of the time after which they are dropped.
    pub silent: Vec<LostNode>,
    /// The members of this node's last round that are on no list: about to rejoin, or left for good.
    pub absent: Vec<NodeId>,
    /// The nodes that this node has dropped as dead, and members of its last round that another node has
    /// dropped.
    pub dropped: Vec<DroppedNode>,
    /// The nodes that have announced that they cannot join now, each with its reason.
    pub not_joining: Vec<NotJoining>,
}

/// A node that has announced that it cannot join now, for example because its health check fails.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotJoining {
    /// The node, which is alive and outside of the round.
    pub node: NodeId,
    /// The reason in the node's words, such as `its health check failed (exit code 3: no GPU)`, made
    /// [printable](c10d_socket::printable).
    pub why: String,
}

impl NotJoining {
    /// Creates the notice of a node, for handlers in other crates.
    #[must_use]
    pub fn new(node: NodeId, why: impl Into<String>) -> Self {
        Self {
            node,
            why: why.into(),
        }
    }
}

/// Formats the node, for example as `node1 (pid 42) is not joining: its health check failed (exit code 3: no GPU)`.
impl fmt::Display for NotJoining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not joining: {}", self.node.named(), self.why)
    }
}

/// A node without a recent heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostNode {
    /// The lost node, with its name in the state.
    pub node: NodeId,
    /// The time for which the reporting node has observed no new heartbeat or no connection of the lost node.
    pub silence: Duration,
    /// Whether it is lost because its connection to the store has closed.
    pub is_disconnected: bool,
}

impl LostNode {
    /// Creates a lost node, for handlers in other crates.
    #[must_use]
    pub fn new(node: NodeId, silence: Duration) -> Self {
        Self {
            node,
            silence,
            is_disconnected: false,
        }
    }
}

/// Formats the node, for example as `node1 (pid 42): no heartbeat for 15 s` or `node1 (pid 42): its connection closed 2
/// s ago`.
impl fmt::Display for LostNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, silence) = (self.node.named(), self.silence.as_secs());
        if self.is_disconnected {
            write!(f, "{node}: its connection closed {silence} s ago")
        } else {
            write!(f, "{node}: no heartbeat for {silence} s")
        }
    }
}

/// A node that has left its round on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftNode {
    /// The node, with its name in the state.
    pub node: NodeId,
    /// Whether it is listed again and waits for the next round.
    pub is_joining: bool,
}

impl LeftNode {
    /// Creates a node that left, for handlers in other crates.
    #[must_use]
    pub fn new(node: NodeId, is_joining: bool) -> Self {
        Self { node, is_joining }
    }
}

/// Formats the node, for example as `node1 (pid 42) left the round to restart`.
impl fmt::Display for LeftNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = if self.is_joining { " to restart" } else { "" };
        write!(f, "{} left the round{why}", self.node.named())
    }
}

/// A node that was dropped as dead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DroppedNode {
    /// The node, with its name in the state.
    pub node: NodeId,
    /// The time for which the node had written no heartbeat.
    pub silence: Duration,
    /// The time since the node was dropped.
    pub ago: Duration,
}

impl WaitReport {
    /// A report of this round without nodes.
    pub(crate) fn of(run_id: &str, round: i64, min_nodes: usize, max_nodes: usize) -> Self {
        Self {
            run_id: run_id.to_owned(),
            round,
            is_complete: false,
            min_nodes,
            max_nodes,
            waited: Duration::ZERO,
            time_left: Duration::ZERO,
            last_call_left: None,
            joined: 0,
            participants: Vec::new(),
            waiting: Vec::new(),
            spares: Vec::new(),
            suspects: Vec::new(),
            silent: Vec::new(),
            absent: Vec::new(),
            dropped: Vec::new(),
            not_joining: Vec::new(),
        }
    }

    /// Returns how many more nodes must join to reach `min_nodes`.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.min_nodes.saturating_sub(self.joined)
    }

    /// Returns the missing nodes whose names are known, because they are silent, absent or dropped. Empty in a
    /// first round, whose nodes are not known in advance.
    pub fn missing_nodes(&self) -> impl Iterator<Item = &NodeId> {
        let silent = self.silent.iter().map(|lost| &lost.node);
        let dropped = self.dropped.iter().map(|dropped| &dropped.node);
        let not_joining = self.not_joining.iter().map(|it| &it.node);
        silent.chain(&self.absent).chain(dropped).chain(not_joining)
    }

    /// The number of nodes that have joined, and the missing nodes, for a line of a log. The most important part is first, because
    /// the line may be cut.
    pub(crate) fn in_brief(&self) -> String {
        let wanted = match self.is_complete || self.min_nodes == self.max_nodes {
            true => self.max_nodes.to_string(),
            false => format!("{} to {}", self.min_nodes, self.max_nodes),
        };
        let mut text = match self.is_complete {
            true => format!("{} nodes run the job", self.joined),
            false => format!("{} of {wanted} nodes", self.joined),
        };
        let why = self.not_joining.iter().map(NotJoining::to_string);
        let missing = self.silent.iter().map(LostNode::to_string);
        let absent = self.absent.iter().map(|node| node.named().to_string());
        let dropped = self.dropped.iter().map(|it| it.node.named().to_string());
        for (label, mut names) in [
            ("", why.collect::<Vec<_>>()),
            ("", missing.collect()),
            ("missing: ", absent.chain(dropped).collect()),
            (
                "joined: ",
                self.participants
                    .iter()
                    .map(|node| node.named().to_string())
                    .collect(),
            ),
        ] {
            names.truncate(NODES_SHOWN_MAX);
            if !names.is_empty() {
                text += &format!("; {label}{}", names.join(", "));
            }
        }
        text
    }

    /// Adds what absent nodes say about themselves. A node that is listed is not absent, whatever it has said before.
    pub(crate) fn add_not_joining(&mut self, mut not_joining: Vec<NotJoining>) {
        let listed = self.participants.iter().chain(&self.waiting);
        let listed: Vec<&NodeId> = listed.chain(&self.spares).collect();
        not_joining.retain(|it| !listed.contains(&&it.node));
        self.absent
            .retain(|node| not_joining.iter().all(|it| it.node != *node));
        self.not_joining = not_joining;
    }
}

/// One line: `2 of 4 nodes have joined round 0 of run "job": a (pid 1), b (pid 2)`.
impl fmt::Display for WaitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present = self.joined;
        write!(f, "{present} of {}", self.min_nodes)?;
        if self.min_nodes < self.max_nodes {
            write!(f, " to {}", self.max_nodes)?;
        }
        write!(
            f,
            " nodes {} joined round {} of run {:?}",
            if present == 1 { "has" } else { "have" },
            self.round,
            self.run_id,
        )?;
        if self.is_complete {
            f.write_str(", which is complete")?;
        }
        list(f, ": ", &self.participants)?;
        list(f, "; waiting for the next round: ", &self.waiting)?;
        list(f, "; spare: ", &self.spares)?;
        list(f, "; possibly dead (old heartbeat): ", &self.suspects)?;
        list(f, "; not back yet: ", &self.absent)?;
        for (index, lost) in self.silent.iter().take(NODES_SHOWN_MAX).enumerate() {
            write!(f, "{} {lost}", if index == 0 { ";" } else { "," })?;
        }
        rest(f, self.silent.len())?;
        if !self.dropped.is_empty() {
            f.write_str("; dropped as dead: ")?;
            for (index, dropped) in self.dropped.iter().take(NODES_SHOWN_MAX).enumerate() {
                if index > 0 {
                    f.write_str(", ")?;
                }
                write!(
                    f,
                    "{} {} s ago after {} s of silence",
                    dropped.node.named(),
                    dropped.ago.as_secs(),
                    dropped.silence.as_secs(),
                )?;
            }
            rest(f, self.dropped.len())?;
        }
        for it in self.not_joining.iter().take(NODES_SHOWN_MAX) {
            write!(f, "; {it}")?;
        }
        rest(f, self.not_joining.len())
    }
}

fn list(f: &mut fmt::Formatter<'_>, intro: &str, nodes: &[NodeId]) -> fmt::Result {
    for (index, node) in nodes.iter().take(NODES_SHOWN_MAX).enumerate() {
        f.write_str(if index == 0 { intro } else { ", " })?;
        write!(f, "{}", node.named())?;
    }
    rest(f, nodes.len())
}

fn rest(f: &mut fmt::Formatter<'_>, count: usize) -> fmt::Result {
    match count.saturating_sub(NODES_SHOWN_MAX) {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

/// The changes of a node's round since the node joined. In a [group](crate::GroupStore), each list has at most 16
/// nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Membership {
    /// The nodes that wait for the next round; none while this one is full, because the next would have no
    /// place for them either.
    pub waiting: Vec<NodeId>,
    /// Members that this node or another has dropped as dead, because they wrote no heartbeat.
    pub lost: Vec<LostNode>,
    /// Members that have left the round on their own, to restart or for good.
    pub left: Vec<LeftNode>,
    /// The number of further members that have departed: of many departures only some are named, and a holder that died
    /// may not have named any (docs/spec/rendezvous.md, section 10).
    pub unnamed: usize,
    /// The number of nodes that are in the round now; `None` if it is unknown, for example in a group.
    pub members: Option<usize>,
    /// Whether this node is no longer in its round: the other nodes have dropped it as dead, or started the next
    /// round.
    pub is_evicted: bool,
    /// Whether the rendezvous is closed.
    pub is_closed: bool,
}

impl Membership {
    /// Returns the number of members that have left the round or were lost.
    #[must_use]
    pub fn departed(&self) -> usize {
        self.lost.len() + self.left.len() + self.unnamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> WaitReport {
        WaitReport {
            run_id: "job".to_owned(),
            round: 3,
            is_complete: false,
            min_nodes: 2,
            max_nodes: 4,
            waited: Duration::from_secs(5),
            time_left: Duration::from_secs(595),
            last_call_left: None,
            joined: 1,
            participants: vec![NodeId::new("a", 1, 0)],
            waiting: vec![],
            spares: vec![],
            suspects: vec![],
            silent: vec![],
            absent: vec![],
            dropped: vec![],
            not_joining: vec![],
        }
    }

    #[test]
    fn the_text_says_why_an_absent_node_does_not_join() {
        let mut report = WaitReport {
            absent: vec![NodeId::new("b", 2, 0), NodeId::new("c", 3, 0)],
            ..report()
        };
        let failed = |name, pid| {
            let why = "its health check failed (exit code 3: no GPU)";
            NotJoining::new(NodeId::new(name, pid, 0), why)
        };
        // The first one has joined since.
        report.add_not_joining(vec![failed("a", 1), failed("c", 3)]);
        assert_eq!(
            report.to_string(),
            "1 of 2 to 4 nodes has joined round 3 of run \"job\": a (pid 1); not back yet: b (pid 2); \
         c (pid 3) is not joining: its health check failed (exit code 3: no GPU)"
        );
        let missing: Vec<&str> = report.missing_nodes().map(|node| &*node.addr).collect();
        assert_eq!(missing, ["b", "c"]);
    }

    #[test]
    fn the_text_names_missing_nodes() {
        let report = WaitReport {
            silent: vec![LostNode::new(
                NodeId::new("b", 2, 0),
                Duration::from_millis(9900),
            )],
            absent: vec![NodeId::new("c", 3, 0)],
            ..report()
        };
        assert_eq!(
            report.to_string(),
            "1 of 2 to 4 nodes has joined round 3 of run \"job\": a (pid 1); not back yet: c (pid 3); \
         b (pid 2): no heartbeat for 9 s"
        );
        let missing: Vec<&str> = report.missing_nodes().map(|node| &*node.addr).collect();
        assert_eq!(missing, ["b", "c"]);
    }

    #[test]
    fn a_brief_text_begins_with_the_missing_nodes() {
        let names = |nodes: &[(&str, i64)]| -> Vec<NodeId> {
            nodes
                .iter()
                .map(|(name, pid)| NodeId::new(*name, *pid, 0))
                .collect()
        };
        let mut report = report();
        assert_eq!(report.in_brief(), "1 of 2 to 4 nodes; joined: a (pid 1)");
        report.absent = names(&[("b", 2)]);
        report.max_nodes = 2;
        report.silent = vec![LostNode::new(
            NodeId::new("c", 3, 0),
            Duration::from_secs(9),
        )];
        report.not_joining = vec![NotJoining::new(NodeId::new("d", 4, 0), "no GPU")];
        assert_eq!(
            report.in_brief(),
            "1 of 2 nodes; d (pid 4) is not joining: no GPU; c (pid 3): no heartbeat for 9 s; missing: b (pid 2); \
         joined: a (pid 1)"
        );
        report = WaitReport {
            is_complete: true,
            ..self::report()
        };
        assert_eq!(report.in_brief(), "1 nodes run the job; joined: a (pid 1)");
    }

    #[test]
    fn the_text_names_joined_nodes_and_how_many_are_needed() {
        assert_eq!(
            report().to_string(),
            "1 of 2 to 4 nodes has joined round 3 of run \"job\": a (pid 1)"
        );
    }

    #[test]
    fn the_text_names_dropped_nodes_and_when() {
        let report = WaitReport {
            joined: 0,
            participants: vec![],
            dropped: vec![DroppedNode {
                node: NodeId::new("b\n", 7, 0),
                silence: Duration::from_secs(15),
                ago: Duration::from_millis(3600),
            }],
            ..report()
        };
        assert_eq!(
            report.to_string(),
            "0 of 2 to 4 nodes have joined round 3 of run \"job\"; \
         dropped as dead: b\\n (pid 7) 3 s ago after 15 s of silence"
        );
    }

    #[test]
    fn the_text_counts_nodes_without_names() {
        let report = WaitReport {
            joined: 9999,
            participants: vec![],
            min_nodes: 10_000,
            max_nodes: 10_000,
            ..report()
        };
        assert_eq!(report.missing(), 1);
        assert_eq!(
            report.to_string(),
            "9999 of 10000 nodes have joined round 3 of run \"job\""
        );
    }

    #[test]
    fn a_text_about_a_thousand_nodes_stays_short() {
        let report = WaitReport {
            joined: 1000,
            participants: (0..1000).map(|pid| NodeId::new("host", pid, 0)).collect(),
            ..report()
        };
        let text = report.to_string();
        assert!(text.ends_with("and 984 more"), "{text}");
        assert!(text.len() < 600, "{text}");
    }
}
