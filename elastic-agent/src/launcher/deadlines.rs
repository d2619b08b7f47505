//! The deadlines of a job in the order in which they fire, and those that are longer than one that should outlast them.
//! Pure.
//!
//! docs/deadlines.md explains them, and has a rule for each row of [`RULES`].

use std::time::Duration;

use c10d_relay::RelayOptions;
use elastic_rendezvous::{
    ParametersError, READ_TIMEOUT, RendezvousParameters, RendezvousSettings, STATIC_BACKEND,
    STATIC_TIMEOUT,
};

use super::options::{ExitLimits, LauncherOptions};
use crate::restart_policy::RestartBudget;

/// PyTorch's (`ProcessGroupNCCL.hpp`, `Backend.hpp`).
const NCCL_TIMEOUT: Duration = Duration::from_secs(600);
const GROUP_TIMEOUT: Duration = Duration::from_secs(1800);
const NCCL_WATCHDOG: Duration = Duration::from_secs(480);
const NCCL_DUMP: Duration = Duration::from_secs(15);

/// The variables by which libraries set the timeout of their process groups, and the seconds in their unit: DeepSpeed's
/// and torchft's. PyTorch itself reads none.
const GROUP_VARIABLES: [(&str, f64); 2] =
    [("DEEPSPEED_TIMEOUT", 60.0), ("TORCHFT_TIMEOUT_SEC", 1.0)];

/// NCCL's: an InfiniBand card tries a packet again after 4.096 µs times 2 to the power of `NCCL_IB_TIMEOUT`, which is 20,
/// and `NCCL_IB_RETRY_CNT` times, which is 7.
const IB_TIMEOUT: f64 = 20.0;
const IB_RETRIES: f64 = 7.0;
const IB_UNIT_SECONDS: f64 = 4.096e-6;

/// The deadlines of a job: what [`LauncherOptions::deadlines`] finds in the options and the workers' environment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlines {
    /// A heading, and one line for each event that starts some of them; eight at most.
    pub lines: Vec<String>,
    /// One line for each deadline that cannot fire before one that should outlast it, with the option to change.
    pub warnings: Vec<String>,
}

impl LauncherOptions {
    /// The deadlines of this job. A rendezvous whose settings cannot be read has those of the workers only; starting it is
    /// an error.
    #[must_use]
    pub fn deadlines(&self) -> Deadlines {
        let times = Times::of(self);
        let warnings = RULES.iter().zip(1..);
        let warnings = warnings.filter_map(|(rule, number)| {
            let warning = rule(&times)?;
            Some(format!("{warning} (docs/deadlines.md, LADDER {number})"))
        });
        Deadlines {
            warnings: warnings.collect(),
            lines: times.lines(),
        }
    }
}

/// What fires when.
struct Times {
    meeting: Option<Meeting>,
    health_check: Option<Duration>,
    explain: Option<Duration>,
    progress: Option<Duration>,
    first_progress: Option<Duration>,
    /// A limit of restarts that no other one backs.
    only_budget: Option<RestartBudget>,
    /// The variable that sets the timeout of process groups, and the timeout.
    group: Option<(&'static str, Duration)>,
    /// How long NCCL's watchdog may be silent; `None` if nothing watches it.
    watchdog: Option<Duration>,
    /// How long a process whose collective has timed out may write the recorder's file.
    dump: Duration,
    /// How long an InfiniBand card tries, if a variable says so.
    infiniband: Option<Duration>,
    has_timers: bool,
    /// How long a relay tries to go on, and while its store's host refuses.
    relay: Option<(Duration, Duration)>,
    shutdown: Option<Duration>,
    exit: Option<ExitLimits>,
}

/// How several nodes find each other.
struct Meeting {
    /// How long a join may take.
    join: Duration,
    /// The option that sets it.
    join_option: &'static str,
    /// `None` for the static backend, which has none of this.
    dynamic: Option<Dynamic>,
}

struct Dynamic {
    settings: RendezvousSettings,
    read: Duration,
}

impl Times {
    fn of(options: &LauncherOptions) -> Self {
        let agent = &options.agent;
        let progress = agent.progress.clone().unwrap_or_default();
        let rules = &agent.restarts;
        let has_other = rules.max_restarts.is_some() || rules.max_without_progress.is_some();
        let relay = RelayOptions::default();
        let number = |name: &str| -> Option<f64> {
            let mut variables = agent.environment.iter();
            let (_, value) = variables.find(|(known, _)| *known == name)?;
            value.to_str()?.trim().parse().ok()
        };
        let seconds = |name, unit: f64| Duration::try_from_secs_f64(number(name)? * unit).ok();
        let group = GROUP_VARIABLES
            .into_iter()
            .filter_map(|(name, unit)| Some((name, seconds(name, unit)?)));
        let is_watched = number("TORCH_NCCL_ENABLE_MONITORING") != Some(0.0);
        let watchdog = seconds("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 1.0).unwrap_or(NCCL_WATCHDOG);
        let dump = seconds("TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC", 1e-3)
            .or_else(|| seconds("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", 1e-3));
        let infiniband = (number("NCCL_IB_TIMEOUT"), number("NCCL_IB_RETRY_CNT"));
        let infiniband = match infiniband {
            (None, None) => None,
            (timeout, retries) => Some(
                timeout.unwrap_or(IB_TIMEOUT).exp2()
                    * IB_UNIT_SECONDS
                    * retries.unwrap_or(IB_RETRIES),
            ),
        };
        Self {
            meeting: Meeting::of(&options.rendezvous).unwrap_or_default(),
            health_check: agent.health_check.as_ref().map(|check| check.timeout()),
            explain: options.explain_after,
            progress: progress.timeout,
            first_progress: progress.first_timeout,
            only_budget: rules.budget.filter(|_| !has_other),
            group: group.min_by_key(|(_, timeout)| *timeout),
            watchdog: is_watched.then_some(watchdog),
            dump: dump.unwrap_or(NCCL_DUMP),
            infiniband: infiniband.and_then(|it| Duration::try_from_secs_f64(it).ok()),
            has_timers: agent.has_watchdog,
            relay: agent
                .has_relay
                .then(|| (relay.resume_timeout(), relay.refused_timeout())),
            shutdown: agent.shutdown_timeout,
            exit: options.exit_limits,
        }
    }

    fn dynamic(&self) -> Option<(&Meeting, &Dynamic)> {
        let meeting = self.meeting.as_ref()?;
        Some((meeting, meeting.dynamic.as_ref()?))
    }

    /// The heading and the lines.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            "deadlines, from the event that starts them, in the order in which they fire (docs/deadlines.md):"
                .to_owned(),
        ];
        let events = [
            ("nodes meet", self.of_a_meeting()),
            ("a node or its store is silent", self.of_silence()),
            ("workers stand still", self.of_a_standstill()),
            ("a timer of the script expires", self.of_a_timer()),
            ("a relay loses the store", self.of_a_relay()),
            ("a signal", self.of_a_signal()),
        ];
        let events = events.into_iter().filter(|(_, rungs)| !rungs.is_empty());
        lines.extend(events.map(|(event, rungs)| format!("  {event}: {}", rungs.join(", "))));
        lines
    }

    fn of_a_meeting(&self) -> Vec<String> {
        let mut rungs = Vec::new();
        let mut add = |name: &str, time: Duration| rungs.push((time, format!("{name} {time:?}")));
        if let Some(check) = self.health_check {
            add("health check", check);
        }
        if let Some(meeting) = &self.meeting {
            if let Some(settings) = meeting.elastic() {
                add("last call", settings.last_call_timeout());
            }
            add("join", meeting.join);
        }
        in_order(rungs)
    }

    fn of_silence(&self) -> Vec<String> {
        let Some((_, Dynamic { settings, read })) = self.dynamic() else {
            return Vec::new();
        };
        let (dead_after, interval) = (settings.dead_after(), settings.keep_alive_interval());
        let attempts = settings.keep_alive_max_attempt();
        in_order(vec![
            (
                dead_after,
                format!(
                    "node dropped, its workers stop {dead_after:?} ({attempts} heartbeats of {interval:?})"
                ),
            ),
            (*read, format!("request to the store {read:?}")),
        ])
    }

    fn of_a_standstill(&self) -> Vec<String> {
        let mut rungs = Vec::new();
        if let Some(explain) = self.explain {
            rungs.push((explain, format!("explained {explain:?}")));
        }
        if let Some(progress) = self.progress {
            rungs.push((progress, format!("restart without progress {progress:?}")));
        }
        if let Some(first) = self.first_progress {
            rungs.push((first, format!("the same before the first step {first:?}")));
        }
        if let Some(watchdog) = self.watchdog {
            rungs.push((
                watchdog,
                format!("NCCL's watchdog if it is stuck {watchdog:?}"),
            ));
        }
        rungs.push(match self.group {
            Some((variable, group)) => (group, format!("process group {group:?} ({variable})")),
            None => (
                NCCL_TIMEOUT,
                format!(
                    "process group {NCCL_TIMEOUT:?} (NCCL) or {GROUP_TIMEOUT:?} (others) unless the script gives timeout="
                ),
            ),
        });
        in_order(rungs)
    }

    fn of_a_timer(&self) -> Vec<String> {
        let ends = self
            .has_timers
            .then(|| "its process ends at once".to_owned());
        ends.into_iter().collect()
    }

    fn of_a_relay(&self) -> Vec<String> {
        let Some((resume, refused)) = self.relay else {
            return Vec::new();
        };
        vec![
            format!("ranks disconnected {refused:?} if its host refuses"),
            format!("{resume:?} if it is silent"),
        ]
    }

    fn of_a_signal(&self) -> Vec<String> {
        let mut rungs = match self.shutdown {
            Some(shutdown) => vec![format!("workers killed {shutdown:?}")],
            None => vec!["workers have any time".to_owned()],
        };
        if let Some(limits) = self.exit {
            rungs.push(format!("launcher ends {:?}", limits.exit));
        }
        rungs
    }
}

impl Meeting {
    /// `None` for a single node, which waits for no other.
    fn of(parameters: &RendezvousParameters) -> Result<Option<Self>, ParametersError> {
        if parameters.max_nodes() == 1 {
            return Ok(None);
        }
        if parameters.backend() == STATIC_BACKEND {
            return Ok(Some(Self {
                join: parameters.get_as_duration("timeout", STATIC_TIMEOUT)?,
                join_option: "timeout",
                dynamic: None,
            }));
        }
        let settings = RendezvousSettings::from_parameters(parameters)?;
        Ok(Some(Self {
            join: settings.join_timeout(),
            join_option: "join_timeout",
            dynamic: Some(Dynamic {
                read: parameters.get_as_duration("read_timeout", READ_TIMEOUT)?,
                settings,
            }),
        }))
    }

    /// The settings of a round that may begin with fewer nodes than could take part.
    fn elastic(&self) -> Option<&RendezvousSettings> {
        let settings = &self.dynamic.as_ref()?.settings;
        (settings.min_nodes() < settings.max_nodes()).then_some(settings)
    }
}

/// The texts by their times.
fn in_order(mut rungs: Vec<(Duration, String)>) -> Vec<String> {
    rungs.sort_by_key(|(time, _)| *time);
    rungs.into_iter().map(|(_, text)| text).collect()
}

/// A pair of deadlines in the wrong order: which, what follows, and what to change. `None` if they are in order.
type Rule = fn(&Times) -> Option<String>;

/// The number of a rule is its place, from 1.
const RULES: [Rule; 14] = [
    |times| {
        let (_, Dynamic { settings, .. }) = times.dynamic()?;
        let (write, silent) = (settings.heartbeat_timeout(), settings.dead_after());
        (write > silent).then(|| {
            format!(
                "writing a heartbeat may take {write:?}, but a node that is silent for {silent:?} is dropped: lower \
                 heartbeat_timeout in --rdzv-conf, or raise keep_alive_interval"
            )
        })
    },
    |times| {
        let (meeting, Dynamic { settings, .. }) = times.dynamic()?;
        let (join, silent) = (meeting.join, settings.dead_after());
        (silent >= join).then(|| {
            format!(
                "a join fails after {join:?}, before the others drop a lost node after {silent:?} of silence: raise \
                 join_timeout in --rdzv-conf"
            )
        })
    },
    |times| {
        let meeting = times.meeting.as_ref()?;
        let (join, last_call) = (meeting.join, meeting.elastic()?.last_call_timeout());
        (last_call >= join).then(|| {
            format!(
                "a join fails after {join:?}, but a round of fewer than MAX nodes begins after a last call of \
                 {last_call:?}: raise join_timeout in --rdzv-conf, or lower last_call_timeout"
            )
        })
    },
    |times| {
        let (meeting, Dynamic { settings, .. }) = times.dynamic()?;
        let (join, wait) = (meeting.join, settings.spare_wait());
        (wait >= join).then(|| {
            format!(
                "a join fails after {join:?}, but members precede spares for {wait:?}: lower --spare-wait, or raise \
                 join_timeout in --rdzv-conf"
            )
        })
    },
    |times| {
        let (meeting, check) = (times.meeting.as_ref()?, times.health_check?);
        let (join, option) = (meeting.join, meeting.join_option);
        (check >= join).then(|| {
            format!(
                "a health check may take {check:?}, but the join of the other nodes fails after {join:?}: lower \
                 --health-check-timeout, or raise {option} in --rdzv-conf"
            )
        })
    },
    |times| {
        let (Meeting { join, .. }, Dynamic { read, .. }) = times.dynamic()?;
        (read > join).then(|| {
            format!(
                "one request to the store may take {read:?}, longer than the whole join, {join:?}: lower read_timeout in \
                 --rdzv-conf"
            )
        })
    },
    |times| {
        let (_, Dynamic { settings, .. }) = times.dynamic()?;
        let (progress, silent) = (times.progress?, settings.dead_after());
        (progress <= silent).then(|| {
            format!(
                "workers without progress for {progress:?} use up a restart before a lost node is known to be lost, after \
                 {silent:?}: raise --progress-timeout"
            )
        })
    },
    |times| {
        let (first, progress) = (times.first_progress?, times.progress?);
        (first < progress).then(|| {
            format!(
                "the first step may take {first:?}, imports included, less than any later one, {progress:?}: raise \
                 --first-progress-timeout"
            )
        })
    },
    |times| {
        let (progress, (variable, group)) = (times.progress?, times.group?);
        (progress > group).then(|| {
            format!(
                "collectives fail after {group:?} ({variable}), before workers count as stuck after {progress:?}: lower \
                 --progress-timeout, or raise {variable}"
            )
        })
    },
    |times| {
        let ((resume, _), (variable, group)) = (times.relay?, times.group?);
        (resume > group).then(|| {
            format!(
                "a relay tries for {resume:?} to reach the store again, but ranks that wait for it give up after \
                 {group:?}: raise {variable}"
            )
        })
    },
    |times| {
        let (watchdog, dump) = (times.watchdog?, times.dump);
        (dump >= watchdog).then(|| {
            format!(
                "a rank may write its flight recorder for {dump:?}, but is ended when NCCL's watchdog is stuck for \
                 {watchdog:?}: lower TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC, or raise TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
            )
        })
    },
    |times| {
        let (tries, group) = (times.infiniband?, times.group);
        let group = group.map_or(NCCL_TIMEOUT, |(_, group)| group);
        (tries > group).then(|| {
            format!(
                "InfiniBand tries a packet again for {tries:.0?}, but collectives fail after {group:?} without its \
                 error: lower NCCL_IB_TIMEOUT or NCCL_IB_RETRY_CNT"
            )
        })
    },
    |times| {
        let (budget, progress) = (times.only_budget?, times.progress?);
        let RestartBudget { restarts, window } = budget;
        let hangs = progress.saturating_mul(u32::try_from(restarts).unwrap_or(u32::MAX));
        (hangs >= window).then(|| {
            format!(
                "{restarts} restarts after hangs of {progress:?} take {hangs:?}, longer than the {window:?} in which \
                 --restart-budget allows them, so a job that always hangs never ends: give \
                 --max-restarts-without-progress too"
            )
        })
    },
    |times| {
        let (explain, progress) = (times.explain?, times.progress?);
        (explain > progress).then(|| {
            format!(
                "workers without progress are restarted after {progress:?}, before the launcher says what they wait for, \
                 after {explain:?}: lower --explain-after"
            )
        })
    },
];

#[cfg(test)]
mod tests;
