//! The options about jobs that stand still.

use std::time::Duration;

use c10d_inspect::http::StatusOptions;
use clap::Args;

use super::error::{Refusal, UsageError};
use super::given::{Parsed, Read, value_of};
use super::values::{list, or_never, time};
use crate::run::headings::HANGS;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = HANGS)]
pub(super) struct HangArgs {
    /// Print why the job makes no progress when its workers have waited for each other for this long; `never`
    /// for not at all. [default: 30s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = Read(time_or_never))]
    explain_after: Option<Parsed<Option<Duration>>>,

    /// Has each worker run PyTorch's debug server, for `c10d flight` (PyTorch 2.15).
    ///
    /// The script needs no change. Only this user reaches it, on a unix socket; this launcher shows others the collectives
    /// of its workers, on the network of the workers' store.
    #[arg(long)]
    pub(super) debug_server: bool,

    /// Read no Python stacks of the workers, and open no port on which others can ask for them.
    #[arg(hide_short_help = true, long)]
    pub(super) no_stacks: bool,

    /// Serves no status page on the ports of the stores that this node hosts.
    #[arg(hide_short_help = true, long)]
    no_status: bool,

    /// Further names under which browsers reach the status page, separated by commas. It always answers for IP
    /// addresses, `localhost` and this machine's name.
    #[arg(hide_short_help = true, long, value_name = "NAMES", default_value = "", value_parser = Read(list))]
    status_host: Parsed<Vec<String>>,
}

/// Much longer than a healthy worker waits for another worker.
const EXPLAIN_AFTER: Duration = Duration::from_secs(30);

impl HangArgs {
    /// After which wait of all workers a hang is explained: by default before `progress_timeout` ends it.
    pub(super) fn explain_after(
        &self,
        progress_timeout: Option<Duration>,
    ) -> Result<Option<Duration>, UsageError> {
        let usual = progress_timeout.map_or(EXPLAIN_AFTER, |it| EXPLAIN_AFTER.min(it / 2));
        Ok(value_of(&self.explain_after)?.unwrap_or(Some(usual)))
    }

    /// The status page of the stores that this node hosts.
    pub(super) fn status_page(&self) -> Result<Option<StatusOptions>, UsageError> {
        let names = self.status_host.value()?;
        Ok((!self.no_status).then(|| StatusOptions::default().with_host_names(names)))
    }
}

fn time_or_never(text: &str) -> Result<Option<Duration>, Refusal> {
    or_never(text, time, "a time as in 30s or 2m, or `never`")
}
