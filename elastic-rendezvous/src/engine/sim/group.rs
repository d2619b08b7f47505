//! Stations and nodes that write alone, in virtual time, with faults: nodes that die or stand still at any step,
//! answers that are lost, requests that arrive twice.
//!
//! A seed determines a history. `SEED=n` repeats one and prints it, `ROUNDS=n` runs n new ones, both n from a seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use fastrand::Rng;

use super::laws::Laws;
use super::random::for_seeds;
use super::torch::TorchNode;
use super::worlds::Worlds;
use crate::engine::decide;
use crate::engine::executor::{Executor, Need};
use crate::engine::group::ask::{Ask, Ending, Reply};
use crate::engine::group::message::Place;
use crate::engine::group::station::Station;
use crate::values::clock::Now;
use crate::values::codec::{self, CodecLimits};
use crate::values::goal::Operation;
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::stored::Token;
use crate::values::stored::Written;
use crate::values::timestamp::Timestamp;

const WALL: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

/// After this time without an answer a request has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

const SECOND: Duration = Duration::from_secs(1);

/// The pause of a node after a request that has failed, and the time after which one has failed in a silent network.
const RETRY_PAUSE: Duration = SECOND;
const ATTEMPT: Duration = Duration::from_secs(5);

/// How long workers wait for others that never come.
const WORKERS_FAIL_AFTER: Duration = Duration::from_secs(30);

/// How likely faults are.
#[derive(Debug, Clone, Copy)]
struct Faults {
    lost: f64,
    twice: f64,
    slow: f64,
}

const CALM: Faults = Faults {
    lost: 0.0,
    twice: 0.0,
    slow: 0.0,
};

#[derive(Debug, Default)]
struct Stored {
    state: Option<(RendezvousState, Vec<u8>)>,
    lease: Vec<u8>,
    queue: VecDeque<Vec<u8>>,
    summary: Vec<u8>,
    answers: BTreeMap<u32, Vec<u8>>,
    heartbeats: BTreeMap<u32, Vec<u8>>,
    /// How many nodes have taken an index.
    count: u32,
    /// The store was emptied, and no node has found it yet.
    is_lost: bool,
}

#[derive(Debug)]
enum Kind {
    Group(Box<Station>),
    /// Writes alone.
    Alone(Box<Executor>),
    Torch(Box<TorchNode>),
}

impl Kind {
    /// The state as this node knows it, unless it is in the group.
    fn state(&self) -> Option<&RendezvousState> {
        match self {
            Self::Group(_) => None,
            Self::Alone(executor) => Some(executor.state()),
            Self::Torch(torch) => Some(&torch.state),
        }
    }

    fn begin(&mut self, operation: Operation, deadline: Duration, now: Now) {
        match self {
            Self::Group(_) => {}
            Self::Alone(executor) => executor.begin(operation, deadline, now),
            Self::Torch(torch) => torch.begin(operation, deadline),
        }
    }

    fn step_alone(&mut self, now: Now) -> Option<Need> {
        match self {
            Self::Group(_) => None,
            Self::Alone(executor) => Some(executor.step(now)),
            Self::Torch(torch) => Some(torch.step(now)),
        }
    }

    fn to_write(&self) -> Option<(&RendezvousState, Option<&Token>)> {
        match self {
            Self::Group(station) => station.to_write(),
            Self::Alone(executor) => Some(executor.to_write()),
            Self::Torch(torch) => Some((&torch.state, torch.token.as_ref())),
        }
    }

    fn wake(&mut self) {
        if let Self::Alone(executor) = self {
            executor.wake();
        }
    }
}

#[derive(Debug)]
struct Node {
    kind: Kind,
    name: NodeId,
    index: u32,
    boot: Duration,
    skew: u64,
    request: u64,
    asked: Option<Ask>,
    has_started: bool,
    is_dead: bool,
    paused_until: Duration,
    /// Until when no request passes, and whether the node has to wait to notice it.
    cut_until: Duration,
    is_silent: bool,
    /// The deadline of its operation.
    deadline: Duration,
    operation: Option<Operation>,
    /// The last round that it joined, and its place.
    joined: Option<Place>,
    is_over: bool,
    wishes: VecDeque<Wish>,
    restart_at: Option<Duration>,
    /// Since when others are in the same round with another world size.
    disagrees_since: Option<Duration>,
    known: Option<Vec<u8>>,
}

/// What the launcher wants of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Join,
    Leave,
    Close,
}

#[derive(Debug)]
enum Event {
    Arrive(u64, Request),
    Reply(u64, Box<Reply>),
    Fail(u64),
    /// The state has disappeared from the store.
    Lost(u64),
    Cut {
        time: Duration,
        is_silent: bool,
    },
    Step(u64),
    Wish(Wish),
    /// The workers have stopped.
    Restart,
    Die,
    Pause(Duration),
}

#[derive(Debug, Clone)]
enum Request {
    Ask(Box<Ask>),
    Write(Box<RendezvousState>, Option<Token>),
    Read,
    /// The time of a wait is over.
    End,
}

#[derive(Debug)]
struct Wait {
    node: usize,
    request: u64,
    ask: Ask,
}

#[derive(Debug)]
struct World {
    now: Duration,
    settings: RendezvousSettings,
    random: Rng,
    faults: Faults,
    events: BTreeMap<(Duration, u32, u64), (usize, Event)>,
    made: u64,
    stored: Stored,
    waits: Vec<Wait>,
    nodes: Vec<Node>,
    laws: Laws,
    writes: usize,
    written_bytes: usize,
    /// Until when the store has stopped, and how often it was emptied.
    away_until: Duration,
    emptied: u32,
    worlds: Worlds,
    /// Nodes end when they have closed the rendezvous, as launchers do.
    ends_with_close: bool,
}

impl World {
    fn new(seed: u64, settings: RendezvousSettings) -> Self {
        Self {
            now: SECOND,
            settings,
            random: Rng::with_seed(seed),
            faults: CALM,
            events: BTreeMap::new(),
            made: 0,
            stored: Stored::default(),
            waits: Vec::new(),
            nodes: Vec::new(),
            laws: Laws::default(),
            writes: 0,
            written_bytes: 0,
            away_until: Duration::ZERO,
            emptied: 0,
            worlds: Worlds::default(),
            ends_with_close: false,
        }
    }

    /// The store stops for this time, and all connections are lost.
    fn restart_store(&mut self, time: Duration, is_emptied: bool) {
        self.away_until = self.away_until.max(self.now + time);
        if is_emptied {
            self.emptied += 1;
            self.laws = Laws::default();
            self.stored = Stored {
                is_lost: true,
                ..Stored::default()
            };
        }
        for place in 0..self.nodes.len() {
            self.lose_connection(place);
        }
    }

    /// What is on its way between the node and the store is lost, and the node knows it.
    fn lose_connection(&mut self, place: usize) {
        self.waits.retain(|wait| wait.node != place);
        self.events.retain(|_, (node, event)| {
            *node != place || !matches!(event, Event::Arrive(..) | Event::Reply(..))
        });
        let now = self.clock(place);
        let node = &mut self.nodes[place];
        let request = node.request;
        match &mut node.kind {
            // Its first request will fail.
            Kind::Group(station) if !node.has_started => station.on_failure(now),
            _ if node.has_started => self.schedule(self.now, place, Event::Fail(request)),
            _ => {}
        }
    }

    /// When a request fails that is on its way now; `None` if it passes.
    fn fails_at(&self, place: usize) -> Option<Duration> {
        let node = &self.nodes[place];
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

    /// A request has failed: the node goes on after a pause, as its handler does.
    fn on_fail(&mut self, place: usize) {
        let now = self.clock(place);
        self.waits.retain(|wait| wait.node != place);
        let node = &mut self.nodes[place];
        node.request += 1;
        let is_kept_until = match &mut node.kind {
            Kind::Group(station) => {
                station.on_failure(now);
                Some(station.is_kept_until())
            }
            Kind::Alone(executor) => {
                executor.on_outage();
                executor.is_kept_until()
            }
            Kind::Torch(_) => Some(Duration::MAX),
        };
        let is_kept = is_kept_until.is_some_and(|until| now.monotonic < until);
        if node.joined.is_some() && !is_kept {
            self.plan_restart(place);
        }
        let request = self.nodes[place].request;
        self.schedule(self.now + RETRY_PAUSE, place, Event::Step(request));
    }

    /// The launcher stops the workers, and joins again.
    fn plan_restart(&mut self, place: usize) {
        let delay = Duration::from_millis(self.random.u64(1..400));
        let node = &mut self.nodes[place];
        let is_member = node.operation.is_none_or(|it| it == Operation::KeepAlive);
        if is_member && node.restart_at.is_none() && node.wishes.is_empty() {
            node.restart_at = Some(self.now + delay);
            self.schedule(self.now + delay, place, Event::Restart);
        }
    }

    /// The store was emptied: the node goes on as one that is in no round, as its handler does.
    fn start_anew(&mut self, place: usize) {
        self.stored.is_lost = false;
        self.stored.count += 1;
        let (now, index) = (self.clock(place), self.stored.count);
        let settings = self.settings.clone();
        let node = &mut self.nodes[place];
        node.request += 1;
        match &mut node.kind {
            Kind::Group(station) => {
                node.index = index;
                **station = Station::new(node.name.clone(), index, settings, now);
            }
            Kind::Alone(executor) => {
                **executor = Executor::new(node.name.clone(), settings, now);
            }
            Kind::Torch(_) => {}
        }
        node.known = None;
        match node.operation {
            Some(operation) if operation != Operation::KeepAlive => {
                let deadline = node.deadline;
                match (&mut node.kind, operation) {
                    (Kind::Group(station), Operation::Join) => station.join(-1, deadline, now),
                    (Kind::Group(station), Operation::Leave) => station.leave(deadline, now),
                    (Kind::Group(station), _) => station.close(deadline, now),
                    (kind, operation) => kind.begin(operation, deadline, now),
                }
            }
            _ => {
                node.operation = None;
                if node.joined.is_some() {
                    self.plan_restart(place);
                }
            }
        }
        self.nodes[place].joined = None;
        self.step(place);
    }

    fn add_torch(&mut self) -> usize {
        let place = self.add(true);
        let node = &mut self.nodes[place];
        let torch = TorchNode::new(node.name.clone(), self.settings.clone());
        node.kind = Kind::Torch(Box::new(torch));
        place
    }

    fn add(&mut self, is_alone: bool) -> usize {
        let place = self.nodes.len();
        self.stored.count += 1;
        let index = self.stored.count;
        let name = NodeId::new(
            format!("node{}", self.random.u32(..50)),
            1 + place as i64,
            0,
        );
        let boot = SECOND * self.random.u32(1..10_000);
        let skew = self.random.u64(..3);
        let now = clock(boot, skew, self.now);
        let kind = if is_alone {
            Kind::Alone(Box::new(Executor::new(
                name.clone(),
                self.settings.clone(),
                now,
            )))
        } else {
            let settings = self.settings.clone();
            Kind::Group(Box::new(Station::new(name.clone(), index, settings, now)))
        };
        self.nodes.push(Node {
            kind,
            name,
            index,
            boot,
            skew,
            request: 0,
            asked: None,
            has_started: false,
            is_dead: false,
            paused_until: Duration::ZERO,
            cut_until: Duration::ZERO,
            is_silent: false,
            deadline: Duration::ZERO,
            operation: None,
            joined: None,
            is_over: false,
            wishes: VecDeque::new(),
            restart_at: None,
            disagrees_since: None,
            known: None,
        });
        place
    }

    fn wish_at(&mut self, after: Duration, node: usize, wish: Wish) {
        self.schedule(self.now + after, node, Event::Wish(wish));
    }

    fn schedule(&mut self, at: Duration, node: usize, event: Event) {
        self.made += 1;
        let key = (at, self.random.u32(..), self.made);
        self.events.insert(key, (node, event));
    }

    fn latency(&mut self) -> Duration {
        if self.random.f64() < self.faults.slow {
            return Duration::from_micros(self.random.u64(2_000..1_500_000));
        }
        Duration::from_micros(self.random.u64(50..2_000))
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.run_until(end, |_| false);
    }

    fn run_until(&mut self, end: Duration, is_done: impl Fn(&Self) -> bool) -> bool {
        loop {
            if is_done(self) {
                return true;
            }
            let Some(entry) = self.events.first_entry().filter(|it| it.key().0 <= end) else {
                self.now = end;
                return is_done(self);
            };
            self.now = entry.key().0;
            let (node, event) = entry.remove();
            self.handle(node, event);
            self.worlds.check(&self.settings, self.now);
        }
    }

    fn handle(&mut self, place: usize, event: Event) {
        if let Event::Arrive(request, what) = event {
            // Also from a node that has died meanwhile.
            return self.serve(place, request, what);
        }
        if let (Event::Reply(request, _), Some(at)) = (&event, self.fails_at(place)) {
            let request = *request;
            return self.schedule(at, place, Event::Fail(request));
        }
        let node = &mut self.nodes[place];
        if node.is_dead {
            return;
        }
        if self.now < node.paused_until && !matches!(event, Event::Die | Event::Pause(_)) {
            let at = node.paused_until;
            return self.schedule(at, place, event);
        }
        if !matches!(event, Event::Step(_)) {
            self.trace(place, || format!("{event:?}"));
        }
        let node = &mut self.nodes[place];
        match event {
            Event::Arrive(..) => {}
            Event::Die => {
                node.is_dead = true;
                self.worlds.on_stop(&node.name);
                self.laws.on_death(&node.name, self.now);
                self.waits.retain(|wait| wait.node != place);
            }
            Event::Pause(time) => {
                node.paused_until = self.now + time;
                // A launcher that stands still stops no workers.
                self.worlds.on_stop(&node.name);
                self.laws.on_stop(&node.name, node.paused_until);
            }
            Event::Wish(wish) => {
                node.wishes.push_back(wish);
                self.interrupt(place);
            }
            Event::Restart => {
                self.worlds.on_stop(&node.name);
                self.interrupt(place);
            }
            Event::Cut { time, is_silent } => {
                node.cut_until = node.cut_until.max(self.now + time);
                node.is_silent = is_silent;
                if !is_silent {
                    self.lose_connection(place);
                }
            }
            Event::Lost(request) if request == node.request => self.start_anew(place),
            Event::Reply(request, reply) if request == node.request => {
                node.request += 1;
                self.on_reply(place, *reply);
            }
            Event::Fail(request) if request == node.request => self.on_fail(place),
            Event::Step(request) if request == node.request => {
                node.request += 1;
                self.step(place);
            }
            _ => {}
        }
    }

    /// What happens, if one history is repeated.
    fn trace(&self, place: usize, what: impl FnOnce() -> String) {
        if std::env::var_os("SEED").is_some() && std::env::var_os("ROUNDS").is_none() {
            #[expect(clippy::print_stderr, reason = "for a person")]
            {
                eprintln!("{:?} {}: {}", self.now, self.nodes[place].name, what());
            }
        }
    }

    fn clock(&self, place: usize) -> Now {
        let node = &self.nodes[place];
        clock(node.boot, node.skew, self.now)
    }

    /// Ends a wait, as the handler does for a message.
    fn interrupt(&mut self, place: usize) {
        let waits = self.waits.iter().position(|wait| wait.node == place);
        let is_idle = self.nodes[place].asked.is_none();
        if let Some(wait) = waits {
            let wait = self.waits.swap_remove(wait);
            let at = self.now + self.latency();
            self.schedule(
                at,
                place,
                Event::Reply(wait.request, Box::new(Reply::Nothing)),
            );
        } else if is_idle {
            self.nodes[place].request += 1;
            self.step(place);
        }
    }

    fn on_reply(&mut self, place: usize, reply: Reply) {
        let now = self.clock(place);
        let node = &mut self.nodes[place];
        match &mut node.kind {
            Kind::Group(station) => station.on_reply(reply, now),
            Kind::Alone(executor) => match reply {
                Reply::State(stored) => {
                    node.known = stored.as_ref().map(|(_, token)| token.as_bytes().to_vec());
                    executor.on_read(stored, now);
                }
                Reply::Written(written) => executor.on_written(written, now),
                _ => {}
            },
            Kind::Torch(torch) => match reply {
                Reply::State(stored) => torch.adopt(stored, now),
                Reply::Written(Written::Ours(token)) => {
                    let state = torch.state.clone();
                    torch.adopt(Some((state, token)), now);
                }
                Reply::Written(Written::Theirs(state, token)) => {
                    torch.adopt(Some((*state, token)), now);
                }
                Reply::Written(Written::Nothing) => torch.adopt(None, now),
                _ => {}
            },
        }
        self.step(place);
    }

    /// Takes up a wish, or does what comes next.
    fn step(&mut self, place: usize) {
        let now = self.clock(place);
        let timeout = self.settings.join_timeout;
        let node = &mut self.nodes[place];
        node.asked = None;
        if node.is_over {
            return;
        }
        let is_free = node.operation.is_none();
        if node.restart_at.is_some_and(|at| at <= self.now) && is_free {
            node.restart_at = None;
            node.wishes.push_back(Wish::Join);
        }
        if let Some(wish) = node.wishes.front().copied().filter(|_| is_free) {
            node.wishes.pop_front();
            node.has_started = true;
            let deadline = now.monotonic + timeout;
            node.deadline = deadline;
            // The workers have stopped.
            self.worlds.on_stop(&node.name);
            let operation = match wish {
                Wish::Join => Operation::Join,
                Wish::Leave => Operation::Leave,
                Wish::Close => Operation::Close,
            };
            match (&mut node.kind, wish) {
                (Kind::Group(station), Wish::Join) => {
                    let after = node.joined.as_ref().map_or(-1, |place| place.round);
                    station.join(after, deadline, now);
                    self.laws.on_join(&node.name);
                }
                (Kind::Group(station), Wish::Leave) => station.leave(deadline, now),
                (Kind::Group(station), Wish::Close) => station.close(deadline, now),
                (kind, Wish::Join) => {
                    self.laws.on_join(&node.name);
                    kind.begin(Operation::Exit, deadline, now);
                }
                (kind, _) => kind.begin(operation, deadline, now),
            }
            let is_alone = !matches!(node.kind, Kind::Group(_));
            node.operation = Some(match wish {
                Wish::Join if is_alone => Operation::Exit,
                _ => operation,
            });
        }
        if matches!(node.kind, Kind::Group(_)) {
            self.step_group(place);
        } else {
            self.step_alone(place);
        }
    }

    fn step_group(&mut self, place: usize) {
        let now = self.clock(place);
        let node = &mut self.nodes[place];
        let Kind::Group(station) = &mut node.kind else {
            return;
        };
        if !node.has_started {
            return;
        }
        if station.has_lost_state() {
            return self.start_anew(place);
        }
        let ask = station.step(now);
        match ask {
            Ask::Done(result) => {
                let operation = node.operation.take();
                match (operation, result) {
                    (Some(Operation::Join), Ok(Some(joined))) => {
                        self.laws.on_joined(&node.name, &joined);
                        let world = (self.emptied, joined.round);
                        self.worlds.on_start(&node.name, world, self.now);
                        node.joined = Some(joined);
                        node.restart_at = None;
                    }
                    (Some(Operation::Leave), Ok(_)) => {
                        self.worlds.on_stop(&node.name);
                        self.laws.on_left(&node.name);
                        node.joined = None;
                    }
                    (_, Err(Ending::Closed | Ending::NotNeeded)) => {
                        self.worlds.on_stop(&node.name);
                        node.is_over = true;
                    }
                    (Some(Operation::Close), Ok(_)) if self.ends_with_close => {
                        node.is_over = true;
                        let released = station.release();
                        if let Some(ask) = released {
                            self.send(place, Request::Ask(Box::new(ask)));
                        }
                        return;
                    }
                    _ => {}
                }
                self.nodes[place].request += 1;
                self.step(place);
            }
            Ask::Idle => {}
            ask => {
                self.watch_members(place);
                let node = &mut self.nodes[place];
                node.asked = Some(ask.clone());
                let request = match (&ask, &node.kind) {
                    (Ask::WriteState, Kind::Group(station)) => {
                        let (state, token) = station.to_write().expect("a holder");
                        Request::Write(Box::new(state.clone()), token.cloned())
                    }
                    _ => Request::Ask(Box::new(ask)),
                };
                self.send(place, request);
            }
        }
    }

    /// A member restarts when its round has changed, as launchers do.
    fn watch_members(&mut self, place: usize) {
        let delay = Duration::from_millis(self.random.u64(1..400));
        let node = &mut self.nodes[place];
        let Kind::Group(station) = &node.kind else {
            return;
        };
        let Some(joined) = &node.joined else { return };
        if node.operation.is_some() || node.restart_at.is_some() || !node.wishes.is_empty() {
            return;
        }
        let summary = station.summary();
        let summary = summary.clone();
        let is_changed = summary.round > joined.round
            || (summary.round == joined.round
                && summary.is_complete
                && (summary.waiting.count + summary.lost.count + summary.left.count > 0
                    // A new holder does not know who left before it.
                    || summary.joined < joined.size));
        let is_evicted = station.is_evicted();
        if is_changed || is_evicted {
            node.restart_at = Some(self.now + delay);
            self.schedule(self.now + delay, place, Event::Restart);
            self.trace(place, || {
                format!("restarts: evicted {is_evicted}, {summary:?}")
            });
        }
    }

    /// Whether others joined the same round with another world size: their workers never come together.
    ///
    /// So it is among nodes of PyTorch if a member has died shortly before the round was complete: those that read the
    /// state after its last heartbeat became too old leave it out.
    fn disagrees(&self, place: usize) -> bool {
        let Some(joined) = &self.nodes[place].joined else {
            return false;
        };
        let live = self.nodes.iter().filter(|node| !node.is_dead);
        live.filter_map(|node| node.joined.as_ref())
            .any(|other| other.round == joined.round && other.size != joined.size)
    }

    fn step_alone(&mut self, place: usize) {
        let now = self.clock(place);
        let delay = Duration::from_millis(self.random.u64(1..400));
        let interval = self.settings.keep_alive_interval;
        let disagrees = self.disagrees(place);
        let node = &mut self.nodes[place];
        if !node.has_started {
            return;
        }
        if node.operation.is_none() {
            // A member: a heartbeat each interval, and a poll each second.
            let Some(joined) = &node.joined else { return };
            let Some(state) = node.kind.state() else {
                return;
            };
            let is_same = state.complete && state.round == joined.round;
            let is_waited_for =
                !state.wait_list.is_empty() && state.participants.len() < self.settings.max_nodes;
            // PyTorch's launcher looks at nothing else, apart from its workers.
            let is_torch = matches!(node.kind, Kind::Torch(_));
            let since = disagrees.then(|| *node.disagrees_since.get_or_insert(self.now));
            node.disagrees_since = since;
            let is_changed = is_waited_for
                || (is_torch && since.is_some_and(|at| at + WORKERS_FAIL_AFTER < self.now))
                || (!is_torch
                    && (!is_same
                        || !state.participants.contains_key(&node.name)
                        || state.participants.len() < joined.size));
            if is_changed && node.wishes.is_empty() && node.restart_at.is_none() {
                node.restart_at = Some(self.now + delay);
                return self.schedule(self.now + delay, place, Event::Restart);
            }
            node.operation = Some(Operation::KeepAlive);
            node.kind
                .begin(Operation::KeepAlive, now.monotonic + interval, now);
        }
        let Some(need) = node.kind.step_alone(now) else {
            return;
        };
        match need {
            Need::Read => self.send(place, Request::Read),
            Need::Write => {
                let (state, token) = node.kind.to_write().expect("a state");
                let request = Request::Write(Box::new(state.clone()), token.cloned());
                self.send(place, request);
            }
            Need::Wait { until } => {
                node.kind.wake();
                let until = until.min(now.monotonic + SECOND) - node.boot;
                let request = node.request;
                self.schedule(until.max(self.now), place, Event::Step(request));
            }
            Need::Done(result) => {
                let operation = node.operation.take();
                match (operation, result) {
                    (Some(Operation::Exit), Ok(())) => {
                        let deadline = now.monotonic + self.settings.join_timeout;
                        node.kind.begin(Operation::Join, deadline, now);
                        node.operation = Some(Operation::Join);
                    }
                    (Some(Operation::Join), Ok(())) => {
                        let state = node.kind.state().expect("a state");
                        let rank = state.participants[&node.name];
                        let first = state.participants.iter().find(|(_, rank)| **rank == 0);
                        let joined = Place {
                            round: state.round,
                            rank: usize::try_from(rank).expect("a rank"),
                            size: state.participants.len(),
                            same_as: -1,
                            first: first.map_or(&node.name, |(first, _)| first).clone(),
                        };
                        // PyTorch's node may see a round of which others have left; ours waits for the next.
                        if decide::has_every_rank(state) || !matches!(node.kind, Kind::Torch(_)) {
                            self.laws.on_joined(&node.name, &joined);
                        }
                        if !matches!(node.kind, Kind::Torch(_)) {
                            let world = (self.emptied, joined.round);
                            self.worlds.on_start(&node.name, world, self.now);
                        }
                        node.joined = Some(joined);
                        node.restart_at = None;
                    }
                    (Some(Operation::KeepAlive), _) => {
                        let request = node.request;
                        return self.schedule(self.now + SECOND, place, Event::Step(request));
                    }
                    (Some(Operation::Leave), Ok(())) => {
                        self.worlds.on_stop(&node.name);
                        self.laws.on_left(&node.name);
                        node.joined = None;
                        node.has_started = false;
                    }
                    (_, Err(_)) => {
                        self.worlds.on_stop(&node.name);
                        node.is_over = true;
                    }
                    _ => {}
                }
                let request = self.nodes[place].request;
                self.schedule(self.now, place, Event::Step(request));
            }
        }
    }

    fn send(&mut self, place: usize, what: Request) {
        let request = self.nodes[place].request;
        let at = self.now + self.latency();
        if self.random.f64() < self.faults.twice
            && matches!(&what, Request::Ask(ask) if matches!(**ask, Ask::Push(_)))
        {
            let late = at + Duration::from_millis(self.random.u64(..5000));
            self.schedule(late, place, Event::Arrive(u64::MAX, what.clone()));
        }
        self.schedule(at, place, Event::Arrive(request, what));
    }

    fn reply(&mut self, place: usize, request: u64, reply: Reply) {
        if self.random.f64() < self.faults.lost {
            let at = self.now + REQUEST_TIMEOUT;
            return self.schedule(at, place, Event::Fail(request));
        }
        let at = self.now + self.latency();
        self.schedule(at, place, Event::Reply(request, Box::new(reply)));
    }

    fn serve(&mut self, place: usize, request: u64, what: Request) {
        if let Some(at) = self.fails_at(place) {
            return self.schedule(at, place, Event::Fail(request));
        }
        let needs_state = match &what {
            Request::Read | Request::Write(..) => true,
            Request::Ask(ask) => matches!(**ask, Ask::ReadState),
            Request::End => false,
        };
        if needs_state && self.stored.is_lost {
            return self.schedule(self.now, place, Event::Lost(request));
        }
        let reply = match what {
            Request::Read => Reply::State(self.read()),
            Request::End => {
                let wait = self
                    .waits
                    .iter()
                    .position(|it| (it.node, it.request) == (place, request));
                let Some(wait) = wait else { return };
                self.waits.swap_remove(wait);
                Reply::Nothing
            }
            Request::Write(state, token) => Reply::Written(self.write(place, &state, token)),
            Request::Ask(ask) => match *ask {
                Ask::WriteHeartbeat(heartbeat) => {
                    let index = self.nodes[place].index;
                    self.stored
                        .heartbeats
                        .insert(index, heartbeat.to_string().into_bytes());
                    Reply::Done
                }
                Ask::ReadLease => Reply::Value(some(&self.stored.lease)),
                // The store answers so if the key is missing.
                Ask::Claim { expected, .. }
                    if self.stored.lease.is_empty() && !expected.is_empty() =>
                {
                    Reply::Value(Some(expected))
                }
                Ask::Claim { expected, lease } => {
                    if self.stored.lease == expected {
                        self.stored.lease = lease;
                    }
                    Reply::Value(some(&self.stored.lease))
                }
                Ask::Push(request) => {
                    self.stored.queue.push_back(request);
                    let waiting = self
                        .waits
                        .iter()
                        .position(|wait| matches!(wait.ask, Ask::TakeRequests { .. }));
                    if let Some(wait) = waiting {
                        let wait = self.waits.swap_remove(wait);
                        let requests = self.stored.queue.drain(..).collect();
                        self.reply(wait.node, wait.request, Reply::Requests(requests));
                    }
                    Reply::Done
                }
                Ask::TakeRequests { .. } if !self.stored.queue.is_empty() => {
                    Reply::Requests(self.stored.queue.drain(..).collect())
                }
                Ask::ReadSummary => Reply::Value(some(&self.stored.summary)),
                Ask::ReadAnswer => {
                    let index = self.nodes[place].index;
                    Reply::Value(self.stored.answers.get(&index).cloned())
                }
                Ask::CountNodes => Reply::Count(self.stored.count),
                Ask::ReadState => Reply::State(self.read()),
                Ask::CheckState => {
                    let Kind::Group(station) = &self.nodes[place].kind else {
                        return;
                    };
                    let known = station.to_write().and_then(|(_, token)| token);
                    let known = known.map(|token| token.as_bytes().len());
                    let stored = self.stored.state.as_ref().map(|(_, text)| text.len());
                    Reply::IsSame(known == stored)
                }
                Ask::WriteAnswers(answers) => {
                    for (index, text) in answers {
                        self.stored.answers.insert(index, text.clone());
                        for wait in std::mem::take(&mut self.waits) {
                            let is_for = self.nodes[wait.node].index == index;
                            match &wait.ask {
                                Ask::AwaitAnswer { known, .. } if is_for && *known != text => {
                                    let value = Reply::Value(Some(text.clone()));
                                    self.reply(wait.node, wait.request, value);
                                }
                                _ => self.waits.push(wait),
                            }
                        }
                    }
                    Reply::Done
                }
                Ask::WriteSummary(text) => {
                    assert!(!text.is_empty(), "an empty summary replaces one");
                    self.stored.summary.clone_from(&text);
                    for wait in std::mem::take(&mut self.waits) {
                        match &wait.ask {
                            Ask::AwaitSummary { known, .. } if *known != text => {
                                let value = Reply::Value(Some(text.clone()));
                                self.reply(wait.node, wait.request, value);
                            }
                            _ => self.waits.push(wait),
                        }
                    }
                    Reply::Done
                }
                Ask::ReadHeartbeats(indices) => {
                    let heartbeats = &self.stored.heartbeats;
                    let heartbeats = indices
                        .iter()
                        .map(|index| heartbeats.get(index).cloned().unwrap_or_default());
                    Reply::Heartbeats(heartbeats.collect())
                }
                Ask::AwaitAnswer { ref known, .. } => {
                    let index = self.nodes[place].index;
                    match self.stored.answers.get(&index).filter(|it| *it != known) {
                        Some(text) => Reply::Value(Some(text.clone())),
                        None => return self.wait(place, request, *ask),
                    }
                }
                Ask::AwaitSummary { ref known, .. } => {
                    if self.stored.summary.is_empty() || self.stored.summary == *known {
                        return self.wait(place, request, *ask);
                    }
                    Reply::Value(some(&self.stored.summary))
                }
                Ask::TakeRequests { .. } => return self.wait(place, request, *ask),
                Ask::WriteState | Ask::Idle | Ask::Done(_) => unreachable!("no request"),
            },
        };
        self.reply(place, request, reply);
    }

    fn wait(&mut self, place: usize, request: u64, ask: Ask) {
        let node = &self.nodes[place];
        if !node.wishes.is_empty() && node.operation.is_none() {
            // Its wait was to end before it arrived.
            return self.reply(place, request, Reply::Nothing);
        }
        let (Ask::AwaitAnswer { until, .. }
        | Ask::AwaitSummary { until, .. }
        | Ask::TakeRequests { until }) = &ask
        else {
            return;
        };
        let until = until.saturating_sub(node.boot).max(self.now);
        if node.is_dead || node.request != request {
            return;
        }
        self.waits.retain(|wait| wait.node != place);
        self.waits.push(Wait {
            node: place,
            request,
            ask,
        });
        self.schedule(until, place, Event::Arrive(request, Request::End));
    }

    fn read(&self) -> Option<(RendezvousState, Token)> {
        let (state, text) = self.stored.state.as_ref()?;
        Some((state.clone(), Token::new(text.clone())))
    }

    fn write(&mut self, place: usize, state: &RendezvousState, token: Option<Token>) -> Written {
        let current = self.stored.state.as_ref().map(|(_, text)| text.as_slice());
        if current != token.as_ref().map(Token::as_bytes) {
            return match self.read() {
                Some((state, token)) => Written::Theirs(Box::new(state), token),
                None => Written::Nothing,
            };
        }
        let text = codec::to_text(state);
        let state = codec::from_text(&text, &CodecLimits::default()).expect("just encoded");
        let before = self.stored.state.take().map(|(state, _)| state);
        self.trace(place, || {
            let names = |nodes: Vec<&NodeId>| {
                nodes
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            format!(
                "writes round {} {} [{}] [{}] [{}]",
                state.round,
                if state.complete { "complete" } else { "open" },
                names(state.participants.keys().collect()),
                names(state.wait_list.iter().collect()),
                names(state.redundancy_list.iter().collect())
            )
        });
        let writer = &self.nodes[place].name;
        self.laws
            .on_write(writer, &before.unwrap_or_default(), &state, self.now);
        self.writes += 1;
        self.written_bytes += text.len();
        self.stored.state = Some((state, text.clone()));
        Written::Ours(Token::new(text))
    }

    /// One line for each node, and the state.
    fn describe(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut lines = vec![format!(
            "{:?}, lease {:?}, summary {:?}, {} queued",
            self.now,
            text(&self.stored.lease),
            text(&self.stored.summary),
            self.stored.queue.len()
        )];
        for node in &self.nodes {
            let station = match &node.kind {
                Kind::Group(station) => station.describe(),
                Kind::Alone(_) => "alone".to_owned(),
                Kind::Torch(_) => "PyTorch's".to_owned(),
            };
            let answer = self.stored.answers.get(&node.index).map(|it| text(it));
            lines.push(format!(
                "{}{}: {:?}, joined {:?}, restarts {:?}, wishes {:?}, answer {answer:?}: {station}",
                node.name,
                if node.is_dead {
                    " DEAD"
                } else if node.is_over {
                    " over"
                } else {
                    ""
                },
                node.operation,
                node.joined.as_ref().map(|it| (it.round, it.rank, it.size)),
                node.restart_at,
                node.wishes,
            ));
        }
        if let Some((state, _)) = &self.stored.state {
            let names = |nodes: Vec<&NodeId>| {
                nodes
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            lines.push(format!(
                "round {} complete {} closed {} deadline {:?}: [{}] waits [{}] spare [{}]",
                state.round,
                state.complete,
                state.closed,
                state.deadline,
                names(state.participants.keys().collect()),
                names(state.wait_list.iter().collect()),
                names(state.redundancy_list.iter().collect()),
            ));
        }
        lines.join("\n")
    }

    /// The place of a node that believes to hold the lease.
    fn holder(&self) -> Option<usize> {
        self.nodes
            .iter()
            .position(|node| matches!(&node.kind, Kind::Group(station) if station.is_holder()))
    }

    /// Runs without faults, with nodes enough for a round, until all have settled, and for a while after.
    fn settle(&mut self) {
        self.faults = CALM;
        self.run_for(SECOND * 30);
        loop {
            let alive = self.nodes.iter().filter(|node| {
                !node.is_dead
                    && !node.is_over
                    && !node.wishes.contains(&Wish::Leave)
                    && node.operation != Some(Operation::Leave)
                    && (node.joined.is_some() || node.operation == Some(Operation::Join))
            });
            if alive.count() >= self.settings.min_nodes {
                break;
            }
            let node = self.add(false);
            self.wish_at(Duration::ZERO, node, Wish::Join);
            self.run_for(SECOND);
        }
        let end = self.now + SECOND * 120;
        assert!(
            self.run_until(end, Self::is_settled),
            "not settled: {}",
            self.describe()
        );
        self.run_for(SECOND * 20);
        assert!(
            self.is_settled(),
            "not settled for long: {}",
            self.describe()
        );
    }

    /// Whether all live nodes that fit are in one round and know it, and the others are spares.
    fn is_settled(&self) -> bool {
        let Some((state, _)) = &self.stored.state else {
            return false;
        };
        let alive: Vec<&Node> = self
            .nodes
            .iter()
            .filter(|node| !node.is_dead && node.has_started && !node.is_over)
            .filter(|node| node.joined.is_some() || node.operation == Some(Operation::Join))
            .collect();
        let members: BTreeSet<&NodeId> = state.participants.keys().collect();
        // Others may still be to drop.
        let is_alive = |member: &&NodeId| alive.iter().any(|node| node.name == **member);
        state.complete
            && members.len() == alive.len().min(self.settings.max_nodes)
            && members.iter().all(is_alive)
            && alive.iter().all(|node| {
                if !members.contains(&node.name) {
                    return state.redundancy_list.contains(&node.name);
                }
                node.operation.is_none_or(|it| it == Operation::KeepAlive)
                    && node.restart_at.is_none()
                    && node.wishes.is_empty()
                    && node.joined.as_ref().is_some_and(|joined| {
                        joined.round == state.round && joined.size == members.len()
                    })
            })
    }
}

fn some(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

fn clock(boot: Duration, skew: u64, now: Duration) -> Now {
    Now {
        monotonic: boot + now,
        wall: WALL.after(now + SECOND * u32::try_from(skew).unwrap_or_default()),
    }
}

fn settings(min: usize, max: usize) -> RendezvousSettings {
    RendezvousSettings::for_test(min, max)
}

/// docs/rendezvous.md, GROUP 4 and 5.
#[test]
fn nodes_that_come_at_once_have_their_ranks_after_few_writes() {
    for seed in 0..20 {
        let mut world = World::new(seed, settings(100, 100));
        for _ in 0..100 {
            let node = world.add(false);
            world.wish_at(Duration::ZERO, node, Wish::Join);
        }
        let end = world.now + SECOND;
        assert!(world.run_until(end, World::is_settled), "seed {seed}");
        assert!(world.writes <= 20, "seed {seed}: {} writes", world.writes);
    }
}

/// docs/rendezvous.md, GROUP 5.
#[test]
fn the_writes_of_an_open_round_move_at_most_twice_as_much_as_the_last_one() {
    for seed in 0..5 {
        let mut world = World::new(seed, settings(400, 400));
        for _ in 0..400 {
            let node = world.add(false);
            let after = Duration::from_micros(world.random.u64(..80_000));
            world.wish_at(after, node, Wish::Join);
        }
        let complete_bytes = |world: &World| match &world.stored.state {
            Some((state, text)) if state.complete => Some(text.len()),
            _ => None,
        };
        let end = world.now + SECOND * 2;
        assert!(world.run_until(end, |world| complete_bytes(world).is_some()));
        let last = complete_bytes(&world).expect("a complete round");
        let written = world.written_bytes;
        assert!(written < 3 * last, "seed {seed}: {written} of {last} bytes");
    }
}

/// docs/rendezvous.md, GROUP 1 and 2.
#[test]
fn the_death_of_the_holder_delays_a_join_by_seconds() {
    for seed in 0..200 {
        let mut world = World::new(seed, settings(30, 30));
        for _ in 0..31 {
            let node = world.add(false);
            let after = Duration::from_micros(world.random.u64(..20_000));
            world.wish_at(after, node, Wish::Join);
        }
        // At any step.
        let after = Duration::from_micros(world.random.u64(..40_000));
        world.run_for(after);
        let Some(holder) = world.holder() else {
            continue;
        };
        world.schedule(world.now, holder, Event::Die);
        let is_counted = |world: &World| {
            world
                .nodes
                .iter()
                .filter(|node| node.joined.is_some())
                .count()
                >= 29
        };
        let end = world.now + SECOND * 25;
        assert!(
            world.run_until(end, |world| is_counted(world) && world.is_settled()),
            "seed {seed}: {}",
            world.describe()
        );
    }
}

/// A complete round of four nodes, at any moment of an interval, and one of ours that does not hold the lease.
fn four_nodes(seed: u64, has_torch: bool) -> (World, usize) {
    let mut random = Rng::with_seed(seed);
    let mut world = World::new(seed, settings(4, 4));
    for place in 0..4 {
        let node = world.add(has_torch && place == 0);
        world.nodes[node].skew = 0;
        let after = Duration::from_millis(random.u64(..5000));
        world.wish_at(after, node, Wish::Join);
    }
    let end = world.now + SECOND * 40;
    assert!(world.run_until(end, World::is_settled), "seed {seed}");
    world.run_for(Duration::from_millis(random.u64(..5000)));
    let holder = world.holder().expect("a holder");
    let is_chosen =
        |place: &usize| *place != holder && !matches!(world.nodes[*place].kind, Kind::Torch(_));
    let places: Vec<usize> = (0..4).filter(is_chosen).collect();
    let chosen = places[random.usize(..places.len())];
    (world, chosen)
}

/// Another node may write just before the holder drops the dead one. It is dead all the same.
/// docs/rendezvous.md, GROUP 7.
#[test]
fn a_dead_node_is_dropped_in_time_though_others_write_too() {
    for seed in 0..200 {
        let (mut world, dead) = four_nodes(seed, true);
        world.schedule(world.now, dead, Event::Die);
        let interval = world.settings.keep_alive_interval;
        let end = world.now + world.settings.dead_after() + interval;
        let name = world.nodes[dead].name.clone();
        let is_dropped = |world: &World| {
            let (state, _) = world.stored.state.as_ref().expect("a state");
            !state.last_heartbeats.contains_key(&name)
        };
        assert!(world.run_until(end, is_dropped), "seed {seed}");
    }
}

/// PyTorch's nodes judge a node only by its heartbeat in the state.
/// docs/rendezvous.md, GROUP 7.
#[test]
fn a_node_that_was_stopped_for_seven_seconds_is_not_taken_for_dead() {
    for seed in 0..200 {
        let (mut world, stopped) = four_nodes(seed, false);
        world.schedule(world.now, stopped, Event::Pause(SECOND * 7));
        for _ in 0..600 {
            world.run_for(Duration::from_millis(50));
            let (state, _) = world.stored.state.as_ref().expect("a state");
            let heartbeat = state.last_heartbeats[&world.nodes[stopped].name];
            let age = WALL.after(world.now).since(heartbeat);
            let limit = world.settings.dead_after();
            assert!(age < limit, "seed {seed}: {age:?} at {:?}", world.now);
        }
    }
}

/// docs/rendezvous.md, GROUP 10.
#[test]
fn nodes_that_close_at_once_end_at_once() {
    for seed in 0..200 {
        let mut random = Rng::with_seed(seed);
        let count = random.usize(2..60);
        let mut world = World::new(seed, settings(count, count));
        world.ends_with_close = true;
        for _ in 0..count {
            let node = world.add(false);
            world.wish_at(Duration::ZERO, node, Wish::Join);
        }
        let end = world.now + SECOND * 40;
        assert!(world.run_until(end, World::is_settled), "seed {seed}");
        world.run_for(Duration::from_millis(random.u64(..5000)));
        let width = [1, 10, 100][random.usize(..3)];
        for node in 0..count {
            let after = Duration::from_millis(random.u64(..width));
            world.wish_at(after, node, Wish::Close);
        }
        let end = world.now + SECOND / 2;
        let have_all_ended = |world: &World| world.nodes.iter().all(|node| node.is_over);
        assert!(
            world.run_until(end, have_all_ended),
            "seed {seed}: {}",
            world.describe()
        );
    }
}

/// One random history.
fn history(seed: u64) {
    let mut random = Rng::with_seed(seed ^ 0xfeed);
    let most = if random.u8(..8) == 0 { 12 } else { 4 };
    let min = random.usize(1..=most);
    let max = min + random.usize(..4);
    let mut world = World::new(seed, settings(min, max));
    let count = max + random.usize(..3);
    let has_alone = random.bool();
    for _ in 0..count {
        let is_alone = has_alone && random.u8(..4) == 0;
        let node = world.add(is_alone);
        let after = Duration::from_millis(random.u64(..3000));
        world.wish_at(after, node, Wish::Join);
    }
    world.faults = Faults {
        lost: [0.0, 0.01, 0.05][random.usize(..3)],
        twice: [0.0, 0.1, 0.5][random.usize(..3)],
        slow: [0.0, 0.02, 0.1][random.usize(..3)],
    };
    for _ in 0..random.usize(..12) {
        world.run_for(Duration::from_millis(random.u64(..4000)));
        let node = random.usize(..world.nodes.len());
        match random.u8(..10) {
            0 | 1 => world.schedule(world.now, node, Event::Die),
            2 | 3 => {
                let time = Duration::from_millis(random.u64(..20_000));
                world.schedule(world.now, node, Event::Pause(time));
            }
            4 => world.wish_at(Duration::ZERO, node, Wish::Leave),
            5 => {
                // The holder dies or stands still.
                if let Some(holder) = world.holder() {
                    let event = if random.bool() {
                        Event::Die
                    } else {
                        Event::Pause(Duration::from_millis(random.u64(1000..8000)))
                    };
                    world.schedule(world.now, holder, event);
                }
            }
            6 | 7 => {
                let node = world.add(has_alone && random.u8(..4) == 0);
                world.wish_at(Duration::ZERO, node, Wish::Join);
            }
            8 => world.wish_at(Duration::ZERO, node, Wish::Join),
            _ => {}
        }
    }
    world.settle();
    // All end.
    let node = world.nodes.iter().position(|node| {
        node.joined.is_some()
            && !node.is_dead
            && node.operation.is_none_or(|it| it == Operation::KeepAlive)
    });
    if let Some(node) = node {
        world.wish_at(Duration::ZERO, node, Wish::Close);
        world.run_for(SECOND * 10);
        let (state, _) = world.stored.state.as_ref().expect("a state");
        assert!(state.closed, "not closed: {}", world.describe());
    }
}

/// Nodes whose connections are cut or fall silent, and a store that stops and comes back, with its data or empty.
fn outages(seed: u64) {
    let mut random = Rng::with_seed(seed ^ 0xcafe);
    let count = random.usize(2..=6);
    let max = count + random.usize(..2);
    let min = random.usize(1..=count);
    let mut world = World::new(seed, settings(min, max));
    let has_alone = random.bool();
    for _ in 0..count {
        let node = world.add(has_alone && random.u8(..4) == 0);
        let after = Duration::from_millis(random.u64(..3000));
        world.wish_at(after, node, Wish::Join);
    }
    let longest = [100, 3_000, 20_000, 60_000][random.usize(..4)];
    for _ in 0..random.usize(1..6) {
        world.run_for(Duration::from_millis(random.u64(..30_000)));
        let time = Duration::from_millis(random.u64(..=longest));
        let is_silent = random.bool();
        let cut = |time| Event::Cut { time, is_silent };
        let node = random.usize(..count);
        match random.u8(..10) {
            0..3 => world.schedule(world.now, node, cut(time)),
            3 | 4 => {
                let holder = world.holder().unwrap_or(node);
                world.schedule(world.now, holder, cut(time));
            }
            5 => {
                for node in 0..count {
                    world.schedule(world.now, node, cut(time));
                }
            }
            6 | 7 => world.restart_store(time, false),
            _ => world.restart_store(time, true),
        }
    }
    world.run_for(Duration::from_millis(longest));
    world.settle();
}

/// docs/rendezvous.md, OUTAGE 1 to 5.
#[test]
fn nodes_come_back_from_outages_of_the_store() {
    for_seeds(200, outages);
}

/// Nodes of PyTorch among those of a group. Nothing happens to them, as they do not return once the others have dropped
/// them, and one node of the group survives, as they do not notice a lost node.
fn history_with_torch(seed: u64) {
    let mut random = Rng::with_seed(seed ^ 0xbeef);
    let min = random.usize(3..=6);
    let mut world = World::new(seed, settings(min, 12));
    let of_torch = random.usize(1..=2);
    for place in 0..min {
        let node = if place < of_torch {
            world.add_torch()
        } else {
            world.add(false)
        };
        let after = Duration::from_millis(random.u64(..3000));
        world.wish_at(after, node, Wish::Join);
    }
    world.faults.twice = [0.0, 0.1, 0.5][random.usize(..3)];
    for _ in 0..random.usize(..8) {
        world.run_for(Duration::from_millis(random.u64(..6000)));
        if random.u8(..3) == 0 && world.nodes.len() < 12 {
            let node = world.add(false);
            world.wish_at(Duration::ZERO, node, Wish::Join);
            continue;
        }
        let victim = if random.bool() {
            world.holder()
        } else {
            Some(random.usize(of_torch..world.nodes.len().max(of_torch + 1)))
        };
        let Some(victim) = victim.filter(|victim| *victim < world.nodes.len()) else {
            continue;
        };
        let event = if random.bool() && victim > of_torch {
            Event::Die
        } else {
            Event::Pause(Duration::from_millis(random.u64(..8000)))
        };
        world.schedule(world.now, victim, event);
    }
    world.settle();
}

/// docs/rendezvous.md, GROUP 3 and 6.
#[test]
fn random_histories_keep_the_laws() {
    for_seeds(300, history);
}

#[test]
fn random_histories_with_torch_keep_the_laws() {
    for_seeds(100, history_with_torch);
}
