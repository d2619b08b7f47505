//! The options for the shown and the kept output of a run.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use elastic_agent::{LauncherOptions, StreamMap, StreamMapError, parse_line_filters};

use super::arguments::{Parsed, Read, Surroundings};
use super::error::{Refusal, UsageError};
use super::values::{numbers, path, text};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output and logs")]
pub(super) struct OutputArgs {
    /// Append a line of JSON about each round, and PyTorch's events, to this file.
    #[arg(hide_short_help = true, long, value_name = "FILE", default_value = "", value_parser = Read(path))]
    events: Parsed<Option<PathBuf>>,

    /// Write log files to a new directory for each run, in this directory. [default: a new temporary one]
    #[arg(long, value_name = "DIR", default_value = "", value_parser = Read(path))]
    log_dir: Parsed<Option<PathBuf>>,

    /// Write output to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, for example
    /// 0:1,1:2. [default: 0]
    #[arg(short, long, value_name = "STREAMS", default_value = "0", value_parser = Read(streams))]
    redirects: Parsed<StreamMap>,

    /// Write output to files and to the console. The values are those of --redirects. [default: 0]
    #[arg(short, long, value_name = "STREAMS", default_value = "0", value_parser = Read(streams))]
    tee: Parsed<StreamMap>,

    /// Begin each --tee line on the console with this text, in which ${role_name}, ${local_rank}, ${rank} and ${hostname}
    /// are replaced. [default: $TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, or [${role_name}${local_rank}]:]
    #[arg(hide_short_help = true, long, value_name = "TEMPLATE", allow_hyphen_values = true, default_value = "", value_parser = Read(text))]
    log_line_prefix_template: Parsed<String>,

    /// Show only the output of these local ranks. Example: --local-ranks-filter 0,2
    #[arg(hide_short_help = true, long, value_name = "RANKS", default_value = "", value_parser = Read(local_ranks))]
    local_ranks_filter: Parsed<BTreeSet<usize>>,

    /// Also write --tee lines of stdout that contain one of these texts to a separate file; `,,` is a comma within a text.
    #[arg(hide_short_help = true, long, value_name = "TEXT,...", allow_hyphen_values = true, default_value = "", value_parser = Read(filters))]
    duplicate_stdout_filters: Parsed<Vec<String>>,

    /// Also write --tee lines of stderr that contain one of these texts to a separate file; `,,` is a comma within a text.
    #[arg(hide_short_help = true, long, value_name = "TEXT,...", allow_hyphen_values = true, default_value = "", value_parser = Read(filters))]
    duplicate_stderr_filters: Parsed<Vec<String>>,

    /// Also print the outcome as one line of JSON, the last line of standard output.
    #[arg(hide_short_help = true, long)]
    pub(super) json: bool,
}

impl OutputArgs {
    pub(super) fn apply(
        &self,
        launcher: &mut LauncherOptions,
        surroundings: &Surroundings<'_>,
    ) -> Result<(), UsageError> {
        launcher.events_file = self.events.value()?;
        let given = Some(self.log_line_prefix_template.value()?);
        let template = given
            .filter(|template| !template.is_empty())
            .or_else(|| (surroundings.variable)("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"));
        launcher.agent.line_prefix_template = template.filter(|template| !template.is_empty());
        let logs = &mut launcher.agent.logs;
        logs.log_dir = self.log_dir.value()?;
        logs.redirects = self.redirects.value()?;
        logs.tee = self.tee.value()?;
        logs.local_ranks_filter = self.local_ranks_filter.value()?;
        logs.stdout_filters = self.duplicate_stdout_filters.value()?;
        logs.stderr_filters = self.duplicate_stderr_filters.value()?;
        Ok(())
    }
}

fn streams(text: &str) -> Result<StreamMap, Refusal> {
    text.parse()
        .map_err(|error: StreamMapError| Refusal::because(error))
}

fn local_ranks(text: &str) -> Result<BTreeSet<usize>, Refusal> {
    numbers(text, "local ranks separated by commas, for example 0,2")
}

fn filters(text: &str) -> Result<Vec<String>, Refusal> {
    Ok(parse_line_filters(text))
}
