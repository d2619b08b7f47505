//! Ranks that are shell scripts, and meet with `c10d store barrier`.

use std::ffi::OsString;

use integration_tests::launcher::{Kind, c10d};
use integration_tests::watchdog::Watchdog;

use super::LIMIT;
use super::expected::{Expected, Verdict};
use super::job::HangingJob;
use super::mode::Mode;

/// A script whose first argument is the command `c10d`, and whose second is the job's folder.
const SCRIPT: &str = r#"
    printf '{"time": %s, "store": "%s"}' $(date +%s.%N) "$MASTER_ADDR:$MASTER_PORT" >"$2/.stalled.$RANK"
    mv "$2/.stalled.$RANK" "$2/stalled.$RANK"
    [ "$RANK" != 2 ] || exec sleep 3600
    "$1" store barrier data-ready --world-size "$WORLD_SIZE" --timeout 1h
"#;

#[test]
fn shell_worker() {
    let _watchdog = Watchdog::start("shell_worker", LIMIT);
    let mode = match Mode::of_hangs() {
        // It is about Python.
        None | Some(Mode::Preload | Mode::Torchrun) => return,
        Some(mode) => mode,
    };
    let words = ["--no-python", "sh", "-c", SCRIPT, "sh"].map(OsString::from);
    let words: Vec<OsString> = words.into_iter().chain([c10d().into()]).collect();
    let mut job = HangingJob::start_nodes([Kind::C10d; 2], mode, &words, &[]);
    job.expect(&Expected {
        verdict: Verdict::NoProgress,
        culprits: &[2],
        places: vec!["sleep 3600".to_owned()],
    });
}
