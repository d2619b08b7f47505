//! The history of a job: rounds, restarts, lost nodes, and when it got stuck.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::Report;
use crate::text::shown_up_to;

/// The most events that are kept; the oldest are dropped first.
const EVENTS_MAX: usize = 256;

/// The longest text of an event, in characters.
const TEXT_CHARS_MAX: usize = 400;

/// The events of a job, in the order of their arrival. A launcher adds its own events; the status server adds when the
/// job got stuck and when it continued.
///
/// ```
/// use c10d_inspect::http::{EventKind, Timeline};
///
/// let timeline = Timeline::default();
/// timeline.push(EventKind::Restart, "restarted 8 workers");
/// assert_eq!(timeline.events().len(), 1);
/// ```
#[derive(Debug, Default)]
pub struct Timeline {
    log: Mutex<Log>,
}

/// The change in a job that an event of the timeline reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// A round of the rendezvous is complete.
    Round,
    /// The workers are restarted.
    Restart,
    /// A worker has failed.
    Failure,
    /// A launcher announced itself.
    NodeJoined,
    /// A node was lost or left.
    NodeLost,
    /// The job got stuck.
    Stuck,
    /// The job continues after it was stuck.
    Resolved,
    /// Any other event.
    Note,
}

/// The size of a round of the rendezvous.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundSize {
    /// The number of its nodes.
    pub nodes: usize,
    /// The number of its workers.
    pub workers: usize,
}

/// An event in the history of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// When it happened, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The kind of the event, for programs.
    pub kind: EventKind,
    /// The event as a sentence or clause.
    pub text: String,
}

impl Timeline {
    /// Adds an event that happened now. Control characters of the text are escaped. From the first call on, the status
    /// server leaves restarts and lost nodes to its caller, whose events are counted as metrics.
    pub fn push(&self, kind: EventKind, text: impl AsRef<str>) {
        self.push_at(SystemTime::now(), kind, text);
    }

    /// Adds an event that happened earlier, like [`push`](Self::push).
    pub fn push_at(&self, at: SystemTime, kind: EventKind, text: impl AsRef<str>) {
        self.with(|log| {
            *log.launcher
                .get_or_insert_default()
                .0
                .entry(kind)
                .or_default() += 1;
            log.push(unix_ms(at), kind, text.as_ref());
        });
    }

    /// Sets the round that is a metric. From this call on, all metrics of a launcher are served.
    pub fn set_round(&self, round: RoundSize) {
        self.with(|log| log.launcher.get_or_insert_default().1 = round);
    }

    /// Returns the events, the oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let mut events = self.with(|log| Vec::from_iter(log.events.iter().cloned()));
        events.sort_by_key(|event| event.unix_ms);
        events
    }

    /// The number of events of each kind that a launcher has added, and its round; `None` without a launcher.
    pub(super) fn of_launcher(&self) -> Option<(BTreeMap<EventKind, u64>, RoundSize)> {
        self.with(|log| log.launcher.clone())
    }

    /// Adds what changed since the last report.
    pub(super) fn observe(&self, report: &Report) {
        self.with(|log| log.observe(report));
    }

    fn with<R>(&self, change: impl FnOnce(&mut Log) -> R) -> R {
        change(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Debug, Default)]
struct Log {
    events: VecDeque<Event>,
    is_stuck: bool,
    /// The nodes of the last report: whether each was connected, and its restarts.
    nodes: BTreeMap<(String, Option<usize>), (bool, usize)>,
    /// The number of events of each kind that a launcher has added, and its round. `None` without a launcher, whose events
    /// about its nodes would otherwise be there twice.
    launcher: Option<(BTreeMap<EventKind, u64>, RoundSize)>,
}

impl Log {
    fn push(&mut self, unix_ms: u64, kind: EventKind, text: &str) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            unix_ms,
            kind,
            text: shown_up_to(text.as_bytes(), TEXT_CHARS_MAX),
        });
    }

    fn observe(&mut self, report: &Report) {
        let now = report.taken_unix_ms;
        match (self.is_stuck, report.is_stuck) {
            (false, true) => {
                // It began before this report, which may be the first that anybody asked for.
                let age = report.findings.first().and_then(|finding| finding.age_ms);
                let since = now.saturating_sub(age.unwrap_or(0));
                self.push(since, EventKind::Stuck, &report.headline);
            }
            (true, false) => self.push(now, EventKind::Resolved, "the job continues"),
            _ => {}
        }
        self.is_stuck = report.is_stuck;
        self.observe_nodes(report);
    }

    fn observe_nodes(&mut self, report: &Report) {
        let nodes: BTreeMap<_, _> = report
            .nodes
            .iter()
            .map(|node| {
                let name = (node.host.clone(), node.node_rank);
                (name, (node.is_connected, node.restarts))
            })
            .collect();
        let before = std::mem::replace(&mut self.nodes, nodes.clone());
        if self.launcher.is_some() {
            return;
        }
        let now = report.taken_unix_ms;
        for (name, (is_connected, restarts)) in nodes {
            let Some((was_connected, earlier)) = before.get(&name) else {
                continue;
            };
            let host = name.0;
            if *was_connected && !is_connected {
                let text = format!("lost the launcher on {host}");
                self.push(now, EventKind::NodeLost, &text);
            }
            if restarts > *earlier {
                let text = format!("the launcher on {host} restarts its workers ({restarts})");
                self.push(now, EventKind::Restart, &text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Finding, FindingKind, NodeReport};

    fn report(taken_unix_ms: u64, stuck_for_ms: Option<u64>, node: (bool, usize)) -> Report {
        let mut finding = Finding::new(FindingKind::NeverConnected, "rank 2 is missing".to_owned());
        finding.age_ms = stuck_for_ms;
        Report {
            taken_unix_ms,
            headline: "waiting for rank 2".to_owned(),
            is_stuck: stuck_for_ms.is_some(),
            findings: vec![finding],
            nodes: vec![NodeReport {
                host: "node7".to_owned(),
                is_connected: node.0,
                restarts: node.1,
                ..NodeReport::default()
            }],
            ..Report::default()
        }
    }

    fn lines(timeline: &Timeline) -> Vec<(u64, EventKind)> {
        let events = timeline.events();
        events
            .iter()
            .map(|event| (event.unix_ms, event.kind))
            .collect()
    }

    #[test]
    fn changes_between_reports_become_events() {
        let timeline = Timeline::default();
        timeline.observe(&report(1000, None, (true, 0)));
        timeline.observe(&report(5000, Some(3000), (true, 0)));
        timeline.observe(&report(6000, Some(4000), (true, 1)));
        timeline.observe(&report(7000, None, (false, 1)));
        let expected = [
            (2000, EventKind::Stuck),
            (6000, EventKind::Restart),
            (7000, EventKind::Resolved),
            (7000, EventKind::NodeLost),
        ];
        assert_eq!(lines(&timeline), expected);
    }

    #[test]
    fn a_launcher_that_adds_events_is_not_doubled() {
        let timeline = Timeline::default();
        timeline.push(EventKind::Round, "round 0: 1 node, 2 workers");
        timeline.observe(&report(1000, None, (true, 0)));
        timeline.observe(&report(6000, None, (false, 1)));
        assert_eq!(lines(&timeline).len(), 1);
    }

    #[test]
    fn memory_is_bounded_and_texts_are_printable() {
        let timeline = Timeline::default();
        for index in 0..EVENTS_MAX + 3 {
            timeline.push(
                EventKind::Note,
                format!("{index}\x1b[31m{}", "x".repeat(1000)),
            );
        }
        let events = timeline.events();
        assert_eq!(events.len(), EVENTS_MAX);
        assert!(
            events[0].text.starts_with("3\\u{1b}[31mxx"),
            "{}",
            events[0].text
        );
        assert!(
            events
                .iter()
                .all(|event| event.text.chars().count() < 2 * TEXT_CHARS_MAX)
        );
    }
}
