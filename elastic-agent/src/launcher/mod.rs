//! A whole launcher: the rendezvous, the agent, and what accompanies them, as in torchrun's `run`.
//!
//! Takes no option from a command line or a variable, and writes only to a [`Screen`] and the log. `features` has what
//! accompanies the agent, in its order.

mod announce;
mod answers;
mod companion;
mod debug_servers;
mod ending;
mod error;
mod events;
mod explain;
mod feature;
mod features;
mod health_port;
mod job;
mod nccl;
mod observer;
mod options;
mod preflight;
mod processes;
mod progress_log;
mod report;
mod stacks;
mod status_page;
mod stop;

use elastic_rendezvous::{C10D_BACKEND, RendezvousSettings};

pub use self::companion::Companion;
pub use self::error::LauncherError;
pub use self::options::{ExitLimits, LauncherOptions, Screen, StandardError};
pub use self::report::LauncherReport;
pub use self::stop::StopControl;

/// Runs the workers of one node of a job, and all that a person or a scheduler expects around them.
///
/// It announces its ranks to the stores, so that `c10d why` names them, serves a status page on the stores that it hosts,
/// explains standstills and failures, and leaves or closes the rendezvous at the end.
///
/// In PyTorch: `elastic_launch` (`torch/distributed/launcher/api.py`).
///
/// ```no_run
/// use elastic_agent::{AgentOptions, CommandLine, Launcher, LauncherOptions};
/// use elastic_rendezvous::RendezvousParameters;
///
/// let agent = AgentOptions::new(CommandLine::new("python3", ["-u", "train.py"]), 2);
/// let rendezvous = RendezvousParameters::new("c10d", "node0:29400", "job-7", 2, 2)?;
/// let options = LauncherOptions::new(agent, rendezvous).with_signals(["SIGTERM", "SIGINT"]);
/// let report = Launcher::new(options).run();
/// std::process::exit(i32::from(report.exit_code()));
/// # #[allow(unreachable_code)]
/// # Ok::<(), elastic_rendezvous::ParametersError>(())
/// ```
#[derive(Debug)]
pub struct Launcher {
    options: LauncherOptions,
}

impl Launcher {
    /// Starts nothing yet.
    #[must_use]
    pub const fn new(options: LauncherOptions) -> Self {
        Self { options }
    }

    /// Whether the options can be used, as far as that is known without a rendezvous. Opens no connection.
    ///
    /// # Errors
    /// [`LauncherError::Invalid`].
    pub fn check(&self) -> Result<(), LauncherError> {
        let parameters = &self.options.rendezvous;
        if parameters.backend() == C10D_BACKEND {
            RendezvousSettings::from_parameters(parameters)
                .map_err(|error| LauncherError::Invalid(error.to_string()))?;
        }
        Ok(())
    }

    /// Why this machine cannot start the workers: their program or script is missing. `None` if nothing is known against
    /// it.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        preflight::missing(&self.options)
    }

    /// Runs the job on this node until it ends, for hours or days. A [signal](LauncherOptions::with_signals) ends it, or
    /// another node. When it returns, no worker is running, this node has left the rendezvous, and the reason of a failure
    /// is on the screen.
    #[must_use]
    pub fn run(self) -> LauncherReport {
        match StopControl::start(&self.options) {
            Ok(stop) => job::run(&self.options, stop),
            Err(error) => LauncherReport::of_error(error),
        }
    }
}
