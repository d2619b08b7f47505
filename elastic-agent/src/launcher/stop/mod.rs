//! Ends the launcher after a signal, whatever it waits for.

mod exit_deadline;
mod signals;

use std::io;
use std::time::Duration;

use self::exit_deadline::ExitDeadline;
use self::signals::Signals;
use super::error::LauncherError;
use super::options::{ExitLimits, LauncherOptions};
use crate::agent::AgentHandle;

/// How long the end waits for an output that accepts nothing: after a signal, and without one, as for workers' output.
const STUCK_STOPPED_MAX: Duration = Duration::from_secs(1);
const STUCK_MAX: Duration = Duration::from_secs(10);

/// Longer than any job, and still a time that can be added to the current one.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86400);

/// Handles a launcher's signals until it is dropped: from before the first connect until the last output is written, as
/// process 1 of a container gets none that it does not handle.
#[derive(Debug)]
pub struct StopControl {
    // Dropped first: it starts the other's time.
    signals: Signals,
    deadline: ExitDeadline,
}

impl StopControl {
    pub(super) fn start(options: &LauncherOptions) -> Result<Self, LauncherError> {
        let kill = options.agent.shutdown_timeout.unwrap_or(NEVER);
        let exit = options.exit_limits.map(|limits| limits.exit);
        let deadline = ExitDeadline::start(kill, exit, options.screen.clone())
            .map_err(LauncherError::system("cannot start a thread"))?;
        let signals = Signals::catch(options.signals.as_deref(), deadline.timer())
            .map_err(LauncherError::system("cannot handle signals"))?;
        Ok(Self { signals, deadline })
    }

    /// From now on, signals stop this agent.
    pub(super) fn watch(&self, agent: AgentHandle) {
        self.deadline.watch(agent.kill_switch());
        self.signals.pass_to(agent);
    }

    /// The number of the first signal that stops the launcher; `None` while there is none.
    #[must_use]
    pub fn stopped_by(&self) -> Option<i32> {
        self.signals.stopped_by()
    }

    /// How much of the grace period of these limits is left; `None` before a signal, and without limits.
    pub(super) fn grace_left(&self, limits: Option<ExitLimits>) -> Option<Duration> {
        let since = self.signals.stopped_at()?;
        Some(limits?.exit.saturating_sub(since.elapsed()))
    }

    /// Does `work` on a thread of its own. Returns its result, or `None` if it takes more than `patience` after a
    /// signal that stops the launcher. Its thread is left behind then: neither a connect nor a write can be cancelled.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn unless_stopped<T: Send + 'static>(
        &self,
        thread: &str,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        self.signals.unless_stopped(thread, patience, work)
    }

    /// How long the end waits for an output that accepts nothing.
    #[must_use]
    pub fn stuck_max(&self) -> Duration {
        match self.stopped_by() {
            Some(_) => STUCK_STOPPED_MAX,
            None => STUCK_MAX,
        }
    }
}
