//! Simulates complete rendezvous in virtual time, for tests.
//!
//! Any number of executors, each with its own clocks, share one value with a fencing token. A seed determines
//! latencies, the order of simultaneous events, and lost messages. The simulator replaces `handler_loop` and the
//! launcher, and uses no threads.

mod group;
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
use std::rc::Rc;
use std::time::Duration;

use self::invariants::Invariants;
use self::node::{Command, Implementation, Joined, Outcome, SimNode, Stage, Watching};
use self::store::{Answer, SimStore, Version};
use self::torch::{POLL_INTERVAL, TorchNode};
use self::worlds::Worlds;
use crate::engine::executor::{Executor, Need};
use crate::values::clock::Now;
use crate::values::goal::Operation;
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::stored::{Part, Token};
use crate::values::timestamp::Timestamp;

/// How long a node waits for an answer before it repeats the request.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause of a node after a request that has failed, and the time after which one has failed in a silent network.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const ATTEMPT: Duration = Duration::from_secs(5);

/// A node that waits for at most [`SHORT_WAIT`] more than [`SHORT_WAITS_MAX`] times in a row, without a new
/// state, is in a busy loop.
const SHORT_WAIT: Duration = Duration::from_millis(2);
const SHORT_WAITS_MAX: u32 = 8;

/// The faults of the network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Network {
    /// The share of messages that take up to 1.5 s.
    slow: f64,
    /// The share of writes that are refused although their token is current.
    refused: f64,
    /// The share of writes whose answer is lost.
    lost: f64,
}

impl Network {
    const CALM: Self = Self {
        slow: 0.0,
        refused: 0.0,
        lost: 0.0,
    };
    const ROUGH: Self = Self {
        slow: 0.05,
        refused: 0.1,
        lost: 0.05,
    };
}

#[derive(Debug)]
enum Request {
    Read,
    Write(Box<RendezvousState>, Option<Token>),
    Watch(Option<Rc<Version>>, Part),
}

#[derive(Debug)]
enum Event {
    /// A request arrives at the store.
    Request(u64, Request),
    /// An answer arrives at the node; the flag is true for the answer to a write.
    Answer(u64, Answer, bool),
    /// No answer has arrived within [`REPLY_TIMEOUT`].
    NoAnswer(u64),
    /// The node's wait ends.
    Wake(u64),
    /// A node that polls reads the state.
    Poll(u64),
    /// The pause after a write conflict ends.
    Retry(u64),
    Command(Command),
    Nothing,
}

#[derive(Debug)]
struct Watch {
    node: usize,
    request_id: u64,
    known: Option<Rc<Version>>,
    part: Part,
}

#[derive(Debug)]
pub(crate) struct World {
    now: Duration,
    settings: RendezvousSettings,
    network: Network,
    /// When the network was last changed.
    network_since: Duration,
    random: fastrand::Rng,
    /// Ordered by time; events at the same time are in random order.
    events: BTreeMap<(Duration, u32, u64), (usize, Event)>,
    events_made: u64,
    store: SimStore,
    watches: Vec<Watch>,
    nodes: Vec<SimNode>,
    invariants: Invariants,
    writes_tried: u64,
    /// The nodes that have written that they leave for good.
    gone: BTreeSet<NodeId>,
    /// Until when the store has stopped.
    away_until: Duration,
    /// How often the store was emptied.
    emptied: u32,
    worlds: Worlds,
}

impl World {
    fn new(seed: u64, settings: RendezvousSettings) -> Self {
        Self {
            now: Duration::ZERO,
            invariants: Invariants::new(settings.clone()),
            settings,
            network: Network::CALM,
            network_since: Duration::ZERO,
            random: fastrand::Rng::with_seed(seed),
            events: BTreeMap::new(),
            events_made: 0,
            store: SimStore::default(),
            watches: Vec::new(),
            nodes: Vec::new(),
            writes_tried: 0,
            gone: BTreeSet::new(),
            away_until: Duration::ZERO,
            emptied: 0,
            worlds: Worlds::default(),
        }
    }

    /// The store stops for this time, and all connections are lost.
    fn restart_store(&mut self, time: Duration, is_emptied: bool) {
        self.away_until = self.away_until.max(self.now + time);
        if is_emptied {
            self.store = SimStore::default();
            self.emptied += 1;
            let nodes = self.nodes.iter().map(|node| node.me().clone());
            self.invariants.on_emptied(nodes);
            self.gone.clear();
        }
        for index in 0..self.nodes.len() {
            self.nodes[index].was_cut = true;
            if is_emptied {
                self.nodes[index].round = 0;
            }
            self.lose_connection(index);
        }
    }

    /// What is on its way between the node and the store is lost, and the node knows it.
    fn lose_connection(&mut self, index: usize) {
        let request_id = self.nodes[index].request_id;
        for (node, event) in self.events.values_mut() {
            if *node == index && matches!(event, Event::Request(..) | Event::Answer(..)) {
                *event = Event::Nothing;
            }
        }
        self.watches.retain(|watch| watch.node != index);
        if self.nodes[index].is_alive() {
            self.schedule(self.now, index, Event::NoAnswer(request_id));
        }
    }

    /// When a request fails that is on its way now; `None` if it passes.
    fn fails_at(&self, index: usize) -> Option<Duration> {
        let node = &self.nodes[index];
        if self.now < node.cut_until {
            let time = if node.is_silent {
                ATTEMPT
            } else {
                Duration::ZERO
            };
            return Some(self.now + time);
        }
        (self.now < self.away_until).then_some(self.now)
    }

    /// Adds a node of ours that has not started; returns its number.
    fn add(&mut self, name: &str) -> usize {
        let me = NodeId::new(name, 1 + self.nodes.len() as i64, 0);
        let never = Now {
            monotonic: Duration::ZERO,
            wall: Timestamp::MIN,
        };
        let executor = Executor::new(me, self.settings.clone(), never);
        self.nodes
            .push(SimNode::new(Implementation::Ours(Box::new(executor))));
        self.nodes.len() - 1
    }

    /// Adds a PyTorch node that has not started; returns its number.
    fn add_torch(&mut self, name: &str) -> usize {
        let me = NodeId::new(name, 1 + self.nodes.len() as i64, 0);
        let torch = TorchNode::new(me, self.settings.clone());
        self.nodes
            .push(SimNode::new(Implementation::Torch(Box::new(torch))));
        self.nodes.len() - 1
    }

    fn set_network(&mut self, network: Network) {
        self.network = network;
        self.network_since = self.now;
    }

    /// Schedules a command for a node, `millis` from now.
    fn command_in(&mut self, millis: u64, node: usize, command: Command) {
        let at = self.now + Duration::from_millis(millis);
        self.schedule(at, node, Event::Command(command));
    }

    fn command(&mut self, node: usize, command: Command) {
        self.command_in(0, node, command);
    }

    fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.run_until(end, |_| false);
    }

    /// Runs until `is_done` or until `end`; returns whether it was done.
    fn run_until(&mut self, end: Duration, is_done: impl Fn(&Self) -> bool) -> bool {
        loop {
            if is_done(self) {
                return true;
            }
            match self.events.first_key_value() {
                Some((&(at, ..), _)) if at <= end => {
                    let Some((_, (node, event))) = self.events.pop_first() else {
                        return false;
                    };
                    self.now = at;
                    self.handle(node, event);
                    self.worlds.check(&self.settings, self.now);
                }
                _ => {
                    self.now = end;
                    return is_done(self);
                }
            }
        }
    }

    fn alive(&self) -> usize {
        self.nodes.iter().filter(|node| node.is_alive()).count()
    }

    /// Whether as many live nodes as fit are members of the current round and have joined it, the other live
    /// nodes are spares, and no other node is listed.
    fn is_settled(&self) -> bool {
        let state = self.store.state();
        let alive = self.alive();
        if !state.complete
            || state.participants.len() != alive.min(self.settings.max_nodes)
            || state.last_heartbeats.len() != alive
            || !state.wait_list.is_empty()
        {
            return false;
        }
        let members: BTreeSet<NodeId> = state.participants.keys().cloned().collect();
        self.nodes
            .iter()
            .filter(|node| node.is_alive())
            .all(|node| {
                if !members.contains(node.me()) {
                    return state.redundancy_list.contains(node.me());
                }
                let is_joining = matches!(
                    node.stage,
                    Stage::Busy(Operation::Join | Operation::Exit | Operation::Leave)
                );
                let joined = node.joins.last();
                !is_joining
                    && !node.is_rejoin_planned
                    && node.commands.is_empty()
                    && joined.is_some_and(|it| it.round == state.round && it.nodes == members)
            })
    }

    fn schedule(&mut self, at: Duration, node: usize, event: Event) {
        self.events_made += 1;
        let key = (at, self.random.u32(..), self.events_made);
        self.events.insert(key, (node, event));
    }

    fn latency(&mut self) -> Duration {
        if self.random.f64() < self.network.slow {
            return Duration::from_micros(self.random.u64(2_000..1_500_000));
        }
        Duration::from_micros(self.random.u64(50..2_000))
    }

    fn handle(&mut self, index: usize, event: Event) {
        if let Event::Request(request_id, request) = event {
            return self.serve(index, request_id, request);
        }
        if let (Event::Answer(request_id, ..), Some(at)) = (&event, self.fails_at(index)) {
            let request_id = *request_id;
            return self.schedule(at, index, Event::NoAnswer(request_id));
        }
        let node = &mut self.nodes[index];
        let affects_paused = matches!(
            event,
            Event::Command(Command::Crash | Command::Pause(_) | Command::Jump(_))
        );
        if self.now < node.paused_until && !affects_paused {
            let at = node.paused_until;
            return self.schedule(at, index, event);
        }
        match event {
            Event::Request(..) | Event::Nothing => {}
            Event::Command(command) => self.on_command(index, command),
            Event::Answer(request_id, answer, was_write) if request_id == node.request_id => {
                self.on_answer(index, &answer, was_write);
            }
            Event::NoAnswer(request_id) if request_id == node.request_id => {
                self.on_no_answer(index);
            }
            Event::Retry(request_id) if request_id == node.request_id => self.drive(index),
            Event::Poll(request_id) if request_id == node.request_id => {
                self.send(index, Request::Read)
            }
            Event::Wake(request_id) if request_id == node.request_id => match node.stage {
                Stage::Member => self.keep_alive(index),
                _ => self.drive(index),
            },
            // The node no longer waits for this event.
            _ => {}
        }
    }

    /// A request has failed: the node reads again, as `handler_loop` does.
    fn on_no_answer(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let clock = node.clock(self.now);
        node.request_id += 1;
        let request_id = node.request_id;
        let Implementation::Ours(executor) = &mut node.implementation else {
            return self.send(index, Request::Read);
        };
        executor.on_outage();
        let is_kept = executor
            .is_kept_until()
            .is_some_and(|until| clock.monotonic < until);
        let at = self.now + RETRY_PAUSE;
        match node.stage {
            Stage::Member | Stage::Busy(Operation::KeepAlive) => {
                node.stage = Stage::Member;
                node.idle_until = at;
                if !is_kept {
                    self.plan_restart(index);
                }
                if self.nodes[index].commands.is_empty() {
                    self.schedule(at, index, Event::Wake(request_id));
                } else {
                    self.next_command(index);
                }
            }
            _ => self.schedule(at, index, Event::Retry(request_id)),
        }
    }

    /// The launcher stops the workers, and joins again.
    fn plan_restart(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if !node.restarts || std::mem::replace(&mut node.is_rejoin_planned, true) {
            return;
        }
        // How long it takes to stop the workers.
        let millis = self.random.u64(0..2_000);
        let joins = node.joins.len();
        self.command_in(millis, index, Command::Restart { joins });
    }

    /// Handles a request at the store.
    fn serve(&mut self, index: usize, request_id: u64, request: Request) {
        if let Some(at) = self.fails_at(index) {
            return self.schedule(at, index, Event::NoAnswer(request_id));
        }
        let mut is_ours = false;
        let was_write = matches!(request, Request::Write(..));
        match request {
            Request::Read => {}
            Request::Watch(known, part) => {
                self.watches.retain(|watch| watch.node != index);
                if !self.store.differs(known.as_ref(), part) {
                    let node = index;
                    return self.watches.push(Watch {
                        node,
                        request_id,
                        known,
                        part,
                    });
                }
            }
            Request::Write(state, token) => {
                self.writes_tried += 1;
                let is_refused = self.random.f64() < self.network.refused;
                if self.store.accepts(token.as_ref()) && !is_refused {
                    self.put(index, &state);
                    is_ours = true;
                }
            }
        }
        let answer = Answer {
            version: self.store.current().cloned(),
            is_ours,
            at: self.now,
        };
        if was_write && self.random.f64() < self.network.lost {
            let at = self.now + REPLY_TIMEOUT;
            return self.schedule(at, index, Event::NoAnswer(request_id));
        }
        let at = self.now + self.latency();
        self.schedule(at, index, Event::Answer(request_id, answer, was_write));
    }

    fn put(&mut self, writer: usize, state: &RendezvousState) {
        let node = &self.nodes[writer];
        let before = self.store.current().cloned();
        let (me, is_torch) = (node.me().clone(), node.is_torch());
        let (nodes, gone) = (&self.nodes, &self.gone);
        let comes_back = |node: &NodeId| {
            // A node that was silent may count as lost.
            let punctual = |other: &&SimNode| other.is_alive() && !other.was_late();
            let mut others = nodes.iter().filter(punctual);
            !gone.contains(node) && others.any(|other| other.me() == node)
        };
        self.invariants.on_write(
            (&me, is_torch),
            before.as_deref(),
            state,
            &comes_back,
            self.now,
        );
        self.store.put(state, self.now);
        self.check_punctual(writer, before.as_deref());
        for watch in std::mem::take(&mut self.watches) {
            if !self.store.differs(watch.known.as_ref(), watch.part) {
                self.watches.push(watch);
                continue;
            }
            let answer = Answer {
                version: self.store.current().cloned(),
                is_ours: false,
                at: self.now,
            };
            let at = self.now + self.latency();
            self.schedule(
                at,
                watch.node,
                Event::Answer(watch.request_id, answer, false),
            );
        }
    }

    /// Checks that a node of ours writes its heartbeats in time while the network is calm.
    fn check_punctual(&self, writer: usize, before: Option<&Version>) {
        let node = &self.nodes[writer];
        if self.network != Network::CALM || node.was_late() || node.is_torch() {
            return;
        }
        let written_at = before.and_then(|version| version.written_at.get(node.me()));
        let when_calm = self.network_since + self.settings.keep_alive_interval;
        if let Some(at) = written_at.filter(|at| **at >= when_calm) {
            let pause = self.now - *at;
            // Concurrent writers delay each other, but one interval must be left before the others drop it.
            let pause_max = self.settings.dead_after() - self.settings.keep_alive_interval;
            assert!(pause <= pause_max, "{} wrote {pause:?} ago", node.me());
        }
    }

    fn send(&mut self, index: usize, request: Request) {
        let node = &mut self.nodes[index];
        node.request_id += 1;
        let request_id = node.request_id;
        let at = self.now + self.latency();
        self.schedule(at, index, Event::Request(request_id, request));
    }

    fn drive(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        match node.step(self.now) {
            Need::Read => self.send(index, Request::Read),
            Need::Write => {
                let (state, token) = node.to_write();
                self.send(index, Request::Write(Box::new(state), token));
            }
            Need::Wait { until } => {
                if node.has_learned(&self.gone, self.now) {
                    return self.drive(index);
                }
                let until = until.saturating_sub(node.boot);
                if matches!(node.commands.front(), Some(Command::Leave)) {
                    self.next_command(index);
                } else {
                    self.wait(index, until);
                }
            }
            Need::Done(result) => {
                let Stage::Busy(operation) = node.stage else {
                    panic!("{} has finished without an operation", node.me());
                };
                match (operation, result) {
                    (Operation::Exit, Ok(())) if node.rests => node.stage = Stage::NotStarted,
                    (Operation::Exit, Ok(())) => {
                        node.begin(Operation::Join, self.now);
                        self.drive(index);
                    }
                    (Operation::Join, Ok(())) => self.on_joined(index),
                    (Operation::Exit | Operation::Join, Err(ending)) => {
                        node.stage = Stage::Ended(Outcome::Failed(ending));
                    }
                    (Operation::KeepAlive, result) => {
                        node.stage = Stage::Member;
                        node.idle_until = match result {
                            Ok(()) => node.next_heartbeat(&self.settings, self.now),
                            Err(_) => self.now + self.settings.keep_alive_interval,
                        };
                        self.continue_member(index);
                    }
                    (Operation::Leave, _) => node.stage = Stage::Ended(Outcome::Left),
                    (Operation::Close, _) => node.stage = Stage::Ended(Outcome::Closed),
                }
            }
        }
    }

    fn on_joined(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let (me, state) = (node.me().clone(), node.state().clone());
        node.joins.push(Joined {
            at: self.now,
            round: state.round,
            rank: state.participants.get(&me).copied().unwrap_or(-1),
            nodes: state.participants.keys().cloned().collect(),
        });
        let is_torch = node.is_torch();
        self.invariants.on_joined(&me, is_torch, &state);
        // A launcher that stands still stops no workers.
        if !is_torch && node.restarts {
            self.worlds
                .on_start(&me, (self.emptied, state.round), self.now);
        }
        self.keep_alive(index);
    }

    fn keep_alive(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.deadline = node.clock(self.now).monotonic + self.settings.heartbeat_timeout;
        node.begin(Operation::KeepAlive, self.now);
        self.drive(index);
    }

    /// Continues a member between two heartbeats: it waits, restarts, or writes the next heartbeat.
    fn continue_member(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if node.must_restart() {
            self.plan_restart(index);
        }
        let node = &mut self.nodes[index];
        if !node.commands.is_empty() {
            self.next_command(index);
        } else if self.now >= node.idle_until {
            self.keep_alive(index);
        } else {
            let until = node.idle_until;
            self.wait(index, until);
        }
    }

    /// Makes the node wait as `handler_loop` does, and wakes it at `until`.
    fn wait(&mut self, index: usize, until: Duration) {
        let node = &mut self.nodes[index];
        node.request_id += 1;
        if until.saturating_sub(self.now) <= SHORT_WAIT {
            node.short_waits += 1;
            let is_busy = node.short_waits > SHORT_WAITS_MAX;
            assert!(!is_busy, "{} is in a busy loop", node.me());
        }
        let request_id = node.request_id;
        let is_member = node.stage == Stage::Member;
        let until = until.max(self.now);
        if (node.is_torch() && is_member) || (!node.is_torch() && node.watching == Watching::Polls)
        {
            let at = until.min(self.now + POLL_INTERVAL);
            return self.schedule(at, index, Event::Poll(request_id));
        }
        if !node.is_torch() {
            let is_participant = node.state().participants.contains_key(node.me());
            let by_round = node.watching == Watching::Round && !is_member && is_participant;
            let part = if by_round { Part::Round } else { Part::Members };
            let watch = Request::Watch(node.known.clone(), part);
            let at = self.now + self.latency();
            self.schedule(at, index, Event::Request(request_id, watch));
        }
        self.schedule(until, index, Event::Wake(request_id));
    }

    fn on_answer(&mut self, index: usize, answer: &Answer, was_write: bool) {
        let node = &mut self.nodes[index];
        if answer.version.is_none() && node.known.is_some() && !node.is_torch() {
            return self.on_lost_state(index);
        }
        node.on_answer(answer, was_write, self.now);
        node.request_id += 1;
        let request_id = node.request_id;
        if let Some(version) = answer.version.as_deref().filter(|_| !node.is_torch()) {
            self.invariants
                .on_adopt(node.me(), version, answer.at, node.state());
        }
        if node.stage == Stage::Member {
            return self.continue_member(index);
        }
        if was_write && let Some(longest) = node.conflict_pause_max(self.now) {
            let pause = longest.mul_f64(self.random.f64());
            let at = self.now + pause;
            return self.schedule(at, index, Event::Retry(request_id));
        }
        self.drive(index);
    }

    /// The store was emptied: the node begins anew, as `handler_loop` does.
    fn on_lost_state(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.request_id += 1;
        node.known = None;
        node.start(self.now);
        self.invariants.on_new(node.me());
        match node.stage {
            Stage::Busy(operation) if operation != Operation::KeepAlive => {
                node.begin(operation, self.now);
                self.drive(index);
            }
            _ => {
                node.stage = Stage::Member;
                self.plan_restart(index);
                self.continue_member(index);
            }
        }
    }

    fn on_command(&mut self, index: usize, command: Command) {
        let node = &mut self.nodes[index];
        match command {
            Command::Cut { time, is_silent } => {
                node.was_cut = true;
                node.cut_until = node.cut_until.max(self.now + time);
                node.is_silent = is_silent;
                if !is_silent {
                    self.lose_connection(index);
                }
            }
            Command::Crash => {
                self.worlds.on_stop(node.me());
                node.request_id += 1;
                node.stage = Stage::Ended(Outcome::Crashed);
            }
            Command::Pause(duration) => {
                node.was_paused = true;
                self.worlds.on_stop(node.me());
                node.paused_until = node.paused_until.max(self.now + duration);
            }
            Command::Jump(seconds) => node.skew += seconds,
            Command::Start if node.stage == Stage::NotStarted => {
                node.start(self.now);
                node.commands.push_back(Command::Rejoin);
                self.next_command(index);
            }
            Command::Start => {}
            Command::Restart { joins } => {
                if node.joins.len() == joins {
                    self.worlds.on_stop(node.me());
                    self.on_command(index, Command::Rejoin);
                }
            }
            Command::Rejoin | Command::Leave | Command::Close => {
                let is_joining =
                    matches!(node.stage, Stage::Busy(Operation::Exit | Operation::Join));
                let is_redundant = is_joining && matches!(command, Command::Rejoin);
                if !node.is_alive() || is_redundant {
                    return;
                }
                node.commands.push_back(command);
                if node.stage == Stage::Member {
                    self.next_command(index);
                }
            }
        }
    }

    /// Begins the next command of a node.
    fn next_command(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        // The workers have stopped.
        self.worlds.on_stop(node.me());
        let monotonic = node.clock(self.now).monotonic;
        let (operation, timeout) = match node.commands.pop_front() {
            Some(Command::Leave) => {
                // As PyTorch's nodes never do.
                self.gone.insert(node.me().clone());
                (Operation::Leave, self.settings.close_timeout)
            }
            Some(Command::Close) => (Operation::Close, self.settings.close_timeout),
            _ => {
                node.is_rejoin_planned = false;
                // One rejoin replaces all queued ones.
                node.commands
                    .retain(|command| !matches!(command, Command::Rejoin));
                (Operation::Exit, self.settings.join_timeout)
            }
        };
        node.deadline = monotonic + timeout;
        node.begin(operation, self.now);
        self.drive(index);
    }
}
