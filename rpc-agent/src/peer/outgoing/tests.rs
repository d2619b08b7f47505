//! Order, fairness, partial writes and withdrawal of outgoing messages.

use proptest::prelude::*;

use super::*;
use crate::wire::{self, Failure, Payload};

/// A writer that accepts the next number of bytes from `steps` per call; 0 means `WouldBlock`.
struct Trickle<'s> {
    taken: Vec<u8>,
    steps: std::iter::Cycle<std::slice::Iter<'s, usize>>,
}

impl<'s> Trickle<'s> {
    fn new(steps: &'s [usize]) -> Self {
        Self {
            taken: Vec::new(),
            steps: steps.iter().cycle(),
        }
    }
}

impl Write for Trickle<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut room = *self.steps.next().expect("a cycle is infinite");
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let before = self.taken.len();
        for slice in slices {
            let count = slice.len().min(room);
            self.taken.extend_from_slice(&slice[..count]);
            room -= count;
        }
        Ok(self.taken.len() - before)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes a batch, writes it until it is done or would block, and puts it back.
fn send_one(outgoing: &mut Outgoing, bytes_max: usize, writer: &mut Trickle<'_>) -> bool {
    let Some(mut batch) = outgoing.take_batch(bytes_max) else {
        return false;
    };
    assert!(
        outgoing.take_batch(bytes_max).is_none(),
        "one batch at a time"
    );
    outgoing.check_invariants(batch.encoded.bytes() - batch.sent_bytes);
    batch.write_to(writer).expect("a Trickle never fails");
    outgoing.put_back(batch);
    outgoing.check_invariants(0);
    true
}

fn send_all(outgoing: &mut Outgoing, bytes_max: usize, steps: &[usize]) -> Vec<u8> {
    let mut writer = Trickle::new(steps);
    while send_one(outgoing, bytes_max, &mut writer) {}
    assert_eq!(outgoing.unsent_bytes(), 0);
    writer.taken
}

fn payload(bytes: usize) -> Bytes {
    (0..bytes)
        .map(|at| (at % 251) as u8)
        .collect::<Vec<u8>>()
        .into()
}

/// One word per frame: its kind and call id, `+` for a part.
fn words(mut bytes: &[u8]) -> Vec<String> {
    let mut words = Vec::new();
    while let Some((frame, length)) = wire::decode(bytes).expect("the frames are well-formed") {
        words.push(match frame {
            Frame::Message { id, call, payload } => {
                let is_large = matches!(payload, Payload::InParts(_));
                let word = [["r", "R"], ["q", "Q"]][usize::from(call.is_some())];
                format!("{}{id}", word[usize::from(is_large)])
            }
            Frame::Part {
                is_response, id, ..
            } => format!("{}{id}+", if is_response { "r" } else { "q" }),
            Frame::Error { id, .. } => format!("e{id}"),
            Frame::Goodbye { .. } => "bye".to_owned(),
            other => panic!("unexpected frame: {other:?}"),
        });
        bytes = &bytes[length..];
    }
    assert_eq!(bytes.len(), 0, "whole frames");
    words
}

/// `q` for a request or `r` for a response, the call id, the payload length.
type Pushed = (char, u64, usize);

const MANY: &[usize] = &[usize::MAX];

fn set(ids: &[u64]) -> HashSet<u64> {
    ids.iter().copied().collect()
}

#[test]
fn small_frames_are_sent_first_then_large_messages_round_robin() {
    let part = PART_BYTES;
    let table: [(&[Pushed], &str); 5] = [
        (&[('q', 1, 10), ('r', 2, 0), ('q', 3, 5000)], "q1 r2 q3"),
        // At the limit of a frame, and one byte over it.
        (&[('q', 1, part), ('q', 2, part + 1)], "q1 Q2 q2+ q2+"),
        (&[('r', 1, 2 * part), ('q', 2, 1)], "q2 R1 r1+ r1+"),
        (
            &[('q', 1, 3 * part), ('r', 2, 2 * part), ('q', 3, 2 * part)],
            "Q1 q1+ R2 r2+ Q3 q3+ q1+ r2+ q3+ q1+",
        ),
        // Each frame of 100,000 bytes exceeds `SMALL_BYTES_MAX`, so a part follows each.
        (
            &[
                ('q', 1, 100_000),
                ('q', 2, 100_000),
                ('q', 3, 9),
                ('r', 4, 3 * part),
            ],
            "q1 R4 r4+ q2 r4+ q3 r4+",
        ),
    ];
    for (pushed, expected) in table {
        for bytes_max in [1, 200_000, usize::MAX] {
            let mut outgoing = Outgoing::new();
            for (kind, id, bytes) in pushed {
                match kind {
                    'q' => outgoing.push_request(*id, 0, "f", payload(*bytes)),
                    _ => outgoing.push_response(*id, payload(*bytes)),
                }
            }
            let bytes = send_all(&mut outgoing, bytes_max, MANY);
            assert_eq!(words(&bytes).join(" "), expected, "{bytes_max}");
        }
    }
}

#[test]
fn small_frames_and_large_messages_do_not_starve_each_other() {
    for bytes_max in [1, 256 << 10] {
        let mut outgoing = Outgoing::new();
        let mut writer = Trickle::new(MANY);
        outgoing.push_response(7, payload(20 * PART_BYTES));
        let mut next = 100;
        for _ in 0..20 {
            // Queue more small frames than one batch sends.
            for _ in 0..40 {
                outgoing.push_request(next, 0, "f", payload(4000));
                next += 1;
            }
            send_one(&mut outgoing, bytes_max, &mut writer);
        }
        let words = words(&writer.taken);
        let parts: Vec<usize> = (0..words.len()).filter(|at| words[*at] == "r7+").collect();
        assert_eq!(parts.len(), 20, "at least one part per batch");
        // `SMALL_BYTES_MAX` of small frames between two parts.
        let most = SMALL_BYTES_MAX / 4000 + 1;
        assert!(
            parts.windows(2).all(|two| two[1] - two[0] <= 2 * most),
            "{parts:?}"
        );
        assert!(
            words.len() - parts.len() > 19 * 15,
            "small frames are sent too"
        );
    }
}

#[test]
fn large_messages_in_progress_stay_within_the_protocol_limit() {
    let mut outgoing = Outgoing::new();
    for id in 0..100 {
        outgoing.push_request(id, 0, "f", payload(3 * PART_BYTES));
    }
    let bytes = send_all(&mut outgoing, 1 << 20, MANY);
    let (mut begun, mut most, mut parts) = (0, 0, vec![0; 100]);
    for word in words(&bytes) {
        if word.starts_with('Q') {
            begun += 1;
        } else {
            let id: usize = word[1..word.len() - 1].parse().unwrap();
            parts[id] += 1;
            begun -= usize::from(parts[id] == 3);
        }
        most = most.max(begun);
    }
    assert_eq!((most, begun), (LARGE_MESSAGES_MAX, 0));
}

#[test]
fn only_short_payloads_are_copied() {
    let mut outgoing = Outgoing::new();
    let (long, large) = (payload(COPIED_BYTES_MAX + 1), payload(PART_BYTES + 1));
    outgoing.push_request(1, 0, "f", payload(COPIED_BYTES_MAX));
    outgoing.push_request(2, 0, "f", long.clone());
    outgoing.push_response(3, large.clone());
    let batch = outgoing.take_batch(1 << 20).unwrap();
    let mut slices = [IoSlice::new(&[]); 8];
    let used = batch.slices(&mut slices);
    let at: Vec<*const u8> = slices[..used].iter().map(|slice| slice.as_ptr()).collect();
    assert_eq!(at.len(), 6);
    assert_eq!([at[1], at[3]], [long.as_ptr(), large.as_ptr()]);
    assert_eq!(at[5], large[PART_BYTES..].as_ptr());
}

#[test]
fn a_request_can_be_withdrawn_once_until_it_is_encoded_ahead() {
    let mut outgoing = Outgoing::new();
    for id in 0..100 {
        outgoing.push_request(id, 0, "f", payload(4000));
    }
    outgoing.push_response(90, payload(4000));
    outgoing.push_request(200, 0, "f", payload(PART_BYTES + 1));
    outgoing.push_response(200, payload(PART_BYTES + 1));
    // 16 frames of at least 4,021 bytes are encoded ahead.
    assert_eq!(
        outgoing.withdraw(&set(&[0, 15, 90, 20, 200, 999])),
        [20, 90, 200]
    );
    outgoing.check_invariants(0);
    assert!(outgoing.withdraw(&set(&[20, 90, 200])).is_empty());
    let sent = words(&send_all(&mut outgoing, 1 << 20, MANY));
    for (word, times) in [
        ("q0", 1),
        ("q15", 1),
        ("q20", 0),
        ("q90", 0),
        ("r90", 1),
        ("Q200", 0),
        ("R200", 1),
    ] {
        let count = sent.iter().filter(|sent| *sent == word).count();
        assert_eq!(count, times, "{word}");
    }
}

#[test]
fn a_large_request_in_progress_cannot_be_withdrawn() {
    let mut outgoing = Outgoing::new();
    outgoing.push_request(1, 0, "f", payload(3 * PART_BYTES));
    outgoing.push_request(2, 0, "f", payload(3 * PART_BYTES));
    let mut writer = Trickle::new(MANY);
    send_one(&mut outgoing, 1, &mut writer);
    assert_eq!(outgoing.withdraw(&set(&[1, 2])), [2]);
    while send_one(&mut outgoing, 1, &mut writer) {}
    assert_eq!(words(&writer.taken).join(" "), "Q1 q1+ q1+ q1+");
}

#[test]
fn a_request_that_the_writer_has_kept_counts_as_sent_and_is_written_again() {
    let mut outgoing = Outgoing::new();
    for id in 1..=3 {
        outgoing.push_request(id, 0, "f", payload(10));
    }
    let unsent_bytes = outgoing.unsent_bytes();
    let frame_bytes = unsent_bytes as usize / 3;
    for (kept_bytes, expected) in [
        (0, vec![1, 2, 3]),
        (1, vec![2, 3]),
        (frame_bytes + 1, vec![3]),
        (frame_bytes, vec![2, 3]),
    ] {
        let mut batch = outgoing.take_batch(1 << 20).unwrap();
        batch.write_to(&mut Trickle::new(&[0])).unwrap();
        batch.keep(kept_bytes);
        outgoing.put_back(batch);
        assert_eq!(outgoing.unsent_requests(), expected, "kept {kept_bytes}");
        assert_eq!(outgoing.unsent_bytes(), unsent_bytes);
        outgoing.check_invariants(0);
    }
    let mut writer = Trickle::new(&[1000]);
    send_one(&mut outgoing, 1 << 20, &mut writer);
    assert_eq!(writer.taken.len(), unsent_bytes as usize);
    assert!(outgoing.unsent_requests().is_empty());
}

#[test]
fn a_request_counts_as_sent_once_its_first_byte_is_written() {
    let mut outgoing = Outgoing::new();
    outgoing.push_request(1, 0, "f", payload(10));
    outgoing.push_response(2, payload(10));
    outgoing.push_request(3, 0, "f", payload(10));
    outgoing.push_request(4, 0, "f", payload(2 * PART_BYTES));
    assert_eq!(outgoing.unsent_requests(), [1, 3, 4]);
    let batch = outgoing.take_batch(1 << 20).unwrap();
    assert!(
        outgoing.unsent_requests().is_empty(),
        "they may be written by now"
    );
    outgoing.put_back(batch);
    assert_eq!(outgoing.unsent_requests(), [1, 3, 4], "nothing was written");

    let table = [
        (1, vec![3, 4]),
        (30, vec![3, 4]),
        (26, vec![3, 4]),
        (1, vec![4]),
        (30, vec![4]),
        (1, vec![]),
    ];
    for (step, expected) in table {
        send_one(&mut outgoing, 1, &mut Trickle::new(&[step, 0]));
        assert_eq!(
            outgoing.unsent_requests(),
            expected,
            "after {step} more bytes"
        );
    }
}

#[test]
fn a_write_of_zero_bytes_is_an_error() {
    let mut outgoing = Outgoing::new();
    outgoing.push_frame(&Frame::Goodbye { reason: 0 });
    let mut batch = outgoing.take_batch(1).unwrap();
    let error = batch.write_to(&mut (&mut [][..])).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    outgoing.put_back(batch);
    assert_eq!(outgoing.unsent_bytes(), 16);
}

#[test]
fn an_idle_connection_keeps_little_memory() {
    let kept = |outgoing: &Outgoing| {
        let of = |it: &Encoded| {
            it.copied.capacity()
                + it.requests.capacity() * size_of::<RequestStart>()
                + it.shared.capacity() * size_of::<Shared>()
        };
        of(&outgoing.ready)
            + of(&outgoing.spare)
            + outgoing.waiting.held_bytes()
            + (outgoing.begun.capacity() + outgoing.not_begun.capacity()) * size_of::<Stream>()
    };
    let mut outgoing = Outgoing::new();
    assert_eq!(kept(&outgoing), 0);
    for id in 0..10_000 {
        outgoing.push_request(id, 0, "f", payload(100));
        outgoing.push_request(id, 0, "f", payload(5000));
    }
    outgoing.push_response(1, payload(1 << 20));
    send_all(&mut outgoing, 1 << 20, MANY);
    for _ in 0..3 {
        outgoing.push_request(1, 0, "f", payload(100));
        send_all(&mut outgoing, 1 << 20, MANY);
    }
    assert!(kept(&outgoing) <= 2 * IDLE_BYTES_MAX, "{}", kept(&outgoing));
}

#[derive(Debug, Clone)]
enum Step {
    Request(usize),
    Response(usize),
    Error(String),
    Send,
    Withdraw(Vec<u64>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes =
        || prop_oneof![6 => 0..300_usize, 2 => 3000..20_000_usize, 1 => 100_000..300_000_usize];
    let step = prop_oneof![
        6 => bytes().prop_map(Step::Request),
        6 => bytes().prop_map(Step::Response),
        2 => "[a-z]{0,20}".prop_map(Step::Error),
        4 => Just(Step::Send),
        1 => prop::collection::vec(0..60_u64, 0..30).prop_map(Step::Withdraw),
    ];
    prop::collection::vec(step, 1..80)
}

/// The decoded messages, sorted: kind, call id, payload or error text.
fn received(bytes: &[u8]) -> Vec<(char, u64, Vec<u8>)> {
    let mut messages: Vec<(char, u64, Vec<u8>)> = Vec::new();
    let mut large: Vec<(char, u64, Vec<u8>, u64)> = Vec::new();
    let mut bytes = bytes;
    while let Some((frame, length)) = wire::decode(bytes).expect("the frames are well-formed") {
        bytes = &bytes[length..];
        match frame {
            Frame::Message { id, call, payload } => {
                let kind = if call.is_some() { 'q' } else { 'r' };
                match payload {
                    Payload::Whole(payload) => messages.push((kind, id, payload.to_vec())),
                    Payload::InParts(bytes) => large.push((kind, id, Vec::new(), bytes)),
                }
            }
            Frame::Error {
                id,
                failure: Failure::Handler(text),
            } => messages.push(('e', id, text.as_bytes().to_vec())),
            Frame::Part { id, payload, .. } => {
                let (_, _, content, _) = large
                    .iter_mut()
                    .find(|(_, other, _, _)| *other == id)
                    .expect("a part follows its start frame");
                content.extend_from_slice(payload);
            }
            other => panic!("unexpected frame: {other:?}"),
        }
    }
    assert!(bytes.is_empty());
    for (kind, id, content, payload_bytes) in large {
        assert_eq!(content.len() as u64, payload_bytes);
        messages.push((kind, id, content));
    }
    messages.sort();
    messages
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_message_not_withdrawn_arrives_once_for_any_partial_writes(
        steps in steps(),
        bytes_max in prop_oneof![1..1000_usize, 1000..500_000_usize],
        takes in prop::collection::vec(
            prop_oneof![Just(0_usize), 1..50_usize, 50..100_000_usize], 1..20
        ).prop_map(|mut takes| { takes.push(100_000); takes }),
    ) {
        let content = payload(300_000);
        let mut outgoing = Outgoing::new();
        let mut writer = Trickle::new(&takes);
        let mut expected: Vec<(char, u64, Vec<u8>)> = Vec::new();
        for (step, id) in steps.into_iter().zip(0_u64..) {
            match step {
                Step::Request(bytes) => {
                    outgoing.push_request(id, 9, "function", content.slice(..bytes));
                    expected.push(('q', id, content[..bytes].to_vec()));
                }
                Step::Response(bytes) => {
                    outgoing.push_response(id, content.slice(..bytes));
                    expected.push(('r', id, content[..bytes].to_vec()));
                }
                Step::Error(text) => {
                    expected.push(('e', id, text.clone().into_bytes()));
                    let failure = Failure::Handler(text.into());
                    outgoing.push_frame(&Frame::Error { id, failure });
                }
                Step::Send => {
                    send_one(&mut outgoing, bytes_max, &mut writer);
                }
                Step::Withdraw(ids) => {
                    let unsent = outgoing.unsent_requests();
                    for id in outgoing.withdraw(&set(&ids)) {
                        prop_assert!(ids.contains(&id) && unsent.contains(&id));
                        let at = expected.iter().position(|it| (it.0, it.1) == ('q', id));
                        expected.remove(at.expect("it was pushed"));
                    }
                }
            }
            outgoing.check_invariants(0);
        }
        while send_one(&mut outgoing, bytes_max, &mut writer) {}
        prop_assert_eq!(outgoing.unsent_bytes(), 0);
        expected.sort();
        prop_assert!(received(&writer.taken) == expected);
    }
}
