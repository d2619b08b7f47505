//! PyTorch ranks behind relays whose connections to the store are cut.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use c10d_relay::{Deadline, HostPort, Relay, RelayOptions};
use c10d_sim::Proxy;
use c10d_store::{Secret, ServerOptions, StoreExt, TcpStore, TcpStoreOptions, TcpStoreServer};
use integration_tests::process::ChildProcess;
use integration_tests::torch::{self, python};
use integration_tests::watchdog::Watchdog;

use crate::durable::seeded;

const LIMIT: Duration = Duration::from_secs(400);
const NODES: usize = 4;
const RANKS_PER_NODE: usize = 2;
const WORLD_SIZE: usize = NODES * RANKS_PER_NODE;
const CUTS: usize = 100;

/// Longer than Python starts and a group forms on a busy machine.
const END_LIMIT: Duration = Duration::from_secs(120);

/// How long the store cannot be reached after a cut: mostly a moment, sometimes long.
fn outage(cut: usize, random: &mut fastrand::Rng) -> Duration {
    match cut {
        30 => Duration::from_secs(20),
        60 => Duration::from_secs(5),
        _ => Duration::from_millis(random.u64(..60)),
    }
}

fn start_rank(rank: usize, relay: &Relay) -> ChildProcess {
    let port = relay.local_addrs()[0].port();
    torch::start_rank("relayed_rank.py", rank, WORLD_SIZE, port)
}

/// Four nodes with two ranks each, and a store with a secret that PyTorch knows nothing of.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn no_rank_notices_a_hundred_cuts() {
    let _watchdog = Watchdog::start("no_rank_notices_a_hundred_cuts", LIMIT);
    let mut random = seeded();

    let secret = Secret::random().expect("random numbers");
    let options = ServerOptions::default().with_secret(secret.clone());
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a server");
    let nodes: Vec<(Proxy, Relay)> = (0..NODES)
        .map(|_| {
            let proxy = Proxy::to(server.local_addr());
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let options = RelayOptions::default().with_secret(secret.clone());
            let store = HostPort::new("127.0.0.1", proxy.port());
            let relay = Relay::start(store, vec![listener], options).expect("a relay");
            (proxy, relay)
        })
        .collect();
    for (_, relay) in &nodes {
        let soon = Deadline::after(Instant::now(), END_LIMIT);
        relay
            .wait_until_connected(soon, &c10d_socket::Cancel::NEVER)
            .expect("a session");
    }
    let mut ranks: Vec<ChildProcess> = (0..WORLD_SIZE)
        .map(|rank| start_rank(rank, &nodes[rank / RANKS_PER_NODE].1))
        .collect();

    // From the first moment on: the group forms meanwhile.
    for cut in 0..CUTS {
        let (proxy, _) = &nodes[random.usize(..NODES)];
        let outage = outage(cut, &mut random);
        proxy.cut(true);
        thread::sleep(outage);
        proxy.mend();
        thread::sleep(Duration::from_millis(random.u64(..300)));
        if cut == CUTS / 4 {
            for rank in &mut ranks {
                rank.read_json();
            }
        }
    }
    let options = TcpStoreOptions::default().with_secret(secret);
    let store = TcpStore::open("127.0.0.1", server.local_addr().port(), options);
    let store = store.expect("a client");
    store.set("stop", b"1").expect("set");
    let mut rounds = Vec::new();
    for (rank, process) in ranks.iter_mut().enumerate() {
        let result = process.read_json();
        let number = |key: &str| result[key].as_u64().unwrap_or_default();
        rounds.push(number("rounds"));
        assert_eq!(
            number("total"),
            number("rounds") * WORLD_SIZE as u64,
            "rank {rank}: {}",
            process.stderr()
        );
        assert!(number("groups") > 0, "{result}");
        assert!(
            process.wait(END_LIMIT).success(),
            "rank {rank}: {}",
            process.stderr()
        );
    }
    assert!(rounds.iter().all(|count| *count == rounds[0]), "{rounds:?}");
}

/// What a node loses with its relay, and no other node does.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn ranks_fail_at_once_with_their_relay() {
    let _watchdog = Watchdog::start("ranks_fail_at_once_with_their_relay", LIMIT);
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let start = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let store = HostPort::new("127.0.0.1", server.local_addr().port());
        Relay::start(store, vec![listener], RelayOptions::default()).expect("a relay")
    };
    let waiting_rank = |relay: &Relay| {
        let mut command = python();
        let port = relay.local_addrs()[0].port();
        let program = format!(
            "from torch.distributed import TCPStore; s = TCPStore('127.0.0.1', {port}); s.wait(['never'])"
        );
        command.args(["-c", &program]);
        ChildProcess::start("a rank", &mut command)
    };
    let (ours, theirs) = (start(), start());
    let (mut lost, mut other) = (waiting_rank(&ours), waiting_rank(&theirs));
    integration_tests::eventually::eventually("both wait", || server.waiting_count() == 2);
    ours.shutdown();
    let status = lost.wait(END_LIMIT);
    assert!(!status.success());
    let stderr = lost.stderr();
    assert!(stderr.contains("DistNetworkError"), "{stderr}");
    integration_tests::eventually::eventually("the server knows", || server.waiting_count() == 1);
    assert_eq!(other.try_wait(), None, "{}", other.stderr());
    other.kill();
}
