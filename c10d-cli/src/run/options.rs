//! The options of `c10d run`, and the plan that follows from them.
//!
//! Pure: [`Surroundings`] provides the environment, the number of devices and randomness. The values of
//! `--redirects`, `--tee` and `--signals-to-handle` are parsed by the modules that use them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use elastic_agent::{PreloadOptions, parse_line_filters};
use elastic_rendezvous::{
    Endpoint, EndpointError, ParametersError, RendezvousParameters, parse_config,
};

use super::devices::{DeviceKind, DevicesError};
use super::restart_options::{RefusedValue, RestartArgs, RestartPlan};
use crate::quantity::parse_duration;
use crate::secret::SecretArgs;
use crate::serve::DEFAULT_PORT;

const AFTER_HELP: &str = "\
Each worker runs SCRIPT with all arguments after it, even those that look like options. A SCRIPT whose name
ends with .py is run by python3, or by $PYTHON_EXEC; any other is executed as a program.

Options can also be written with underscores, as in --nproc_per_node, and abbreviated as long as they are
unambiguous. The default of each option is an environment variable: PET_NPROC_PER_NODE for --nproc-per-node,
and so on; a flag is on if its variable is a number other than 0.

A job of one node without --rdzv-backend, --rdzv-endpoint and --master-port is run as with --standalone.

Exit codes:
  0    all workers of this node succeeded, or the node was a spare that was not needed
  1    workers failed or could not start, the rendezvous failed, or a signal stopped the workers
  2    invalid options: nothing was started
  3    a system call failed that concerns neither workers nor rendezvous
  128+N  signal N arrived before workers were started";

/// Importing PyTorch and meeting take less on most machines.
const EXPLAIN_AFTER: Duration = Duration::from_secs(30);

/// torchrun's options, as text: [`resolve`](Self::resolve) parses values from the command line and from the
/// environment in the same way.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = AFTER_HELP,
    args_override_self = true,
    infer_long_args = true,
    disable_help_subcommand = true,
    subcommand_value_name = "SCRIPT [ARGUMENT]..."
)]
pub(crate) struct RunOptions {
    /// The number of nodes: N, or MIN:MAX for an elastic job. [default: 1:1]
    #[arg(long, value_name = "N|MIN:MAX", allow_negative_numbers = true)]
    nnodes: Option<String>,

    /// The number of workers on this node: a number, or one per processor (cpu), per GPU of NVIDIA or AMD
    /// (gpu), per GPU of Intel (xpu), or per GPU if there is one and else per processor (auto).
    /// [default: 1]
    #[arg(
        long,
        alias = "nproc_per_node",
        value_name = "N|cpu|gpu|xpu|auto",
        allow_negative_numbers = true
    )]
    nproc_per_node: Option<String>,

    /// How nodes find each other: c10d or static. [default: static]
    #[arg(long, alias = "rdzv_backend", value_name = "NAME")]
    rdzv_backend: Option<String>,

    /// Where nodes meet: HOST or HOST:PORT. For a c10d rendezvous on a shared file, its path.
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST[:PORT]")]
    rdzv_endpoint: Option<String>,

    /// The id of the job: the same on all nodes, different for each run. [default: none]
    #[arg(long, alias = "rdzv_id", value_name = "ID")]
    rdzv_id: Option<String>,

    /// Settings of the rendezvous, as in join_timeout=60,is_host=1.
    #[arg(long, alias = "rdzv_conf", value_name = "KEY=VALUE,...")]
    rdzv_conf: Option<String>,

    /// Runs a job of one node, on a free port of this machine; overrides --rdzv-backend, --rdzv-endpoint
    /// and --rdzv-id.
    #[arg(long)]
    standalone: bool,

    /// How often workers are restarted after a failure. [default: 0; without a limit if --restart-budget or
    /// --max-restarts-without-progress is given]
    #[arg(
        long,
        // torchrun's abbreviations, some of which also begin --max-restarts-without-progress.
        aliases = ["max_restarts", "max-r", "max-re", "max-res", "max-rest", "max-resta", "max-restar", "max-restart"],
        value_name = "N",
        allow_negative_numbers = true
    )]
    max_restarts: Option<String>,

    /// Accepted for compatibility, without effect: exits of workers are noticed at once.
    #[arg(
        long,
        alias = "monitor_interval",
        value_name = "SECONDS",
        allow_negative_numbers = true
    )]
    monitor_interval: Option<String>,

    /// spawn, fork or forkserver. Accepted for compatibility, without effect: workers are programs.
    #[arg(long, alias = "start_method", value_name = "METHOD")]
    start_method: Option<String>,

    #[command(flatten)]
    restarts: RestartArgs,

    /// Also reports the outcome as one line of JSON, the last one on standard output.
    #[arg(long)]
    json: bool,

    /// Prints why the job stands still when it has done so for this long, while nodes meet or workers wait
    /// for each other; `never` for not at all. [default: 30s]
    #[arg(long, alias = "explain_after", value_name = "TIME")]
    explain_after: Option<String>,

    /// Serves no status page on the ports of the stores that this node hosts.
    #[arg(long, alias = "no_status")]
    no_status: bool,

    #[command(flatten)]
    secret: SecretArgs,

    /// Connects this node's workers to their store through a relay in this launcher, at a loopback address: with a
    /// secret, the workers' store of several nodes is protected too. All nodes need it, and none can be torchrun's.
    #[arg(long)]
    relay: bool,

    /// The port of the relays, the same for all nodes. [default: the nodes agree on a free one]
    #[arg(
        long,
        alias = "relay_port",
        value_name = "PORT",
        allow_negative_numbers = true
    )]
    relay_port: Option<String>,

    /// Further names under which browsers reach the status page, separated by commas. It always answers for IP
    /// addresses, `localhost` and this machine's name.
    #[arg(long, alias = "status_host", value_name = "NAMES")]
    status_host: Option<String>,

    /// Has each worker run PyTorch's debug server, for `c10d stacks` and `c10d flight` (PyTorch 2.15; the script
    /// needs no change). Only this user reaches it, on a unix socket; this launcher shows others the Python
    /// stacks and collectives of its workers, on the network of the workers' store.
    #[arg(long, alias = "debug_server")]
    debug_server: bool,

    /// Imports these Python modules once, in a process from which workers are forked, so that a restart takes
    /// milliseconds: `torch,torch._dynamo` for training scripts. Workers that cannot be forked start as without it,
    /// with a warning (Linux).
    #[arg(long, value_name = "MODULE,...")]
    preload: Option<String>,

    /// Fails instead of starting workers that are not forked.
    #[arg(long, alias = "preload_required")]
    preload_required: bool,

    /// Forks workers ahead, which saves some 10 ms for each at a restart.
    #[arg(long, alias = "preload_standby")]
    preload_standby: bool,

    /// The role of this node's workers; each role has ranks of its own. [default: default]
    #[arg(long, value_name = "NAME")]
    role: Option<String>,

    /// SCRIPT is a Python module, as with `python -m`.
    #[arg(short, long)]
    module: bool,

    /// SCRIPT is a program, even if its name ends with .py.
    #[arg(long, alias = "no_python")]
    no_python: bool,

    /// Not supported.
    #[arg(long, alias = "run_path", hide = true)]
    run_path: bool,

    /// The directory for log files; each run creates a directory in it. [default: a new temporary one]
    #[arg(long, alias = "log_dir", value_name = "DIR")]
    log_dir: Option<String>,

    /// Writes output to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; or by local
    /// rank, as in 0:1,1:2. [default: 0]
    #[arg(short, long, value_name = "STREAMS")]
    redirects: Option<String>,

    /// Writes output to files and to the console; values as for --redirects. [default: 0]
    #[arg(short, long, value_name = "STREAMS")]
    tee: Option<String>,

    /// The prefix of each --tee line on the console: text with ${role_name}, ${local_rank}, ${rank} and
    /// ${hostname}. [default: $TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, or
    /// [${role_name}${local_rank}]:]
    #[arg(
        long,
        alias = "log_line_prefix_template",
        value_name = "TEMPLATE",
        allow_hyphen_values = true
    )]
    log_line_prefix_template: Option<String>,

    /// Shows only the output of these local ranks, as in 0,2.
    #[arg(long, alias = "local_ranks_filter", value_name = "RANKS")]
    local_ranks_filter: Option<String>,

    /// Also writes --tee lines of stdout that contain one of these texts to a file of their own; `,,` is a
    /// comma within a text.
    #[arg(
        long,
        alias = "duplicate_stdout_filters",
        value_name = "TEXT,...",
        allow_hyphen_values = true
    )]
    duplicate_stdout_filters: Option<String>,

    /// The same for stderr.
    #[arg(
        long,
        alias = "duplicate_stderr_filters",
        value_name = "TEXT,...",
        allow_hyphen_values = true
    )]
    duplicate_stderr_filters: Option<String>,

    /// The rank of this node, from 0; only for the static backend. [default: 0]
    #[arg(
        long,
        alias = "node_rank",
        value_name = "N",
        allow_negative_numbers = true
    )]
    node_rank: Option<String>,

    /// The host of node 0; only for the static backend without --rdzv-endpoint. [default: 127.0.0.1]
    #[arg(long, alias = "master_addr", value_name = "HOST")]
    master_addr: Option<String>,

    /// The port of node 0; only for the static backend without --rdzv-endpoint. [default: 29500]
    #[arg(
        long,
        alias = "master_port",
        value_name = "PORT",
        allow_negative_numbers = true
    )]
    master_port: Option<String>,

    /// The address of this node that other nodes get. [default: the full name of this machine]
    #[arg(long, alias = "local_addr", value_name = "HOST")]
    local_addr: Option<String>,

    /// Not supported.
    #[arg(long, alias = "logs_specs", hide = true)]
    logs_specs: Option<String>,

    /// Only `none` is supported: workers are not bound to processors.
    #[arg(long, alias = "numa_binding", value_name = "MODE")]
    numa_binding: Option<String>,

    /// The signals that stop the workers before the launcher. [default: SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(long, alias = "signals_to_handle", value_name = "NAME,...")]
    signals_to_handle: Option<String>,

    /// How long workers have to exit after such a signal, before SIGKILL.
    /// [default: $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30]
    #[arg(
        long,
        alias = "shutdown_timeout",
        value_name = "SECONDS",
        allow_negative_numbers = true
    )]
    shutdown_timeout: Option<String>,

    /// Makes one GPU visible to each worker, with LOCAL_RANK=0.
    #[arg(long, alias = "virtual_local_rank")]
    virtual_local_rank: bool,

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

/// What the plan depends on besides the options.
pub(crate) struct Surroundings<'a> {
    /// Reads an environment variable.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Counts devices, at least one.
    pub(crate) count_devices: &'a dyn Fn(DeviceKind) -> Result<usize, DevicesError>,
    /// A random number, for the id of a standalone run.
    pub(crate) seed: u64,
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
    /// How long workers have to exit after a signal; zero kills them at once.
    pub(crate) shutdown_timeout: Duration,
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
    /// The program that each worker executes.
    pub(crate) program: OsString,
    /// The program's arguments, with `${local_rank}` not replaced.
    pub(crate) args: Vec<OsString>,
    /// Whether the program is a Python interpreter.
    pub(crate) is_python: bool,
    /// Whether to print the report as JSON.
    pub(crate) json: bool,
    /// After which time without progress the launcher explains what the job waits for; `None` for never.
    pub(crate) explain_after: Option<Duration>,
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
    /// Variables that workers get in addition to this command's own environment.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Warnings to log before the start, one line each.
    pub(crate) warnings: Vec<String>,
}

/// Why options are invalid. The message is one line that names the option or variable and its value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UsageError {
    #[error("{name} is {value:?}, which is not {expected}")]
    Value {
        /// The option or the variable.
        name: String,
        /// The rejected value.
        value: String,
        /// The accepted values.
        expected: &'static str,
    },
    #[error("{name} is {word:?}, but {source}")]
    Devices {
        /// The option or the variable.
        name: String,
        /// The kind of devices, as given.
        word: String,
        /// Why they could not be counted.
        source: DevicesError,
    },
    #[error("{name}: {source}")]
    Rendezvous {
        /// The option or the variable.
        name: String,
        /// What is wrong with its value.
        source: ParametersError,
    },
    #[error("{name}: {source}")]
    Endpoint {
        /// The option or the variable.
        name: String,
        /// What is wrong with its value.
        source: EndpointError,
    },
    #[error("{name} is {node_rank}, but with {max_nodes} nodes the highest rank is {}", max_nodes - 1)]
    NodeRank {
        /// The option or the variable.
        name: String,
        /// The rank.
        node_rank: usize,
        /// The number of nodes.
        max_nodes: usize,
    },
    #[error("--module and --no-python cannot be combined")]
    ModuleWithoutPython,
    #[error("{name} is not supported: {why}")]
    Unsupported {
        /// The option or the variable, and its value.
        name: String,
        /// The reason, or what to do instead.
        why: &'static str,
    },
    #[error("--preload is for Python: SCRIPT {} is run as a program", script.display())]
    PreloadWithoutPython {
        /// The script, as given.
        script: OsString,
    },
    #[error("no SCRIPT given: name a script or program to run")]
    NoScript,
}

impl From<RefusedValue> for UsageError {
    fn from(refused: RefusedValue) -> Self {
        Self::Value {
            name: refused.name,
            value: refused.value,
            expected: refused.expected,
        }
    }
}

/// The value of an option, and the name of the option or variable that gave it.
#[derive(Debug, Clone)]
struct Given {
    name: String,
    value: String,
}

impl Given {
    fn refused(self, expected: &'static str) -> UsageError {
        UsageError::Value {
            name: self.name,
            value: self.value,
            expected,
        }
    }

    fn has_no_effect(&self, why: &str) -> String {
        format!(
            "{} is {:?}, which has no effect: {why}",
            self.name, self.value
        )
    }

    /// Parses a number; ignores blanks around it.
    fn number<T: FromStr>(self, expected: &'static str) -> Result<T, UsageError> {
        self.value
            .trim()
            .parse()
            .map_err(|_| self.refused(expected))
    }
}

impl Surroundings<'_> {
    /// The value on the command line, or else in the environment. An empty variable is a value, as with
    /// torchrun (`torch/distributed/argparse_util.py`).
    fn given(&self, option: &str, on_command_line: Option<String>) -> Option<Given> {
        if let Some(value) = on_command_line {
            let name = format!("--{option}");
            return Some(Given { name, value });
        }
        self.variable(&format!("PET_{}", option.to_uppercase().replace('-', "_")))
    }

    fn variable(&self, name: &str) -> Option<Given> {
        let name = name.to_owned();
        (self.variable)(&name).map(|value| Given { name, value })
    }

    fn text(&self, option: &str, on_command_line: Option<String>, default: &str) -> String {
        self.given(option, on_command_line)
            .map_or_else(|| default.to_owned(), |given| given.value)
    }

    /// A flag's variable must be a number even if the flag is given, so that an invalid value shows at once.
    fn flag(&self, option: &str, on_command_line: bool) -> Result<bool, UsageError> {
        let Some(given) = self.given(option, None) else {
            return Ok(on_command_line);
        };
        let number: i64 = given.number("a number, 0 for off and another for on")?;
        Ok(on_command_line || number != 0)
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
        self.refuse_unsupported(surroundings)?;
        self.warn_of_ignored(surroundings, &mut warnings)?;
        let (script, program, args, is_python) = self.command(surroundings)?;
        let rendezvous = self.rendezvous(surroundings, &mut warnings)?;
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
        if preload.is_some() && !is_python {
            return Err(UsageError::PreloadWithoutPython { script });
        }
        let worker_count = match surroundings.given("nproc-per-node", self.nproc_per_node) {
            Some(given) => worker_count(surroundings, given)?,
            None => 1,
        };
        let signals = surroundings.text(
            "signals-to-handle",
            self.signals_to_handle,
            "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        );
        // Workers that launch others pass this on (`torch/distributed/launcher/api.py`).
        let mut environment = vec![("TORCHELASTIC_SIGNALS_TO_HANDLE", signals.clone())];
        if worker_count > 1 && surroundings.variable("OMP_NUM_THREADS").is_none() {
            warnings.push(format!(
                "OMP_NUM_THREADS is not set: each of the {worker_count} workers gets OMP_NUM_THREADS=1, so that \
                 they do not overload this machine; set it for the best performance"
            ));
            environment.push(("OMP_NUM_THREADS", "1".to_owned()));
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
            shutdown_timeout: match surroundings
                .given("shutdown-timeout", self.shutdown_timeout)
                .or_else(|| surroundings.variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT"))
            {
                Some(given) => {
                    Duration::from_secs(given.number("a whole number of seconds, 0 or more")?)
                }
                None => Duration::from_secs(30),
            },
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
            program,
            args,
            is_python,
            json: surroundings.flag("json", self.json)?,
            explain_after: match surroundings.given("explain-after", self.explain_after) {
                Some(given) => explain_after(given)?,
                None => Some(EXPLAIN_AFTER),
            },
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
                warnings.push("--preload-required and --preload-standby have no effect: --preload is not given".to_owned());
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

    /// Rejects options without which the job would do something else than the user asked for.
    fn refuse_unsupported(&mut self, surroundings: &Surroundings<'_>) -> Result<(), UsageError> {
        let refuse = |name: String, why| Err(UsageError::Unsupported { name, why });
        if let Some(mode) = self.numa_binding.take().filter(|mode| mode != "none") {
            let why = "workers are not bound to processors; a script can call numactl";
            return refuse(format!("--numa-binding {mode}"), why);
        }
        if let Some(name) = self.logs_specs.take() {
            let why = "it names a Python class, and the launcher runs no Python";
            return refuse(format!("--logs-specs {name}"), why);
        }
        if surroundings.flag("run-path", self.run_path)? {
            let why = "the launcher runs no Python; without the option python runs the script";
            return refuse("--run-path".to_owned(), why);
        }
        if let Some(shell) = self.print_completion.take() {
            return refuse(
                format!("--print-completion {shell}"),
                "shell completion does not exist",
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
        let timer = surroundings.variable("TORCHELASTIC_ENABLE_FILE_TIMER");
        if let Some(given) = timer.filter(|given| given.value == "1") {
            warnings.push(given.has_no_effect(
                "the launcher has no watchdog, so timers that workers set do not expire",
            ));
        }
        if let Some(given) = surroundings.variable("TORCHELASTIC_HEALTH_CHECK_PORT") {
            warnings.push(given.has_no_effect("the launcher has no health check server"));
        }
        Ok(())
    }

    /// The name for reports, the program, its arguments, and whether it is a Python interpreter.
    fn command(
        &mut self,
        surroundings: &Surroundings<'_>,
    ) -> Result<(OsString, OsString, Vec<OsString>, bool), UsageError> {
        let Some(Script::Command(words)) = self.script.take() else {
            return Err(UsageError::NoScript);
        };
        let mut words = words.into_iter();
        let script = words.next().ok_or(UsageError::NoScript)?;
        let is_module = surroundings.flag("module", self.module)?;
        let no_python = surroundings.flag("no-python", self.no_python)?;
        if is_module && no_python {
            return Err(UsageError::ModuleWithoutPython);
        }
        let is_python = is_module || (!no_python && is_python_file(&script));
        if !is_python {
            return Ok((script.clone(), script, words.collect(), false));
        }
        let interpreter = surroundings
            .variable("PYTHON_EXEC")
            .map(|given| given.value)
            .filter(|path| !path.is_empty())
            .unwrap_or_else(|| "python3".to_owned());
        // Unbuffered, so that the last output of a worker that crashes is not lost.
        let mut args: Vec<OsString> = vec!["-u".into()];
        if is_module {
            args.push("-m".into());
        }
        args.push(script.clone());
        args.extend(words);
        Ok((script, interpreter.into(), args, true))
    }

    /// The nodes and how they find each other, with torchrun 2.15's defaults
    /// (`torch/distributed/run.py`).
    fn rendezvous(
        &mut self,
        surroundings: &Surroundings<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<RendezvousParameters, UsageError> {
        let nnodes = surroundings.given("nnodes", self.nnodes.take());
        let (min_nodes, max_nodes) = nnodes.map_or(Ok((1, 1)), node_counts)?;
        let conf = surroundings.given("rdzv-conf", self.rdzv_conf.take());
        let mut config = conf.map_or(Ok(BTreeMap::new()), read_config)?;
        let run_id = surroundings.given("rdzv-id", self.rdzv_id.take());
        let node_rank = surroundings.given("node-rank", self.node_rank.take());
        let local_addr = surroundings.text("local-addr", self.local_addr.take(), "");

        let meeting = self.meeting(surroundings, max_nodes, warnings)?;
        let run_id = match (&meeting, run_id) {
            (Meeting::Alone { asked_for }, given) => {
                if let Some(given) = given.filter(|_| !asked_for) {
                    warnings.push(given.has_no_effect("a job of one node gets a random id"));
                }
                random_id(surroundings.seed)
            }
            (_, given) => given.map_or_else(|| "none".to_owned(), |given| given.value),
        };
        match (&meeting, node_rank) {
            (Meeting::Static(_), given) => {
                let rank = given.map_or(Ok(0), |given| rank_among(given, max_nodes))?;
                config.insert("rank".to_owned(), rank.to_string());
            }
            (_, Some(given)) => {
                let rank: usize = given.clone().number("a whole number, 0 or more")?;
                if rank != 0 {
                    warnings.push(given.has_no_effect("only the static backend uses node ranks"));
                }
            }
            (_, None) => {}
        }
        let is_file = config
            .get("store_type")
            .is_some_and(|store| store.eq_ignore_ascii_case("file"));
        let (backend, endpoint) = match meeting {
            Meeting::Alone { .. } => ("c10d", "localhost:0".to_owned()),
            Meeting::C10d(None) => ("c10d", String::new()),
            Meeting::C10d(Some(given)) => {
                if !is_file {
                    read_endpoint(&given)?;
                }
                ("c10d", given.value)
            }
            Meeting::Static(given) => {
                if read_endpoint(&given)?.port().is_none() {
                    return Err(given.refused("a host and a port, as in node0:29500"));
                }
                ("static", given.value)
            }
        };
        // PyTorch's launcher always adds it; its static backend reads it.
        config
            .entry("timeout".to_owned())
            .or_insert_with(|| "900".to_owned());
        match RendezvousParameters::new(backend, endpoint, run_id, min_nodes, max_nodes) {
            Ok(parameters) => Ok(parameters.with_local_addr(local_addr).with_config(config)),
            Err(source) => Err(UsageError::Rendezvous {
                name: "--nnodes".to_owned(),
                source,
            }),
        }
    }

    fn meeting(
        &mut self,
        surroundings: &Surroundings<'_>,
        max_nodes: usize,
        warnings: &mut Vec<String>,
    ) -> Result<Meeting, UsageError> {
        let standalone = surroundings.flag("standalone", self.standalone)?;
        let backend = surroundings.given("rdzv-backend", self.rdzv_backend.take());
        let endpoint = surroundings
            .given("rdzv-endpoint", self.rdzv_endpoint.take())
            .filter(|given| !given.value.is_empty());
        let master_addr = surroundings.given("master-addr", self.master_addr.take());
        let master_port = surroundings.given("master-port", self.master_port.take());
        let port = match master_port.clone() {
            Some(given) => given.number("a port, 0 to 65535")?,
            None => DEFAULT_PORT,
        };
        let is_static = match backend {
            None => true,
            Some(given) => match given.value.as_str() {
                "static" => true,
                "c10d" => false,
                _ if standalone => false,
                _ => return Err(given.refused("c10d or static")),
            },
        };

        let is_one_node = max_nodes == 1 && master_port.is_none();
        let meeting = match endpoint {
            _ if standalone => Meeting::Alone { asked_for: true },
            endpoint if !is_static => Meeting::C10d(endpoint),
            Some(endpoint) => Meeting::Static(endpoint),
            None if is_one_node => Meeting::Alone { asked_for: false },
            None => {
                let host = master_addr.unwrap_or_else(|| Given {
                    name: "--master-addr".to_owned(),
                    value: "127.0.0.1".to_owned(),
                });
                return Ok(Meeting::Static(Given {
                    value: format!("{}:{port}", host.value),
                    name: host.name,
                }));
            }
        };
        for given in [master_addr, master_port].into_iter().flatten() {
            warnings
                .push(given.has_no_effect("only the static backend without an endpoint uses it"));
        }
        Ok(meeting)
    }
}

/// How the nodes find each other.
#[derive(Debug)]
enum Meeting {
    /// The job has one node.
    Alone {
        /// Whether --standalone was given; otherwise it is the default.
        asked_for: bool,
    },
    /// At a store that any node may serve; `None` for the default endpoint.
    C10d(Option<Given>),
    /// At a store that node 0 serves; each node knows its rank.
    Static(Given),
}

fn node_counts(given: Given) -> Result<(usize, usize), UsageError> {
    let (min, max) = match given.value.split_once(':') {
        Some(range) => range,
        None => (given.value.as_str(), given.value.as_str()),
    };
    match (min.trim().parse(), max.trim().parse()) {
        (Ok(min), Ok(max)) if 1 <= min && min <= max => Ok((min, max)),
        _ => Err(given.refused("N or MIN:MAX with 1 <= MIN <= MAX")),
    }
}

fn read_config(given: Given) -> Result<BTreeMap<String, String>, UsageError> {
    parse_config(&given.value).map_err(|source| UsageError::Rendezvous {
        name: given.name,
        source,
    })
}

fn read_endpoint(given: &Given) -> Result<Endpoint, UsageError> {
    given.value.parse().map_err(|source| UsageError::Endpoint {
        name: given.name.clone(),
        source,
    })
}

fn rank_among(given: Given, max_nodes: usize) -> Result<usize, UsageError> {
    let node_rank = given.clone().number("a whole number, 0 or more")?;
    if node_rank < max_nodes {
        return Ok(node_rank);
    }
    Err(UsageError::NodeRank {
        name: given.name,
        node_rank,
        max_nodes,
    })
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

/// A random UUID (RFC 9562, version 4): the run id of a standalone job.
fn random_id(seed: u64) -> String {
    let random = fastrand::Rng::with_seed(seed).u128(..);
    let digits = format!(
        "{:032x}",
        random & !VERSION_AND_VARIANT.0 | VERSION_AND_VARIANT.1
    );
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}

/// The mask of the fixed bits of a UUID, and their values.
const VERSION_AND_VARIANT: (u128, u128) = (
    0x0000_0000_0000_f000_c000_0000_0000_0000,
    0x0000_0000_0000_4000_8000_0000_0000_0000,
);

#[cfg(test)]
mod tests;
