//! Reads and writes decoded states.

use std::sync::Arc;

use c10d_store::StoreError;

use crate::shell::backend::RendezvousBackend;
use crate::shell::board::state_key;
use crate::values::codec::{self, CodecLimits};
use crate::values::error::RendezvousError;
use crate::values::state::{RendezvousState, Stored, Token, Written};

/// The state of one rendezvous in its backend.
#[derive(Debug)]
pub(crate) struct StoredState {
    backend: Arc<dyn RendezvousBackend>,
    run_id: String,
    limits: CodecLimits,
}

impl StoredState {
    pub(crate) fn new(backend: Arc<dyn RendezvousBackend>, run_id: &str) -> Self {
        Self {
            backend,
            run_id: run_id.to_owned(),
            limits: CodecLimits::default(),
        }
    }

    pub(crate) fn backend(&self) -> &dyn RendezvousBackend {
        &*self.backend
    }

    /// The stored state and its token, if there is one.
    pub(crate) fn read(&self) -> Result<Option<(RendezvousState, Token)>, RendezvousError> {
        let stored = self.backend.get_state()?;
        stored.map(|stored| self.decode(stored)).transpose()
    }

    /// Replaces the state that `token` identifies.
    pub(crate) fn write(
        &self,
        state: &RendezvousState,
        token: Option<&Token>,
    ) -> Result<Written, RendezvousError> {
        let bytes = codec::encode(state);
        Ok(match self.backend.set_state(&bytes, token)? {
            None => Written::Nothing,
            Some(written) if written.is_ours => Written::Ours(written.stored.token),
            Some(written) => {
                let (state, token) = self.decode(written.stored)?;
                Written::Theirs(Box::new(state), token)
            }
        })
    }

    /// An error of the store.
    pub(crate) fn failed(&self, error: StoreError) -> RendezvousError {
        RendezvousError::connection(&self.run_id, error)
    }

    pub(crate) fn decode(
        &self,
        stored: Stored,
    ) -> Result<(RendezvousState, Token), RendezvousError> {
        let state = codec::decode(&stored.state, &self.limits);
        let state = state.map_err(|source| RendezvousError::CorruptState {
            store: self.backend.label(),
            key: state_key(&self.run_id),
            source,
        })?;
        Ok((state, stored.token))
    }
}
