//! The options about workers that survive others.

use std::num::NonZero;
use std::time::Duration;

use clap::Args;
use elastic_agent::{AgentOptions, KeepOptions, Replacement};
use elastic_rendezvous::StartWarning;

use super::arguments::{Parsed, Read};
use super::error::{Refusal, UsageError};
use super::values::{number, time};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Restarts and progress")]
pub(super) struct KeepArgs {
    /// Keep the other workers running when one dies, and replace only that worker, if a restart is left. For scripts that
    /// use the membership service of the workers' store.
    #[arg(hide_short_help = true, long)]
    keep_workers: bool,

    /// With --keep-workers, continue only with at least N workers in the whole job; with fewer, the remaining workers wait.
    /// [default: 1]
    #[arg(hide_short_help = true, long, value_name = "N", allow_negative_numbers = true, value_parser = Read(positive))]
    min_workers: Option<Parsed<usize>>,

    /// With --keep-workers, replace a dead worker with a new process on the same node, which --preload forks (fork), or
    /// continue without it (none). [default: fork]
    #[arg(hide_short_help = true, long, value_name = "fork|none", value_parser = Read(replacement))]
    replace: Option<Parsed<Replacement>>,

    /// With --keep-workers, start the new process this long after the death. [default: 0s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = Read(pause))]
    replace_after: Option<Parsed<Duration>>,
}

impl KeepArgs {
    /// Applies them after the rules for restarts.
    pub(super) fn apply(
        &self,
        agent: &mut AgentOptions,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<(), UsageError> {
        let mut keep = KeepOptions::new(1);
        let mut given = Vec::new();
        if let Some(option) = &self.min_workers {
            keep.members_min = option.value()?;
            given.push(&option.given);
        }
        if let Some(option) = &self.replace {
            keep.replacement = option.value()?;
            given.push(&option.given);
        }
        if let Some(option) = &self.replace_after {
            keep.replace_after = option.value()?;
            given.push(&option.given);
        }
        if !self.keep_workers {
            let why = "--keep-workers is not given";
            warnings.extend(given.into_iter().map(|option| option.has_no_effect(why)));
            return Ok(());
        }
        if keep.replacement != Replacement::None && agent.restarts.restarts_max() == Some(0) {
            warnings.push(
                "--keep-workers does not replace dead workers, because no restart is allowed; see --max-restarts"
                    .into(),
            );
        }
        agent.keep_workers = Some(keep);
        Ok(())
    }
}

fn positive(text: &str) -> Result<usize, Refusal> {
    number(text, "a whole number above 0").map(NonZero::<usize>::get)
}

fn replacement(text: &str) -> Result<Replacement, Refusal> {
    match text.trim() {
        "fork" => Ok(Replacement::Fork),
        "none" => Ok(Replacement::None),
        _ => Err(Refusal::IsNot("fork or none")),
    }
}

fn pause(text: &str) -> Result<Duration, Refusal> {
    time(text).ok_or(Refusal::IsNot("a time, for example 10s"))
}
