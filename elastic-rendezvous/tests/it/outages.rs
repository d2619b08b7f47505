//! Nodes whose connection to the store is cut, falls silent, or leads to a store that was emptied.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use c10d_sim::Proxy;
use c10d_socket::Cancel;
use c10d_store::{Store, StoreExt, TcpStore, TcpStoreOptions};
use elastic_rendezvous::{
    Membership, RendezvousError, RendezvousEvent, RendezvousHandler, RendezvousInfo,
    RendezvousParameters, RendezvousState, codec, create_handler, parse_config,
};

use super::nodes::{Joining, LONG, eventually};

/// After this time without a heartbeat, the other nodes drop a node.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
const CONFIG: &str = "is_host=0,keep_alive_interval=1,keep_alive_max_attempt=3,\
    last_call_timeout=2,join_timeout=50,close_timeout=5,spare_wait=3";

/// How much later the round is over for a node that was dropped.
const GRACE: Duration = Duration::from_secs(5);

/// An external store, and nodes that reach it through a proxy each.
struct Job {
    server: Option<TcpStore>,
    nodes: Vec<(Proxy, Arc<dyn RendezvousHandler>)>,
}

fn start_server() -> TcpStore {
    let options = TcpStoreOptions::default().with_master(true);
    TcpStore::open("127.0.0.1", 0, options).expect("a free port")
}

fn create_node(
    proxy: &Proxy,
    config: &str,
    nodes: (usize, usize),
) -> Result<Arc<dyn RendezvousHandler>, RendezvousError> {
    let endpoint = format!("127.0.0.1:{}", proxy.port());
    let config = parse_config(config).expect("settings");
    let parameters = RendezvousParameters::new("c10d", endpoint, "job", nodes.0, nodes.1)
        .expect("parameters")
        .with_local_addr("127.0.0.1")
        .with_config(config);
    create_handler(&parameters)
}

impl Job {
    fn start(count: usize, min_nodes: usize, max_nodes: usize) -> Self {
        let server = start_server();
        let address = server.server().expect("a server").local_addr();
        let nodes = (0..count).map(|_| {
            let proxy = Proxy::to(address);
            let handler = create_node(&proxy, CONFIG, (min_nodes, max_nodes));
            (proxy, handler.expect("a handler"))
        });
        Self {
            nodes: nodes.collect(),
            server: Some(server),
        }
    }

    /// All of these nodes join.
    fn join(&self, nodes: &[usize]) -> Vec<RendezvousInfo> {
        let joining: Vec<_> = nodes
            .iter()
            .map(|index| self.begin_to_join(*index))
            .collect();
        let joined = joining.into_iter();
        let joined = joined.map(|it| it.join().expect("no panic").expect("a round"));
        joined.collect()
    }

    fn begin_to_join(&self, index: usize) -> Joining {
        let node = Arc::clone(&self.nodes[index].1);
        thread::spawn(move || node.next_rendezvous())
    }

    fn membership(&self, index: usize) -> Option<Membership> {
        self.nodes[index].1.membership().ok()
    }

    fn is_evicted(&self, index: usize) -> bool {
        self.membership(index).is_some_and(|it| it.is_evicted)
    }

    fn state(&self) -> RendezvousState {
        let store = self.server.as_ref().expect("a server");
        let text = store.get("torch.rendezvous.job").expect("a state");
        codec::from_text(&text, &codec::CodecLimits::default()).expect("a state")
    }

    /// The store's server is killed, and an empty one takes its place.
    fn empty_the_store(&mut self) {
        for (proxy, _) in &self.nodes {
            proxy.cut(true);
        }
        drop(self.server.take());
        let server = start_server();
        for (proxy, _) in &self.nodes {
            proxy.set_server(server.server().expect("a server").local_addr());
            proxy.mend();
        }
        self.server = Some(server);
    }

    /// Waits until each listed node has written another heartbeat over its new connection.
    fn await_heartbeats(&self) {
        let before = self.state().last_heartbeats;
        eventually("another heartbeat of each node", || {
            let now = self.state().last_heartbeats;
            before.iter().all(|(node, at)| now.get(node) != Some(at))
        });
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for (proxy, _) in &self.nodes {
            proxy.mend();
        }
    }
}

/// docs/spec/rendezvous.md, STATIC 3.
#[test]
fn nodes_of_a_static_rendezvous_come_back_while_they_wait_and_afterwards() {
    let node = |rank: usize, port: u16| {
        let endpoint = format!("127.0.0.1:{port}");
        let parameters = RendezvousParameters::new("static", endpoint, "job", 3, 3);
        let config = parse_config(&format!("rank={rank},timeout=60")).expect("settings");
        let parameters = parameters.expect("parameters").with_config(config);
        create_handler(&parameters).expect("a handler")
    };
    // Joins, and waits until the node itself reports that this many nodes have joined; returns the port.
    let begin = |node: Arc<dyn RendezvousHandler>, joined_min: usize| {
        let (sender, reports) = channel();
        node.add_listener(Arc::new(move |event| {
            if let RendezvousEvent::WaitingForRanks(report) = event {
                let _ = sender.send((report.endpoint.port(), report.joined));
            }
        }));
        let joining = thread::spawn(move || node.next_rendezvous());
        loop {
            let (port, joined) = reports.recv_timeout(LONG).expect("a report");
            if joined >= joined_min {
                return (joining, port);
            }
        }
    };
    let (joining, port) = begin(node(0, 0), 1);
    let proxy = Proxy::to(SocketAddr::from(([127, 0, 0, 1], port)));
    let (waiting, _) = begin(node(1, proxy.port()), 2);
    let accepted = proxy.accepted();
    proxy.cut(false);
    eventually("a new connection", || proxy.accepted() > accepted);

    let last = node(2, port);
    let (sender, changes) = channel();
    last.add_listener(Arc::new(move |event| {
        if matches!(event, RendezvousEvent::MembershipChanged) {
            let _ = sender.send(());
        }
    }));
    let direct = last.next_rendezvous().expect("a round");
    changes.try_recv().expect("an event when all have joined");
    assert_eq!(direct.bootstrap.master.port(), port);
    let behind = waiting.join().expect("no panic").expect("a round");
    let host = joining.join().expect("no panic").expect("a round");
    assert_eq!((behind.rank, behind.world_size), (1, 3));
    // Each node is counted once: the round is complete when three nodes have joined.
    assert_eq!((host.rank, direct.rank), (0, 2));

    let waits = behind.store.with_cancel(&Cancel::NEVER);
    let waits = thread::spawn(move || waits.wait_timeout(&["late"], LONG));
    for _ in 0..3 {
        let accepted = proxy.accepted();
        proxy.cut(false);
        host.store.set("key", b"value").expect("set");
        assert_eq!(behind.store.get("key").expect("a value"), b"value");
        assert!(proxy.accepted() > accepted);
    }
    host.store.set("late", b"").expect("set");
    waits.join().expect("no panic").expect("the key");
    // A counter is raised once, though this request must not be sent again. The connection is lost while it is idle.
    for count in 1..4 {
        proxy.cut(false);
        thread::sleep(Duration::from_secs(1));
        assert_eq!(behind.store.add("count", 1).expect("a count"), count);
    }
}

/// docs/spec/rendezvous.md, OUTAGE 1 and 4.
#[test]
fn a_node_whose_connection_is_reset_goes_on_in_its_round() {
    for max_nodes in [3, 40] {
        let job = Job::start(3, 2, max_nodes);
        job.join(&[0, 1, 2]);
        let (proxy, _) = &job.nodes[2];
        let accepted = proxy.accepted();
        proxy.cut(false);
        eventually("a new connection", || proxy.accepted() > accepted);
        for _ in 0..4 {
            job.await_heartbeats();
        }
        for index in 0..3 {
            let mut whole = Membership::default();
            // A group does not count them.
            whole.members = (max_nodes == 3).then_some(3);
            eventually("an unchanged round", || {
                job.membership(index).as_ref() == Some(&whole)
            });
        }
        assert_eq!(job.state().round, 0);
        let rounds = job.join(&[0, 1, 2]);
        assert!(rounds.iter().all(|it| (it.round, it.world_size) == (1, 3)));
    }
}

/// docs/spec/rendezvous.md, OUTAGE 2.
#[test]
fn nodes_that_are_all_cut_once_can_still_begin_another_round() {
    let job = Job::start(3, 2, 3);
    job.join(&[0, 1, 2]);
    for (proxy, _) in &job.nodes {
        proxy.cut(false);
    }
    // A worker of one fails at once.
    let first = job.begin_to_join(0);
    for index in [1, 2] {
        eventually("the first node has left", || {
            job.membership(index).is_some_and(|it| it.departed() == 1)
        });
    }
    let rounds = job.join(&[1, 2]);
    let first = first.join().expect("no panic").expect("a round");
    assert_eq!((first.round, first.world_size), (1, 3));
    assert_eq!((rounds[0].round, rounds[0].world_size), (1, 3));
}

/// docs/spec/rendezvous.md, LINK 2 and 3.
#[test]
fn a_dropped_node_is_lost_when_its_connection_closes_unless_it_has_left() {
    let server = start_server();
    let proxy = Proxy::to(server.server().expect("a server").local_addr());
    // Its heartbeats are missed after 300 s.
    let config = "is_host=0,keep_alive_interval=100,last_call_timeout=1";
    let node = || create_node(&proxy, config, (1, 3));
    let [observer, dropped, leaving] = [0; 3].map(|_| node().expect("a node"));
    thread::scope(|scope| {
        for node in [&observer, &dropped, &leaving] {
            scope.spawn(|| node.next_rendezvous().expect("a round"));
        }
    });
    eventually("all nodes have marks", || {
        let keys = server.list_keys().expect("the keys");
        let bells = keys.iter().filter(|key| key.ends_with("/bell"));
        bells.count() == 3
    });
    let membership = || observer.membership().expect("a membership");
    leaving.leave().expect("to leave");
    drop((dropped, leaving));
    eventually("the dropped node is lost", || membership().lost.len() == 1);
    assert_eq!(membership().left.len(), 1);
}

/// docs/spec/rendezvous.md, OUTAGE 3: the node stops its workers, the other nodes continue without it, and it
/// returns.
#[test]
fn a_node_in_silence_leaves_its_round_in_time_and_comes_back() {
    for max_nodes in [3, 40] {
        let job = Job::start(3, 2, max_nodes);
        job.join(&[0, 1, 2]);
        job.nodes[2].0.be_silent();
        let since = Instant::now();
        eventually("its round is over", || job.is_evicted(2));
        let took = since.elapsed();
        assert!(took < KEEP_ALIVE + GRACE, "{took:?} of {max_nodes}");
        for index in [0, 1] {
            eventually("the others have lost it", || {
                job.membership(index).is_some_and(|it| it.departed() == 1)
            });
        }
        let rounds = job.join(&[0, 1]);
        assert!(rounds.iter().all(|it| it.world_size == 2), "{rounds:?}");
        let back = job.begin_to_join(2);
        job.nodes[2].0.mend();
        for index in [0, 1] {
            eventually("it waits for the next round", || {
                job.membership(index)
                    .is_some_and(|it| it.waiting.len() == 1)
            });
        }
        let rounds = job.join(&[0, 1]);
        let back = back.join().expect("no panic").expect("a round");
        assert_eq!((back.round, back.world_size), (rounds[0].round, 3));
    }
}

/// docs/spec/rendezvous.md, OUTAGE 5.
#[test]
fn nodes_whose_store_came_back_empty_begin_another_round() {
    for max_nodes in [3, 40] {
        let mut job = Job::start(3, 2, max_nodes);
        job.join(&[0, 1, 2]);
        job.empty_the_store();
        let since = Instant::now();
        for index in 0..3 {
            eventually("its round is over", || job.is_evicted(index));
        }
        let took = since.elapsed();
        assert!(took < KEEP_ALIVE + GRACE, "{took:?} of {max_nodes}");
        let rounds = job.join(&[0, 1, 2]);
        assert!(rounds.iter().all(|it| it.world_size == 3), "{rounds:?}");
        let mut ranks: Vec<usize> = rounds.iter().map(|it| it.rank).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1, 2]);
        for index in 0..3 {
            assert!(!job.is_evicted(index));
        }
    }
}

/// docs/spec/rendezvous.md, OUTAGE 2.
#[test]
fn a_node_opens_its_rendezvous_although_its_first_connection_is_cut() {
    // A job of up to 4 nodes has a write lease, one of up to 40 a group.
    let cases = [
        ("", (1, 1)),
        (",workers_store=rendezvous", (1, 1)),
        ("", (1, 4)),
        ("", (1, 40)),
    ];
    for (round, (config, nodes)) in (0..10).flat_map(|it| cases.map(|case| (it, case))) {
        let seed = c10d_sim::seed();
        let server = start_server();
        let proxy = Proxy::to(server.server().expect("a server").local_addr());
        proxy.cut_after(seed, 200);
        let config = format!("{CONFIG}{config}");
        thread::scope(|scope| {
            let creating = scope.spawn(|| create_node(&proxy, &config, nodes));
            eventually("a cut", || proxy.cuts() > 0 || creating.is_finished());
            proxy.cut_after(seed, 0);
            let created = creating.join().expect("no panic");
            created.unwrap_or_else(|error| panic!("round {round}: {error}"));
        });
        assert!(server.check(&["torch.rendezvous.job"]).expect("a check"));
    }
}

/// docs/spec/rendezvous.md, OUTAGE 2.
#[test]
fn a_join_outlives_an_outage() {
    for max_nodes in [2, 40] {
        let job = Job::start(2, 2, max_nodes);
        let first = job.begin_to_join(0);
        eventually("it is listed", || {
            job.server
                .as_ref()
                .expect("a server")
                .try_get("torch.rendezvous.job")
                .is_ok_and(|it| it.is_some_and(|it| it.len() > 100))
        });
        job.nodes[0].0.cut(true);
        let second = job.begin_to_join(1);
        job.nodes[0].0.mend();
        for joining in [first, second] {
            let round = joining.join().expect("no panic").expect("a round");
            assert_eq!((round.round, round.world_size), (0, 2));
        }
    }
}

/// docs/spec/rendezvous.md, OUTAGE 1: a lost reply blocks its caller for no longer than one attempt.
#[test]
fn a_wait_in_silence_goes_on_over_another_connection() {
    let job = Job::start(2, 2, 2);
    let rounds = job.join(&[0, 1]);
    let waiting = {
        let store = Arc::clone(&rounds[1].store);
        thread::spawn(move || {
            let since = Instant::now();
            (store.get_timeout("late", LONG), since.elapsed())
        })
    };
    let (proxy, _) = &job.nodes[1];
    proxy.be_silent();
    rounds[0].store.set("late", b"value").expect("set");
    let accepted = proxy.accepted();
    eventually("another connection", || proxy.accepted() > accepted);
    proxy.mend();
    let (value, took) = waiting.join().expect("no panic");
    assert_eq!(value.expect("the value"), b"value");
    assert!(took < 3 * KEEP_ALIVE, "{took:?}");

    proxy.be_silent();
    let error = rounds[1]
        .store
        .get_timeout("late", LONG)
        .expect_err("silence");
    let text = error.to_string();
    assert!(!text.contains("missing") && !error.is_timeout(), "{text}");
    proxy.mend();
}
