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

/// The resolution of one path.
#[derive(Default)]
struct Resolution<'a> {
    /// Imports that are being resolved for a name: an import can name itself, as `use log;` does.
    pending: HashSet<(ModuleId, &'a [String], String)>,
    /// The imports of modules that the path leads through, and the name that is taken from each.
    passed: Vec<(ModuleId, String)>,
}

impl Crate {
    pub(crate) fn imports(&self) -> Imports {
        let mut imports = Imports::default();
        for (id, module) in self.modules.iter().enumerate() {
            for path in &module.paths {
                let mut resolution = Resolution::default();
                let mut add = |from: ModuleId, name: &str| {
                    imports.add(&module.file, &self.modules[from].file, name);
                };
                for target in self.resolve(id, path, &mut resolution) {
                    if let Target::Item { module, name } = target {
                        add(module, &name);
                    }
                }
                // The root's re-exports are the crate's interface, which all of its files may name.
                let passed = resolution.passed.iter().filter(|(by, _)| *by != ROOT);
                passed.for_each(|(by, name)| add(*by, name));
            }
        }
        imports
    }

    fn resolve<'a>(
        &'a self,
        from: ModuleId,
        path: &[String],
        resolution: &mut Resolution<'a>,
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
        let passed = resolution.passed.len();
        for (index, name) in rest.iter().enumerate() {
            let Some(module) = targets.iter().find_map(Target::module) else {
                // What follows an item is part of it.
                return targets;
            };
            is_local |= index > 0;
            // A name that is a module and an item was the module.
            resolution.passed.truncate(passed);
            targets = self.look_up(module, name, resolution);
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
        resolution: &mut Resolution<'a>,
    ) -> Vec<Target> {
        let mut targets = Vec::new();
        for binding in self.modules[module].names.get(name).into_iter().flatten() {
            match binding {
                Binding::Item => targets.push(Target::item(module, name)),
                Binding::Module(child) => targets.push(Target::Module(*child)),
                Binding::Import(path) => {
                    let key = (module, path.as_slice(), name.to_owned());
                    if resolution.pending.insert(key.clone()) {
                        let found = self.resolve(module, path, resolution);
                        if found.iter().any(|target| target.module().is_none()) {
                            resolution.passed.push((module, name.to_owned()));
                        }
                        targets.extend(found);
                        resolution.pending.remove(&key);
                    }
                }
            }
        }
        if targets.is_empty() {
            for glob in &self.modules[module].globs {
                let key = (module, glob.as_slice(), name.to_owned());
                if resolution.pending.insert(key.clone()) {
                    for target in self.resolve(module, glob, resolution) {
                        if let Some(globbed) = target.module() {
                            targets.extend(self.look_up(globbed, name, resolution));
                        }
                    }
                    if targets.iter().any(|target| target.module().is_none()) {
                        resolution.passed.push((module, name.to_owned()));
                    }
                    resolution.pending.remove(&key);
                }
            }
        }
        targets
    }
}
