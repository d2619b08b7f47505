//! The workers of one round, from their start to the last of their processes' end.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use c10d_socket::Deadline;
use crossbeam_channel::{Receiver, at, never, select, unbounded};
use rustix::process::{Pid, Signal, getpid};

use super::error::StartError;
use super::exit::{ExitKind, WorkerExit, WorkerOutcome};
use super::guardian::Guardian;
use super::hurry::Hurry;
use super::plan::{GroupPlan, WorkerPlan};
use super::process_group;
use super::roll;
use super::spawner::Spawner;
use super::streams::{GroupSources, StderrEnd};
use super::waiter::{Assigned, Ended, OnExit, Waiter};
use crate::failure::{Failures, ProcessFailure, signal_name};
use crate::output::{Console, Echo};
use crate::sys;

/// How long a killed process is waited for, however short the grace was: a process with much memory
/// takes a while to end.
const KILL_WAIT_MIN: Duration = Duration::from_secs(10);

/// How often to look for processes that workers left behind, whose end nothing announces: soon at
/// first, as most end at once; later rarely, as a look costs some milliseconds.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(2);
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(100);

/// When to say who a stop is waiting for: soon at first, as a person may be watching.
const NOTICE_FIRST: Duration = Duration::from_secs(2);
const NOTICE_INTERVAL: Duration = Duration::from_secs(5);

/// The worker processes of this node in one round.
///
/// Each worker leads a session and a process group of its own. On Linux no worker outlives the agent,
/// however it ends: the system kills the workers, and a small helper process what they have started.
/// Only a process that has left its worker's process group (a daemon) is out of reach, here as in
/// [`stop`](Self::stop).
///
/// There are some threads: `worker-spawn`, one `worker-wait` for each worker, and `worker-stdout` and
/// `worker-stderr` where something is to be shown. [`stop`](Self::stop) and `Drop` end them. Dropping
/// a group kills what is left of it, and blocks until that is gone: a moment, or 10 s for a process
/// that the system cannot end.
///
/// ```
/// use std::time::Duration;
///
/// use crossbeam_channel::unbounded;
/// use elastic_agent::{
///     CommandLine, Console, Destination, ExitKind, GroupPlan, Hurry, Signal, WorkerGroup,
///     WorkerLogs, WorkerPlan,
/// };
///
/// let worker = WorkerPlan {
///     local_rank: 0,
///     rank: 0,
///     command: CommandLine::new("/bin/sh", ["-c", "exit $CODE"]),
///     environment: vec![("CODE".into(), "3".into())],
///     logs: WorkerLogs {
///         stdout: Destination::Console,
///         stderr: Destination::Console,
///         error_file: None,
///     },
///     line_prefix: String::new(),
/// };
/// let plan = GroupPlan { workers: vec![worker], ..GroupPlan::default() };
/// let (exits, seen) = unbounded();
/// let group = WorkerGroup::start(plan, Console::inherited(), move |exit| {
///     let _ = exits.send(exit);
/// })?;
/// assert_eq!(seen.recv()?.exit, ExitKind::Code(3));
/// let report = group.stop(Signal::TERM, Duration::from_secs(30), &Hurry::new());
/// assert_eq!(report.outcomes.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct WorkerGroup {
    workers: Vec<Worker>,
    ended: Receiver<Ended>,
    /// The workers that have ended, by position, in the order in which that was noticed.
    order: Vec<usize>,
    /// What a worker that ends now was told, if the group is being stopped.
    stopped_by: Option<Signal>,
    echoes: Vec<Echo>,
    guardian: Option<Guardian>,
    spawner: Option<Spawner>,
}

#[derive(Debug)]
struct Worker {
    plan: WorkerPlan,
    pid: Pid,
    stderr_end: StderrEnd,
    waiter: Option<Waiter>,
    /// How and when it ended; none while it runs.
    end: Option<(ExitKind, SystemTime)>,
    was_stopped: bool,
}

/// How the workers of a group have ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StopReport {
    /// Those that have ended, in the order in which that was noticed.
    pub outcomes: Vec<WorkerOutcome>,
    /// The local ranks of those that did not end in time and were killed.
    pub killed: Vec<usize>,
    /// Those that cannot be ended.
    pub abandoned: Vec<AbandonedWorker>,
}

/// A worker that runs on though it was killed: the system itself holds it, most often in the driver of
/// a device. The machine may need to be restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbandonedWorker {
    /// Its rank on this node.
    pub local_rank: usize,
    /// Its rank among all.
    pub rank: usize,
    /// Its process.
    pub pid: u32,
}

impl StopReport {
    /// The workers that have failed; none when all that have ended did well. Reads their error files.
    #[must_use]
    pub fn failures(&self) -> Option<Failures> {
        let failed = self.outcomes.iter().filter(|end| !end.exit.is_success());
        Failures::new(failed.map(ProcessFailure::of).collect())
    }
}

/// Why a wait for the end of all processes is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waited {
    AllGone,
    TimeUp,
    Hurried,
}

impl WorkerGroup {
    /// Starts all workers, or none. Blocks while the system loads their programs.
    ///
    /// `on_exit` is called for each worker once, as soon as it has ended, which may be before this
    /// returns. It is called from the group's threads and must not block, nor wait for the group's
    /// end. It is not called when starting fails.
    ///
    /// # Errors
    /// [`StartError`]. What had been started is killed.
    pub fn start(
        plan: GroupPlan,
        console: Console,
        on_exit: impl Fn(WorkerExit) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let system = |source| StartError::System { source };
        if sys::unignore_child_signal().map_err(system)? {
            log::warn!("SIGCHLD was ignored, which hides how workers end; it is not any more");
        }
        let mut sources = GroupSources::open(&plan)?;
        let mut commands = Vec::new();
        for worker in &plan.workers {
            let mut command = prepare(worker);
            let stderr_end = sources.connect(worker, console.stderr_is_terminal, &mut command)?;
            commands.push((command, stderr_end));
        }
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
                    "if this process is killed, processes that its workers start may stay: {error}"
                );
                None
            }
        };

        let mut workers = Vec::new();
        let mut failure = None;
        for ((plan, (mut command, stderr_end)), waiter) in
            plan.workers.into_iter().zip(commands).zip(waiters)
        {
            if failure.is_some() {
                waiter.join();
                continue;
            }
            let names = guardian.as_ref().map(Guardian::names);
            sys::lead_own_session(&mut command, getpid(), names);
            match spawner.spawn(command) {
                Ok(child) => workers.push(Worker {
                    pid: Pid::from_child(&child),
                    plan,
                    stderr_end,
                    waiter: Some(waiter),
                    end: None,
                    was_stopped: false,
                }),
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
            guardian,
            spawner: Some(spawner),
        };
        match failure {
            None => Ok(group),
            Some(failure) => Err(failure),
        }
    }

    /// The process of each worker, in the order of the plan.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        let pids = self.workers.iter().map(Worker::pid);
        pids.collect()
    }

    /// The workers that are running, as text: `local rank 0 (pid 17), 1 (pid 18)`.
    pub(crate) fn running_text(&mut self) -> String {
        self.note_ended();
        let running = self.workers.iter().filter(|worker| worker.end.is_none());
        roll::local_ranks_with_pids(running.map(|worker| (worker.plan.local_rank, worker.pid())))
    }

    /// How many workers are running.
    #[must_use]
    pub fn running(&mut self) -> usize {
        self.note_ended();
        self.workers.len() - self.order.len()
    }

    /// Sends a signal to the process group of every worker that is running. Does not block.
    pub fn signal(&mut self, signal: Signal) {
        self.note_ended();
        for worker in &self.workers {
            if worker.end.is_none() {
                process_group::signal(worker.pid, signal);
            }
        }
    }

    /// Ends the group: workers that are running, processes that workers have left behind, and threads.
    /// Also the way to end a group whose workers have all ended by themselves.
    ///
    /// Workers get `signal`, what others have left behind SIGTERM. Those that are still there after
    /// `grace`, or when somebody is in a [`Hurry`], are killed. All output of workers has been
    /// passed on when this returns.
    ///
    /// Blocks for `grace` at most, if processes can be killed: an end is noticed at once. A process
    /// that the system cannot end is given up after the same time again, or 10 s if that is longer
    /// or somebody is in a hurry; an error is logged. A console that takes nothing more is waited for
    /// for 10 s, or 1 s in a hurry.
    #[must_use = "it tells how workers ended"]
    pub fn stop(mut self, signal: Signal, grace: Duration, hurry: &Hurry) -> StopReport {
        let killed = self.end(Some((signal, grace, hurry)));
        let mut report = StopReport {
            killed,
            ..StopReport::default()
        };
        let ended = self.order.iter().map(|&index| &self.workers[index]);
        report.outcomes.extend(ended.filter_map(Worker::outcome));
        let left = self.workers.iter().filter(|worker| worker.end.is_none());
        report.abandoned.extend(left.map(Worker::abandoned));
        report
    }

    /// Ends everything, at once if there is no patience; gives the local ranks of workers that had to
    /// be killed. Does nothing the second time.
    fn end(&mut self, patience: Option<(Signal, Duration, &Hurry)>) -> Vec<usize> {
        let Some(spawner) = self.spawner.take() else {
            return Vec::new();
        };
        self.note_ended();
        let mut is_calm = false;
        if let Some((signal, grace, hurry)) = patience {
            self.tell_to_end(signal);
            let deadline = Deadline::after(Instant::now(), grace);
            is_calm = self.wait_until_gone(deadline, Some(hurry)) == Waited::AllGone;
        }
        let mut killed = Vec::new();
        if !is_calm {
            killed = self.kill();
        }
        // All processes are gone, or going. Before group ids may be given to others; that of a worker
        // whose program could not be executed may have been already.
        self.guardian = None;
        if !is_calm {
            let patient = patience.filter(|(_, _, hurry)| !hurry.is_hurried());
            let grace = patient.map_or(Duration::ZERO, |(_, grace, _)| grace);
            let deadline = Deadline::after(Instant::now(), grace.max(KILL_WAIT_MIN));
            if self.wait_until_gone(deadline, None) != Waited::AllGone {
                self.tell_of_immortals();
            }
        }
        for group in self.groups() {
            process_group::reap(group);
        }
        for worker in &mut self.workers {
            // Without an end there is a process that nobody can wait for.
            if worker.end.is_some()
                && let Some(waiter) = worker.waiter.take()
            {
                waiter.join();
            }
        }
        drop(spawner);
        for echo in self.echoes.drain(..) {
            echo.finish(|| patience.is_none_or(|(_, _, hurry)| hurry.is_hurried()));
        }
        killed
    }

    fn tell_to_end(&mut self, signal: Signal) {
        self.stopped_by = Some(signal);
        for worker in &self.workers {
            if worker.end.is_none() {
                log::info!("sending {} to {worker}", name_of(signal));
                process_group::signal(worker.pid, signal);
            } else if worker.has_group() {
                process_group::signal(worker.pid, Signal::TERM);
            }
        }
    }

    /// Kills all processes of all groups; gives the local ranks of workers that were running.
    fn kill(&mut self) -> Vec<usize> {
        self.note_ended();
        self.stopped_by = Some(Signal::KILL);
        for group in self.groups() {
            process_group::signal(group, Signal::KILL);
        }
        let running = self.workers.iter().filter(|worker| worker.end.is_none());
        let running: Vec<_> = running
            .inspect(|worker| log::warn!("killed {worker}"))
            .map(|worker| worker.plan.local_rank)
            .collect();
        running
    }

    /// Waits for the end of all workers, and then of all other processes in their groups.
    fn wait_until_gone(&mut self, deadline: Deadline, hurry: Option<&Hurry>) -> Waited {
        let hurried = hurry.map_or_else(never, |hurry| hurry.hurried().clone());
        let mut pause = LOOK_PAUSE_MIN;
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
                    Some(_) => return Waited::AllGone,
                    None => {
                        // Where nobody can look, nobody can wait for their end.
                        for group in groups {
                            process_group::signal(group, Signal::KILL);
                        }
                        return Waited::AllGone;
                    }
                }
                wake = Deadline::after(Instant::now(), pause).min(wake);
                pause = (pause * 2).min(LOOK_PAUSE_MAX);
            }
            let alarm = wake.instant().map_or_else(never, at);
            select! {
                recv(ended) -> end => match end {
                    Ok(end) => self.note(&end),
                    Err(_) => self.note_lost(),
                },
                recv(hurried) -> _ => return Waited::Hurried,
                recv(alarm) -> _ => {}
            }
            let now = Instant::now();
            if deadline.has_passed(now) {
                return Waited::TimeUp;
            }
            if notice.has_passed(now) {
                notice = Deadline::after(now, NOTICE_INTERVAL);
                if hurry.is_some() {
                    self.tell_who_is_waited_for(deadline.remaining(now));
                }
            }
        }
    }

    fn tell_who_is_waited_for(&self, left: Option<Duration>) {
        let running = self.workers.iter().filter(|worker| worker.end.is_none());
        let names = running.map(|worker| (worker.plan.local_rank, worker.pid()));
        let names = roll::local_ranks_with_pids(names);
        let who = if names.is_empty() {
            "processes that workers have left behind".to_owned()
        } else {
            names
        };
        let left = left.map_or_else(String::new, |left| {
            format!("; SIGKILL in {:.0} s", left.as_secs_f64())
        });
        let after = self.stopped_by.map_or_else(String::new, |signal| {
            format!(" to end after {}", name_of(signal))
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
        log::info!("{worker} has ended with {}", end.exit);
        // What it leaves behind may not have heeded a signal that was meant for the worker.
        let is_told = matches!(self.stopped_by, None | Some(Signal::TERM | Signal::KILL));
        if !is_told && worker.has_group() {
            process_group::signal(worker.pid, Signal::TERM);
        }
    }

    /// The threads that wait for workers are gone, which they should not be.
    fn note_lost(&mut self) {
        for index in 0..self.workers.len() {
            if self.workers[index].end.is_none() {
                let at = SystemTime::now();
                let exit = ExitKind::Unknown;
                self.note(&Ended { index, exit, at });
            }
        }
    }

    /// The process groups that are known to be this group's workers'.
    fn groups(&self) -> impl Iterator<Item = Pid> {
        let own = self.workers.iter().filter(|worker| worker.has_group());
        own.map(|worker| worker.pid)
    }

    fn tell_of_immortals(&self) {
        let running = self.workers.iter().filter(|worker| worker.end.is_none());
        let workers: Vec<u32> = running.map(Worker::pid).collect();
        let groups: Vec<Pid> = self.groups().collect();
        let members = process_group::live_members(&groups).unwrap_or_default();
        log::error!(
            "processes do not end though they were killed: workers {workers:?}, all {members:?}. \
             The system holds them, perhaps in the driver of a device; this machine may need a \
             restart"
        );
    }
}

/// Kills what is left.
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

    /// Whether its process id is still its own, as the id of its group. Not so when somebody else has
    /// reaped it.
    fn has_group(&self) -> bool {
        !matches!(self.end, Some((ExitKind::Unknown, _)))
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
        write!(f, "the worker with local rank {local_rank} (process {pid})")
    }
}

fn name_of(signal: Signal) -> &'static str {
    signal_name(signal.as_raw()).unwrap_or("a signal")
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
