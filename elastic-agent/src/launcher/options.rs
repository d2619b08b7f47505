//! The options of a launcher: the agent, the rendezvous and the features, and the screen that it writes to.

use std::fmt::Debug;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use c10d_inspect::http::StatusOptions;
use c10d_socket::Credentials;
use c10d_store::recommended_memory_max;
use elastic_rendezvous::{RendezvousParameters, StartWarning};

use crate::agent::AgentOptions;
use crate::command_line::Entrypoint;

/// The options of a [`Launcher`](crate::Launcher): an agent, its rendezvous, and the features that accompany them.
///
/// By default a launcher announces its ranks to the stores, serves a status page on those that it hosts, explains a job
/// that makes no progress, and handles no signal.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct LauncherOptions {
    /// The options of the agent.
    pub agent: AgentOptions,
    /// The parameters of the rendezvous, with the [credentials](RendezvousParameters::with_credentials) that the stores
    /// require.
    pub rendezvous: RendezvousParameters,
    /// The script, module or program of the agent's command. It lets the launcher check before this node joins that a
    /// script exists, and name Python's requirements in errors. `None`, the default, if it is unknown.
    pub entrypoint: Option<Entrypoint>,
    /// The interpreter of the workers, for the line about their start, if users may expect a different interpreter. `None`,
    /// the default, leaves it out of the line.
    pub interpreter: Option<String>,
    /// The names of the signals that stop the workers and then the launcher, for example `SIGTERM`. With a list of
    /// names, SIGUSR1 and SIGUSR2 are also passed on to the workers. From the start of [`run`](crate::Launcher::run)
    /// until its report is dropped, none of these signals kills this process. `None`, the default, if no signal is
    /// handled.
    pub signals: Option<Vec<String>>,
    /// The limits of this process after a signal. `None` by default: a store that does not answer can delay the exit.
    pub exit_limits: Option<ExitLimits>,
    /// The time without progress after which the launcher explains what the job waits for; `None` for never. The default is
    /// [`DEFAULT_EXPLAIN_AFTER`](Self::DEFAULT_EXPLAIN_AFTER).
    pub explain_after: Option<Duration>,
    /// Whether the launcher reads the Python stacks of its workers, and opens a port that serves them on request.
    /// On by default, on Linux with the feature `stacks`. With credentials, a client needs their password. With
    /// certificates there is no password, so the port is not opened.
    pub has_stacks: bool,
    /// Whether each worker runs PyTorch's debug server, for `c10d flight`. Off by default: it adds to the workers'
    /// PYTHONPATH.
    pub has_debug_servers: bool,
    /// The status page on the ports of the stores that this node hosts; `None` for none. On by default. Its title is
    /// the [name](AgentOptions::name) of the agent. Stores whose clients have only certificates have no page, because
    /// there is no password for it.
    pub status_page: Option<StatusOptions>,
    /// The [memory limit](c10d_store::ServerOptions::memory_max) of each store that this node hosts, in bytes; `None`
    /// for no limit. The default is [`recommended_memory_max`], because a store that exhausts the memory makes the job
    /// fail.
    pub store_memory_max: Option<usize>,
    /// The port on which the launcher answers probes of whether it is alive, on all interfaces. `None` by default.
    pub health_port: Option<u16>,
    /// The file to which the launcher appends one line with a JSON object about each round. `None` by default.
    pub events_file: Option<PathBuf>,
    /// The file in which the program that started this one finds the cause of a failed job, in PyTorch's format
    /// (`TORCHELASTIC_ERROR_FILE`). `None` by default.
    pub error_file: Option<PathBuf>,
    /// The warnings about this start. When the workers start, or earlier if the start takes long or fails, one line of
    /// the log has the most severe of these warnings and of the launcher's own warnings. Empty by default.
    pub start_warnings: Vec<StartWarning>,
    /// The screen for reports and explanations. The default is [`StandardError`].
    pub screen: Arc<dyn Screen>,
}

/// Limits of this process after a signal, so that it has ended before a scheduler kills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExitLimits {
    /// The time that leaving the rendezvous may take.
    pub leave: Duration,
    /// The time after the signal when this *process* exits, with exit code 1, even if the launcher is still waiting.
    pub exit: Duration,
}

impl ExitLimits {
    /// Creates limits from both times.
    #[must_use]
    pub const fn new(leave: Duration, exit: Duration) -> Self {
        Self { leave, exit }
    }
}

impl LauncherOptions {
    /// The time without progress after which the launcher explains the job: 30 s. Importing PyTorch and meeting take
    /// less on most machines.
    pub const DEFAULT_EXPLAIN_AFTER: Duration = Duration::from_secs(30);

    /// Creates the options of a launcher of these workers, which meets the other nodes in this rendezvous.
    pub fn new(agent: AgentOptions, rendezvous: RendezvousParameters) -> Self {
        Self {
            agent,
            rendezvous,
            entrypoint: None,
            interpreter: None,
            signals: None,
            exit_limits: None,
            explain_after: Some(Self::DEFAULT_EXPLAIN_AFTER),
            has_stacks: true,
            has_debug_servers: false,
            status_page: Some(StatusOptions::default()),
            store_memory_max: recommended_memory_max(),
            health_port: None,
            events_file: None,
            error_file: None,
            start_warnings: Vec::new(),
            screen: Arc::new(StandardError),
        }
    }

    /// Whether the workers are Python programs.
    pub(super) const fn is_python(&self) -> bool {
        matches!(
            self.entrypoint,
            Some(Entrypoint::Script(_) | Entrypoint::Module(_) | Entrypoint::RunPath(_))
        )
    }

    /// The password of the pages of this job's servers.
    pub(super) fn token(&self) -> Option<String> {
        self.rendezvous
            .credentials()
            .and_then(Credentials::http_token)
    }
}

/// The output of a launcher for people. Its methods are called from several threads.
pub trait Screen: Debug + Send + Sync {
    /// Writes a message of whole lines, which starts with the launcher's name. Must not fail, because it may have no
    /// reader.
    fn message(&self, text: &str);

    /// Writes whole lines as they are, for example a report on failures.
    fn text(&self, text: &str);

    /// Whether [`show`](Self::show) has an effect.
    fn is_live(&self) -> bool {
        false
    }

    /// Replaces the line that shows the current activity. Its text may come from other nodes, and can have any
    /// characters.
    fn show(&self, line: &str) {
        let _ = line;
    }

    /// Removes the line of [`show`](Self::show), before workers write to the same terminal.
    fn hide(&self) {}

    /// Waits until everything is written, unless nothing was accepted for `stuck_max`.
    fn finish(&self, stuck_max: Duration) {
        let _ = stuck_max;
    }
}

/// A screen that writes to the standard error of this process, and waits for its reader.
#[derive(Debug, Clone, Copy, Default)]
pub struct StandardError;

impl Screen for StandardError {
    fn message(&self, text: &str) {
        self.text(&format!("launcher: {text}"));
    }

    fn text(&self, text: &str) {
        // A closed standard error takes no text.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
