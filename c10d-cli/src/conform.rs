//! `c10d conform`: whether another server or client of the store speaks the protocol as PyTorch's do.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use c10d_conform::{ClientRun, Column, Report, RunError, ServerRun, plans, scenarios};
use c10d_socket::HostPort;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::quantity::parse_duration;

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    every case passes
  2    invalid arguments
  3    no connection, a command that cannot be started, or a file that cannot be written
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
    /// Runs a client against stores that behave as PyTorch's within its rights, and says what it does wrong.
    ///
    /// The command connects to MASTER_ADDR:MASTER_PORT, prints `ready`, reads operations from its standard input, one a line,
    /// and prints the result of each as a line. The README of c10d-conform has the operations; examples/conform_client.py
    /// is such a command for PyTorch's client.
    #[command(after_help = EXIT_CODES)]
    Client(ClientArgs),
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

    /// Leaves out the cases that count or list all keys: others use the store.
    #[arg(long)]
    shared: bool,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    output: OutputArgs,

    /// How long the command may take to connect and print `ready`.
    #[arg(long, value_name = "TIME", default_value = "14s", value_parser = parse_duration)]
    start_timeout: Duration,

    /// The client and its arguments. It runs once for each case.
    #[arg(last = true, required_unless_present = "list")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct OutputArgs {
    /// Runs only the case with this name. Can be repeated.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// Prints the names of the cases, and what each is about.
    #[arg(long, conflicts_with_all = ["only", "junit"])]
    list: bool,

    /// Prints one JSON object: every case, with what is wrong.
    #[arg(long)]
    json: bool,

    /// Also writes the outcomes to this file, in JUnit's format.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// Runs the cases. Fails with [`Failure::Differs`] if one does not pass.
pub(crate) fn run(command: &ConformCommand) -> Result<(), Failure> {
    match command {
        ConformCommand::Server(args) => {
            let output = &args.output;
            let Some(server) = args.server.clone().filter(|_| !output.list) else {
                let plans = plans(args.column, "list").map_err(RunError::from)?;
                return output.print_list(plans.iter().map(|it| (it.name(), it.operation())));
            };
            let run = ServerRun::new(server, args.column)
                .with_only(output.only.clone())
                .with_shared(args.shared);
            output.print(&run.run(fastrand::u32(..))?)
        }
        ConformCommand::Client(args) if args.output.list => {
            let scenarios = scenarios().map_err(RunError::from)?;
            args.output
                .print_list(scenarios.iter().map(|it| (it.name(), it.about())))
        }
        ConformCommand::Client(args) => {
            let run = ClientRun::new(args.command.clone())
                .with_only(args.output.only.clone())
                .with_start_timeout(args.start_timeout);
            args.output.print(&run.run()?)
        }
    }
}

impl OutputArgs {
    fn print(&self, report: &Report) -> Result<(), Failure> {
        if let Some(file) = &self.junit {
            fs::write(file, report.to_junit())
                .map_err(Failure::system(format!("cannot write {}", file.display())))?;
        }
        if self.json {
            print_json(serde_json::to_string(report).unwrap_or_default())?;
        } else {
            print(report.to_text().as_bytes())?;
        }
        match report.is_conforming() {
            true => Ok(()),
            false => Err(Failure::Differs),
        }
    }

    fn print_list<'c>(
        &self,
        cases: impl Iterator<Item = (&'c str, &'c str)>,
    ) -> Result<(), Failure> {
        if self.json {
            let cases = cases.map(|(name, about)| json!({ "name": name, "about": about }));
            return print_json(json!(cases.collect::<Vec<_>>()));
        }
        let lines = cases.map(|(name, about)| format!("{name}: {about}\n"));
        print(lines.collect::<String>().as_bytes())
    }
}
