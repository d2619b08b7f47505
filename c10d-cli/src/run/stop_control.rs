//! Ends the launcher after a signal, whatever it waits for.

use std::time::Duration;

use elastic_agent::AgentHandle;
use serde_json::Value;

use super::exit_deadline::ExitDeadline;
use super::options::RunPlan;
use super::signals::Signals;
use crate::failure::Failure;
use crate::output;

/// How long the end waits for an output that accepts nothing: after a signal, and without one, as for workers' output.
const STUCK_STOPPED_MAX: Duration = Duration::from_secs(1);
const STUCK_MAX: Duration = Duration::from_secs(10);

/// Handles signals until it is dropped. Signals are handled from before the first connect until the last output is
/// written: process 1 of a container gets none that it does not handle.
#[derive(Debug)]
pub(super) struct StopControl {
    // Dropped first: it starts the other's time.
    signals: Signals,
    deadline: ExitDeadline,
}

impl StopControl {
    pub(super) fn start(plan: &RunPlan) -> Result<Self, Failure> {
        let exit = plan.exit_limits.map(|limits| limits.exit);
        let deadline = ExitDeadline::start(plan.shutdown_timeout, exit)
            .map_err(Failure::system("cannot start a thread"))?;
        let signals = Signals::catch(&plan.signals, deadline.timer())
            .map_err(Failure::system("cannot handle signals"))?;
        Ok(Self { signals, deadline })
    }

    pub(super) const fn signals(&self) -> &Signals {
        &self.signals
    }

    /// From now on, signals stop this agent.
    pub(super) fn watch(&self, agent: AgentHandle) {
        self.deadline.watch(agent.kill_switch());
        self.signals.pass_to(agent);
    }

    /// Prints a line on standard output. Waits for its reader until a signal arrives.
    pub(super) fn print_line(&self, answer: Value) -> Result<(), Failure> {
        let print = move || output::print_line(answer);
        let printed = self
            .signals
            .unless_stopped("print", STUCK_STOPPED_MAX, print)
            .map_err(Failure::system("cannot start a thread"))?;
        printed.unwrap_or_else(|| Err(Failure::Output(std::io::ErrorKind::TimedOut.into())))
    }

    /// How long the end waits for an output that accepts nothing.
    pub(super) fn stuck_max(&self) -> Duration {
        match self.signals.stopped_by() {
            Some(_) => STUCK_STOPPED_MAX,
            None => STUCK_MAX,
        }
    }
}
