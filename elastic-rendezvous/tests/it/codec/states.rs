//! Generates random states.

use std::sync::Arc;

use elastic_rendezvous::{DatetimeStyle, NodeId, RendezvousState, Timestamp};
use proptest::prelude::*;

/// States of fewer than `nodes` nodes, each in any of the collections.
pub(crate) fn states(nodes: usize) -> impl Strategy<Value = RendezvousState> {
    let head = (
        any::<i64>(),
        any::<bool>(),
        prop::option::of(times()),
        any::<bool>(),
        any::<bool>(),
    );
    let member = (node_ids(), any::<[bool; 4]>(), integers(), times());
    let members = prop::collection::vec(member, 0..nodes);
    (head, members).prop_map(|((round, complete, deadline, closed, naive), members)| {
        let mut state = RendezvousState {
            round,
            complete,
            deadline,
            closed,
            ..RendezvousState::default()
        };
        for (node, [in_round, waits, is_spare, lives], rank, time) in members {
            if in_round {
                state.participants.insert(node.clone(), rank);
            }
            if waits {
                state.wait_list.insert(node.clone());
            }
            if is_spare {
                // An equal address that shares no memory.
                let addr: Arc<str> = Arc::from(&*node.addr);
                let spare = NodeId::new(addr, node.pid, node.local_id);
                state.redundancy_list.insert(spare);
            }
            if lives {
                state.last_heartbeats.insert(node, time);
            }
        }
        if naive {
            set_style(&mut state, DatetimeStyle::Naive);
        }
        state
    })
}

/// A state of `nodes` participants with heartbeats.
pub(crate) fn state_of(nodes: usize) -> RendezvousState {
    let mut state = RendezvousState::default();
    for index in 0..nodes {
        let number = i64::try_from(index).expect("a count of nodes");
        let node = NodeId::new(format!("node{index}.example.com"), 1000 + number, 0);
        let time = Timestamp::from_micros(1_767_323_045_678_901 + number);
        state.participants.insert(node.clone(), number);
        state.last_heartbeats.insert(node, time);
    }
    state
}

/// Sets whether times name a zone. A state without times has the default style.
pub(crate) fn set_style(state: &mut RendezvousState, style: DatetimeStyle) {
    let has_times = state.deadline.is_some() || !state.last_heartbeats.is_empty();
    state.datetime_style = if has_times {
        style
    } else {
        DatetimeStyle::Aware
    };
}

pub(crate) fn node_ids() -> impl Strategy<Value = NodeId> {
    (addresses(), integers(), integers())
        .prop_map(|(addr, pid, local_id)| NodeId::new(addr, pid, local_id))
}

pub(crate) fn times() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        Just(Timestamp::MIN),
        Just(Timestamp::MAX),
        Just(Timestamp::from_micros(0)),
        (Timestamp::MIN.as_micros()..=Timestamp::MAX.as_micros()).prop_map(Timestamp::from_micros),
    ]
}

/// Addresses that partly share memory, like the addresses of nodes on one host.
fn addresses() -> impl Strategy<Value = Arc<str>> {
    let shared: Vec<Arc<str>> = ["localhost", "", "::1", "wait_list", "knoten-ü", "節点"]
        .map(Arc::from)
        .to_vec();
    prop_oneof![
        3 => prop::sample::select(shared),
        3 => "[a-z0-9.]{1,20}".prop_map(Arc::from),
        2 => any::<String>().prop_map(Arc::from),
        1 => "[a-zü]{250,260}".prop_map(Arc::from),
    ]
}

/// Integers, including those around the limits of pickle lengths.
fn integers() -> impl Strategy<Value = i64> {
    let edges = [
        0,
        1,
        -1,
        255,
        256,
        65_535,
        65_536,
        i64::from(i32::MAX),
        i64::from(i32::MAX) + 1,
        i64::from(i32::MIN),
        i64::from(i32::MIN) - 1,
        1 << 39,
        -(1 << 39),
        i64::MAX,
        i64::MIN,
    ];
    prop_oneof![
        prop::sample::select(edges.to_vec()),
        any::<i64>(),
        0..5000_i64
    ]
}
