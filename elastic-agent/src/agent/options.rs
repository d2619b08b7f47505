//! The options of an agent.

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

/// The options of an [`ElasticAgent`](crate::ElasticAgent). [`ElasticAgent::new`](crate::ElasticAgent::new) reports values
/// that no agent can use.
///
/// ```
/// use std::time::Duration;
///
/// use elastic_agent::{AgentOptions, CommandLine};
///
/// let command = CommandLine::new("python3", ["-u", "train.py"]);
/// let mut options = AgentOptions::new(command, 8);
/// options.restarts.max_restarts = Some(3);
/// options.shutdown_timeout = Some(Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct AgentOptions {
    /// The command that each worker runs.
    pub command: CommandLine,
    /// The title of the report on failures. The default is the program of the command.
    pub name: String,
    /// The number of workers of this node, at least one.
    pub local_world_size: usize,
    /// The role of the workers. Workers also have ranks within their role. The default is PyTorch's, `default`.
    pub role: String,
    /// The rules for restarts of the workers after a failure. By default they are never restarted, like with torchrun,
    /// because a script must be written for restarts.
    pub restarts: RestartRules,
    /// The files in which the workers report their progress, and the limits after which they count as stuck. `None`, the
    /// default, if nothing depends on the progress.
    pub progress: Option<ProgressOptions>,
    /// The time that workers have to exit after a signal to the agent, before SIGKILL. `None` waits indefinitely, zero
    /// kills at once. The default is [`DEFAULT_SHUTDOWN_TIMEOUT`](Self::DEFAULT_SHUTDOWN_TIMEOUT).
    pub shutdown_timeout: Option<Duration>,
    /// The processes that get the signals of a stop, and signals that are only passed on. The default is the process
    /// groups of the workers.
    pub signal_target: SignalTarget,
    /// The rank that a person debugs. Only this rank reads this process's standard input, has the foreground of a
    /// terminal, and writes to the console whatever the [logs](Self::logs) are. In the other workers `breakpoint()` has
    /// no effect, and at its end the node waits for other nodes without a limit. `None` by default.
    pub debug_rank: Option<usize>,
    /// The arguments that start pydevd in Python workers, before `--file`, so that they connect to a debugger: all
    /// workers, or only the [debug rank](Self::debug_rank). The command must run Python, like the commands of
    /// [`CommandLine::of`]. Empty by default.
    pub debugger: Vec<OsString>,
    /// The destinations of the workers' output. The default is the console.
    pub logs: LogOptions,
    /// The prefix of lines that are shown as well as written to files, see [`LinePrefix`](crate::LinePrefix). The default
    /// is PyTorch's, `[default0]:` for local rank 0.
    pub line_prefix_template: Option<String>,
    /// Whether each worker sees one device and local rank 0. Off by default, like with torchrun.
    pub has_virtual_local_rank: bool,
    /// Whether all nodes have the same number of workers, of one role, so that each node computes its ranks alone
    /// (PyTorch's `TORCH_ELASTIC_WORKER_IDENTICAL`). All nodes must agree. Off by default, because no node can check it.
    pub are_nodes_identical: bool,
    /// The environment that workers inherit, before PyTorch's variables are set in it. The default is the environment of
    /// this process.
    pub environment: Vec<(OsString, OsString)>,
    /// The full name of this host, for reports and line prefixes. By default the system's name, for which a name server may
    /// be asked for up to 2 s.
    pub host: Option<String>,
    /// Whether the workers reach their store through a relay in this process (`c10d-relay`), which has the
    /// [credentials](elastic_rendezvous::BootstrapInfo) that the store requires. All nodes of a round must have a
    /// relay. Off by default, because MASTER_ADDR is then the same loopback address on all nodes, which not every
    /// script can use.
    pub has_relay: bool,
    /// The port of the relays, for all nodes. By default the nodes of each round agree on a free port.
    pub relay_port: Option<u16>,
    /// The modules of a process that forks the workers, instead of starting an interpreter for each worker. The command
    /// must be `python -u SCRIPT` or `python -u -m MODULE`, like the commands of [`CommandLine::of`]. If the workers
    /// cannot be forked, each starts an interpreter, with a warning. `None` by default. Needs Linux.
    ///
    /// A worker is killed when the *main thread* of this process exits, so let it live as long as the agent.
    pub preload: Option<PreloadOptions>,
    /// A command that must succeed before this node joins any round. While it fails, the node does not join, and
    /// repeats the command after a pause of 10 s, which doubles each time up to 5 min. `None` by default.
    pub health_check: Option<HealthCheck>,
    /// The rules for keeping the other workers when one dies, if their script uses the membership service of their store.
    /// An agent must serve that store. `None`, the default, if all workers are restarted.
    pub keep_workers: Option<KeepOptions>,
    /// Whether the workers of this node are stopped when workers of another node have failed without a restart left,
    /// and whether the other nodes are notified of such a failure on this node. On by default. Otherwise running
    /// workers keep running, like with torchrun, but their node cannot restart them.
    pub stops_on_job_failure: bool,
    /// Whether a watchdog kills workers whose timers expire (`torch.distributed.elastic.timer` with `FileTimerClient`,
    /// in PyTorch `TORCHELASTIC_ENABLE_FILE_TIMER`). Workers find its pipe in `TORCHELASTIC_TIMER_FILE`. Off by
    /// default.
    pub has_watchdog: bool,
    /// The path of the watchdog's pipe, which only one agent can use. By default a new file in the directory for
    /// temporary files in each round.
    pub timer_file: Option<PathBuf>,
    pub(crate) debug_sockets: Option<PathBuf>,
}

impl AgentOptions {
    /// The time that workers have to exit after a signal: 30 s, like in PyTorch.
    pub const DEFAULT_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

    /// Creates the options of an agent that runs `command` in `local_world_size` workers, at least one.
    pub fn new(command: CommandLine, local_world_size: usize) -> Self {
        Self {
            name: command.program().to_string_lossy().into_owned(),
            command,
            local_world_size,
            role: "default".to_owned(),
            restarts: RestartRules::default(),
            progress: None,
            shutdown_timeout: Some(Self::DEFAULT_SHUTDOWN_TIMEOUT),
            signal_target: SignalTarget::default(),
            debug_rank: None,
            debugger: Vec::new(),
            logs: LogOptions::default(),
            line_prefix_template: None,
            has_virtual_local_rank: false,
            are_nodes_identical: false,
            environment: std::env::vars_os().collect(),
            host: None,
            has_relay: false,
            relay_port: None,
            preload: None,
            health_check: None,
            keep_workers: None,
            stops_on_job_failure: true,
            has_watchdog: false,
            timer_file: None,
            debug_sockets: None,
        }
    }

    /// Returns the path of the debug server's socket of one worker. `restarts` is how often the agent has started workers
    /// before: no two workers share a path, because a process that an earlier worker left behind may still hold its socket.
    #[must_use]
    pub fn debug_socket(directory: &Path, restarts: usize, local_rank: usize) -> PathBuf {
        directory.join(format!("{restarts}-{local_rank}"))
    }

    /// Starts a watchdog, if the agent has one.
    pub(super) fn watchdog(&self, shared: &Shared) -> Result<Option<Watchdog>, WatchdogError> {
        if !self.has_watchdog {
            return Ok(None);
        }
        let progress = Arc::clone(&shared.watchdog_progress);
        Watchdog::start(self.timer_file.as_deref(), progress).map(Some)
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
