//! Tests handlers in a group over one server, with threads and clocks.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use c10d_store::{ServerOptions, Store, StoreExt, TcpStore, TcpStoreServer};
use elastic_rendezvous::{
    C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, LeftNode, Membership, NodeId,
    RendezvousBackend, RendezvousError, RendezvousEvent, RendezvousHandler, RendezvousInfo,
    RendezvousSettings, RendezvousState, Timestamp, Token, WaitReport,
    codec::{self, CodecLimits},
};

use super::nodes::{AlteredBackend, Joining, LONG, eventually, join, membership};

const NODES: usize = 40;

fn server() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a free port")
}

fn settings(min_nodes: usize, max_nodes: usize) -> RendezvousSettings {
    RendezvousSettings::new("job", min_nodes, max_nodes)
        .expect("a number of nodes")
        .with_last_call_timeout(Duration::from_secs(5))
}

/// A node with a separate connection.
fn node_with(
    server: &TcpStoreServer,
    settings: &RendezvousSettings,
    is_in_group: bool,
) -> Arc<DynamicRendezvous> {
    node_and_store(server, settings, is_in_group).0
}

fn connect(server: &TcpStoreServer) -> Arc<dyn Store> {
    let port = server.local_addr().port();
    Arc::new(TcpStore::connect("127.0.0.1", port).expect("a connection"))
}

fn node_and_store(
    server: &TcpStoreServer,
    settings: &RendezvousSettings,
    is_in_group: bool,
) -> (Arc<DynamicRendezvous>, Arc<dyn Store>) {
    let store = connect(server);
    let backend = C10dBackend::new(Arc::clone(&store), settings.run_id()).expect("a backend");
    let backend: Arc<dyn RendezvousBackend> = if is_in_group {
        Arc::new(backend)
    } else {
        // A node that writes alone, like PyTorch's.
        let watch = backend.watch().expect("an answer");
        let mut alone = AlteredBackend::new(backend, || None);
        alone.watch = watch;
        Arc::new(alone)
    };
    let options = DynamicRendezvousOptions::new().with_local_addr("127.0.0.1");
    let node = DynamicRendezvous::new(backend, Arc::clone(&store), settings.clone(), options);
    (Arc::new(node.expect("a handler")), store)
}

fn nodes(
    server: &TcpStoreServer,
    settings: &RendezvousSettings,
    count: usize,
) -> Vec<Arc<DynamicRendezvous>> {
    (0..count)
        .map(|_| node_with(server, settings, true))
        .collect()
}

/// Joins all nodes, and checks that they are in one round with one rank each.
fn join_all(nodes: &[Arc<DynamicRendezvous>]) -> Vec<RendezvousInfo> {
    let joining: Vec<_> = nodes.iter().map(join).collect();
    one_world(joining)
}

fn one_world(joining: Vec<Joining>) -> Vec<RendezvousInfo> {
    let count = joining.len();
    let rounds: Vec<RendezvousInfo> = joining
        .into_iter()
        .map(|joining| joining.join().expect("no panic").expect("a round"))
        .collect();
    let ranks: BTreeSet<usize> = rounds.iter().map(|round| round.rank).collect();
    assert_eq!(ranks, (0..count).collect());
    for round in &rounds {
        assert_eq!((round.round, round.world_size), (rounds[0].round, count));
        assert_eq!(round.bootstrap, rounds[0].bootstrap);
    }
    rounds
}

/// Counts the participants in the stored state.
fn participant_count(server: &TcpStoreServer) -> impl Fn() -> usize {
    let backend = C10dBackend::new(connect(server), "job").expect("a backend");
    move || {
        let Some(state) = backend.get_state().expect("an answer") else {
            return 0;
        };
        let state = codec::decode(&state.state, &CodecLimits::default());
        state.expect("a state").participants.len()
    }
}

fn reports(node: &DynamicRendezvous) -> Receiver<WaitReport> {
    let (sender, reports) = channel();
    node.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
        if let RendezvousEvent::Waiting(report) = event {
            let _ = sender.send((*report).clone());
        }
    }));
    reports
}

/// The number of a node within its process, and a message that it recorded.
type Message = (Option<i64>, String);

/// Returns the list of messages that the nodes record from now on.
fn recorded(nodes: &[Arc<DynamicRendezvous>]) -> Arc<Mutex<Vec<Message>>> {
    let recorded: Arc<Mutex<Vec<Message>>> = Arc::default();
    for node in nodes {
        let recorded = Arc::clone(&recorded);
        node.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
            if let RendezvousEvent::Recorded(event) = event {
                let mut recorded = recorded.lock().expect("no panic");
                recorded.push((event.local_id, event.message.clone()));
            }
        }));
    }
    recorded
}

#[test]
fn the_holder_of_a_group_records_what_it_changes_for_each_node() {
    let server = server();
    let nodes = nodes(&server, &settings(3, 64), 3);
    let recorded = recorded(&nodes);
    join_all(&nodes);
    nodes[2].leave().expect("it leaves");
    nodes[0].set_closed().expect("it closes the rendezvous");

    let recorded = recorded.lock().expect("no panic").clone();
    let nodes_of = |text: &str| -> BTreeSet<Option<i64>> {
        let about = recorded
            .iter()
            .filter(|(_, message)| message.contains(text));
        about.map(|(node, _)| *node).collect()
    };
    let joined = nodes_of("has joined round 0");
    assert_eq!(joined.len(), 3, "{recorded:#?}");
    for text in [
        "marked round 0 of the rendezvous 'job' as complete",
        "marked the rendezvous 'job' as closed",
        "has closed the rendezvous",
    ] {
        assert_eq!(nodes_of(text).len(), 1, "{text}: {recorded:#?}");
    }
    // The round is complete before the call of any node returns.
    let place = |text: &str| {
        recorded
            .iter()
            .position(|(_, message)| message.contains(text))
    };
    let places = ["marked round 0", "has joined round 0"].map(place);
    assert!(places.is_sorted() && places[0].is_some(), "{recorded:#?}");
}

#[test]
fn the_nodes_of_a_group_get_ranks_and_join_again() {
    let server = server();
    let nodes = nodes(&server, &settings(NODES, NODES), NODES);
    let first = join_all(&nodes);
    assert_eq!(first[0].round, 0);
    first[0].store.set("role", "x").expect("set");
    assert_eq!(first[1].store.get("role").expect("a value"), b"x");
    for node in &nodes {
        assert_eq!(membership(node), Membership::default());
        assert!(!node.is_closed().expect("an answer"));
    }
    let second = join_all(&nodes);
    assert_eq!(second[0].round, 1);
    assert_eq!(second[0].bootstrap, first[0].bootstrap);
}

/// Waits for a node that holds the lease of the group (docs/spec/rendezvous.md, section 10).
fn holder(store: &dyn Store, nodes: &[Arc<DynamicRendezvous>]) -> usize {
    let keys = store.list_keys().expect("keys");
    let key = keys.iter().find(|key| key.ends_with("/h"));
    let key = key.expect("a lease");
    let mut lease = String::new();
    eventually("a node holds the lease", || {
        lease = String::from_utf8(store.get(key).expect("a lease")).expect("text");
        lease.split(' ').nth(2) != Some("free")
    });
    let index = lease.split(' ').nth(1).and_then(|index| index.parse().ok());
    let index: usize = index.expect("an index");
    assert!((1..=nodes.len()).contains(&index), "{lease}");
    index - 1
}

/// The successor did not observe this holder as a member. docs/spec/rendezvous.md, GROUP 9.
#[test]
fn a_holder_that_leaves_a_group_is_named_by_its_successor() {
    let server = server();
    let store = connect(&server);
    let mut nodes = nodes(&server, &settings(NODES - 2, NODES), NODES);
    join_all(&nodes);
    let mut left = Vec::new();
    for _ in 0..2 {
        let leaver = nodes[holder(&*store, &nodes)].clone();
        leaver.leave().expect("to leave");
        left.push(leaver.node());
        left.sort();
        for node in nodes.iter().filter(|node| !left.contains(&node.node())) {
            eventually("the holder is named", || {
                let named = membership(node).left;
                named.iter().map(|left| &left.node).eq(&left)
            });
        }
    }
    nodes.retain(|node| !left.contains(&node.node()));
    assert_eq!(join_all(&nodes)[0].world_size, NODES - 2);
}

#[test]
fn a_close_of_a_group_ends_joins() {
    let server = server();
    let nodes = nodes(&server, &settings(NODES, NODES), NODES);
    let joining: Vec<_> = nodes[1..].iter().map(join).collect();
    let waiting = reports(&nodes[1]);
    waiting.recv_timeout(LONG).expect("to wait");
    nodes[0].set_closed().expect("to close");
    assert!(nodes[0].is_closed().expect("an answer"));
    for joining in joining {
        let error = joining.join().expect("no panic").expect_err("closed");
        assert!(matches!(error, RendezvousError::Closed { .. }), "{error}");
    }
    let error = nodes[0].next_rendezvous().expect_err("closed");
    assert!(matches!(error, RendezvousError::Closed { .. }), "{error}");
    for node in &nodes {
        assert!(node.shutdown());
    }
}

#[test]
fn a_group_survives_the_death_of_the_node_that_writes_for_all() {
    let server = server();
    let settings = settings(NODES, NODES).with_keep_alive(Duration::from_secs(1), 4);
    let (first, its_store) = node_and_store(&server, &settings, true);
    let waiting = reports(&first);
    let joining_first = join(&first);
    waiting.recv_timeout(LONG).expect("to wait");
    let nodes = nodes(&server, &settings, NODES);
    let mut joining: Vec<_> = nodes[2..].iter().map(join).collect();
    let joined = participant_count(&server);
    eventually("all but one have joined", || joined() == NODES - 1);

    // This simulates a killed process.
    its_store.close();
    let error = joining_first.join().expect("no panic").expect_err("closed");
    assert!(
        matches!(error, RendezvousError::Connection { .. }),
        "{error}"
    );
    eventually("another node has dropped it", || joined() == NODES - 2);
    joining.extend(nodes[..2].iter().map(join));
    one_world(joining);
}

/// docs/spec/rendezvous.md, GROUP 8.
#[test]
fn nodes_with_and_without_a_group_share_a_rendezvous() {
    let server = server();
    let count = 36 + 2;
    let settings = settings(count, count);
    let mut nodes = nodes(&server, &settings, 36);
    nodes.extend((0..2).map(|_| node_with(&server, &settings, false)));
    let rounds = join_all(&nodes);
    assert_eq!(rounds[0].round, 0);
    nodes[37].leave().expect("to leave");
    let left = [LeftNode::new(nodes[37].node(), false)];
    for node in &nodes[..37] {
        eventually("the node has left", || membership(node).left == left);
    }
    let rounds = join_all(&nodes);
    assert_eq!(rounds[0].round, 1);
}

#[test]
fn a_join_of_a_group_that_times_out_counts_the_nodes() {
    let server = server();
    let settings = settings(NODES, NODES);
    let patient = nodes(&server, &settings, 2);
    let joining: Vec<_> = patient.iter().map(join).collect();
    let joined = participant_count(&server);
    eventually("both have joined", || joined() == 2);

    let settings = settings.with_join_timeout(Duration::from_secs(2));
    let impatient = node_with(&server, &settings, true);
    let error = impatient.next_rendezvous().expect_err("too few");
    let RendezvousError::Timeout { report } = &error else {
        panic!("{error}");
    };
    assert_eq!(report.joined, 3, "{error}");
    assert!(
        error.to_string().contains("nodes have joined round 0"),
        "{error}"
    );

    impatient.set_closed().expect("to close");
    for joining in joining {
        let error = joining.join().expect("no panic").expect_err("closed");
        assert!(matches!(error, RendezvousError::Closed { .. }), "{error}");
    }
}

/// docs/spec/rendezvous.md, GROUP 9 and LINK 7.
#[test]
fn a_node_of_a_group_has_one_connection_and_that_of_its_mark() {
    let server = server();
    let nodes = nodes(&server, &settings(NODES, NODES), NODES);
    join_all(&nodes);
    join_all(&nodes);
    // The node that writes for all needs another connection while it waits for the address of the workers' store.
    let connections = || server.connection_count();
    eventually("the marks are set", || connections() >= 2 * NODES);
    assert!(connections() <= 2 * NODES + 1, "{}", connections());
}

/// docs/spec/rendezvous.md, GROUP 8.
#[test]
fn a_check_of_the_state_notices_changes_of_rounds_and_lists() {
    let server = server();
    let backend = C10dBackend::new(connect(&server), "job").expect("a backend");
    assert!(backend.is_current(None).expect("an answer"));
    let mut state = RendezvousState::default();
    let a = NodeId::new("a", 1, 0);
    state.participants.insert(a.clone(), 0);
    state
        .last_heartbeats
        .insert(a.clone(), Timestamp::from_micros(1));
    let write = |state: &RendezvousState, token: Option<&Token>| {
        let written = backend.set_state(&codec::encode(state), token);
        let written = written.expect("an answer").expect("a state");
        assert!(written.is_ours);
        written.stored.token
    };
    let first = write(&state, None);
    assert!(!backend.is_current(None).expect("an answer"));
    assert!(backend.is_current(Some(&first)).expect("an answer"));

    state.last_heartbeats.insert(a, Timestamp::from_micros(2));
    let beat = write(&state, Some(&first));
    assert!(backend.is_current(Some(&first)).expect("an answer"));

    state.wait_list.insert(NodeId::new("b", 2, 0));
    let waits = write(&state, Some(&beat));
    assert!(!backend.is_current(Some(&beat)).expect("an answer"));

    state.complete = true;
    write(&state, Some(&waits));
    assert!(!backend.is_current(Some(&waits)).expect("an answer"));
}

/// A request whose node writes no heartbeat delays no other node, and the node is dropped like any other silent
/// node.
#[test]
fn a_node_without_a_heartbeat_is_dropped() {
    let server = server();
    let settings = settings(NODES + 1, NODES + 1).with_keep_alive(Duration::from_secs(1), 5);
    let nodes = nodes(&server, &settings, NODES);
    let joining: Vec<_> = nodes.iter().map(join).collect();
    let store = connect(&server);
    let lease = store.get("torch.rendezvous.job/h").expect("a holder");
    let lease = String::from_utf8(lease).expect("text");
    let epoch = lease.split(' ').next().expect("an epoch");
    let request = format!("9999 1 {epoch} join -1 7 0 stranger");
    store
        .queue_push("torch.rendezvous.job/q", request.as_bytes())
        .expect("a push");
    for joining in joining {
        let round = joining.join().expect("no panic").expect("a round");
        assert_eq!(round.world_size, NODES + 1);
    }
    for node in &nodes {
        eventually("the stranger is lost", || {
            let lost = membership(node).lost;
            assert!(lost.len() <= 1, "{lost:?}");
            lost.iter().any(|lost| &*lost.node.addr == "stranger")
        });
    }
}

#[test]
fn nodes_that_exit_their_round_first_meet_again() {
    let server = server();
    let settings = settings(NODES, NODES);
    let nodes = nodes(&server, &settings, NODES);
    join_all(&nodes);
    thread::scope(|scope| {
        for node in &nodes {
            scope.spawn(|| node.exit_round().expect("to leave the round"));
        }
    });
    let rounds = join_all(&nodes);
    assert_eq!(rounds[0].round, 1);
}

/// docs/spec/rendezvous.md, SPARE 5.
#[test]
fn members_of_a_group_keep_their_places_and_ranks_before_a_spare() {
    let server = server();
    let settings = settings(NODES, NODES);
    let members = nodes(&server, &settings, NODES);
    let first = join_all(&members);
    let spare = node_with(&server, &settings, true);
    let waiting = join(&spare);
    let store = connect(&server);
    let is_listed = |list: &dyn Fn(&RendezvousState) -> usize| {
        let text = store.get("torch.rendezvous.job").expect("a state");
        let state = codec::from_text(&text, &CodecLimits::default()).expect("a state");
        list(&state) == 1
    };
    eventually("the spare is listed", || {
        is_listed(&|state| state.redundancy_list.len())
    });

    let second = join_all(&members);
    let ranks = |rounds: &[RendezvousInfo]| -> Vec<usize> {
        rounds.iter().map(|round| round.rank).collect()
    };
    assert_eq!(ranks(&second), ranks(&first));

    // One node leaves for good: the spare gets its rank.
    let (leaver, rest) = members.split_first().expect("a member");
    leaver.leave().expect("to leave");
    let mut joining: Vec<Joining> = vec![waiting];
    joining.extend(rest.iter().map(join));
    let third = one_world(joining);
    assert_eq!(ranks(&third), ranks(&first));
}

/// docs/spec/rendezvous.md, IDENTITY 3.
#[test]
fn handlers_of_a_group_are_numbered_by_the_group() {
    let server = server();
    let settings = settings(NODES, NODES);
    let nodes = [(); 3].map(|()| node_with(&server, &settings, true));
    let numbers = nodes.map(|node| node.node().local_id);
    assert_eq!(numbers, [1, 2, 3]);
}
