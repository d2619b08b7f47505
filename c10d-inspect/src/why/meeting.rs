//! Launchers that wait for other nodes. The keys of the store do not show this wait.

use std::collections::BTreeMap;
use std::time::Duration;

use super::draft::Draft;
use crate::announced::AnnouncedMeeting;
use crate::job::{Job, WAIT_GRACE};
use crate::launched::Node;
use crate::report::FindingKind;
use crate::text;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    for meeting in meetings(job) {
        let waited = job.ago(meeting.since);
        let missing = meeting.announced.missing;
        if missing == 0 || waited < WAIT_GRACE {
            continue;
        }
        let text = format!(
            "Waiting for {} for {}: {}.",
            text::count(missing, "node"),
            text::age(waited),
            meeting.text()
        );
        drafts.push(Draft::new(FindingKind::NodesMissing, text, meeting.since));
    }
}

/// A launcher that waits renews its announcement within 10 s, so an older announcement is not about the present.
const RENEWAL_MAX: Duration = Duration::from_secs(30);

/// The most meetings that are told: one store can serve many runs.
const MEETINGS_MAX: usize = 8;

/// The most characters of a launcher's text: 16 names of nodes in each of some lists.
const TEXT_CHARS_MAX: usize = 1200;

/// A meeting, by the announcement of the launcher with the most information.
#[derive(Debug)]
pub(crate) struct Meeting<'l> {
    node: &'l Node,
    announced: &'l AnnouncedMeeting,
    /// When the launcher began to wait, counted from the server's start.
    since: Duration,
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
    /// The names of the nodes that have joined, and of the missing nodes.
    pub(crate) fn text(&self) -> String {
        text::shown_up_to(self.announced.text.as_bytes(), TEXT_CHARS_MAX)
    }

    /// Greater for an announcement with more information: of a later round; of node rank 0, which has all names; newer.
    fn knowledge(&self) -> (i64, bool, Duration) {
        let is_first = self.node.announced.node_rank == Some(0);
        (self.announced.round, is_first, self.node.at)
    }
}

#[cfg(test)]
mod tests {
    use crate::announced::{AnnouncedMeeting, AnnouncedNode};
    use crate::report::FindingKind;
    use crate::sim::Script;

    fn waiting(run_id: &str, pid: u32, missing: usize, text: &str) -> AnnouncedNode {
        let meeting = AnnouncedMeeting {
            missing,
            text: text.to_owned(),
            waited_ms: 3000,
            ..AnnouncedMeeting::default()
        };
        AnnouncedNode {
            host: "vm".to_owned(),
            pid,
            run_id: run_id.to_owned(),
            meeting: Some(meeting),
            ..AnnouncedNode::default()
        }
    }

    const ONE: &str = "1 of 2 nodes has joined round 0 of run \"job\": vm (pid 50)";

    #[test]
    fn nodes_that_wait_for_others_are_stuck_until_they_have_come() {
        let mut script = Script::new();
        let address = script.address();
        let launcher = script.store.connect(address, 0xC10D_0000);
        script.store.announce(launcher, &waiting("job", 50, 1, ONE));
        script.pass(9.0);
        let report = script.report();
        assert!(report.is_stuck);
        assert_eq!(report.findings[0].kind, FindingKind::NodesMissing);
        assert_eq!(report.findings[0].age_ms, Some(12_000));
        assert_eq!(
            report.headline,
            format!("Waiting for 1 node for 12 s: {ONE}.")
        );
        // Enough nodes, which wait for more.
        script.store.announce(launcher, &waiting("job", 50, 0, ONE));
        let report = script.report();
        assert!(!report.is_stuck);
        assert_eq!(report.headline, format!("The nodes meet: {ONE}."));
        // The launcher has ended.
        script.store.announce(launcher, &waiting("job", 50, 1, ONE));
        script.store.close(launcher);
        let report = script.report();
        assert!(!report.is_stuck, "{}", report.headline);
        assert!(report.nodes.is_empty());
    }

    #[test]
    fn an_announcement_that_is_not_renewed_tells_nothing() {
        let mut script = Script::new();
        let address = script.address();
        let launcher = script.store.connect(address, 0xC10D_0000);
        script.store.announce(launcher, &waiting("job", 50, 1, ONE));
        script.pass(31.0);
        assert!(!script.report().is_stuck);
    }

    #[test]
    fn of_several_launchers_the_one_that_knows_most_is_heard() {
        let mut script = Script::new();
        let mut say = |pid, node_rank, round, text: &str| {
            let address = script.address();
            let launcher = script.store.connect(address, 0xC10D_0000);
            let mut node = waiting("job", pid, 1, text);
            node.node_rank = node_rank;
            let meeting = node.meeting.as_mut().unwrap();
            meeting.round = round;
            script.store.announce(launcher, &node);
        };
        say(50, None, 0, "of an earlier round");
        say(51, Some(0), 1, "all names");
        say(52, Some(1), 1, "no names");
        let report = script.report();
        assert_eq!(report.findings.len(), 1);
        assert_eq!(report.headline, "Waiting for 1 node for 3 s: all names.");
    }

    #[test]
    fn words_of_strangers_are_escaped_and_cut() {
        let mut script = Script::new();
        for run in 0..100 {
            let address = script.address();
            let launcher = script.store.connect(address, 0xC10D_0000);
            let mut node = waiting(&run.to_string(), 50, 1, &"\x1b[2J\u{202e}".repeat(10_000));
            let meeting = node.meeting.as_mut().unwrap();
            meeting.waited_ms = u64::MAX;
            meeting.missing = usize::MAX;
            script.store.announce(launcher, &node);
        }
        let report = script.report();
        assert_eq!(report.findings.len(), 8);
        assert!(report.headline.len() < 20_000);
        let is_safe = |c: char| !c.is_control() && c != '\u{202e}';
        assert!(report.headline.chars().all(is_safe));
    }

    /// The workers of the round before were stopped by their launcher.
    #[test]
    fn nodes_that_meet_again_come_before_what_the_workers_did() {
        let mut script = Script::new();
        let ranks = script.run_all(2);
        let (launcher, mut node) = script.launch(&ranks);
        script.close(&ranks[1]);
        script.pass(20.0);
        node.meeting = waiting("run", 50, 1, ONE).meeting;
        script.store.announce(launcher, &node);
        let report = script.report();
        assert_eq!(report.findings[0].kind, FindingKind::NodesMissing);
        assert!(report.is_stuck);
    }

    #[test]
    fn a_rendezvous_names_the_store_of_its_workers_and_has_no_ranks_of_its_own() {
        let mut script = Script::new();
        let address = script.address();
        let launcher = script.store.connect(address, 0xC10D_0000);
        let mut set = |key: &str, value: &[u8]| {
            let key = format!("/torch.rendezvous.job.0/{key}");
            script.store.set(launcher, &key, value);
        };
        set("torchelastic/assigned_ranks/0", b"[0, 2, 0, 2]");
        set("MASTER_ADDR", b"node0");
        set("MASTER_PORT", b"4000");
        script.pass(20.0);
        let report = script.report();
        assert_eq!(report.workers_stores[0].address, "node0:4000");
        assert_eq!((report.world_size, report.ranks.len()), (None, 0));
        assert_eq!(
            report.headline,
            "The workers of run \"job\" use another store, node0:4000. Their nodes only meet at this one."
        );
        assert!(!report.is_stuck);
        // Workers that use this store after all.
        script.run_all(2);
        let report = script.report();
        assert_eq!(report.workers_stores, []);
        assert_eq!(report.world_size, Some(2));
    }
}
