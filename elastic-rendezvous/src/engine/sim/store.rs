//! The store of a simulated rendezvous: one value with a fencing token.
//!
//! The value is the text of a real store, so every state passes through the codec.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::values::codec::{self, CodecLimits, WatchRanges};
use crate::values::node::NodeId;
use crate::values::state::RendezvousState;
use crate::values::stored::{Part, Token};

/// One stored state.
#[derive(Debug)]
pub(super) struct Version {
    pub(super) token: Token,
    pub(super) state: RendezvousState,
    ranges: Option<WatchRanges>,
    /// When each listed node wrote its heartbeat, in simulated time.
    pub(super) written_at: BTreeMap<NodeId, Duration>,
}

/// The result of a read or write.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) version: Option<Rc<Version>>,
    /// Whether the version is the one that the node has just written.
    pub(super) is_ours: bool,
    /// When the store answered.
    pub(super) at: Duration,
}

#[derive(Debug, Default)]
pub(super) struct SimStore {
    current: Option<Rc<Version>>,
}

impl SimStore {
    pub(super) fn current(&self) -> Option<&Rc<Version>> {
        self.current.as_ref()
    }

    /// The stored state; the initial one while there is none.
    pub(super) fn state(&self) -> RendezvousState {
        self.current
            .as_ref()
            .map(|version| version.state.clone())
            .unwrap_or_default()
    }

    /// Whether a write with `token` succeeds.
    pub(super) fn accepts(&self, token: Option<&Token>) -> bool {
        self.current.as_ref().map(|version| &version.token) == token
    }

    pub(super) fn put(&mut self, state: &RendezvousState, now: Duration) {
        let text = codec::to_text(state);
        let limits = CodecLimits::default();
        let state = codec::from_text(&text, &limits).expect("the state was just encoded");
        let before = self.current.as_ref();
        let written_at = state.last_heartbeats.iter().map(|(node, heartbeat)| {
            let is_old =
                |version: &&Rc<Version>| version.state.last_heartbeats.get(node) == Some(heartbeat);
            let at = before
                .filter(is_old)
                .and_then(|version| version.written_at.get(node));
            (node.clone(), at.copied().unwrap_or(now))
        });
        self.current = Some(Rc::new(Version {
            written_at: written_at.collect(),
            ranges: codec::watch_ranges(&text),
            token: Token::new(text),
            state,
        }));
    }

    /// Whether the stored characters of `part` differ from those of the version `known`.
    pub(super) fn differs(&self, known: Option<&Rc<Version>>, part: Part) -> bool {
        let (Some(known), Some(current)) = (known, &self.current) else {
            return known.is_some() != self.current.is_some();
        };
        let (old, new) = (known.token.as_bytes(), current.token.as_bytes());
        let ranges = known.ranges.as_ref().expect("PyTorch's layout");
        let range = match part {
            Part::Round => ranges.header.clone(),
            Part::Members => ranges.members.clone(),
        };
        new.get(range.clone()) != old.get(range)
    }
}
