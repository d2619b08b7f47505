//! The simulated rendezvous.

use std::collections::BTreeSet;
use std::time::Duration;

use elastic_rendezvous::{LeftNode, LostNode, Membership, NodeId};

use super::super::input::Input;
use super::meeting::Meeting;
use super::numbers::Numbers;
use super::world::{Doing, Node, World};

impl World {
    pub(super) fn can_meet(&self) -> bool {
        let joining = |node: &&Node| node.joins() && node.signal.is_none();
        let ready = self.nodes.iter().filter(joining).count();
        let live = self.nodes.iter();
        let is_away = |it: &Node| {
            matches!(
                it.doing,
                Doing::Absent | Doing::Checking | Doing::Over | Doing::Lost
            )
        };
        let live = live.filter(|it| !is_away(it));
        let is_old_round_over = self
            .meeting
            .members
            .iter()
            .all(|it| self.meeting.left.contains(it) || self.meeting.lost.contains(it));
        ready >= self.nodes_min
            && ready == live.count()
            && is_old_round_over
            && !self.is_closed
            && !self.is_store_down
    }

    pub(super) fn meet(&mut self) {
        let nodes = self.nodes.iter().enumerate();
        let members: BTreeSet<usize> = nodes
            .filter(|(_, node)| node.joins())
            .map(|(index, _)| index)
            .take(self.nodes_max)
            .collect();
        // Spares.
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if node.joins() && !members.contains(&index) {
                node.doing = Doing::Entering;
            }
        }
        self.meeting = Meeting {
            number: self.meeting.number + 1,
            members: members.clone(),
            first: members.clone(),
            ..Meeting::default()
        };
        self.numbers = Numbers::default();
        for index in members.iter().copied() {
            self.nodes[index].begin_round();
            let before = std::mem::replace(&mut self.nodes[index].members[0], members.clone());
            self.nodes[index].members[1] = before;
            self.nodes[index].has_entered = false;
            self.nodes[index].has_news = false;
            self.step(index, self.joined(index, members.len()));
        }
    }

    fn present(&self) -> usize {
        let gone = self.meeting.left.union(&self.meeting.lost);
        self.meeting.members.len() - gone.count()
    }

    fn is_running(&self) -> bool {
        self.present() > 0 && !self.is_closed && !self.is_store_down
    }

    /// Whether the running round takes a node in.
    pub(super) fn takes_nodes_in(&self) -> bool {
        self.is_running()
            && self.present() < self.nodes_max
            && self.meeting.started == self.meeting.first
            && !self.meeting.is_entry_over
    }

    /// Whether a node waits for the next round, as this one was not opened for long.
    pub(super) fn is_unopened(&self) -> bool {
        self.is_running()
            && self.present() < self.nodes_max
            && self.meeting.started != self.meeting.first
            && !self.meeting.is_entry_over
    }

    /// Whether a node of a job that keeps workers is a spare of a closed rendezvous.
    pub(super) fn is_spare(&self, index: usize) -> bool {
        let is_entering = self.nodes[index].doing == Doing::Entering;
        is_entering && self.is_closed && !self.is_store_down
    }

    pub(super) fn enter(&mut self, index: usize) {
        self.meeting.members.insert(index);
        self.meeting.left.remove(&index);
        self.meeting.lost.remove(&index);
        let nodes = self.present();
        let node = &mut self.nodes[index];
        node.begin_round();
        node.has_news = false;
        node.has_entered = true;
        self.tell_members();
        self.step(index, self.joined(index, nodes));
    }

    fn joined(&self, index: usize, nodes: usize) -> Input {
        let [members, before] = &self.nodes[index].members;
        let has_lost = !before.is_subset(members);
        Input::Joined { nodes, has_lost }
    }

    pub(super) fn is_member(&self, index: usize) -> bool {
        self.meeting.members.contains(&index) && !self.meeting.left.contains(&index)
    }

    /// Whether the health check of a node can fail: it has workers to restart, and no signal has arrived.
    pub(super) fn can_sicken(&self, node: &Node) -> bool {
        self.has_health_checks
            && node.doing == Doing::Joining
            && node.round.has_had_workers
            && node.signal.is_none()
    }

    /// Whether other nodes of this node's round have left.
    pub(super) fn is_changed(&self, index: usize) -> bool {
        let gone = self.meeting.left.union(&self.meeting.lost);
        self.is_member(index) && gone.count() > 0 && !self.is_store_down
    }

    pub(super) fn are_all_preparing(&self) -> bool {
        let mut members = self.meeting.members.iter();
        members.all(|it| {
            !matches!(
                self.nodes[*it].doing,
                Doing::Checking | Doing::Joining | Doing::Lost | Doing::Over
            )
        })
    }

    pub(super) fn tell_members(&mut self) {
        for index in self.meeting.members.clone() {
            self.nodes[index].has_news = true;
        }
    }

    pub(super) fn close(&mut self) {
        if !self.is_closed {
            self.is_closed = true;
            self.is_closed_with_reason = self.meeting.job_end.is_some();
        }
        self.tell_members();
    }

    pub(super) fn lose(&mut self, index: usize) {
        if self.is_member(index) {
            self.meeting.lost.insert(index);
        }
    }

    /// Whether the other nodes can drop this node while it runs.
    pub(super) fn can_cut_off(&self, index: usize) -> bool {
        self.is_running() && self.is_member(index) && self.present() > 1
    }

    pub(super) fn leave(&mut self, index: usize) {
        if self.is_member(index) {
            self.meeting.left.insert(index);
            self.tell_members();
        }
    }

    pub(super) fn membership(&self, index: usize) -> Option<Box<Membership>> {
        if self.is_store_down {
            return None;
        }
        let id = |index: &usize| NodeId::new(format!("node{index}"), 1, 0);
        let others = |set: &BTreeSet<usize>| -> Vec<NodeId> {
            set.iter().filter(|it| **it != index).map(id).collect()
        };
        let mut membership = Membership::default();
        membership.members = Some(self.present());
        membership.is_closed = self.is_closed;
        membership.is_evicted = self.meeting.lost.contains(&index);
        let lost = others(&self.meeting.lost).into_iter();
        membership.lost = lost
            .map(|node| LostNode::new(node, Duration::from_secs(60)))
            .collect();
        let left = others(&self.meeting.left).into_iter();
        let is_joining = |node: &NodeId| {
            let mut others = self.nodes.iter().enumerate();
            others.any(|(other, it)| it.joins() && id(&other) == *node)
        };
        membership.left = left
            .map(|node| {
                let is_joining = is_joining(&node);
                LeftNode::new(node, is_joining)
            })
            .collect();
        let nodes = self.nodes.iter().enumerate();
        let waiting = nodes.filter(|(_, node)| node.doing == Doing::Joining);
        membership.waiting = waiting.map(|(index, _)| id(&index)).collect();
        Some(Box::new(membership))
    }
}
