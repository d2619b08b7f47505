//! The options of `c10d run`, and the plan that follows from them.
//!
//! Pure: [`Surroundings`] provides the environment, the number of devices and randomness. The modules of the options
//! declare each of them [once](arguments).

mod arguments;
mod debugging;
mod error;
mod keep;
mod nodes;
mod output;
mod ports;
mod rendezvous;
mod restarts;
mod script;
mod security;
mod stopping;
mod stores;
mod timeouts;
mod torchrun;
mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use arguments::{Origin, Surroundings, with_variables};
use c10d_socket::Credentials;
use clap::{Arg, Args, Command};
pub(crate) use debugging::DEBUGGER;
use elastic_agent::{AgentOptions, Entrypoint, LauncherOptions, scheduler};
use elastic_rendezvous::{StartWarning, start_warnings};
use error::UsageError;
use values::port;

use super::headings::{AFTER_HELP, AFTER_SHORT_HELP};
#[cfg(feature = "etcd")]
use crate::etcd::{EtcdAccessArgs, EtcdCandidateArgs};
use crate::failure::Failure;
use crate::server_address::is_in_etcd;

/// How many threads the libraries of one worker use for computations.
const THREADS: &str = "OMP_NUM_THREADS";

/// `1` on all nodes: all nodes have the same number of workers, so ranks need no exchange.
const IDENTICAL_WORKERS: &str = "TORCH_ELASTIC_WORKER_IDENTICAL";

/// Names the file in which the launcher writes why it failed, like in PyTorch.
const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

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
    stores: stores::StoreArgs,

    #[command(flatten)]
    how: script::ScriptArgs,

    #[command(flatten)]
    restarts: restarts::RestartArgs,

    #[command(flatten)]
    keep: keep::KeepArgs,

    #[command(flatten)]
    output: output::OutputArgs,

    #[command(flatten)]
    hangs: debugging::HangArgs,

    #[command(flatten)]
    debugging: debugging::DebugArgs,

    #[command(flatten)]
    stopping: stopping::StoppingArgs,

    #[command(flatten)]
    security: security::SecurityArgs,

    #[command(flatten)]
    preload: restarts::PreloadArgs,

    #[command(flatten)]
    ignored: torchrun::IgnoredArgs,

    #[command(subcommand)]
    script: Option<script::Script>,
}

/// The text of an option explains its default, which may depend on more than the option.
fn explain_default(arg: Arg) -> Arg {
    let takes_value = arg.get_action().takes_values();
    arg.hide_default_value(takes_value)
}

/// The plan of a `c10d run`.
#[derive(Debug, Clone)]
pub(crate) struct RunPlan {
    /// The options of the launcher. The endpoint of the rendezvous is well-formed, unless it is a path. Its settings
    /// contain `timeout`, and with the static backend `rank`.
    pub(crate) launcher: LauncherOptions,
    /// The scheduler whose environment was used.
    pub(crate) scheduler: Option<&'static str>,
    /// The origins of the values of the rendezvous and of the number of workers, unless they are defaults.
    pub(crate) origins: Vec<Origin>,
    /// The rank of this node, if it is known before the nodes meet.
    pub(crate) node_rank: Option<usize>,
    /// The directory of the rendezvous' store, if this node serves it.
    pub(crate) store_dir: Option<PathBuf>,
    /// How many launchers are candidates to serve the store; `None` if it is not in etcd.
    pub(crate) store_candidates: Option<usize>,
    /// The port at which they do; `None` for a free one.
    pub(crate) store_port: Option<u16>,
    /// Variables that workers get in addition to this command's own environment.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// The time between SIGTERM and SIGKILL, if it is limited.
    pub(crate) grace_period: Option<Duration>,
    /// The rank that a person debugs.
    pub(crate) debug_rank: Option<usize>,
    /// Whether to print the plan only.
    pub(crate) dry_run: bool,
    /// Whether to print the plan or the report as JSON.
    pub(crate) json: bool,
    /// The timeouts that depend on each other, the shortest one first, with the options that set them.
    pub(crate) timeouts: Vec<(&'static str, Duration)>,
    /// The warnings about the job that are found before the start.
    pub(crate) warnings: Vec<StartWarning>,
}

impl RunPlan {
    /// One line for each, as the run logs them before it starts.
    pub(crate) fn warning_texts(&self) -> Vec<String> {
        self.warnings.iter().map(ToString::to_string).collect()
    }
}

impl RunOptions {
    /// Returns the same options with a script that need not exist.
    pub(crate) fn without_script(self) -> Self {
        Self {
            how: script::ScriptArgs::of_file(),
            script: Some(script::Script::Command(vec!["none.py".into()])),
            ..self
        }
    }

    /// The credentials that the stores of the job require. Reads the file that the options or the environment name.
    pub(crate) fn credentials(&self) -> Result<Option<Credentials>, Failure> {
        self.security.secret.credentials()
    }

    /// The options for etcd itself.
    #[cfg(feature = "etcd")]
    pub(crate) fn etcd_args(&self) -> (EtcdAccessArgs, EtcdCandidateArgs) {
        (self.security.etcd.clone(), self.stores.candidate.clone())
    }

    /// Applies what the environment says besides the options' variables.
    ///
    /// # Errors
    /// A [`UsageError`]; then nothing was started.
    pub(crate) fn resolve(self, surroundings: &Surroundings<'_>) -> Result<RunPlan, UsageError> {
        let mut warnings = Vec::new();
        let flags = Self::augment_args(Command::new("run"));
        arguments::check_flags(&flags, surroundings.variable)?;
        self.ignored.check(&mut warnings)?;
        let (entrypoint, command) = self.how.command(self.script, surroundings)?;
        let (found, doubts) = match self.nodes.no_scheduler {
            true => (None, Vec::new()),
            false => scheduler::find(surroundings.variable, surroundings.site),
        };
        let doubts = doubts.into_iter();
        warnings.extend(doubts.map(|doubt| format!("{doubt}; it is not used").into()));
        let found = found.as_ref();
        let chosen = self.nodes.choose(found, surroundings, &mut warnings)?;
        let mut origins = chosen.origins;
        let is_in_etcd = is_in_etcd(chosen.parameters.endpoint());
        let has_relay = self.security.relay || is_in_etcd;
        let relay_port = self.security.relay_port(has_relay, &mut warnings)?;
        let store_candidates = self.stores.candidates(is_in_etcd, &mut warnings)?;
        let store_port = self.stores.port(is_in_etcd, &mut warnings)?;
        let (worker_count, workers_origin) =
            self.nodes
                .worker_count(surroundings, found, &mut warnings)?;
        origins.extend(workers_origin);
        let world_size = (chosen.parameters.max_nodes() == 1).then_some(worker_count);
        let debug_rank = self.debugging.rank(world_size)?;
        let preload = self.preload.options(&entrypoint, &mut warnings)?;
        let preload = match &debug_rank {
            Some(_) => debugging::without_preload(preload, &mut warnings),
            None => preload,
        };
        let health_port = health_port(surroundings, &mut warnings);
        let join_timeout = timeouts::join_timeout(&chosen.parameters);
        let health_check = self.nodes.health_check(join_timeout, &mut warnings)?;
        let usual = found.and_then(|found| found.grace_period);
        let limits = self.stopping.limits(surroundings, usual, &mut warnings)?;
        let signals = &self.stopping.signals_to_handle;
        // Workers that launch others pass this on (`torch/distributed/launcher/api.py`).
        let mut environment = vec![(
            "TORCHELASTIC_SIGNALS_TO_HANDLE",
            signals.given.value.clone(),
        )];
        // So that several workers do not overload this machine, as with torchrun.
        if worker_count > 1 && surroundings.variable(THREADS).is_none() {
            environment.push((THREADS, "1".to_owned()));
        }
        let inherited = surroundings.environment.iter().cloned();
        let added = environment.iter();
        let added = added.map(|(name, value)| ((*name).into(), value.into()));
        let events_file = self.output.events_file()?;
        let rules = self.restarts.rules()?;
        let keep = self.keep.options(&rules, &mut warnings)?;
        let progress = self
            .restarts
            .progress(events_file.is_some(), debug_rank.is_some())?;
        let progress_timeout = progress.as_ref().and_then(|progress| progress.timeout);
        let mut agent = AgentOptions::new(command, worker_count)
            .with_name(entrypoint.name().to_string_lossy())
            .with_role(self.nodes.role.value()?)
            .with_restart_rules(rules)
            .with_keep_workers(keep)
            .with_stop_on_job_failure(self.restarts.stops_on_job_failure()?)
            .with_progress(progress)
            .with_debug_rank(debug_rank)
            .with_debugger(debugging::debugger(&entrypoint, surroundings))
            .with_shutdown_timeout(limits.shutdown_timeout)
            .with_signal_target(self.stopping.signal_target(&entrypoint)?)
            .with_logs(self.output.logs()?)
            .with_virtual_local_rank(self.nodes.virtual_local_rank)
            .with_identical_nodes(surroundings.is_on(IDENTICAL_WORKERS))
            .with_relay(has_relay)
            .with_relay_port(relay_port)
            .with_preload(preload)
            .with_health_check(health_check)
            .with_watchdog(
                debug_rank.is_none() && surroundings.is_on("TORCHELASTIC_ENABLE_FILE_TIMER"),
            )
            .with_timer_file((surroundings.variable)("TORCHELASTIC_TIMER_FILE").map(PathBuf::from))
            .with_environment(inherited.chain(added).collect::<BTreeMap<_, _>>());
        if let Some(template) = self.output.line_prefix_template(surroundings)? {
            agent = agent.with_line_prefix_template(template);
        }
        let rendezvous = self
            .stores
            .apply(chosen.parameters, is_in_etcd, &mut warnings)?;
        let mut rendezvous = rendezvous.with_relays(has_relay);
        if debug_rank.is_some() {
            let given = self.nodes.rdzv_conf.value()?;
            let is_given = |key: &str| given.contains_key(key);
            rendezvous = debugging::without_join_timeout(rendezvous, is_given);
        }
        if let Some(credentials) = &surroundings.credentials {
            rendezvous = rendezvous.with_credentials(credentials.clone());
        }
        let interpreter = match entrypoint {
            Entrypoint::Program(_) => None,
            _ => surroundings.interpreter.remark.clone(),
        };
        let explain_after = self.hangs.explain_after(progress_timeout)?;
        let explain_after = explain_after.filter(|_| debug_rank.is_none());
        let doubt = ports::warning(&rendezvous, relay_port, store_port, surroundings);
        warnings.extend(doubt);
        let launcher = LauncherOptions::new(agent, rendezvous)
            .with_interpreter(interpreter)
            .with_entrypoint(entrypoint)
            .with_signals(signals.value()?)
            .with_exit_limits(limits.grace.map(|(_, limits)| limits))
            .with_explain_after(explain_after)
            .with_stacks(!self.hangs.no_stacks)
            .with_debug_servers(self.hangs.debug_server)
            .with_status_page(self.hangs.status_page()?)
            .with_store_memory_max(self.nodes.store_memory_max()?)
            .with_health_port(health_port)
            .with_events_file(events_file)
            .with_error_file(surroundings.path(ERROR_FILE));
        warnings.extend(timeouts::warnings(&launcher, explain_after));
        let timeouts = timeouts::table(&launcher, explain_after);
        warnings.extend(debug_rank.map(debugging::note));
        let launcher = launcher.with_start_warnings(warnings.clone());
        warnings.extend(start_warnings(launcher.rendezvous()));
        Ok(RunPlan {
            launcher,
            scheduler: found.map(|found| found.scheduler),
            origins,
            node_rank: chosen.node_rank,
            store_dir: self.stores.directory()?,
            store_candidates,
            store_port,
            environment,
            grace_period: limits.grace.map(|(grace, _)| grace),
            debug_rank,
            dry_run: self.nodes.dry_run,
            json: self.output.json,
            timeouts,
            warnings,
        })
    }
}

/// torchrun also continues without a server if the variable is not a number.
fn health_port(surroundings: &Surroundings<'_>, warnings: &mut Vec<StartWarning>) -> Option<u16> {
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
