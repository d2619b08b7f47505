//! A store in etcd: what its requests cost beside those of a store without a journal, and how long ranks wait when a
//! server or a member of etcd is lost. Three members of etcd, with its default timers, on the disk of the system's folder
//! for temporary files.

mod candidates;
mod gateway;
mod pauses;
mod reads;
mod rest;
mod site;
mod transaction;

use std::time::Duration;

use c10d_store::Store;

use candidates::Candidates;
pub(crate) use site::{EtcdMemberArgs, MEMBERS, Place, Site};
use transaction::Transaction;

use super::durable::{add_256, against, median};
use super::setting::{Setting, open_store};
use crate::failure::Failure;
use crate::rendezvous::JoinedNodes;
use crate::report::{Goal, Row, Unit, measure_in_turn, order};
use crate::store_server::{Access, StoreServer};

/// What takes longest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EtcdShape {
    /// The nodes of the rendezvous.
    pub(crate) nodes: usize,
    /// How long a job is watched at rest.
    pub(crate) rest: Duration,
}

/// Rounds of what takes seconds.
const LONG_ROUNDS_MAX: usize = 3;

/// Against the server of the setting, which has no journal.
pub(crate) fn etcd(setting: &Setting, shape: EtcdShape) -> Result<Vec<Row>, Failure> {
    let mut site = Site::start()?;
    let mut rows = requests(setting, &site)?;
    let setting = Setting {
        rounds: setting.rounds.min(LONG_ROUNDS_MAX),
        ..*setting
    };
    rows.extend(pauses::pauses(&setting, &mut site)?);
    rows.extend(rest::rest(&setting, &site, shape.rest)?);
    rows.push(join(&setting, &site, shape.nodes)?);
    Ok(rows)
}

fn requests(setting: &Setting, site: &Site) -> Result<Vec<Row>, Failure> {
    let candidates = Candidates::start(site, "c10d/requests", setting.cores)?;
    let leader = candidates.leader()?;
    let in_etcd = Setting {
        server: leader.address(),
        process: Some(leader.process()),
        ..*setting
    };
    let mut rows = Vec::from(one_add(&in_etcd, site, &candidates)?);
    rows.push(against(setting, &in_etcd, &add_256(), "etcd", 0.5)?);
    rows.extend(reads::clean_reads(setting, &in_etcd, site, &candidates)?);
    Ok(rows)
}

/// The floor is the transaction that keeps such an ADD, sent to etcd by this process.
fn one_add(setting: &Setting, site: &Site, candidates: &Candidates) -> Result<[Row; 1], Failure> {
    let store = open_store(setting.server, None)?;
    store.add("bench/one", 1)?;
    let mut bare = Transaction::as_of_journal(site, candidates.prefix(), "a")?;
    let mut rows = [Row::new("add p50 etcd", Unit::Microseconds)];
    rows[0].goal = Some(Goal::AboveFloorAtMost(150.0));
    measure_in_turn(&mut rows, setting.rounds, true, |is_floor| {
        median(setting.round_time, || match is_floor {
            true => bare.commit(),
            false => Ok(store.add("bench/one", 1).map(drop)?),
        })
    })?;
    Ok(rows)
}

/// Nodes that all know where their store is.
fn join(setting: &Setting, site: &Site, count: usize) -> Result<Row, Failure> {
    let mut row = Row::new(format!("{count} nodes join etcd"), Unit::Milliseconds);
    row.goal = Some(Goal::RatioAtMost(1.3));
    for round in 0..setting.rounds {
        for is_floor in order(round) {
            let nodes = if is_floor {
                let server = StoreServer::start(None, Access::Open)?;
                JoinedNodes::join(server.place(), count)?
            } else {
                let prefix = format!("c10d/join/{round}");
                let candidates = Candidates::start(site, &prefix, None)?;
                JoinedNodes::join(candidates.place()?, count)?
            };
            row.push(is_floor, nodes.time.as_secs_f64() * 1e3);
        }
    }
    Ok(row)
}
