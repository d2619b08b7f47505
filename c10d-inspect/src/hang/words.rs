//! Sentences about the activity of ranks.

use std::collections::{BTreeMap, BTreeSet};

use super::activity::{Cause, Doing, Key, Kind, age};
use super::evidence::Evidence;
use super::place::{self, Place};
use crate::text::{self, capitalized};

/// The most groups of ranks in one sentence, and sentences of one kind.
const GROUPS_MAX: usize = 4;

/// The most bytes of a paragraph, about six lines of a terminal.
pub(super) const PARAGRAPH_BYTES_MAX: usize = 600;

/// The most threads of a rank that are named.
const THREADS_MAX: usize = 4;

/// Ranks with the same activity at the same place, and the activity of the first of these ranks.
pub(super) struct Alike<'d, 'a> {
    pub(super) ranks: BTreeSet<usize>,
    pub(super) doing: &'d Doing<'a>,
    /// The shortest time for which any of these ranks has made no progress, in milliseconds; 0 to leave it out.
    pub(super) still_ms: u64,
}

/// The activities of the ranks, with their keys.
pub(super) fn doings<'a>(evidence: &Evidence<'a>) -> BTreeMap<usize, Doing<'a>> {
    let ranks = evidence.ranks.iter();
    let doings = ranks.map(|(&rank, evidence)| {
        let mut doing = Doing::new(evidence);
        let place = doing.place.as_ref();
        let words = clause(&doing.kind.without_numbers(), place, 0, false);
        doing.key = (words, place.map_or(0, Place::path_hash));
        (rank, doing)
    });
    doings.collect()
}

/// Groups the ranks for which `select` is true by their activity and place, the largest group first.
pub(super) fn alike<'d, 'a>(
    doings: &'d BTreeMap<usize, Doing<'a>>,
    select: impl Fn(&Doing<'a>) -> bool,
) -> Vec<Alike<'d, 'a>> {
    let mut groups: Vec<Alike<'d, 'a>> = Vec::new();
    let mut by_key: BTreeMap<&Key, usize> = BTreeMap::new();
    for (&rank, doing) in doings.iter().filter(|(_, doing)| select(doing)) {
        let still_ms = doing.still_ms.unwrap_or(0);
        let group = *by_key.entry(&doing.key).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(group) => {
                group.ranks.insert(rank);
                group.still_ms = group.still_ms.min(still_ms);
            }
            None => groups.push(Alike {
                ranks: BTreeSet::from([rank]),
                doing,
                still_ms,
            }),
        }
    }
    groups.sort_by_key(|group| (usize::MAX - group.ranks.len(), group.ranks.first().copied()));
    groups
}

impl Alike<'_, '_> {
    /// "it has been blocked in read for 40 s at loader.py:17 (load_batch)", without the subject.
    pub(super) fn clause(&self) -> String {
        let is_plural = self.ranks.len() > 1;
        clause(
            &self.doing.kind,
            self.doing.place.as_ref(),
            self.still_ms,
            is_plural,
        )
    }

    /// "Rank 2 has been blocked in read for 40 s at loader.py:17 (load_batch)."
    pub(super) fn sentence(&self) -> String {
        format!("{} {}.", text::ranks_start(&self.ranks), self.clause())
    }

    /// "Rank 2 does not take part: it has been blocked in read for 40 s at loader.py:17 (load_batch)."
    pub(super) fn absence(&self) -> String {
        let is_one = self.ranks.len() == 1;
        let does = if is_one { "does" } else { "do" };
        let they = if is_one { "it" } else { "they" };
        format!(
            "{} {does} not take part: {they} {}.",
            text::ranks_start(&self.ranks),
            self.clause()
        )
    }

    /// "loader.py:17 (load_batch)".
    pub(super) fn position(&self) -> Option<String> {
        let frame = self.doing.place.as_ref()?.position()?;
        Some(place::line_and_function(frame))
    }

    /// "Its threads, the shortest stack first, are at saver.py:9 (flush) and train.py:41 (step)."
    pub(super) fn threads(&self) -> Option<String> {
        let threads = self.doing.place.as_ref()?.threads();
        let positions = threads.iter().filter_map(|thread| {
            let mut inner = thread.frames.iter().rev();
            inner.find(|it| !it.is_library).or(thread.frames.last())
        });
        let mut names: Vec<String> = positions.map(place::line_and_function).collect();
        let left_out = names.len().saturating_sub(THREADS_MAX);
        names.truncate(THREADS_MAX);
        if left_out > 0 {
            names.push(format!("{left_out} more"));
        }
        let whose = match self.ranks.first() {
            Some(rank) if self.ranks.len() > 1 => format!("The threads of rank {rank}"),
            _ => "Its threads".to_owned(),
        };
        (names.len() > 1).then(|| {
            let names = text::joined(&names);
            format!("{whose}, the shortest stack first, are at {names}.")
        })
    }
}

/// The longest text of at most `bytes_max` bytes, or the shortest one: `text` takes the number of groups to show.
pub(super) fn fitting(bytes_max: usize, text: impl Fn(usize) -> String) -> String {
    let mut texts = (2..=GROUPS_MAX).rev().map(&text);
    let fits = texts.find(|text| text.len() <= bytes_max);
    fits.unwrap_or_else(|| text(1))
}

/// "Ranks 0 and 1 wait in all_reduce (train.py:41), rank 3 waits for the key x".
pub(super) fn waits(groups: &[Alike<'_, '_>], shown: usize) -> String {
    let mut parts: Vec<String> = Vec::new();
    for group in groups.iter().take(shown) {
        let ranks = text::ranks(&group.ranks);
        let is_plain = matches!(group.doing.kind, Kind::InCall(_)) && !parts.is_empty();
        parts.push(match (&group.doing.kind, is_plain) {
            (Kind::InCall(_), true) => format!("{ranks} in {}", call_at(group, groups)),
            (Kind::InCall(_), false) => {
                let wait = text::verb(group.ranks.len(), "waits", "wait");
                format!("{ranks} {wait} in {}", call_at(group, groups))
            }
            _ => format!("{ranks} {}", group.clause()),
        });
    }
    parts.extend(more(groups, shown));
    capitalized(&parts.join(", "))
}

/// "Ranks 0 and 2 are in all_reduce (train.py:41), ranks 1 and 3 in broadcast (train.py:57)".
pub(super) fn positions(groups: &[Alike<'_, '_>], shown: usize) -> String {
    let mut parts: Vec<String> = Vec::new();
    for group in groups.iter().take(shown) {
        let ranks = text::ranks(&group.ranks);
        let are = match parts.is_empty() {
            true => text::verb(group.ranks.len(), "is ", "are "),
            false => "",
        };
        parts.push(match &group.doing.kind {
            Kind::InCall(_) => format!("{ranks} {are}in {}", call_at(group, groups)),
            _ => format!("{ranks} {}", group.clause()),
        });
    }
    parts.extend(more(groups, shown));
    capitalized(&parts.join(", "))
}

pub(super) fn more(groups: &[Alike<'_, '_>], shown: usize) -> Option<String> {
    let left_out = groups.iter().skip(shown).map(|group| group.ranks.len());
    match left_out.sum() {
        0 => None,
        1 => Some("1 more rank elsewhere".to_owned()),
        count => Some(format!("{count} more ranks elsewhere")),
    }
}

/// The sentences about the first groups, and a sentence with the number of further groups, if any.
pub(super) fn sentences<'d, 'a>(
    groups: &[Alike<'d, 'a>],
    sentence: impl Fn(&Alike<'d, 'a>) -> String,
) -> Vec<String> {
    let named = groups.iter().take(GROUPS_MAX).map(sentence);
    let more = more(groups, GROUPS_MAX).map(|more| format!("{}.", capitalized(&more)));
    named.chain(more).collect()
}

/// Joins sentences into a paragraph, until there is no room left.
pub(super) fn paragraph(sentences: impl IntoIterator<Item = String>) -> String {
    let mut text = String::new();
    for sentence in sentences {
        if text.len() + sentence.len() > PARAGRAPH_BYTES_MAX {
            text.push_str("Other ranks are omitted.");
            return text;
        }
        text.push_str(&sentence);
        text.push(' ');
    }
    text.truncate(text.trim_end().len());
    text
}

/// "all_reduce (train.py:41)"; with the caller's line if another group is at the same line of the same call.
fn call_at(group: &Alike<'_, '_>, groups: &[Alike<'_, '_>]) -> String {
    let words = |group: &Alike<'_, '_>| match group.doing.kind {
        Kind::InCall(call) => Some(call_words(call.name, group.doing.place.as_ref())),
        _ => None,
    };
    let own = words(group);
    let is_ambiguous = |other: &&Alike<'_, '_>| words(other) == own;
    let own = own.clone().unwrap_or_default();
    if groups.iter().filter(is_ambiguous).count() < 2 {
        return own;
    }
    let paths = groups.iter().filter(is_ambiguous);
    let paths = paths.filter_map(|other| Some(other.doing.place.as_ref()?.path()));
    let paths: Vec<_> = paths.collect();
    let Some(path) = group.doing.place.as_ref().map(Place::path) else {
        return own;
    };
    let differs = |index: &usize| {
        paths
            .iter()
            .any(|other| other.get(*index) != path.get(*index))
    };
    let caller = (0..path.len()).find(differs).map(|index| path[index]);
    match (caller, own.strip_suffix(')')) {
        (Some(caller), Some(start)) => format!("{start}, called from {})", place::line(caller)),
        _ => own,
    }
}

fn call_words(name: &str, place: Option<&Place<'_>>) -> String {
    match place.and_then(Place::position) {
        Some(frame) => format!("{name} ({})", place::line(frame)),
        None => name.to_owned(),
    }
}

/// The activity of a rank as a clause without its subject: "waits in all_reduce (train.py:41)".
pub(super) fn clause(
    kind: &Kind,
    place: Option<&Place<'_>>,
    still_ms: u64,
    is_plural: bool,
) -> String {
    let [is, was, has, its, wait] = match is_plural {
        true => ["are", "were", "have", "their", "wait"],
        false => ["is", "was", "has", "its", "waits"],
    };
    let frame = place.and_then(Place::position);
    let at = frame.map_or_else(String::new, |frame| {
        format!(" at {}", place::line_and_function(frame))
    });
    let time = match still_ms {
        0 => String::new(),
        still => format!(" for {}", age(still)),
    };
    match kind {
        Kind::InCall(call) => format!("{wait} in {}", call_words(call.name, place)),
        Kind::InStore(meaning) => format!("{wait} for {meaning}"),
        // The rank has just begun to wait.
        Kind::Computes(0..2) => format!("{is}{at}, and {was} at work a few seconds ago"),
        Kind::Computes(percent) => format!("{is} computing ({percent} % of a CPU){at}"),
        Kind::Works { cpu_percent: 0..10 } => format!("{is} reading or writing{at}"),
        Kind::Works { cpu_percent } => {
            format!(
                "{wait}{at} for {its} other threads or processes, which use {cpu_percent} % of a CPU"
            )
        }
        Kind::Moves => format!("{is}{at}, and {was} elsewhere a few seconds ago"),
        Kind::Blocked(Cause::Stopped { pid }) => format!("{is} stopped (state T of pid {pid}){at}"),
        Kind::Blocked(Cause::Traced { pid }) => {
            format!("{is} stopped by a debugger (state t of pid {pid}){at}")
        }
        Kind::Blocked(Cause::Debugger) => format!("{is} in a debugger{at}"),
        Kind::Blocked(Cause::Disk { call, error }) => {
            let reason = error.as_ref().map_or_else(String::new, |error| {
                format!(", and {its} stack cannot be read: {error}")
            });
            format!(
                "{has} been blocked{}{time} in state D{at}{reason}",
                within(call.as_ref())
            )
        }
        Kind::Blocked(Cause::DataLoader { dead }) => match dead {
            Some(pid) => format!(
                "{has} waited for {its} DataLoader{time}{at}, and {its} DataLoader worker (pid {pid}) has exited"
            ),
            None => format!("{has} waited for {its} DataLoader{time}{at}"),
        },
        Kind::Blocked(Cause::Lock) | Kind::Opaque { is_lock: true, .. } => {
            format!("{has} waited for a lock, a thread or a process{time}{at}")
        }
        Kind::Blocked(Cause::SystemCall(call)) => format!("{has} been blocked in {call}{time}{at}"),
        Kind::Opaque { system_call, .. } => {
            format!(
                "{has} been blocked{}{time}{at}",
                within(system_call.as_ref())
            )
        }
        Kind::NoStack(reason) => {
            format!("{has} made no progress{time}, and {its} stack cannot be read: {reason}")
        }
        Kind::Program {
            command,
            system_call,
        } => {
            format!(
                "{has} been blocked{}{time} in a program that is not Python ({command})",
                within(system_call.as_ref())
            )
        }
        Kind::Left(ago_ms) => format!("exited with code 0 {} ago", age(*ago_ms)),
        Kind::Failed => format!("{has} failed"),
        Kind::NotSampled | Kind::Stale(_) | Kind::NotLaunched | Kind::OutOfReach => {
            format!("{is} not observed")
        }
    }
}

fn within(call: Option<&String>) -> String {
    let call = call.filter(|call| !call.is_empty());
    call.map_or_else(String::new, |call| format!(" in {call}"))
}

/// The activity of a rank without the time, to follow a sentence about the same rank: "is at train.py:12 (main),
/// blocked in read".
pub(super) fn brief_clause(doing: &Doing<'_>) -> String {
    let frame = doing.place.as_ref().and_then(Place::position);
    let call = match &doing.kind {
        Kind::Blocked(Cause::SystemCall(call)) => Some(Some(call)),
        Kind::Opaque { system_call, .. }
        | Kind::Blocked(Cause::Disk {
            call: system_call, ..
        }) => Some(system_call.as_ref()),
        _ => None,
    };
    // The key or the signal is already in the other sentence.
    let is_known = matches!(
        doing.kind,
        Kind::InStore(_) | Kind::Blocked(Cause::Stopped { .. })
    );
    match (frame.map(place::line_and_function), call) {
        (Some(position), Some(Some(call))) => format!("is at {position}, blocked in {call}"),
        (Some(position), _) if call.is_some() || is_known => format!("is at {position}"),
        _ => clause(&doing.kind, doing.place.as_ref(), 0, false),
    }
}

/// "Rank 2 runs under torchrun on node1: no stack.", for each group of ranks that are not observed.
pub(super) fn unseen(doings: &BTreeMap<usize, Doing<'_>>) -> Vec<String> {
    let mut groups: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (&rank, doing) in doings.iter().filter(|(_, doing)| doing.is_unseen()) {
        let host = doing.host.as_ref();
        let on = host.map_or_else(String::new, |host| format!(" on {host}"));
        let words = match &doing.kind {
            Kind::NotLaunched => format!("{{run}} under torchrun{on}: no stack"),
            Kind::OutOfReach => {
                "{run} on other nodes, whose observations do not arrive here".to_owned()
            }
            Kind::Stale(age_ms) => {
                format!(
                    "{on}: the last observation of {{its}} launcher is {} old",
                    age(*age_ms)
                )
            }
            _ => format!("{on}: {{its}} launcher sends no observation"),
        };
        groups.entry(words).or_default().insert(rank);
    }
    let known = groups.iter().take(GROUPS_MAX).map(|(words, ranks)| {
        let run = text::verb(ranks.len(), " runs", " run");
        let its = text::verb(ranks.len(), "its", "their");
        let words = words.replace("{run}", run).replace("{its}", its);
        format!("{}{words}.", text::ranks_start(ranks))
    });
    let left_out = groups.values().skip(GROUPS_MAX).map(BTreeSet::len);
    let more = match left_out.sum::<usize>() {
        0 => None,
        more => Some(format!("{more} more ranks are not observed.")),
    };
    known.chain(more).collect()
}
