//! The activity of a single rank, judged by the evidence about this rank alone.

use std::time::Duration;

use super::call::{Call, CallKind};
use super::evidence::{Observation, RankEvidence, Seen};
use super::place::{Inside, Place};
use crate::announced::{AnnouncedSample, UnacknowledgedData};
use crate::text;

/// A waiting rank whose process reads and writes at least this many bytes in a second transfers data.
const TRANSFER_BYTES_MIN: u64 = 64 * 1024;

/// A waiting rank whose other threads use at least this much of a CPU, in percent, transfers data.
const TRANSFER_PERCENT_MIN: u32 = 3;

/// The most characters of the reason why there is no stack. It includes advice, so it is longer than other texts.
const ERROR_CHARS_MAX: usize = 240;

/// Two samples are this far apart, in milliseconds. A thread that has not run for this long is where it was.
const APART_MS: u64 = 5_000;

/// The activity of a rank, and its place in the code.
#[derive(Debug)]
pub(super) struct Doing<'a> {
    pub(super) kind: Kind,
    pub(super) place: Option<Place<'a>>,
    /// Whether two samples agree. It is also true if a second sample is not needed.
    pub(super) is_confirmed: bool,
    /// The minimum time without progress, in milliseconds; `None` if the rank's thread uses the CPU while it waits.
    pub(super) still_ms: Option<u64>,
    /// The time for which the rank has also used no CPU elsewhere, and has neither read nor written, in milliseconds.
    pub(super) idle_ms: u64,
    /// Whether its main thread waits for a time or an event, and has run in the last seconds.
    pub(super) wakes_up: bool,
    /// Whether it waits for a transfer that makes progress.
    pub(super) transfers: bool,
    /// The connections of its process whose data is not acknowledged.
    pub(super) unacknowledged: &'a [UnacknowledgedData],
    /// The rank's host, if known.
    pub(super) host: Option<String>,
    /// The rank's activity in the sample, if one of its threads began to wait in the store at about the time of the
    /// sample or later.
    sampled: Option<Kind>,
    /// Whether it has just begun to wait for a key of the store.
    begins_store_wait: bool,
    /// Ranks with equal keys have the same activity at the same place.
    pub(super) key: Key,
}

/// The activity of a rank as a clause without times and percentages, and the calls of the user's code.
pub(super) type Key = (String, u64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// The rank waits for other ranks.
    InCall(Call),
    /// The rank waits for a key of the store.
    InStore(String),
    /// The rank's main thread uses this part of a CPU, in percent.
    Computes(u32),
    /// The rank's main thread waits, and its other threads or processes work.
    Works {
        cpu_percent: u32,
    },
    /// The rank was at another place a few seconds ago.
    Moves,
    /// The rank cannot take part in any call.
    Blocked(Cause),
    /// The rank waits for something that is not visible. A wait for the work of a collective also looks like this.
    Opaque {
        is_lock: bool,
        system_call: Option<String>,
    },
    /// A quiet process that is not Python, with its command line.
    Program {
        command: String,
        system_call: Option<String>,
    },
    /// The rank's launcher cannot read its stack, for this reason.
    NoStack(String),
    /// The rank exited with code 0, this many milliseconds ago.
    Left(u64),
    /// The rank has failed, or its launcher has stopped it.
    Failed,
    NotSampled,
    Stale(u64),
    NotLaunched,
    OutOfReach,
}

/// The reason why a rank is blocked outside of all calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    Stopped {
        pid: u32,
    },
    Traced {
        pid: u32,
    },
    Debugger,
    /// The process is in a system call and cannot be interrupted. `error` is the reason why there is no stack.
    Disk {
        call: Option<String>,
        error: Option<String>,
    },
    /// The main thread waits for a lock of Python or for a queue, and no other thread runs the user's code.
    Lock,
    /// The main thread waits in a DataLoader; `dead` is a worker process of the DataLoader that has exited.
    DataLoader {
        dead: Option<u32>,
    },
    SystemCall(String),
}

/// The certainty that a rank does not take part in the call that other ranks wait in, for a reason that the other ranks
/// do not cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Absence {
    /// The rank sleeps, polls or reads a socket, which can be a way to wait for another rank.
    MayWait,
    /// The rank has exited, perhaps because it had no more to do.
    Left,
    Certain,
}

/// System calls, and functions of the kernel, that a program can use to wait for another rank.
const PATIENT_CALLS: &[&str] = &[
    "accept",
    "accept4",
    "clock_nanosleep",
    "connect",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "nanosleep",
    "pause",
    "poll",
    "ppoll",
    "pselect6",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "select",
    "wait4",
    "waitid",
    "do_nanosleep",
    "do_poll",
    "do_select",
    "do_wait",
    "ep_poll",
    "hrtimer_nanosleep",
    "inet_csk_accept",
    "poll_schedule_timeout",
    "restart_syscall",
    "unix_stream_read_generic",
    "wait_woken",
];

impl Kind {
    /// Whether a rank makes progress elsewhere, so that waiting ranks may wait for it.
    const fn is_active(&self) -> bool {
        matches!(self, Self::Computes(_) | Self::Works { .. } | Self::Moves)
    }

    /// Returns this kind without percentages and ages, which differ between ranks with the same activity.
    pub(super) fn without_numbers(&self) -> Self {
        match self {
            Self::Computes(2..) => Self::Computes(100),
            Self::Computes(_) => Self::Computes(0),
            Self::Works { .. } => Self::Works { cpu_percent: 0 },
            Self::Left(_) => Self::Left(0),
            kind => kind.clone(),
        }
    }
}

impl<'a> Doing<'a> {
    pub(super) fn new(evidence: &RankEvidence<'a>) -> Self {
        let doing = Self::of_evidence(evidence);
        Self {
            host: evidence.host.as_deref().map(shown),
            begins_store_wait: evidence.store_wait.as_ref().is_some_and(|it| it.is_new),
            ..doing
        }
    }

    fn of_evidence(evidence: &RankEvidence<'a>) -> Self {
        match &evidence.seen {
            Seen::Sample(observation) => Self::observed(evidence, observation),
            Seen::Ended { end, ago_ms } => {
                let has_left = end.exit_code == Some(0) && end.signal.is_none() && !end.by_launcher;
                Self::of(match has_left {
                    true => Kind::Left(*ago_ms),
                    false => Kind::Failed,
                })
            }
            seen => match (&evidence.store_wait, seen) {
                (Some(wait), _) => Self {
                    still_ms: Some(wait.age_ms),
                    ..Self::of(Kind::InStore(wait.meaning.clone()))
                },
                (None, Seen::Stale { age_ms }) => Self::of(Kind::Stale(*age_ms)),
                (None, Seen::NotLaunched) => Self::of(Kind::NotLaunched),
                (None, Seen::OutOfReach) => Self::of(Kind::OutOfReach),
                (None, _) => Self::of(Kind::NotSampled),
            },
        }
    }

    fn of(kind: Kind) -> Self {
        Self {
            kind,
            place: None,
            is_confirmed: true,
            still_ms: None,
            idle_ms: 0,
            wakes_up: false,
            transfers: false,
            unacknowledged: &[],
            host: None,
            sampled: None,
            begins_store_wait: false,
            key: Key::default(),
        }
    }

    fn observed(evidence: &RankEvidence<'a>, observation: &Observation<'a>) -> Self {
        let sample = observation.sample;
        let place = observation.stacks.and_then(Place::new);
        let before = observation.stacks_before.and_then(Place::new);
        let has_moved = match (&place, &before) {
            (Some(place), Some(before)) => !place.agrees_with(before),
            _ => false,
        };
        let mut kind = kind(evidence, sample, place.as_ref(), has_moved);
        // The sample may show what it did before its wait began.
        let new_wait = evidence
            .store_wait
            .as_ref()
            .filter(|wait| kind.is_active() && wait.age_ms < observation.age_ms + APART_MS);
        let sampled = new_wait.map(|wait| {
            let waits = Kind::InStore(wait.meaning.clone());
            std::mem::replace(&mut kind, waits)
        });
        let is_quiet = sample.quiet_ms > 0;
        let unmoved_ms = sample
            .blocked_ms
            .map_or(sample.quiet_ms, |it| it.min(sample.quiet_ms));
        let still_ms = match (&kind, &evidence.store_wait) {
            // A rank that uses little of a CPU may have made many steps in this time.
            (Kind::InCall(_), _) => is_quiet.then_some(unmoved_ms),
            (Kind::Opaque { .. }, _) => Some(unmoved_ms.min(sample.idle_ms)),
            (Kind::InStore(_), Some(wait)) => Some(wait.age_ms),
            (Kind::Blocked(Cause::Stopped { .. } | Cause::Traced { .. }), _) => {
                Some(sample.quiet_ms)
            }
            // It returns when there is data, so that a thread that has run has made progress.
            (Kind::Blocked(Cause::Disk { .. }), _) => Some(unmoved_ms.min(sample.idle_ms)),
            // Without a stack, only its system call shows whether it polls.
            (Kind::NoStack(_), _)
                if sample
                    .system_call
                    .as_deref()
                    .is_some_and(|it| !is_patient(it)) =>
            {
                Some(unmoved_ms.min(sample.idle_ms))
            }
            (Kind::Blocked(Cause::SystemCall(call)), _) if !is_patient(call) => {
                Some(unmoved_ms.min(sample.idle_ms))
            }
            _ => Some(sample.quiet_ms.min(sample.idle_ms)),
        };
        let is_certain = matches!(
            kind,
            Kind::Blocked(Cause::Stopped { .. } | Cause::Traced { .. })
                | Kind::Program { .. }
                | Kind::NoStack(_)
                | Kind::InStore(_)
        );
        let is_unmoved = sample.blocked_ms.is_some_and(|it| it >= APART_MS)
            || matches!(kind, Kind::Blocked(Cause::Disk { .. }) if place.is_none());
        Self {
            is_confirmed: new_wait.is_none()
                && (is_certain || (!has_moved && (before.is_some() || is_unmoved))),
            still_ms,
            idle_ms: sample.idle_ms,
            wakes_up: matches!(&kind, Kind::Blocked(Cause::SystemCall(call)) if is_patient(call))
                && sample
                    .blocked_ms
                    .is_some_and(|it| it < APART_MS && it < sample.quiet_ms),
            transfers: sample.io_bytes_per_second >= TRANSFER_BYTES_MIN
                || sample.others_cpu_percent >= TRANSFER_PERCENT_MIN,
            unacknowledged: &sample.unacknowledged,
            sampled,
            kind,
            place,
            ..Self::of(Kind::NotSampled)
        }
    }

    /// Whether it waits for other ranks or for the store.
    pub(super) const fn waits(&self) -> bool {
        matches!(self.kind, Kind::InCall(_) | Kind::InStore(_))
    }

    pub(super) const fn is_active(&self) -> bool {
        self.kind.is_active()
    }

    /// Whether it is active, or was when it was sampled.
    pub(super) const fn may_be_active(&self) -> bool {
        self.is_active() || self.sampled.is_some()
    }

    /// Whether the rank may be making progress, except for a main thread that uses the CPU and may wait for NCCL.
    pub(super) fn may_be_moving(&self) -> bool {
        match &self.sampled {
            Some(sampled) => !matches!(sampled, Kind::Computes(_)),
            None => self.is_active() && !self.may_spin(),
        }
    }

    /// Whether it is not visible what it waits for.
    pub(super) const fn is_opaque(&self) -> bool {
        matches!(self.kind, Kind::Opaque { .. })
    }

    /// Whether it waits for something that is not visible, and has threads that may hold it.
    pub(super) fn may_be_locked(&self) -> bool {
        self.is_opaque() && self.place.as_ref().is_some_and(Place::has_user_threads)
    }

    /// Whether the stacks of its threads show what it may wait for.
    pub(super) fn is_locked(&self) -> bool {
        matches!(
            self.kind,
            Kind::Blocked(Cause::Lock | Cause::DataLoader { .. })
        ) || self.may_be_locked()
    }

    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.kind, Kind::Left(_) | Kind::Failed)
    }

    /// Whether its launcher observes its process but has no stack of it.
    pub(super) const fn is_without_stack(&self) -> bool {
        matches!(self.kind, Kind::NoStack(_) | Kind::Program { .. })
    }

    /// Whether there is no evidence about its activity.
    pub(super) const fn is_unseen(&self) -> bool {
        matches!(
            self.kind,
            Kind::NotSampled | Kind::Stale(_) | Kind::NotLaunched | Kind::OutOfReach
        )
    }

    /// Whether it is in no call, and does not work.
    pub(super) const fn is_absent(&self) -> bool {
        matches!(self.kind, Kind::Blocked(_) | Kind::Left(_))
    }

    /// Returns how certain it is that other ranks wait for this rank.
    pub(super) fn absence(&self) -> Option<Absence> {
        match &self.kind {
            Kind::Blocked(Cause::SystemCall(call)) if is_patient(call) => Some(Absence::MayWait),
            Kind::Blocked(Cause::Lock) => Some(Absence::MayWait),
            Kind::Blocked(_) => Some(Absence::Certain),
            Kind::Left(_) => Some(Absence::Left),
            _ => None,
        }
    }

    /// Whether it sleeps, or waits for an event or for a thread, like a server without requests.
    pub(super) fn may_be_idle(&self) -> bool {
        self.absence() == Some(Absence::MayWait)
            || matches!(
                self.kind,
                Kind::Program { .. } | Kind::Opaque { is_lock: true, .. }
            )
    }

    /// Whether its main thread uses the CPU and nothing shows that it has moved. Such a thread may wait for NCCL.
    const fn may_spin(&self) -> bool {
        matches!(self.kind, Kind::Computes(_)) && (self.is_confirmed || self.place.is_none())
    }

    /// Whether it is in a call and has just used the CPU: it may have arrived a moment ago.
    pub(super) fn may_have_arrived(&self, alarm_after_ms: u64) -> bool {
        self.waits() && self.still_ms.is_none() && self.idle_ms < alarm_after_ms
    }

    /// Whether it has waited for some time.
    pub(super) fn is_still(&self, alarm_after_ms: u64) -> bool {
        // A different thread of a rank in a collective may wait in the store.
        let begins = self.begins_store_wait && !self.is_in(CallKind::Collective);
        self.waits() && !self.may_have_arrived(alarm_after_ms) && !begins
    }

    /// Whether it waits in a call that all members of a group take part in.
    pub(super) fn is_in_collective(&self) -> bool {
        self.is_in(CallKind::Collective) || self.is_in(CallKind::Group)
    }

    fn is_in(&self, kind: CallKind) -> bool {
        matches!(self.kind, Kind::InCall(call) if call.kind == kind)
    }
}

/// The rules for one rank; the first that holds decides.
fn kind(
    evidence: &RankEvidence<'_>,
    sample: &AnnouncedSample,
    place: Option<&Place<'_>>,
    has_moved: bool,
) -> Kind {
    let pid = sample.pid;
    let is_quiet = sample.quiet_ms > 0;
    let call = place
        .and_then(|place| place.call)
        .filter(|call| is_quiet || call.can_spin)
        .filter(|call| sample.idle_ms > 0 || !call.can_compute);
    let inside = place.map(|place| place.inside);
    let system_call = sample.system_call.as_deref().or(sample.waits_in.as_deref());
    let system_call = system_call.map(shown);
    match (sample.state, inside) {
        (Some('T'), _) => return Kind::Blocked(Cause::Stopped { pid }),
        (Some('t'), _) => return Kind::Blocked(Cause::Traced { pid }),
        (_, Some(Inside::Debugger)) if is_quiet => return Kind::Blocked(Cause::Debugger),
        _ => {}
    }
    if has_moved {
        return Kind::Moves;
    }
    if let Some(call) = call {
        return Kind::InCall(call);
    }
    if !is_quiet {
        return Kind::Computes(sample.cpu_percent);
    }
    let is_futex = system_call
        .as_deref()
        .is_none_or(|call| call.starts_with("futex") || call == "restart_syscall");
    // Another thread may wait in the store while the main thread is blocked in another system call.
    let may_be_in_store = is_futex || system_call.as_deref().is_some_and(is_patient);
    if let Some(wait) = evidence.store_wait.as_ref().filter(|_| may_be_in_store) {
        return Kind::InStore(wait.meaning.clone());
    }
    if sample.idle_ms == 0 {
        return Kind::Works {
            cpu_percent: sample.others_cpu_percent,
        };
    }
    let error = sample.error.as_ref();
    let error = error.map(|error| text::shown_up_to(error.as_bytes(), ERROR_CHARS_MAX));
    if sample.state == Some('D') {
        return Kind::Blocked(Cause::Disk {
            call: system_call,
            error,
        });
    }
    if let Some(error) = error {
        return Kind::NoStack(error);
    }
    match inside {
        None => match &sample.command_line {
            Some(command) => Kind::Program {
                command: shown(command),
                system_call,
            },
            None => Kind::NoStack("it has no Python stack".to_owned()),
        },
        Some(Inside::DataLoader) => Kind::Blocked(Cause::DataLoader {
            dead: sample.dead_children.first().copied(),
        }),
        Some(Inside::Lock) if !place.is_some_and(Place::has_user_threads) => {
            Kind::Blocked(Cause::Lock)
        }
        Some(inside) if is_futex || inside == Inside::Lock => Kind::Opaque {
            is_lock: inside == Inside::Lock,
            system_call,
        },
        Some(_) => Kind::Blocked(Cause::SystemCall(system_call.unwrap_or_default())),
    }
}

/// Whether a program can use this system call to wait for another rank. Compilers add suffixes such as `.constprop.0` to
/// the kernel's functions.
fn is_patient(call: &str) -> bool {
    let name = call.split('.').next().unwrap_or(call);
    PATIENT_CALLS.contains(&name)
}

/// Returns text of a worker or its launcher, shortened and safe to print.
pub(super) fn shown(text: &str) -> String {
    text::shown_up_to(text.as_bytes(), 100)
}

/// "40 s".
pub(super) fn age(milliseconds: u64) -> String {
    text::age(Duration::from_millis(milliseconds))
}
