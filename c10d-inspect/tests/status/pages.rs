//! A program that reads status pages, and finds the ranks of a job by them.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use c10d_inspect::http::{ClientRow, StatusError, StatusPages, StoreCounters};
use c10d_inspect::workers::{Job, JobError};
use c10d_inspect::{MembershipReport, RankState, Report, WorkersStore};
use c10d_socket::{Cancel, Deadline, HostPort};
use c10d_store::{
    DataLost, Leader, Lookup, ServerOptions, Store, StoreAddress, StoreExt, TcpStore,
    TcpStoreServer,
};
use serde_json::json;

use crate::canned::{Canned, job_without};
use crate::front::{Front, LIMIT};

fn open(server: SocketAddr) -> StatusPages {
    let server = HostPort::new(server.ip().to_string(), server.port());
    StatusPages::open(server, None, LIMIT).expect("an address needs no lookup")
}

fn client(server: SocketAddr) -> TcpStore {
    TcpStore::connect("127.0.0.1", server.port()).expect("a client")
}

#[test]
fn lists_are_read_to_their_end_and_a_prefix_is_only_a_prefix() {
    let front = Front::of_a_store();
    let store = client(front.address);
    // More than one answer has.
    let keys: Vec<String> = (0..5000).map(|number| format!("many/{number}")).collect();
    let pairs: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), &b"12"[..])).collect();
    store.multi_set(&pairs).expect("set");
    store.set("a&from=9 + ü%", b"").expect("set");

    let pages = open(front.address);
    let many = pages.keys("/many/").expect("keys");
    let names: BTreeSet<&str> = many.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(names.len(), 5000);
    assert!(many.iter().all(|row| row.value_bytes == 2));
    let odd = pages.keys("/a&from=9 + ü%").expect("keys");
    assert_eq!(odd.len(), 1);
    let clients: Vec<ClientRow> = pages.rows("/clients.json").expect("clients");
    assert!(
        clients
            .iter()
            .any(|row| row.id == odd[0].writer && row.closed.is_none())
    );
    let counters: StoreCounters = pages.get("/stats.json").expect("counters");
    assert_eq!(counters.keys, 5001);
    store
        .multi_get(&["a&from=9 + ü%"])
        .expect("the client is alive");
}

#[test]
fn a_group_whose_members_agree_through_the_server_is_a_sentence() {
    let mut group = MembershipReport::default();
    group.name = "job/0".to_owned();
    group.stage = "calling".to_owned();
    group.generation = 2;
    group.size = 4;
    group.waits_for = vec!["3.1 (rank 3)".to_owned()];
    group.waits_for_count = 1;
    group.departures = (0..9)
        .map(|id| format!("member {id}.1 (it left)"))
        .collect();
    let mut report = Report::default();
    report.memberships = vec![group];
    let front = Front::start(Canned::new(report));
    let status = front.get("/status.json").json();
    assert_eq!(
        status["memberships"]["entries"],
        json!([
            "job/0: generation 2 of 4 members; calling; waits for 3.1 (rank 3); left last: member 0.1 (it left), \
             member 1.1 (it left), member 2.1 (it left)"
        ])
    );
}

#[test]
fn a_rendezvous_leads_to_the_store_of_the_workers() {
    let workers = Front::start(Canned::new(job_without(4, &[2])));
    let store_at = |address: &str| {
        let mut store = WorkersStore::default();
        store.run_id = "run7".to_owned();
        store.address = address.to_owned();
        store
    };
    let mut meeting = Report::default();
    // The first one has ended with its run.
    let closed = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let closed_at = closed.local_addr().to_string();
    closed.shutdown();
    meeting.workers_stores = vec![store_at(&closed_at), store_at(&workers.address.to_string())];
    let rendezvous = Canned::new(meeting.clone());
    let front = Front::start(rendezvous.clone());

    let pages = open(front.address).into_workers().expect("pages");
    assert_eq!(pages.server().port(), workers.address.port());
    let job = Job::open(&pages).expect("a job");
    assert_eq!(job.ranks(), (0..4).collect());

    // The next round has another store.
    let ask = || {
        let pages = open(front.address).into_workers()?;
        let report: Report = pages.get("/why.json?ranks=all")?;
        Ok::<_, StatusError>((pages, report))
    };
    let (_, report) = ask().expect("a report");
    assert!(report.is_stuck && report.ranks[2].is_suspect, "{report:?}");
    assert_eq!(report.ranks[3].state, RankState::Waiting);
    assert_eq!(report.ranks.len(), 4);
    let next = Front::start(Canned::new(job_without(8, &[2])));
    rendezvous.answers().report.workers_stores = vec![store_at(&next.address.to_string())];
    workers.status.shutdown();
    workers.store.shutdown();
    let started = Instant::now();
    let found = loop {
        assert!(started.elapsed() < LIMIT, "the next round is not found");
        match ask() {
            Ok((pages, report)) if report.ranks.len() == 8 => break pages,
            _ => thread::sleep(Duration::from_millis(20)),
        }
    };
    assert_eq!(found.server().port(), next.address.port());

    // Stores that name each other end nowhere else.
    meeting.workers_stores = vec![store_at(&front.address.to_string())];
    let stores = meeting.workers_stores.clone();
    let pages = open(front.address);
    let followed = pages.follow(&stores, |pages| pages.get::<Report>("/why.json"));
    assert!(followed.expect("no error").is_none());

    let gone = [store_at(&closed_at)];
    let error = pages
        .follow(&gone, |pages| pages.get::<Report>("/why.json"))
        .expect_err("nothing listens there");
    let StatusError::WorkersStore { store, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*store, closed_at);
    // Nodes that wait for others have no workers.
    meeting.is_stuck = true;
    assert_eq!(meeting.stores_elsewhere(), []);
}

#[test]
fn a_store_without_pages_knows_the_ranks_that_have_published_an_address() {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let pages = open(server.local_addr());
    let error = pages.get::<Report>("/why.json").expect_err("no pages");
    assert!(matches!(error, StatusError::TurnedOff { .. }), "{error:?}");
    let error = Job::open(&pages).expect_err("no rank");
    assert!(matches!(error, JobError::NoneHasPublished), "{error:?}");

    let store = client(server.local_addr());
    for rank in [0, 3] {
        let key = format!("debug_server/rank{rank}");
        store.set(&key, b"http://127.0.0.1:9").expect("set");
    }
    let job = Job::open(&pages).expect("a job");
    assert_eq!(job.ranks(), [0, 3].into());
    let url = job.report().ranks[1].debug_url.as_deref();
    assert_eq!(url, Some("http://127.0.0.1:9"));
}

/// A server that leads at epoch `LOST` is none: the store has lost data.
const LOST: u64 = u64::MAX;

/// Says who leads.
#[derive(Debug)]
struct Directory(Mutex<Option<Leader>>);

impl Lookup for Directory {
    fn name(&self) -> String {
        "directory://test".to_owned()
    }

    fn leader(
        &self,
        _: Deadline,
        _: &Cancel,
    ) -> Result<Option<Leader>, Box<dyn Error + Send + Sync>> {
        match self.0.lock().expect("no panic").clone() {
            Some(Leader { epoch: LOST, .. }) => {
                Err(DataLost("etcd was restored".to_owned()).into())
            }
            leader => Ok(leader),
        }
    }
}

#[test]
fn the_pages_of_a_store_that_moves_are_followed() {
    let leader = |address: SocketAddr, epoch| {
        let address = HostPort::new(address.ip().to_string(), address.port());
        Some(Leader { address, epoch })
    };
    let first = Front::start(Canned::new(job_without(4, &[2])));
    let directory = Arc::new(Directory(Mutex::new(leader(first.address, 1))));
    let turn_to = |to| *directory.0.lock().expect("no panic") = to;
    let store = StoreAddress::LookedUp(Arc::clone(&directory) as _);
    let pages = StatusPages::open(store, None, LIMIT).expect("nothing is opened");
    let ask = || pages.get::<Report>("/why.json?ranks=all");
    assert_eq!(pages.server().host(), "directory://test");
    assert_eq!(ask().expect("a report").ranks.len(), 4);
    assert_eq!(pages.server().port(), first.address.port());

    // It is not looked up again as long as it answers.
    turn_to(None);
    assert_eq!(ask().expect("a report").ranks.len(), 4);
    let first_address = first.address;
    drop(first);

    // Stopped, and still listed for a while: the system accepts connections for it.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    turn_to(leader(silent.local_addr().expect("bound"), 2));
    let mut meeting = job_without(8, &[2]);
    // Workers use the store wherever it is, and no server that has led earlier.
    let mut earlier = WorkersStore::default();
    earlier.address = first_address.to_string();
    meeting.workers_stores = vec![earlier];
    meeting.is_stuck = false;
    let next = Front::start(Canned::new(meeting));
    thread::scope(|scope| {
        let asking = scope.spawn(ask);
        let (_asked, _) = silent.accept().expect("it is asked");
        turn_to(None);
        turn_to(leader(next.address, 3));
        let report = asking.join().expect("no panic").expect("a report");
        assert_eq!(report.ranks.len(), 8);
    });
    assert_eq!(pages.server().port(), next.address.port());

    turn_to(None);
    let pages = StatusPages::open(
        StoreAddress::LookedUp(Arc::clone(&directory) as _),
        None,
        Duration::ZERO,
    );
    let nobody = pages.expect("nothing is opened").get::<Report>("/why.json");
    let nobody = nobody.expect_err("nobody leads");
    assert!(nobody.is_transient());
    assert_eq!(
        nobody.to_string(),
        "cannot find the server of the store directory://test: no process serves it at the moment"
    );
    // Not at the end of the limit.
    turn_to(leader(next.address, LOST));
    let store = StoreAddress::LookedUp(directory);
    let pages = StatusPages::open(store, None, Duration::from_secs(3600));
    let lost = pages.expect("nothing is opened").get::<Report>("/why.json");
    let lost = lost.expect_err("nobody will lead");
    assert!(!lost.is_transient());
    assert_eq!(lost.to_string(), "etcd was restored");
}
