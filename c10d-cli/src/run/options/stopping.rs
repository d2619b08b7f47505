//! How much time workers and the launcher have after a signal.

use std::time::Duration;

use super::given::{Given, UsageError};
use crate::quantity::parse_duration;

/// PyTorch's: how long workers have to exit after a signal, outside of schedulers.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest reserve at the end of a grace period. Killing workers and leaving the rendezvous take milliseconds, if
/// the machines and the network work.
const RESERVE_MAX: Duration = Duration::from_secs(5);

/// The shortest reserve, unless that were more than half of the grace period.
const RESERVE_MIN: Duration = Duration::from_secs(1);

/// The options about the end of a job by a signal.
#[derive(Debug)]
pub(super) struct Stopping {
    pub(super) grace_period: Option<Given>,
    pub(super) shutdown_timeout: Option<Given>,
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

impl Stopping {
    /// How long workers have to exit after a signal, and the limits of the launcher. `usual` is the grace period of the
    /// scheduler that was found.
    ///
    /// # Errors
    /// [`UsageError::Value`] for a value that is no time.
    pub(super) fn limits(
        self,
        usual: Option<Duration>,
        warnings: &mut Vec<String>,
    ) -> Result<(Duration, Option<ExitLimits>), UsageError> {
        let shutdown = match self.shutdown_timeout {
            Some(given) => {
                let seconds = given
                    .clone()
                    .number("a whole number of seconds, 0 or more")?;
                Some((given, Duration::from_secs(seconds)))
            }
            None => None,
        };
        let grace = match self.grace_period {
            Some(given) => Some(read_grace_period(&given)?),
            // Given without a grace period, the shutdown timeout may be for a longer one than usual.
            None => usual.filter(|_| shutdown.is_none()),
        };
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

fn read_grace_period(given: &Given) -> Result<Duration, UsageError> {
    /// A week: longer than any scheduler waits, and short enough for all arithmetic.
    const GRACE_PERIOD_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
    match parse_duration(given.value.trim()) {
        Ok(time) if !time.is_zero() && time <= GRACE_PERIOD_MAX => Ok(time),
        _ => Err(given.clone().refused("a time above 0, as in 30s or 2m")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(
        grace: Option<&str>,
        shutdown: Option<&str>,
        usual_secs: Option<u64>,
    ) -> (String, Vec<String>) {
        let given = |name: &str, value: Option<&str>| {
            value.map(|value| Given {
                name: name.to_owned(),
                value: value.to_owned(),
            })
        };
        let stopping = Stopping {
            grace_period: given("--grace-period", grace),
            shutdown_timeout: given("--shutdown-timeout", shutdown),
        };
        let mut warnings = Vec::new();
        let text = match stopping.limits(usual_secs.map(Duration::from_secs), &mut warnings) {
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
