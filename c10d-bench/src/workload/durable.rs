//! The cost of a journal: the same requests to a server with a journal and to a server without one, in turn; and how
//! soon a store is available again after its server was killed.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use c10d_store::Store;
use tempfile::TempDir;

use super::setting::{Setting, open_store};
use super::throughput::{Kind, Throughput};
use crate::affinity::on_server_core;
use crate::failure::{Context as _, Failure};
use crate::report::{Goal, Row, Unit, measure_in_turn, percentiles, repeat};
use crate::servers::StoreServer;

const REOPENED_VALUE_BYTES: usize = 100;

/// Pairs of one MULTI_SET.
const PAIRS: usize = 1000;

/// Against the server of the setting, which has no journal.
pub(crate) fn durable(
    setting: &Setting,
    set_get: &Throughput,
    reopened_keys: usize,
) -> Result<Vec<Row>, Failure> {
    let directory = TempDir::new().context("cannot make a directory")?;
    let child = StoreServer::with_journal(directory.path(), setting.cores)?;
    let with_journal = Setting {
        server: child.address(),
        process: Some(child.process()),
        ..*setting
    };
    let set_get = Throughput {
        name: format!("{} durable", set_get.name),
        goal: Some(Goal::RatioAtLeast(0.7)),
        ..set_get.clone()
    };
    let mut rows = vec![
        against(setting, &with_journal, &add_256("durable", 0.9))?,
        against(setting, &with_journal, &set_get)?,
    ];
    rows.extend(one_add(&with_journal, directory.path())?);
    drop(child);
    rows.push(reopen(setting, reopened_keys)?);
    Ok(rows)
}

/// The requests per second of the server with a journal, beside the requests per second of the server without a
/// journal.
pub(super) fn against(
    plain: &Setting,
    with_journal: &Setting,
    throughput: &Throughput,
) -> Result<Row, Failure> {
    let fleet = with_journal.fleet(throughput.connections)?;
    let floor = plain.fleet(throughput.connections)?;
    throughput.measure(plain, fleet, Some(floor))
}

pub(super) fn add_256(kind: &str, ratio_min: f64) -> Throughput {
    Throughput {
        name: format!("add 256 {kind}"),
        kind: Kind::Add,
        connections: 256,
        depth: 1,
        goal: Some(Goal::RatioAtLeast(ratio_min)),
    }
}

/// The floor is a write of as many bytes and fdatasync(2), in the same file system and on the server's core. If one of
/// the cores takes the interrupts of the disk, a sync from a different core takes 1.4 times as long.
fn one_add(setting: &Setting, directory: &Path) -> Result<[Row; 1], Failure> {
    const BYTES: usize = 200;
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(directory.join("floor"))
        .and_then(|file| file.write_all_at(&[0; 1 << 16], 0).map(|()| file))
        .context("cannot write a file")?;
    let store = open_store(setting.server, None)?;
    let mut rows = [Row::new("add p50 durable", Unit::Microseconds)];
    rows[0].goal = Some(Goal::AboveFloorAtMost(40.0));
    let mut at = 0;
    measure_in_turn(&mut rows, setting.rounds, true, |is_floor| {
        if !is_floor {
            return median(setting.round_time, || {
                Ok(store.add("bench/one", 1).map(drop)?)
            });
        }
        on_server_core(setting.cores, || {
            median(setting.round_time, || {
                at = (at + BYTES as u64) % (1 << 15);
                let written = file.write_all_at(&[1; BYTES], at);
                let kept = written.and_then(|()| file.sync_data());
                kept.context("cannot write a file")
            })
        })
    })?;
    Ok(rows)
}

/// Measures the time from the start of a server to its first answer, with the keys that it had when it was killed.
fn reopen(setting: &Setting, count: usize) -> Result<Row, Failure> {
    let directory = TempDir::new().context("cannot make a directory")?;
    let child = StoreServer::with_journal(directory.path(), setting.cores)?;
    let store = open_store(child.address(), None)?;
    let value = [7; REOPENED_VALUE_BYTES];
    for first in (0..count).step_by(PAIRS) {
        let keys: Vec<String> = (first..count.min(first + PAIRS))
            .map(|key| format!("bench/reopen/{key:08}"))
            .collect();
        let pairs: Vec<(&str, &[u8])> = keys.iter().map(|key| (&**key, &value[..])).collect();
        store.multi_set(&pairs)?;
    }
    store.ping()?;
    drop((store, child));
    let mut row = Row::new(format!("reopen {count} keys"), Unit::Milliseconds);
    // The goal was set for a million.
    row.goal = (count == 1_000_000).then_some(Goal::AtMost(1500.0));
    for _ in 0..setting.rounds {
        let started = Instant::now();
        let child = StoreServer::with_journal(directory.path(), setting.cores)?;
        let store = open_store(child.address(), None)?;
        let keys = store.num_keys()?;
        row.samples.push(started.elapsed().as_secs_f64() * 1e3);
        if keys < count as u64 {
            return Err(Failure::new(format!(
                "after a restart {keys} keys are left"
            )));
        }
    }
    Ok(row)
}

/// The median time of a call, in microseconds.
pub(super) fn median(
    time: Duration,
    call: impl FnMut() -> Result<(), Failure>,
) -> Result<[f64; 1], Failure> {
    let [p50, _] = percentiles(&mut repeat(time, call)?);
    Ok([p50])
}
