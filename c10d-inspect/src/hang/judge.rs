//! The rules for a job: whether it makes progress, and which ranks are the reason if it does not.

use std::collections::{BTreeMap, BTreeSet};

use super::activity::{Absence, Cause, Doing, Kind, age};
use super::evidence::{Evidence, RankEvidence, Seen};
use super::network::Pairs;
use super::rules::{Facts, Rule};
use super::words::{
    Alike, PARAGRAPH_BYTES_MAX, alike, brief_clause, clause, doings, fitting, more, paragraph,
    positions, sentences, unseen, waits,
};
use crate::announced::AnnouncedNode;
use crate::keys::GROUP_SIZE_MAX;
use crate::report::{
    Finding, FindingKind, RankReport, RankSet, RankState, Report, ReportState, Sureness,
};
use crate::text;

/// The conclusion from the observations of all ranks.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) state: ReportState,
    /// `None` if the job makes progress.
    pub(crate) finding: Option<Finding>,
    /// The activity of each observed rank, as a clause without its subject: "waits in all_reduce (train.py:41)".
    pub(crate) doing: BTreeMap<usize, String>,
    /// The activity of each rank, to follow a sentence about the same rank: "is at train.py:12 (main), blocked in
    /// read".
    pub(crate) brief: BTreeMap<usize, String>,
    /// The ranks that wait for other ranks or for the store.
    pub(crate) waiting: BTreeSet<usize>,
    /// The ranks that are at work and do not wait for other ranks.
    pub(crate) active: BTreeSet<usize>,
    /// The active ranks without those whose main thread has stayed at one place: in a job with NCCL, such a thread may
    /// wait for other ranks.
    pub(crate) moving: BTreeSet<usize>,
    /// Whether the observed ranks use the CPU, read or write.
    pub(crate) is_at_work: bool,
}

/// Judges a job by the observations of its ranks. `None` if there are none.
pub(crate) fn judge(evidence: &Evidence<'_>) -> Option<Verdict> {
    if !evidence.has_sample() {
        return None;
    }
    let doings = doings(evidence);
    let rule = Facts::new(&doings, evidence).rule();
    let case = Case {
        evidence,
        doings: &doings,
        rule,
        absence: doings.values().filter_map(Doing::absence).max(),
        pairs: Pairs::new(&doings, evidence),
    };
    let is_alarm = case.is_alarm();
    let still_ms_max = case.still_ms_max();
    Some(Verdict {
        state: match rule {
            Rule::WaitsForBusy => ReportState::WaitingForBusyRank,
            Rule::PartlyObserved => ReportState::PartlyObserved,
            _ if is_alarm => ReportState::NoProgress,
            _ => ReportState::Running,
        },
        finding: case.finding(),
        // The store already shows for which key a rank waits.
        doing: case.clauses(
            |doing| !matches!(doing.kind, Kind::InStore(_)),
            |doing| {
                let still_ms = doing.still_ms.unwrap_or(0).min(still_ms_max);
                clause(&doing.kind, doing.place.as_ref(), still_ms, false)
            },
        ),
        brief: case.clauses(|_| true, brief_clause),
        waiting: case.ranks(Doing::waits),
        active: case.ranks(Doing::may_be_active),
        moving: case.ranks(Doing::may_be_moving),
        is_at_work: matches!(rule, Rule::AtWork | Rule::Transfers),
    })
}

/// A job, and the rule that applies to it.
struct Case<'c, 'a> {
    evidence: &'c Evidence<'a>,
    doings: &'c BTreeMap<usize, Doing<'a>>,
    rule: Rule,
    /// The most certain absence of a rank.
    absence: Option<Absence>,
    /// The hosts between which data is not acknowledged.
    pairs: Pairs,
}

impl<'c, 'a> Case<'c, 'a> {
    fn ranks(&self, select: impl Fn(&Doing<'a>) -> bool) -> BTreeSet<usize> {
        let ranks = self.doings.iter();
        ranks
            .filter(|(_, doing)| select(doing))
            .map(|(&rank, _)| rank)
            .collect()
    }

    fn alike(&self, select: impl Fn(&Doing<'a>) -> bool) -> Vec<Alike<'c, 'a>> {
        let mut groups = alike(self.doings, select);
        let still_ms_max = self.still_ms_max();
        for group in &mut groups {
            group.still_ms = group.still_ms.min(still_ms_max);
        }
        groups
    }

    /// The longest time in a clause about ranks, in milliseconds. Ranks stop one after another and are read at different
    /// times, so their own times differ. An explanation has only the time for which no rank has made progress. It is in
    /// the clauses, or in a separate sentence if there is no alarm yet.
    fn still_ms_max(&self) -> u64 {
        match (self.rule, self.so_far_ms()) {
            (Rule::WaitsForBusy, _) => u64::MAX,
            (_, Some(_)) => 0,
            (_, None) => self.lasts_ms().unwrap_or(u64::MAX),
        }
    }

    /// Returns for how long no rank has made progress, in milliseconds, if this may become an alarm and is not an alarm
    /// yet.
    fn so_far_ms(&self) -> Option<u64> {
        self.lasts_ms()
            .filter(|_| self.may_be_alarm() && !self.is_alarm())
    }

    /// Returns the minimum time for which no rank has made progress, in milliseconds; the longest wait if ranks wait
    /// for busy ranks.
    fn lasts_ms(&self) -> Option<u64> {
        let doings = self.doings.values();
        match self.rule {
            Rule::WaitsForBusy => {
                let waiting = doings.filter(|doing| doing.waits());
                waiting.filter_map(|doing| doing.still_ms).max()
            }
            _ => {
                let running = doings.filter(|doing| !doing.has_ended());
                running.filter_map(|doing| doing.still_ms).min()
            }
        }
    }

    /// How long the first of the waiting ranks has waited, in milliseconds.
    fn waited_ms(&self) -> Option<u64> {
        let waiting = self.doings.values().filter(|doing| doing.waits());
        waiting.filter_map(|doing| doing.still_ms).max()
    }

    fn is_confirmed(&self) -> bool {
        self.doings.values().all(|doing| doing.is_confirmed)
    }

    /// Whether no rank runs Python. In this case, nothing shows whether the ranks wait for each other.
    fn are_programs(&self) -> bool {
        let mut running = self.doings.values().filter(|doing| !doing.has_ended());
        running.all(|doing| matches!(doing.kind, Kind::Program { .. }))
    }

    const fn may_be_alarm(&self) -> bool {
        use Rule as R;
        matches!(
            self.rule,
            R::AllInOneCall | R::Absent | R::Locked | R::CallsDiffer | R::AllBlocked
        )
    }

    fn is_alarm(&self) -> bool {
        use Rule as R;
        // A job that serves requests is not stuck while there are no requests.
        let mut running = self.doings.values().filter(|doing| !doing.has_ended());
        let is_idle = self.rule == R::AllBlocked && running.all(Doing::may_be_idle);
        let after = self.evidence.alarm_after_ms();
        self.may_be_alarm()
            && !is_idle
            && self.is_confirmed()
            && self.lasts_ms().is_some_and(|lasts| lasts >= after)
    }

    /// Whether the ranks with the most certain absence are the reason why other ranks wait: a rank that sleeps may wait
    /// for a rank whose wait is not visible.
    fn is_clear(&self) -> bool {
        let is_unclear = |doing: &Doing<'a>| doing.is_opaque() || doing.is_without_stack();
        match self.absence {
            Some(Absence::MayWait) => !self.doings.values().any(is_unclear),
            absence => absence.is_some(),
        }
    }

    /// Whether a rank is named as the reason why other ranks wait.
    fn is_named(&self, doing: &Doing<'a>) -> bool {
        match self.rule {
            Rule::Absent => doing.absence() == self.absence && self.is_clear(),
            Rule::PartlyObserved => doing.absence() == Some(Absence::Certain),
            Rule::Locked => doing.may_be_locked(),
            Rule::WaitsForBusy => doing.is_active(),
            _ => false,
        }
    }

    /// The clauses about the observed ranks for which `select` is true.
    fn clauses(
        &self,
        select: impl Fn(&Doing<'a>) -> bool,
        words: impl Fn(&Doing<'a>) -> String,
    ) -> BTreeMap<usize, String> {
        let seen = self
            .doings
            .iter()
            .filter(|(_, doing)| !doing.is_unseen() && !doing.has_ended() && select(doing));
        seen.map(|(&rank, doing)| (rank, words(doing))).collect()
    }

    fn finding(&self) -> Option<Finding> {
        let (kind, text) = match self.rule {
            Rule::NoEvidence | Rule::AtWork | Rule::Transfers => return None,
            Rule::AllBlocked if self.are_programs() => return None,
            Rule::WaitsForBusy => (FindingKind::WaitsForBusyRank, self.named_and_others()),
            Rule::PartlyObserved => (FindingKind::PartlyObserved, self.named_and_others()),
            Rule::Spins => (FindingKind::CallsDiffer, self.spins()),
            Rule::AllInOneCall => (FindingKind::TransportStalled, self.all_in_one_call()),
            Rule::Absent | Rule::Locked => (FindingKind::RankBlocked, self.named_and_others()),
            Rule::CallsDiffer => (FindingKind::CallsDiffer, self.calls_differ()),
            Rule::AllBlocked => (FindingKind::AllBlocked, self.all_blocked()),
        };
        let so_far = match self.so_far_ms() {
            _ if self.all_wake_up() => String::new(),
            Some(lasts) => format!(" No rank has made progress for {} so far.", age(lasts)),
            None => String::new(),
        };
        let mut finding = Finding::new(kind, format!("{text}{so_far} {}", self.advice()));
        if self.is_confirmed() || self.rule == Rule::WaitsForBusy {
            finding.culprits = RankSet(self.ranks(|doing| self.is_named(doing)));
        }
        finding.hosts = self.pairs.hosts();
        finding.waiting = RankSet(self.ranks(Doing::waits));
        finding.age_ms = match self.rule {
            Rule::WaitsForBusy => self.waited_ms(),
            _ => self.lasts_ms(),
        };
        Some(finding)
    }

    /// "Ranks 0, 1 and 3 wait in all_reduce (train.py:41)."
    fn waiting(&self, bytes_max: usize) -> Option<String> {
        let groups = self.alike(Doing::waits);
        (!groups.is_empty())
            .then(|| fitting(bytes_max, |most| format!("{}.", waits(&groups, most))))
    }

    /// Sentences about the named ranks, and about the threads of the first rank that waits for another thread.
    fn named(&self) -> Vec<String> {
        let groups = self.alike(|doing| self.is_named(doing));
        let has_waiters = self.doings.values().any(Doing::waits);
        let mut named = match self.rule {
            Rule::WaitsForBusy => sentences(&groups, Alike::sentence),
            Rule::PartlyObserved if !has_waiters => sentences(&groups, Alike::sentence),
            _ => sentences(&groups, Alike::absence),
        };
        let mut locked = groups.iter().filter(|group| group.doing.is_locked());
        named.extend(locked.find_map(Alike::threads));
        named
    }

    /// Sentences about the ranks that are neither named nor waiting.
    fn others(&self) -> Vec<String> {
        let is_other =
            |doing: &Doing<'a>| !doing.waits() && !self.is_named(doing) && !doing.is_unseen();
        sentences(&self.alike(is_other), Alike::sentence)
    }

    /// Sentences about the waiting ranks, the named ranks, and all other ranks.
    fn named_and_others(&self) -> String {
        let named = self.named();
        let bytes =
            |sentences: &[String]| -> usize { sentences.iter().map(|it| it.len() + 1).sum() };
        let room = PARAGRAPH_BYTES_MAX.saturating_sub(bytes(&named));
        let pairs = match self.rule {
            Rule::PartlyObserved => self.pairs.sentences(),
            _ => Vec::new(),
        };
        let unseen = pairs.into_iter().chain(unseen(self.doings));
        let others = self.others();
        match self.waiting(room) {
            Some(waiting) => paragraph(
                [waiting]
                    .into_iter()
                    .chain(named)
                    .chain(unseen)
                    .chain(others),
            ),
            None if bytes(&others) > room => {
                paragraph(named.into_iter().chain(others).chain(unseen))
            }
            None => paragraph(others.into_iter().chain(named).chain(unseen)),
        }
    }

    fn all_in_one_call(&self) -> String {
        let groups = self.alike(Doing::waits);
        let place = positions(&groups, 1);
        let place = place.split_once(" in ").map_or("", |(_, place)| place);
        let is_network = "the network or the transport is the likely cause";
        let other_groups = match self.evidence.other_groups {
            _ if !self.pairs.is_empty() => Some(0),
            known => known,
        };
        let cause = match other_groups {
            Some(0) => format!("All ranks are in {place}, so {is_network}."),
            // Neither stacks nor the store show which of its groups a rank uses.
            Some(others) => format!(
                "All ranks are in {place}. If all of them use the same group, {is_network}. The job has {} besides the default group, so \
                 it is also possible that ranks wait for each other in different groups.",
                text::count(others, "group"),
            ),
            None => format!(
                "All ranks are in {place}. If all of them use the same group, {is_network}; otherwise they may wait for each other in \
                 different groups."
            ),
        };
        paragraph([cause].into_iter().chain(self.pairs.sentences()))
    }

    fn spins(&self) -> String {
        format!(
            "{} Threads that wait use the CPU, so that it is not visible whether the ranks make progress.",
            self.calls_differ()
        )
    }

    fn calls_differ(&self) -> String {
        let groups = self.alike(|_| true);
        let positions = fitting(PARAGRAPH_BYTES_MAX, |most| {
            format!("{}.", positions(&groups, most))
        });
        paragraph([positions].into_iter().chain(self.pairs.sentences()))
    }

    fn all_blocked(&self) -> String {
        let groups = self.alike(|_| true);
        let are_known = groups.iter().all(|group| group.position().is_some());
        if !are_known || groups.iter().any(|group| group.doing.has_ended()) {
            return paragraph(sentences(&groups, Alike::sentence));
        }
        fitting(PARAGRAPH_BYTES_MAX, |most| {
            let places = groups.iter().take(most).map(|group| {
                let position = group.position().unwrap_or_default();
                format!("{} at {position}", text::ranks(&group.ranks))
            });
            let places: Vec<String> = places.chain(more(&groups, most)).collect();
            let places = places.join(", ");
            match self.all_wake_up() {
                true => format!("All ranks pause, and wake up again and again: {places}."),
                false => format!("All ranks are blocked: {places}."),
            }
        })
    }

    /// Whether all ranks pause: between short steps, or because each of them polls for something.
    fn all_wake_up(&self) -> bool {
        let mut running = self.doings.values().filter(|doing| !doing.has_ended());
        self.rule == Rule::AllBlocked && running.all(|doing| doing.wakes_up)
    }

    /// A sentence that advises the reader where to look, or which command to run next.
    fn advice(&self) -> String {
        let groups = self.alike(|doing| self.is_named(doing));
        let first = groups.first();
        let is_of_network = matches!(
            self.rule,
            Rule::AllInOneCall | Rule::CallsDiffer | Rule::PartlyObserved
        );
        if first.is_none()
            && is_of_network
            && let Some(advice) = self.pairs.advice()
        {
            return advice;
        }
        match (self.rule, first) {
            (Rule::WaitsForBusy, _) => "If that takes too long, look there.".to_owned(),
            (Rule::Absent | Rule::Locked | Rule::PartlyObserved, Some(group)) => advice_on(group),
            (Rule::PartlyObserved, None) => self.advice_on_unseen().to_owned(),
            (Rule::AllInOneCall, _) if self.evidence.other_groups == Some(0) => {
                "Check the network between the hosts, for example with c10d doctor.".to_owned()
            }
            (Rule::AllInOneCall, _) => {
                "Check the network between the hosts, for example with c10d doctor. In a job of c10d run --debug-server, c10d flight \
                 shows the group of each rank."
                    .to_owned()
            }
            (Rule::Spins, _) => {
                "In a job of c10d run --debug-server, c10d flight names the rank that skipped a collective.".to_owned()
            }
            (Rule::CallsDiffer, _) if !self.doings.values().any(Doing::is_without_stack) => {
                "All ranks of a group have to call the same collectives in the same order: compare what leads to these \
                 lines."
                    .to_owned()
            }
            _ if self.all_wake_up() => {
                "The job makes progress if its steps have such a pause. Otherwise, look at what these lines wait for."
                    .to_owned()
            }
            _ => "c10d stacks --all shows the evidence about all ranks.".to_owned(),
        }
    }

    /// Returns advice on where to find the ranks that are not observed.
    fn advice_on_unseen(&self) -> &'static str {
        let mut doings = self.doings.values();
        match doings.any(|doing| doing.kind == Kind::NotLaunched) {
            true => {
                "To see where ranks of torchrun are, run py-spy dump on their node, or start the node with c10d run."
            }
            // A launcher that is cut off from the store still observes its own workers.
            false => "The logs of the launchers on their nodes show where these ranks are.",
        }
    }
}

fn advice_on(group: &Alike<'_, '_>) -> String {
    let rank = group.ranks.first().copied().unwrap_or_default();
    match &group.doing.kind {
        Kind::Blocked(Cause::Stopped { pid }) => format!("Continue it with kill -CONT {pid}."),
        Kind::Blocked(Cause::Traced { .. }) => "Continue it in its debugger, or detach the debugger.".to_owned(),
        Kind::Blocked(Cause::Debugger) => {
            "Continue it at its prompt, or remove the breakpoint.".to_owned()
        }
        Kind::Blocked(Cause::Disk { .. }) => {
            "Look for a file system, a disk or a driver that does not answer.".to_owned()
        }
        Kind::Blocked(Cause::DataLoader { dead: Some(_) }) => {
            "Look for the reason in the kernel's log, for example for the line of the out-of-memory killer.".to_owned()
        }
        Kind::Blocked(Cause::DataLoader { dead: None }) => {
            "Look at what the workers of the DataLoader read, in the dataset.".to_owned()
        }
        Kind::Left(_) => {
            "All ranks need the same number of steps: compare the sizes of their data, or use Join of PyTorch.".to_owned()
        }
        Kind::Blocked(Cause::Lock) | Kind::Opaque { .. } => {
            format!("c10d stacks {rank} shows all of its threads; one of them may hold the lock.")
        }
        _ => format!("Look at what it waits for there; c10d stacks {rank} shows all of its calls."),
    }
}

/// Explains what the workers of a node wait for, by the samples of their launcher. It is for a launcher that cannot
/// reach the workers' store, or whose workers use another store. The report then names the ranks on other nodes as not
/// observed.
///
/// Returns `None` if no worker has a recent sample, or if the workers make progress.
#[must_use]
pub fn local_hang_report(node: &AnnouncedNode) -> Option<Report> {
    let mut evidence = Evidence::default();
    evidence.add(node, 0, |rank| rank < GROUP_SIZE_MAX);
    for rank in 0..node.world_size.unwrap_or(0).min(GROUP_SIZE_MAX) {
        let other = || RankEvidence::new(Seen::OutOfReach, None);
        evidence.ranks.entry(rank).or_insert_with(other);
    }
    let verdict = judge(&evidence)?;
    let finding = verdict.finding?;
    let workers = node.workers.iter();
    let ranks = workers.map(|worker| RankReport {
        rank: worker.rank,
        state: RankState::Idle,
        is_suspect: verdict.state != ReportState::WaitingForBusyRank
            && finding.culprits.0.contains(&worker.rank),
        doing: verdict.doing.get(&worker.rank).cloned().unwrap_or_default(),
        pid: Some(worker.pid),
        node_rank: node.node_rank,
        sureness: Sureness::Launched,
        ..RankReport::default()
    });
    Some(Report {
        headline: finding.text.clone(),
        is_stuck: verdict.state == ReportState::NoProgress,
        state: verdict.state,
        world_size: node.world_size,
        ranks: ranks.collect(),
        findings: vec![finding],
        ..Report::default()
    })
}
