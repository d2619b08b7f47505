//! Rendezvous states that pass from our codec to PyTorch's classes and back.
//!
//! PyTorch decodes a state of ours, describes it as JSON, changes it with its own methods and encodes it. The test
//! decodes the result and compares.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::ChildStdin;
use std::time::Duration;

use elastic_rendezvous::codec::{self, CodecLimits};
use elastic_rendezvous::{DatetimeStyle, NodeId, RendezvousState, Timestamp};
use integration_tests::process::ChildProcess;
use integration_tests::torch::{Feature, Release, from_hex, python, script, to_hex};
use integration_tests::watchdog::Watchdog;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(300);

const ROUNDS: usize = 60;

/// A process that runs `rendezvous_codec.py`.
struct Torch {
    process: ChildProcess,
    stdin: ChildStdin,
}

/// PyTorch's reply: the state before and after the action, and its encodings.
struct Answer {
    before: RendezvousState,
    again: Vec<u8>,
    after: RendezvousState,
    pickle: Vec<u8>,
}

impl Torch {
    fn start() -> Self {
        let mut process = ChildProcess::start(
            "PyTorch's rendezvous",
            python().arg(script("rendezvous_codec.py")),
        );
        let hello: Value = serde_json::from_str(&process.read_line()).expect("JSON");
        assert!(hello["version"].is_string(), "{hello}");
        let stdin = process.take_stdin();
        Self { process, stdin }
    }

    /// Sends `pickle` to PyTorch, where `node` performs `action`.
    fn ask(&mut self, pickle: &[u8], how: &str, action: Option<(&str, &NodeId)>) -> Answer {
        let request = json!({
            "pickle": to_hex(pickle),
            "how": how,
            "action": action.map(|(action, _)| action),
            "node": action.map(|(_, node)| json!([&*node.addr, node.pid, node.local_id])),
        });
        if let Err(error) = writeln!(self.stdin, "{request}") {
            panic!("PyTorch has ended ({error}):\n{}", self.process.stderr());
        }
        let reply: Value = serde_json::from_str(&self.process.read_line()).expect("JSON");
        let bytes = |name: &str| from_hex(reply[name].as_str().expect("hex"));
        Answer {
            before: described(&reply["before"]),
            again: bytes("again"),
            after: described(&reply["after"]),
            pickle: bytes("pickle"),
        }
    }
}

fn described(json: &Value) -> RendezvousState {
    let list = |name: &str| json[name].as_array().expect("a list");
    let node = |json: &Value| {
        let addr = json[0].as_str().expect("addr");
        NodeId::new(addr, integer(&json[1]), integer(&json[2]))
    };
    let time = |json: &Value| Timestamp::from_micros(integer(json));
    RendezvousState {
        round: integer(&json["round"]),
        complete: json["complete"].as_bool().expect("a bool"),
        deadline: (!json["deadline"].is_null()).then(|| time(&json["deadline"])),
        closed: json["closed"].as_bool().expect("a bool"),
        participants: list("participants")
            .iter()
            .map(|entry| (node(&entry[0]), integer(&entry[1])))
            .collect(),
        wait_list: list("wait_list").iter().map(node).collect(),
        redundancy_list: list("redundancy_list").iter().map(node).collect(),
        last_heartbeats: list("last_heartbeats")
            .iter()
            .map(|entry| (node(&entry[0]), time(&entry[1])))
            .collect(),
        datetime_style: if json["naive"].as_bool().expect("a bool") {
            DatetimeStyle::Naive
        } else {
            DatetimeStyle::Aware
        },
    }
}

fn integer(json: &Value) -> i64 {
    json.as_i64().expect("an integer of 64 bits")
}

/// Asserts that two states are equal, including the order of the maps.
fn assert_same(left: &RendezvousState, right: &RendezvousState, what: &str) {
    assert_eq!(left, right, "{what}");
    assert!(
        left.participants.keys().eq(right.participants.keys()),
        "{what}: order of participants"
    );
    assert!(
        left.last_heartbeats.keys().eq(right.last_heartbeats.keys()),
        "{what}: order of heartbeats"
    );
}

fn decode(pickle: &[u8]) -> RendezvousState {
    codec::decode(pickle, &CodecLimits::default())
        .unwrap_or_else(|error| panic!("{error}: {}", to_hex(pickle)))
}

/// Whether the encoding is deterministic. Python's order of a set with several members is random.
fn has_fixed_bytes(state: &RendezvousState) -> bool {
    state.wait_list.len() <= 1 && state.redundancy_list.len() <= 1
}

/// A generator of random states. A failed test prints its seed.
struct Random {
    rng: fastrand::Rng,
}

impl Random {
    fn new() -> Self {
        Self {
            rng: fastrand::Rng::with_seed(c10d_sim::seed()),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.u64(..bound)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// An integer of 0 to 62 bits, so that every pickle encoding of integers occurs.
    fn integer(&mut self) -> i64 {
        let bits = self.below(63);
        let magnitude = self.below(1 << bits) as i64;
        if self.one_in(4) {
            -magnitude
        } else {
            magnitude
        }
    }

    /// A time from 1970 to 2100.
    fn time(&mut self) -> Timestamp {
        Timestamp::from_micros(self.below(4_102_444_800_000_000) as i64)
    }

    /// Addresses are longer than one character: Python shares shorter strings, which would change the bytes.
    fn node(&mut self) -> NodeId {
        let addr = match self.below(6) {
            0 => "localhost".to_owned(),
            1 => format!("knoten{}.beispiel-ü.節点", self.below(100)),
            2 => format!("fe80::{:x}%eth0", self.below(1000)),
            3 => format!(
                "node{}.{}",
                self.below(9),
                "x".repeat(self.below(300) as usize)
            ),
            _ => format!("node{}.example.com", self.below(1000)),
        };
        NodeId::new(addr, self.integer(), self.integer())
    }

    fn state(&mut self, nodes: u64) -> RendezvousState {
        let mut state = RendezvousState {
            round: self.integer().abs(),
            complete: self.one_in(2),
            deadline: self.one_in(2).then(|| self.time()),
            closed: self.one_in(4),
            ..RendezvousState::default()
        };
        let shared = self.node();
        for _ in 0..nodes {
            let mut node = self.node();
            if self.one_in(4) {
                node.addr = shared.addr.clone();
            }
            match self.below(8) {
                0 => _ = state.wait_list.insert(node.clone()),
                1 => _ = state.redundancy_list.insert(node.clone()),
                2 => {}
                _ => _ = state.participants.insert(node.clone(), self.integer()),
            }
            if !self.one_in(5) {
                let time = self.time();
                state.last_heartbeats.insert(node, time);
            }
        }
        state
    }
}

/// Applies a node's action to `state` as PyTorch does. The time of a heartbeat is read from `theirs`, because it
/// comes from PyTorch's clock.
fn apply(action: &str, node: &NodeId, state: &mut RendezvousState, theirs: &RendezvousState) {
    let keeps_alive = |state: &mut RendezvousState| {
        let time = theirs.last_heartbeats[node];
        assert!(time > Timestamp::from_micros(0));
        state.last_heartbeats.insert(node.clone(), time);
    };
    match action {
        "keep_alive" => keeps_alive(state),
        "add_to_participants" => {
            state.wait_list.remove(node);
            state.participants.insert(node.clone(), 0);
            keeps_alive(state);
        }
        "add_to_wait_list" => {
            state.redundancy_list.remove(node);
            state.wait_list.insert(node.clone());
            keeps_alive(state);
        }
        "add_to_redundancy_list" => {
            state.redundancy_list.insert(node.clone());
            keeps_alive(state);
        }
        "remove_from_participants" => {
            state.participants.shift_remove(node);
            state.last_heartbeats.shift_remove(node);
            if !state.complete {
                state.deadline = None;
            } else if state.participants.is_empty() {
                state.complete = false;
                state.round += 1;
            }
        }
        "mark_rendezvous_complete" => {
            state.complete = true;
            state.deadline = None;
            let ranks: BTreeSet<NodeId> = state.participants.keys().cloned().collect();
            for (rank, node) in (0..).zip(ranks) {
                state.participants[&node] = rank;
            }
        }
        "mark_rendezvous_closed" => state.closed = true,
        _ => unreachable!("{action}"),
    }
}

/// Encodes `state`, lets PyTorch apply `action`, and compares the states and bytes of each step. Returns PyTorch's
/// encoding.
fn exchange(torch: &mut Torch, state: &RendezvousState, action: &str, node: &NodeId) -> Vec<u8> {
    let ours = codec::encode(state);
    let answer = torch.ask(&ours, "sync", Some((action, node)));
    assert_same(&answer.before, state, "PyTorch's reading of our state");
    assert_same(
        &decode(&answer.again),
        state,
        "our reading of PyTorch's copy",
    );
    if has_fixed_bytes(state) {
        assert_eq!(to_hex(&answer.again), to_hex(&ours), "PyTorch's bytes");
    }
    let mut expected = state.clone();
    apply(action, node, &mut expected, &answer.after);
    assert_same(&answer.after, &expected, action);
    assert_same(&decode(&answer.pickle), &expected, "our reading");
    answer.pickle
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn pytorch_and_our_codec_read_each_others_states() {
    let test = "pytorch_and_our_codec_read_each_others_states";
    let _watchdog = Watchdog::start(test, LIMIT);
    // Older releases fail on states with aware times.
    if !Release::tested().allows(Feature::AwareTimes) {
        return;
    }
    let mut random = Random::new();
    let mut torch = Torch::start();
    for _ in 0..ROUNDS {
        let nodes = random.below(12);
        let mut state = random.state(nodes);
        // Continues with the state that PyTorch has encoded.
        for _ in 0..3 {
            let leaving = state
                .participants
                .keys()
                .find(|node| state.last_heartbeats.contains_key(*node));
            let (action, node) = match (random.below(7), leaving) {
                (0, Some(node)) => ("remove_from_participants", node.clone()),
                (0 | 1, _) => ("mark_rendezvous_complete", random.node()),
                (2, _) => ("mark_rendezvous_closed", random.node()),
                (3, Some(node)) => ("keep_alive", node.clone()),
                (3 | 4, _) => ("add_to_participants", random.node()),
                (5, _) => ("add_to_wait_list", random.node()),
                _ => ("add_to_redundancy_list", random.node()),
            };
            let theirs = exchange(&mut torch, &state, action, &node);
            state = decode(&theirs);
            if has_fixed_bytes(&state) {
                assert_eq!(to_hex(&codec::encode(&state)), to_hex(&theirs), "{action}");
            }
        }
    }
}

/// A pickle above 64 KiB has several frames, and a map with more than 1000 entries several batches.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn large_states_have_the_same_bytes_as_pytorchs() {
    let test = "large_states_have_the_same_bytes_as_pytorchs";
    let _watchdog = Watchdog::start(test, LIMIT);
    // Older releases fail on states with aware times.
    if !Release::tested().allows(Feature::AwareTimes) {
        return;
    }
    let mut random = Random::new();
    let mut torch = Torch::start();
    for nodes in [255, 700, 999, 1000, 1001, 1999, 2000, 2001, 3000] {
        let mut state = RendezvousState::default();
        for index in 0..nodes {
            let node = NodeId::new(format!("node{index}.example.com"), random.integer(), 0);
            state.participants.insert(node.clone(), index);
            state.last_heartbeats.insert(node, random.time());
        }
        let node = NodeId::new("late.example.com", 1, 0);
        exchange(&mut torch, &state, "mark_rendezvous_complete", &node);
        state.last_heartbeats.clear();
        exchange(&mut torch, &state, "add_to_wait_list", &node);
        state.wait_list = state.participants.drain(..).map(|(node, _)| node).collect();
        exchange(&mut torch, &state, "add_to_wait_list", &node);
    }
}

/// Tests pickle alone: the rendezvous of current PyTorch fails on such a state, which only older releases write.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn times_without_a_time_zone_round_trip() {
    let test = "times_without_a_time_zone_round_trip";
    let _watchdog = Watchdog::start(test, LIMIT);
    let mut random = Random::new();
    let mut torch = Torch::start();
    for nodes in 0..20 {
        let mut state = random.state(nodes);
        state.deadline = Some(random.time());
        state.datetime_style = DatetimeStyle::Naive;
        let ours = codec::encode(&state);
        let answer = torch.ask(&ours, "pickle", None);
        assert_same(&answer.before, &state, "PyTorch's reading");
        assert_same(&decode(&answer.pickle), &state, "our reading");
        if has_fixed_bytes(&state) {
            assert_eq!(to_hex(&answer.again), to_hex(&ours), "PyTorch's bytes");
        }
    }
}

/// The smallest and largest times and integers that both can represent.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn extreme_times_and_integers_round_trip() {
    let test = "extreme_times_and_integers_round_trip";
    let _watchdog = Watchdog::start(test, LIMIT);
    let mut torch = Torch::start();
    let integers = [0, 255, 256, 65_535, 65_536, 1 << 31, 1 << 39, i64::MAX];
    let times = [
        Timestamp::MIN,
        Timestamp::MAX,
        Timestamp::from_micros(-1),
        Timestamp::from_micros(951_868_799_999_999),
    ];
    let mut state = RendezvousState::default();
    for (index, integer) in integers.iter().flat_map(|&n| [n, -n, !n]).enumerate() {
        state.round = integer;
        state.deadline = Some(times[index % times.len()]);
        let node = NodeId::new("x".repeat(250 + index), integer, !integer);
        state.participants.insert(node.clone(), integer);
        state
            .last_heartbeats
            .insert(node, times[index % times.len()]);
        let ours = codec::encode(&state);
        let answer = torch.ask(&ours, "pickle", None);
        assert_same(&answer.before, &state, "PyTorch's reading");
        assert_same(&decode(&answer.pickle), &state, "our reading");
        assert_eq!(to_hex(&answer.again), to_hex(&ours), "PyTorch's bytes");
    }
}
