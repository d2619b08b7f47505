//! The options of `c10d run` about restarts, progress, and the report on both. Pure.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use elastic_agent::{RestartBudget, RestartRules};

use super::headings::OUTPUT;
use crate::quantity::parse_duration;

/// The options as text.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RestartArgs {
    /// Exit codes of workers, negative for signals, that end the job on all nodes at once, as in 93,-6.
    #[arg(
        hide_short_help = true,
        long,
        alias = "no_restart_exit_codes",
        value_name = "CODES",
        allow_hyphen_values = true
    )]
    no_restart_exit_codes: Option<String>,

    /// Also restarts workers after Python errors that each start meets again, such as a module that is missing.
    /// Otherwise they end the job on all nodes.
    #[arg(hide_short_help = true, long, alias = "restart_on_fatal_errors")]
    restart_on_fatal_errors: bool,

    /// How many restarts are allowed within any period, as in 10/1h. In place of --max-restarts, or besides it.
    #[arg(
        hide_short_help = true,
        long,
        alias = "restart_budget",
        value_name = "N/TIME"
    )]
    restart_budget: Option<String>,

    /// How many restarts in a row may bring no progress; then the job ends on all nodes. In place of --max-restarts, or
    /// besides it.
    #[arg(
        hide_short_help = true,
        long,
        alias = "max_restarts_without_progress",
        value_name = "N",
        allow_negative_numbers = true
    )]
    max_restarts_without_progress: Option<String>,

    /// A file to which the script writes its step, as a number. Each worker also finds a file of its own in
    /// $C10D_PROGRESS_FILE; `c10d progress STEP` writes it.
    #[arg(
        hide_short_help = true,
        long,
        alias = "progress_file",
        value_name = "FILE"
    )]
    progress_file: Option<String>,

    /// Workers that report no step for this long are stuck: they are stopped and restarted. Counted from the first step
    /// after each start. [default: never]
    #[arg(
        hide_short_help = true,
        long,
        alias = "progress_timeout",
        value_name = "TIME"
    )]
    progress_timeout: Option<String>,

    /// The same until the first step. For nodes whose workers report steps. [default: never]
    #[arg(
        hide_short_help = true,
        long,
        alias = "first_progress_timeout",
        value_name = "TIME"
    )]
    first_progress_timeout: Option<String>,

    /// Appends a line of JSON about each round to this file, and PyTorch's events.
    #[arg(help_heading = OUTPUT, hide_short_help = true, long, value_name = "FILE")]
    events: Option<String>,

    /// Prints at the end where the time of this node went.
    #[arg(help_heading = OUTPUT, hide_short_help = true, long)]
    summary: bool,

    /// `console` prints PyTorch's events as JSON on standard error; `null` and `dynamic_rendezvous` print nothing.
    /// [default: null]
    #[arg(help_heading = OUTPUT, hide_short_help = true, long, aliases = ["event_log_handler", "ev", "eve", "even", "event"], value_name = "NAME")]
    event_log_handler: Option<String>,
}

/// The parsed options.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RestartPlan {
    pub(crate) rules: RestartRules,
    /// The file that the workers of this node share for their steps.
    pub(crate) progress_file: Option<PathBuf>,
    /// After which time without progress workers are stuck; `None` for never.
    pub(crate) progress_timeout: Option<Duration>,
    /// The same until the first progress.
    pub(crate) first_progress_timeout: Option<Duration>,
    /// The file for events.
    pub(crate) events: Option<PathBuf>,
    /// Whether PyTorch's events go to standard error.
    pub(crate) has_console_events: bool,
    /// Whether to print where the time went.
    pub(crate) has_summary: bool,
}

impl RestartPlan {
    /// Whether anything depends on the workers' progress.
    pub(crate) const fn watches_progress(&self) -> bool {
        self.progress_file.is_some()
            || self.progress_timeout.is_some()
            || self.first_progress_timeout.is_some()
            || self.rules.max_without_progress.is_some()
            || self.events.is_some()
            || self.has_summary
    }
}

/// A value that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedValue {
    /// The option or the variable.
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) expected: &'static str,
}

/// A value and the name of the option or variable that gave it.
type Named = (String, String);

/// The value of an option: on the command line, or else in the environment.
type Given<'a> = &'a dyn Fn(&str, Option<String>) -> Option<Named>;

impl RestartArgs {
    /// Parses the options; `flag` decides about one that has no value.
    ///
    /// # Errors
    /// The first value that cannot be used, or what `flag` refuses.
    pub(crate) fn resolve<E: From<RefusedValue>>(
        self,
        max_restarts: Option<usize>,
        given: Given<'_>,
        flag: impl Fn(&str, bool) -> Result<bool, E>,
    ) -> Result<RestartPlan, E> {
        let path = |option, value| {
            let given = given(option, value).filter(|(_, value)| !value.is_empty());
            given.map(|(_, value)| PathBuf::from(value))
        };
        let mut rules = RestartRules::default();
        rules.max_restarts = max_restarts;
        rules.final_exit_codes = given("no-restart-exit-codes", self.no_restart_exit_codes)
            .map_or(Ok(BTreeSet::new()), exit_codes)?;
        rules.restarts_on_fatal_errors =
            flag("restart-on-fatal-errors", self.restart_on_fatal_errors)?;
        rules.budget = given("restart-budget", self.restart_budget)
            .map(budget)
            .transpose()?;
        rules.max_without_progress = given(
            "max-restarts-without-progress",
            self.max_restarts_without_progress,
        )
        .map(whole_number)
        .transpose()?;
        Ok(RestartPlan {
            rules,
            progress_file: path("progress-file", self.progress_file),
            progress_timeout: given("progress-timeout", self.progress_timeout)
                .map_or(Ok(None), time)?,
            first_progress_timeout: given("first-progress-timeout", self.first_progress_timeout)
                .map_or(Ok(None), time)?,
            events: path("events", self.events),
            has_console_events: given("event-log-handler", self.event_log_handler)
                .map_or(Ok(false), is_console)?,
            has_summary: flag("summary", self.summary)?,
        })
    }
}

fn refused((name, value): Named, expected: &'static str) -> RefusedValue {
    RefusedValue {
        name,
        value,
        expected,
    }
}

fn exit_codes(given: Named) -> Result<BTreeSet<i32>, RefusedValue> {
    let codes = given
        .1
        .split(',')
        .map(str::trim)
        .filter(|code| !code.is_empty());
    let codes: Result<BTreeSet<i32>, _> = codes.map(str::parse).collect();
    match codes {
        Ok(codes)
            if codes
                .iter()
                .all(|code| (-64..=255).contains(code) && *code != 0) =>
        {
            Ok(codes)
        }
        _ => Err(refused(
            given,
            "exit codes of failures, 1 to 255 or -1 to -64 for signals, as in 93,-6",
        )),
    }
}

fn budget(given: Named) -> Result<RestartBudget, RefusedValue> {
    let parse = |text: &str| {
        let (restarts, window) = text.split_once('/')?;
        Some(RestartBudget {
            restarts: restarts.trim().parse().ok()?,
            window: parse_duration(window.trim())
                .ok()
                .filter(|it| !it.is_zero())?,
        })
    };
    parse(&given.1).ok_or_else(|| refused(given, "a number and a period, as in 10/1h"))
}

fn whole_number(given: Named) -> Result<usize, RefusedValue> {
    let number = given.1.trim().parse();
    number.map_err(|_| refused(given, "a whole number, 0 or more"))
}

fn time(given: Named) -> Result<Option<Duration>, RefusedValue> {
    match given.1.trim() {
        "never" => Ok(None),
        text => match parse_duration(text) {
            Ok(time) if !time.is_zero() => Ok(Some(time)),
            _ => Err(refused(
                given,
                "a time above 0 as in 30s or 10m, or `never`",
            )),
        },
    }
}

/// PyTorch's names (`torch/distributed/elastic/events/handlers.py`).
fn is_console(given: Named) -> Result<bool, RefusedValue> {
    match given.1.as_str() {
        "console" => Ok(true),
        "null" | "dynamic_rendezvous" => Ok(false),
        _ => Err(refused(
            given,
            "console, null or dynamic_rendezvous; handlers in Python cannot be loaded",
        )),
    }
}
