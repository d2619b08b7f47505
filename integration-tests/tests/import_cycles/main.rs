//! Files of one crate import each other only downwards: following imports never leads back to the
//! file where one started.
//!
//! File A imports from file B when A names an item that B defines, in a `use` declaration or in a
//! path. A re-export counts as the file that defines the item, and is itself no import; neither is a
//! `mod` declaration. Tests are left out. Method calls are not resolved.

mod graph;
mod modules;
mod names;
#[cfg(test)]
mod tests;
mod workspace;

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
