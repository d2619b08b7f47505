//! How much time workers and the launcher have after a signal.

use std::time::Duration;

use clap::Args;
use elastic_agent::{AgentOptions, Entrypoint, ExitLimits, LauncherOptions, SignalTarget};
use elastic_rendezvous::{StartWarning, WarningKind};

use super::arguments::{Parsed, Read, Surroundings, value_of};
use super::error::{Refusal, UsageError};
use super::values::{list, number, time_above_0};

/// The longest reserve at the end of a grace period. Killing workers and leaving the rendezvous take milliseconds, if
/// the machines and the network work.
const RESERVE_MAX: Duration = Duration::from_secs(5);

/// The shortest reserve, unless that were more than half of the grace period.
const RESERVE_MIN: Duration = Duration::from_secs(1);

/// The options about the end of a job by a signal.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Stopping")]
pub(super) struct StoppingArgs {
    /// Kill the workers and leave the job before this time after SIGTERM is over, because the scheduler then sends SIGKILL.
    /// [default: the scheduler's, if one is found] Example: --grace-period 2m
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = Read(grace_period))]
    grace_period: Option<Parsed<Duration>>,

    /// Stop the workers, and then the launcher, on these signals. [default: SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(
        hide_short_help = true,
        long,
        value_name = "NAME,...",
        default_value = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        value_parser = Read(list)
    )]
    pub(super) signals_to_handle: Parsed<Vec<String>>,

    /// Send SIGKILL to workers that have not exited this long after a stop signal. [default:
    /// $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30]
    #[arg(hide_short_help = true, long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = Read(seconds))]
    shutdown_timeout: Option<Parsed<Duration>>,

    /// Send stop signals, SIGUSR1 and SIGUSR2 to each worker alone (`worker`), or to its whole process group (`group`).
    ///
    /// A worker alone can finish its step and stop its own children, for example the processes of a data loader. When it
    /// exits, the remaining processes of its group get the same signal. [default: worker if the launcher starts Python,
    /// otherwise group]
    #[arg(hide_short_help = true, long, value_name = "worker|group", value_parser = Read(signal_target))]
    stop_signal_to: Option<Parsed<SignalTarget>>,
}

/// The limits for a job that a signal stops.
#[derive(Debug)]
pub(super) struct Limits {
    /// How long workers have to exit; zero kills them at once.
    pub(super) shutdown_timeout: Duration,
    /// The time between SIGTERM and SIGKILL, if it is limited, and the launcher's limits that follow from it.
    pub(super) grace: Option<(Duration, ExitLimits)>,
}

impl StoppingArgs {
    /// Applies the signals. Python handles signals and stops its children; shells do not forward signals.
    pub(super) fn apply(
        &self,
        launcher: &mut LauncherOptions,
        entrypoint: &Entrypoint,
    ) -> Result<(), UsageError> {
        launcher.signals = Some(self.signals_to_handle.value()?);
        let usual = match entrypoint {
            Entrypoint::Program(_) => SignalTarget::Group,
            Entrypoint::Script(_) | Entrypoint::Module(_) | Entrypoint::RunPath(_) => {
                SignalTarget::Worker
            }
        };
        launcher.agent.signal_target = value_of(&self.stop_signal_to)?.unwrap_or(usual);
        Ok(())
    }

    /// Limits the end of the job after a signal. `usual` is the grace period of the scheduler that was found. Returns the
    /// time between SIGTERM and SIGKILL, if it is limited.
    ///
    /// # Errors
    /// [`UsageError::Value`] for a value that is no time.
    pub(super) fn limit(
        &self,
        launcher: &mut LauncherOptions,
        surroundings: &Surroundings<'_>,
        usual: Option<Duration>,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<Option<Duration>, UsageError> {
        let shutdown = self.shutdown_timeout.clone().or_else(|| {
            let given = surroundings.variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
            given.map(|given| given.read(seconds))
        });
        let limits = limits(shutdown, value_of(&self.grace_period)?, usual, warnings)?;
        launcher.agent.shutdown_timeout = Some(limits.shutdown_timeout);
        launcher.exit_limits = limits.grace.map(|(_, limits)| limits);
        Ok(limits.grace.map(|(grace, _)| grace))
    }
}

fn limits(
    shutdown: Option<Parsed<Duration>>,
    grace: Option<Duration>,
    usual: Option<Duration>,
    warnings: &mut Vec<StartWarning>,
) -> Result<Limits, UsageError> {
    let timeout = value_of(&shutdown)?;
    // Given without a grace period, the shutdown timeout may be for a longer one than usual.
    let Some(grace) = grace.or(usual.filter(|_| timeout.is_none())) else {
        return Ok(Limits {
            shutdown_timeout: timeout.unwrap_or(AgentOptions::DEFAULT_SHUTDOWN_TIMEOUT),
            grace: None,
        });
    };
    let left = grace - reserve(grace);
    if let Some(Parsed { given, .. }) = shutdown.filter(|_| timeout > Some(left)) {
        let text = format!(
            "{} is {:?}, but workers are killed {left:?} after a signal, before the grace period of {grace:?} ends",
            given.name, given.value,
        );
        warnings.push(StartWarning::new(WarningKind::Timeouts, text));
    }
    Ok(Limits {
        shutdown_timeout: timeout.map_or(left, |timeout| timeout.min(left)),
        grace: Some((grace, exit_limits(grace))),
    })
}

/// Limits of this process, so that it has ended before a scheduler kills it.
fn exit_limits(grace: Duration) -> ExitLimits {
    let reserve = reserve(grace);
    ExitLimits::new(reserve / 2, grace - reserve / 4)
}

/// The part of a grace period for killing workers, leaving the rendezvous, and exiting.
fn reserve(grace_period: Duration) -> Duration {
    let tenth = grace_period / 10;
    let least = RESERVE_MIN.min(grace_period / 2);
    tenth.clamp(least, RESERVE_MAX)
}

fn signal_target(text: &str) -> Result<SignalTarget, Refusal> {
    match text {
        "worker" => Ok(SignalTarget::Worker),
        "group" => Ok(SignalTarget::Group),
        _ => Err(Refusal::IsNot("worker or group")),
    }
}

fn grace_period(text: &str) -> Result<Duration, Refusal> {
    /// A week: longer than any scheduler waits, and short enough for all arithmetic.
    const GRACE_PERIOD_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
    time_above_0(text)
        .filter(|time| *time <= GRACE_PERIOD_MAX)
        .ok_or(Refusal::IsNot("a time above 0, for example 30s or 2m"))
}

fn seconds(text: &str) -> Result<Duration, Refusal> {
    number(text, "a whole number of seconds, 0 or more").map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::super::error::Given;
    use super::*;

    fn limits(
        grace: Option<&str>,
        shutdown: Option<&str>,
        usual_secs: Option<u64>,
    ) -> (String, Vec<String>) {
        let option = |name: &str, value: Option<&str>, read| {
            let given = value.map(|value| Given {
                name: name.to_owned(),
                value: value.to_owned(),
            });
            given.map(|given| given.read(read))
        };
        let shutdown = option("--shutdown-timeout", shutdown, seconds);
        let grace = value_of(&option("--grace-period", grace, grace_period));
        let usual = usual_secs.map(Duration::from_secs);
        let mut warnings = Vec::new();
        let limits = grace.and_then(|grace| super::limits(shutdown, grace, usual, &mut warnings));
        let text = match limits {
            Ok(Limits {
                shutdown_timeout,
                grace: None,
            }) => format!("{shutdown_timeout:?}"),
            Ok(Limits {
                shutdown_timeout,
                grace: Some((grace, limits)),
            }) => {
                assert!(shutdown_timeout + limits.leave <= limits.exit, "{limits:?}");
                assert!(limits.exit < grace, "{limits:?}");
                format!(
                    "{shutdown_timeout:?}, leave {:?}, exit {:?}",
                    limits.leave, limits.exit
                )
            }
            Err(error) => error.to_string(),
        };
        let warnings = warnings.iter().map(StartWarning::to_string);
        (text, warnings.collect::<Vec<_>>())
    }

    #[test]
    fn workers_are_killed_before_the_grace_period_ends() {
        for (grace, shutdown, usual, expected) in [
            (None, None, None, "30s"),
            (None, Some("7"), None, "7s"),
            (None, None, Some(30), "27s, leave 1.5s, exit 29.25s"),
            (None, Some("60"), Some(30), "60s"),
            (Some("30s"), None, None, "27s, leave 1.5s, exit 29.25s"),
            (Some("2m"), None, Some(30), "115s, leave 2.5s, exit 118.75s"),
            (Some("10s"), None, None, "9s, leave 500ms, exit 9.75s"),
            (Some("5"), None, None, "4s, leave 500ms, exit 4.75s"),
            (Some("1s"), None, None, "500ms, leave 250ms, exit 875ms"),
            (
                Some("2m"),
                Some("20"),
                None,
                "20s, leave 2.5s, exit 118.75s",
            ),
            (Some("2m"), Some("0"), None, "0ns, leave 2.5s, exit 118.75s"),
        ] {
            let (limits, warnings) = limits(grace, shutdown, usual);
            assert_eq!(limits, expected, "{grace:?} {shutdown:?} {usual:?}");
            assert!(warnings.is_empty(), "{warnings:?}");
        }
    }

    #[test]
    fn a_shutdown_timeout_beyond_the_grace_period_is_cut_with_a_warning() {
        let (text, warnings) = limits(Some("10s"), Some("30"), None);
        assert_eq!(text, "9s, leave 500ms, exit 9.75s");
        assert_eq!(
            warnings,
            [
                "--shutdown-timeout is \"30\", but workers are killed 9s after a signal, before the grace period of 10s \
                 ends"
            ]
        );
    }

    #[test]
    fn a_grace_period_is_a_time_above_0() {
        for text in [
            "",
            "0",
            "-1s",
            "soon",
            "8d",
            "200h",
            "99999999999999999999s",
        ] {
            let (error, _) = limits(Some(text), None, None);
            assert_eq!(
                error,
                format!(
                    "--grace-period is {text:?}; expected a time above 0, for example 30s or 2m"
                )
            );
        }
    }
}
