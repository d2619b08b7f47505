//! Tests which changes of a state change the ranges of its text.

use elastic_rendezvous::codec::{self, CodecLimits, WatchRanges};
use elastic_rendezvous::{DatetimeStyle, NodeId, RendezvousState, Timestamp};
use proptest::prelude::*;

use super::states::{node_ids, set_style, state_of, states, times};
use super::{cases, vectors};

fn ranges(text: &[u8]) -> WatchRanges {
    codec::watch_ranges(text).expect("PyTorch's layout")
}

/// Whether `after` would wake a node that watches `range` of `before`.
fn changes(before: &[u8], after: &[u8], range: std::ops::Range<usize>) -> bool {
    after.get(range.clone()) != Some(&before[range])
}

proptest! {
    #![proptest_config(cases(256))]

    /// docs/spec/rendezvous.md, WATCH 1.
    #[test]
    fn heartbeats_alone_change_no_range(
        state in states(30),
        new in prop::collection::vec((node_ids(), times()), 0..5),
        forgotten: prop::sample::Index,
    ) {
        let before = codec::to_text(&state);
        let WatchRanges { header, members } = ranges(&before);
        let mut later = state.clone();
        for time in later.last_heartbeats.values_mut() {
            *time = time.after(std::time::Duration::from_secs(5));
        }
        later.last_heartbeats.extend(new);
        if !later.last_heartbeats.is_empty() {
            let index = forgotten.index(later.last_heartbeats.len());
            later.last_heartbeats.shift_remove_index(index);
        }
        set_style(&mut later, state.datetime_style);
        let after = codec::to_text(&later);
        prop_assert!(!changes(&before, &after, header.clone()));
        prop_assert!(!changes(&before, &after, members.clone()));
        // The same holds in the opposite direction.
        prop_assert_eq!(ranges(&after), WatchRanges { header, members });
    }

    /// docs/spec/rendezvous.md, WATCH 2 and 3.
    #[test]
    fn members_alone_do_not_change_the_header(state in states(30), other in states(30)) {
        let other = RendezvousState {
            round: state.round,
            complete: state.complete,
            deadline: state.deadline,
            closed: state.closed,
            datetime_style: state.datetime_style,
            ..other
        };
        let (before, after) = (codec::to_text(&state), codec::to_text(&other));
        prop_assert!(!changes(&before, &after, ranges(&before).header));
        prop_assert_eq!(ranges(&before).header, ranges(&after).header);
        let same_members = state.participants.iter().eq(other.participants.iter())
            && state.wait_list == other.wait_list
            && state.redundancy_list == other.redundancy_list;
        if !same_members {
            prop_assert!(changes(&before, &after, ranges(&before).members));
        }
    }

    /// docs/spec/rendezvous.md, WATCH 3.
    #[test]
    fn any_change_of_the_header_changes_both_ranges(
        state in states(30),
        round: i64,
        deadline in prop::option::of(times()),
    ) {
        let before = codec::to_text(&state);
        let changed = [
            RendezvousState { round, ..state.clone() },
            RendezvousState { round: state.round ^ 1, ..state.clone() },
            RendezvousState { complete: !state.complete, ..state.clone() },
            RendezvousState { closed: !state.closed, ..state.clone() },
            RendezvousState { deadline, ..state.clone() },
        ];
        for changed in changed {
            let after = codec::to_text(&changed);
            let differs = changed != state;
            prop_assert_eq!(changes(&before, &after, ranges(&before).header), differs);
            prop_assert_eq!(changes(&before, &after, ranges(&before).members), differs);
            prop_assert_eq!(changes(&after, &before, ranges(&after).header), differs);
        }
    }

    /// docs/spec/rendezvous.md, WATCH 3.
    #[test]
    fn any_change_of_the_members_changes_their_range(
        state in states(30),
        node in node_ids(),
        rank: i64,
        which: prop::sample::Index,
    ) {
        let before = codec::to_text(&state);
        let mut joined = state.clone();
        joined.participants.insert(node.clone(), rank);
        let mut waiting = state.clone();
        waiting.wait_list.insert(node.clone());
        let mut spare = state.clone();
        spare.redundancy_list.insert(node);
        let mut left = state.clone();
        let mut ranked = state.clone();
        if !state.participants.is_empty() {
            let index = which.index(state.participants.len());
            left.participants.shift_remove_index(index);
            ranked.participants[index] ^= 1;
        }
        let mut called = state.clone();
        called.wait_list.pop_first();
        let mut needed = state.clone();
        needed.redundancy_list.pop_last();
        for changed in [joined, waiting, spare, left, ranked, called, needed] {
            let after = codec::to_text(&changed);
            let differs = changed != state;
            prop_assert_eq!(changes(&before, &after, ranges(&before).members), differs);
            prop_assert!(!changes(&before, &after, ranges(&before).header));
        }
    }
}

/// The frame lengths within the members do not depend on times.
#[test]
fn heartbeats_of_many_nodes_change_no_range() {
    for nodes in [600, 700, 800, 1000, 1001, 2000] {
        let mut state = state_of(nodes);
        let before = codec::to_text(&state);
        for time in state.last_heartbeats.values_mut() {
            *time = Timestamp::from_micros(time.as_micros() + 5_000_000);
        }
        let after = codec::to_text(&state);
        assert_ne!(before, after);
        assert!(
            !changes(&before, &after, ranges(&before).members),
            "{nodes}"
        );
        assert!(!changes(&before, &after, ranges(&before).header), "{nodes}");
    }
}

/// The ranges contain their parts and at most the rest of a base64 group.
#[test]
fn ranges_begin_with_the_attributes_and_end_before_the_next() {
    let state = RendezvousState::default();
    let text = codec::to_text(&state);
    let pickle = codec::from_base64(&text, &CodecLimits::default()).expect("base64");
    let place = |name: &[u8]| {
        let place = pickle.windows(name.len()).position(|window| window == name);
        place.expect("the pickle contains the name")
    };
    let WatchRanges { header, members } = ranges(&text);
    let start = place(b"\x8c\x05round") / 3 * 4;
    // The range includes the opcode of the next name.
    let end_at = |name: &[u8]| (place(name) + 1).div_ceil(3) * 4;
    assert_eq!(header, start..end_at(b"\x8c\x0cparticipants"));
    assert_eq!(members, start..end_at(b"\x8c\x0flast_heartbeats"));
}

#[test]
fn a_state_of_pytorch_has_ranges_that_no_heartbeat_changes() {
    let mut count = 0;
    for vector in vectors::states() {
        let WatchRanges { header, members } = ranges(vector.text.as_bytes());
        assert_eq!(header.start, members.start, "{}", vector.name);
        assert!(header.end < members.end, "{}", vector.name);
        assert!(members.end < vector.text.len(), "{}", vector.name);
        let state = codec::decode(&vector.pickle, &CodecLimits::default()).expect("a state");
        if codec::encode(&state) != vector.pickle {
            continue;
        }
        let mut later = state.clone();
        for time in later.last_heartbeats.values_mut() {
            *time = Timestamp::from_micros(time.as_micros() + 5_000_000);
        }
        let before = vector.text.as_bytes();
        let after = codec::to_text(&later);
        assert!(!changes(before, &after, members), "{}", vector.name);
        count += 1;
    }
    assert_eq!(count, 57);
}

/// docs/spec/rendezvous.md, WATCH 4.
#[test]
fn other_layouts_have_no_ranges() {
    let with_ranges: Vec<String> = vectors::extra()
        .into_iter()
        .filter(|vector| codec::watch_ranges(vector.text.as_bytes()).is_some())
        .map(|vector| vector.name)
        .collect();
    assert_eq!(
        with_ranges,
        [
            "extra protocol-5-header",
            "extra pure-python-pickler",
            "extra pure-python-pickler-1001",
            "extra handwritten-canonical",
            "extra naive-utc-datetimes",
            "extra offset-plus-two-hours",
            "extra offset-minus-five-thirty",
            "extra unknown-extra-attribute",
            "extra fold-bit-set",
            "extra trailing-bytes-after-stop",
        ]
    );
}

#[test]
fn the_first_datetime_may_be_in_either_part() {
    let node = NodeId::new("a", 1, 0);
    for style in [DatetimeStyle::Aware, DatetimeStyle::Naive] {
        let mut state = RendezvousState::default();
        state.last_heartbeats.insert(node.clone(), Timestamp::MIN);
        state.datetime_style = style;
        let before = codec::to_text(&state);
        state.deadline = Some(Timestamp::MAX);
        let after = codec::to_text(&state);
        assert!(changes(&before, &after, ranges(&before).header));
        state.last_heartbeats.clear();
        let later = codec::to_text(&state);
        assert!(!changes(&after, &later, ranges(&after).members));
    }
}
