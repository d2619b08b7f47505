//! The identity of a registry.

use std::sync::Arc;

/// Identifies a [`Registry`](crate::Registry), so that code which registers functions can check later that an agent was
/// started with the same registry.
#[derive(Debug, Clone, Default)]
pub struct RegistryId(Arc<u8>);

impl PartialEq for RegistryId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RegistryId {}
