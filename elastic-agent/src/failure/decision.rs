//! The decision about the root cause of a failure, from the exits of all nodes. Pure.

use std::net::SocketAddr;

#[cfg(feature = "launcher")]
use c10d_inspect::{Exit, root_cause};

use super::exit_record::ExitRecord;
use super::process_failure::RootExit;
#[cfg(feature = "launcher")]
use crate::wording::signal_name;
use crate::worker::ExitKind;

/// The root cause, and the ranks that failed because of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "launcher"),
    allow(dead_code, reason = "only a launcher decides")
)]
pub(crate) struct Decision {
    pub(crate) root: RootExit,
    /// The ranks that are the cause. There are several if the first one is unknown.
    pub(crate) culprits: Vec<usize>,
    /// The other ranks that failed.
    pub(crate) failed: Vec<usize>,
    /// Whether the cause explains failures of other ranks.
    pub(crate) has_victims: bool,
    /// If the cause only gave up an operation of several ranks: what to add unless the rank that did not take part is known.
    pub(crate) unknown: Option<String>,
}

impl Decision {
    /// Decides from the exits of each node. `rank_at` returns the rank that has published an address.
    #[cfg(feature = "launcher")]
    pub(crate) fn of(
        nodes: &[Vec<ExitRecord>],
        world_size: Option<usize>,
        rank_at: &dyn Fn(SocketAddr) -> Option<usize>,
    ) -> Option<Self> {
        let has_other_nodes = nodes.iter().skip(1).any(|exits| !exits.is_empty());
        let all = nodes.concat();
        let places = nodes.iter().enumerate();
        let places =
            places.flat_map(|(node, exits)| exits.iter().map(move |record| (node, record)));
        let exits: Vec<Exit> = places
            .map(|(node, record)| exit(node, record, &all, has_other_nodes))
            .collect();
        let cause = root_cause(&exits, &[], world_size, rank_at)?;
        let place = *cause.culprits.first()?;
        let culprits: Vec<usize> = cause.culprits.iter().map(|&it| exits[it].rank).collect();
        let has_failed = |exit: &&Exit| exit.code != Some(0) && !exit.is_stopped;
        let failed = exits.iter().filter(has_failed).map(|exit| exit.rank);
        Some(Self {
            failed: failed.filter(|rank| !culprits.contains(rank)).collect(),
            culprits,
            has_victims: cause.has_victims,
            unknown: cause.unknown,
            root: RootExit {
                record: all[place].clone(),
                text: cause.text,
                is_certain: cause.is_certain,
                cure: exits[place].is_at_exit.then_some(CURE),
            },
        })
    }

    /// Returns `None`: without a launcher, reports do not need the root cause.
    #[cfg(not(feature = "launcher"))]
    pub(crate) const fn of(
        _: &[Vec<ExitRecord>],
        _: Option<usize>,
        _: &dyn Fn(SocketAddr) -> Option<usize>,
    ) -> Option<Self> {
        None
    }

    /// Whether it names a worker, a cure or a reason that the exit alone does not.
    ///
    /// An exit that no other exit explains may follow from a cause that this node has not read, such as a worker that its
    /// launcher has stopped. It is then no better than the exit that the other node has reported.
    pub(crate) fn tells_more_than(&self, exit: Option<&ExitRecord>) -> bool {
        let root = &self.root;
        let is_same =
            |exit: &ExitRecord| (exit.rank, exit.pid) == (root.record.rank, root.record.pid);
        let explains = self.has_victims || self.culprits.len() > 1;
        if !explains && !root.is_certain {
            return exit.is_some_and(is_same);
        }
        explains || root.cure.is_some() || exit.is_some_and(|exit| !is_same(exit))
    }
}

#[cfg(feature = "launcher")]
fn exit(node: usize, record: &ExitRecord, all: &[ExitRecord], has_other_nodes: bool) -> Exit {
    let mut exit = Exit::default();
    exit.rank = record.rank;
    exit.node = node;
    if has_other_nodes {
        exit.host.clone_from(&record.host);
    }
    match record.exit {
        ExitKind::Code(code) => exit.code = Some(code),
        ExitKind::Signal { number, .. } => {
            exit.signal = Some(number);
            exit.signal_name = signal_name(number).map(str::to_owned);
        }
        ExitKind::Unknown => {}
    }
    exit.at_ms = i64::try_from(record.ended_unix_ms).unwrap_or(i64::MAX);
    exit.is_stopped = record.was_stopped;
    exit.is_at_exit = is_abort_at_exit(record, all);
    exit.has_traceback = record.has_traceback;
    exit.last_line.clone_from(&record.last_line);
    exit
}

/// The cure for the abort, for a report.
#[cfg_attr(
    not(feature = "launcher"),
    allow(dead_code, reason = "only a launcher needs it")
)]
const CURE: &str = "call torch.distributed.destroy_process_group() at the end of the program";

/// The last line that libstdc++ writes before it aborts because a thread still runs.
const MESSAGE: &str = "terminate called without an active exception";

/// Whether a worker had reached the end of its program when a signal killed it, as far as a launcher can judge: gloo has
/// threads that run until the process group is destroyed, and if the interpreter exits before that, the C++ runtime aborts
/// the process in some of the runs.
///
/// The signal must be SIGABRT or SIGSEGV, without a place in a Python program. In addition, either another worker has
/// exited with 0, or the last line is the message of a library at exit. `others` are exits of the same round, on any
/// node.
pub(crate) fn is_abort_at_exit(record: &ExitRecord, others: &[ExitRecord]) -> bool {
    let ExitKind::Signal { number, .. } = record.exit else {
        return false;
    };
    // A stopped worker can exit with 0 long before the end of its program.
    let has_finished = |other: &ExitRecord| {
        other.rank != record.rank && other.exit.is_success() && !other.was_stopped
    };
    [libc::SIGABRT, libc::SIGSEGV].contains(&number)
        && !record.has_traceback
        && (is_message(record) || others.iter().any(has_finished))
}

fn is_message(record: &ExitRecord) -> bool {
    record.last_line.as_deref() == Some(MESSAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::WorkerOutcome;

    fn record(rank: usize, exit: ExitKind, stderr: &str) -> ExitRecord {
        ExitRecord::of(&WorkerOutcome::for_test(rank, exit, 0, stderr), "node0")
    }

    const fn signal(number: i32) -> ExitKind {
        ExitKind::Signal {
            number,
            has_dumped_core: true,
        }
    }

    #[test]
    fn only_an_abort_after_the_program_is_one_at_exit() {
        let traceback = "Traceback (most recent call last):\n  File \"/t/x.py\", line 1, in <module>\nValueError\n";
        let finished = record(1, ExitKind::Code(0), "");
        let mut stopped = finished.clone();
        stopped.was_stopped = true;
        let failed = record(1, ExitKind::Code(1), "");
        let itself = record(0, ExitKind::Code(0), "");
        let all = [&finished, &stopped, &failed, &itself];
        for (exit, stderr, expected) in [
            // With a finished worker beside it, and with each of the other workers.
            (signal(libc::SIGABRT), MESSAGE, [true; 4]),
            (signal(libc::SIGABRT), "", [true, false, false, false]),
            (
                signal(libc::SIGSEGV),
                "epoch 3\n",
                [true, false, false, false],
            ),
            (
                signal(libc::SIGABRT),
                &*format!("{traceback}{MESSAGE}"),
                [false; 4],
            ),
            (signal(libc::SIGKILL), MESSAGE, [false; 4]),
            (ExitKind::Code(134), MESSAGE, [false; 4]),
            (ExitKind::Unknown, MESSAGE, [false; 4]),
        ] {
            let aborted = record(0, exit, stderr);
            let is_at_exit =
                all.map(|other| is_abort_at_exit(&aborted, std::slice::from_ref(other)));
            assert_eq!(is_at_exit, expected, "{exit}: {stderr}");
        }
    }
}
