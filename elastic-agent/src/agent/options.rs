//! What an agent runs, and how.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::handle::Shared;
use crate::command_line::CommandLine;
use crate::health::HealthCheck;
use crate::logs::LogOptions;
use crate::preload::PreloadOptions;
use crate::progress::ProgressOptions;
use crate::restart_policy::RestartRules;
use crate::round::{AgentError, KeepOptions};
use crate::watchdog::{Watchdog, WatchdogError};
use crate::worker::SignalTarget;

/// The options of an [`ElasticAgent`](crate::ElasticAgent). Values that no agent can use are reported by
/// [`ElasticAgent::new`](crate::ElasticAgent::new).
///
/// ```
/// use std::time::Duration;
///
/// use elastic_agent::{AgentOptions, CommandLine};
///
/// let command = CommandLine::new("python3", ["-u", "train.py"]);
/// let options = AgentOptions::new(command, 8)
///     .with_max_restarts(3)
///     .with_shutdown_timeout(Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct AgentOptions {
    pub(crate) command: CommandLine,
    pub(crate) name: String,
    pub(crate) local_world_size: usize,
    pub(crate) role: String,
    pub(crate) restarts: RestartRules,
    pub(crate) progress: Option<ProgressOptions>,
    pub(crate) shutdown_timeout: Option<Duration>,
    pub(crate) logs: LogOptions,
    pub(crate) line_prefix_template: Option<String>,
    pub(crate) virtual_local_rank: bool,
    pub(crate) are_nodes_identical: bool,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) host: Option<String>,
    pub(crate) debug_sockets: Option<PathBuf>,
    pub(crate) has_relay: bool,
    pub(crate) relay_port: Option<u16>,
    pub(crate) preload: Option<PreloadOptions>,
    pub(crate) health_check: Option<HealthCheck>,
    pub(crate) keep: Option<KeepOptions>,
    pub(crate) signal_target: SignalTarget,
    pub(crate) debug_rank: Option<usize>,
    pub(crate) debugger: Vec<OsString>,
    pub(crate) stops_on_job_failure: bool,
    pub(crate) has_watchdog: bool,
    timer_file: Option<PathBuf>,
}

impl AgentOptions {
    /// PyTorch's: how long workers have to exit after a signal.
    pub const DEFAULT_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

    /// An agent that runs `command` in `local_world_size` workers, at least one.
    pub fn new(command: CommandLine, local_world_size: usize) -> Self {
        Self {
            name: command.program().to_string_lossy().into_owned(),
            command,
            local_world_size,
            role: "default".to_owned(),
            restarts: RestartRules::default(),
            progress: None,
            shutdown_timeout: Some(Self::DEFAULT_SHUTDOWN_TIMEOUT),
            logs: LogOptions::default(),
            line_prefix_template: None,
            virtual_local_rank: false,
            are_nodes_identical: false,
            environment: std::env::vars_os().collect(),
            host: None,
            debug_sockets: None,
            has_relay: false,
            relay_port: None,
            preload: None,
            health_check: None,
            keep: None,
            signal_target: SignalTarget::default(),
            debug_rank: None,
            debugger: Vec::new(),
            stops_on_job_failure: true,
            has_watchdog: false,
            timer_file: None,
        }
    }

    /// The title of the report on failures. The default is the program of the command.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The role of the workers, within which they have ranks as well. The default is PyTorch's,
    /// `default`.
    pub fn with_role(mut self, role: impl Into<String>) -> Self {
        self.role = role.into();
        self
    }

    /// How often the workers are restarted after a failure. The default is 0, as with torchrun: a script
    /// must be written for restarts.
    pub const fn with_max_restarts(mut self, restarts: usize) -> Self {
        self.restarts.max_restarts = Some(restarts);
        self
    }

    /// When the workers are restarted after a failure. By default never.
    pub fn with_restart_rules(mut self, rules: RestartRules) -> Self {
        self.restarts = rules;
        self
    }

    /// Where the workers report their progress, and when they count as stuck. By default nowhere and never.
    pub fn with_progress(mut self, progress: impl Into<Option<ProgressOptions>>) -> Self {
        self.progress = progress.into();
        self
    }

    /// How long workers have to exit after a signal to the agent, before SIGKILL. `None` waits
    /// indefinitely, zero kills at once. The default is
    /// [`DEFAULT_SHUTDOWN_TIMEOUT`](Self::DEFAULT_SHUTDOWN_TIMEOUT).
    pub fn with_shutdown_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.shutdown_timeout = timeout.into();
        self
    }

    /// Which processes get the signals of a stop, and those that are only passed on. By default the process groups of
    /// the workers.
    pub const fn with_signal_target(mut self, target: SignalTarget) -> Self {
        self.signal_target = target;
        self
    }

    /// The rank that a person debugs: it alone reads this process's standard input, has the foreground of a terminal, and
    /// writes to the console whatever the [logs](Self::with_logs) say. In the other workers `breakpoint()` has no effect, and
    /// the node waits for other nodes at its end without a limit. None by default.
    pub fn with_debug_rank(mut self, rank: impl Into<Option<usize>>) -> Self {
        self.debug_rank = rank.into();
        self
    }

    /// The words that start pydevd in Python workers, before `--file`, so that they connect to a debugger: all of them, or
    /// the [debug rank](Self::with_debug_rank) alone. The command must be one of Python, as [`CommandLine::of`] makes it. None
    /// by default.
    pub fn with_debugger(mut self, words: Vec<OsString>) -> Self {
        self.debugger = words;
        self
    }

    /// Where the output of workers goes. By default the console, unchanged.
    pub fn with_logs(mut self, logs: LogOptions) -> Self {
        self.logs = logs;
        self
    }

    /// The prefix of lines that are shown as well as written to files, see
    /// [`LinePrefix`](crate::LinePrefix). The default is PyTorch's, `[default0]:` for local rank 0.
    pub fn with_line_prefix_template(mut self, template: impl Into<String>) -> Self {
        self.line_prefix_template = Some(template.into());
        self
    }

    /// Whether each worker sees one device and local rank 0. Off by default, as with torchrun.
    pub const fn with_virtual_local_rank(mut self, is_virtual: bool) -> Self {
        self.virtual_local_rank = is_virtual;
        self
    }

    /// Whether all nodes have the same number of workers, of one role, so that each node computes its
    /// ranks alone (PyTorch's `TORCH_ELASTIC_WORKER_IDENTICAL`). All nodes must agree. Off by default, as
    /// no node can check it.
    pub const fn with_identical_nodes(mut self, are_identical: bool) -> Self {
        self.are_nodes_identical = are_identical;
        self
    }

    /// The environment that workers inherit, before PyTorch's variables are set in it. By default that of
    /// this process.
    pub fn with_environment(
        mut self,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        self.environment = environment.into_iter().collect();
        self
    }

    /// The full name of this host, for reports and line prefixes. By default the system's, for which a
    /// name server may be asked for up to 2 s.
    pub fn with_host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// The path of the debug server's socket of one worker. `restarts` is how often the agent has started
    /// workers before: no two workers share a path, as a process that an earlier one left behind may still
    /// hold its socket.
    #[must_use]
    pub fn debug_socket(directory: &Path, restarts: usize, local_rank: usize) -> PathBuf {
        directory.join(format!("{restarts}-{local_rank}"))
    }

    /// Whether the workers reach their store through a relay in this process (`c10d-relay`), which has the
    /// [credentials](elastic_rendezvous::BootstrapInfo) that the store asks for. All nodes of a round must have one.
    /// Off by default: MASTER_ADDR is the same loopback address on all nodes then, which not every script can use.
    pub const fn with_relay(mut self, has_relay: bool) -> Self {
        self.has_relay = has_relay;
        self
    }

    /// The port of the relays, for all nodes. By default the nodes of each round agree on a free one.
    pub fn with_relay_port(mut self, port: impl Into<Option<u16>>) -> Self {
        self.relay_port = port.into();
        self
    }

    /// Forks the workers from a process that has imported modules already, instead of starting an interpreter for
    /// each. The command must be `python -u SCRIPT` or `python -u -m MODULE`, as [`CommandLine::of`] makes it. If they
    /// cannot be forked, they start as without it, with a warning. None by default. Needs Linux.
    ///
    /// A worker is killed when the *main thread* of this process ends; let it live as long as the agent.
    pub fn with_preload(mut self, preload: impl Into<Option<PreloadOptions>>) -> Self {
        self.preload = preload.into();
        self
    }

    /// A command that must succeed before this node joins a round, the first and every later one. While it fails, the
    /// node stays away, and repeats it after a pause of 10 s, doubled each time up to 5 min. None by default.
    pub fn with_health_check(mut self, check: impl Into<Option<HealthCheck>>) -> Self {
        self.health_check = check.into();
        self
    }

    /// How the other workers are kept when one dies, if their script uses the membership service of their store. An agent
    /// must serve that store. By default all are restarted.
    pub fn with_keep_workers(mut self, keep: impl Into<Option<KeepOptions>>) -> Self {
        self.keep = keep.into();
        self
    }

    /// Whether the workers of this node are stopped when workers of another node have failed without a restart left,
    /// and whether the other nodes learn of such a failure on this node. On by default. Otherwise running workers are
    /// left alone, as with torchrun, but their node cannot restart them.
    pub const fn with_stop_on_job_failure(mut self, stops: bool) -> Self {
        self.stops_on_job_failure = stops;
        self
    }

    /// Whether a watchdog ends workers whose timers expire (`torch.distributed.elastic.timer` with `FileTimerClient`, in
    /// PyTorch `TORCHELASTIC_ENABLE_FILE_TIMER`). Workers find its pipe in `TORCHELASTIC_TIMER_FILE`. Off by default.
    pub const fn with_watchdog(mut self, has_watchdog: bool) -> Self {
        self.has_watchdog = has_watchdog;
        self
    }

    /// The path of the watchdog's pipe, for one agent only. By default a new file in the directory for temporary files,
    /// in each round another one.
    pub fn with_timer_file(mut self, path: impl Into<Option<PathBuf>>) -> Self {
        self.timer_file = path.into();
        self
    }

    /// Starts a watchdog, if the agent has one.
    pub(super) fn watchdog(&self, shared: &Shared) -> Result<Option<Watchdog>, WatchdogError> {
        if !self.has_watchdog {
            return Ok(None);
        }
        let progress = Arc::clone(&shared.watchdog_progress);
        Watchdog::start(self.timer_file.as_deref(), progress).map(Some)
    }

    /// What each worker runs.
    #[must_use]
    pub const fn command(&self) -> &CommandLine {
        &self.command
    }

    /// How many workers this node runs.
    #[must_use]
    pub const fn local_world_size(&self) -> usize {
        self.local_world_size
    }

    /// The role of the workers.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// When the workers are restarted after a failure.
    #[must_use]
    pub const fn restart_rules(&self) -> &RestartRules {
        &self.restarts
    }

    /// Where the workers report their progress; `None` if nothing depends on it.
    #[must_use]
    pub const fn progress(&self) -> Option<&ProgressOptions> {
        self.progress.as_ref()
    }

    /// How long workers have to exit after a signal; `None` for any time.
    #[must_use]
    pub const fn shutdown_timeout(&self) -> Option<Duration> {
        self.shutdown_timeout
    }

    /// Where the output of the workers goes.
    pub const fn logs(&self) -> &LogOptions {
        &self.logs
    }

    /// What workers are forked from, if they are.
    #[must_use]
    pub const fn preload(&self) -> Option<&PreloadOptions> {
        self.preload.as_ref()
    }

    /// What must succeed before this node joins a round.
    #[must_use]
    pub const fn health_check(&self) -> Option<&HealthCheck> {
        self.health_check.as_ref()
    }

    /// Whether the failure of a node stops the workers of the other nodes.
    #[must_use]
    pub const fn has_stop_on_job_failure(&self) -> bool {
        self.stops_on_job_failure
    }

    /// How the other workers are kept when one dies.
    #[must_use]
    pub const fn keep_workers(&self) -> Option<&KeepOptions> {
        self.keep.as_ref()
    }

    pub(super) const fn check(&self) -> Result<(), AgentError> {
        if self.local_world_size == 0 {
            return Err(AgentError::InvalidOption {
                option: "local_world_size",
                reason: "must be at least 1",
            });
        }
        if matches!(self.relay_port, Some(0)) {
            return Err(AgentError::InvalidOption {
                option: "relay_port",
                reason: "must be at least 1",
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_without_workers_is_refused() {
        let options = |workers| AgentOptions::new(CommandLine::new("true", [""; 0]), workers);
        assert!(options(1).check().is_ok());
        assert_eq!(
            options(0).check().unwrap_err().to_string(),
            "invalid option: local_world_size must be at least 1"
        );
    }
}
