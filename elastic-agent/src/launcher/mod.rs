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
mod nccl;
mod observer;
mod options;
mod preflight;
mod processes;
mod progress_log;
mod stacks;
mod status_page;
mod stop;

use std::sync::Arc;
use std::time::Duration;

use elastic_rendezvous::{
    C10D_BACKEND, RendezvousHandler, RendezvousSettings, StartWarnings, create_handler,
};

pub use self::companion::Companion;
pub use self::ending::LauncherReport;
pub use self::error::LauncherError;
use self::feature::JobEnd;
use self::features::Features;
pub use self::options::{ExitLimits, LauncherOptions, Screen, StandardError};
pub use self::stop::StopControl;
use crate::agent::ElasticAgent;
use crate::round::AgentOutcome;
use crate::wording::name_of;

/// A launcher of the workers of one node, with everything that a person or a scheduler expects around them.
///
/// It announces its ranks to the stores, so that `c10d why` names them, serves a status page on the stores that it
/// hosts, explains hangs and failures, and leaves or closes the rendezvous at the end.
///
/// In PyTorch: `elastic_launch` (`torch/distributed/launcher/api.py`).
///
/// ```no_run
/// use elastic_agent::{AgentOptions, CommandLine, Launcher, LauncherOptions};
/// use elastic_rendezvous::RendezvousParameters;
///
/// let agent = AgentOptions::new(CommandLine::new("python3", ["-u", "train.py"]), 2);
/// let rendezvous = RendezvousParameters::new("c10d", "node0:29400", "job-7", 2, 2)?;
/// let mut options = LauncherOptions::new(agent, rendezvous);
/// options.signals = Some(vec!["SIGTERM".to_owned(), "SIGINT".to_owned()]);
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
    /// Creates a launcher. Processes are started by [`run`](Self::run).
    #[must_use]
    pub const fn new(options: LauncherOptions) -> Self {
        Self { options }
    }

    /// Whether the options can be used, as far as that is known without a rendezvous. Opens no connection.
    ///
    /// # Errors
    /// [`LauncherError::Invalid`] if the options cannot be used.
    pub fn check(&self) -> Result<(), LauncherError> {
        let parameters = &self.options.rendezvous;
        if parameters.backend() == C10D_BACKEND {
            RendezvousSettings::from_parameters(parameters)
                .map_err(|error| LauncherError::Invalid(error.to_string()))?;
        }
        Ok(())
    }

    /// Returns why this machine cannot start the workers: their program or script is missing. `None` if no such problem
    /// is known.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        preflight::missing(&self.options)
    }

    /// Runs the job on this node until it ends, for hours or days. A [signal](LauncherOptions::signals) ends it, or
    /// another node. When it returns, no worker is running, this node has left the rendezvous, and the reason of a failure
    /// is on the screen.
    #[must_use]
    pub fn run(self) -> LauncherReport {
        match StopControl::start(&self.options) {
            Ok(stop) => run(&self.options, stop),
            Err(error) => LauncherReport::of_error(error),
        }
    }
}

fn run(options: &LauncherOptions, stop: StopControl) -> LauncherReport {
    let warnings = StartWarnings::collecting(options.start_warnings.clone());
    let ended = run_agent(options, &stop, &warnings).unwrap_or_else(LauncherReport::of_error);
    // If no workers have started. The error about a wrong option is enough.
    if ended.exit_code() != 2 {
        warnings.report();
    }
    ended.with_stop_control(stop)
}

fn run_agent(
    options: &LauncherOptions,
    stop: &StopControl,
    warnings: &StartWarnings,
) -> Result<LauncherReport, LauncherError> {
    preflight::check(options).inspect_err(|error| ending::leave_reason(options, error))?;
    let mut features = Features::make(options, warnings)?;
    let Some(handler) = open_rendezvous(&mut features, stop)? else {
        return Ok(stopped_while_opening(stop));
    };
    let mut agent = ElasticAgent::new(features.agent.clone(), Arc::clone(&handler))
        .map_err(|error| LauncherError::Invalid(error.to_string()))?;
    features.attend(&mut agent, &*handler);
    stop.watch(agent.handle());
    let result = agent.run();
    let mut end = JobEnd {
        first_failure: agent.first_failure(&result).cloned(),
        result,
        why: None,
        stuck_max: stop.stuck_max(),
    };
    features.workers_ended(&mut end);
    let ended_well = matches!(
        end.result,
        Ok(AgentOutcome::Succeeded | AgentOutcome::NotNeeded)
    );
    let failure = features.journal_failure().filter(|_| !ended_well);
    let result = match failure {
        Some(error) => {
            let error = LauncherError::Journal(error);
            ending::leave_reason(options, &error);
            features.job_ended(&end);
            Err(error)
        }
        None => {
            ending::conclude(options, stop, &agent, &handler, &end);
            features.job_ended(&end);
            end.result.map_err(LauncherError::of_agent)
        }
    };
    Ok(LauncherReport {
        why: end.why,
        first_failure: end.first_failure,
        log_directory: agent.log_directory(),
        ..LauncherReport::of(result)
    })
}

/// Opens the store of the rendezvous, which can take as long as a join; `None` if a signal arrived in the meantime.
fn open_rendezvous(
    features: &mut Features,
    stop: &StopControl,
) -> Result<Option<Arc<dyn RendezvousHandler>>, LauncherError> {
    let parameters = features.rendezvous.clone();
    let open = move || create_handler(&parameters);
    let opened = stop
        .unless_stopped("rendezvous-open", Duration::ZERO, open)
        .map_err(LauncherError::system("cannot start a thread"))?;
    opened
        .transpose()
        .inspect_err(|error| features.could_not_open(error, stop.stuck_max()))
        .map_err(LauncherError::of_rendezvous)
}

fn stopped_while_opening(stop: &StopControl) -> LauncherReport {
    let signal = stop.stopped_by().unwrap_or_default();
    let name = name_of(signal);
    log::info!("received {name} before the store of the rendezvous answered: stopping");
    LauncherReport::of(Ok(AgentOutcome::Signalled {
        signal,
        had_workers: false,
    }))
}
