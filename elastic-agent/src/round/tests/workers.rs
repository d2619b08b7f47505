//! The simulated workers.

use std::time::SystemTime;

use super::super::input::{Input, Stopped};
use super::world::World;
use crate::failure::{Failures, ProcessFailure};
use crate::worker::{ExitKind, WorkerExit, WorkerOutcome};

/// A worker that failed, or was stopped.
pub(super) fn failure(
    local_rank: usize,
    rank: usize,
    code: i32,
    was_stopped: bool,
) -> ProcessFailure {
    ProcessFailure::of(&WorkerOutcome {
        local_rank,
        rank,
        pid: 1,
        exit: ExitKind::Code(code),
        ended_at: SystemTime::UNIX_EPOCH,
        was_stopped,
        error_file: None,
        stderr_tail: Vec::new(),
    })
}

impl World {
    /// The first worker of a node that still runs ends.
    pub(super) fn exit(&mut self, index: usize, code: i32) {
        let node = &mut self.nodes[index];
        let Some(worker) = node.exits.iter().position(Option::is_none) else {
            return;
        };
        node.exits[worker] = Some(code);
        node.faults += usize::from(code != 0);
        let exit = WorkerExit {
            local_rank: worker,
            rank: index * node.exits.len() + worker,
            pid: 1,
            exit: ExitKind::Code(code),
            ended_at: SystemTime::UNIX_EPOCH,
        };
        self.step(index, Input::WorkerExited(exit));
    }

    /// All workers of a node have ended.
    pub(super) fn end_stop(&mut self, index: usize) {
        let exits = &self.nodes[index].exits;
        let failed = exits.iter().enumerate().filter_map(|(worker, exit)| {
            let rank = index * exits.len() + worker;
            match exit {
                Some(0) => None,
                Some(code) => Some(failure(worker, rank, *code, false)),
                None => Some(failure(worker, rank, 1, true)),
            }
        });
        let stopped = Stopped {
            failures: Failures::new(failed.collect()),
            has_own_failure: exits.iter().flatten().any(|code| *code != 0),
            ..Stopped::default()
        };
        self.step(index, Input::Stopped(Box::new(stopped)));
    }
}
