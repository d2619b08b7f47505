//! Where the state of a rendezvous is kept, and how it is replaced without losing a change.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::error::RendezvousError;

/// The name of one stored version of the state: whoever wants to replace it must know it.
///
/// Opaque: what a backend hands out is handed back unchanged.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<[u8]>);

impl Debug for Token {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("bytes", &self.0.len())
            .finish()
    }
}

impl Token {
    /// A token of these bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// Its bytes.
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
    /// What must be known to replace it.
    pub token: Token,
}

impl Debug for Stored {
    /// Lengths instead of bytes: they can be long and secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stored")
            .field("state_bytes", &self.state.len())
            .field("token", &self.token)
            .finish()
    }
}

/// What came of [`RendezvousBackend::set_state`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetState {
    /// What is stored now.
    pub stored: Stored,
    /// Whether that is what was to be written.
    pub is_ours: bool,
}

/// What a wait has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// Nothing, in the time that it had.
    Unchanged,
    /// The state is another now, or there is none any more.
    Changed(Option<Stored>),
}

/// Which part of the state a wait is about. A wait may end early, and see other changes too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The round: its number, its deadline, whether it is complete or closed.
    Round,
    /// That, and which nodes are on which list; but not their signs of life.
    Members,
}

/// Keeps the state of a rendezvous: an encoded value with a fencing token.
///
/// All calls block for at most the backend's own timeout. The contract is PyTorch's `RendezvousBackend`
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`), and what it takes to wait instead
/// of asking again and again.
pub trait RendezvousBackend: Debug + Send + Sync {
    /// The name under which such backends are registered: `c10d`.
    fn name(&self) -> &str;

    /// The state, or `None` if there is none yet.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails, [`RendezvousError::CorruptState`] when
    /// what is there is not one.
    fn get_state(&self) -> Result<Option<Stored>, RendezvousError>;

    /// Replaces the state if `token` is the present one's; without a token, writes it if there is
    /// none yet. `None` when there is still none afterwards.
    ///
    /// # Errors
    /// As [`get_state`](Self::get_state); [`RendezvousError::StateLost`] when the state has vanished.
    fn set_state(
        &self,
        state: &[u8],
        token: Option<&Token>,
    ) -> Result<Option<SetState>, RendezvousError>;

    /// A second handle that waits for changes, or `None` if this backend can only be asked again and
    /// again.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails.
    fn watch(&self) -> Result<Option<Arc<dyn StateWatch>>, RendezvousError> {
        Ok(None)
    }

    /// Waits for the write lease, for a few seconds at most, and returns whether this backend has one.
    ///
    /// After `true` the caller reads the state before it writes, also when the wait has timed out. The
    /// lease is advisory: it saves writes that would conflict, and only the token decides.
    fn acquire_write_lease(&self) -> bool {
        false
    }

    /// Releases the lease, after [`acquire_write_lease`](Self::acquire_write_lease) has returned `true`.
    fn release_write_lease(&self) {}

    /// What the backend is, for messages: `TCP store 10.0.0.1:29400`.
    fn label(&self) -> String;

    /// Ends the handle: calls under way in other threads fail soon.
    fn close(&self) {}
}

/// Waits for changes of a state.
pub trait StateWatch: Debug + Send + Sync {
    /// Waits until `part` of the state differs from the version `known`, or, if `known` is `None`, until
    /// there is a state.
    ///
    /// Blocks for at most `timeout`; `None` waits indefinitely, zero checks once without waiting.
    ///
    /// # Errors
    /// As [`RendezvousBackend::get_state`].
    fn wait(
        &self,
        known: Option<&Token>,
        part: Part,
        timeout: Option<Duration>,
    ) -> Result<Watched, RendezvousError>;

    /// Ends a wait in another thread, and makes later ones fail.
    fn close(&self);
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
