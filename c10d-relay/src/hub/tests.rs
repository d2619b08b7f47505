//! The hub between scripted ranks and a scripted store, in virtual time.

use c10d_sim::{Run, Seeds, Simulation, run};
use c10d_store::unstable::{
    CLIENT_WINDOW_BYTES, ClientEnd, Credit, NotCarried, ResentWait, SESSION_WINDOW_BYTES,
};
use fastrand::Rng;

use super::*;

#[path = "../../../c10d-store/src/session/outstanding/tests/model.rs"]
mod model;

/// A hub, and the store's end of its session.
struct Node {
    hub: Hub,
    store: SessionStream,
    reader: FrameReader,
    /// The bytes of rank 0 that the store has used.
    used: Credit,
    now: Instant,
}

/// The frames that the store receives, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Got {
    Open(u32),
    /// The clients, and the bytes that each of them sends.
    Bytes(Vec<u32>, Vec<u8>),
    Close(u32),
    Credit(u32, u32),
    Resume(u32, u32),
    Resent(u32, ResentWait),
}

impl Node {
    /// A node with this many ranks, which have shaken hands.
    fn with_ranks(count: u32) -> Self {
        let mut node = Self {
            hub: Hub::new(WireLimits::default()),
            store: SessionStream::default(),
            reader: FrameReader::default(),
            used: Credit::default(),
            now: Instant::now(),
        };
        node.hub.stream().attach(0).expect("a new session");
        node.store.attach(0).expect("a new session");
        node.hub.session.is_kept = false;
        for client in 0..count {
            assert_eq!(node.hub.open(4000), Some(client));
            let validate = [0, 0xce, 0xf7, 0x85, 0x3c];
            node.send(client, &validate);
        }
        let opens: Vec<Got> = (0..count).map(Got::Open).collect();
        assert_eq!(node.turn(), opens);
        node
    }

    fn send(&mut self, client: u32, bytes: &[u8]) {
        let now = self.now;
        self.hub.receive(client, bytes, now).expect("a request");
    }

    /// Ends the turn, and returns the frames that the store receives.
    fn turn(&mut self) -> Vec<Got> {
        self.hub.end_turn();
        let mut wire = Vec::new();
        let mut link = SendBuf::new();
        self.hub.stream().fill(&mut link, usize::MAX);
        link.flush(&mut wire).expect("memory takes everything");
        let mut got: Vec<Got> = Vec::new();
        let mut link = &wire[..];
        while let Some(mut bytes) = self.store.next_bytes(&mut link).expect("link frames") {
            while let Some(frame) = self.reader.next(&mut bytes).expect("frames") {
                match frame {
                    Frame::Open { client, .. } => got.push(Got::Open(client)),
                    Frame::Data { client, bytes } => match got.last_mut() {
                        Some(Got::Bytes(clients, all)) if *clients == [client] => {
                            all.extend_from_slice(bytes);
                        }
                        _ => got.push(Got::Bytes(vec![client], bytes.to_vec())),
                    },
                    Frame::Group(group) => {
                        let clients = group.clients().collect();
                        got.push(Got::Bytes(clients, group.bytes().to_vec()));
                    }
                    Frame::Close { client } => got.push(Got::Close(client)),
                    Frame::Credit { client, bytes } => got.push(Got::Credit(client, bytes)),
                    Frame::Resume { client, request } => got.push(Got::Resume(client, request)),
                    Frame::Done { client, request } => {
                        got.push(Got::Resent(client, ResentWait::decode(request)));
                    }
                    Frame::Shared { .. } | Frame::End => {}
                }
            }
        }
        got
    }

    /// The store sends its frames.
    fn deliver(&mut self) {
        let mut wire = Vec::new();
        let mut link = SendBuf::new();
        self.store.fill(&mut link, usize::MAX);
        link.flush(&mut wire).expect("memory takes everything");
        self.hub.receive_link(&wire).expect("a good store");
        for client in self.hub.take_touched() {
            self.hub.resume(client, self.now).expect("requests");
        }
    }

    /// The store is killed, and another store process continues. Returns the number of ranks that cannot.
    fn restart(&mut self) -> usize {
        let restart = Restart { from: 1, to: 2 };
        let closed = self.hub.restart(restart, self.now);
        self.store = SessionStream::default();
        self.reader = FrameReader::default();
        self.hub.stream().attach(0).expect("a new stream");
        self.store.attach(0).expect("a new stream");
        closed
    }

    fn reply(&mut self, client: u32, bytes: &[u8]) {
        self.store.push_data(client, bytes);
        self.deliver();
    }

    /// Returns the bytes that the rank reads.
    fn read(&mut self, client: u32) -> Vec<u8> {
        let rank = self.hub.rank(client).expect("an open rank");
        let mut read = Vec::new();
        rank.down.flush(&mut read).expect("memory takes everything");
        self.hub.was_read(client, read.len());
        read
    }
}

fn request<'v>(build: impl FnOnce(&mut RequestBuf<'v>)) -> Vec<u8> {
    let mut request = RequestBuf::new();
    build(&mut request);
    request.to_bytes()
}

fn add(key: &str) -> Vec<u8> {
    request(|it| {
        it.opcode(Opcode::Add).user_key(key).i64(1);
    })
}

fn wait(key: &str) -> Vec<u8> {
    request(|it| {
        it.opcode(Opcode::Wait).user_keys(&[key]);
    })
}

fn cancel() -> Vec<u8> {
    request(|it| {
        it.opcode(Opcode::CancelWait);
    })
}

fn get() -> Vec<u8> {
    request(|it| {
        it.opcode(Opcode::Get).user_key("k");
    })
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    request(|it| {
        it.opcode(Opcode::Set).user_key(key).value(value);
    })
}

fn mark() -> Vec<u8> {
    request(|it| {
        it.mark();
    })
}

fn bytes(clients: &[u32], bytes: Vec<u8>) -> Got {
    Got::Bytes(clients.to_vec(), bytes)
}

#[test]
fn ranks_that_ask_the_same_in_one_turn_share_a_frame_and_keep_their_order() {
    let mut node = Node::with_ranks(4);
    for client in 0..4 {
        node.send(client, &add("barrier"));
    }
    assert_eq!(node.turn(), [bytes(&[0, 1, 2, 3], add("barrier"))]);

    // Rank 0 sends a, b; rank 1 sends b, a: one of the two can be shared.
    node.send(0, &add("a"));
    node.send(0, &add("b"));
    node.send(1, &add("b"));
    node.send(1, &add("a"));
    assert_eq!(
        node.turn(),
        [
            bytes(&[0], add("a")),
            bytes(&[0, 1], add("b")),
            bytes(&[1], add("a")),
        ]
    );
    // The next turn shares nothing with this one.
    node.send(2, &add("a"));
    assert_eq!(node.turn(), [bytes(&[2], add("a"))]);
    // Twice the same of one rank stays twice.
    node.send(3, &[add("a"), add("a")].concat());
    assert_eq!(node.turn(), [bytes(&[3], [add("a"), add("a")].concat())]);
}

#[test]
fn a_long_request_waits_for_credit_and_what_follows_waits_with_it() {
    let mut node = Node::with_ranks(2);
    let long = vec![7; CLIENT_WINDOW_BYTES as usize];
    let set = set("long", &long);
    node.send(0, &[set.clone(), add("after")].concat());
    node.send(1, &add("other"));
    let got = node.turn();
    let window = CLIENT_WINDOW_BYTES as usize;
    assert_eq!(
        got,
        [
            bytes(&[1], add("other")),
            bytes(&[0], set[..window].to_vec())
        ]
    );
    assert_eq!(node.turn(), []);
    node.store.push_credit(0, CLIENT_WINDOW_BYTES / 2);
    node.deliver();
    let rest = [&set[window..], &add("after")[..]].concat();
    assert_eq!(node.turn(), [bytes(&[0], rest)]);
}

#[test]
fn a_rank_is_not_read_while_much_of_it_waits() {
    let mut node = Node::with_ranks(1);
    let value = vec![7; 3 * CLIENT_WINDOW_BYTES as usize];
    let set = set("long", &value);
    node.send(0, &set);
    assert!(node.hub.rank(0).expect("open").is_paused);
    node.turn();
    node.store.push_credit(0, CLIENT_WINDOW_BYTES);
    node.deliver();
    node.turn();
    node.store.push_credit(0, CLIENT_WINDOW_BYTES);
    node.deliver();
    node.turn();
    for client in node.hub.take_touched() {
        node.hub.resume(client, node.now).expect("requests");
    }
    assert!(!node.hub.rank(0).expect("open").is_paused);
}

#[test]
fn what_a_rank_sent_before_it_closed_still_goes_to_the_store() {
    let mut node = Node::with_ranks(1);
    let value = vec![7; CLIENT_WINDOW_BYTES as usize];
    let set = set("last", &value);
    node.send(0, &set);
    node.hub.close(0);
    assert!(node.hub.rank(0).is_none());
    let window = CLIENT_WINDOW_BYTES as usize;
    assert_eq!(node.turn(), [bytes(&[0], set[..window].to_vec())]);
    node.store.push_credit(0, CLIENT_WINDOW_BYTES);
    node.deliver();
    assert_eq!(
        node.turn(),
        [bytes(&[0], set[window..].to_vec()), Got::Close(0)]
    );
}

#[test]
fn a_cancel_is_answered_by_the_store_in_time_or_by_the_relay() {
    let mut node = Node::with_ranks(1);
    node.send(0, &[wait("k"), cancel()].concat());
    assert_eq!(node.turn(), [bytes(&[0], [wait("k"), cancel()].concat())]);
    node.reply(0, &[1]);
    assert_eq!(node.read(0), [1]);
    node.hub.answer_cancels(node.now + CANCEL_PATIENCE);
    assert_eq!(node.read(0), [], "once is enough");

    node.send(0, &wait("k"));
    node.send(0, &cancel());
    assert_eq!(node.hub.next_cancel(), Some(node.now + CANCEL_PATIENCE));
    node.hub.answer_cancels(node.now);
    assert_eq!(node.read(0), []);
    node.hub.answer_cancels(node.now + CANCEL_PATIENCE);
    assert_eq!(node.read(0), [1]);
    // The rank continues. The late answers of the store are dropped: the wait has even crossed the cancel.
    node.send(0, &add("n"));
    let sum = [5, 0, 0, 0, 0, 0, 0, 0];
    node.reply(0, &[0, 1]);
    assert_eq!(node.read(0), []);
    node.reply(0, &sum);
    assert_eq!(node.read(0), sum);
}

#[test]
fn the_relay_answers_no_cancel_that_could_lose_or_hide_something() {
    let patient = |node: &mut Node| {
        let now = node.now + CANCEL_PATIENCE;
        node.hub.answer_cancels(now);
    };
    // Our client's "read if it is there", and elements that are taken out of a queue.
    for opcode in [Opcode::WaitGet, Opcode::QueueTake] {
        let mut node = Node::with_ranks(1);
        let reads = request(|it| match opcode {
            Opcode::WaitGet => {
                it.opcode(opcode).user_keys(&["k"]);
            }
            _ => {
                it.opcode(opcode).user_key("k").u64(1);
            }
        });
        node.send(0, &[reads, cancel()].concat());
        patient(&mut node);
        assert_eq!(node.read(0), [], "{opcode:?}");
    }
    // An earlier request is not answered yet.
    let mut node = Node::with_ranks(1);
    node.send(0, &[add("n"), wait("k"), cancel()].concat());
    patient(&mut node);
    assert_eq!(node.read(0), []);
    node.reply(0, &[1, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(node.read(0), [1, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn a_rank_that_sends_more_while_one_waits_is_passed_on_as_it_is() {
    let mut node = Node::with_ranks(1);
    node.send(0, &[wait("k"), add("n")].concat());
    assert_eq!(node.turn(), [bytes(&[0], [wait("k"), add("n")].concat())]);
    // In this order or the other: only the rank can distinguish them.
    let replies = [7, 0, 0, 0, 0, 0, 0, 0, 0];
    node.reply(0, &replies);
    assert_eq!(node.read(0), replies);
    node.send(0, &cancel());
    let later = node.now + CANCEL_PATIENCE;
    node.hub.answer_cancels(later);
    assert_eq!(node.read(0), []);
}

#[test]
fn a_rank_that_does_this_with_an_answer_outstanding_has_to_wait() {
    let mut node = Node::with_ranks(1);
    node.send(0, &[wait("k"), cancel()].concat());
    let later = node.now + CANCEL_PATIENCE;
    node.hub.answer_cancels(later);
    assert_eq!(node.read(0), [1]);
    node.send(0, &[wait("l"), add("n")].concat());
    assert_eq!(
        node.turn(),
        [bytes(&[0], [wait("k"), cancel(), wait("l")].concat())]
    );
    node.reply(0, &[1]);
    assert_eq!(node.turn(), [bytes(&[0], add("n"))]);
    node.reply(0, &[9, 9]);
    assert_eq!(node.read(0), [9, 9]);
}

#[test]
fn a_request_of_a_rank_that_is_gone_is_sent_after_the_reply_it_waits_for() {
    let mut node = Node::with_ranks(1);
    node.send(0, &[wait("k"), cancel()].concat());
    node.hub.answer_cancels(node.now + CANCEL_PATIENCE);
    node.send(0, &[wait("l"), add("n")].concat());
    node.turn();
    node.hub.close(0);
    assert_eq!(
        node.turn(),
        [],
        "the ADD waits for the answer to the cancel"
    );
    node.reply(0, &[1]);
    assert_eq!(node.turn(), [bytes(&[0], add("n")), Got::Close(0)]);
}

/// docs/spec/wire-extensions.md, SESSION 8.
#[test]
fn credit_is_returned_for_what_ranks_have_read() {
    let mut node = Node::with_ranks(1);
    node.send(0, &get());
    node.turn();
    let length = CLIENT_WINDOW_BYTES / 2;
    let mut reply = vec![0; 8 + length as usize];
    reply[..4].copy_from_slice(&[0, 0, 2, 0]);
    node.reply(0, &reply);
    assert_eq!(node.turn(), [], "the rank has not read it");
    assert_eq!(node.read(0).len(), reply.len());
    assert_eq!(node.turn(), [Got::Credit(0, length + 8)]);
}

#[test]
fn without_a_link_little_is_kept_and_ranks_are_not_read() {
    let mut node = Node::with_ranks(40);
    let value = vec![7; CLIENT_WINDOW_BYTES as usize - 100];
    let set = set("k", &value);
    for client in 0..40 {
        node.hub.receive(client, &set, node.now).expect("a request");
        node.hub.receive(client, &set, node.now).expect("a request");
        node.hub.end_turn();
    }
    assert_eq!(node.hub.stream().room(), 0);
    let kept = SESSION_WINDOW_BYTES + 40 * 2 * set.len();
    let waiting: usize = (0..40)
        .map(|client| {
            node.hub
                .rank(client)
                .expect("open")
                .client
                .outstanding
                .unsent_bytes()
        })
        .sum();
    assert!(waiting < kept);
    assert!(node.hub.rank(39).expect("open").is_paused);
}

#[test]
fn a_refused_rank_reads_what_it_was_sent_before() {
    let mut node = Node::with_ranks(1);
    node.send(0, &add("n"));
    node.turn();
    node.store.push_data(0, &[1, 0, 0, 0, 0, 0, 0, 0]);
    node.store.push_close(0);
    node.deliver();
    assert!(node.hub.rank(0).expect("open").is_closing());
    assert_eq!(node.read(0), [1, 0, 0, 0, 0, 0, 0, 0]);
    node.hub.close(0);
    assert_eq!(node.turn(), [], "the store knows");
}

#[test]
fn ranks_that_do_not_read_stop_the_link_before_they_fill_the_memory() {
    let count = 400;
    let mut node = Node::with_ranks(count);
    let mut reading = 0;
    while !node.hub.is_full() {
        node.send(reading, &get());
        node.turn();
        let mut reply = vec![0; CLIENT_WINDOW_BYTES as usize];
        reply[..8].copy_from_slice(&[0, 0, 0x10, 0, 0, 0, 0, 0]);
        node.reply(reading, &reply);
        reading += 1;
    }
    assert!((120..=256).contains(&reading), "{reading} ranks");
    // It is enough to continue that one rank reads, or closes its connection.
    let is_full_with = node.hub.rank(0).expect("a rank").down.unsent_bytes();
    assert_eq!(node.read(0).len(), is_full_with);
    assert!(!node.hub.is_full());
    for client in 1..reading {
        node.hub.close(client);
    }
    assert!(node.hub.unread_bytes < 1 << 20, "{}", node.hub.unread_bytes);
}

/// One read of the link can have replies for all ranks: a SHARED of nine bytes makes the hub copy a whole piece.
#[test]
fn frames_that_arrive_at_once_wait_until_ranks_read() {
    let count = 400;
    let mut node = Node::with_ranks(count);
    let mut reply = vec![0; 8 + 0x3_0000];
    reply[..8].copy_from_slice(&[0, 0, 3, 0, 0, 0, 0, 0]);
    for client in 0..count {
        node.send(client, &get());
    }
    node.turn();
    for client in 0..count {
        node.store.push_data(client, &reply);
    }
    node.deliver();
    let most = UNREAD_BYTES_MAX + 2 * reply.len();
    assert!(node.hub.is_full() && node.hub.unread_bytes < most);
    let mut read = vec![0; count as usize];
    for _ in 0..count {
        for client in 0..count {
            read[client as usize] += node.read(client).len();
        }
        node.deliver();
        assert!(node.hub.unread_bytes < most);
    }
    assert_eq!(read, vec![reply.len(); count as usize]);
}

/// A restarted store does not send bytes again that the relay has acknowledged.
#[test]
fn frames_that_wait_are_not_lost_when_the_store_restarts() {
    let mut node = Node::with_ranks(2);
    for client in 0..2 {
        node.send(client, &add("n"));
    }
    node.turn();
    node.hub.fill();
    node.store.push_data(0, &[1, 0, 0, 0, 0, 0, 0, 0]);
    node.deliver();
    assert_eq!(node.read(0), []);
    assert!(!node.hub.can_continue());
    assert_eq!(node.restart(), 0);
    assert_eq!(node.read(0), [1, 0, 0, 0, 0, 0, 0, 0]);
    node.hub.unread_bytes -= UNREAD_BYTES_MAX;
    let sent = node.turn();
    assert!(sent.contains(&Got::Resume(0, 2)), "{sent:?}");
    assert!(sent.contains(&Got::Resume(1, 1)), "{sent:?}");
}

/// The answer of the relay itself is not of the credit that the store gave.
#[test]
fn an_answer_of_the_relay_returns_no_credit() {
    let mut node = Node::with_ranks(1);
    node.send(0, &[wait("k"), cancel()].concat());
    node.hub.answer_cancels(node.now + CANCEL_PATIENCE);
    assert_eq!(node.read(0), [1]);
    node.turn();
    node.reply(0, &[1]);
    let length = CLIENT_WINDOW_BYTES / 2 - 8 - 1;
    node.send(0, &get());
    node.turn();
    let mut reply = vec![0; 8 + length as usize];
    reply[..3].copy_from_slice(&[0xf7, 0xff, 1]);
    node.reply(0, &reply);
    assert_eq!(node.read(0).len(), reply.len());
    assert_eq!(node.turn(), [Got::Credit(0, CLIENT_WINDOW_BYTES / 2)]);
}

/// docs/spec/wire-extensions.md, SESSION 13 and 15.
#[test]
fn a_restarted_store_gets_what_it_has_not_answered() {
    let mut node = Node::with_ranks(5);
    node.hub.session.is_kept = true;
    let short = set("k", b"v");
    // 0 has a reply of two, 1 nothing, 2 is opaque, 3 has closed its connection, 4 waits for credit.
    node.send(0, &[add("n"), short.clone(), get()].concat());
    node.send(2, &[wait("k"), add("n")].concat());
    node.send(3, &short);
    let long = vec![7; CLIENT_WINDOW_BYTES as usize];
    let long = set("long", &long);
    node.send(4, &long);
    node.hub.close(3);
    node.turn();
    node.reply(0, &[1, 0, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!(node.read(0), [1, 0, 0, 0, 0, 0, 0, 0]);
    // Of the turn that the old store does not get.
    node.send(1, &add("n"));
    assert_eq!(node.restart(), 1);
    let closing = node.hub.rank(2).expect("open").client.end;
    assert_eq!(closing, Some(ClientEnd::NotCarried(NotCarried::Opaque)));
    let opened = |client, first| [Got::Open(client), Got::Resume(client, first)];
    assert_eq!(
        node.turn(),
        [
            &opened(0, 2)[..],
            &opened(1, 1),
            &opened(3, 1),
            &opened(4, 1),
            &[
                bytes(&[0], [short.clone(), get()].concat()),
                bytes(&[1], add("n")),
                bytes(&[3], [short, mark()].concat()),
                bytes(&[4], long[..CLIENT_WINDOW_BYTES as usize].to_vec()),
            ],
        ]
        .concat()
    );
    node.store.push_data(0, &[0; 8]);
    node.store.push_data(3, &[0]);
    node.store.push_credit(4, CLIENT_WINDOW_BYTES / 2);
    node.deliver();
    assert_eq!(node.read(0), [0; 8]);
    let rest = long[CLIENT_WINDOW_BYTES as usize..].to_vec();
    assert_eq!(node.turn(), [Got::Close(3), bytes(&[4], rest)]);
    node.store.push_done(4, 1);
    node.deliver();
    let rank = node.hub.rank(4).expect("open");
    assert_eq!(rank.client.outstanding.kept_bytes(), 0);
}

/// docs/spec/wire-extensions.md, END_WAITS 4: the store learns which waits it has lost, and which it never had.
#[test]
fn a_restarted_store_learns_which_ranks_have_waited() {
    let mut node = Node::with_ranks(4);
    node.hub.session.is_kept = true;
    let second = Duration::from_secs(1);
    let start = node.now;
    node.send(0, &wait("k"));
    node.send(1, &add("n"));
    node.send(2, &[wait("k"), cancel()].concat());
    node.now = start + 5 * second;
    node.send(3, &wait("k"));
    node.turn();
    node.now = start + 7 * second;
    let restart = Restart { from: 4, to: 6 };
    let closed = node.hub.restart(restart, node.now);
    assert_eq!(closed, 0);
    (node.store, node.reader) = <_>::default();
    node.hub.stream().attach(0).expect("a new stream");
    let resent = |client, seconds: u32, starts_ago| {
        let age = seconds * second;
        Got::Resent(client, ResentWait { age, starts_ago })
    };
    let mut got = node.turn();
    got.retain(|it| matches!(it, Got::Resent(..)));
    assert_eq!(got, [resent(0, 7, 2), resent(3, 2, 2)]);
}

/// The store takes a report before the requests for the first wait among them. The rank may have cancelled that wait.
#[test]
fn a_restarted_store_learns_of_a_wait_behind_a_cancelled_one() {
    let mut node = Node::with_ranks(1);
    node.hub.session.is_kept = true;
    let second = Duration::from_secs(1);
    node.send(0, &[wait("k"), cancel()].concat());
    node.turn();
    node.hub.answer_cancels(node.now + second);
    assert_eq!(node.read(0).len(), 1, "the answer");
    node.now += second;
    node.send(0, &wait("l"));
    node.turn();
    node.now += second;
    let restart = Restart { from: 4, to: 6 };
    assert_eq!(node.hub.restart(restart, node.now), 0);
    (node.store, node.reader) = <_>::default();
    node.hub.stream().attach(0).expect("a new stream");
    node.now += second;
    let (age, starts_ago) = (second, 2);
    let last = Got::Resent(0, ResentWait { age, starts_ago });
    let requests = [wait("k"), cancel(), wait("l")].concat();
    assert_eq!(
        node.turn()[2..],
        [last.clone(), bytes(&[0], requests), last]
    );
}

/// docs/spec/wire-extensions.md, END_WAITS 4: the same server learns how long ranks have waited, after it has their requests.
#[test]
fn a_store_that_goes_on_learns_how_long_ranks_have_waited() {
    let mut node = Node::with_ranks(3);
    let second = Duration::from_secs(1);
    node.send(0, &wait("k"));
    node.send(1, &add("n"));
    node.turn();
    node.now += 2 * second;
    node.send(2, &wait("l"));
    node.now += 5 * second;
    node.hub.go_on(false, node.now);
    let resent = |client, seconds: u32| {
        let age = seconds * second;
        Got::Resent(client, ResentWait { age, starts_ago: 0 })
    };
    let got = node.turn();
    assert_eq!(got[1..], [resent(0, 7), resent(2, 5)]);
    assert_eq!(node.turn(), [], "once");
}

/// The same for a wait that could not be sent at once. If another wait has taken its place, an END_WAITS from before
/// that wait must not end it.
#[test]
fn a_store_that_goes_on_learns_nothing_of_waits_that_began_later() {
    let second = Duration::from_secs(1);
    for is_replaced in [false, true] {
        let mut node = Node::with_ranks(1);
        let value = vec![7; CLIENT_WINDOW_BYTES as usize];
        let set = set("k", &value);
        node.send(0, &set);
        node.turn();
        node.deliver();
        node.send(0, &wait("k"));
        node.now += 7 * second;
        node.hub.go_on(false, node.now);
        node.now += second;
        if is_replaced {
            node.send(0, &[cancel(), wait("l")].concat());
        }
        let is_resent = |it: &Got| matches!(it, Got::Resent(..));
        assert!(!node.turn().iter().any(is_resent), "without credit");
        let returned = node.used.used(CLIENT_WINDOW_BYTES as usize);
        node.store.push_credit(0, returned.expect("much was used"));
        node.deliver();
        let mut got = node.turn();
        assert!(matches!(got[0], Got::Bytes(..)), "{got:?}");
        got.retain(is_resent);
        let (age, starts_ago) = (7 * second, 0);
        let of_first = Got::Resent(0, ResentWait { age, starts_ago });
        let expected = Vec::from_iter((!is_replaced).then_some(of_first));
        assert_eq!(got, expected);
    }
}

/// Bytes that the rank has not read do not belong to the credit of the restarted store.
#[test]
fn replies_from_before_a_restart_return_no_credit() {
    let mut node = Node::with_ranks(1);
    node.send(0, &get());
    node.turn();
    let mut reply = vec![0; CLIENT_WINDOW_BYTES as usize];
    reply[..3].copy_from_slice(&[0xf8, 0xff, 3]);
    node.reply(0, &reply);
    assert_eq!(node.restart(), 0);
    node.turn();
    assert_eq!(node.read(0).len(), reply.len());
    assert_eq!(node.turn(), []);
    node.send(0, &get());
    node.turn();
    node.reply(0, &reply);
    assert_eq!(node.read(0).len(), reply.len());
    assert_eq!(node.turn(), [Got::Credit(0, CLIENT_WINDOW_BYTES)]);
}

#[test]
fn a_rank_waits_until_a_store_with_a_journal_has_kept_its_requests() {
    let value = vec![7; 60_000];
    let set = set("k", &value);
    for is_kept in [false, true] {
        let mut node = Node::with_ranks(1);
        node.hub.session.is_kept = is_kept;
        for _ in 0..12 {
            if node.hub.rank(0).expect("open").is_paused {
                break;
            }
            node.send(0, &set);
            node.turn();
            // It is carried out at once.
            if let Some(returned) = node.used.used(set.len()) {
                node.store.push_credit(0, returned);
            }
            node.deliver();
        }
        let rank = node.hub.rank(0).expect("open");
        let kept_max = ((256 + 64) << 10) + set.len();
        assert!(rank.client.outstanding.kept_bytes() <= kept_max);
        assert_eq!(rank.is_paused, is_kept);
        assert_eq!(rank.client.outstanding.check_carried().is_ok(), is_kept);
        if is_kept {
            node.store.push_done(0, 5);
            node.deliver();
            let rank = node.hub.rank(0).expect("open");
            assert!(!rank.is_paused && rank.client.outstanding.kept_bytes() < 256 << 10);
        }
    }
}

#[test]
fn a_rank_that_leaves_is_kept_until_its_last_requests_are_acknowledged() {
    let mut node = Node::with_ranks(3);
    node.hub.session.is_kept = true;
    let set = set("k", b"v");
    node.send(0, &set);
    node.send(1, &[set.clone(), wait("k")].concat());
    node.send(2, &set);
    for client in 0..3 {
        node.hub.close(client);
    }
    // A wait must not take what another rank could have.
    let got = node.turn();
    assert!(got.contains(&Got::Close(1)), "{got:?}");
    assert!(!got.contains(&Got::Close(0)), "{got:?}");
    assert!(got.contains(&bytes(&[0], mark())), "{got:?}");
    node.reply(0, &[0]);
    assert_eq!(node.turn(), [Got::Close(0)]);
    node.store.push_done(2, 1);
    node.deliver();
    assert_eq!(node.turn(), [], "the request of the relay is on its way");
    assert!(!node.hub.end());
    node.reply(2, &[0]);
    assert_eq!(node.turn(), [Got::Close(2)]);
    assert!(node.hub.end());
    // The end is also sent again.
    node.turn();
    assert_eq!(node.restart(), 0);
    assert!(node.hub.stream().has_unsent());
}

/// It leaves before there is a link, and the store is killed when it has just got everything.
#[test]
fn a_rank_that_leaves_before_the_first_link_is_kept_too() {
    let set = set("k", b"v");
    for is_kept in [true, false] {
        let mut node = Node::with_ranks(0);
        node.hub = Hub::new(WireLimits::default());
        let client = node.hub.open(4000).expect("a number");
        node.send(client, &[&[0, 0xce, 0xf7, 0x85, 0x3c], &set[..]].concat());
        node.hub.close(client);
        node.hub.end_turn();
        assert!(!node.hub.end(), "nobody has got the SET");
        node.hub.stream().attach(0).expect("a new session");
        node.hub.session.is_kept = is_kept;
        let (open, close) = (Got::Open(client), Got::Close(client));
        let sent = bytes(&[client], [&set[..], &mark()].concat());
        assert_eq!(node.turn(), [open.clone(), sent.clone()]);
        if is_kept {
            assert_eq!(node.restart(), 0);
            assert_eq!(node.turn(), [open, Got::Resume(client, 1), sent]);
        }
        node.reply(client, &[0]);
        assert_eq!(node.turn(), [close]);
        assert!(node.hub.end());
    }
}

/// A hub with three ranks, and a small server that may be killed.
struct Job {
    hub: Hub,
    server: model::Server,
    /// The bytes on their way.
    up: Vec<u8>,
    down: Vec<u8>,
    /// By rank: the starts of requests with an effect, the number of requests, and the bytes that it has read.
    ranks: Vec<(Vec<Vec<u8>>, u32, Vec<u8>)>,
    /// Ranks that have left while they waited for a reply: whether the store has carried out the request is unknown.
    unanswered: Vec<u32>,
    now: Instant,
}

impl Job {
    fn new(done_bytes_min: usize) -> Self {
        let mut job = Self {
            hub: Hub::new(WireLimits::default()),
            server: model::Server::new(done_bytes_min),
            up: Vec::new(),
            down: Vec::new(),
            ranks: vec![(Vec::new(), 0, Vec::new()); 3],
            unanswered: Vec::new(),
            now: Instant::now(),
        };
        job.hub.session.is_kept = true;
        job.cut();
        for client in 0..3 {
            assert_eq!(job.hub.open(0), Some(client));
            let validate = [0, 0xce, 0xf7, 0x85, 0x3c];
            job.hub
                .receive(client, &validate, job.now)
                .expect("VALIDATE");
        }
        job
    }

    fn cut(&mut self) {
        self.up.clear();
        self.down.clear();
        let received = self.hub.stream().received();
        let by_server = self.server.stream.received();
        self.hub.stream().attach(by_server).expect("where it is");
        self.server.stream.attach(received).expect("where it is");
    }

    fn crash(&mut self) {
        self.server.crash();
        let restart = Restart { from: 1, to: 2 };
        let closed = self.hub.restart(restart, self.now);
        assert_eq!(closed, 0, "all can go on");
        self.cut();
    }

    fn close(&mut self, client: u32) {
        if let Some(rank) = self.hub.rank(client)
            && !rank.must_be_acknowledged(true)
            && rank.client.outstanding.kept_bytes() > 0
        {
            self.unanswered.push(client);
        }
        self.hub.close(client);
    }

    /// A rank sends a request, unless it is not read at the moment.
    fn send(&mut self, client: u32, opcode: Opcode, same: bool, length: usize) {
        let Some(rank) = self.hub.rank(client) else {
            return;
        };
        if rank.is_paused {
            return;
        }
        let waits = rank.client.outstanding.is_waiting();
        let opcode = if waits { Opcode::CancelWait } else { opcode };
        let (effects, requests, _) = &mut self.ranks[client as usize];
        *requests += 1;
        // Ranks that ask the same share a frame.
        let key = if same {
            "same".to_owned()
        } else {
            format!("{client}.{requests}")
        };
        let value = vec![7; length];
        let bytes = request(|it| {
            let it = it.opcode(opcode);
            match opcode {
                Opcode::Set => it.user_key(&key).value(&value),
                Opcode::Add => it.user_key(&key).i64(1),
                Opcode::Get => it.user_key(&key),
                Opcode::Wait | Opcode::WaitGet => it.user_keys(&[&key]),
                Opcode::Ping => it.u32(*requests),
                _ => it,
            };
        });
        if matches!(opcode, Opcode::Set | Opcode::Add) {
            effects.push(bytes[..bytes.len().min(model::START_BYTES)].to_vec());
        }
        self.hub
            .receive(client, &bytes, self.now)
            .expect("a request");
    }

    fn turn(&mut self, up: usize, down: usize) {
        self.hub.end_turn();
        self.up.extend(wire(self.hub.stream()));
        let arrived: Vec<u8> = self.up.drain(..up.min(self.up.len())).collect();
        self.server.receive_link(&arrived);
        self.down.extend(wire(&mut self.server.stream));
        let arrived: Vec<u8> = self.down.drain(..down.min(self.down.len())).collect();
        self.hub.receive_link(&arrived).expect("a good store");
        for client in self.hub.take_touched() {
            self.hub.resume(client, self.now).expect("requests");
            let Some(rank) = self.hub.rank(client) else {
                continue;
            };
            assert_eq!(rank.client.end, None);
            let got = &mut self.ranks[client as usize].2;
            let before = got.len();
            rank.down.flush(got).expect("memory takes everything");
            let read = got.len() - before;
            self.hub.was_read(client, read);
        }
    }

    fn settle(&mut self) {
        for _ in 0..30 {
            self.turn(usize::MAX, usize::MAX);
            self.server.commit();
        }
        self.turn(usize::MAX, usize::MAX);
    }
}

fn wire(stream: &mut SessionStream) -> Vec<u8> {
    let (mut out, mut wire) = (SendBuf::new(), Vec::new());
    stream.fill(&mut out, usize::MAX);
    out.flush(&mut wire).expect("memory takes everything");
    wire
}

/// docs/spec/wire-extensions.md, SESSION 13 to 15.
#[test]
fn random_histories_with_restarts_lose_and_repeat_nothing() {
    let seeds = Seeds::fresh(100);
    // Some requests are done before the reply to an earlier request arrives, and are sent again only in part.
    let known = (!seeds.is_replay()).then_some(349_069_586_101);
    for seed in known.into_iter().chain(seeds) {
        run(|| start(seed), history, |job, _| check(job));
    }
}

/// A step of the ranks, of the network or of the store.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// A rank sends a request, with the key of other ranks or with its own, and a value of this length.
    Send(u32, Opcode, bool, usize),
    /// Up to these numbers of bytes arrive at the store and at the hub.
    Turn(usize, usize),
    Commit,
    Cut,
    Crash,
    Open,
    Close(u32),
}

impl Simulation for Job {
    type Step = Act;

    fn take(&mut self, act: Act) {
        match act {
            Act::Send(client, opcode, same, length) => self.send(client, opcode, same, length),
            Act::Turn(up, down) => self.turn(up, down),
            Act::Commit => self.server.commit(),
            Act::Cut => self.cut(),
            Act::Crash => self.crash(),
            Act::Open => self.server.set_open(true),
            Act::Close(client) => self.close(client),
        }
    }

    fn is_possible(&self, _: &Act) -> bool {
        true
    }
}

fn start(seed: u64) -> (Job, Rng) {
    let mut random = Rng::with_seed(seed);
    let mut job = Job::new([1, 200, 64 << 10][random.usize(..3)]);
    let length = [10, 3000, 300_000][random.usize(..3)];
    job.server.live.value = std::sync::Arc::new(vec![5; length]);
    job.server.commit();
    (job, random)
}

fn history(job: &mut Run<Job>, random: &mut Rng) {
    let opcodes = [
        Opcode::Set,
        Opcode::Set,
        Opcode::Add,
        Opcode::Add,
        Opcode::Get,
        Opcode::Ping,
        Opcode::Wait,
        Opcode::WaitGet,
    ];
    for _ in 0..random.usize(1..150) {
        let act = match random.u8(..20) {
            0..8 => {
                let length_max = [10, 10, 10, 10_000, 400_000][random.usize(..5)];
                let opcode = opcodes[random.usize(..opcodes.len())];
                let (same, length) = (random.bool(), random.usize(..length_max));
                Act::Send(random.u32(..3), opcode, same, length)
            }
            8..13 => {
                let count = if random.bool() { 30 } else { 200_000 };
                Act::Turn(random.usize(..count), random.usize(..count))
            }
            13 => Act::Turn(usize::MAX, usize::MAX),
            14 | 15 => Act::Commit,
            16 => Act::Cut,
            17 => Act::Crash,
            18 => Act::Open,
            _ if random.u8(..8) == 0 => Act::Close(random.u32(..3)),
            _ => continue,
        };
        job.take(act);
    }
}

/// Each request is carried out once, and each reply arrives once.
fn check(job: &mut Job) {
    job.server.set_open(true);
    job.settle();
    for (client, (effects, requests, got)) in job.ranks.iter().enumerate() {
        let client = client as u32;
        let executed = job.server.durable.executed.iter();
        let of_client = executed.filter(|(of, _)| *of == client);
        let of_client: Vec<&Vec<u8>> = of_client.map(|(_, bytes)| bytes).collect();
        let expected: Vec<&Vec<u8>> = effects.iter().collect();
        let what = format!("rank {client}");
        let is_right = if job.unanswered.contains(&client) {
            expected.starts_with(&of_client)
        } else {
            of_client == expected
        };
        assert!(is_right, "{what}: each is carried out once");
        let replies = job.server.all_replies(client, *requests);
        let is_open = job.hub.rank(client).is_some();
        let is_complete = if is_open {
            *got == replies
        } else {
            replies.starts_with(got)
        };
        assert!(is_complete, "{what}: each reply arrives once");
    }
}
