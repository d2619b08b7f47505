//! The start of a large job: thousands of ranks that connect, meet in barriers, wait and cancel.

use super::job::{Job, Shape};
use super::setting::Setting;
use crate::failure::Failure;
use crate::fleet::Turns;
use crate::report::{Row, Unit};

/// All figures of a job, with one connection per rank.
pub(crate) fn ranks(ranks: usize, setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = [
        "ranks connect",
        "ranks barrier add+wait",
        "ranks barrier command",
        "ranks one key wakes all",
        "ranks wait apart",
        "ranks cancel",
        "ranks wait apart + cancel",
    ]
    .map(|name| Row::new(name, Unit::Milliseconds));
    let mut memory = Row::new("memory per connection", Unit::Bytes);
    let memory_of_server = || {
        setting
            .process
            .and_then(|process| process.anonymous_bytes())
    };
    let size = Shape {
        connections: ranks,
        ranks_per_relay: None,
    };
    for round in 0..setting.rounds {
        // Only the first round shows the memory of the server's tables, which are empty before it.
        let before = memory_of_server();
        let (mut job, connect_time) = Job::connect(size, round, setting, None)?;
        if let (0, Some(before), Some(after)) = (round, before, memory_of_server()) {
            let grown = after.saturating_sub(before) as f64;
            memory.samples.push(grown / ranks as f64);
        }
        let (add_wait, _) = job.barrier_by_add_and_wait(Turns::Together)?;
        let command = job.barrier_by_command()?;
        let wake_all = job.one_key_wakes_all()?;
        let (wait_apart, cancel) = job.wait_apart_then_cancel()?;
        let times = [
            connect_time,
            add_wait,
            command,
            wake_all,
            wait_apart,
            cancel,
            wait_apart + cancel,
        ];
        for (row, time) in rows.iter_mut().zip(times) {
            row.samples.push(time.as_secs_f64() * 1e3);
        }
        job.leave(setting)?;
    }
    let memory = Some(memory).filter(|row| row.samples.median().is_some());
    Ok(rows.into_iter().chain(memory).collect())
}
