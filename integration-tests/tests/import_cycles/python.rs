//! The imports between the files of the Python package.

use std::path::Path;

use crate::graph::Imports;

const PACKAGE: &str = "c10d_rs";

/// Finds the imports between these files, each given as its name and source. Imports within functions and for types count.
pub(crate) fn imports(files: &[(String, String)]) -> Imports {
    let mut imports = Imports::default();
    let file_of = |module: &str| {
        let name = format!("{module}.py");
        files.iter().map(|(name, _)| name).find(|it| **it == name)
    };
    for (importer, source) in files {
        for (module, names) in from_imports(source) {
            for name in names {
                let file = match module.strip_prefix('.') {
                    Some(module) => file_of(module),
                    None => file_of(name),
                };
                if let Some(file) = file {
                    imports.add(Path::new(importer), Path::new(file), name);
                }
            }
        }
    }
    imports
}

/// The module after the package's name, with its dot, and the names, of each `from c10d_rs.module import names`.
fn from_imports(source: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    let lines = source.match_indices("from ").filter(|(at, _)| {
        let line = source[..*at].rsplit('\n').next();
        line.is_some_and(|before| before.trim().is_empty())
    });
    lines.filter_map(|(at, _)| {
        let import = source[at..].strip_prefix("from ")?.strip_prefix(PACKAGE)?;
        let (module, names) = import.split_once(" import ")?;
        let end = match names.strip_prefix('(') {
            Some(names) => &names[..names.find(')')?],
            None => names.lines().next()?,
        };
        let names = end.split(',').filter_map(|it| it.split_whitespace().next());
        Some((module, names.collect()))
    })
}

#[test]
fn a_cycle_of_python_files_is_found() {
    let file = |name: &str, source: &str| (name.to_owned(), source.to_owned());
    let cycles = imports(&[
        file(
            "a.py",
            "import c\nfrom c10d_rs.b import (\n    One,\n    Two as _Two,\n)\n",
        ),
        file("b.py", "def f():\n    from c10d_rs import a\n"),
        file(
            "c.py",
            "from c10d_rs.a import One  # from c10d_rs.c import no\n",
        ),
    ])
    .cycles();
    let cycles: Vec<String> = cycles.iter().map(ToString::to_string).collect();
    assert_eq!(
        cycles,
        [
            "import cycle of 2 files\n  a.py imports from b.py: One, Two\n  b.py imports from a.py: a\n"
        ]
    );
}
