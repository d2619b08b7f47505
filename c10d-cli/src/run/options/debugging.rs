//! The option about a rank that a person debugs.

use std::ffi::OsString;

use clap::Args;
use elastic_agent::{Entrypoint, PreloadOptions};
use elastic_rendezvous::{RendezvousParameters, STATIC_BACKEND, StartWarning, WarningKind};

use super::error::UsageError;
use super::given::{Parsed, Read, Surroundings, value_of};
use super::values::whole_number;
use crate::run::headings::HANGS;

/// Set by `python -m debugpy .. -m c10d_rs run`: the command line of pydevd in a Python worker, which connects to that
/// debugger. One word a line.
pub(crate) const DEBUGGER: &str = "C10D_DEBUGGER";

/// Longer than a person debugs, and still a time that can be added to the current one.
const NEVER_SECS: &str = "31536000";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = HANGS)]
pub(super) struct DebugArgs {
    /// Give the terminal to this rank, for `breakpoint()` and pdb, and turn off what would end a job in which a rank waits
    /// for a person.
    ///
    /// The rank alone reads standard input, and gets Ctrl-C. Off are: reports of a job without progress, the timeouts of
    /// progress, file timers, the join and the exit of nodes, and --preload. Give it on all nodes. As in `--debug-rank 0`.
    #[arg(hide_short_help = true, long, value_name = "RANK", allow_negative_numbers = true, value_parser = Read(whole_number))]
    debug_rank: Option<Parsed<usize>>,
}

impl DebugArgs {
    /// The rank; `None` if none is debugged. `world_size` is the number of ranks, if it is known.
    pub(super) fn rank(&self, world_size: Option<usize>) -> Result<Option<usize>, UsageError> {
        let rank = value_of(&self.debug_rank)?;
        match (rank, world_size, &self.debug_rank) {
            (Some(rank), Some(world_size), Some(option)) if rank >= world_size => {
                Err(UsageError::DebugRank {
                    name: option.given.name.clone(),
                    rank,
                    world_size,
                })
            }
            _ => Ok(rank),
        }
    }
}

/// The words of a debugger that Python workers connect to; none for programs.
pub(super) fn debugger(entrypoint: &Entrypoint, surroundings: &Surroundings<'_>) -> Vec<OsString> {
    if matches!(entrypoint, Entrypoint::Program(_)) {
        return Vec::new();
    }
    let words = surroundings.variable(DEBUGGER);
    let words = words.map(|given| given.value).unwrap_or_default();
    words.lines().map(OsString::from).collect()
}

/// Without the timeout of a join, unless the user has given one.
pub(super) fn without_join_timeout(
    parameters: RendezvousParameters,
    is_given: impl Fn(&str) -> bool,
) -> RendezvousParameters {
    let key = match parameters.backend() == STATIC_BACKEND {
        true => "timeout",
        false => "join_timeout",
    };
    match is_given(key) {
        true => parameters,
        false => parameters.with_setting(key, NEVER_SECS),
    }
}

/// Drops the preloaded modules, because forked workers lead separate sessions without a terminal.
pub(super) fn without_preload(
    preload: Option<PreloadOptions>,
    warnings: &mut Vec<StartWarning>,
) -> Option<PreloadOptions> {
    if preload.is_some() {
        warnings.push(
            "--preload has no effect with --debug-rank"
                .to_owned()
                .into(),
        );
    }
    None
}

/// The note of a start with this rank.
pub(super) fn note(rank: usize) -> StartWarning {
    let text = format!(
        "rank {rank} has the terminal (--debug-rank); off: explanations, and timeouts of progress, joins and exits"
    );
    StartWarning::new(WarningKind::Note, text)
}
