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
    /// Returns the name that selects the backend, such as `c10d`.
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
    /// The errors of [`get_state`](Self::get_state).
    fn set_state(
        &self,
        state: &[u8],
        token: Option<&Token>,
    ) -> Result<Option<SetState>, RendezvousError>;

    /// Whether the stored state is still the state that `token` identifies; without a token, whether there is no
    /// state.
    ///
    /// May be true after a change of heartbeats, or of nodes whose number stayed the same, but a write notices
    /// these changes.
    ///
    /// # Errors
    /// The errors of [`get_state`](Self::get_state).
    fn is_current(&self, token: Option<&Token>) -> Result<bool, RendezvousError> {
        let stored = self.get_state()?;
        Ok(stored.as_ref().map(|stored| &stored.token) == token)
    }

    /// Whether a request that found the store out of reach may succeed later. Otherwise its operation fails at once.
    fn is_reconnecting(&self) -> bool {
        false
    }

    /// Writes an initial state after [`RendezvousError::StateLost`], because the store has lost the
    /// state.
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

    /// Opens the lease that lets one node at a time write the state; `None` if the store does not support it. Used for
    /// a few nodes (`docs/spec/rendezvous.md`, section 10.1); other nodes may write without it.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails.
    fn write_lease(&self) -> Result<Option<WriteLease>, RendezvousError> {
        Ok(None)
    }

    /// Opens the keys through which the nodes of this rendezvous send messages to each other; `None` if the store does
    /// not allow that one node writes the state for all. Used for many nodes (`docs/spec/rendezvous.md`, section 10).
    /// Nodes with and without a group can share a rendezvous.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails.
    fn group(&self) -> Result<Option<GroupStore>, RendezvousError> {
        Ok(None)
    }

    /// Returns the board on which the nodes mark themselves as connected; `None` if the store does not
    /// remove marks with their connections (`docs/spec/rendezvous.md`, section 10.3).
    fn marks(&self) -> Option<MarkBoard> {
        None
    }

    /// Returns the name of the backend in messages, such as `TCP store 10.0.0.1:29400`.
    fn label(&self) -> String;
}

/// Waits for changes of the state, over a separate connection.
pub trait StateWatch: Debug + Send + Sync {
    /// Waits until `part` of the state differs from the version `known`, or, if `known` is `None`, until there is a
    /// state.
    ///
    /// Blocks for at most `timeout`; `None` waits indefinitely, zero checks once without waiting. A cancelled wait
    /// returns like a wait that timed out.
    ///
    /// # Errors
    /// The errors of [`RendezvousBackend::get_state`].
    fn wait(
        &self,
        known: Option<&Token>,
        part: Part,
        timeout: Option<Duration>,
        cancel: &Cancel,
    ) -> Result<Watched, RendezvousError>;
}
