//! The properties that hold in every history.

use super::super::RoundEnding;
use super::super::input::RoundSummary;
use super::super::outcome::AgentOutcome;
use super::world::{ABORT, Doing, FINISHED, World};
use crate::round::outcome::AgentError;

impl World {
    pub(super) fn check_round(&mut self, index: usize, summary: &RoundSummary) {
        let has_finished = self.meeting.group == FINISHED;
        let node = &mut self.nodes[index];
        let used = node.round.policy.used();
        assert!(
            used <= node.faults,
            "node {index} used {used} restarts for {} failures",
            node.faults
        );
        let counted = used - node.restarts - node.replaced;
        assert!(counted <= 1, "one failure uses one restart");
        if summary.ending == RoundEnding::Stuck && counted > 0 {
            self.meeting.counted += 1;
            assert!(
                self.meeting.counted == 1 || self.meeting.was_down,
                "two nodes count a restart for one standstill"
            );
        }
        node.restarts_before = node.restarts;
        node.restarts = used;
        node.replaced = 0;
        if summary.ending == RoundEnding::Succeeded {
            assert!(node.have_all_succeeded(has_finished), "node {index}");
        }
    }

    /// A restart counts only if all members of the last round are back.
    pub(super) fn check_count(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let used = node.round.policy.used();
        let [members, before] = &node.members;
        if node.round.settings.loss_wait.is_some() && !before.is_subset(members) {
            assert_eq!(
                used, node.restarts_before,
                "node {index} counts a restart although a node is gone"
            );
        } else {
            assert_eq!(used, node.restarts, "node {index} forgets a restart");
        }
        node.restarts = used;
        node.restarts_before = used;
    }

    pub(super) fn finish(&mut self, index: usize, outcome: Result<AgentOutcome, AgentError>) {
        let has_finished = self.meeting.group == FINISHED;
        let node = &mut self.nodes[index];
        node.doing = Doing::Over;
        match &outcome {
            Ok(AgentOutcome::Succeeded) => {
                assert!(node.have_all_succeeded(has_finished), "node {index}");
            }
            Ok(AgentOutcome::Failed(failures)) => {
                assert!(node.faults > 0, "node {index}");
                let left = node.round.policy.left(self.now);
                let at_exit = failures.all().iter().all(|it| it.exit.code() == ABORT);
                assert!(
                    left == 0 || at_exit,
                    "node {index} gives up with restarts left"
                );
                assert!(
                    self.meeting.job_end.is_some() || self.meeting.was_down,
                    "node {index} has failed and tells no other node"
                );
                let is_elastic =
                    node.round.settings.loss_wait.is_some() && self.meeting.finished.is_empty();
                let is_any_lost = self.meeting.lost.iter().any(|lost| *lost != index);
                assert!(
                    !is_elastic || !is_any_lost || self.is_store_down || self.is_closed,
                    "node {index} fails although another one is lost"
                );
            }
            Ok(AgentOutcome::Signalled { signal, .. }) => {
                assert_eq!(Some(*signal), node.signal, "node {index}");
            }
            _ => {}
        }
        if self.meeting.job_end.is_some() && !self.is_store_down && self.is_member(index) {
            // Some cannot start their workers, which is the reason.
            let knows = !matches!(
                outcome,
                Err(AgentError::Rendezvous(_) | AgentError::Board(_)) | Ok(AgentOutcome::NotNeeded)
            );
            assert!(
                knows,
                "node {index} does not know why the job ended: {outcome:?}"
            );
        }
        let node = &mut self.nodes[index];
        let exits_with_0 = matches!(
            outcome,
            Ok(AgentOutcome::Succeeded | AgentOutcome::NotNeeded)
        );
        assert!(
            !(node.knows_of_failure && exits_with_0),
            "node {index} succeeds although it knew that the job had failed"
        );
        let is_signalled = matches!(outcome, Ok(AgentOutcome::Signalled { .. }));
        node.outcome = Some(outcome.map_err(|error| error.to_string()));
        // Launchers do the same.
        if !is_signalled {
            if self.is_store_down {
                self.is_close_lost = true;
                // The node's heartbeats stop.
                self.lose(index);
                self.tell_members();
            } else {
                self.close();
            }
        }
        if is_signalled {
            self.leave(index);
        }
    }

    /// Checks the properties that must hold when all nodes have finished.
    pub(super) fn check_end(&self) {
        let ended: Vec<_> = self
            .nodes
            .iter()
            .filter_map(|it| it.outcome.as_ref())
            .collect();
        let is_end =
            |it: &&&Result<AgentOutcome, String>| !matches!(it, Ok(AgentOutcome::Signalled { .. }));
        assert!(
            self.is_closed || self.is_close_lost || ended.iter().filter(is_end).count() == 0,
            "the job has ended, and the rendezvous is open: {ended:?}"
        );
        for (index, node) in self.nodes.iter().enumerate() {
            assert!(
                node.outcome.is_some() || matches!(node.doing, Doing::Absent | Doing::Lost),
                "node {index} has no outcome"
            );
        }
    }
}
