//! Groups leave no process, thread or descriptor behind.
//!
//! Runs in a separate process, because it counts the resources of the whole process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use elastic_agent::{Destination, KillSwitch, Signal, WorkerLogs, WorkerPlan};

use crate::second_process::{self, test_name};
use crate::util::{eventually, next, shells, start};

/// A shell blocks signals while it forks, so that its child can miss the group's signal and is killed after this
/// time.
const GRACE: Duration = Duration::from_secs(1);

/// The numbers of descriptors, threads and children of this process.
fn resources() -> (usize, usize, usize) {
    let entries = |path| fs::read_dir(path).unwrap().count();
    let own = std::process::id().to_string();
    let children = fs::read_dir("/proc").unwrap().filter(|process| {
        let path = process.as_ref().unwrap().path();
        let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        after_name.split_ascii_whitespace().nth(1) == Some(own.as_str())
    });
    (
        entries("/proc/self/fd"),
        entries("/proc/self/task"),
        children.count(),
    )
}

fn workers(directory: &Path) -> Vec<WorkerPlan> {
    let mut workers = shells(directory, &["sleep 1000", "exit 1", "echo x; echo y >&2"]);
    let stdout = Destination::File {
        path: directory.join("out"),
        is_shown: true,
    };
    workers[2].logs = WorkerLogs {
        stdout,
        ..WorkerLogs::CONSOLE
    };
    workers
}

#[test]
fn a_hundred_groups_leave_no_process_no_thread_and_no_descriptor() {
    let name = test_name!("a_hundred_groups_leave_no_process_no_thread_and_no_descriptor");
    let Some(folder) = second_process::part() else {
        let folder = tempfile::tempdir().unwrap();
        let command = second_process::command(name, folder.path());
        return second_process::run(command, folder.path());
    };
    let before = resources();
    assert_eq!(before.2, 0);
    for round in 0..100 {
        let (group, exits) = start(workers(&folder));
        next(&exits);
        if round % 2 == 0 {
            drop(group);
        } else {
            let report = group.stop(Signal::TERM, GRACE, &KillSwitch::new());
            assert_eq!(report.outcomes.len(), 3);
        }
        // A joined thread may still be listed for a moment.
        eventually("the counts are as before", || resources() == before);
    }
}
