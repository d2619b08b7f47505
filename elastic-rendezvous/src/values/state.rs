//! The value that all nodes of a rendezvous share.
//!
//! `codec` has its encoding, `decide` the rules for changes.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use crate::values::node::NodeId;
use crate::values::timestamp::Timestamp;

/// The state of a rendezvous: the one value that all its nodes read and replace.
///
/// The maps keep the order of insertion, as Python's do. In PyTorch: `_RendezvousState`
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RendezvousState {
    /// The current round, counted from 0.
    pub round: i64,
    /// Whether the round is complete: no node can join it, and its ranks are assigned.
    pub complete: bool,
    /// The end of the last call: `min_nodes` have joined, further nodes may join until then.
    pub deadline: Option<Timestamp>,
    /// Whether the rendezvous is closed: there are no more rounds.
    pub closed: bool,
    /// The nodes of the round and their ranks; all ranks are 0 until it is complete.
    pub participants: IndexMap<NodeId, i64>,
    /// The nodes that wait for the next round.
    pub wait_list: BTreeSet<NodeId>,
    /// The spare nodes, for which the round has no place.
    pub redundancy_list: BTreeSet<NodeId>,
    /// When each listed node wrote its last heartbeat, by its own wall clock.
    pub last_heartbeats: IndexMap<NodeId, Timestamp>,
    /// How the writer of the state encodes times. An answer in the other style would be unreadable to it.
    pub datetime_style: DatetimeStyle,
}

/// Whether times in the encoded state name their time zone. PyTorch fails on the style of another release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DatetimeStyle {
    /// With the time zone UTC, as current PyTorch writes.
    #[default]
    Aware,
    /// Without a time zone, meaning UTC, as old PyTorch wrote.
    Naive,
}
