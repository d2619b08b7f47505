//! END_WAITS, crashes and sessions that return at any moment, in virtual time (docs/spec/wire-extensions.md,
//! END_WAITS 4): no wait outlasts an END_WAITS for its name, and no older END_WAITS causes the end of a wait.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use c10d_sim::Seeds;

use super::missed_ends::MissedEnds;
use crate::journal::batch::{Effect, effects};
use crate::journal::format::FORMAT_VERSION;
use crate::message::{ConnId, Extension, Keys, Payload, Replies, Reply, Request};
use crate::moment::Moment;
use crate::session::{Outstanding, ResentWait, Restart, SessionId};
use crate::state::StoreState;
use crate::wire::Opcode;

const CLIENTS: usize = 3;

/// The connection that sends END_WAITS.
const ENDER: ConnId = ConnId(1);

const NAMES: [&[u8]; 3] = [b"a/1", b"a/2", b"b/1"];
/// The keys of barriers, which have values.
const BARRIERS: [&[u8]; 3] = [b"a/1#", b"a/2#", b"b/1#"];
const PREFIXES: [&[u8]; 5] = [b"", b"a/", b"a/2", b"b/1", b"c"];

const WAITS: [Opcode; 5] = [
    Opcode::Wait,
    Opcode::WaitGet,
    Opcode::WaitChange,
    Opcode::Barrier,
    Opcode::QueueTake,
];

/// A fault that the law must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    None,
    ResentWaitsGoOn,
    ForgottenInACrash,
    NotInSnapshots,
    TooOld,
    OfTooEarlyServers,
    OfNoServer,
    SameServerNotTold,
    OfReplacedWait,
}

/// The connections whose waits were ended, and the positions of their replies.
#[derive(Debug, Default)]
struct Sink {
    ended: Vec<(ConnId, u64)>,
    position: u64,
}

impl Replies for Sink {
    fn reply(&mut self, conn: ConnId, reply: Reply<'_>) {
        if matches!(reply, Reply::WaitCanceled) {
            self.ended.push((conn, self.position));
        }
    }

    fn depend_on(&mut self, position: u64) {
        self.position = position;
    }
}

/// A wait of one client, from its call on.
#[derive(Debug, Clone)]
struct Wait {
    client: usize,
    request: u32,
    name: &'static [u8],
    kind: Opcode,
    began: u64,
    /// The server that had accepted the session last.
    linked: u32,
    /// The session has had another link to the same server before it arrived.
    was_cut: bool,
    /// The first server that has carried it out, and when.
    carried_out: Option<(u32, u64)>,
    /// The last server that has.
    carried_out_last: u32,
    /// The time when the client was informed of its end.
    ended: Option<u64>,
    /// The client has cancelled it before it was sent.
    is_cancelled: bool,
}

#[derive(Debug, Clone)]
struct End {
    prefix: &'static [u8],
    at: u64,
    server: u32,
    position: u64,
    /// The client was informed.
    is_acknowledged: bool,
}

/// A session with its client.
#[derive(Debug, Default)]
struct Client {
    outstanding: Outstanding,
    requests: u32,
    /// The index of its wait in `waits`.
    wait: Option<usize>,
    conn: Option<ConnId>,
    /// The last server that has accepted the session.
    server: u32,
    /// Otherwise it is away from the same server, which does not know that.
    has_link: bool,
    /// The wait is on its way to the server.
    in_flight: Option<Option<(ResentWait, Moment)>>,
    /// Follows the wait in flight, or everything, over a link that was made and accepted at these times: how long the client
    /// has waited. The report is kept for the mutant that makes it too early.
    resent: Option<(Instant, Moment, Option<ResentWait>)>,
    /// The client has cancelled a wait that was not sent, so that nothing after it was sent.
    is_held_up: bool,
    /// The position that the reply of the ended wait depends on.
    told: Option<u64>,
}

#[derive(Debug, Default, Clone)]
struct Kept {
    chunks: Vec<(u64, Vec<u8>)>,
    batches: Vec<(u64, Vec<u8>)>,
    /// The requests whose replies are in the chunks.
    answered: HashSet<(u32, u32)>,
}

struct World {
    random: fastrand::Rng,
    mutant: Mutant,
    start: Instant,
    now: u64,
    server: u32,
    /// When each server has started.
    starts: Vec<u64>,
    state: StoreState,
    answered: HashSet<(u32, u32)>,
    durable: u64,
    kept: Kept,
    conns: u64,
    clients: Vec<Client>,
    waits: Vec<Wait>,
    ends: Vec<End>,
}

impl World {
    fn new(seed: u64, mutant: Mutant) -> Self {
        let mut world = Self {
            random: fastrand::Rng::with_seed(seed),
            mutant,
            start: Instant::now(),
            now: 0,
            server: 1,
            starts: vec![0],
            state: StoreState::default(),
            answered: HashSet::new(),
            durable: 0,
            kept: Kept::default(),
            conns: 1,
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            waits: Vec::new(),
            ends: Vec::new(),
        };
        world.state.start_recording(0);
        world.state.remember_ends();
        world.connect(ENDER);
        for client in 0..CLIENTS {
            world.come_back(client);
        }
        world
    }

    fn instant(&self, at: u64) -> Instant {
        self.start + Duration::from_millis(at)
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        let started = self.starts[self.server as usize - 1];
        let since_start = Duration::from_millis(self.now - started);
        self.state.set_now(Moment::from(since_start));
        self.now
    }

    fn connect(&mut self, conn: ConnId) {
        self.state.connect(conn, ([127, 0, 0, 1], 1).into());
    }

    fn begin_wait(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.wait.is_some() {
            return;
        }
        let kind = WAITS[self.random.usize(..WAITS.len())];
        client.requests += 1;
        client.wait = Some(self.waits.len());
        assert!(client.outstanding.add(kind, 1, b"w"));
        client
            .outstanding
            .sent_at(self.start + Duration::from_millis(self.now));
        let linked = client.server;
        client.in_flight = client.conn.map(|_| None);
        if !client.is_held_up {
            // It arrives before this wait.
            client.resent = None;
        }
        self.waits.push(Wait {
            client: index,
            request: client.requests,
            name: if kind == Opcode::Barrier {
                BARRIERS[self.random.usize(..3)]
            } else {
                NAMES[self.random.usize(..3)]
            },
            kind,
            began: self.now,
            linked,
            was_cut: false,
            carried_out: None,
            carried_out_last: 0,
            ended: None,
            is_cancelled: false,
        });
    }

    /// A client cancels a wait that cannot be sent, is answered, and waits again.
    fn cancel(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let Some(wait) = client.wait.filter(|_| client.in_flight == Some(None)) else {
            return;
        };
        assert!(client.outstanding.add(Opcode::CancelWait, 0, b"c"));
        let answered = client.outstanding.on_reply(&[1], |_| {});
        answered.expect("the reply that is due");
        client.requests += 1;
        (client.wait, client.in_flight, client.is_held_up) = (None, None, true);
        self.waits[wait].is_cancelled = true;
        self.begin_wait(index);
    }

    /// The wait on its way arrives.
    fn arrive(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let (Some(conn), true) = (client.conn, client.has_link) else {
            return;
        };
        client.is_held_up = false;
        let after = client.resent.take().and_then(|(linked, accepted, early)| {
            let wait = match self.mutant {
                Mutant::OfReplacedWait => early?,
                _ => client.outstanding.wait_of_same_server(linked)?,
            };
            Some((wait, accepted))
        });
        let Some(before) = client.in_flight.take() else {
            return self.tell_since(conn, after);
        };
        let wait = &mut self.waits[client.wait.expect("it waits")];
        wait.carried_out.get_or_insert((self.server, self.now));
        wait.carried_out_last = self.server;
        if self.answered.contains(&(index as u32, wait.request)) {
            client.told = Some(0);
            return;
        }
        let keys = [wait.name];
        let key = wait.name;
        let request = match wait.kind {
            Opcode::Wait => Request::Wait {
                keys: Keys::from(&keys[..]),
            },
            Opcode::WaitGet => Request::Extension(Extension::WaitGet {
                keys: Keys::from(&keys[..]),
            }),
            Opcode::WaitChange => Request::Extension(Extension::WaitChange {
                key,
                offset: 0,
                length: Some(1000),
                known: Payload::Borrowed(b""),
            }),
            Opcode::Barrier => {
                let world_size = i64::MAX;
                Request::Barrier { key, world_size }
            }
            _ => Request::Extension(Extension::QueueTake { key, max: 1 }),
        };
        let mut sink = Sink::default();
        let handled = self.state.handle(conn, request, &mut sink);
        handled.expect("no refusal");
        self.record(sink);
        self.tell_since(conn, before.or(after));
    }

    /// The server learns how long a client has waited.
    fn tell_since(&mut self, conn: ConnId, resent: Option<(ResentWait, Moment)>) {
        let Some((mut resent, accepted)) = resent else {
            return;
        };
        match self.mutant {
            Mutant::ResentWaitsGoOn => return,
            Mutant::TooOld => resent.age = Duration::MAX,
            Mutant::OfTooEarlyServers => resent.starts_ago = 255,
            Mutant::OfNoServer => resent.starts_ago = 0,
            _ => {}
        }
        let mut sink = Sink::default();
        let state = &mut self.state;
        state.end_if_missed(conn, resent, accepted, &mut sink);
        self.record(sink);
    }

    fn end_waits(&mut self) {
        let prefix = PREFIXES[self.random.usize(..PREFIXES.len())];
        let mut sink = Sink::default();
        let handled = self.state.handle(
            ENDER,
            Request::Extension(Extension::EndWaits { prefix }),
            &mut sink,
        );
        handled.expect("no refusal");
        self.ends.push(End {
            prefix,
            at: self.now,
            server: self.server,
            position: sink.position,
            is_acknowledged: sink.position <= self.durable,
        });
        self.record(sink);
    }

    /// Keeps the replies that have ended waits. The server does the same.
    fn record(&mut self, sink: Sink) {
        for (conn, position) in sink.ended {
            let of_conn = |client: &Client| client.conn == Some(conn);
            let index = self.clients.iter().position(of_conn).expect("a client");
            let client = &mut self.clients[index];
            let request = client.requests;
            client.told = Some(position);
            self.answered.insert((index as u32, request));
            let recorder = self.state.recorder_mut().expect("a journal");
            recorder.record_session(Effect::Executed {
                session: SessionId::nth(1).as_bytes(),
                client: index as u32,
                request,
                answered: 0,
                waits: false,
                reply: &[1],
            });
        }
    }

    /// The gathered batch becomes durable, perhaps with a snapshot.
    fn keep(&mut self) {
        let recorder = self.state.recorder_mut().expect("a journal");
        let Some((position, batch)) = recorder.take_batch(&mut Vec::new()) else {
            return;
        };
        let answered = self.answered.clone();
        self.kept.batches.push((position, batch));
        if self.random.u8(..3) == 0 {
            if self.mutant == Mutant::NotInSnapshots {
                self.state.extensions.missed_ends = MissedEnds::default();
            }
            self.state.start_chunks(position, FORMAT_VERSION);
            let (chunks, is_done) = self.state.copy_chunks(usize::MAX);
            assert!(is_done);
            self.kept = Kept {
                chunks: chunks.into_iter().map(|chunk| (position, chunk)).collect(),
                batches: Vec::new(),
                answered,
            };
        }
        self.state.recorder_mut().expect("a journal").appended();
        self.durable = position;
        for end in &mut self.ends {
            end.is_acknowledged |= end.server == self.server && end.position <= position;
        }
    }

    /// A client reads its reply if that is durable.
    fn read(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if !client.has_link || client.told.is_none_or(|position| position > self.durable) {
            return;
        }
        client.told = None;
        let told = client.outstanding.on_reply(&[1], |_| {});
        told.expect("the reply that is due");
        let wait = client.wait.take().expect("it waits");
        self.waits[wait].ended = Some(self.now);
    }

    fn lose(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.conn = None;
        client.has_link = false;
        client.in_flight = None;
        client.resent = None;
        client.is_held_up = false;
        client.told = None;
    }

    /// A session has another link to the same server, which gets the requests that it lacks, and then learns who waits.
    fn come_back_to_same(&mut self, index: usize) {
        let now = self.instant(self.now);
        let client = &mut self.clients[index];
        if client.conn.is_none() || std::mem::replace(&mut client.has_link, true) {
            return;
        }
        let early = client.outstanding.wait_of_same_server(now);
        client.resent = Some((now, self.state.now(), early));
        if self.mutant == Mutant::SameServerNotTold {
            client.resent = None;
        }
        if let Some(wait) = client.wait
            && client.in_flight.is_some()
        {
            self.waits[wait].was_cut = true;
        }
    }

    /// Loses everything that is not durable. A batch may be durable although no client was informed.
    fn crash(&mut self) {
        let recorder = self.state.recorder_mut().expect("a journal");
        if self.random.bool()
            && let Some(batch) = recorder.take_batch(&mut Vec::new())
        {
            self.kept.batches.push(batch);
        }
        for index in 0..CLIENTS {
            self.lose(index);
        }
        self.state = StoreState::default();
        self.answered = self.kept.answered.clone();
        for (position, bytes) in self.kept.chunks.iter().chain(&self.kept.batches) {
            self.durable = *position;
            for effect in effects(*position, bytes).expect("intact") {
                let effect = effect.expect("intact");
                if let Effect::Executed {
                    client, request, ..
                } = effect
                {
                    self.answered.insert((client, request));
                }
                let is_end = matches!(effect, Effect::EndWaits { .. });
                if self.mutant != Mutant::ForgottenInACrash || !is_end {
                    assert!(self.state.recover(effect));
                }
            }
        }
        self.server += 1;
        self.starts.push(self.now);
        self.state.start_recording(self.durable);
        self.state.expect_sessions(self.server);
        self.state.remember_ends();
        self.connect(ENDER);
    }

    /// A session is accepted, and sends its wait again.
    fn come_back(&mut self, index: usize) {
        if self.clients[index].conn.is_some() || self.clients[index].server == self.server {
            return;
        }
        self.conns += 1;
        let conn = ConnId(self.conns);
        self.connect(conn);
        let now = self.instant(self.now);
        let client = &mut self.clients[index];
        client.conn = Some(conn);
        client.has_link = true;
        let restart = Restart {
            from: std::mem::replace(&mut client.server, self.server),
            to: self.server,
        };
        client
            .outstanding
            .restart()
            .expect("it can be carried over");
        if client.wait.is_some() {
            let resent = client.outstanding.resent_wait(restart, now);
            client.in_flight = Some(Some((resent.expect("it waits"), self.state.now())));
        }
    }

    fn step(&mut self) {
        self.tick();
        let client = self.random.usize(..CLIENTS);
        match self.random.u8(..100) {
            0..15 => self.begin_wait(client),
            15..20 => self.cancel(client),
            20..45 => self.arrive(client),
            45..55 => self.end_waits(),
            55..70 => self.keep(),
            70..85 => self.read(client),
            85..88 => self.clients[client].has_link = false,
            88..91 => self.come_back_to_same(client),
            91..97 => self.come_back(client),
            _ => self.crash(),
        }
    }

    /// All sessions return, and everything arrives.
    fn settle(&mut self) {
        for _ in 0..3 {
            for client in 0..CLIENTS {
                self.tick();
                self.come_back(client);
                self.come_back_to_same(client);
                self.arrive(client);
            }
            self.keep();
            self.keep();
            for client in 0..CLIENTS {
                self.read(client);
            }
        }
    }

    /// Whether an END_WAITS that was carried out before a wait began counts as later: both were while the session was away, and
    /// by a server between those that it had links to.
    fn is_order_unknown(&self, wait: &Wait) -> bool {
        let started = self.starts[wait.carried_out_last as usize - 1];
        let is_between = |end: &End| wait.linked < end.server && wait.began < started;
        let ends = self.ends.iter();
        ends.filter(|end| wait.name.starts_with(end.prefix))
            .any(is_between)
    }

    /// Finds a wait that breaks the law.
    fn complaint(&self) -> Option<String> {
        let mut waits = self.waits.iter().filter(|wait| !wait.is_cancelled);
        waits.find_map(|wait| {
            let of_name = |end: &&End| wait.name.starts_with(end.prefix);
            let mut later = self
                .ends
                .iter()
                .filter(of_name)
                .filter(|end| end.at >= wait.began);
            match wait.ended {
                Some(at) if later.any(|end| end.at <= at) => None,
                Some(_) if self.is_order_unknown(wait) => None,
                Some(_) => Some(format!("ended by none: {wait:?}")),
                None => {
                    let missed = later.find(|end| end.is_acknowledged && must_end(wait, end));
                    missed.map(|end| format!("{wait:?} of {} goes on after {end:?}", wait.client))
                }
            }
        })
    }
}

/// Whether this acknowledged END_WAITS must have ended the wait, which had begun before.
fn must_end(wait: &Wait, end: &End) -> bool {
    let of_same = |(server, at)| {
        // A crash may take back that a wait has ended that was late.
        let had_to_wait = wait.was_cut && wait.carried_out_last == server;
        server == end.server && (at <= end.at || had_to_wait)
    };
    wait.linked < end.server || wait.carried_out.is_some_and(of_same)
}

fn run(seed: u64, mutant: Mutant) -> World {
    let mut world = World::new(seed, mutant);
    for _ in 0..200 {
        world.step();
    }
    world.settle();
    world
}

/// docs/spec/wire-extensions.md, END_WAITS 4 and 5.
#[test]
fn no_wait_outlasts_its_end_or_is_ended_by_an_older_one() {
    let seeds = Seeds::fresh(1000);
    let is_replay = seeds.is_replay();
    let mut ended = 0;
    for seed in seeds {
        let world = run(seed, Mutant::None);
        assert_eq!(world.complaint(), None);
        ended += world.waits.iter().filter(|it| it.ended.is_some()).count();
    }
    assert!(is_replay || ended > 1000, "{ended} waits were ended");
}

#[test]
fn each_way_to_end_too_much_or_too_little_is_found() {
    for mutant in [
        Mutant::ResentWaitsGoOn,
        Mutant::ForgottenInACrash,
        Mutant::NotInSnapshots,
        Mutant::TooOld,
        Mutant::OfTooEarlyServers,
        Mutant::OfNoServer,
        Mutant::SameServerNotTold,
        Mutant::OfReplacedWait,
    ] {
        let found = (0..10_000).find(|seed| run(*seed, mutant).complaint().is_some());
        assert!(found.is_some(), "{mutant:?} was not found");
    }
}

/// docs/spec/wire-extensions.md, END_WAITS 6: a limit. It is not known whether the wait began before.
#[test]
fn an_end_at_the_server_that_had_the_session_last_is_missed() {
    let mut ends = MissedEnds::default();
    ends.recover(b"by 1", 1);
    ends.recover(b"by 2", 2);
    ends.expect_sessions(3);
    let accepted = Moment::from(Duration::from_secs(5));
    let has_ended = |name: &[u8], seconds, starts_ago| {
        let age = Duration::from_secs(seconds);
        let missed = ends.missed_by(ResentWait { age, starts_ago }, accepted);
        missed.has(name)
    };
    assert!(has_ended(b"by 2", 6, 2) && !has_ended(b"by 1", 6, 2));
    // Sent after the start of this server.
    assert!(!has_ended(b"by 2", 4, 2));
}

/// The memory has a bound, and a shorter prefix replaces longer prefixes.
#[test]
fn the_oldest_of_too_many_ends_are_forgotten() {
    let mut ends = MissedEnds::default();
    let wait = ResentWait {
        age: Duration::from_secs(1),
        starts_ago: 1,
    };
    assert_eq!(ends.add(b"k", Moment::default()), None, "no session");
    ends.expect_sessions(7);
    let now = Moment::from(Duration::from_millis(100));
    let has_ended = |ends: &MissedEnds, name: &str| ends.missed_by(wait, now).has(name.as_bytes());
    for number in 0..2000 {
        let prefix = format!("k{number}/");
        assert_eq!(ends.add(prefix.as_bytes(), now), Some(7));
    }
    assert_eq!(ends.len(), 1024);
    assert!(has_ended(&ends, "k1999/x") && !has_ended(&ends, "k0/x"));
    ends.add(b"k1", now);
    assert!(ends.len() < 1024 && has_ended(&ends, "k12"));
    for byte in [b'x', b'y'] {
        ends.add(&vec![byte; 600 << 10], now);
    }
    assert_eq!(ends.len(), 1);
    assert!(ends.memory_bytes() < 1 << 20);
    ends.forget();
    assert_eq!((ends.len(), ends.memory_bytes()), (0, 0));
    assert_eq!(ends.add(b"k", now), None);
}

/// However many ends there are, a name costs one search.
#[test]
fn a_name_is_missed_if_it_has_one_of_the_prefixes() {
    let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
    let text = |random: &mut fastrand::Rng| -> Vec<u8> {
        let length = random.usize(..6);
        (0..length).map(|_| random.u8(b'a'..=b'c')).collect()
    };
    for _ in 0..1000 {
        let mut ends = MissedEnds::default();
        ends.remember();
        let prefixes: Vec<_> = (0..random.usize(..8)).map(|_| text(&mut random)).collect();
        for prefix in &prefixes {
            ends.add(prefix, Moment::default());
        }
        let age = Duration::ZERO;
        let missed = ends.missed_by(ResentWait { age, starts_ago: 0 }, Moment::default());
        let name = text(&mut random);
        let expected = prefixes.iter().any(|prefix| name.starts_with(prefix));
        assert_eq!(missed.has(&name), expected, "{prefixes:?} {name:?}");
    }
    let mut store = StoreState::default();
    store.remember_ends();
    let (waiter, replies) = (ConnId(2), &mut Sink::default());
    let names: Vec<_> = (0..20_000).map(|name| format!("k{name}")).collect();
    let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let keys = Keys::from(&keys[..]);
    for conn in [ENDER, waiter] {
        store.connect(conn, ([127, 0, 0, 1], 1).into());
    }
    store
        .handle(waiter, Request::Wait { keys }, replies)
        .expect("no refusal");
    for end in 0..1000 {
        let prefix = format!("other{end}/");
        let prefix = prefix.as_bytes();
        store
            .handle(
                ENDER,
                Request::Extension(Extension::EndWaits { prefix }),
                replies,
            )
            .expect("no refusal");
    }
    let wait = ResentWait {
        age: Duration::ZERO,
        starts_ago: 0,
    };
    let before = store.work();
    store.end_if_missed(waiter, wait, Moment::default(), replies);
    let work = store.work() - before;
    assert!(work < 25_000, "{work}");
    assert!(store.has_wait(waiter));
}
