//! The messages between nodes and the holder: small texts, so that a person can read them in the store.
//!
//! docs/spec/rendezvous.md, section 10. Fields are separated by spaces; the address of a node is the rest of its line,
//! because it may contain spaces. A message that cannot be parsed is ignored like a lost message.

use std::fmt::Write as _;
use std::time::Duration;

use crate::values::node::NodeId;

/// The longest address of a node that is read.
const ADDRESS_BYTES_MAX: usize = 1024;

/// How many nodes of a kind a summary names.
pub(crate) const NAMED_MAX: usize = 16;

/// A request of a node to the holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// The number of the node's handler in this store.
    pub(crate) index: u32,
    /// Rises with each new request of the node. A repetition has the same number.
    pub(crate) number: u32,
    /// The epoch of the holder to which the request is addressed. A later holder ignores it, because the network
    /// may have repeated it long after the node made another request.
    pub(crate) epoch: u64,
    pub(crate) node: NodeId,
    pub(crate) kind: RequestKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// To be a member of a round after this one; -1 for any.
    Join { after: i64 },
    /// To be a member of a round after this one, although the time is over: a complete round
    /// counts, otherwise the node leaves.
    JoinLate { after: i64 },
    /// To be on no list, until it joins again.
    Exit,
    /// To be on no list, for good.
    Leave,
    /// To close the rendezvous for all.
    Close,
    /// Nothing: it is a member of this round.
    Stay { round: i64 },
}

impl RequestKind {
    pub(crate) const fn is_join(self) -> bool {
        matches!(self, Self::Join { .. } | Self::JoinLate { .. })
    }

    /// Whether the node leaves its round by it, and does not ask for the next one.
    pub(crate) const fn leaves_round(self) -> bool {
        matches!(self, Self::Exit | Self::Leave)
    }

    const fn word(self) -> (&'static str, i64) {
        match self {
            Self::Join { after } => ("join", after),
            Self::JoinLate { after } => ("late", after),
            Self::Exit => ("exit", 0),
            Self::Leave => ("leave", 0),
            Self::Close => ("close", 0),
            Self::Stay { round } => ("stay", round),
        }
    }
}

impl Request {
    pub(crate) fn to_text(&self) -> Vec<u8> {
        let (word, round) = self.kind.word();
        let (index, number, epoch) = (self.index, self.number, self.epoch);
        let node = NodeText(&self.node);
        format!("{index} {number} {epoch} {word} {round} {node}").into_bytes()
    }

    pub(crate) fn from_text(text: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(text)?;
        let (index, number) = (fields.number()?, fields.number()?);
        let epoch = fields.number()?;
        let word = fields.word()?;
        let round = fields.number()?;
        let kind = match word {
            "join" => RequestKind::Join { after: round },
            "late" => RequestKind::JoinLate { after: round },
            "exit" => RequestKind::Exit,
            "leave" => RequestKind::Leave,
            "close" => RequestKind::Close,
            "stay" => RequestKind::Stay { round },
            _ => return None,
        };
        let node = fields.node()?;
        Some(Self {
            index,
            number,
            epoch,
            node,
            kind,
        })
    }
}

/// The holder's answer to a request, under the node's own key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The number of the request.
    pub(crate) number: u32,
    pub(crate) kind: AnswerKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    Joined(Place),
    /// The node is a spare: no time limit applies.
    Spare,
    /// A spare has a place in an open round; its time starts again.
    NoLongerSpare,
    /// The rendezvous is closed.
    Closed,
    /// The rendezvous is closed, and the node was a spare.
    NotNeeded,
    /// The time was over, and the node is on no list.
    TimedOut,
    /// The node left, or the rendezvous is closed as requested.
    Done,
    /// Other nodes have dropped the node from this round.
    Evicted {
        round: i64,
    },
    /// Not an answer: a new holder requests that the node repeats its request.
    NewHolder {
        epoch: u64,
    },
}

impl AnswerKind {
    /// Whether the answer completes the request, whichever repetition of it was answered.
    pub(crate) const fn ends_every_request(&self) -> bool {
        match self {
            Self::Joined(_) | Self::Closed | Self::NotNeeded | Self::Done => true,
            Self::Spare
            | Self::NoLongerSpare
            | Self::TimedOut
            | Self::Evicted { .. }
            | Self::NewHolder { .. } => false,
        }
    }
}

/// A node's place in a complete round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) round: i64,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The number of an earlier round with the same nodes; -1 if the holder has not seen such a
    /// round.
    pub(crate) same_as: i64,
    /// The node with rank 0.
    pub(crate) first: NodeId,
}

impl Answer {
    pub(crate) fn to_text(&self) -> Vec<u8> {
        let number = self.number;
        let text = match &self.kind {
            AnswerKind::Joined(place) => format!(
                "{number} joined {} {} {} {} {}",
                place.round,
                place.rank,
                place.size,
                place.same_as,
                NodeText(&place.first)
            ),
            AnswerKind::Evicted { round } => format!("{number} evicted {round}"),
            AnswerKind::NewHolder { epoch } => format!("{number} holder {epoch}"),
            AnswerKind::Spare => format!("{number} spare"),
            AnswerKind::NoLongerSpare => format!("{number} joins"),
            AnswerKind::Closed => format!("{number} closed"),
            AnswerKind::NotNeeded => format!("{number} unneeded"),
            AnswerKind::TimedOut => format!("{number} late"),
            AnswerKind::Done => format!("{number} done"),
        };
        text.into_bytes()
    }

    pub(crate) fn from_text(text: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(text)?;
        let number = fields.number()?;
        let kind = match fields.word()? {
            "joined" => AnswerKind::Joined(Place {
                round: fields.number()?,
                rank: fields.number()?,
                size: fields.number()?,
                same_as: fields.number()?,
                first: fields.node()?,
            }),
            "evicted" => AnswerKind::Evicted {
                round: fields.number()?,
            },
            "holder" => AnswerKind::NewHolder {
                epoch: fields.number()?,
            },
            "spare" => AnswerKind::Spare,
            "joins" => AnswerKind::NoLongerSpare,
            "closed" => AnswerKind::Closed,
            "unneeded" => AnswerKind::NotNeeded,
            "late" => AnswerKind::TimedOut,
            "done" => AnswerKind::Done,
            _ => return None,
        };
        Some(Self { number, kind })
    }
}

/// The lease: its holder, and that the holder lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Rises with each new holder.
    pub(crate) epoch: u64,
    /// The holder, as two nodes may claim the same epoch.
    pub(crate) index: u32,
    /// Rises while the holder lives; `None`: it has given the lease back.
    pub(crate) renewal: Option<u64>,
    /// A number chosen by the first holder in a store, and kept by all later holders.
    pub(crate) generation: u64,
}

impl Lease {
    pub(crate) fn to_text(&self) -> Vec<u8> {
        let (epoch, index, generation) = (self.epoch, self.index, self.generation);
        match self.renewal {
            Some(renewal) => format!("{epoch} {index} {renewal} {generation}"),
            None => format!("{epoch} {index} free {generation}"),
        }
        .into_bytes()
    }

    pub(crate) fn from_text(text: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(text)?;
        let (epoch, index) = (fields.number()?, fields.number()?);
        let renewal = match fields.word()? {
            "free" => None,
            renewal => Some(renewal.parse().ok()?),
        };
        Some(Self {
            epoch,
            index,
            renewal,
            generation: fields.number()?,
        })
    }
}

/// The text that wakes members: the status of the last round, written by the holder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Summary {
    pub(crate) epoch: u64,
    pub(crate) round: i64,
    pub(crate) is_complete: bool,
    pub(crate) is_closed: bool,
    /// The numbers of nodes that participate, wait, were lost, and have left the complete round.
    pub(crate) joined: usize,
    pub(crate) waiting: Some16<NodeId>,
    pub(crate) lost: Some16<(NodeId, Duration)>,
    pub(crate) left: Some16<(NodeId, bool)>,
    /// How often the holder has called nodes whose connections have closed.
    pub(crate) calls: u64,
    /// The indices of the nodes that it has called last; none if it has called all.
    pub(crate) called: Vec<u32>,
}

/// The first of a list, and how many there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Some16<T> {
    pub(crate) count: usize,
    pub(crate) named: Vec<T>,
}

impl<T> Default for Some16<T> {
    fn default() -> Self {
        Self {
            count: 0,
            named: Vec::new(),
        }
    }
}

impl<T> FromIterator<T> for Some16<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut some = Self::default();
        for item in items {
            some.count += 1;
            if some.named.len() < NAMED_MAX {
                some.named.push(item);
            }
        }
        some
    }
}

impl Summary {
    /// Whether the holder has called the node with this index since it wrote the summary `known`.
    pub(crate) fn calls(&self, index: u32, known: &Self) -> bool {
        let before = if self.epoch == known.epoch {
            known.calls
        } else {
            0
        };
        // The node may have missed all calls but the last one.
        let is_every_node = self.called.is_empty() || self.calls > before.saturating_add(1);
        self.calls > before && (is_every_node || self.called.contains(&index))
    }

    pub(crate) fn to_text(&self) -> Vec<u8> {
        let mut text = format!(
            "{} {} {} {} {} {} {} {}",
            self.epoch,
            self.round,
            u8::from(self.is_complete),
            u8::from(self.is_closed),
            self.joined,
            self.waiting.count,
            self.lost.count,
            self.left.count
        );
        // Writing to a string cannot fail.
        if self.calls > 0 {
            let _ = write!(text, " {}", self.calls);
        }
        for index in &self.called {
            let _ = write!(text, " {index}");
        }
        for node in &self.waiting.named {
            let _ = write!(text, "\nwaiting 0 {}", NodeText(node));
        }
        for (node, silence) in &self.lost.named {
            let _ = write!(text, "\nlost {} {}", silence.as_millis(), NodeText(node));
        }
        for (node, is_joining) in &self.left.named {
            let _ = write!(text, "\nleft {} {}", u8::from(*is_joining), NodeText(node));
        }
        text.into_bytes()
    }

    pub(crate) fn from_text(text: &[u8]) -> Option<Self> {
        let mut lines = text.split(|byte| *byte == b'\n');
        let mut fields = Fields::new(lines.next()?)?;
        let mut summary = Self {
            epoch: fields.number()?,
            round: fields.number()?,
            is_complete: fields.number::<u8>()? == 1,
            is_closed: fields.number::<u8>()? == 1,
            joined: fields.number()?,
            ..Self::default()
        };
        summary.waiting.count = fields.number()?;
        summary.lost.count = fields.number()?;
        summary.left.count = fields.number()?;
        // Missing in summaries of release 0.2, whose nodes ignore further numbers.
        summary.calls = fields.number().unwrap_or_default();
        let called = std::iter::from_fn(|| fields.number());
        summary.called = called.take(NAMED_MAX).collect();
        for line in lines.take(3 * NAMED_MAX) {
            let mut fields = Fields::new(line)?;
            let word = fields.word()?;
            let value: u64 = fields.number()?;
            let node = fields.node()?;
            match word {
                "waiting" => summary.waiting.named.push(node),
                "lost" => {
                    let silence = Duration::from_millis(value);
                    summary.lost.named.push((node, silence));
                }
                "left" => summary.left.named.push((node, value == 1)),
                _ => return None,
            }
        }
        Some(summary)
    }
}

/// `PID LOCAL_ID ADDRESS`. Line ends in an address would end the line.
struct NodeText<'n>(&'n NodeId);

impl std::fmt::Display for NodeText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.0.pid, self.0.local_id, self.0.addr)
    }
}

/// Whether a node can be named in messages.
pub(crate) fn can_be_named(node: &NodeId) -> bool {
    node.addr.len() <= ADDRESS_BYTES_MAX && !node.addr.contains('\n')
}

struct Fields<'t>(&'t str);

impl<'t> Fields<'t> {
    fn new(text: &'t [u8]) -> Option<Self> {
        Some(Self(std::str::from_utf8(text).ok()?))
    }

    fn word(&mut self) -> Option<&'t str> {
        if self.0.is_empty() {
            return None;
        }
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        Some(word)
    }

    fn number<N: std::str::FromStr>(&mut self) -> Option<N> {
        self.word()?.parse().ok()
    }

    fn node(&mut self) -> Option<NodeId> {
        let (pid, local_id) = (self.number()?, self.number()?);
        let node = NodeId::new(self.0, pid, local_id);
        can_be_named(&node).then_some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeId {
        NodeId::new("a host with spaces", 42, 1)
    }

    #[test]
    fn messages_survive_their_text() {
        for kind in [
            RequestKind::Join { after: -1 },
            RequestKind::JoinLate { after: 7 },
            RequestKind::Exit,
            RequestKind::Leave,
            RequestKind::Close,
            RequestKind::Stay { round: 3 },
        ] {
            let request = Request {
                index: 9,
                number: 2,
                epoch: 4,
                node: node(),
                kind,
            };
            assert_eq!(Request::from_text(&request.to_text()), Some(request));
        }
        for kind in [
            AnswerKind::Joined(Place {
                round: 3,
                rank: 2,
                size: 4,
                same_as: -1,
                first: node(),
            }),
            AnswerKind::Evicted { round: 3 },
            AnswerKind::NewHolder { epoch: 7 },
            AnswerKind::Spare,
            AnswerKind::NoLongerSpare,
            AnswerKind::Closed,
            AnswerKind::NotNeeded,
            AnswerKind::TimedOut,
            AnswerKind::Done,
        ] {
            let answer = Answer { number: 5, kind };
            assert_eq!(Answer::from_text(&answer.to_text()), Some(answer));
        }
        for renewal in [Some(7), None] {
            let lease = Lease {
                epoch: 3,
                index: 8,
                renewal,
                generation: 9,
            };
            assert_eq!(Lease::from_text(&lease.to_text()), Some(lease));
        }
        let summary = Summary {
            epoch: 2,
            round: 1,
            is_complete: true,
            is_closed: false,
            joined: 20,
            waiting: (0..20).map(|pid| NodeId::new("w", pid, 0)).collect(),
            lost: [(node(), Duration::from_millis(1500))]
                .into_iter()
                .collect(),
            left: [(node(), true)].into_iter().collect(),
            calls: 3,
            called: vec![7, 9],
        };
        assert_eq!(
            (summary.waiting.count, summary.waiting.named.len()),
            (20, 16)
        );
        assert_eq!(Summary::from_text(&summary.to_text()), Some(summary));
    }

    /// docs/spec/rendezvous.md, LINK 8.
    #[test]
    fn a_summary_calls_the_nodes_that_it_names_or_all_of_which_a_node_may_have_missed_one() {
        let summary = |epoch, calls, called: &[u32]| Summary {
            epoch,
            calls,
            called: called.to_vec(),
            ..Summary::default()
        };
        let known = summary(1, 4, &[9]);
        assert!(!summary(1, 4, &[9]).calls(9, &known));
        assert!(summary(1, 5, &[7, 9]).calls(9, &known));
        assert!(!summary(1, 5, &[7]).calls(9, &known));
        assert!(summary(1, 6, &[7]).calls(9, &known));
        assert!(summary(1, 5, &[]).calls(9, &known));
        // Another holder.
        assert!(!summary(2, 0, &[]).calls(9, &known));
        assert!(!summary(2, 1, &[7]).calls(9, &known));
        assert!(summary(2, 1, &[9]).calls(9, &known));
        // This is a summary of release 0.2.
        let of_0_2 = Summary::from_text(b"1 0 1 0 3 0 0 0").expect("a summary");
        assert_eq!((of_0_2.calls, of_0_2.called.len()), (0, 0));
        let none = Summary::default();
        assert_eq!(none.to_text(), b"0 0 0 0 0 0 0 0");
    }

    #[test]
    fn other_bytes_are_no_message() {
        let long = format!("1 1 1 join 0 1 0 {}", "x".repeat(ADDRESS_BYTES_MAX + 1));
        for text in [
            "",
            "1",
            "1 1 1 jump 0 1 0 a",
            "x 1 1 join 0 1 0 a",
            "1 1 1 join 0 1",
            &long,
            "\u{ff}",
        ] {
            assert_eq!(Request::from_text(text.as_bytes()), None, "{text:?}");
        }
        for text in ["", "1", "1 joined 1 2", "1 else", "-1 done"] {
            assert_eq!(Answer::from_text(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Lease::from_text(b"1 1 x"), None);
        assert_eq!(Summary::from_text(b"1 1 1 1 1 1 1 1\nelse 1 1 1 a"), None);
        assert_eq!(Request::from_text(&[0xff, 0xfe]), None);
    }
}
