//! Rules of public interfaces, which the compiler does not know. The published crates keep them:
//!
//! - `c10d-store` has at most [`STORE_FUNCTIONS_MAX`] public functions that it supports.
//! - The trait `Store` has at most [`STORE_REQUIRED_MAX`] required methods, and fits on a screen.
//! - A time-out is `impl Into<Option<Duration>>`. It is a `Duration` where it cannot be absent, which [`ALWAYS_LIMITED`]
//!   lists, and an `Option` only in traits that are used as `dyn`.
//!
//! Everything `pub` counts as public: a lint refuses `pub` for items that no other crate can reach.
//! `cargo test -p integration-tests --test it public_rules -- --nocapture` prints the counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, FnArg, GenericArgument, ImplItemFn, Item, ItemFn, ItemImpl, Lit, Meta, Pat,
    PathArguments, Signature, TraitItem, TraitItemFn, Type, TypeParamBound, UseTree, Visibility,
};

use crate::documents::Tree;

/// There were 165 before the rule was made.
const STORE_FUNCTIONS_MAX: usize = 110;

/// What a kind of store has to provide; `StoreExt` has the rest.
const STORE_REQUIRED_MAX: usize = 12;

/// A screen of rustdoc.
const STORE_LINES_MAX: usize = 60;

/// The files whose re-exports a crate does not support for other users than its siblings.
const UNSTABLE: &str = "src/unstable.rs";

/// Functions without which a peer that is silent could hold up a server, a page or a job: they have no `None`.
const ALWAYS_LIMITED: [&str; 16] = [
    "AgentOptions::with_connect_timeout",
    "HealthCheck::with_timeout",
    "RelayOptions::with_handshake_timeout",
    "RelayOptions::with_refused_timeout",
    "RelayOptions::with_resume_timeout",
    "RendezvousSettings::with_join_timeout",
    "RendezvousSettings::with_last_call_timeout",
    "ServerOptions::with_handshake_timeout",
    "ServerOptions::with_session_timeout",
    "StatusPages::open",
    "StatusServer::report",
    "StatusSource::counters",
    "StatusSource::snapshot",
    "TcpStoreOptions::with_resume",
    "fetch",
    "fetch_all",
];

static API: LazyLock<Api> = LazyLock::new(|| Api::read(&Tree::read()));

#[test]
#[expect(clippy::print_stdout, reason = "the counts are for readers")]
fn the_store_supports_few_functions() {
    let api = &*API;
    let unstable = &api.unstable;
    let is_supported = |function: &&Function| {
        let owner = function.owner.as_ref().unwrap_or(&function.name);
        !unstable.contains(owner)
    };
    let mut counts = BTreeMap::<&str, [usize; 3]>::new();
    for function in &api.functions {
        let count = counts.entry(&function.package).or_default();
        match function.kind {
            Kind::OfTrait => count[2] += 1,
            Kind::Own if is_supported(&function) => count[0] += 1,
            Kind::Own => count[1] += 1,
        }
    }
    println!("{:20} functions  unstable  methods of traits", "crate");
    for (package, [supported, unstable, of_traits]) in &counts {
        println!("{package:20} {supported:9} {unstable:9} {of_traits:18}");
    }
    let [supported, ..] = counts["c10d-store"];
    assert!(
        supported <= STORE_FUNCTIONS_MAX,
        "{supported} public functions of c10d-store, at most {STORE_FUNCTIONS_MAX}"
    );
}

#[test]
fn the_trait_store_fits_on_a_screen() {
    let store = &API.traits["c10d-store/src/store.rs: Store"];
    assert!(store.required <= STORE_REQUIRED_MAX, "{store:?}");
    assert!(store.comment_lines <= STORE_LINES_MAX, "{store:?}");
}

/// A method with a default also compiles if a wrapper does not forward it, but then lacks the prefix or the second attempt.
#[test]
fn wrappers_forward_every_method_of_stores() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // A rendezvous uses neither groups nor heartbeats for ephemeral keys.
    let without = ["ask_group", "keep_alive"];
    let wrappers: [(&str, &[&str]); 2] = [
        ("c10d-store/src/prefix_store.rs", &[]),
        ("elastic-rendezvous/src/shell/reconnection.rs", &without),
    ];
    let store = std::fs::read_to_string(root.join("c10d-store/src/store.rs")).unwrap();
    let file = syn::parse_file(&store).unwrap();
    let is_store = |item: &&Item| matches!(item, Item::Trait(it) if it.ident == "Store");
    let Some(Item::Trait(store)) = file.items.iter().find(is_store) else {
        panic!("no trait Store");
    };
    for (path, without) in wrappers {
        let source = std::fs::read_to_string(root.join(path)).unwrap();
        for item in &store.items {
            let TraitItem::Fn(method) = item else {
                continue;
            };
            let name = method.sig.ident.to_string();
            let is_forwarded = source.contains(&format!(" {name}("));
            assert_ne!(is_forwarded, without.contains(&&*name), "{name} in {path}");
        }
    }
}

#[test]
fn time_outs_are_spelt_one_way() {
    let api = &*API;
    let problems: Vec<String> = api
        .functions
        .iter()
        .filter(|function| {
            function.timeouts.iter().any(|spelling| match spelling {
                Spelling::Option => function.kind == Kind::Own,
                Spelling::Duration => !is_listed(&ALWAYS_LIMITED, function),
            })
        })
        .map(ToString::to_string)
        .collect();
    assert!(
        problems.is_empty(),
        "not impl Into<Option<Duration>>:\n{}",
        problems.join("\n")
    );
}

#[test]
fn the_rules_find_what_they_forbid() {
    let mut reader = Reader::new("c", Path::new("c/src/lib.rs"));
    let source = "
        pub struct A;
        impl A {
            pub fn of_size(timeout: Option<Duration>, pause: Duration) {}
            pub fn good(&self, timeout: impl Into<Option<Duration>>) -> Result<bool, ()> {}
            pub fn with_io_timeout(mut self, timeout: Duration) -> Self {}
            fn own(&self, timeout: Option<Duration>) -> bool {}
        }
        pub trait T { fn wait(&self, timeout: Option<Duration>) -> bool; }
        #[cfg(test)]
        mod tests { pub fn f() {} }
    ";
    reader.visit_file(&syn::parse_file(source).expect("it is Rust"));
    let functions = reader.functions.iter();
    let found = functions.map(|it| format!("{} {:?}", it.name, it.timeouts));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            "of_size [Option]",
            "good []",
            "with_io_timeout [Duration]",
            "wait [Option]"
        ]
    );
}

/// Whether a list names a function, which is then no problem.
fn is_listed(list: &[&str], function: &Function) -> bool {
    list.contains(&&*function.path())
}

/// The public functions of the published crates.
#[derive(Debug, Default)]
struct Api {
    functions: Vec<Function>,
    /// By file and name.
    traits: BTreeMap<String, Trait>,
    /// Types and functions that [`UNSTABLE`] re-exports.
    unstable: BTreeSet<String>,
}

impl Api {
    fn read(tree: &Tree) -> Self {
        let mut api = Self::default();
        for manifest in tree.files_ending_with("/Cargo.toml") {
            let package = manifest.parent().expect("a file has a folder");
            let is_published = !tree.text(manifest).contains("publish = false");
            if package.components().count() > 1 || !is_published {
                continue;
            }
            let sources = package.join("src");
            for source in tree
                .files_ending_with(".rs")
                .filter(|it| it.starts_with(&sources))
            {
                if is_test_file(source) {
                    continue;
                }
                let parsed = syn::parse_file(&tree.text(source))
                    .unwrap_or_else(|error| panic!("{}: {error}", source.display()));
                let mut reader = Reader::new(&package.to_string_lossy(), source);
                reader.visit_file(&parsed);
                api.functions.append(&mut reader.functions);
                api.traits.append(&mut reader.traits);
                if source.ends_with(UNSTABLE) {
                    api.unstable.extend(re_exports(&parsed.items));
                }
            }
        }
        assert!(api.functions.len() > 500, "they are found");
        api
    }
}

#[derive(Debug)]
struct Trait {
    /// Methods without a default.
    required: usize,
    comment_lines: usize,
}

#[derive(Debug)]
struct Function {
    package: String,
    file: PathBuf,
    /// The type that has it.
    owner: Option<String>,
    name: String,
    kind: Kind,
    /// How the time-outs among the parameters are spelt that are not `impl Into<Option<Duration>>`.
    timeouts: Vec<Spelling>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Own,
    OfTrait,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    Option,
    Duration,
}

impl Function {
    /// `TcpStore::ping`
    fn path(&self) -> String {
        let owner = self.owner.as_ref().map(|owner| format!("{owner}::"));
        owner.unwrap_or_default() + &self.name
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.path())
    }
}

/// Reads one file.
#[derive(Debug)]
struct Reader {
    package: String,
    file: PathBuf,
    owner: Option<String>,
    functions: Vec<Function>,
    traits: BTreeMap<String, Trait>,
}

impl Reader {
    fn new(package: &str, file: &Path) -> Self {
        Self {
            package: package.to_owned(),
            file: file.to_owned(),
            owner: None,
            functions: Vec::new(),
            traits: BTreeMap::new(),
        }
    }

    fn add(&mut self, signature: &Signature, kind: Kind) {
        let mut timeouts = Vec::new();
        for input in &signature.inputs {
            let FnArg::Typed(input) = input else {
                continue;
            };
            let is_timeout = matches!(&*input.pat, Pat::Ident(name)
                if name.ident == "timeout" || name.ident.to_string().ends_with("_timeout"));
            if is_duration(argument_of(&input.ty, "Option")) {
                timeouts.push(Spelling::Option);
            } else if is_timeout && is_duration(Some(&input.ty)) {
                timeouts.push(Spelling::Duration);
            }
        }
        self.functions.push(Function {
            package: self.package.clone(),
            file: self.file.clone(),
            owner: self.owner.clone(),
            name: signature.ident.to_string(),
            kind,
            timeouts,
        });
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(it) => &it.attrs,
            Item::Impl(it) => &it.attrs,
            Item::Mod(it) => &it.attrs,
            Item::Trait(it) => &it.attrs,
            _ => return,
        };
        if !attributes.iter().any(is_other_build) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if matches!(function.vis, Visibility::Public(_)) {
            self.add(&function.sig, Kind::Own);
        }
    }

    fn visit_item_impl(&mut self, block: &'ast ItemImpl) {
        if block.trait_.is_none() {
            self.owner = last_segment(&block.self_ty).map(|it| it.ident.to_string());
            visit::visit_item_impl(self, block);
            self.owner = None;
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if function.attrs.iter().any(is_other_build) {
            return;
        }
        if matches!(function.vis, Visibility::Public(_)) {
            self.add(&function.sig, Kind::Own);
        }
    }

    fn visit_item_trait(&mut self, definition: &'ast syn::ItemTrait) {
        if matches!(definition.vis, Visibility::Public(_)) {
            let name = format!("{}: {}", self.file.display(), definition.ident);
            let methods = definition.items.iter().filter_map(|item| match item {
                TraitItem::Fn(method) => Some(method),
                _ => None,
            });
            let mut found = Trait {
                required: 0,
                comment_lines: definition.attrs.iter().filter_map(comment_line).count(),
            };
            for method in methods {
                found.required += usize::from(method.default.is_none());
                found.comment_lines += method.attrs.iter().filter_map(comment_line).count();
            }
            self.traits.insert(name, found);
            self.owner = Some(definition.ident.to_string());
            visit::visit_item_trait(self, definition);
            self.owner = None;
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        self.add(&function.sig, Kind::OfTrait);
    }
}

fn is_test_file(file: &Path) -> bool {
    file.components().any(|part| {
        let name = part.as_os_str().to_string_lossy();
        matches!(&*name, "tests" | "sim" | "tests.rs" | "fuzzing.rs") || name.ends_with("_tests.rs")
    })
}

/// Compiled for tests or fuzzing only.
fn is_other_build(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute
            .parse_args::<Meta>()
            .is_ok_and(|condition| match condition {
                Meta::Path(path) => path.is_ident("test") || path.is_ident("fuzzing"),
                Meta::List(list) => {
                    let is_not = list.path.is_ident("not");
                    !is_not
                        && list
                            .tokens
                            .to_string()
                            .split([',', ' '])
                            .any(|it| it == "test")
                }
                Meta::NameValue(_) => false,
            })
}

fn comment_line(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(meta) = &attribute.meta else {
        return None;
    };
    match &meta.value {
        Expr::Lit(literal) if meta.path.is_ident("doc") => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// The type arguments of `Name<..>`, if it is that: the first one.
fn argument_of<'t>(kind: &'t Type, name: &str) -> Option<&'t Type> {
    let segment = last_segment(kind).filter(|segment| segment.ident == name)?;
    match &segment.arguments {
        PathArguments::AngleBracketed(arguments) => arguments.args.iter().find_map(|it| match it {
            GenericArgument::Type(kind) => Some(kind),
            _ => None,
        }),
        _ => None,
    }
}

fn is_duration(kind: Option<&Type>) -> bool {
    kind.is_some_and(|kind| is_named(kind, "Duration"))
}

fn is_named(kind: &Type, name: &str) -> bool {
    last_segment(kind).is_some_and(|segment| segment.ident == name)
}

/// `Option<T>` of `std::option::Option<T>`; `Store` of `dyn Store`.
fn last_segment(kind: &Type) -> Option<&syn::PathSegment> {
    match kind {
        Type::Path(path) => path.path.segments.last(),
        Type::TraitObject(object) => object.bounds.iter().find_map(|bound| match bound {
            TypeParamBound::Trait(bound) => bound.path.segments.last(),
            _ => None,
        }),
        _ => None,
    }
}

/// The names that `use` declarations end in.
fn re_exports(items: &[Item]) -> BTreeSet<String> {
    fn add(tree: &UseTree, names: &mut BTreeSet<String>) {
        match tree {
            UseTree::Path(path) => add(&path.tree, names),
            UseTree::Name(name) => drop(names.insert(name.ident.to_string())),
            UseTree::Rename(rename) => drop(names.insert(rename.ident.to_string())),
            UseTree::Group(group) => group.items.iter().for_each(|it| add(it, names)),
            UseTree::Glob(_) => panic!("{UNSTABLE} names what it re-exports"),
        }
    }
    let mut names = BTreeSet::new();
    for item in items {
        match item {
            Item::Use(item) => add(&item.tree, &mut names),
            Item::Mod(module) => {
                let (_, items) = module.content.as_ref().expect("an inline module");
                names.append(&mut re_exports(items));
            }
            _ => {}
        }
    }
    names
}
