//! Thousands of connections to one server at once, without PyTorch.

use std::thread;
use std::time::Duration;

use c10d_store::{ServerOptions, StoreExt, TcpStore, TcpStoreServer};
use integration_tests::raw_client::{READY, RawClient, Request, command};
use integration_tests::watchdog::Watchdog;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: Duration = Duration::from_secs(240);

/// Connections of the test; each takes two descriptors, as both ends are in this process.
const CONNECTIONS: usize = 5000;

/// Descriptors for everything else in the process.
const SPARE_DESCRIPTORS: usize = 200;

const THREADS: usize = 4;

/// Raises the soft limit on open files as far as the test needs and the hard limit allows; how many
/// connections that makes possible.
fn connections_possible() -> usize {
    let needed = 2 * CONNECTIONS + SPARE_DESCRIPTORS;
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let wanted = u64::try_from(needed).unwrap_or(u64::MAX).min(hard);
    if limit.current.is_some_and(|soft| soft < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised to the hard one");
    }
    let allowed = usize::try_from(wanted).unwrap_or(usize::MAX);
    (allowed.saturating_sub(SPARE_DESCRIPTORS) / 2).min(CONNECTIONS)
}

/// As a large job starts: everyone says hello, counts itself and meets the others at a barrier.
#[test]
fn five_thousand_connections_join_and_meet() {
    let _watchdog = Watchdog::start("five_thousand_connections_join_and_meet", LIMIT);
    let connections = connections_possible() / THREADS * THREADS;
    assert!(
        connections >= 1000,
        "the limit on open files allows only {connections} connections"
    );
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let address = server.local_addr();
    let world_size = i64::try_from(connections).expect("it is small");

    let mut peers: Vec<RawClient> = thread::scope(|scope| {
        let joining: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(move || -> Vec<RawClient> {
                    (0..connections / THREADS)
                        .map(|_| RawClient::join(address).expect("a connection"))
                        .collect()
                })
            })
            .collect();
        joining
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    assert_eq!(peers.len(), connections);

    // All count themselves at once; the sums are 1..=n, each once.
    let add = Request::new(command::ADD).blob(b"init/").i64(1);
    for peer in &mut peers {
        peer.send(&add).expect("add");
    }
    let mut sums: Vec<i64> = peers
        .iter_mut()
        .map(|peer| peer.read_i64().expect("a sum"))
        .collect();
    sums.sort_unstable();
    assert!(sums.into_iter().eq(1..=world_size));

    // All but one arrive: nobody is let through. The last one releases everybody.
    let barrier = Request::new(command::BARRIER)
        .blob(b"/start")
        .i64(world_size);
    let (last, others) = peers.split_last_mut().expect("thousands of them");
    for peer in others.iter_mut() {
        peer.send(&barrier).expect("barrier");
    }
    for peer in others.iter_mut() {
        // The next thing to come is the PING's reply: still no release.
        peer.fence().expect("still waiting");
    }
    last.send(&barrier).expect("barrier");
    for peer in &mut peers {
        assert_eq!(peer.read_u8().expect("released"), READY);
    }

    // Half of them go without a word; the others do not notice.
    let half = peers.split_off(connections / 2);
    drop(half);
    for peer in &mut peers {
        peer.fence().expect("alive");
    }
    let store = TcpStore::connect("127.0.0.1", address.port()).expect("one more");
    assert_eq!(
        store.get("start").expect("the barrier's count"),
        connections.to_string().as_bytes()
    );
}
