//! Compares the events of our nodes with the events of PyTorch's nodes in the same histories
//! (`testdata/record_events.py`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{HashStore, Store, StoreExt, StoreHandle};
use elastic_rendezvous::{
    C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, NodeState, RecordedEvent,
    RendezvousBackend, RendezvousError, RendezvousEvent, RendezvousHandler, RendezvousParameters,
    RendezvousSettings, SetState, StateWatch, Stored, Token, create_c10d, parse_config,
};
use serde_json::{Value, json};

use super::nodes::{LONG, eventually};

const RECORDING: &str = include_str!("../../testdata/recorded_events.jsonl");

const KEEP_ALIVE: &str = "dynamic_rendezvous.py:DynamicRendezvousHandler._keep_alive";

/// Long enough for the writes of a single node.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A node and the events that it has recorded.
struct Node {
    handler: DynamicRendezvous,
    events: Arc<Events>,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Events {
    all: Mutex<Vec<RecordedEvent>>,
    is_new: Condvar,
}

/// The faults of a backend.
#[derive(Debug, Default)]
struct Faults {
    loses_a_write: AtomicBool,
    is_broken: AtomicBool,
    /// Sets `is_broken` when the node has joined.
    breaks_after_join: AtomicBool,
}

#[derive(Debug)]
struct FaultyBackend {
    backend: C10dBackend,
    faults: Arc<Faults>,
}

impl FaultyBackend {
    fn check(&self) -> Result<(), RendezvousError> {
        if !self.faults.is_broken.load(Ordering::Acquire) {
            return Ok(());
        }
        let store = HashStore::new();
        store.close();
        Err(RendezvousError::Connection {
            run_id: "job".to_owned(),
            source: Box::new(store.get("a key").expect_err("closed")),
        })
    }
}

impl RendezvousBackend for FaultyBackend {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn get_state(&self) -> Result<Option<Stored>, RendezvousError> {
        self.check()?;
        self.backend.get_state()
    }

    fn set_state(
        &self,
        state: &[u8],
        token: Option<&Token>,
    ) -> Result<Option<SetState>, RendezvousError> {
        self.check()?;
        if self.faults.loses_a_write.swap(false, Ordering::AcqRel) {
            let found = self.backend.get_state()?;
            return Ok(found.map(|stored| SetState {
                stored,
                is_ours: false,
            }));
        }
        self.backend.set_state(state, token)
    }

    fn watch(&self) -> Result<Option<Arc<dyn StateWatch>>, RendezvousError> {
        self.backend.watch()
    }

    fn label(&self) -> String {
        self.backend.label()
    }
}

fn settings(min_nodes: usize, max_nodes: usize) -> RendezvousSettings {
    RendezvousSettings::new("job", min_nodes, max_nodes)
        .expect("settings")
        .with_last_call_timeout(Duration::from_millis(100))
        // Heartbeats are due only where a history needs them.
        .with_keep_alive(LONG * 10, 3)
}

fn with_keep_alive(settings: RendezvousSettings) -> RendezvousSettings {
    settings.with_keep_alive(Duration::from_millis(200), 3)
}

fn with_join_timeout(settings: RendezvousSettings) -> RendezvousSettings {
    settings.with_join_timeout(JOIN_TIMEOUT)
}

fn store() -> Arc<dyn Store> {
    Arc::new(HashStore::new())
}

fn stored(store: &Arc<dyn Store>) -> Option<Stored> {
    let backend = C10dBackend::new(Arc::clone(store), "job").expect("a backend");
    backend.get_state().expect("an answer")
}

fn wait_for_write(store: &Arc<dyn Store>, before: &Option<Stored>) {
    eventually("another state", || stored(store) != *before);
}

impl Node {
    fn new(store: &Arc<dyn Store>, settings: RendezvousSettings) -> Self {
        let faults = Arc::default();
        let backend = FaultyBackend {
            backend: C10dBackend::new(Arc::clone(store), "job").expect("a backend"),
            faults: Arc::clone(&faults),
        };
        let options = DynamicRendezvousOptions::new().with_local_addr("127.0.0.1");
        let handler =
            DynamicRendezvous::new(Arc::new(backend), Arc::clone(store), settings, options);
        Self::of(handler.expect("a handler"), faults)
    }

    fn of(handler: DynamicRendezvous, faults: Arc<Faults>) -> Self {
        let events: Arc<Events> = Arc::default();
        let (sink, its_faults) = (Arc::clone(&events), Arc::clone(&faults));
        handler.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
            let RendezvousEvent::Recorded(event) = event else {
                return;
            };
            if event.rank.is_some() && its_faults.breaks_after_join.load(Ordering::Acquire) {
                its_faults.is_broken.store(true, Ordering::Release);
            }
            sink.all.lock().expect("no panic").push((*event).clone());
            sink.is_new.notify_all();
        }));
        Self {
            handler,
            events,
            faults,
        }
    }

    fn join(&self) -> Result<(), RendezvousError> {
        self.handler.next_rendezvous().map(drop)
    }

    fn wait_for(&self, text: &str) {
        let deadline = Instant::now() + LONG;
        let mut events = self.events.all.lock().expect("no panic");
        while !events.iter().any(|event| event.message.contains(text)) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "timed out waiting for {text:?}: {events:#?}"
            );
            (events, _) = self
                .events
                .is_new
                .wait_timeout(events, left)
                .expect("no panic");
        }
    }

    /// The events in the format of the recording.
    fn events(&self, others: &[&Self]) -> Vec<Value> {
        let events = self.events.all.lock().expect("no panic");
        let line = |event: &RecordedEvent| {
            assert_eq!(event.run_id, "job");
            assert_eq!(event.hostname, "127.0.0.1");
            assert_eq!(event.pid, i64::from(std::process::id()));
            let own_id = self.handler.node().local_id;
            assert!(event.local_id.is_none_or(|id| id == own_id), "{event:?}");
            let mut message = event.message.clone();
            for node in others.iter().chain([&self]) {
                message = message.replace(&format!("'{}'", node.handler.node()), "'NODE'");
            }
            let process = format!("Process {} ", event.pid);
            json!({
                "name": event.name,
                "node_state": event.node_state.to_string(),
                "message": comparable(&message.replace(&process, "Process PID "), event.node_state),
                "rank": event.rank,
                "has_local_id": event.local_id.is_some(),
                "has_error_trace": !event.error_trace.is_empty(),
                "master_endpoint": event.master_endpoint,
            })
        };
        events.iter().map(line).collect()
    }
}

/// Shortens an error to its class, as its text differs from PyTorch's.
fn comparable(message: &str, node_state: NodeState) -> String {
    match message.split_once(':') {
        Some((class, text)) if node_state == NodeState::Failed => {
            assert!(class.ends_with("Error"), "{class}: {text}");
            class.to_owned()
        }
        _ => message.to_owned(),
    }
}

fn recorded(history: &str, node: &str) -> Vec<Value> {
    let lines = RECORDING
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let mut events: Vec<Value> = lines
        .filter(|line: &Value| line["history"] == history && line["node"] == node)
        .flat_map(|line| line["events"].as_array().expect("events").clone())
        // Our nodes do not record steps that change nothing for the node, or only a list.
        .filter(|event| event["node_state"] != "RUNNING" || !event["rank"].is_null())
        .collect();
    assert!(!events.is_empty(), "not recorded: {history}, {node}");
    for event in &mut events {
        if event["node_state"] == "FAILED" {
            let message = event["message"].as_str().expect("a message");
            event["message"] = comparable(message, NodeState::Failed).into();
        }
    }
    events
}

fn assert_same(ours: &[Value], theirs: &[Value], node: &str) {
    for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(ours, theirs, "{node}, event {at}");
    }
    assert_eq!(ours.len(), theirs.len(), "{node}: {ours:#?}");
}

fn assert_recorded(history: &str, nodes: &[(&str, &Node)]) {
    let all: Vec<&Node> = nodes.iter().map(|(_, node)| *node).collect();
    for (name, node) in nodes {
        assert_same(&node.events(&all), &recorded(history, name), name);
    }
}

#[test]
fn a_node_completes_a_round_alone_and_closes_before_another_joins() {
    let store = store();
    let (a, late) = (
        Node::new(&store, settings(1, 1)),
        Node::new(&store, settings(1, 1)),
    );
    a.join().expect("a round");
    assert!(a.handler.shutdown());
    late.join().expect_err("closed");
    assert_recorded("alone, closed, late", &[("a", &a), ("late", &late)]);
    let error = a.join().expect_err("shut down");
    assert!(matches!(error, RendezvousError::ShutDown { .. }), "{error}");
}

#[test]
fn two_nodes_complete_a_round_and_shut_down() {
    let store = store();
    let (a, b) = (
        Node::new(&store, settings(2, 2)),
        Node::new(&store, settings(2, 2)),
    );
    let before = stored(&store);
    thread::scope(|scope| {
        let joining = scope.spawn(|| a.join());
        wait_for_write(&store, &before);
        b.join().expect("a round");
        joining.join().expect("no panic").expect("a round");
    });
    assert!(a.handler.shutdown());
    assert!(b.handler.shutdown());
    assert_recorded("two", &[("a", &a), ("b", &b)]);
}

#[test]
fn a_join_times_out() {
    let a = Node::new(&store(), with_join_timeout(settings(2, 2)));
    a.join().expect_err("no other node");
    assert_recorded("join timeout", &[("a", &a)]);
}

#[test]
fn a_spare_node_sees_the_rendezvous_closed() {
    let store = store();
    let (a, b) = (
        Node::new(&store, settings(1, 1)),
        Node::new(&store, settings(1, 1)),
    );
    a.join().expect("a round");
    let before = stored(&store);
    thread::scope(|scope| {
        let joining = scope.spawn(|| b.join());
        wait_for_write(&store, &before);
        a.handler.set_closed().expect("to close");
        joining.join().expect("no panic").expect_err("a spare");
    });
    assert_recorded("spare, closed", &[("a", &a), ("b", &b)]);
}

#[test]
fn a_spare_node_replaces_a_lost_one() {
    let store = store();
    // This node never writes a heartbeat.
    let a = Node::new(&store, settings(1, 1));
    a.join().expect("a round");
    let b = Node::new(&store, with_keep_alive(settings(1, 1)));
    b.join().expect("a round");
    let until_joined = |mut events: Vec<Value>| {
        let joined = events.iter().position(|event| !event["rank"].is_null());
        events.truncate(joined.expect("the node has joined") + 1);
        events
    };
    let theirs = until_joined(recorded("spare, lost", "b"));
    assert_same(&until_joined(b.events(&[&a])), &theirs, "b");
}

#[test]
fn a_node_waits_for_the_next_round_until_it_times_out() {
    let store = store();
    let a = Node::new(&store, settings(1, 2));
    a.join().expect("a round");
    let b = Node::new(&store, with_join_timeout(settings(1, 2)));
    b.join().expect_err("no other round");
    assert_recorded("waiting, timeout", &[("a", &a), ("b", &b)]);
}

#[test]
fn a_node_joins_twice() {
    let a = Node::new(&store(), settings(1, 1));
    a.join().expect("a round");
    a.join().expect("a round");
    assert_recorded("rejoin", &[("a", &a)]);
}

#[test]
fn a_node_has_a_write_conflict() {
    let a = Node::new(&store(), settings(1, 1));
    a.join().expect("a round");
    a.faults.loses_a_write.store(true, Ordering::Release);
    a.join().expect("a round");
    assert_recorded("lost write", &[("a", &a)]);
}

/// docs/spec/rendezvous.md, LOOP 1.
#[test]
fn a_member_writes_heartbeats() {
    let store = store();
    let a = Node::new(&store, with_keep_alive(settings(1, 1)));
    a.join().expect("a round");
    wait_for_write(&store, &stored(&store));
    assert_same(&a.events(&[]), &recorded("keep-alive", "a"), "a");
}

#[test]
fn calls_and_heartbeats_fail_with_the_store() {
    let a = Node::new(&store(), with_keep_alive(settings(1, 1)));
    a.faults.breaks_after_join.store(true, Ordering::Release);
    a.join().expect("a round");
    a.wait_for("has failed to send a keep-alive");
    a.handler.is_closed().expect_err("broken");
    a.handler.set_closed().expect_err("broken");
    a.join().expect_err("broken");
    assert!(!a.handler.shutdown());
    let mut ours = a.events(&[]);
    // Heartbeats keep failing until the node leaves the round.
    let mut failed = 0;
    ours.retain(|event| {
        failed += usize::from(event["name"] == KEEP_ALIVE);
        event["name"] != KEEP_ALIVE || failed == 1
    });
    assert_same(&ours, &recorded("store fails", "a"), "a");
    let events = a.events.all.lock().expect("no panic");
    let trace = &events.last().expect("an event").error_trace;
    assert!(trace.contains("\ncaused by: "), "{trace}");
}

#[test]
fn a_host_records_that_it_hosts_the_store() {
    let parameters = RendezvousParameters::new("c10d", "127.0.0.1:0", "job", 1, 1)
        .expect("parameters")
        .with_config(parse_config("is_host=true").expect("settings"))
        .with_local_addr("127.0.0.1");
    let handler = create_c10d(&parameters).expect("a handler");
    let a = Node::of(handler, Arc::default());
    a.join().expect("a round");
    assert_recorded("host", &[("a", &a)]);
}

#[test]
fn a_change_that_waits_for_the_write_lease_is_recorded_once() {
    // With at most two nodes there is no lease.
    let parameters = RendezvousParameters::new("c10d", "127.0.0.1:0", "job", 1, 3)
        .expect("parameters")
        .with_config(parse_config("is_host=true,last_call_timeout=1").expect("settings"))
        .with_local_addr("127.0.0.1");
    let handler = create_c10d(&parameters).expect("a handler");
    let a = Node::of(handler, Arc::default());
    a.join().expect("a round");
    let ours = a.events(&[]);
    assert_same(&ours[1..], &recorded("waiting, timeout", "a"), "a");
}
