//! Sessions across a restart of their server (docs/spec/wire-extensions.md, SESSION 12 to 14), by a peer that sends frames
//! itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use c10d_socket::{ConnectOptions, Deadline, HostPort, SendBuf};
use c10d_store::unstable::{
    Effect, Frame, FrameReader, REFUSAL_NONCE, RequestBuf, ResentWait, SessionDialer,
    SessionStream, effects,
};
use c10d_store::{Opcode, ServerOptions, SessionError, Store, StoreExt, TcpStoreServer};

use crate::journal::{client, number, value};
use crate::memory_journal::Memory;
use crate::raw::{LONG, wait_until};

/// A peer with its link.
struct Peer {
    dialer: SessionDialer,
    stream: SessionStream,
    reader: FrameReader,
    link: TcpStream,
    /// The bytes that the server has sent, by client, and the requests that it has reported as done.
    received: Vec<(u32, Vec<u8>)>,
    done: Vec<(u32, u32)>,
    is_restarted: bool,
}

fn dialer(server: &TcpStoreServer) -> SessionDialer {
    let target = HostPort::new("127.0.0.1", server.local_addr().port());
    let dialer = SessionDialer::new(target, ConnectOptions::default(), None, LONG);
    dialer.expect("no credentials")
}

impl Peer {
    fn new(server: &TcpStoreServer) -> Self {
        Self::of(dialer(server).carrying_over())
    }

    fn of(mut dialer: SessionDialer) -> Self {
        let link = dialer.connect(0, deadline()).expect("a link");
        assert_eq!(link.restart, None);
        let mut peer = Self {
            dialer,
            stream: SessionStream::default(),
            reader: FrameReader::default(),
            link: blocking(link.socket),
            received: Vec::new(),
            done: Vec::new(),
            is_restarted: false,
        };
        peer.stream.attach(link.received_by_server).expect("new");
        peer.take(&link.received);
        peer
    }

    /// Connects again, to a server on another port.
    fn reconnect(&mut self, server: &TcpStoreServer) -> Result<(), SessionError> {
        self.dialer
            .set_target(HostPort::new("127.0.0.1", server.local_addr().port()));
        let link = self.dialer.connect(self.stream.received(), deadline())?;
        self.is_restarted = link.restart.is_some();
        if self.is_restarted {
            self.stream = SessionStream::default();
            self.reader = FrameReader::default();
            self.received.clear();
        }
        self.stream
            .attach(link.received_by_server)
            .expect("the same place");
        self.link = blocking(link.socket);
        self.take(&link.received);
        Ok(())
    }

    fn request<'v>(&mut self, client: u32, build: impl FnOnce(&mut RequestBuf<'v>)) {
        let mut request = RequestBuf::new();
        build(&mut request);
        self.stream.push_data(client, &request.to_bytes());
        self.flush();
    }

    fn flush(&mut self) {
        let mut out = SendBuf::new();
        self.stream.fill(&mut out, usize::MAX);
        let mut wire = Vec::new();
        out.flush(&mut wire).expect("memory takes everything");
        self.link.write_all(&wire).expect("the server reads");
    }

    /// Acknowledges what has arrived.
    fn acknowledge(&mut self) {
        let mut out = SendBuf::new();
        self.stream.report(&mut out);
        let mut wire = Vec::new();
        out.flush(&mut wire).expect("memory takes everything");
        self.link.write_all(&wire).expect("the server reads");
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        let count = self.link.read(&mut bytes).expect("the server answers");
        assert!(count > 0, "the server closed the link");
        self.take(&bytes[..count]);
    }

    fn take(&mut self, mut link: &[u8]) {
        while let Some(mut bytes) = self.stream.next_bytes(&mut link).expect("no violation") {
            while let Some(frame) = self.reader.next(&mut bytes).expect("frames") {
                match frame {
                    Frame::Data { client, bytes } => self.add(client, bytes),
                    Frame::Done { client, request } => self.done.push((client, request)),
                    _ => {}
                }
            }
        }
    }

    fn add(&mut self, client: u32, bytes: &[u8]) {
        let index = self.received.iter().position(|(of, _)| *of == client);
        let index = index.unwrap_or_else(|| {
            self.received.push((client, Vec::new()));
            self.received.len() - 1
        });
        self.received[index].1.extend_from_slice(bytes);
    }

    /// Reads until the client has these bytes, and nothing else.
    #[track_caller]
    fn expect(&mut self, client: u32, bytes: &[u8]) {
        loop {
            let index = self.received.iter().position(|(of, _)| *of == client);
            if let Some(index) = index
                && self.received[index].1.len() >= bytes.len()
            {
                let (_, got) = self.received.swap_remove(index);
                assert_eq!(got, bytes);
                return;
            }
            self.read();
        }
    }

    fn open(&mut self, client: u32) {
        self.stream.push_open(client, 0);
    }
}

fn deadline() -> Deadline {
    Deadline::after(Instant::now(), LONG)
}

fn blocking(socket: mio::net::TcpStream) -> TcpStream {
    let socket = TcpStream::from(OwnedFd::from(socket));
    socket.set_nonblocking(false).expect("a socket option");
    socket
        .set_read_timeout(Some(LONG))
        .expect("a socket option");
    socket
}

fn add(request: &mut RequestBuf<'_>, key: &str) {
    request.opcode(Opcode::Add).user_key(key).i64(1);
}

fn ask_why(request: &mut RequestBuf<'_>) {
    request.opcode(Opcode::Ping).u32(REFUSAL_NONCE);
}

/// Both a write and the question whether it was refused are sent again. An acknowledged write stays, also in a store that is full,
/// and a refusal that has not arrived may become an acknowledged write: docs/spec/wire-extensions.md, REFUSAL 5.
#[test]
fn a_restart_turns_no_acknowledged_write_into_a_refusal() {
    let limit = 50_000;
    let limited = || ServerOptions::default().with_memory_max(limit);
    // The server owes a DONE after 64 KiB.
    let value = vec![7; 100_000];
    let mut set = RequestBuf::new();
    set.opcode(Opcode::Set).user_key("k").value(&value);
    let set = set.to_bytes();
    let done = [0x00, 0x00, 0x0e, 0xc1];
    for is_refused in [true, false] {
        let journal = Memory::default();
        let server = match is_refused {
            true => journal.serve_with(limited()),
            false => journal.serve(),
        };
        let mut peer = Peer::new(&server);
        peer.open(0);
        peer.request(0, |r| add(r, "n"));
        peer.expect(0, &number(1));
        peer.stream.push_data(0, &set);
        peer.flush();
        // The write is handled before this reply.
        peer.open(1);
        peer.request(1, |r| add(r, "m"));
        peer.expect(1, &number(1));
        let is_done = peer
            .done
            .iter()
            .any(|(client, number)| (*client, *number) == (0, 2));
        assert_eq!(is_done, !is_refused, "{:?}", peer.done);
        peer.request(0, ask_why);

        // The replies are lost with the server.
        let (journal, old) = (journal.crashed(), server);
        let server = match is_refused {
            true => journal.serve(),
            false => journal.serve_with(limited()),
        };
        peer.reconnect(&server).expect("a link");
        assert!(peer.is_restarted);
        drop(old);
        peer.open(0);
        peer.stream.push_resume(0, 2);
        peer.stream.push_data(0, &set);
        peer.flush();
        peer.request(0, ask_why);
        peer.expect(0, &done);
        assert_eq!(client(&server).get("k").expect("it is there"), value);
    }
}

/// Every request with an effect is sent again, and is carried out once: with its reply, if the reply was lost.
#[test]
fn requests_that_were_carried_out_are_answered_and_not_repeated() {
    let journal = Memory::default();
    let server = journal.serve();
    let mut peer = Peer::new(&server);
    let store = client(&server);
    store.queue_push("q", b"element").expect("push");
    store.set("text", b"old").expect("set");
    peer.open(0);
    peer.request(0, |r| add(r, "n"));
    peer.expect(0, &number(1));
    let requests: [fn(&mut RequestBuf<'_>); 8] = [
        |r| add(r, "n"),
        |r| {
            r.opcode(Opcode::QueuePop).user_key("q");
        },
        |r| {
            r.opcode(Opcode::Append).user_key("log").value(b"once");
        },
        |r| {
            r.opcode(Opcode::QueuePush).user_key("p").value(b"once");
        },
        |r| {
            let compare = r.opcode(Opcode::CompareSet).user_key("text");
            compare.value(b"old").value(b"new");
        },
        |r| {
            r.opcode(Opcode::DeleteKey).user_key("text");
        },
        |r| {
            r.opcode(Opcode::Barrier).user_key("b").i64(2);
        },
        |r| {
            r.opcode(Opcode::QueueLen).user_key("p");
        },
    ];
    let replies = [
        number(2),
        [number(1), value(b"element")].concat(),
        value(b"new"),
        number(1),
    ]
    .concat();
    for request in &requests[..7] {
        peer.request(0, request);
    }
    peer.expect(0, &replies);
    assert!(!store.check(&["text"]).expect("check"));

    // The replies are lost with the server.
    let (journal, old) = (journal.crashed(), server);
    let server = journal.serve();
    peer.reconnect(&server).expect("a link");
    assert!(peer.is_restarted);
    drop(old);
    peer.open(0);
    peer.stream.push_resume(0, 2);
    for request in &requests[..7] {
        peer.request(0, request);
    }
    peer.expect(0, &replies);
    let store = client(&server);
    assert_eq!(store.get("log").expect("get"), b"once");
    assert_eq!(store.queue_len("p").expect("len"), 1);
    assert_eq!(store.queue_len("q").expect("len"), 0);
    assert_eq!(store.add("n", 0).expect("add"), 2);
    // It is counted once at the barrier.
    store.barrier("b", 2).expect("the second one");
    peer.expect(0, &[0]);
    peer.request(0, requests[7]);
    peer.expect(0, &number(1));
}

/// docs/spec/wire-extensions.md, SESSION 14: the event that ended a wait is lost in the restart; the wait has ended
/// all the same. A wait that ended at once was a read.
#[test]
fn a_wait_that_has_ended_does_not_wait_again() {
    let journal = Memory::default();
    let server = journal.serve();
    let store = client(&server);
    let mut peer = Peer::new(&server);
    for number in 0..3 {
        peer.open(number);
    }
    peer.request(0, |r| {
        r.opcode(Opcode::Wait).count(1).user_key("k");
    });
    peer.request(1, |r| {
        r.opcode(Opcode::QueueTake).user_key("q").u64(1);
    });
    wait_until("the waits", || server.waiting_count() == 2);
    store.set("k", b"").expect("set");
    store.queue_push("q", b"e").expect("push");
    peer.request(2, |r| {
        r.opcode(Opcode::WaitGet).count(1).user_key("k");
    });
    peer.expect(2, &[&[0][..], &value(b"")].concat());
    store.delete_key("k").expect("delete");
    let is_of_reader = |effect| matches!(effect, Ok(Effect::Executed { client: 2, .. }));
    for (position, batch) in &journal.kept().batches {
        let mut effects = effects(*position, batch).expect("intact");
        assert!(!effects.any(is_of_reader), "a read changes nothing");
    }

    let journal = journal.crashed();
    let old = server;
    let server = journal.serve();
    drop(old);
    peer.reconnect(&server).expect("a link");
    for number in 0..3 {
        peer.open(number);
        peer.stream.push_resume(number, 1);
    }
    peer.request(0, |r| {
        r.opcode(Opcode::Wait).count(1).user_key("k");
    });
    peer.expect(0, &[0]);
    peer.request(1, |r| {
        r.opcode(Opcode::QueueTake).user_key("q").u64(1);
    });
    peer.expect(1, &[&[0][..], &number(1), &value(b"e")].concat());
    peer.request(2, |r| {
        r.opcode(Opcode::WaitGet).count(1).user_key("k");
    });
    wait_until("it waits", || server.waiting_count() == 1);
    let store = client(&server);
    store.set("k", b"2").expect("set");
    peer.expect(2, &[&[0][..], &value(b"2")].concat());
    assert_eq!(store.queue_len("q").expect("len"), 0);
}

/// The batch of the second request is lost: it is carried out again, and its first effect is not visible to any
/// client.
#[test]
fn a_request_that_was_not_durable_is_carried_out_again() {
    let journal = Memory::default();
    let server = journal.serve();
    let mut peer = Peer::new(&server);
    peer.open(4);
    peer.request(4, |r| add(r, "n"));
    peer.expect(4, &number(1));
    journal.set_blocked(true);
    peer.request(4, |r| add(r, "n"));
    journal.wait_until_appending();
    let crashed = journal.crashed();
    let server_again = crashed.serve();
    peer.reconnect(&server_again).expect("a link");
    peer.open(4);
    peer.stream.push_resume(4, 2);
    peer.request(4, |r| add(r, "n"));
    peer.expect(4, &number(2));
    journal.set_blocked(false);
    drop(server);
}

/// The last parts of a request to arrive are short, and so are the bytes after the last reply.
#[test]
fn the_peer_learns_that_a_long_request_is_done() {
    let journal = Memory::default();
    let server = journal.serve();
    let mut peer = Peer::new(&server);
    for client in 0..2 {
        peer.open(client);
    }
    let long = vec![7; 100_000];
    let mut set = RequestBuf::new();
    set.opcode(Opcode::Set).user_key("k").value(&long);
    let set = set.to_bytes();
    let (start, rest) = set.split_at(70_000);
    for part in [start, rest] {
        peer.stream.push_data(0, part);
    }
    peer.flush();
    while peer.done.is_empty() {
        peer.read();
    }
    assert_eq!(peer.done, [(0, 1)]);

    let mut both = RequestBuf::new();
    add(&mut both, "n");
    let both = [both.to_bytes(), set].concat();
    peer.stream.push_data(1, &both);
    peer.flush();
    while peer.done.len() == 1 {
        peer.read();
    }
    assert_eq!(peer.done[1], (1, 2));
    peer.expect(1, &number(1));
}

#[test]
fn only_sessions_that_can_be_carried_over_are() {
    let journal = Memory::default();
    let server = journal.serve();
    let mut plain = Peer::of(dialer(&server));
    let mut ended = Peer::new(&server);
    ended.stream.push_end();
    ended.flush();
    let mut byte = [0; 256];
    while ended.link.read(&mut byte).is_ok_and(|count| count > 0) {}
    // A later answer shows that the end is durable.
    client(&server).add("n", 1).expect("add");
    let mut carried = Peer::new(&server);
    carried.open(7);
    carried.request(7, |r| add(r, "n"));
    carried.expect(7, &number(2));

    let journal = journal.crashed();
    let again = journal.serve();
    for unknown in [&mut plain, &mut ended] {
        let error = unknown.reconnect(&again).expect_err("it is not kept");
        assert!(matches!(error, SessionError::Unknown { .. }), "{error}");
    }
    carried.reconnect(&again).expect("a link");
    // A lost answer is given again.
    let mut late = carried.dialer;
    late.set_target(HostPort::new("127.0.0.1", server.local_addr().port()));
    let error = late.connect(0, deadline()).expect_err("an older run");
    assert!(matches!(error, SessionError::Unknown { .. }), "{error}");
    drop((server, again));
}

/// Snapshots contain the sessions as well.
#[test]
fn a_snapshot_keeps_sessions() {
    let journal = Memory::default();
    let server = journal.serve();
    let mut peer = Peer::new(&server);
    peer.open(0);
    peer.request(0, |r| add(r, "n"));
    peer.expect(0, &number(1));
    peer.acknowledge();
    let store = client(&server);
    let long = vec![1; 8 << 20];
    for _ in 0..9 {
        store.set("long", &long).expect("set");
    }
    wait_until("a snapshot", || journal.has_snapshot());
    let crashed = journal.crashed();
    let again = crashed.serve();
    peer.reconnect(&again).expect("a link");
    peer.open(0);
    peer.stream.push_resume(0, 1);
    peer.request(0, |r| add(r, "n"));
    peer.expect(0, &number(1));
    let short = Duration::from_millis(1);
    peer.link.set_read_timeout(Some(short)).expect("an option");
    drop(server);
}

/// A reply waits for credit, while as many requests follow it as the server usually reports. Neither it nor these
/// requests are done.
#[test]
fn a_request_whose_reply_waits_for_credit_is_not_done() {
    const SETS: usize = 1100;
    let journal = Memory::default();
    let server = journal.serve();
    let store = client(&server);
    let long = vec![7; 300_000];
    store.set("long", &long).expect("set");
    let mut peer = Peer::new(&server);
    peer.open(0);
    let set = |peer: &mut Peer, number: usize| {
        peer.request(0, |r| {
            let key = format!("set {number}");
            r.opcode(Opcode::Set).user_key(&key).value(b"1");
        });
    };
    let first = |peer: &mut Peer| {
        peer.request(0, |r| {
            r.opcode(Opcode::Get).user_key("long");
        });
        peer.request(0, |r| add(r, "n"));
    };
    first(&mut peer);
    for number in 0..SETS {
        set(&mut peer, number);
    }
    store.wait(&[&format!("set {}", SETS - 1)]).expect("wait");
    while peer
        .received
        .iter()
        .map(|(_, bytes)| bytes.len())
        .sum::<usize>()
        < 256 << 10
    {
        peer.read();
    }
    peer.acknowledge();
    set(&mut peer, SETS);
    store.wait(&[&format!("set {SETS}")]).expect("wait");
    assert_eq!(peer.done, []);

    let crashed = journal.crashed();
    let again = crashed.serve();
    peer.reconnect(&again).expect("a link");
    peer.open(0);
    peer.stream.push_resume(0, 1);
    first(&mut peer);
    while peer
        .received
        .iter()
        .map(|(_, bytes)| bytes.len())
        .sum::<usize>()
        < 256 << 10
    {
        peer.read();
    }
    peer.stream.push_credit(0, 200_000);
    peer.flush();
    peer.expect(0, &[value(&long), number(1)].concat());
    drop(server);
}

/// docs/spec/wire-extensions.md, EPHEMERAL 3 and 8: a client of a session that is kept owns its key beyond a restart,
/// until the client has ended, does not return with its session, or the session has ended.
#[test]
fn the_keys_of_kept_clients_outlive_a_restart_and_end_with_them() {
    let journal = Memory::default();
    let server = journal.serve();
    let mut peer = Peer::new(&server);
    for number in 0..4 {
        peer.open(number);
        peer.request(number, |r| claim(r, number));
        peer.expect(number, &[0]);
    }
    let store = client(&server);
    peer.stream.push_close(0);
    peer.flush();
    assert_eq!(store.get("w0").expect("get"), b"0");
    // Asked again, and it has not been answered.
    peer.request(1, |r| claim(r, 1));
    peer.expect(1, &[0]);

    let (journal, old) = (journal.crashed(), server);
    let server = journal.serve();
    peer.reconnect(&server).expect("a link");
    drop(old);
    let store = client(&server);
    let owned = |store: &dyn Store| {
        let keys = ["k0", "k1", "k2", "k3"].into_iter();
        let keys = keys.filter(|key| store.check(&[key]).expect("check"));
        keys.collect::<Vec<_>>()
    };
    assert_eq!(owned(&store), ["k1", "k2", "k3"]);
    peer.open(1);
    peer.stream.push_resume(1, 2);
    peer.request(1, |r| claim(r, 1));
    peer.expect(1, &[0]);
    peer.request(1, |r| claim(r, 1));
    peer.expect(1, &[0]);
    // The previous client has not returned.
    peer.open(3);
    peer.stream.push_resume(3, 2);
    peer.flush();
    assert_eq!(store.get("w2").expect("get"), b"2");
    assert_eq!(owned(&store), ["k1", "k3"]);
    peer.stream.push_close(3);
    peer.flush();
    assert_eq!(store.get("w3").expect("get"), b"3");

    // A session whose time is over ends, and its clients' keys expire, although none of the clients has returned.
    let (journal, old) = (journal.crashed(), server);
    let options = ServerOptions::default().with_session_timeout(Duration::from_millis(50));
    let server = journal.serve_with(options);
    drop(old);
    let store = client(&server);
    assert_eq!(store.get("w1").expect("get"), b"1");
    assert_eq!(owned(&store), [""; 0]);
}

fn claim(request: &mut RequestBuf<'_>, number: u32) {
    let [key, will] = ["k", "w"].map(|name| format!("{name}{number}"));
    request
        .opcode(Opcode::SetEphemeral)
        .user_key(&key)
        .value(b"v");
    const VALUES: [&[u8]; 4] = [b"0", b"1", b"2", b"3"];
    request.user_key(&will).value(VALUES[number as usize]);
}

/// docs/spec/wire-extensions.md, END_WAITS 2 and 3: a wait that was ended stays ended over a restart, and so does the cancel that
/// has crossed it.
#[test]
fn a_wait_that_was_ended_is_ended_after_a_restart() {
    let journal = Memory::default();
    let server = journal.serve();
    let mut peer = Peer::new(&server);
    let wait = |r: &mut RequestBuf<'_>| {
        r.opcode(Opcode::Wait).count(1).user_key("k");
    };
    let cancel = |r: &mut RequestBuf<'_>| {
        r.opcode(Opcode::CancelWait);
    };
    let end = |r: &mut RequestBuf<'_>| {
        r.opcode(Opcode::EndWaits).user_key("k");
    };
    peer.open(0);
    peer.open(1);
    peer.request(0, wait);
    wait_until("it waits", || server.waiting_count() == 1);
    peer.request(1, end);
    peer.expect(1, &number(1));
    peer.expect(0, &[1]);

    let (journal, old) = (journal.crashed(), server);
    let server = journal.serve();
    peer.reconnect(&server).expect("a link");
    drop(old);
    for client in [0, 1] {
        peer.open(client);
        peer.stream.push_resume(client, 1);
    }
    peer.request(0, wait);
    peer.expect(0, &[1]);
    peer.request(0, cancel);
    peer.request(0, |r| add(r, "n"));
    peer.expect(0, &number(1));
    // It ends no wait of now.
    peer.request(0, wait);
    wait_until("it waits", || server.waiting_count() == 1);
    peer.request(1, end);
    peer.expect(1, &number(1));
    assert_eq!(server.waiting_count(), 1);
    peer.request(0, cancel);
    peer.expect(0, &[1]);
}

/// The waits of all kinds, for names that begin with `k`, and the number of their keys.
fn waits(request: &mut RequestBuf<'_>, kind: u32) {
    match kind {
        0 => request.opcode(Opcode::Wait).count(1).user_key("k0"),
        1 => request.opcode(Opcode::WaitGet).count(1).user_key("k1"),
        2 => request
            .opcode(Opcode::WaitChange)
            .user_key("k2")
            .i64(0)
            .i64(-1)
            .value(b""),
        3 => request.opcode(Opcode::Barrier).user_key("k3").i64(2),
        _ => request.opcode(Opcode::QueueTake).user_key("k4").i64(1),
    };
}

/// docs/spec/wire-extensions.md, END_WAITS 4: a restarted server carries out END_WAITS, and in the second case crashes before the
/// session is back.
#[test]
fn waits_of_a_session_that_was_away_are_ended() {
    for crashes_again in [false, true] {
        let journal = Memory::default();
        let server = journal.serve();
        let mut peer = Peer::new(&server);
        let other = |r: &mut RequestBuf<'_>| {
            r.opcode(Opcode::Wait).count(1).user_key("other");
        };
        for client in 0..=5 {
            peer.open(client);
            peer.request(client, |r| {
                if client < 5 {
                    waits(r, client)
                } else {
                    other(r)
                }
            });
        }
        wait_until("they wait", || server.waiting_count() == 6);

        let (journal, old) = (journal.crashed(), server);
        let server = journal.serve();
        drop(old);
        let ended = client(&server).end_waits("k").expect("a number");
        assert_eq!(ended, 0, "the session is away");
        let (journal, server) = if crashes_again {
            let after = journal.crashed();
            let server = after.serve();
            (after, server)
        } else {
            (journal, server)
        };
        peer.reconnect(&server).expect("a link");
        assert!(peer.is_restarted);
        let resent = ResentWait {
            age: LONG,
            starts_ago: 1 + u32::from(crashes_again),
        };
        for client in 0..=5 {
            peer.open(client);
            peer.stream.push_resume(client, 1);
            peer.stream.push_resent(client, resent);
            peer.request(client, |r| {
                if client < 5 {
                    waits(r, client)
                } else {
                    other(r)
                }
            });
        }
        for client in 0..5 {
            peer.expect(client, &[1]);
        }
        assert_eq!(server.waiting_count(), 1);
        // Later waits are others.
        for client in 0..3 {
            peer.request(client, |r| waits(r, client));
        }
        wait_until("they wait", || server.waiting_count() == 4);

        // They stay ended, although the peer has not acknowledged the replies.
        let (journal, old) = (journal.crashed(), server);
        let server = journal.serve();
        drop(old);
        peer.reconnect(&server).expect("a link");
        for client in 3..5 {
            peer.open(client);
            peer.stream.push_resume(client, 1);
            peer.request(client, |r| waits(r, client));
            peer.expect(client, &[1]);
        }
    }
}

/// docs/spec/wire-extensions.md, DELETE_PREFIX 3 and 5: the reply to a client of a session that is kept is not lost.
#[test]
fn a_deletion_that_is_complete_is_not_repeated_after_a_restart() {
    let journal = Memory::default();
    let server = journal.serve();
    let store = client(&server);
    store.multi_set(&[("p/a", b""), ("p/b", b"")]).expect("set");
    store.check(&[]).expect("done");
    let delete = |r: &mut RequestBuf<'_>| {
        r.opcode(Opcode::DeletePrefix).user_key("p/").u32(0);
    };
    let mut peer = Peer::new(&server);
    peer.open(0);
    peer.request(0, delete);
    peer.request(0, |r| add(r, "n"));
    peer.expect(0, &[number(2), number(1)].concat());
    store.set("p/late", b"").expect("set");
    store.check(&[]).expect("done");

    let (journal, old) = (journal.crashed(), server);
    let server = journal.serve();
    peer.reconnect(&server).expect("a link");
    drop(old);
    peer.open(0);
    peer.stream.push_resume(0, 1);
    peer.request(0, delete);
    peer.request(0, |r| add(r, "n"));
    peer.request(0, |r| add(r, "n"));
    peer.expect(0, &[number(2), number(1), number(2)].concat());
    assert!(client(&server).check(&["p/late"]).expect("check"));
}
