//! The options about restarts and progress.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use elastic_agent::{
    AgentOptions, Entrypoint, LauncherOptions, PreloadOptions, ProgressOptions, RestartBudget,
};
use elastic_rendezvous::StartWarning;

use super::arguments::{Parsed, Read, value_of};
use super::error::{Refusal, UsageError};
use super::values::{list, numbers, or_never, path, time_above_0, whole_number};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Restarts and progress")]
pub(super) struct RestartArgs {
    /// Restart the workers after a failure, up to N times. [default: 0]
    ///
    /// The number is not limited if --restart-budget or --max-restarts-without-progress is given instead.
    #[arg(
        long,
        // torchrun's abbreviations. Some of them are also abbreviations of --max-restarts-without-progress.
        aliases = ["max", "max-", "max-r", "max-re", "max-res", "max-rest", "max-resta", "max-restar", "max-restart"],
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = Read(whole_number)
    )]
    max_restarts: Option<Parsed<usize>>,

    /// Fail the job on all nodes at once if a worker exits with one of these codes, which are negative for signals.
    /// Example: --no-restart-exit-codes 93,-6
    #[arg(hide_short_help = true, long, value_name = "CODES", allow_hyphen_values = true, default_value = "", value_parser = Read(exit_codes))]
    no_restart_exit_codes: Parsed<BTreeSet<i32>>,

    /// Restart workers even after Python errors that will recur, for example a missing module. Otherwise such an error
    /// fails the job on all nodes.
    #[arg(hide_short_help = true, long)]
    restart_on_fatal_errors: bool,

    /// Allow N restarts within any period of this length, instead of --max-restarts or in addition to it. Example:
    /// --restart-budget 10/1h
    #[arg(hide_short_help = true, long, value_name = "N/TIME", value_parser = Read(budget))]
    restart_budget: Option<Parsed<RestartBudget>>,

    /// Fail the job on all nodes if N restarts in a row have brought no progress. Replaces --max-restarts, or is combined
    /// with it.
    #[arg(hide_short_help = true, long, value_name = "N", allow_negative_numbers = true, value_parser = Read(whole_number))]
    max_restarts_without_progress: Option<Parsed<usize>>,

    /// Read the current step, a number, from this file, which the script writes.
    ///
    /// Each worker also has its own file in $C10D_PROGRESS_FILE, which `c10d progress STEP` writes.
    #[arg(hide_short_help = true, long, value_name = "FILE", default_value = "", value_parser = Read(path))]
    progress_file: Parsed<Option<PathBuf>>,

    /// Choose what this node does when the workers of another node have failed and no restart is left: stop its workers and
    /// exit with 1 (stop), or keep them running, for loosely coupled workers (continue). [default: stop]
    #[arg(hide_short_help = true, long, value_name = "stop|continue", default_value = "stop", value_parser = Read(stops))]
    on_job_failure: Parsed<bool>,

    /// Restart workers that have reported no step for this long, because they are stuck. [default: never]
    ///
    /// The time counts from the first step after each start. Example: --progress-timeout 10m
    #[arg(hide_short_help = true, long, value_name = "TIME", default_value = "never", value_parser = Read(time_or_never))]
    progress_timeout: Parsed<Option<Duration>>,

    /// Restart workers that have not reported their first step for this long after a start. Only for nodes whose workers
    /// report steps. [default: never]
    #[arg(hide_short_help = true, long, value_name = "TIME", default_value = "never", value_parser = Read(time_or_never))]
    first_progress_timeout: Parsed<Option<Duration>>,
}

impl RestartArgs {
    /// Applies them after the events file and the debug rank: nothing else depends on the workers' progress, and while a
    /// person debugs a worker, workers are never stuck.
    pub(super) fn apply(&self, launcher: &mut LauncherOptions) -> Result<(), UsageError> {
        let agent = &mut launcher.agent;
        let rules = &mut agent.restarts;
        rules.max_restarts = value_of(&self.max_restarts)?;
        rules.final_exit_codes = self.no_restart_exit_codes.value()?;
        rules.restarts_on_fatal_errors = self.restart_on_fatal_errors;
        rules.budget = value_of(&self.restart_budget)?;
        rules.max_without_progress = value_of(&self.max_restarts_without_progress)?;
        agent.stops_on_job_failure = self.on_job_failure.value()?;
        let mut progress = ProgressOptions::default();
        progress.file = self.progress_file.value()?;
        let limit = |timeout: Option<Duration>| timeout.filter(|_| agent.debug_rank.is_none());
        progress.timeout = limit(self.progress_timeout.value()?);
        progress.first_timeout = limit(self.first_progress_timeout.value()?);
        let is_watched = progress != ProgressOptions::default()
            || self.max_restarts_without_progress.is_some()
            || launcher.events_file.is_some();
        agent.progress = is_watched.then_some(progress);
        Ok(())
    }
}

fn exit_codes(text: &str) -> Result<BTreeSet<i32>, Refusal> {
    let expected = "exit codes of failures, 1 to 255 or -1 to -64 for signals, for example 93,-6";
    let codes: BTreeSet<i32> = numbers(text, expected)?;
    let is_code = |code: &i32| (-64..=255).contains(code) && *code != 0;
    match codes.iter().all(is_code) {
        true => Ok(codes),
        false => Err(Refusal::IsNot(expected)),
    }
}

fn stops(text: &str) -> Result<bool, Refusal> {
    match text {
        "stop" => Ok(true),
        "continue" => Ok(false),
        _ => Err(Refusal::IsNot("stop or continue")),
    }
}

fn budget(text: &str) -> Result<RestartBudget, Refusal> {
    let parse = || {
        let (restarts, window) = text.split_once('/')?;
        Some(RestartBudget {
            restarts: restarts.trim().parse().ok()?,
            window: time_above_0(window)?,
        })
    };
    parse().ok_or(Refusal::IsNot("N/TIME, for example 10/1h"))
}

fn time_or_never(text: &str) -> Result<Option<Duration>, Refusal> {
    or_never(
        text,
        time_above_0,
        "a time above 0, for example 30s or 10m, or `never`",
    )
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Faster restarts")]
pub(super) struct PreloadArgs {
    /// Import these Python modules once, in a process that forks the workers. Example: --preload torch,torch._dynamo
    ///
    /// A restart then takes milliseconds. Workers that cannot be forked start as they do without this option, with a
    /// warning (Linux).
    #[arg(long, value_name = "MODULE,...", default_value = "", value_parser = Read(list))]
    preload: Parsed<Vec<String>>,

    /// Fail instead of starting workers that are not forked.
    #[arg(hide_short_help = true, long)]
    preload_required: bool,

    /// Fork workers in advance, which saves about 10 ms for each worker at a restart.
    #[arg(hide_short_help = true, long)]
    preload_standby: bool,
}

impl PreloadArgs {
    /// Applies them after the debug rank: forked workers lead separate sessions without a terminal.
    pub(super) fn apply(
        &self,
        agent: &mut AgentOptions,
        entrypoint: &Entrypoint,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<(), UsageError> {
        let modules = self.preload.value()?;
        if modules.is_empty() {
            if self.preload_required || self.preload_standby {
                warnings.push(
                    "--preload-required and --preload-standby have no effect: \
                     --preload is not given"
                        .into(),
                );
            }
            return Ok(());
        }
        match entrypoint {
            Entrypoint::Program(script) => Err(UsageError::PreloadWithoutPython {
                script: script.clone(),
            }),
            Entrypoint::RunPath(_) => Err(UsageError::PreloadWithRunPath),
            Entrypoint::Script(_) | Entrypoint::Module(_) if agent.debug_rank.is_some() => {
                warnings.push("--preload has no effect with --debug-rank".into());
                Ok(())
            }
            Entrypoint::Script(_) | Entrypoint::Module(_) => {
                let mut preload = PreloadOptions::new(modules);
                preload.is_required = self.preload_required;
                preload.has_standbys = self.preload_standby;
                agent.preload = Some(preload);
                Ok(())
            }
        }
    }
}
