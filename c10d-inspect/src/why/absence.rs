//! Why a rank has not published its address, as far as the store and the launchers show it.

use std::time::Duration;

use crate::announced::WorkerEnd;
use crate::identity::shown_name;
use crate::index::Slot;
use crate::job::Job;
use crate::launched::Worker;
use crate::text;

/// The state of an absent rank.
#[derive(Debug, Clone, Copy)]
pub(super) enum Absence<'a> {
    /// The rank's worker has exited.
    Ended {
        worker: Worker<'a>,
        end: WorkerEnd,
        at: Duration,
    },
    /// The launcher of its node is lost.
    NodeLost(Worker<'a>),
    /// The rank's connection is open.
    Connected(Slot),
    /// The rank's connection has closed.
    Left { slot: Slot, at: Duration },
    /// The rank's worker runs and is not connected.
    NotConnected(Worker<'a>),
    /// The rank was not announced by a launcher.
    Unknown,
}

pub(super) fn absence<'a>(job: &Job<'a>, rank: usize) -> Absence<'a> {
    let worker = job.launched.worker(rank);
    if let Some(worker) = worker {
        if let Some((end, at)) = worker.end() {
            return Absence::Ended { worker, end, at };
        }
        if worker.is_node_lost() {
            return Absence::NodeLost(worker);
        }
    }
    let slots = job.who.connections(rank);
    if let Some(&slot) = slots.iter().rev().find(|&&slot| job.index.is_open(slot)) {
        return Absence::Connected(slot);
    }
    let left = slots.iter().filter_map(|&slot| {
        job.index.connections[slot]
            .closed
            .map(|closed| (closed.at, slot))
    });
    if let Some((at, slot)) = left.max() {
        return Absence::Left { slot, at };
    }
    worker.map_or(Absence::Unknown, Absence::NotConnected)
}

/// Returns facts about a worker that runs and is not connected, as the rest of a sentence about it.
pub(super) fn outside(job: &Job<'_>, worker: Worker<'_>) -> String {
    let process = format!(
        "pid {} on {}",
        worker.worker.pid,
        shown_name(&worker.node.announced.host)
    );
    if let Some(pid) = worker.stopped_pid() {
        return format!(
            "{process}, is stopped (state T of pid {pid}{}): continue it with kill -CONT {pid}",
            text::seen(job.ago(worker.seen())),
        );
    }
    if let Some(address) = worker.connecting_to() {
        return format!(
            "{process}, tries to connect to {address}, which does not answer: \
             check MASTER_ADDR and MASTER_PORT"
        );
    }
    format!(
        "{process}, alive, started {} ago: still importing, or it has not reached \
         init_process_group",
        text::age(job.ago(worker.started()))
    )
}

/// "was killed by signal 9 (SIGKILL)", "exited with code 1".
pub(super) fn ended(end: WorkerEnd) -> String {
    match (end.exit_code, end.signal) {
        (_, Some(signal)) => format!("was killed by signal {signal}{}", signal_name(signal)),
        (Some(code), None) => format!("exited with code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        2 => " (SIGINT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL, often by the kernel when memory ran out)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}
