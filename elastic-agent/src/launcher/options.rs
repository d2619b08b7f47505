//! The options of a launcher: the agent, the rendezvous and the features, and the screen that it writes to.

use std::fmt::Debug;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use c10d_inspect::http::StatusOptions;
use c10d_socket::Credentials;
use c10d_store::recommended_memory_max;
use elastic_rendezvous::{RendezvousParameters, StartWarning, StoreDirectory};

use crate::agent::AgentOptions;
use crate::command_line::Entrypoint;

/// The options of a [`Launcher`](crate::Launcher): an agent, its rendezvous, and what accompanies them.
///
/// By default a launcher announces its ranks to the stores, serves a status page on those that it hosts, explains a job
/// that stands still, and handles no signal.
#[derive(Debug, Clone)]
#[must_use]
pub struct LauncherOptions {
    pub(super) agent: AgentOptions,
    pub(super) rendezvous: RendezvousParameters,
    pub(super) entrypoint: Option<Entrypoint>,
    pub(super) interpreter: Option<String>,
    /// `None` if no signal is handled.
    pub(super) signals: Option<Vec<String>>,
    pub(super) exit_limits: Option<ExitLimits>,
    pub(super) explain_after: Option<Duration>,
    pub(super) has_stacks: bool,
    pub(super) has_debug_servers: bool,
    pub(super) status_page: Option<StatusOptions>,
    pub(super) store_memory_max: Option<usize>,
    pub(super) health_port: Option<u16>,
    pub(super) events_file: Option<PathBuf>,
    pub(super) error_file: Option<PathBuf>,
    pub(super) start_warnings: Vec<StartWarning>,
    pub(super) screen: Arc<dyn Screen>,
}

/// Limits of this process after a signal, so that it has ended before a scheduler kills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExitLimits {
    /// How long leaving the rendezvous may take.
    pub leave: Duration,
    /// How long after the signal this *process* ends, with exit code 1, even if the launcher waits for something.
    pub exit: Duration,
}

impl ExitLimits {
    /// Both limits.
    #[must_use]
    pub const fn new(leave: Duration, exit: Duration) -> Self {
        Self { leave, exit }
    }
}

impl LauncherOptions {
    /// Importing PyTorch and meeting take less on most machines.
    pub const DEFAULT_EXPLAIN_AFTER: Duration = Duration::from_secs(30);

    /// A launcher of these workers, which meets the other nodes in this rendezvous. What the stores ask for is in the
    /// rendezvous' [credentials](RendezvousParameters::with_credentials).
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

    /// What the agent's command runs: a script is looked for before this node joins, and errors name what Python needs.
    /// By default nothing is known about it.
    pub fn with_entrypoint(mut self, entrypoint: impl Into<Option<Entrypoint>>) -> Self {
        self.entrypoint = entrypoint.into();
        self
    }

    /// The interpreter of the workers, for the line about their start, if users may expect a different
    /// interpreter. By default the line does not name it.
    pub fn with_interpreter(mut self, interpreter: impl Into<Option<String>>) -> Self {
        self.interpreter = interpreter.into();
        self
    }

    /// Signals that stop the workers and then the launcher, by their names, for example `SIGTERM`; SIGUSR1 and SIGUSR2 are passed on
    /// to the workers then. From the start of [`run`](crate::Launcher::run) until its report is dropped none of them ends
    /// this process. By default no signal is handled.
    pub fn with_signals<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.signals = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Ends this process in limited time after a signal. Without limits by default: a store that does not answer can
    /// delay the end.
    pub fn with_exit_limits(mut self, limits: impl Into<Option<ExitLimits>>) -> Self {
        self.exit_limits = limits.into();
        self
    }

    /// Says what the job waits for when it has made no progress for this long; `None` for never. The default is
    /// [`DEFAULT_EXPLAIN_AFTER`](Self::DEFAULT_EXPLAIN_AFTER).
    pub fn with_explain_after(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.explain_after = after.into();
        self
    }

    /// Sets whether the launcher reads the Python stacks of its workers, and opens a port that serves them on request.
    /// On by default, on Linux with the feature `stacks`. With credentials, a client needs their password. With
    /// certificates there is no password, so the port is not opened.
    pub const fn with_stacks(mut self, has_stacks: bool) -> Self {
        self.has_stacks = has_stacks;
        self
    }

    /// Whether each worker runs PyTorch's debug server, for `c10d flight`. Off by default: it adds to the workers'
    /// PYTHONPATH.
    pub const fn with_debug_servers(mut self, has_debug_servers: bool) -> Self {
        self.has_debug_servers = has_debug_servers;
        self
    }

    /// The status page on the ports of the stores that this node hosts; `None` for none. On by default. Its title is the
    /// [name](AgentOptions::with_name) of the agent. Stores that clients prove themselves to by certificates alone have no
    /// page, as there is no password for it.
    pub fn with_status_page(mut self, options: impl Into<Option<StatusOptions>>) -> Self {
        self.status_page = options.into();
        self
    }

    /// The rendezvous [finds its store](RendezvousParameters::with_store) in this directory.
    pub fn with_store(mut self, store: StoreDirectory) -> Self {
        self.rendezvous = self.rendezvous.with_store(store);
        self
    }

    /// The [memory limit](c10d_store::ServerOptions::memory_max) of each store that this node hosts, in bytes; `None` for no limit.
    /// The default is [`recommended_memory_max`], since a store that exhausts the memory ends the job.
    pub fn with_store_memory_max(mut self, bytes: impl Into<Option<usize>>) -> Self {
        self.store_memory_max = bytes.into();
        self
    }

    /// A port on which the launcher answers whether it is alive, on all interfaces. None by default.
    pub fn with_health_port(mut self, port: impl Into<Option<u16>>) -> Self {
        self.health_port = port.into();
        self
    }

    /// A file to which one JSON object a line is appended about each round. None by default.
    pub fn with_events_file(mut self, path: impl Into<Option<PathBuf>>) -> Self {
        self.events_file = path.into();
        self
    }

    /// The file in which the program that started this one finds why the job failed, in PyTorch's format
    /// (`TORCHELASTIC_ERROR_FILE`). None by default.
    pub fn with_error_file(mut self, path: impl Into<Option<PathBuf>>) -> Self {
        self.error_file = path.into();
        self
    }

    /// The warnings about this start. When the workers start, or earlier if the start takes long or fails, one line of
    /// the log has the most severe of these warnings and of the launcher's own warnings. None by default.
    pub fn with_start_warnings(mut self, warnings: Vec<StartWarning>) -> Self {
        self.start_warnings = warnings;
        self
    }

    /// Where reports and explanations are written. The default is [`StandardError`].
    pub fn with_screen(mut self, screen: Arc<dyn Screen>) -> Self {
        self.screen = screen;
        self
    }

    /// The agent's options.
    pub const fn agent(&self) -> &AgentOptions {
        &self.agent
    }

    /// The rendezvous' parameters.
    pub const fn rendezvous(&self) -> &RendezvousParameters {
        &self.rendezvous
    }

    /// The file about each round.
    #[must_use]
    pub const fn events_file(&self) -> Option<&PathBuf> {
        self.events_file.as_ref()
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
    /// Writes a message of whole lines that starts in the launcher's name. Must not fail: it may have no reader.
    fn message(&self, text: &str);

    /// Writes whole lines as they are, for example a report on failures.
    fn text(&self, text: &str);

    /// Whether [`show`](Self::show) has an effect.
    fn is_live(&self) -> bool {
        false
    }

    /// Replaces the line that shows what is going on. Its text may come from other nodes, and can have any characters.
    fn show(&self, line: &str) {
        let _ = line;
    }

    /// Removes that line, before workers write to the same terminal.
    fn hide(&self) {}

    /// Waits until all is written, unless nothing was accepted for `stuck_max`.
    fn finish(&self, stuck_max: Duration) {
        let _ = stuck_max;
    }
}

/// Writes to the standard error of this process, and waits for its reader.
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
