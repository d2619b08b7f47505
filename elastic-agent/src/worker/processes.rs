//! The processes of a group: the thread that starts them, the threads that notice their exits, and the foreground of the
//! terminal.
//!
//! Linux kills a worker when the *thread* that started it exits, so one thread starts all workers of a group and lives as
//! long as they do. A waiting thread does not reap its process: until then no other process or group can get its id, so
//! signals to it reach no other process.

use std::env;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, getpgrp, getpid, waitid};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

use super::guardian::{Guardian, Remains};
use super::outcome::{ExitKind, WorkerExit};
use super::plan::{GroupPlan, StartError, WorkerInput, WorkerPlan};
use super::process_group::KillSwitch;
use super::streams::{GroupSources, OwnStreams, StderrEnd, WorkerStreams};
use crate::output::{Console, OutputThreads};
use crate::preload::{ForkedWorkers, WorkerStart};
use crate::sys;
use crate::threads::JoinedThread;

/// The processes of a group, and the threads that serve them.
#[derive(Debug)]
pub(super) struct Processes {
    pub(super) workers: Vec<Worker>,
    pub(super) ended: Receiver<Ended>,
    pub(super) output: OutputThreads,
    pub(super) first_output: Arc<OnceLock<Instant>>,
    pub(super) guardian: Option<Guardian>,
    pub(super) spawner: Option<Spawner>,
    pub(super) are_forked: bool,
    /// The terminal of the worker that has the input alone.
    foreground: Option<Foreground>,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) plan: WorkerPlan,
    pub(super) pid: Pid,
    pub(super) stderr_end: StderrEnd,
    pub(super) waiter: Option<Waiter>,
}

impl Processes {
    /// Starts the processes, which are `forked` already if there are some; the switch kills them from their start on.
    /// Also returns those that run if one could not be started, with the error.
    ///
    /// # Errors
    /// A thread or pipe for the processes could not be created, so no process was started.
    pub(super) fn start(
        forked: Option<ForkedWorkers>,
        is_forked_only: bool,
        kill_switch: &KillSwitch,
        plan: GroupPlan,
        console: Console,
    ) -> Result<(Self, Option<StartError>), StartError> {
        let system = |source| StartError::System { source };
        let mut sources = GroupSources::open(&plan)?;
        let mut all_streams = Vec::new();
        let mut stderr_ends = Vec::new();
        for worker in &plan.workers {
            let (streams, end) = sources.connect(worker, console.stderr_is_terminal)?;
            all_streams.push(streams);
            stderr_ends.push(end);
        }
        let first_output = Arc::clone(&sources.stdout.first_read);
        let output = OutputThreads::start(sources.logs, sources.stdout, sources.stderr, console)
            .map_err(system)?;
        let spawner = Spawner::start().map_err(system)?;
        let (waiters, ended) = start_waiters(plan.workers.len()).map_err(system)?;
        let guardian = start_guardian(&plan.remains);
        let pids = match forked {
            None => Ok(Vec::new()),
            Some(forked) => start_forked(forked, &plan.workers, &all_streams, guardian.as_ref()),
        };
        let pids = match pids {
            Ok(pids) => pids,
            Err(source) if is_forked_only => {
                waiters.into_iter().for_each(Waiter::join);
                return Err(StartError::Forked { source });
            }
            Err(source) => {
                log::warn!(
                    "preload: workers start without it, because they cannot be forked: {source}"
                );
                Vec::new()
            }
        };
        let has_terminal = plan.workers.iter().any(|it| it.input == WorkerInput::Alone);
        let mut processes = Self {
            workers: Vec::new(),
            ended,
            output,
            first_output,
            guardian,
            spawner: Some(spawner),
            are_forked: !pids.is_empty(),
            foreground: has_terminal.then(Foreground::here).flatten(),
        };
        let streams = all_streams.into_iter().zip(stderr_ends);
        let workers = plan.workers.into_iter().zip(streams).zip(waiters);
        let failure = processes.start_workers(workers, pids, kill_switch);
        Ok((processes, failure))
    }

    /// Starts the workers that are not forked. If a worker cannot be started, returns the error and does not start the
    /// workers after it.
    fn start_workers(
        &mut self,
        workers: impl Iterator<Item = ((WorkerPlan, (WorkerStreams, StderrEnd)), Waiter)>,
        forked: Vec<Pid>,
        kill_switch: &KillSwitch,
    ) -> Option<StartError> {
        let mut forked = forked.into_iter();
        let mut failure = None;
        for ((plan, (streams, stderr_end)), waiter) in workers {
            if failure.is_some() {
                waiter.join();
                continue;
            }
            let started = match forked.next() {
                Some(pid) => Ok(pid),
                None => self.spawn(&plan, streams),
            };
            match started {
                Ok(pid) => {
                    kill_switch.cover(pid);
                    self.workers.push(Worker {
                        plan,
                        pid,
                        stderr_end,
                        waiter: Some(waiter),
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
        failure
    }

    /// Calls `on_exit` for each worker from now on.
    pub(super) fn report_exits(&self, on_exit: &OnExit) {
        for worker in &self.workers {
            if let Some(waiter) = &worker.waiter {
                waiter.assign(Assigned {
                    pid: worker.pid,
                    local_rank: worker.plan.local_rank,
                    rank: worker.plan.rank,
                    on_exit: self.on_exit_of(worker, on_exit),
                });
            }
        }
    }

    /// A worker that has the terminal gives it back when it exits, before its exit is reported.
    fn on_exit_of(&self, worker: &Worker, on_exit: &OnExit) -> OnExit {
        let on_exit = Arc::clone(on_exit);
        match &self.foreground {
            Some(foreground) if worker.plan.input == WorkerInput::Alone => {
                let foreground = foreground.clone();
                Arc::new(move |exit| {
                    foreground.take_back();
                    on_exit(exit);
                })
            }
            _ => on_exit,
        }
    }

    fn spawn(&self, plan: &WorkerPlan, streams: WorkerStreams) -> io::Result<Pid> {
        let Some(spawner) = &self.spawner else {
            return Err(io::Error::other("the group has ended"));
        };
        let mut command = prepare(plan);
        streams.apply_to(&mut command);
        let names = self.guardian.as_ref().map(Guardian::names);
        let lead = match &self.foreground {
            Some(_) if plan.input == WorkerInput::Alone => sys::lead_foreground_group,
            _ => sys::lead_own_session,
        };
        lead(&mut command, getpid(), names);
        let child = spawner.spawn(command)?;
        Ok(Pid::from_child(&child))
    }
}

impl Worker {
    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }
}

/// Starts one thread for each worker before its process, so that each process has a thread even if the system then has
/// no thread left.
fn start_waiters(count: usize) -> io::Result<(Vec<Waiter>, Receiver<Ended>)> {
    let (ended, ended_seen) = unbounded();
    let mut waiters = Vec::new();
    for index in 0..count {
        match Waiter::start(index, ended.clone()) {
            Ok(waiter) => waiters.push(waiter),
            Err(source) => {
                waiters.into_iter().for_each(Waiter::join);
                return Err(source);
            }
        }
    }
    Ok((waiters, ended_seen))
}

fn start_guardian(remains: &Remains) -> Option<Guardian> {
    let started = Guardian::start(remains).inspect_err(|error| {
        log::warn!(
            "cannot start the guardian process ({error}), so children of workers survive a killed launcher"
        );
    });
    started.ok()
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

/// A terminal whose foreground this process can give to a worker, and take back from it.
#[derive(Debug, Clone)]
pub(super) struct Foreground {
    own_group: Pid,
    settings: Termios,
}

impl Foreground {
    /// Returns the terminal of standard input, if this process has its foreground. Returns `None` if a shell runs this
    /// process in the background, or if the terminal does not control the session of this process.
    pub(super) fn here() -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let own_group = getpgrp();
        let has_foreground = tcgetpgrp(&stdin).ok()? == own_group;
        let settings = tcgetattr(&stdin).ok()?;
        has_foreground.then_some(Self {
            own_group,
            settings,
        })
    }

    /// Takes the foreground back when the worker has exited, and restores the settings of the terminal, because a
    /// debugger may have changed them.
    pub(super) fn take_back(&self) {
        let taken = sys::give_foreground(self.own_group);
        let restored = tcsetattr(io::stdin(), OptionalActions::Now, &self.settings);
        if let Err(error) = taken.and(restored.map_err(Into::into)) {
            log::debug!("cannot take back the foreground of the terminal: {error}");
        }
    }
}

/// The thread `worker-spawn`. Dropping ends it, and on Linux the workers that it started.
#[derive(Debug)]
pub(super) struct Spawner {
    /// Dropping it stops the thread, so it is the first field.
    commands: Sender<Command>,
    children: Receiver<io::Result<Child>>,
    _thread: JoinedThread,
}

impl Spawner {
    /// Starts the thread.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
    pub(super) fn start() -> io::Result<Self> {
        let (commands, next) = bounded::<Command>(0);
        let (answers, children) = bounded(1);
        let thread = JoinedThread::start("worker-spawn", move || {
            for mut command in next {
                // Dropping the command closes this process's copies of the worker's streams.
                let child = command.spawn();
                drop(command);
                if answers.send(child).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            commands,
            children,
            _thread: thread,
        })
    }

    /// Starts a process. Blocks until its program is loaded, or has failed to load.
    ///
    /// # Errors
    /// The error of the operating system: the program does not exist, or no process is left.
    pub(super) fn spawn(&self, command: Command) -> io::Result<Child> {
        let has_ended = || io::Error::other("the thread worker-spawn has ended");
        self.commands.send(command).map_err(|_| has_ended())?;
        self.children.recv().map_err(|_| has_ended())?
    }
}

/// Called when a worker has exited.
pub(super) type OnExit = Arc<dyn Fn(WorkerExit) + Send + Sync>;

/// The worker at this position of the group has exited.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) index: usize,
    pub(super) exit: ExitKind,
    pub(super) at: SystemTime,
}

/// The process that a waiter waits for.
pub(super) struct Assigned {
    pub(super) pid: Pid,
    pub(super) local_rank: usize,
    pub(super) rank: usize,
    pub(super) on_exit: OnExit,
}

/// A thread `worker-wait`, which waits for one process.
///
/// Ends with the process, or at once if it is dropped before it is assigned one. A process that the system
/// cannot end keeps the thread, which is then detached.
#[derive(Debug)]
pub(super) struct Waiter {
    assign: Sender<Assigned>,
    thread: JoinHandle<()>,
}

impl Waiter {
    /// Starts the thread, before its process: so no process lacks one when the system has no thread left.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
    pub(super) fn start(index: usize, ended: Sender<Ended>) -> io::Result<Self> {
        let (assign, assigned) = bounded(1);
        let thread = thread::Builder::new()
            .name("worker-wait".to_owned())
            .spawn(move || run(index, &assigned, &ended))?;
        Ok(Self { assign, thread })
    }

    /// Assigns the process. Its exit is reported to the group first, then to `on_exit`.
    pub(super) fn assign(&self, process: Assigned) {
        // The channel has room for one, and the thread lives until it has received one.
        let _ = self.assign.try_send(process);
    }

    /// Joins the thread. Blocks until its process has exited, or returns at once if it has no process.
    pub(super) fn join(self) {
        drop(self.assign);
        if self.thread.join().is_err() {
            log::error!("thread worker-wait panicked");
        }
    }
}

fn run(index: usize, assigned: &Receiver<Assigned>, ended: &Sender<Ended>) {
    let Ok(process) = assigned.recv() else {
        return;
    };
    let exit = wait_for_exit(process.pid);
    let at = SystemTime::now();
    if ended.send(Ended { index, exit, at }).is_err() {
        // The group has abandoned the process, so this thread reaps it.
        wait(process.pid, WaitIdOptions::NOHANG);
        return;
    }
    (process.on_exit)(WorkerExit {
        local_rank: process.local_rank,
        rank: process.rank,
        pid: process.pid.as_raw_nonzero().get().cast_unsigned(),
        exit,
        ended_at: at,
    });
}

/// Waits until a child of this process has exited, without reaping it. Blocks for as long as it runs.
pub(crate) fn wait_for_exit(pid: Pid) -> ExitKind {
    wait(pid, WaitIdOptions::NOWAIT)
}

fn wait(pid: Pid, options: WaitIdOptions) -> ExitKind {
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | options) {
            Ok(Some(status)) => return ExitKind::of(&status),
            Ok(None) | Err(Errno::INTR) if !options.contains(WaitIdOptions::NOHANG) => {}
            Ok(None) => return ExitKind::Unknown,
            Err(error) => {
                log::error!("cannot wait for process {}: {error}", pid.as_raw_nonzero());
                return ExitKind::Unknown;
            }
        }
    }
}
