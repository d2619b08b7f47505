//! A process with few descriptors, its listeners and their peers, in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use super::{ACCEPT_RETRY, ACCEPTS_PER_TURN, AcceptLimits, Acceptor, Decision, Refusal, Stage};

const MILLISECOND: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// Sends its request with the connection.
    Client,
    /// Sends nothing.
    Silent,
    /// Begins a handshake, and never completes it.
    Slow,
    /// Disconnects before it is accepted.
    Aborted,
}

struct World {
    acceptor: Acceptor<u32>,
    now: Instant,
    queues: Vec<VecDeque<Peer>>,
    /// By key: the peer, and how far it is. A connection takes a descriptor.
    open: BTreeMap<u32, (Peer, Stage)>,
    next_key: u32,
    held: Option<Peer>,
    /// The descriptors that connections and the spare one may take.
    descriptors: usize,
    has_spare: bool,
    /// The error of each accept.
    broken: Option<i32>,
    served: usize,
    refused: Vec<Option<Refusal>>,
    failed: usize,
    steps: usize,
}

impl World {
    fn new(listeners: usize, descriptors: usize, connections_max: usize) -> Self {
        let limits = AcceptLimits {
            connections_max,
            handshakes_max: 1024,
        };
        let now = Instant::now();
        Self {
            acceptor: Acceptor::new(listeners, limits, true, now),
            now,
            queues: vec![VecDeque::new(); listeners],
            open: BTreeMap::new(),
            next_key: 0,
            held: None,
            descriptors,
            has_spare: true,
            broken: None,
            served: 0,
            refused: Vec::new(),
            failed: 0,
            steps: 0,
        }
    }

    fn connect(&mut self, listener: usize, peer: Peer) {
        self.queues[listener].push_back(peer);
        let token = Acceptor::<u32>::listener_token(listener);
        assert!(self.acceptor.on_event(token));
    }

    fn free_descriptors(&self) -> usize {
        let held = usize::from(self.held.is_some()) + usize::from(self.has_spare);
        self.descriptors
            .checked_sub(self.open.len() + held)
            .expect("no descriptor is used twice")
    }

    fn accept(&mut self, listener: usize) -> io::Result<()> {
        if let Some(errno) = self.broken {
            return Err(io::Error::from_raw_os_error(errno));
        }
        // Linux does so even if the queue is empty.
        if self.free_descriptors() == 0 {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        match self.queues[listener].pop_front() {
            None => Err(io::ErrorKind::WouldBlock.into()),
            Some(Peer::Aborted) => Err(io::ErrorKind::ConnectionAborted.into()),
            Some(peer) => {
                self.held = Some(peer);
                Ok(())
            }
        }
    }

    fn read(&mut self, key: u32) {
        if let Some((peer, stage)) = self.open.get_mut(&key) {
            let next = match peer {
                Peer::Client => Stage::Served,
                Peer::Slow => Stage::Handshaking,
                Peer::Silent | Peer::Aborted => Stage::Silent,
            };
            if *stage != next {
                *stage = next;
                self.served += usize::from(next == Stage::Served);
                if next == Stage::Handshaking {
                    let excess = self.acceptor.handshake_begun(key, stage_in(&self.open));
                    assert_eq!(excess, []);
                }
            }
        }
    }

    /// One turn of a loop: accept, then read.
    fn turn(&mut self) {
        self.now += MILLISECOND;
        self.acceptor.next_turn(self.now);
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 10 * ACCEPTS_PER_TURN, "it never waits");
            match self.acceptor.next(self.open.len(), stage_in(&self.open)) {
                Decision::Accept {
                    listener,
                    with_spare,
                } => {
                    assert!(self.held.is_none());
                    if with_spare {
                        assert!(self.has_spare);
                        self.has_spare = false;
                    }
                    let result = self.accept(listener);
                    self.acceptor.on_accept(result);
                }
                Decision::Read(key) => self.read(key),
                Decision::Close(key) => {
                    let (peer, _) = self.open.remove(&key).expect("it is open");
                    assert!(peer != Peer::Client, "a client makes no room");
                }
                Decision::Admit => {
                    let peer = self.held.take().expect("one was accepted");
                    let key = self.next_key;
                    self.next_key += 1;
                    self.open.insert(key, (peer, Stage::Silent));
                    self.acceptor.admitted(key, stage_in(&self.open));
                }
                Decision::Refuse(refusal) => {
                    self.held.take().expect("one was accepted");
                    self.refused.push(refusal);
                }
                Decision::OpenSpare => {
                    self.has_spare |= self.free_descriptors() > 0;
                    self.acceptor.on_spare(self.has_spare);
                }
                Decision::Fail(_) => self.failed += 1,
                Decision::Wait => break,
            }
        }
        assert!(self.held.is_none(), "what is accepted is decided on");
        self.steps += steps;
        for key in self.open.keys().copied().collect::<Vec<_>>() {
            self.read(key);
        }
    }

    /// Turns until there is nothing to do without an event or the time. Returns their number.
    fn settle(&mut self) -> usize {
        for turns in 0..1000 {
            if !self.acceptor.has_ready() {
                return turns;
            }
            self.turn();
        }
        panic!("it never rests");
    }
}

fn stage_in(open: &BTreeMap<u32, (Peer, Stage)>) -> impl Fn(u32) -> Stage + '_ {
    |key| open.get(&key).map_or(Stage::Closed, |(_, stage)| *stage)
}

#[test]
fn a_connection_costs_one_accept_and_the_queue_one_more() {
    let mut world = World::new(2, 100, 100);
    for _ in 0..10 {
        world.connect(0, Peer::Client);
    }
    world.connect(1, Peer::Client);
    world.turn();
    assert_eq!((world.served, world.settle()), (11, 0));
    // An accept and an admission each, and for each listener an accept that finds nothing; then it waits.
    assert_eq!(world.steps, 11 * 2 + 2 + 1);
    assert_eq!(world.acceptor.next_deadline(), None);
}

#[test]
fn strangers_that_hold_all_descriptors_make_room_for_clients() {
    for stranger in [Peer::Silent, Peer::Slow] {
        let mut world = World::new(1, 16, usize::MAX);
        for _ in 0..15 {
            world.connect(0, stranger);
        }
        world.settle();
        assert_eq!(world.open.len(), 15);
        for count in 1..=8 {
            // A stranger takes each descriptor that is free.
            world.connect(0, stranger);
            world.connect(0, Peer::Client);
            world.turn();
            for _ in 0..100 {
                world.settle();
                if world.served == count {
                    break;
                }
                // A new connection that was refused tries again.
                world.connect(0, Peer::Client);
            }
            assert_eq!(world.served, count, "{stranger:?}");
            assert!(world.has_spare, "it is open again");
        }
    }
}

#[test]
fn without_room_a_peer_is_refused_at_once_and_the_spare_descriptor_stays() {
    let mut world = World::new(1, 5, usize::MAX);
    for _ in 0..100 {
        world.connect(0, Peer::Client);
        world.turn();
        world.settle();
    }
    assert_eq!(world.served, 4);
    assert_eq!(world.refused.len(), 96);
    assert!(matches!(world.refused[0], Some(Refusal::NoDescriptor(_))));
    assert!(
        world.refused[1..].iter().all(Option::is_none),
        "one line is enough"
    );
    assert!(world.has_spare);
    assert_eq!((world.failed, world.acceptor.next_deadline()), (0, None));
    // An event without a connection: EMFILE is checked before the queue.
    assert!(world.acceptor.on_event(Acceptor::<u32>::listener_token(0)));
    world.turn();
    assert_eq!((world.refused.len(), world.settle()), (96, 0));
    assert!(world.has_spare);
}

/// Connections that were accepted in one burst have the time to prove themselves.
#[test]
fn a_burst_of_clients_is_not_closed_before_it_is_read() {
    let mut world = World::new(1, 9, usize::MAX);
    for _ in 0..12 {
        world.connect(0, Peer::Client);
    }
    world.turn();
    world.settle();
    assert_eq!(world.served, 8, "those that have a descriptor are served");
    assert_eq!(world.refused.len(), 4);
}

#[test]
fn the_spare_descriptor_that_another_thread_took_is_replaced_by_a_strangers() {
    let mut world = World::new(1, 6, usize::MAX);
    for _ in 0..5 {
        world.connect(0, Peer::Silent);
    }
    world.settle();
    world.turn();
    world.turn();
    // Another thread takes the spare one when it is closed for a moment.
    world.has_spare = false;
    world.descriptors -= 1;
    world.acceptor.on_spare(false);
    world.connect(0, Peer::Client);
    world.turn();
    world.settle();
    // One makes room for the spare one, and another for the client.
    assert_eq!(world.served, 1);
    assert!(world.has_spare);
    assert_eq!((world.failed, world.open.len()), (0, 4));
}

#[test]
fn a_listener_that_fails_is_tried_again_after_a_while_and_the_others_go_on() {
    for errno in [libc::ENOMEM, libc::ENFILE] {
        let mut world = World::new(3, 100, 100);
        world.broken = Some(errno);
        world.connect(1, Peer::Client);
        world.turn();
        assert_eq!(world.failed, 1);
        assert_eq!(world.settle(), 0, "it does not spin");
        let due = world.acceptor.next_deadline().expect("it tries again");
        assert_eq!(due, world.now + ACCEPT_RETRY);
        world.now = due - 2 * MILLISECOND;
        let before = world.steps;
        world.turn();
        assert_eq!(world.steps - before, 1, "it only waits");
        world.broken = None;
        world.turn();
        assert_eq!(world.served, 1);
        assert_eq!(world.acceptor.next_deadline(), None);
    }
}

#[test]
fn a_connection_beyond_the_limit_takes_the_place_of_a_stranger_or_is_refused() {
    let mut world = World::new(1, 100, 3);
    for peer in [Peer::Client, Peer::Silent, Peer::Client] {
        world.connect(0, peer);
    }
    world.turn();
    world.turn();
    for _ in 0..3 {
        world.connect(0, Peer::Client);
        world.turn();
    }
    assert_eq!((world.served, world.open.len()), (3, 3));
    assert_eq!(world.refused.len(), 2);
    assert!(matches!(world.refused[0], Some(Refusal::Limit(3))));
    assert_eq!(world.settle(), 0);
}

#[test]
fn a_long_queue_takes_several_turns_and_no_event() {
    let mut world = World::new(2, 20_000, usize::MAX);
    for _ in 0..2 * ACCEPTS_PER_TURN {
        world.connect(0, Peer::Client);
    }
    world.connect(0, Peer::Aborted);
    world.connect(1, Peer::Client);
    world.turn();
    assert_eq!(world.served, ACCEPTS_PER_TURN + 1, "each has its turn");
    assert_eq!(world.settle(), 2);
    assert_eq!(world.served, 2 * ACCEPTS_PER_TURN + 1);
}

/// Any mix of peers, limits and failures: all invariants of [`World::turn`] hold, and it comes to rest.
#[test]
fn random_peers_are_accepted_or_refused_and_clients_stay() {
    let mut rng = fastrand::Rng::with_seed(c10d_sim::seed());
    for _ in 0..300 {
        let listeners = rng.usize(1..4);
        let mut world = World::new(listeners, rng.usize(2..20), rng.usize(1..20));
        for _ in 0..100 {
            for _ in 0..rng.usize(0..8) {
                let peers = [Peer::Client, Peer::Silent, Peer::Slow, Peer::Aborted];
                world.connect(rng.usize(..listeners), peers[rng.usize(..4)]);
            }
            world.broken =
                [None, None, None, Some(libc::ENOMEM), Some(libc::ENFILE)][rng.usize(..5)];
            world.turn();
            // Some leave.
            let leaving = |_: &u32, _: &mut (Peer, Stage)| rng.usize(..10) > 0;
            world.open.retain(leaving);
        }
        world.broken = None;
        world.now += ACCEPT_RETRY;
        world.turn();
        world.settle();
        assert!(world.queues.iter().all(VecDeque::is_empty));
    }
}

#[test]
fn only_tokens_of_listeners_are_taken() {
    let mut world = World::new(2, 10, 10);
    let last = Acceptor::<u32>::listener_token(0);
    assert_eq!(last, usize::MAX - 2);
    for other in [usize::MAX, usize::MAX - 1, last - 2, 0] {
        assert!(!world.acceptor.on_event(other));
    }
    assert!(!world.acceptor.has_ready());
    assert!(world.acceptor.on_event(last) && world.acceptor.on_event(last - 1));
    assert!(world.acceptor.has_ready());
    let mut none = World::new(0, 10, 10);
    assert!(!none.acceptor.on_event(last) && !none.acceptor.on_event(last - 1));
}
