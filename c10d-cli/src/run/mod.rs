//! `c10d run`: launches the workers of one node, as torchrun does.
//!
//! Its options and its terminal. `elastic_agent::Launcher` does the rest.

mod dry_run;
mod interpreter;
pub(crate) mod options;
mod report;
mod surroundings;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use elastic_agent::{Launcher, Screen, StopControl};
use options::{RunOptions, RunPlan};
pub(crate) use surroundings::plan as plan_of;

use crate::failure::{Failure, complain};
use crate::output::print_line;
use crate::terminal;

/// The default of RUST_LOG: warnings, and events of the whole job.
pub(crate) const LOG_LEVELS: &str = "warn,c10d::run=info,c10d_relay=info,elastic_agent::agent=info,elastic_agent::launcher=info,elastic_agent::logs=info,elastic_rendezvous=info";

/// Runs the workers of this node until they end, and reports a failure on standard error.
pub(crate) fn run(options: RunOptions) -> ExitCode {
    let result = surroundings::plan(options).and_then(|plan| match plan.dry_run {
        true => dry_run(&plan).map(|()| 0),
        false => launch(&plan),
    });
    let code = result.unwrap_or_else(|failure| {
        let code = failure.report();
        terminal::finish(terminal::STUCK_MAX);
        code
    });
    ExitCode::from(code)
}

/// Prints the plan, unless it has an error that is found only when the agent or the rendezvous is created.
fn dry_run(plan: &RunPlan) -> Result<(), Failure> {
    let launcher = Launcher::new(plan.launcher.clone());
    launcher.check()?;
    let is_host = dry_run::is_host(plan, &surroundings::is_this_host)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let mut plan = plan.clone();
    // The plan may be for another machine.
    let missing = launcher.missing().map(Into::into);
    plan.launcher.start_warnings.extend(missing);
    match plan.json {
        true => print_line(dry_run::json(&plan, is_host)),
        false => print_line(dry_run::text(&plan, is_host)),
    }
}

/// Returns the exit code.
fn launch(plan: &RunPlan) -> Result<u8, Failure> {
    if let Some(line) = dry_run::line(plan) {
        log::debug!("{line}");
    }
    let mut options = plan.launcher.clone();
    options.screen = Arc::new(Terminal);
    // This value outlives the last output. Until then, a signal must not kill this process before its workers, and
    // must kill it even if the output has no reader.
    let report = Launcher::new(options).run();
    let mut code = report.exit_code();
    if plan.json
        && let Err(failure) = report::print(&report)
        && code == 0
    {
        // The exit code of a failed run matters more than a closed standard output.
        code = failure.report();
    }
    if let Err(error) = &report.result {
        complain(&error.to_string());
    }
    let stuck_max = report
        .stop_control()
        .map_or(terminal::STUCK_MAX, StopControl::stuck_max);
    terminal::finish(stuck_max);
    Ok(code)
}

/// Standard error, through the queue that all output of this command takes.
#[derive(Debug)]
pub(crate) struct Terminal;

impl Screen for Terminal {
    fn message(&self, text: &str) {
        self.text(&format!("c10d run: {text}"));
    }

    fn text(&self, text: &str) {
        // A closed standard error takes no text.
        let _ = terminal::StandardError.write_all(text.as_bytes());
    }

    fn is_live(&self) -> bool {
        terminal::is_live()
    }

    fn show(&self, line: &str) {
        terminal::show(line);
    }

    fn hide(&self) {
        terminal::hide();
    }

    fn finish(&self, stuck_max: Duration) {
        terminal::finish(stuck_max);
    }
}
