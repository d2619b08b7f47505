//! Servers of one store, on a log that they share: one leads, the others stand by.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use c10d_store::journal::JournalError;
use c10d_store::{
    HttpConnection, HttpHandler, Opcode, ServerOptions, SnapshotError, Store, StoreExt,
    TcpStoreServer,
};

use crate::journal::{client, number};
use crate::memory_journal::{Candidate, Memory};
use crate::raw::{LONG, Raw, wait_until};

const HOUR: Duration = Duration::from_secs(3600);

fn candidates(log: &Memory) -> [(Candidate, TcpStoreServer); 2] {
    [0, 1].map(|number| {
        let candidate = log.candidate(number);
        let server = candidate.stand_by(ServerOptions::default());
        (candidate, server)
    })
}

/// Has a candidate lead, with the right to answer for so long.
fn lead(log: &Memory, number: u64, candidate: &Candidate, lease: Duration) {
    log.lead(number);
    log.wait_until_led_by(number);
    candidate.renew(lease);
}

fn add(raw: &mut Raw, key: &str, delta: i64) {
    raw.request(|r| {
        r.opcode(Opcode::Add).user_key(key).i64(delta);
    });
}

/// Asserts that nothing arrives, though the server has long carried out what was sent: it is in the log.
#[track_caller]
fn expect_nothing(raw: &Raw, log: &Memory, batches: usize) {
    wait_until("it is kept", || log.kept().batches.len() >= batches);
    let mut byte = [0];
    raw.0.set_nonblocking(true).expect("a socket option");
    let peeked = raw.0.peek(&mut byte);
    raw.0.set_nonblocking(false).expect("a socket option");
    let kind = peeked.map_err(|error| error.kind());
    assert_eq!(kind, Err(io::ErrorKind::WouldBlock));
}

#[derive(Default)]
struct CountHttp(AtomicUsize);

impl HttpHandler for CountHttp {
    fn serve(&self, _: HttpConnection) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_server_stands_by_until_it_leads() {
    let log = Memory::default();
    let [(first, old), (second, new)] = candidates(&log);
    assert!(old.is_standby() && new.is_standby());
    lead(&log, 0, &first, HOUR);
    wait_until("it leads", || !old.is_standby());
    let store = client(&old);
    for sum in 1..=50 {
        assert_eq!(store.add("n", 1).expect("add"), sum);
    }
    store.queue_push("q", b"element").expect("push");
    assert_eq!(store.queue_len("q").expect("len"), 1);

    // Clients are sent away, HTTP is not.
    let handler = Arc::new(CountHttp::default());
    new.set_http_handler(Arc::clone(&handler) as _);
    assert!(!Raw::connect(new.local_addr()).try_handshake());
    let mut http = Raw(TcpStream::connect(new.local_addr()).expect("it listens"));
    http.send(b"GET /healthz HTTP/1.1\r\n\r\n");
    wait_until("it is handed over", || {
        handler.0.load(Ordering::Relaxed) == 1
    });
    let observed = new.observer().counters(LONG);
    assert_eq!(observed.err(), Some(SnapshotError::StandsBy));
    assert_eq!(
        new.observer().snapshot(LONG).err(),
        Some(SnapshotError::StandsBy)
    );
    assert_eq!(old.observer().counters(LONG).expect("it leads").keys, 1);

    lead(&log, 1, &second, HOUR);
    first.authority.end("candidate 1 leads");
    wait_until("the old one stops", || !old.is_running());
    let failure = old.journal_failure().expect("a reason");
    assert!(
        matches!(failure, JournalError::Deposed { reason, .. } if reason == "candidate 1 leads"),
        "{failure}"
    );
    assert!(store.get("n").is_err());
    wait_until("the new one leads", || !new.is_standby());
    let store = client(&new);
    assert_eq!(store.add("n", 1).expect("add"), 51);
    assert_eq!(store.queue_pop("q").expect("pop"), b"element");
    assert_eq!(new.observer().counters(LONG).expect("it leads").keys, 1);
}

#[test]
fn a_server_that_cannot_append_any_more_says_nothing() {
    let log = Memory::default();
    let [(first, old), (second, new)] = candidates(&log);
    lead(&log, 0, &first, HOUR);
    wait_until("it leads", || !old.is_standby());
    let mut raw = Raw::with_handshake(old.local_addr());
    add(&mut raw, "n", 1);
    raw.expect(&number(1));
    lead(&log, 1, &second, HOUR);
    add(&mut raw, "n", 1);
    assert_eq!(raw.read_to_close(), b"");
    wait_until("the old one stops", || !old.is_running());
    wait_until("the new one leads", || !new.is_standby());
    assert_eq!(client(&new).add("n", 0).expect("add"), 1);
}

#[test]
fn nothing_leaves_a_server_whose_authority_has_passed() {
    let log = Memory::default();
    let [(candidate, server), _] = candidates(&log);
    log.lead(0);
    wait_until("it leads", || !server.is_standby());
    let address = server.local_addr();
    // It has none yet.
    let mut raw = Raw::connect(address);
    let mut requests = c10d_store::unstable::RequestBuf::new();
    requests.hello();
    requests.opcode(Opcode::Add).user_key("n").i64(5);
    raw.send(&requests.to_bytes());
    expect_nothing(&raw, &log, 1);
    candidate.renew(HOUR);
    raw.read(4);
    raw.expect(&number(5));

    let mut waiter = Raw::with_handshake(address);
    waiter.request(|r| {
        r.opcode(Opcode::Wait).count(1).user_key("later");
    });
    wait_until("the wait", || server.waiting_count() == 1);
    for round in 2..5 {
        // The engine takes it back, as its time passes while nothing is renewed.
        candidate.authority.withdraw();
        assert_eq!(
            server.observer().counters(LONG).err(),
            Some(SnapshotError::MayBeDeposed)
        );
        add(&mut raw, "n", 1);
        expect_nothing(&raw, &log, round);
        candidate.renew(HOUR);
        raw.expect(&number(4 + round as i64));
    }
    candidate.authority.withdraw();
    add(&mut raw, "later", 1);
    expect_nothing(&raw, &log, 5);
    expect_nothing(&waiter, &log, 5);
    candidate.renew(HOUR);
    waiter.expect(&[0]);
    raw.expect(&number(1));
    assert!(candidate.authority.is_valid(Instant::now()));
}

#[test]
fn the_end_of_a_server_that_stands_by_does_not_wait_for_its_turn() {
    let log = Memory::default();
    let [(_, first), (second, other)] = candidates(&log);
    first.shutdown();
    lead(&log, 1, &second, HOUR);
    wait_until("it leads", || !other.is_standby());
    assert_eq!(client(&other).add("n", 1).expect("add"), 1);
}
