//! The options of `c10d run`, and the plan that follows from them.
//!
//! Pure: [`Surroundings`] provides the environment, the number of devices and randomness. The modules of the options
//! declare each of them [once](given).

mod error;
mod given;
mod hangs;
mod ignored;
mod nodes;
mod output;
mod preload;
mod rendezvous;
mod restarts;
mod script;
mod security;
mod stopping;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, Command};
use elastic_agent::scheduler;
use elastic_agent::{CommandLine, Entrypoint, HealthCheck, PreloadOptions};
use elastic_rendezvous::RendezvousParameters;

use super::headings::{AFTER_HELP, AFTER_SHORT_HELP};
use crate::secret::SecretArgs;
use error::UsageError;
pub(crate) use given::{Surroundings, with_variables};
pub(crate) use rendezvous::Origin;
pub(crate) use restarts::RestartPlan;
pub(crate) use stopping::ExitLimits;
use values::port;

/// How many threads the libraries of one worker use for computations.
const THREADS: &str = "OMP_NUM_THREADS";

/// torchrun's options and more, in the order of the help. Parse them with their [variables](with_variables).
#[derive(Debug, Clone, Args)]
#[command(
    after_help = AFTER_SHORT_HELP,
    after_long_help = AFTER_HELP,
    args_override_self = true,
    infer_long_args = true,
    disable_help_subcommand = true,
    subcommand_value_name = "SCRIPT [ARGUMENT]...",
    mut_args = explain_default
)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    nodes: nodes::NodeArgs,

    #[command(flatten)]
    how: script::ScriptArgs,

    #[command(flatten)]
    restarts: restarts::RestartArgs,

    #[command(flatten)]
    output: output::OutputArgs,

    #[command(flatten)]
    hangs: hangs::HangArgs,

    #[command(flatten)]
    stopping: stopping::StoppingArgs,

    #[command(flatten)]
    security: security::SecurityArgs,

    #[command(flatten)]
    preload: preload::PreloadArgs,

    #[command(flatten)]
    ignored: ignored::IgnoredArgs,

    #[command(subcommand)]
    script: Option<script::Script>,
}

/// The text of an option explains its default, which may depend on more than the option.
fn explain_default(arg: Arg) -> Arg {
    let takes_value = arg.get_action().takes_values();
    arg.hide_default_value(takes_value)
}

/// What `c10d run` does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunPlan {
    /// The nodes, and how they find each other. The endpoint is well-formed, unless it is a path. The
    /// settings contain `timeout`, and with the static backend `rank`.
    pub(crate) rendezvous: RendezvousParameters,
    /// How many workers this node starts, at least one.
    pub(crate) worker_count: usize,
    pub(crate) role: String,
    /// When workers are restarted, and how that is reported.
    pub(crate) restarts: RestartPlan,
    /// The scheduler whose environment was used.
    pub(crate) scheduler: Option<&'static str>,
    /// Where the values of the rendezvous and the number of workers are from, unless they are defaults.
    pub(crate) origins: Vec<Origin>,
    /// The rank of this node, if it is known before the nodes meet.
    pub(crate) node_rank: Option<usize>,
    /// Whether to print the plan only.
    pub(crate) dry_run: bool,
    /// How long workers have to exit after a signal; zero kills them at once.
    pub(crate) shutdown_timeout: Duration,
    /// The limit for all that follows from a signal, if there is one.
    pub(crate) exit_limits: Option<ExitLimits>,
    /// The names of the signals that stop the workers, not checked.
    pub(crate) signals: Vec<String>,
    /// Where this run creates its log directory; `None` for a new temporary directory.
    pub(crate) log_dir: Option<PathBuf>,
    /// The streams that go to files, in torchrun's notation, not parsed.
    pub(crate) redirects: String,
    /// The streams that go to files and to the console, likewise.
    pub(crate) tee: String,
    /// The prefix of each tee'd line; `None` for the default.
    pub(crate) log_line_prefix_template: Option<String>,
    /// The local ranks whose output is shown, sorted and unique; `None` for all.
    pub(crate) local_ranks_filter: Option<Vec<u64>>,
    /// Non-empty texts: lines of stdout that contain one go to a file of their own.
    pub(crate) duplicate_stdout_filters: Vec<String>,
    /// The same for stderr.
    pub(crate) duplicate_stderr_filters: Vec<String>,
    /// Whether each worker sees one GPU and local rank 0.
    pub(crate) virtual_local_rank: bool,
    /// What each worker executes, with `${local_rank}` not replaced.
    pub(crate) command: CommandLine,
    /// Whether to print the report as JSON.
    pub(crate) json: bool,
    /// After which time without progress the launcher explains what the job waits for; `None` for never.
    pub(crate) explain_after: Option<Duration>,
    /// The command that must succeed before this node joins a round.
    pub(crate) health_check: Option<HealthCheck>,
    /// The port on which the launcher answers whether it is alive.
    pub(crate) health_port: Option<u16>,
    /// Whether a watchdog ends workers whose timers expire.
    pub(crate) has_watchdog: bool,
    /// The path of the watchdog's pipe; `None` for a new file.
    pub(crate) timer_file: Option<PathBuf>,
    /// Whether stores that this node hosts have a status page.
    pub(crate) has_status: bool,
    /// What keeps strangers out of the rendezvous.
    pub(crate) secret: SecretArgs,
    /// Whether workers reach their store through a relay.
    pub(crate) has_relay: bool,
    /// The port of the relays; `None` if the nodes agree on one.
    pub(crate) relay_port: Option<u16>,
    /// Further host names of the status page.
    pub(crate) status_hosts: Vec<String>,
    /// Whether workers run a debug server.
    pub(crate) debug_server: bool,
    /// The modules that workers do not have to import.
    pub(crate) preload: Option<PreloadOptions>,
    /// The script, module or program as the user gave it.
    pub(crate) entrypoint: Entrypoint,
    /// Variables that workers get in addition to this command's own environment.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Warnings to log before the start, one line each.
    pub(crate) warnings: Vec<String>,
}

impl RunOptions {
    /// Applies what the environment says besides the options' variables.
    ///
    /// # Errors
    /// A [`UsageError`]; then nothing was started.
    pub(crate) fn resolve(self, surroundings: &Surroundings<'_>) -> Result<RunPlan, UsageError> {
        let Self {
            mut nodes,
            mut stopping,
            mut security,
            output,
            hangs,
            ..
        } = self;
        let mut warnings = Vec::new();
        let flags = Self::augment_args(Command::new("run"));
        given::check_flags(&flags, surroundings.variable)?;
        self.ignored.check(&mut warnings)?;
        let (entrypoint, command) = self.how.command(self.script, surroundings)?;
        let (found, doubts) = match nodes.no_scheduler {
            true => (None, Vec::new()),
            false => scheduler::find(surroundings.variable, surroundings.site),
        };
        let doubts = doubts.into_iter();
        warnings.extend(doubts.map(|doubt| format!("{doubt}; it is not used")));
        let (worker_count, workers_origin) = nodes.worker_count(surroundings, found.as_ref())?;
        let health_check = nodes.health_check(&mut warnings)?;
        let (dry_run, role) = (nodes.dry_run, nodes.role.clone().value()?);
        let virtual_local_rank = nodes.virtual_local_rank;
        let chosen = nodes.choose(found.as_ref(), surroundings.seed, &mut warnings)?;
        let mut origins = chosen.origins;
        origins.extend(workers_origin);
        let relay_port = security.relay_port(&mut warnings)?;
        let preload = self.preload.options(&entrypoint, &mut warnings)?;
        let health_port = health_port(surroundings, &mut warnings);
        let usual = found.as_ref().and_then(|found| found.grace_period);
        let (shutdown_timeout, exit_limits) =
            stopping.limits(surroundings, usual, &mut warnings)?;
        let (signals, signal_names) = stopping.signals_to_handle.into_parts()?;
        // Workers that launch others pass this on (`torch/distributed/launcher/api.py`).
        let mut environment = vec![("TORCHELASTIC_SIGNALS_TO_HANDLE", signals.value)];
        // So that several workers do not overload this machine, as with torchrun.
        if worker_count > 1 && surroundings.variable(THREADS).is_none() {
            environment.push((THREADS, "1".to_owned()));
        }
        Ok(RunPlan {
            rendezvous: chosen.parameters.with_relays(security.relay),
            worker_count,
            role,
            restarts: RestartPlan {
                events: output.events.value()?,
                has_console_events: output.event_log_handler.value()?,
                has_summary: output.summary,
                ..self.restarts.plan()?
            },
            scheduler: found.map(|found| found.scheduler),
            origins,
            node_rank: chosen.node_rank,
            dry_run,
            shutdown_timeout,
            exit_limits,
            signals: signal_names,
            log_dir: output.log_dir.value()?,
            redirects: output.redirects.value()?,
            tee: output.tee.value()?,
            log_line_prefix_template: output
                .log_line_prefix_template
                .value()
                .map(|template| Some(template).filter(|template| !template.is_empty()))?
                .or_else(|| (surroundings.variable)("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"))
                .filter(|template| !template.is_empty()),
            local_ranks_filter: output.local_ranks_filter.value()?,
            duplicate_stdout_filters: output.duplicate_stdout_filters.value()?,
            duplicate_stderr_filters: output.duplicate_stderr_filters.value()?,
            virtual_local_rank,
            entrypoint,
            command,
            json: output.json,
            explain_after: hangs.explain_after.value()?,
            health_check,
            health_port,
            has_watchdog: surroundings
                .variable("TORCHELASTIC_ENABLE_FILE_TIMER")
                .is_some_and(|given| given.value == "1"),
            timer_file: surroundings
                .variable("TORCHELASTIC_TIMER_FILE")
                .map(|given| given.value.into()),
            has_status: !hangs.no_status,
            status_hosts: hangs.status_host.value()?,
            debug_server: hangs.debug_server,
            has_relay: security.relay,
            relay_port,
            secret: security.secret,
            preload,
            environment,
            warnings,
        })
    }
}

/// torchrun goes on without a server, too, if the variable is no number.
fn health_port(surroundings: &Surroundings<'_>, warnings: &mut Vec<String>) -> Option<u16> {
    let given = surroundings.variable("TORCHELASTIC_HEALTH_CHECK_PORT")?;
    match port(&given.value) {
        Ok(port) => Some(port),
        Err(_) => {
            warnings.push(given.has_no_effect("it is not a port, 1 to 65535"));
            None
        }
    }
}

#[cfg(test)]
mod tests;
