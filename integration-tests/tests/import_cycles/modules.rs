//! The modules of a crate: what each one defines, declares and names.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Item, Meta, Token, UseTree, Visibility};

/// An index into [`Crate::modules`]. The root is the first.
pub(crate) type ModuleId = usize;

pub(crate) const ROOT: ModuleId = 0;

/// `["crate", "wire", "Frame"]`
pub(crate) type Segments = Vec<String>;

#[derive(Debug)]
pub(crate) struct Crate {
    pub(crate) modules: Vec<Module>,
}

/// What one module says. An inline module belongs to the file around it.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) parent: Option<ModuleId>,
    pub(crate) names: HashMap<String, Vec<Binding>>,
    /// Modules or enums whose names are all imported here.
    pub(crate) globs: Vec<Segments>,
    /// All paths that the module names, except in re-exports.
    pub(crate) paths: Vec<Segments>,
}

/// What a name stands for within a module. One name can stand for several things at once.
#[derive(Debug, Clone)]
pub(crate) enum Binding {
    /// Defined here.
    Item,
    Module(ModuleId),
    /// `use path as name`
    Import(Segments),
}

/// Gives the text of a file, or `None` when it does not exist.
pub(crate) type ReadSource<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl Crate {
    /// Reads the crate whose root is this file, without its tests.
    ///
    /// # Panics
    /// When a file is missing or is not Rust.
    pub(crate) fn read(root: &Path, read_source: ReadSource<'_>) -> Self {
        let mut read = Self {
            modules: Vec::new(),
        };
        let folder = root.parent().unwrap_or(Path::new(""));
        let items = parse(root, read_source).expect("a crate root is no test");
        read.add_module(root, folder, None, &items, read_source);
        read
    }

    /// `folder` is where the files of child modules are.
    fn add_module(
        &mut self,
        file: &Path,
        folder: &Path,
        parent: Option<ModuleId>,
        items: &[Item],
        read_source: ReadSource<'_>,
    ) -> ModuleId {
        let id = self.modules.len();
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            names: HashMap::new(),
            globs: Vec::new(),
            paths: Vec::new(),
        });
        for item in items {
            if let Item::Mod(module) = item
                && !is_test(&module.attrs)
            {
                let child_folder = folder.join(module.ident.to_string());
                let child = if let Some((_, items)) = &module.content {
                    Some(self.add_module(file, &child_folder, Some(id), items, read_source))
                } else {
                    self.add_file(folder, &module.ident, id, read_source)
                };
                if let Some(child) = child {
                    self.modules[id].bind(&module.ident, Binding::Module(child));
                }
            }
        }
        let mut reader = Reader {
            module: &mut self.modules[id],
        };
        for item in items {
            reader.visit_item(item);
        }
        id
    }

    /// `None` when the whole file is a test.
    fn add_file(
        &mut self,
        folder: &Path,
        name: &Ident,
        parent: ModuleId,
        read_source: ReadSource<'_>,
    ) -> Option<ModuleId> {
        let child_folder = folder.join(name.to_string());
        let flat = folder.join(format!("{name}.rs"));
        let file = if read_source(&flat).is_some() {
            flat
        } else {
            child_folder.join("mod.rs")
        };
        let items = parse(&file, read_source)?;
        Some(self.add_module(&file, &child_folder, Some(parent), &items, read_source))
    }
}

/// The items of a file, or `None` when all of it is a test.
fn parse(file: &Path, read_source: ReadSource<'_>) -> Option<Vec<Item>> {
    let source = read_source(file).unwrap_or_else(|| panic!("there is no file {}", file.display()));
    let parsed =
        syn::parse_file(&source).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    (!is_test(&parsed.attrs)).then_some(parsed.items)
}

/// Whether this is compiled in tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        assert!(
            !attribute.path().is_ident("path"),
            "#[path] is not followed"
        );
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute
                    .parse_args()
                    .is_ok_and(|condition| !holds_outside_tests(&condition))
    })
}

/// Whether a condition of `cfg` can hold without `test`.
fn holds_outside_tests(condition: &Meta) -> bool {
    let Meta::List(list) = condition else {
        return !condition.path().is_ident("test");
    };
    let Ok(inner) = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated) else {
        return true;
    };
    if list.path.is_ident("all") {
        inner.iter().all(holds_outside_tests)
    } else if list.path.is_ident("any") {
        inner.iter().any(holds_outside_tests)
    } else {
        // `not(..)`: only `not(test)` is about tests, and holds outside them.
        true
    }
}

impl Module {
    fn bind(&mut self, name: &Ident, binding: Binding) {
        self.names
            .entry(name.to_string())
            .or_default()
            .push(binding);
    }

    fn add_use(&mut self, tree: &UseTree, prefix: &mut Segments, re_export: bool) {
        let leaf = |prefix: &Segments, ident: &Ident| {
            let mut path = prefix.clone();
            if ident != "self" {
                path.push(ident.to_string());
            }
            path
        };
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.add_use(&path.tree, prefix, re_export);
                prefix.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, prefix, re_export);
                }
            }
            UseTree::Name(name) => {
                let path = leaf(prefix, &name.ident);
                if let Some(last) = path.last().cloned() {
                    self.add_import(last, path, re_export);
                }
            }
            UseTree::Rename(rename) => {
                let path = leaf(prefix, &rename.ident);
                self.add_import(rename.rename.to_string(), path, re_export);
            }
            UseTree::Glob(_) => {
                self.globs.push(prefix.clone());
                if !re_export {
                    self.paths.push(prefix.clone());
                }
            }
        }
    }

    fn add_import(&mut self, name: String, path: Segments, re_export: bool) {
        if !re_export {
            self.paths.push(path.clone());
        }
        self.names
            .entry(name)
            .or_default()
            .push(Binding::Import(path));
    }

    /// The paths in what is passed to a macro, or in its definition.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => {
                    debug_assert!(group.delimiter() != Delimiter::None);
                    self.add_tokens(group.stream());
                    at += 1;
                }
                TokenTree::Ident(first) => {
                    let begin = at;
                    let mut path = vec![first.to_string()];
                    while let Some(next) = segment_after(&tokens, at) {
                        path.push(next);
                        at += 3;
                    }
                    at += 1;
                    if !continues(&tokens[..begin], first) {
                        self.paths.push(path);
                    }
                }
                _ => at += 1,
            }
        }
    }
}

/// The identifier after `::` after this place.
fn segment_after(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at + 1..at + 4)? {
        [
            TokenTree::Punct(a),
            TokenTree::Punct(b),
            TokenTree::Ident(name),
        ] if a.as_char() == ':' && b.as_char() == ':' => Some(name.to_string()),
        _ => None,
    }
}

/// Whether an identifier after these tokens begins no path: a field, a lifetime, a macro's variable,
/// or a path that begins outside the crate.
fn continues(before: &[TokenTree], name: &Ident) -> bool {
    let Some(TokenTree::Punct(last)) = before.last() else {
        return false;
    };
    match last.as_char() {
        '.' => !matches!(before, [.., TokenTree::Punct(dot), _] if dot.as_char() == '.'),
        '$' => name != "crate",
        ':' => matches!(before, [.., TokenTree::Punct(colon), _] if colon.as_char() == ':'),
        '\'' => true,
        _ => false,
    }
}

/// Takes in all items of a module, except modules within it.
struct Reader<'a> {
    module: &'a mut Module,
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name): (&[Attribute], Option<&Ident>) = match item {
            Item::Const(item) => (&item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Impl(item) => (&item.attrs, None),
            Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            Item::Static(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Union(item) => (&item.attrs, Some(&item.ident)),
            Item::Use(item) => (&item.attrs, None),
            // Read on its own.
            Item::Mod(_) => return,
            _ => (&[], None),
        };
        if is_test(attributes) {
            return;
        }
        if let Some(name) = name {
            self.module.bind(name, Binding::Item);
        }
        if let Item::Use(item) = item {
            if item.leading_colon.is_none() {
                let re_export = !matches!(item.vis, Visibility::Inherited);
                self.module.add_use(&item.tree, &mut Vec::new(), re_export);
            }
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Fn(item) => &item.attrs[..],
            syn::ImplItem::Const(item) => &item.attrs,
            _ => &[],
        };
        if !is_test(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_test(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let segments = path.segments.iter();
            let names = segments.map(|segment| segment.ident.to_string());
            self.module.paths.push(names.collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.visit_path(&called.path);
        self.module.add_tokens(called.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}
