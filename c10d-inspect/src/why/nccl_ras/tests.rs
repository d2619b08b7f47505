//! Reports on NCCL's problems, with 4 ranks that one launcher announces.

use crate::announced::AnnouncedNode;
use crate::nccl::{AnnouncedNccl, Counted, NcclMember, NcclProblem, NcclProcess, ProblemKind};
use crate::report::{FindingKind, RankSet};
use crate::sim::Script;
use crate::{Finding, Report};

const HOST: [u8; 4] = [10, 0, 0, 7];

fn member(rank: usize, pid: u32) -> NcclMember {
    let host = HOST.into();
    NcclMember {
        rank: Some(rank),
        process: Some(NcclProcess { host, pid }),
        device: Some(0),
    }
}

fn problem(kind: ProblemKind, named: Vec<NcclMember>, for_s: u64) -> NcclProblem {
    NcclProblem {
        kind,
        members: Counted {
            count: named.len(),
            named,
        },
        communicator: "27a079b828ff1a75".to_owned(),
        size: Some(4),
        for_ms: for_s * 1000,
        ..NcclProblem::default()
    }
}

fn behind(named: Vec<NcclMember>, for_s: u64) -> NcclProblem {
    NcclProblem {
        detail: "AllReduce".to_owned(),
        launched: (6649, 6650),
        ..problem(ProblemKind::Behind, named, for_s)
    }
}

/// Returns the report on a job in which no rank waits on the store, with this change to the
/// launcher's announcement.
fn report(change: impl FnOnce(&mut AnnouncedNode)) -> Report {
    let mut script = Script::new();
    let ranks = script.run_all(4);
    script.pass(60.0);
    let (connection, mut node) = script.launch(&ranks);
    node.addresses = vec![HOST.into()];
    for worker in &mut node.workers {
        worker.started_ago_ms = 61_000;
    }
    change(&mut node);
    script.store.announce(connection, &node);
    script.report()
}

fn with(problems: Vec<NcclProblem>) -> Report {
    report(|node| {
        node.nccl = Some(AnnouncedNccl {
            asked_ago_ms: 2000,
            version: "2.30.7".to_owned(),
            problems,
        });
    })
}

#[track_caller]
fn assert_only(
    report: &Report,
    kind: FindingKind,
    text: &str,
    culprits: &[usize],
    waiting: &[usize],
) {
    let [finding] = &report.findings[..] else {
        panic!("{:#?}", report.findings);
    };
    assert_eq!((finding.kind, finding.text.as_str()), (kind, text));
    let set = |ranks: &[usize]| RankSet(ranks.iter().copied().collect());
    assert_eq!(
        (&finding.culprits, &finding.waiting),
        (&set(culprits), &set(waiting))
    );
    assert!(report.is_stuck);
    assert_eq!(report.headline, text);
}

#[test]
fn without_problems_the_report_is_that_without_nccl() {
    let without = report(|_| {});
    assert_eq!(without.findings[0].kind, FindingKind::NotInTheStore);
    assert_eq!(with(Vec::new()), without);
    assert_eq!(report(|node| node.addresses.clear()), without);
    // This is normal for a moment.
    assert_eq!(with(vec![behind(vec![member(2, 4102)], 9)]), without);
    assert_eq!(
        with(vec![problem(ProblemKind::Silent, vec![member(2, 4102)], 3)]),
        without
    );
}

#[test]
fn a_rank_that_has_launched_less_than_the_others_is_named() {
    assert_only(
        &with(vec![behind(vec![member(2, 4102)], 30)]),
        FindingKind::NcclBehind,
        "Rank 2 (pid 4102 on vm) is behind in communicator 27a079b828ff1a75 of 4 ranks: it has launched 6649 AllReduce \
         operations, others up to 6650. There was no change for 30 s; c10d stacks shows where the ranks are. (NCCL on vm \
         said so 2 s ago.)",
        &[2],
        &[0, 1, 3],
    );
}

#[test]
fn members_that_are_only_counted_are_counted() {
    let mut half = behind(Vec::new(), 30);
    half.members.count = 2;
    half.others = 3;
    assert_only(
        &with(vec![half]),
        FindingKind::NcclBehind,
        "2 processes are behind in communicator 27a079b828ff1a75 of 4 ranks and 3 others: they have launched 6649 \
         AllReduce operations, others up to 6650. There was no change for 30 s; c10d stacks shows where the ranks are. \
         (NCCL on vm said so 2 s ago.)",
        &[],
        &[],
    );
}

#[test]
fn silent_and_dead_processes_are_named_with_their_hosts() {
    assert_only(
        &with(vec![problem(ProblemKind::Silent, vec![member(1, 4101)], 5)]),
        FindingKind::NcclSilent,
        "NCCL has had no answer from rank 1 (pid 4101 on vm) in communicator 27a079b828ff1a75 of 4 ranks for 5 s: stopped, \
         dead, or cut off. (NCCL on vm said so 2 s ago.)",
        &[1],
        &[],
    );
    let mut two = problem(ProblemKind::Dead, vec![member(1, 4101), member(3, 99)], 0);
    two.members.count = 3;
    assert_only(
        &with(vec![two]),
        FindingKind::NcclDead,
        "NCCL has given up rank 1 (pid 4101 on vm), pid 99 on 10.0.0.7 and 1 more process in communicator \
         27a079b828ff1a75 of 4 ranks: silent for a minute. (NCCL on vm said so 2 s ago.)",
        &[1],
        &[],
    );
}

#[test]
fn an_error_and_a_communicator_that_works_for_some_only_are_told() {
    let failed = NcclProblem {
        detail: "Remote process error".to_owned(),
        ..problem(
            ProblemKind::Failed,
            vec![member(0, 4100), member(3, 4103)],
            0,
        )
    };
    assert_only(
        &with(vec![failed]),
        FindingKind::NcclFailed,
        "NCCL has failed in rank 0 (pid 4100 on vm) and rank 3 (pid 4103 on vm): Remote process error, in communicator \
         27a079b828ff1a75 of 4 ranks. (NCCL on vm said so 2 s ago.)",
        &[0, 3],
        &[],
    );
    let apart = NcclProblem {
        detail: "being made".to_owned(),
        ..problem(ProblemKind::Apart, vec![member(1, 4101)], 20)
    };
    assert_only(
        &with(vec![apart]),
        FindingKind::NcclApart,
        "Communicator 27a079b828ff1a75 of 4 ranks works for others, but is being made in rank 1 (pid 4101 on vm). There \
         was no change for 20 s. (NCCL on vm said so 2 s ago.)",
        &[1],
        &[],
    );
}

#[test]
fn what_follows_from_silence_or_is_known_already_is_a_consequence() {
    let silent = || problem(ProblemKind::Silent, vec![member(1, 4101)], 20);
    let all = with(vec![silent(), behind(vec![member(2, 4102)], 30)]);
    let is_consequence = |it: &Finding| (it.kind, it.is_consequence);
    assert_eq!(
        all.findings.iter().map(is_consequence).collect::<Vec<_>>(),
        [
            (FindingKind::NcclSilent, false),
            (FindingKind::NcclBehind, true)
        ]
    );
    let stopped = report(|node| {
        node.workers[1].processes[0].state = Some('T');
        node.nccl = Some(AnnouncedNccl {
            problems: vec![silent()],
            ..AnnouncedNccl::default()
        });
    });
    assert_eq!(
        stopped
            .findings
            .iter()
            .map(is_consequence)
            .collect::<Vec<_>>(),
        [
            (FindingKind::WorkerStopped, false),
            (FindingKind::NcclSilent, true)
        ]
    );
}

/// A stranger's announcement is shown as text without control characters.
#[test]
fn a_hostile_announcement_is_shown_safely() {
    let report = with(vec![NcclProblem {
        detail: "\x1b[2J".to_owned(),
        communicator: "\u{202e}\n".to_owned(),
        launched: (u64::MAX, 0),
        for_ms: u64::MAX,
        members: Counted {
            count: usize::MAX,
            named: vec![member(usize::MAX, u32::MAX)],
        },
        ..behind(Vec::new(), 30)
    }]);
    let text = &report.findings[0].text;
    assert!(
        !text.contains(|it: char| it.is_control() || it == '\u{202e}'),
        "{text}"
    );
}
