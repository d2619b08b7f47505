//! Tests handlers over real stores, with threads and clocks. The crate's own tests cover the decisions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use c10d_socket::Cancel;
use c10d_store::{FileStore, HashStore, Store, StoreExt, StoreHandle, TcpStore, TcpStoreOptions};
use elastic_rendezvous::{
    C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, LeftNode, Membership, NotJoining,
    Part, RendezvousBackend, RendezvousError, RendezvousEvent, RendezvousHandler,
    RendezvousParameters, RendezvousSettings, RendezvousState, StateWatch, StaticRendezvous, Token,
    Watched, clear_workers_store, codec, create_handler, parse_config,
};

use super::nodes::{AlteredBackend, Joining, LONG, eventually, join, joined, membership};

/// The queue of the write lease.
const TURN: &str = "torch.rendezvous.job/turn";

fn node_with(store: &Arc<dyn Store>, settings: RendezvousSettings) -> Arc<DynamicRendezvous> {
    let backend = C10dBackend::new(Arc::clone(store), settings.run_id()).expect("a backend");
    node_with_backend(Arc::new(backend), store, settings)
}

fn node_with_backend(
    backend: Arc<dyn RendezvousBackend>,
    store: &Arc<dyn Store>,
    settings: RendezvousSettings,
) -> Arc<DynamicRendezvous> {
    let options = DynamicRendezvousOptions::new().with_local_addr("127.0.0.1");
    let node = DynamicRendezvous::new(backend, Arc::clone(store), settings, options);
    Arc::new(node.expect("a handler"))
}

fn node(store: &Arc<dyn Store>, min_nodes: usize, max_nodes: usize) -> Arc<DynamicRendezvous> {
    // Long enough for a node that already runs.
    let last_call_timeout = Duration::from_secs(5);
    let settings = settings(min_nodes, max_nodes).with_last_call_timeout(last_call_timeout);
    node_with(store, settings)
}

fn settings(min_nodes: usize, max_nodes: usize) -> RendezvousSettings {
    RendezvousSettings::new("job", min_nodes, max_nodes).expect("a number of nodes")
}

/// Whether `node` sees that only `other` has left the round for good.
fn has_left(node: &DynamicRendezvous, other: &DynamicRendezvous) -> bool {
    membership(node).left == [LeftNode::new(other.node(), false)]
}

fn tcp() -> (TcpStore, Arc<dyn Store>) {
    let options = TcpStoreOptions::default().with_master(true);
    let host = TcpStore::open("127.0.0.1", 0, options).expect("a free port");
    let client = host.clone_store().expect("a connection");
    (host, client)
}

#[test]
fn nodes_over_each_kind_of_store_get_ranks_and_the_same_workers_store() {
    let path = std::env::temp_dir().join(format!("handlers-{}", std::process::id()));
    let (_host, tcp) = tcp();
    let stores: [Arc<dyn Store>; 3] = [
        Arc::new(HashStore::new()),
        tcp,
        Arc::new(FileStore::open(&path, None).expect("a file")),
    ];
    for store in &stores {
        let nodes: Vec<_> = (0..3).map(|_| node(store, 3, 3)).collect();
        let joining: Vec<_> = nodes.iter().map(join).collect();
        let rounds: Vec<_> = joining.into_iter().map(joined).collect();
        let ranks: BTreeSet<usize> = rounds.iter().map(|round| round.rank).collect();
        assert_eq!(ranks, BTreeSet::from([0, 1, 2]), "{}", store.label());
        for round in &rounds {
            assert_eq!((round.round, round.world_size), (0, 3));
            assert_eq!(round.bootstrap, rounds[0].bootstrap);
            assert!(round.bootstrap.is_agent_store);
        }
        let master = &rounds[0].bootstrap.master;
        let workers = TcpStore::connect(master.host(), master.port()).expect("the workers' store");
        workers.set("left by a worker", b"1").expect("set");
        clear_workers_store(&rounds[1]).expect("an answer");
        assert_eq!(workers.list_keys().expect("keys"), ["c10d/workers_of"]);
        rounds[0].store.set("role", b"x").expect("set");
        assert_eq!(rounds[2].store.get("role").expect("a value"), b"x");
    }
    let _ = std::fs::remove_file(path);
}

#[test]
fn a_newcomer_makes_members_join_again_and_finds_the_same_workers_store() {
    let (_host, store) = tcp();
    let (a, b) = (node(&store, 2, 3), node(&store, 2, 3));
    let (joining_a, joining_b) = (join(&a), join(&b));
    let (first, _) = (joined(joining_a), joined(joining_b));
    let (changed, changes) = channel();
    a.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
        if matches!(event, RendezvousEvent::MembershipChanged) {
            let _ = changed.send(());
        }
    }));
    assert_eq!(a.num_nodes_waiting().expect("a number"), 0);
    let c = node(&store, 2, 3);
    let joining_c = join(&c);
    changes.recv_timeout(LONG).expect("an event");
    eventually("one node waits", || membership(&a).waiting == [c.node()]);
    let (joining_a, joining_b) = (join(&a), join(&b));
    for round in [joined(joining_a), joined(joining_b), joined(joining_c)] {
        assert_eq!((round.round, round.world_size), (1, 3));
        assert_eq!(round.bootstrap, first.bootstrap);
    }
}

#[test]
fn a_node_that_dies_is_reported_as_lost() {
    let (_host, store) = tcp();
    let settings = settings(2, 2).with_keep_alive(Duration::from_secs(1), 5);
    let (a, b) = (
        node_with(&store, settings.clone()),
        node_with(&store, settings),
    );
    let (joining_a, joining_b) = (join(&a), join(&b));
    joined(joining_a);
    joined(joining_b);
    let (sender, lost) = channel();
    a.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
        if let RendezvousEvent::NodeLost(lost) = event {
            let _ = sender.send((*lost).clone());
        }
    }));
    let dead = b.node();
    // The node exits without a write.
    drop(b);
    let lost = lost.recv_timeout(LONG).expect("an event");
    assert_eq!(lost.node, dead);
    assert!(lost.silence > Duration::from_secs(5), "{lost}");
    eventually("the loss is reported", || {
        membership(&a).lost == [lost.clone()]
    });
    assert_eq!(membership(&a).left, []);
}

/// docs/spec/rendezvous.md, LOOP 2.
#[test]
fn an_interrupted_join_removes_its_node_and_later_joins_fail() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let alone = node(&store, 2, 2);
    let (sender, waiting) = channel();
    alone.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
        if matches!(event, RendezvousEvent::Waiting(report) if report.participants.len() == 1) {
            let _ = sender.send(());
        }
    }));
    let joining = join(&alone);
    waiting.recv_timeout(LONG).expect("to wait");
    alone.interrupt();
    let error = joining.join().expect("no panic").expect_err("interrupted");
    assert!(
        matches!(error, RendezvousError::Interrupted { .. }),
        "{error}"
    );
    let error = alone.next_rendezvous().expect_err("interrupted");
    assert!(
        matches!(error, RendezvousError::Interrupted { .. }),
        "{error}"
    );
    let (a, b) = (node(&store, 2, 2), node(&store, 2, 2));
    let (joining_a, joining_b) = (join(&a), join(&b));
    assert_eq!(joined(joining_a).world_size, 2);
    joined(joining_b);
}

/// docs/spec/rendezvous.md, LOOP 2.
#[test]
fn a_call_waits_for_the_join_in_progress() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let first = node(&store, 2, 2);
    let (sender, waiting) = channel();
    first.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
        if matches!(event, RendezvousEvent::Waiting(_)) {
            let _ = sender.send(());
        }
    }));
    let joining = join(&first);
    waiting.recv_timeout(LONG).expect("to wait");
    let called = Arc::clone(&first);
    let calling = thread::spawn(move || called.is_closed());
    // The node reports every second.
    for _ in 0..2 {
        waiting.recv_timeout(LONG).expect("to wait");
    }
    assert!(!calling.is_finished() && !joining.is_finished());
    let other = join(&node(&store, 2, 2));
    joined(other);
    joined(joining);
    assert!(!calling.join().expect("no panic").expect("an answer"));
}

/// docs/spec/rendezvous.md, CODEC 5.
#[test]
fn a_value_that_is_not_a_state_is_an_error_and_stays_in_the_store() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let garbage = b"Y29zCnN5c3RlbQ==";
    store.set("torch.rendezvous.job", garbage).expect("set");
    let error = node(&store, 1, 1).next_rendezvous().expect_err("garbage");
    assert!(
        matches!(error, RendezvousError::CorruptState { .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains("torch.rendezvous.job"),
        "{error}"
    );
    assert_eq!(store.get("torch.rendezvous.job").expect("a value"), garbage);
}

fn failure() -> RendezvousError {
    RendezvousError::ShutDown {
        run_id: "a store that fails".to_owned(),
    }
}

/// docs/spec/rendezvous.md, LEASE 1.
#[test]
fn the_write_lease_is_released_when_the_store_fails_under_it() {
    let (_host, store) = tcp();
    let backend = C10dBackend::new(Arc::clone(&store), "job").expect("a backend");
    // The state cannot be read once while the node holds the lease.
    let (seen, has_failed) = (Arc::clone(&store), AtomicBool::new(false));
    let mut backend = AlteredBackend::new(backend, move || {
        let is_held = seen.queue_len(TURN).expect("a length") == 0;
        (is_held && !has_failed.swap(true, Ordering::AcqRel)).then(failure)
    });
    backend.has_lease = true;
    let settings = settings(1, 3).with_last_call_timeout(Duration::from_millis(100));
    let node = node_with_backend(Arc::new(backend), &store, settings);
    let error = node.next_rendezvous().expect_err("the store has failed");
    assert!(matches!(error, RendezvousError::ShutDown { .. }), "{error}");
    // The next node gets the lease at once.
    let leases = store.queue_len(TURN);
    assert_eq!(leases.expect("a length"), 1);
    assert_eq!(node.next_rendezvous().expect("a round").world_size, 1);
}

/// docs/spec/rendezvous.md, BACKEND 5.
#[test]
fn a_member_whose_state_is_lost_begins_another_round() {
    let (_host, store) = tcp();
    let settings = settings(1, 1).with_keep_alive(Duration::from_millis(100), 3);
    let node = node_with(&store, settings);
    node.next_rendezvous().expect("a round");
    // A wait for the key would last longer than the test may.
    store.set_timeout(Some(LONG * 10));
    let key = "torch.rendezvous.job";
    assert!(store.delete_key(key).expect("a deletion"));

    eventually("its round is over", || membership(&node).is_evicted);
    assert!(!node.is_closed().expect("a new state"));
    assert_eq!(joined(join(&node)).world_size, 1);
    let mut whole = Membership::default();
    whole.members = Some(1);
    assert_eq!(membership(&node), whole);
    assert!(store.delete_key(key).expect("a deletion"));
    node.set_closed().expect("a new state");
    let error = node.next_rendezvous().expect_err("closed");
    assert!(matches!(error, RendezvousError::Closed { .. }), "{error}");
}

/// A watch that always fails at once.
#[derive(Debug)]
struct FailingWatch(Arc<AtomicUsize>);

impl StateWatch for FailingWatch {
    fn wait(
        &self,
        _: Option<&Token>,
        _: Part,
        _: Option<Duration>,
        _: &Cancel,
    ) -> Result<Watched, RendezvousError> {
        self.0.fetch_add(1, Ordering::AcqRel);
        Err(failure())
    }
}

/// docs/spec/rendezvous.md, WATCH 5.
#[test]
fn after_a_failed_watch_the_state_is_polled() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let waits = Arc::<AtomicUsize>::default();
    let backend = C10dBackend::new(Arc::clone(&store), "job").expect("a backend");
    let mut backend = AlteredBackend::new(backend, || None);
    backend.watch = Some(Arc::new(FailingWatch(Arc::clone(&waits))));
    let settings = settings(2, 2);
    let first = node_with_backend(Arc::new(backend), &store, settings);
    let (sender, waiting) = channel();
    first.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
        if matches!(event, RendezvousEvent::Waiting(_)) {
            let _ = sender.send(());
        }
    }));
    let joining = join(&first);
    // Until the second report, a busy loop would have called the watch many times.
    for _ in 0..2 {
        waiting.recv_timeout(LONG).expect("to wait");
    }
    let second = node(&store, 2, 2);
    joined(join(&second));
    assert_eq!(joined(joining).world_size, 2);
    assert_eq!(waits.load(Ordering::Acquire), 1);
    second.leave().expect("to leave");
    eventually("the node has left", || has_left(&first, &second));
}

#[test]
fn a_store_that_stays_away_is_reported_once() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let (is_away, failures): (Arc<AtomicBool>, Arc<AtomicUsize>) = Default::default();
    let backend = C10dBackend::new(Arc::clone(&store), "job").expect("a backend");
    let (away, counted) = (Arc::clone(&is_away), Arc::clone(&failures));
    let backend = AlteredBackend::new(backend, move || {
        away.load(Ordering::Acquire).then(|| {
            counted.fetch_add(1, Ordering::AcqRel);
            failure()
        })
    });
    let node = node_with_backend(Arc::new(backend), &store, settings(1, 1));
    joined(join(&node));
    let changes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&changes);
    node.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
        if matches!(event, RendezvousEvent::MembershipChanged) {
            counted.fetch_add(1, Ordering::AcqRel);
        }
    }));
    is_away.store(true, Ordering::Release);
    eventually("three failed readings", || {
        failures.load(Ordering::Acquire) >= 3
    });
    assert!(node.membership().is_err());
    assert_eq!(changes.load(Ordering::Acquire), 1);
    is_away.store(false, Ordering::Release);
    eventually("the store is back", || node.membership().is_ok());
}

#[test]
fn the_error_of_an_unknown_backend_lists_the_known_ones() {
    let parameters = RendezvousParameters::new("etcd", "", "job", 1, 1).expect("parameters");
    assert_eq!(
        create_handler(&parameters)
            .expect_err("unknown")
            .to_string(),
        "unknown rendezvous backend \"etcd\"; known are c10d, static"
    );
}

fn static_node(rank: usize, world_size: usize, port: u16, timeout: u64) -> StaticRendezvous {
    let endpoint = format!("127.0.0.1:{port}");
    let parameters = RendezvousParameters::new("static", endpoint, "job", 1, world_size);
    let config = parse_config(&format!("rank={rank},timeout={timeout}")).expect("settings");
    let parameters = parameters.expect("parameters").with_config(config);
    StaticRendezvous::new(&parameters).expect("a handler")
}

/// Starts the host of a static rendezvous on a free port, and waits until it reports the port.
fn static_host(world_size: usize, timeout: u64) -> (Joining, u16) {
    let host = static_node(0, world_size, 0, timeout);
    let (sender, reports) = channel();
    host.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
        if let RendezvousEvent::WaitingForRanks(report) = event {
            let _ = sender.send((*report).clone());
        }
    }));
    let joining = thread::spawn(move || host.next_rendezvous());
    loop {
        let report = reports.recv_timeout(LONG).expect("a report");
        if report.is_connected {
            return (joining, report.endpoint.port());
        }
    }
}

/// docs/spec/rendezvous.md, STATIC 1 and 2.
#[test]
fn a_static_rendezvous_reports_joined_nodes_and_missing_ranks() {
    let (joining, port) = static_host(4, 3);
    // PyTorch's nodes count themselves but write no name.
    let options = TcpStoreOptions::default().with_world_size(4);
    let _torch = TcpStore::open("127.0.0.1", port, options).expect("a connection");
    let other = static_node(2, 4, port, 3).next_rendezvous();
    let host = joining.join().expect("no panic");
    for error in [other.expect_err("too few"), host.expect_err("too few")] {
        let RendezvousError::RanksMissing { report } = &error else {
            panic!("{error}");
        };
        assert_eq!((report.joined, report.missing()), (3, 1));
        assert!(report.named.keys().eq(&[0, 2]), "{error}");
        let pid = format!("(pid {})", std::process::id());
        let text = error.to_string();
        for part in [
            "3 of 4 nodes have joined run \"job\"",
            "1 without a name",
            "missing: 1 of node ranks 1, 3",
            &pid,
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn a_timeout_of_zero_is_refused_when_the_handler_is_created() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let backend = Arc::new(C10dBackend::new(Arc::clone(&store), "job").expect("a backend"));
    let settings = settings(1, 1).with_join_timeout(Duration::ZERO);
    let options = DynamicRendezvousOptions::new();
    let error = DynamicRendezvous::new(backend, store, settings, options).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "the join timeout is 0, it must be positive"
    );
}

#[test]
fn a_watch_checks_once_with_a_timeout_of_zero_and_waits_indefinitely_without_one() {
    let (_host, tcp) = tcp();
    let hash: Arc<dyn Store> = Arc::new(HashStore::new());
    for store in [tcp, hash] {
        let backend = C10dBackend::new(Arc::clone(&store), "job").expect("a backend");
        let watch = backend
            .watch()
            .expect("a watch")
            .expect("the store can be watched");
        let unchanged = watch.wait(None, Part::Members, Some(Duration::ZERO), &Cancel::NEVER);
        assert_eq!(unchanged.expect("an answer"), Watched::Unchanged);
        let changed = thread::scope(|scope| {
            let waiting = scope.spawn(|| watch.wait(None, Part::Members, None, &Cancel::NEVER));
            let state = codec::encode(&RendezvousState::default());
            backend.set_state(&state, None).expect("a write");
            waiting.join().expect("no panic").expect("an answer")
        });
        assert!(matches!(changed, Watched::Changed(Some(_))), "{changed:?}");
    }
}

/// docs/spec/rendezvous.md, NOTICE 1 and 2.
#[test]
fn a_waiting_node_reports_what_absent_nodes_say_about_themselves() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let (waiting, absent) = (node(&store, 2, 2), node(&store, 2, 2));
    let (sender, reports) = channel();
    waiting.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
        if let RendezvousEvent::Waiting(report) = event {
            let _ = sender.send(report.not_joining.clone());
        }
    }));
    absent.set_not_joining(Some("no GPU")).expect("a notice");
    let joining = join(&waiting);
    let expected = [NotJoining::new(absent.node(), "no GPU")];
    let next = || reports.recv_timeout(LONG).expect("a report");
    while next() != expected {}
    absent.set_not_joining(None).expect("to take it back");
    while !next().is_empty() {}
    let other = join(&absent);
    assert_eq!(joined(joining).world_size, 2);
    assert_eq!(joined(other).world_size, 2);
}

/// docs/spec/rendezvous.md, SPARE 2 and NOTICE 5.
#[test]
fn a_node_that_leaves_while_it_is_away_has_no_claim_on_its_place() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let settings = settings(2, 2).with_spare_wait(60 * LONG);
    let nodes = [(); 3].map(|()| node_with(&store, settings.clone()));
    let [stays, leaves, spare] = &nodes;
    for joining in [stays, leaves].map(join) {
        joined(joining);
    }
    let waiting = join(spare);
    eventually("the spare is listed", || {
        let text = store.get("torch.rendezvous.job").expect("a state");
        let state = codec::from_text(&text, &codec::CodecLimits::default()).expect("a state");
        state.redundancy_list.len() == 1
    });
    // The node leaves like for a health check, which a signal then interrupts.
    leaves.exit_round().expect("to leave the round");
    let rejoining = join(stays);
    leaves.leave().expect("to leave");
    assert_eq!(joined(rejoining).round, 1);
    assert_eq!(joined(waiting).round, 1);
}
