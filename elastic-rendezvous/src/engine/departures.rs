//! The members of the complete round that a node joined last, and how they departed from it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::engine::observations::Observations;
use crate::values::node::NodeId;
use crate::values::report::{DroppedNode, LeftNode, LostNode};
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::timestamp::Now;

/// The number of dropped nodes that are remembered for reports.
const DROPPED_MAX: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Departures {
    round: i64,
    /// The members of that round.
    world: BTreeSet<NodeId>,
    /// The nodes that are no longer members.
    departed: BTreeMap<NodeId, Departure>,
    /// The nodes that were dropped as dead and are not listed again, members or not.
    dropped: BTreeMap<NodeId, Dropped>,
    /// Lost nodes since the last [`Departures::take_newly_lost`].
    newly_lost: Vec<LostNode>,
}

/// The way in which a member has left the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Departure {
    /// The member left on its own; it may be listed again in the meantime.
    Left { is_joining: bool },
    /// This node or another dropped it, because it wrote no heartbeat.
    Lost(Dropped),
}

/// When a node was dropped as dead, and how long it had been silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dropped {
    at: Duration,
    silence: Duration,
    is_disconnected: bool,
}

impl Dropped {
    fn lost(self, node: &NodeId) -> LostNode {
        LostNode {
            node: node.clone(),
            silence: self.silence,
            is_disconnected: self.is_disconnected,
        }
    }
}

impl Departures {
    /// The node has joined the complete round of `state`.
    pub(crate) fn on_joined(&mut self, state: &RendezvousState) {
        self.round = state.round;
        self.world = state.participants.keys().cloned().collect();
        self.departed.clear();
    }

    /// The members of the round.
    pub(crate) const fn world(&self) -> &BTreeSet<NodeId> {
        &self.world
    }

    /// Whether a node was dropped as dead and is not listed again.
    pub(crate) fn has_dropped(&self, node: &NodeId) -> bool {
        self.dropped.contains_key(node)
    }

    /// Notes which members are missing in `state`, and why. The `observations` must not have adopted `state` yet, because
    /// they then forget those members. `requested_at` is when `state` was requested.
    pub(crate) fn observe(
        &mut self,
        state: &RendezvousState,
        me: &NodeId,
        observations: &Observations,
        settings: &RendezvousSettings,
        requested_at: Duration,
        now: Now,
    ) {
        // This process may have been stopped before it saw the state.
        let latest = requested_at.saturating_add(settings.keep_alive_interval);
        let moment = now.monotonic.min(latest);
        let is_same_round = state.complete && state.round == self.round;
        for node in self.world.iter().filter(|node| *node != me) {
            if is_same_round && state.participants.contains_key(node) {
                self.departed.remove(node);
                continue;
            }
            if state.last_heartbeats.contains_key(node) {
                let joining = Departure::Left { is_joining: true };
                self.departed.insert(node.clone(), joining);
                continue;
            }
            let Some(silence) = observations.silence_of(node, moment) else {
                // The node was already unlisted.
                continue;
            };
            if matches!(self.departed.get(node), Some(Departure::Lost(_))) {
                continue;
            }
            let links = &observations.links;
            let closed_since = links.closed_since(node);
            let is_disconnected = closed_since.is_some() || links.was_found_closed(node);
            let departure = if silence > settings.overdue_after() || is_disconnected {
                let dropped = Dropped {
                    at: now.monotonic,
                    silence: closed_since.map_or(silence, |at| moment.saturating_sub(at)),
                    is_disconnected,
                };
                self.newly_lost.push(dropped.lost(node));
                Departure::Lost(dropped)
            } else {
                Departure::Left { is_joining: false }
            };
            self.departed.insert(node.clone(), departure);
        }
    }

    /// Notes the nodes that this node has just dropped from `state` as dead.
    pub(crate) fn on_dropped(&mut self, dead: Vec<LostNode>, state: &RendezvousState, now: Now) {
        for lost in dead {
            let known = self.dropped.get(&lost.node).copied();
            let dropped = known.unwrap_or(Dropped {
                at: now.monotonic,
                silence: lost.silence,
                is_disconnected: lost.is_disconnected,
            });
            if self.world.contains(&lost.node) {
                let lost_member = Departure::Lost(dropped);
                self.departed.insert(lost.node.clone(), lost_member);
            }
            if known.is_none() {
                if self.dropped.len() == DROPPED_MAX {
                    self.dropped.pop_first();
                }
                self.dropped.insert(lost.node.clone(), dropped);
                self.newly_lost.push(lost);
            }
        }
        self.dropped
            .retain(|node, _| !state.last_heartbeats.contains_key(node));
    }

    /// The lost members, and those that left.
    pub(crate) fn lost_and_left(&self) -> (Vec<LostNode>, Vec<LeftNode>) {
        let (mut lost, mut left) = (Vec::new(), Vec::new());
        for (node, departure) in &self.departed {
            match *departure {
                Departure::Left { is_joining } => {
                    left.push(LeftNode::new(node.clone(), is_joining))
                }
                Departure::Lost(dropped) => lost.push(dropped.lost(node)),
            }
        }
        (lost, left)
    }

    /// The members that left and are on no list.
    pub(crate) fn absent(&self) -> Vec<NodeId> {
        let departed = self.departed.iter();
        let absent = departed.filter(|(_, it)| **it == Departure::Left { is_joining: false });
        absent.map(|(node, _)| node.clone()).collect()
    }

    /// All dropped nodes, and the lost members.
    pub(crate) fn all_dropped(&self, now: Now) -> Vec<DroppedNode> {
        let mut all = self.dropped.clone();
        for (node, departure) in &self.departed {
            if let Departure::Lost(dropped) = departure {
                all.entry(node.clone()).or_insert(*dropped);
            }
        }
        let dropped = all.into_iter().map(|(node, dropped)| DroppedNode {
            node,
            silence: dropped.silence,
            ago: now.monotonic.saturating_sub(dropped.at),
        });
        dropped.collect()
    }

    /// Takes the newly lost nodes since the last call.
    pub(crate) fn take_newly_lost(&mut self) -> Vec<LostNode> {
        std::mem::take(&mut self.newly_lost)
    }
}
