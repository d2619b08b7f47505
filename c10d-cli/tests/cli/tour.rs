//! `c10d tour`, the first command of README.md.

use std::thread;
use std::time::{Duration, Instant};

use crate::process::{PATIENCE, Running, command};

#[test]
fn the_tour_shows_three_failures_and_what_becomes_of_the_job() {
    let mut tour = Running::start(command(["tour"]));
    // `end` waits once more: as long for each of the three jobs as for one process.
    let deadline = Instant::now() + 2 * PATIENCE;
    while tour.is_running() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
    let ended = tour.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let text = ended.stdout_text();
    let jobs: Vec<&str> = text.split("\n$ c10d run ").collect();
    let [_, killed, hang, store] = jobs[..] else {
        panic!("three jobs: {text}");
    };
    let restarted = "started ranks 0-3 of 4 again";
    assert!(
        killed.contains("failed: SIGKILL") && killed.contains(restarted),
        "{text}"
    );
    for rank in 0..4 {
        let line = format!("rank {rank} met the other ranks after 1 restarts");
        assert!(killed.contains(&line), "{text}");
    }
    let explanation = hang.split_whitespace().collect::<Vec<_>>().join(" ");
    let waiting = "Ranks 0, 1 and 3 have waited at the barrier /meeting for";
    assert!(explanation.contains(waiting), "{text}");
    assert!(explanation.contains("Rank 2 has not"), "{text}");
    assert!(explanation.contains("not Python (sleep 600)"), "{text}");
    assert!(store.contains("# the store"), "{text}");
    let (_, pids) = store.split_once("started ranks 0-3 of 4: pid ").unwrap();
    let pids = pids.split(';').next().unwrap().split(", ");
    for (rank, pid) in pids.enumerate() {
        let line = format!("rank {rank}, pid {pid}, finished step 8");
        assert!(store.contains(&line), "{line}: {text}");
    }
    assert!(!store.contains("again:"), "no worker was restarted: {text}");
}
