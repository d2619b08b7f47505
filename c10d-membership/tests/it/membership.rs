//! Groups of members with our client, over real connections: docs/spec/wire-extensions.md, section 9.13.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use c10d_membership::{
    Attempt, Ending, EventNumber, GroupStage, MemberKey, Membership, Message, Reason, Reply,
};
use c10d_socket::Cancel;
use c10d_store::{
    HashStore, PrefixStore, ServerOptions, Store, StoreError, StoreExt, TcpStore, TcpStoreOptions,
    TcpStoreServer,
};

use crate::memory_journal::Memory;
use crate::rank::{KEYS, Rank, all_enter, ids, options};
use crate::without_extensions::WithoutExtensions;

/// A timeout that only a hang reaches, even on a loaded machine.
const LONG: Duration = Duration::from_secs(30);

/// Polls until `holds` returns true.
#[track_caller]
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

fn options_of_server() -> ServerOptions {
    ServerOptions::default().with_groups(c10d_membership::groups)
}

fn serve() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", options_of_server()).expect("a free port")
}

fn client(server: &TcpStoreServer) -> TcpStore {
    TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client")
}

fn key_of(attempt: Attempt, rest: &str) -> String {
    format!("{KEYS}{}/{rest}", attempt.uuid())
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 1 to 8.
#[test]
fn survivors_of_a_lost_connection_form_a_smaller_group() {
    let server = serve();
    let store = client(&server);
    let mut ranks: Vec<Rank> = (0..3)
        .map(|id| Rank::new(&store, id, &options(3)))
        .collect();
    let first = all_enter(&mut ranks);
    let record = first[0].as_ref().expect("a generation");
    assert_eq!(ids(record), [0, 1, 2]);
    assert!(first.iter().all(|it| it == &first[0]));
    store
        .set(&key_of(record.attempt, "0/0"), b"address")
        .expect("set");

    ranks.remove(1);
    let second = all_enter(&mut ranks);
    let record = second[0].as_ref().expect("a generation");
    assert_eq!(ids(record), [0, 2]);
    assert!(second.iter().all(|it| it == &second[0]));
    let status = ranks[0].group.status().expect("a status").expect("open");
    assert_eq!((status.stage, status.size), (GroupStage::Committed, 2));
    wait_until("the old keys are deleted", || {
        store.num_keys().expect("a number") == 0
    });

    // The launcher is the first to know.
    let launcher = Membership::connect(&store, "workers").expect("a group");
    launcher.dead(MemberKey::new(2, 1)).expect("told");
    ranks.push(Rank::new(&store, 7, &options(3)));
    let third = all_enter(&mut ranks);
    assert_eq!(ids(third[0].as_ref().expect("a generation")), [0, 7]);
    assert_eq!(third[1], Err(Ending::Evicted(Reason::Dead)));
    assert_eq!(third[2], third[0]);
}

#[test]
fn a_poll_waits_until_its_time_has_passed_or_it_is_cancelled() {
    let server = serve();
    let store = client(&server);
    let rank = Rank::new(&store, 0, &options(2));
    let poll = Message::Poll {
        after: EventNumber::NONE,
        is_leaving: false,
    };
    let ask = |timeout| rank.group.ask(rank.key, &poll, timeout);
    assert_eq!(ask(Duration::ZERO).expect("an answer"), Reply::Unknown);
    let hello = Message::Hello {
        handle: "gloo".into(),
        step: 0,
    };
    let reply = rank.group.ask(rank.key, &hello, LONG);
    assert_eq!(reply.expect("an answer"), Reply::Accepted);
    assert_eq!(ask(Duration::ZERO).expect("an answer"), Reply::NotYet);
    assert_eq!(
        ask(Duration::from_millis(1)).expect("an answer"),
        Reply::NotYet
    );

    let cancel = Cancel::new();
    let cancelled = rank.group.with_cancel(&cancel);
    thread::scope(|scope| {
        let polled = scope.spawn(|| cancelled.ask(rank.key, &poll, None));
        wait_until("it waits", || server.waiting_count() == 1);
        // Other calls go in front.
        assert_eq!(
            rank.group.status().expect("a status").expect("open").size,
            0
        );
        cancel.cancel();
        let error = polled.join().expect("no panic").expect_err("cancelled");
        assert!(matches!(error, StoreError::Interrupted { .. }), "{error}");
    });

    // One of another connection ends it.
    let other = Membership::connect(&store, "workers").expect("a group");
    thread::scope(|scope| {
        let polled = scope.spawn(|| ask(LONG));
        wait_until("it waits", || server.waiting_count() == 1);
        let newer = scope.spawn(|| other.ask(rank.key, &poll, None));
        let error = polled.join().expect("no panic").expect_err("replaced");
        assert!(matches!(error, StoreError::WaitEnded { .. }), "{error}");
        rank.group.end().expect("ended");
        let reply = newer.join().expect("no panic").expect("an answer");
        assert!(matches!(reply, Reply::Ended(_)), "{reply:?}");
    });
}

/// Passes bytes on unless a writer has locked the gate, and counts the bytes from the client.
#[derive(Debug, Default)]
struct Gate {
    is_open: RwLock<()>,
    sent: AtomicUsize,
}

impl Gate {
    fn pass(&self, mut from: &TcpStream, mut to: &TcpStream, count: impl Fn(usize)) {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            count(length);
            // A failed test also opens it.
            let _open = self.is_open.read();
            to.write_all(&bytes[..length]).expect("a server");
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    fn pass_on(&self, listener: &TcpListener, port: u16) {
        let (client, _) = listener.accept().expect("a client");
        let server = TcpStream::connect(("127.0.0.1", port)).expect("a server");
        let count = |length| {
            self.sent.fetch_add(length, Ordering::Relaxed);
        };
        thread::scope(|scope| {
            scope.spawn(|| self.pass(&client, &server, count));
            self.pass(&server, &client, |_| {});
        });
    }
}

/// Like with a store that is restarted behind a relay, while another call waits for its answer.
#[test]
fn a_poll_of_a_server_that_does_not_answer_ends_in_time() {
    let server = serve();
    let gate = Gate::default();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    thread::scope(|scope| {
        // The store has a connection, and the group has another connection.
        for _ in 0..2 {
            scope.spawn(|| gate.pass_on(&listener, server.local_addr().port()));
        }
        let store = TcpStore::open("127.0.0.1", port, TcpStoreOptions::default());
        let store = store.expect("a server");
        let rank = Rank::new(&store, 0, &options(2));
        thread::scope(|scope| {
            let shut = gate.is_open.write().expect("no panic");
            let poll = Message::Poll {
                after: EventNumber::NONE,
                is_leaving: false,
            };
            let poll = || rank.group.ask(rank.key, &poll, Duration::from_millis(50));
            // The cancel of the first one is not answered before the second one.
            for _ in 0..2 {
                assert_eq!(poll().expect("an answer"), Reply::NotYet);
            }
            drop(shut);
            assert!(rank.group.status().is_ok());

            let shut = gate.is_open.write().expect("no panic");
            let sent = gate.sent.load(Ordering::Relaxed);
            let asked = scope.spawn(|| rank.group.status());
            wait_until("the question is sent", || {
                gate.sent.load(Ordering::Relaxed) > sent
            });
            assert_eq!(poll().expect("an answer"), Reply::NotYet);
            drop(shut);
            assert!(asked.join().expect("no panic").is_ok());
        });
        drop((rank, store));
    });
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 3.
#[test]
fn other_options_and_groups_that_are_not_open_are_told_so() {
    let server = serve();
    let store = client(&server);
    let group = Membership::connect(&store, "workers").expect("a group");
    assert_eq!(group.status().expect("a status"), None);
    group.dead(MemberKey::new(1, 1)).expect("no effect");
    let hello = Message::Hello {
        handle: "gloo".into(),
        step: 0,
    };
    let error = group.ask(MemberKey::new(1, 1), &hello, LONG);
    let error = error.expect_err("not open");
    assert!(
        matches!(error, StoreError::InvalidArgument { .. }),
        "{error}"
    );
    // A member gets the same answer from a store that was emptied.
    let hint = "is not open. If it was, its store has lost its data";
    assert!(error.to_string().contains(hint), "{error}");

    group.open(&options(2), KEYS).expect("opened");
    group.open(&options(2), KEYS).expect("the same");
    let error = group.open(&options(3), KEYS).expect_err("others");
    assert!(error.to_string().contains("size_first: 3"), "{error}");
    assert!(error.to_string().contains("size_first: 2"), "{error}");
    let error = group.open(&options(2), "other/").expect_err("others");
    assert!(error.to_string().contains("/other/"), "{error}");
}

#[test]
fn stores_without_groups_say_so() {
    let server = serve();
    let without = WithoutExtensions::in_front_of(server.local_addr());
    let like_torch = TcpStore::connect("127.0.0.1", without.port()).expect("a client");
    let hash: Arc<dyn Store> = Arc::new(HashStore::new());
    let stores: [Arc<dyn Store>; 3] = [
        Arc::clone(&hash),
        Arc::new(PrefixStore::new("p", hash)),
        Arc::new(like_torch),
    ];
    for store in stores {
        let error = Membership::connect(&*store, "g").expect_err("refused");
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("MEMBERSHIP"), "{error}");
    }
}

/// The names of groups and of torch's keys are within the prefix.
#[test]
fn a_prefix_is_before_the_name_of_a_group_and_its_keys() {
    let server = serve();
    let base = Arc::new(client(&server));
    let inner = Arc::new(PrefixStore::new(
        "outer",
        Arc::clone(&base) as Arc<dyn Store>,
    ));
    let store = PrefixStore::new("inner", inner);
    let group = Membership::connect(&store, "g").expect("a group");
    group.open(&options(2), "reconfigure/").expect("opened");
    let same = Membership::connect(&*base, "outer/inner/g").expect("a group");
    same.open(&options(2), "outer/inner/reconfigure/")
        .expect("the same");
    assert_eq!(
        Membership::connect(&*base, "g")
            .expect("a group")
            .status()
            .expect("none"),
        None
    );
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 11; docs/spec/membership.md, KEEP 1 and 2: a generation continues after a restart of the
/// server, an attempt does not, and no uuid is used twice.
#[test]
fn a_group_goes_on_with_a_restarted_server() {
    let journal = Memory::default();
    let server = journal.serve_with(options_of_server());
    let store = client(&server);
    let mut ranks: Vec<Rank> = (0..3)
        .map(|id| Rank::new(&store, id, &options(3)))
        .collect();
    let first = all_enter(&mut ranks);
    let attempt = first[0].as_ref().expect("a generation").attempt;

    let journal = journal.crashed();
    drop((store, server));
    let server = journal.serve_with(options_of_server());
    let store = client(&server);
    for rank in &mut ranks {
        rank.group = Membership::connect(&store, "workers").expect("a group");
        let poll = rank.member.poll().expect("a member");
        let reply = rank.group.ask(rank.key, &poll, Duration::ZERO);
        assert_eq!(reply.expect("an answer"), Reply::NotYet, "all is as it was");
    }
    let other = Membership::connect(&store, "workers").expect("a group");
    let error = other.open(&options(2), KEYS).expect_err("others");
    assert!(
        matches!(error, StoreError::InvalidArgument { .. }),
        "{error}"
    );

    // An attempt is under way.
    ranks.remove(0);
    for rank in &mut ranks {
        rank.until_called();
    }
    let journal = journal.crashed();
    drop((store, server));
    let server = journal.serve_with(options_of_server());
    let store = client(&server);
    for rank in &mut ranks {
        rank.group = Membership::connect(&store, "workers").expect("a group");
    }
    let launcher = Membership::connect(&store, "workers").expect("a group");
    launcher.dead(MemberKey::new(0, 1)).expect("told");
    let second = all_enter(&mut ranks);
    let record = second[0].as_ref().expect("a generation");
    assert_eq!(ids(record), [1, 2]);
    assert!(
        record.attempt.uuid() > attempt.uuid() + 1,
        "not that of the attempt"
    );
    assert_eq!(second[1], second[0]);
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 5 and EPHEMERAL 8: the limit on the silence of a member is kept over a restart.
#[test]
fn a_member_that_is_silent_after_a_restart_ends() {
    const SILENCE_MAX: Duration = Duration::from_secs(2);
    let journal = Memory::default();
    let server = journal.serve_with(options_of_server());
    let address = server.local_addr();
    let open = || {
        let resumed = TcpStoreOptions::default().with_resume(LONG);
        TcpStore::open("127.0.0.1", address.port(), resumed).expect("a server")
    };
    let stores = [open(), open()];
    let mut ranks: Vec<Rank> = (0..)
        .zip(&stores)
        .map(|(id, store)| {
            let mut options = options(2);
            options.size_min = 1;
            Rank::new(store, id, &options)
        })
        .collect();
    assert_eq!(
        ids(all_enter(&mut ranks)[0].as_ref().expect("both")),
        [0, 1]
    );
    assert!(ranks[1].group.keep_alive(SILENCE_MAX).expect("kept"));

    drop(server);
    let options = options_of_server().with_journal(journal.clone());
    let _server = TcpStoreServer::bind(address, options).expect("the same port");
    for rank in &ranks {
        let poll = rank.member.poll().expect("a member");
        let reply = rank.group.ask(rank.key, &poll, Duration::ZERO);
        reply.expect("an answer");
    }
    let mut silent = ranks.pop().expect("two");
    let entered = all_enter(&mut ranks);
    assert_eq!(ids(entered[0].as_ref().expect("alone")), [0]);
    assert_eq!(silent.enter(2), Err(Ending::Evicted(Reason::Silent)));
}
