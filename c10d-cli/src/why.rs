//! `c10d why`: who the job waits for.

use std::io;

use c10d_inspect::Report;
use clap::Args;
use serde_json::{Map, Value};

use crate::explain_text::{Style, write_styled};
use crate::failure::Failure;
use crate::output::print;
use crate::printable::printable_json;
use crate::status::StatusArgs;

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    no rank waits for another
  2    invalid arguments
  3    no connection, a server that is not c10d's, or standard output cannot be written
  4    ranks wait for a rank that is missing or stands still
  141  the reader of standard output closed it, as `head` does; no message";

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    status: StatusArgs,

    /// Prints the report as one JSON object, with all ranks.
    #[arg(long)]
    json: bool,
}

/// Prints the report. Fails with [`Failure::Stuck`] if somebody is missing.
pub(crate) fn run(args: &WhyArgs) -> Result<(), Failure> {
    let pages = args.status.open()?;
    let mut text = Vec::new();
    let report: Report = if args.json {
        // Every field that the server knows, also those of a newer version.
        let json: Map<String, Value> = pages.get("/why.json?ranks=all")?;
        let json = Value::Object(json);
        text.extend(printable_json(&format!("{json}\n")).into_bytes());
        serde_json::from_value(json).map_err(|error| pages.not_understood("/why.json", error))?
    } else {
        let report = pages.get("/why.json")?;
        write_styled(&report, Style::of(&io::stdout()), &mut text).map_err(Failure::Output)?;
        report
    };
    // Exit code 4 of other commands, for an output that cannot be written, means something else here.
    print(&text).map_err(|failure| match failure {
        Failure::Output(source) => Failure::system("cannot write to standard output")(source),
        failure => failure,
    })?;
    if report.is_stuck {
        return Err(Failure::Stuck);
    }
    Ok(())
}
