//! The hub between scripted ranks and a scripted store, in virtual time.

use c10d_store::Opcode;
use c10d_store::unstable::{CLIENT_WINDOW_BYTES, RequestBuf, SESSION_WINDOW_BYTES};

use super::*;

/// A hub, and the store's end of its session.
struct Node {
    hub: Hub,
    store: SessionStream,
    reader: FrameReader,
    now: Instant,
}

/// The frames that the store receives, in short.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Open(u32),
    /// The clients, and the bytes that each of them sends.
    Bytes(Vec<u32>, Vec<u8>),
    Close(u32),
    Credit(u32, u32),
}

impl Node {
    /// A node with this many ranks, which have shaken hands.
    fn with_ranks(count: u32) -> Self {
        let mut node = Self {
            hub: Hub::new(WireLimits::default()),
            store: SessionStream::default(),
            reader: FrameReader::default(),
            now: Instant::now(),
        };
        node.hub.stream().attach(0).expect("a new session");
        node.store.attach(0).expect("a new session");
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
                    Frame::End => {}
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
    let set = request(|it| {
        it.opcode(Opcode::Set).user_key("long").value(&long);
    });
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
    let set = request(|it| {
        it.opcode(Opcode::Set).user_key("long").value(&value);
    });
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
    let set = request(|it| {
        it.opcode(Opcode::Set).user_key("last").value(&value);
    });
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
fn requests_of_a_turn_come_before_the_close_of_their_rank() {
    let mut node = Node::with_ranks(2);
    node.send(0, &add("n"));
    node.send(1, &add("n"));
    node.hub.close(0);
    assert_eq!(node.turn(), [bytes(&[0, 1], add("n")), Got::Close(0)]);
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
    // The rank goes on. The late answers of the store are dropped: the wait has even crossed the cancel.
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
    // In this order or the other: only the rank can tell.
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

/// docs/wire-extensions.md, SESSION 8.
#[test]
fn credit_is_returned_for_what_ranks_have_read() {
    let mut node = Node::with_ranks(1);
    let get = request(|it| {
        it.opcode(Opcode::Get).user_key("k");
    });
    node.send(0, &get);
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
    let set = request(|it| {
        it.opcode(Opcode::Set).user_key("k").value(&value);
    });
    for client in 0..40 {
        node.hub.receive(client, &set, node.now).expect("a request");
        node.hub.receive(client, &set, node.now).expect("a request");
        node.hub.end_turn();
    }
    assert_eq!(node.hub.stream().room(), 0);
    let kept = SESSION_WINDOW_BYTES + 40 * 2 * set.len();
    let waiting: usize = (0..40)
        .map(|client| node.hub.rank(client).expect("open").up.unsent_bytes())
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
    assert!(node.hub.rank(0).expect("open").is_closing);
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
        node.send(
            reading,
            &request(|it| {
                it.opcode(Opcode::Get).user_key("k");
            }),
        );
        node.turn();
        let mut reply = vec![0; CLIENT_WINDOW_BYTES as usize];
        reply[..8].copy_from_slice(&[0, 0, 0x10, 0, 0, 0, 0, 0]);
        node.reply(reading, &reply);
        reading += 1;
    }
    assert!((120..=256).contains(&reading), "{reading} ranks");
    // One that reads, or closes its connection, is enough to go on.
    let is_full_with = node.hub.rank(0).expect("a rank").down.unsent_bytes();
    assert_eq!(node.read(0).len(), is_full_with);
    assert!(!node.hub.is_full());
    for client in 1..reading {
        node.hub.close(client);
    }
    assert!(node.hub.unread_bytes < 1 << 20, "{}", node.hub.unread_bytes);
}
