//! Files of one crate import each other only downwards: following imports never leads back to the
//! file where one started.
//!
//! File A imports from file B when A names an item that B defines, in a `use` declaration or in a
//! path. If A takes the item from a re-export, it also imports from the file of the re-export, unless that is the
//! crate's root. A re-export itself is not an import, and a `mod` declaration is not one either. Tests are left out.
//! Method calls are not resolved. The files of the Python package are checked by their `from` imports.

mod graph;
mod modules;
mod names;
mod python;
#[cfg(test)]
mod tests;
mod workspace;

/// The most levels of imports in a crate: one that grows another layer shall do so knowingly.
const LEVELS_MAX: [(&str, usize); 1] = [("elastic_rendezvous", 9)];

/// The folders of a crate's layers, from the top.
const LAYERS: [(&str, &[&str]); 1] = [("elastic_rendezvous", &["shell", "engine", "values"])];

#[test]
fn files_of_a_crate_do_not_import_each_other_in_a_cycle() {
    let mut report = String::new();
    for target in workspace::targets() {
        let imports = modules::Crate::read(&target.root, &workspace::read_source).imports();
        for cycle in imports.cycles() {
            report += &format!("\n{}, target {}: {cycle}", target.package, target.name);
        }
    }
    assert!(report.is_empty(), "{report}");
}

#[test]
fn files_of_the_python_package_do_not_import_each_other_in_a_cycle() {
    let imports = python::imports(&workspace::python_files());
    assert!(!imports.longest_chain().is_empty(), "no import is found");
    let cycles: Vec<String> = imports.cycles().iter().map(ToString::to_string).collect();
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
}

#[test]
fn imports_of_a_crate_have_few_levels() {
    for target in workspace::targets() {
        let limit = LEVELS_MAX.iter().find(|(name, _)| *name == target.name);
        let Some((_, limit)) = limit else { continue };
        let imports = modules::Crate::read(&target.root, &workspace::read_source).imports();
        let chain = imports.longest_chain();
        let levels = chain.len();
        assert!(
            levels <= *limit,
            "{} has {levels} levels of imports, at most {limit} are allowed: {chain:#?}",
            target.name
        );
    }
}

#[test]
fn the_layers_of_a_crate_import_downwards() {
    for target in workspace::targets() {
        let layers = LAYERS.iter().find(|(name, _)| *name == target.name);
        let Some((_, layers)) = layers else { continue };
        let imports = modules::Crate::read(&target.root, &workspace::read_source).imports();
        let upward = imports.upward(layers);
        assert!(upward.is_empty(), "{}: {upward:#?}", target.name);
    }
}
