//! Two agents that know each other, a simulated network, and the invariants.
//!
//! Each step is one [`Event`]. Reading, writing and running a function take two events each, so that other events can
//! happen in between.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use c10d_sim::{Explored, Simulation};

use crate::error::{Outcome, RpcError};
use crate::peer::call::Request;
use crate::peer::connection::{Connection, ConnectionId, ReadNext, Reads, Watch};
use crate::peer::effect::{Count, Effect, Effects, Notice};
use crate::peer::incoming::{Expects, Incoming, IncomingLimits, Message, Recipient};
use crate::peer::machine::{AttemptFailure, Peer, Welcomed};
use crate::peer::outgoing::{Batch, WriteProgress};
use crate::peer::{Config, FunctionId, Functions, NewCall};
use crate::wire::{Frame, Hello, Refuse, Welcome};
use crate::worker::WorkerInfo;

/// The number of a call. The payload and the answer are the number in decimal digits.
type Call = u32;

/// Index of a connection in [`World::wires`].
type WireId = usize;

type Machine = Peer<Call, WireId>;

/// Far more than any history has.
const EVENTS_MAX: usize = 2_000;

/// Number of bytes that a socket accepts before it blocks.
const SOCKET_BYTES: usize = 96;

/// One step of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A side calls the other. `twice`: an injected fault duplicates the request.
    Call {
        side: usize,
        twice: bool,
    },
    /// A scheduled attempt to connect is made.
    Attempt {
        side: usize,
        at: usize,
    },
    /// The bytes of a handshake arrive.
    Handshake {
        wire: WireId,
        to: usize,
    },
    /// A thread takes the decoder to read.
    BeginRead {
        side: usize,
        reads: bool,
    },
    /// The thread has read the bytes that had arrived.
    EndRead {
        side: usize,
    },
    /// A thread writes the batch that the machine gave it.
    Write {
        side: usize,
    },
    /// The socket accepts bytes again.
    Writable {
        side: usize,
    },
    /// The collected output is sent.
    Flush {
        side: usize,
    },
    /// A caller borrows the connection from the poller.
    Lend {
        side: usize,
    },
    EndLending {
        side: usize,
    },
    /// A thread takes a request and runs it.
    Begin {
        side: usize,
    },
    /// The function returns.
    Return {
        side: usize,
    },
    /// The calls expire.
    Expire {
        side: usize,
    },
    /// The network breaks a connection. Bytes in flight are lost.
    Break {
        wire: WireId,
    },
    /// The process dies without a Goodbye and restarts.
    Restart {
        side: usize,
    },
    /// The agent shuts down with a Goodbye.
    ShutDown {
        side: usize,
    },
    /// Another worker has taken the other side's id.
    Replace {
        side: usize,
    },
}

impl Event {
    /// Whether the event is a fault or an expiry; all other events happen in every complete history.
    pub(super) fn is_fault(self) -> bool {
        matches!(
            self,
            Self::Expire { .. }
                | Self::Break { .. }
                | Self::Restart { .. }
                | Self::ShutDown { .. }
                | Self::Replace { .. }
        )
    }
}

/// How many calls and faults may still happen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub(super) calls: [u32; 2],
    pub(super) faults: u32,
    pub(super) twice: bool,
}

pub(super) struct World {
    sides: [Side; 2],
    wires: Vec<Wire>,
    /// The remaining budget, and the budget at the start.
    budget: Budget,
    budget_before: Budget,
    calls: BTreeMap<Call, Record>,
    now: Instant,
}

struct Side {
    machine: Machine,
    incarnation: u64,
    attempts: Vec<u64>,
    flushes: bool,
    /// Batches for threads to write, of the current connection and of earlier connections.
    writes: VecDeque<(ConnectionId, WireId, Batch)>,
    reading: Option<(ConnectionId, Box<Incoming>)>,
    /// The connection that a caller has borrowed, and whether the caller waits until the socket is writable.
    lent: Option<(ConnectionId, bool)>,
    /// Requests that no thread has taken yet.
    admitted: VecDeque<Request>,
    running: VecDeque<Request>,
    is_shut_down: bool,
    is_replaced: bool,
    /// The peer's process that has sent a farewell.
    left: Option<u64>,
}

struct Wire {
    dialer: usize,
    dial: u64,
    /// Bytes in flight to each side.
    bytes: [VecDeque<u8>; 2],
    is_closed: [bool; 2],
    /// Whether the network has broken the connection. Each side detects the end independently.
    is_broken: bool,
    /// The decoder of each side's handshake; `None` once the machine has it.
    handshakes: [Option<Incoming>; 2],
    /// The interest that each side's poller has registered.
    watched: [Watch; 2],
}

#[derive(Debug, Default)]
struct Record {
    caller: usize,
    /// Incarnation of the calling process. Its calls end when the process exits.
    incarnation: u64,
    twice: bool,
    executed: u32,
    result: Option<Result<Bytes, RpcError>>,
}

impl World {
    pub(super) fn new(budget: Budget) -> Self {
        Self {
            sides: [0, 1].map(|side| Side::new(side, 1)),
            wires: Vec::new(),
            budget,
            budget_before: budget,
            calls: BTreeMap::new(),
            now: Instant::now(),
        }
    }

    /// The next event if no fault happens. A loan of the connection is optional, so none is started.
    pub(super) fn next_regular(&self) -> Option<Event> {
        let mut events = self.steps().into_iter();
        events.find(|event| !event.is_fault() && !matches!(event, Event::Lend { .. }))
    }

    /// Runs without further faults until no event is left.
    pub(super) fn end(&mut self) {
        for _ in 0..EVENTS_MAX {
            let Some(event) = self.next_regular() else {
                self.check_at_rest();
                assert!(self.budget_before.faults > 0 || self.has_succeeded());
                return;
            };
            self.take(event);
        }
        panic!("the history does not end");
    }

    /// Asserts the final state, where only faults are possible: every call of a living process has a result.
    fn check_at_rest(&self) {
        for (call, record) in &self.calls {
            let side = &self.sides[record.caller];
            if side.incarnation == record.incarnation {
                assert!(
                    record.result.is_some(),
                    "call {call} has no result: {record:?}"
                );
            }
        }
        // The pool of an agent that has shut down runs no requests.
        for side in self.sides.iter().filter(|side| !side.is_shut_down) {
            assert_eq!(side.machine.requests_queued(), 0);
            assert_eq!(side.machine.calls_in_flight(), 0);
        }
        let used = [0, 1].map(|side| self.sides[side].machine.connection().map(|(_, wire)| *wire));
        if let [Some(one), Some(other)] = used {
            assert_eq!(one, other, "the two sides use different connections");
        }
    }

    /// Whether all calls have succeeded.
    fn has_succeeded(&self) -> bool {
        let mut records = self.calls.values();
        records.all(|record| matches!(record.result, Some(Ok(_))))
    }

    /// How often each call was executed.
    pub(super) fn executed(&self) -> Vec<u32> {
        self.calls.values().map(|record| record.executed).collect()
    }

    /// Asserts the invariants.
    fn check(&self) {
        for (call, record) in &self.calls {
            let most = if record.twice { 2 } else { 1 };
            assert!(record.executed <= most, "call {call}: {record:?}");
            match &record.result {
                Some(Ok(answer)) => {
                    assert_eq!(number(answer), *call);
                    assert!(record.executed > 0, "call {call}: {record:?}");
                }
                Some(Err(error)) if error.outcome() == Outcome::NotExecuted => {
                    assert_eq!(record.executed, 0, "call {call}: {record:?}");
                }
                _ => {}
            }
        }
    }

    /// Gives an input to a side's machine on a thread of its pool, and carries out the effects.
    fn input<R>(&mut self, side: usize, input: impl FnOnce(&mut Machine) -> R) -> R {
        self.input_on(side, true, input)
    }

    fn input_on<R>(
        &mut self,
        side: usize,
        is_pool_thread: bool,
        input: impl FnOnce(&mut Machine) -> R,
    ) -> R {
        let mut effects = Effects::new();
        let it = &mut self.sides[side];
        let result = it.machine.step(&mut effects, is_pool_thread, input);
        if let Some((wire, before, after)) = it.machine.watch_change() {
            assert_eq!(self.wires[wire].watched[side], before);
            self.wires[wire].watched[side] = after;
        }
        while let Some(effect) = effects.pop() {
            let it = &mut self.sides[side];
            match effect {
                Effect::Send {
                    connection,
                    socket,
                    batch,
                } => {
                    let writers = it.writes.iter().filter(|(of, ..)| *of == connection);
                    assert_eq!(writers.count(), 0, "two threads write one connection");
                    it.writes.push_back((connection, socket, batch));
                }
                Effect::SendSoon => {
                    assert!(!it.flushes, "a second flush was requested");
                    it.flushes = true;
                }
                Effect::Complete { call, result } => {
                    let record = self.calls.get_mut(&call.promise).expect("a call");
                    assert!(record.result.is_none(), "call {} ended twice", call.promise);
                    record.result = Some(result);
                }
                Effect::Admit(request) => it.admitted.push_back(request),
                Effect::Dial { dial, .. } => it.attempts.push(dial),
                Effect::Close { socket, .. } => self.close(socket, side),
                Effect::Notify(Notice::Left { incarnation }) => it.left = incarnation,
                Effect::Notify(Notice::Connected { .. }) => {
                    let incarnation = it.machine.peer_incarnation();
                    assert_ne!(incarnation, it.left, "connected to a process that has left");
                }
                Effect::Notify(_) | Effect::Count(_) => {}
            }
        }
        result
    }

    fn call(&mut self, side: usize, twice: bool) {
        self.budget.calls[side] -= 1;
        let call = self.calls.len() as Call;
        let record = Record {
            caller: side,
            incarnation: self.sides[side].incarnation,
            twice,
            ..Record::default()
        };
        self.calls.insert(call, record);
        let now = self.now;
        let new = NewCall {
            promise: call,
            function: "f",
            started_at: now,
            timeout: Some(Duration::from_secs(1)),
            deadline_ms: Some(1),
            is_repeated: twice,
        };
        let payload = Bytes::from(call.to_string());
        self.input_on(side, false, |machine| {
            if !twice {
                return machine.call(new, payload);
            }
            if let Some(id) = machine.expect(new, payload.len()) {
                for _ in 0..2 {
                    machine.send(id, payload.clone(), None, now);
                }
            }
        });
    }

    /// The borrowing caller starts to wait again.
    fn wait_on_loan(&mut self, side: usize) {
        if let Some((connection, _)) = self.sides[side].lent {
            let for_output = self.input(side, |machine| {
                Some(machine.connected_by(connection)?.waits_for_output())
            });
            self.sides[side].lent = for_output.map(|for_output| (connection, for_output));
        }
    }

    fn dial(&mut self, side: usize, dial: u64) {
        let now = self.now;
        let other = &self.sides[1 - side];
        if other.is_shut_down {
            let failure = AttemptFailure::Dead("refused".into());
            self.input(side, |machine| {
                machine.attempt_failed(dial, failure, now);
            });
            return;
        }
        let wanted = other.incarnation;
        let Some(hello) = self.input(side, |machine| machine.hello(dial, wanted)) else {
            return;
        };
        let mut bytes = [VecDeque::new(), VecDeque::new()];
        let mut encoded = Vec::new();
        Frame::Hello(hello).encode(&mut encoded);
        bytes[1 - side].extend(encoded);
        let mut handshakes = [None, None];
        let limits = IncomingLimits::default();
        handshakes[side] = Some(Incoming::new(Expects::WelcomeOrRefuse, limits));
        handshakes[1 - side] = Some(Incoming::new(Expects::Hello, limits));
        self.wires.push(Wire {
            dialer: side,
            dial,
            bytes,
            is_closed: [false; 2],
            is_broken: false,
            handshakes,
            watched: [Watch::default(); 2],
        });
    }

    /// Runs the acceptor's side of a handshake.
    fn accept(&mut self, wire: WireId, side: usize) {
        let mut decoder = self.wires[wire].handshakes[side]
            .take()
            .expect("a handshake");
        let Some(Message::Hello(hello)) = self.receive(wire, side, &mut decoder).pop() else {
            return self.close(wire, side);
        };
        let answer = |world: &mut Self, hello: &Hello| {
            decoder.open();
            let connection = (wire, address());
            world.input(side, |machine| machine.accept(hello, connection, decoder))
        };
        if let Err((reason, links)) = answer(self, &hello) {
            let mut encoded = Vec::new();
            let text = String::new();
            Frame::Refuse(Refuse {
                reason,
                links,
                text,
            })
            .encode(&mut encoded);
            if !self.wires[wire].has_ended_for(side) {
                self.wires[wire].bytes[1 - side].extend(encoded);
            }
            self.close(wire, side);
        }
    }

    /// Runs the dialer's side of a handshake.
    fn hear(&mut self, wire: WireId, side: usize) {
        let (now, dial) = (self.now, self.wires[wire].dial);
        let mut decoder = self.wires[wire].handshakes[side]
            .take()
            .expect("a handshake");
        let mut messages = self.receive(wire, side, &mut decoder);
        let first = (!messages.is_empty()).then(|| messages.remove(0));
        match first {
            Some(Message::Welcome(welcome)) => {
                let connection = (wire, address());
                let welcomed = self.input(side, |machine| {
                    machine.welcomed(dial, &welcome, connection, decoder, messages, now)
                });
                if welcomed != Welcomed::Established {
                    self.close(wire, side);
                }
            }
            Some(Message::Refuse(refuse)) => {
                self.input(side, |machine| {
                    machine.refused(dial, &refuse, now);
                });
                self.close(wire, side);
            }
            _ => {
                let failure = AttemptFailure::Again("no welcome".into());
                self.input(side, |machine| {
                    machine.attempt_failed(dial, failure, now);
                });
                self.close(wire, side);
            }
        }
    }

    fn read(&mut self, side: usize) {
        let now = self.now;
        let (connection, mut decoder) = self.sides[side].reading.take().expect("reading");
        let wire = match self.sides[side].machine.connection() {
            Some((current, wire)) if current == connection => *wire,
            // The connection has ended since the read began.
            _ => return,
        };
        let messages = self.receive(wire, side, &mut decoder);
        let has_ended = self.wires[wire].has_ended_for(side);
        let again = self.input(side, |machine| {
            if !machine.received(connection, messages, now) {
                return None;
            }
            if has_ended {
                let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                machine.connection_lost(connection, error);
                return None;
            }
            match machine
                .connected_by(connection)?
                .give_back_reader(decoder, true)
            {
                ReadNext::Again { decoder, .. } => Some(decoder),
                ReadNext::Stop => None,
            }
        });
        self.sides[side].reading = again.map(|decoder| (connection, decoder));
    }

    /// Writes as many bytes as the socket accepts.
    fn write(&mut self, side: usize) {
        let (connection, wire, mut batch) = self.sides[side].writes.pop_front().expect("a batch");
        let it = &mut self.wires[wire];
        let result = if it.is_closed[side] || it.has_ended_for(side) {
            Err(io::Error::from(io::ErrorKind::BrokenPipe))
        } else {
            batch.write_to(&mut Socket(&mut it.bytes[1 - side]))
        };
        let is_blocked = matches!(result, Ok(WriteProgress::Blocked));
        assert!(!is_blocked || it.bytes[1 - side].len() == SOCKET_BYTES);
        self.input(side, |machine| {
            machine.written(connection, batch, result);
        });
    }

    /// Decodes all messages in the bytes that have arrived.
    fn receive(&mut self, wire: WireId, side: usize, decoder: &mut Incoming) -> Vec<Message> {
        let mut bytes: Vec<u8> = self.wires[wire].bytes[side].drain(..).collect();
        let mut inbox = Inbox(Vec::new());
        while !bytes.is_empty() {
            let (buffer, bytes_max) = decoder.spare();
            buffer.extend(bytes.drain(..bytes_max.min(bytes.len())));
            decoder.received(&mut inbox).expect("well-formed");
        }
        inbox.0
    }

    fn close(&mut self, wire: WireId, side: usize) {
        let it = &mut self.wires[wire];
        it.is_closed[side] = true;
        it.handshakes[side] = None;
        it.bytes[side].clear();
    }
}

impl Simulation for World {
    type Step = Event;

    fn take(&mut self, event: Event) {
        if event.is_fault() {
            self.budget.faults -= 1;
        }
        self.now += Duration::from_millis(1);
        let now = self.now;
        match event {
            Event::Call { side, twice } => self.call(side, twice),
            Event::Attempt { side, at } => {
                let dial = self.sides[side].attempts.remove(at);
                if self.input(side, |machine| machine.begin_attempt(dial, now)) {
                    self.dial(side, dial);
                }
            }
            Event::Handshake { wire, to } if self.wires[wire].dialer == to => self.hear(wire, to),
            Event::Handshake { wire, to } => self.accept(wire, to),
            Event::BeginRead { side, reads } => {
                let reads = [Reads::ForPoller, Reads::ForCaller][usize::from(reads)];
                let (connection, _) = self.sides[side].machine.connection().expect("connected");
                let taken = self.input(side, |machine| {
                    machine.connected_by(connection)?.take_reader(reads)
                });
                self.sides[side].reading = taken.map(|(decoder, _)| (connection, decoder));
            }
            Event::EndRead { side } => self.read(side),
            Event::Write { side } => self.write(side),
            Event::Writable { side } => {
                let (connection, _) = self.sides[side].machine.connection().expect("connected");
                self.input(side, |machine| machine.writable(connection));
                self.wait_on_loan(side);
            }
            Event::Flush { side } => {
                self.sides[side].flushes = false;
                self.input(side, Machine::flush);
            }
            Event::Lend { side } => {
                let lent = self.input(side, |machine| machine.lend());
                self.sides[side].lent = lent.map(|(connection, _)| (connection, false));
                self.wait_on_loan(side);
            }
            Event::EndLending { side } => {
                let (connection, _) = self.sides[side].lent.take().expect("lent");
                self.input(side, |machine| {
                    machine
                        .connected_by(connection)
                        .map(Connection::end_lending)
                });
            }
            Event::Begin { side } => {
                let request = self.sides[side].admitted.pop_front().expect("admitted");
                let begun = self.input(side, |machine| machine.begin_request(request));
                if let Some(request) = begun {
                    let call: Call = number(&request.payload);
                    self.calls.get_mut(&call).expect("a call").executed += 1;
                    self.sides[side].running.push_back(request);
                }
            }
            Event::Return { side } => {
                let request = self.sides[side].running.pop_front().expect("running");
                self.input(side, |machine| {
                    machine.respond(request.route, Ok(request.payload))
                });
            }
            Event::Expire { side } => {
                self.input(side, |machine| machine.tick(u64::MAX - 1));
            }
            Event::Break { wire } => {
                self.wires[wire].is_broken = true;
                self.wires[wire].bytes = [VecDeque::new(), VecDeque::new()];
            }
            Event::Restart { side } => {
                for wire in &mut self.wires {
                    wire.is_closed[side] = true;
                    wire.handshakes[side] = None;
                    wire.bytes[side].clear();
                }
                let incarnation = self.sides[side].incarnation + 1;
                self.sides[side] = Side::new(side, incarnation);
            }
            Event::ShutDown { side } => {
                self.input(side, Machine::say_goodbye);
                while !self.sides[side].writes.is_empty() {
                    self.write(side);
                }
                self.input(side, Machine::end);
                self.sides[side].is_shut_down = true;
                for wire in 0..self.wires.len() {
                    self.close(wire, side);
                }
            }
            Event::Replace { side } => {
                self.input(side, Machine::replaced);
                self.sides[side].is_replaced = true;
            }
        }
        self.check();
    }

    fn is_possible(&self, event: &Event) -> bool {
        self.steps().contains(event)
    }
}

impl Explored for World {
    fn steps(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (side, it) in self.sides.iter().enumerate() {
            if it.is_shut_down {
                continue;
            }
            if self.budget.calls[side] > 0 {
                events.push(Event::Call { side, twice: false });
                if self.budget.twice {
                    events.push(Event::Call { side, twice: true });
                }
            }
            events.extend((0..it.attempts.len()).map(|at| Event::Attempt { side, at }));
            if it.flushes {
                events.push(Event::Flush { side });
            }
            if !it.writes.is_empty() {
                events.push(Event::Write { side });
            }
            if !it.admitted.is_empty() {
                events.push(Event::Begin { side });
            }
            if !it.running.is_empty() {
                events.push(Event::Return { side });
            }
            if it.reading.is_some() {
                events.push(Event::EndRead { side });
            }
            if let Some((_, &wire)) = it.machine.connection() {
                let (wire, watched) = (&self.wires[wire], self.wires[wire].watched[side]);
                let is_readable = !wire.bytes[side].is_empty() || wire.has_ended_for(side);
                if is_readable && it.reading.is_none() {
                    if watched.readable {
                        events.push(Event::BeginRead { side, reads: false });
                    }
                    if it.lent.is_some() {
                        events.push(Event::BeginRead { side, reads: true });
                    }
                }
                let has_room = wire.bytes[1 - side].len() < SOCKET_BYTES;
                let caller_waits = it.lent.is_some_and(|(_, for_output)| for_output);
                if has_room && (watched.writable || caller_waits) {
                    events.push(Event::Writable { side });
                }
                if it.lent.is_none() && it.machine.calls_in_flight() > 0 {
                    events.push(Event::Lend { side });
                }
            }
            if it.lent.is_some() {
                events.push(Event::EndLending { side });
            }
            if self.budget.faults > 0 {
                if it.machine.calls_in_flight() > 0 {
                    events.push(Event::Expire { side });
                }
                events.push(Event::Restart { side });
                events.push(Event::ShutDown { side });
                if !it.is_replaced {
                    events.push(Event::Replace { side });
                }
            }
        }
        for (wire, it) in self.wires.iter().enumerate() {
            for to in 0..2 {
                let has_news = !it.bytes[to].is_empty() || it.has_ended_for(to);
                if it.handshakes[to].is_some() && !it.is_closed[to] && has_news {
                    events.push(Event::Handshake { wire, to });
                }
            }
            if self.budget.faults > 0 && !it.is_broken && it.is_closed == [false; 2] {
                events.push(Event::Break { wire });
            }
        }
        events
    }

    fn copy(&self, past: &[Event]) -> Self {
        let mut copy = Self::new(self.budget_before);
        past.iter().for_each(|event| copy.take(*event));
        copy
    }

    /// The machines cannot be compared.
    fn fingerprint(&self) -> Option<u64> {
        None
    }
}

impl Wire {
    fn has_ended_for(&self, side: usize) -> bool {
        self.is_broken || self.is_closed[1 - side]
    }
}

impl Side {
    fn new(side: usize, incarnation: u64) -> Self {
        let worker = |side: usize| WorkerInfo::new(&format!("w{side}"), side as u32).unwrap();
        let mut functions = Functions::default();
        functions.add("f".into());
        let config = Config {
            me: worker(side),
            incarnation,
            message_bytes_max: 1 << 20,
            backlog_bytes_max: 1 << 20,
            requests_queued_max: 100,
            // Each event takes 1 ms.
            connect_timeout: Duration::from_millis(60),
            functions,
        };
        Self {
            machine: Peer::new(Arc::new(config), worker(1 - side)),
            incarnation,
            attempts: Vec::new(),
            flushes: false,
            writes: VecDeque::new(),
            reading: None,
            lent: None,
            admitted: VecDeque::new(),
            running: VecDeque::new(),
            is_shut_down: false,
            is_replaced: false,
            left: None,
        }
    }
}

/// A writer that accepts bytes up to a limit.
struct Socket<'a>(&'a mut VecDeque<u8>);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = SOCKET_BYTES.saturating_sub(self.0.len());
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = room.min(bytes.len());
        self.0.extend(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Inbox(Vec<Message>);

impl Recipient for Inbox {
    fn find_function(&mut self, name: &str) -> Option<FunctionId> {
        (name == "f").then_some(FunctionId(0))
    }

    fn wants_response(&mut self, _: u64) -> bool {
        true
    }

    fn take(&mut self, message: Message) {
        self.0.push(message);
    }
}

fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 1).into()
}

fn number(payload: &Bytes) -> Call {
    std::str::from_utf8(payload).unwrap().parse().unwrap()
}

/// Its reader has counted it: an agent would show a request that is never answered.
#[test]
fn a_request_behind_a_welcome_that_is_too_late_counts_as_refused() {
    let mut machine = Side::new(0, 1).machine;
    let welcome = Welcome {
        incarnation: 2,
        links: 1,
        message_bytes_max: 1 << 20,
    };
    let request = Message::Request {
        id: 1,
        budget_ms: 0,
        function: Some(FunctionId(0)),
        payload: Bytes::new(),
    };
    let decoder = Incoming::new(Expects::WelcomeOrRefuse, IncomingLimits::default());
    let mut effects = Effects::new();
    let welcomed = machine.step(&mut effects, true, |machine| {
        let connection = (0, address());
        machine.welcomed(9, &welcome, connection, decoder, [request], Instant::now())
    });
    assert_eq!(welcomed, Welcomed::Stale);
    let counted = effects.pop();
    assert!(
        matches!(counted, Some(Effect::Count(Count::RequestRefused))),
        "nothing counts it"
    );
}
