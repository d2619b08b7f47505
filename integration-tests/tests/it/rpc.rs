//! A worker that cannot start. `rpc-agent` and `rref` have the tests of calls and references, also with killed processes.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{HashStore, StoreExt};
use integration_tests::watchdog::Watchdog;
use rpc_agent::{Agent, AgentOptions, Registry};

const LIMIT: Duration = Duration::from_secs(60);

/// All other workers fail at once and name the worker, although a rank is missing and their own timeout is longer.
#[test]
fn a_worker_that_cannot_listen_ends_the_start_of_the_others() {
    let _watchdog = Watchdog::start("a_worker_that_cannot_listen", LIMIT);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("an address").port();
    let store = HashStore::new();
    let start = |rank: u32, port| {
        // Of four, rank 3 never comes.
        let options = AgentOptions::new(format!("worker{rank}"), rank)
            .with_host("127.0.0.1")
            .with_port(port)
            .with_start_timeout(2 * LIMIT)
            .with_world_size(4);
        let started = Agent::start(options, Registry::new(), Arc::new(store.clone()));
        started.expect_err("it fails").to_string()
    };
    let began = Instant::now();
    thread::scope(|scope| {
        let others = [0, 1].map(|rank| scope.spawn(move || start(rank, 0)));
        store
            .wait(&["names/_NAME/worker0", "names/_NAME/worker1"])
            .expect("both workers have come");
        let expected = "cannot listen for other workers";
        let error = start(2, taken);
        assert!(error.contains(expected), "{error}");
        for other in others {
            let text = other.join().expect("no panic");
            for part in [expected, "name=worker2", "id=2"] {
                assert!(text.contains(part), "{text}");
            }
        }
    });
    assert!(began.elapsed() < LIMIT);
}
