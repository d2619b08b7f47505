//! A store with a journal that is killed after the start of a large job: how soon its data is there again, and then its
//! relays.

use std::time::Instant;

use c10d_store::{Store, TcpStore};
use tempfile::TempDir;

use super::job::{RelayedJob, Shape};
use crate::failure::{Context as _, Failure};
use crate::report::{Goal, Row, Unit};
use crate::store_server::StoreServer;
use crate::workload::setting::Setting;

/// Relays only.
pub(super) fn restart(shape: Shape, setting: &Setting) -> Result<[Row; 2], Failure> {
    let ranks = shape.ranks();
    let mut reopen = Row::new(format!("reopen of {ranks} ranks"), Unit::Milliseconds);
    let mut back = Row::new(format!("{ranks} ranks back"), Unit::Milliseconds);
    reopen.goal = Some(Goal::AtMost(1000.0));
    back.goal = Some(Goal::AtMost(3000.0));
    for _ in 0..setting.rounds {
        let directory = TempDir::new().context("cannot make a directory")?;
        let server = StoreServer::with_journal(directory.path(), setting.cores)?;
        let first = Setting {
            server: server.address(),
            ..*setting
        };
        let (mut job, _) = RelayedJob::connect(shape, &first, None)?;
        job.publish()?;
        drop(server);
        let started = Instant::now();
        let server = StoreServer::with_journal(directory.path(), setting.cores)?;
        let address = server.address();
        let store = TcpStore::connect(&address.ip().to_string(), address.port())?;
        store.num_keys()?;
        reopen.samples.push(started.elapsed().as_secs_f64() * 1e3);
        let time = job.carry_over(address, setting)?;
        back.samples.push(time.as_secs_f64() * 1e3);
    }
    Ok([reopen, back])
}
