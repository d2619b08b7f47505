//! Tests that need a process of their own: they count its threads, or need more files than usual.

use std::env;
use std::process::Command;

/// Names the test that a process was started for.
const TEST: &str = "RPC_AGENT_TEST_ALONE";

/// Whether this is the process started for `test` (its path, as `--exact` takes it), which is to run it. If
/// not, runs it in such a process, and fails if it fails there.
#[track_caller]
pub(crate) fn in_own_process(test: &str) -> bool {
    in_own_process_by(Command::new(env::current_exe().unwrap()), test)
}

/// [`in_own_process`], in one that may have 4096 files open.
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
        .args(["--exact", test, "--nocapture"])
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
    // A name that no test has is no failure to the test program.
    assert!(
        printed.contains("1 passed"),
        "no test has the name `{test}`"
    );
    false
}
