//! The observed state of a server's connections and keys, and connections that it hands over.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use c10d_store::Opcode;
use c10d_store::unstable::{ANNOUNCEMENT_BYTES_MAX, CAPABILITY_NONCE};
use c10d_store::{
    CloseReason, ConnectionRecord, HttpConnection, HttpHandler, KeyRecord, ServerOptions, Snapshot,
    SnapshotError, Store, StoreError, StoreExt, StoreHandle, StoreObserver, TcpStore,
    TcpStoreServer, WireLimits, key_from_bytes,
};

use crate::raw::{LONG, Raw, wait_until};

fn serve(options: ServerOptions) -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", options).expect("a free port")
}

fn connect(server: &TcpStoreServer) -> TcpStore {
    TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("the server is there")
}

fn snapshot(server: &TcpStoreServer) -> Snapshot {
    server.observer().snapshot(LONG).expect("the server runs")
}

fn key<'s>(snapshot: &'s Snapshot, name: &str) -> &'s KeyRecord {
    let mut keys = snapshot.keys.iter();
    keys.find(|key| &*key.key == name.as_bytes())
        .unwrap_or_else(|| panic!("{name} is missing: {:?}", snapshot.keys))
}

fn wait_of(snapshot: &Snapshot, connection: usize) -> Vec<&[u8]> {
    let wait = snapshot.connections[connection].wait.as_ref();
    wait.map_or(Vec::new(), |wait| {
        wait.missing.iter().map(|key| &**key).collect()
    })
}

#[test]
fn a_key_that_is_no_text_has_its_bytes_at_the_server() {
    let server = serve(ServerOptions::default());
    let store = connect(&server);
    let longest = vec![0xff; WireLimits::default().key_bytes_max - 1];
    for name in [&b"a\xff\0"[..], &longest] {
        let key = key_from_bytes(name);
        assert_eq!(store.add(&key, 7).unwrap(), 7);
        let whole = [b"/", name].concat();
        let snapshot = snapshot(&server);
        assert!(snapshot.keys.iter().any(|it| *it.key == whole[..]));
        assert!(store.delete_key(&key).unwrap());
    }
}

#[test]
fn a_snapshot_shows_what_each_connection_did_and_waits_for() {
    let server = serve(ServerOptions::default());
    let mut writer = Raw::with_handshake(server.local_addr());
    writer.request(|r| {
        r.opcode(Opcode::Set).raw_key(b"/a").value(b"first");
        r.opcode(Opcode::Add).raw_key(b"/n").i64(-7);
        r.opcode(Opcode::QueuePush).raw_key(b"/q").value(b"element");
    });
    writer.read(8);
    writer.fence();
    let mut reader = Raw::with_handshake(server.local_addr());
    reader.request(|r| {
        r.opcode(Opcode::Get).raw_key(b"/a");
    });
    reader.read(8 + 5);
    reader.request(|r| {
        r.opcode(Opcode::Wait).count(3);
        r.raw_key(b"/a").raw_key(b"/y").raw_key(b"/x");
    });
    reader.fence();
    writer.set(b"/a", b"second");
    writer.fence();

    let snapshot = snapshot(&server);
    assert!(snapshot.server_time > Duration::ZERO && snapshot.server_time < LONG);
    let [of_writer, of_reader] = &snapshot.connections[..] else {
        panic!("two connections: {:?}", snapshot.connections);
    };
    assert_eq!(of_writer.peer, writer.0.local_addr().expect("connected"));
    assert_eq!(of_writer.nonce, Some(0xf0e7_c45e), "of the fence");
    assert_eq!(of_writer.requests, 1 + 3 + 1 + 1 + 1);
    let last = of_writer.last.as_ref().expect("a request");
    assert_eq!((last.command, &*last.key), (Opcode::Set, &b"/a"[..]));
    assert_eq!((last.key_count, last.number), (1, 0));
    assert_eq!(of_writer.wait, None);

    let last = of_reader.last.as_ref().expect("a request");
    assert_eq!((last.command, last.key_count), (Opcode::Wait, 3));
    let wait = of_reader.wait.as_ref().expect("it waits");
    assert_eq!((wait.command, wait.missing_count), (Opcode::Wait, 2));
    assert_eq!(wait_of(&snapshot, 1), [b"/y", b"/x"]);
    assert!(wait.since == last.at && last.at <= snapshot.now);
    assert!(of_writer.id < of_reader.id && of_reader.opened <= last.at);

    let a = key(&snapshot, "/a");
    assert_eq!((&*a.value_head, a.value_len), (&b"second"[..], 6));
    assert_eq!(a.writer, of_writer.id);
    let (first, writer, at) = a.previous.expect("it was written twice");
    assert_eq!(writer, of_writer.id);
    assert!(first < a.version && at <= a.written);
    assert_eq!(of_reader.reads, [first], "it has read an old value");
    assert_eq!(&*key(&snapshot, "/n").value_head, b"-7");
    assert_eq!(snapshot.keys.len(), 2);
    assert_eq!(snapshot.queues.len(), 1);
    assert_eq!(
        (&*snapshot.queues[0].key, snapshot.queues[0].length),
        (&b"/q"[..], 1)
    );

    let counters = &snapshot.counters;
    assert_eq!(counters.requests[0], (Opcode::Set, 2));
    assert_eq!((counters.connections, counters.opened), (2, 2));
    assert_eq!((counters.keys, counters.waits), (2, 1));
    assert_eq!(counters.stored_bytes, 2 + 6 + 2 + 2);
    assert!(counters.received_bytes > 100 && counters.sent_bytes > 20);
    assert!(snapshot.started.is_some());
    let observer = server.observer();
    assert_eq!(observer.counters(LONG).as_ref(), Ok(counters));
}

#[test]
fn a_snapshot_names_a_pending_take() {
    let server = serve(ServerOptions::default());
    let mut taker = Raw::with_handshake(server.local_addr());
    taker.request(|r| {
        r.opcode(Opcode::QueueTake).raw_key(b"/q").u64(8);
    });
    taker.fence();
    let snapshot = snapshot(&server);
    let record = &snapshot.connections[0];
    let last = record.last.as_ref().expect("a request");
    assert_eq!((last.command, &*last.key), (Opcode::QueueTake, &b"/q"[..]));
    let wait = record.wait.as_ref().expect("it waits");
    assert_eq!(wait.command, Opcode::QueueTake);
    assert_eq!(wait_of(&snapshot, 0), [b"/q"]);
}

#[test]
fn the_keys_of_a_snapshot_have_only_the_start_of_their_values() {
    let server = serve(ServerOptions::default());
    let store = connect(&server);
    store.set("long", vec![7; 100_000]).expect("served");
    store.append("long", b"x").expect("served");
    store.check(&[]).expect("served");
    let snapshot = snapshot(&server);
    let long = key(&snapshot, "/long");
    assert_eq!(
        (&*long.value_head, long.value_len),
        (&[7; 256][..], 100_001)
    );
    assert_eq!(snapshot.connections[0].nonce, Some(CAPABILITY_NONCE));
}

#[test]
fn closed_connections_keep_their_wait_and_the_reason() {
    let server = serve(ServerOptions::default());
    let by_peer = Raw::with_handshake(server.local_addr());
    let mut refused = Raw::with_handshake(server.local_addr());
    let mut waiting = Raw::with_handshake(server.local_addr());
    waiting.wait(b"/missing");
    waiting.fence();
    drop(by_peer);
    wait_until("the peer's close is seen", || {
        server.connection_count() == 2
    });
    refused.send(&[99]);
    refused.read_to_close();
    drop(waiting);
    drop(refused);
    wait_until("all are closed", || server.connection_count() == 0);

    let snapshot = snapshot(&server);
    assert_eq!(snapshot.connections, []);
    let reasons: Vec<CloseReason> = snapshot
        .closed
        .iter()
        .map(|connection| connection.closed.expect("it is closed").reason)
        .collect();
    assert_eq!(
        reasons,
        [CloseReason::Peer, CloseReason::Refused, CloseReason::Peer]
    );
    let has_waited = |connection: &ConnectionRecord| {
        let wait = connection.wait.as_ref();
        wait.map(|wait| wait.missing[0].to_vec())
    };
    assert_eq!(has_waited(&snapshot.closed[2]), Some(b"/missing".to_vec()));
    assert_eq!(has_waited(&snapshot.closed[0]), None);
    let counters = snapshot.counters;
    assert_eq!((counters.opened, counters.connections), (3, 0));
    assert_eq!(
        (counters.closed_by_peer, counters.closed_by_refusal),
        (2, 1)
    );
    assert_eq!((counters.waits, counters.waits_cancelled), (0, 0));
}

#[test]
fn a_cancelled_wait_keeps_its_key_and_is_counted() {
    let server = serve(ServerOptions::default());
    let store = connect(&server);
    let result = store.wait_timeout(&["missing"], Some(Duration::ZERO));
    assert!(matches!(result, Err(StoreError::Timeout { .. })));
    let snapshot = snapshot(&server);
    assert_eq!(snapshot.counters.waits_cancelled, 1);
    let last = snapshot.connections[0].last.as_ref().expect("a request");
    assert_eq!(last.command, Opcode::CancelWait);
    assert_eq!(&*last.key, b"/missing");
}

#[test]
fn an_observer_notices_that_the_server_has_stopped() {
    let server = serve(ServerOptions::default());
    let observer = server.observer();
    let waiting = {
        let observer = observer.clone();
        thread::spawn(move || while observer.snapshot(None).is_ok() {})
    };
    server.shutdown();
    waiting.join().expect("it ends");
    assert_eq!(observer.snapshot(None).err(), Some(SnapshotError::Stopped));
    assert_eq!(observer.counters(LONG).err(), Some(SnapshotError::Stopped));
}

/// A handler that keeps the server's thread busy, against its contract.
struct Block(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl HttpHandler for Block {
    fn serve(&self, _: HttpConnection) {
        let released = self.0.lock().expect("no panic").recv_timeout(LONG);
        released.expect("the test releases the thread");
    }
}

#[test]
fn a_snapshot_of_a_busy_server_times_out() {
    let server = serve(ServerOptions::default());
    let (release, released) = channel();
    server.set_http_handler(Arc::new(Block(released.into())));
    let mut peer = Raw::connect(server.local_addr());
    peer.send(b"G");
    let timeout = Duration::from_millis(20);
    let observer = server.observer();
    let busy = |observer: &StoreObserver| {
        matches!(
            observer.counters(timeout),
            Err(SnapshotError::TimedOut { .. })
        )
    };
    wait_until("the thread is busy", || busy(&observer));
    let error = observer.snapshot(timeout).expect_err("it is busy");
    assert_eq!(error, SnapshotError::TimedOut { timeout });
    assert!(error.to_string().contains("20ms"), "{error}");
    release.send(()).expect("the handler waits");
    assert!(observer.snapshot(LONG).is_ok(), "late answers do no harm");
}

#[test]
fn concurrent_snapshots_all_include_what_happened_before_them() {
    let server = serve(ServerOptions::default());
    thread::scope(|scope| {
        for worker in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let store = connect(server);
                for round in 1..=20 {
                    let name = format!("worker{worker}");
                    store.add(&name, 1).expect("served");
                    let snapshot = snapshot(server);
                    let value = &key(&snapshot, &format!("/{name}")).value_head;
                    assert_eq!(**value, *round.to_string().into_bytes());
                }
            });
        }
    });
}

// --- announcements ---------------------------------------------------------------------------

/// docs/spec/wire-extensions.md, ANNOUNCE 1 and 3.
#[test]
fn the_last_announcement_is_kept_beyond_its_connection() {
    let server = serve(ServerOptions::default());
    let store = connect(&server);
    let longest = vec![b'x'; ANNOUNCEMENT_BYTES_MAX];
    for bytes in [&b"first"[..], &longest] {
        assert!(store.announce(bytes).expect("served"));
    }
    store.check(&[]).expect("served");
    let before = snapshot(&server);
    let [announcement] = &before.announcements[..] else {
        panic!("one announcement: {:?}", before.announcements);
    };
    assert_eq!(announcement.connection, before.connections[0].id);
    assert_eq!(&*announcement.bytes, &longest[..]);
    let requests = &before.counters.requests;
    assert!(requests.contains(&(Opcode::Announce, 2)), "{requests:?}");

    drop(store);
    wait_until("it is closed", || server.connection_count() == 0);
    let after = snapshot(&server);
    assert_eq!(after.announcements, before.announcements);
    assert_eq!(after.closed[0].id, announcement.connection);
}

/// docs/spec/wire-extensions.md, ANNOUNCE 2.
#[test]
fn an_announcement_beyond_the_limit_is_refused() {
    let server = serve(ServerOptions::default());
    let store = connect(&server);
    let too_long = vec![b'x'; ANNOUNCEMENT_BYTES_MAX + 1];
    let error = store.announce(&too_long).expect_err("too long");
    assert!(matches!(error, StoreError::LimitExceeded { .. }), "{error}");
    assert!(store.announce(b"short").expect("the store stays usable"));

    let mut peer = Raw::with_handshake(server.local_addr());
    peer.request(|r| {
        r.opcode(Opcode::Announce).count(too_long.len());
    });
    assert_eq!(peer.read_to_close(), b"");
    let snapshot = snapshot(&server);
    assert_eq!(snapshot.counters.closed_by_refusal, 1);
}

/// The capabilities belong to a connection: a different server may listen at the same address later.
#[test]
fn nothing_is_announced_after_a_reconnect_to_a_server_without_the_capability() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let server = thread::spawn(move || {
        let mut hello = [0; 10];
        let (mut first, _) = listener.accept().expect("a client");
        first.read_exact(&mut hello).expect("VALIDATE and PING");
        first
            .write_all(&[0xff, 3, 0x0d, 0xc1])
            .expect("all capabilities");
        let (mut second, _) = listener.accept().expect("the client reconnects");
        second.read_exact(&mut hello).expect("VALIDATE and PING");
        second.write_all(&hello[6..]).expect("the nonce");
        let mut rest = Vec::new();
        second.read_to_end(&mut rest).expect("the client closes");
        rest
    });
    let store = TcpStore::connect("127.0.0.1", port).expect("the first connection");
    store.set_timeout(Some(Duration::from_millis(1)));
    let error = store.ping().expect_err("the server is silent");
    assert!(matches!(error, StoreError::NoReply { .. }), "{error}");
    store.set_timeout(Some(LONG));
    assert!(!store.announce(b"anything").expect("nothing is sent"));
    drop(store);
    assert_eq!(server.join().expect("no panic"), b"");
}

// --- HTTP ------------------------------------------------------------------------------------

struct Forward(Sender<HttpConnection>);

impl HttpHandler for Forward {
    fn serve(&self, connection: HttpConnection) {
        self.0.send(connection).expect("the test receives");
    }
}

/// docs/spec/wire.md, VALIDATE 5.
#[test]
fn a_connection_that_speaks_http_is_handed_over_with_its_first_bytes() {
    let server = serve(ServerOptions::default());
    let (sender, handed_over) = channel();
    server.set_http_handler(Arc::new(Forward(sender)));
    let mut store_client = Raw::with_handshake(server.local_addr());
    for method in ["GET", "P"] {
        let mut browser = TcpStream::connect(server.local_addr()).expect("accepted");
        browser.set_read_timeout(Some(LONG)).expect("an option");
        browser.write_all(method.as_bytes()).expect("it reads");
        let mut connection = handed_over.recv_timeout(LONG).expect("handed over");
        assert_eq!(connection.received, method.as_bytes());
        assert_eq!(connection.peer, browser.local_addr().expect("connected"));
        let error = connection.stream.read(&mut [0]).expect_err("no byte");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        connection.stream.write_all(b"hello").expect("short");
        let mut answer = [0; 5];
        browser.read_exact(&mut answer).expect("the handler wrote");
        assert_eq!(&answer, b"hello");
    }
    store_client.fence();
    assert_eq!(server.connection_count(), 1);
    let snapshot = snapshot(&server);
    assert_eq!((snapshot.connections.len(), snapshot.closed.len()), (1, 0));
    let counters = snapshot.counters;
    assert_eq!((counters.opened, counters.handed_over), (1, 2));
    assert_eq!(counters.closed_by_refusal, 0);
}

/// docs/spec/wire.md, VALIDATE 5.
#[test]
fn only_the_first_byte_of_a_connection_can_be_http() {
    let server = serve(ServerOptions::default());
    let (sender, handed_over) = channel();
    server.set_http_handler(Arc::new(Forward(sender)));
    let mut in_request = Raw::connect(server.local_addr());
    in_request.send(&[0, 0xce, 0xf7]);
    wait_until("it is accepted", || server.connection_count() == 1);
    let mut after_handshake = Raw::with_handshake(server.local_addr());
    after_handshake.send(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(after_handshake.read_to_close(), b"");
    in_request.send(b"GET");
    assert_eq!(in_request.read_to_close(), b"");
    let mut lower_case = Raw::connect(server.local_addr());
    lower_case.send(b"get / HTTP/1.1\r\n\r\n");
    assert_eq!(lower_case.read_to_close(), b"");
    assert!(handed_over.try_recv().is_err());
}

#[test]
fn handed_over_connections_leave_room_for_clients_and_survive_the_server() {
    let server = serve(ServerOptions::default().with_connections_max(1));
    let (sender, handed_over) = channel();
    server.set_http_handler(Arc::new(Forward(sender)));
    let mut browsers = Vec::new();
    for _ in 0..3 {
        let mut browser = Raw::connect(server.local_addr());
        browser.send(b"GET");
        let connection = handed_over.recv_timeout(LONG).expect("handed over");
        browsers.push((browser, connection));
    }
    Raw::with_handshake(server.local_addr()).fence();
    server.shutdown();
    for (mut browser, mut connection) in browsers {
        connection.stream.write_all(b"still").expect("open");
        browser.expect(b"still");
    }
}
