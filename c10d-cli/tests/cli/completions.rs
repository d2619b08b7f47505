//! `c10d completions` and `c10d man`, as bash and groff read them.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::process::{Running, command, run};

/// Sources the script and completes the words of the command line.
const COMPLETE: &str = r#"
source "$1" || exit 9
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_c10d c10d "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}""#;

/// Writes the script of a shell, which is longer than the buffer of a pipe.
fn write_script(shell: &str, path: &Path) {
    let mut completions = command(["completions", shell]);
    completions.stdout(File::create(path).unwrap());
    let ended = Running::start(completions).end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

/// Returns bash's completions of the last word.
fn offered(script: &Path, words: &[&str]) -> Vec<String> {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-c", COMPLETE, "bash"]);
    let output = bash.arg(script).args(words).output().expect("bash runs");
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c10d");
    write_script("bash", &path);
    for (words, expected) in [
        (
            &["c10d", "run", "--pre"][..],
            &["--preload", "--preload-required", "--preload-standby"][..],
        ),
        (&["c10d", "st"], &["store", "stacks"]),
        (&["c10d", "store", "se"], &["serve", "set"]),
        (&["c10d", "store", "get", "--conn"], &["--connect"]),
        // Nothing: bash then completes file names.
        (&["c10d", "run", "train."], &[""]),
    ] {
        assert_eq!(offered(&path, words), expected, "{words:?}");
    }
}

#[test]
fn shells_accept_their_scripts() {
    let directory = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let path = directory.path().join(shell);
        write_script(shell, &path);
        if let Some(output) = output(Command::new(shell).arg("-n").arg(&path)) {
            assert!(output.status.success(), "{shell}: {output:?}");
        }
    }
    let ended = run(["completions", "sh"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("possible values: bash"), "{ended:?}");
}

#[test]
fn pages_are_written_for_all_commands_and_groff_accepts_them() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("new/man1");
    let arguments = ["man", "--out-dir", pages.to_str().unwrap()];
    run(arguments).assert_prints("");
    let mut names = Vec::new();
    for entry in fs::read_dir(&pages).unwrap() {
        let path = entry.unwrap().path();
        if let Some(warnings) = warnings(&path) {
            assert_eq!(warnings, "", "{}", path.display());
        }
        names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
    }
    assert!(names.len() > 30, "{names:?}");
    for name in [
        "c10d.1",
        "c10d-run.1",
        "c10d-store.1",
        "c10d-store-compare-set.1",
    ] {
        assert!(names.iter().any(|written| written == name), "{names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("help")), "{names:?}");
    run(["man", "run"]).assert_prints(fs::read(pages.join("c10d-run.1")).unwrap());
}

#[test]
fn a_page_that_cannot_be_written_or_does_not_exist_is_an_error() {
    run(["man", "store", "floor"]).assert_fails(2, "c10d store has no command \"floor\"");
    let arguments = ["man", "--out-dir", "/dev/null/pages"];
    run(arguments).assert_fails(3, "cannot write manual pages to /dev/null/pages");
}

/// Returns groff's warnings about a page. `None` on a machine without groff.
fn warnings(page: &Path) -> Option<String> {
    let mut groff = Command::new("groff");
    groff.args(["-man", "-ww", "-Tutf8", "-z"]).arg(page);
    let output = output(&mut groff)?;
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Runs a program to its end. `None` if there is none, which the test's output shows.
fn output(command: &mut Command) -> Option<Output> {
    match command.stdin(Stdio::null()).output() {
        Ok(output) => Some(output),
        Err(error) => {
            let program = command.get_program().to_string_lossy();
            // libtest discards what a test that passes prints.
            let _ = writeln!(
                io::stderr(),
                "skipped: {program} does not run here: {error}"
            );
            None
        }
    }
}
