//! What the nodes agree on, as a plain value.
//!
//! Knows no bytes (`codec`), no rules of who may do what (`decide`), no clock.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use crate::node::NodeId;
use crate::timestamp::Timestamp;

/// The state of a rendezvous, the one value that all its nodes read and replace.
///
/// The maps keep the order of insertion, as Python's do. In PyTorch: `_RendezvousState`
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RendezvousState {
    /// The present round, counted from 0.
    pub round: i64,
    /// Whether the round is closed for joining and its ranks are given.
    pub complete: bool,
    /// The end of the last call: enough nodes are there, more may come until then.
    pub deadline: Option<Timestamp>,
    /// Whether there will be no more rounds.
    pub closed: bool,
    /// The nodes of the round and their ranks, 0 for all until it is complete.
    pub participants: IndexMap<NodeId, i64>,
    /// The nodes that want to be in the next round.
    pub wait_list: BTreeSet<NodeId>,
    /// The spare nodes, for which the round has no room.
    pub redundancy_list: BTreeSet<NodeId>,
    /// When each live node last said that it lives.
    pub last_heartbeats: IndexMap<NodeId, Timestamp>,
    /// How whoever wrote the state writes its times, so that they can read the answer.
    pub datetime_style: DatetimeStyle,
}

/// Whether the state's times name their time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DatetimeStyle {
    /// UTC by name, as PyTorch writes today.
    #[default]
    Aware,
    /// UTC by silence, as old PyTorch wrote. Either kind of PyTorch dies of the other's.
    Naive,
}
