//! What a job at rest asks etcd for.

use std::thread;
use std::time::{Duration, Instant};

use c10d_store::Store;

use super::candidates::Candidates;
use super::site::Site;
use crate::child::ServerChild;
use crate::failure::Failure;
use crate::rendezvous::JoinedNodes;
use crate::report::{Goal, Row, Unit};
use crate::servers::RelayServerArgs;
use crate::workload::setting::{Setting, open_store};

const NODES: usize = 4;

/// A connection of each node, as that of its ranks.
const RELAYS: usize = NODES;

/// After the start of a job.
const SETTLING: Duration = Duration::from_secs(2);

/// Three servers, and relays with a rank each: the calls of all in a second. Then also nodes of a rendezvous, each of which
/// writes a heartbeat every 5 s.
pub(super) fn rest(setting: &Setting, site: &Site, time: Duration) -> Result<[Row; 2], Failure> {
    let mut rows = ["calls of etcd a second at rest", "the same with heartbeats"]
        .map(|name| Row::new(name, Unit::Count));
    for row in &mut rows {
        row.goal = Some(Goal::AtMost(1.0));
    }
    let candidates = Candidates::start(site, "c10d/rest", setting.cores)?;
    let command = RelayServerArgs::command_line(candidates.address(), None);
    let relays: Vec<_> = (0..RELAYS)
        .map(|_| ServerChild::start_silent(&command, None))
        .collect::<Result<_, _>>()?;
    let ranks: Vec<_> = relays
        .iter()
        .map(|relay| open_store(relay.address(), None))
        .collect::<Result<_, _>>()?;
    for rank in &ranks {
        rank.add("bench/rest", 1)?;
    }
    rows[0].samples.push(calls_a_second(site, time)?);
    let _nodes = JoinedNodes::join(candidates.place()?, NODES)?;
    rows[1].samples.push(calls_a_second(site, time / 2)?);
    Ok(rows)
}

fn calls_a_second(site: &Site, time: Duration) -> Result<f64, Failure> {
    thread::sleep(SETTLING);
    let (before, start) = (site.calls()?, Instant::now());
    thread::sleep(time);
    let calls = site.calls()? - before;
    Ok(calls / start.elapsed().as_secs_f64())
}
