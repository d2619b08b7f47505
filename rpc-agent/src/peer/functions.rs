//! The names of the functions that peers may call.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A registered function: its place in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FunctionId(pub(crate) u32);

/// The names of the functions that peers may call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Functions {
    names: Vec<Arc<str>>,
    ids: BTreeMap<Arc<str>, FunctionId>,
}

impl Functions {
    /// Adds a function. `None` if the name is taken.
    pub(crate) fn add(&mut self, name: Arc<str>) -> Option<FunctionId> {
        if self.ids.contains_key(&name) {
            return None;
        }
        // Names of at most 255 bytes that are held in memory are fewer than 2^32.
        let id = FunctionId(self.names.len() as u32);
        self.ids.insert(Arc::clone(&name), id);
        self.names.push(name);
        Some(id)
    }

    pub(crate) fn find(&self, name: &str) -> Option<FunctionId> {
        self.ids.get(name).copied()
    }

    /// The name of a function that was added.
    pub(crate) fn name(&self, id: FunctionId) -> &str {
        &self.names[id.0 as usize]
    }

    /// All names, in the order of the ids.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }
}
