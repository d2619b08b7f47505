//! The start of a large job, with a relay on each node and without.

use std::time::Duration;

use crate::failure::Failure;
use crate::fleet::Turns;
use crate::process::Process;
use crate::report::{Goal, Row, Unit, order};
use crate::servers::StoreServer;
use crate::workload::job::{Job, Shape};
use crate::workload::setting::Setting;

/// The figures of one job, in the order of the rows; `None` where the system does not tell.
type Figures = [Option<f64>; 7];

/// Alternates between a job with relays and one without, each with a new server.
pub(super) fn ranks(
    shape: Shape,
    setting: &Setting,
    has_secret: bool,
) -> Result<Vec<Row>, Failure> {
    let mut rows = [
        ("connections", Unit::Count, None),
        ("memory per node", Unit::Bytes, Some(1.0)),
        ("init", Unit::Milliseconds, Some(0.3)),
        ("barrier add+wait", Unit::Milliseconds, Some(0.25)),
        ("barrier requests per node", Unit::Count, None),
        ("barrier add+wait apart", Unit::Milliseconds, None),
        ("one key wakes all", Unit::Milliseconds, Some(0.25)),
    ]
    .map(|(name, unit, ratio_max)| {
        let mut row = Row::new(name, unit);
        row.goal = ratio_max.map(Goal::RatioAtMost);
        row
    });
    for round in 0..setting.rounds {
        for is_direct in order(round) {
            let server = StoreServer::start(setting.cores, has_secret)?;
            let setting = Setting {
                server: server.address(),
                ..*setting
            };
            let figures = figures(shape, is_direct, &setting, &server)?;
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
pub(super) fn init(shape: Shape, setting: &Setting, has_secret: bool) -> Result<Row, Failure> {
    let name = format!("init of {} ranks", shape.ranks());
    let mut row = Row::new(name, Unit::Milliseconds);
    row.goal = Some(Goal::AtMost(5000.0));
    for _ in 0..setting.rounds {
        let server = StoreServer::start(setting.cores, has_secret)?;
        let setting = Setting {
            server: server.address(),
            ..*setting
        };
        let (_job, time) = Job::connect(shape, 0, &setting, server.tls()?.as_ref())?;
        row.samples.push(milliseconds(time));
    }
    Ok(row)
}

fn figures(
    shape: Shape,
    is_direct: bool,
    setting: &Setting,
    server: &StoreServer,
) -> Result<Figures, Failure> {
    let nodes = shape.connections as f64;
    let shape = match is_direct {
        true => Shape {
            connections: shape.ranks(),
            ranks_per_relay: None,
        },
        false => shape,
    };
    let tls = server.tls()?;
    let before = usage(server.process());
    let (mut job, init) = Job::connect(shape, 0, setting, tls.as_ref())?;
    let after = usage(server.process());
    let (together, frames) = job.barrier_by_add_and_wait(Turns::Together)?;
    let (apart, requests) = if is_direct {
        // ADD and WAIT of each rank, and one SET. Ranks with separate connections never send a request
        // together.
        (together, 2 * shape.ranks() + 1)
    } else {
        (job.barrier_by_add_and_wait(Turns::Apart)?.0, frames)
    };
    let wake_all = job.one_key_wakes_all()?;
    let grown =
        |after: Option<u64>, before: Option<u64>| Some(after?.saturating_sub(before?) as f64);
    Ok([
        grown(after[0], before[0]),
        grown(after[1], before[1]).map(|bytes| bytes / nodes),
        Some(milliseconds(init)),
        Some(milliseconds(together)),
        Some(requests as f64 / nodes),
        Some(milliseconds(apart)),
        Some(milliseconds(wake_all)),
    ])
}

/// The open files of the server, and its memory; `None` if the system does not tell.
fn usage(process: Process) -> [Option<u64>; 2] {
    let files = process.open_files().map(|files| files as u64);
    [files, process.anonymous_bytes()]
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
