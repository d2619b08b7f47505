//! The options of `c10d run`, and the plan that follows from them.
//!
//! Pure: [`Surroundings`] provides the environment, the number of devices and randomness. The values of
//! `--redirects`, `--tee` and `--signals-to-handle` are parsed by the modules that use them.

mod given;
mod rendezvous;
mod stopping;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use elastic_agent::{CommandLine, Entrypoint, HealthCheck, PreloadOptions, parse_line_filters};
use elastic_rendezvous::RendezvousParameters;

use super::devices::DeviceKind;
use super::headings::{
    AFTER_HELP, AFTER_SHORT_HELP, HANGS, IGNORED, NODES, OUTPUT, PRELOADING, RESTARTS, SCRIPT,
    SECURITY, STOPPING,
};
use super::restart_options::{RestartArgs, RestartPlan};
use super::scheduler::{self, Found, Sourced};
use crate::quantity::parse_duration;
use crate::secret::SecretArgs;
pub(crate) use given::Surroundings;
use given::{Given, UsageError};
pub(crate) use rendezvous::Origin;
use rendezvous::RendezvousOptions;
pub(crate) use stopping::ExitLimits;
use stopping::Stopping;

/// How many threads the libraries of one worker use for computations.
const THREADS: &str = "OMP_NUM_THREADS";

/// Importing PyTorch and meeting take less on most machines.
const EXPLAIN_AFTER: Duration = Duration::from_secs(30);

/// torchrun's options, as text: [`resolve`](Self::resolve) parses values from the command line and from the
/// environment in the same way.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = AFTER_SHORT_HELP,
    after_long_help = AFTER_HELP,
    args_override_self = true,
    infer_long_args = true,
    disable_help_subcommand = true,
    subcommand_value_name = "SCRIPT [ARGUMENT]..."
)]
pub(crate) struct RunOptions {
    /// The number of nodes: N, or MIN:MAX for an elastic job. [default: 1:1]
    #[arg(help_heading = NODES, long, value_name = "N|MIN:MAX", allow_negative_numbers = true)]
    nnodes: Option<String>,

    /// The number of workers on this node: a number, cpu, gpu, xpu or auto. [default: 1]
    ///
    /// One per processor (cpu), per GPU of NVIDIA or AMD (gpu), per GPU of Intel (xpu), or per GPU if there is one and
    /// else per processor (auto).
    #[arg(
        help_heading = NODES,
        long,
        alias = "nproc_per_node",
        value_name = "N|cpu|gpu|xpu|auto",
        allow_negative_numbers = true
    )]
    nproc_per_node: Option<String>,

    /// Runs a job of one node, on a free port of this machine; overrides --rdzv-backend, --rdzv-endpoint
    /// and --rdzv-id.
    #[arg(help_heading = NODES, long)]
    standalone: bool,

    /// How nodes find each other: c10d or static. [default: static]
    #[arg(help_heading = NODES, long, alias = "rdzv_backend", value_name = "NAME")]
    rdzv_backend: Option<String>,

    /// Where nodes meet: HOST or HOST:PORT. For a c10d rendezvous on a shared file, its path.
    #[arg(help_heading = NODES, long, alias = "rdzv_endpoint", value_name = "HOST[:PORT]")]
    rdzv_endpoint: Option<String>,

    /// The id of the job: the same on all nodes, different for each run. [default: none]
    #[arg(help_heading = NODES, long, alias = "rdzv_id", value_name = "ID")]
    rdzv_id: Option<String>,

    /// Settings of the rendezvous, as in join_timeout=60,is_host=1.
    #[arg(help_heading = NODES, hide_short_help = true, long, alias = "rdzv_conf", value_name = "KEY=VALUE,...")]
    rdzv_conf: Option<String>,

    /// The rank of this node, from 0; only for the static backend. [default: 0]
    #[arg(
        help_heading = NODES, hide_short_help = true,
        long,
        alias = "node_rank",
        value_name = "N",
        allow_negative_numbers = true
    )]
    node_rank: Option<String>,

    /// The host of node 0; only for the static backend without --rdzv-endpoint. [default: 127.0.0.1]
    #[arg(help_heading = NODES, hide_short_help = true, long, alias = "master_addr", value_name = "HOST")]
    master_addr: Option<String>,

    /// The port of node 0; only for the static backend without --rdzv-endpoint. [default: 29500]
    #[arg(
        help_heading = NODES, hide_short_help = true,
        long,
        alias = "master_port",
        value_name = "PORT",
        allow_negative_numbers = true
    )]
    master_port: Option<String>,

    /// The address of this node that other nodes get. [default: the full name of this machine]
    #[arg(help_heading = NODES, hide_short_help = true, long, alias = "local_addr", value_name = "HOST")]
    local_addr: Option<String>,

    /// How long after a round its members have precedence over spares in the next one; 0 for not at all.
    /// [default: 15s]
    #[arg(help_heading = NODES, hide_short_help = true, long, alias = "spare_wait", value_name = "TIME")]
    spare_wait: Option<String>,

    /// A command for /bin/sh that must succeed before this node joins a round, the first and every later one. While
    /// it fails, the node stays away and tries again after 10 s, doubled each time up to 5 min.
    #[arg(help_heading = NODES, hide_short_help = true, long, alias = "health_check", value_name = "COMMAND")]
    health_check: Option<String>,

    /// How long --health-check may take before it is killed and counts as failed. [default: 60s]
    #[arg(help_heading = NODES, hide_short_help = true, long, alias = "health_check_timeout", value_name = "TIME")]
    health_check_timeout: Option<String>,

    /// Does not ask the environment of a scheduler (Slurm, Kubernetes, MPI, PBS, Flux) for the nodes, this node's rank,
    /// the endpoint, the id of the job, and the workers.
    #[arg(help_heading = NODES, hide_short_help = true, long, alias = "no_scheduler")]
    no_scheduler: bool,

    /// Prints the plan, with the source of each value, and starts nothing; with --json as JSON.
    #[arg(help_heading = NODES, long, alias = "dry_run")]
    dry_run: bool,

    /// The role of this node's workers; each role has ranks of its own. [default: default]
    #[arg(help_heading = NODES, hide_short_help = true, long, value_name = "NAME")]
    role: Option<String>,

    /// Makes one GPU visible to each worker, with LOCAL_RANK=0.
    #[arg(help_heading = NODES, hide_short_help = true, long, alias = "virtual_local_rank")]
    virtual_local_rank: bool,

    /// SCRIPT is a Python module, as with `python -m`.
    #[arg(help_heading = SCRIPT, short, long)]
    module: bool,

    /// SCRIPT is run by Python's `runpy.run_path` whatever its name: a file, a directory or a ZIP file with a __main__.py.
    #[arg(help_heading = SCRIPT, hide_short_help = true, long, alias = "run_path")]
    run_path: bool,

    /// SCRIPT is a program, even if its name ends with .py.
    #[arg(help_heading = SCRIPT, hide_short_help = true, long, alias = "no_python")]
    no_python: bool,

    /// How often workers are restarted after a failure. [default: 0]
    ///
    /// Without a limit if --restart-budget or --max-restarts-without-progress is given instead.
    #[arg(
        help_heading = RESTARTS,
        long,
        // torchrun's abbreviations, some of which also begin --max-restarts-without-progress.
        aliases = ["max_restarts", "max", "max-", "max-r", "max-re", "max-res", "max-rest", "max-resta", "max-restar", "max-restart"],
        value_name = "N",
        allow_negative_numbers = true
    )]
    max_restarts: Option<String>,

    #[command(flatten, next_help_heading = RESTARTS)]
    restarts: RestartArgs,

    /// The directory for log files; each run creates a directory in it. [default: a new temporary one]
    #[arg(help_heading = OUTPUT, long, alias = "log_dir", value_name = "DIR")]
    log_dir: Option<String>,

    /// Writes output to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; or by local
    /// rank, as in 0:1,1:2. [default: 0]
    #[arg(help_heading = OUTPUT, short, long, value_name = "STREAMS")]
    redirects: Option<String>,

    /// Writes output to files and to the console; values as for --redirects. [default: 0]
    #[arg(help_heading = OUTPUT, short, long, value_name = "STREAMS")]
    tee: Option<String>,

    /// The prefix of each --tee line on the console: text with ${role_name}, ${local_rank}, ${rank} and
    /// ${hostname}. [default: $TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, or
    /// [${role_name}${local_rank}]:]
    #[arg(
        help_heading = OUTPUT, hide_short_help = true,
        long,
        alias = "log_line_prefix_template",
        value_name = "TEMPLATE",
        allow_hyphen_values = true
    )]
    log_line_prefix_template: Option<String>,

    /// Shows only the output of these local ranks, as in 0,2.
    #[arg(help_heading = OUTPUT, hide_short_help = true, long, alias = "local_ranks_filter", value_name = "RANKS")]
    local_ranks_filter: Option<String>,

    /// Also writes --tee lines of stdout that contain one of these texts to a file of their own; `,,` is a
    /// comma within a text.
    #[arg(
        help_heading = OUTPUT, hide_short_help = true,
        long,
        alias = "duplicate_stdout_filters",
        value_name = "TEXT,...",
        allow_hyphen_values = true
    )]
    duplicate_stdout_filters: Option<String>,

    /// The same for stderr.
    #[arg(
        help_heading = OUTPUT, hide_short_help = true,
        long,
        alias = "duplicate_stderr_filters",
        value_name = "TEXT,...",
        allow_hyphen_values = true
    )]
    duplicate_stderr_filters: Option<String>,

    /// Also reports the outcome as one line of JSON, the last one on standard output.
    #[arg(help_heading = OUTPUT, hide_short_help = true, long)]
    json: bool,

    /// Prints why the job stands still when it has done so for this long, while nodes meet or workers wait
    /// for each other; `never` for not at all. [default: 30s]
    #[arg(help_heading = HANGS, hide_short_help = true, long, alias = "explain_after", value_name = "TIME")]
    explain_after: Option<String>,

    /// Has each worker run PyTorch's debug server, for `c10d stacks` and `c10d flight` (PyTorch 2.15).
    ///
    /// The script needs no change. Only this user reaches it, on a unix socket; this launcher shows others the Python
    /// stacks and collectives of its workers, on the network of the workers' store.
    #[arg(help_heading = HANGS, long, alias = "debug_server")]
    debug_server: bool,

    /// Serves no status page on the ports of the stores that this node hosts.
    #[arg(help_heading = HANGS, hide_short_help = true, long, alias = "no_status")]
    no_status: bool,

    /// Further names under which browsers reach the status page, separated by commas. It always answers for IP
    /// addresses, `localhost` and this machine's name.
    #[arg(help_heading = HANGS, hide_short_help = true, long, alias = "status_host", value_name = "NAMES")]
    status_host: Option<String>,

    /// The time that the scheduler leaves between SIGTERM and SIGKILL, as in 30s or 2m: the workers are killed, and
    /// this node leaves the job, before it ends. [default: the scheduler's, if one is found]
    #[arg(help_heading = STOPPING, hide_short_help = true, long, alias = "grace_period", value_name = "TIME")]
    grace_period: Option<String>,

    /// The signals that stop the workers before the launcher. [default: SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(help_heading = STOPPING, hide_short_help = true, long, alias = "signals_to_handle", value_name = "NAME,...")]
    signals_to_handle: Option<String>,

    /// How long workers have to exit after such a signal, before SIGKILL.
    /// [default: $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30]
    #[arg(
        help_heading = STOPPING, hide_short_help = true,
        long,
        alias = "shutdown_timeout",
        value_name = "SECONDS",
        allow_negative_numbers = true
    )]
    shutdown_timeout: Option<String>,

    #[command(flatten, next_help_heading = SECURITY)]
    secret: SecretArgs,

    /// Connects this node's workers to their store through a relay in this launcher, at a loopback address: with a
    /// secret, the workers' store of several nodes is protected too. All nodes need it, and none can be torchrun's.
    #[arg(help_heading = SECURITY, hide_short_help = true, long)]
    relay: bool,

    /// The port of the relays, the same for all nodes. [default: the nodes agree on a free one]
    #[arg(
        help_heading = SECURITY, hide_short_help = true,
        long,
        alias = "relay_port",
        value_name = "PORT",
        allow_negative_numbers = true
    )]
    relay_port: Option<String>,

    /// Imports these Python modules once, in a process from which workers are forked.
    ///
    /// A restart takes milliseconds then. `torch,torch._dynamo` for training scripts. Workers that cannot be forked start as without it,
    /// with a warning (Linux).
    #[arg(help_heading = PRELOADING, long, value_name = "MODULE,...")]
    preload: Option<String>,

    /// Fails instead of starting workers that are not forked.
    #[arg(help_heading = PRELOADING, hide_short_help = true, long, alias = "preload_required")]
    preload_required: bool,

    /// Forks workers ahead, which saves some 10 ms for each at a restart.
    #[arg(help_heading = PRELOADING, hide_short_help = true, long, alias = "preload_standby")]
    preload_standby: bool,

    /// Accepted for compatibility, without effect: exits of workers are noticed at once.
    #[arg(
        help_heading = IGNORED, hide_short_help = true,
        long,
        alias = "monitor_interval",
        value_name = "SECONDS",
        allow_negative_numbers = true
    )]
    monitor_interval: Option<String>,

    /// spawn, fork or forkserver. Accepted for compatibility, without effect: workers are programs.
    #[arg(help_heading = IGNORED, hide_short_help = true, long, alias = "start_method", value_name = "METHOD")]
    start_method: Option<String>,

    /// Only `none` is supported: workers are not bound to processors.
    #[arg(help_heading = IGNORED, hide_short_help = true, long, alias = "numa_binding", value_name = "MODE")]
    numa_binding: Option<String>,

    /// Not supported.
    #[arg(long, alias = "logs_specs", hide = true)]
    logs_specs: Option<String>,

    /// Not supported.
    #[arg(long, alias = "print_completion", hide = true)]
    print_completion: Option<String>,

    #[command(subcommand)]
    script: Option<Script>,
}

/// The script and its arguments.
///
/// An external subcommand for clap: only after its name does clap leave all arguments alone, even `--help`,
/// and still report a mistyped option before it.
#[derive(Debug, Clone, Subcommand)]
enum Script {
    #[command(external_subcommand)]
    Command(Vec<OsString>),
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
    /// Whether the program is a Python interpreter.
    pub(crate) is_python: bool,
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
    pub(crate) script: OsString,
    /// The file of a Python script, if it is the same for all workers.
    pub(crate) script_file: Option<PathBuf>,
    /// Variables that workers get in addition to this command's own environment.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Warnings to log before the start, one line each.
    pub(crate) warnings: Vec<String>,
}

impl RunPlan {
    /// Whether workers get a number of threads that the user has not chosen.
    pub(crate) fn has_default_threads(&self) -> bool {
        self.environment.iter().any(|(name, _)| *name == THREADS)
    }
}

impl RunOptions {
    /// Parses the options, and applies defaults.
    ///
    /// # Errors
    /// A [`UsageError`]; then nothing was started.
    pub(crate) fn resolve(
        mut self,
        surroundings: &Surroundings<'_>,
    ) -> Result<RunPlan, UsageError> {
        let mut warnings = Vec::new();
        self.refuse_unsupported()?;
        self.warn_of_ignored(surroundings, &mut warnings)?;
        let (entrypoint, command) = self.command(surroundings)?;
        let script = entrypoint.name().to_owned();
        let is_python = !matches!(entrypoint, Entrypoint::Program(_));
        let no_scheduler = surroundings.flag("no-scheduler", self.no_scheduler)?;
        let (found, doubts) = match no_scheduler {
            true => (None, Vec::new()),
            false => scheduler::find(surroundings.variable, surroundings.site),
        };
        let doubts = doubts.into_iter();
        warnings.extend(doubts.map(|doubt| format!("{doubt}; it is not used")));
        let chosen = self.rendezvous(surroundings)?.choose(
            found.as_ref(),
            surroundings.seed,
            &mut warnings,
        )?;
        let (rendezvous, mut origins) = (chosen.parameters, chosen.origins);
        let has_relay = surroundings.flag("relay", self.relay)?;
        let relay_port = match surroundings.given("relay-port", self.relay_port.take()) {
            Some(given) if !has_relay => {
                warnings.push(given.has_no_effect("--relay is not given"));
                None
            }
            Some(given) => Some(given.number::<NonZero<u16>>("a port, 1 to 65535")?.get()),
            None => None,
        };
        let preload = self.preload(surroundings, &mut warnings)?;
        match entrypoint {
            _ if preload.is_none() => {}
            Entrypoint::Program(_) => return Err(UsageError::PreloadWithoutPython { script }),
            Entrypoint::RunPath(_) => return Err(UsageError::PreloadWithRunPath),
            Entrypoint::Script(_) | Entrypoint::Module(_) => {}
        }
        let health_port = health_port(surroundings, &mut warnings);
        let health_check = self.health_check(surroundings, &mut warnings)?;
        let worker_count = match surroundings.given("nproc-per-node", self.nproc_per_node.take()) {
            Some(given) => {
                let (from, number) = (given.name.clone(), worker_count(surroundings, given)?);
                origins.push(workers_origin(number, from));
                number
            }
            None => match found
                .as_ref()
                .and_then(|found| allotted_gpus(surroundings, found))
            {
                Some(gpus) => {
                    origins.push(workers_origin(gpus.value, gpus.from));
                    gpus.value
                }
                None => 1,
            },
        };
        let stopping = Stopping {
            grace_period: surroundings.given("grace-period", self.grace_period.take()),
            shutdown_timeout: surroundings
                .given("shutdown-timeout", self.shutdown_timeout.take())
                .or_else(|| surroundings.variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")),
        };
        let usual = found.as_ref().and_then(|found| found.grace_period);
        let (shutdown_timeout, exit_limits) = stopping.limits(usual, &mut warnings)?;
        let signals = surroundings.text(
            "signals-to-handle",
            self.signals_to_handle,
            "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        );
        // Workers that launch others pass this on (`torch/distributed/launcher/api.py`).
        let mut environment = vec![("TORCHELASTIC_SIGNALS_TO_HANDLE", signals.clone())];
        // So that several workers do not overload this machine, as with torchrun.
        if worker_count > 1 && surroundings.variable(THREADS).is_none() {
            environment.push((THREADS, "1".to_owned()));
        }
        Ok(RunPlan {
            rendezvous: rendezvous.with_relays(has_relay),
            worker_count,
            role: surroundings.text("role", self.role, "default"),
            restarts: {
                let max = surroundings.given("max-restarts", self.max_restarts);
                let max = max.map(|given| given.number::<u32>("a whole number, 0 or more"));
                let max = max.transpose()?;
                self.restarts.resolve(
                    max.map(|max| usize::try_from(max).unwrap_or(usize::MAX)),
                    &|option, value| {
                        let given = surroundings.given(option, value)?;
                        Some((given.name, given.value))
                    },
                    |option, is_given| surroundings.flag(option, is_given),
                )?
            },
            scheduler: found.map(|found| found.scheduler),
            origins,
            node_rank: chosen.node_rank,
            dry_run: surroundings.flag("dry-run", self.dry_run)?,
            shutdown_timeout,
            exit_limits,
            signals: listed(&signals),
            log_dir: surroundings
                .given("log-dir", self.log_dir)
                .filter(|given| !given.value.is_empty())
                .map(|given| given.value.into()),
            redirects: surroundings.text("redirects", self.redirects, "0"),
            tee: surroundings.text("tee", self.tee, "0"),
            log_line_prefix_template: surroundings
                .given("log-line-prefix-template", self.log_line_prefix_template)
                .filter(|given| !given.value.is_empty())
                .or_else(|| surroundings.variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"))
                .map(|given| given.value)
                .filter(|template| !template.is_empty()),
            local_ranks_filter: match surroundings
                .given("local-ranks-filter", self.local_ranks_filter)
            {
                Some(given) => local_ranks(given)?,
                None => None,
            },
            duplicate_stdout_filters: parse_line_filters(&surroundings.text(
                "duplicate-stdout-filters",
                self.duplicate_stdout_filters,
                "",
            )),
            duplicate_stderr_filters: parse_line_filters(&surroundings.text(
                "duplicate-stderr-filters",
                self.duplicate_stderr_filters,
                "",
            )),
            virtual_local_rank: surroundings.flag("virtual-local-rank", self.virtual_local_rank)?,
            script_file: script_file(&entrypoint),
            command,
            is_python,
            json: surroundings.flag("json", self.json)?,
            explain_after: match surroundings.given("explain-after", self.explain_after) {
                Some(given) => explain_after(given)?,
                None => Some(EXPLAIN_AFTER),
            },
            health_check,
            health_port,
            has_watchdog: surroundings
                .variable("TORCHELASTIC_ENABLE_FILE_TIMER")
                .is_some_and(|given| given.value == "1"),
            timer_file: surroundings
                .variable("TORCHELASTIC_TIMER_FILE")
                .map(|given| given.value.into()),
            has_status: !surroundings.flag("no-status", self.no_status)?,
            secret: std::mem::take(&mut self.secret),
            has_relay,
            relay_port,
            preload,
            status_hosts: surroundings
                .text("status-host", self.status_host, "")
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            debug_server: surroundings.flag("debug-server", self.debug_server)?,
            script,
            environment,
            warnings,
        })
    }

    fn preload(
        &mut self,
        surroundings: &Surroundings<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<PreloadOptions>, UsageError> {
        let is_required = surroundings.flag("preload-required", self.preload_required)?;
        let has_standbys = surroundings.flag("preload-standby", self.preload_standby)?;
        let modules = surroundings.text("preload", self.preload.take(), "");
        let modules = listed(&modules);
        if modules.is_empty() {
            if is_required || has_standbys {
                warnings.push(
                    "--preload-required and --preload-standby have no effect: \
                     --preload is not given"
                        .to_owned(),
                );
            }
            return Ok(None);
        }
        let preload = PreloadOptions::new(modules);
        Ok(Some(
            preload
                .with_required(is_required)
                .with_standbys(has_standbys),
        ))
    }

    fn rendezvous(
        &mut self,
        surroundings: &Surroundings<'_>,
    ) -> Result<RendezvousOptions, UsageError> {
        let given = |option: &str, value: Option<String>| surroundings.given(option, value);
        Ok(RendezvousOptions {
            nnodes: given("nnodes", self.nnodes.take()),
            backend: given("rdzv-backend", self.rdzv_backend.take()),
            endpoint: given("rdzv-endpoint", self.rdzv_endpoint.take()),
            run_id: given("rdzv-id", self.rdzv_id.take()),
            config: given("rdzv-conf", self.rdzv_conf.take()),
            spare_wait: given("spare-wait", self.spare_wait.take()),
            is_standalone: surroundings.flag("standalone", self.standalone)?,
            node_rank: given("node-rank", self.node_rank.take()),
            master_addr: given("master-addr", self.master_addr.take()),
            master_port: given("master-port", self.master_port.take()),
            local_addr: surroundings.text("local-addr", self.local_addr.take(), ""),
        })
    }

    /// Rejects options without which the job would do something else than the user asked for.
    fn refuse_unsupported(&mut self) -> Result<(), UsageError> {
        let refuse = |name: String, why| Err(UsageError::Unsupported { name, why });
        if let Some(mode) = self.numa_binding.take().filter(|mode| mode != "none") {
            let why = "workers are not bound to processors; a script can call numactl";
            return refuse(format!("--numa-binding {mode}"), why);
        }
        // `default` is the name of what torchrun does without the option.
        if let Some(name) = self.logs_specs.take().filter(|name| name != "default") {
            let why = "it names a Python class of a plug-in for torchrun, and the launcher runs no Python; for files \
                       use --log-dir, --redirects and --tee";
            return refuse(format!("--logs-specs {name}"), why);
        }
        if let Some(shell) = self.print_completion.take() {
            return refuse(
                format!("--print-completion {shell}"),
                "`c10d completions SHELL` prints the script",
            );
        }
        Ok(())
    }

    fn warn_of_ignored(
        &mut self,
        surroundings: &Surroundings<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<(), UsageError> {
        if let Some(given) = surroundings.given("start-method", self.start_method.take()) {
            if !["spawn", "fork", "forkserver"].contains(&given.value.as_str()) {
                return Err(given.refused("spawn, fork or forkserver"));
            }
            warnings.push(given.has_no_effect("workers are started as programs"));
        }
        if let Some(given) = surroundings.given("monitor-interval", self.monitor_interval.take()) {
            check_interval(given.clone())?;
            warnings.push(given.has_no_effect("exits of workers are noticed at once"));
        }
        Ok(())
    }

    fn health_check(
        &mut self,
        surroundings: &Surroundings<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<HealthCheck>, UsageError> {
        let command = surroundings.given("health-check", self.health_check.take());
        let timeout = surroundings.given("health-check-timeout", self.health_check_timeout.take());
        let Some(command) = command.filter(|given| !given.value.trim().is_empty()) else {
            warnings
                .extend(timeout.map(|given| given.has_no_effect("--health-check is not given")));
            return Ok(None);
        };
        let check = HealthCheck::new(command.value);
        Ok(Some(match timeout {
            None => check,
            Some(given) => check.with_timeout(positive_duration(given)?),
        }))
    }

    fn command(
        &mut self,
        surroundings: &Surroundings<'_>,
    ) -> Result<(Entrypoint, CommandLine), UsageError> {
        let Some(Script::Command(words)) = self.script.take() else {
            return Err(UsageError::NoScript);
        };
        let mut words = words.into_iter();
        let script = words.next().ok_or(UsageError::NoScript)?;
        let is_module = surroundings.flag("module", self.module)?;
        let no_python = surroundings.flag("no-python", self.no_python)?;
        let is_run_path = surroundings.flag("run-path", self.run_path)?;
        let entrypoint = match (is_run_path, is_module, no_python) {
            // As with torchrun, whatever else is given.
            (true, _, _) => Entrypoint::RunPath(script),
            (_, true, true) => return Err(UsageError::ModuleWithoutPython),
            (_, true, false) => Entrypoint::Module(script),
            _ if !no_python && is_python_file(&script) => Entrypoint::Script(script),
            _ => Entrypoint::Program(script),
        };
        let interpreter = surroundings
            .variable("PYTHON_EXEC")
            .map(|given| given.value)
            .filter(|path| !path.is_empty())
            .unwrap_or_else(|| "python3".to_owned());
        let command = CommandLine::of(&entrypoint, interpreter, words);
        Ok((entrypoint, command))
    }
}

/// The file that Python reads; `None` if its name depends on the worker.
fn script_file(entrypoint: &Entrypoint) -> Option<PathBuf> {
    match entrypoint {
        Entrypoint::Script(path) | Entrypoint::RunPath(path) => {
            let varies = path.as_encoded_bytes().contains(&b'$');
            (!varies).then(|| path.into())
        }
        Entrypoint::Module(_) | Entrypoint::Program(_) => None,
    }
}

/// The GPUs of this node that belong to the job: as many as the scheduler names, but no more than are visible here; or
/// else all that are visible.
fn allotted_gpus(surroundings: &Surroundings<'_>, found: &Found) -> Option<Sourced<usize>> {
    // Several launchers share this node's GPUs in a way that is unknown.
    if !found.is_alone_on_node {
        return None;
    }
    let visible = (surroundings.count_devices)(DeviceKind::Gpu).ok();
    match (&found.gpus, visible) {
        (Some(gpus), Some(visible)) if visible < gpus.value => {
            let from = format!("the visible GPUs of those in {}", gpus.from);
            Some(Sourced::new(visible, from))
        }
        (Some(gpus), _) => Some(gpus.clone()),
        (None, Some(visible)) => Some(Sourced::new(visible, "the visible GPUs")),
        (None, None) => None,
    }
}

fn workers_origin(number: usize, from: String) -> Origin {
    Origin {
        name: "workers",
        value: number.to_string(),
        from,
    }
}

fn worker_count(surroundings: &Surroundings<'_>, given: Given) -> Result<usize, UsageError> {
    if let Some(kind) = DeviceKind::from_word(&given.value) {
        return (surroundings.count_devices)(kind).map_err(|source| UsageError::Devices {
            name: given.name,
            word: given.value,
            source,
        });
    }
    match given.value.trim().parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(given.refused("a number above 0, cpu, gpu, xpu or auto")),
    }
}

fn explain_after(given: Given) -> Result<Option<Duration>, UsageError> {
    match given.value.trim() {
        "never" => Ok(None),
        text => match parse_duration(text) {
            Ok(after) => Ok(Some(after)),
            Err(_) => Err(given.refused("a time as in 30s or 2m, or `never`")),
        },
    }
}

/// torchrun goes on without a server, too, if the variable is no number.
fn health_port(surroundings: &Surroundings<'_>, warnings: &mut Vec<String>) -> Option<u16> {
    let given = surroundings.variable("TORCHELASTIC_HEALTH_CHECK_PORT")?;
    match given.value.trim().parse::<NonZero<u16>>() {
        Ok(port) => Some(port.get()),
        Err(_) => {
            warnings.push(given.has_no_effect("it is not a port, 1 to 65535"));
            None
        }
    }
}

fn positive_duration(given: Given) -> Result<Duration, UsageError> {
    match parse_duration(given.value.trim()) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(given.refused("a time above 0, as in 30s or 2m")),
    }
}

fn check_interval(given: Given) -> Result<(), UsageError> {
    let read = given.value.trim().parse().ok();
    match read.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(interval) if !interval.is_zero() => Ok(()),
        _ => Err(given.refused("a number of seconds above 0")),
    }
}

fn local_ranks(given: Given) -> Result<Option<Vec<u64>>, UsageError> {
    if given.value.is_empty() {
        return Ok(None);
    }
    let ranks: Result<BTreeSet<u64>, _> = given
        .value
        .split(',')
        .map(|rank| rank.trim().parse())
        .collect();
    match ranks {
        Ok(ranks) => Ok(Some(ranks.into_iter().collect())),
        Err(_) => Err(given.refused("local ranks separated by commas, as in 0,2")),
    }
}

/// Splits a list at commas; drops blanks around entries, and empty entries.
fn listed(text: &str) -> Vec<String> {
    let names = text.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

fn is_python_file(script: &OsStr) -> bool {
    script.as_encoded_bytes().ends_with(b".py")
}

#[cfg(test)]
mod tests;
