//! Servers of two releases over a real etcd, which the environment variable `C10D_ETCD` names. The later one reads a version of the
//! format that is for these tests only.

use std::time::Duration;

use c10d_socket::{Cancel, HostPort};
use c10d_store::journal::{Formats, JournalError};
use c10d_store::{Store, StoreExt, TcpStore};

use super::journal::EtcdJournal;
use super::options::{EtcdOptions, EtcdStatus};
use super::real_site::{RealSite, eventually};
use super::served_tests::{client_of_leader, stand_by, status};

fn of_release(options: &EtcdOptions, newest: u8) -> EtcdOptions {
    let mut options = options.clone();
    options.layout.formats = Formats { oldest: 1, newest };
    options
}

/// Writes until a snapshot starts, at the latest the next one.
fn write_until_snapshot(options: &EtcdOptions, store: &TcpStore) -> EtcdStatus {
    let before = status(options).snapshot_position;
    let long = vec![3; 1 << 20];
    loop {
        store.set("k", &long).expect("it leads");
        store.add("sum", 1).expect("it leads");
        let now = status(options);
        if now.snapshot_position > before {
            return now;
        }
    }
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn the_newest_format_waits_until_every_candidate_reads_it() {
    let site = RealSite::start(1);
    // The machine may be busy.
    let options = site.options().with_lease_ttl(Duration::from_secs(30));
    let (before, after) = (of_release(&options, 1), of_release(&options, 2));
    let listed = |count| {
        eventually("all are listed", || {
            status(&options).candidates.len() == count
        });
    };
    let mut old = stand_by(&before);
    let (store, _) = client_of_leader(&options);
    let new = stand_by(&after);
    listed(2);
    assert_eq!(write_until_snapshot(&options, &store).format, Some(1));
    let mut sum = store.add("sum", 1).expect("it leads");
    // The new one leads, and an old one follows it.
    while new.is_standby() {
        let next = stand_by(&before);
        listed(3);
        drop(std::mem::replace(&mut old, next));
        let (store, _) = client_of_leader(&options);
        sum += 1;
        assert_eq!(store.add("sum", 1).expect("it leads"), sum);
    }
    let (store, _) = client_of_leader(&options);
    assert_eq!(write_until_snapshot(&options, &store).format, Some(1));
    drop(old);
    listed(1);
    assert_eq!(status(&options).format, Some(1), "before the next snapshot");
    assert_eq!(write_until_snapshot(&options, &store).format, Some(2));

    // A late candidate is informed, and no process waits for it.
    let late = stand_by(&before);
    eventually("it ends", || !late.is_running());
    let failure = late.journal_failure().expect("why");
    assert!(
        matches!(
            failure,
            JournalError::Newer {
                found: 2,
                known: 1,
                ..
            }
        ),
        "{failure}"
    );
    assert_eq!(status(&options).candidates.len(), 1);
    let sum = store.add("sum", 1).expect("it leads");
    drop((new, store));
    let _newer = stand_by(&of_release(&options, 3));
    let (store, _) = client_of_leader(&options);
    assert_eq!(store.add("sum", 1).expect("it leads"), sum + 1);
    assert_eq!(status(&options).format, Some(2));
}

/// The log is still empty, so there is no wait for a snapshot.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_new_store_has_the_newest_format_that_the_first_candidates_read() {
    let site = RealSite::start(1);
    // The machine may be busy.
    let options = site.options().with_lease_ttl(Duration::from_secs(30));
    let new = stand_by(&of_release(&options, 2));
    client_of_leader(&options);
    assert_eq!(status(&options).format, Some(2));
    let address = HostPort::new("127.0.0.1", 1);
    let old = EtcdJournal::open(&of_release(&options, 1), &address, &Cancel::NEVER);
    let error = old.expect_err("it is newer").to_string();
    assert!(
        error.contains(
            "has format 2; this program reads up to format 1, so a newer version of it is needed"
        ),
        "{error}"
    );
    assert_eq!(status(&options).candidates.len(), 1);
    drop(new);
    assert_eq!(status(&options).candidates, []);
}
