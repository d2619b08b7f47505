//! One client of a server that may be killed at any moment.

use std::sync::Arc;

use c10d_sim::Seeds;
use c10d_socket::SendBuf;

use super::*;
use crate::limits::WireLimits;
use crate::session::{Credit, Frame, FrameReader, RawRequests};
use crate::wire::RequestBuf;

mod model;

use model::{START_BYTES, Server};

/// The only client.
const CLIENT: u32 = 0;

/// A client, and the server.
struct Pair {
    server: Server,
    stream: SessionStream,
    reader: FrameReader,
    credit: Credit,
    outstanding: Outstanding,
    /// The requests with an effect.
    effects: Vec<Vec<u8>>,
    requests: u32,
    got: Vec<u8>,
    /// The bytes on their way.
    up: Vec<u8>,
    down: Vec<u8>,
    over: Option<ReplyError>,
}

impl Pair {
    fn new(done_bytes_min: usize) -> Self {
        let mut pair = Self {
            server: Server::new(done_bytes_min),
            stream: SessionStream::default(),
            reader: FrameReader::default(),
            credit: Credit::default(),
            outstanding: Outstanding::default(),
            effects: Vec::new(),
            requests: 0,
            got: Vec::new(),
            up: Vec::new(),
            down: Vec::new(),
            over: None,
        };
        pair.stream.push_open(CLIENT, 0);
        pair.cut();
        pair
    }

    fn add(&mut self, request: Request) {
        let bytes = request.bytes(self.requests);
        if request.has_effect() {
            let start = bytes.len().min(START_BYTES);
            self.effects.push(bytes[..start].to_vec());
        }
        self.requests += 1;
        let keys = request.key_count();
        assert!(self.outstanding.add(request.opcode(), keys, &bytes));
        self.fill();
    }

    fn fill(&mut self) {
        let count = self.outstanding.unsent_bytes().min(self.credit.to_send());
        self.outstanding.send(&mut self.stream, CLIENT, count);
        self.credit.sent(count);
    }

    /// The link is lost, and another link is made.
    fn cut(&mut self) {
        self.up.clear();
        self.down.clear();
        let received = self.stream.received();
        let by_server = self.server.stream.received();
        self.stream.attach(by_server).expect("where it is");
        self.server.stream.attach(received).expect("where it is");
    }

    /// The server is killed, and begins again.
    fn crash(&mut self) {
        self.server.crash();
        let first = self.outstanding.restart().expect("it can be carried over");
        self.stream = SessionStream::default();
        self.reader = FrameReader::default();
        self.credit = Credit::default();
        self.stream.push_open(CLIENT, 0);
        self.stream.push_resume(CLIENT, first);
        self.fill();
        self.cut();
    }

    /// This many bytes arrive at the server, and at the client.
    fn deliver(&mut self, up: usize, down: usize) {
        self.up.extend(wire(&mut self.stream));
        let arrived: Vec<u8> = self.up.drain(..up.min(self.up.len())).collect();
        self.server.receive_link(&arrived);
        self.down.extend(wire(&mut self.server.stream));
        let arrived: Vec<u8> = self.down.drain(..down.min(self.down.len())).collect();
        let mut link = &arrived[..];
        while let Some(mut piece) = self.stream.next_bytes(&mut link).expect("link frames") {
            while let Some(frame) = self.reader.next(&mut piece).expect("frames") {
                match frame {
                    Frame::Data { bytes, .. } => {
                        self.credit.received(bytes.len()).expect("it had credit");
                        let got = &mut self.got;
                        let result = self.outstanding.on_reply(bytes, |it| got.extend(it));
                        self.over = self.over.or(result.err());
                        if let Some(returned) = self.credit.used(bytes.len()) {
                            self.stream.push_credit(CLIENT, returned);
                        }
                    }
                    Frame::Credit { bytes, .. } => self.credit.returned(bytes).expect("credit"),
                    Frame::Done { request, .. } => self.outstanding.done(request),
                    frame => panic!("{frame:?}"),
                }
            }
        }
        self.fill();
    }

    /// All that can happen happens.
    fn settle(&mut self) {
        let mut before = usize::MAX;
        while self.over.is_none() && before != self.got.len() + self.outstanding.kept_bytes() {
            before = self.got.len() + self.outstanding.kept_bytes();
            for _ in 0..4 {
                self.deliver(usize::MAX, usize::MAX);
                self.server.commit();
            }
            self.deliver(usize::MAX, usize::MAX);
        }
    }

    #[track_caller]
    fn check_end(&mut self) {
        self.server.set_open(true);
        self.settle();
        assert_eq!(self.over, None);
        self.add(Request::Check);
        self.settle();
        let executed = self.server.durable.executed.iter();
        let executed: Vec<&Vec<u8>> = executed.map(|(_, bytes)| bytes).collect();
        let expected: Vec<&Vec<u8>> = self.effects.iter().collect();
        assert!(executed == expected, "each is carried out once, in order");
        let replies = self.server.all_replies(CLIENT, self.requests);
        assert!(self.got == replies, "each reply arrives once, in order");
        assert_eq!(self.outstanding.kept_bytes(), 0, "all is acknowledged");
        assert_eq!(self.outstanding.owed_replies(), 0);
    }
}

/// The bytes that an end writes to its link now.
fn wire(stream: &mut SessionStream) -> Vec<u8> {
    let (mut out, mut wire) = (SendBuf::new(), Vec::new());
    stream.fill(&mut out, usize::MAX);
    out.flush(&mut wire).expect("memory takes everything");
    wire
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Request {
    Set(usize),
    Push,
    Add,
    CompareSet,
    Get,
    Check,
    Ping,
    NoKeys,
    Wait,
    WaitGet,
    Cancel,
}

impl Request {
    const fn opcode(self) -> Opcode {
        match self {
            Self::Set(_) => Opcode::Set,
            Self::Push => Opcode::QueuePush,
            Self::Add => Opcode::Add,
            Self::CompareSet => Opcode::CompareSet,
            Self::Get => Opcode::Get,
            Self::Check => Opcode::Check,
            Self::Ping => Opcode::Ping,
            Self::NoKeys => Opcode::MultiGet,
            Self::Wait => Opcode::Wait,
            Self::WaitGet => Opcode::WaitGet,
            Self::Cancel => Opcode::CancelWait,
        }
    }

    const fn key_count(self) -> usize {
        matches!(self, Self::Wait | Self::WaitGet) as usize
    }

    const fn has_effect(self) -> bool {
        matches!(
            self,
            Self::Set(_) | Self::Push | Self::Add | Self::CompareSet
        )
    }

    const fn waits(self) -> bool {
        matches!(self, Self::Wait | Self::WaitGet)
    }

    fn bytes(self, number: u32) -> Vec<u8> {
        let tag = format!("{number}");
        let value = vec![
            b'v';
            if let Self::Set(bytes) = self {
                bytes
            } else {
                3
            }
        ];
        let mut request = RequestBuf::new();
        let it = request.opcode(self.opcode());
        match self {
            Self::Set(_) | Self::Push => it.user_key(&tag).value(&value),
            Self::Add => it.user_key(&tag).i64(1),
            Self::CompareSet => it.user_key(&tag).value(b"").value(&value),
            Self::Get => it.user_key(&tag),
            Self::Check | Self::NoKeys => it.count(0),
            Self::Ping => it.u32(number),
            Self::Wait | Self::WaitGet => it.user_keys(&[&tag]),
            Self::Cancel => it,
        };
        request.to_bytes()
    }

    fn random(random: &mut fastrand::Rng, waits: bool) -> Self {
        if waits {
            return if random.bool() {
                Self::Cancel
            } else {
                Self::Set(3)
            };
        }
        match random.u8(..20) {
            0..5 => Self::Set(random.usize(..60)),
            5 => Self::Set(random.usize(..20_000)),
            6 => {
                let bytes_max = 600_000 >> random.u8(..8);
                Self::Set(random.usize(..bytes_max))
            }
            7 | 8 => Self::Push,
            9 | 10 => Self::Add,
            11 => Self::CompareSet,
            12..15 => Self::Get,
            15 => Self::Check,
            16 => Self::Ping,
            17 => Self::NoKeys,
            18 => Self::Wait,
            _ => Self::WaitGet,
        }
    }
}

/// A value that differs from every other value in every part.
fn value(random: &mut fastrand::Rng) -> Arc<Vec<u8>> {
    let bytes_max = [40, 2000, 40_000, 400_000, 400_000];
    let bytes_max = bytes_max[random.usize(..bytes_max.len())];
    let bytes = random.usize(..bytes_max);
    let tag = random.u8(..);
    Arc::new((0..bytes).map(|at| tag ^ (at / 7) as u8).collect())
}

/// docs/spec/wire-extensions.md, SESSION 13 to 15. In half of the histories no value is overwritten, so that no client is
/// lost.
#[test]
fn random_histories_with_crashes_lose_and_repeat_nothing() {
    let seeds = Seeds::fresh(150);
    let is_replay = seeds.is_replay();
    let mut crashes = 0;
    for seed in seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let overwrites = seed % 2 == 0;
        let mut pair = Pair::new([1, 200, 64 << 10][random.usize(..3)]);
        pair.server.live.value = value(&mut random);
        pair.server.durable.value = pair.server.live.value.clone();
        for _ in 0..random.usize(1..120) {
            match random.u8(..20) {
                0..7 => {
                    let waits = pair.outstanding.is_waiting();
                    let request = Request::random(&mut random, waits);
                    // Whether it was cancelled in time is another value that is read.
                    if overwrites || !request.waits() || !pair.server.live.is_open {
                        pair.add(request);
                    }
                }
                7..12 => {
                    let count = if random.bool() { 30 } else { 200_000 };
                    pair.deliver(random.usize(..count), random.usize(..count));
                }
                12 | 13 => pair.deliver(usize::MAX, usize::MAX),
                14 | 15 => pair.server.commit(),
                16 => pair.cut(),
                17 => {
                    crashes += 1;
                    pair.crash();
                }
                18 if overwrites => pair.server.live.value = value(&mut random),
                19 => {
                    let is_open = if overwrites { random.bool() } else { true };
                    pair.server.set_open(is_open);
                }
                _ => {}
            }
            if pair.over.is_some() {
                break;
            }
        }
        if pair.over.is_none() {
            pair.server.set_open(true);
            pair.settle();
        }
        if overwrites && pair.over == Some(ReplyError::Changed) {
            continue;
        }
        pair.check_end();
    }
    assert!(is_replay || crashes > 200, "{crashes}");
}

/// A crash after each number of bytes in each direction, with and without the kept state.
#[test]
fn a_crash_at_any_byte_loses_and_repeats_nothing() {
    let script = [
        Request::Set(3),
        Request::Add,
        Request::Get,
        Request::Push,
        Request::Wait,
        Request::Cancel,
        Request::CompareSet,
        Request::Set(1),
    ];
    let history = |crash_at: usize, commits_at: usize, way_up: bool| {
        let mut pair = Pair::new(40);
        pair.server.live.value = Arc::new(b"value".to_vec());
        pair.server.commit();
        for request in script {
            pair.add(request);
        }
        for at in 0..crash_at {
            if way_up {
                pair.deliver(1, usize::MAX);
            } else {
                pair.deliver(usize::MAX, usize::from(at > 0));
            }
            if at % commits_at == 0 {
                pair.server.commit();
            }
        }
        pair.crash();
        pair.deliver(usize::MAX, 5);
        pair.server.commit();
        pair.crash();
        pair.check_end();
    };
    for crash_at in 0..300 {
        for commits_at in [1, 17, 1000] {
            history(crash_at, commits_at, true);
            history(crash_at, commits_at, false);
        }
    }
}

#[test]
fn a_reply_of_which_a_part_was_passed_on_goes_on_behind_it_or_ends_the_client() {
    for is_overwritten in [false, true] {
        let mut pair = Pair::new(1);
        let long = WITHHELD_BYTES_MAX + 1000;
        pair.server.live.value = Arc::new(vec![7; long]);
        pair.add(Request::Get);
        pair.deliver(usize::MAX, 0);
        pair.server.commit();
        pair.deliver(0, 12 + 9 + WITHHELD_BYTES_MAX);
        assert_eq!(pair.got.len(), 0, "it may be complete soon");
        pair.deliver(0, 500);
        let passed_on = WITHHELD_BYTES_MAX + 500;
        assert_eq!(pair.got.len(), passed_on);
        if is_overwritten {
            Arc::make_mut(&mut pair.server.live.value)[400] = 8;
            pair.server.commit();
        }
        pair.crash();
        // Twice in the same reply.
        pair.deliver(usize::MAX, usize::MAX);
        pair.server.commit();
        pair.deliver(0, 12 + 9 + 18 + 100);
        assert_eq!(pair.got.len(), passed_on);
        pair.crash();
        pair.settle();
        if is_overwritten {
            assert_eq!(pair.over, Some(ReplyError::Changed));
            assert_eq!(pair.got.len(), passed_on);
        } else {
            pair.check_end();
            assert_eq!(pair.got.len(), long + 9);
        }
    }
}

#[test]
fn a_shorter_reply_than_what_was_passed_on_ends_the_client() {
    let mut outstanding = Outstanding::default();
    assert!(outstanding.add(Opcode::WaitGet, 1, b"request"));
    outstanding.sent(7);
    assert!(outstanding.add(Opcode::CancelWait, 0, b"c"));
    outstanding.sent(1);
    let mut got = 0;
    let mut take = |outstanding: &mut Outstanding, bytes: &[u8]| {
        outstanding.on_reply(bytes, |it| got += it.len())
    };
    let long = [
        &[0, 0, 0, 2, 0, 0, 0, 0, 0][..],
        &vec![7; WITHHELD_BYTES_MAX],
    ]
    .concat();
    assert_eq!(take(&mut outstanding, &long), Ok(()));
    assert_eq!(outstanding.restart(), Ok(1));
    // The wait was cancelled this time.
    assert_eq!(take(&mut outstanding, &[1]), Err(ReplyError::Changed));
    assert_eq!(got, long.len());
}

#[test]
fn what_has_no_reply_is_kept_until_it_is_done() {
    let mut outstanding = Outstanding::default();
    let add = |outstanding: &mut Outstanding, opcode| {
        assert!(outstanding.add(opcode, 0, b"12345"));
        outstanding.sent(5);
    };
    for opcode in [Opcode::Set, Opcode::Get, Opcode::Set, Opcode::Set] {
        add(&mut outstanding, opcode);
    }
    assert!(outstanding.is_last_without_reply());
    outstanding.done(3);
    assert_eq!(outstanding.kept_bytes(), 15, "the GET has no reply yet");
    let reply = [0; 8];
    outstanding.on_reply(&reply, |_| {}).expect("a reply");
    assert_eq!(outstanding.kept_bytes(), 5, "and the one after it is done");
    outstanding.done(9);
    assert_eq!(outstanding.kept_bytes(), 0, "more than there are");
    assert_eq!(outstanding.restart(), Ok(5));
    assert!(!outstanding.is_last_without_reply());
}

#[test]
fn clients_that_cannot_go_on_say_why() {
    let mut outstanding = Outstanding::default();
    for _ in 0..3 {
        assert!(outstanding.add(Opcode::Set, 0, &[0; 10]));
    }
    outstanding.sent(25);
    outstanding.forget_beyond(10);
    assert_eq!(outstanding.kept_bytes(), 10, "what is not sent is kept");
    assert_eq!(outstanding.restart(), Err(NotCarried::Forgotten));
    assert!(outstanding.add(Opcode::Check, 0, b"check"));
    outstanding.sent(10);
    outstanding.on_reply(&[0], |_| {}).expect("a reply");
    assert_eq!(outstanding.restart(), Ok(5), "a reply acknowledges all");

    assert!(outstanding.add(Opcode::Wait, 1, b"wait"));
    assert!(outstanding.add(Opcode::Get, 0, b"get"));
    assert_eq!(outstanding.restart(), Err(NotCarried::Opaque));
    outstanding.sent(7);
    assert_eq!(outstanding.kept_bytes(), 0);

    let mut outstanding = Outstanding {
        dropped: u64::from(u32::MAX),
        acknowledged: u64::from(u32::MAX),
        ..Outstanding::default()
    };
    assert!(outstanding.add(Opcode::Add, 0, b"add"));
    assert_eq!(outstanding.restart(), Err(NotCarried::TooMany));
    outstanding.sent(3);
    outstanding.on_reply(&[0; 8], |_| {}).expect("a reply");
    assert_eq!(outstanding.kept_bytes(), 0);
}

/// docs/spec/wire-extensions.md, END_WAITS 2, through a relay: a CANCEL_WAIT that crosses the end of a wait has no
/// answer, neither from the server nor from a restarted server, which never had the wait.
#[test]
fn a_cancel_after_the_end_of_a_wait_is_not_owed_an_answer() {
    for is_sent in [false, true] {
        for restarts in [false, true] {
            let mut outstanding = Outstanding::default();
            let mut stream = SessionStream::default();
            let wait = Request::Wait.bytes(0);
            assert!(outstanding.add(Opcode::Wait, 1, &wait));
            outstanding.sent(wait.len());
            let mut passed = Vec::new();
            let mut reply = |outstanding: &mut Outstanding, bytes: &[u8]| {
                let result = outstanding.on_reply(bytes, |bytes| passed.extend_from_slice(bytes));
                result.expect("what is due");
                std::mem::take(&mut passed)
            };
            assert_eq!(reply(&mut outstanding, &[1]), [1]);
            let cancel = Request::Cancel.bytes(1);
            assert!(outstanding.add(Opcode::CancelWait, 0, &cancel));
            if is_sent {
                outstanding.send(&mut stream, CLIENT, usize::MAX);
            }
            assert_eq!(outstanding.owed_replies(), 0);
            if restarts {
                let first = outstanding.restart().expect("it can be carried over");
                assert_eq!(first, 3, "the cancel is done");
                assert_eq!(outstanding.unsent_bytes(), 0);
            }
            // The next one has an answer.
            assert!(outstanding.add(Opcode::CancelWait, 0, &cancel));
            outstanding.send(&mut stream, CLIENT, usize::MAX);
            assert_eq!(outstanding.owed_replies(), 1);
            assert_eq!(reply(&mut outstanding, &[1]), [1]);
            // A cancel that arrives before the end is answered by the end.
            assert!(outstanding.add(Opcode::Wait, 1, &wait));
            assert!(outstanding.add(Opcode::CancelWait, 0, &cancel));
            assert_eq!(outstanding.owed_replies(), 1);
            assert_eq!(reply(&mut outstanding, &[1]), [1]);
            assert_eq!(outstanding.owed_replies(), 0);
        }
    }
}
