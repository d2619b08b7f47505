//! Rendezvous of nodes that share a secret.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{Secret, Store, StoreExt, TcpStore, TcpStoreOptions};
use elastic_rendezvous::{
    BootstrapInfo, DynamicRendezvous, RendezvousError, RendezvousHandler, RendezvousParameters,
    clear_workers_store, create_c10d, create_handler, parse_config,
};

use super::nodes::LONG;

fn secret() -> Secret {
    Secret::random().expect("random numbers")
}

fn parameters(endpoint: &str, nodes: usize, config: &str) -> RendezvousParameters {
    RendezvousParameters::new("c10d", endpoint, "job", nodes, nodes)
        .expect("parameters")
        .with_config(parse_config(config).expect("settings"))
        .with_local_addr("127.0.0.1")
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port()
}

fn parameters_of_host(nodes: usize, secret: &Secret) -> RendezvousParameters {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let parameters = parameters(&endpoint, nodes, "is_host=1,last_call_timeout=1");
    parameters.with_secret(secret.clone())
}

/// A node that hosts the store, and the store's address.
fn host_of(parameters: RendezvousParameters) -> (DynamicRendezvous, String) {
    let handler = create_c10d(&parameters).expect("a handler");
    (handler, parameters.endpoint().to_owned())
}

fn host(nodes: usize, secret: &Secret) -> (DynamicRendezvous, String) {
    host_of(parameters_of_host(nodes, secret))
}

#[test]
fn nodes_with_the_same_secret_meet_and_others_stay_outside() {
    let secret = secret();
    let (host, endpoint) = host(2, &secret);
    let node = |secret: Option<Secret>| {
        let parameters = parameters(&endpoint, 2, "is_host=0,join_timeout=3");
        create_c10d(&match secret {
            Some(secret) => parameters.with_secret(secret),
            None => parameters,
        })
    };
    let started = Instant::now();
    let other = Secret::random().expect("random numbers");
    let error = node(Some(other)).expect_err("another secret").to_string();
    assert!(error.contains("a different secret"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(3), "it waits");
    let error = node(None).expect_err("no secret").to_string();
    assert!(error.contains("may require a secret"), "{error}");

    let second = node(Some(secret.clone())).expect("the same secret");
    let rounds = thread::scope(|scope| {
        let joins = [&host, &second].map(|node| scope.spawn(|| node.next_rendezvous()));
        joins.map(|join| join.join().expect("no panic").expect("a round"))
    });
    assert_eq!(rounds.each_ref().map(|round| round.world_size), [2, 2]);
    // The data of the round is in the store with the secret.
    rounds[0].store.set("k", b"v").expect("set");
    assert_eq!(rounds[1].store.get("k").expect("a value"), b"v");
    // The workers' store serves PyTorch's clients, without a secret.
    assert_eq!(rounds[1].bootstrap.credentials, None);
    let master = &rounds[0].bootstrap.master;
    let options = TcpStoreOptions::default().with_timeout(LONG);
    TcpStore::open(master.host(), master.port(), options).expect("a plain client");
    host.shutdown();
    second.shutdown();
}

#[cfg(target_os = "linux")]
#[test]
fn the_workers_store_of_one_node_serves_its_user_and_the_secret() {
    let secret = secret();
    let (host, _) = host(1, &secret);
    let round = host.next_rendezvous().expect("a round");
    let master = &round.bootstrap.master;
    let open = |options: TcpStoreOptions| {
        TcpStore::open(master.host(), master.port(), options.with_timeout(LONG))
    };
    // This process is of the same user.
    let plain = open(TcpStoreOptions::default()).expect("the same user");
    plain.set("k", b"v").expect("set");
    plain.ping().expect("it is set");
    let sealed = open(TcpStoreOptions::default().with_secret(secret)).expect("the secret");
    assert_eq!(sealed.get("k").expect("a value"), b"v");
    let other = Secret::random().expect("random numbers");
    open(TcpStoreOptions::default().with_secret(other)).expect_err("another secret");
    host.shutdown();
}

#[test]
fn a_static_rendezvous_of_several_nodes_refuses_a_secret() {
    let create = |nodes: usize| {
        let parameters = RendezvousParameters::new("static", "127.0.0.1:0", "job", 1, nodes);
        let config = parse_config("rank=0").expect("settings");
        let parameters = parameters.expect("parameters").with_config(config);
        create_handler(&parameters.with_secret(secret()))
    };
    let error = create(2)
        .map(drop)
        .expect_err("its store is the workers' store");
    assert!(matches!(error, RendezvousError::Parameters(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains("add --relay, or use the c10d backend"),
        "{error}"
    );
    let one = create(1).expect("one node");
    let round = one.next_rendezvous().expect("a round");
    round.store.set("k", b"v").expect("set");
    assert_eq!(round.bootstrap.credentials, None);
}

/// Whether the workers' store serves a client with these options.
fn is_served(bootstrap: &BootstrapInfo, options: TcpStoreOptions) -> bool {
    let master = &bootstrap.master;
    TcpStore::open(master.host(), master.port(), options.with_timeout(LONG)).is_ok()
}

/// docs/spec/rendezvous.md, BOOT 7.
#[cfg(target_os = "linux")]
#[test]
fn the_workers_store_of_nodes_with_relays_serves_the_secret_and_the_hosts_user() {
    let other = secret();
    let secret = secret();
    let (host, endpoint) = host_of(parameters_of_host(2, &secret).with_relays(true));
    let second = parameters(&endpoint, 2, "is_host=0,last_call_timeout=1")
        .with_secret(secret.clone())
        .with_relays(true);
    let second = create_c10d(&second).expect("the same secret");
    let join = || {
        thread::scope(|scope| {
            let joins = [&host, &second].map(|node| scope.spawn(|| node.next_rendezvous()));
            joins.map(|join| join.join().expect("no panic").expect("a round"))
        })
    };
    let rounds = join();
    let bootstrap = &rounds[1].bootstrap;
    let credentials = bootstrap.credentials.clone().expect("credentials");
    assert!(is_served(
        bootstrap,
        TcpStoreOptions::default().with_credentials(credentials)
    ));
    let refused = TcpStoreOptions::default().with_secret(other);
    assert!(!is_served(bootstrap, refused));
    // This process is of the same user.
    let plain = TcpStoreOptions::default().with_timeout(LONG);
    let master = &bootstrap.master;
    let plain = TcpStore::open(master.host(), master.port(), plain).expect("the same user");
    plain.set("left by a worker", b"1").expect("set");
    clear_workers_store(&rounds[1]).expect("an answer");
    assert_eq!(plain.list_keys().expect("keys"), ["c10d/workers_of"]);
    // The probe of the next round finds the server.
    assert_eq!(join()[0].bootstrap, *bootstrap);
    host.shutdown();
    second.shutdown();
}

#[test]
fn nodes_of_a_static_rendezvous_with_relays_share_a_secret() {
    let secret = secret();
    let port = free_port();
    let node = |rank: usize| {
        let endpoint = format!("127.0.0.1:{port}");
        let parameters = RendezvousParameters::new("static", endpoint, "job", 2, 2);
        let config = parse_config(&format!("rank={rank},timeout=60")).expect("settings");
        let parameters = parameters.expect("parameters").with_config(config);
        let parameters = parameters.with_secret(secret.clone()).with_relays(true);
        create_handler(&parameters).expect("a handler")
    };
    let nodes = [node(0), node(1)];
    let rounds = thread::scope(|scope| {
        let joins = nodes
            .each_ref()
            .map(|node| scope.spawn(|| node.next_rendezvous()));
        joins.map(|join| join.join().expect("no panic").expect("a round"))
    });
    rounds[0].store.set("k", b"v").expect("set");
    assert_eq!(rounds[1].store.get("k").expect("a value"), b"v");
    let bootstrap = &rounds[1].bootstrap;
    let credentials = bootstrap.credentials.clone().expect("credentials");
    let options = TcpStoreOptions::default();
    assert!(is_served(bootstrap, options.with_credentials(credentials)));
}
