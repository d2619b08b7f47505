//! The check itself, on small crates.

use std::path::Path;

use crate::modules::Crate;

/// All cycles of a crate with these files, as text. The first one is its root.
fn cycles(files: &[(&str, &str)]) -> Vec<String> {
    let read_source = |file: &Path| {
        let found = files.iter().find(|(name, _)| Path::new(name) == file);
        found.map(|(_, source)| (*source).to_owned())
    };
    let read = Crate::read(Path::new(files[0].0), &read_source);
    let cycles = read.imports().cycles();
    cycles.iter().map(ToString::to_string).collect()
}

const AB: (&str, &str) = ("lib.rs", "mod a; mod b;");

#[test]
fn a_cycle_is_printed_with_its_files_and_items() {
    let found = cycles(&[
        AB,
        (
            "a.rs",
            "use crate::b::{self, B, Other}; pub struct A; fn f() { b::g() }",
        ),
        (
            "b.rs",
            "use crate::a::A; pub struct B; pub struct Other; pub fn g() {}",
        ),
    ]);
    assert_eq!(
        found,
        [
            "import cycle of 2 files\n  a.rs imports from b.rs: B, Other, g\n  \
             b.rs imports from a.rs: A\n"
        ]
    );
}

#[test]
fn downward_imports_are_no_cycle() {
    let found = cycles(&[
        (
            "lib.rs",
            "mod a; mod b; mod c; pub use a::A; use c::C; fn f(_: C) {}",
        ),
        (
            "a.rs",
            "use crate::b::B; use crate::c::C; pub struct A(B, C);",
        ),
        ("b.rs", "use crate::c::C; pub struct B(C);"),
        ("c.rs", "use std::fmt; use log; pub struct C;"),
    ]);
    assert_eq!(found, [""; 0]);
}

#[test]
fn a_cycle_of_three_is_one_cycle() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "use crate::a::A; pub struct C;"),
    ]);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("import cycle of 3 files"), "{found:?}");
}

#[test]
fn a_re_export_counts_as_the_file_that_defines_the_item() {
    let through_root = cycles(&[
        (
            "lib.rs",
            "mod a; mod b; pub use a::A; pub(crate) use b::B as Renamed;",
        ),
        ("a.rs", "use crate::Renamed; pub struct A;"),
        ("b.rs", "use crate::A; pub struct B;"),
    ]);
    assert_eq!(
        through_root,
        ["import cycle of 2 files\n  a.rs imports from b.rs: B\n  b.rs imports from a.rs: A\n"]
    );

    // The root only declares and re-exports, and imports nothing.
    let error_below = cycles(&[
        (
            "lib.rs",
            "mod a; mod error; pub use a::A; pub use error::*;",
        ),
        ("a.rs", "use crate::Error; pub struct A(Error);"),
        ("error.rs", "pub enum Error { No }"),
    ]);
    assert_eq!(error_below, [""; 0]);
}

#[test]
fn an_item_from_a_re_export_is_also_an_import_from_its_file() {
    for re_export in [
        "pub use child::Part;",
        "pub use child::*;",
        "use child::Part;",
    ] {
        let whole = format!("mod child; {re_export} use crate::a::A; fn f(_: A) {{}}");
        let found = cycles(&[
            ("lib.rs", "mod a; mod whole;"),
            ("a.rs", "use crate::whole::Part; pub struct A(Part);"),
            ("whole.rs", &whole),
            ("whole/child.rs", "pub struct Part;"),
        ]);
        assert_eq!(
            found,
            [
                "import cycle of 2 files\n  a.rs imports from whole.rs: Part\n  whole.rs imports from a.rs: A\n"
            ],
            "{re_export}"
        );
    }
}

#[test]
fn a_file_that_uses_what_it_re_exports_imports_it() {
    let found = cycles(&[
        ("lib.rs", "mod a;"),
        (
            "a/mod.rs",
            "mod b; pub use b::B; pub struct A; impl A { fn f() -> B { B } }",
        ),
        ("a/b.rs", "use super::A; pub struct B;"),
    ]);
    assert_eq!(found.len(), 1);
}

#[test]
fn a_child_that_imports_from_super_is_in_a_cycle_with_a_parent_that_uses_it() {
    let parent = "mod child; use child::Part; pub struct Whole(Part);";
    let child = ("whole/child.rs", "use super::Whole; pub struct Part;");
    for parent in [("whole/mod.rs", parent), ("whole.rs", parent)] {
        let found = cycles(&[("lib.rs", "mod whole;"), parent, child]);
        let [cycle] = &found[..] else {
            panic!("{found:?}");
        };
        let file = parent.0;
        assert!(cycle.contains(&format!("whole/child.rs imports from {file}: Whole\n")));
        assert!(cycle.contains(&format!("{file} imports from whole/child.rs: Part\n")));
    }
    let only_declared = cycles(&[
        ("lib.rs", "mod whole;"),
        ("whole.rs", "mod child; pub struct Whole;"),
        child,
    ]);
    assert_eq!(only_declared, [""; 0]);
}

#[test]
fn imports_of_a_parent_are_found_through_super() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "mod child; use crate::b::B;"),
        ("a/child.rs", "use super::B; pub struct Child;"),
        ("b.rs", "pub struct B(crate::a::child::Child);"),
        ("c.rs", ""),
    ]);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains("a/child.rs imports from b.rs: B"),
        "{found:?}"
    );
}

#[test]
fn inline_paths_are_imports() {
    let bodies = [
        "fn f() { crate::b::g() }",
        "fn f() -> super::b::B { todo!() }",
        "fn f(b: u8) { match b { crate::b::LIMIT => {} _ => {} } }",
        "use crate::b; fn f() { let _ = b::B; }",
        "fn f() { use crate::b; b::g(); }",
        "impl crate::b::Trait for A {}",
        "fn f() { assert!(1 > 0, \"{}\", crate::b::LIMIT); }",
        "fn f() { vec![crate::b::g()]; }",
        "fn f(a: A) { log::warn!(\"{}\", a.field, field = b::B); } use crate::b;",
        "macro_rules! m { () => { $crate::b::g() } }",
        "use crate::b::*; fn f() { g() }",
        "use crate::b::B::*;",
    ];
    for body in bodies {
        let a = format!("pub struct A; {body}");
        let found = cycles(&[
            AB,
            ("a.rs", &a),
            (
                "b.rs",
                "use crate::a::A; pub fn g() {} pub enum B {} pub trait Trait {} pub const LIMIT: u8 = 1;",
            ),
        ]);
        assert_eq!(found.len(), 1, "{body}");
    }
}

#[test]
fn what_is_no_path_into_the_crate_is_no_import() {
    let bodies = [
        "",
        "use crate::b;",
        "use crate::b::*;",
        "pub use crate::b::B;",
        "pub(in crate::b) struct Seen;",
        "fn f(a: A) { dbg!(a.b, ::b::B, other::b::B); }",
        "fn f<'b>(x: &'b u8) {}",
        "#[doc = \"crate::b::B\"] struct Documented;",
    ];
    for body in bodies {
        let a = format!("pub struct A; {body}");
        let found = cycles(&[AB, ("a.rs", &a), ("b.rs", "use crate::a::A; pub struct B;")]);
        assert_eq!(found, [""; 0], "{body}");
    }
}

#[test]
fn tests_are_left_out() {
    let bodies = [
        "#[cfg(test)] mod tests { use crate::b::B; }",
        "#[cfg(all(test, unix))] mod tests { use crate::b::B; }",
        "#[cfg(test)] use crate::b::B;",
        "#[cfg(test)] mod tests;",
        "#[test] fn f() { crate::b::g() }",
        "impl A { #[cfg(test)] fn f() { crate::b::g() } }",
        "mod inner { #[cfg(test)] mod tests { use crate::b::B; } }",
    ];
    for body in bodies {
        let a = format!("pub struct A; {body}");
        let found = cycles(&[
            AB,
            ("a.rs", &a),
            ("a/tests.rs", "use crate::b::B;"),
            ("b.rs", "use crate::a::A; pub struct B; pub fn g() {}"),
        ]);
        assert_eq!(found, [""; 0], "{body}");
    }
    for condition in [
        "not(test)",
        "any(test, debug_assertions)",
        "all(unix, not(test))",
    ] {
        let a = format!("pub struct A; #[cfg({condition})] use crate::b::B;");
        let found = cycles(&[AB, ("a.rs", &a), ("b.rs", "use crate::a::A; pub struct B;")]);
        assert_eq!(found.len(), 1, "{condition}");
    }
}

#[test]
fn an_inline_module_belongs_to_its_file() {
    let found = cycles(&[
        (
            "lib.rs",
            "mod a { pub mod inner { pub struct A; mod file; } use self::inner::A; }",
        ),
        ("a/inner/file.rs", "use super::A;"),
    ]);
    assert_eq!(found, [""; 0]);
    let found = cycles(&[
        (
            "lib.rs",
            "mod a { pub mod inner { pub struct A; pub mod file; } use inner::file::F; }",
        ),
        ("a/inner/file.rs", "use super::A; pub struct F;"),
    ]);
    assert_eq!(found.len(), 1);
}

#[test]
fn a_name_can_be_a_module_and_an_item() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod name; pub use name::name; use crate::b::B;"),
        ("a/name.rs", "pub fn name() {}"),
        ("b.rs", "use crate::a::name::name; pub struct B;"),
    ]);
    assert_eq!(found, [""; 0]);
}

#[test]
fn an_item_that_only_a_macro_defines_belongs_to_the_module_of_its_path() {
    let found = cycles(&[
        AB,
        (
            "a.rs",
            "use crate::b::B; thread_local! { static CELL: u8 = 1; }",
        ),
        ("b.rs", "use crate::a::CELL; pub struct B;"),
    ]);
    assert_eq!(found.len(), 1);
}

#[test]
#[should_panic(expected = "there is no file a/mod.rs")]
fn a_missing_file_is_an_error() {
    cycles(&[AB]);
}

#[test]
fn the_longest_chain_of_imports_is_counted_in_files() {
    let read_source = |file: &Path| {
        let source = match file.to_str()? {
            "lib.rs" => "mod a; mod b; mod c; mod d; pub use d::D;",
            "a.rs" => "use crate::b::B; use crate::c::C;",
            "b.rs" => "use crate::c::C; pub struct B(C);",
            "c.rs" => "pub struct C;",
            "d.rs" => "use crate::c::C; pub struct D(C);",
            _ => return None,
        };
        Some(source.to_owned())
    };
    let imports = Crate::read(Path::new("lib.rs"), &read_source).imports();
    let chain = imports.longest_chain();
    assert_eq!(chain, ["a.rs", "b.rs", "c.rs"].map(Path::new));
}

#[test]
fn an_import_from_a_higher_layer_is_found() {
    let read_source = |file: &Path| {
        let source = match file.to_str()? {
            "lib.rs" => "mod high; mod low; pub use high::High; use low::Low;",
            "high.rs" | "low.rs" => "mod a;",
            "high/a.rs" => "use crate::low::a::Low; pub struct High(Low);",
            "low/a.rs" => "use crate::high::a::High; pub struct Low;",
            _ => return None,
        };
        Some(source.to_owned())
    };
    let imports = Crate::read(Path::new("lib.rs"), &read_source).imports();
    let upward = [("low/a.rs", "high/a.rs")].map(|(from, to)| (Path::new(from), Path::new(to)));
    assert_eq!(imports.upward(&["high", "low"]), upward);
}
