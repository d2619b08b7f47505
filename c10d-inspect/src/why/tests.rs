//! Each kind of hang, with 4 ranks. Rank 2 is the cause.

use std::collections::BTreeSet;

use crate::announced::WorkerEnd;
use crate::explain;
use crate::report::{Finding, FindingKind, RankSet, RankState, Sureness};
use crate::report_text::TextStyle;
use crate::sim::{DEFAULT, Script};

fn set(ranks: &[usize]) -> RankSet {
    RankSet(ranks.iter().copied().collect::<BTreeSet<usize>>())
}

#[track_caller]
fn assert_cause(finding: &Finding, kind: FindingKind, culprits: &[usize], waiting: &[usize]) {
    assert_eq!(finding.kind, kind, "{}", finding.text);
    assert_eq!(finding.culprits, set(culprits), "{}", finding.text);
    assert_eq!(finding.waiting, set(waiting), "{}", finding.text);
    assert!(!finding.is_consequence, "{}", finding.text);
}

#[test]
fn a_rank_that_never_connected_is_named() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.run_without(&mut ranks, &[2]);
    script.pass(1.0);
    let early = script.report();
    assert!(
        !early.is_stuck && early.findings.is_empty(),
        "{:?}",
        early.findings
    );
    assert_eq!(early.headline, "3 of 4 ranks are connected.");
    script.pass(30.0);
    let report = script.report();
    assert_cause(
        &report.findings[0],
        FindingKind::NeverConnected,
        &[2],
        &[0, 1, 3],
    );
    assert_eq!(
        report.headline,
        "Waiting for rank 2 (1 of 4) for 31 s: it has never connected to this store. \
         Ranks 0, 1 and 3 wait in init_process_group."
    );
    assert!(report.is_stuck);
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.ranks[2].state, RankState::NotSeen);
    assert!(report.ranks[2].is_suspect);
    assert_eq!(report.ranks[3].state, RankState::Waiting);
    assert_eq!(report.ranks[3].pid, Some(4103));
    assert_eq!(report.ranks[3].sureness, Sureness::Claimed);
    assert_eq!(
        report.waits[0].meaning,
        "the address of rank 2 in the default group"
    );
    assert_eq!(report.waits[0].ranks, set(&[0, 1, 3]));
    assert_eq!(report.groups[0].missing, set(&[2]));
}

#[test]
fn a_launcher_says_what_an_absent_rank_does() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.run_without(&mut ranks, &[2]);
    script.pass(31.0);
    let (launcher, mut node) = script.launch(&ranks);
    let text = script.cause().text;
    assert!(
        text.ends_with(
            "Rank 2 is pid 4102 on vm, alive, started 10 s ago: still importing, or it has not \
             reached init_process_group."
        ),
        "{text}"
    );
    assert_eq!(script.report().ranks[2].state, RankState::Starting);
    let process = &mut node.workers[2].processes[0];
    process.connecting_to = vec!["10.255.255.1:29500".parse().unwrap()];
    script.store.announce(launcher, &node);
    let text = script.cause().text;
    assert!(
        text.contains("tries to connect to 10.255.255.1:29500"),
        "{text}"
    );
    node.workers[2].processes[0].state = Some('T');
    script.store.announce(launcher, &node);
    assert!(script.cause().text.contains("kill -CONT 4102"));
    node.workers[2].end = Some(WorkerEnd {
        exit_code: Some(1),
        ago_ms: 4000,
        ..WorkerEnd::default()
    });
    script.store.announce(launcher, &node);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::WorkerEnded, &[2], &[0, 1, 3]);
    assert_eq!(
        cause.text,
        "Rank 2 (pid 4102 on vm) exited with code 1 4 s ago, before it published its address; \
         ranks 0, 1 and 3 will wait until they time out."
    );
}

/// Ranks of a complete group: rank 1 returns, and rank 2 waits for a value that rank 1 should have written.
#[test]
fn a_rank_that_left_with_0_may_be_why_another_waits_in_the_store() {
    let mut script = Script::new();
    let ranks = script.run_all(4);
    let (launcher, mut node) = script.launch(&ranks);
    script.pass(10.0);
    script.close(&ranks[1]);
    let connection = ranks[2].connection.unwrap();
    assert!(
        !script
            .store
            .wait(connection, &["/default_pg/0//result/1".to_owned()])
    );
    script.pass(30.0);
    node.workers[1].end = Some(WorkerEnd {
        exit_code: Some(0),
        ago_ms: 30_000,
        ..WorkerEnd::default()
    });
    node.workers[1].processes.clear();
    script.store.announce(launcher, &node);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::WorkerEnded, &[1], &[2]);
    assert_eq!(
        cause.text,
        "Rank 1 exited with code 0 30 s ago, and rank 2 waits for the key /default_pg/0//result/1, which it may have been \
         expected to write."
    );
    let report = script.report();
    assert_eq!(report.headline, cause.text);
    assert!(
        report.findings[1..].iter().all(|it| it.is_consequence),
        "{:#?}",
        report.findings
    );
    // When ranks have failed, the launchers find the root cause.
    node.workers[0].end = Some(WorkerEnd {
        exit_code: Some(1),
        ..WorkerEnd::default()
    });
    let text = "Rank 1 exited with code 0, 0.1 s before rank 0 lost its connection to it.";
    node.cause = Some(crate::AnnouncedCause {
        text: text.to_owned(),
        ranks: set(&[1]),
        victims: set(&[0]),
    });
    script.store.announce(launcher, &node);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::WorkerEnded, &[1], &[0]);
    assert_eq!(cause.text, text);
    // A rank that does not exist is not to blame.
    node.cause = node.cause.map(|cause| crate::AnnouncedCause {
        text: "\u{1b}[2J".to_owned(),
        ranks: set(&[9]),
        ..cause
    });
    script.store.announce(launcher, &node);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::WorkerEnded, &[0], &[2, 3]);
}

#[test]
fn a_launcher_says_that_a_rank_is_stopped_though_none_waits_for_it() {
    let mut script = Script::new();
    let ranks = script.run_all(4);
    let (launcher, mut node) = script.launch(&ranks);
    node.workers[2].processes[0].state = Some('T');
    node.looked_ago_ms = 500;
    script.store.announce(launcher, &node);
    // A state of this moment has no age, because the text stays on a page.
    let now = "Rank 2 is stopped: pid 4102 on vm is in state T. Continue it with kill -CONT 4102.";
    assert_eq!(script.cause().text, now);
    script.pass(1.0);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::WorkerStopped, &[2], &[]);
    assert_eq!(
        cause.text,
        "Rank 2 is stopped: pid 4102 on vm is in state T, seen 1 s ago. Continue it with kill -CONT 4102."
    );
    assert!(script.report().is_stuck);
    // A group that the other ranks wait for is a consequence.
    let group = "/default_pg/0//1//cpu//0/";
    let members = [0, 1, 3].map(|rank| script.cloned(&ranks[rank]));
    for member in &members {
        script.publish(member, group, member.rank, 4);
    }
    for member in &members {
        script.read(member, group, 0, 4);
    }
    script.pass(5.0);
    let report = script.report();
    assert_cause(
        &report.findings[0],
        FindingKind::WorkerStopped,
        &[2],
        &[0, 1, 3],
    );
    assert!(report.findings[1..].iter().all(|it| it.is_consequence));
    assert_eq!(report.findings.len(), 2, "{:#?}", report.findings);
}

#[test]
fn a_lost_launcher_is_the_cause_of_its_absent_ranks() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.run_without(&mut ranks, &[2]);
    let (launcher, _) = script.launch(&ranks);
    script.pass(1.0);
    script.store.close(launcher);
    script.pass(3.0);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::NodeLost, &[2], &[0, 1, 3]);
    assert!(
        cause
            .text
            .starts_with("The launcher on vm closed its connection 3 s ago"),
        "{}",
        cause.text
    );
}

#[test]
fn several_absent_ranks_are_all_named() {
    let mut script = Script::new();
    let mut ranks = script.processes(5);
    script.run_without(&mut ranks, &[1, 3]);
    script.pass(31.0);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::NeverConnected, &[1, 3], &[0, 2, 4]);
    assert!(
        cause
            .text
            .starts_with("Waiting for ranks 1 and 3 (2 of 5) for 31 s"),
        "{}",
        cause.text
    );
}

#[test]
fn a_rank_stopped_before_it_published_is_only_probably_that_process() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.join(&mut ranks[2]);
    script.run_without(&mut ranks, &[2]);
    script.pass(25.0);
    let report = script.report();
    let cause = &report.findings[0];
    assert_cause(cause, FindingKind::NotPublished, &[2], &[0, 1, 3]);
    assert!(
        cause
            .text
            .contains("It is probably pid 4102 on vm, which connected 25 s ago and then stopped."),
        "{}",
        cause.text
    );
    assert_eq!(report.ranks[2].pid, None);
    assert_eq!(
        report.unknown_processes[0].name,
        "unknown process 4102 on vm"
    );

    // The launcher has announced the process.
    script.launch(&ranks);
    let report = script.report();
    assert_eq!(
        report.headline,
        "Rank 2 (pid 4102 on vm) connected 25 s ago and then stopped: it has not published an \
         address. Ranks 0, 1 and 3 wait in init_process_group."
    );
    assert_eq!(report.ranks[2].pid, Some(4102));
    assert_eq!(report.ranks[2].sureness, Sureness::Launched);
    assert_eq!(report.ranks[2].state, RankState::Connecting);
    assert!(report.unknown_processes.is_empty());
}

#[test]
fn a_rank_stopped_after_it_published_is_frozen() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    for process in &mut ranks {
        script.start(process);
    }
    for rank in [0, 1, 3] {
        script.read(&ranks[rank], DEFAULT, 0, 4);
    }
    script.pass(1.0);
    assert!(!script.report().is_stuck);
    script.pass(44.0);
    let report = script.report();
    assert_cause(&report.findings[0], FindingKind::Frozen, &[2], &[0, 1, 3]);
    assert_eq!(
        report.headline,
        "Rank 2 (pid 4102 on vm) froze inside init_process_group 45 s ago: it published its address \
         but has read none of the other addresses; ranks 0, 1 and 3 have read all."
    );
    assert_eq!(report.ranks[2].state, RankState::Connecting);
    assert_eq!(report.ranks[1].state, RankState::Idle);
    assert_eq!(report.findings.len(), 1);

    // The other ranks time out: one in its first collective, two in the mesh.
    script.close(&ranks[3]);
    script.pass(15.0);
    for rank in [0, 1] {
        script.close(&ranks[rank]);
    }
    let report = script.report();
    assert_cause(&report.findings[0], FindingKind::Frozen, &[2], &[]);
    assert!(report.findings[1..].iter().all(|it| it.is_consequence));
}

#[test]
fn ranks_that_would_not_survive_another_server_are_a_note() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.run_without(&mut ranks, &[2]);
    let mut snapshot = script.snapshot();
    for record in &mut snapshot.connections {
        record.resumes = record.nonce != Some(4100);
    }
    let explained = |snapshot: &c10d_store::Snapshot| explain(snapshot, None);
    let is_note = |kind| kind == FindingKind::ConnectedDirectly;
    let lost = explained(&snapshot);
    assert!(!lost.findings.iter().any(|it| is_note(it.kind)));
    snapshot.is_kept = true;
    let kept = explained(&snapshot);
    assert_eq!(kept.headline, lost.headline);
    assert_eq!(kept.is_stuck, lost.is_stuck);
    let last = kept.findings.last().unwrap();
    assert!(is_note(last.kind), "{last:?}");
    assert_eq!(
        last.text,
        "Rank 0 is connected to this store directly: it would not survive a restart or a takeover of its server. \
         Ranks behind relays would (c10d run --relay)."
    );
    assert!(last.culprits.0.is_empty());
    let text = kept.to_text(TextStyle::PLAIN);
    assert!(
        text.contains("  note         Rank 0 is connected"),
        "{text}"
    );
}

#[test]
fn ranks_whose_relay_has_lost_its_connection_are_away() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.run_without(&mut ranks, &[2]);
    script.pass(3.0);
    script.store.set_away(ranks[1].connection.unwrap());
    script.store.set_away(ranks[3].connection.unwrap());
    script.pass(1.0);
    let early = script.report();
    assert!(
        early.findings.iter().all(|it| it.kind != FindingKind::Away),
        "{:?}",
        early.findings
    );
    script.pass(20.0);
    let report = script.report();
    assert_cause(&report.findings[0], FindingKind::Away, &[1, 3], &[0]);
    assert_eq!(report.findings[1].kind, FindingKind::NeverConnected);
    assert_eq!(
        report.headline,
        "Ranks 1 and 3 of vm are away: their relay has had no connection to this store for 21 s. Either the relay was \
         killed, or its host or the network is down."
    );
    let doing = &report.ranks[3].doing;
    assert!(
        doing.starts_with("away for 21 s with its relay; waits for"),
        "{doing}"
    );
    assert!(report.is_stuck);
}

#[test]
fn a_rank_stopped_while_it_waited_is_frozen_once_it_has_its_answer() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.run_without(&mut ranks, &[3]);
    script.pass(5.0);
    script.start(&mut ranks[3]);
    for process in &ranks {
        if process.rank != 1 {
            script.read(process, DEFAULT, 3, 4);
        }
    }
    script.pass(5.0);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::Frozen, &[1], &[0, 2, 3]);
    assert!(
        cause.text.contains("stopped after reading 3 of 4"),
        "{}",
        cause.text
    );
}

#[test]
fn a_rank_killed_before_it_published_is_reported_at_once() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.join(&mut ranks[2]);
    script.run_without(&mut ranks, &[2]);
    script.pass(3.0);
    script.close(&ranks[2]);
    script.pass(12.0);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::LostInInit, &[2], &[0, 1, 3]);
    assert!(
        cause
            .text
            .contains("It was probably pid 4102 on vm, which closed its connection 12 s ago"),
        "{}",
        cause.text
    );
}

/// torchrun stops the workers beside an exited worker.
#[test]
fn a_rank_that_is_ended_with_a_lost_neighbour_is_not_blamed() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.join(&mut ranks[2]);
    script.run_without(&mut ranks, &[2]);
    script.pass(1.0);
    script.close(&ranks[2]);
    script.pass(0.1);
    script.close(&ranks[3]);
    script.pass(0.5);
    assert_eq!(script.report().findings, []);
    script.pass(2.0);
    let report = script.report();
    assert_cause(
        &report.findings[0],
        FindingKind::LostInInit,
        &[2],
        &[0, 1, 3],
    );
    assert_eq!(report.findings.len(), 1, "{:#?}", report.findings);
}

#[test]
fn a_rank_killed_after_it_published_left_first() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    for process in &mut ranks {
        script.start(process);
    }
    script.pass(0.2);
    script.close(&ranks[2]);
    for rank in [0, 1, 3] {
        script.read(&ranks[rank], DEFAULT, 0, 4);
    }
    script.pass(0.5);
    let report = script.report();
    assert_cause(
        &report.findings[0],
        FindingKind::LostInInit,
        &[2],
        &[0, 1, 3],
    );
    assert!(report.is_stuck);
    script.pass(0.6);
    for rank in [0, 1, 3] {
        script.close(&ranks[rank]);
    }
    let report = script.report();
    assert_cause(&report.findings[0], FindingKind::LostInInit, &[2], &[]);
    assert_eq!(
        report.headline,
        "Rank 2 (pid 4102 on vm) left first, 1 s ago, before it had read any address; rank 0 followed \
         1 s later."
    );
    assert!(!report.is_stuck);
}

#[test]
fn a_rank_killed_in_training_left_first() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.run_without(&mut ranks, &[]);
    for process in &ranks {
        script.read(process, DEFAULT, 0, 4);
    }
    script.pass(60.0);
    let idle = script.report();
    let start = "All 4 ranks are connected and idle; none waits on the store. ";
    assert!(idle.headline.starts_with(start), "{}", idle.headline);
    assert_eq!(idle.findings[0].kind, FindingKind::NotInTheStore);
    assert!(!idle.is_stuck);
    script.close(&ranks[2]);
    script.pass(6.0);
    let report = script.report();
    assert_cause(
        &report.findings[0],
        FindingKind::LostLater,
        &[2],
        &[0, 1, 3],
    );
    assert!(report.is_stuck);
    for rank in [0, 1, 3] {
        script.close(&ranks[rank]);
    }
    let report = script.report();
    assert!(!report.is_stuck);
    assert_eq!(
        report.headline,
        "First to leave: rank 2 (pid 4102 on vm), 6 s ago, 6 s before the next, rank 0."
    );
}

#[test]
fn a_normal_end_is_no_finding() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.run_without(&mut ranks, &[]);
    for process in &ranks {
        script.read(process, DEFAULT, 0, 4);
    }
    script.pass(60.0);
    for process in &ranks {
        script.close(process);
        script.pass(0.2);
    }
    let report = script.report();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.headline, "All 4 ranks have left.");
    assert!(
        report
            .ranks
            .iter()
            .all(|rank| rank.state == RankState::Ended)
    );
}

#[test]
fn a_world_size_that_differs_is_reported_at_once() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    ranks[2].size = 5;
    script.run_without(&mut ranks, &[]);
    for rank in [0, 1, 3] {
        script.read(&ranks[rank], DEFAULT, 0, 4);
    }
    assert!(!script.read(&ranks[2], DEFAULT, 0, 5));
    script.pass(31.0);
    let report = script.report();
    assert_cause(
        &report.findings[0],
        FindingKind::WorldSizeDiffers,
        &[2],
        &[0, 1, 3],
    );
    assert_eq!(
        report.headline,
        "Rank 2 (pid 4102 on vm) was started with WORLD_SIZE=5, ranks 0, 1 and 3 with 4. All ranks of a \
         job need the same WORLD_SIZE."
    );
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.world_size, Some(4));
}

#[test]
fn a_world_size_that_is_too_small_is_reported_although_nobody_waits() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    ranks[2].size = 3;
    for process in &mut ranks {
        script.start(process);
    }
    for process in &ranks {
        assert!(script.read(process, DEFAULT, 0, process.size));
    }
    let report = script.report();
    assert_cause(
        &report.findings[0],
        FindingKind::WorldSizeDiffers,
        &[2],
        &[0, 1, 3],
    );
    assert!(report.is_stuck);
}

#[test]
fn one_world_size_that_is_too_large_misses_a_rank() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    for process in &mut ranks {
        process.size = 5;
    }
    script.run_without(&mut ranks, &[]);
    script.pass(31.0);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::NeverConnected, &[4], &[0, 1, 2, 3]);
    assert!(
        cause.text.starts_with("Waiting for rank 4 (1 of 5)"),
        "{}",
        cause.text
    );
}

#[test]
fn two_processes_with_one_rank_are_both_named() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    ranks[3].rank = 2;
    for process in &mut ranks {
        script.start(process);
    }
    for process in &ranks {
        script.read(process, DEFAULT, 0, 4);
    }
    script.pass(31.0);
    let report = script.report();
    assert_cause(&report.findings[0], FindingKind::SameRank, &[2], &[0, 1]);
    assert_eq!(
        report.headline,
        "Two processes claim to be rank 2: pid 4102 on vm and pid 4103 on vm; no process is rank 3. Is RANK (or \
         --node-rank) set right?"
    );
    assert!(
        report.findings[1..]
            .iter()
            .all(|finding| finding.is_consequence),
        "{:?}",
        report.findings
    );
}

#[test]
fn a_second_job_on_the_store_is_reported() {
    let mut script = Script::new();
    let mut first = script.processes(4);
    script.run_without(&mut first, &[]);
    for process in &first {
        script.read(process, DEFAULT, 0, 4);
    }
    script.pass(3.0);
    let mut second = script.processes(4);
    for process in &mut second {
        process.pid += 100;
    }
    script.run_without(&mut second, &[0, 1, 3]);
    let report = script.report();
    assert_cause(&report.findings[0], FindingKind::TwoJobs, &[2], &[0, 1, 3]);
    assert_eq!(
        report.headline,
        "A second job uses this store: rank 2 was pid 4102 on vm and is now pid 4202 on vm, both \
         connected. Addresses of two jobs are mixed: give each job its own store."
    );
    assert!(
        report.findings[1..]
            .iter()
            .all(|finding| finding.is_consequence),
        "{:?}",
        report.findings
    );
}

#[test]
fn a_restart_on_a_living_store_reads_old_addresses() {
    let mut script = Script::new();
    let mut first = script.processes(4);
    script.run_without(&mut first, &[]);
    for process in &first {
        script.read(process, DEFAULT, 0, 4);
    }
    script.pass(3.0);
    for process in &first {
        script.close(process);
    }
    script.pass(15.0);
    let mut second = script.processes(4);
    for process in &mut second {
        process.pid += 100;
        script.start(process);
        script.read(process, DEFAULT, 0, 4);
        let report = script.report();
        let cause = &report.findings[0];
        if process.rank == 2 {
            assert_cause(cause, FindingKind::StaleAddresses, &[3], &[0, 1, 2]);
            assert!(
                cause.text.starts_with(
                    "Rank 0 read rank 3's address of 18 s ago; the connection that wrote it (pid 4103 on vm) has \
                     closed, rank 3 has not published a new one."
                ),
                "{}",
                cause.text
            );
        }
    }
    let report = script.report();
    assert_cause(
        &report.findings[0],
        FindingKind::StaleAddresses,
        &[0, 1, 2],
        &[3],
    );
    assert!(
        report
            .headline
            .contains("rank 1 has published a new one since. Use a fresh store"),
        "{}",
        report.headline
    );
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
}

#[test]
fn a_second_init_in_the_same_processes_reads_old_addresses() {
    let mut script = Script::new();
    let mut first = script.processes(4);
    script.run_without(&mut first, &[]);
    for process in &first {
        script.read(process, DEFAULT, 0, 4);
    }
    script.pass(18.0);
    // The old connections stay open: an object of Python still holds the store.
    let mut second = script.processes(4);
    for process in second.iter_mut().filter(|process| process.rank != 3) {
        script.start(process);
        script.read(process, DEFAULT, 0, 4);
    }
    let cause = script.cause();
    assert_cause(&cause, FindingKind::StaleAddresses, &[3], &[0, 1, 2]);
    assert!(
        cause
            .text
            .contains("wrote it for an earlier run, rank 1 has not published a new one")
            || cause.text.contains("rank 3 has not published a new one"),
        "{}",
        cause.text
    );
}

#[test]
fn a_clean_restart_reads_no_old_addresses() {
    let mut script = Script::new();
    let mut first = script.processes(4);
    script.run_without(&mut first, &[]);
    for process in &first {
        script.read(process, DEFAULT, 0, 4);
        script.close(process);
    }
    script.pass(5.0);
    let mut second = script.processes(4);
    for process in &mut second {
        process.pid += 100;
        script.start(process);
    }
    for process in &second {
        script.read(process, DEFAULT, 0, 4);
    }
    script.pass(5.0);
    let report = script.report();
    assert_eq!(
        report.findings[0].kind,
        FindingKind::NotInTheStore,
        "{:?}",
        report.findings
    );
    assert!(!report.is_stuck);
    assert_eq!(report.ranks[2].pid, Some(4202));
}

#[test]
fn ranks_that_gave_up_are_consequences() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    script.run_without(&mut ranks, &[2]);
    script.pass(15.0);
    for rank in [0, 1, 3] {
        script.give_up(&ranks[rank]);
        script.close(&ranks[rank]);
    }
    let report = script.report();
    assert_cause(
        &report.findings[0],
        FindingKind::NeverConnected,
        &[2],
        &[0, 1, 3],
    );
    assert!(
        report
            .headline
            .starts_with("Ranks 0, 1 and 3 gave up waiting for rank 2 (1 of 4)"),
        "{}",
        report.headline
    );
    assert!(!report.is_stuck);
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    script.pass(3.0);
    script.start(&mut ranks[2]);
    script.read(&ranks[2], DEFAULT, 0, 4);
    let report = script.report();
    assert!(
        report.headline.contains("which arrived 3 s later"),
        "{:?}",
        report.findings
    );
}

#[test]
fn a_rank_that_has_not_called_new_group_is_named_by_its_neighbours() {
    let mut script = Script::new();
    let ranks = script.run_all(4);
    script.pass(10.0);
    let stem = "/default_pg/0//1//cpu//0/";
    // Group 1 has ranks 1, 2 and 3; rank 2 does not call new_group.
    for (member, rank) in [(0, 1), (2, 3)] {
        script.publish(&ranks[rank], stem, member, 3);
        script.read(&ranks[rank], stem, 0, 3);
    }
    script.pass(31.0);
    let report = script.report();
    assert_cause(
        &report.findings[0],
        FindingKind::GroupIncomplete,
        &[2],
        &[1, 3],
    );
    assert_eq!(
        report.headline,
        "Group 1 (3 members): group rank 1 has not called new_group for 31 s. It is rank 2 (pid 4102 on vm, \
         connected, idle for 41 s). Ranks 1 and 3 wait for it. The timeout of init_process_group does not \
         apply."
    );
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
}

#[test]
fn a_member_that_can_be_one_of_two_ranks_is_not_named() {
    let mut script = Script::new();
    let ranks = script.run_all(4);
    let stem = "/default_pg/0//1//cpu//0/";
    for rank in [0, 1] {
        script.publish(&ranks[rank], stem, rank, 3);
    }
    for rank in [0, 1] {
        script.read(&ranks[rank], stem, 0, 3);
    }
    script.pass(31.0);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::GroupIncomplete, &[], &[0, 1]);
    assert!(
        cause.text.contains("It is probably rank 2 (pid 4102 on vm"),
        "{}",
        cause.text
    );
}

#[test]
fn groups_under_different_names_are_one_finding() {
    let mut script = Script::new();
    let ranks = script.run_all(4);
    script.pass(10.0);
    for (rank, first) in ["be10", "ad56", "bc3f", "6bed"].into_iter().enumerate() {
        let stem = format!("/default_pg/0//{}//0/", format!("{first}000000").repeat(4));
        let clone = script.cloned(&ranks[rank]);
        script.publish(&clone, &stem, rank % 2, 2);
        script.read(&clone, &stem, 0, 2);
    }
    script.pass(31.0);
    let report = script.report();
    assert_cause(
        &report.findings[0],
        FindingKind::GroupNamesDiffer,
        &[0, 1, 2, 3],
        &[0, 1, 2, 3],
    );
    assert!(
        report.headline.starts_with(
            "Ranks 0-3 are making a group, but each under another name (6bed…, ad56…, be10…, bc3f…)"
        ) || report.headline.contains("each under another name"),
        "{}",
        report.headline
    );
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.ranks[2].sureness, Sureness::Claimed);
    assert_eq!(report.ranks[2].connections.len(), 2);
    assert!(report.unknown_processes.is_empty());
}

#[test]
fn members_of_a_hashed_group_that_are_absent_are_not_a_difference_of_names() {
    let mut script = Script::new();
    let ranks = script.run_all(4);
    for (rank, first) in [(0, "be10"), (3, "ad56")] {
        let stem = format!("/default_pg/0//{}//0/", format!("{first}000000").repeat(4));
        let clone = script.cloned(&ranks[rank]);
        script.publish(&clone, &stem, rank % 2, 2);
        script.read(&clone, &stem, 0, 2);
    }
    script.pass(31.0);
    let report = script.report();
    assert!(
        report
            .findings
            .iter()
            .all(|finding| finding.kind == FindingKind::GroupIncomplete),
        "{:?}",
        report.findings
    );
}

#[test]
fn rank_0_publishes_the_nccl_id() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    for process in &mut ranks[1..] {
        script.join(process);
        let key = ["/default_pg/0//cuda//0/nccl_storekey_0".to_owned()];
        script.store.wait(process.connection.unwrap(), &key);
    }
    script.pass(31.0);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::NcclId, &[0], &[]);
    assert_eq!(
        cause.text,
        "3 processes have waited for the NCCL id of the default group for 31 s, which rank 0 publishes. Rank 0: \
         never connected."
    );
    script.launch(&ranks);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::NcclId, &[0], &[1, 2, 3]);
    assert!(
        cause
            .text
            .ends_with("Rank 0: pid 4100 on vm, not connected."),
        "{}",
        cause.text
    );
}

#[test]
fn only_a_launcher_knows_which_rank_has_not_read_the_nccl_id() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    let key = ["/default_pg/0//cuda//0/nccl_storekey_0".to_owned()];
    for process in &mut ranks {
        script.join(process);
    }
    script
        .store
        .set(ranks[0].connection.unwrap(), &key[0], &[7; 128]);
    for rank in [0, 1, 3] {
        script.store.get(ranks[rank].connection.unwrap(), &key);
    }
    script.pass(31.0);
    let report = script.report();
    assert!(!report.is_stuck);
    assert!(
        report
            .headline
            .starts_with("3 processes have read the NCCL id of the default group"),
        "{}",
        report.headline
    );
    script.launch(&ranks);
    let report = script.report();
    assert_cause(&report.findings[0], FindingKind::NcclId, &[2], &[0, 1, 3]);
    assert!(
        report
            .headline
            .starts_with("3 of 4 launched ranks have read the NCCL id"),
        "{}",
        report.headline
    );
}

#[test]
fn barriers_count_arrivals() {
    let mut script = Script::new();
    let ranks = script.run_all(4);
    let counter = "/default_pg/0//store_based_barrier_key:1";
    for rank in [0, 1, 3] {
        let connection = ranks[rank].connection.unwrap();
        script.store.add(connection, counter, 1);
        script
            .store
            .wait(connection, &[format!("{counter}:last_worker")]);
    }
    script.pass(31.0);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::Barrier, &[2], &[0, 1, 3]);
    assert_eq!(
        cause.text,
        "Ranks 0, 1 and 3 have waited at the barrier of new_group (group 1) for 31 s: 3 of 4 have arrived. Rank 2 \
         has not (rank 2: pid 4102 on vm, connected, idle for 31 s)."
    );

    let mut script = Script::new();
    let ranks = script.run_all(4);
    for rank in [0, 1] {
        script
            .store
            .barrier(ranks[rank].connection.unwrap(), "/sync", 3);
    }
    script.pass(31.0);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::Barrier, &[], &[0, 1]);
    assert!(cause.text.contains("2 of 3 have arrived"), "{}", cause.text);
}

#[test]
fn an_unknown_key_is_shown_as_it_is() {
    let mut script = Script::new();
    let ranks = script.run_all(4);
    script.store.wait(
        ranks[1].connection.unwrap(),
        &["/my\x1b[31m<script>".to_owned()],
    );
    script.pass(31.0);
    let report = script.report();
    assert_cause(&report.findings[0], FindingKind::Key, &[], &[1]);
    assert_eq!(
        report.headline,
        "Rank 1 (pid 4101 on vm) has waited for the key /my\\u{1b}[31m<script> for 31 s. It has not been written. \
         PyTorch's own keys have other names: the script or a library waits for it."
    );
    assert!(report.is_stuck);
}

#[test]
fn rpc_names_the_worker_that_is_absent() {
    let mut script = Script::new();
    let mut ranks = script.processes(3);
    for process in ranks.iter_mut().filter(|process| process.rank != 1) {
        script.join(process);
        script.publish(process, "/rpc_prefix_0/0/", process.rank, 3);
        script.read(process, "/rpc_prefix_0/0/", 0, 3);
    }
    script.pass(31.0);
    let cause = script.cause();
    assert_cause(&cause, FindingKind::GroupIncomplete, &[1], &[0, 2]);
    assert!(
        cause
            .text
            .starts_with("The RPC group (3 members): group rank 1 has not called init_rpc"),
        "{}",
        cause.text
    );
}

#[test]
fn what_a_rank_waits_for_because_of_another_is_a_consequence() {
    let mut script = Script::new();
    let mut ranks = script.processes(4);
    for process in &mut ranks {
        script.start(process);
    }
    for rank in [0, 1, 3] {
        script.read(&ranks[rank], DEFAULT, 0, 4);
    }
    script.pass(5.0);
    script
        .store
        .wait(ranks[0].connection.unwrap(), &["/later".to_owned()]);
    script.pass(31.0);
    let report = script.report();
    assert_cause(&report.findings[0], FindingKind::Frozen, &[2], &[0, 1, 3]);
    assert_eq!(report.findings[1].kind, FindingKind::Key);
    assert!(report.findings[1].is_consequence);
}
