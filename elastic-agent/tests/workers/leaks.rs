//! What groups leave behind in the process that runs them: nothing.
//!
//! In a process of its own, as it counts what the whole process has.

use std::fs;
use std::path::Path;

use elastic_agent::{GroupPlan, Hurry, Signal};

use crate::second_process::{self, test_name};
use crate::util::{FOR_EVER, eventually, next, shells, start};

/// Descriptors, threads and children of this process.
fn possessions() -> (usize, usize, usize) {
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

fn plan(directory: &Path) -> GroupPlan {
    let mut plan = shells(directory, &["sleep 1000", "exit 1", "echo x; echo y >&2"]);
    plan.workers[2].logs.stdout = elastic_agent::Destination::File {
        path: directory.join("out"),
        is_shown: true,
    };
    plan
}

#[test]
fn a_hundred_groups_leave_no_process_no_thread_and_no_descriptor() {
    let name = test_name!("a_hundred_groups_leave_no_process_no_thread_and_no_descriptor");
    let Some(folder) = second_process::part() else {
        let folder = tempfile::tempdir().unwrap();
        let command = second_process::command(name, folder.path());
        return second_process::run(command, folder.path());
    };
    let before = possessions();
    assert_eq!(before.2, 0);
    for round in 0..100 {
        let (group, exits) = start(plan(&folder));
        next(&exits);
        if round % 2 == 0 {
            drop(group);
        } else {
            let report = group.stop(Signal::TERM, FOR_EVER, &Hurry::new());
            assert_eq!(report.outcomes.len(), 3);
        }
        // A thread that was joined may still be listed for a moment.
        eventually("all is as before", || possessions() == before);
    }
}
