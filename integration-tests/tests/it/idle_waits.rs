//! A thread that waits costs no CPU: the system does not run it until the wait ends.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use c10d_socket::{Cancel, Deadline, sleep};
use c10d_store::{
    HashStore, ServerOptions, Store, StoreExt, StoreHandle, TcpStore, TcpStoreServer,
};
use integration_tests::eventually::eventually;
use integration_tests::watchdog::Watchdog;
use rpc_agent::{Agent, AgentOptions, Registry, RpcFuture, TerminationError};
use rustix::thread::{Pid, gettid};

/// Longer than any interval at which one of them has ever asked.
const WATCHED: Duration = Duration::from_millis(1200);

fn agent(store: &Arc<dyn Store>, name: &str, rank: u32, cancel: &Cancel) -> Agent {
    let options = AgentOptions::new(name, rank)
        .with_world_size(2)
        .with_host("127.0.0.1")
        .with_cancel(cancel.clone());
    Agent::start(options, Registry::new(), Arc::clone(store)).expect("both are started")
}

/// How often a thread of this process has gone to sleep.
fn sleeps(thread: Pid) -> u64 {
    let file = format!("/proc/self/task/{thread}/status");
    let status = fs::read_to_string(&file).expect("the thread waits");
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|it| it.trim().parse().ok()).expect(&status)
}

#[test]
fn threads_that_wait_are_not_run() {
    let _watchdog = Watchdog::start("threads_that_wait_are_not_run", Duration::from_secs(120));
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a port");
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a server");
    let store: Arc<dyn Store> = Arc::new(store);
    let cancel = Cancel::new();
    let agents = thread::scope(|scope| {
        let other = scope.spawn(|| agent(&store, "b", 1, &Cancel::NEVER));
        [
            agent(&store, "a", 0, &cancel),
            other.join().expect("no panic"),
        ]
    });
    let (_promise, future) = RpcFuture::<u8>::new();
    let (tcp, memory) = (store.with_cancel(&cancel), HashStore::new());
    let memory = memory.with_cancel(&cancel);
    let waits: [(&str, &(dyn Fn() + Sync)); 5] = [
        ("TCP store", &|| {
            tcp.wait_timeout(&["missing"], None).unwrap_err();
        }),
        ("hash store", &|| {
            memory.wait_timeout(&["missing"], None).unwrap_err();
        }),
        ("sleep", &|| {
            sleep(Duration::MAX, [&cancel]).unwrap_err();
        }),
        ("future", &|| {
            assert!(future.wait_until(Deadline::NEVER, &cancel).is_none());
        }),
        ("shutdown", &|| {
            let error = agents[0].join(None).unwrap_err();
            assert!(
                matches!(error, TerminationError::Interrupted { .. }),
                "{error}"
            );
        }),
    ];
    thread::scope(|scope| {
        let (started, threads) = channel();
        for (name, wait) in waits {
            let started = started.clone();
            scope.spawn(move || {
                started.send((name, gettid())).expect("the test waits");
                wait();
            });
        }
        let threads: Vec<_> = threads.iter().take(waits.len()).collect();
        let read = || {
            threads
                .iter()
                .map(|(name, thread)| (*name, sleeps(*thread)))
        };
        eventually("no thread is run", || {
            let before: Vec<_> = read().collect();
            thread::sleep(WATCHED);
            read().eq(before)
        });
        cancel.cancel();
    });
}
