//! Checks ARCHITECTURE.md against the code: which crate uses which, and which threads exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::documents::Tree;

/// Its crates are tests.
const TESTS: &str = "integration-tests";

#[test]
fn the_picture_draws_each_crate_above_those_that_it_uses() {
    let tree = Tree::read();
    let document = tree.text(Path::new("ARCHITECTURE.md"));
    let crates = section(&document, "## Crates");
    let picture = crates.split("```").nth(1).expect("a picture");
    let words = picture.lines().enumerate();
    let words =
        words.flat_map(|(line, text)| text.split("  ").map(move |word| (word.trim(), line)));
    let manifests = manifests(&tree);
    let drawn: BTreeMap<&str, usize> = words
        .filter(|(word, _)| manifests.contains_key(*word))
        .collect();
    let listed: BTreeSet<String> = rows_of(crates)
        .flat_map(|cells| code_spans(cells[0]).collect::<Vec<_>>())
        .collect();
    assert_eq!(listed, manifests.keys().cloned().collect());
    for (package, used) in &manifests {
        let line = drawn
            .get(package.as_str())
            .unwrap_or_else(|| panic!("{package} is drawn"));
        for used in used {
            assert!(
                drawn[used.as_str()] > *line,
                "{package} uses {used}, which is not drawn below it"
            );
        }
    }
}

#[test]
fn the_table_of_threads_has_the_name_of_each_thread() {
    let tree = Tree::read();
    let document = tree.text(Path::new("ARCHITECTURE.md"));
    let threads = section(&document, "## Threads");
    let listed: BTreeSet<String> = rows_of(threads)
        .flat_map(|cells| code_spans(cells[0]).collect::<Vec<_>>())
        .collect();
    let mut names = BTreeSet::new();
    for source in tree.files_ending_with(".rs").filter(|it| is_source(it)) {
        names.extend(thread_names(&tree.text(source)));
    }
    assert!(names.len() > 30, "{names:?}");
    let missing: Vec<&String> = names.difference(&listed).collect();
    assert!(missing.is_empty(), "not in the table: {missing:?}");
}

/// The crates of the workspace by their names, each with the crates that it uses.
fn manifests(tree: &Tree) -> BTreeMap<String, BTreeSet<String>> {
    let mut used_by = BTreeMap::new();
    for manifest in tree.files_ending_with("/Cargo.toml") {
        let text = tree.text(manifest);
        if text.contains("[workspace]")
            || manifest.starts_with(TESTS)
            || manifest.starts_with("fuzz")
        {
            continue;
        }
        let name = text.lines().find_map(|line| line.strip_prefix("name = \""));
        let name = name.expect("a name").trim_end_matches('"');
        let used = text
            .lines()
            .skip_while(|line| *line != "[dependencies]")
            .skip(1)
            .take_while(|line| !line.starts_with('['))
            .filter_map(|line| line.split(['.', ' ', '=']).next());
        used_by.insert(name.to_owned(), used.map(str::to_owned).collect());
    }
    let packages: BTreeSet<String> = used_by.keys().cloned().collect();
    for used in used_by.values_mut() {
        let used: &mut BTreeSet<String> = used;
        used.retain(|it| packages.contains(it));
    }
    used_by
}

/// Whether a file belongs to a program or library that users run.
fn is_source(file: &Path) -> bool {
    let folder = file.components().any(|it| it.as_os_str() == "src");
    let is_test = |it: &str| it.contains("tests") || it == "sim" || it.starts_with("c10d-bench");
    let mut parts = file.iter().map(|it| it.to_string_lossy());
    folder && !parts.any(|it| is_test(&it) || it == TESTS || it == "fuzz" || it == "c10d-conform")
}

/// The names that are given to threads in the code before its tests.
fn thread_names(source: &str) -> impl Iterator<Item = String> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines().filter_map(|line| {
        let is_constant = line.contains("THREAD: &str = \"");
        let start = if is_constant { "&str = \"" } else { ".name(\"" };
        let (_, rest) = line.split_once(start)?;
        let (name, rest) = rest.split_once('"')?;
        (is_constant || rest.starts_with(".to_owned()")).then(|| name.to_owned())
    })
}

/// The text below a heading, up to the next one.
fn section<'t>(document: &'t str, heading: &str) -> &'t str {
    let (_, rest) = document.split_once(heading).expect("the heading");
    rest.split("\n## ").next().expect("a text")
}

/// The cells of the rows of a section's table, without its head.
fn rows_of(section: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = section.lines().filter(|line| line.starts_with('|'));
    lines.skip(2).map(|line| line.split('|').skip(1).collect())
}

fn code_spans(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}
