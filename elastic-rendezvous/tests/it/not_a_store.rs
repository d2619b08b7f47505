//! Tests endpoints at which another kind of server listens.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{Opcode, Store, StoreExt, TcpStore, TcpStoreOptions};
use elastic_rendezvous::{RendezvousParameters, create_handler, parse_config};

/// Handles an accepted connection; returns it to keep it open.
type HandleConnection = fn(TcpStream) -> Option<TcpStream>;

const PEERS: [(&str, HandleConnection); 3] = [
    ("a program that never answers", Some),
    ("closes each connection", |_| None),
    ("an HTTP server", |mut stream| {
        // The client may have closed by now.
        let _ = stream.write_all(b"HTTP/1.0 400 Bad Request");
        Some(stream)
    }),
];

/// Joins as a node of a job of two nodes. The node may serve the store until it is dropped.
fn join(
    backend: &str,
    endpoint: &str,
    config: &str,
    run_id: &str,
) -> Result<impl Send + std::fmt::Debug + use<>, String> {
    let parameters = RendezvousParameters::new(backend, endpoint, run_id, 2, 2)
        .expect("parameters")
        .with_config(parse_config(config).expect("settings"));
    let joined =
        create_handler(&parameters).and_then(|handler| Ok((handler.next_rendezvous()?, handler)));
    joined.map_err(|error| error.to_string())
}

#[test]
fn a_peer_that_is_not_a_store_is_an_error_of_each_node_within_its_timeout() {
    let nodes = [
        ("c10d", "join_timeout=2"),
        ("c10d", "join_timeout=2,is_host=0"),
        ("static", "rank=0,timeout=2"),
        ("static", "rank=1,timeout=2"),
    ];
    for ((text, handle), (backend, config)) in PEERS
        .iter()
        .flat_map(|peer| nodes.map(|node| (*peer, node)))
    {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let peer = thread::spawn(move || {
            let mut open_connections = Vec::new();
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                open_connections.extend(handle(stream.expect("a connection")));
            }
        });
        let started = Instant::now();
        let error = join(backend, &address.to_string(), config, "job").expect_err("not a store");
        let elapsed = started.elapsed();
        // Far below the timeout of a store call, 60 s.
        assert!(elapsed < Duration::from_secs(30), "{elapsed:?}: {error}");
        assert!(error.contains(text), "{error}");
        assert!(error.contains(&address.to_string()), "{error}");
        if cfg!(target_os = "linux") {
            let process = format!("(process {}, ", std::process::id());
            assert!(error.contains(&process), "{error}");
        }
        stop.store(true, Ordering::Release);
        TcpStream::connect(address).expect("the peer listens");
        peer.join().expect("no panic");
    }
}

/// A store at which all nodes of a static job have met.
fn used_store(run_id: &str) -> (TcpStore, String) {
    let options = TcpStoreOptions::default().with_master(true);
    let store = TcpStore::open("127.0.0.1", 0, options).expect("a store");
    for rank in 0..2 {
        let key = format!("{run_id}/c10d/static/{rank}");
        store.set(&key, b"1 elsewhere").expect("set");
        store.count_worker().expect("counted");
    }
    let endpoint = format!("127.0.0.1:{}", store.port());
    (store, endpoint)
}

/// docs/spec/rendezvous.md, STATIC 4.
#[test]
fn nodes_of_a_static_rendezvous_do_not_join_at_the_store_of_another_job_or_of_an_earlier_start() {
    let cases = [
        ("other", "a store of another job, \"other\""),
        ("job", "a store of an earlier start of this job"),
    ];
    for (run_id, text) in cases {
        let (store, endpoint) = used_store(run_id);
        let keys = store.num_keys().expect("a count");
        for rank in 0..2 {
            let config = format!("rank={rank},timeout=1");
            let error = join("static", &endpoint, &config, "job").expect_err("not this job's");
            assert!(error.contains(text), "rank {rank}: {error}");
        }
        assert_eq!(store.num_keys().expect("a count"), keys);
        assert_eq!(store.worker_count().expect("a count"), 2);
    }
}

/// docs/spec/rendezvous.md, STATIC 4.
#[test]
fn a_node_of_a_static_rendezvous_does_not_read_the_keys_of_a_large_store() {
    let options = TcpStoreOptions::default().with_master(true);
    let store = TcpStore::open("127.0.0.1", 0, options).expect("a store");
    let keys: Vec<String> = (0..20_000).map(|number| format!("of {number}")).collect();
    let pairs: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), &b"1"[..])).collect();
    store.multi_set(&pairs).expect("set");
    let endpoint = format!("127.0.0.1:{}", store.port());
    let error = join("static", &endpoint, "rank=1,timeout=4", "job").expect_err("not this job's");
    assert!(error.contains("a store"), "{error}");
    assert_eq!(store.worker_count().expect("a count"), 0, "{error}");
    let observer = store.server().expect("its server").observer();
    let counters = observer.counters(None).expect("the totals");
    let lists = counters
        .requests
        .iter()
        .find(|(command, _)| *command == Opcode::ListKeys);
    assert_eq!(lists, None);
    // Attempts after 0, 0.5, 1.5 and 3.5 s at the earliest, and the questions about the listener.
    assert!(counters.opened < 14, "{}", counters.opened);
}

#[test]
fn nodes_of_a_static_rendezvous_meet_as_soon_as_the_port_is_free() {
    for run_id in ["other", "job"] {
        let (store, endpoint) = used_store(run_id);
        let nodes = [0, 1].map(|rank| {
            let endpoint = endpoint.clone();
            let config = format!("rank={rank},timeout=60");
            thread::spawn(move || join("static", &endpoint, &config, "job"))
        });
        // Each node has failed once after this time.
        thread::sleep(Duration::from_secs(1));
        drop(store);
        let nodes = nodes.map(|node| node.join().expect("no panic"));
        let [Ok(_), Ok(_)] = nodes else {
            panic!("{nodes:?}");
        };
    }
}

#[test]
fn the_only_node_of_a_job_does_not_wait_for_its_port() {
    let (_store, endpoint) = used_store("other");
    let parameters = RendezvousParameters::new("static", endpoint, "job", 1, 1)
        .expect("parameters")
        .with_config(parse_config("rank=0,timeout=600").expect("settings"));
    let started = Instant::now();
    let handler = create_handler(&parameters).expect("not opened yet");
    let error = handler.next_rendezvous().expect_err("in use").to_string();
    assert!(started.elapsed() < Duration::from_secs(60), "{error}");
    assert!(error.contains("a store of another job"), "{error}");
}
