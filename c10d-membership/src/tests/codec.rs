//! The format: docs/spec/wire-extensions.md, section 9.13.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::{Encode, Malformed, decode_all, decode_reply, encode_reply, list_of};
use crate::{
    Attempt, Cause, EndReason, Event, EventNumber, Group, GroupOptions, GroupStage, Input, Kept,
    Leave, Limit, MemberKey, Message, Nonce, Reason, Record, Reply, Seat,
};

const MEMBER: MemberKey = MemberKey::new(7, 2);
const NOW: Duration = Duration::from_millis(500);

fn attempt(count: u32) -> Attempt {
    Attempt::new(Nonce::new(0xff00_0000), count)
}

fn record() -> Record {
    let seat = |id, previous| Seat {
        member: MemberKey::new(id, 1),
        handle: format!("gloo:{id}").into(),
        step: 9,
        previous,
    };
    Record {
        attempt: attempt(3),
        seats: vec![seat(1, Some(1)), seat(2, None)],
        source: 1,
    }
}

fn encoded<T: Encode>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// A value is read as it was written, and not if a byte is missing or left over.
fn check<T: Encode + Debug + PartialEq>(value: &T) {
    let mut bytes = encoded(value);
    for length in 0..bytes.len() {
        let cut = decode_all::<T>(&bytes[..length]);
        assert_eq!(cut, Err(Malformed), "{length} bytes of {value:?}");
    }
    assert_eq!(decode_all(&bytes).as_ref(), Ok(value));
    bytes.push(0);
    assert_eq!(decode_all::<T>(&bytes), Err(Malformed));
}

fn messages() -> Vec<Message> {
    let (attempt, step) = (attempt(1), 5);
    vec![
        Message::Hello {
            handle: "gloo:ü".into(),
            step,
        },
        Message::Ready {
            attempt,
            handle: "".into(),
            step,
        },
        Message::Ack {
            attempt,
            is_ok: true,
        },
        Message::Boundary {
            generation: attempt,
            step,
        },
        Message::Leave,
        Message::finished(attempt),
        Message::PollFinished {
            generation: attempt,
            after: EventNumber(7),
        },
        Message::Poll {
            after: EventNumber(77),
            is_leaving: true,
        },
    ]
}

fn replies() -> Vec<Reply> {
    let record = Arc::new(record());
    let left = Duration::from_millis(2000);
    let propose = |leave| Event::Propose {
        attempt: attempt(4),
        leave,
        deadline: left,
    };
    let causes = [
        Cause::First,
        Cause::Change,
        Cause::Lost(MEMBER, Reason::HandleTaken),
        Cause::CallFailed(MEMBER),
        Cause::BoundaryTimedOut,
        Cause::Restarted,
    ];
    let mut events = vec![
        propose(Leave::AtBoundary { step: None }),
        propose(Leave::AtBoundary { step: Some(0) }),
        Event::Call {
            record: Arc::clone(&record),
            deadline: left,
        },
        Event::Commit { record },
        Event::Ended(EndReason::Finished),
    ];
    for cause in causes {
        events.push(propose(Leave::Now(cause)));
        events.push(Event::Break {
            attempt: attempt(4),
            cause,
        });
    }
    let mut replies = vec![
        Reply::Accepted,
        Reply::Over,
        Reply::Proceed,
        Reply::Change(attempt(4)),
        Reply::NotYet,
        Reply::Unknown,
        Reply::Refused(Limit::Members(1)),
        Reply::Refused(Limit::Newcomers(2)),
        Reply::Refused(Limit::HandleBytes(3)),
    ];
    for reason in [
        Reason::Dead,
        Reason::Silent,
        Reason::NotReady,
        Reason::NotAcknowledged,
        Reason::Replaced,
        Reason::HandleTaken,
        Reason::CallsFailed,
        Reason::NoBoundary,
        Reason::Left,
    ] {
        replies.push(Reply::Evicted(reason));
    }
    for reason in [
        EndReason::Finished,
        EndReason::BelowMinimum,
        EndReason::CallsFailed,
        EndReason::Closed,
        EndReason::AttemptsUsedUp,
    ] {
        replies.push(Reply::Ended(reason));
    }
    let number = EventNumber(12);
    replies.extend(events.into_iter().map(|event| Reply::Event(number, event)));
    replies
}

#[test]
fn values_are_read_as_they_were_written() {
    messages().iter().for_each(check);
    check(&MEMBER);
    check(&attempt(u32::MAX));
    check(&record());
    let committed = Some(Arc::new(record()));
    check(&Kept::new(attempt(3), None, None));
    check(&Kept::new(attempt(3), committed.clone(), None));
    check(&Kept::new(
        attempt(9),
        committed,
        Some(EndReason::CallsFailed),
    ));

    let mut group = Group::new(GroupOptions::new(1), Nonce::new(1));
    check(&group.status(NOW));
    group.step(NOW, Input::Message(MEMBER, messages().swap_remove(0)));
    let status = group.status(NOW);
    assert_eq!(status.stage, GroupStage::Proposed);
    assert!(status.members[0].is_awaited);
    check(&status);
    group.step(NOW, Input::Close);
    check(&group.status(NOW));
}

#[test]
fn replies_are_read_as_they_were_written_with_the_time_that_is_left() {
    for reply in replies() {
        let sent = match reply.clone() {
            Reply::Event(
                number,
                Event::Propose {
                    attempt,
                    leave,
                    deadline,
                },
            ) => {
                let deadline = deadline + NOW;
                Reply::Event(
                    number,
                    Event::Propose {
                        attempt,
                        leave,
                        deadline,
                    },
                )
            }
            Reply::Event(number, Event::Call { record, deadline }) => {
                let deadline = deadline + NOW;
                Reply::Event(number, Event::Call { record, deadline })
            }
            other => other,
        };
        let mut bytes = Vec::new();
        encode_reply(&sent, NOW, &mut bytes);
        let list = list_of(&reply).cloned();
        for length in 0..bytes.len() {
            let cut = decode_reply(&bytes[..length], |_| list.clone());
            assert_eq!(cut, Err(Malformed), "{length} bytes of {reply:?}");
        }
        assert_eq!(decode_reply(&bytes, |_| list.clone()), Ok(reply.clone()));
        if list.is_some() {
            assert_eq!(decode_reply(&bytes, |_| None), Err(Malformed));
            let mut other = record();
            other.attempt = attempt(8);
            let other = Some(Arc::new(other));
            assert_eq!(decode_reply(&bytes, |_| other), Err(Malformed));
        }
        bytes.push(0);
        assert_eq!(decode_reply(&bytes, |_| list), Err(Malformed), "{reply:?}");
    }
}

/// What does not fit the format is as much as it has, for both sides.
#[test]
fn options_beyond_the_format_are_its_largest() {
    let mut options = GroupOptions::new(3);
    options.replace_wait = Duration::from_micros(1500);
    let read: GroupOptions = decode_all(&encoded(&options)).expect("options");
    assert_eq!(read.replace_wait, Duration::from_millis(2));
    options.replace_wait = read.replace_wait;
    assert_eq!(read, options);
    check(&options);

    options.form_timeout = Duration::MAX;
    options.members_max = usize::MAX;
    options.handle_bytes_max = usize::MAX;
    let read: GroupOptions = decode_all(&encoded(&options)).expect("options");
    assert_eq!(read.form_timeout, Duration::from_millis(u32::MAX.into()));
    assert_eq!((read.members_max, read.handle_bytes_max), (65_536, 4096));
    check(&read);
}

/// docs/spec/wire-extensions.md, section 9.13: the bytes of the tables.
#[test]
fn the_format_is_the_documented_one() {
    let hello = Message::Hello {
        handle: "gl".into(),
        step: 3,
    };
    assert_eq!(
        encoded(&hello),
        [1, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, b'g', b'l']
    );
    let ack = Message::Ack {
        attempt: Attempt::from_uuid(0x0102).expect("63 bits"),
        is_ok: false,
    };
    assert_eq!(encoded(&ack), [3, 2, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded(&Message::Leave), [5]);
    assert_eq!(
        encoded(&MEMBER),
        [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
    );
    let mut lost = Vec::new();
    let event = Event::Break {
        attempt: Attempt::from_uuid(5).expect("63 bits"),
        cause: Cause::Lost(MEMBER, Reason::Silent),
    };
    encode_reply(&Reply::Event(EventNumber(23), event), NOW, &mut lost);
    let expected = [
        &[5, 23, 0, 0, 0, 0, 0, 0, 0, 4, 5, 0, 0, 0, 0, 0, 0, 0, 3, 2][..],
        &encoded(&MEMBER),
    ];
    assert_eq!(lost, expected.concat());
    assert_eq!(encoded(&GroupOptions::new(2)).len(), 14 * 4);
    assert_eq!(encoded(&record()).len(), 16 + 2 * (16 + 8 + 4 + 4 + 6));
}

/// Strangers' bytes: an announced length reserves nothing, and what contradicts itself is refused.
#[test]
fn what_is_no_value_is_refused() {
    let mut list = encoded(&record());
    list[12..16].fill(0xff);
    assert_eq!(decode_all::<Record>(&list), Err(Malformed), "so many seats");
    let mut list = encoded(&record());
    list[8] = 2;
    assert_eq!(
        decode_all::<Record>(&list),
        Err(Malformed),
        "no such source"
    );
    let mut text = encoded(&messages()[0]);
    *text.last_mut().expect("bytes") = 0xff;
    assert_eq!(decode_all::<Message>(&text), Err(Malformed), "no UTF-8");
    assert_eq!(decode_all::<Attempt>(&[0xff; 8]), Err(Malformed));
    let none = GroupOptions {
        size_min: 0,
        ..GroupOptions::new(1)
    };
    assert_eq!(decode_all::<GroupOptions>(&encoded(&none)), Err(Malformed));
    let later = Kept::new(attempt(2), Some(Arc::new(record())), None);
    assert_eq!(decode_all::<Kept>(&encoded(&later)), Err(Malformed));
    let other = Attempt::from_uuid(u64::from(u32::MAX)).expect("63 bits");
    let other = Kept::new(other, Some(Arc::new(record())), None);
    assert_eq!(decode_all::<Kept>(&encoded(&other)), Err(Malformed));

    // Random bytes and changed ones.
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..20_000 {
        let mut bytes = match random.u8(..4) {
            0 => (0..random.usize(..40)).map(|_| random.u8(..8)).collect(),
            1 => encoded(&record()),
            2 => encoded(&messages()[random.usize(..6)]),
            _ => encoded(&GroupOptions::new(1)),
        };
        if !bytes.is_empty() {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        let _ = decode_all::<Message>(&bytes);
        let _ = decode_all::<Record>(&bytes);
        let _ = decode_all::<GroupOptions>(&bytes);
        let _ = decode_all::<Kept>(&bytes);
        let _ = decode_reply(&bytes, |_| Some(Arc::new(record())));
    }
}
