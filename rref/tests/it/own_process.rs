//! Runs tests in a process of their own: they measure its memory, or panic.

use std::env;
use std::process::Command;

/// Environment variable with the name of the test that a child process runs.
const TEST: &str = "RREF_TEST_ALONE";

/// Returns whether this is the child process for `test` (the test's path, as `--exact` takes it). In the parent
/// process, runs the test in a child process and panics if it fails there.
#[track_caller]
#[expect(
    clippy::print_stderr,
    reason = "the test's own output, its seeds among it"
)]
pub(crate) fn in_own_process(test: &str) -> bool {
    if env::var(TEST).is_ok_and(|alone| alone == test) {
        return true;
    }
    let output = Command::new(env::current_exe().unwrap())
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
