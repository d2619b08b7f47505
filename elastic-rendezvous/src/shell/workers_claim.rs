//! Keeps the workers of two jobs out of one store, where workers use the rendezvous' store.
//!
//! Workers of all jobs write the same keys. The rendezvous itself has its run id in its keys.

use std::sync::Arc;

use c10d_socket::printable;
use c10d_store::{Store, StoreExt};

use crate::shell::board::{OWNER_KEY, state_key};
use crate::values::codec::{self, CodecLimits, SENTINEL};
use crate::values::error::RendezvousError;

/// The most characters that an error shows of a run id.
const RUN_ID_CHARS_MAX: usize = 100;

/// Claims the store for the workers of this job. A job that is served here takes it from any other: that one's server
/// has ended.
///
/// # Errors
/// [`RendezvousError::WorkersOfAnotherJob`] if a job has the store that has not closed its rendezvous.
pub(crate) fn claim(
    store: &Arc<dyn Store>,
    run_id: &str,
    is_served_here: bool,
) -> Result<(), RendezvousError> {
    let mut owner = Vec::new();
    // The owner may change between two attempts.
    for _ in 0..3 {
        let now = store
            .compare_set(OWNER_KEY, &owner, run_id.as_bytes())
            .map_err(|error| RendezvousError::connection(run_id, error))?;
        if now.value() == run_id.as_bytes() {
            return Ok(());
        }
        owner = now.into_value();
        if !is_served_here && !has_ended(store, &String::from_utf8_lossy(&owner))? {
            break;
        }
    }
    Err(RendezvousError::WorkersOfAnotherJob {
        run_id: run_id.to_owned(),
        store: store.label(),
        owner: printable(&owner, RUN_ID_CHARS_MAX).to_string(),
    })
}

fn has_ended(store: &Arc<dyn Store>, run_id: &str) -> Result<bool, RendezvousError> {
    let key = state_key(run_id);
    let text = store.try_get(&key);
    let text = text.map_err(|error| RendezvousError::connection(run_id, error))?;
    let Some(text) = text.filter(|text| text != SENTINEL) else {
        return Ok(true);
    };
    match codec::from_text(&text, &CodecLimits::default()) {
        Ok(state) => Ok(state.closed),
        Err(source) => Err(RendezvousError::CorruptState {
            store: store.label(),
            key: store.full_key(&key),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use c10d_store::HashStore;

    use super::*;
    use crate::shell::backend::RendezvousBackend;
    use crate::shell::c10d_backend::C10dBackend;
    use crate::values::state::RendezvousState;

    fn write(store: &Arc<dyn Store>, run_id: &str, closed: bool) {
        let backend = C10dBackend::new(Arc::clone(store), run_id).unwrap();
        let token = backend.get_state().unwrap().map(|stored| stored.token);
        let state = RendezvousState {
            closed,
            ..RendezvousState::default()
        };
        backend
            .set_state(&codec::encode(&state), token.as_ref())
            .unwrap();
    }

    /// docs/spec/rendezvous.md, BOOT 10.
    #[test]
    fn a_store_has_the_workers_of_one_job_until_its_rendezvous_is_closed() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        claim(&store, "a", false).unwrap();
        write(&store, "a", false);
        claim(&store, "a", false).unwrap();
        let error = claim(&store, "b", false).unwrap_err();
        assert!(
            matches!(&error, RendezvousError::WorkersOfAnotherJob { owner, .. } if owner == "a"),
            "{error}"
        );
        write(&store, "a", true);
        claim(&store, "b", false).unwrap();
        write(&store, "b", false);
        claim(&store, "a", false).unwrap_err();
        // Job b's server has exited if job a serves the store.
        claim(&store, "a", true).unwrap();
    }

    /// docs/spec/rendezvous.md, OUTAGE 5.
    #[test]
    fn a_job_whose_store_was_emptied_claims_it_again_unless_another_one_has() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let backend = C10dBackend::new(Arc::clone(&store), "a").unwrap();
        let backend = backend.with_workers_here(false).unwrap();
        let empty = || {
            for key in [OWNER_KEY, &state_key("a")] {
                assert!(store.delete_key(key).unwrap());
            }
        };
        empty();
        backend.start_anew().unwrap();
        assert_eq!(store.get(OWNER_KEY).unwrap(), b"a");
        empty();
        claim(&store, "b", false).unwrap();
        write(&store, "b", false);
        let error = backend.start_anew().unwrap_err();
        assert!(
            matches!(&error, RendezvousError::WorkersOfAnotherJob { owner, .. } if owner == "b"),
            "{error}"
        );
        assert!(!store.check(&[&state_key("a")]).unwrap());
    }
}
