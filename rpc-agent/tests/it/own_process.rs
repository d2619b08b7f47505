//! Runs tests in separate processes: they count threads, measure memory, or need many open files.

use std::env;
use std::process::Command;

/// Environment variable with the name of the test that a child process runs.
const TEST: &str = "C10D_TEST_IN_OWN_PROCESS";

/// Returns whether this is the child process for `test` (the test's path, as `--exact` takes it). In the
/// parent process, runs the test in a child process and panics if it fails there.
#[track_caller]
pub(crate) fn in_own_process(test: &str) -> bool {
    in_own_process_by(Command::new(env::current_exe().unwrap()), test)
}

/// [`in_own_process`] with a limit of 4096 open files.
#[track_caller]
pub(crate) fn in_own_process_with_many_files(test: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 4096 && exec \"$0\" \"$@\""]);
    shell.arg(env::current_exe().unwrap());
    in_own_process_by(shell, test)
}

#[track_caller]
#[expect(
    clippy::print_stderr,
    reason = "the test's own output, its seeds among it"
)]
fn in_own_process_by(mut command: Command, test: &str) -> bool {
    if env::var(TEST).is_ok_and(|alone| alone == test) {
        return true;
    }
    let output = command
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(TEST, test)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    eprintln!("{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success(),
        "`{test}` failed: {}",
        output.status
    );
    // The test program succeeds if no test matches the name.
    assert!(
        printed.contains("1 passed"),
        "no test has the name `{test}`"
    );
    false
}
