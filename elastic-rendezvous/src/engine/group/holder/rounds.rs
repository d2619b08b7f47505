//! The last complete rounds, and which of their members have departed. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::engine::group::message::Summary;
use crate::engine::last_round::Loss;
use crate::engine::observations::Observations;
use crate::values::node::NodeId;
use crate::values::report::LostNode;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::timestamp::Now;

#[derive(Debug, Default)]
pub(super) struct Rounds {
    world: Option<World>,
    /// The complete round before it.
    world_before: Option<World>,
    /// The members of the world that have departed from it.
    departures: BTreeMap<NodeId, Departure>,
    /// The nodes that were dropped and are not listed again, with their silence.
    dropped: BTreeMap<NodeId, Duration>,
    /// The summary of the holder before, until a round is known.
    inherited: Option<Summary>,
}

/// A round whose members are known.
#[derive(Debug, Clone, Default)]
struct World {
    round: i64,
    nodes: BTreeSet<NodeId>,
}

/// The way in which a member has left.
#[derive(Debug, Clone, Copy)]
enum Departure {
    Left,
    Lost(Duration),
}

impl Rounds {
    /// Adopts the stored summary, which names the nodes that have departed before.
    pub(super) fn inherit(&mut self, summary: Option<Summary>) {
        if self.world.is_none() {
            self.inherited = summary;
        }
    }

    pub(super) fn on_dropped(&mut self, silent: &[LostNode]) {
        let silent = silent.iter().map(|it| (it.node.clone(), it.silence));
        self.dropped.extend(silent);
    }

    /// Whether a member of the last round, which is not listed, counts as lost.
    pub(super) fn loss_of(&self, node: &NodeId, now: Now) -> Option<Loss> {
        self.has_dropped(node).then_some(Loss {
            from: now.monotonic,
            is_of_connection: false,
        })
    }

    pub(super) fn has_dropped(&self, node: &NodeId) -> bool {
        self.dropped.contains_key(node)
    }

    /// Notes the members of a complete round, and which have departed since. The state is the stored one.
    pub(super) fn observe(
        &mut self,
        state: &RendezvousState,
        observations: &Observations,
        settings: &RendezvousSettings,
        now: Now,
    ) {
        let is_new = state.complete && self.world.as_ref().is_none_or(|it| it.round != state.round);
        if is_new {
            let world = World {
                round: state.round,
                nodes: state.participants.keys().cloned().collect(),
            };
            self.world_before = self.world.replace(world);
            self.departures.clear();
            self.inherit_departures(state);
        }
        self.dropped
            .retain(|node, _| !state.last_heartbeats.contains_key(node));
        let Some(world) = &self.world else { return };
        let is_same_round = state.complete && state.round == world.round;
        for node in &world.nodes {
            let is_here = is_same_round && state.participants.contains_key(node);
            if is_here || self.departures.contains_key(node) {
                continue;
            }
            let silence = self.dropped.get(node).copied().or_else(|| {
                let silence = observations.silence_of(node, now.monotonic)?;
                (silence > settings.overdue_after()).then_some(silence)
            });
            let departure = silence.map_or(Departure::Left, Departure::Lost);
            self.departures.insert(node.clone(), departure);
        }
    }

    /// Adopts the departures from the round that the holder before has named.
    fn inherit_departures(&mut self, state: &RendezvousState) {
        let Some(summary) = self.inherited.take() else {
            return;
        };
        if !summary.is_complete || summary.round != state.round {
            return;
        }
        let lost = summary.lost.named.into_iter();
        let lost = lost.map(|(node, silence)| (node, Departure::Lost(silence)));
        let left = summary.left.named.into_iter();
        let left = left.map(|(node, _)| (node, Departure::Left));
        let is_gone = |(node, _): &(NodeId, _)| !state.participants.contains_key(node);
        self.departures.extend(lost.chain(left).filter(is_gone));
    }

    /// The members of the round before the open one of `state`; `None` if none is known.
    pub(super) fn members_before(&self, state: &RendezvousState) -> Option<&BTreeSet<NodeId>> {
        let before = self.world.as_ref().filter(|it| it.round < state.round);
        before.map(|world| &world.nodes)
    }

    /// An earlier round with the same nodes as the complete one of `state`; -1 if none is known.
    pub(super) fn same_as(&self, state: &RendezvousState) -> i64 {
        let before = self.world.as_ref().filter(|it| it.round != state.round);
        let is_same = |world: &&World| {
            let is_here = |node| state.participants.contains_key(node);
            world.nodes.len() == state.participants.len() && world.nodes.iter().all(is_here)
        };
        let before = before.or(self.world_before.as_ref()).filter(is_same);
        before.map_or(-1, |world| world.round)
    }

    pub(super) fn summary(
        &self,
        state: &RendezvousState,
        settings: &RendezvousSettings,
        epoch: u64,
    ) -> Summary {
        let departed = self.departures.iter();
        let lost = departed
            .clone()
            .filter_map(|(node, departure)| match departure {
                Departure::Lost(silence) => Some((node.clone(), *silence)),
                Departure::Left => None,
            });
        let left = departed.filter_map(|(node, departure)| match departure {
            Departure::Left => Some((node.clone(), state.last_heartbeats.contains_key(node))),
            Departure::Lost(_) => None,
        });
        let is_full = state.complete && state.participants.len() >= settings.max_nodes;
        let waiting = state.wait_list.iter().filter(|_| !is_full);
        Summary {
            epoch,
            round: state.round,
            is_complete: state.complete,
            is_closed: state.closed,
            joined: state.participants.len(),
            waiting: waiting.cloned().collect(),
            lost: lost.collect(),
            left: left.collect(),
            ..Summary::default()
        }
    }
}
