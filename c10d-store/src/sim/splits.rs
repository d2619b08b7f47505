//! Any split of the bytes gives the same requests. No bytes cause a panic, and memory is reserved for bytes that
//! have arrived, not for announced lengths.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{SimServer, cases};
use crate::known::Known;
use crate::limits::WireLimits;
use crate::message::Request;
use crate::request_parser::{Flow, NextRead, RequestParser};
use crate::wire::{Opcode, RequestBuf};

const CONN: u64 = 7;

fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![Just(b'a'), Just(b'b')], 0..3)
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..20),
        2 => (0..200_i64).prop_map(|n| n.to_string().into_bytes()),
        1 => (20_000..80_000_usize).prop_map(|n| vec![7; n]),
    ]
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let opcode = (0..Opcode::COUNT as u8).prop_map(|n| if n < 19 { n } else { n - 19 + 0x80 });
    (opcode, vec((key(), value()), 1..5), any::<i64>()).prop_map(|(byte, pairs, number)| {
        let mut request = RequestBuf::new();
        let opcode = Opcode::from_byte(byte).unwrap_or(Opcode::EndWaits);
        let (key, value) = &pairs[0];
        match opcode {
            Opcode::Set | Opcode::Append | Opcode::QueuePush => {
                request.opcode(opcode).raw_key(key).value(value);
            }
            Opcode::CompareSet | Opcode::CompareExchange => {
                let expected = &pairs[pairs.len() - 1].1;
                request
                    .opcode(opcode)
                    .raw_key(key)
                    .value(expected)
                    .value(value);
            }
            Opcode::Get
            | Opcode::DeleteKey
            | Opcode::QueuePop
            | Opcode::QueueLen
            | Opcode::EndWaits => {
                request.opcode(opcode).raw_key(key);
            }
            Opcode::Add | Opcode::Barrier | Opcode::TryAdd => {
                request.opcode(opcode).raw_key(key).i64(number % 4);
            }
            Opcode::Check | Opcode::Wait | Opcode::MultiGet | Opcode::WaitGet => {
                request.opcode(opcode).count(pairs.len());
                for (key, _) in &pairs {
                    request.raw_key(key);
                }
            }
            Opcode::WaitChange => {
                // Matches the value of the key in about half of the cases.
                let known = &pairs[pairs.len() - 1].1;
                request.opcode(opcode).raw_key(key).known(match number % 3 {
                    0 => Known::whole(known),
                    1 => Known::part(known, 0..known.len() / 2),
                    _ => Known::nothing(),
                });
            }
            Opcode::MultiSet => {
                request.opcode(opcode).count(pairs.len());
                for (key, value) in &pairs {
                    request.raw_key(key).value(value);
                }
            }
            Opcode::Announce => {
                request.opcode(opcode).value(value);
            }
            Opcode::QueueTake => {
                request.opcode(opcode).raw_key(key).u64(number as u64 % 4);
            }
            Opcode::GetNumKeys | Opcode::CancelWait | Opcode::ListKeys => {
                // The order of a listing is not fixed.
                request.opcode(Opcode::GetNumKeys);
            }
            Opcode::SetEphemeral => {
                let (will_key, will_value) = &pairs[pairs.len() - 1];
                request.opcode(opcode).raw_key(key).value(value);
                request.raw_key(will_key).value(will_value);
            }
            Opcode::DeletePrefix => {
                request.opcode(opcode).raw_key(key).u32(number as u32 % 2);
            }
            Opcode::KeepAlive => {
                request.opcode(opcode).u32(number as u32 % 3);
            }
            // The event loop has sessions, and a server without groups closes the connection.
            Opcode::Validate
            | Opcode::Session
            | Opcode::Membership
            | Opcode::MembershipPoll
            | Opcode::Ping => {
                request.opcode(Opcode::Ping).u32(number as u32 & 0xffff);
            }
        }
        request.to_bytes()
    })
}

fn run(pieces: impl IntoIterator<Item = Vec<u8>>) -> (Vec<u8>, bool) {
    let mut server = SimServer::default();
    server.open(CONN);
    for piece in pieces {
        server.send(CONN, &piece);
    }
    (server.take(CONN), server.is_closed(CONN))
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn any_cut_gives_the_same_replies(
        requests in vec(request(), 1..8),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream = requests.concat();
        let mut positions: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        positions.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for position in positions {
            pieces.push(stream[from..position].to_vec());
            from = position;
        }
        pieces.push(stream[from..].to_vec());
        prop_assert_eq!(run(pieces), run([stream]));
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        let mut raw = SimServer::default();
        raw.send(CONN, &bytes);
        run([bytes]);
    }

    #[test]
    fn damaged_requests_never_panic(
        requests in vec(request(), 1..4),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut stream = requests.concat();
        for (position, byte) in damage {
            let position = position.index(stream.len());
            stream[position] = byte;
        }
        run([stream]);
    }
}

/// docs/spec/wire.md, 6.1: the known value of a waiter may be long. It stays in the buffer that received it, for any
/// split of the request.
#[cfg(feature = "extensions")]
#[test]
fn a_long_known_value_arrives_whole_however_it_is_cut() {
    let value = vec![7; 100_000];
    let mut set = RequestBuf::new();
    set.opcode(Opcode::Set).raw_key(b"k").value(&value);
    let mut wait_change = RequestBuf::new();
    wait_change.opcode(Opcode::WaitChange).raw_key(b"k");
    wait_change.known(Known::whole(&value));
    let mut append = RequestBuf::new();
    append.opcode(Opcode::Append).raw_key(b"k").value(b"!");
    let requests = [set, wait_change, append].map(|request| request.to_bytes());

    let mut answer = vec![0];
    let mut length = RequestBuf::new();
    length.count(value.len() + 1);
    answer.extend(length.to_bytes());
    answer.extend(&value);
    answer.push(b'!');
    let whole = requests.concat();
    for piece in [1_000, 40_000, 70_001, whole.len()] {
        let joined = whole.chunks(piece).map(<[u8]>::to_vec);
        let apart = requests.iter().flat_map(|request| request.chunks(piece));
        let apart = apart.map(<[u8]>::to_vec);
        for (replies, is_closed) in [run(joined), run(apart)] {
            assert!(replies == answer && !is_closed, "pieces of {piece}");
        }
    }
}

/// An announced length reserves memory only as its bytes arrive.
#[test]
fn memory_follows_what_has_arrived() {
    let limits = WireLimits::default();
    let mut parser = RequestParser::default();
    let ignore = |_: Request<'_>| Ok::<_, ()>(Flow::Continue);
    let mut hello = RequestBuf::new();
    hello.hello();
    parser
        .receive(&hello.to_bytes(), &limits, ignore)
        .expect("a hello");

    let length = limits.value_bytes_max;
    let mut head = RequestBuf::new();
    head.opcode(Opcode::Set).raw_key(b"k").count(length);
    parser
        .receive(&head.to_bytes(), &limits, ignore)
        .expect("the start of a SET");
    let mut arrived = 0;
    let mut calls = 0;
    while arrived < length {
        let NextRead::Direct { bytes_max } = parser.next_read() else {
            assert!(length - arrived < 64 << 10, "a long rest is read directly");
            parser
                .receive(&vec![1; length - arrived], &limits, ignore)
                .expect("the rest");
            break;
        };
        let capacity = parser.direct_buffer().capacity();
        assert!(
            capacity <= (64 << 10) + 8 * (arrived + 64),
            "{capacity} bytes reserved for {arrived} that arrived"
        );
        // A peer that trickles: 48 KiB at a time.
        let piece = bytes_max.min(48 << 10);
        let buffer = parser.direct_buffer();
        buffer.resize(buffer.len() + piece, 1);
        arrived += piece;
        parser.resume(&limits, ignore).expect("more of the value");
        calls += 1;
    }
    assert!(calls > 100);
}
