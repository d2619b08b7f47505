//! The rules for a job, as one table.

use std::collections::BTreeMap;

use super::activity::{Absence, Doing, Kind};
use super::evidence::{Evidence, Seen};
use super::words::alike;

/// The state of a job, by the first of [`RULES`] that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// There is no observation, or a worker has failed, which other parts of the report explain.
    NoEvidence,
    /// Some ranks have waited for some time, and other ranks are at work.
    WaitsForBusy,
    /// Ranks are at work, or have just arrived in a call.
    AtWork,
    /// Some ranks are not observed, so that the job may make progress.
    PartlyObserved,
    /// The threads of ranks that wait use the CPU, so that nothing shows whether they make progress.
    Spins,
    /// All ranks wait, and at least two of them transfer data.
    Transfers,
    /// All ranks wait in one collective.
    AllInOneCall,
    /// Some ranks wait, and other ranks are outside of all calls.
    Absent,
    /// Some ranks wait, and other ranks wait for a lock or for a thread in the same process.
    Locked,
    /// Ranks wait in different calls.
    CallsDiffer,
    /// All ranks are blocked outside of the known calls.
    AllBlocked,
}

/// Whether a rule applies.
type Condition = fn(&Facts) -> bool;

/// The rules; the first that applies decides.
pub(super) const RULES: [(Rule, Condition); 11] = [
    (Rule::NoEvidence, |facts| {
        facts.observed == 0 || facts.has_failed
    }),
    (Rule::WaitsForBusy, |facts| {
        facts.active > 0 && facts.still > 0
    }),
    (Rule::AtWork, |facts| facts.active > 0 || facts.arriving > 0),
    (Rule::PartlyObserved, |facts| facts.unseen > 0),
    (Rule::Spins, |facts| {
        facts.spinning > 0 && facts.certainly_absent == 0
    }),
    // A transfer has two ends: a thread that reports metrics in one rank is not a transfer.
    (Rule::Transfers, |facts| {
        facts.waiting == facts.ranks && facts.transferring >= facts.ranks.min(2)
    }),
    (Rule::AllInOneCall, |facts| facts.is_one_collective),
    (Rule::Absent, |facts| {
        facts.absent > 0 && (facts.waiting > 0 || facts.opaque_at_one_place > facts.absent)
    }),
    (Rule::Locked, |facts| {
        facts.locked > 0
            && facts.locked == facts.opaque
            && facts.waiting_at_one_place > facts.locked
    }),
    (Rule::CallsDiffer, |facts| facts.waiting > 0),
    (Rule::AllBlocked, |_| true),
];

/// The number of ranks with each activity.
#[derive(Debug, Default)]
pub(super) struct Facts {
    ranks: usize,
    /// The ranks with a recent sample.
    observed: usize,
    has_failed: bool,
    active: usize,
    unseen: usize,
    /// The ranks that wait in calls or in the store.
    waiting: usize,
    /// The waiting ranks that have waited for some time.
    still: usize,
    /// The waiting ranks that may have just arrived.
    arriving: usize,
    /// The waiting ranks whose threads use the CPU.
    spinning: usize,
    /// The number of waiting ranks if all of them wait in one call at one line, otherwise 0.
    waiting_at_one_place: usize,
    absent: usize,
    certainly_absent: usize,
    opaque: usize,
    /// The largest number of opaque ranks at the same line.
    opaque_at_one_place: usize,
    /// The opaque ranks with other threads that may hold a lock.
    locked: usize,
    is_one_collective: bool,
    /// The waiting ranks that transfer data.
    transferring: usize,
}

impl Facts {
    pub(super) fn new<'a>(doings: &BTreeMap<usize, Doing<'a>>, evidence: &Evidence<'_>) -> Self {
        let after = evidence.alarm_after_ms();
        let seen = evidence.ranks.values();
        let waiting = alike(doings, Doing::waits);
        let opaque = alike(doings, Doing::is_opaque);
        let has_failed = |doing: &Doing<'a>| doing.kind == Kind::Failed;
        let spins = |doing: &Doing<'a>| doing.waits() && doing.still_ms.is_none();
        let transfers = |doing: &Doing<'a>| doing.waits() && doing.transfers;
        Self {
            ranks: doings.len(),
            observed: seen
                .filter(|rank| matches!(rank.seen, Seen::Sample(_)))
                .count(),
            has_failed: count(doings, has_failed) > 0,
            active: count(doings, Doing::is_active),
            unseen: count(doings, Doing::is_unseen),
            waiting: count(doings, Doing::waits),
            still: count(doings, |doing| doing.is_still(after)),
            arriving: count(doings, |doing| doing.may_have_arrived(after)),
            spinning: count(doings, spins),
            waiting_at_one_place: match &waiting[..] {
                [only] => only.ranks.len(),
                _ => 0,
            },
            absent: count(doings, Doing::is_absent),
            certainly_absent: count(doings, |doing| doing.absence() == Some(Absence::Certain)),
            opaque: count(doings, Doing::is_opaque),
            opaque_at_one_place: opaque.first().map_or(0, |group| group.ranks.len()),
            locked: count(doings, Doing::may_be_locked),
            is_one_collective: waiting.len() == 1
                && count(doings, Doing::is_in_collective) == doings.len(),
            transferring: count(doings, transfers),
        }
    }

    pub(super) fn rule(&self) -> Rule {
        let mut rules = RULES.iter();
        let rule = rules.find(|(_, applies)| applies(self));
        rule.map_or(Rule::AllBlocked, |(rule, _)| *rule)
    }
}

fn count<'a>(doings: &BTreeMap<usize, Doing<'a>>, select: impl Fn(&Doing<'a>) -> bool) -> usize {
    doings.values().filter(|doing| select(doing)).count()
}
