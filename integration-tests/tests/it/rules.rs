//! Checks that each rule of a document is cited by a test, and that each cited rule exists.
//!
//! A rule has a tag, in italics where the document states it: `*COMPARE_SET 3*`. The test that proves it cites it as
//! `docs/spec/wire.md, COMPARE_SET 3`, and several as `docs/spec/wire.md, WAIT 2, 4 and 5, BARRIER 1 to 3`.

use std::collections::BTreeSet;
use std::path::Path;

use crate::documents::{Tree, citations_and_rest};

/// A document and a tag.
type Rule = (String, String);

#[test]
fn every_rule_that_is_cited_exists() {
    let tree = Tree::read();
    let rules = rules(&tree);
    let mut problems = Vec::new();
    for source in tree.files_ending_with(".rs").filter(|it| !is_this(it)) {
        for rule in cited_rules(&tree.text(source)) {
            if !rules.contains(&rule) {
                problems.push(format!("{} cites {}, {}", source.display(), rule.0, rule.1));
            }
        }
    }
    assert!(problems.is_empty(), "missing:\n{}", problems.join("\n"));
}

#[test]
fn every_rule_is_cited_by_a_test() {
    let tree = Tree::read();
    let mut rules = rules(&tree);
    assert!(rules.len() > 150, "{rules:?}");
    for source in tree.files_ending_with(".rs").filter(|it| !is_this(it)) {
        for rule in cited_rules(tests_of(source, &tree.text(source))) {
            rules.remove(&rule);
        }
    }
    let without: Vec<String> = rules
        .into_iter()
        .map(|(document, tag)| format!("{document}, {tag}"))
        .collect();
    assert!(without.is_empty(), "no test cites:\n{}", without.join("\n"));
}

#[test]
fn tags_and_citations_are_found() {
    let document = "- *WAIT 1.* If all exist\n- *BACKEND 5 (ours).* If (*CLOCK 1*)\n| *ADD 3* | key |\n\
                    *SEC 1.* A secret. *SEC 2*\n  as in *WAIT 7*, no *R1*\n";
    let tags: Vec<&str> = tags(document).collect();
    assert_eq!(tags, ["WAIT 1", "BACKEND 5", "ADD 3", "SEC 1"]);

    for (text, expected) in [
        (
            "docs/spec/wire.md, ADD 3: see docs/spec/rpc.md, section 8",
            "ADD 3",
        ),
        (
            "docs/spec/wire.md, WAIT 2, 4 and 5, ADD 1 to 3.",
            "WAIT 2 WAIT 4 WAIT 5 ADD 1 ADD 2 ADD 3",
        ),
        (
            "docs/spec/wire.md, WAIT 8 and ADD 1, a rule",
            "WAIT 8 ADD 1",
        ),
        ("docs/spec/wire.md, WAIT 8, 10 MiB and R1", "WAIT 8 WAIT 10"),
        (
            "docs/spec/wire.md, section 2, and docs/spec/wire.md, J12",
            "",
        ),
    ] {
        let found: Vec<String> = cited_rules(text).into_iter().map(|it| it.1).collect();
        assert_eq!(found.join(" "), expected, "{text}");
    }

    let file = "/// A, 1\n#[cfg(test)]\nuse a;\n#[cfg(test)]\nmod tests {\n    // B\n";
    assert_eq!(
        tests_of(Path::new("a/src/b.rs"), file),
        "mod tests {\n    // B\n"
    );
    assert_eq!(tests_of(Path::new("a/src/b.rs"), "fn f() {}"), "");
    for whole in [
        "a/tests/it/b.rs",
        "a/src/b/tests.rs",
        "a/src/b_tests.rs",
        "a/src/sim/b.rs",
    ] {
        assert_eq!(tests_of(Path::new(whole), file), file, "{whole}");
    }
}

/// This file, in which examples of citations are no citations.
fn is_this(source: &Path) -> bool {
    source.ends_with(Path::new(file!()).file_name().expect("a file"))
}

/// All rules of the documents below `docs/`.
fn rules(tree: &Tree) -> BTreeSet<Rule> {
    let mut rules = BTreeSet::new();
    for document in tree.files_ending_with(".md") {
        if document.starts_with("docs") {
            let text = tree.text(document);
            for tag in tags(&text) {
                let is_new = rules.insert((document.display().to_string(), tag.to_owned()));
                assert!(is_new, "{} has two {tag}", document.display());
            }
        }
    }
    rules
}

/// The tags of the rules that a document states: each begins a paragraph, an item of a list or a row of a table.
fn tags(document: &str) -> impl Iterator<Item = &str> {
    document.lines().filter_map(|line| {
        let (tag, rest) = line
            .trim_start_matches(['-', '|', ' '])
            .strip_prefix('*')?
            .split_once('*')?;
        let is_row = line.starts_with('|') && rest.starts_with(" |");
        let tag = match tag.strip_suffix('.') {
            Some(tag) => tag.trim_end_matches(" (ours)"),
            None if is_row => tag,
            None => return None,
        };
        (tag_length(tag) == Some(tag.len())).then_some(tag)
    })
}

/// How much of a text is a tag, as in `COMPARE_SET 3`.
fn tag_length(text: &str) -> Option<usize> {
    let name = text.find(|c: char| !c.is_ascii_uppercase() && c != '_')?;
    let number = text[name..].strip_prefix(' ')?;
    let digits = digits(number)?;
    (name > 1).then_some(name + 1 + digits)
}

/// How many digits a text begins with.
fn digits(text: &str) -> Option<usize> {
    let count = text.bytes().take_while(u8::is_ascii_digit).count();
    (count > 0).then_some(count)
}

/// The rules that a text cites.
fn cited_rules(text: &str) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (document, rest) in citations_and_rest(text) {
        let mut name = "";
        let mut last = 0_u32;
        let mut rest = rest;
        while let Some((separator, after)) = [", ", " and ", " to "]
            .into_iter()
            .find_map(|separator| Some((separator, rest.strip_prefix(separator)?)))
        {
            let length = if let Some(length) = tag_length(after) {
                name = after[..length].split(' ').next().unwrap_or_default();
                length
            } else if let Some(length) = digits(after).filter(|_| !name.is_empty()) {
                length
            } else {
                break;
            };
            let number = after[..length].rsplit(' ').next().unwrap_or_default();
            let number: u32 = number.parse().expect("a small number");
            let first = if separator == " to " {
                last + 1
            } else {
                number
            };
            for number in first..=number {
                rules.push((document.to_owned(), format!("{name} {number}")));
            }
            last = number;
            rest = &after[length..];
        }
    }
    rules
}

/// The part of a source file that is tests.
fn tests_of<'t>(source: &Path, text: &'t str) -> &'t str {
    let is_folder = source
        .components()
        .any(|part| ["tests", "sim"].iter().any(|it| part.as_os_str() == *it));
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    if is_folder || ["tests.rs", "sim.rs"].contains(&&*name) || name.ends_with("_tests.rs") {
        return text;
    }
    text.find("\nmod tests {")
        .map_or("", |start| &text[start + 1..])
}
