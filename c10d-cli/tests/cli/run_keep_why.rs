//! `c10d why` for a job whose workers survive the death of another worker.

use c10d_inspect::Report;
use rustix::process::Signal;

use crate::process::{run, until};
use crate::run_keep::{MEMBER, Members, kill};

fn report(members: &Members) -> Report {
    let mut address = None;
    until("the address of the status page", || {
        let log = members.log();
        address = log
            .split_once("--connect ")
            .and_then(|(_, rest)| rest.split_whitespace().next())
            .map(str::to_owned);
        address.is_some()
    });
    let ended = run(["why", "--json", "--connect", &address.unwrap()]);
    serde_json::from_str(ended.stdout_text()).unwrap()
}

/// While the group works without a dead worker, that worker is not a cause. A later death that leaves too few members is.
#[test]
fn a_dead_worker_is_a_cause_only_while_its_group_needs_it() {
    let options = [
        "--nproc-per-node=3",
        "--min-workers=2",
        "--max-restarts=3",
        "--replace-after=600s",
    ];
    let mut members = Members::start(&options, &[], MEMBER);
    let first = members.generation(3, &[]);
    let in_group = |report: &Report| {
        let ranks = report.memberships[0].ranks.0.iter().copied();
        ranks.collect::<Vec<_>>()
    };
    until("all ranks are members", || {
        in_group(&report(&members)) == [0, 1, 2]
    });
    kill(first[&0]);
    members.generation(2, &[first[&0]]);
    let now = after_the_end_of(&members, 0);
    let mut findings = now.findings.iter();
    let is_a_cause = findings.any(|it| !it.culprits.0.is_empty());
    assert!(!now.is_stuck && !is_a_cause, "{now:#?}");
    let group = &now.memberships[0];
    assert_eq!(in_group(&now), [1, 2]);
    assert!(group.is_whole && !group.uuid.is_empty(), "{group:?}");
    let lost = now.ranks.iter().find(|it| it.rank == 0).unwrap();
    let is_told = lost.doing.ends_with("its group works without it");
    assert!(is_told && !lost.is_suspect, "{lost:?}");

    kill(first[&1]);
    let now = after_the_end_of(&members, 1);
    let culprits = now.findings.iter().flat_map(|it| it.culprits.0.clone());
    assert_eq!(culprits.collect::<Vec<_>>(), [1], "{now:#?}");
    let launcher = members.launcher.take().unwrap();
    launcher.signal(Signal::TERM);
    launcher.end();
    members.job.assert_nothing_runs();
}

/// The report that has the end of this rank's worker.
fn after_the_end_of(members: &Members, rank: usize) -> Report {
    let mut now = Report::default();
    until(&format!("the end of rank {rank} is announced"), || {
        now = report(members);
        let ended = |doing: &str| doing.starts_with("was ended by signal 9");
        let mut ranks = now.ranks.iter();
        ranks.any(|it| it.rank == rank && ended(&it.doing))
    });
    now
}
