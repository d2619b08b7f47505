//! A process of nodes: connects them, lets them join at once, and reports what they are told.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use elastic_rendezvous::{
    NodeState, RendezvousError, RendezvousEvent, RendezvousHandler, RendezvousInfo,
};

use super::kernel::now;
use super::node::{Job, Node, addr_of};
use super::protocol::{End, Joined, Order, Report, Sum, Told, World};
use crate::failure::{Context as _, Failure};

/// The stack of each thread, which a thousand threads multiply.
pub(super) const STACK_BYTES: usize = 256 << 10;

/// How long reports about single nodes are collected, so that they do not compete with the nodes.
const COLLECTING_TIME: Duration = Duration::from_millis(20);

/// The nodes of one process.
#[derive(Debug, Args)]
pub(crate) struct RendezvousNodesArgs {
    /// The number of the first node in this process.
    #[arg(long)]
    first: usize,

    /// How many nodes are in this process.
    #[arg(long)]
    count: usize,

    #[command(flatten)]
    pub(super) job: Job,
}

impl RendezvousNodesArgs {
    /// The arguments with which the measurement starts a process.
    pub(super) fn command_line(job: &Job, nodes: &Range<usize>) -> Vec<String> {
        vec![
            "rendezvous-nodes".to_owned(),
            format!("--store={}", job.store),
            format!("--first={}", nodes.start),
            format!("--count={}", nodes.len()),
            format!("--nodes={}", job.nodes),
            format!("--keep-alive={}", job.keep_alive),
            format!("--nodes-per-connection={}", job.nodes_per_connection),
        ]
    }

    pub(super) const fn nodes(&self) -> Range<usize> {
        self.first..self.first.saturating_add(self.count)
    }
}

/// An input of the process' main thread.
#[derive(Debug)]
enum Input {
    Order(Order),
    /// The measurement has ended.
    NoMoreOrders,
    Joined {
        index: usize,
        at: Duration,
        /// `None` after a panic.
        result: Option<Result<RendezvousInfo, RendezvousError>>,
    },
    /// The membership of a node has changed.
    Changed {
        index: usize,
        at: Duration,
    },
    /// A node was told that the killed node is lost.
    Told {
        index: usize,
        at: Duration,
    },
    Heartbeat {
        at: Duration,
    },
}

/// Carries out orders until there are no more.
pub(super) fn serve(args: &RendezvousNodesArgs) -> Result<(), Failure> {
    Process::connect(args)?.run()
}

#[derive(Debug)]
struct Process {
    /// The number of the first node.
    first: usize,
    nodes: Vec<Arc<Node>>,
    /// Passed by all nodes and the main thread at the start.
    start: Arc<Barrier>,
    inbox: Receiver<Input>,
    to_inbox: Sender<Input>,
    joined: usize,
    /// By node: whether it knows that the killed node is lost.
    told: Vec<bool>,
    victim: Option<String>,
    unsent: Unsent,
}

/// Reports that are still collected.
#[derive(Debug, Default)]
struct Unsent {
    joined: Joined,
    told: Told,
    due_at: Option<Instant>,
}

impl Process {
    fn connect(args: &RendezvousNodesArgs) -> Result<Self, Failure> {
        let nodes = args
            .nodes()
            .map(|node| Node::connect(&args.job, node).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        let (to_inbox, inbox) = channel();
        let start = Arc::new(Barrier::new(nodes.len() + 1));
        for (index, node) in nodes.iter().enumerate() {
            let (node, start, to_inbox) = (Arc::clone(node), Arc::clone(&start), to_inbox.clone());
            thread::Builder::new()
                .name(format!("bench-node-{}", args.first + index))
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    start.wait();
                    let join = AssertUnwindSafe(|| node.handler.next_rendezvous());
                    let result = catch_unwind(join).ok();
                    let at = now();
                    // The main thread ends at the first failure.
                    let _ = to_inbox.send(Input::Joined { index, at, result });
                })
                .with_context(|| no_thread(args.first + index))?;
        }
        let told = vec![false; nodes.len()];
        Ok(Self {
            first: args.first,
            nodes,
            start,
            inbox,
            to_inbox,
            joined: 0,
            told,
            victim: None,
            unsent: Unsent::default(),
        })
    }

    fn run(&mut self) -> Result<(), Failure> {
        let to_inbox = self.to_inbox.clone();
        thread::spawn(move || {
            read_orders(|order| {
                let is_last = order.is_none();
                let input = order.map_or(Input::NoMoreOrders, Input::Order);
                to_inbox.send(input).is_ok() && !is_last
            });
        });
        send(&Report::Connected)?;
        loop {
            let input = match self.unsent.due_at {
                None => self
                    .inbox
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
                Some(due_at) => self
                    .inbox
                    .recv_timeout(due_at.saturating_duration_since(Instant::now())),
            };
            match input {
                Ok(Input::Order(order)) => self.carry_out(order)?,
                Ok(Input::Joined { index, at, result }) => self.on_joined(index, at, result)?,
                Ok(Input::Changed { index, at }) => {
                    if self.knows_loss(index) {
                        self.on_told(index, at)?;
                    }
                }
                Ok(Input::Told { index, at }) => self.on_told(index, at)?,
                Ok(Input::Heartbeat { at }) => send(&Report::Heartbeat { at })?,
                Err(RecvTimeoutError::Timeout) => self.unsent.send()?,
                // `self` has a sender, so the inbox is never disconnected.
                Ok(Input::NoMoreOrders) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn carry_out(&mut self, order: Order) -> Result<(), Failure> {
        match order {
            Order::Start => {
                self.start.wait();
            }
            Order::Sum => {
                let mut sum = Sum::default();
                for node in &self.nodes {
                    sum.add(Sum::of(&node.traffic));
                }
                send(&Report::Sum(sum))?;
            }
            Order::Lost => {
                let addrs = self.lost();
                send(&Report::Lost { addrs })?;
            }
            Order::Watch { victim } => {
                for (index, node) in self.nodes.iter().enumerate() {
                    if addr_of(self.first + index) == victim {
                        report_heartbeats(node, &self.to_inbox);
                    } else {
                        report_loss(node, index, &victim, &self.to_inbox);
                    }
                }
                self.victim = Some(victim);
                send(&Report::Watching)?;
            }
            Order::End(how) => {
                self.end(how)?;
                send(&Report::Ended { at: now() })?;
            }
        }
        Ok(())
    }

    /// Ends all nodes at once.
    fn end(&self, how: End) -> Result<(), Failure> {
        let mut ends = Vec::with_capacity(self.nodes.len());
        for (index, node) in self.nodes.iter().enumerate() {
            let (node, number) = (Arc::clone(node), self.first + index);
            let end = thread::Builder::new()
                .name(format!("bench-end-{number}"))
                .stack_size(STACK_BYTES)
                .spawn(move || match how {
                    End::Close => node.handler.shutdown(),
                    End::Leave => node.handler.leave().is_ok(),
                })
                .with_context(|| no_thread(number))?;
            ends.push((number, end));
        }
        for (node, end) in ends {
            match end.join() {
                Ok(true) => {}
                Ok(false) => {
                    return Err(Failure::new(format!(
                        "node {node} could not close or leave the rendezvous: its log says why"
                    )));
                }
                Err(_) => return Err(panicked(node)),
            }
        }
        Ok(())
    }

    fn on_joined(
        &mut self,
        index: usize,
        at: Duration,
        result: Option<Result<RendezvousInfo, RendezvousError>>,
    ) -> Result<(), Failure> {
        let node = self.first + index;
        let round = result
            .ok_or_else(|| panicked(node))?
            .with_context(|| format!("node {node}"))?;
        let world = World {
            round: round.round,
            nodes: round.world_size,
            master: round.bootstrap.master.to_string(),
        };
        self.unsent.joined.add(round.rank, world, at);
        self.joined += 1;
        self.unsent.send_soon(self.joined == self.nodes.len())
    }

    fn on_told(&mut self, index: usize, at: Duration) -> Result<(), Failure> {
        if std::mem::replace(&mut self.told[index], true) {
            return Ok(());
        }
        self.unsent.told.add(at);
        self.unsent
            .send_soon(self.told.iter().all(|is_told| *is_told))
    }

    fn knows_loss(&self, index: usize) -> bool {
        let membership = self.nodes[index].handler.membership();
        membership.is_ok_and(|membership| {
            membership
                .lost
                .iter()
                .any(|lost| Some(&*lost.node.addr) == self.victim.as_deref())
        })
    }

    /// The nodes that are no longer in the round, as far as a node of this process knows, and the nodes that
    /// cannot tell because their last access to the store failed.
    fn lost(&self) -> Vec<String> {
        let mut addrs = BTreeSet::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let own = || addr_of(self.first + index);
            match node.handler.membership() {
                Ok(membership) => {
                    let lost = membership.lost.iter().map(|lost| &lost.node);
                    let left = membership.left.iter().map(|left| &left.node);
                    addrs.extend(lost.chain(left).map(|node| node.addr.to_string()));
                    addrs.extend(membership.is_evicted.then(own));
                }
                Err(error) => {
                    log::warn!("node {}: {error}", own());
                    addrs.insert(own());
                }
            }
        }
        addrs.into_iter().collect()
    }
}

/// Reports each heartbeat of the node that will be killed.
fn report_heartbeats(node: &Node, to_inbox: &Sender<Input>) {
    let to_inbox = to_inbox.clone();
    node.handler
        .add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
            if let RendezvousEvent::Recorded(event) = event
                && event.name.ends_with("DynamicRendezvousHandler._keep_alive")
                && event.node_state != NodeState::Failed
            {
                // The main thread may have ended.
                let _ = to_inbox.send(Input::Heartbeat { at: now() });
            }
        }));
}

/// Reports when a node may have been told that `victim` is lost.
fn report_loss(node: &Node, index: usize, victim: &str, to_inbox: &Sender<Input>) {
    let (victim, to_inbox) = (victim.to_owned(), to_inbox.clone());
    node.handler
        .add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
            let at = now();
            let input = match event {
                RendezvousEvent::NodeLost(lost) if *lost.node.addr == *victim => {
                    Input::Told { index, at }
                }
                // A listener must not ask the handler; the main thread does.
                RendezvousEvent::MembershipChanged => Input::Changed { index, at },
                _ => return,
            };
            let _ = to_inbox.send(input);
        }));
}

fn no_thread(node: usize) -> String {
    format!("cannot start a thread for node {node} (ulimit -u, kernel.pid_max)")
}

fn panicked(node: usize) -> Failure {
    Failure::new(format!("the thread of node {node} panicked"))
}

impl Unsent {
    /// Sends the reports now if they are complete, otherwise soon.
    fn send_soon(&mut self, are_complete: bool) -> Result<(), Failure> {
        if are_complete {
            return self.send();
        }
        self.due_at
            .get_or_insert_with(|| Instant::now() + COLLECTING_TIME);
        Ok(())
    }

    fn send(&mut self) -> Result<(), Failure> {
        let Self { joined, told, .. } = std::mem::take(self);
        if !joined.ranks.is_empty() {
            send(&Report::Joined(joined))?;
        }
        if told.nodes > 0 {
            send(&Report::Told(told))?;
        }
        Ok(())
    }
}

/// Passes on the orders on standard input, and `None` at its end, until `take` returns false.
pub(super) fn read_orders(mut take: impl FnMut(Option<Order>) -> bool) {
    for line in io::stdin().lock().lines() {
        let order = line.and_then(|line| Ok(serde_json::from_str(&line)?));
        match order {
            Ok(order) => {
                if !take(Some(order)) {
                    return;
                }
            }
            Err(error) => {
                log::error!("cannot read an order of the measurement: {error}");
                break;
            }
        }
    }
    take(None);
}

pub(super) fn send(report: &Report) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let mut line = serde_json::to_vec(report)?;
        line.push(b'\n');
        let mut stdout = io::stdout().lock();
        stdout.write_all(&line)?;
        stdout.flush()
    };
    write().context("cannot report to the measurement")
}
