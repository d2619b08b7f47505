//! The simulated workers.

use std::time::SystemTime;

use super::super::Replacement;
use super::super::input::{Crash, Death, GroupNews, Input, Stopped};
use super::world::{Doing, FINAL, FINISHED, World};
use crate::failure::{ExitRecord, Failures, ProcessFailure};
use crate::worker::{ExitKind, WorkerExit, WorkerOutcome};

/// A negative code is a signal.
fn kind(code: i32) -> ExitKind {
    match code {
        0.. => ExitKind::Code(code),
        signal => ExitKind::signal(-signal),
    }
}

/// A worker that failed, or was stopped.
pub(super) fn failure(
    local_rank: usize,
    rank: usize,
    code: i32,
    was_stopped: bool,
) -> ProcessFailure {
    ProcessFailure::of(&WorkerOutcome {
        local_rank,
        was_stopped,
        ..WorkerOutcome::for_test(rank, kind(code), 0, "")
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
        let left = node.round.policy.left(self.now);
        let is_death = node.doing == Doing::Running && !matches!(code, 0 | FINAL);
        let runs = |other: &usize| node.exits[*other].is_none() || node.pausing.contains(other);
        let others = (0..node.exits.len()).filter(runs).count();
        let exit = WorkerExit {
            local_rank: worker,
            rank: index * node.exits.len() + worker,
            pid: 1,
            exit: kind(code),
            ended_at: SystemTime::UNIX_EPOCH,
        };
        self.step(index, Input::WorkerExited(exit));
        if self.keep.is_some() && is_death {
            self.check_kept(index, worker, left, others);
        }
    }

    /// The other workers keep running, and the worker is replaced, if their group works and a restart is left; or they
    /// keep running without it. Otherwise all are stopped.
    fn check_kept(&self, index: usize, worker: usize, left: usize, others: usize) {
        let node = &self.nodes[index];
        let replacement = self.keep.map(|(replacement, _)| replacement);
        let is_replaced = replacement != Some(Replacement::None) && left > 0;
        if self.meeting.group == FINISHED && !self.is_store_down {
            let doing = match others {
                0 => Doing::Stopping,
                _ => Doing::Running,
            };
            assert_eq!(node.doing, doing, "node {index} runs a finished job again");
            assert!(node.exits[worker].is_some());
            return;
        }
        let has_group = self.meeting.group == 1 && !self.is_store_down;
        if has_group && (is_replaced || others > 0) {
            assert_eq!(node.doing, Doing::Running, "node {index} stops workers");
            let is_back = node.exits[worker].is_none() || node.pausing.contains(&worker);
            assert_eq!(is_back, is_replaced, "worker {worker} of node {index}");
        } else {
            assert_eq!(node.doing, Doing::Stopping, "node {index} goes on");
        }
    }

    /// The service is told of a death, and says how the group is.
    pub(super) fn death(&mut self, index: usize, exit: WorkerExit) -> Input {
        let group = self.group_news();
        let node = &mut self.nodes[index];
        assert!(node.told.insert(exit.local_rank), "a death is told once");
        let ExitKind::Code(code) = exit.exit else {
            unreachable!("simulated workers end with codes");
        };
        Input::Death(Box::new(Death {
            exit,
            failures: Failures::new(vec![failure(exit.local_rank, exit.rank, code, false)]),
            progress: Default::default(),
            group,
        }))
    }

    /// The state of the group, as the service reports it.
    pub(super) fn group_news(&self) -> GroupNews {
        match self.meeting.group {
            _ if self.is_store_down => GroupNews::OutOfReach("it does not answer".to_owned()),
            0 => GroupNews::IsEmpty,
            1 => GroupNews::GoesOn,
            FINISHED => GroupNews::Finished,
            _ => GroupNews::Ended("too few members".to_owned()),
        }
    }

    /// A worker has left the message of a library at exit.
    pub(super) fn crash(&self, exit: WorkerExit) -> Input {
        let stderr = "terminate called without an active exception\n";
        let outcome = WorkerOutcome::for_test(exit.rank, exit.exit, 0, stderr);
        Input::Crash(Box::new(Crash {
            exit,
            record: ExitRecord::of(&outcome, "host"),
            finished: 0,
        }))
    }

    /// Replaces a dead worker with a new one.
    pub(super) fn replace(&mut self, index: usize, local_rank: usize) -> Input {
        let node = &mut self.nodes[index];
        assert_eq!(node.doing, Doing::Running);
        assert!(
            node.told.remove(&local_rank),
            "only dead workers are replaced, after the service was told"
        );
        let code = node.exits[local_rank].take();
        assert!(!matches!(code, None | Some(0 | FINAL)), "{code:?}");
        self.number_again(index, local_rank);
        Input::Replaced { local_rank, pid: 2 }
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
