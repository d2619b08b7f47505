//! The end of a job on this node: the report of the launcher, and the reason that the user, the other nodes and the calling
//! program receive.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime};

use c10d_inspect::Report;
use c10d_inspect::report_text::TextStyle;
use c10d_store::in_brief;
use elastic_rendezvous::RendezvousHandler;

use super::error::LauncherError;
use super::feature::JobEnd;
use super::options::LauncherOptions;
use super::stop::StopControl;
use crate::agent::ElasticAgent;
use crate::failure::{ErrorFileError, ExitRecord, Failures, write_error_file};
use crate::job_end::{EndNotice, exit_text};
use crate::round::{AgentError, AgentOutcome};
use crate::wording::{epoch_seconds, local_time_text, name_of};

/// The end of a job on this node.
#[derive(Debug)]
#[non_exhaustive]
pub struct LauncherReport {
    /// The agent's outcome, or why there is none.
    pub result: Result<AgentOutcome, LauncherError>,
    /// The report on the job when the first worker failed, if it explains the failure.
    pub why: Option<Report>,
    /// The first failure of the job, on any node, if workers were restarted after it and the job has failed.
    pub first_failure: Option<ExitRecord>,
    /// The directory with the output of this node's workers, if they have written any to files.
    pub log_directory: Option<PathBuf>,
    pub(super) stop: Option<StopControl>,
}

impl LauncherReport {
    pub(super) const fn of(result: Result<AgentOutcome, LauncherError>) -> Self {
        Self {
            result,
            why: None,
            first_failure: None,
            log_directory: None,
            stop: None,
        }
    }

    pub(super) const fn of_error(error: LauncherError) -> Self {
        Self::of(Err(error))
    }

    pub(super) fn with_stop_control(mut self, stop: StopControl) -> Self {
        self.stop = Some(stop);
        self
    }

    /// The failures of this node's workers; `None` if none is known to have failed.
    #[must_use]
    pub const fn failures(&self) -> Option<&Failures> {
        match &self.result {
            Ok(outcome) => outcome.failures(),
            Err(LauncherError::Agent { source }) => match &**source {
                AgentError::NotRestarted { failures, .. } => Some(failures),
                _ => None,
            },
            Err(_) => None,
        }
    }

    /// Returns an exit code for this process:
    ///
    /// - 0 if the workers succeeded or were not needed,
    /// - 2 for options that cannot be used,
    /// - 3 if the operating system refused an operation,
    /// - 5 if the store's journal failed,
    /// - 128 plus the number of a signal that arrived before workers were started,
    /// - 1 otherwise.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match &self.result {
            Ok(AgentOutcome::Succeeded | AgentOutcome::NotNeeded) => 0,
            Ok(AgentOutcome::Signalled {
                signal,
                had_workers: false,
            }) => u8::try_from(*signal).map_or(1, |signal| signal.saturating_add(128)),
            Err(LauncherError::Invalid(_)) => 2,
            Err(LauncherError::System { .. }) => 3,
            Err(LauncherError::Journal(_)) => 5,
            _ => 1,
        }
    }

    /// The handler of signals until the report is dropped; `None` if it could not start.
    #[must_use]
    pub const fn stop_control(&self) -> Option<&StopControl> {
        self.stop.as_ref()
    }
}

/// Reports the outcome to the user, to the other nodes, and to the program that started this one.
pub(super) fn conclude(
    options: &LauncherOptions,
    stop: &StopControl,
    agent: &ElasticAgent,
    handler: &Arc<dyn RendezvousHandler>,
    end: &JobEnd,
) {
    let grace_left = || stop.grace_left(options.exit_limits);
    let shut_down = || {
        agent.await_readers(grace_left);
        handler.shutdown();
    };
    if let Err(error) = &end.result {
        return conclude_error(options, agent, handler, shut_down, error, end.why.as_ref());
    }
    let failures = end.result.as_ref().ok().and_then(AgentOutcome::failures);
    if let Some(failures) = failures {
        show_failures(options, agent, failures, end.why.as_ref());
    }
    if let Some(first) = &end.first_failure {
        let time = local_time_text(epoch_seconds(first.ended_at()));
        let text = exit_text(first);
        log::error!("the first failure of the job, at {time}: {text}");
    }
    match &end.result {
        Ok(AgentOutcome::Succeeded) => shut_down(),
        Ok(AgentOutcome::NotNeeded) => {
            log::info!("the job ended; this node was a spare that was not needed");
        }
        Ok(AgentOutcome::Failed(failures)) => {
            leave_error_file(options, |path| failures.write_error_file(path));
            shut_down();
        }
        Ok(AgentOutcome::Ended { reason, notice, .. }) => {
            match (notice, failures.and_then(Failures::root_exit)) {
                (Some(_), Some(root)) => log::error!("root cause: {}", root.text),
                (Some(notice), None) => show_root_cause(notice),
                // The report has the root cause.
                (None, _) => log::error!("stopping the job: {reason}"),
            }
            leave_error_file(options, |path| match failures {
                Some(failures) => failures.write_error_file(path),
                None => {
                    let exit = notice.as_ref().and_then(|it| it.exit.as_ref());
                    let at = exit.map_or_else(SystemTime::now, ExitRecord::ended_at);
                    write_error_file(path, reason, reason, epoch_seconds(at))
                }
            });
            shut_down();
        }
        Ok(AgentOutcome::Signalled {
            signal,
            had_workers,
        }) => {
            if !had_workers {
                let signal = name_of(*signal);
                log::warn!(
                    "stopped by {signal} before workers were started: leaving the rendezvous"
                );
            }
            leave(handler, options.exit_limits.map(|limits| limits.leave));
        }
        Err(_) => {}
    }
}

/// Logs the last words of the worker in a second line, because a long line of the log is cut.
fn show_root_cause(notice: &EndNotice) {
    match &notice.root {
        Some(root) => {
            log::error!("root cause: {}", root.text);
            if let Some(line) = &root.record.last_line {
                log::error!("the last line of rank {}: {line}", root.record.rank);
            }
        }
        None => log::error!("root cause: {notice}"),
    }
}

fn conclude_error(
    options: &LauncherOptions,
    agent: &ElasticAgent,
    handler: &Arc<dyn RendezvousHandler>,
    shut_down: impl Fn(),
    error: &AgentError,
    why: Option<&Report>,
) {
    let (cause, failures) = match error {
        AgentError::NotRestarted { source, failures } => (&**source, Some(failures)),
        error => (error, None),
    };
    match cause {
        // The other nodes know, or cannot be reached.
        AgentError::Rendezvous(_) => {}
        AgentError::Board(_) | AgentError::Relay(_) => leave(handler, None),
        // The job cannot run without this node.
        _ => shut_down(),
    }
    if let Some(failures) = failures {
        show_failures(options, agent, failures, why);
    }
    leave_error_file(options, |path| match failures.map(Failures::first) {
        // The worker's own error file explains more than the error that followed.
        Some(first) if first.has_error_file() => first.write_error_file(path),
        _ => {
            let text = error.to_string();
            write_error_file(path, &text, &text, epoch_seconds(SystemTime::now()))
        }
    });
}

/// Writes an error from before the start of the agent for the program that has started this process.
pub(super) fn leave_reason(options: &LauncherOptions, error: &LauncherError) {
    let text = error.to_string();
    leave_error_file(options, |path| {
        write_error_file(path, &text, &text, epoch_seconds(SystemTime::now()))
    });
}

/// Writes the report on failures.
fn show_failures(
    options: &LauncherOptions,
    agent: &ElasticAgent,
    failures: &Failures,
    why: Option<&Report>,
) {
    let screen = &options.screen;
    if let Some(why) = why {
        screen.text(&format!(
            "When the first worker failed: {}",
            why.to_text(TextStyle::PLAIN)
        ));
    }
    screen.text(&format!("{}\n", agent.summary(failures)));
    if let Some(directory) = agent.log_directory() {
        log::info!("logs of this node's workers are in {}", directory.display());
    }
}

/// Writes the reason to the file that the program that started this one reads.
fn leave_error_file(
    options: &LauncherOptions,
    write: impl FnOnce(&Path) -> Result<(), ErrorFileError>,
) {
    if let Some(path) = &options.error_file
        && let Err(error) = write(path)
    {
        log::warn!("{error}");
    }
}

const THREAD: &str = "leave";

/// Leaves, so that the other nodes continue without this one. Blocks for at most `limit`; without a limit, as long as
/// [`RendezvousHandler::leave`]. Logs a failure.
pub(super) fn leave(handler: &Arc<dyn RendezvousHandler>, limit: Option<Duration>) {
    let result = match limit {
        None => handler.leave().map_err(|error| in_brief(&error)),
        Some(limit) => leave_within(handler, limit),
    };
    if let Err(why) = result {
        log::warn!("cannot leave the rendezvous: {why}");
    }
}

/// A call to a store that does not answer has the store's timeout. In that case its thread is left behind.
fn leave_within(handler: &Arc<dyn RendezvousHandler>, limit: Duration) -> Result<(), String> {
    let (sender, answer) = channel();
    let leaving = Arc::clone(handler);
    let thread = std::thread::Builder::new()
        .name(THREAD.to_owned())
        .spawn(move || {
            let result = leaving.leave().map_err(|error| in_brief(&error));
            // The last handle of the handler waits for its thread: this thread must not be left with it.
            drop(leaving);
            // The caller may no longer wait.
            let _ = sender.send(result);
        })
        .map_err(|error| error.to_string())?;
    match answer.recv_timeout(limit) {
        Ok(result) => {
            // The thread has sent its last message.
            let _ = thread.join();
            result
        }
        Err(_) => Err(format!(
            "no answer from its store within {limit:?}; the other nodes notice it by missing heartbeats"
        )),
    }
}
