//! Creates handlers by the name of their backend.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::shell::handler::RendezvousHandler;
use crate::values::error::RendezvousError;
use crate::values::parameters::RendezvousParameters;

/// Creates a handler from parameters.
pub type RendezvousCreator = dyn Fn(&RendezvousParameters) -> Result<Arc<dyn RendezvousHandler>, RendezvousError>
    + Send
    + Sync;

/// The registered backends, each with the function that creates its handlers.
///
/// ```
/// use elastic_rendezvous::{RendezvousParameters, RendezvousRegistry};
///
/// # fn main() -> Result<(), elastic_rendezvous::RendezvousError> {
/// let registry = RendezvousRegistry::default();
/// let parameters = RendezvousParameters::new("c10d", "localhost:0", "job", 1, 1)?;
/// let node = registry.create(&parameters)?;
/// assert_eq!(node.next_rendezvous()?.world_size, 1);
/// assert!(node.shutdown());
/// # Ok(())
/// # }
/// ```
pub struct RendezvousRegistry {
    pub(crate) creators: BTreeMap<String, Box<RendezvousCreator>>,
}

impl RendezvousRegistry {
    /// Creates a registry without backends.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            creators: BTreeMap::new(),
        }
    }

    /// Adds a backend.
    ///
    /// # Errors
    /// [`RendezvousError::BadBackend`] when the name is empty or already registered.
    pub fn register(
        &mut self,
        name: &str,
        creator: Box<RendezvousCreator>,
    ) -> Result<(), RendezvousError> {
        let bad = |detail: &str| RendezvousError::BadBackend {
            name: name.to_owned(),
            detail: detail.to_owned(),
        };
        if name.is_empty() {
            return Err(bad("the name is empty"));
        }
        if self.creators.contains_key(name) {
            return Err(bad("this name is already registered"));
        }
        self.creators.insert(name.to_owned(), creator);
        Ok(())
    }

    /// Creates the handler for the backend that `parameters` name.
    ///
    /// Blocks as long as the creator does: for `c10d` as [`create_c10d`](crate::create_c10d), for `static` not at all.
    ///
    /// # Errors
    /// [`RendezvousError::UnknownBackend`] for a name that is not registered,
    /// [`RendezvousError::BadBackend`] when the handler reports another name, or the creator's error.
    pub fn create(
        &self,
        parameters: &RendezvousParameters,
    ) -> Result<Arc<dyn RendezvousHandler>, RendezvousError> {
        let name = parameters.backend();
        let Some(creator) = self.creators.get(name) else {
            return Err(RendezvousError::UnknownBackend {
                name: name.to_owned(),
                known: self.creators.keys().cloned().collect(),
            });
        };
        let handler = creator(parameters)?;
        if handler.backend() != name {
            return Err(RendezvousError::BadBackend {
                name: name.to_owned(),
                detail: format!("its handler reports the name {:?}", handler.backend()),
            });
        }
        Ok(handler)
    }
}

impl fmt::Debug for RendezvousRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.creators.keys()).finish()
    }
}
