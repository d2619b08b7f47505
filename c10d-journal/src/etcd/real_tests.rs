//! The journal over a real etcd, which the environment variable `C10D_ETCD` names.

use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, HostPort, Moment};
use c10d_store::journal::{Journal, JournalError, Recovered};

use super::journal::EtcdJournal;
use super::layout::VALUE_BYTES_MAX;
use super::message::{Answer, Compare, Op, Range, Request, Txn};
use super::options::{EtcdDirectory, EtcdOptions};
use super::real_site::{RealSite, call, eventually};

fn address(port: u16) -> HostPort {
    HostPort::new("127.0.0.1", port)
}

fn open(options: &EtcdOptions, port: u16) -> EtcdJournal {
    EtcdJournal::open(options, &address(port), &Cancel::NEVER).expect("etcd answers")
}

/// Chunks of the snapshot, and batches by position.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Seen {
    chunks: Vec<(u64, Vec<u8>)>,
    batches: Vec<(u64, Vec<u8>)>,
}

impl Seen {
    fn visit(&mut self, piece: Recovered<'_>) {
        match piece {
            Recovered::Restart => *self = Self::default(),
            Recovered::Chunk { position, bytes } => self.chunks.push((position, bytes.to_vec())),
            Recovered::Batch { position, bytes } => self.batches.push((position, bytes.to_vec())),
        }
    }
}

fn recover(journal: &mut EtcdJournal) -> (u64, Seen) {
    let mut seen = Seen::default();
    let position = journal.recover(&mut |piece| {
        seen.visit(piece);
        Ok(())
    });
    (position.expect("it leads"), seen)
}

/// A journal on a thread, which follows until it leads.
struct Standby {
    seen: Receiver<Seen>,
    cancel: Cancel,
    thread: JoinHandle<Result<(u64, EtcdJournal), JournalError>>,
}

impl Standby {
    fn start(options: &EtcdOptions, port: u16) -> Self {
        let (sender, seen) = channel();
        let cancel = Cancel::new();
        let journal = EtcdJournal::open(options, &address(port), &cancel);
        let mut journal = journal.expect("etcd answers");
        let thread = thread::spawn(move || {
            let mut so_far = Seen::default();
            let position = journal.recover(&mut |piece| {
                so_far.visit(piece);
                let _ = sender.send(so_far.clone());
                Ok(())
            })?;
            Ok((position, journal))
        });
        Self {
            seen,
            cancel,
            thread,
        }
    }

    fn wait_for(&self, what: &Seen) {
        let is_it = |seen: Seen| seen == *what;
        let timeout = Duration::from_secs(60);
        while !is_it(self.seen.recv_timeout(timeout).expect("it follows")) {}
    }

    fn leads(self) -> (u64, EtcdJournal) {
        self.thread.join().expect("no panic").expect("it leads")
    }
}

fn of_kind(byte: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| byte ^ (index % 251) as u8).collect()
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn what_is_appended_is_recovered() {
    let site = RealSite::start(1);
    let mut journal = open(&site.options(), 1);
    assert_eq!(recover(&mut journal), (0, Seen::default()));
    let first = journal.identity();
    assert_eq!(first.epoch, 1);
    let large = of_kind(1, 3 * VALUE_BYTES_MAX + 5);
    for (position, batch) in [(1, b"one".as_slice()), (2, &large), (3, b"")] {
        journal.append(position, batch).expect("etcd keeps it");
    }
    drop(journal);

    let mut journal = open(&site.options(), 2);
    let (position, seen) = recover(&mut journal);
    assert_eq!(position, 3);
    let batches = vec![(1, b"one".to_vec()), (2, large.clone()), (3, Vec::new())];
    assert_eq!(seen.batches, batches);
    assert_eq!(journal.identity().store, first.store);
    assert_eq!(journal.identity().epoch, 2);
    // A snapshot between batches, after a dropped snapshot.
    journal.begin_snapshot(2).expect("begun");
    journal.add_to_snapshot(b"dropped").expect("added");
    journal.begin_snapshot(3).expect("begun");
    journal.append(4, b"four").expect("kept");
    journal.add_to_snapshot(&large).expect("added");
    journal.add_to_snapshot(b"").expect("added");
    journal.add_to_snapshot(b"last").expect("added");
    journal.finish_snapshot().expect("finished");
    journal.append(5, b"five").expect("kept");
    drop(journal);

    let mut journal = open(&site.options(), 3);
    let (position, seen) = recover(&mut journal);
    assert_eq!(position, 5);
    let expected = Seen {
        chunks: vec![(3, large), (3, Vec::new()), (3, b"last".to_vec())],
        batches: vec![(4, b"four".to_vec()), (5, b"five".to_vec())],
    };
    assert_eq!(seen, expected);
    // The batches that the snapshot covers are deleted with their parts, and so is the dropped snapshot.
    journal.begin_snapshot(5).expect("begun");
    let all = Request::Range(Range {
        end: Some("c10d/test0".to_owned()),
        ..Range::key("c10d/test/".to_owned())
    });
    let Ok(Answer::Range { keys, .. }) = call(&mut site.gateway(), &all) else {
        panic!("no range");
    };
    let mut keys: Vec<_> = keys.keys.iter().map(|it| &*it.key).collect();
    // The candidate lists itself in its own time.
    keys.retain(|key| !key.starts_with("c10d/test/candidates/"));
    assert_eq!(keys.len(), 2 + 2 + 6, "{keys:?}");
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_standby_follows_and_takes_over() {
    let site = RealSite::start(1);
    let mut primary = open(&site.options(), 1);
    recover(&mut primary);
    primary.append(1, b"before").expect("kept");
    let standby = Standby::start(&site.options(), 2);
    let large = of_kind(2, VALUE_BYTES_MAX + 1);
    let mut expected = Seen {
        chunks: Vec::new(),
        batches: vec![(1, b"before".to_vec())],
    };
    standby.wait_for(&expected);
    for (position, batch) in [(2, b"two".as_slice()), (3, &large), (4, b"four")] {
        primary.append(position, batch).expect("kept");
        expected.batches.push((position, batch.to_vec()));
    }
    standby.wait_for(&expected);
    let directory = EtcdDirectory::new(site.options());
    let lookup = || {
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(30));
        directory
            .lookup(deadline, &Cancel::NEVER)
            .expect("etcd answers")
    };
    let leader = lookup().expect("one leads");
    assert_eq!((&*leader.address, leader.epoch), ("127.0.0.1:1", 1));
    assert!(
        primary
            .authority()
            .is_some_and(|it| it.is_valid(Moment::now()))
    );
    // A clean stop revokes the lease: a standby does not wait until it expires.
    drop(primary);
    let (position, mut next) = standby.leads();
    assert_eq!(position, 4);
    let leader = lookup().expect("one leads");
    assert_eq!((&*leader.address, leader.epoch), ("127.0.0.1:2", 2));
    next.append(5, b"five").expect("kept");
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_deposed_leader_can_write_and_answer_nothing() {
    let site = RealSite::start(1);
    let mut old = open(&site.options(), 1);
    recover(&mut old);
    old.append(1, b"one").expect("kept");
    let authority = old.authority().expect("it has a lease");
    // As if its lease had expired unnoticed.
    let lease = old.lease_id().expect("it has a lease");
    call(&mut site.gateway(), &Request::Revoke { lease }).expect("it was there");
    let mut new = open(&site.options(), 2);
    let (position, _) = recover(&mut new);
    assert_eq!(position, 1);
    new.append(2, b"of the new one").expect("kept");
    let error = old.append(2, b"of the old one").expect_err("deposed");
    let JournalError::Deposed { reason, .. } = &error else {
        panic!("{error}");
    };
    assert!(reason.contains("127.0.0.1:2"), "{error}");
    old.append(2, b"again").expect_err("it has failed");
    eventually("the authority ends", || authority.end_reason().is_some());
    let reason = authority.end_reason().expect("it has ended");
    assert!(reason.contains("127.0.0.1:2"), "{reason}");
    // Dropping it does not revoke the other candidate's lease.
    drop(old);
    new.append(3, b"three").expect("kept");
}

/// Both halves of the fence, because one half alone is not enough.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn each_comparison_is_understood() {
    let site = RealSite::start(1);
    let mut gateway = site.gateway();
    let write = |compare: Vec<Compare>| {
        Request::Txn(Txn {
            compare,
            success: vec![Op::Put {
                key: "k".to_owned(),
                value: b"v".to_vec(),
                lease: 0,
            }],
            failure: vec![Op::Range(Range::key("k".to_owned()))],
        })
    };
    let created = |revision| Compare::Created {
        key: "k".to_owned(),
        revision,
    };
    let modified = |revision| Compare::Modified {
        key: "k".to_owned(),
        revision,
    };
    let value = |value: &str| Compare::Value {
        key: "k".to_owned(),
        value: value.into(),
    };
    let mut succeeds = |compare| match call(&mut gateway, &write(compare)) {
        Ok(Answer::Txn {
            revision,
            succeeded,
            ..
        }) => (succeeded, revision),
        other => panic!("{other:?}"),
    };
    // Of a missing key both are 0.
    assert!(!succeeds(vec![created(1)]).0);
    assert!(!succeeds(vec![modified(1)]).0);
    assert!(!succeeds(vec![value("")]).0);
    let (succeeded, first) = succeeds(vec![created(0), modified(0)]);
    assert!(succeeded);
    assert!(!succeeds(vec![created(0)]).0);
    assert!(!succeeds(vec![modified(0)]).0);
    let (succeeded, second) = succeeds(vec![created(first), modified(first)]);
    assert!(succeeded && second > first);
    // A wrong half stops it, even if the second half is right.
    assert!(!succeeds(vec![created(first), modified(first)]).0);
    assert!(!succeeds(vec![created(second), modified(second)]).0);
    assert!(succeeds(vec![created(first), modified(second)]).0);
    assert!(!succeeds(vec![value("other")]).0);
    assert!(succeeds(vec![value("v")]).0);
    let made = |key: &str, end: &str, revision| Compare::NoneCreatedAfter {
        key: key.to_owned(),
        end: end.to_owned(),
        revision,
    };
    // It is true of a missing key; a key that was written later was not made later.
    assert!(succeeds(vec![made("a", "b", 0)]).0);
    assert!(!succeeds(vec![made("a", "z", first - 1)]).0);
    assert!(succeeds(vec![made("a", "z", first)]).0);
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_lease_ends_its_key_and_is_known_to_have_ended() {
    let site = RealSite::start(1);
    let mut gateway = site.gateway();
    let granted = call(&mut gateway, &Request::Grant { ttl_seconds: 5 });
    let Ok(Answer::Lease { id, ttl_seconds: 5 }) = granted else {
        panic!("{granted:?}");
    };
    let put = Request::Txn(Txn {
        compare: Vec::new(),
        success: vec![Op::Put {
            key: "k".to_owned(),
            value: b"v".to_vec(),
            lease: id,
        }],
        failure: Vec::new(),
    });
    call(&mut gateway, &put).expect("put");
    let kept = call(&mut gateway, &Request::KeepAlive { lease: id });
    assert_eq!(kept, Ok(Answer::Lease { id, ttl_seconds: 5 }));
    call(&mut gateway, &Request::Revoke { lease: id }).expect("it was there");
    let Ok(Answer::Range { keys, .. }) =
        call(&mut gateway, &Request::Range(Range::key("k".to_owned())))
    else {
        panic!("no range");
    };
    assert!(keys.keys.is_empty());
    let dead = call(&mut gateway, &Request::KeepAlive { lease: id });
    assert_eq!(dead, Ok(Answer::Lease { id, ttl_seconds: 0 }));
    call(&mut gateway, &put).expect_err("a dead lease");
}

/// etcd's leader is stopped and resumed while batches are appended: its late requests change nothing.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_member_that_is_stopped_and_resumed_changes_nothing() {
    let site = RealSite::start(3);
    for first in 0..3 {
        let mut journal = open(&site.options_from(first), 1);
        let (mut position, _) = recover(&mut journal);
        let mut append = |journal: &mut EtcdJournal| {
            position += 1;
            let batch = format!("batch {position}");
            journal.append(position, batch.as_bytes()).expect("kept");
        };
        for _ in 0..5 {
            append(&mut journal);
        }
        site.signal(first, "-STOP");
        for _ in 0..20 {
            append(&mut journal);
        }
        site.signal(first, "-CONT");
        for _ in 0..20 {
            append(&mut journal);
        }
        drop(journal);
        let mut journal = open(&site.options(), 1);
        let (last, seen) = recover(&mut journal);
        assert_eq!(last, position);
        for (index, (at, batch)) in seen.batches.iter().enumerate() {
            assert_eq!(*at, index as u64 + 1);
            assert_eq!(*batch, format!("batch {at}").into_bytes());
        }
    }
}

/// A standby learns that its revision was compacted, and reads again.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_watch_of_what_was_compacted_ends() {
    let site = RealSite::start(1);
    let mut journal = open(&site.options(), 1);
    recover(&mut journal);
    for position in 1..10 {
        journal.append(position, b"batch").expect("kept");
    }
    journal.begin_snapshot(9).expect("begun");
    journal.add_to_snapshot(b"all").expect("added");
    journal.finish_snapshot().expect("finished");
    let (key, end) = site.options().layout.watched();
    let mut stream = site.gateway().watch(&key, &end, 2).expect("a watch");
    eventually("the watch ends", || {
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(30));
        stream
            .next(deadline)
            .expect("a message")
            .expect("in time")
            .is_canceled
    });
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_site_without_the_gateway_is_told_so() {
    let site = RealSite::with_options(1, "http", &["--enable-grpc-gateway=false"]);
    let opened = EtcdJournal::open(&site.options(), &address(1), &Cancel::NEVER);
    let error = opened.expect_err("no gateway");
    assert!(
        error.to_string().contains("--enable-grpc-gateway"),
        "{error}"
    );
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_standby_can_be_cancelled() {
    let site = RealSite::start(1);
    let mut primary = open(&site.options(), 1);
    recover(&mut primary);
    primary.append(1, b"one").expect("kept");
    let standby = Standby::start(&site.options(), 2);
    standby.wait_for(&Seen {
        chunks: Vec::new(),
        batches: vec![(1, b"one".to_vec())],
    });
    standby.cancel.cancel();
    let ended = standby.thread.join().expect("no panic");
    assert!(matches!(ended, Err(JournalError::Cancelled { .. })));
    primary.append(2, b"two").expect("kept");
}

/// A leader whose etcd has lost its majority waits for it, but not once it is cancelled.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn an_append_without_a_majority_can_be_cancelled() {
    let site = RealSite::start(3);
    let cancel = Cancel::new();
    let journal = EtcdJournal::open(&site.options(), &address(1), &cancel);
    let mut journal = journal.expect("etcd answers");
    recover(&mut journal);
    journal.append(1, b"one").expect("kept");
    for member in [1, 2] {
        site.signal(member, "-STOP");
    }
    let (sender, kept) = channel();
    let thread = thread::spawn(move || {
        let mut position = 2;
        loop {
            if let Err(error) = journal.append(position, b"batch") {
                return (error, sender);
            }
            position += 1;
            let _ = sender.send(());
        }
    });
    // The members may stop a little later.
    while kept.recv_timeout(Duration::from_secs(1)).is_ok() {}
    assert!(!thread.is_finished(), "it waits for a majority");
    let cancelled = Instant::now();
    cancel.cancel();
    let (error, _) = thread.join().expect("no panic");
    let took = cancelled.elapsed();
    assert!(matches!(error, JournalError::Cancelled { .. }), "{error}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    for member in [1, 2] {
        site.signal(member, "-CONT");
    }
}
