//! A server with a journal, on an engine in memory that a test can stop, break and read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use byteorder::{ByteOrder, LE};
use c10d_store::journal::{Formats, JournalError};
use c10d_store::unstable::{BatchWriter, Contents, Effect};
use c10d_store::{Opcode, ServerOptions, Store, StoreError, StoreExt, TcpStore, TcpStoreServer};

use crate::memory_journal::Memory;
use crate::raw::{LONG, Raw, wait_until};

pub(crate) fn client(server: &TcpStoreServer) -> TcpStore {
    TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client")
}

/// Asserts that nothing has arrived. Replies that are not held are sent before their batch is appended.
#[track_caller]
fn expect_nothing(raw: &Raw) {
    let mut byte = [0];
    raw.0.set_nonblocking(true).expect("a socket option");
    let peeked = raw.0.peek(&mut byte);
    raw.0.set_nonblocking(false).expect("a socket option");
    let kind = peeked.map_err(|error| error.kind());
    assert_eq!(kind, Err(io::ErrorKind::WouldBlock));
}

fn add(raw: &mut Raw, key: &str, delta: i64) {
    raw.request(|r| {
        r.opcode(Opcode::Add).user_key(key).i64(delta);
    });
}

fn get(raw: &mut Raw, key: &str) {
    raw.request(|r| {
        r.opcode(Opcode::Get).user_key(key);
    });
}

/// A number in a reply.
pub(crate) fn number(number: i64) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    LE::write_i64(&mut bytes, number);
    bytes
}

pub(crate) fn value(value: &[u8]) -> Vec<u8> {
    let mut bytes = number(value.len() as i64);
    bytes.extend_from_slice(value);
    bytes
}

#[test]
fn replies_and_wakeups_wait_until_what_they_show_is_durable() {
    let journal = Memory::default();
    let server = journal.serve();
    let address = server.local_addr();
    let store = client(&server);
    store.set("clean", b"c").expect("set");
    assert_eq!(store.get("clean").expect("get"), b"c");
    let [mut writer, mut reader, mut waiter, mut other] =
        [(); 4].map(|()| Raw::with_handshake(address));
    waiter.wait(b"/n");
    wait_until("the wait", || server.waiting_count() == 1);

    journal.set_blocked(true);
    add(&mut writer, "n", 5);
    journal.wait_until_appending();
    get(&mut other, "clean");
    other.expect(&value(b"c"));
    get(&mut reader, "n");
    // A reply behind a held one waits too, whatever it shows.
    get(&mut reader, "clean");
    get(&mut other, "clean");
    other.expect(&value(b"c"));
    for held in [&writer, &reader, &waiter] {
        expect_nothing(held);
    }
    // All that one could list.
    other.request(|r| {
        r.opcode(Opcode::GetNumKeys);
    });
    // The next batch.
    add(&mut writer, "m", 1);
    store_is_idle(&mut reader, address);
    expect_nothing(&other);

    journal.set_blocked(false);
    writer.expect(&[number(5), number(1)].concat());
    reader.expect(&[value(b"5"), value(b"c")].concat());
    waiter.expect(&[0]);
    other.expect(&number(2));
    let kept = journal.contents();
    assert_eq!(kept.len(), 3);
}

/// Returns when the server has carried out everything sent before: another connection has its answer.
fn store_is_idle(_after: &mut Raw, address: std::net::SocketAddr) {
    let mut probe = Raw::with_handshake(address);
    get(&mut probe, "clean");
    probe.expect(&value(b"c"));
}

#[test]
fn a_server_continues_with_what_was_durable() {
    let journal = Memory::default();
    let server = journal.serve();
    let store = client(&server);
    store.set("a", b"1").expect("set");
    store.set("a", b"2").expect("set");
    store.set("gone", b"").expect("set");
    assert!(store.delete_key("gone").expect("delete"));
    store.append("log", b"x").expect("append");
    store.append("log", b"y").expect("append");
    store.multi_set(&[("m", b"m"), ("n", b"n")]).expect("set");
    assert_eq!(store.add("count", 41).expect("add"), 41);
    for element in [b"1", b"2", b"3"] {
        store.queue_push("q", element).expect("push");
    }
    assert_eq!(store.queue_pop("q").expect("pop"), b"1");
    let outcome = store.compare_set("a", b"2", b"3").expect("compare_set");
    assert_eq!(outcome.value(), b"3");
    store.barrier("b", 1).expect("barrier");

    for again in 0..2 {
        let journal = if again == 0 {
            journal.crashed()
        } else {
            journal.clone()
        };
        let server = journal.serve();
        let store = client(&server);
        assert_eq!(store.get("a").expect("get"), b"3");
        assert_eq!(store.get("log").expect("get"), b"xy");
        assert_eq!(store.get("n").expect("get"), b"n");
        assert!(!store.check(&["gone"]).expect("check"));
        assert_eq!(store.add("count", 1).expect("add"), 42);
        assert_eq!(store.queue_len("q").expect("len"), 2);
        assert_eq!(store.queue_pop("q").expect("pop"), b"2");
        assert_eq!(store.num_keys().expect("num_keys"), 6);
        drop(server);
    }
    drop(server);
}

/// docs/explanation/durability.md: of our client and of PyTorch's, which sends these bytes.
#[test]
fn a_large_multi_set_is_kept_whole_while_other_writes_wait() {
    const PAIRS: usize = 16;
    let names: Vec<String> = (0..PAIRS).map(|name| name.to_string()).collect();
    let large = vec![7; 2 << 20];
    for is_our_client in [true, false] {
        let journal = Memory::default();
        let server = journal.serve();
        let store = client(&server);
        assert_eq!(store.add("before", 5).expect("add"), 5);
        journal.set_blocked(true);
        let mut torch = Raw::with_handshake(server.local_addr());
        if is_our_client {
            let pairs: Vec<_> = names.iter().map(|name| (&**name, &*large)).collect();
            store.multi_set(&pairs).expect("set");
        } else {
            torch.request(|r| {
                r.opcode(Opcode::MultiSet).count(PAIRS);
                for name in &names {
                    r.user_key(name).value(&large);
                }
            });
        }
        journal.wait_until_appending();
        let mut other = Raw::with_handshake(server.local_addr());
        add(&mut other, "other", 1);
        // Reads do not wait.
        let reader = client(&server);
        assert_eq!(reader.get("before").expect("get"), b"5");
        expect_nothing(&other);
        let keys = |journal: &Memory| {
            let server = journal.crashed().serve();
            client(&server).num_keys().expect("a number")
        };
        assert_eq!(keys(&journal), 1, "nothing of it is kept");

        journal.set_blocked(false);
        other.expect(&number(1));
        assert_eq!(keys(&journal), 2 + PAIRS as u64);
        // Another crash could have been between the two.
        let crashed = journal.crashed();
        let last = crashed.kept().batches.pop();
        assert!(last.is_some_and(|(_, batch)| batch.len() < large.len()));
        assert_eq!(keys(&crashed), 1 + PAIRS as u64, "all of it is kept");
    }
}

#[test]
fn the_end_of_a_server_keeps_what_it_has_carried_out() {
    let journal = Memory::default();
    let server = journal.serve();
    let store = client(&server);
    assert_eq!(store.add("n", 1).expect("add"), 1);
    journal.set_blocked(true);
    store.set("first", b"1").expect("set");
    journal.wait_until_appending();
    store.set("second", b"2").expect("set");
    // It is carried out, as the next request of another connection is.
    assert!(!client(&server).check(&["none"]).expect("check"));
    let ending = thread::spawn(move || server.shutdown());
    journal.set_blocked(false);
    ending.join().expect("no panic");
    assert_eq!(journal.contents().len(), 3);
}

#[test]
fn a_server_whose_journal_fails_says_nothing_more() {
    let journal = Memory::default();
    let server = journal.serve();
    let mut writer = Raw::with_handshake(server.local_addr());
    let mut waiter = Raw::with_handshake(server.local_addr());
    waiter.wait(b"/n");
    wait_until("the wait", || server.waiting_count() == 1);
    journal.kept().fails = true;
    add(&mut writer, "n", 1);
    assert_eq!(writer.read_to_close(), b"");
    assert_eq!(waiter.read_to_close(), b"");
    wait_until("the end", || !server.is_running());
    let failure = server.journal_failure().expect("a failure").to_string();
    assert_eq!(
        failure,
        "cannot append to the journal of a test: the disk is gone"
    );
    assert!(journal.contents().is_empty());
}

#[test]
fn an_observer_is_shown_only_what_is_durable() {
    let journal = Memory::default();
    let server = journal.serve();
    let store = client(&server);
    store.set("a", b"1").expect("set");
    assert_eq!(store.add("n", 1).expect("add"), 1);
    assert_eq!(server.observer().snapshot(LONG).expect("it").keys.len(), 2);
    journal.set_blocked(true);
    store.set("b", b"2").expect("set");
    journal.wait_until_appending();
    let observer = server.observer();
    let short = Duration::from_millis(50);
    observer.snapshot(short).expect_err("not durable");
    observer.counters(short).expect_err("not durable");
    journal.set_blocked(false);
    assert_eq!(observer.snapshot(LONG).expect("it").keys.len(), 3);
    assert_eq!(observer.counters(LONG).expect("them").keys, 3);
}

/// More than the effects that may gather, from a connection without replies, while the journal takes nothing.
#[test]
fn writers_wait_while_the_journal_is_behind() {
    const VALUE_BYTES: usize = 1 << 20;
    const VALUES: usize = 64;
    let journal = Memory::default();
    journal.set_blocked(true);
    let server = journal.serve();
    let address = server.local_addr();
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let writing = thread::spawn(move || {
        let mut writer = Raw::with_handshake(address);
        let bytes = vec![1; VALUE_BYTES];
        for number in 0..VALUES {
            writer.request(|r| {
                let key = format!("{number}");
                r.opcode(Opcode::Set).user_key(&key).value(&bytes);
            });
            counted.fetch_add(1, Ordering::Relaxed);
        }
        writer.request(|r| {
            r.opcode(Opcode::GetNumKeys);
        });
        writer.expect(&number(VALUES as i64));
    });
    journal.wait_until_appending();
    // It continues until the server reads no more; without the limit, until it has sent everything.
    let mut last = 0;
    loop {
        thread::sleep(Duration::from_millis(50));
        let now = sent.load(Ordering::Relaxed);
        if now == last && now > 0 {
            break;
        }
        last = now;
    }
    assert!(last < VALUES / 2, "{last} of {VALUES} values were sent");
    assert!(!writing.is_finished());
    journal.set_blocked(false);
    writing.join().expect("all is written");
    let batches = journal.kept().batches.clone();
    let longest = batches.iter().map(|(_, batch)| batch.len()).max();
    assert!(longest.expect("batches") < 12 * VALUE_BYTES, "{longest:?}");
}

/// The batches exceed what starts a snapshot, several times, with writes beside it.
#[test]
fn snapshots_contain_what_the_batches_before_them_said() {
    let journal = Memory::default();
    let server = journal.serve();
    let store = client(&server);
    let long = vec![3; 200_000];
    for round in 0..4_u8 {
        for number in 0..200 {
            store.set(&format!("k{number}"), &long).expect("set");
            store
                .queue_push(&format!("q{}", number % 7), [round])
                .expect("push");
            if number % 3 == 0 {
                store
                    .append(&format!("l{number}"), [round; 100])
                    .expect("append");
            }
            if number % 11 == round as usize % 11 {
                store.delete_key(&format!("k{number}")).expect("delete");
            }
            assert_eq!(
                store.add("n", 1).expect("add"),
                i64::from(round) * 200 + number as i64 + 1
            );
        }
    }
    wait_until("a snapshot", || journal.kept().snapshot.is_some());
    let expected = {
        let mut all = Contents::default();
        let observed = server.observer().snapshot(LONG).expect("it");
        for key in &observed.keys {
            let name = String::from_utf8_lossy(&key.key).into_owned();
            let value = store.get(name.trim_start_matches('/')).expect("get");
            let (key, value) = (&*key.key, &value[..]);
            assert!(all.apply(Effect::Put { key, value }));
        }
        all
    };
    server.shutdown();
    let kept = journal.contents();
    assert_eq!(
        kept.iter().filter(|(_, it)| it.value.is_some()).count(),
        expected.len()
    );
    for (key, entry) in expected.iter() {
        let found = kept
            .iter()
            .find(|(name, _)| *name == key)
            .expect("it is kept");
        assert_eq!(found.1.value, entry.value);
    }
    let queues = kept.iter().filter(|(_, entry)| !entry.queue.is_empty());
    let elements: usize = queues.map(|(_, entry)| entry.queue.len()).sum();
    assert_eq!(elements, 800);
    let bytes: usize = journal
        .kept()
        .batches
        .iter()
        .map(|(_, batch)| batch.len())
        .sum();
    assert!(bytes < 130 << 20, "{bytes} bytes of batches are left");
}

/// The other processes read only version 1 at first. A snapshot has the version that they read when it is due, and so
/// have the batches after it.
#[test]
fn the_newest_version_is_written_from_the_next_snapshot_on() {
    let journal = Memory::default();
    let next = Formats {
        oldest: 1,
        newest: 2,
    };
    {
        let mut kept = journal.kept();
        kept.formats = Some(next);
        (kept.format, kept.others_read) = (1, 1);
    }
    let server = journal.serve();
    let store = client(&server);
    let long = vec![3; 1 << 20];
    let mut sum = 0;
    let mut write_until_snapshot = |version: u8| {
        journal.kept().snapshot = None;
        while !journal.has_snapshot() {
            store.set("k", &long).expect("set");
            sum += 1;
            assert_eq!(store.add("sum", 1).expect("add"), sum);
        }
        store.add("sum", 0).expect("add");
        let kept = journal.kept();
        let (at, chunks) = kept.snapshot.as_ref().expect("a snapshot");
        assert!(chunks.iter().all(|chunk| chunk[0] == version), "at {at}");
        let last = kept.batches.last().expect("a batch");
        assert_eq!(last.1[0], version, "batch {}", last.0);
    };
    write_until_snapshot(1);
    journal.kept().others_read = 2;
    let first = journal.kept().batches.first().expect("a batch").1[0];
    assert_eq!(first, 1, "before the next snapshot");
    write_until_snapshot(2);
    server.shutdown();

    let again = client(&journal.serve()).add("sum", 0).expect("add");
    assert_eq!(again, sum);
    journal.kept().formats = None;
    let options = ServerOptions::default().with_journal(journal);
    let error = TcpStoreServer::bind("127.0.0.1:0", options).expect_err("newer");
    assert!(
        matches!(
            error,
            StoreError::Journal(JournalError::Newer {
                found: 2,
                known: 1,
                ..
            })
        ),
        "{error}"
    );
}

#[test]
fn a_journal_that_contradicts_itself_or_is_in_use_is_refused() {
    let journal = Memory::default();
    let mut writer = BatchWriter::default();
    writer.push(Effect::Pop {
        key: b"/q",
        count: 1,
    });
    let batch = writer.finish(1, Vec::new());
    journal.kept().batches.push((1, batch));
    let options = ServerOptions::default().with_journal(journal.clone());
    let error = TcpStoreServer::bind("127.0.0.1:0", options.clone()).expect_err("no queue");
    assert!(
        matches!(error, StoreError::Journal(JournalError::Damaged { .. })),
        "{error}"
    );
    let error = TcpStoreServer::bind("127.0.0.1:0", options).expect_err("taken");
    assert!(
        error.to_string().contains("another server has taken"),
        "{error}"
    );

    // Kept under another position.
    let moved = Memory::default();
    writer.push(Effect::Delete { key: b"/k" });
    let batch = writer.finish(2, Vec::new());
    moved.kept().batches.push((1, batch));
    let options = ServerOptions::default().with_journal(moved);
    let error = TcpStoreServer::bind("127.0.0.1:0", options).expect_err("moved");
    assert_eq!(
        error.to_string(),
        "the journal of a test is damaged: batch 1 does not match its checksum"
    );
}

/// docs/spec/wire-extensions.md, MEMBERSHIP 14.
#[test]
fn a_journal_with_groups_is_not_opened_without_them() {
    let journal = Memory::default();
    let mut writer = BatchWriter::default();
    writer.push(Effect::Group {
        group: b"/g",
        bytes: b"a group",
    });
    let batch = writer.finish(1, Vec::new());
    journal.kept().batches.push((1, batch));
    let options = ServerOptions::default().with_journal(journal);
    let error = TcpStoreServer::bind("127.0.0.1:0", options).expect_err("no groups");
    assert_eq!(
        error.to_string(),
        "the store of the journal of a test has groups; serve it with c10d store serve"
    );
}
