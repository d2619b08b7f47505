//! Checks that links, headings and source paths in Markdown files exist, and that documents cited in source files
//! exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// A path in backticks with one of these endings must be a file of this repository.
const SOURCE_ENDINGS: [&str; 6] = [".rs", ".md", ".toml", ".jsonl", ".py", ".sh"];

#[test]
fn every_link_and_path_in_a_document_exists() {
    let tree = Tree::read();
    let documents: Vec<&PathBuf> = tree.files_ending_with(".md").collect();
    assert!(documents.len() > 10, "{documents:?}");
    let problems: Vec<String> = documents
        .into_iter()
        .flat_map(|document| tree.problems_of(document, &tree.text(document)))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_document_and_section_that_is_cited_exists() {
    let tree = Tree::read();
    let mut cited = 0;
    let mut problems = Vec::new();
    let sources = tree.files_ending_with(".rs");
    for source in sources.chain(tree.files_ending_with(".md")) {
        for (document, section) in citations(&tree.text(source)) {
            cited += 1;
            if !tree.has_section(document, section) {
                let section =
                    section.map_or(String::new(), |section| format!(", section {section}"));
                problems.push(format!("{} cites {document}{section}", source.display()));
            }
        }
    }
    assert!(problems.is_empty(), "missing:\n{}", problems.join("\n"));
    assert!(cited > 100, "found only {cited} citations");
}

#[test]
fn every_page_is_linked_by_another_document() {
    let tree = Tree::read();
    let mut pages: BTreeSet<&PathBuf> = tree.files_ending_with(".md").collect();
    pages.retain(|page| page.starts_with("docs"));
    assert!(pages.len() > 15, "{pages:?}");
    for document in tree.files_ending_with(".md") {
        let folder = document.parent().unwrap_or(Path::new(""));
        for link in links(&without_code_blocks(&tree.text(document))) {
            let path = link.split('#').next().unwrap_or(link);
            if let Some(target) = normal(&folder.join(path)).filter(|target| target != document) {
                pages.remove(&target);
            }
        }
    }
    assert!(pages.is_empty(), "no link leads to {pages:?}");
}

#[test]
fn the_check_finds_broken_links_and_missing_files() {
    let tree = Tree {
        root: PathBuf::new(),
        files: ["notes/a.md", "store/src/client/mod.rs"]
            .map(PathBuf::from)
            .into(),
    };
    let problems = |text| tree.problems_of(Path::new("notes/a.md"), text);
    let good = "# A heading, `code`\n[a](../store/src) [b](#a-heading-code) [c](https://d.example/e.md)\n\
                `client/mod.rs`, `client/{mod}.rs`, `src/client/`, `k/`, `run a/b.rs`, `torch/x.py`\n\
                ```sh\n[not](a/link)\n```\n";
    assert_eq!(problems(good), [""; 0]);
    for (bad, what) in [
        ("see [this](b.md)", "b.md"),
        ("# One\n[this](#two)", "#two"),
        ("[wrapped\nlink](b.md)", "b.md"),
        ("in `client/lanes.rs`", "client/lanes.rs"),
        ("in `client/{mod,lanes}.rs`", "client/lanes.rs"),
        ("in `src/server/`", "src/server/"),
        ("in `lient/mod.rs`", "lient/mod.rs"),
    ] {
        let found = problems(bad);
        assert!(
            matches!(found.as_slice(), [one] if one.contains(what)),
            "{bad}: {found:?}"
        );
    }

    let cited = "docs/spec/wire.md, section 6.1: see [the limits](docs/spec/rpc.md), section 8. Or `rref.md`.";
    let citations: Vec<_> = citations(cited).collect();
    assert_eq!(
        citations,
        [
            ("docs/spec/wire.md", Some("6.1")),
            ("docs/spec/rpc.md", Some("8"))
        ]
    );
}

/// The files of the repository, by their paths from its root.
pub(crate) struct Tree {
    root: PathBuf,
    files: BTreeSet<PathBuf>,
}

impl Tree {
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = BTreeSet::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("the repository can be read") {
                let entry = entry.expect("the repository can be read");
                let path = entry.path();
                if entry.file_type().expect("it has a type").is_dir() {
                    // Build output, whatever its name, and git's own files. Cargo does not mark a folder that was there.
                    let is_ours = ![".git", "target"]
                        .map(Into::into)
                        .contains(&entry.file_name());
                    if is_ours && !path.join("CACHEDIR.TAG").exists() {
                        folders.push(path);
                    }
                } else {
                    let inside = path.strip_prefix(&root).expect("it is below the root");
                    files.insert(inside.to_owned());
                }
            }
        }
        Self { root, files }
    }

    pub(crate) fn text(&self, file: &Path) -> String {
        let text = fs::read_to_string(self.root.join(file));
        text.unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }

    pub(crate) fn files_ending_with(&self, ending: &'static str) -> impl Iterator<Item = &PathBuf> {
        self.files
            .iter()
            .filter(move |file| file.to_string_lossy().ends_with(ending))
    }

    fn problems_of(&self, document: &Path, text: &str) -> Vec<String> {
        let prose = without_code_blocks(text);
        let mut problems = Vec::new();
        for link in links(&prose) {
            if !self.has_target(document, text, link) {
                problems.push(format!("{}: broken link {link}", document.display()));
            }
        }
        for name in code_spans(&prose).flat_map(alternatives) {
            if is_source_name(&name) && !self.has_name(&name) {
                problems.push(format!("{}: no file {name}", document.display()));
            }
        }
        problems
    }

    fn has_target(&self, document: &Path, text: &str, link: &str) -> bool {
        if link.contains("://") {
            return true;
        }
        let (path, heading) = link.split_once('#').unwrap_or((link, ""));
        if path.is_empty() {
            return headings(text).contains(heading);
        }
        let folder = document.parent().unwrap_or(Path::new(""));
        let Some(target) = normal(&folder.join(path)) else {
            return false;
        };
        if self.files.contains(&target) {
            return heading.is_empty() || headings(&self.text(&target)).contains(heading);
        }
        heading.is_empty() && self.files.iter().any(|file| file.starts_with(&target))
    }

    fn has_section(&self, document: &str, section: Option<&str>) -> bool {
        let document = Path::new(document);
        self.files.contains(document)
            && section.is_none_or(|section| {
                titles(&self.text(document))
                    .filter_map(|title| title.split(' ').next().map(str::to_owned))
                    .any(|number| number.trim_end_matches('.') == section)
            })
    }

    /// Whether a file's path ends with `name`, or a folder's does if `name` ends with `/`.
    fn has_name(&self, name: &str) -> bool {
        if name.ends_with('/') {
            let folders = self.files.iter().flat_map(|file| file.ancestors().skip(1));
            return { folders }.any(|folder| folder.ends_with(name.trim_end_matches('/')));
        }
        self.files.iter().any(|file| file.ends_with(name))
    }
}

/// Resolves `.` and `..`; `None` for a path outside of the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                if !normal.pop() {
                    return None;
                }
            }
            other => normal.push(other),
        }
    }
    Some(normal)
}

fn without_code_blocks(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

/// The targets of inline links.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.trim())
}

/// The texts between single backticks; a span does not continue on the next line.
fn code_spans(prose: &str) -> impl Iterator<Item = &str> {
    prose
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Expands `a/{b,c}.rs` into two names.
fn alternatives(span: &str) -> Vec<String> {
    let Some((before, rest)) = span.split_once('{') else {
        return vec![span.to_owned()];
    };
    let Some((inner, after)) = rest.split_once('}') else {
        return vec![span.to_owned()];
    };
    let names = inner.split(',');
    names
        .map(|name| format!("{before}{}{after}", name.trim()))
        .collect()
}

/// Whether a name in backticks must be a file or folder of this repository: `client/lanes.rs`, `sys.rs`,
/// `src/state/`. Files of PyTorch start with `torch/`; a script without a folder is the reader's own.
fn is_source_name(name: &str) -> bool {
    let is_path = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    if !is_path || name.starts_with('/') || name.starts_with("torch/") {
        return false;
    }
    if let Some(folder) = name.strip_suffix('/') {
        // A single name is a prefix of keys more often than a folder.
        return folder.contains('/');
    }
    let is_script = name.ends_with(".py") || name.ends_with(".sh");
    SOURCE_ENDINGS.iter().any(|ending| name.ends_with(ending))
        && (name.contains('/') || !is_script)
        && !name.starts_with('.')
}

/// The texts of a document's headings.
fn titles(text: &str) -> impl Iterator<Item = String> {
    let prose = without_code_blocks(text);
    let titles = prose.lines().filter_map(|line| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len() && title.starts_with(' ')).then(|| title.trim().to_owned())
    });
    titles.collect::<Vec<_>>().into_iter()
}

/// The anchors of a document, as GitHub makes them of its headings.
fn headings(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for title in titles(text) {
        let anchor: String = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .flat_map(char::to_lowercase)
            .collect();
        let mut unique = anchor.clone();
        let mut count = 0;
        while !anchors.insert(unique.clone()) {
            count += 1;
            unique = format!("{anchor}-{count}");
        }
    }
    anchors
}

/// Documents below `docs/` with the section, if one is cited, as in `docs/spec/wire.md, section 6.1`.
fn citations(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    citations_and_rest(text).map(|(document, rest)| {
        let section = rest
            .trim_start_matches([')', ']', '`'])
            .strip_prefix(", section ")
            .map(|rest| &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())])
            .map(|number| number.trim_end_matches('.'));
        (document, section)
    })
}

/// The documents that a text names, each with the text that follows.
pub(crate) fn citations_and_rest(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices(".md").filter_map(|(end, ending)| {
        let (before, after) = text.split_at(end + ending.len());
        let start = before.rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
        let document = &before[start..];
        document.starts_with("docs/").then_some((document, after))
    })
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./".contains(c)
}
