//! The options about what is shown and kept of a run.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use elastic_agent::parse_line_filters;

use super::given::{Parsed, Read, Refusal};
use super::values::{path, text};
use crate::run::headings::OUTPUT;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = OUTPUT)]
pub(super) struct OutputArgs {
    /// Appends a line of JSON about each round to this file, and PyTorch's events.
    #[arg(hide_short_help = true, long, value_name = "FILE", default_value = "", value_parser = Read(path))]
    pub(super) events: Parsed<Option<PathBuf>>,

    /// Prints at the end where the time of this node went.
    #[arg(hide_short_help = true, long)]
    pub(super) summary: bool,

    /// `console` prints PyTorch's events as JSON on standard error; `null` and `dynamic_rendezvous` print nothing.
    /// [default: null]
    #[arg(
        hide_short_help = true,
        long,
        aliases = ["ev", "eve", "even", "event"],
        value_name = "NAME",
        default_value = "null",
        value_parser = Read(is_console)
    )]
    pub(super) event_log_handler: Parsed<bool>,

    /// The directory for log files; each run creates a directory in it. [default: a new temporary one]
    #[arg(long, value_name = "DIR", default_value = "", value_parser = Read(path))]
    pub(super) log_dir: Parsed<Option<PathBuf>>,

    /// Writes output to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; or by local
    /// rank, as in 0:1,1:2. [default: 0]
    #[arg(short, long, value_name = "STREAMS", default_value = "0", value_parser = Read(text))]
    pub(super) redirects: Parsed<String>,

    /// Writes output to files and to the console; values as for --redirects. [default: 0]
    #[arg(short, long, value_name = "STREAMS", default_value = "0", value_parser = Read(text))]
    pub(super) tee: Parsed<String>,

    /// The prefix of each --tee line on the console: text with ${role_name}, ${local_rank}, ${rank} and
    /// ${hostname}. [default: $TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, or
    /// [${role_name}${local_rank}]:]
    #[arg(hide_short_help = true, long, value_name = "TEMPLATE", allow_hyphen_values = true, default_value = "", value_parser = Read(text))]
    pub(super) log_line_prefix_template: Parsed<String>,

    /// Shows only the output of these local ranks, as in 0,2.
    #[arg(hide_short_help = true, long, value_name = "RANKS", default_value = "", value_parser = Read(local_ranks))]
    pub(super) local_ranks_filter: Parsed<Option<Vec<u64>>>,

    /// Also writes --tee lines of stdout that contain one of these texts to a file of their own; `,,` is a
    /// comma within a text.
    #[arg(hide_short_help = true, long, value_name = "TEXT,...", allow_hyphen_values = true, default_value = "", value_parser = Read(filters))]
    pub(super) duplicate_stdout_filters: Parsed<Vec<String>>,

    /// The same for stderr.
    #[arg(hide_short_help = true, long, value_name = "TEXT,...", allow_hyphen_values = true, default_value = "", value_parser = Read(filters))]
    pub(super) duplicate_stderr_filters: Parsed<Vec<String>>,

    /// Also reports the outcome as one line of JSON, the last one on standard output.
    #[arg(hide_short_help = true, long)]
    pub(super) json: bool,
}

/// PyTorch's names (`torch/distributed/elastic/events/handlers.py`).
fn is_console(name: &str) -> Result<bool, Refusal> {
    match name {
        "console" => Ok(true),
        "null" | "dynamic_rendezvous" => Ok(false),
        _ => Err(Refusal::IsNot(
            "console, null or dynamic_rendezvous; handlers in Python cannot be loaded",
        )),
    }
}

/// `None` for all.
fn local_ranks(text: &str) -> Result<Option<Vec<u64>>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let ranks = text.split(',').map(|rank| rank.trim().parse());
    match ranks.collect::<Result<BTreeSet<u64>, _>>() {
        Ok(ranks) => Ok(Some(ranks.into_iter().collect())),
        Err(_) => Err(Refusal::IsNot("local ranks separated by commas, as in 0,2")),
    }
}

fn filters(text: &str) -> Result<Vec<String>, Refusal> {
    Ok(parse_line_filters(text))
}
