//! One measured rendezvous: a new store in a process of its own, nodes in several others.

use std::ops::Range;
use std::time::{Duration, Instant};

use c10d_store::{Store, StoreExt};
use elastic_rendezvous::RendezvousState;
use elastic_rendezvous::codec::{CodecLimits, SENTINEL, from_text};

use super::agreement::check;
use super::kernel::{Loopback, connections_to, now};
use super::node::{Job, KEEP_ALIVE_ATTEMPTS, PATIENCE, RUN_ID, addr_of};
use super::options::{RendezvousBenchArgs, Victim};
use super::processes::Processes;
use super::protocol::{End, Joined, Order, Report, Sum, Told};
use crate::failure::Failure;
use crate::rendezvous::processes::{memory_hint, silence};
use crate::store_server::{Access, StoreServer};

/// The pause between reads of the state.
const STATE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How long a round may remain without a report before the state is read: a node may wait for the next one.
const STATE_CHECK_TIME: Duration = Duration::from_millis(200);

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'p> {
    pub(super) options: &'p RendezvousBenchArgs,
    pub(super) nodes: usize,
    /// How many nodes share a process at most.
    pub(super) nodes_per_process: usize,
    pub(super) victim: Victim,
    pub(super) loopback: &'p Loopback,
}

/// A figure of one round; without a value if the system has no /proc.
#[derive(Debug)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) value: Option<f64>,
    pub(super) decimals: usize,
}

impl Figure {
    pub(super) const fn new(name: &'static str, value: Option<f64>, decimals: usize) -> Self {
        Self {
            name,
            value,
            decimals,
        }
    }

    fn count(name: &'static str, value: u64) -> Self {
        Self::new(name, Some(value as f64), 0)
    }

    fn milliseconds(name: &'static str, seconds: f64) -> Self {
        Self::new(name, Some(seconds * 1e3), 1)
    }
}

/// The first figure: from the start signal until the last node knew its rank and the workers' store.
pub(super) const AGREE: &str = "agree_ms";

/// The number of nodes that dropped out of the round at rest, or could not access the store.
pub(super) const REST_LOST: &str = "rest_lost";

/// Measures one rendezvous, or two if the first node is to be killed: one without that. Returns the same names in every
/// round.
pub(super) fn measure(plan: &Plan<'_>) -> Result<Vec<Figure>, Failure> {
    let (mut figures, agreeing) = measured(plan.nodes, plan, |fleet| fleet.measure(plan))?;
    if let Victim::First { after } = plan.victim {
        // One more, which may take the killed node's place.
        let (killed, loopback_bytes) = measured(plan.nodes + 1, plan, |fleet| {
            fleet.measure_killed(plan, after)
        })?;
        let (killed, agreeing) = (killed.as_secs_f64(), agreeing.as_secs_f64());
        figures.extend([
            Figure::milliseconds("killed_agree_ms", killed),
            Figure::milliseconds("killed_more_ms", killed - agreeing),
            Figure::new("killed_loopback_bytes", loopback_bytes, 0),
        ]);
    }
    Ok(figures)
}

/// Starts a store and `nodes` nodes, and measures.
fn measured<T>(
    nodes: usize,
    plan: &Plan<'_>,
    measure: impl FnOnce(&mut Fleet<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut store = StoreServer::start(None, Access::Open)?;
    let job = Job {
        store: store.place(),
        nodes: plan.nodes,
        keep_alive: plan.options.keep_alive,
        nodes_per_connection: plan.options.nodes_per_connection,
    };
    let groups = groups(nodes, plan.nodes_per_process, plan.victim);
    let start = Instant::now();
    let result = Processes::start(&job, &groups).and_then(|processes| {
        let mut fleet = Fleet {
            processes,
            store: &store,
            connecting: start.elapsed(),
            job,
            joined: Joined::default(),
        };
        measure(&mut fleet)
    });
    result.map_err(|error| match store.child.ended() {
        // The nodes' errors only say that they have lost their connections.
        Some(status) => Failure::new(format!(
            "the store's process ended early ({status}){}",
            memory_hint(status)
        )),
        None => error,
    })
}

/// The nodes of each process. The first process has only the node that joins first, if that matters, and the
/// second only the one that is killed when all have joined. Both have the last numbers and so the last ranks:
/// the node with rank 0 also serves the workers' store.
pub(super) fn groups(nodes: usize, nodes_per_process: usize, victim: Victim) -> Vec<Range<usize>> {
    let alone = match victim {
        Victim::None => 0,
        Victim::First { .. } => 1,
        Victim::Last => 2,
    };
    let together = nodes.saturating_sub(alone);
    let mut groups: Vec<_> = (together..nodes).rev().map(|node| node..node + 1).collect();
    let processes = together.div_ceil(nodes_per_process);
    groups.extend((0..processes).map(|index| {
        let from = |index: usize| index * together / processes;
        from(index)..from(index + 1)
    }));
    groups
}

/// The process of the node that joins first, and of the one that is killed last.
const FIRST: usize = 0;
const LAST: usize = 1;

/// Connected nodes and their store.
#[derive(Debug)]
struct Fleet<'s> {
    processes: Processes,
    store: &'s StoreServer,
    connecting: Duration,
    job: Job,
    /// The nodes that know their ranks.
    joined: Joined,
}

impl Fleet<'_> {
    /// Returns the figures, and how long the nodes took to agree.
    fn measure(&mut self, plan: &Plan<'_>) -> Result<(Vec<Figure>, Duration), Failure> {
        let others = match plan.victim {
            Victim::None => FIRST,
            Victim::First { .. } | Victim::Last => self.start_first()?,
        };
        let moved = plan.loopback.start();
        let start = self.start_from(others)?;
        while self.joined.ranks.len() < plan.nodes {
            let report = self.processes.next("joining")?;
            self.take_in(report);
        }
        let agreeing = self.joined.last_at.saturating_sub(start);
        let loopback_bytes = plan.loopback.moved_since(moved);
        let connections = connections_to(self.store.address().port());
        check(&self.joined, plan.nodes, 0)?;
        let mut sum = Sum::default();
        for counted in self
            .processes
            .ask_all("counting", &Order::Sum, |report| match report {
                Report::Sum(sum) => Some(sum),
                _ => None,
            })?
        {
            sum.add(counted);
        }
        let mut later = Vec::new();
        if plan.options.rest > 0 {
            later.extend(self.rest(plan)?);
        }
        if plan.victim == Victim::Last {
            later.extend(self.kill_last(plan)?);
        }
        // At rest, the store may need more than while the nodes joined.
        let store_bytes_max = self.store.process().peak_bytes();
        if let Some(how) = plan.options.end {
            later.push(self.end(how)?);
        }
        let per_node = connections.map(|count| count as f64 / plan.nodes as f64);
        let mut figures = vec![
            Figure::milliseconds(AGREE, agreeing.as_secs_f64()),
            Figure::new("loopback_bytes", loopback_bytes, 0),
            Figure::new(
                "store_peak_bytes",
                store_bytes_max.map(|bytes| bytes as f64),
                0,
            ),
            Figure::new("connections_per_node", per_node, 2),
            Figure::milliseconds("connect_ms", self.connecting.as_secs_f64()),
            Figure::count("writes_tried", sum.writes_tried),
            Figure::count("writes_done", sum.writes_done),
            Figure::count("state_bytes", sum.state_bytes),
        ];
        figures.extend(later);
        Ok((figures, agreeing))
    }

    /// From the signal to end until the last node had ended.
    fn end(&mut self, how: End) -> Result<Figure, Failure> {
        let start = now();
        let order = Order::End(how);
        let ended = self
            .processes
            .ask_all("ending", &order, |report| match report {
                Report::Ended { at } => Some(at),
                _ => None,
            })?;
        let last = ended.into_iter().max().unwrap_or(start);
        let ending = last.saturating_sub(start);
        Ok(Figure::milliseconds("end_ms", ending.as_secs_f64()))
    }

    /// Returns how long the nodes took to agree, and what the loopback device moved meanwhile.
    fn measure_killed(
        &mut self,
        plan: &Plan<'_>,
        after: Duration,
    ) -> Result<(Duration, Option<f64>), Failure> {
        let others = self.start_first()?;
        let moved = plan.loopback.start();
        if after.is_zero() {
            self.processes.kill(FIRST)?;
        }
        let start = self.start_from(others)?;
        if !after.is_zero() {
            let kill_at = Instant::now() + after;
            while let Some(report) = self
                .processes
                .next_within(kill_at.saturating_duration_since(Instant::now()))?
            {
                self.take_in(report);
            }
            if !self.joined.ranks.is_empty() {
                return Err(Failure::new(format!(
                    "the round was complete before its first node was killed after {after:?}: choose a smaller \
                     --kill-first-after"
                )));
            }
            self.processes.kill(FIRST)?;
        }
        let mut silent_since = Instant::now();
        let dead = loop {
            match self.processes.next_within(STATE_CHECK_TIME)? {
                Some(report) => {
                    self.take_in(report);
                    silent_since = Instant::now();
                }
                None if silent_since.elapsed() > PATIENCE => {
                    return Err(silence("joining without the first node", PATIENCE));
                }
                None => {}
            }
            match plan.nodes - self.joined.ranks.len().min(plan.nodes) {
                0 => break 0,
                // The last place may be that of the killed node. Then another one waits for the next round.
                1 if self.is_complete_with(&addr_of(plan.nodes))? => break 1,
                _ => {}
            }
        };
        let agreeing = self.joined.last_at.saturating_sub(start);
        let loopback_bytes = plan.loopback.moved_since(moved);
        check(&self.joined, plan.nodes, dead)?;
        Ok((agreeing, loopback_bytes))
    }

    /// Starts the first node and waits until it has joined the round. Returns the process after its own.
    fn start_first(&mut self) -> Result<usize, Failure> {
        self.processes.order(FIRST, &Order::Start)?;
        let store = self.job.open_store()?;
        let start = Instant::now();
        while read_state(&*store)?.is_none_or(|state| state.participants.is_empty()) {
            // Reports an error of the node.
            if let Some(report) = self.processes.next_within(STATE_POLL_INTERVAL)? {
                self.take_in(report);
            }
            if start.elapsed() > PATIENCE {
                return Err(silence("joining of the first node", PATIENCE));
            }
        }
        Ok(FIRST + 1)
    }

    /// Starts the nodes of all processes from this one on. Returns the time of the start signal.
    fn start_from(&mut self, first: usize) -> Result<Duration, Failure> {
        let start = now();
        for process in first..self.processes.len() {
            self.processes.order(process, &Order::Start)?;
        }
        Ok(start)
    }

    fn take_in(&mut self, report: Report) {
        if let Report::Joined(joined) = report {
            self.joined.merge(joined);
        }
    }

    /// Leaves the nodes alone, and counts what they do.
    fn rest(&mut self, plan: &Plan<'_>) -> Result<[Figure; 2], Failure> {
        let time = Duration::from_secs(plan.options.rest);
        let (moved, start) = (plan.loopback.start(), Instant::now());
        // Returns early with the error of a process; a late report is ignored.
        while self
            .processes
            .next_within(time.saturating_sub(start.elapsed()))?
            .is_some()
        {}
        let seconds = start.elapsed().as_secs_f64();
        let bytes = plan.loopback.moved_since(moved);
        let lost =
            self.processes.ask_all(
                "asking for lost nodes",
                &Order::Lost,
                |report| match report {
                    Report::Lost { addrs } => Some(addrs),
                    _ => None,
                },
            )?;
        let mut lost = lost.concat();
        lost.sort_unstable();
        lost.dedup();
        let per_node = bytes.map(|bytes| bytes / seconds / plan.nodes as f64);
        Ok([
            Figure::new("rest_bytes_per_node_second", per_node, 1),
            Figure::count(REST_LOST, lost.len() as u64),
        ])
    }

    /// Kills a node after its next heartbeat, and waits until all others know it.
    fn kill_last(&mut self, plan: &Plan<'_>) -> Result<[Figure; 3], Failure> {
        let victim = addr_of(plan.nodes - 2);
        let is_watching = |report| matches!(report, Report::Watching).then_some(());
        let watch = Order::Watch { victim };
        self.processes
            .ask_all("preparing the loss of a node", &watch, is_watching)?;
        let mut heartbeat_at = loop {
            if let Report::Heartbeat { at } = self.processes.next("a heartbeat")? {
                break at;
            }
        };
        self.processes.kill(LAST)?;
        let killed_at = now();
        let mut told = Told::default();
        while told.nodes < plan.nodes - 1 {
            match self.processes.next("the news of a lost node")? {
                Report::Told(more) => told.merge(&more),
                // A heartbeat just before the end.
                Report::Heartbeat { at } => heartbeat_at = heartbeat_at.max(at),
                _ => {}
            }
        }
        let lost_at = heartbeat_at + self.job.keep_alive() * KEEP_ALIVE_ATTEMPTS;
        // Nodes that count earlier than that are early by a negative time.
        let since = |at: Duration, start: Duration| at.as_secs_f64() - start.as_secs_f64();
        Ok([
            Figure::milliseconds("first_told_ms", since(told.first_at, lost_at)),
            Figure::milliseconds("last_told_ms", since(told.last_at, lost_at)),
            Figure::milliseconds("kill_to_last_told_ms", since(told.last_at, killed_at)),
        ])
    }

    fn is_complete_with(&self, addr: &str) -> Result<bool, Failure> {
        let state = read_state(&*self.job.open_store()?)?;
        Ok(state.is_some_and(|state| {
            state.complete && state.participants.keys().any(|node| *node.addr == *addr)
        }))
    }
}

/// The state that nodes of every implementation share; `None` before the first write.
fn read_state(store: &dyn Store) -> Result<Option<RendezvousState>, Failure> {
    let text = store.get(&format!("torch.rendezvous.{RUN_ID}"))?;
    if text == SENTINEL {
        return Ok(None);
    }
    Ok(Some(from_text(&text, &CodecLimits::default())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_spread_evenly_over_as_few_processes_as_needed() {
        let none = |nodes, per_process| groups(nodes, per_process, Victim::None);
        assert_eq!(none(6, 5), [0..3, 3..6]);
        assert_eq!(none(11, 4), [0..3, 3..7, 7..11]);
        assert_eq!(none(2, 1), [0..1, 1..2]);
    }

    #[test]
    fn a_node_to_be_killed_is_alone_in_its_process() {
        let after = Duration::ZERO;
        let first = groups(5, 2, Victim::First { after });
        assert_eq!(first, [4..5, 0..2, 2..4]);
        assert_eq!(groups(5, 9, Victim::Last), [4..5, 3..4, 0..3]);
        assert_eq!(groups(2, 9, Victim::Last), [1..2, 0..1]);
    }
}
