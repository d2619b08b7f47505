//! Rendezvous by the names of their backends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::c10d_backend::C10D_BACKEND;
use crate::c10d_rendezvous::create_c10d;
use crate::error::RendezvousError;
use crate::handler::RendezvousHandler;
use crate::parameters::RendezvousParameters;
use crate::static_rendezvous::{STATIC_BACKEND, StaticRendezvous};

/// Makes a handler for parameters.
pub type RendezvousCreator = dyn Fn(&RendezvousParameters) -> Result<Arc<dyn RendezvousHandler>, RendezvousError>
    + Send
    + Sync;

/// The known kinds of rendezvous.
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
    creators: BTreeMap<String, Box<RendezvousCreator>>,
}

impl RendezvousRegistry {
    /// A registry that knows nothing.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            creators: BTreeMap::new(),
        }
    }

    /// Adds a kind of rendezvous.
    ///
    /// # Errors
    /// [`RendezvousError::BadBackend`] when the name is empty or taken.
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
            return Err(bad("a backend of this name is registered already"));
        }
        self.creators.insert(name.to_owned(), creator);
        Ok(())
    }

    /// Makes the handler that `parameters` name. Blocks as long as its creator does.
    ///
    /// # Errors
    /// [`RendezvousError::UnknownBackend`] for a name that nobody registered,
    /// [`RendezvousError::BadBackend`] when the handler bears another, or what the creator says.
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
                detail: format!("its handler calls itself {:?}", handler.backend()),
            });
        }
        Ok(handler)
    }
}

/// With `c10d` and `static`.
impl Default for RendezvousRegistry {
    fn default() -> Self {
        let mut registry = Self::empty();
        let creators: [(&str, Box<RendezvousCreator>); 2] = [
            (
                C10D_BACKEND,
                Box::new(|parameters| Ok(Arc::new(create_c10d(parameters)?))),
            ),
            (
                STATIC_BACKEND,
                Box::new(|parameters| Ok(Arc::new(StaticRendezvous::new(parameters)?))),
            ),
        ];
        for (name, creator) in creators {
            registry.creators.insert(name.to_owned(), creator);
        }
        registry
    }
}

impl fmt::Debug for RendezvousRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.creators.keys()).finish()
    }
}
