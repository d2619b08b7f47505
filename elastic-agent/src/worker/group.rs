//! The workers of one round, from their start until all their processes have ended.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{at, never, select};
use rustix::process::{Pid, Signal};

use super::lifecycle::{Effect, Exit, Input, Leftover, Lifecycle};
use super::outcome::{ExitKind, WorkerExit, WorkerOutcome};
use super::plan::{GroupPlan, StartError};
use super::process_group::{self, KillSwitch};
use super::processes::{Ended, OnExit, Processes, Worker};
use crate::failure::{Failures, ProcessFailure};
use crate::output::Console;
use crate::preload::ForkedWorkers;
use crate::sys;
use crate::threads::Cancelled;
use crate::wording::epoch_ms;

/// How long after its exit to wait for the last bytes of a worker: its pipe is read within a moment.
const STDERR_PATIENCE: Duration = Duration::from_millis(50);

/// The worker processes of this node in one round.
///
/// Each worker leads its own session and process group. On Linux no worker outlives the agent, even if the agent is
/// killed: the system then kills the workers, and a helper process their children. Only a process that left its
/// worker's process group (a daemon) is out of reach, including for [`stop`](Self::stop).
///
/// A group has the threads `worker-spawn`, one `worker-wait` per worker, `worker-stdout` and `worker-stderr` where
/// output is shown, and `worker-logs` where output is also written to files. [`stop`](Self::stop) and `Drop` join them.
/// Dropping a group kills its processes and waits for their end: milliseconds, or 10 s for a process that the system
/// cannot end.
///
/// ```
/// use std::time::Duration;
///
/// use crossbeam_channel::unbounded;
/// use elastic_agent::{
///     CommandLine, Console, ExitKind, GroupPlan, KillSwitch, Signal, WorkerGroup, WorkerPlan,
/// };
///
/// let command = CommandLine::new("/bin/sh", ["-c", "exit $CODE"]);
/// let mut worker = WorkerPlan::new(0, 0, command);
/// worker.environment = vec![("CODE".into(), "3".into())];
/// let (exits, received) = unbounded();
/// let plan = GroupPlan::new(vec![worker]);
/// let group = WorkerGroup::start(plan, Console::inherited(), move |exit| {
///     let _ = exits.send(exit);
/// })?;
/// assert_eq!(received.recv()?.exit, ExitKind::Code(3));
/// let grace = Some(Duration::from_secs(30));
/// let report = group.stop(Signal::TERM, grace, &KillSwitch::new());
/// assert_eq!(report.outcomes.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct WorkerGroup {
    processes: Processes,
    lifecycle: Lifecycle,
    /// The switch that kills these workers.
    covered_by: KillSwitch,
}

impl WorkerGroup {
    /// Starts all workers, or none. Blocks while the system loads their programs.
    ///
    /// `on_exit` is called once for each worker, as soon as it has exited, which may be before this
    /// function returns. The group's threads call it, so it must neither block nor wait for the group's
    /// end. It is not called if starting fails.
    ///
    /// # Errors
    /// [`StartError`]. Workers that were already running are killed.
    pub fn start(
        plan: GroupPlan,
        console: Console,
        on_exit: impl Fn(WorkerExit) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        Self::start_from(None, false, KillSwitch::new(), plan, console, on_exit)
    }

    /// Starts workers like [`start`](Self::start), from `forked` processes, one for each worker of the plan. If these
    /// cannot be started, programs are started instead, unless `is_forked_only`. The switch kills the workers from
    /// their start on.
    pub(crate) fn start_from(
        forked: Option<ForkedWorkers>,
        is_forked_only: bool,
        kill_switch: KillSwitch,
        plan: GroupPlan,
        console: Console,
        on_exit: impl Fn(WorkerExit) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        if sys::unignore_child_signal().map_err(|source| StartError::System { source })? {
            log::warn!(
                "restored the default of SIGCHLD, because ignoring it hides the exit codes of workers"
            );
        }
        let target = plan.signal_target;
        let (processes, failure) =
            Processes::start(forked, is_forked_only, &kill_switch, plan, console)?;
        let on_exit: OnExit = match failure {
            Some(_) => Arc::new(|_| ()),
            None => Arc::new(on_exit),
        };
        processes.report_exits(&on_exit);
        let workers = processes.workers.iter();
        let lifecycle = Lifecycle::new(workers.map(|it| (it.plan.local_rank, it.pid())), target);
        let group = Self {
            processes,
            lifecycle,
            covered_by: kill_switch,
        };
        match failure {
            None => Ok(group),
            Some(failure) => Err(failure),
        }
    }

    /// The process ids of the workers, in the order of the plan.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.processes.workers.iter().map(Worker::pid).collect()
    }

    /// Whether the workers were forked from a template.
    pub(crate) const fn are_forked(&self) -> bool {
        self.processes.are_forked
    }

    /// When the first output of a worker passed through this process.
    pub(crate) fn first_output(&self) -> Option<Instant> {
        self.processes.first_output.get().copied()
    }

    /// The end of the worker with this global rank; `None` while it runs. A process that it has left behind may write more.
    /// Waits for the thread that reads its standard error until 50 ms after its exit, if it has failed.
    pub(crate) fn outcome_of(&mut self, rank: usize) -> Option<WorkerOutcome> {
        self.note_ended();
        let mut workers = self.processes.workers.iter();
        let index = workers.position(|it| it.plan.rank == rank)?;
        let exit = self.lifecycle.exit(index)?;
        let worker = &self.processes.workers[index];
        if !exit.kind.is_success() {
            let age = exit.at.elapsed().unwrap_or_default();
            let patience = STDERR_PATIENCE.saturating_sub(age);
            worker.stderr_end.await_bytes(patience);
        }
        Some(outcome(worker, exit))
    }

    /// Returns the number of running workers.
    #[must_use]
    pub fn running(&mut self) -> usize {
        self.note_ended();
        self.lifecycle.running()
    }

    /// Sends a signal to every running worker, and to its process group if that is the
    /// [target](GroupPlan::signal_target). Does not block.
    pub fn signal(&mut self, signal: Signal) {
        self.note_ended();
        for index in 0..self.processes.workers.len() {
            if self.lifecycle.exit(index).is_none() {
                self.send(&self.lifecycle.signal(index, signal));
            }
        }
    }

    /// Stops the group: running workers, processes that exited workers left behind, and threads. Call it even if all
    /// workers have exited.
    ///
    /// Running workers get `signal`, with or without the other processes of their groups, depending on the
    /// [plan](GroupPlan::signal_target); processes that exited workers left behind get SIGTERM. Processes that
    /// still run after `grace`, or when `kill_switch` is triggered, are killed. `None` waits indefinitely, zero kills
    /// at once. All output of workers has been shown when this returns.
    ///
    /// Blocks until all processes have ended: at most for `grace`, and then, for a process that the system
    /// cannot end, for `grace` again or 10 s, whichever is longer (10 s if `kill_switch` is triggered);
    /// such a process is logged and abandoned. A console that accepts no output delays the return by up
    /// to 10 s, or 1 s if `kill_switch` is triggered.
    #[must_use = "it reports how workers ended"]
    pub fn stop(
        mut self,
        signal: Signal,
        grace: impl Into<Option<Duration>>,
        kill_switch: &KillSwitch,
    ) -> StopReport {
        let grace = grace.into();
        self.move_to(kill_switch);
        self.note_ended();
        self.step(Input::Stop { signal, grace });
        self.end(Some(kill_switch));
        let workers = &self.processes.workers;
        let exits = self.lifecycle.exits();
        let running = (0..workers.len()).filter(|&index| self.lifecycle.exit(index).is_none());
        let mut report = StopReport {
            outcomes: exits
                .map(|(index, exit)| outcome(&workers[index], exit))
                .collect(),
            killed: self.lifecycle.killed(kill_switch.is_triggered()),
            abandoned: running.map(|index| abandoned(&workers[index])).collect(),
            first_output: self.first_output(),
        };
        report.sort();
        report
    }

    /// Sends the signal that begins a [`stop`](Self::stop), which then does not. The second call does nothing.
    pub(crate) fn send_stop(&mut self, signal: Signal) {
        self.note_ended();
        self.step(Input::SendStop(signal));
    }

    /// Makes this switch kill the workers from now on.
    fn move_to(&mut self, kill_switch: &KillSwitch) {
        if self.covered_by.is_same(kill_switch) {
            return;
        }
        for group in self.groups() {
            self.covered_by.release(group);
            kill_switch.cover(group);
        }
        self.covered_by = kill_switch.clone();
    }

    /// Waits until all processes have ended or are abandoned, and ends what serves them. The second call does nothing.
    fn end(&mut self, kill_switch: Option<&KillSwitch>) {
        while !self.lifecycle.is_over() {
            let ended = match self.lifecycle.running() {
                0 => never(),
                _ => self.processes.ended.clone(),
            };
            let kills = kill_switch
                .filter(|_| self.lifecycle.has_grace())
                .map(|switch| Cancelled::of(switch.cancel()));
            let escalated = kills
                .as_ref()
                .map_or_else(never, |kills| kills.receiver.clone());
            let deadline = self.lifecycle.deadline().instant();
            let alarm = deadline.map_or_else(never, at);
            let input = select! {
                recv(ended) -> end => match end {
                    Ok(end) => exited(&end),
                    // The waiting threads have all ended by a panic.
                    Err(_) => Input::ExitsLost { at: SystemTime::now() },
                },
                recv(escalated) -> _ => Input::Escalated,
                recv(alarm) -> _ => Input::Tick,
            };
            // The switch itself kills, so the exit can arrive first.
            if is_by_sigkill(&input)
                && self.lifecycle.has_grace()
                && kill_switch.is_some_and(KillSwitch::is_triggered)
            {
                self.step(Input::Escalated);
            }
            self.step(input);
        }
        let Some(spawner) = self.processes.spawner.take() else {
            return;
        };
        for worker in &self.processes.workers {
            self.covered_by.release(worker.pid);
        }
        for group in self.groups() {
            process_group::reap(group);
        }
        for (index, worker) in self.processes.workers.iter_mut().enumerate() {
            // The waiter of a process that cannot be ended would block.
            if self.lifecycle.exit(index).is_some()
                && let Some(waiter) = worker.waiter.take()
            {
                waiter.join();
            }
        }
        drop(spawner);
        let is_killed = || kill_switch.is_none_or(KillSwitch::is_triggered);
        self.processes.output.finish(is_killed);
    }

    fn note_ended(&mut self) {
        while let Ok(end) = self.processes.ended.try_recv() {
            self.step(exited(&end));
        }
    }

    fn step(&mut self, input: Input) {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            for effect in self.lifecycle.step(Instant::now(), input) {
                match effect {
                    Effect::Signal(..) | Effect::SignalAlone(..) => self.send(&effect),
                    Effect::Release(worker) => {
                        self.covered_by.release(self.processes.workers[worker].pid);
                    }
                    Effect::EndGuardian => self.processes.guardian = None,
                    Effect::FindLeftover => next = Some(Input::Leftover(self.leftover())),
                    Effect::ReportUnkillable => self.log_unkillable(),
                    Effect::Log(level, text) => log::log!(level, "{text}"),
                }
            }
        }
    }

    /// Sends the signal of this effect.
    fn send(&self, effect: &Effect) {
        let pid = |worker: usize| self.processes.workers[worker].pid;
        match *effect {
            Effect::Signal(worker, signal) => process_group::signal(pid(worker), signal),
            Effect::SignalAlone(worker, signal) => {
                process_group::signal_leader(pid(worker), signal)
            }
            _ => {}
        }
    }

    fn leftover(&self) -> Leftover {
        let groups: Vec<Pid> = self.groups().collect();
        match process_group::live_members(&groups) {
            None => Leftover::Unknown,
            Some(members) if members.is_empty() => Leftover::Nothing,
            Some(_) => Leftover::Processes,
        }
    }

    /// The process groups that certainly still belong to this group's workers.
    fn groups(&self) -> impl Iterator<Item = Pid> {
        let workers = self.processes.workers.iter().enumerate();
        let own = workers.filter(|(index, _)| self.lifecycle.has_group(*index));
        own.map(|(_, worker)| worker.pid)
    }

    fn log_unkillable(&self) {
        let groups: Vec<Pid> = self.groups().collect();
        let members = process_group::live_members(&groups).unwrap_or_default();
        log::error!(
            "processes survive SIGKILL, blocked in the kernel (a driver? a reboot may help): pid {members:?}, {}",
            self.lifecycle.running_text(),
        );
    }
}

/// Kills all processes that still run.
impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.note_ended();
        self.step(Input::Kill);
        self.end(None);
    }
}

const fn is_by_sigkill(input: &Input) -> bool {
    let Input::Exited { exit, .. } = input else {
        return false;
    };
    matches!(exit, ExitKind::Signal { number, .. } if *number == Signal::KILL.as_raw())
}

const fn exited(end: &Ended) -> Input {
    Input::Exited {
        worker: end.index,
        exit: end.exit,
        at: end.at,
    }
}

fn outcome(worker: &Worker, exit: Exit) -> WorkerOutcome {
    WorkerOutcome {
        local_rank: worker.plan.local_rank,
        rank: worker.plan.rank,
        pid: worker.pid(),
        exit: exit.kind,
        ended_at: exit.at,
        was_stopped: exit.was_stopped,
        error_file: worker.plan.logs.error_file.clone(),
        stderr_tail: worker.stderr_end.bytes(),
    }
}

fn abandoned(worker: &Worker) -> AbandonedWorker {
    AbandonedWorker {
        local_rank: worker.plan.local_rank,
        rank: worker.plan.rank,
        pid: worker.pid(),
    }
}

/// The results of the workers of a stopped group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StopReport {
    /// The workers that exited: first those that were not stopped, then by time, and within a millisecond by rank.
    pub outcomes: Vec<WorkerOutcome>,
    /// The local ranks of the killed workers, which did not exit in time.
    pub killed: Vec<usize>,
    /// The workers that still run although they were killed.
    pub abandoned: Vec<AbandonedWorker>,
    /// When the first output passed through this process; `None` if none did, as when it goes to files only.
    pub first_output: Option<Instant>,
}

/// A worker that still runs although it was killed: the kernel blocks it, most often in a device driver.
/// The machine may need a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbandonedWorker {
    /// The worker's rank on this node.
    pub local_rank: usize,
    /// The worker's global rank.
    pub rank: usize,
    /// The id of the process.
    pub pid: u32,
}

impl StopReport {
    /// Sorts the outcomes like the records that nodes exchange, which have milliseconds. Therefore a report and its root
    /// cause agree on the first failure.
    pub(super) fn sort(&mut self) {
        self.outcomes.sort_by_key(|outcome| {
            let ended_ms = epoch_ms(outcome.ended_at);
            (outcome.was_stopped, ended_ms, outcome.rank)
        });
    }

    /// Returns the failed workers, or `None` if every exited worker succeeded. Reads the error files of the failed workers.
    #[must_use]
    pub fn failures(&self) -> Option<Failures> {
        let failed = self.outcomes.iter().filter(|end| !end.exit.is_success());
        Failures::new(failed.map(ProcessFailure::of).collect())
    }
}
