//! The interface to the store that keeps the encoded state of a rendezvous.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use c10d_socket::Cancel;

use crate::shell::group_store::GroupStore;
use crate::shell::marks::MarkBoard;
use crate::shell::write_lease::WriteLease;
use crate::values::error::RendezvousError;
use crate::values::state::{Part, SetState, Stored, Token, Watched};

/// Stores the state of a rendezvous: an encoded value with a fencing token.
///
/// Every call blocks for at most the backend's own timeout. Extends PyTorch's `RendezvousBackend`
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`) by [`watch`](Self::watch), which
/// replaces polling, by a write lease, and by a [`group`](Self::group).
pub trait RendezvousBackend: Debug + Send + Sync {
    /// The name under which the backend is registered, such as `c10d`.
    fn name(&self) -> &str;

    /// Reads the state; `None` while there is none. Does not wait for one.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails, [`RendezvousError::StateLost`] when the state has
    /// disappeared, [`RendezvousError::CorruptState`] when the stored value is not a state.
    fn get_state(&self) -> Result<Option<Stored>, RendezvousError>;

    /// Replaces the state if `token` is current; without a token, writes it if there is none. Returns
    /// `None` if there is no state afterwards.
    ///
    /// # Errors
    /// As [`get_state`](Self::get_state).
    fn set_state(
        &self,
        state: &[u8],
        token: Option<&Token>,
    ) -> Result<Option<SetState>, RendezvousError>;

    /// Whether the stored state is still the one that `token` identifies; without a token, whether there is none.
    ///
    /// May be true after a change of heartbeats, or of nodes whose number stayed the same: a write notices these.
    ///
    /// # Errors
    /// As [`get_state`](Self::get_state).
    fn is_current(&self, token: Option<&Token>) -> Result<bool, RendezvousError> {
        let stored = self.get_state()?;
        Ok(stored.as_ref().map(|stored| &stored.token) == token)
    }

    /// Whether a request that found the store out of reach may succeed later. Otherwise its operation fails at once.
    fn is_reconnecting(&self) -> bool {
        false
    }

    /// Begins again after [`RendezvousError::StateLost`]: there is no state.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails.
    fn start_anew(&self) -> Result<(), RendezvousError> {
        Ok(())
    }

    /// Opens a second handle that waits for changes; `None` if this backend can only be polled.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails.
    fn watch(&self) -> Result<Option<Arc<dyn StateWatch>>, RendezvousError> {
        Ok(None)
    }

    /// The lease under which one node at a time writes the state, where the store can have one. Opened for a few nodes
    /// (`docs/spec/rendezvous.md`, section 10.1); others may write without it.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails.
    fn write_lease(&self) -> Result<Option<WriteLease>, RendezvousError> {
        Ok(None)
    }

    /// Where the nodes of this rendezvous write to each other, where the store allows that one of them writes the state
    /// for all. Opened for many nodes (`docs/spec/rendezvous.md`, section 10). Nodes with and without it can share a
    /// rendezvous.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails.
    fn group(&self) -> Result<Option<GroupStore>, RendezvousError> {
        Ok(None)
    }

    /// Where the nodes mark themselves as connected, where the store removes marks with their connections
    /// (`docs/spec/rendezvous.md`, section 10.3).
    fn marks(&self) -> Option<MarkBoard> {
        None
    }

    /// Names the backend in messages: `TCP store 10.0.0.1:29400`.
    fn label(&self) -> String;
}

/// Waits for changes of the state, over a connection of its own.
pub trait StateWatch: Debug + Send + Sync {
    /// Waits until `part` of the state differs from the version `known`, or, if `known` is `None`, until
    /// there is a state.
    ///
    /// Blocks for at most `timeout`; `None` waits indefinitely, zero checks once without waiting. `cancel` ends it as a
    /// timeout does.
    ///
    /// # Errors
    /// As [`RendezvousBackend::get_state`].
    fn wait(
        &self,
        known: Option<&Token>,
        part: Part,
        timeout: Option<Duration>,
        cancel: &Cancel,
    ) -> Result<Watched, RendezvousError>;
}
