//! Both ends of a session against each other, over links that are cut anywhere.

use c10d_socket::SendBuf;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// One end, with the bytes that it has taken out of its link and the bytes that it has read of the stream.
#[derive(Default)]
struct End {
    stream: SessionStream,
    read: Vec<u8>,
    sent: Vec<u8>,
}

impl End {
    fn push(&mut self, bytes: &[u8]) {
        self.stream.push(bytes);
        self.sent.extend_from_slice(bytes);
    }

    /// The bytes that it writes to its link now.
    fn write(&mut self) -> Vec<u8> {
        let mut out = SendBuf::new();
        self.stream.fill(&mut out, usize::MAX);
        let mut wire = Vec::new();
        out.flush(&mut wire).expect("memory takes everything");
        wire
    }

    fn take(&mut self, mut link: &[u8]) {
        while let Some(bytes) = self.stream.next_bytes(&mut link).expect("a good peer") {
            self.read.extend_from_slice(bytes);
        }
    }
}

fn reconnect(a: &mut End, b: &mut End) {
    let of_a = a.stream.received();
    a.stream.attach(b.stream.received()).expect("where b is");
    b.stream.attach(of_a).expect("where a is");
}

#[derive(Debug, Clone)]
enum Step {
    Push {
        by_a: bool,
        bytes: Vec<u8>,
    },
    /// This many bytes on the way arrive.
    Deliver {
        to_a: bool,
        count: usize,
    },
    /// The bytes on the way are lost. An old link's bytes never arrive on a new link.
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<bool>(), vec(any::<u8>(), 0..60))
            .prop_map(|(by_a, bytes)| Step::Push { by_a, bytes }),
        1 => (any::<bool>(), 0..100_000_usize)
            .prop_map(|(by_a, count)| Step::Push { by_a, bytes: vec![7; count] }),
        6 => (any::<bool>(), 0..90_usize).prop_map(|(to_a, count)| Step::Deliver { to_a, count }),
        1 => any::<bool>().prop_map(|to_a| Step::Deliver { to_a, count: usize::MAX }),
        1 => Just(Step::Cut),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// docs/spec/wire-extensions.md, SESSION 4.
    #[test]
    fn any_history_of_links_delivers_everything_once(steps in vec(step(), 1..60)) {
        let (mut a, mut b) = (End::default(), End::default());
        reconnect(&mut a, &mut b);
        // The bytes on the way to a and to b.
        let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Push { by_a: true, bytes } => a.push(&bytes),
                Step::Push { by_a: false, bytes } => b.push(&bytes),
                Step::Deliver { to_a: is_to_a, count } => {
                    let (end, way) = if is_to_a { (&mut a, &mut to_a) } else { (&mut b, &mut to_b) };
                    let count = count.min(way.len());
                    end.take(&way.drain(..count).collect::<Vec<u8>>());
                }
                Step::Cut => {
                    to_a.clear();
                    to_b.clear();
                    reconnect(&mut a, &mut b);
                }
            }
            to_b.extend(a.write());
            to_a.extend(b.write());
            a.stream.check_invariants();
            b.stream.check_invariants();
            prop_assert!(a.sent.starts_with(&b.read) && b.sent.starts_with(&a.read));
        }
        b.take(&to_b);
        a.take(&to_a);
        for _ in 0..2 {
            let up = a.write();
            b.take(&up);
            let down = b.write();
            a.take(&down);
        }
        prop_assert!(b.read == a.sent && a.read == b.sent);
    }

    #[test]
    fn random_bytes_of_a_peer_never_panic(pieces in vec(vec(any::<u8>(), 0..40), 0..20)) {
        let (mut stream, mut reader) = (SessionStream::default(), FrameReader::default());
        stream.push(b"something to acknowledge");
        let _ = End { stream: SessionStream::default(), ..End::default() }.write();
        for piece in &pieces {
            let mut link = &piece[..];
            while let Ok(Some(mut bytes)) = stream.next_bytes(&mut link) {
                while let Ok(Some(_)) = reader.next(&mut bytes) {}
            }
            let mut bytes = &piece[..];
            while let Ok(Some(_)) = reader.next(&mut bytes) {}
        }
    }
}

/// docs/spec/wire-extensions.md, SESSION 5.
#[test]
fn what_is_kept_is_bounded_and_forgotten_with_its_acknowledgment() {
    let (mut a, mut b) = (End::default(), End::default());
    reconnect(&mut a, &mut b);
    a.stream.push(&vec![1; SESSION_WINDOW_BYTES]);
    assert_eq!(a.stream.room(), 0);
    let up = a.write();
    b.take(&up);
    assert!(b.stream.has_unsent(), "much has arrived");
    let down = b.write();
    assert_eq!(down.len(), 12, "an acknowledgment without bytes");
    a.take(&down);
    assert_eq!(a.stream.room(), SESSION_WINDOW_BYTES);

    // A little is acknowledged with the next bytes, or when asked.
    a.push(b"little");
    let up = a.write();
    b.take(&up);
    assert!(!b.stream.has_unsent() && b.stream.has_unreported());
    let mut out = SendBuf::new();
    b.stream.report(&mut out);
    let mut down = Vec::new();
    out.flush(&mut down).expect("memory takes everything");
    a.take(&down);
    assert!(!a.stream.has_unacknowledged());
}

/// docs/spec/wire-extensions.md, SESSION 2, 6 and 8.
#[test]
fn a_peer_that_breaks_the_rules_is_found_out() {
    let mut stream = SessionStream::default();
    stream.push(b"abc");
    assert!(
        stream.attach(4).is_err(),
        "it has received more than was sent"
    );
    stream.attach(1).expect("it has received one byte");
    assert!(stream.attach(0).is_err(), "it has lost what it had");
    let mut future = &[0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0][..];
    assert!(stream.next_bytes(&mut future).is_err());

    // Credit.
    let mut credit = Credit::default();
    assert!(credit.returned(1).is_err());
    credit
        .received(CLIENT_WINDOW_BYTES as usize)
        .expect("it had credit");
    assert!(credit.received(1).is_err());
    assert_eq!(credit.used(1), None);
    let returned = credit.used(CLIENT_WINDOW_BYTES as usize - 1);
    assert_eq!(returned, Some(CLIENT_WINDOW_BYTES));
    credit.received(1).expect("it has credit again");

    // Frames.
    let bad: [&[u8]; 5] = [
        &[0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[9, 0, 0, 0, 0, 0, 0, 0, 0],
        &[2, 0, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 1, 0],
        &[3, 0, 0, 1, 0, 1, 0, 0, 0],
    ];
    for mut bytes in bad {
        assert!(
            FrameReader::default().next(&mut bytes).is_err(),
            "{bytes:?}"
        );
    }
    // Pieces: an invalid place, an invalid length, no bytes, a piece that was not sent; and pieces to a server.
    let bad: [&[u8]; 4] = [
        &[9, 16, 0, 0, 0, 1, 0, 0, 0, 7],
        &[9, 0, 0, 0, 0, 1, 0, 1, 0, 7],
        &[9, 0, 0, 0, 0, 0, 0, 0, 0, 7],
        &[10, 1, 0, 0, 0, 3, 0, 0, 0],
    ];
    for mut bytes in bad {
        assert!(
            FrameReader::taking_pieces().next(&mut bytes).is_err(),
            "{bytes:?}"
        );
    }
    for kind in [9, 10] {
        let mut bytes = &[kind, 0, 0, 0, 0, 1, 0, 0, 0, 7][..];
        assert!(FrameReader::default().next(&mut bytes).is_err());
    }
}

/// docs/spec/wire-extensions.md, SESSION 6.
#[test]
fn frames_are_the_same_for_any_split() {
    let mut stream = SessionStream::default();
    stream.push_open(1, 4711);
    stream.push_data(1, b"request");
    stream.push_group(&[1, 7, 2], b"the same");
    stream.push_piece(15, b"a piece");
    stream.push_piece(0, b"another one");
    stream.push_shared(2, 15);
    stream.push_credit(1, 300);
    stream.push_piece(15, b"later");
    stream.push_shared(7, 15);
    stream.push_close(1);
    stream.push_end();
    let mut out = SendBuf::new();
    stream.fill(&mut out, usize::MAX);
    let mut wire = Vec::new();
    out.flush(&mut wire).expect("memory takes everything");

    let frames_of = |piece: usize| {
        let (mut reader, mut stream) = (FrameReader::taking_pieces(), SessionStream::default());
        let (mut data, mut others) = (Vec::new(), Vec::new());
        for mut link in wire.chunks(piece) {
            while let Some(mut bytes) = stream.next_bytes(&mut link).expect("link frames") {
                while let Some(frame) = reader.next(&mut bytes).expect("frames") {
                    match frame {
                        Frame::Data { client: 1, bytes } => data.extend_from_slice(bytes),
                        Frame::Group(group) => {
                            let clients: Vec<u32> = group.clients().collect();
                            others.push(format!("{clients:?} {:?}", group.bytes()));
                        }
                        other => others.push(format!("{other:?}")),
                    }
                }
            }
        }
        (data, others)
    };
    let (data, others) = frames_of(wire.len());
    assert_eq!(data, b"request");
    assert_eq!(
        others,
        [
            "Open { client: 1, port: 4711 }".to_owned(),
            format!("[1, 7, 2] {:?}", b"the same"),
            format!("Shared {{ client: 2, bytes: {:?} }}", b"a piece"),
            "Credit { client: 1, bytes: 300 }".to_owned(),
            format!("Shared {{ client: 7, bytes: {:?} }}", b"later"),
            "Close { client: 1 }".to_owned(),
            "End".to_owned(),
        ]
    );
    for piece in 1..wire.len() {
        assert_eq!(
            frames_of(piece),
            (data.clone(), others.clone()),
            "pieces of {piece}"
        );
    }
}
