//! `c10d conform`: whether another server or client of the store speaks the protocol as PyTorch's do.

use std::fs;
use std::path::PathBuf;

use c10d_conform::{Column, RunError, ServerRun, plans};
use c10d_socket::HostPort;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::failure::Failure;
use crate::output::{print, print_json};

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    every case passes
  2    invalid arguments
  3    no connection, or a file cannot be written
  4    cannot write to standard output
  6    some cases differ, hang, or did not run
  141  the reader of standard output closed it, as `head` does; no message";

#[derive(Debug, Subcommand)]
pub(crate) enum ConformCommand {
    /// Compares a server of the store with PyTorch's, case by case.
    ///
    /// Start the server afresh for it: cases count all keys, and write some without the `/` of a client's key. The keys that
    /// cases have made are deleted, queues stay.
    #[command(after_help = EXIT_CODES)]
    Server(ServerArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Where it listens.
    #[arg(value_name = "HOST:PORT", required_unless_present = "list")]
    server: Option<HostPort>,

    /// The server whose answers are expected: torch-2.15, torch-2.9, torch-2.4 (the default back end, libuv), each also with
    /// -poll (the older one), or c10d.
    #[arg(long = "as", value_name = "COLUMN", default_value_t)]
    column: Column,

    /// Runs only the case with this name. Can be repeated.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// Leaves out the cases that count or list all keys: others use the store.
    #[arg(long)]
    shared: bool,

    /// Prints the names of the cases, and the command that each is about.
    #[arg(long, conflicts_with_all = ["only", "junit"])]
    list: bool,

    /// Prints one JSON object: every case, with the bytes of those that differ.
    #[arg(long)]
    json: bool,

    /// Also writes the outcomes to this file, in JUnit's format.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// Runs the cases. Fails with [`Failure::Differs`] if one does not pass.
pub(crate) fn run(command: &ConformCommand) -> Result<(), Failure> {
    let ConformCommand::Server(args) = command;
    let Some(server) = args.server.clone().filter(|_| !args.list) else {
        return list(args);
    };
    let run = ServerRun::new(server, args.column)
        .with_only(args.only.clone())
        .with_shared(args.shared);
    let report = run.run(fastrand::u32(..))?;
    if let Some(file) = &args.junit {
        fs::write(file, report.to_junit())
            .map_err(Failure::system(format!("cannot write {}", file.display())))?;
    }
    if args.json {
        print_json(serde_json::to_string(&report).unwrap_or_default())?;
    } else {
        print(report.to_text().as_bytes())?;
    }
    match report.is_conforming() {
        true => Ok(()),
        false => Err(Failure::Differs),
    }
}

fn list(args: &ServerArgs) -> Result<(), Failure> {
    let plans = plans(args.column, "list").map_err(RunError::from)?;
    if args.json {
        let cases = plans
            .iter()
            .map(|plan| json!({ "name": plan.name(), "operation": plan.operation() }));
        return print_json(json!(cases.collect::<Vec<_>>()));
    }
    let lines = plans
        .iter()
        .map(|plan| format!("{:12}{}\n", plan.operation(), plan.name()));
    print(lines.collect::<String>().as_bytes())
}
