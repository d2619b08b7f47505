//! The value that all nodes of a rendezvous share, and its stored form.
//!
//! `codec` has its encoding, `decide` the rules for changes.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::sync::Arc;

use indexmap::IndexMap;

use crate::values::node::NodeId;
use crate::values::timestamp::Timestamp;

/// The state of a rendezvous: the one value that all its nodes read and replace.
///
/// The maps keep the order of insertion, as Python's do. In PyTorch: `_RendezvousState`
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RendezvousState {
    /// The current round, counted from 0.
    pub round: i64,
    /// Whether the round is complete: no node can join it, and its ranks are assigned.
    pub complete: bool,
    /// The end of the last call: `min_nodes` have joined, and further nodes may join until this
    /// time.
    pub deadline: Option<Timestamp>,
    /// Whether the rendezvous is closed: there are no more rounds.
    pub closed: bool,
    /// The nodes of the round and their ranks; all ranks are 0 until it is complete.
    pub participants: IndexMap<NodeId, i64>,
    /// The nodes that wait for the next round.
    pub wait_list: BTreeSet<NodeId>,
    /// The spare nodes, for which the round has no place.
    pub redundancy_list: BTreeSet<NodeId>,
    /// When each listed node wrote its last heartbeat, by its own wall clock.
    pub last_heartbeats: IndexMap<NodeId, Timestamp>,
    /// The style in which the writer of the state encodes times. It cannot read an answer in the other
    /// style.
    pub datetime_style: DatetimeStyle,
}

/// Whether times in the encoded state name their time zone. PyTorch fails on the style of another release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DatetimeStyle {
    /// Times have the time zone UTC, like in current PyTorch.
    #[default]
    Aware,
    /// Times have no time zone and mean UTC, like in old PyTorch.
    Naive,
}

/// An identifier of one stored version of the state; a write requires the current version's token.
///
/// Opaque, except to the backend that returned it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<[u8]>);

impl Debug for Token {
    /// Shows lengths instead of bytes, which can be long and confidential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("bytes", &self.0.len())
            .finish()
    }
}

impl Token {
    /// Creates a token from bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes of the token.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A stored state and its token.
#[derive(Clone, PartialEq, Eq)]
pub struct Stored {
    /// The encoded state, a pickle.
    pub state: Vec<u8>,
    /// The token that a write has to present.
    pub token: Token,
}

impl Debug for Stored {
    /// Shows lengths instead of bytes, which can be long and confidential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored")
            .field("state_bytes", &self.state.len())
            .field("token", &self.token)
            .finish()
    }
}

/// The result of [`RendezvousBackend::set_state`](crate::RendezvousBackend::set_state).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetState {
    /// The state that is stored now.
    pub stored: Stored,
    /// Whether it is the state of this write.
    pub is_ours: bool,
}

/// The result of [`StateWatch::wait`](crate::StateWatch::wait).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// The state has not changed within the timeout.
    Unchanged,
    /// The new state; `None` if it was removed.
    Changed(Option<Stored>),
}

/// The part of the state that a wait watches. A wait may also end without a change of the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `round`, `complete`, `deadline` and `closed`.
    Round,
    /// `round`, `complete`, `deadline`, `closed` and the three lists of nodes, without heartbeats.
    Members,
}

/// The result of a write, decoded.
#[derive(Debug)]
pub(crate) enum Written {
    /// The state was stored, under this token.
    Ours(Token),
    /// A conflict: another node wrote this state first.
    Theirs(Box<RendezvousState>, Token),
    /// The state has disappeared.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_holds_no_state() {
        let stored = Stored {
            state: b"QZQZ".to_vec(),
            token: Token::new(*b"QZQZ"),
        };
        let shown = format!("{:?}", Watched::Changed(Some(stored)));
        assert_eq!(
            shown,
            "Changed(Some(Stored { state_bytes: 4, token: Token { bytes: 4 } }))"
        );
    }
}
