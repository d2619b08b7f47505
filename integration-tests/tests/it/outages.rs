//! Nodes of both kinds at PyTorch's store, where connections of ours are reset or fall silent.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use c10d_sim::Proxy;
use c10d_store::{StoreExt, TcpStore};
use elastic_rendezvous::RendezvousState;
use elastic_rendezvous::codec::{self, CodecLimits};
use integration_tests::launcher::{Job, Kind};
use integration_tests::torch::{Feature, Release, Torch};
use integration_tests::watchdog::Watchdog;
use serde_json::Value;

use crate::run_torch::{LIMIT, STEP_LIMIT, expect_done, expect_success, options, wait_for_world};

fn state(store: &TcpStore) -> RendezvousState {
    let text = store.get("torch.rendezvous.job").expect("a state");
    codec::from_text(&text, &CodecLimits::default()).expect("a state")
}

/// Waits until each member has written another heartbeat.
fn await_heartbeats(store: &TcpStore) {
    let before = state(store).last_heartbeats;
    let deadline = Instant::now() + STEP_LIMIT;
    loop {
        let now = state(store).last_heartbeats;
        if before.iter().all(|(node, at)| now.get(node) != Some(at)) {
            return;
        }
        assert!(Instant::now() < deadline, "{before:?}, {now:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn pids(workers: &[Value]) -> BTreeSet<i64> {
    let pids = workers.iter().map(|it| it["pid"].as_i64());
    pids.map(|pid| pid.expect("a pid")).collect()
}

/// docs/spec/rendezvous.md, OUTAGE 1 to 4.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn nodes_that_lose_their_connections_stay_or_come_back_beside_torchrun() {
    let _watchdog = Watchdog::start("nodes_that_lose_their_connections", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(folder.path());
    let server = Torch::shared().tcp_server(true);
    let address = server.address();
    let store = TcpStore::connect("127.0.0.1", address.port()).expect("the store");
    let proxies = [(); 2].map(|()| Proxy::to(address));
    let node = |kind: Kind, name: &str, port: u16| {
        let conf = "--rdzv-conf=is_host=0,last_call_timeout=1,keep_alive_interval=1,\
            keep_alive_max_attempt=10";
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let options = options(address, "2:3", &["--max-restarts=5", conf]);
        job.start(kind, name, options, &["loop"])
    };
    let mut nodes = vec![
        node(Kind::C10d, "a", proxies[0].port()),
        node(Kind::C10d, "b", proxies[1].port()),
        node(Kind::Torchrun, "c", address.port()),
    ];
    let before = pids(&wait_for_world(&job, &mut nodes, 3));

    // A reset ends no round.
    let accepted = proxies.each_ref().map(Proxy::accepted);
    for proxy in &proxies {
        proxy.cut(false);
    }
    for _ in 0..2 {
        await_heartbeats(&store);
    }
    assert!(
        proxies
            .iter()
            .zip(accepted)
            .all(|(it, n)| it.accepted() > n)
    );
    assert_eq!(pids(&wait_for_world(&job, &mut nodes, 3)), before);

    // Silence does, for one node, which stops its workers and comes back.
    proxies[1].be_silent();
    wait_for_world(&job, &mut nodes, 2);
    proxies[1].mend();
    wait_for_world(&job, &mut nodes, 3);
    job.stop();
    expect_success(nodes);
    expect_done(&job, 3);
    server.close();
}
