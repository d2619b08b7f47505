//! Unit tests of each rule, then an exhaustive search of all event orders with up to two losses.

use std::collections::{HashMap, HashSet, VecDeque};

use super::*;
use crate::worker::WorkerInfo;

const ANY: u64 = 0;

fn id(number: u32) -> WorkerId {
    WorkerId::new(number).unwrap()
}

/// One side: the pair, and the peer machine's view of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Link {
    pair: Pair,
    state: PairState,
    is_closing: bool,
}

impl Link {
    fn new(me: WorkerId, my_incarnation: u64, peer: WorkerId) -> Self {
        Self {
            pair: Pair::new(me, my_incarnation, peer),
            state: PairState::Idle,
            is_closing: false,
        }
    }

    fn state(&self) -> PairState {
        self.state
    }

    fn dial(&mut self, incarnation_wanted: u64) -> Option<u32> {
        if self.state != PairState::Idle || self.is_closing {
            return None;
        }
        self.state = PairState::Dialing { incarnation_wanted };
        Some(self.pair.hello_links(incarnation_wanted))
    }

    fn on_hello(&mut self, hello: &Hello) -> Result<u32, (RefuseReason, u32)> {
        let state = (!self.is_closing).then_some(self.state);
        let links = self.pair.on_hello(hello, state)?;
        self.state = PairState::Established;
        Ok(links)
    }

    fn on_welcome(&mut self, welcome: &Welcome) -> bool {
        let PairState::Dialing { incarnation_wanted } = self.state else {
            panic!("a Welcome answers a current dial");
        };
        let is_dialed = self.pair.on_welcome(welcome, incarnation_wanted);
        self.state = match is_dialed {
            true => PairState::Established,
            false => PairState::Idle,
        };
        is_dialed
    }

    fn on_refuse(&mut self, refuse: &Refuse) -> bool {
        self.on_dial_failed();
        self.pair.on_refuse(refuse)
    }

    fn on_dial_failed(&mut self) {
        assert!(matches!(self.state, PairState::Dialing { .. }));
        self.state = PairState::Idle;
    }

    fn on_lost(&mut self) {
        assert_eq!(self.state, PairState::Established);
        self.state = PairState::Idle;
    }

    fn close(&mut self) {
        self.is_closing = true;
    }
}

fn link(me: u32, peer: u32) -> Link {
    Link::new(id(me), incarnation_of(me), id(peer))
}

fn incarnation_of(number: u32) -> u64 {
    1000 + u64::from(number)
}

fn hello(from: u32, to: u32, links: u32) -> Hello {
    Hello {
        from: WorkerInfo::new("w", from).unwrap(),
        to: id(to),
        incarnation: incarnation_of(from),
        incarnation_wanted: incarnation_of(to),
        links,
        message_bytes_max: 1,
    }
}

fn welcome(from: u32, links: u32) -> Welcome {
    Welcome {
        incarnation: incarnation_of(from),
        links,
        message_bytes_max: 1,
    }
}

fn refuse(reason: RefuseReason, links: u32) -> Refuse {
    Refuse {
        reason,
        links,
        text: String::new(),
    }
}

fn refused(reason: RefuseReason, links: u32) -> Result<u32, (RefuseReason, u32)> {
    Err((reason, links))
}

#[test]
fn the_first_hello_is_accepted_with_count_1() {
    let mut listener = link(2, 1);
    let answer = listener.on_hello(&hello(1, 2, 0));
    assert_eq!(answer, Ok(1));

    let mut dialer = link(1, 2);
    assert_eq!(dialer.dial(ANY), Some(0));
    assert_eq!(dialer.dial(ANY), None, "one dial at a time");
    assert!(dialer.on_welcome(&welcome(2, 1)));
    assert_eq!(
        (dialer.state(), dialer.pair.links),
        (PairState::Established, 1)
    );
    assert_eq!(dialer.dial(ANY), None, "no dial while connected");
}

#[test]
fn of_two_simultaneous_dials_the_lower_ids_is_accepted() {
    let (mut lower, mut higher) = (link(1, 2), link(2, 1));
    lower.dial(ANY);
    higher.dial(ANY);
    assert_eq!(
        lower.on_hello(&hello(2, 1, 0)),
        refused(RefuseReason::UseOther, 0)
    );
    let accepted = Ok(1);
    assert_eq!(higher.on_hello(&hello(1, 2, 0)), accepted);
}

#[test]
fn a_hello_replaces_the_connection_only_if_its_count_is_current() {
    let mut listener = link(1, 2);
    listener.on_hello(&hello(2, 1, 0)).unwrap();
    assert_eq!(
        listener.on_hello(&hello(2, 1, 0)),
        refused(RefuseReason::UseOther, 1)
    );

    let mut dialer = link(2, 1);
    dialer.dial(ANY);
    let refuse = refuse(RefuseReason::UseOther, 1);
    assert!(dialer.on_refuse(&refuse));
    let links = dialer.dial(ANY).unwrap();
    let replaced = Ok(2);
    assert_eq!(listener.on_hello(&hello(2, 1, links)), replaced);
}

#[test]
fn a_hello_to_another_worker_or_process_is_refused() {
    let mut listener = link(1, 2);
    assert_eq!(
        listener.on_hello(&hello(2, 3, 0)),
        refused(RefuseReason::WrongWorker, 0)
    );
    assert_eq!(
        listener.on_hello(&hello(3, 1, 0)),
        refused(RefuseReason::WrongWorker, 0)
    );
    let other = Hello {
        incarnation_wanted: 7,
        ..hello(2, 1, 0)
    };
    assert_eq!(
        listener.on_hello(&other),
        refused(RefuseReason::WrongIncarnation, 0)
    );
    let any = Hello {
        incarnation_wanted: ANY,
        ..other
    };
    assert!(listener.on_hello(&any).is_ok());
    listener.on_lost();
    listener.close();
    assert_eq!(
        listener.on_hello(&any),
        refused(RefuseReason::ShuttingDown, 1)
    );
    assert_eq!(listener.dial(ANY), None);
}

#[test]
fn a_restarted_peer_replaces_the_old_connection_and_counts_from_0() {
    let restarted = Hello {
        incarnation: 77,
        ..hello(2, 1, 0)
    };
    let mut listener = link(1, 2);
    for _ in 0..3 {
        listener.on_hello(&hello(2, 1, 9)).unwrap();
        listener.on_lost();
    }
    listener.on_hello(&hello(2, 1, 9)).unwrap();
    assert_eq!(listener.pair.hello_links(77), 0);
    let replaced = Ok(1);
    assert_eq!(listener.on_hello(&restarted), replaced);
    assert_eq!(listener.pair.peer_incarnation(), Some(77));

    // The restarted peer also replaces a dial of the old process by the lower id.
    let mut dialer = link(1, 2);
    dialer.dial(incarnation_of(2));
    assert!(matches!(dialer.on_hello(&restarted), Ok(1)));
}

#[test]
fn a_welcome_from_another_process_is_rejected() {
    let mut dialer = link(1, 2);
    dialer.dial(7);
    assert!(!dialer.on_welcome(&welcome(2, 1)));
    assert_eq!((dialer.state(), dialer.pair.links), (PairState::Idle, 0));
}

#[test]
fn the_reason_of_a_refusal_decides_the_next_step() {
    let table = [
        (RefuseReason::UseOther, true, 5),
        (RefuseReason::WrongWorker, true, 0),
        (RefuseReason::WrongIncarnation, true, 0),
        (RefuseReason::ShuttingDown, false, 0),
        (RefuseReason::Version, false, 0),
        (RefuseReason::NotMember, true, 0),
    ];
    for (reason, expected, links) in table {
        let mut dialer = link(1, 2);
        dialer.dial(ANY);
        assert_eq!(dialer.on_refuse(&refuse(reason, 5)), expected);
        assert_eq!(dialer.dial(ANY), Some(links));
    }
}

/// Two sides and the packets in flight between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    sides: [Side; 2],
    /// Connections that a side uses or that still have packets in flight.
    connections: Vec<Connection>,
    /// How many more connections or dials may fail.
    losses_left: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Side {
    link: Link,
    /// Index of the connection that it dials or uses.
    uses: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Connection {
    dialer: usize,
    /// Packets in flight to each side.
    to: [VecDeque<Packet>; 2],
    /// Per side: whether it has closed the connection or seen its end.
    is_closed: [bool; 2],
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Packet {
    Hello { links: u32 },
    Welcome { links: u32 },
    Refuse { links: u32 },
    End,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Dial(usize),
    Deliver {
        connection: usize,
        to: usize,
    },
    /// The network breaks a connection; the first `arrive` packets still reach each side.
    Lose {
        connection: usize,
        arrive: [usize; 2],
    },
    /// This side's dial times out. Its Hello may still arrive.
    GiveUp(usize),
}

impl World {
    fn new(losses: u32) -> Self {
        let side = |me, peer| Side {
            link: link(me, peer),
            uses: None,
        };
        Self {
            sides: [side(0, 1), side(1, 0)],
            connections: Vec::new(),
            losses_left: losses,
        }
    }

    fn deliveries(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (connection, it) in self.connections.iter().enumerate() {
            for to in 0..2 {
                if !it.to[to].is_empty() {
                    events.push(Event::Deliver { connection, to });
                }
            }
        }
        events
    }

    fn dials(&self) -> Vec<Event> {
        let idle = |side: &usize| self.sides[*side].uses.is_none();
        (0..2).filter(idle).map(Event::Dial).collect()
    }

    fn losses(&self) -> Vec<Event> {
        if self.losses_left == 0 {
            return Vec::new();
        }
        let mut events = Vec::new();
        for (connection, it) in self.connections.iter().enumerate() {
            if it.is_closed != [false; 2] {
                continue;
            }
            for first in 0..=it.to[0].len() {
                for second in 0..=it.to[1].len() {
                    let arrive = [first, second];
                    events.push(Event::Lose { connection, arrive });
                }
            }
        }
        let dialing = |side: &usize| {
            let state = self.sides[*side].link.state();
            matches!(state, PairState::Dialing { .. })
        };
        events.extend((0..2).filter(dialing).map(Event::GiveUp));
        events
    }

    fn after(&self, event: Event) -> Self {
        let mut world = self.clone();
        match event {
            Event::Dial(side) => world.dial(side),
            Event::Deliver { connection, to } => world.deliver(connection, to),
            Event::Lose { connection, arrive } => {
                // Each side sees the end independently of the other.
                world.losses_left -= 1;
                for (queue, arrive) in world.connections[connection].to.iter_mut().zip(arrive) {
                    queue.truncate(arrive);
                    if queue.back() != Some(&Packet::End) {
                        queue.push_back(Packet::End);
                    }
                }
            }
            Event::GiveUp(side) => {
                world.losses_left -= 1;
                world.sides[side].link.on_dial_failed();
                if let Some(connection) = world.sides[side].uses.take() {
                    world.close(connection, side);
                }
            }
        }
        world.remove_finished();
        world.check();
        world
    }

    fn dial(&mut self, side: usize) {
        let links = self.sides[side].link.dial(ANY).expect("it is idle");
        self.sides[side].uses = Some(self.connections.len());
        let mut to = [VecDeque::new(), VecDeque::new()];
        to[1 - side].push_back(Packet::Hello { links });
        self.connections.push(Connection {
            dialer: side,
            to,
            is_closed: [false; 2],
        });
    }

    fn close(&mut self, connection: usize, side: usize) {
        let it = &mut self.connections[connection];
        it.is_closed[side] = true;
        it.to[side].clear();
        if !it.is_closed[1 - side] && it.to[1 - side].back() != Some(&Packet::End) {
            it.to[1 - side].push_back(Packet::End);
        }
    }

    fn deliver(&mut self, connection: usize, to: usize) {
        let packet = self.connections[connection].to[to].pop_front();
        let from = 1 - to;
        let is_used = self.sides[to].uses == Some(connection);
        match packet.expect("a packet is in flight") {
            Packet::Hello { links } => {
                let hello = hello(from as u32, to as u32, links);
                let before = self.sides[to].uses;
                let was_idle = self.sides[to].link.state() == PairState::Idle;
                let answer = match self.sides[to].link.on_hello(&hello) {
                    Ok(links) => {
                        assert_eq!(before.is_none(), was_idle);
                        if let Some(old) = before {
                            self.close(old, to);
                        }
                        self.sides[to].uses = Some(connection);
                        Packet::Welcome { links }
                    }
                    Err((_, links)) => Packet::Refuse { links },
                };
                let is_refused = matches!(answer, Packet::Refuse { .. });
                let it = &mut self.connections[connection];
                // After a loss or a close by the dialer the answer is lost.
                if !it.is_closed[from] && it.to[from].back() != Some(&Packet::End) {
                    it.to[from].push_back(answer);
                }
                if is_refused {
                    self.close(connection, to);
                }
            }
            Packet::Welcome { links } if is_used => {
                let welcome = welcome(from as u32, links);
                let after = self.sides[to].link.on_welcome(&welcome);
                assert!(after);
            }
            Packet::Refuse { links } if is_used => {
                let refuse = refuse(RefuseReason::UseOther, links);
                let after = self.sides[to].link.on_refuse(&refuse);
                assert!(after);
                self.sides[to].uses = None;
                self.close(connection, to);
            }
            Packet::End if is_used => {
                match self.sides[to].link.state() {
                    PairState::Established => self.sides[to].link.on_lost(),
                    _ => self.sides[to].link.on_dial_failed(),
                }
                self.sides[to].uses = None;
                self.close(connection, to);
            }
            Packet::End => self.close(connection, to),
            Packet::Welcome { .. } | Packet::Refuse { .. } => {
                unreachable!("a side that abandons a dial closes it and receives nothing more")
            }
        }
    }

    /// Removes finished connections and normalizes counts, so that equivalent states are equal.
    fn remove_finished(&mut self) {
        let mut at = 0;
        while at < self.connections.len() {
            let it = &self.connections[at];
            let is_over = it.is_closed == [true; 2] && it.to.iter().all(VecDeque::is_empty);
            if is_over {
                self.connections.remove(at);
                for side in &mut self.sides {
                    side.uses = side
                        .uses
                        .map(|uses| if uses > at { uses - 1 } else { uses });
                }
            } else {
                at += 1;
            }
        }
        let mut counts: Vec<&mut u32> = Vec::new();
        for side in &mut self.sides {
            counts.push(&mut side.link.pair.links);
        }
        for connection in &mut self.connections {
            for packet in connection.to.iter_mut().flatten() {
                match packet {
                    Packet::Hello { links }
                    | Packet::Welcome { links }
                    | Packet::Refuse { links } => counts.push(links),
                    Packet::End => {}
                }
            }
        }
        // The rules compare counts and add 1, so only differences matter.
        let least = counts.iter().map(|count| **count).min().unwrap_or(0);
        for count in counts {
            *count -= least;
        }
    }

    fn is_established(&self, side: usize) -> bool {
        self.sides[side].link.state() == PairState::Established
    }

    /// Both use the same connection, and no packet is in flight.
    fn is_settled(&self) -> bool {
        self.is_established(0)
            && self.is_established(1)
            && self.sides[0].uses == self.sides[1].uses
            && self.deliveries().is_empty()
    }

    /// Asserts the invariants of every state.
    fn check(&self) {
        let mut used_by_both = 0;
        for (at, connection) in self.connections.iter().enumerate() {
            let uses = |side: usize| self.sides[side].uses == Some(at) && self.is_established(side);
            used_by_both += usize::from(uses(0) && uses(1));
            for side in 0..2 {
                let is_open = !connection.is_closed[side];
                assert!(
                    is_open || !uses(side),
                    "a closed connection is used: {self:?}"
                );
                let is_mine = self.sides[side].uses == Some(at);
                let awaits = connection.to[side]
                    .front()
                    .is_some_and(|packet| matches!(packet, Packet::Hello { .. }));
                assert!(
                    !is_open
                        || is_mine
                        || awaits
                        || connection.to[side].back() == Some(&Packet::End),
                    "an open connection is unused: {self:?}"
                );
            }
        }
        assert!(used_by_both <= 1, "{self:?}");
        for side in &self.sides {
            assert_eq!(side.uses.is_none(), side.link.state() == PairState::Idle);
        }
    }
}

/// All reachable states. A state without a further event, except for a loss, is settled, and a settled state has none.
fn explore(losses: u32) -> HashSet<World> {
    let mut found = HashSet::new();
    let mut open = vec![World::new(losses)];
    while let Some(world) = open.pop() {
        if !found.insert(world.clone()) {
            continue;
        }
        let events = [world.deliveries(), world.dials()].concat();
        assert_eq!(events.is_empty(), world.is_settled(), "{world:?}");
        let events = events.into_iter().chain(world.losses());
        open.extend(events.map(|event| world.after(event)));
        assert!(found.len() < 200_000, "too many states");
    }
    found
}

#[test]
fn after_any_losses_both_sides_settle_on_the_same_connection() {
    // If the pause before a dial exceeds the network delay, every order of events reaches a settled state
    // within a bounded number of events, from every state.
    let mut steps_max = 0;
    let mut longest: HashMap<World, Option<u32>> = HashMap::new();
    for world in explore(2) {
        steps_max = steps_max.max(steps_to_settle(&world, &mut longest));
    }
    assert!(steps_max <= 30, "{steps_max}");
}

/// The most events until both sides are settled, if neither dials while a packet is in flight.
fn steps_to_settle(world: &World, longest: &mut HashMap<World, Option<u32>>) -> u32 {
    match longest.get(world) {
        Some(Some(steps)) => return *steps,
        Some(None) => panic!("the states form a cycle: {world:?}"),
        None => {}
    }
    longest.insert(world.clone(), None);
    let mut events = world.deliveries();
    if events.is_empty() {
        events = world.dials();
    }
    let steps = events
        .into_iter()
        .map(|event| 1 + steps_to_settle(&world.after(event), longest))
        .max()
        .unwrap_or(0);
    longest.insert(world.clone(), Some(steps));
    steps
}
