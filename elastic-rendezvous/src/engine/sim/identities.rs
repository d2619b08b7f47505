//! Processes with the same host name and process id, as in two containers, and a node that meets its own writes again.

use std::time::Duration;

use c10d_sim::Seeds;

use super::node::{Command, Kind, SimNode, Watching};
use super::{Faults, World};
use crate::engine::executor::{Executor, Need};
use crate::values::goal::Operation;
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::{RendezvousState, Token, Written};
use crate::values::timestamp::{Now, Timestamp};

const SECOND: Duration = Duration::from_secs(1);

const START: Now = Now {
    monotonic: Duration::from_secs(1000),
    wall: Timestamp::from_micros(1_800_000_000_000_000),
};

fn id(local_id: i64) -> NodeId {
    NodeId::new("worker", 1, local_id)
}

fn token(number: u8) -> Token {
    Token::new([number])
}

/// An open round of nodes with these local ids, whose heartbeats are a second old.
fn open(local_ids: &[i64]) -> RendezvousState {
    let mut state = RendezvousState::default();
    for local_id in local_ids {
        state.participants.insert(id(*local_id), 0);
        let heartbeat = START.wall.before(SECOND);
        state.last_heartbeats.insert(id(*local_id), heartbeat);
    }
    state
}

fn begun(operation: Operation) -> Executor {
    let settings = RendezvousSettings::for_test(3, 4);
    let mut executor = Executor::new(id(0), settings, START);
    executor.begin(operation, START.monotonic + 600 * SECOND, START);
    assert_eq!(executor.step(START), Need::Read);
    executor
}

/// docs/spec/rendezvous.md, IDENTITY 1.
#[test]
fn a_node_takes_the_next_id_that_no_other_process_has() {
    for (taken, expected) in [(&[][..], 0), (&[1], 0), (&[0], 1), (&[0, 1, 3], 2)] {
        let mut executor = begun(Operation::Join);
        executor.on_read(Some((open(taken), token(1))), START);
        assert_eq!(executor.step(START), Need::Write, "{taken:?}");
        assert_eq!(executor.me(), &id(expected), "{taken:?}");
        let written = executor.to_write().0;
        assert!(written.participants.contains_key(&id(expected)));
        assert_eq!(written.participants.len(), taken.len() + 1);
    }
}

/// docs/spec/rendezvous.md, IDENTITY 1.
#[test]
fn a_node_removes_no_other_process_with_its_id() {
    for operation in [Operation::Exit, Operation::Leave] {
        let mut executor = begun(operation);
        executor.on_read(Some((open(&[0]), token(1))), START);
        assert_eq!(executor.step(START), Need::Done(Ok(())), "{operation:?}");
    }
}

/// docs/spec/rendezvous.md, IDENTITY 2. The write took effect, and its answer was lost or another node wrote since.
#[test]
fn a_node_knows_its_own_write_whose_answer_was_lost() {
    for has_other in [false, true] {
        let mut executor = begun(Operation::Join);
        executor.on_read(Some((open(&[2]), token(1))), START);
        // The first attempts never arrive.
        for attempt in 0..10 {
            let now = START.after(SECOND * attempt);
            assert_eq!(executor.step(now), Need::Write);
            executor.on_outage();
            assert_eq!(executor.step(now), Need::Read);
            executor.on_read(Some((open(&[2]), token(1))), now);
        }
        let now = START.after(10 * SECOND);
        assert_eq!(executor.step(now), Need::Write);
        let mut stored = executor.to_write().0.clone();
        if has_other {
            stored.participants.insert(id(5), 0);
            stored.last_heartbeats.insert(id(5), now.wall);
            executor.on_written(Written::Theirs(Box::new(stored), token(3)), now);
        } else {
            executor.on_outage();
            assert_eq!(executor.step(now), Need::Read);
            executor.on_read(Some((stored, token(2))), now);
        }
        executor.step(now);
        assert_eq!(executor.me(), &id(0));
        let participants = &executor.state().participants;
        assert_eq!(participants.len(), if has_other { 3 } else { 2 });
    }
}

/// docs/spec/rendezvous.md, IDENTITY 1 and 2. Nodes that restart often, whose answers are lost and whose writes are
/// refused. A node is never listed twice.
#[test]
fn processes_with_one_id_join_as_one_node_each() {
    Seeds::fixed(100).for_each(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let nodes = random.usize(2..=4);
        let settings = RendezvousSettings::for_test(nodes, nodes);
        let mut world = World::new(seed, settings);
        for _ in 0..nodes {
            let node = SimNode::new(id(0), Kind::Solo, &world.settings);
            world.nodes.push(node);
        }
        for node in 0..nodes {
            let ways = [Watching::Members, Watching::Round, Watching::Polls];
            world.nodes[node].watching = ways[random.usize(..3)];
            world.command_in(random.u64(0..300), node, Command::Start);
        }
        if random.bool() {
            world.set_faults(Faults::ROUGH);
        }
        let check = |world: &World| {
            let state = world.store.state();
            let listed = state.last_heartbeats.len();
            assert!(listed <= nodes, "{}", world.describe());
            world.is_settled()
        };
        for _ in 0..3 {
            let end = world.now() + 30 * SECOND;
            assert!(world.run_until(end, check), "{}", world.describe());
            assert_eq!(world.store.state().participants.len(), nodes);
            world.command(random.usize(..nodes), Command::Rejoin);
            world.run_for(Duration::from_millis(random.u64(1..3_000)));
        }
    });
}

/// docs/spec/rendezvous.md, IDENTITY 1.
#[test]
fn a_process_of_pytorch_keeps_the_id_of_a_node() {
    Seeds::fixed(30).for_each(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new(seed, RendezvousSettings::for_test(2, 2));
        for kind in [Kind::Torch, Kind::Solo] {
            let node = SimNode::new(id(0), kind, &world.settings);
            world.nodes.push(node);
        }
        world.command(0, Command::Start);
        world.command_in(random.u64(2_000..8_000), 1, Command::Start);
        let end = world.now() + 30 * SECOND;
        let done = world.run_until(end, World::is_settled);
        assert!(done, "{}", world.describe());
        let ids: Vec<&NodeId> = world.nodes.iter().map(|node| &node.me).collect();
        assert_eq!(ids, [&id(0), &id(1)]);
    });
}
