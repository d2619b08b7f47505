//! The meetings of nodes that launchers wait in.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::announced::AnnouncedMeeting;
use crate::job::Job;
use crate::launched::Node;
use crate::text;

/// A launcher that waits renews its announcement within 10 s, so an older one tells nothing about the present.
const RENEWAL_MAX: Duration = Duration::from_secs(30);

/// The most meetings that are told: one store can serve many runs.
const MEETINGS_MAX: usize = 8;

/// The most characters of a launcher's text: 16 names of nodes in each of some lists.
const TEXT_CHARS_MAX: usize = 1200;

/// A meeting, as the launcher tells it that knows most.
#[derive(Debug)]
pub(crate) struct Meeting<'l> {
    node: &'l Node,
    pub(crate) announced: &'l AnnouncedMeeting,
    /// Since when a launcher waits, since the server's start.
    pub(crate) since: Duration,
}

/// The meetings of all runs that are not complete, the longest wait first.
pub(crate) fn meetings<'l>(job: &Job<'l>) -> Vec<Meeting<'l>> {
    let mut by_run: BTreeMap<&str, Meeting<'l>> = BTreeMap::new();
    for node in &job.launched.nodes {
        let Some(announced) = &node.announced.meeting else {
            continue;
        };
        if node.closed.is_some() || job.ago(node.at) > RENEWAL_MAX {
            continue;
        }
        let mut meeting = Meeting {
            node,
            announced,
            since: node
                .at
                .saturating_sub(Duration::from_millis(announced.waited_ms)),
        };
        let run = node.announced.run_id.as_str();
        if let Some(other) = by_run.remove(run) {
            if other.announced.round == announced.round {
                meeting.since = meeting.since.min(other.since);
            }
            if other.knowledge() > meeting.knowledge() {
                meeting = Meeting {
                    since: meeting.since,
                    ..other
                };
            }
        }
        by_run.insert(run, meeting);
    }
    let mut meetings: Vec<Meeting<'l>> = by_run.into_values().collect();
    meetings.sort_by_key(|meeting| meeting.since);
    meetings.truncate(MEETINGS_MAX);
    meetings
}

impl Meeting<'_> {
    /// Which nodes have joined and which are missing.
    pub(crate) fn text(&self) -> String {
        text::shown_up_to(self.announced.text.as_bytes(), TEXT_CHARS_MAX)
    }

    /// Greater for those that know more: of a later round; node rank 0, which knows the names of all; newer.
    fn knowledge(&self) -> (i64, bool, Duration) {
        let is_first = self.node.announced.node_rank == Some(0);
        (self.announced.round, is_first, self.node.at)
    }
}
