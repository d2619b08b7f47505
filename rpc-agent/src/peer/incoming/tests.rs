//! Decoded messages, errors and memory use, independent of how the stream is split into reads.

use proptest::prelude::*;

use super::*;
use crate::wire::{PART_BYTES, tests};
use crate::worker::{WorkerId, WorkerInfo};

#[derive(Debug, Default)]
struct Inbox {
    messages: Vec<Message>,
    /// Ids of the calls whose callers no longer wait.
    abandoned: Vec<u64>,
}

/// The functions that the recipient has registered.
const FUNCTIONS: [&str; 2] = ["f", "large"];

fn function(name: &str) -> Option<FunctionId> {
    let at = FUNCTIONS.iter().position(|known| *known == name)?;
    Some(FunctionId(at as u32))
}

impl Recipient for Inbox {
    fn find_function(&mut self, name: &str) -> Option<FunctionId> {
        function(name)
    }

    fn wants_response(&mut self, id: u64) -> bool {
        !self.abandoned.contains(&id)
    }

    fn take(&mut self, message: Message) {
        self.messages.push(message);
    }
}

fn opened(limits: IncomingLimits) -> Incoming {
    let mut incoming = Incoming::new(Expects::Hello, limits);
    incoming.stage = Stage::Messages;
    incoming
}

/// Feeds `bytes` in reads of at most `steps` bytes, cycling through `steps`.
fn feed(
    incoming: &mut Incoming,
    mut bytes: &[u8],
    steps: &[usize],
    inbox: &mut Inbox,
) -> Result<(), WireError> {
    let mut steps = steps.iter().cycle();
    while !bytes.is_empty() {
        let (buffer, bytes_max) = incoming.spare();
        let room = buffer.capacity() - buffer.len();
        assert!((1..=room).contains(&bytes_max), "{bytes_max} of {room}");
        let step = steps.next().map_or(usize::MAX, |step| *step);
        let count = bytes.len().min(bytes_max).min(step);
        let (now, later) = bytes.split_at(count);
        buffer.extend_from_slice(now);
        bytes = later;
        incoming.received(inbox)?;
        incoming.check_invariants();
    }
    Ok(())
}

/// Feeds frames in reads of any size.
fn receive(
    incoming: &mut Incoming,
    frames: &[Frame<'_>],
    inbox: &mut Inbox,
) -> Result<(), WireError> {
    feed(incoming, &encode(frames), &[], inbox)
}

fn encode(frames: &[Frame<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for frame in frames {
        frame.encode(&mut out);
    }
    out
}

fn request<'a>(id: u64, payload: &'a [u8]) -> Frame<'a> {
    tests::request(id, 5, "f", payload)
}

fn hello() -> Frame<'static> {
    Frame::Hello(Hello {
        from: WorkerInfo::new("a", 0).unwrap(),
        to: WorkerId::new(1).unwrap(),
        incarnation: 1,
        incarnation_wanted: 0,
        links: 0,
        message_bytes_max: 1,
    })
}

fn welcome() -> Frame<'static> {
    Frame::Welcome(Welcome {
        incarnation: 1,
        links: 1,
        message_bytes_max: 1,
    })
}

fn refuse() -> Frame<'static> {
    Frame::Refuse(Refuse {
        reason: wire::RefuseReason::UseOther,
        links: 0,
        text: String::new(),
    })
}

/// A large request or response in parts of `part_bytes`.
fn large_frames(is_response: bool, id: u64, payload: &[u8], part_bytes: usize) -> Vec<Frame<'_>> {
    let payload_bytes = payload.len() as u64;
    let call = (!is_response).then_some((7, "large"));
    let parts = payload.chunks(part_bytes);
    let parts = parts.map(|payload| tests::part(is_response, id, payload));
    let start = tests::large(id, call, payload_bytes);
    std::iter::once(start).chain(parts).collect()
}

fn numbered(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

#[test]
fn only_handshake_frames_are_accepted_before_the_handshake_completes() {
    let table: [(Expects, Vec<Frame<'_>>, usize, Option<&str>); 8] = [
        (Expects::Hello, vec![hello()], 1, None),
        (
            Expects::Hello,
            vec![welcome()],
            0,
            Some("Welcome frame while waiting for Hello"),
        ),
        (
            Expects::Hello,
            vec![request(1, b"")],
            0,
            Some("Request frame while waiting for Hello"),
        ),
        (
            Expects::Hello,
            vec![hello(), request(1, b"")],
            1,
            Some("Request frame while waiting for nothing"),
        ),
        (
            Expects::WelcomeOrRefuse,
            vec![welcome(), request(1, b"x")],
            2,
            None,
        ),
        (
            Expects::WelcomeOrRefuse,
            vec![hello()],
            0,
            Some("Hello frame while waiting for Welcome or Refuse"),
        ),
        (
            Expects::WelcomeOrRefuse,
            vec![refuse(), welcome()],
            1,
            Some("Welcome frame while waiting for nothing"),
        ),
        (
            Expects::WelcomeOrRefuse,
            vec![welcome(), welcome()],
            1,
            Some("Welcome frame while waiting for messages"),
        ),
    ];
    for (expects, frames, taken, said) in table {
        for step in [1, 7, 4096] {
            let mut incoming = Incoming::new(expects, IncomingLimits::default());
            let mut inbox = Inbox::default();
            let result = feed(&mut incoming, &encode(&frames), &[step], &mut inbox);
            let error = result.err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), said, "{frames:?}");
            assert_eq!(inbox.messages.len(), taken, "{frames:?}");
        }
    }
}

#[test]
fn messages_are_accepted_after_the_hello_is() {
    let mut incoming = Incoming::new(Expects::Hello, IncomingLimits::default());
    let mut inbox = Inbox::default();
    receive(&mut incoming, &[hello()], &mut inbox).unwrap();
    incoming.open();
    receive(&mut incoming, &[request(1, b"x")], &mut inbox).unwrap();
    assert_eq!(inbox.messages.len(), 2);
}

#[test]
fn a_message_over_a_limit_is_rejected_before_memory_is_allocated() {
    let limits = IncomingLimits {
        message_bytes_max: 400_000,
        assembling_bytes_max: 500_000,
        assembling_messages_max: 2,
    };
    let begin = |id, payload_bytes| tests::large(id, Some((0, "f")), payload_bytes);
    let answer = |id, payload_bytes| tests::large(id, None, payload_bytes);
    let table = [
        (
            vec![begin(1, 400_001)],
            "message of 400001 bytes, limit 400000",
        ),
        (
            vec![begin(1, u64::MAX)],
            "message of 18446744073709551615 bytes, limit 400000",
        ),
        (
            vec![begin(1, 300_000), answer(1, 300_000)],
            "incomplete large messages of 600000 bytes in total, limit 500000",
        ),
        (
            vec![begin(1, 140_000), begin(2, 140_000), begin(3, 140_000)],
            "3 large messages incomplete at a time, limit 2",
        ),
        (
            vec![begin(1, 140_000), begin(1, 140_000)],
            "Request frame with call id 1, whose large message is incomplete",
        ),
        (
            vec![answer(1, 140_000), tests::response(1, b"")],
            "Response frame with call id 1, whose large message is incomplete",
        ),
        (
            vec![tests::part(false, 4, b"x")],
            "RequestPart frame with call id 4, which has no incomplete large message",
        ),
        (
            vec![answer(1, 140_000), tests::part(false, 1, b"x")],
            "RequestPart frame with call id 1, which has no incomplete large message",
        ),
    ];
    for (frames, said) in table {
        let mut incoming = opened(limits);
        let mut inbox = Inbox::default();
        let error = receive(&mut incoming, &frames, &mut inbox).unwrap_err();
        assert_eq!(error.to_string(), said);
        assert_eq!(incoming.received(&mut inbox), Err(error), "the error stays");
        assert!(incoming.held_bytes() <= BUFFER_BYTES_MIN);
    }
}

#[test]
fn a_part_longer_than_the_rest_of_its_message_is_rejected() {
    let payload = numbered(PART_BYTES + 10);
    let mut frames = large_frames(false, 1, &payload, PART_BYTES);
    frames.pop();
    frames.push(tests::part(false, 1, b"eleven byte"));
    let mut inbox = Inbox::default();
    let mut incoming = opened(IncomingLimits::default());
    let error = receive(&mut incoming, &frames, &mut inbox).unwrap_err();
    let said = "RequestPart frame with 11 bytes, its message lacks only 10";
    assert_eq!(error.to_string(), said);
    assert!(inbox.messages.is_empty());
}

#[test]
fn a_single_large_message_may_exceed_the_limit_for_several() {
    let limits = IncomingLimits {
        assembling_bytes_max: 1,
        ..IncomingLimits::default()
    };
    let payload = numbered(200_000);
    let mut inbox = Inbox::default();
    let bytes = encode(&large_frames(true, 1, &payload, PART_BYTES));
    feed(&mut opened(limits), &bytes, &[], &mut inbox).unwrap();
    assert_eq!(inbox.messages.len(), 1);
}

#[test]
fn a_large_payload_is_received_without_a_copy() {
    let payload = numbered(8 << 20);
    let bytes = encode(&large_frames(false, 1, &payload, PART_BYTES));
    let mut incoming = opened(IncomingLimits::default());
    let mut inbox = Inbox::default();
    let mut rest = bytes.as_slice();
    let mut receives = 0;
    let mut last = std::ptr::null();
    let mut through_the_buffer = 0;
    while !rest.is_empty() {
        let (buffer, bytes_max) = incoming.spare();
        let (now, later) = rest.split_at(bytes_max.min(rest.len()));
        buffer.extend_from_slice(now);
        if buffer.capacity() > BUFFER_BYTES_MAX {
            last = buffer.as_ptr();
        } else {
            through_the_buffer += now.len();
        }
        rest = later;
        receives += 1;
        incoming.received(&mut inbox).unwrap();
    }
    let [Message::Request { payload: got, .. }] = inbox.messages.as_slice() else {
        panic!("one request, not {:?}", inbox.messages.len());
    };
    assert_eq!(got, &payload);
    assert_eq!(got.as_ptr(), last);
    // One receive for the start and one per part.
    assert!(receives <= 64 + 2, "{receives} receives");
    assert!(through_the_buffer <= BUFFER_BYTES_MIN);
}

#[test]
fn memory_for_a_large_message_is_allocated_as_it_arrives() {
    let mut incoming = opened(IncomingLimits::default());
    let mut inbox = Inbox::default();
    let payload = numbered(PART_BYTES);
    let payload_bytes = 200 << 20;
    let part = encode(&[tests::part(true, 1, &payload)]);
    let start = encode(&[tests::large(1, None, payload_bytes)]);
    feed(&mut incoming, &start, &[], &mut inbox).unwrap();
    assert!(incoming.held_bytes() <= BUFFER_BYTES_MIN);
    for _ in 0..8 {
        feed(&mut incoming, &part, &[], &mut inbox).unwrap();
        let held = incoming.held_bytes();
        assert!(
            held <= FIRST_RESERVE_BYTES + BUFFER_BYTES_MAX + HEADER_BYTES,
            "{held}"
        );
    }
    feed(&mut incoming, &part, &[], &mut inbox).unwrap();
    assert!(incoming.held_bytes() >= payload_bytes as usize);
}

#[test]
fn an_unwanted_large_response_is_skipped_and_not_stored() {
    let payload = numbered(3 * PART_BYTES);
    let frames = large_frames(true, 7, &payload, PART_BYTES);
    for abandoned_after in 0..frames.len() {
        for step in [1000, usize::MAX] {
            let mut incoming = opened(IncomingLimits::default());
            let mut inbox = Inbox::default();
            feed(
                &mut incoming,
                &encode(&frames[..abandoned_after]),
                &[step],
                &mut inbox,
            )
            .unwrap();
            inbox.abandoned.push(7);
            feed(
                &mut incoming,
                &encode(&frames[abandoned_after..]),
                &[step],
                &mut inbox,
            )
            .unwrap();
            feed(
                &mut incoming,
                &encode(&[request(1, b"x")]),
                &[step],
                &mut inbox,
            )
            .unwrap();
            assert!(matches!(
                inbox.messages[..],
                [Message::Request { id: 1, .. }]
            ));
            assert!(incoming.held_bytes() <= BUFFER_BYTES_MAX);
            assert!(incoming.assembling.is_empty());
        }
    }
}

#[test]
fn requests_received_together_share_one_copy() {
    let frames: Vec<_> = (0..10).map(|id| request(id, b"payload")).collect();
    let mut inbox = Inbox::default();
    let mut incoming = opened(IncomingLimits::default());
    receive(&mut incoming, &frames, &mut inbox).unwrap();
    let addresses: Vec<usize> = inbox
        .messages
        .iter()
        .map(|message| match message {
            Message::Request {
                payload,
                function: called,
                ..
            } => {
                assert_eq!((&payload[..], *called), (&b"payload"[..], function("f")));
                payload.as_ptr() as usize
            }
            other => panic!("a request, not {other:?}"),
        })
        .collect();
    let frame_bytes = encode(&frames[..1]).len();
    assert!(
        addresses
            .windows(2)
            .all(|two| two[1] - two[0] == frame_bytes)
    );
}

#[test]
fn a_short_response_is_copied_out_of_its_batch_and_a_long_one_is_not() {
    let long = numbered(3000);
    let frames = [tests::response(1, b"short"), tests::response(2, &long)];
    let mut inbox = Inbox::default();
    receive(&mut opened(IncomingLimits::default()), &frames, &mut inbox).unwrap();
    let [
        Message::Response { payload: short, .. },
        Message::Response { payload, .. },
    ] = &mut inbox.messages[..]
    else {
        panic!("two answers");
    };
    assert!(
        std::mem::take(short)
            .try_into_mut()
            .is_ok_and(|own| own.capacity() < 100)
    );
    assert!(
        std::mem::take(payload)
            .try_into_mut()
            .is_ok_and(|own| own == long[..])
    );
}

#[test]
fn the_buffer_grows_when_full_and_shrinks_when_idle() {
    let frames: Vec<_> = (0..40_000).map(|id| request(id, b"payload")).collect();
    let bytes = encode(&frames);
    let mut incoming = opened(IncomingLimits::default());
    let mut inbox = Inbox::default();
    feed(&mut incoming, &bytes, &[], &mut inbox).unwrap();
    assert_eq!(inbox.messages.len(), 40_000);
    assert_eq!(incoming.spare().0.capacity(), BUFFER_BYTES_MAX);

    receive(&mut incoming, &frames[..1], &mut inbox).unwrap();
    assert!(incoming.held_bytes() <= BUFFER_BYTES_MIN);
}

/// A message that the peer sends.
#[derive(Debug, Clone)]
enum Sent {
    Request(Vec<u8>),
    Response(Vec<u8>),
    Error(String),
    Goodbye,
    /// Whether it is a response, then the payload length, then the part length.
    Large(bool, usize, usize),
}

fn sent() -> impl Strategy<Value = Sent> {
    let short = || prop::collection::vec(any::<u8>(), 0..100);
    let medium = (1..PART_BYTES).prop_map(numbered);
    let large = (PART_BYTES + 1..3 * PART_BYTES, 20_000..=PART_BYTES);
    prop_oneof![
        6 => short().prop_map(Sent::Request),
        6 => short().prop_map(Sent::Response),
        1 => medium.clone().prop_map(Sent::Request),
        1 => medium.prop_map(Sent::Response),
        1 => "[a-zé]{0,40}".prop_map(Sent::Error),
        1 => Just(Sent::Goodbye),
        2 => (any::<bool>(), large).prop_map(|(is_response, (bytes, part))| {
            Sent::Large(is_response, bytes, part)
        }),
    ]
}

/// The encoded bytes of all messages, with large ones interleaved by `lane_order`, and the decoded messages.
fn expected(all: &[Sent], lane_order: &[usize]) -> (Vec<u8>, Vec<Message>) {
    let content = numbered(3 * PART_BYTES);
    let mut lanes: Vec<(Vec<Frame<'_>>, Message)> = Vec::new();
    for (sent, id) in all.iter().zip(0_u64..) {
        let (frames, message) = match sent {
            Sent::Request(payload) => (
                vec![request(id, payload)],
                Message::Request {
                    id,
                    budget_ms: 5,
                    function: function("f"),
                    payload: Bytes::copy_from_slice(payload),
                },
            ),
            Sent::Response(payload) => (
                vec![tests::response(id, payload)],
                Message::Response {
                    id,
                    payload: Bytes::copy_from_slice(payload),
                },
            ),
            Sent::Error(text) => (
                vec![Frame::Error {
                    id,
                    failure: Failure::Rejected(text.as_str().into()),
                }],
                Message::Failure {
                    id,
                    failure: Failure::Rejected(text.as_str().into()),
                },
            ),
            Sent::Goodbye => (
                vec![Frame::Goodbye { reason: 3 }],
                Message::Goodbye { reason: 3 },
            ),
            Sent::Large(is_response, bytes, part_bytes) => {
                let payload = &content[..*bytes];
                let frames = large_frames(*is_response, id, payload, *part_bytes);
                let payload = Bytes::copy_from_slice(payload);
                let message = if *is_response {
                    Message::Response { id, payload }
                } else {
                    Message::Request {
                        id,
                        budget_ms: 7,
                        function: function("large"),
                        payload,
                    }
                };
                (frames, message)
            }
        };
        lanes.push((frames.into_iter().rev().collect(), message));
    }
    let mut bytes = Vec::new();
    let mut messages = Vec::new();
    let mut lane_order = lane_order.iter().cycle();
    while !lanes.is_empty() {
        let lane = lane_order.next().expect("a cycle is infinite") % lanes.len().min(8);
        let frame = lanes[lane]
            .0
            .pop()
            .expect("a lane ends with its last frame");
        frame.encode(&mut bytes);
        if lanes[lane].0.is_empty() {
            messages.push(lanes.remove(lane).1);
        }
    }
    (bytes, messages)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn messages_do_not_depend_on_how_the_stream_is_split(
        all in prop::collection::vec(sent(), 1..12),
        lane_order in prop::collection::vec(any::<usize>(), 1..30),
        steps in prop::collection::vec(
            prop_oneof![1..40_usize, 1..5000_usize, 1..200_000_usize], 1..20
        ),
    ) {
        let (bytes, messages) = expected(&all, &lane_order);
        for steps in [&steps[..], &[]] {
            let mut inbox = Inbox::default();
            let mut incoming = opened(IncomingLimits::default());
            feed(&mut incoming, &bytes, steps, &mut inbox).unwrap();
            prop_assert!(inbox.messages == messages);
            prop_assert!(incoming.assembling.is_empty());
        }
    }

    #[test]
    fn an_error_and_the_messages_before_it_do_not_depend_on_how_the_stream_is_split(
        all in prop::collection::vec(sent(), 1..6),
        lane_order in prop::collection::vec(any::<usize>(), 1..30),
        at in any::<prop::sample::Index>(),
        byte: u8,
        steps in prop::collection::vec(prop_oneof![1..40_usize, 1..50_000_usize], 1..20),
    ) {
        let (mut bytes, _) = expected(&all, &lane_order);
        // Mostly in a header, where a changed byte causes an error.
        let at = at.index(bytes.len().min(200));
        bytes[at] = byte;
        let mut seen = None;
        for steps in [&steps[..], &[]] {
            let mut inbox = Inbox::default();
            let mut incoming = opened(IncomingLimits::default());
            let result = feed(&mut incoming, &bytes, steps, &mut inbox);
            let now = (result, inbox.messages);
            prop_assert!(seen.as_ref().is_none_or(|before| *before == now));
            seen = Some(now);
        }
    }

    #[test]
    fn corrupt_frames_do_not_panic_and_allocate_little(
        frames in prop::collection::vec(
            (tests::any_frame(), 0..4_u64, any::<Option<(u16, u8)>>()), 0..20
        ),
        steps in prop::collection::vec(1..5000_usize, 1..20),
    ) {
        let mut bytes = Vec::new();
        for (mut any, id, change) in frames {
            any.id = id;
            let start = bytes.len();
            any.frame().encode(&mut bytes);
            if let Some((at, byte)) = change {
                let at = usize::from(at) % (bytes.len() - start);
                bytes[start + at] = byte;
            }
        }
        let limits = IncomingLimits {
            message_bytes_max: 1 << 30,
            assembling_bytes_max: 1 << 30,
            assembling_messages_max: 2,
        };
        let mut incoming = opened(limits);
        let mut inbox = Inbox::default();
        let _ = feed(&mut incoming, &bytes, &steps, &mut inbox);
        let held = incoming.held_bytes();
        prop_assert!(held <= 2 * (FIRST_RESERVE_BYTES + HEADER_BYTES) + BUFFER_BYTES_MAX + (PART_BYTES * 2));
    }
}
