//! Composes the text of `--version`, with the commit that is built.
//!
//! Reads git's files instead of running git. A source archive has none, and gets no commit.

use std::env;
use std::fs;
use std::path::Path;

/// The PyTorch release whose behaviour and options are followed.
const PYTORCH_RELEASE: &str = "2.15";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The folder is read at run time and not at build time, because cargo may use this program for
    // another folder.
    let crate_folder = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&crate_folder).join("..");
    let commit = commit(&root.join(".git"))
        .filter(|commit| commit.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .and_then(|commit| commit.get(..SHOWN_DIGITS).map(str::to_owned));
    let commit = commit.map_or_else(String::new, |commit| format!("commit {commit}, "));
    let version = env!("CARGO_PKG_VERSION");
    println!("cargo::rustc-env=C10D_VERSION={version} ({commit}follows PyTorch {PYTORCH_RELEASE})");
}

const SHOWN_DIGITS: usize = 12;

/// The commit that is checked out. Has cargo watch the files that tell, so that a new commit builds the
/// command again and nothing else does.
fn commit(dot_git: &Path) -> Option<String> {
    let directory = if dot_git.is_dir() {
        dot_git.to_owned()
    } else {
        // A further work tree: a file that names its directory.
        let text = read(dot_git)?;
        let named = text.strip_prefix("gitdir: ")?;
        dot_git.parent()?.join(named)
    };
    // Branches of a further work tree are in the main one.
    let common = read(&directory.join("commondir"))
        .map_or_else(|| directory.clone(), |common| directory.join(common));
    // This file grows with each commit and checkout, even if the branch's own file is new.
    watch(&directory.join("logs/HEAD"));
    let head = read(&directory.join("HEAD"))?;
    let Some(branch) = head.strip_prefix("ref: ") else {
        return Some(head);
    };
    read(&common.join(branch)).or_else(|| packed(&common.join("packed-refs"), branch))
}

/// The commit of a branch without its own file.
fn packed(path: &Path, branch: &str) -> Option<String> {
    let refs = read(path)?;
    let mut refs = refs.lines().filter_map(|line| line.split_once(' '));
    let (commit, _) = refs.find(|(_, name)| *name == branch)?;
    Some(commit.to_owned())
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    watch(path);
    Some(text.trim_end().to_owned())
}

/// A file that does not exist would make cargo run this each time.
fn watch(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
