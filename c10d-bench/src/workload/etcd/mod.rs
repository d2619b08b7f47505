//! A store in etcd: the cost of its requests beside the requests of a store without a journal, and how long ranks wait
//! when the server is lost. Three members of etcd, with its default timers, on the disk of the system's folder for
//! temporary files.

mod candidates;
mod pauses;
mod site;

use c10d_store::Store;

use candidates::Candidates;
pub(crate) use site::{EtcdMemberArgs, MEMBERS, Place, Site};

use super::durable::{add_256, against, median};
use super::setting::{Setting, open_store};
use crate::failure::Failure;
use crate::report::{Row, Unit, measure_in_turn};

/// Rounds of what takes seconds.
const LONG_ROUNDS_MAX: usize = 3;

/// Against the server of the setting, which has no journal.
pub(crate) fn etcd(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let site = Site::start()?;
    let mut rows = Vec::from(requests(setting, &site)?);
    let setting = Setting {
        rounds: setting.rounds.min(LONG_ROUNDS_MAX),
        ..*setting
    };
    rows.extend(pauses::pauses(&setting, &site)?);
    Ok(rows)
}

fn requests(setting: &Setting, site: &Site) -> Result<[Row; 2], Failure> {
    let candidates = Candidates::start(site, "c10d/requests", setting.cores)?;
    let leader = candidates.leader()?;
    let in_etcd = Setting {
        server: leader.address(),
        process: Some(leader.process()),
        ..*setting
    };
    let store = open_store(in_etcd.server, None)?;
    let mut one_add = [Row::new("add p50 etcd", Unit::Microseconds)];
    measure_in_turn(&mut one_add, setting.rounds, false, |_| {
        median(setting.round_time, || {
            Ok(store.add("bench/one", 1).map(drop)?)
        })
    })?;
    let [one_add] = one_add;
    let many = against(setting, &in_etcd, &add_256("etcd", 0.5))?;
    Ok([one_add, many])
}
