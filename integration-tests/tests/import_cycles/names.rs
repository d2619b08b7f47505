//! Name resolution, as far as it takes to find the file that defines an item.

use std::collections::HashSet;

use crate::graph::Imports;
use crate::modules::{Binding, Crate, ModuleId, ROOT};

/// What a path leads to. Paths out of the crate lead nowhere.
#[derive(Debug, Clone, PartialEq)]
enum Target {
    Module(ModuleId),
    /// An item, or something in it as a variant or an associated function.
    Item {
        module: ModuleId,
        name: String,
    },
}

impl Target {
    fn item(module: ModuleId, name: &str) -> Self {
        Self::Item {
            module,
            name: name.to_owned(),
        }
    }

    fn module(&self) -> Option<ModuleId> {
        match self {
            Self::Module(module) => Some(*module),
            Self::Item { .. } => None,
        }
    }
}

/// Imports that are being resolved for a name: an import can name itself, as `use log;` does.
type Pending<'a> = HashSet<(ModuleId, &'a [String], String)>;

impl Crate {
    pub(crate) fn imports(&self) -> Imports {
        let mut imports = Imports::default();
        for (id, module) in self.modules.iter().enumerate() {
            for path in &module.paths {
                for target in self.resolve(id, path, &mut Pending::new()) {
                    if let Target::Item {
                        module: definer,
                        name,
                    } = target
                    {
                        imports.add(&module.file, &self.modules[definer].file, &name);
                    }
                }
            }
        }
        imports
    }

    fn resolve<'a>(
        &'a self,
        from: ModuleId,
        path: &[String],
        pending: &mut Pending<'a>,
    ) -> Vec<Target> {
        let mut module = from;
        let mut rest = path;
        let mut is_local = false;
        while let [first, after @ ..] = rest {
            module = match first.as_str() {
                "crate" => ROOT,
                "self" => module,
                "super" => match self.modules[module].parent {
                    Some(parent) => parent,
                    None => return Vec::new(),
                },
                _ => break,
            };
            is_local = true;
            rest = after;
        }
        let mut targets = vec![Target::Module(module)];
        for (index, name) in rest.iter().enumerate() {
            let Some(module) = targets.iter().find_map(Target::module) else {
                // What follows an item is part of it.
                return targets;
            };
            is_local |= index > 0;
            targets = self.look_up(module, name, pending);
            if targets.is_empty() && is_local {
                // Defined by a macro's expansion.
                return vec![Target::item(module, name)];
            }
        }
        targets
    }

    /// All that a name stands for in a module: in the namespaces of types, values and macros.
    fn look_up<'a>(
        &'a self,
        module: ModuleId,
        name: &str,
        pending: &mut Pending<'a>,
    ) -> Vec<Target> {
        let mut targets = Vec::new();
        for binding in self.modules[module].names.get(name).into_iter().flatten() {
            match binding {
                Binding::Item => targets.push(Target::item(module, name)),
                Binding::Module(child) => targets.push(Target::Module(*child)),
                Binding::Import(path) => {
                    let key = (module, path.as_slice(), name.to_owned());
                    if pending.insert(key.clone()) {
                        targets.extend(self.resolve(module, path, pending));
                        pending.remove(&key);
                    }
                }
            }
        }
        if targets.is_empty() {
            for glob in &self.modules[module].globs {
                let key = (module, glob.as_slice(), name.to_owned());
                if pending.insert(key.clone()) {
                    for target in self.resolve(module, glob, pending) {
                        if let Some(globbed) = target.module() {
                            targets.extend(self.look_up(globbed, name, pending));
                        }
                    }
                    pending.remove(&key);
                }
            }
        }
        targets
    }
}
