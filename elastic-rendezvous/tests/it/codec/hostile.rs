//! Tests that hostile bytes give an error or a state, never a panic.

use elastic_rendezvous::codec::{self, CodecLimits, CorruptState, CorruptStateKind};
use elastic_rendezvous::{NodeId, RendezvousState, Timestamp};
use proptest::prelude::*;

use super::states::state_of;
use super::{SHARE, cases, vectors};

fn decode(bytes: &[u8]) -> Result<RendezvousState, CorruptState> {
    codec::decode(bytes, &CodecLimits::default())
}

/// Decodes `bytes`. An accepted state can be encoded and decoded again; an error is short.
fn check(bytes: &[u8]) {
    match decode(bytes) {
        Ok(state) => assert_eq!(decode(&codec::encode(&state)), Ok(state)),
        Err(error) => {
            assert!(error.offset <= bytes.len(), "{error}");
            assert!(error.to_string().len() < 700, "{error}");
        }
    }
}

/// Two nodes in each collection, and a deadline.
fn small_state() -> RendezvousState {
    let mut state = state_of(2);
    let nodes: Vec<NodeId> = state.participants.keys().cloned().collect();
    state.deadline = Some(Timestamp::from_micros(1_767_323_045_678_901));
    state.wait_list = nodes.iter().cloned().collect();
    state
        .redundancy_list
        .insert(NodeId::new("spare", 1 << 40, -1));
    state
}

/// States of one release of PyTorch; the states of the other release differ only in the order of
/// sets.
fn small_vectors() -> impl Iterator<Item = vectors::Vector> {
    vectors::states()
        .into_iter()
        .filter(|vector| vector.name.starts_with("2.15.0") && vector.pickle.len() < 1000)
}

#[test]
fn a_state_cut_anywhere_is_refused() {
    for vector in small_vectors() {
        for cut in 0..vector.pickle.len() {
            let error = decode(&vector.pickle[..cut]).expect_err(&vector.name);
            let kind = CorruptStateKind::Truncated;
            assert_eq!(error.kind, kind, "{} cut at {cut}", vector.name);
            assert!(error.offset <= cut);
        }
    }
}

#[test]
fn a_text_cut_anywhere_is_refused() {
    let text = codec::to_text(&small_state());
    for cut in 0..text.len() {
        let error = codec::from_text(&text[..cut], &CodecLimits::default());
        assert!(error.is_err(), "cut at {cut}");
    }
}

#[test]
fn a_state_with_any_changed_byte_does_not_panic() {
    for pickle in [
        codec::encode(&RendezvousState::default()),
        codec::encode(&small_state()),
    ] {
        let mut changed = pickle.clone();
        for position in 0..pickle.len() {
            // Different values at each position.
            for value in (position % SHARE..256).step_by(SHARE) {
                changed[position] = u8::try_from(value).expect("a byte");
                check(&changed);
            }
            changed[position] = pickle[position];
        }
    }
}

#[test]
fn a_vector_with_any_flipped_bit_does_not_panic() {
    for vector in small_vectors().chain(vectors::extra()) {
        let len = vector.pickle.len();
        if len > 500 {
            continue;
        }
        let mut changed = vector.pickle.clone();
        for position in 0..len {
            for bit in (position % SHARE..8).step_by(SHARE) {
                changed[position] ^= 1 << bit;
                check(&changed);
                changed[position] ^= 1 << bit;
            }
        }
    }
}

/// Splits a pickle of known opcodes into opcodes with operands.
fn opcodes(pickle: &[u8]) -> Vec<&[u8]> {
    let mut rest = pickle;
    let mut opcodes = Vec::new();
    while let Some(&opcode) = rest.first() {
        let operand = match opcode {
            0x80 | b'K' | b'h' => 1,
            b'M' => 2,
            b'J' | b'j' => 4,
            0x95 => 8,
            0x8a | 0x8c | b'C' => 1 + usize::from(rest[1]),
            _ => 0,
        };
        let (first, others) = rest.split_at(1 + operand);
        opcodes.push(first);
        rest = others;
    }
    opcodes
}

#[test]
fn a_missing_doubled_or_swapped_opcode_does_not_panic() {
    let pickle = codec::encode(&small_state());
    let opcodes = opcodes(&pickle);
    assert_eq!(opcodes.concat(), pickle);
    for index in 0..opcodes.len() {
        let mut without = opcodes.clone();
        without.remove(index);
        check(&without.concat());
        let mut doubled = opcodes.clone();
        doubled.insert(index, opcodes[index]);
        check(&doubled.concat());
        let mut swapped = opcodes.clone();
        swapped.swap(index, (index + 1) % opcodes.len());
        check(&swapped.concat());
    }
}

/// Pieces of pickles: the opcodes of a state and all other opcodes.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let pickle = codec::encode(&small_state());
    let known: Vec<Vec<u8>> = opcodes(&pickle).into_iter().map(<[u8]>::to_vec).collect();
    prop_oneof![
        8 => prop::sample::select(known),
        2 => (0..60_u8).prop_map(|slot| vec![b'h', slot]),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ]
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn random_bytes_do_not_panic(bytes: Vec<u8>) {
        check(&bytes);
    }

    #[test]
    fn random_texts_do_not_panic(text: Vec<u8>) {
        let _ = codec::from_text(&text, &CodecLimits::default());
        let _ = codec::watch_ranges(&text);
    }

    #[test]
    fn opcodes_in_random_order_do_not_panic(
        pieces in prop::collection::vec(pieces(), 0..200),
        ending: bool,
    ) {
        let mut bytes = pieces.concat();
        if ending {
            bytes.push(b'.');
        }
        check(&bytes);
    }

    /// A state with some opcodes replaced reaches more of the decoder than random opcodes.
    #[test]
    fn a_state_with_replaced_opcodes_does_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), pieces()), 1..6),
    ) {
        let pickle = codec::encode(&small_state());
        let mut opcodes = opcodes(&pickle);
        for (index, piece) in &changes {
            let index = index.index(opcodes.len());
            opcodes[index] = piece;
        }
        check(&opcodes.concat());
    }
}

/// A state whose map of attributes is filled by `attributes`. Memo slot 0 has the state's class.
fn pickle(attributes: &[u8]) -> Vec<u8> {
    const MODULE: &[u8] = b"\x8c\x37torch.distributed.elastic.rendezvous.dynamic_rendezvous";
    [
        b"\x80\x04",
        MODULE,
        b"\x8c\x10_RendezvousState\x93\x94)\x81}(",
        attributes,
        b"ub.",
    ]
    .concat()
}

const ROUND: &[u8] = b"\x8c\x05roundK\x07";
const FLAGS: &[u8] = b"\x8c\x08complete\x89\x8c\x08deadlineN\x8c\x06closed\x89";
const PARTICIPANTS: &[u8] = b"\x8c\x0cparticipants}";
const WAIT_LIST: &[u8] = b"\x8c\x09wait_list\x8f";
const HEARTBEATS: &[u8] = b"\x8c\x0flast_heartbeats}";
const NODE_CLASS: &[u8] =
    b"\x8c\x37torch.distributed.elastic.rendezvous.dynamic_rendezvous\x8c\x09_NodeDesc\x93";
/// A node of that class: `a`, 1, 0. The last byte sets its attributes.
const NODE: &[u8] = b")\x81}(\x8c\x04addr\x8c\x01a\x8c\x03pidK\x01\x8c\x08local_idK\x00ub";

fn kind(bytes: &[u8]) -> CorruptStateKind {
    decode(bytes).expect_err("refused").kind
}

#[test]
fn a_minimal_handwritten_state_is_accepted() {
    let bytes = pickle(&[ROUND, FLAGS, PARTICIPANTS, WAIT_LIST, HEARTBEATS].concat());
    let state = decode(&bytes).expect("a state");
    assert_eq!(state.round, 7);
    let round = ROUND;
    let in_another_order = [HEARTBEATS, WAIT_LIST, PARTICIPANTS, FLAGS, round].concat();
    assert_eq!(decode(&pickle(&in_another_order)), Ok(state));
}

/// docs/spec/rendezvous.md, CODEC 3.
#[test]
fn errors_name_missing_repeated_and_mistyped_attributes() {
    let table: &[(&[&[u8]], &str)] = &[
        (
            &[FLAGS, PARTICIPANTS, WAIT_LIST, HEARTBEATS],
            "attribute round is missing",
        ),
        (
            &[ROUND, PARTICIPANTS, WAIT_LIST, HEARTBEATS],
            "attribute complete is missing",
        ),
        (
            &[ROUND, FLAGS, PARTICIPANTS, HEARTBEATS],
            "attribute wait_list is missing",
        ),
        (
            &[ROUND, FLAGS, PARTICIPANTS, WAIT_LIST],
            "attribute last_heartbeats is missing",
        ),
        (&[ROUND, ROUND], "attribute round is repeated"),
        (
            &[b"\x8c\x05roundN", FLAGS],
            "attribute round is None, not an integer",
        ),
        (
            &[b"\x8c\x05round\x8a\x09\x01\x02\x03\x04\x05\x06\x07\x08\x09"],
            "integer of 9 bytes",
        ),
        (
            &[
                ROUND,
                b"\x8c\x08completeK\x01\x8c\x08deadlineN\x8c\x06closed\x89",
            ],
            "attribute complete is an integer, not a bool",
        ),
        (
            &[
                ROUND,
                FLAGS,
                b"\x8c\x0cparticipants}",
                b"\x8c\x01xK\x00s",
                WAIT_LIST,
                HEARTBEATS,
            ],
            "a key or member is a string, not a node",
        ),
        (
            &[
                ROUND,
                FLAGS,
                PARTICIPANTS,
                NODE_CLASS,
                NODE,
                b"\x88s",
                WAIT_LIST,
                HEARTBEATS,
            ],
            "a rank is a bool, not an integer",
        ),
        (
            &[
                ROUND,
                FLAGS,
                PARTICIPANTS,
                WAIT_LIST,
                HEARTBEATS,
                NODE_CLASS,
                NODE,
                b"Ns",
            ],
            "a heartbeat is None, not a datetime",
        ),
        (
            &[b"K\x01K\x02"],
            "the name of an attribute is an integer, not a string",
        ),
        (&[b"\x8c\x02\xff\xfe"], "text that is not UTF-8"),
        (&[b"N"], "a key without a value"),
        (&[b"}N"], "a key or member is a map"),
    ];
    for (attributes, expected) in table {
        let error = decode(&pickle(&attributes.concat())).expect_err(expected);
        assert!(
            error.to_string().contains(expected),
            "{error}, not {expected}"
        );
    }
}

#[test]
fn an_object_is_created_and_filled_once() {
    let state_again = b"h\x00)\x81";
    assert_eq!(
        kind(&pickle(state_again)),
        CorruptStateKind::Again("a state")
    );
    let node_again = [NODE_CLASS, NODE, b"}b"].concat();
    let expected = CorruptStateKind::Again("a node's attributes");
    assert_eq!(kind(&pickle(&node_again)), expected);
    // A key must be hashable; a node without attributes is not.
    let unbuilt = [PARTICIPANTS, NODE_CLASS, b")\x81K\x00s"].concat();
    let error = decode(&pickle(&unbuilt)).expect_err("refused");
    assert!(
        error
            .to_string()
            .contains("a key or member is a node, not a value"),
        "{error}"
    );
}

#[test]
fn opcodes_do_not_reach_below_an_open_mark() {
    for bytes in [
        &b"N(\x85."[..],
        b"NN(\x86.",
        b"}N(s.",
        b"N(.",
        b"N(\x94.",
        b"}(b.",
        b"u.",
        b"(u.",
    ] {
        let kind = kind(bytes);
        assert_eq!(
            kind,
            CorruptStateKind::StackUnderflow,
            "{}",
            bytes.escape_ascii()
        );
    }
}

/// docs/spec/rendezvous.md, CODEC 4.
#[test]
fn each_limit_is_enforced() {
    let state = small_state();
    let bytes = codec::encode(&state);
    let with = |change: &dyn Fn(&mut CodecLimits)| {
        let mut limits = CodecLimits::default();
        change(&mut limits);
        codec::decode(&bytes, &limits).map_err(|error| error.kind)
    };
    let few = |change: &dyn Fn(&mut CodecLimits)| with(change).expect_err("refused");
    let too_many = |what, max| CorruptStateKind::TooMany { what, max };
    assert_eq!(few(&|limits| limits.nodes_max = 2), too_many("nodes", 2));
    assert!(with(&|limits| limits.nodes_max = 3).is_ok());
    let stack = few(&|limits| limits.stack_max = 5);
    assert_eq!(stack, too_many("values on the stack", 5));
    let objects = few(&|limits| limits.objects_max = 20);
    assert_eq!(objects, too_many("memo slots", 20));
    let bytes_max = bytes.len() / 3 * 3;
    assert_eq!(
        few(&|limits| limits.text_bytes_max = bytes_max / 3 * 4),
        CorruptStateKind::TooLong {
            bytes: bytes.len(),
            bytes_max,
        }
    );
}

/// Each input would make a naive decoder use gigabytes of memory or recurse deeply.
/// docs/spec/rendezvous.md, CODEC 4.
#[test]
fn repeated_opcodes_reach_a_limit() {
    let bytes_max = (6 << 20) / SHARE;
    let limits = CodecLimits::default();
    let limits = CodecLimits {
        nodes_max: limits.nodes_max / SHARE,
        stack_max: limits.stack_max / SHARE,
        objects_max: limits.objects_max / SHARE,
        ..limits
    };
    let flood = |head: &[u8], piece: &[u8]| {
        let mut bytes = head.to_vec();
        while bytes.len() < bytes_max {
            bytes.extend_from_slice(piece);
        }
        bytes.truncate(bytes_max);
        codec::decode(&bytes, &limits).expect_err("refused").kind
    };
    let too_many = |what, max| CorruptStateKind::TooMany { what, max };
    let stack = || too_many("values on the stack", limits.stack_max);
    let of_objects = |what| too_many(what, limits.objects_max);
    assert_eq!(flood(b"", b"N"), stack());
    assert_eq!(flood(b"", b"("), stack());
    assert_eq!(flood(b"", b"\x8c\x00"), stack());
    assert_eq!(flood(b"N", b"\x94"), of_objects("memo slots"));
    let containers = of_objects("maps and sets");
    assert_eq!(flood(b"", b"}\x8f}\x87\x85"), containers);
    assert_eq!(flood(b"}", b"NNs"), of_objects("entries of maps and sets"));
    assert_eq!(flood(b"N", b"\x85"), CorruptStateKind::Truncated);
    let class = [NODE_CLASS, b"\x94"].concat();
    let nodes = flood(&class, b"h\x00)\x81\x85\x86");
    assert_eq!(nodes, too_many("nodes", limits.nodes_max));
    for length in [
        b"X\xff\xff\xff\xffabc".as_slice(),
        b"\x8c\xffabc",
        b"C\xffabc",
        b"\x8a\xffabc",
    ] {
        assert_eq!(kind(length), CorruptStateKind::Truncated);
    }
}

#[test]
fn time_zones_with_an_offset_of_a_day_are_refused() {
    let zone = |days: &[u8], seconds: &[u8]| {
        [
            b"\x80\x04\x8c\x08datetime\x8c\x08timezone\x93\x8c\x08datetime\x8c\x09timedelta\x93",
            days,
            seconds,
            b"K\x00\x87R\x85R.",
        ]
        .concat()
    };
    let refused = CorruptStateKind::ImpossibleTimezone;
    assert_eq!(kind(&zone(b"K\x01", b"K\x00")), refused);
    assert_eq!(kind(&zone(b"J\xff\xff\xff\xff", b"K\x00")), refused);
    let almost = kind(&zone(b"J\xff\xff\xff\xff", b"K\x01"));
    assert!(matches!(
        almost,
        CorruptStateKind::WrongType {
            what: "the whole",
            ..
        }
    ));
    // More microseconds than 64 bits hold.
    let endless = kind(&zone(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", b"K\x00"));
    assert!(matches!(
        endless,
        CorruptStateKind::WrongType {
            what: "what REDUCE takes",
            ..
        }
    ));
}
