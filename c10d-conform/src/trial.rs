//! The run of one script against a server, without sockets and clocks: returns the next order, takes its result, and
//! finishes with a verdict.

use std::time::Duration;

use crate::fence::{Exchange, handshake};
use crate::script::{Act, Script};
use crate::verdict::{Bytes, Difference, Expected, Verdict};

/// An order for the shell. Connections are numbers from 0 on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order<'t> {
    /// Open a connection, with the handshake or without. A connection that has had the handshake can be used as well.
    Open(usize, bool),
    Send(usize, &'t [u8]),
    /// Waits for bytes or the end of the stream, for a limited time.
    Read(usize),
    /// Waits for the same, this long.
    Watch(usize, Duration),
    Close(usize),
    /// The script needs it no longer.
    Release(usize),
    Pause(Duration),
    End(Verdict),
}

/// The result of the last order.
#[derive(Debug)]
pub(crate) enum Event {
    /// The order was carried out; for the first call, there was no order.
    Done,
    /// The connection has had its handshake.
    Reused,
    Bytes(Vec<u8>),
    /// The stream has ended, or the connection is broken, including after a failed write.
    Ended,
    /// The time has passed.
    Silent,
    /// The server did not accept a connection.
    Refused(String),
}

#[derive(Debug)]
enum Operation {
    Open {
        has_handshake: bool,
    },
    Send {
        bytes: Vec<u8>,
        is_noted: bool,
    },
    /// Notes what the next pieces are of.
    Note(Vec<u8>),
    Expect(Vec<Vec<u8>>, Kind),
    ExpectEnd,
    ExpectSilence(Duration),
    Close,
    Release,
    Pause(Duration),
}

/// The step to which a reply belongs.
type Kind = fn(Bytes) -> Expected;

#[derive(Debug, Default)]
struct Connection {
    name: String,
    unread: Vec<u8>,
    is_ended: bool,
    /// The last bytes that were sent, except for fences and the handshake.
    sent: Vec<u8>,
}

/// A script in progress.
#[derive(Debug)]
pub(crate) struct Trial {
    /// The operations, each with the number of its connection.
    operations: Vec<(usize, Operation)>,
    next: usize,
    /// The connection of the last order.
    ordered: usize,
    connections: Vec<Connection>,
}

impl Trial {
    pub(crate) fn new(script: &Script, fence: &Exchange) -> Self {
        let mut trial = Self {
            operations: Vec::new(),
            next: 0,
            ordered: 0,
            connections: Vec::new(),
        };
        let handshake = handshake(fence);
        for step in script {
            let connection = trial.number_of(&step.connection);
            let mut then = |operation| trial.operations.push((connection, operation));
            let unnoted = |bytes: &[u8]| Operation::Send {
                bytes: bytes.to_vec(),
                is_noted: false,
            };
            match &step.act {
                Act::Open { has_handshake } => {
                    let has_handshake = *has_handshake;
                    then(Operation::Open { has_handshake });
                    if has_handshake {
                        then(unnoted(&handshake.request));
                        then(Operation::Expect(
                            vec![handshake.reply.clone()],
                            Expected::Handshake,
                        ));
                    }
                }
                Act::Send(send) if send.cuts.is_empty() => then(Operation::Send {
                    bytes: send.bytes.clone(),
                    is_noted: true,
                }),
                Act::Send(send) => {
                    then(Operation::Note(send.bytes.clone()));
                    for (index, piece) in send.pieces().enumerate() {
                        if index > 0 {
                            then(Operation::Pause(send.pause));
                        }
                        then(unnoted(piece));
                    }
                }
                Act::Receive(choices) => then(Operation::Expect(choices.clone(), Expected::Reply)),
                Act::Fence => {
                    then(unnoted(&fence.request));
                    then(Operation::Expect(
                        vec![fence.reply.clone()],
                        Expected::NothingMore,
                    ));
                }
                Act::End => then(Operation::ExpectEnd),
                Act::Silence(time) => then(Operation::ExpectSilence(*time)),
                Act::Close => then(Operation::Close),
                Act::Release => then(Operation::Release),
                Act::Pause(pause) => then(Operation::Pause(*pause)),
            }
        }
        trial
    }

    fn number_of(&mut self, name: &str) -> usize {
        let known = self.connections.iter().position(|it| it.name == name);
        known.unwrap_or_else(|| {
            self.connections.push(Connection {
                name: name.to_owned(),
                ..Connection::default()
            });
            self.connections.len() - 1
        })
    }

    /// The next order, after the result of the previous order.
    pub(crate) fn next(&mut self, event: Event) -> Order<'_> {
        let mut is_silent = matches!(event, Event::Silent);
        if let Some(state) = self.connections.get_mut(self.ordered) {
            match event {
                Event::Done | Event::Silent => {}
                // Past the handshake's request and reply.
                Event::Reused => self.next += 2,
                Event::Bytes(bytes) => state.unread.extend(bytes),
                Event::Ended => state.is_ended = true,
                Event::Refused(why) => return Order::End(Verdict::NotRun { why }),
            }
        }
        while let Some((number, operation)) = self.operations.get(self.next) {
            self.ordered = *number;
            let state = &mut self.connections[*number];
            // Expected input is checked again after each event; every other operation is done when it is ordered.
            let seen = match operation {
                Operation::Expect(choices, _) => state.expect(choices),
                Operation::ExpectEnd => state.expect_end(),
                Operation::ExpectSilence(time) if !state.is_heard() => {
                    if !is_silent {
                        return Order::Watch(*number, *time);
                    }
                    is_silent = false;
                    Seen::Expected
                }
                Operation::ExpectSilence(_) => Seen::Other,
                _ => Seen::Expected,
            };
            match seen {
                Seen::Expected => self.next += 1,
                Seen::Other => return Order::End(Verdict::Differs(state.difference(operation))),
                Seen::Nothing if is_silent => {
                    return Order::End(Verdict::Hangs(state.difference(operation)));
                }
                Seen::Nothing => return Order::Read(*number),
            }
            match operation {
                Operation::Expect(..) | Operation::ExpectEnd | Operation::ExpectSilence(_) => {}
                Operation::Note(bytes) => state.sent.clone_from(bytes),
                Operation::Open { has_handshake } => return Order::Open(*number, *has_handshake),
                Operation::Close => return Order::Close(*number),
                Operation::Release => return Order::Release(*number),
                Operation::Pause(pause) => return Order::Pause(*pause),
                Operation::Send { bytes, is_noted } => {
                    if *is_noted {
                        state.sent.clone_from(bytes);
                    }
                    return Order::Send(*number, bytes);
                }
            }
        }
        Order::End(Verdict::Same)
    }
}

enum Seen {
    Expected,
    Other,
    /// Nothing yet that differs.
    Nothing,
}

impl Connection {
    /// Takes one of the choices off what has arrived. Compares while it arrives, so that a wrong length is not waited for.
    fn expect(&mut self, choices: &[Vec<u8>]) -> Seen {
        if let Some(choice) = choices.iter().find(|it| self.unread.starts_with(it)) {
            self.unread.drain(..choice.len());
            return Seen::Expected;
        }
        match choices.iter().any(|it| it.starts_with(&self.unread)) && !self.is_ended {
            true => Seen::Nothing,
            false => Seen::Other,
        }
    }

    fn is_heard(&self) -> bool {
        !self.unread.is_empty() || self.is_ended
    }

    fn expect_end(&self) -> Seen {
        match (self.unread.is_empty(), self.is_ended) {
            (true, true) => Seen::Expected,
            (true, false) => Seen::Nothing,
            (false, _) => Seen::Other,
        }
    }

    fn difference(&self, operation: &Operation) -> Difference {
        let expected = match operation {
            Operation::Expect(choices, kind) => {
                kind(Bytes::of_reply(choices.first().map_or(&[], Vec::as_slice)))
            }
            Operation::ExpectSilence(_) => Expected::Silence,
            _ => Expected::Close,
        };
        Difference {
            connection: self.name.clone(),
            after: Bytes::of_requests(&self.sent),
            expected,
            got: Bytes::of_reply(&self.unread),
            is_closed: self.is_ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::Column;
    use crate::fence::fence;
    use crate::script::{Send, Step};

    const PING: u8 = 0x0d;

    fn trial(acts: &[Act]) -> Trial {
        let steps = acts.iter().map(|act| Step {
            connection: "A".to_owned(),
            act: act.clone(),
        });
        let open = Step {
            connection: "A".to_owned(),
            act: Act::Open {
                has_handshake: false,
            },
        };
        let script = [open].into_iter().chain(steps).collect();
        let mut trial = Trial::new(&script, &fence(Column::default(), "/fence"));
        assert_eq!(trial.next(Event::Done), Order::Open(0, false));
        trial
    }

    fn end(mut trial: Trial, events: &[&[u8]], last: Event) -> Verdict {
        let mut events = events.iter();
        let mut event = Event::Done;
        let mut last = Some(last);
        loop {
            event = match trial.next(event) {
                Order::End(verdict) => return verdict,
                Order::Read(0) => match events.next() {
                    Some(bytes) => Event::Bytes(bytes.to_vec()),
                    None => last.take().expect("the trial ends after the last event"),
                },
                _ => Event::Done,
            };
        }
    }

    #[test]
    fn a_reply_may_arrive_in_pieces_and_with_the_next_one() {
        let acts = [
            Act::Send(Send::whole(vec![0x0c])),
            Act::Receive(vec![vec![0, 1], vec![1, 1]]),
            Act::Receive(vec![vec![7]]),
            Act::End,
        ];
        for events in [&[&[0, 1, 7][..]][..], &[&[1], &[1, 7]], &[&[0], &[1], &[7]]] {
            assert_eq!(end(trial(&acts), events, Event::Ended), Verdict::Same);
        }
    }

    #[test]
    fn other_bytes_silence_and_an_early_end_are_told_apart() {
        let acts = [
            Act::Send(Send::whole(vec![0x0c])),
            Act::Receive(vec![vec![1, 2]]),
            Act::Fence,
        ];
        let verdict = end(trial(&acts), &[&[1], &[3]], Event::Done);
        let Verdict::Differs(difference) = &verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!(difference.after.text, "CANCEL_WAIT");
        assert_eq!(
            verdict.sentence("PyTorch"),
            "after CANCEL_WAIT on connection A, PyTorch sends 01 02; this server sent 01 03"
        );
        let verdict = end(trial(&acts), &[&[1]], Event::Silent);
        assert!(matches!(verdict, Verdict::Hangs(_)), "{verdict:?}");
        let verdict = end(trial(&acts), &[&[1]], Event::Ended);
        assert!(
            verdict
                .sentence("PyTorch")
                .ends_with("sent 01, then closed the connection")
        );
        // More than the reply is found by the fence.
        let verdict = end(trial(&acts), &[&[1, 2, 0]], Event::Silent);
        assert!(matches!(verdict, Verdict::Differs(_)), "{verdict:?}");
        let verdict = end(trial(&[Act::End]), &[&[1]], Event::Ended);
        assert!(matches!(verdict, Verdict::Differs(_)), "{verdict:?}");
        let verdict = end(trial(&[Act::End]), &[], Event::Silent);
        assert!(matches!(verdict, Verdict::Hangs(_)), "{verdict:?}");
    }

    #[test]
    fn silence_ends_with_its_time_or_with_a_byte_or_the_end() {
        let time = Duration::from_millis(5);
        let acts = [Act::Silence(time), Act::Fence];
        let mut quiet = trial(&acts);
        assert_eq!(quiet.next(Event::Done), Order::Watch(0, time));
        assert!(matches!(quiet.next(Event::Silent), Order::Send(0, _)));
        for event in [Event::Ended, Event::Bytes(vec![1])] {
            let mut heard = trial(&acts);
            assert_eq!(heard.next(Event::Done), Order::Watch(0, time));
            let order = heard.next(event);
            assert!(
                matches!(order, Order::End(Verdict::Differs(_))),
                "{order:?}"
            );
        }
    }

    #[test]
    fn pieces_are_sent_with_pauses_and_noted_as_a_whole() {
        let pause = Duration::from_millis(3);
        let bytes = vec![PING, 1, 0, 0, 0];
        let cuts = vec![1, 4];
        let mut trial = trial(&[Act::Send(Send { bytes, cuts, pause }), Act::End]);
        assert_eq!(trial.next(Event::Done), Order::Send(0, &[PING]));
        assert_eq!(trial.next(Event::Done), Order::Pause(pause));
        assert_eq!(trial.next(Event::Done), Order::Send(0, &[1, 0, 0]));
        assert_eq!(trial.next(Event::Done), Order::Pause(pause));
        assert_eq!(trial.next(Event::Done), Order::Send(0, &[0]));
        assert_eq!(trial.next(Event::Done), Order::Read(0));
        let Order::End(verdict) = trial.next(Event::Bytes(vec![9])) else {
            panic!("it differs")
        };
        let sentence = verdict.sentence("PyTorch");
        assert!(
            sentence.starts_with("after PING 0x1 on connection A, PyTorch closes"),
            "{sentence}"
        );
    }
}
