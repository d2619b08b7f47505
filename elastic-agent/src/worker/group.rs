//! The workers of one round, from their start until all their processes have ended.

use std::os::fd::AsFd;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use std::{env, io};

use c10d_socket::Deadline;
use crossbeam_channel::{Receiver, at, never, select, unbounded};
use rustix::process::{Pid, Signal, getpid};

use super::error::StartError;
use super::exit_code::ExitKind;
use super::guardian::Guardian;
use super::kill_switch::KillSwitch;
use super::outcome::{WorkerExit, WorkerOutcome};
use super::plan::{GroupPlan, WorkerPlan};
use super::process_group;
use super::spawner::Spawner;
use super::streams::{GroupSources, OwnStreams, StderrEnd, WorkerStreams};
use super::waiter::{Assigned, Ended, OnExit, Waiter};
use crate::failure::{Failures, ProcessFailure};
use crate::output::{Console, Echo};
use crate::preload::{ForkedWorkers, WorkerStart};
use crate::signal_name::name_of;
use crate::{sys, worker_list};

/// The shortest wait for killed processes: one with much memory takes seconds to end.
const KILL_WAIT_MIN: Duration = Duration::from_secs(10);

/// The pauses between checks for orphaned processes, whose end nothing announces: short at first, as most
/// end at once; then longer, as reading /proc takes some milliseconds.
const CHECK_PAUSE_MIN: Duration = Duration::from_millis(2);
const CHECK_PAUSE_MAX: Duration = Duration::from_millis(100);

/// When to log which workers a stop waits for: soon at first, as a person may be watching.
const NOTICE_FIRST: Duration = Duration::from_secs(2);
const NOTICE_INTERVAL: Duration = Duration::from_secs(5);

/// The worker processes of this node in one round.
///
/// Each worker leads a session and a process group of its own. On Linux no worker outlives the agent, even
/// if the agent is killed: the system then kills the workers, and a helper process their children. Only a
/// process that left its worker's process group (a daemon) is out of reach, here as in
/// [`stop`](Self::stop).
///
/// A group has the threads `worker-spawn`, one `worker-wait` per worker, and `worker-stdout` and
/// `worker-stderr` where output is shown. [`stop`](Self::stop) and `Drop` join them. Dropping a group kills
/// its processes and waits for their end: milliseconds, or 10 s for a process that the system cannot end.
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
/// let worker = WorkerPlan::new(0, 0, command).with_environment([("CODE".into(), "3".into())]);
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
    workers: Vec<Worker>,
    ended: Receiver<Ended>,
    /// Positions of the workers that have exited, in the order in which the group noticed.
    order: Vec<usize>,
    /// The last signal sent to the workers; `None` until the group is stopped.
    stopped_by: Option<Signal>,
    echoes: Vec<Echo>,
    first_output: Arc<OnceLock<Instant>>,
    guardian: Option<Guardian>,
    spawner: Option<Spawner>,
    are_forked: bool,
    /// The switch that kills these workers.
    covered_by: KillSwitch,
}

#[derive(Debug)]
struct Worker {
    plan: WorkerPlan,
    pid: Pid,
    stderr_end: StderrEnd,
    waiter: Option<Waiter>,
    /// How and when the worker exited; `None` while it runs.
    end: Option<(ExitKind, SystemTime)>,
    was_stopped: bool,
}

/// How the workers of a group ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StopReport {
    /// The workers that exited, in the order in which the group noticed.
    pub outcomes: Vec<WorkerOutcome>,
    /// The local ranks of workers that were killed because they did not exit in time.
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
    /// The process id.
    pub pid: u32,
}

impl StopReport {
    /// The workers that failed; `None` if all that exited succeeded. Reads their error files.
    #[must_use]
    pub fn failures(&self) -> Option<Failures> {
        let failed = self.outcomes.iter().filter(|end| !end.exit.is_success());
        Failures::new(failed.map(ProcessFailure::of).collect())
    }
}

/// Why a wait for the end of all processes returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waited {
    AllEnded,
    TimedOut,
    Escalated,
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

    /// As [`start`](Self::start), with workers that are `forked` already, one for each of the plan. If they cannot be
    /// started, programs are, unless `is_forked_only`. The switch kills them from their start on.
    pub(crate) fn start_from(
        forked: Option<ForkedWorkers>,
        is_forked_only: bool,
        kill_switch: KillSwitch,
        plan: GroupPlan,
        console: Console,
        on_exit: impl Fn(WorkerExit) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let system = |source| StartError::System { source };
        if sys::unignore_child_signal().map_err(system)? {
            log::warn!(
                "SIGCHLD was ignored, which hides exit codes of workers: restored its default"
            );
        }
        let mut sources = GroupSources::open(&plan)?;
        let mut all_streams = Vec::new();
        let mut stderr_ends = Vec::new();
        for worker in &plan.workers {
            let (streams, end) = sources.connect(worker, console.stderr_is_terminal)?;
            all_streams.push(streams);
            stderr_ends.push(end);
        }
        let first_output = Arc::clone(&sources.stdout.first_read);
        let echoes = show(sources, console)?;
        let spawner = Spawner::start().map_err(system)?;
        let (ended, ended_seen) = unbounded();
        let mut waiters = Vec::new();
        for index in 0..plan.workers.len() {
            match Waiter::start(index, ended.clone()) {
                Ok(waiter) => waiters.push(waiter),
                Err(source) => {
                    waiters.into_iter().for_each(Waiter::join);
                    return Err(system(source));
                }
            }
        }
        drop(ended);
        let guardian = match Guardian::start() {
            Ok(guardian) => Some(guardian),
            Err(error) => {
                log::warn!(
                    "cannot start the guardian process: if this process is killed, child processes of its \
                     workers keep running: {error}"
                );
                None
            }
        };

        let mut pids = match forked {
            None => Vec::new(),
            Some(forked) => {
                let started = start_forked(forked, &plan.workers, &all_streams, guardian.as_ref());
                match started {
                    Ok(pids) => pids,
                    Err(source) if is_forked_only => {
                        waiters.into_iter().for_each(Waiter::join);
                        return Err(StartError::Forked { source });
                    }
                    Err(source) => {
                        log::warn!(
                            "preload: cannot start the forked workers: {source}; workers start without it"
                        );
                        Vec::new()
                    }
                }
            }
        }
        .into_iter();
        let are_forked = pids.len() > 0;
        let mut workers = Vec::new();
        let mut failure = None;
        for (((plan, streams), stderr_end), waiter) in plan
            .workers
            .into_iter()
            .zip(all_streams)
            .zip(stderr_ends)
            .zip(waiters)
        {
            if failure.is_some() {
                waiter.join();
                continue;
            }
            let started = pids.next().map_or_else(
                || {
                    let mut command = prepare(&plan);
                    streams.apply_to(&mut command);
                    let names = guardian.as_ref().map(Guardian::names);
                    sys::lead_own_session(&mut command, getpid(), names);
                    spawner.spawn(command).map(|child| Pid::from_child(&child))
                },
                Ok,
            );
            match started {
                Ok(pid) => {
                    kill_switch.cover(pid);
                    workers.push(Worker {
                        pid,
                        plan,
                        stderr_end,
                        waiter: Some(waiter),
                        end: None,
                        was_stopped: false,
                    });
                }
                Err(source) => {
                    failure = Some(StartError::Program {
                        program: plan.command.program().to_owned(),
                        local_rank: plan.local_rank,
                        source,
                    });
                    waiter.join();
                }
            }
        }
        let on_exit: OnExit = match failure {
            Some(_) => Arc::new(|_| ()),
            None => Arc::new(on_exit),
        };
        for worker in &workers {
            worker.assign_waiter(&on_exit);
        }
        let group = Self {
            workers,
            ended: ended_seen,
            order: Vec::new(),
            stopped_by: None,
            echoes,
            first_output,
            guardian,
            spawner: Some(spawner),
            are_forked,
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
        let pids = self.workers.iter().map(Worker::pid);
        pids.collect()
    }

    /// Whether the workers were forked from a template.
    pub(crate) const fn are_forked(&self) -> bool {
        self.are_forked
    }

    /// The workers that are running, as text: `local rank 0 (pid 17), 1 (pid 18)`.
    pub(crate) fn running_text(&mut self) -> String {
        self.note_ended();
        let running = self.workers.iter().filter(|worker| worker.end.is_none());
        worker_list::local_ranks_with_pids(
            running.map(|worker| (worker.plan.local_rank, worker.pid())),
        )
    }

    /// How many workers are running.
    #[must_use]
    pub fn running(&mut self) -> usize {
        self.note_ended();
        self.workers.len() - self.order.len()
    }

    /// Sends a signal to the process group of every running worker. Does not block.
    pub fn signal(&mut self, signal: Signal) {
        self.note_ended();
        for worker in &self.workers {
            if worker.end.is_none() {
                process_group::signal(worker.pid, signal);
            }
        }
    }

    /// Ends the group: running workers, processes that exited workers left behind, and threads. Call it
    /// also when all workers have exited.
    ///
    /// Running workers get `signal`, processes left by others get SIGTERM. Processes that still run after
    /// `grace`, or when `kill_switch` is triggered, are killed. `None` waits indefinitely, zero kills at
    /// once. All output of workers has been shown when this returns.
    ///
    /// Blocks until all processes have ended: at most for `grace`, and then, for a process that the system
    /// cannot end, for `grace` again or 10 s, whichever is longer (10 s if `kill_switch` is triggered);
    /// such a process is logged and abandoned. A console that accepts no output delays the return by up
    /// to 10 s, or 1 s if `kill_switch` is triggered.
    #[must_use = "it reports how workers ended"]
    pub fn stop(
        mut self,
        signal: Signal,
        grace: Option<Duration>,
        kill_switch: &KillSwitch,
    ) -> StopReport {
        self.move_to(kill_switch);
        let killed = self.end(Some((signal, grace, kill_switch)));
        let mut report = StopReport {
            killed,
            first_output: self.first_output.get().copied(),
            ..StopReport::default()
        };
        let ended = self.order.iter().map(|&index| &self.workers[index]);
        report.outcomes.extend(ended.filter_map(Worker::outcome));
        let left = self.workers.iter().filter(|worker| worker.end.is_none());
        report.abandoned.extend(left.map(Worker::abandoned));
        report
    }

    /// From now on this switch kills the workers.
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

    /// Ends everything, at once without a `grace`; returns the local ranks of workers that had to be
    /// killed. The second call does nothing.
    fn end(&mut self, grace: Option<(Signal, Option<Duration>, &KillSwitch)>) -> Vec<usize> {
        let Some(spawner) = self.spawner.take() else {
            return Vec::new();
        };
        self.note_ended();
        let mut have_ended = false;
        if let Some((signal, timeout, kill_switch)) = grace {
            self.send_stop(signal);
            let deadline = Deadline::after(Instant::now(), timeout);
            have_ended = self.wait_for_end(deadline, Some(kill_switch)) == Waited::AllEnded;
        }
        let mut killed = Vec::new();
        if !have_ended {
            killed = self.kill();
        }
        // All processes have ended or are killed. The guardian must end before the system reuses a group
        // id; that of a worker whose program could not be executed may be in use already.
        self.guardian = None;
        if !have_ended {
            let graceful = grace.filter(|(_, _, kill_switch)| !kill_switch.is_triggered());
            let timeout = graceful.and_then(|(_, timeout, _)| timeout);
            let timeout = timeout.map_or(KILL_WAIT_MIN, |timeout| timeout.max(KILL_WAIT_MIN));
            let deadline = Deadline::after(Instant::now(), timeout);
            if self.wait_for_end(deadline, None) != Waited::AllEnded {
                self.log_unkillable();
            }
        }
        for worker in &self.workers {
            self.covered_by.release(worker.pid);
        }
        for group in self.groups() {
            process_group::reap(group);
        }
        for worker in &mut self.workers {
            // The waiter of a process that cannot be ended would block.
            if worker.end.is_some()
                && let Some(waiter) = worker.waiter.take()
            {
                waiter.join();
            }
        }
        drop(spawner);
        self.echoes.iter_mut().for_each(Echo::close);
        for echo in self.echoes.drain(..) {
            echo.finish(|| grace.is_none_or(|(_, _, kill_switch)| kill_switch.is_triggered()));
        }
        let workers = self.workers.iter();
        workers
            .map(|worker| (worker.plan.local_rank, worker.was_killed(&self.covered_by)))
            .filter(|(rank, was_killed)| *was_killed || killed.contains(rank))
            .map(|(rank, _)| rank)
            .collect()
    }

    /// Sends the signal that begins a [`stop`](Self::stop), which then does not. The second call does nothing.
    pub(crate) fn send_stop(&mut self, signal: Signal) {
        if self.stopped_by.is_some() {
            return;
        }
        self.note_ended();
        self.stopped_by = Some(signal);
        for worker in &self.workers {
            if worker.end.is_none() {
                process_group::signal(worker.pid, signal);
            } else if worker.has_group() {
                process_group::signal(worker.pid, Signal::TERM);
            }
        }
        for worker in self.workers.iter().filter(|worker| worker.end.is_none()) {
            log::info!("sent {} to {worker}", name_of(signal.as_raw()));
        }
    }

    /// Kills all processes of all groups; returns the local ranks of workers that were running.
    fn kill(&mut self) -> Vec<usize> {
        self.note_ended();
        self.stopped_by = Some(Signal::KILL);
        for group in self.groups() {
            process_group::signal(group, Signal::KILL);
        }
        let running = self.workers.iter().filter(|worker| worker.end.is_none());
        let running: Vec<_> = running
            .inspect(|worker| log::warn!("sent SIGKILL to {worker}"))
            .map(|worker| worker.plan.local_rank)
            .collect();
        running
    }

    /// Waits for the end of all workers, and then of all other processes in their groups.
    fn wait_for_end(&mut self, deadline: Deadline, kill_switch: Option<&KillSwitch>) -> Waited {
        let escalated = kill_switch.map_or_else(never, |switch| switch.triggered().clone());
        let mut pause = CHECK_PAUSE_MIN;
        let mut notice = Deadline::after(Instant::now(), NOTICE_FIRST);
        loop {
            let mut wake = deadline.min(notice);
            let mut ended = never();
            if self.order.len() < self.workers.len() {
                ended = self.ended.clone();
            } else {
                let groups: Vec<Pid> = self.groups().collect();
                match process_group::live_members(&groups) {
                    Some(members) if !members.is_empty() => {}
                    Some(_) => return Waited::AllEnded,
                    None => {
                        // Without a list of processes their end cannot be awaited.
                        for group in groups {
                            process_group::signal(group, Signal::KILL);
                        }
                        return Waited::AllEnded;
                    }
                }
                wake = Deadline::after(Instant::now(), pause).min(wake);
                pause = (pause * 2).min(CHECK_PAUSE_MAX);
            }
            let alarm = wake.instant().map_or_else(never, at);
            select! {
                recv(ended) -> end => match end {
                    Ok(end) => self.note(&end),
                    Err(_) => self.note_lost(),
                },
                recv(escalated) -> _ => return Waited::Escalated,
                recv(alarm) -> _ => {}
            }
            let now = Instant::now();
            if deadline.has_passed(now) {
                return Waited::TimedOut;
            }
            if notice.has_passed(now) {
                notice = Deadline::after(now, NOTICE_INTERVAL);
                if kill_switch.is_some() {
                    self.log_still_waiting(deadline.remaining(now));
                }
            }
        }
    }

    fn log_still_waiting(&self, left: Option<Duration>) {
        let running = self.workers.iter().filter(|worker| worker.end.is_none());
        let names = running.map(|worker| (worker.plan.local_rank, worker.pid()));
        let names = worker_list::local_ranks_with_pids(names);
        let who = if names.is_empty() {
            "child processes of exited workers".to_owned()
        } else {
            names
        };
        let left = left.map_or_else(String::new, |left| {
            format!("; SIGKILL in {:.0} s", left.as_secs_f64())
        });
        let after = self.stopped_by.map_or_else(String::new, |signal| {
            format!(" to exit after {}", name_of(signal.as_raw()))
        });
        log::warn!("still waiting for {who}{after}{left}");
    }

    fn note_ended(&mut self) {
        while let Ok(end) = self.ended.try_recv() {
            self.note(&end);
        }
    }

    fn note(&mut self, end: &Ended) {
        let worker = &mut self.workers[end.index];
        worker.end = Some((end.exit, end.at));
        worker.was_stopped = self.stopped_by.is_some();
        self.order.push(end.index);
        // Its children may have ignored a signal that was meant for the worker.
        let is_told = matches!(self.stopped_by, None | Some(Signal::TERM | Signal::KILL));
        if !worker.has_group() {
            self.covered_by.release(worker.pid);
        } else if !is_told {
            process_group::signal(worker.pid, Signal::TERM);
        }
        log::info!("{worker} exited: {}", end.exit);
    }

    /// The waiting threads have all ended by a panic: the remaining exits are unknown.
    fn note_lost(&mut self) {
        for index in 0..self.workers.len() {
            if self.workers[index].end.is_none() {
                let at = SystemTime::now();
                let exit = ExitKind::Unknown;
                self.note(&Ended { index, exit, at });
            }
        }
    }

    /// The process groups that certainly still belong to this group's workers.
    fn groups(&self) -> impl Iterator<Item = Pid> {
        let own = self.workers.iter().filter(|worker| worker.has_group());
        own.map(|worker| worker.pid)
    }

    fn log_unkillable(&self) {
        let running = self.workers.iter().filter(|worker| worker.end.is_none());
        let workers: Vec<u32> = running.map(Worker::pid).collect();
        let groups: Vec<Pid> = self.groups().collect();
        let members = process_group::live_members(&groups).unwrap_or_default();
        log::error!(
            "processes still run after SIGKILL: pid {members:?}, of these workers: {workers:?}; the kernel \
             blocks them, probably in a device driver: this machine may need a reboot"
        );
    }
}

/// Kills all processes that still run.
impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.end(None);
    }
}

impl Worker {
    fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    fn assign_waiter(&self, on_exit: &OnExit) {
        if let Some(waiter) = &self.waiter {
            waiter.assign(Assigned {
                pid: self.pid,
                local_rank: self.plan.local_rank,
                rank: self.plan.rank,
                on_exit: Arc::clone(on_exit),
            });
        }
    }

    /// Whether its process id is still the id of its group. Not so if other code has reaped the worker.
    fn has_group(&self) -> bool {
        !matches!(self.end, Some((ExitKind::Unknown, _)))
    }

    /// Whether the switch has killed it.
    fn was_killed(&self, switch: &KillSwitch) -> bool {
        let number = Signal::KILL.as_raw();
        let is_killed =
            |exit: &ExitKind| matches!(exit, ExitKind::Signal { number: it, .. } if *it == number);
        self.was_stopped
            && switch.is_triggered()
            && self.end.as_ref().is_some_and(|(exit, _)| is_killed(exit))
    }

    fn outcome(&self) -> Option<WorkerOutcome> {
        let (exit, ended_at) = self.end?;
        Some(WorkerOutcome {
            local_rank: self.plan.local_rank,
            rank: self.plan.rank,
            pid: self.pid(),
            exit,
            ended_at,
            was_stopped: self.was_stopped,
            error_file: self.plan.logs.error_file.clone(),
            stderr_tail: self.stderr_end.bytes(),
        })
    }

    fn abandoned(&self) -> AbandonedWorker {
        AbandonedWorker {
            local_rank: self.plan.local_rank,
            rank: self.plan.rank,
            pid: self.pid(),
        }
    }
}

impl std::fmt::Display for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (local_rank, pid) = (self.plan.local_rank, self.pid());
        write!(f, "worker with local rank {local_rank} (pid {pid})")
    }
}

/// Starts forked workers; returns their process ids in the order of the plans.
fn start_forked(
    forked: ForkedWorkers,
    workers: &[WorkerPlan],
    streams: &[WorkerStreams],
    guardian: Option<&Guardian>,
) -> io::Result<Vec<Pid>> {
    let own = OwnStreams::copied()?;
    let directory = env::current_dir()?;
    let names = guardian.map(Guardian::names);
    let unused = io::pipe()?.1;
    let starts: Vec<WorkerStart<'_>> = workers
        .iter()
        .zip(streams)
        .map(|(worker, streams)| WorkerStart {
            command: &worker.command,
            environment: &worker.environment,
            directory: &directory,
            streams: streams.all(&own),
            names: names.as_deref().unwrap_or(&unused).as_fd(),
        })
        .collect();
    forked.start(&starts)
}

fn prepare(worker: &WorkerPlan) -> Command {
    let mut command = Command::new(worker.command.program());
    command
        .args(worker.command.arguments())
        .env_clear()
        .envs(worker.environment.iter().map(|(name, value)| (name, value)));
    command
}

fn show(sources: GroupSources, console: Console) -> Result<Vec<Echo>, StartError> {
    let streams = [
        ("worker-stdout", console.stdout, sources.stdout),
        ("worker-stderr", console.stderr, sources.stderr),
    ];
    let used = streams
        .into_iter()
        .filter(|(_, _, sources)| !sources.is_empty());
    let started = used.map(|(name, writer, sources)| Echo::start(name, writer, sources));
    let started: Result<Vec<_>, _> = started.collect();
    started.map_err(|source| StartError::System { source })
}
