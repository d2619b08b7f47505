//! `compare`: the same calls over `rpc-agent`, tarpc, tonic and a bare TCP echo, in one run.
//!
//! Each server is this program again, in a process of its own. Measures speed only, not features.
#![forbid(unsafe_code)]

mod child;
mod error;
mod machine;
mod measure;
mod placement;
mod plan;
mod report;
mod rival;
mod rivals;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::error::CompareError;
use crate::placement::Placement;
use crate::plan::Plan;
use crate::rival::Rival;

/// Measures calls between two processes on this machine, rival by rival, in interleaved rounds.
///
/// Prints a table in Markdown. Figures are medians of the rounds, after a warm-up.
#[derive(Debug, Parser)]
#[command(name = "compare", version)]
struct Options {
    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,

    /// Runs one short round, to see whether everything works.
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    quick: bool,

    /// The number of rounds after a warm-up.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,

    /// The measuring time for each figure of each rival in a round.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = round_seconds)]
    seconds: f64,

    /// Does not pin the processes to cores.
    #[arg(long)]
    no_pin: bool,

    /// Measures only this rival; can be repeated.
    #[arg(long, value_enum)]
    only: Vec<Rival>,

    /// Serves as this rival until standard input is closed.
    #[arg(long, value_enum, hide = true)]
    serve: Option<Rival>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match options.serve {
        Some(rival) => child::serve(rival),
        None => compare(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to report to when standard error is closed.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<(), CompareError> {
    let plan = if options.quick {
        Plan::quick()
    } else {
        Plan::new(options.rounds, options.seconds)
    };
    let placement = if options.no_pin {
        Placement::Free
    } else {
        Placement::apart()?
    };
    let report = measure::run(&plan, placement, &options.only)?;
    let text = if options.json {
        format!("{}\n", report.json())
    } else {
        report.table()
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(CompareError::system("cannot write the figures"))
}

fn round_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=60.0).contains(&seconds) => Ok(seconds),
        Ok(_) => Err("0.01 to 60".to_owned()),
        Err(error) => Err(format!("{error}")),
    }
}
