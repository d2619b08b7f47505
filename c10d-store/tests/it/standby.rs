//! Servers of one store, on a log that they share: one server leads, the other servers are standbys.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, HostPort, Moment};
use c10d_store::journal::JournalError;
use c10d_store::unstable::SessionDialer;
use c10d_store::{
    ConnectOptions, DataLost, HttpConnection, HttpHandler, Leader, Lookup, Opcode, ServerOptions,
    SessionError, SnapshotError, Store, StoreAddress, StoreError, StoreExt, TcpStore,
    TcpStoreOptions, TcpStoreServer,
};
use socket2::{Domain, Socket, Type};

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

/// Has a candidate lead, with the right to answer for this time.
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
    waiter.wait(b"/later");
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
    assert!(candidate.authority.is_valid(Moment::now()));
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

/// A server that leads at one of these epochs is none: the store has lost data, no server leads, or the directory does not
/// answer.
const LOST: u64 = u64::MAX;
const NONE_LEADS: u64 = u64::MAX - 1;
const NO_ANSWER: u64 = u64::MAX - 2;

/// A directory that names this server as the leader.
#[derive(Debug)]
struct Fixed(Mutex<Leader>);

impl Lookup for Fixed {
    fn name(&self) -> String {
        "fixed://test".to_owned()
    }

    fn leader(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Option<Leader>, Box<dyn std::error::Error + Send + Sync>> {
        let leader = self.0.lock().expect("no panic").clone();
        match leader.epoch {
            LOST => Err(DataLost("etcd was restored".to_owned()).into()),
            NONE_LEADS => Ok(None),
            NO_ANSWER => {
                let left = deadline.remaining(Instant::now()).unwrap_or(HOUR);
                c10d_socket::sleep(left, [cancel])?;
                Ok(None)
            }
            _ => Ok(Some(leader)),
        }
    }
}

fn leader(server: &TcpStoreServer, epoch: u64) -> Leader {
    Leader {
        address: HostPort::new("127.0.0.1", server.local_addr().port()),
        epoch,
    }
}

fn following(leader: Leader) -> (Arc<Fixed>, SessionDialer) {
    let directory = Arc::new(Fixed(Mutex::new(leader)));
    let address = StoreAddress::LookedUp(Arc::clone(&directory) as _);
    let dialer = SessionDialer::new(address, ConnectOptions::default(), None, HOUR);
    (directory, dialer.expect("no credentials").carrying_over())
}

fn soon() -> Deadline {
    Deadline::after(Instant::now(), LONG)
}

/// docs/spec/wire-extensions.md, SESSION 17.
#[test]
fn a_server_that_was_taken_over_is_found_out_by_its_clients() {
    let log = Memory::default();
    let [(first, old), (second, new)] = candidates(&log);
    lead(&log, 0, &first, HOUR);
    wait_until("it leads", || !old.is_standby());
    // The directory has a later leader.
    let (_, mut dialer) = following(leader(&old, 2));
    let tried_for = Duration::from_secs(2);
    let by = Deadline::after(Instant::now(), tried_for);
    let error = dialer.connect(0, by).expect_err("an earlier run");
    assert!(matches!(error, SessionError::Deposed { .. }), "{error}");
    assert!(error.is_transient());

    let (directory, mut dialer) = following(leader(&old, 1));
    dialer.connect(0, soon()).expect("a session");
    lead(&log, 1, &second, HOUR);
    wait_until("it leads", || !new.is_standby());
    *directory.0.lock().expect("no panic") = leader(&new, 2);
    let link = dialer.connect(0, soon()).expect("it goes over");
    assert!(link.restart.is_some());
    // It learns of the takeover by the client, and answers nothing until its engine has detected it.
    *directory.0.lock().expect("no panic") = leader(&old, 2);
    let by = Deadline::after(Instant::now(), tried_for);
    let asking = std::thread::spawn(move || (dialer.connect(0, by).err(), dialer));
    wait_until("it has doubts", || !first.authority.is_valid(Moment::now()));
    first.authority.extend(Moment::now() + HOUR);
    let (error, mut dialer) = asking.join().expect("no panic");
    let error = error.expect("an earlier run");
    // The attempt may have been over before that.
    let is_refused = matches!(
        error,
        SessionError::Deposed { .. } | SessionError::Lost { .. }
    );
    assert!(is_refused, "{error}");
    assert!(old.is_running());
    // A directory with an earlier run only has lost data.
    *directory.0.lock().expect("no panic") = leader(&old, 1);
    let error = dialer.connect(0, soon()).expect_err("an earlier run");
    assert!(matches!(error, SessionError::WentBack { .. }), "{error}");
    assert!(!error.is_transient());
}

/// docs/spec/wire-extensions.md, SESSION 19.
#[test]
fn a_session_goes_on_only_with_a_store_that_has_what_it_has_seen() {
    for is_complete in [true, false] {
        let log = Memory::default();
        let [(first, old), _] = candidates(&log);
        lead(&log, 0, &first, HOUR);
        wait_until("it leads", || !old.is_standby());
        let (directory, _) = following(leader(&old, 1));
        let address = StoreAddress::LookedUp(Arc::clone(&directory) as _);
        let options = TcpStoreOptions::default().with_resume(HOUR);
        let store = TcpStore::open_at(&address, options).expect("it serves");
        assert_eq!(store.add("n", 1).expect("add"), 1);
        let older = log.crashed();
        assert_eq!(store.add("n", 1).expect("add"), 2);
        // The store is restored from this copy.
        let copy = if is_complete { log.crashed() } else { older };
        let candidate = copy.candidate(7);
        let server = candidate.stand_by(ServerOptions::default());
        lead(&copy, 7, &candidate, HOUR);
        wait_until("it leads", || !server.is_standby());
        *directory.0.lock().expect("no panic") = leader(&server, 2);
        drop(old);
        let added = store.add("n", 1);
        if is_complete {
            assert_eq!(added.expect("it goes on"), 3);
        } else {
            let error = added.expect_err("this was 2 before").to_string();
            assert!(error.contains("gone back from batch"), "{error}");
        }
    }
}

#[test]
fn a_directory_may_not_know_the_epoch() {
    let log = Memory::default();
    let [(first, old), (second, new)] = candidates(&log);
    lead(&log, 0, &first, HOUR);
    wait_until("it leads", || !old.is_standby());
    let (directory, mut dialer) = following(leader(&old, 0));
    dialer.connect(0, soon()).expect("a session");
    lead(&log, 1, &second, HOUR);
    wait_until("it leads", || !new.is_standby());
    *directory.0.lock().expect("no panic") = leader(&new, 0);
    let link = dialer.connect(0, soon()).expect("it goes over");
    assert!(link.restart.is_some());
}

#[test]
fn a_loss_of_data_ends_clients_at_once() {
    let log = Memory::default();
    let [(first, server), _] = candidates(&log);
    lead(&log, 0, &first, HOUR);
    wait_until("it leads", || !server.is_standby());
    let (directory, _) = following(leader(&server, 1));
    let address = StoreAddress::LookedUp(Arc::clone(&directory) as _);
    let options = TcpStoreOptions::default()
        .with_resume(HOUR)
        .with_timeout(HOUR);
    let store = TcpStore::open_at(&address, options.clone()).expect("it serves");
    let waiting = std::thread::spawn(move || store.wait(&["never"]));
    wait_until("the wait", || server.waiting_count() == 1);
    *directory.0.lock().expect("no panic") = leader(&server, LOST);
    drop(server);
    let waited = waiting
        .join()
        .expect("no panic")
        .map_err(|it| it.to_string());
    let opened = TcpStore::open_at(&address, options).map(drop);
    for result in [waited, opened.map_err(|it| it.to_string())] {
        let error = result.expect_err("nobody serves it");
        assert!(error.contains("etcd was restored"), "{error}");
    }
}

/// docs/spec/wire-extensions.md, SESSION 18.
#[test]
fn a_client_that_follows_gets_heartbeats_while_the_server_may_answer() {
    let log = Memory::default();
    let [(candidate, server), _] = candidates(&log);
    lead(&log, 0, &candidate, HOUR);
    wait_until("it leads", || !server.is_standby());
    let (_, mut dialer) = following(leader(&server, 1));
    let link = dialer.connect(0, soon()).expect("a session");
    assert!(link.has_heartbeats);
    let socket = TcpStream::from(link.socket);
    socket.set_nonblocking(false).expect("a socket option");
    let mut link = Raw(socket);
    let beat = [0; 12];
    for _ in 0..3 {
        link.expect(&beat);
    }
    candidate.authority.withdraw();
    // Bytes that were sent before arrive, but nothing afterwards.
    let mut bytes = [0; 256];
    link.0
        .set_read_timeout(Some(Duration::from_millis(1200)))
        .expect("a socket option");
    while link.0.read(&mut bytes).is_ok_and(|count| count > 0) {
        assert!(!candidate.authority.is_valid(Moment::now()));
    }
    candidate.renew(HOUR);
    link.0
        .set_read_timeout(Some(LONG))
        .expect("a socket option");
    link.expect(&beat);

    let target = leader(&server, 1).address;
    let dialer = SessionDialer::new(target, ConnectOptions::default(), None, HOUR);
    let mut dialer = dialer.expect("no credentials");
    let link = dialer.connect(0, soon()).expect("a session");
    assert!(!link.has_heartbeats);
}

/// Stops the thread of its server until the test drops the sender.
struct Stopped(Mutex<mpsc::Receiver<()>>, AtomicUsize);

impl HttpHandler for Stopped {
    fn serve(&self, _: HttpConnection) {
        self.1.fetch_add(1, Ordering::Relaxed);
        let _ = self.0.lock().expect("no panic").recv();
    }
}

/// docs/spec/wire-extensions.md, SESSION 18: no call of the client waits as long as it waits for a heartbeat, but all together do.
#[test]
fn a_client_with_short_timeouts_notices_that_its_server_is_silent() {
    let log = Memory::default();
    let [(first, old), (second, new)] = candidates(&log);
    lead(&log, 0, &first, HOUR);
    wait_until("it leads", || !old.is_standby());
    let directory = Arc::new(Fixed(Mutex::new(leader(&old, 1))));
    let address = StoreAddress::LookedUp(Arc::clone(&directory) as _);
    let store = TcpStore::open_at(&address, TcpStoreOptions::default()).expect("a client");
    store.set("key", b"value").expect("set");
    assert!(store.check(&["key"]).expect("check"));

    let (go_on, stopped) = mpsc::channel();
    let stopped = Arc::new(Stopped(Mutex::new(stopped), AtomicUsize::new(0)));
    old.set_http_handler(Arc::clone(&stopped) as _);
    let mut http = Raw(TcpStream::connect(old.local_addr()).expect("it listens"));
    http.send(b"GET / HTTP/1.1\r\n\r\n");
    wait_until("it is stopped", || stopped.1.load(Ordering::Relaxed) == 1);
    lead(&log, 1, &second, HOUR);
    *directory.0.lock().expect("no panic") = leader(&new, 2);
    let short = Duration::from_millis(200);
    wait_until("it goes over", || {
        store.wait_timeout(&["key"], Some(short)).is_ok()
    });
    assert!(old.is_running());
    drop(go_on);
}

/// docs/spec/wire-extensions.md, SESSION 18: an early end of a wait is not mistaken for the silence of the server.
#[test]
fn a_wait_that_is_ended_keeps_its_link() {
    let log = Memory::default();
    let [(first, server), _] = candidates(&log);
    lead(&log, 0, &first, HOUR);
    wait_until("it leads", || !server.is_standby());
    let lookups = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&lookups);
    let directory = Fixed(Mutex::new(leader(&server, 1)));
    let address = StoreAddress::LookedUp(Arc::new(Counted(directory, counts)));
    let store = TcpStore::open_at(&address, TcpStoreOptions::default()).expect("a client");
    store.set("key", b"value").expect("set");
    let before = lookups.load(Ordering::Relaxed);
    for ended in 0..20 {
        let cancel = Cancel::new();
        let waits = store.with_cancel(&cancel);
        let waiting = std::thread::spawn(move || waits.wait_timeout(&["missing"], Some(HOUR)));
        wait_until("it waits", || server.waiting_count() == 1);
        // It has also waited for a while.
        std::thread::sleep(Duration::from_millis(ended));
        cancel.cancel();
        let result = waiting.join().expect("no panic");
        assert!(
            matches!(result, Err(StoreError::Interrupted { .. })),
            "{result:?}"
        );
        wait_until("it waits no more", || server.waiting_count() == 0);
    }
    assert_eq!(lookups.load(Ordering::Relaxed), before, "another link");
}

/// The address of a stopped server, whose machine accepts connections for it, and the address of an isolated server, whose
/// machine accepts none.
fn silent_addresses() -> [(HostPort, Vec<Socket>); 2] {
    [0, 1].map(|stage| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(&any.into()).expect("a free port");
        socket.listen(0).expect("it listens");
        let address = socket.local_addr().expect("bound");
        let port = address.as_socket().expect("of IP").port();
        let mut sockets = vec![socket];
        let timeout = Duration::from_millis(200);
        // Until its queue is full.
        let mut is_full = stage == 0;
        while !is_full {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            is_full = client.connect_timeout(&address, timeout).is_err();
            sockets.push(client);
        }
        (HostPort::new("127.0.0.1", port), sockets)
    })
}

/// An attempt alone takes 10 s.
const WHILE_ATTEMPTED: Duration = Duration::from_secs(8);

#[test]
fn an_attempt_at_a_silent_server_ends_when_the_directory_names_another() {
    let log = Memory::default();
    let [(candidate, server), _] = candidates(&log);
    lead(&log, 0, &candidate, HOUR);
    wait_until("it leads", || !server.is_standby());
    for (silent, _sockets) in silent_addresses() {
        let before = Leader {
            address: silent,
            epoch: 0,
        };
        let lookups = Arc::new(AtomicUsize::new(0));
        let directory = Arc::new(Counted(Fixed(Mutex::new(before)), Arc::clone(&lookups)));
        let address = StoreAddress::LookedUp(Arc::clone(&directory) as _);
        let opening = std::thread::spawn(move || {
            let store = TcpStore::open_at(&address, TcpStoreOptions::default())?;
            store.add("n", 1)
        });
        // One for the attempt, and one beside it.
        wait_until("it is tried", || lookups.load(Ordering::Relaxed) >= 2);
        assert!(!opening.is_finished());
        let taken_over_at = Instant::now();
        *directory.0.0.lock().expect("no panic") = leader(&server, 1);
        opening.join().expect("no panic").expect("it is reached");
        assert!(taken_over_at.elapsed() < WHILE_ATTEMPTED);
    }
}

#[test]
fn an_attempt_beside_which_the_directory_is_asked_can_be_cancelled() {
    for (silent, _sockets) in silent_addresses() {
        let lookups = Arc::new(AtomicUsize::new(0));
        let before = Leader {
            address: silent,
            epoch: 0,
        };
        let directory = Counted(Fixed(Mutex::new(before)), Arc::clone(&lookups));
        let address = StoreAddress::LookedUp(Arc::new(directory));
        let cancel = Cancel::new();
        let options = TcpStoreOptions::default().with_cancel(cancel.clone());
        let opening = std::thread::spawn(move || TcpStore::open_at(&address, options));
        wait_until("it is tried", || lookups.load(Ordering::Relaxed) >= 2);
        let cancelled_at = Instant::now();
        cancel.cancel();
        let error = opening.join().expect("no panic").expect_err("cancelled");
        assert!(matches!(error, StoreError::Interrupted { .. }), "{error}");
        assert!(cancelled_at.elapsed() < WHILE_ATTEMPTED);
    }
}

#[test]
fn a_close_ends_calls_that_look_for_the_leader() {
    let [(stopped, _stopped), (isolated, _isolated)] = silent_addresses();
    let refusing = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default());
    let refusing = leader(&refusing.expect("a free port"), 1).address;
    for (address, epoch) in [
        (stopped, 1),
        (isolated, 1),
        (refusing.clone(), 1),
        (refusing.clone(), NONE_LEADS),
        (refusing, NO_ANSWER),
    ] {
        let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default());
        let server = server.expect("a free port");
        let lookups = Arc::new(AtomicUsize::new(0));
        let before = Fixed(Mutex::new(leader(&server, 1)));
        let directory = Arc::new(Counted(before, Arc::clone(&lookups)));
        let looked_up = StoreAddress::LookedUp(Arc::clone(&directory) as _);
        let options = TcpStoreOptions::default().with_timeout(3 * WHILE_ATTEMPTED);
        let store = TcpStore::open_at(&looked_up, options).expect("it serves");
        // Keeps its connection, so that the other call opens one.
        let waits = store.clone();
        let waiting = std::thread::spawn(move || waits.wait(&["one", "two"]));
        wait_until("it waits", || server.waiting_count() == 1);
        let before = lookups.load(Ordering::Relaxed);
        *directory.0.0.lock().expect("no panic") = Leader { address, epoch };
        drop(server);
        let checks = store.clone();
        let checking = std::thread::spawn(move || checks.check(&["one"]).map(drop));
        wait_until("both look", || {
            lookups.load(Ordering::Relaxed) >= before + 2
        });
        // They have begun an attempt or a pause, if the directory answers.
        std::thread::sleep(Duration::from_millis(50));
        let closed_at = Instant::now();
        store.close();
        for call in [waiting, checking] {
            let error = call.join().expect("no panic").expect_err("it is closed");
            assert!(matches!(error, StoreError::Closed { .. }), "{error}");
        }
        assert!(closed_at.elapsed() < WHILE_ATTEMPTED, "{epoch}");
    }
}

/// Counts what it is asked.
#[derive(Debug)]
struct Counted(Fixed, Arc<AtomicUsize>);

impl Lookup for Counted {
    fn name(&self) -> String {
        self.0.name()
    }

    fn leader(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Option<Leader>, Box<dyn std::error::Error + Send + Sync>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.leader(deadline, cancel)
    }
}
