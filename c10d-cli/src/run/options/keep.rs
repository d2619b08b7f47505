//! The options about workers that survive others.

use std::num::NonZero;
use std::time::Duration;

use clap::Args;
use elastic_agent::{KeepOptions, Replacement, RestartRules};
use elastic_rendezvous::StartWarning;

use super::arguments::{Parsed, Read};
use super::error::{Refusal, UsageError};
use super::values::{number, time};
use crate::run::headings::RESTARTS;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = RESTARTS)]
pub(super) struct KeepArgs {
    /// Lets the other workers run on when one dies, and starts that one again, if a restart is left. For scripts that use
    /// the membership service of the workers' store.
    #[arg(hide_short_help = true, long)]
    keep_workers: bool,

    /// The workers of the whole job that --keep-workers needs: with fewer, those that are left wait for others.
    /// [default: 1]
    #[arg(hide_short_help = true, long, value_name = "N", allow_negative_numbers = true, value_parser = Read(positive))]
    min_workers: Option<Parsed<usize>>,

    /// What --keep-workers does about a dead worker: starts another process on the same node, with --preload a fork
    /// (fork), or goes on without it (none). [default: fork]
    #[arg(hide_short_help = true, long, value_name = "fork|none", value_parser = Read(replacement))]
    replace: Option<Parsed<Replacement>>,

    /// How long after a death --keep-workers starts the other process. [default: 0s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = Read(pause))]
    replace_after: Option<Parsed<Duration>>,
}

impl KeepArgs {
    /// `None` if a death restarts all workers.
    pub(super) fn options(
        &self,
        rules: &RestartRules,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<Option<KeepOptions>, UsageError> {
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
            return Ok(None);
        }
        if keep.replacement != Replacement::None && rules.restarts_max() == Some(0) {
            warnings.push(
                "--keep-workers replaces no dead worker: no restart is allowed, see --max-restarts"
                    .into(),
            );
        }
        Ok(Some(keep))
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
    time(text).ok_or(Refusal::IsNot("a time, as in 10s"))
}
