//! A process of nodes without threads of their own: their engines, on one thread, and connections that several share.
//!
//! A connection is a session with the store, as a relay's: the server has a client for each node, and handles its
//! requests as if it had a connection of its own. The node that writes for all gets a thread and an ordinary connection,
//! since it reads and writes long states.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use byteorder::{ByteOrder, LittleEndian};
use c10d_socket::{ConnectOptions, Deadline, SendBuf};
use c10d_store::unstable::{
    Credit, Frame, FrameReader, ReplyScan, RequestBuf, SessionDialer, SessionStream,
};
use c10d_store::{Known, Opcode, Store, StoreExt};
use elastic_rendezvous::unstable::{GroupNode, KeyRequest, Need};
use elastic_rendezvous::{C10dBackend, Now, Timestamp, Traffic};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};

use super::kernel;
use super::node::{Job, PATIENCE, RUN_ID, addr_of};
use super::nodes::{read_orders, send};
use super::protocol::{Joined, Order, Report, Sum, World};
use crate::failure::{Context as _, Failure};

/// How long joins are collected for one report.
const COLLECTING_TIME: Duration = Duration::from_millis(20);

/// Bytes handed to a connection before it is written.
const UNSENT_BYTES: usize = 256 << 10;

const WAKER: Token = Token(usize::MAX);

/// Where rank 0 publishes the workers' store.
const MASTER_KEYS: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

/// Carries out orders until there are no more.
pub(super) fn serve(job: &Job, nodes: Range<usize>) -> Result<(), Failure> {
    Stations::connect(job, nodes)?.run()
}

struct Stations {
    poll: Poll,
    links: Vec<Link>,
    nodes: Vec<Station>,
    /// When a node continues without a reply, and which step of it that is.
    timers: BinaryHeap<Reverse<(Duration, usize, u64)>>,
    orders: Receiver<Option<Order>>,
    joins: Receiver<(usize, World, Duration)>,
    to_joins: Sender<(usize, World, Duration)>,
    store: Arc<dyn Store>,
    /// Of the nodes that perform their requests themselves.
    traffics: Vec<Arc<Traffic>>,
    job: Job,
    unsent: Joined,
    report_at: Option<Duration>,
}

struct Station {
    /// `None`: it has a thread of its own.
    node: Option<GroupNode>,
    link: usize,
    /// Its number within the session.
    client: u32,
    credit: Credit,
    waiting: Option<Waiting>,
    /// Which wait this is.
    steps: u64,
}

/// The reply that a node waits for.
struct Waiting {
    scan: ReplyScan,
    bytes: Vec<u8>,
    /// The round, rank and size of a node that waits for the address of the workers' store.
    settles: Option<(i64, usize, usize)>,
}

struct Link {
    socket: TcpStream,
    out: SendBuf,
    stream: SessionStream,
    frames: FrameReader,
    /// The node that is the first client.
    first: usize,
    is_dirty: bool,
}

fn now() -> Now {
    Now {
        monotonic: kernel::now(),
        wall: Timestamp::from_system_time(SystemTime::now()),
    }
}

/// What failed if a connection did.
const LINK: &str = "the connection of nodes that share one failed";

impl Stations {
    fn connect(job: &Job, numbers: Range<usize>) -> Result<Self, Failure> {
        let nodes_per_connection = job.nodes_per_connection;
        let poll = Poll::new().context(LINK)?;
        let node = numbers.start;
        let failed = || format!("node {node}");
        let store = job.open_store().with_context(failed)?;
        let backend = C10dBackend::new(Arc::clone(&store), RUN_ID).with_context(failed)?;
        let backend = Arc::new(backend);
        let settings = job.settings().with_context(failed)?;
        let (mut links, mut nodes) = (Vec::new(), Vec::new());
        for (place, number) in numbers.enumerate() {
            if place % nodes_per_connection == 0 {
                links.push(Link::connect(job, place, Token(links.len()), &poll)?);
            }
            let client = (place % nodes_per_connection) as u32;
            let opened = GroupNode::open(
                Arc::clone(&backend) as _,
                settings.clone(),
                &addr_of(number),
                now(),
            );
            let opened = opened.with_context(|| format!("node {number}"))?;
            let link = links.len() - 1;
            links[link].stream.push_open(client, 0);
            links[link].flush()?;
            nodes.push(Station {
                node: Some(opened.ok_or_else(no_group)?),
                link,
                client,
                credit: Credit::default(),
                waiting: None,
                steps: 0,
            });
        }
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).context(LINK)?);
        let (to_orders, orders) = channel();
        thread::spawn(move || {
            read_orders(|order| {
                let is_last = order.is_none();
                // The main thread may have ended.
                let _ = to_orders.send(order);
                let _ = waker.wake();
                !is_last
            });
        });
        let (to_joins, joins) = channel();
        Ok(Self {
            poll,
            links,
            nodes,
            timers: BinaryHeap::new(),
            orders,
            joins,
            to_joins,
            store,
            traffics: Vec::new(),
            job: job.clone(),
            unsent: Joined::default(),
            report_at: None,
        })
    }

    fn run(&mut self) -> Result<(), Failure> {
        send(&Report::Connected)?;
        let mut events = Events::with_capacity(1024);
        let mut buffer = vec![0; 64 << 10];
        loop {
            self.flush()?;
            self.poll
                .poll(&mut events, self.timeout())
                .or_else(|error| match error.kind() {
                    io::ErrorKind::Interrupted => Ok(()),
                    _ => Err(error).context(LINK),
                })?;
            loop {
                match self.orders.try_recv() {
                    Ok(Some(order)) => self.carry_out(&order)?,
                    Ok(None) | Err(TryRecvError::Disconnected) => return Ok(()),
                    Err(TryRecvError::Empty) => break,
                }
            }
            for event in &events {
                if event.token() == WAKER {
                    continue;
                }
                self.links[event.token().0].is_dirty = true;
                if event.is_readable() {
                    self.receive(event.token().0, &mut buffer)?;
                }
            }
            let at = kernel::now();
            while let Some(&Reverse((due, place, step))) = self.timers.peek()
                && due <= at
            {
                self.timers.pop();
                if self.nodes[place].steps == step {
                    self.on_timer(place)?;
                }
            }
            while let Ok((rank, world, at)) = self.joins.try_recv() {
                self.on_joined(rank, world, at);
            }
            if self.report_at.is_some_and(|due| due <= kernel::now()) {
                self.report_at = None;
                send(&Report::Joined(std::mem::take(&mut self.unsent)))?;
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let first = self.timers.peek().map(|Reverse((due, ..))| *due);
        // The thread of a node reports its join without waking this one.
        let due = first.into_iter().chain(self.report_at).min();
        let timeout = due.map_or(COLLECTING_TIME, |due| due.saturating_sub(kernel::now()));
        Some(timeout.min(COLLECTING_TIME))
    }

    fn flush(&mut self) -> Result<(), Failure> {
        for link in self.links.iter_mut().filter(|link| link.is_dirty) {
            link.flush()?;
        }
        Ok(())
    }

    fn carry_out(&mut self, order: &Order) -> Result<(), Failure> {
        match order {
            Order::Start => {
                for place in 0..self.nodes.len() {
                    if let Some(node) = &mut self.nodes[place].node {
                        let now = now();
                        node.join(now.monotonic + PATIENCE, now);
                        self.drive(place)?;
                    }
                }
                Ok(())
            }
            Order::Sum => {
                let mut sum = Sum::default();
                for traffic in &self.traffics {
                    sum.add(Sum::of(traffic));
                }
                send(&Report::Sum(sum))
            }
            Order::Lost => {
                let nodes = self.nodes.iter().filter_map(|it| it.node.as_ref());
                let memberships = nodes.filter_map(GroupNode::membership);
                let departed = memberships.flat_map(|it| {
                    let own = it.is_evicted.then(|| "evicted".to_owned());
                    let lost = it.lost.into_iter().map(|it| it.node.addr.to_string());
                    let left = it.left.into_iter().map(|it| it.node.addr.to_string());
                    lost.chain(left).chain(own).collect::<Vec<_>>()
                });
                let mut addrs: Vec<String> = departed.collect();
                addrs.sort_unstable();
                addrs.dedup();
                send(&Report::Lost { addrs })
            }
            Order::Watch { .. } | Order::End(_) => Ok(()),
        }
    }

    /// Steps a node until it waits.
    fn drive(&mut self, place: usize) -> Result<(), Failure> {
        loop {
            let station = &mut self.nodes[place];
            let Some(node) = &mut station.node else {
                return Ok(());
            };
            station.steps += 1;
            let step = station.steps;
            match node.step(now()) {
                Need::Key(request, until) => {
                    let is_answered = self.ask(place, &request);
                    if is_answered {
                        if let Some(until) = until {
                            self.timers.push(Reverse((until, place, step)));
                        }
                        return Ok(());
                    }
                    if let Some(node) = &mut self.nodes[place].node {
                        node.on_value(None, now());
                    }
                }
                Need::Pause(until) => {
                    self.timers.push(Reverse((until, place, step)));
                    return Ok(());
                }
                Need::Perform => return self.hold(place),
                Need::Joined {
                    round,
                    rank,
                    world_size,
                } => {
                    let keys = master_keys(round);
                    if rank == 0 {
                        publish(&*self.store, round)?;
                    }
                    let keys = keys.each_ref().map(String::as_str);
                    let mut bytes = RequestBuf::new();
                    bytes.opcode(Opcode::WaitGet).user_keys(&keys);
                    let bytes = bytes.to_bytes();
                    self.send(place, &bytes, Opcode::WaitGet, 2, false);
                    if let Some(waiting) = &mut self.nodes[place].waiting {
                        waiting.settles = Some((round, rank, world_size));
                    }
                    return Ok(());
                }
                Need::Failed => return Err(Failure::new("a node has not joined")),
            }
        }
    }

    /// Sends a request. Returns whether there is a reply to it.
    fn ask(&mut self, place: usize, request: &KeyRequest) -> bool {
        let mut bytes = RequestBuf::new();
        let (opcode, is_cancelled) = match request {
            KeyRequest::Set { key, value } => {
                bytes.opcode(Opcode::Set).user_key(key).value(value);
                (Opcode::Set, false)
            }
            KeyRequest::Push { queue, value } => {
                bytes.opcode(Opcode::QueuePush).user_key(queue).value(value);
                (Opcode::QueuePush, false)
            }
            KeyRequest::CompareSet {
                key,
                expected,
                desired,
            } => {
                let request = bytes.opcode(Opcode::CompareSet).user_key(key);
                request.value(expected).value(desired);
                (Opcode::CompareSet, false)
            }
            // As the client's: a wait that ends at once.
            KeyRequest::TryGet { key } => {
                bytes.opcode(Opcode::WaitGet).user_keys(&[key]);
                bytes.opcode(Opcode::CancelWait);
                (Opcode::WaitGet, true)
            }
            KeyRequest::AwaitChange { key, known } => {
                let request = bytes.opcode(Opcode::WaitChange).user_key(key);
                request.known(Known::whole(known));
                (Opcode::WaitChange, false)
            }
        };
        let bytes = bytes.to_bytes();
        self.send(place, &bytes, opcode, 1, is_cancelled);
        self.nodes[place].waiting.is_some()
    }

    fn send(
        &mut self,
        place: usize,
        bytes: &[u8],
        opcode: Opcode,
        keys: usize,
        is_cancelled: bool,
    ) {
        let station = &mut self.nodes[place];
        station.credit.sent(bytes.len());
        let link = &mut self.links[station.link];
        link.stream.push_data(station.client, bytes);
        link.is_dirty = true;
        station.waiting = ReplyScan::new(opcode, keys).map(|mut scan| {
            if is_cancelled {
                scan.cancel();
            }
            Waiting {
                scan,
                bytes: Vec::new(),
                settles: None,
            }
        });
    }

    /// The end of a wait or a pause.
    fn on_timer(&mut self, place: usize) -> Result<(), Failure> {
        let station = &mut self.nodes[place];
        if let Some(waiting) = &mut station.waiting {
            if !waiting.scan.is_cancelled() {
                waiting.scan.cancel();
                let mut request = RequestBuf::new();
                request.opcode(Opcode::CancelWait);
                let bytes = request.to_bytes();
                station.credit.sent(bytes.len());
                let link = &mut self.links[station.link];
                link.stream.push_data(station.client, &bytes);
                link.is_dirty = true;
            }
            return Ok(());
        }
        if let Some(node) = &mut station.node {
            node.on_value(None, now());
        }
        self.drive(place)
    }

    fn receive(&mut self, link: usize, buffer: &mut [u8]) -> Result<(), Failure> {
        loop {
            let count = match self.links[link].socket.read(buffer) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)).context(LINK),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context(LINK),
            };
            let is_all = count < buffer.len();
            let mut bytes = &buffer[..count];
            let mut ready = Vec::new();
            let it = &mut self.links[link];
            while let Some(mut stream) = it.stream.next_bytes(&mut bytes).context(LINK)? {
                while let Some(frame) = it.frames.next(&mut stream).context(LINK)? {
                    match frame {
                        Frame::Data { client, bytes } => {
                            let place = it.first + client as usize;
                            let station = &mut self.nodes[place];
                            station.credit.received(bytes.len()).context(LINK)?;
                            if let Some(credit) = station.credit.used(bytes.len()) {
                                it.stream.push_credit(client, credit);
                            }
                            if station.take(bytes)? {
                                ready.push(place);
                            }
                        }
                        Frame::Credit { client, bytes } => {
                            let station = &mut self.nodes[it.first + client as usize];
                            station.credit.returned(bytes).context(LINK)?;
                        }
                        _ => {
                            return Err(io::Error::from(io::ErrorKind::ConnectionAborted))
                                .context(LINK);
                        }
                    }
                }
            }
            for place in ready {
                self.on_reply(place)?;
            }
            if is_all {
                return Ok(());
            }
        }
    }

    fn on_reply(&mut self, place: usize) -> Result<(), Failure> {
        let station = &mut self.nodes[place];
        let Some(waiting) = station.waiting.take() else {
            return Ok(());
        };
        if let Some((round, rank, nodes)) = waiting.settles {
            let master = String::from_utf8_lossy(waiting.value().unwrap_or_default()).into_owned();
            let world = World {
                round,
                nodes,
                master,
            };
            self.on_joined(rank, world, kernel::now());
        } else if let Some(node) = &mut station.node {
            node.on_value(waiting.value().map(<[u8]>::to_vec), now());
        }
        self.drive(place)
    }

    fn on_joined(&mut self, rank: usize, world: World, at: Duration) {
        self.unsent.add(rank, world, at);
        self.report_at
            .get_or_insert_with(|| kernel::now() + COLLECTING_TIME);
    }

    /// Gives a node that performs its requests itself a thread.
    fn hold(&mut self, place: usize) -> Result<(), Failure> {
        let Some(mut node) = self.nodes[place].node.take() else {
            return Ok(());
        };
        let failed = move || format!("node {place}");
        let store = self.job.open_store().with_context(failed)?;
        let backend = C10dBackend::new(Arc::clone(&store), RUN_ID).with_context(failed)?;
        self.traffics.push(backend.traffic());
        node.move_to(Arc::new(backend)).with_context(failed)?;
        let joins = self.to_joins.clone();
        thread::spawn(move || {
            loop {
                if let Err(failure) = node.perform(now).with_context(failed) {
                    let text = failure.to_string();
                    // Without a measurement that reads it, nobody needs the report.
                    let _ = send(&Report::Failed { text });
                    return;
                }
                loop {
                    match node.step(now()) {
                        Need::Joined {
                            round,
                            rank,
                            world_size: nodes,
                        } => {
                            // It goes on to answer the others meanwhile, rank 0 among them.
                            let (store, joins) = (Arc::clone(&store), joins.clone());
                            thread::spawn(move || {
                                let Ok(master) = settle(&*store, round, rank) else {
                                    return;
                                };
                                let world = World {
                                    round,
                                    nodes,
                                    master,
                                };
                                // The main thread may have ended.
                                let _ = joins.send((rank, world, kernel::now()));
                            });
                        }
                        Need::Failed => return,
                        _ => break,
                    }
                }
            }
        });
        Ok(())
    }
}

impl Station {
    /// Takes bytes of the reply. Returns whether it is complete.
    fn take(&mut self, mut bytes: &[u8]) -> Result<bool, Failure> {
        let Some(waiting) = &mut self.waiting else {
            return Err(io::Error::from(io::ErrorKind::InvalidData)).context(LINK);
        };
        let all = bytes;
        let scanned = waiting.scan.advance(&mut bytes);
        let is_complete = scanned.context(LINK)?;
        waiting.bytes.extend(&all[..all.len() - bytes.len()]);
        Ok(is_complete)
    }
}

impl Waiting {
    /// The first value in the reply; `None` if it has none.
    fn value(&self) -> Option<&[u8]> {
        const HAS_VALUE: u8 = 0;
        let bytes = match (self.scan.opcode(), self.bytes.split_first()) {
            (Opcode::CompareSet, _) => &self.bytes[..],
            (_, Some((&HAS_VALUE, rest))) => rest,
            _ => return None,
        };
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        rest.get(..usize::try_from(LittleEndian::read_u64(length)).ok()?)
    }
}

impl Link {
    fn connect(job: &Job, first: usize, token: Token, poll: &Poll) -> Result<Self, Failure> {
        let dialer =
            SessionDialer::new(job.store.clone(), ConnectOptions::default(), None, PATIENCE);
        let mut dialer = dialer.context(LINK)?.expecting_sessions();
        let deadline = Deadline::after(Instant::now(), PATIENCE);
        let link = dialer.connect(0, deadline);
        let mut link = link.context(LINK)?;
        let both = Interest::READABLE | Interest::WRITABLE;
        poll.registry()
            .register(&mut link.socket, token, both)
            .context(LINK)?;
        let mut stream = SessionStream::default();
        stream.attach(link.received_by_server).context(LINK)?;
        Ok(Self {
            socket: link.socket,
            out: SendBuf::new(),
            stream,
            frames: FrameReader::default(),
            first,
            is_dirty: true,
        })
    }

    fn flush(&mut self) -> Result<(), Failure> {
        loop {
            self.stream.fill(&mut self.out, UNSENT_BYTES);
            let is_sent = self.out.flush(&mut self.socket).context(LINK)?;
            if !is_sent || !self.stream.has_unsent() {
                self.is_dirty = false;
                return Ok(());
            }
        }
    }
}

fn no_group() -> Failure {
    Failure::new("so few nodes form no group: nodes that share a connection need more")
}

fn master_keys(round: i64) -> [String; 2] {
    MASTER_KEYS.map(|key| format!("torch.rendezvous.{RUN_ID}.{round}/{key}"))
}

fn publish(store: &dyn Store, round: i64) -> Result<(), Failure> {
    let [addr, port] = master_keys(round);
    store.set(&addr, "127.0.0.1")?;
    store.set(&port, "1")?;
    Ok(())
}

/// Agrees on the workers' store as a node that blocks. Returns its host.
fn settle(store: &dyn Store, round: i64, rank: usize) -> Result<String, Failure> {
    if rank == 0 {
        publish(store, round)?;
    }
    let keys = master_keys(round);
    let values = store.multi_get(&keys.each_ref().map(String::as_str))?;
    Ok(String::from_utf8_lossy(&values[0]).into_owned())
}
