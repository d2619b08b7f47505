//! Text of strangers is made safe for terminals and logs in one place, `c10d_socket::printable`.

use std::path::Path;

use crate::documents::Tree;

/// What a rule of one's own is made of.
const RULES: [&str; 6] = [
    "' '..='~'",
    "is_control",
    "escape_debug",
    "escape_default",
    "escape_unicode",
    "escape_ascii",
];

/// The files that decide which characters are safe, or that refuse characters as input, with the reason.
const EXPECTED: [(&str, &str); 2] = [
    ("c10d-socket/src/printable.rs", "the one rule"),
    (
        "elastic-agent/src/failure/mod.rs",
        "keeps the lines and tabs of a traceback",
    ),
];

#[test]
fn no_other_rule_decides_which_text_is_safe_to_show() {
    let tree = Tree::read();
    let mut found = Vec::new();
    for source in tree.files_ending_with(".rs").filter(|it| is_production(it)) {
        let text = tree.text(source);
        let production = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        if RULES.iter().any(|rule| production.contains(rule)) {
            found.push(source.display().to_string());
        }
    }
    found.sort_unstable();
    let mut expected = EXPECTED.map(|(file, _)| file);
    expected.sort_unstable();
    assert_eq!(found, expected, "use c10d_socket::printable");
}

fn is_production(file: &Path) -> bool {
    let is_source = file.components().any(|part| part.as_os_str() == "src");
    let is_test = file.components().any(|part| {
        matches!(
            part.as_os_str().to_str(),
            Some("tests" | "sim" | "tests.rs" | "integration-tests" | "fuzz" | "target")
        )
    });
    is_source && !is_test
}
