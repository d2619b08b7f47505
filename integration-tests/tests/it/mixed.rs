//! PyTorch's clients and ours on the same store, with our server and both of PyTorch's servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use c10d_store::{
    PrefixStore, ServerOptions, Store, StoreExt, TcpStore, TcpStoreOptions, TcpStoreServer,
};
use integration_tests::contract::{self, TCP, Traits};
use integration_tests::launcher::free_address;
use integration_tests::peer::{Failure, Ours, Peer};
use integration_tests::torch::{Feature, Release, TcpArguments, Torch, TorchStore};
use integration_tests::watchdog::Watchdog;

const LIMIT: Duration = Duration::from_secs(120);
const LONG: Duration = Duration::from_secs(30);

/// A server of any kind. Drop shuts it down.
struct AnyServer {
    name: &'static str,
    address: SocketAddr,
    traits: Traits,
    ours: Option<TcpStoreServer>,
    torch: Option<TorchStore>,
}

impl AnyServer {
    fn all() -> Vec<Self> {
        vec![Self::ours(), Self::torch(true), Self::torch(false)]
    }

    fn ours() -> Self {
        let server =
            TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("our server");
        Self {
            name: "our server",
            address: server.local_addr(),
            traits: TCP.with(Release::tested()),
            ours: Some(server),
            torch: None,
        }
    }

    fn torch(use_libuv: bool) -> Self {
        let server = Torch::shared().tcp_server(use_libuv);
        let name = if use_libuv {
            "PyTorch's libuv server"
        } else {
            "PyTorch's older server"
        };
        Self {
            name,
            address: server.address(),
            traits: Traits {
                queues: use_libuv && TCP.with(Release::tested()).queues,
                compare_set_wakes: use_libuv,
                ..TCP.with(Release::tested())
            },
            ours: None,
            torch: Some(server),
        }
    }

    fn connect(&self) -> TcpStore {
        TcpStore::connect("127.0.0.1", self.address.port())
            .unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn connect_torch(&self) -> TorchStore {
        Torch::shared().tcp_client(self.address)
    }
}

impl Drop for AnyServer {
    fn drop(&mut self) {
        if let Some(server) = self.ours.take() {
            server.shutdown();
        }
        if let Some(server) = self.torch.take()
            && !thread::panicking()
        {
            server.close();
        }
    }
}

/// Tests the contract itself with PyTorch alone: its client and servers, and its `HashStore`.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn pytorchs_own_client_and_servers_fulfil_the_contract() {
    let _watchdog = Watchdog::start("pytorchs_own_client_and_servers_fulfil_the_contract", LIMIT);
    if !Release::tested().allows(Feature::Contract) {
        return;
    }
    for server in [AnyServer::torch(true), AnyServer::torch(false)] {
        let client = server.connect_torch();
        contract::every_operation(&client, &server.traits);
        contract::add_to_text(&client, &server.connect_torch(), &server.traits);
    }
    let hash_store = Torch::shared().hash_store();
    let traits = Traits {
        add_to_text: Failure::NotANumber,
        ..TCP.with(Release::tested())
    };
    contract::every_operation(&hash_store, &traits);
    contract::add_to_text(&hash_store, &hash_store, &traits);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn both_clients_see_each_others_changes_and_wake_each_other() {
    let _watchdog = Watchdog::start(
        "both_clients_see_each_others_changes_and_wake_each_other",
        LIMIT,
    );
    for server in AnyServer::all() {
        let ours = Ours::new(server.connect());
        contract::two_clients(&ours, &server.connect_torch(), &server.traits);
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn both_clients_share_keys_under_a_prefix() {
    let _watchdog = Watchdog::start("both_clients_share_keys_under_a_prefix", LIMIT);
    for server in AnyServer::all() {
        let ours = Ours::new(PrefixStore::new(
            "inner",
            Arc::new(PrefixStore::new("outer", Arc::new(server.connect()))),
        ));
        let torchs = server.connect_torch().prefixed("outer").prefixed("inner");
        contract::two_clients(&ours, &torchs, &server.traits);

        let plain = server.connect_torch();
        ours.set("key", b"1").expect("set");
        assert!(ours.check(&["key"]).expect("check"));
        assert_eq!(plain.get("outer/inner/key").expect("get"), b"1");
        if server.traits.list_keys {
            let listed = torchs.list_keys().expect("list_keys");
            let ours = ours.list_keys().expect("list_keys");
            assert_eq!(listed, ours, "{}", server.name);
        }
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn eight_clients_of_both_kinds_pass_barriers() {
    let _watchdog = Watchdog::start("eight_clients_of_both_kinds_pass_barriers", LIMIT);
    if !Release::tested().allows(Feature::Barrier) {
        return;
    }
    for server in AnyServer::all() {
        let ranks: Vec<Box<dyn Peer>> = (0..8)
            .map(|rank| -> Box<dyn Peer> {
                if rank % 2 == 0 {
                    Box::new(Ours::new(server.connect()))
                } else {
                    Box::new(server.connect_torch())
                }
            })
            .collect();
        let observer = server.connect();
        thread::scope(|scope| {
            for rank in &ranks {
                let observer = &observer;
                scope.spawn(move || {
                    for round in 0..10 {
                        let before = format!("before-{round}");
                        observer.add(&before, 1).expect("add");
                        rank.barrier(&format!("round-{round}"), 8, Some(LONG))
                            .unwrap_or_else(|e| panic!("{}: {e}", rank.name()));
                        // The barrier opens only after the last arrival.
                        assert_eq!(observer.get(&before).expect("get"), b"8");
                    }
                });
            }
        });
    }
}

/// Both kinds of clients push and pop: each element is popped once.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_shared_queue_delivers_each_element_once() {
    let _watchdog = Watchdog::start("a_shared_queue_delivers_each_element_once", LIMIT);
    if !Release::tested().allows(Feature::Queues) {
        return;
    }
    const EACH: usize = 50;
    for server in [AnyServer::ours(), AnyServer::torch(true)] {
        let peers = || -> [Box<dyn Peer>; 4] {
            [
                Box::new(Ours::new(server.connect())),
                Box::new(server.connect_torch()),
                Box::new(Ours::new(server.connect())),
                Box::new(server.connect_torch()),
            ]
        };
        let (pushers, poppers) = (peers(), peers());
        let mut popped: Vec<Vec<u8>> = thread::scope(|scope| {
            let popping: Vec<_> = poppers
                .iter()
                .map(|popper| {
                    scope.spawn(move || {
                        let mut got = Vec::new();
                        while got.len() < EACH {
                            match popper.queue_pop("jobs") {
                                Ok(element) => got.push(element),
                                // docs/spec/wire.md, 4.2: another client popped the element.
                                Err(e) if e.failure == Failure::QueueEmpty => {}
                                Err(e) => panic!("{}: {e}", popper.name()),
                            }
                        }
                        got
                    })
                })
                .collect();
            for (number, pusher) in pushers.iter().enumerate() {
                scope.spawn(move || {
                    for i in 0..EACH {
                        let element = format!("{number}/{i}");
                        pusher
                            .queue_push("jobs", element.as_bytes())
                            .expect("queue_push");
                    }
                });
            }
            let popping = popping.into_iter().flat_map(|p| p.join().expect("pop"));
            popping.collect()
        });
        popped.sort();
        let mut pushed: Vec<Vec<u8>> = (0..pushers.len())
            .flat_map(|number| (0..EACH).map(move |i| format!("{number}/{i}").into_bytes()))
            .collect();
        pushed.sort();
        assert_eq!(popped, pushed, "{}", server.name);
    }
}

/// Concurrent `compare_set` calls by both kinds of clients all return the winner's value.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn compare_set_has_one_winner() {
    let _watchdog = Watchdog::start("compare_set_has_one_winner", LIMIT);
    for server in AnyServer::all() {
        let peers: [Box<dyn Peer>; 4] = [
            Box::new(Ours::new(server.connect())),
            Box::new(server.connect_torch()),
            Box::new(Ours::new(server.connect())),
            Box::new(server.connect_torch()),
        ];
        for round in 0..20 {
            let key = format!("leader-{round}");
            let answers: Vec<Vec<u8>> = thread::scope(|scope| {
                let calls: Vec<_> = peers
                    .iter()
                    .enumerate()
                    .map(|(number, peer)| {
                        let key = &key;
                        scope.spawn(move || {
                            peer.compare_set(key, b"", number.to_string().as_bytes())
                                .expect("compare_set")
                        })
                    })
                    .collect();
                calls
                    .into_iter()
                    .map(|call| call.join().expect("compare_set"))
                    .collect()
            });
            let winner = server.connect().get(&key).expect("get");
            assert!(
                answers.iter().all(|answer| *answer == winner),
                "{}: {answers:?}",
                server.name
            );
        }
    }
}

/// docs/spec/wire.md, 7.2: our host waits until PyTorch's workers have registered.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn our_host_waits_for_pytorchs_workers() {
    let _watchdog = Watchdog::start("our_host_waits_for_pytorchs_workers", LIMIT);
    let torch = Torch::shared();
    // As in a job, the workers know the port and retry until the host listens.
    let address = free_address();
    let arguments = TcpArguments {
        world_size: Some(3),
        is_master: Some(false),
        timeout: Some(LONG),
        ..TcpArguments::default()
    };
    let workers = [
        torch.begin_open_tcp(address, &arguments),
        torch.begin_open_tcp(address, &arguments),
    ];
    let options = TcpStoreOptions::default()
        .with_master(true)
        .with_world_size(3)
        .with_timeout(LONG);
    let host =
        TcpStore::open("127.0.0.1", address.port(), options).expect("all three workers join");
    host.set("from the host", b"hello").expect("set");
    for worker in workers {
        let worker = worker.finish().expect("a client");
        assert_eq!(worker.get("from the host").expect("get"), b"hello");
    }
}

/// PyTorch's host waits until our workers have registered.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn pytorchs_host_waits_for_our_workers() {
    let _watchdog = Watchdog::start("pytorchs_host_waits_for_our_workers", LIMIT);
    for use_libuv in [true, false] {
        let address = free_address();
        let arguments = TcpArguments {
            world_size: Some(3),
            is_master: Some(true),
            use_libuv: Some(use_libuv),
            timeout: Some(LONG),
            ..TcpArguments::default()
        };
        let host = Torch::shared().begin_open_tcp(address, &arguments);
        let options = || {
            TcpStoreOptions::default()
                .with_world_size(3)
                .with_timeout(LONG)
        };
        let first = TcpStore::open("127.0.0.1", address.port(), options()).expect("a client");
        assert!(host.is_pending(), "one worker is missing");
        let second = TcpStore::open("127.0.0.1", address.port(), options()).expect("a client");
        let host = host.finish().expect("all three workers joined");
        host.set("from the host", b"hello").expect("set");
        for worker in [first, second] {
            assert_eq!(worker.get("from the host").expect("get"), b"hello");
        }
        host.close();
    }
}
