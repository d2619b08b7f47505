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
use elastic_agent::{AgentOptions, Entrypoint, LauncherOptions};
use elastic_rendezvous::{RendezvousParameters, StartWarning, start_warnings};
use error::UsageError;
use values::port;

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

/// After the options of `-h`.
const AFTER_SHORT_HELP: &str = "\
One machine:
  c10d run --standalone --nproc-per-node 4 train.py
Each of two machines:
  c10d run --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node0:29400 --rdzv-id 17 train.py
Under Slurm or MPI, or in Kubernetes:
  c10d run train.py

All options, environment variables and exit codes: c10d run --help, or man c10d-run";

/// Printed after the options of `--help`.
const AFTER_HELP: &str = "\
One machine:
  c10d run --standalone --nproc-per-node 4 train.py
Each of two machines:
  c10d run --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node0:29400 --rdzv-id 17 train.py
Restart a failed job up to 3 times, and fork the workers from a process that has imported PyTorch:
  c10d run --max-restarts 3 --preload torch,torch._dynamo --nproc-per-node 8 train.py
Survive the loss of any machine, with the store in etcd:
  c10d run --nnodes 2 --nproc-per-node 8 --rdzv-endpoint etcd://etcd0,etcd1,etcd2/job-17 --rdzv-id 17 train.py
Under Slurm or MPI, or in Kubernetes:
  c10d run train.py

Each worker runs SCRIPT with all arguments after it, even those that look like options. A SCRIPT whose name
ends with .py is run by python3, or by $PYTHON_EXEC; any other is executed as a program.

Options can also be written with underscores, for example --nproc_per_node, and abbreviated as long as they are
unambiguous. The default of each option is an environment variable: PET_NPROC_PER_NODE for --nproc-per-node,
and so on; a flag is on if its variable is a number other than 0.

Under Slurm, Kubernetes or MPI, the environment gives the nodes, this node's rank, the endpoint, the id of the job and
the workers. Options replace these values, --dry-run prints them, and --no-scheduler ignores them.

A job of one node without --rdzv-backend, --rdzv-endpoint and --master-port runs as if --standalone were given.

Exit codes:
  0    all workers of this node succeeded, or the node was a spare that was not needed
  1    workers failed or could not start, the rendezvous failed, or a signal stopped the workers
  2    invalid options: nothing was started
  3    a system call failed that concerns neither workers nor rendezvous
  5    the directory of --store-dir is in use, damaged, or cannot be read or written
  128+N  signal N arrived before workers were started";

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

/// The options of the launcher of a `c10d run`, and what `--dry-run` shows in addition.
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
    /// The number of launchers that are candidates to serve the store; `None` if it is not in etcd.
    pub(crate) store_candidates: Option<usize>,
    /// The port of a candidate that serves the store; `None` for a free one.
    pub(crate) store_port: Option<u16>,
    /// The variables that workers get in addition to this command's own environment.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// The time between SIGTERM and SIGKILL, if it is limited.
    pub(crate) grace_period: Option<Duration>,
    /// Whether to print the plan only.
    pub(crate) dry_run: bool,
    /// Whether to print the plan or the report as JSON.
    pub(crate) json: bool,
}

impl RunPlan {
    /// Returns the warnings about the job that are found before the start.
    pub(crate) fn warnings(&self) -> Vec<StartWarning> {
        let mut warnings = self.launcher.start_warnings.clone();
        warnings.extend(start_warnings(&self.launcher.rendezvous));
        warnings
    }

    /// Returns one line for each warning, as the run logs them before it starts.
    pub(crate) fn warning_texts(&self) -> Vec<String> {
        self.warnings().iter().map(ToString::to_string).collect()
    }

    /// Returns the timeouts that depend on each other, the shortest one first, with the options that set them.
    pub(crate) fn timeouts(&self) -> Vec<(&'static str, Duration)> {
        timeouts::table(&self.launcher)
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
    pub(crate) fn resolve(
        mut self,
        surroundings: &Surroundings<'_>,
    ) -> Result<RunPlan, UsageError> {
        let mut warnings = Vec::new();
        let flags = Self::augment_args(Command::new("run"));
        arguments::check_flags(&flags, surroundings.variable)?;
        self.ignored.check(&mut warnings)?;
        let script = self.script.take();
        let (entrypoint, command) = self.how.command(script, surroundings)?;
        let found = self.nodes.scheduler(surroundings, &mut warnings);
        let found = found.as_ref();
        let chosen = self.nodes.choose(found, surroundings, &mut warnings)?;
        let mut origins = chosen.origins;
        let is_in_etcd = is_in_etcd(chosen.parameters.endpoint());
        let store_candidates = self.stores.candidates(is_in_etcd, &mut warnings)?;
        let store_port = self.stores.port(is_in_etcd, &mut warnings)?;
        let (worker_count, workers_origin) =
            self.nodes
                .worker_count(surroundings, found, &mut warnings)?;
        origins.extend(workers_origin);

        let mut agent = AgentOptions::new(command, worker_count);
        agent.name = entrypoint.name().to_string_lossy().into_owned();
        let world_size = (chosen.parameters.max_nodes() == 1).then_some(worker_count);
        agent.debug_rank = self.debugging.rank(world_size)?;
        self.security.apply(&mut agent, is_in_etcd, &mut warnings)?;
        let rendezvous = self.rendezvous(chosen.parameters, &agent, surroundings, &mut warnings)?;
        let mut launcher = LauncherOptions::new(agent, rendezvous);
        self.nodes.apply(&mut launcher, &mut warnings)?;
        self.output.apply(&mut launcher, surroundings)?;
        self.restarts.apply(&mut launcher)?;
        self.keep.apply(&mut launcher.agent, &mut warnings)?;
        self.preload
            .apply(&mut launcher.agent, &entrypoint, &mut warnings)?;
        self.hangs.apply(&mut launcher)?;
        let usual = found.and_then(|found| found.grace_period);
        let stopping = &self.stopping;
        stopping.apply(&mut launcher, &entrypoint)?;
        let grace_period = stopping.limit(&mut launcher, surroundings, usual, &mut warnings)?;
        surroundings.apply(&mut launcher, &entrypoint, &mut warnings);
        launcher.entrypoint = Some(entrypoint);

        let environment = self.added_variables(worker_count, surroundings);
        let added = environment.iter();
        let added = added.map(|(name, value)| ((*name).into(), value.into()));
        let inherited = surroundings.environment.iter().cloned();
        let environment_of_workers: BTreeMap<_, _> = inherited.chain(added).collect();
        launcher.agent.environment = environment_of_workers.into_iter().collect();
        warnings.extend(stores::port_warning(&launcher, store_port, surroundings));
        warnings.extend(timeouts::warnings(&launcher));
        warnings.extend(launcher.agent.debug_rank.map(debugging::note));
        launcher.start_warnings = warnings;
        Ok(RunPlan {
            launcher,
            scheduler: found.map(|found| found.scheduler),
            origins,
            node_rank: chosen.node_rank,
            store_dir: self.stores.directory()?,
            store_candidates,
            store_port,
            environment,
            grace_period,
            dry_run: self.nodes.dry_run,
            json: self.output.json,
        })
    }

    /// Returns the parameters of the rendezvous with the stores of the job, and its relays.
    fn rendezvous(
        &self,
        chosen: RendezvousParameters,
        agent: &AgentOptions,
        surroundings: &Surroundings<'_>,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<RendezvousParameters, UsageError> {
        let mut rendezvous = self.stores.apply(chosen, warnings)?;
        rendezvous = rendezvous.with_relays(agent.has_relay);
        if agent.debug_rank.is_some() {
            let given = self.nodes.rdzv_conf.value()?;
            let is_given = |key: &str| given.contains_key(key);
            rendezvous = debugging::without_join_timeout(rendezvous, is_given);
        }
        Ok(match &surroundings.credentials {
            Some(credentials) => rendezvous.with_credentials(credentials.clone()),
            None => rendezvous,
        })
    }

    /// Returns the variables that workers get in addition to this command's own environment.
    fn added_variables(
        &self,
        worker_count: usize,
        surroundings: &Surroundings<'_>,
    ) -> Vec<(&'static str, String)> {
        // Workers that launch others pass this on (`torch/distributed/launcher/api.py`).
        let signals = self.stopping.signals_to_handle.given.value.clone();
        let mut variables = vec![("TORCHELASTIC_SIGNALS_TO_HANDLE", signals)];
        // So that several workers do not overload this machine, as with torchrun.
        if worker_count > 1 && surroundings.variable(THREADS).is_none() {
            variables.push((THREADS, "1".to_owned()));
        }
        variables
    }
}

impl Surroundings<'_> {
    /// Applies the interpreter, and the variables of PyTorch that have no option.
    fn apply(
        &self,
        launcher: &mut LauncherOptions,
        entrypoint: &Entrypoint,
        warnings: &mut Vec<StartWarning>,
    ) {
        launcher.interpreter = match entrypoint {
            Entrypoint::Program(_) => None,
            _ => self.interpreter.remark.clone(),
        };
        launcher.error_file = self.path(ERROR_FILE);
        launcher.health_port = health_port(self, warnings);
        let agent = &mut launcher.agent;
        agent.debugger = debugging::debugger(entrypoint, self);
        agent.are_nodes_identical = self.is_on(IDENTICAL_WORKERS);
        let has_timers = self.is_on("TORCHELASTIC_ENABLE_FILE_TIMER");
        agent.has_watchdog = has_timers && agent.debug_rank.is_none();
        agent.timer_file = (self.variable)("TORCHELASTIC_TIMER_FILE").map(PathBuf::from);
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
