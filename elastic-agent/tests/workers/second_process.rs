//! Runs a part of a test in a second process.
//!
//! The test binary runs itself with `--exact NAME`. A name that matches no test runs nothing and exits with
//! 0, so the second process creates a marker file, and the test fails without it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::util::{eventually, line_of};

/// Set in the second process: the directory for its files.
const DIRECTORY: &str = "ELASTIC_AGENT_TEST_DIRECTORY";

/// Created by the second process as soon as it runs.
const MARKER: &str = "part-runs";

/// The full name of a test in the calling module, as libtest prints it.
macro_rules! test_name {
    ($name:literal) => {
        concat!(module_path!(), "::", $name)
            .split_once("::")
            .unwrap()
            .1
    };
}
pub(crate) use test_name;

/// The directory for files, if this is the second process.
pub(crate) fn part() -> Option<PathBuf> {
    let directory = PathBuf::from(env::var_os(DIRECTORY)?);
    fs::write(directory.join(MARKER), "").unwrap();
    Some(directory)
}

/// A command that runs one test alone, as the second process.
pub(crate) fn command(test: &str, directory: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::null());
    command
}

/// Runs a command made by [`command`] to its end.
#[track_caller]
pub(crate) fn run(mut command: Command, directory: &Path) {
    command.stdout(Stdio::null());
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
    assert_ran(directory);
}

/// The first line of a file that the second process writes.
#[track_caller]
pub(crate) fn line_from(child: &mut Child, directory: &Path, name: &str) -> String {
    let path = directory.join(name);
    eventually("the second process has written its file", || {
        if let Some(status) = child.try_wait().unwrap() {
            assert_ran(directory);
            panic!("the second process ended before it wrote {name}: {status}");
        }
        path.exists()
    });
    line_of(&path)
}

#[track_caller]
fn assert_ran(directory: &Path) {
    let ran = directory.join(MARKER).exists();
    assert!(ran, "no test ran in the second process: wrong name?");
}

#[test]
#[should_panic(expected = "no test ran in the second process")]
fn a_name_that_matches_no_test_fails() {
    let folder = tempfile::tempdir().unwrap();
    run(command("no::such::test", folder.path()), folder.path());
}
