//! How much time workers and the launcher have after a signal.

use std::time::Duration;

use clap::Args;

use super::error::UsageError;
use super::given::{Parsed, Read, Refusal, Surroundings, value_of};
use super::values::{list, number, time};
use crate::run::headings::STOPPING;

/// PyTorch's: how long workers have to exit after a signal, outside of schedulers.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest reserve at the end of a grace period. Killing workers and leaving the rendezvous take milliseconds, if
/// the machines and the network work.
const RESERVE_MAX: Duration = Duration::from_secs(5);

/// The shortest reserve, unless that were more than half of the grace period.
const RESERVE_MIN: Duration = Duration::from_secs(1);

/// The options about the end of a job by a signal.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = STOPPING)]
pub(super) struct StoppingArgs {
    /// The time that the scheduler leaves between SIGTERM and SIGKILL, as in 30s or 2m: the workers are killed, and
    /// this node leaves the job, before it ends. [default: the scheduler's, if one is found]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = Read(grace_period))]
    grace_period: Option<Parsed<Duration>>,

    /// The signals that stop the workers before the launcher. [default: SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(
        hide_short_help = true,
        long,
        value_name = "NAME,...",
        default_value = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        value_parser = Read(list)
    )]
    pub(super) signals_to_handle: Parsed<Vec<String>>,

    /// How long workers have to exit after such a signal, before SIGKILL.
    /// [default: $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30]
    #[arg(hide_short_help = true, long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = Read(seconds))]
    shutdown_timeout: Option<Parsed<Duration>>,
}

/// Limits of this process after a signal, so that it has ended before a scheduler kills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitLimits {
    /// The time between SIGTERM and SIGKILL.
    pub(crate) grace_period: Duration,
    /// How long leaving the rendezvous may take.
    pub(crate) leave: Duration,
    /// How long after the signal this process ends, even if it waits for something.
    pub(crate) exit: Duration,
}

impl StoppingArgs {
    /// How long workers have to exit after a signal, and the limits of the launcher. `usual` is the grace period of the
    /// scheduler that was found.
    ///
    /// # Errors
    /// [`UsageError::Value`] for a value that is no time.
    pub(super) fn limits(
        &mut self,
        surroundings: &Surroundings<'_>,
        usual: Option<Duration>,
        warnings: &mut Vec<String>,
    ) -> Result<(Duration, Option<ExitLimits>), UsageError> {
        let shutdown = self.shutdown_timeout.take().or_else(|| {
            let given = surroundings.variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
            given.map(|given| given.read(seconds))
        });
        limits(shutdown, self.grace_period.take(), usual, warnings)
    }
}

fn limits(
    shutdown: Option<Parsed<Duration>>,
    grace: Option<Parsed<Duration>>,
    usual: Option<Duration>,
    warnings: &mut Vec<String>,
) -> Result<(Duration, Option<ExitLimits>), UsageError> {
    let shutdown = shutdown.map(Parsed::into_parts).transpose()?;
    // Given without a grace period, the shutdown timeout may be for a longer one than usual.
    let usual = usual.filter(|_| shutdown.is_none());
    let grace = value_of(grace)?.or(usual);
    let Some(grace) = grace else {
        return Ok((
            shutdown.map_or(SHUTDOWN_TIMEOUT, |(_, timeout)| timeout),
            None,
        ));
    };
    let limits = ExitLimits::of(grace);
    let left = grace - reserve(grace);
    let timeout = match shutdown {
        Some((given, timeout)) if timeout > left => {
            warnings.push(format!(
                "{} is {:?}, but workers are killed {left:?} after a signal, before the grace period of {grace:?} \
                 ends",
                given.name, given.value,
            ));
            left
        }
        Some((_, timeout)) => timeout,
        None => left,
    };
    Ok((timeout, Some(limits)))
}

impl ExitLimits {
    fn of(grace_period: Duration) -> Self {
        let reserve = reserve(grace_period);
        Self {
            grace_period,
            leave: reserve / 2,
            exit: grace_period - reserve / 4,
        }
    }
}

/// The part of a grace period for killing workers, leaving the rendezvous, and exiting.
fn reserve(grace_period: Duration) -> Duration {
    let tenth = grace_period / 10;
    let least = RESERVE_MIN.min(grace_period / 2);
    tenth.clamp(least, RESERVE_MAX)
}

fn grace_period(text: &str) -> Result<Duration, Refusal> {
    /// A week: longer than any scheduler waits, and short enough for all arithmetic.
    const GRACE_PERIOD_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
    time(text)
        .filter(|time| !time.is_zero() && *time <= GRACE_PERIOD_MAX)
        .ok_or(Refusal::IsNot("a time above 0, as in 30s or 2m"))
}

fn seconds(text: &str) -> Result<Duration, Refusal> {
    number(text, "a whole number of seconds, 0 or more").map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::super::given::Given;
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
        let grace = option("--grace-period", grace, grace_period);
        let usual = usual_secs.map(Duration::from_secs);
        let mut warnings = Vec::new();
        let text = match super::limits(shutdown, grace, usual, &mut warnings) {
            Ok((timeout, None)) => format!("{timeout:?}"),
            Ok((timeout, Some(limits))) => {
                assert!(timeout + limits.leave <= limits.exit, "{limits:?}");
                assert!(limits.exit < limits.grace_period, "{limits:?}");
                format!(
                    "{timeout:?}, leave {:?}, exit {:?}",
                    limits.leave, limits.exit
                )
            }
            Err(error) => error.to_string(),
        };
        (text, warnings)
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
                format!("--grace-period is {text:?}, which is not a time above 0, as in 30s or 2m")
            );
        }
    }
}
