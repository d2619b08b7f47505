//! `c10d flight`: which collective each rank is in, and the first one at which ranks differ.

use std::time::SystemTime;

use clap::Args;
use elastic_agent::local_time_and_age;

use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::status::StatusArgs;

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    all ranks have answered, whether they differ or not
  1    some ranks have not answered
  2    invalid arguments
  3    no connection to the store
  4    cannot write to standard output
  141  the reader of standard output, for example `head`, closed it; no message";

/// The options of `c10d flight`.
#[derive(Debug, Args)]
pub(crate) struct FlightArgs {
    /// Print the comparison as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    status: StatusArgs,
}

/// Prints the comparison.
pub(crate) fn run(args: &FlightArgs) -> Result<(), Failure> {
    let job = args.status.open_job()?;
    let clock = |unix_ns| local_time_and_age(unix_ns, SystemTime::now());
    let report = job.compare_flights(&job.ranks(), &clock);
    if args.json {
        print_json(serde_json::to_string(&report).unwrap_or_default())?;
    } else {
        print(report.to_text(&clock).as_bytes())?;
    }
    let is_complete = report.ranks.iter().all(|rank| rank.error.is_none());
    Failure::unless(is_complete, String::new)
}
