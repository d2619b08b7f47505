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

/// The rows, in this order.
const CONNECTIONS: usize = 0;
const MEMORY: usize = 1;
const INIT: usize = 2;
const BARRIER: usize = 3;
const REQUESTS: usize = 4;
const BARRIER_APART: usize = 5;
const WAKE_ALL: usize = 6;

/// The figures of one job.
#[derive(Debug, Default)]
struct Figures {
    samples: [Option<f64>; 7],
}

impl Figures {
    fn set(&mut self, row: usize, value: f64) {
        self.samples[row] = Some(value);
    }

    fn set_time(&mut self, row: usize, time: Duration) {
        self.set(row, milliseconds(time));
    }
}

/// Alternates between a job with relays and one without, each with a new server.
pub(super) fn ranks(shape: Shape, setting: &Setting, access: Access) -> Result<Vec<Row>, Failure> {
    let mut rows = [
        ("connections", Unit::Count),
        ("memory per node", Unit::Bytes),
        ("init", Unit::Milliseconds),
        ("barrier add+wait", Unit::Milliseconds),
        ("barrier requests per node", Unit::Count),
        ("barrier add+wait apart", Unit::Milliseconds),
        ("one key wakes all", Unit::Milliseconds),
    ]
    .map(|(name, unit)| Row::new(name, unit));
    let goals = [
        (MEMORY, 1.0),
        (INIT, 0.3),
        (BARRIER, 0.25),
        (WAKE_ALL, 0.25),
    ];
    for (row, most) in goals {
        rows[row].goal = Some(Goal::RatioAtMost(most));
    }
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
            for (row, sample) in rows.iter_mut().zip(figures.samples) {
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
    let mut figures = Figures::default();
    let before = Usage::of(server.process());
    let (mut job, time) = RelayedJob::connect(shape, setting, tls.as_ref())?;
    figures.set_time(INIT, time);
    Usage::of(server.process()).compare(before, shape, &mut figures);
    let (time, frames) = job.barrier_by_add_and_wait(Turns::Together)?;
    figures.set_time(BARRIER, time);
    figures.set(REQUESTS, frames as f64 / shape.nodes as f64);
    let (time, _) = job.barrier_by_add_and_wait(Turns::Apart)?;
    figures.set_time(BARRIER_APART, time);
    figures.set_time(WAKE_ALL, job.one_key_wakes_all()?);
    Ok(figures)
}

fn direct(shape: Shape, setting: &Setting, server: &StoreServer) -> Result<Figures, Failure> {
    let tls = server.tls()?;
    let mut figures = Figures::default();
    let before = Usage::of(server.process());
    let (mut job, time) = Job::connect(shape.ranks(), 0, setting, tls.as_ref())?;
    figures.set_time(INIT, time);
    Usage::of(server.process()).compare(before, shape, &mut figures);
    let time = job.barrier_by_add_and_wait()?;
    figures.set_time(BARRIER, time);
    figures.set_time(BARRIER_APART, time);
    // ADD and WAIT of each rank, and one SET.
    let requests = 2 * shape.ranks() + 1;
    figures.set(REQUESTS, requests as f64 / shape.nodes as f64);
    figures.set_time(WAKE_ALL, job.one_key_wakes_all()?);
    Ok(figures)
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

    fn compare(self, before: Self, shape: Shape, figures: &mut Figures) {
        if let (Some(now), Some(before)) = (self.memory, before.memory) {
            let grown = now.saturating_sub(before) as f64;
            figures.set(MEMORY, grown / shape.nodes as f64);
        }
        if let (Some(now), Some(before)) = (self.files, before.files) {
            figures.set(CONNECTIONS, now.saturating_sub(before) as f64);
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
