//! The start of a large job, with a relay on each node and without.

use std::time::Duration;

use super::job::{RelayedJob, Shape};
use super::nodes::Turns;
use crate::failure::Failure;
use crate::process::Process;
use crate::report::{Goal, Row, Unit, order};
use crate::store_server::{Access, StoreServer};
use crate::workload::ranks::Job;
use crate::workload::setting::Setting;

/// The figures of one job, in the order of the rows; `None` where the system does not tell.
type Figures = [Option<f64>; 8];

/// Alternates between a job with relays and one without, each with a new server.
pub(super) fn ranks(shape: Shape, setting: &Setting, access: Access) -> Result<Vec<Row>, Failure> {
    let mut rows = [
        ("connections", Unit::Count, None),
        ("memory per node", Unit::Bytes, Some(1.0)),
        ("init", Unit::Milliseconds, Some(0.3)),
        ("barrier add+wait", Unit::Milliseconds, Some(0.25)),
        ("barrier requests per node", Unit::Count, None),
        ("barrier add+wait apart", Unit::Milliseconds, None),
        ("one key wakes all", Unit::Milliseconds, Some(0.25)),
        ("ids of NCCL", Unit::Milliseconds, None),
    ]
    .map(|(name, unit, ratio_max)| {
        let mut row = Row::new(name, unit);
        row.goal = ratio_max.map(Goal::RatioAtMost);
        row
    });
    for round in 0..setting.rounds {
        for is_direct in order(round) {
            let server = StoreServer::start(setting.cores, access)?;
            let setting = Setting {
                server: server.address(),
                ..*setting
            };
            let figures = if is_direct {
                direct(shape, &setting, &server)?
            } else {
                relayed(shape, &setting, &server)?
            };
            for (row, sample) in rows.iter_mut().zip(figures) {
                if let Some(sample) = sample {
                    row.push(is_direct, sample);
                }
            }
        }
    }
    let mut rows = Vec::from(rows);
    rows.retain(|row| row.samples.median().is_some());
    Ok(rows)
}

/// Relays only: how long the ranks of very many nodes take to connect.
pub(super) fn init(shape: Shape, setting: &Setting, access: Access) -> Result<Row, Failure> {
    let name = format!("init of {} ranks", shape.ranks());
    let mut row = Row::new(name, Unit::Milliseconds);
    row.goal = Some(Goal::AtMost(5000.0));
    for _ in 0..setting.rounds {
        let server = StoreServer::start(setting.cores, access)?;
        let setting = Setting {
            server: server.address(),
            ..*setting
        };
        let (_job, time) = RelayedJob::connect(shape, &setting, server.tls()?.as_ref())?;
        row.samples.push(milliseconds(time));
    }
    Ok(row)
}

fn relayed(shape: Shape, setting: &Setting, server: &StoreServer) -> Result<Figures, Failure> {
    let tls = server.tls()?;
    let before = Usage::of(server.process());
    let (mut job, init) = RelayedJob::connect(shape, setting, tls.as_ref())?;
    let (files, memory) = Usage::of(server.process()).since(before, shape);
    let (together, frames) = job.barrier_by_add_and_wait(Turns::Together)?;
    let (apart, _) = job.barrier_by_add_and_wait(Turns::Apart)?;
    let wake_all = job.one_key_wakes_all()?;
    let ids = job.ids_of_nccl()?;
    Ok([
        files,
        memory,
        Some(milliseconds(init)),
        Some(milliseconds(together)),
        Some(frames as f64 / shape.nodes as f64),
        Some(milliseconds(apart)),
        Some(milliseconds(wake_all)),
        Some(milliseconds(ids)),
    ])
}

fn direct(shape: Shape, setting: &Setting, server: &StoreServer) -> Result<Figures, Failure> {
    let tls = server.tls()?;
    let before = Usage::of(server.process());
    let (mut job, init) = Job::connect(shape.ranks(), 0, setting, tls.as_ref())?;
    let (files, memory) = Usage::of(server.process()).since(before, shape);
    let barrier = job.barrier_by_add_and_wait()?;
    // ADD and WAIT of each rank, and one SET.
    let requests = 2 * shape.ranks() + 1;
    let wake_all = job.one_key_wakes_all()?;
    let ids = job.ids_of_nccl()?;
    Ok([
        files,
        memory,
        Some(milliseconds(init)),
        Some(milliseconds(barrier)),
        Some(requests as f64 / shape.nodes as f64),
        Some(milliseconds(barrier)),
        Some(milliseconds(wake_all)),
        Some(milliseconds(ids)),
    ])
}

/// What the server uses; `None` if the system does not tell.
#[derive(Debug, Clone, Copy)]
struct Usage {
    memory: Option<u64>,
    files: Option<usize>,
}

impl Usage {
    fn of(process: Process) -> Self {
        Self {
            memory: process.anonymous_bytes(),
            files: process.open_files(),
        }
    }

    /// The files since `before`, and the memory of a node.
    fn since(self, before: Self, shape: Shape) -> (Option<f64>, Option<f64>) {
        let files = self.files.zip(before.files);
        let memory = self.memory.zip(before.memory);
        (
            files.map(|(now, before)| now.saturating_sub(before) as f64),
            memory.map(|(now, before)| now.saturating_sub(before) as f64 / shape.nodes as f64),
        )
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
