//! Servers over a real etcd, which the environment variable `C10D_ETCD` names.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, HostPort};
use c10d_store::journal::JournalError;
use c10d_store::{ServerOptions, Store, TcpStore, TcpStoreServer};
use serde_json::json;

use super::journal::EtcdJournal;
use super::message::{Answer, Op, Range, Request, Txn};
use super::options::{EtcdDirectory, EtcdOptions, EtcdStatus};
use super::real_site::{RealSite, call, eventually};

pub(super) fn stand_by(options: &EtcdOptions) -> TcpStoreServer {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let address = HostPort::new("127.0.0.1", address.port());
    let source = EtcdJournal::source(options.clone(), address);
    let options = ServerOptions::default().with_journal(source);
    TcpStoreServer::stand_by(vec![listener], options).expect("it listens")
}

pub(super) fn client_of_leader(options: &EtcdOptions) -> (TcpStore, u64) {
    let directory = EtcdDirectory::new(options.clone());
    let mut found = None;
    eventually("one leads", || {
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(30));
        let leader = directory
            .lookup(deadline, &Cancel::NEVER)
            .expect("etcd answers");
        found = leader.and_then(|leader| {
            let address: HostPort = leader.address.parse().expect("an address");
            let store = TcpStore::connect(address.host(), address.port()).ok()?;
            Some((store, leader.epoch))
        });
        found.is_some()
    });
    found.expect("it was found")
}

pub(super) fn status(options: &EtcdOptions) -> EtcdStatus {
    let deadline = Deadline::after(Instant::now(), Duration::from_secs(30));
    let directory = EtcdDirectory::new(options.clone());
    directory
        .status(deadline, &Cancel::NEVER)
        .expect("etcd answers")
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_server_takes_over_what_another_one_has_answered() {
    let site = RealSite::start(3);
    let options = site.options();
    let mut servers: Vec<_> = (0..3).map(|_| stand_by(&options)).collect();
    for round in 1..=3_u64 {
        eventually("one serves", || servers.iter().any(|it| !it.is_standby()));
        let (store, epoch) = client_of_leader(&options);
        assert_eq!(epoch, round);
        for _ in 0..10 {
            store.add("sum", 1).expect("it leads");
        }
        assert_eq!(store.add("sum", 0).expect("it leads"), 10 * round as i64);
        let index = servers.iter().position(|it| !it.is_standby());
        // Its end hands over.
        drop(servers.remove(index.expect("one serves")));
    }
    assert!(servers.is_empty());
}

/// Candidates are listed as long as they run, with their positions.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn candidates_are_listed() {
    let site = RealSite::start(1);
    let options = site.options();
    let status = || status(&options);
    assert_eq!(status().candidates, []);
    let first = stand_by(&options);
    let (store, _) = client_of_leader(&options);
    let second = stand_by(&options);
    eventually("both are listed", || status().candidates.len() == 2);
    store.add("sum", 1).expect("it leads");
    let followed = || {
        let status = status();
        status.position > 0
            && status
                .candidates
                .iter()
                .all(|it| it.position == status.position)
    };
    eventually("both have followed", followed);
    drop(second);
    let left = status();
    assert_eq!(left.candidates.len(), 1, "{left:?}");
    let address = first.local_addr().to_string();
    assert_eq!(left.candidates[0].address, address);
    assert_eq!(left.leader.expect("it serves").address, address);
    drop(first);
    assert_eq!(status().candidates, []);
}

/// How many messages of watches a member has sent.
fn messages_of_watches(site: &RealSite) -> f64 {
    let mut stream = TcpStream::connect(site.client_address(0)).expect("it runs");
    let mut text = String::new();
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\n\r\n")
        .and_then(|()| stream.read_to_string(&mut text))
        .expect("it answers");
    let line = text.lines().find(|line| {
        line.starts_with("grpc_server_msg_sent_total{") && line.contains(r#"grpc_method="Watch""#)
    });
    let sent = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    sent.unwrap_or(0.0)
}

/// A standby reads a log that grows fast by the heartbeats of the leader, not by a message of etcd for each batch.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_log_that_grows_fast_is_not_watched() {
    let site = RealSite::start(1);
    let options = site.options();
    let first = stand_by(&options);
    let (store, _) = client_of_leader(&options);
    let second = stand_by(&options);
    let mut sum = 0;
    eventually("etcd says little of many batches", || {
        let before = messages_of_watches(&site);
        for _ in 0..100 {
            sum += 1;
            assert_eq!(store.add("sum", 1).expect("it leads"), sum);
        }
        // In the first second it is watched.
        sum > 500 && messages_of_watches(&site) - before < 10.0
    });
    drop(first);
    eventually("the other one serves", || !second.is_standby());
    let (store, _) = client_of_leader(&options);
    assert_eq!(store.add("sum", 0).expect("it leads"), sum);
}

/// A server whose lease is revoked by another process stops, and reports the leader.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_server_that_was_deposed_stops() {
    let site = RealSite::start(1);
    let options = site.options();
    let old = stand_by(&options);
    let (store, _) = client_of_leader(&options);
    store.add("sum", 1).expect("it leads");
    let key = options.layout.leader();
    let delete = Request::Txn(Txn {
        compare: Vec::new(),
        success: vec![Op::Delete {
            end: format!("{key}\0"),
            key,
        }],
        failure: Vec::new(),
    });
    call(&mut site.gateway(), &delete).expect("deleted");
    let new = stand_by(&options);
    eventually("it leads", || !new.is_standby());
    store.add("sum", 1).expect_err("it leads no more");
    eventually("it stops", || !old.is_running());
    let failure = old.journal_failure().expect("why").to_string();
    assert!(failure.contains(&new.local_addr().to_string()), "{failure}");
    let (store, epoch) = client_of_leader(&options);
    assert_eq!(epoch, 2);
    let sum = store.add("sum", 0).expect("it leads");
    assert!((1..=2).contains(&sum), "{sum}");
}

/// docs/how-to/etcd-operate.md, "Free space in etcd": other keys have filled it.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_server_whose_etcd_is_full_stops_and_a_later_one_has_everything() {
    let quota = ["--quota-backend-bytes", "16777216"];
    let site = RealSite::with_options(1, "http", &quota);
    let options = site.options();
    let mut gateway = site.gateway();
    let server = stand_by(&options);
    let (store, _) = client_of_leader(&options);
    assert_eq!(store.add("sum", 5).expect("there is room"), 5);
    let fill = Request::Txn(Txn {
        compare: Vec::new(),
        success: vec![Op::Put {
            key: "another".to_owned(),
            value: vec![7; 1 << 20],
            lease: 0,
        }],
        failure: Vec::new(),
    });
    let full = (0..100).find_map(|_| call(&mut gateway, &fill).err());
    let full = full.expect("it becomes full").to_string();
    assert!(full.contains("space exceeded"), "{full}");

    store.add("sum", 1).expect_err("etcd is full");
    eventually("it stops", || !server.is_running());
    let failure = server.journal_failure().expect("why");
    assert!(matches!(failure, JournalError::Engine { .. }), "{failure}");
    let advice = "disarm its NOSPACE alarm";
    assert!(failure.to_string().contains(advice), "{failure}");
    drop(server);
    // All candidates are unable to lead, and report that.
    let other = stand_by(&options);
    eventually("it stops", || !other.is_running());
    let failure = other.journal_failure().expect("why").to_string();
    assert!(failure.contains("NOSPACE"), "{failure}");
    drop(other);

    let status = call(
        &mut gateway,
        &Request::Range(Range::key("another".to_owned())),
    );
    let Ok(Answer::Range { revision, .. }) = status else {
        panic!("{status:?}");
    };
    let mut operate = |path, body| {
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(30));
        let done = gateway.call_other(path, &body, deadline);
        done.unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    operate(
        "/v3/kv/compaction",
        json!({ "revision": revision, "physical": true }),
    );
    operate("/v3/maintenance/defragment", json!({}));
    let raised = operate("/v3/maintenance/alarm", json!({ "action": "GET" }));
    let mut alarm = raised["alarms"][0].clone();
    assert_eq!(alarm["alarm"], "NOSPACE", "{raised}");
    alarm["action"] = "DEACTIVATE".into();
    operate("/v3/maintenance/alarm", alarm);

    let _server = stand_by(&options);
    let (store, _) = client_of_leader(&options);
    assert_eq!(store.add("sum", 1).expect("there is room"), 6);
}
