//! Versions of the stored state, and the results of reading and writing it.

use std::fmt::{self, Debug};
use std::sync::Arc;

use crate::values::state::RendezvousState;

/// Identifies one stored version of the state; a write requires the current one.
///
/// Opaque to all but the backend that returned it.
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
    /// The encoded state.
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
    /// No change within the timeout.
    Unchanged,
    /// The new state; `None` if it was removed.
    Changed(Option<Stored>),
}

/// The part of the state that a wait watches. A wait may also end without a change of the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `round`, `complete`, `deadline` and `closed`.
    Round,
    /// The same and the three lists, without heartbeats.
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
