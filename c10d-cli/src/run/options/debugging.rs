//! The option about a rank that a person debugs.

use std::ffi::OsString;
use std::time::Duration;

use c10d_inspect::http::StatusOptions;
use clap::Args;
use elastic_agent::{Entrypoint, LauncherOptions};
use elastic_rendezvous::{RendezvousParameters, STATIC_BACKEND, StartWarning, WarningKind};

use super::arguments::{Parsed, Read, Surroundings, value_of};
use super::error::{Refusal, UsageError};
use super::values::{list, or_never, time, whole_number};

/// Set by `python -m debugpy .. -m c10d_rs run`: the command line of pydevd in a Python worker, which connects to that
/// debugger. One word a line.
pub(crate) const DEBUGGER: &str = "C10D_DEBUGGER";

/// Longer than a person debugs, and still a time that can be added to the current one.
const NEVER_SECS: &str = "31536000";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Hangs and debugging")]
pub(super) struct DebugArgs {
    /// Give the terminal to this rank, for `breakpoint()` and pdb, and turn off what would end a job in which a rank waits
    /// for a person.
    ///
    /// The rank alone reads standard input, and gets Ctrl-C. Off are: reports of a job without progress, the timeouts of
    /// progress, file timers, the join and the exit of nodes, and --preload. Give it on all nodes. Example: --debug-rank 0
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

/// The note of a start with this rank.
pub(super) fn note(rank: usize) -> StartWarning {
    let text = format!(
        "rank {rank} has the terminal (--debug-rank); off: explanations, and timeouts of progress, joins and exits"
    );
    StartWarning::new(WarningKind::Note, text)
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Hangs and debugging")]
pub(super) struct HangArgs {
    /// Print why the job makes no progress when its workers have waited for each other for this long; `never` disables it.
    /// [default: 30s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = Read(time_or_never))]
    explain_after: Option<Parsed<Option<Duration>>>,

    /// Run PyTorch's debug server in each worker, for `c10d flight` (PyTorch 2.15).
    ///
    /// The script needs no change. Only this user can reach the debug server, on a unix socket. This launcher shows the
    /// collectives of its workers to others, on the network of the workers' store.
    #[arg(long)]
    debug_server: bool,

    /// Read no Python stacks of the workers, and open no port on which others can ask for them.
    #[arg(hide_short_help = true, long)]
    no_stacks: bool,

    /// Serve no status page on the ports of the stores that this node hosts.
    #[arg(hide_short_help = true, long)]
    no_status: bool,

    /// Also serve the status page under these names, separated by commas. It is always served for IP addresses, `localhost`
    /// and this machine's name.
    #[arg(hide_short_help = true, long, value_name = "NAMES", default_value = "", value_parser = Read(list))]
    status_host: Parsed<Vec<String>>,
}

/// Much longer than a healthy worker waits for another worker.
const EXPLAIN_AFTER: Duration = Duration::from_secs(30);

impl HangArgs {
    /// Applies them after the limits of progress: by default a hang is explained before `--progress-timeout` ends it, and
    /// never while a person debugs a worker.
    pub(super) fn apply(&self, launcher: &mut LauncherOptions) -> Result<(), UsageError> {
        let progress = launcher.agent.progress.as_ref();
        let progress_timeout = progress.and_then(|progress| progress.timeout);
        let usual = progress_timeout.map_or(EXPLAIN_AFTER, |it| EXPLAIN_AFTER.min(it / 2));
        let explain_after = value_of(&self.explain_after)?.unwrap_or(Some(usual));
        launcher.explain_after = explain_after.filter(|_| launcher.agent.debug_rank.is_none());
        launcher.has_stacks = !self.no_stacks;
        launcher.has_debug_servers = self.debug_server;
        let names = self.status_host.value()?;
        let status_page = StatusOptions::default().with_host_names(names);
        launcher.status_page = (!self.no_status).then_some(status_page);
        Ok(())
    }
}

fn time_or_never(text: &str) -> Result<Option<Duration>, Refusal> {
    or_never(text, time, "a time, for example 30s or 2m, or `never`")
}
