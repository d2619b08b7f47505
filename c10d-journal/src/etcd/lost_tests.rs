//! Servers over a real etcd (`C10D_ETCD`) whose data goes back: they never answer with older data.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use c10d_socket::HostPort;
use c10d_store::journal::JournalError;
use c10d_store::{ServerOptions, Store, StoreExt, TcpStore, TcpStoreOptions, TcpStoreServer};

use super::journal::EtcdJournal;
use super::message::{Op, Request, Txn};
use super::options::EtcdOptions;
use super::real_site::{RealSite, call, eventually};
use super::served_tests::status;

/// A process that is a standby again after a takeover, like `c10d store serve`.
struct Resident {
    options: ServerOptions,
    listener: TcpListener,
    server: TcpStoreServer,
}

impl Resident {
    fn start(options: &EtcdOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let address = HostPort::new("127.0.0.1", port);
        let journal = EtcdJournal::source(options.clone(), address);
        let options = ServerOptions::default().with_journal(journal);
        let server = serve(&listener, &options);
        Self {
            options,
            listener,
            server,
        }
    }

    /// Becomes a standby again if necessary. Returns why it never will.
    fn look(&mut self) -> Option<String> {
        match self.server.journal_failure() {
            Some(JournalError::Deposed { .. }) => {
                self.server = serve(&self.listener, &self.options);
                None
            }
            failure => failure.map(ToString::to_string),
        }
    }

    fn serves(&self) -> bool {
        self.server.is_running() && !self.server.is_standby()
    }

    fn client(&self) -> Option<TcpStore> {
        let timeout = Duration::from_millis(500);
        let options = TcpStoreOptions::default().with_timeout(timeout);
        let port = self.server.local_addr().port();
        TcpStore::open("127.0.0.1", port, options).ok()
    }

    /// The sum that it answers with, if it does.
    fn sum(&self) -> Option<i64> {
        let value = self.client()?.get("sum").ok()?;
        String::from_utf8(value).ok()?.parse().ok()
    }
}

/// Long, because the machine may be busy.
const TTL: Duration = Duration::from_secs(10);

fn options_of(site: &RealSite) -> EtcdOptions {
    site.options().with_lease_ttl(TTL)
}

fn serve(listener: &TcpListener, options: &ServerOptions) -> TcpStoreServer {
    let listener = listener.try_clone().expect("a descriptor");
    TcpStoreServer::stand_by(vec![listener], options.clone()).expect("it listens")
}

fn delete(site: &RealSite, options: &EtcdOptions, from: &str, to: &str) {
    let key = |name: &str| format!("{}/{name}", options.layout.prefix());
    let delete = Request::Txn(Txn {
        compare: Vec::new(),
        success: vec![Op::Delete {
            key: key(from),
            end: key(to),
        }],
        failure: Vec::new(),
    });
    call(&mut site.gateway(), &delete).expect("etcd answers");
}

/// A process leads and a second process follows; etcd's data goes back. Both may never serve older data, and a third
/// may not either process, which starts afterwards.
#[track_caller]
fn nothing_older_is_served(members: usize, lose: impl FnOnce(&mut RealSite, &EtcdOptions)) {
    let mut site = RealSite::start(members);
    let mut processes = vec![Resident::start(&options_of(&site))];
    eventually("one leads", || processes[0].serves());
    let adds = |process: &mut Resident, upto: i64| {
        eventually("it adds", || {
            process.look();
            let added = process.client().and_then(|it| it.add("sum", 1).ok());
            added.is_some_and(|sum| sum >= upto)
        });
    };
    adds(&mut processes[0], 10);
    let members: Vec<_> = (0..members).collect();
    site.copy(&members);
    processes.push(Resident::start(&options_of(&site)));
    adds(&mut processes[0], 15);
    let known = processes[0].sum().expect("it leads");
    eventually("the other one follows", || {
        let status = status(&options_of(&site));
        let is_there = |it: &super::options::EtcdCandidate| it.position == status.position;
        status.candidates.len() == 2 && status.candidates.iter().all(is_there)
    });
    let options = options_of(&site);
    lose(&mut site, &options);
    let end = Instant::now() + Duration::from_secs(60);
    let mut failures: Vec<Option<String>> = vec![None; 2];
    while failures.iter().any(Option::is_none) {
        assert!(Instant::now() < end, "{failures:?}");
        for (process, failure) in processes.iter_mut().zip(&mut failures) {
            if failure.is_none() {
                let sum = process.sum();
                assert!(sum.is_none_or(|sum| sum >= known), "{sum:?} after {known}");
                *failure = process.look();
            }
        }
        // A supervisor starts a process again that has stopped.
        if failures.iter().any(Option::is_some) && processes.len() < 3 {
            processes.push(Resident::start(&options_of(&site)));
            failures.push(None);
        }
    }
    for failure in failures.into_iter().flatten() {
        assert!(failure.contains("is damaged"), "{failure}");
        assert!(failure.contains("gone back"), "{failure}");
    }
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn etcd_restored_from_a_copy() {
    nothing_older_is_served(1, |site, _| site.put_back(&[0]));
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn etcd_emptied() {
    nothing_older_is_served(1, |site, _| {
        site.put_back(&[0]);
        site.put_back(&[0]);
    });
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn the_prefix_deleted() {
    nothing_older_is_served(1, |site, options| delete(site, options, "", "~"));
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn the_head_deleted() {
    nothing_older_is_served(1, |site, options| delete(site, options, "head", "head0"));
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn the_log_deleted() {
    nothing_older_is_served(1, |site, options| delete(site, options, "log/", "log0"));
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn the_end_of_the_log_deleted() {
    nothing_older_is_served(1, |site, options| {
        let last = format!("log/{:016x}", status(options).position);
        delete(site, options, &last, "log0");
    });
}

/// Two of three members lose confirmed data, and continue without the third member.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn members_with_older_data() {
    nothing_older_is_served(3, |site, _| {
        site.kill(0);
        site.put_back(&[1, 2]);
    });
}

/// The key of the leader is deleted manually, and nothing else: another process takes over, and the one before stops.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn the_key_of_the_leader_deleted() {
    let site = RealSite::start(1);
    let options = options_of(&site);
    let old = Resident::start(&options);
    eventually("it leads", || old.serves());
    let store = old.client().expect("it serves");
    assert_eq!(store.add("sum", 1).expect("it leads"), 1);
    let new = Resident::start(&options_of(&site));
    let is_listed = || status(&options).candidates.len() == 2;
    eventually("the other one follows", is_listed);
    delete(&site, &options, "leader", "leader0");
    let deleted = Instant::now();
    // Without a write: a commit would find it out.
    eventually("the old one stops", || !old.server.is_running());
    let took = deleted.elapsed();
    assert!(took < TTL, "{took:?}");
    assert!(matches!(
        old.server.journal_failure(),
        Some(JournalError::Deposed { .. })
    ));
    eventually("the other one leads", || new.serves());
    let store = new.client().expect("it serves");
    assert_eq!(store.add("sum", 1).expect("it leads"), 2);
}
