//! Simulates complete rendezvous in virtual time, for tests.
//!
//! Any number of engines, each with its own clocks, share one store: nodes that write the state themselves, nodes of a
//! group, and PyTorch's. A seed determines latencies, the order of simultaneous events, and faults of the network. The
//! simulator replaces the shell's `handler_loop` and the launcher, and uses no threads.

mod entering;
mod group;
mod handler;
mod identities;
mod invariants;
mod laws;
mod newcomers;
mod node;
mod random;
mod scenarios;
mod scripted;
mod store;
mod torch;
mod worlds;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use c10d_sim::{Network, Simulation, Timeline};

use self::group::add_after;
use self::invariants::{Invariants, Known};
use self::laws::Laws;
use self::node::{Command, Implementation, Kind, SimNode, Stage, Waiting};
use self::random::Clocks;
use self::store::{Request, Response, SimStore, Version, Wait};
use self::worlds::Worlds;
use crate::engine::Reply;
use crate::engine::group::Ask as GroupAsk;
use crate::values::goal::{Answer, Entry};
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::{RendezvousState, Token};

/// How long a node waits for a lost answer, and for the answer to a write in a [rough](Faults::ROUGH) network. The
/// latter is so short that a live node is never overdue for the other nodes, which the invariants need.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time after which a request has failed in a silent network.
const ATTEMPT: Duration = Duration::from_secs(5);

/// The pause of a node between two attempts to restart.
const OPEN_PAUSE: Duration = Duration::from_secs(1);

/// The faults of the network, and the share of writes that others affect.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Faults {
    /// A message is lost if it is an answer, and arrives twice if it is a request to the holder.
    messages: c10d_sim::Faults,
    /// Writes whose answer is lost.
    unanswered: f64,
    /// Writes that are refused although their token is current.
    refused: f64,
}

impl Faults {
    const CALM: Self = Self {
        messages: c10d_sim::Faults::NONE,
        unanswered: 0.0,
        refused: 0.0,
    };
    const ROUGH: Self = Self {
        messages: c10d_sim::Faults {
            slow: 0.05,
            ..c10d_sim::Faults::NONE
        },
        refused: 0.1,
        unanswered: 0.05,
    };
}

/// A step of a random history.
#[derive(Debug, Clone, Copy)]
enum Act {
    RunFor(Duration),
    /// A node gets a command after this time.
    Command(Duration, usize, Command),
    /// A node is added that starts after this time.
    Add(Kind, Duration),
    AddSolo(Clocks),
    RestartStore(Duration, bool),
    SetFaults(Faults),
}

#[derive(Debug)]
enum Event {
    /// A request arrives at the store.
    Request(u64, Request),
    /// A response arrives at the node.
    Response(u64, Box<Response>),
    /// The node learns that its request has failed.
    Failure(u64),
    /// The node's pause ends.
    Wake(u64),
    /// A node that does not watch the state reads it.
    Poll(u64),
    /// The store learns that this connection of the node has closed.
    Closed(u32),
    Command(Command),
}

/// The number of a request whose response the node does not wait for.
const UNAWAITED: u64 = u64::MAX;

#[derive(Debug)]
struct World {
    settings: RendezvousSettings,
    /// The links of the nodes to the store.
    network: Network,
    faults: Faults,
    /// When the faults were last changed.
    faults_since: Duration,
    random: fastrand::Rng,
    /// The events, each with the number of a node.
    timeline: Timeline<(usize, Event)>,
    store: SimStore,
    nodes: Vec<SimNode>,
    laws: Laws,
    /// `None` as soon as a node writes for others.
    invariants: Option<Invariants>,
    writes_tried: u64,
    /// The nodes that have written that they leave for good.
    gone: BTreeSet<NodeId>,
    /// How often the store was emptied.
    emptied: u32,
    worlds: Worlds,
    /// The members of each round whose workers have started, and whether they take no other node in any more.
    entries: BTreeMap<i64, (BTreeSet<NodeId>, bool)>,
}

impl World {
    fn new(seed: u64, settings: RendezvousSettings) -> Self {
        Self {
            laws: Laws::default(),
            invariants: Some(Invariants::new(settings.clone())),
            settings,
            network: Network::default(),
            faults: Faults::CALM,
            faults_since: Duration::ZERO,
            random: fastrand::Rng::with_seed(seed),
            timeline: Timeline::default(),
            store: SimStore::default(),
            nodes: Vec::new(),
            writes_tried: 0,
            gone: BTreeSet::new(),
            emptied: 0,
            worlds: Worlds::default(),
            entries: BTreeMap::new(),
        }
    }

    /// The time since the start of the simulation.
    fn now(&self) -> Duration {
        self.timeline.now()
    }

    /// The store stops for this time, and all connections are lost.
    fn restart_store(&mut self, time: Duration, is_emptied: bool) {
        self.network.cut_all(self.now() + time);
        if is_emptied {
            self.store.emptied();
            self.emptied += 1;
            self.laws = Laws::default();
            let nodes = self.nodes.iter().map(|node| node.me.clone());
            if let Some(invariants) = &mut self.invariants {
                invariants.on_emptied(nodes);
            }
            self.gone.clear();
            self.entries.clear();
        }
        for index in 0..self.nodes.len() {
            self.nodes[index].was_cut = true;
            if is_emptied {
                self.nodes[index].round = 0;
            }
            self.lose_connection(index);
        }
    }

    /// Loses the messages between the node and the store, and notifies the node.
    fn lose_connection(&mut self, index: usize) {
        self.store.end_waits(index);
        self.store
            .on_closed(&self.nodes[index].me, self.nodes[index].connection);
        self.nodes[index].connection += 1;
        self.timeline.retain(|(node, event)| {
            *node != index || !matches!(event, Event::Request(..) | Event::Response(..))
        });
        let node = &mut self.nodes[index];
        let request_id = node.request_id;
        if node.is_alive() && node.waiting != Waiting::Pause {
            self.schedule(self.now(), index, Event::Failure(request_id));
        } else {
            node.is_disconnected = true;
        }
    }

    /// When a request fails that is on its way now; `None` if it passes.
    fn fails_at(&self, index: usize) -> Option<Duration> {
        self.network.fails_at(index, self.now(), ATTEMPT)
    }

    /// Adds a node that has not started; returns its number.
    fn add_kind(&mut self, name: &str, kind: Kind) -> usize {
        if kind == Kind::Group {
            self.invariants = None;
        }
        let me = NodeId::new(name, 1 + self.nodes.len() as i64, 0);
        self.nodes.push(SimNode::new(me, kind, &self.settings));
        self.nodes.len() - 1
    }

    /// Adds one of our nodes that writes the state itself.
    fn add(&mut self, name: &str) -> usize {
        self.add_kind(name, Kind::Solo)
    }

    fn add_torch(&mut self, name: &str) -> usize {
        self.add_kind(name, Kind::Torch)
    }

    fn set_faults(&mut self, faults: Faults) {
        self.network.faults = faults.messages;
        self.faults = faults;
        self.faults_since = self.now();
    }

    /// Schedules a command for a node, `millis` from now.
    fn command_in(&mut self, millis: u64, node: usize, command: Command) {
        self.command_after(Duration::from_millis(millis), node, command);
    }

    fn command_after(&mut self, after: Duration, node: usize, command: Command) {
        self.schedule(self.now() + after, node, Event::Command(command));
    }

    fn command(&mut self, node: usize, command: Command) {
        self.command_in(0, node, command);
    }

    fn run_for(&mut self, duration: Duration) {
        let end = self.now() + duration;
        self.run_until(end, |_| false);
    }

    /// Runs until `is_done` or until `end`; returns whether it was done.
    fn run_until(&mut self, end: Duration, is_done: impl Fn(&Self) -> bool) -> bool {
        loop {
            if is_done(self) {
                return true;
            }
            let Some((node, event)) = self.timeline.next_until(end) else {
                return is_done(self);
            };
            self.handle(node, event);
            self.worlds.check(&self.settings, self.timeline.now());
        }
    }

    fn alive(&self) -> usize {
        self.nodes.iter().filter(|node| node.is_alive()).count()
    }

    /// Whether as many live nodes as fit are members of the current round and have joined it, the other live
    /// nodes are spares, and no other node is listed.
    fn is_settled(&self) -> bool {
        let Some(version) = self.store.current() else {
            return false;
        };
        let (state, alive) = (&version.state, self.alive());
        if !state.complete
            || state.participants.len() != alive.min(self.settings.max_nodes)
            || state.last_heartbeats.len() != alive
            || !state.wait_list.is_empty()
        {
            return false;
        }
        let has_joined = |answer: &Answer| {
            let joined = answer.joined.as_ref().expect("the answer to a join");
            let knows = |node: &NodeId| state.participants.contains_key(node);
            answer.round == state.round
                && joined.world_size == state.participants.len()
                && joined.nodes.iter().all(knows)
        };
        let mut alive = self.nodes.iter().filter(|node| node.is_alive());
        alive.all(|node| {
            if !state.participants.contains_key(&node.me) {
                return state.redundancy_list.contains(&node.me);
            }
            node.stage == Stage::Member
                && !node.is_rejoin_planned
                && node.commands.is_empty()
                && node.joins.last().is_some_and(has_joined)
        })
    }

    /// The node that believes to hold the lease of the group.
    fn holder(&self) -> Option<usize> {
        let is_holder = |node: &SimNode| node.is_alive() && node.is_holder();
        self.nodes.iter().position(is_holder)
    }

    /// The world of a failed history.
    fn describe(&self) -> String {
        let state = shown(&self.store.state());
        let mut text = format!("at {:?}, {state}; {}", self.now(), self.store.describe());
        for node in &self.nodes {
            let joins: Vec<_> = node.joins.iter().map(|answer| answer.round).collect();
            text += &format!(
                "\n{} {:?}: {:?}, {:?}, joined {joins:?}, next {:?}, {:?} since request {}",
                node.me,
                node.kind,
                node.stage,
                node.watching,
                node.commands,
                node.waiting,
                node.request_id
            );
            if let Implementation::Group(group) = &node.implementation {
                text += &format!(", index {}: {}", node.index, group.station().describe());
            }
        }
        text
    }

    /// Prints the events, if one history is repeated.
    fn trace(&self, index: usize, what: impl FnOnce() -> String) {
        if c10d_sim::is_replay() {
            #[expect(clippy::print_stderr, reason = "for a person")]
            {
                eprintln!("{:?} {}: {}", self.now(), self.nodes[index].me, what());
            }
        }
    }

    fn schedule(&mut self, at: Duration, node: usize, event: Event) {
        self.timeline.add(at, (node, event), &mut self.random);
    }

    /// When a message arrives that is sent now.
    fn arrives_at(&mut self) -> Duration {
        self.now() + self.network.latency(&mut self.random)
    }

    fn handle(&mut self, index: usize, event: Event) {
        if let Event::Request(request_id, request) = event {
            // This includes a request from a node that has died in the meantime.
            return self.serve(index, request_id, request);
        }
        if let Event::Closed(connection) = event {
            return self.store.on_closed(&self.nodes[index].me, connection);
        }
        if let (Event::Response(request_id, _), Some(at)) = (&event, self.fails_at(index)) {
            let request_id = *request_id;
            return self.schedule(at, index, Event::Failure(request_id));
        }
        let node = &self.nodes[index];
        let affects_paused = matches!(
            event,
            Event::Command(Command::Crash | Command::Pause(_) | Command::Jump(_))
        );
        if self.now() < node.paused_until && !affects_paused {
            let at = node.paused_until;
            return self.schedule(at, index, event);
        }
        match event {
            Event::Command(command) => self.on_command(index, command),
            Event::Response(request_id, response) if request_id == node.request_id => {
                self.on_response(index, *response);
            }
            Event::Failure(request_id) if request_id == node.request_id => self.on_failure(index),
            Event::Wake(request_id) if request_id == node.request_id => {
                self.on_reply(index, Reply::Nothing);
            }
            Event::Poll(request_id) if request_id == node.request_id => {
                self.send(index, Request::ReadState);
            }
            // The node no longer waits for this event.
            _ => {}
        }
    }

    /// Handles a request at the store.
    fn serve(&mut self, index: usize, request_id: u64, request: Request) {
        if let Some(at) = self.fails_at(index) {
            return match request {
                // The request is repeated until it passes.
                Request::Open => {
                    let again = Event::Request(request_id, request);
                    self.schedule(at + OPEN_PAUSE, index, again);
                }
                _ => self.schedule(at, index, Event::Failure(request_id)),
            };
        }
        let now = self.now();
        let group_index = self.nodes[index].index;
        let mut is_answered = true;
        let response = match &request {
            Request::ReadState | Request::WriteState(..) if self.store.is_lost() => {
                Some(Response::Lost)
            }
            Request::ReadState => Some(Response::State(self.store.answer(false, now))),
            Request::WriteState(state, token) => {
                is_answered = self.random.f64() >= self.faults.unanswered;
                let is_ours = self.write(index, state, token.as_ref());
                Some(Response::Written(self.store.answer(is_ours, now)))
            }
            Request::CheckState(token) => {
                let is_same = self.store.is_same(token.as_ref());
                Some(Response::Group(Reply::IsSame(is_same)))
            }
            Request::AwaitState(watched, _) => self.store.changed(watched, now),
            Request::Group(ask) => {
                let response = self.store.perform(group_index, ask).map(Response::Group);
                if matches!(
                    **ask,
                    GroupAsk::Push(_) | GroupAsk::WriteAnswers(_) | GroupAsk::WriteSummary(_)
                ) {
                    self.wake_waiting();
                }
                response
            }
            Request::ReadMarks(nodes) => {
                let marks = self.store.marks_of(nodes);
                Some(Response::Group(Reply::Marks(Some(marks))))
            }
            Request::SetMark(me, connection) => {
                let node = &self.nodes[index];
                if node.is_alive() && node.connection == *connection {
                    self.store.set_mark(me.clone(), *connection);
                }
                Some(Response::Group(Reply::Done))
            }
            Request::Open => Some(Response::Opened(self.store.open())),
            Request::EndWait if self.store.end_wait(index, request_id) => {
                Some(Response::Group(Reply::Nothing))
            }
            Request::EndWait => return,
        };
        match response {
            Some(response) => self.respond(index, request_id, response, is_answered),
            None => self.wait_in_store(index, request_id, request),
        }
    }

    fn wait_in_store(&mut self, index: usize, request_id: u64, request: Request) {
        let node = &mut self.nodes[index];
        if !node.is_alive() || node.request_id != request_id {
            return;
        }
        if std::mem::take(&mut node.is_interrupted) {
            let nothing = Response::Group(Reply::Nothing);
            return self.respond(index, request_id, nothing, true);
        }
        let until = request.until().and_then(|until| node.in_simulation(until));
        if let Some(until) = until {
            let end = Event::Request(request_id, Request::EndWait);
            self.schedule(until.max(self.now()), index, end);
        }
        self.store.wait(Wait {
            node: index,
            request_id,
            index: self.nodes[index].index,
            request,
        });
    }

    fn wake_waiting(&mut self) {
        for (wait, response) in self.store.take_ready(self.now()) {
            self.respond(wait.node, wait.request_id, response, true);
        }
    }

    fn respond(&mut self, index: usize, request_id: u64, response: Response, is_answered: bool) {
        let is_lost = self.network.is_lost(&mut self.random);
        if is_lost || !is_answered {
            let timeout = if is_lost {
                REPLY_TIMEOUT
            } else {
                WRITE_TIMEOUT
            };
            return self.schedule(self.now() + timeout, index, Event::Failure(request_id));
        }
        let at = self.arrives_at();
        let response = Box::new(response);
        self.schedule(at, index, Event::Response(request_id, response));
    }

    /// Stores a state, unless it is refused. Returns whether it was stored.
    fn write(&mut self, writer: usize, state: &RendezvousState, token: Option<&Token>) -> bool {
        self.writes_tried += 1;
        let is_refused = self.random.f64() < self.faults.refused;
        if !self.store.accepts(token) || is_refused {
            return false;
        }
        let node = &self.nodes[writer];
        let before = self.store.current().cloned();
        let (me, is_torch) = (&node.me, node.is_torch());
        let initial = RendezvousState::default();
        let old = before.as_ref().map_or(&initial, |version| &version.state);
        self.trace(writer, || format!("writes {}", shown(state)));
        let is_open = node.keeps && state.complete && self.entry(state.round) == Entry::Open;
        self.laws
            .on_write(me, old, state, &self.settings, self.now(), is_open);
        if let Some(invariants) = &mut self.invariants {
            let (nodes, gone) = (&self.nodes, &self.gone);
            let comes_back = |node: &NodeId| {
                // A node that was silent may count as lost.
                let punctual = |other: &&SimNode| {
                    other.is_alive() && other.stage != Stage::Away && !other.was_late()
                };
                let mut others = nodes.iter().filter(punctual);
                !gone.contains(node) && others.any(|other| other.me == *node)
            };
            let before = before.as_deref();
            let may_be_lost = |node: &NodeId| is_long_gone(nodes, node);
            let known = (&comes_back as Known<'_>, &may_be_lost as Known<'_>);
            invariants.on_write((me, is_torch), before, state, known, self.timeline.now());
        }
        self.store.put(state, self.now());
        self.check_punctual(writer, before.as_deref());
        self.wake_waiting();
        true
    }

    /// Checks that one of our nodes, which writes the state itself, writes its heartbeats in time while the network is
    /// calm.
    fn check_punctual(&self, writer: usize, before: Option<&Version>) {
        let node = &self.nodes[writer];
        let is_calm = self.faults == Faults::CALM && !node.was_late();
        if !is_calm || node.is_torch() || self.invariants.is_none() {
            return;
        }
        let written_at = before.and_then(|version| version.written_at.get(&node.me));
        let when_calm = self.faults_since + self.settings.keep_alive_interval;
        if let Some(at) = written_at.filter(|at| **at >= when_calm) {
            let pause = self.now() - *at;
            // Concurrent writers delay each other, but one interval must be left before the other nodes drop it.
            let pause_max = self.settings.dead_after() - self.settings.keep_alive_interval;
            assert!(pause <= pause_max, "{} wrote {pause:?} ago", node.me);
        }
    }
}

impl Simulation for World {
    type Step = Act;

    fn take(&mut self, act: Act) {
        match act {
            Act::RunFor(time) => self.run_for(time),
            Act::Command(after, node, command) => self.command_after(after, node, command),
            Act::Add(kind, after) => _ = add_after(self, kind, after),
            Act::AddSolo(clocks) => _ = clocks.add_to(self),
            Act::RestartStore(time, is_emptied) => self.restart_store(time, is_emptied),
            Act::SetFaults(faults) => self.set_faults(faults),
        }
    }

    fn is_possible(&self, act: &Act) -> bool {
        !matches!(act, Act::Command(_, node, _) if *node >= self.nodes.len())
    }
}

/// Whether this node was without a connection for longer than 2 s, so that it may count as lost.
fn is_long_gone(nodes: &[SimNode], node: &NodeId) -> bool {
    let mut nodes = nodes.iter();
    nodes.any(|it| it.me == *node && it.was_long_gone)
}

/// The state without heartbeats, for a person.
fn shown(state: &RendezvousState) -> String {
    let names = |nodes: &mut dyn Iterator<Item = &NodeId>| {
        nodes.map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    format!(
        "round {} complete {} closed {} deadline {:?}: [{}] waits [{}] spare [{}]",
        state.round,
        state.complete,
        state.closed,
        state.deadline,
        names(&mut state.participants.keys()),
        names(&mut state.wait_list.iter()),
        names(&mut state.redundancy_list.iter()),
    )
}
