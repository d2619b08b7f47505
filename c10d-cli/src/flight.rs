//! `c10d flight`: which collective each rank is in, and the first one at which ranks differ.

use std::fmt::Write as _;
use std::time::SystemTime;

use c10d_inspect::flight::FlightReport;
use clap::Args;
use elastic_agent::local_time_and_age;

use crate::failure::Failure;
use crate::output::{print, print_line};
use crate::printable::printable_json;
use crate::status::StatusArgs;

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    all ranks have answered, whether they differ or not
  1    some ranks have not answered
  2    invalid arguments
  3    no connection to the store
  4    cannot write to standard output
  141  the reader of standard output closed it, as `head` does; no message";

/// How many ranks are listed in the text.
const LISTED_MAX: usize = 64;

/// Compares the flight recorders of all ranks that run PyTorch's debug server (2.15 or later): with
/// `c10d run --debug-server`, or torch.distributed.debug.start_debug_server(). They record collectives also without
/// a GPU. Ranks of a job that runs differ by one or two: times tell a hang.
#[derive(Debug, Args)]
pub(crate) struct FlightArgs {
    #[command(flatten)]
    status: StatusArgs,

    /// Prints the comparison as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints the comparison.
pub(crate) fn run(args: &FlightArgs) -> Result<(), Failure> {
    let job = args.status.open_job()?;
    let clock = |unix_ns| local_time_and_age(unix_ns, SystemTime::now());
    let report = job.compare_flights(&job.ranks(), &clock);
    if args.json {
        let json = serde_json::to_string(&report).unwrap_or_default();
        print_line(printable_json(&json))?;
    } else {
        print(to_text(&report, &clock).as_bytes())?;
    }
    if report.ranks.iter().all(|rank| rank.error.is_none()) {
        Ok(())
    } else {
        Err(Failure::No(String::new()))
    }
}

fn to_text(report: &FlightReport, clock: &dyn Fn(u64) -> String) -> String {
    let mut text = format!("{}\n", report.headline);
    for finding in &report.findings {
        if !report.headline.starts_with(&finding.text) {
            let note = if finding.is_consequence {
                " (a consequence)"
            } else {
                ""
            };
            _ = writeln!(text, "{}{note}", finding.text);
        }
    }
    text.push('\n');
    for rank in report.ranks.iter().take(LISTED_MAX) {
        _ = match (&rank.error, &rank.current) {
            (Some(error), _) => writeln!(text, "rank {}: {}", rank.rank, printable_error(error)),
            (None, Some(current)) => writeln!(
                text,
                "rank {}: in collective {} of group {} since {}: {current}",
                rank.rank,
                current.number,
                current.group,
                clock(current.entered_unix_ns),
            ),
            (None, None) => {
                let progress: Vec<String> = rank
                    .groups
                    .iter()
                    .map(|group| format!("{} of group {}", group.entered, group.group))
                    .collect();
                let entered = match progress.len() {
                    0 => "nothing recorded".to_owned(),
                    _ => format!("has entered {}", progress.join(", ")),
                };
                writeln!(text, "rank {}: in no collective; {entered}", rank.rank)
            }
        };
    }
    if report.ranks.len() > LISTED_MAX {
        let more = report.ranks.len() - LISTED_MAX;
        _ = writeln!(text, "and {more} more ranks: --json shows all");
    }
    text
}

fn printable_error(error: &str) -> String {
    crate::printable::printable(&error.chars().take(200).collect::<String>())
}
