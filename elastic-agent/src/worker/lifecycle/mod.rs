//! The life of a group of workers, as a state machine: which process groups get which signal and when, which workers
//! count as stopped or killed, how long their end is awaited.
//!
//! Knows no process, thread or clock.

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use c10d_socket::Deadline;
use log::Level;
use rustix::process::Signal;

use super::outcome::ExitKind;
use super::plan::SignalTarget;
use crate::wording;
use crate::wording::name_of;

/// The shortest wait for killed processes: one with much memory takes seconds to end.
const KILL_WAIT_MIN: Duration = Duration::from_secs(10);

/// The pauses between checks for orphaned processes, whose end nothing announces: short at first, as most
/// end at once; then longer, as reading /proc takes some milliseconds.
const CHECK_PAUSE_MIN: Duration = Duration::from_millis(2);
const CHECK_PAUSE_MAX: Duration = Duration::from_millis(100);

/// When to log the workers that a stop waits for: soon at first, because a person may be watching.
const NOTICE_FIRST: Duration = Duration::from_secs(2);
const NOTICE_INTERVAL: Duration = Duration::from_secs(5);

/// An event or a request. Workers are named by their positions in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    Exited {
        worker: usize,
        exit: ExitKind,
        at: SystemTime,
    },
    /// Exits are no longer reported, so the exits of all running workers are unknown.
    ExitsLost { at: SystemTime },
    /// Sends the signal that begins a stop, which then does not. Only the first has an effect.
    SendStop(Signal),
    /// Ends all processes: with this signal, and after `grace` with SIGKILL.
    Stop {
        signal: Signal,
        grace: Option<Duration>,
    },
    /// Ends the grace period now.
    Escalated,
    /// Kills all processes.
    Kill,
    /// Answers [`Effect::FindLeftover`].
    Leftover(Leftover),
    /// The [deadline](Lifecycle::deadline) has passed.
    Tick,
}

/// The live processes in the groups of workers that have all exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leftover {
    Nothing,
    Processes,
    /// The system does not list processes.
    Unknown,
}

/// An action, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Send the signal to the process group of this worker.
    Signal(usize, Signal),
    /// Send the signal to this worker alone.
    SignalAlone(usize, Signal),
    /// The kill switch must not kill the group of this worker any more: its id may belong to another.
    Release(usize),
    /// End the guardian: all processes have ended or are killed, and the system may soon reuse a group's id. That of
    /// a worker whose program could not be executed may be in use already.
    EndGuardian,
    /// The last effect of a step.
    FindLeftover,
    /// Log the processes that still run although they were killed.
    ReportUnkillable,
    Log(Level, String),
}

/// The exit of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) kind: ExitKind,
    pub(super) at: SystemTime,
    /// Whether the worker was still running when the group was stopped.
    pub(super) was_stopped: bool,
}

/// The life of a group.
#[derive(Debug)]
pub(super) struct Lifecycle {
    members: Vec<Member>,
    /// The workers that have exited, in the order in which this was noticed.
    order: Vec<usize>,
    /// The last signal sent to the workers; `None` until the group is stopped.
    stopped_by: Option<Signal>,
    phase: Phase,
    /// The processes that get the signal at the beginning of a stop.
    target: SignalTarget,
}

#[derive(Debug)]
struct Member {
    local_rank: usize,
    pid: u32,
    /// `None` while it runs.
    exit: Option<Exit>,
    /// Whether it was running when the grace period ended.
    was_killed: bool,
}

#[derive(Debug)]
enum Phase {
    Running,
    Stopping {
        until: Deadline,
        notice: Deadline,
        checks: Checks,
        /// How long killed processes may take to end.
        kill_wait: Duration,
    },
    Killed {
        until: Deadline,
        checks: Checks,
    },
    Over,
}

/// The checks for processes that exited workers left behind.
#[derive(Debug)]
struct Checks {
    next: Deadline,
    pause: Duration,
}

impl Checks {
    const NONE: Self = Self {
        next: Deadline::NEVER,
        pause: CHECK_PAUSE_MIN,
    };

    fn schedule(&mut self, now: Instant) {
        self.next = Deadline::after(now, self.pause);
        self.pause = (self.pause * 2).min(CHECK_PAUSE_MAX);
    }
}

impl Lifecycle {
    /// Workers that run: their local ranks and process ids.
    pub(super) fn new(
        workers: impl IntoIterator<Item = (usize, u32)>,
        target: SignalTarget,
    ) -> Self {
        let members = workers.into_iter().map(|(local_rank, pid)| Member {
            local_rank,
            pid,
            exit: None,
            was_killed: false,
        });
        Self {
            members: members.collect(),
            order: Vec::new(),
            stopped_by: None,
            phase: Phase::Running,
            target,
        }
    }

    /// Returns the effect that sends a signal to this worker while it runs.
    pub(super) const fn signal(&self, worker: usize, signal: Signal) -> Effect {
        match self.target {
            SignalTarget::Worker => Effect::SignalAlone(worker, signal),
            SignalTarget::Group => Effect::Signal(worker, signal),
        }
    }

    /// Returns the number of running workers.
    pub(super) const fn running(&self) -> usize {
        self.members.len() - self.order.len()
    }

    /// The workers that are running, as text: `local rank 0 (pid 17), 1 (pid 18)`.
    pub(super) fn running_text(&self) -> String {
        let running = self.still_running();
        wording::local_ranks_with_pids(running.map(|(_, it)| (it.local_rank, it.pid)))
    }

    /// The workers that have exited, in the order in which this was noticed.
    pub(super) fn exits(&self) -> impl Iterator<Item = (usize, Exit)> {
        let exits = self.order.iter();
        exits.filter_map(|&worker| Some((worker, self.members[worker].exit?)))
    }

    /// Returns the exit of a worker; `None` while it runs.
    pub(super) fn exit(&self, worker: usize) -> Option<Exit> {
        self.members[worker].exit
    }

    /// Whether the worker's process id is still the id of its group. Not so if other code has reaped the worker.
    pub(super) fn has_group(&self, worker: usize) -> bool {
        self.members[worker].has_group()
    }

    /// Whether a grace period runs, which can be escalated.
    pub(super) const fn has_grace(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. })
    }

    /// Whether all processes have ended, or those that remain are abandoned.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Returns the local ranks of killed workers, which had not exited in time. `is_escalated`: whether the kill
    /// switch was triggered, which kills workers before the group knows.
    pub(super) fn killed(&self, is_escalated: bool) -> Vec<usize> {
        let killed = self.members.iter().filter(|member| {
            let by_switch = member.exit.is_some_and(|exit| {
                let kill = Signal::KILL.as_raw();
                exit.was_stopped
                    && matches!(exit.kind, ExitKind::Signal { number, .. } if number == kill)
            });
            member.was_killed || is_escalated && by_switch
        });
        killed.map(|member| member.local_rank).collect()
    }

    /// When to [`step`](Self::step) with [`Input::Tick`]. Never while no stop is under way.
    pub(super) fn deadline(&self) -> Deadline {
        match &self.phase {
            Phase::Running | Phase::Over => Deadline::NEVER,
            Phase::Stopping {
                until,
                notice,
                checks,
                ..
            } => until.min(*notice).min(checks.next),
            Phase::Killed { until, checks } => until.min(checks.next),
        }
    }

    /// Takes an input, and returns what to do.
    pub(super) fn step(&mut self, now: Instant, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        match input {
            Input::Exited { worker, exit, at } => {
                self.note(worker, exit, at, &mut out);
                self.find_leftover(&mut out);
            }
            Input::ExitsLost { at } => {
                for worker in 0..self.members.len() {
                    self.note(worker, ExitKind::Unknown, at, &mut out);
                }
                self.find_leftover(&mut out);
            }
            Input::SendStop(signal) => self.send_stop(signal, &mut out),
            Input::Stop { signal, grace } => {
                self.send_stop(signal, &mut out);
                if matches!(self.phase, Phase::Running) {
                    self.phase = Phase::Stopping {
                        until: Deadline::after(now, grace),
                        notice: Deadline::after(now, NOTICE_FIRST),
                        checks: Checks::NONE,
                        kill_wait: grace.unwrap_or_default().max(KILL_WAIT_MIN),
                    };
                    self.find_leftover(&mut out);
                }
            }
            Input::Escalated if self.has_grace() => self.kill(now, KILL_WAIT_MIN, &mut out),
            Input::Kill if matches!(self.phase, Phase::Running | Phase::Stopping { .. }) => {
                self.kill(now, KILL_WAIT_MIN, &mut out);
            }
            Input::Escalated | Input::Kill => {}
            Input::Leftover(leftover) => self.on_leftover(now, leftover, &mut out),
            Input::Tick => self.on_tick(now, &mut out),
        }
        out
    }

    fn note(&mut self, worker: usize, kind: ExitKind, at: SystemTime, out: &mut Vec<Effect>) {
        let member = &mut self.members[worker];
        if member.exit.is_some() {
            return;
        }
        member.exit = Some(Exit {
            kind,
            at,
            was_stopped: self.stopped_by.is_some(),
        });
        self.order.push(worker);
        // The signal for the processes that it leaves behind in its group.
        let for_others = match (self.stopped_by, self.target) {
            (None | Some(Signal::KILL), _) | (Some(Signal::TERM), SignalTarget::Group) => None,
            (Some(signal), SignalTarget::Worker) => Some(signal),
            // These processes may have ignored a signal that was meant for the worker.
            (Some(_), SignalTarget::Group) => Some(Signal::TERM),
        };
        if !member.has_group() {
            out.push(Effect::Release(worker));
        } else if let Some(signal) = for_others {
            out.push(Effect::Signal(worker, signal));
        }
        out.push(Effect::Log(Level::Info, format!("{member} exited: {kind}")));
    }

    fn send_stop(&mut self, signal: Signal, out: &mut Vec<Effect>) {
        if self.stopped_by.is_some() {
            return;
        }
        self.stopped_by = Some(signal);
        for (worker, member) in self.members.iter().enumerate() {
            if member.exit.is_none() {
                out.push(self.signal(worker, signal));
            } else if member.has_group() {
                out.push(Effect::Signal(worker, Signal::TERM));
            }
        }
        let name = name_of(signal.as_raw());
        let sent = self.still_running().map(|(_, member)| {
            let text = format!("sent {name} to {member}");
            Effect::Log(Level::Info, text)
        });
        out.extend(sent);
    }

    /// Kills all processes of all groups, and gives them this time to end.
    fn kill(&mut self, now: Instant, wait: Duration, out: &mut Vec<Effect>) {
        self.stopped_by = Some(Signal::KILL);
        self.signal_groups(Signal::KILL, out);
        for member in &mut self.members {
            if member.exit.is_none() {
                member.was_killed = true;
                let text = format!("sent SIGKILL to {member}");
                out.push(Effect::Log(Level::Warn, text));
            }
        }
        out.push(Effect::EndGuardian);
        self.phase = Phase::Killed {
            until: Deadline::after(now, wait),
            checks: Checks::NONE,
        };
        self.find_leftover(out);
    }

    /// Begins to look for the processes that exited workers left behind, once all workers have exited.
    fn find_leftover(&self, out: &mut Vec<Effect>) {
        let is_stopping = matches!(self.phase, Phase::Stopping { .. } | Phase::Killed { .. });
        if is_stopping && self.running() == 0 {
            out.push(Effect::FindLeftover);
        }
    }

    fn on_leftover(&mut self, now: Instant, leftover: Leftover, out: &mut Vec<Effect>) {
        let (Phase::Stopping { checks, .. } | Phase::Killed { checks, .. }) = &mut self.phase
        else {
            return;
        };
        match leftover {
            Leftover::Processes => {
                checks.schedule(now);
                return;
            }
            Leftover::Nothing => {}
            // Their end cannot be awaited.
            Leftover::Unknown => self.signal_groups(Signal::KILL, out),
        }
        out.push(Effect::EndGuardian);
        self.phase = Phase::Over;
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let running = self.running_text();
        match &mut self.phase {
            Phase::Running | Phase::Over => {}
            Phase::Stopping {
                until, kill_wait, ..
            } if until.has_passed(now) => {
                let wait = *kill_wait;
                self.kill(now, wait, out);
            }
            Phase::Killed { until, .. } if until.has_passed(now) => {
                out.push(Effect::ReportUnkillable);
                self.phase = Phase::Over;
            }
            Phase::Stopping {
                until,
                notice,
                checks,
                ..
            } => {
                if notice.has_passed(now) {
                    *notice = Deadline::after(now, NOTICE_INTERVAL);
                    let text = waiting_text(running, self.stopped_by, until.remaining(now));
                    out.push(Effect::Log(Level::Warn, text));
                }
                if checks.next.has_passed(now) {
                    out.push(Effect::FindLeftover);
                }
            }
            Phase::Killed { checks, .. } => {
                if checks.next.has_passed(now) {
                    out.push(Effect::FindLeftover);
                }
            }
        }
    }

    /// Signals the process groups that certainly still belong to this group's workers.
    fn signal_groups(&self, signal: Signal, out: &mut Vec<Effect>) {
        let own = (0..self.members.len()).filter(|&worker| self.has_group(worker));
        out.extend(own.map(|worker| Effect::Signal(worker, signal)));
    }

    fn still_running(&self) -> impl Iterator<Item = (usize, &Member)> {
        let members = self.members.iter().enumerate();
        members.filter(|(_, member)| member.exit.is_none())
    }
}

impl Member {
    fn has_group(&self) -> bool {
        self.exit.is_none_or(|exit| exit.kind != ExitKind::Unknown)
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            local_rank, pid, ..
        } = self;
        write!(f, "worker with local rank {local_rank} (pid {pid})")
    }
}

fn waiting_text(running: String, signal: Option<Signal>, left: Option<Duration>) -> String {
    let awaited = match running.is_empty() {
        true => "child processes of exited workers".to_owned(),
        false => running,
    };
    let after = signal.map_or_else(String::new, |signal| {
        format!(" to exit after {}", name_of(signal.as_raw()))
    });
    let left = left.map_or_else(String::new, |left| {
        format!("; SIGKILL in {:.0} s", left.as_secs_f64())
    });
    format!("still waiting for {awaited}{after}{left}")
}
