//! The crates that are checked: all libraries, programs and examples of the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A crate: one target of a package.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) package: String,
    pub(crate) name: String,
    /// Relative to the repository.
    pub(crate) root: PathBuf,
}

/// Manifests of the workspaces, relative to the repository.
const MANIFESTS: [&str; 3] = [
    "Cargo.toml",
    "fuzz/Cargo.toml",
    "integration-tests/compare/Cargo.toml",
];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package is a folder of the repository")
}

/// The file's text, `None` if there is no such file.
pub(crate) fn read_source(file: &Path) -> Option<String> {
    fs::read_to_string(repository().join(file)).ok()
}

/// The names and sources of the files of the Python package.
pub(crate) fn python_files() -> Vec<(String, String)> {
    let folder = repository().join("bindings/python/python/c10d_rs");
    let files = fs::read_dir(folder).expect("the package's folder");
    let paths = files.map(|file| file.expect("a file").path());
    let sources = paths.filter(|path| path.extension().is_some_and(|it| it == "py"));
    let mut sources: Vec<_> = sources
        .map(|path| {
            let name = path
                .file_name()
                .expect("a file")
                .to_string_lossy()
                .into_owned();
            (name, fs::read_to_string(&path).expect("Python source"))
        })
        .collect();
    sources.sort();
    sources
}

/// All targets except tests, benches and build scripts.
pub(crate) fn targets() -> Vec<Target> {
    let mut targets = Vec::new();
    for manifest in MANIFESTS {
        let output = Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--no-deps",
                "--format-version",
                "1",
                "--manifest-path",
            ])
            .arg(repository().join(manifest))
            .output()
            .expect("cargo runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
        for package in metadata["packages"].as_array().expect("a list") {
            for target in package["targets"].as_array().expect("a list") {
                if is_checked(target) {
                    targets.push(Target {
                        package: text(&package["name"]),
                        name: text(&target["name"]),
                        root: Path::new(&text(&target["src_path"]))
                            .strip_prefix(repository())
                            .expect("cargo gives absolute paths")
                            .to_owned(),
                    });
                }
            }
        }
    }
    targets.sort_by(|a, b| a.package.cmp(&b.package));
    targets
}

fn is_checked(target: &Value) -> bool {
    let kinds = target["kind"].as_array().expect("a list");
    ["lib", "cdylib", "staticlib", "bin", "example"]
        .iter()
        .any(|kind| kinds.iter().any(|each| each == kind))
}

fn text(value: &Value) -> String {
    value.as_str().expect("a string").to_owned()
}

#[test]
fn every_crate_of_the_workspace_is_checked() {
    let targets = targets();
    let packages: Vec<_> = targets
        .iter()
        .map(|target| target.package.as_str())
        .collect();
    for package in [
        "c10d-bench",
        "c10d-c",
        "c10d-cli",
        "c10d-socket",
        "c10d-store",
        "compare",
        "rpc-agent",
    ] {
        assert!(
            packages.contains(&package),
            "{package} is not among {packages:?}"
        );
    }
}
