//! Runs one job: opens the rendezvous, runs the agent in it, and ends both.

use std::sync::Arc;
use std::time::Duration;

use elastic_rendezvous::{RendezvousHandler, StartWarnings, create_handler};

use super::error::LauncherError;
use super::feature::JobEnd;
use super::features::Features;
use super::options::LauncherOptions;
use super::report::LauncherReport;
use super::stop::StopControl;
use super::{ending, preflight};
use crate::agent::ElasticAgent;
use crate::round::AgentOutcome;
use crate::wording::name_of;

/// Runs the job on this node. See [`Launcher::run`](super::Launcher::run).
pub(super) fn run(options: &LauncherOptions, stop: StopControl) -> LauncherReport {
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

/// Opens the store of the rendezvous, which can take as long as a join; `None` if a signal arrived meanwhile.
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
    log::info!("received {name} before the store of the rendezvous answered: ending");
    LauncherReport::of(Ok(AgentOutcome::Signalled {
        signal,
        had_workers: false,
    }))
}
