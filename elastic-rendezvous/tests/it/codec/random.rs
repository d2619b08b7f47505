//! Tests that encoding and decoding returns the same state.

use elastic_rendezvous::RendezvousState;
use elastic_rendezvous::codec::{self, CodecLimits};
use proptest::prelude::*;

use super::cases;
use super::states::{state_of, states};

fn check_round_trip(state: &RendezvousState) -> Result<(), TestCaseError> {
    let limits = CodecLimits::default();
    let bytes = codec::encode(state);
    let decoded = codec::decode(&bytes, &limits);
    prop_assert_eq!(decoded.as_ref(), Ok(state));
    let decoded = decoded.expect("just compared");
    prop_assert!(decoded.participants.keys().eq(state.participants.keys()));
    prop_assert!(
        decoded
            .last_heartbeats
            .keys()
            .eq(state.last_heartbeats.keys())
    );
    // Addresses that share memory still do after decoding, so the bytes are equal.
    prop_assert_eq!(codec::encode(&decoded), bytes);
    let text = codec::to_text(state);
    let from_text = codec::from_text(&text, &limits);
    prop_assert_eq!(from_text.as_ref(), Ok(state));
    Ok(())
}

proptest! {
    #![proptest_config(cases(256))]

    /// docs/spec/rendezvous.md, CODEC 2.
    #[test]
    fn states_round_trip(state in states(40)) {
        check_round_trip(&state)?;
    }
}

proptest! {
    #![proptest_config(cases(20))]

    #[test]
    fn states_of_many_nodes_round_trip(state in states(2100)) {
        check_round_trip(&state)?;
    }
}

#[test]
fn states_at_the_limits_of_batches_and_frames_round_trip() {
    let sizes = [
        0, 1, 2, 256, 700, 770, 999, 1000, 1001, 1999, 2000, 2001, 2100,
    ];
    for nodes in sizes {
        let mut state = state_of(nodes);
        check_round_trip(&state).unwrap_or_else(|error| panic!("{nodes} nodes: {error}"));
        state.wait_list = state.participants.drain(..).map(|(node, _)| node).collect();
        check_round_trip(&state).unwrap_or_else(|error| panic!("{nodes} nodes wait: {error}"));
    }
}
