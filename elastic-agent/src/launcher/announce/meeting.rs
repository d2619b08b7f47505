//! The announcements that a launcher sends to the stores while it waits for other nodes. Pure.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use c10d_inspect::{AnnouncedMeeting, AnnouncedNode};
use elastic_rendezvous::RendezvousEvent;

use super::roster::NodeIdentity;

/// Nodes that meet sooner announce nothing.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(2);

/// Maximum number of nodes that connect to the rendezvous' store within [`ANNOUNCED_AFTER`].
const NODES_AT_ONCE: usize = 32;

/// A changed meeting is announced again after `CHANGE_INTERVAL`, and an unchanged meeting after `RENEWAL`, because a
/// large rendezvous reports every 10 s.
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);
const RENEWAL: Duration = Duration::from_secs(9);

/// A report of a rendezvous to this node.
#[derive(Debug, Clone)]
pub(super) struct MeetingReport {
    meeting: AnnouncedMeeting,
    node_rank: Option<usize>,
    nodes_max: usize,
}

/// The meeting that this node waits in, and its last announcement.
#[derive(Debug, Default)]
pub(super) struct Meeting {
    now: Option<(MeetingReport, Instant)>,
    announced: Option<(AnnouncedMeeting, Instant)>,
}

impl MeetingReport {
    /// Returns the report in an event about a meeting that this node waits in; `None` for other events.
    pub(super) fn of(event: &RendezvousEvent<'_>) -> Option<Self> {
        let (waited, nodes_max, node_rank, mut meeting) = match event {
            // A node outside of a complete round waits for the next round, while the job runs.
            RendezvousEvent::Waiting(report) if !report.is_complete => {
                let mut meeting = AnnouncedMeeting::default();
                meeting.round = report.round;
                meeting.missing = report.missing();
                meeting.text = report.to_string();
                (report.waited, report.max_nodes, None, meeting)
            }
            // Before it is connected there is no store to tell.
            RendezvousEvent::WaitingForRanks(report) if report.is_connected => {
                let mut meeting = AnnouncedMeeting::default();
                meeting.missing = report.missing();
                meeting.text = report.to_string();
                (report.waited, report.world_size, Some(report.rank), meeting)
            }
            _ => return None,
        };
        meeting.waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        Some(Self {
            meeting,
            node_rank,
            nodes_max,
        })
    }
}

impl Meeting {
    /// Takes a report, and returns whether to announce it.
    pub(super) fn note(
        &mut self,
        report: MeetingReport,
        identity: &NodeIdentity,
        now: Instant,
    ) -> bool {
        let waited = Duration::from_millis(report.meeting.waited_ms);
        let is_alike = |one: &AnnouncedMeeting, other: &AnnouncedMeeting| {
            (one.round, one.missing, &one.text) == (other.round, other.missing, &other.text)
        };
        let is_due = match &self.announced {
            None => waited >= patience(identity, report.nodes_max),
            Some((before, at)) => {
                let interval = if is_alike(before, &report.meeting) {
                    RENEWAL
                } else {
                    CHANGE_INTERVAL
                };
                now.saturating_duration_since(*at) >= interval
            }
        };
        if is_due {
            self.announced = Some((report.meeting.clone(), now));
        }
        self.now = Some((report, now));
        is_due
    }

    /// Notes that the meeting is over.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// The meeting, for an announcement at `now`; `None` until it is due.
    pub(super) fn announced(&self, now: Instant) -> Option<AnnouncedMeeting> {
        self.announced.as_ref()?;
        let (report, at) = self.now.as_ref()?;
        let mut meeting = report.meeting.clone();
        let since = now.saturating_duration_since(*at).as_millis();
        meeting.waited_ms += u64::try_from(since).unwrap_or(u64::MAX - meeting.waited_ms);
        Some(meeting)
    }

    /// The announcement to a store that workers do not use yet, or never.
    pub(super) fn announcement(&self, identity: &NodeIdentity, now: Instant) -> AnnouncedNode {
        let mut node = AnnouncedNode::default();
        node.host.clone_from(&identity.host);
        node.pid = identity.pid;
        node.run_id.clone_from(&identity.run_id);
        node.node_rank = self.now.as_ref().and_then(|(report, _)| report.node_rank);
        node.meeting = self.announced(now);
        node
    }
}

/// How long a node waits before it announces that. The more nodes there can be, the further apart they connect, so
/// that thousands that wait for one do not all connect at once.
fn patience(identity: &NodeIdentity, nodes_max: usize) -> Duration {
    let mut hasher = DefaultHasher::new();
    (&identity.host, identity.pid).hash(&mut hasher);
    let groups = u32::try_from(nodes_max.div_ceil(NODES_AT_ONCE).max(1)).unwrap_or(u32::MAX);
    let group = u32::try_from(hasher.finish() % u64::from(groups)).unwrap_or(0);
    ANNOUNCED_AFTER.saturating_mul(group.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(pid: u32) -> NodeIdentity {
        NodeIdentity {
            host: "vm".to_owned(),
            pid,
            run_id: "job".to_owned(),
            addresses: Vec::new(),
            debug_sockets: None,
            explain_after: None,
        }
    }

    fn report(waited_s: u64, text: &str, nodes_max: usize) -> MeetingReport {
        let mut meeting = AnnouncedMeeting::default();
        meeting.missing = 1;
        meeting.text = text.to_owned();
        meeting.waited_ms = waited_s * 1000;
        MeetingReport {
            meeting,
            node_rank: None,
            nodes_max,
        }
    }

    #[test]
    fn a_wait_is_announced_after_2_s_then_when_it_changes_and_every_9_s() {
        let start = Instant::now();
        let mut meeting = Meeting::default();
        let mut announced = Vec::new();
        for second in 0..30 {
            let now = start + Duration::from_secs(second);
            let text = if second < 5 { "a" } else { "b" };
            if meeting.note(report(second, text, 2), &identity(1), now) {
                announced.push(second);
            }
        }
        assert_eq!(announced, [2, 5, 14, 23]);
        let later = start + Duration::from_secs(31);
        let node = meeting.announcement(&identity(1), later);
        assert_eq!(node.meeting.unwrap().waited_ms, 31_000);
        meeting.end();
        assert_eq!(meeting.announcement(&identity(1), later).meeting, None);
        // The next meeting is a new one.
        assert!(!meeting.note(report(1, "c", 2), &identity(1), later));
        assert_eq!(meeting.announced(later), None);
    }

    #[test]
    fn thousands_of_nodes_connect_one_after_the_other() {
        let first = |pid| patience(&identity(pid), 4096);
        let mut within = [0; 128];
        for pid in 0..4096 {
            let group = first(pid).as_secs() / ANNOUNCED_AFTER.as_secs() - 1;
            within[usize::try_from(group).unwrap()] += 1;
        }
        assert!(
            within.iter().all(|&nodes| nodes < 3 * NODES_AT_ONCE),
            "{within:?}"
        );
        assert!((0..100).all(|pid| patience(&identity(pid), 32) == ANNOUNCED_AFTER));
        assert!(patience(&identity(1), usize::MAX) > ANNOUNCED_AFTER);
    }
}
