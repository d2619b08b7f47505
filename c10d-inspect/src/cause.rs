//! The root cause of a failure: which worker exited first, and which others failed because of that. Pure.
//!
//! The inputs are exits with their times, also with code 0, lost connections and waits, which are read from the workers' last
//! lines, and the keys for which ranks wait in the store. A wrong name is worse than none: if it is not certain, the text has
//! "the first of these", or only how the first worker failed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use crate::keys::{Family, family, meaning};
use crate::symptom::Symptom;
use crate::text;

/// The largest error between the times of exits on two hosts, after their clock difference is corrected, in
/// milliseconds.
const CLOCK_MARGIN_MS: u64 = 100;

/// How much later than its victim a worker can be seen to exit, in milliseconds: it closes its connections while Python
/// ends, which takes longer than the end of the victim.
const TEARDOWN_MS: i64 = 2000;

/// After this time, in milliseconds, the exit of a victim shows little about when it lost a connection.
const LATE_MS: u64 = 5000;

/// The most exits that one text names.
const NAMED_MAX: usize = 3;

/// The exit of one worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exit {
    /// The worker's global rank, below the world size.
    pub rank: usize,
    /// The name of its host; empty for the only host of a job.
    pub host: String,
    /// Exits of the same node have an exact order.
    pub node: usize,
    /// The exit code; `None` if a signal ended the worker, or if it is lost.
    pub code: Option<i32>,
    /// The number of the signal that ended the worker.
    pub signal: Option<i32>,
    /// The name of that signal, if it has one.
    pub signal_name: Option<String>,
    /// When the launcher noticed the exit, in milliseconds from any moment that all exits share.
    pub at_ms: i64,
    /// Whether the launcher stopped the worker.
    pub is_stopped: bool,
    /// Whether a library aborted the worker at the end of its program.
    pub is_at_exit: bool,
    /// Whether standard error has a Python traceback.
    pub has_traceback: bool,
    /// The most informative line of standard error.
    pub last_line: Option<String>,
}

/// A rank that waits for a key of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyWait {
    /// The rank's number in the job.
    pub rank: usize,
    /// The key, as it is on the wire.
    pub key: String,
    /// The moment of this fact, on the clock of the exits.
    pub at_ms: i64,
}

/// The root cause of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RootCause {
    /// The indices of the exits that caused it, in the order of their times. There are several if the first one is
    /// unknown.
    pub culprits: Vec<usize>,
    /// The cause as a sentence without a full stop, such as "rank 1 exited with code 0, 0.1 s before rank 0 lost its
    /// connection to it".
    pub text: String,
    /// Whether the exits show beyond doubt that the first culprit is the cause.
    pub is_certain: bool,
    /// Whether the first culprit explains failures of other ranks.
    pub has_victims: bool,
    /// If the first culprit only gave up an operation of several ranks: what to add to the text unless other evidence names the
    /// rank that did not take part, such as ", and which rank did not take part is not known (rank 2 still ran)".
    pub unknown: Option<String>,
}

impl KeyWait {
    /// A wait of a rank.
    #[must_use]
    pub const fn new(rank: usize, key: String, at_ms: i64) -> Self {
        Self { rank, key, at_ms }
    }
}

impl Exit {
    const fn has_failed(&self) -> bool {
        !matches!(self.code, Some(0))
    }

    fn symptom(&self) -> Option<Symptom> {
        let line = self.last_line.as_deref().filter(|_| self.has_failed())?;
        Symptom::of(line)
    }

    /// "exited with code 0", "was ended by SIGKILL".
    fn words(&self) -> String {
        let end = match (self.code, self.signal, &self.signal_name) {
            (Some(code), ..) => format!("exited with code {code}"),
            (None, _, Some(name)) => format!("was ended by {name}"),
            (None, Some(number), None) => format!("was ended by signal {number}"),
            (None, None, None) => "exited".to_owned(),
        };
        match self.is_at_exit {
            true => format!(
                "{end} at the end of its program, where threads of its process group still ran"
            ),
            false => end,
        }
    }

    fn name(&self) -> String {
        match self.host.is_empty() {
            true => format!("rank {}", self.rank),
            false => format!("rank {} on {}", self.rank, self.host),
        }
    }
}

/// A rank that failed, or waits, because of another rank.
#[derive(Debug)]
struct Victim {
    rank: usize,
    node: Option<usize>,
    at_ms: i64,
    symptom: Symptom,
    /// Whether it still waits.
    waits: bool,
}

/// Returns the root cause of the failures among `exits`, or of `waits` if no worker failed. `rank_at` returns the rank that
/// has published an address. Ranks that are not below `world_size` do not exist.
///
/// Returns `None` if all workers were stopped, or no waiting rank can wait for a rank that has exited.
#[must_use]
pub fn root_cause(
    exits: &[Exit],
    waits: &[KeyWait],
    world_size: Option<usize>,
    rank_at: &dyn Fn(SocketAddr) -> Option<usize>,
) -> Option<RootCause> {
    let exists = |rank: usize| world_size.is_none_or(|size| rank < size);
    let mut order: Vec<usize> = (0..exits.len())
        .filter(|&it| exists(exits[it].rank))
        .collect();
    order.sort_by_key(|&it| (exits[it].at_ms, exits[it].rank));
    let case = Case {
        exits,
        order,
        world_size,
        rank_at,
    };
    let mut victims = case.victims();
    if !case.own().any(|it| exits[it].has_failed()) {
        victims.extend(
            waits
                .iter()
                .filter(|wait| exists(wait.rank))
                .map(Victim::of_wait),
        );
    }
    let independent: Vec<usize> = case
        .own()
        .filter(|&it| exits[it].has_failed() && exits[it].symptom().is_none())
        .collect();
    match victims.first() {
        None => case.first_of(&independent),
        Some(victim) => case
            .of_victim(victim, &independent)
            .or_else(|| case.alone(victim)),
    }
}

struct Case<'e> {
    exits: &'e [Exit],
    /// Returns the indices of all exits of existing ranks, sorted by time.
    order: Vec<usize>,
    world_size: Option<usize>,
    rank_at: &'e dyn Fn(SocketAddr) -> Option<usize>,
}

impl Case<'_> {
    /// The exits of workers that were not stopped.
    fn own(&self) -> impl Iterator<Item = usize> {
        let order = self.order.iter().copied();
        order.filter(|&it| !self.exits[it].is_stopped)
    }

    fn victims(&self) -> Vec<Victim> {
        let victim = |it: usize| {
            let exit = &self.exits[it];
            exit.symptom().map(|symptom| Victim {
                rank: exit.rank,
                node: Some(exit.node),
                at_ms: exit.at_ms,
                symptom,
                waits: false,
            })
        };
        self.own().filter_map(victim).collect()
    }

    /// The last exit of a rank, whether its launcher stopped it or not.
    fn exit_of(&self, rank: usize) -> Option<usize> {
        let mut order = self.order.iter().rev().copied();
        order.find(|&it| self.exits[it].rank == rank)
    }

    /// The rank that a victim waited for or was connected to, if its last line names it.
    fn named(&self, victim: &Victim) -> Option<usize> {
        let rank = match &victim.symptom {
            Symptom::LostPeer(address) => (self.rank_at)((*address)?),
            Symptom::Key(key) => match family(key.as_bytes()).within(self.world_size) {
                Family::Member(member) if member.group.is_default() => Some(member.rank),
                _ => None,
            },
            Symptom::LostStore | Symptom::Timeout => None,
        };
        rank.filter(|&rank| rank != victim.rank && self.world_size.is_none_or(|size| rank < size))
    }

    /// The cause of the first victim: the rank that it names, or the worker that exited before it.
    fn of_victim(&self, first: &Victim, independent: &[usize]) -> Option<RootCause> {
        if let Some(culprit) = self.followed(first) {
            let is_named = self.named(first) == Some(self.exits[culprit].rank);
            return Some(self.cause(culprit, first, is_named));
        }
        let is_early = |it: &usize| {
            let exit = &self.exits[*it];
            exit.rank != first.rank && exit.at_ms <= first.at_ms.saturating_add(TEARDOWN_MS)
        };
        let failed: Vec<usize> = independent.iter().copied().filter(is_early).collect();
        let left: Vec<usize> = self
            .own()
            .filter(|it| !self.exits[*it].has_failed())
            .filter(|it| is_early(it) && self.exits[*it].at_ms <= first.at_ms)
            .collect();
        let before = |it: &usize| !left.is_empty() && self.exits[*it].at_ms > first.at_ms;
        // A failure that was noticed before the victim explains it. The order of a later failure and of workers that have only
        // left is not known.
        match (&failed[..], &left[..]) {
            ([], []) => self.only_left(first),
            // A lost store or a slow operation does not tell that it was about this worker.
            ([], [culprit]) => {
                let is_certain = matches!(first.symptom, Symptom::LostPeer(_) | Symptom::Key(_));
                Some(self.cause(*culprit, first, is_certain))
            }
            ([culprit, ..], _) if !failed.iter().any(before) => {
                let same: Vec<usize> = failed
                    .iter()
                    .copied()
                    .filter(|&it| it == *culprit || self.is_about_same(*culprit, it))
                    .collect();
                match same.len() {
                    1 => Some(self.cause(*culprit, first, failed.len() == 1)),
                    _ => Some(self.several(same, Some(first))),
                }
            }
            _ => {
                let mut all: Vec<usize> = failed.iter().chain(&left).copied().collect();
                all.sort_by_key(|&it| self.exits[it].at_ms);
                Some(self.several(all, Some(first)))
            }
        }
    }

    /// The exit at the end of a chain of victims, where each victim names the next rank. `None` if a rank still ran, or if the
    /// last victim names no rank.
    fn followed(&self, first: &Victim) -> Option<usize> {
        let mut seen = BTreeSet::from([first.rank]);
        let mut rank = self.named(first)?;
        loop {
            let it = self.exit_of(rank)?;
            let exit = &self.exits[it];
            if !seen.insert(rank) {
                return None;
            }
            let Some(symptom) = exit.symptom() else {
                // The worker was about to exit for its own reason when its launcher stopped it.
                let is_own = !exit.is_stopped
                    || (exit.has_traceback && exit.has_failed() && exit.last_line.is_some());
                return is_own.then_some(it);
            };
            let next = Victim {
                rank,
                node: Some(exit.node),
                at_ms: exit.at_ms,
                symptom,
                waits: false,
            };
            rank = self.named(&next)?;
        }
    }

    /// The cause if no failed worker is a victim: the first failure.
    fn first_of(&self, independent: &[usize]) -> Option<RootCause> {
        let first = *independent.first()?;
        let same: Vec<usize> = independent
            .iter()
            .copied()
            .filter(|&it| it == first || self.is_about_same(first, it))
            .collect();
        if same.len() > 1 {
            return Some(self.several(same, None));
        }
        let exit = &self.exits[first];
        Some(RootCause {
            culprits: same,
            text: format!("{} {}", exit.name(), exit.words()),
            is_certain: true,
            has_victims: false,
            unknown: None,
        })
    }

    /// The cause for a victim, if no exit is known that explains it.
    fn alone(&self, victim: &Victim) -> Option<RootCause> {
        let it = self.exit_of(victim.rank).filter(|_| !victim.waits)?;
        let exit = &self.exits[it];
        let of = match self.named(victim) {
            Some(rank) => format!("rank {rank}, which had not exited"),
            None => match &self.left_after(victim)[..] {
                [] => "another rank, and no other had exited".to_owned(),
                [left] => format!(
                    "another rank, perhaps to {}, which {} soon after",
                    left.name(),
                    left.words()
                ),
                _ => "another rank, and several exited with code 0 soon after".to_owned(),
            },
        };
        let lost = match &victim.symptom {
            Symptom::LostPeer(_) => format!(": it lost its connection to {of}"),
            Symptom::Key(key) => format!(
                ": it gave up waiting for {}",
                meaning(key.as_bytes(), self.world_size)
            ),
            Symptom::LostStore => ": it lost its connection to the store".to_owned(),
            Symptom::Timeout => ": an operation of several ranks took too long".to_owned(),
        };
        Some(RootCause {
            culprits: vec![it],
            text: format!("{} {}{lost}", exit.name(), exit.words()),
            is_certain: false,
            has_victims: false,
            unknown: (victim.symptom == Symptom::Timeout).then(|| {
                let still_ran = self.still_ran();
                format!(", and which rank did not take part is not known{still_ran}")
            }),
        })
    }

    /// " (rank 2 still ran)": the ranks that had not failed when others gave up, if all exits are known.
    fn still_ran(&self) -> String {
        let ranks: BTreeSet<usize> = self.order.iter().map(|&it| self.exits[it].rank).collect();
        let stopped = self.exits.iter().filter(|it| it.is_stopped);
        let running: BTreeSet<usize> = stopped.map(|it| it.rank).collect();
        match self.world_size == Some(ranks.len()) && !running.is_empty() {
            true => format!(" ({} still ran)", text::ranks(&running)),
            false => String::new(),
        }
    }

    /// The worker that left soon after a victim has lost another rank, if no other rank can be the lost one.
    fn only_left(&self, victim: &Victim) -> Option<RootCause> {
        let [Exit { rank: left, .. }] = self.left_after(victim)[..] else {
            return None;
        };
        let mut others = self.exits.iter().filter(|it| it.rank != *left);
        let ranks: BTreeSet<usize> = self.order.iter().map(|&it| self.exits[it].rank).collect();
        let is_only =
            self.world_size == Some(ranks.len()) && others.all(|it| it.symptom().is_some());
        let culprit = self.exit_of(*left).filter(|_| is_only)?;
        Some(self.cause(culprit, victim, true))
    }

    /// The workers that left during the time in which a lost worker may exit.
    fn left_after(&self, victim: &Victim) -> Vec<&Exit> {
        let own = self.own().map(|it| &self.exits[it]);
        own.filter(|it| !it.has_failed() && it.at_ms <= victim.at_ms.saturating_add(TEARDOWN_MS))
            .collect()
    }

    fn cause(&self, culprit: usize, victim: &Victim, is_certain: bool) -> RootCause {
        let exit = &self.exits[culprit];
        let is_exact = victim.node.is_none_or(|node| node == exit.node);
        let gap_ms = victim.at_ms.saturating_sub(exit.at_ms);
        let gap = text::age(Duration::from_millis(gap_ms.unsigned_abs()));
        let who = format!("rank {}", victim.rank);
        let is_late =
            gap_ms.unsigned_abs() > LATE_MS && matches!(victim.symptom, Symptom::LostPeer(_));
        let what = self.what(victim);
        let when = match () {
            () if !is_exact && gap_ms.unsigned_abs() <= CLOCK_MARGIN_MS => {
                format!(", at about the same time as {who} {what}")
            }
            () if gap_ms < 0 => format!("; {gap} before that was noticed, {who} {what}"),
            () if victim.waits => {
                format!(" {gap} ago, and {who} {what}, which it may have been expected to write")
            }
            () if is_late => {
                format!(", {gap} before {who} failed because it had lost its connection to it")
            }
            () => format!(", {gap} before {who} {what}"),
        };
        RootCause {
            culprits: vec![culprit],
            text: format!("{} {}{when}", exit.name(), exit.words()),
            is_certain,
            has_victims: true,
            unknown: None,
        }
    }

    fn what(&self, victim: &Victim) -> String {
        match &victim.symptom {
            Symptom::LostPeer(_) => "lost its connection to it".to_owned(),
            Symptom::Key(key) => {
                let meaning = meaning(key.as_bytes(), self.world_size);
                match victim.waits {
                    true => format!("waits for {meaning}"),
                    false => format!("gave up waiting for {meaning}"),
                }
            }
            Symptom::LostStore => "lost its connection to the store".to_owned(),
            Symptom::Timeout => "gave up an operation of several ranks".to_owned(),
        }
    }

    fn several(&self, culprits: Vec<usize>, victim: Option<&Victim>) -> RootCause {
        let named = culprits.iter().take(NAMED_MAX).map(|&it| {
            let exit = &self.exits[it];
            format!("{} {}", exit.name(), exit.words())
        });
        let mut named: Vec<String> = named.collect();
        match culprits.len().saturating_sub(NAMED_MAX) {
            0 => {}
            1 => named.push("1 more rank exited".to_owned()),
            more => named.push(format!("{more} more ranks exited")),
        }
        if let Some(victim) = victim.filter(|victim| victim.waits) {
            let (named, who) = (text::joined(&named), victim.rank);
            let text = format!(
                "{named}, and rank {who} {}, which one of them may have been expected to write",
                self.what(victim)
            );
            return RootCause {
                culprits,
                text,
                is_certain: false,
                has_victims: true,
                unknown: None,
            };
        }
        let end = victim.map(|victim| {
            let what = match victim.symptom {
                Symptom::LostPeer(_) => "lost its connection to one of them".to_owned(),
                _ => self.what(victim),
            };
            format!("; rank {} {what}", victim.rank)
        });
        RootCause {
            culprits,
            text: format!(
                "the first of these: {}{}",
                text::joined(&named),
                end.unwrap_or_default()
            ),
            is_certain: false,
            has_victims: victim.is_some(),
            unknown: None,
        }
    }

    /// Whether the order of two exits of different nodes is not known.
    fn is_about_same(&self, first: usize, other: usize) -> bool {
        let (first, other) = (&self.exits[first], &self.exits[other]);
        first.node != other.node && first.at_ms.abs_diff(other.at_ms) <= CLOCK_MARGIN_MS
    }
}

impl Victim {
    fn of_wait(wait: &KeyWait) -> Self {
        Self {
            rank: wait.rank,
            node: None,
            at_ms: wait.at_ms,
            symptom: Symptom::Key(wait.key.clone()),
            waits: true,
        }
    }
}

#[cfg(test)]
mod tests;
