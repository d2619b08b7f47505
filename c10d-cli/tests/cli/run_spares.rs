//! `c10d run` with a spare: members keep their places and ranks, and a spare starts when one leaves.

use std::fs;

use rustix::process::Signal;

use crate::process::{Running, until};
use crate::run::Job;

/// Writes the rank of each start to a file of the node, and fails once on the node b.
const SCRIPT: &str = "
    echo $GROUP_RANK >> $C10D_TEST_FOLDER/$NODE.ranks
    test $NODE = b || exec sleep 1000
    test $TORCHELASTIC_RESTART_COUNT = 1 && exec sleep 1000
    until test -e $C10D_TEST_FOLDER/fail; do sleep 0.01; done
    exit 1";

/// Nodes b and c, with the spare a. Addresses of this machine, so that any of them can serve the workers' store.
fn start(job: &Job, name: &str, address: &str) -> Running {
    let address = format!("--local-addr={address}");
    let endpoint = format!("--rdzv-endpoint={}", job.server().address);
    let options = [
        "--nnodes=2",
        "--max-restarts=1",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-conf=is_host=0",
        &endpoint,
        &address,
    ];
    let mut command = job.command(&options, SCRIPT);
    command.env("NODE", name);
    Running::start(command)
}

fn ranks(job: &Job, name: &str) -> Vec<String> {
    let text = fs::read_to_string(job.path(&format!("{name}.ranks"))).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn members_keep_their_ranks_and_a_spare_takes_the_rank_of_one_that_leaves() {
    let job = Job::with_server();
    let b = start(&job, "b", "127.0.0.2");
    let c = start(&job, "c", "127.0.0.3");
    until("the members run", || {
        ranks(&job, "b").len() == 1 && ranks(&job, "c").len() == 1
    });
    // The first in the order of nodes.
    let a = start(&job, "a", "127.0.0.1");
    until("the spare is listed", || {
        job.state().is_some_and(|it| it.redundancy_list.len() == 1)
    });
    fs::write(job.path("fail"), "").unwrap();
    until("the members run again", || {
        ranks(&job, "b").len() == 2 && ranks(&job, "c").len() == 2
    });
    assert_eq!(ranks(&job, "b"), ["0", "0"]);
    assert_eq!(ranks(&job, "c"), ["1", "1"]);
    assert!(ranks(&job, "a").is_empty());

    // This node also serves the workers' store, so that the spare has to start another store.
    b.signal(Signal::TERM);
    assert_eq!(b.end().code, Some(1));
    until("the spare runs", || !ranks(&job, "a").is_empty());
    assert_eq!(ranks(&job, "a"), ["0"]);
    until("the other member runs again", || {
        ranks(&job, "c").len() == 3
    });
    assert_eq!(ranks(&job, "c")[2], "1");
    for node in [a, c] {
        node.signal(Signal::TERM);
        assert_eq!(node.end().code, Some(1));
    }
    job.assert_nothing_runs();
}
