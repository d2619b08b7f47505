//! END_WAITS that crosses a CANCEL_WAIT: docs/spec/wire-extensions.md, END_WAITS 2. Whatever arrives first, both kinds of clients
//! stay in step.

use super::SimServer;
use crate::wire::{Opcode, RequestBuf};

const CLIENT: u64 = 1;
const OTHER: u64 = 2;

/// An event that another client causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    EndWaits,
    Set,
}

/// When a client sends its cancel and when it reads, seen from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cancel {
    /// It has read the reply before that.
    Never,
    /// It had not read anything when it sent the cancel.
    Sent,
}

fn request<'v>(build: impl FnOnce(&mut RequestBuf<'v>)) -> Vec<u8> {
    let mut request = RequestBuf::new();
    build(&mut request);
    request.to_bytes()
}

fn wait(opcode: Opcode) -> Vec<u8> {
    request(|r| match opcode {
        Opcode::Barrier => _ = r.opcode(opcode).user_key("k").i64(2),
        Opcode::QueueTake => _ = r.opcode(opcode).user_key("k").u64(1),
        Opcode::WaitChange => {
            _ = r
                .opcode(opcode)
                .user_key("k")
                .u64(0)
                .u64(u64::MAX)
                .value(b"");
        }
        _ => _ = r.opcode(opcode).user_keys(&["k"]),
    })
}

fn carry_out(server: &mut SimServer, event: Event) {
    let bytes = request(|r| match event {
        Event::EndWaits => _ = r.opcode(Opcode::EndWaits).user_key(""),
        Event::Set => _ = r.opcode(Opcode::Set).user_key("k").value(b"1"),
    });
    server.send(OTHER, &bytes);
    server.take(OTHER);
}

/// Reads the replies to a wait as both clients do: PyTorch's reads a second byte after a cancel if the first one is
/// 0, and so does ours, after the values. Returns whether the reply reports that the wait is over without success.
fn read(replies: &mut &[u8], opcode: Opcode, cancel: Cancel) -> bool {
    let first = take(replies);
    if first == 1 {
        return true;
    }
    assert_eq!(first, 0);
    match opcode {
        Opcode::WaitGet | Opcode::WaitChange => *replies = &replies[9..],
        Opcode::QueueTake => unreachable!("nothing is pushed"),
        _ => {}
    }
    if cancel == Cancel::Sent {
        assert_eq!(take(replies), 1);
    }
    false
}

fn take(replies: &mut &[u8]) -> u8 {
    let (first, rest) = replies.split_first().expect("a reply");
    *replies = rest;
    *first
}

/// docs/spec/wire-extensions.md, END_WAITS 1 and 2.
#[test]
fn clients_stay_in_step_in_every_order() {
    let waits = [
        Opcode::Wait,
        Opcode::Barrier,
        Opcode::WaitGet,
        Opcode::WaitChange,
        Opcode::QueueTake,
    ];
    let mut ended = 0;
    for opcode in waits {
        for events in [
            &[][..],
            &[Event::EndWaits],
            &[Event::EndWaits, Event::EndWaits],
            &[Event::EndWaits, Event::Set],
            &[Event::Set, Event::EndWaits],
        ] {
            // The wait arrives after `wait_at` events, and the cancel after `cancel_at`.
            for wait_at in 0..=events.len() {
                for cancel_at in wait_at..=events.len() + 1 {
                    let mut server = SimServer::default();
                    for conn in [CLIENT, OTHER] {
                        server.open(conn);
                    }
                    for event in &events[..wait_at] {
                        carry_out(&mut server, *event);
                    }
                    server.send(CLIENT, &wait(opcode));
                    let before_cancel = cancel_at.min(events.len());
                    for event in &events[wait_at..before_cancel] {
                        carry_out(&mut server, *event);
                    }
                    // Beyond the last event, a client with a reply sends no cancel.
                    let mut replies = server.take(CLIENT);
                    let cancel = if cancel_at > events.len() && !replies.is_empty() {
                        Cancel::Never
                    } else {
                        server.send(CLIENT, &[Opcode::CancelWait as u8]);
                        Cancel::Sent
                    };
                    for event in &events[before_cancel..] {
                        carry_out(&mut server, *event);
                    }
                    // The next requests have their own replies, including a cancel.
                    server.send(CLIENT, &[0x0d, 7, 7, 7, 7, Opcode::CancelWait as u8]);
                    replies.extend(server.take(CLIENT));
                    let mut rest = &replies[..];
                    ended += u32::from(read(&mut rest, opcode, cancel));
                    let case = format!("{opcode:?} {events:?} {wait_at} {cancel_at}");
                    assert_eq!(rest, [7, 7, 7, 7, 1], "{case}");
                }
            }
        }
    }
    assert!(ended > 30, "{ended}");
}

/// After END_WAITS, a second cancel has an answer, and so has a cancel after another wait.
#[test]
fn only_the_first_cancel_after_the_end_has_no_answer() {
    let mut server = SimServer::default();
    for conn in [CLIENT, OTHER] {
        server.open(conn);
    }
    let cancel = [Opcode::CancelWait as u8];
    server.send(CLIENT, &wait(Opcode::Wait));
    carry_out(&mut server, Event::EndWaits);
    assert_eq!(server.take(CLIENT), [1]);
    server.send(CLIENT, &cancel);
    assert!(server.take(CLIENT).is_empty());
    server.send(CLIENT, &cancel);
    assert_eq!(server.take(CLIENT), [1]);
    server.send(CLIENT, &wait(Opcode::Wait));
    carry_out(&mut server, Event::EndWaits);
    server.send(CLIENT, &wait(Opcode::Wait));
    assert_eq!(server.take(CLIENT), [1]);
    server.send(CLIENT, &cancel);
    assert_eq!(server.take(CLIENT), [1]);
}
