//! Tests that need a process of their own: they measure its memory, or let it panic.

use std::env;
use std::process::Command;

/// Names the test that a process was started for.
const TEST: &str = "RREF_TEST_ALONE";

/// Whether this is the process started for `test` (its path, as `--exact` takes it), which is to run it. If
/// not, runs it in such a process, and fails if it fails there.
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
    // A name that no test has is no failure to the test program.
    assert!(
        printed.contains("1 passed"),
        "no test has the name `{test}`"
    );
    false
}
