//! GET of a key that nobody writes, while others are written.

use std::thread;
use std::time::{Duration, Instant};

use super::candidates::Candidates;
use super::site::Site;
use super::transaction::Transaction;
use crate::failure::{Context as _, Failure};
use crate::report::{Goal, Row, Unit, measure_in_turn};
use crate::workload::durable::{clean_reads_row, read_beside_writes};
use crate::workload::setting::Setting;

/// The members of etcd share the machine with the servers. So while the server without a journal is read, they carry out
/// as many transactions as for the other one, and as large, which the second row shows.
pub(super) fn clean_reads(
    plain: &Setting,
    in_etcd: &Setting,
    site: &Site,
    candidates: &Candidates,
) -> Result<[Row; 2], Failure> {
    let mut rows = [
        clean_reads_row("etcd"),
        Row::new("commits a second meanwhile", Unit::Count),
    ];
    // Else the ratio of the first row says nothing.
    rows[1].goal = Some(Goal::RatioAtMost(1.1));
    let mut bare = None;
    let mut interval = Duration::ZERO;
    measure_in_turn(&mut rows, plain.rounds, true, |is_floor| {
        let revision = || site.revision().context("cannot use etcd");
        let (before, started) = (revision()?, Instant::now());
        let [p50] = if is_floor {
            let bare = match &mut bare {
                Some(bare) => bare,
                None => bare.insert(Transaction::as_of_journal(site, candidates.prefix(), "b")?),
            };
            let mut due = Instant::now();
            read_beside_writes(
                plain,
                Some(&mut || {
                    bare.commit()?;
                    due = (due + interval).max(Instant::now());
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    Ok(())
                }),
            )?
        } else {
            read_beside_writes(in_etcd, None)?
        };
        let commits = revision()?.saturating_sub(before).max(1) as f64;
        let took = started.elapsed();
        if !is_floor {
            interval = took.div_f64(commits);
        }
        Ok([p50, commits / took.as_secs_f64()])
    })?;
    Ok(rows)
}
