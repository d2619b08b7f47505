//! The launchers' observations of their workers, as evidence next to the keys of the store.

use std::collections::BTreeSet;

use crate::hang::{Evidence, RankEvidence, Seen, StoreWait, Verdict, judge};
use crate::job::{Job, WAIT_GRACE};
use crate::keys::{Family, GroupName, Maker};
use crate::report::{Finding, FindingKind, RankSet, ReportState, milliseconds};

/// The most ranks whose positions are added to a finding of the store.
const POSITIONS_MAX: usize = 3;

/// Judges the ranks by the samples of their launchers. Returns `None` if there are no recent samples.
pub(crate) fn observed(job: &Job<'_>) -> Option<Verdict> {
    judge(&evidence(job))
}

/// Merges the store's findings and the verdict into a list. `is_stuck` is true if the store's findings are a stall.
pub(crate) fn combine(
    job: &Job<'_>,
    verdict: &Verdict,
    findings: &mut Vec<Finding>,
    is_stuck: bool,
) -> ReportState {
    if is_stuck {
        if let Some(first) = findings.first_mut() {
            let text = match first.kind {
                FindingKind::Key if first.culprits.0.is_empty() => beside_key(first, verdict),
                _ => positions(&first.culprits, verdict),
            };
            first.text.push_str(&text);
            if first.waiting.0.is_empty()
                && let Some(observed) = &verdict.finding
            {
                let waiting = observed.waiting.0.difference(&first.culprits.0);
                first.waiting.0 = waiting.copied().collect();
            }
        }
        let at_work = match uses_nccl(job) {
            true => &verdict.moving,
            false => &verdict.active,
        };
        return match waits_for(findings, at_work) {
            true => ReportState::WaitingForBusyRank,
            false => ReportState::NoProgress,
        };
    }
    let Some(mut finding) = verdict.finding.clone() else {
        return verdict.state;
    };
    for RankSet(ranks) in [&mut finding.culprits, &mut finding.waiting] {
        ranks.retain(|&rank| !job.is_left_out(rank));
    }
    match verdict.state {
        ReportState::NoProgress => {
            for other in findings.iter_mut() {
                let culprits = &other.culprits.0;
                other.is_consequence |=
                    !culprits.is_empty() && culprits.is_subset(&finding.culprits.0);
            }
            findings.insert(0, finding);
        }
        _ => findings.push(finding),
    }
    verdict.state
}

/// The store shows which ranks wait for a missing key, but not which rank should write it. Returns the positions of the
/// ranks that wait neither for the key nor for other ranks, because one of them should write it. If there are none or many,
/// returns the positions of the waiting ranks. Returns nothing for waiting clients without a rank, which may not belong to the
/// job.
fn beside_key(finding: &Finding, verdict: &Verdict) -> String {
    if finding.waiting.0.is_empty() {
        return String::new();
    }
    let waits = |rank| finding.waiting.0.contains(rank) || verdict.waiting.contains(rank);
    let others = verdict.brief.iter().filter(|(rank, _)| !waits(rank));
    let others: Vec<String> = others
        .take(POSITIONS_MAX + 1)
        .map(|(rank, clause)| format!(" Rank {rank} does not wait for it: it {clause}."))
        .collect();
    match others.len() {
        1..=POSITIONS_MAX => others.concat(),
        _ => positions(&finding.waiting, verdict),
    }
}

/// The positions of ranks as sentences with a leading space, such as " It is at train.py:12 (main), blocked in read.".
/// Empty if no position is known.
fn positions(ranks: &RankSet, verdict: &Verdict) -> String {
    let known = ranks
        .0
        .iter()
        .filter_map(|rank| Some((rank, verdict.brief.get(rank)?)));
    let mut text = String::new();
    for (rank, clause) in known.take(POSITIONS_MAX) {
        match ranks.0.len() {
            1 => text.push_str(&format!(" It {clause}.")),
            _ => text.push_str(&format!(" Rank {rank} {clause}.")),
        }
    }
    text
}

/// Whether the ranks use NCCL, whose waiting threads use the CPU.
fn uses_nccl(job: &Job<'_>) -> bool {
    let mut others = job.index.others.iter();
    others.any(|(family, _)| matches!(family, Family::NcclId { .. } | Family::NcclPair { .. }))
        || job
            .launched
            .nodes
            .iter()
            .any(|node| node.announced.nccl.is_some())
}

/// Whether ranks wait in the store for a rank that is at work, which is not an alarm.
fn waits_for(findings: &[Finding], at_work: &BTreeSet<usize>) -> bool {
    use FindingKind as Kind;
    let mut causes = findings.iter().filter(|finding| !finding.is_consequence);
    !at_work.is_empty()
        && causes.all(|cause| match cause.kind {
            Kind::NeverConnected
            | Kind::NotPublished
            | Kind::Frozen
            | Kind::GroupIncomplete
            | Kind::NcclId
            | Kind::Barrier
            | Kind::Boundary
            | Kind::Key => {
                let culprits = &cause.culprits.0;
                culprits.is_empty() || !culprits.is_disjoint(at_work)
            }
            Kind::LostLater | Kind::GaveUp => true,
            _ => false,
        })
}

fn evidence<'j>(job: &'j Job<'_>) -> Evidence<'j> {
    let mut evidence = Evidence::default();
    let ranks = job.ranks_now().unwrap_or_default();
    for node in &job.launched.nodes {
        let is_in_force = |rank| {
            let worker = job.launched.worker(rank);
            worker.is_some_and(|worker| std::ptr::eq(worker.node, node))
                && (ranks.is_empty() || ranks.contains(&rank))
                && !job.is_left_out(rank)
        };
        evidence.add(&node.announced, milliseconds(job.ago(node.at)), is_in_force);
        if let Some(slot) = node.connection {
            evidence.add_address(job.index.connections[slot].peer.ip(), &node.announced.host);
        }
    }
    if !evidence.has_sample() {
        return evidence;
    }
    for rank in ranks.into_iter().filter(|&rank| !job.is_left_out(rank)) {
        let host = || Some(job.who.host(job.index, job.main_connection(rank)?));
        let other = || RankEvidence::new(Seen::NotLaunched, host());
        evidence.ranks.entry(rank).or_insert_with(other);
    }
    evidence.other_groups = other_groups(job);
    for (key, waiting) in &job.waits {
        if is_background(&job.family(key)) {
            continue;
        }
        for &slot in &waiting.slots {
            let rank = job
                .who
                .rank(slot)
                .and_then(|rank| evidence.ranks.get_mut(&rank));
            let wait = job.index.connections[slot].wait.as_ref();
            if let (Some(rank), Some(wait)) = (rank, wait) {
                let age = job.ago(wait.since);
                let age_ms = milliseconds(age);
                let known_ms = rank.store_wait.as_ref().map(|wait| wait.age_ms);
                if known_ms.is_none_or(|known_ms| known_ms < age_ms) {
                    rank.store_wait = Some(StoreWait {
                        meaning: job.meaning(key),
                        age_ms,
                        is_new: age < WAIT_GRACE,
                    });
                }
            }
        }
    }
    evidence
}

/// The number of process groups besides the default group. `None` if the store does not show the default group.
fn other_groups(job: &Job<'_>) -> Option<usize> {
    let gloo = job.index.groups.iter().map(|group| &group.name);
    let others = job.index.others.iter();
    let nccl = others.filter_map(|(family, _)| match family {
        Family::NcclId { group, .. } => Some(group),
        _ => None,
    });
    let is_of_ranks =
        |group: &&GroupName<'_>| group.maker == Maker::Process && job.who.is_of_job(group);
    let groups: Vec<_> = gloo.chain(nccl).filter(is_of_ranks).collect();
    let names = groups.iter().filter(|group| !group.is_default());
    // A group has keys for each of its devices.
    let names: BTreeSet<&[u8]> = names.map(|group| group.name).collect();
    groups
        .iter()
        .any(|group| group.is_default())
        .then_some(names.len())
}

/// Whether a rank waits for keys of this family in the background, while it works.
const fn is_background(family: &Family<'_>) -> bool {
    matches!(
        family,
        Family::ElasticExit { .. }
            | Family::Rendezvous { .. }
            | Family::NcclTimeout
            | Family::InProcessEvent
            | Family::DebugServer { .. }
    )
}

#[cfg(test)]
mod tests {
    use crate::Report;
    use crate::hang::fixtures::{self, Observed};
    use crate::report::{FindingKind, RankState, ReportState};
    use crate::sim::Script;

    /// Announces the processes as one node with these observations.
    fn observe(script: &mut Script, processes: &[crate::sim::Process], ranks: &[Observed]) {
        let (launcher, mut node) = script.launch(processes);
        let ranks: Vec<_> = ranks.iter().cloned().enumerate().collect();
        let seen = fixtures::node("vm", processes.len(), &ranks);
        for (worker, seen) in node.workers.iter_mut().zip(seen.workers) {
            worker.sample = seen.sample;
        }
        node.stacks = seen.stacks;
        node.explain_after_ms = seen.explain_after_ms;
        script.store.announce(launcher, &node);
    }

    fn all_connected(ranks: &[Observed]) -> (Script, Report) {
        let mut script = Script::new();
        let processes = script.run_all(ranks.len());
        script.pass(40.0);
        observe(&mut script, &processes, ranks);
        let report = script.report();
        (script, report)
    }

    #[test]
    fn a_hang_outside_the_store_is_explained_by_stacks() {
        let waits = Observed::waits("all_reduce", 41);
        let (mut script, report) =
            all_connected(&[waits.clone(), waits.clone(), Observed::blocked()]);
        assert!(report.is_stuck && report.state == ReportState::NoProgress);
        let cause = &report.findings[0];
        assert_eq!(
            (cause.kind, &report.headline),
            (FindingKind::RankBlocked, &cause.text)
        );
        assert!(
            report.headline.starts_with(
                "Ranks 0 and 1 wait in all_reduce (train.py:41). Rank 2 does not take part: it has been blocked in read for 40 s \
                 at loader.py:17 (load_batch)."
            ),
            "{}",
            report.headline
        );
        assert_eq!(report.ranks[0].doing, "waits in all_reduce (train.py:41)");
        assert_eq!(report.ranks[0].state, RankState::Idle);
        assert!(report.ranks[2].is_suspect && !report.ranks[0].is_suspect);
        assert_eq!(cause.waiting.0.len(), 2);
        // Old observations are not evidence.
        script.pass(20.0);
        let later = script.report();
        assert!(!later.is_stuck);
        assert_eq!(later.findings[0].kind, FindingKind::NotInTheStore);
    }

    #[test]
    fn use_of_the_cpu_is_information() {
        let busy = Observed::busy("train.py:30 step");
        let (_, report) = all_connected(&[busy.clone(), busy.clone()]);
        assert!(!report.is_stuck);
        // Threads that wait for NCCL also use the CPU.
        assert!(
            report.headline.starts_with(
                "All 2 ranks are connected, and their processes use the CPU, read or write; none waits on the store. If the \
                 job hangs it is not in the store: c10d stacks --all"
            ),
            "{}",
            report.headline
        );
        let (_, report) = all_connected(&[Observed::waits("barrier", 41), busy]);
        assert!(!report.is_stuck);
        assert_eq!(report.state, ReportState::WaitingForBusyRank);
        assert_eq!(report.findings[0].age_ms, Some(40_000));
        assert!(report.ranks.iter().all(|rank| !rank.is_suspect));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["state"], "waiting_for_busy_rank");
    }

    #[test]
    fn a_missing_rank_gains_its_position() {
        let missing = |rank: Observed| {
            let mut script = Script::new();
            let mut processes = script.processes(3);
            script.run_without(&mut processes, &[1]);
            script.pass(40.0);
            let waits = Observed::waits("init_process_group", 12);
            observe(&mut script, &processes, &[waits.clone(), rank, waits]);
            script.report()
        };
        let blocked = missing(Observed::blocked());
        assert!(blocked.is_stuck);
        assert_eq!(blocked.findings[0].kind, FindingKind::NeverConnected);
        assert!(
            blocked
                .headline
                .ends_with(" It is at loader.py:17 (load_batch), blocked in read."),
            "{}",
            blocked.headline
        );
        let busy = missing(Observed::busy("train.py:8 main"));
        assert!(!busy.is_stuck && busy.state == ReportState::WaitingForBusyRank);
        assert!(
            busy.headline
                .ends_with(" It is computing (100 % of a CPU) at train.py:8 (main)."),
            "{}",
            busy.headline
        );
    }

    /// The samples are from the time before the ranks waited.
    #[test]
    fn ranks_that_have_just_begun_to_wait_are_not_named() {
        for has_moved in [false, true] {
            let mut script = Script::new();
            let mut processes = script.processes(4);
            script.run_without(&mut processes, &[2]);
            script.pass(1.5);
            let begins = Observed::busy("train.py:12 main").with(|it| {
                if has_moved {
                    it.sample.quiet_ms = 1_000;
                    it.stacks_before = Some(vec!["train.py:3 <module>".to_owned()]);
                }
            });
            let waits = Observed::waits("init_process_group", 12).with(|it| {
                it.sample.quiet_ms = 2_000;
                it.sample.idle_ms = 2_000;
            });
            let late = Observed::quiet("clock_nanosleep", "train.py:8 main");
            let ranks = [begins.clone(), begins, late, waits];
            observe(&mut script, &processes, &ranks);
            let report = script.report();
            let culprits = report.findings.iter().flat_map(|it| &it.culprits.0);
            assert_eq!(culprits.count(), 0, "{}", report.headline);
            assert!(!report.is_stuck);
        }
    }

    /// Which rank other ranks wait for in the store, the store shows.
    #[test]
    fn a_rank_at_work_is_not_named_because_others_begin_to_wait_in_the_store() {
        let mut script = Script::new();
        let processes = script.run_all(3);
        let connection = processes[1].connection.unwrap();
        script.store.wait(connection, &["from 2".to_owned()]);
        script.pass(1.5);
        let waits = Observed::waits("new_group", 12);
        let late = Observed::quiet("clock_nanosleep", "train.py:8 main");
        let works = Observed::busy("train.py:30 step");
        observe(&mut script, &processes, &[works, waits, late]);
        let report = script.report();
        assert!(
            !report.is_stuck && report.state == ReportState::Running,
            "{}",
            report.headline
        );
        script.pass(1.0);
        assert_eq!(script.report().state, ReportState::WaitingForBusyRank);
    }

    /// The threads of NCCL's waits use the CPU.
    #[test]
    fn a_rank_that_spins_in_a_job_with_nccl_takes_back_no_finding_of_the_store() {
        let stuck = |key: Option<&str>, has_stacks: bool| {
            let mut script = Script::new();
            let processes = script.run_all(2);
            if let Some(key) = key {
                script
                    .store
                    .set(processes[1].connection.unwrap(), key, &[0; 128]);
            }
            let connection = processes[0].connection.unwrap();
            script.store.wait(connection, &["never".to_owned()]);
            script.pass(40.0);
            let waits = Observed::quiet("recvfrom", "train.py:20 main");
            let spins = Observed::busy("train.py:30 step").with(|it| {
                if !has_stacks {
                    it.stacks = None;
                    it.stacks_before = None;
                    it.sample.error = Some("ptrace_scope is 3".to_owned());
                }
            });
            observe(&mut script, &processes, &[waits, spins]);
            script.report().is_stuck
        };
        assert!(!stuck(None, true));
        assert!(stuck(Some("default_pg/0//cuda//0"), true));
        assert!(stuck(Some("default_pg/0//cuda//0"), false));
    }

    #[test]
    fn a_wait_of_another_thread_does_not_hide_a_blocked_main_thread() {
        let mut script = Script::new();
        let processes = script.run_all(2);
        let connection = processes[0].connection.unwrap();
        script.store.wait(connection, &["stop".to_owned()]);
        script.pass(40.0);
        let ranks = [Observed::blocked(), Observed::waits("barrier", 41)];
        observe(&mut script, &processes, &ranks);
        let report = script.report();
        assert!(
            report.headline.contains("loader.py:17"),
            "{}",
            report.headline
        );
        assert!(
            report.headline.contains("blocked in read"),
            "{}",
            report.headline
        );
    }

    /// Such as an operator's `c10d store get`.
    #[test]
    fn a_client_of_no_rank_that_waits_for_a_key_blames_no_rank() {
        let mut script = Script::new();
        let processes = script.run_all(2);
        let client = script
            .store
            .connect(std::net::SocketAddr::from(([127, 0, 0, 1], 9)), 9);
        script.store.wait(client, &["missing".to_owned()]);
        script.pass(40.0);
        let ranks = [Observed::blocked(), Observed::waits("barrier", 41)];
        observe(&mut script, &processes, &ranks);
        let text = format!("{:?}", script.report().findings);
        assert!(!text.contains("does not wait for it"), "{text}");
    }

    #[test]
    fn the_rank_that_does_not_wait_for_a_key_is_described() {
        let mut script = Script::new();
        let processes = script.run_all(2);
        let connection = processes[0].connection.unwrap();
        script.store.wait(connection, &["ready/1".to_owned()]);
        script.pass(40.0);
        let at_wait = Observed::quiet("recvfrom", "train.py:20 main");
        observe(&mut script, &processes, &[at_wait, Observed::blocked()]);
        let report = script.report();
        assert_eq!(report.findings[0].kind, FindingKind::Key);
        let end =
            " Rank 1 does not wait for it: it is at loader.py:17 (load_batch), blocked in read.";
        assert!(report.headline.ends_with(end), "{}", report.headline);
    }

    /// A rank that waits for a key in Python shows only the user's line.
    #[test]
    fn a_wait_in_the_store_is_no_blocked_rank() {
        let mut script = Script::new();
        let processes = script.run_all(2);
        let connection = processes[0].connection.unwrap();
        script.store.wait(connection, &["never".to_owned()]);
        script.pass(40.0);
        let at_wait = Observed::quiet("recvfrom", "train.py:20 main");
        observe(
            &mut script,
            &processes,
            &[at_wait, Observed::waits("barrier", 41)],
        );
        let report = script.report();
        assert!(report.is_stuck);
        assert_eq!(report.findings[0].kind, FindingKind::Key);
        let end = " It is at train.py:20 (main).";
        assert!(report.headline.ends_with(end), "{}", report.headline);
        assert!(!report.headline.contains("blocked"), "{}", report.headline);
    }
}
