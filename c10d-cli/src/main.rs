//! `c10d`: serves a TCPStore, talks to one, launches workers, and measures.
//!
//! Holds no protocol and no server of its own: those are `c10d-store`'s. What is here is what a
//! shell user sees: arguments, bytes in and out, exit codes; and the load generator of `c10d bench`.
#![forbid(unsafe_code)]

mod bench;
mod client;
mod failure;
mod open_files;
mod output;
mod parent;
mod quantity;
mod run;
mod serve;
mod suggestion;
mod terminal;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::failure::Failure;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the answer is no: not there in time, not written, queue empty
  2  wrong usage, or more than the store takes
  3  no connection, or it was lost, as when the server refuses a request
  4  standard output cannot be written, as when a disk is full
  141  standard output was closed by its reader, as by `head`; nothing is reported";

/// PyTorch's TCPStore and torchrun, without Python.
#[derive(Debug, Parser)]
#[command(name = "c10d", bin_name = "c10d", version = env!("C10D_VERSION"))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A store: serve one, or use one.
    #[command(subcommand, after_help = EXIT_CODES)]
    Store(StoreCommand),
    /// Launches the workers of this node, as torchrun does.
    Run(Box<run::options::RunOptions>),
    /// Measures a store's server, a rendezvous, calls between workers, or references.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Serves a store until SIGINT or SIGTERM.
    Serve(serve::ServeArgs),
    #[command(flatten)]
    Client(client::ClientCommand),
}

fn main() -> ExitCode {
    let cli = Cli::try_parse()
        .unwrap_or_else(|error| suggestion::complete(error, &Cli::command()).exit());
    // A server's and a launcher's log tells their own story; a client's output should be its answer
    // alone.
    let default_level = match cli.command {
        Command::Store(StoreCommand::Serve(_)) => "info",
        Command::Run(_) => run::LOG_LEVELS,
        // A client that keeps trying to connect says so.
        Command::Store(StoreCommand::Client(_)) => "warn,c10d_socket::connect=info",
        Command::Bench(_) => "warn",
    };
    start_logging(default_level);
    let result = match cli.command {
        Command::Store(StoreCommand::Serve(args)) => serve::run(&args),
        Command::Store(StoreCommand::Client(command)) => client::run(&command),
        Command::Run(options) => match run::run(*options) {
            Ok(code) => return ExitCode::from(code),
            Err(failure) => Err(failure),
        },
        Command::Bench(command) => bench::run(&command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

/// Sends the log to standard error, above a live line if there is one.
fn start_logging(default_level: &str) {
    let has_colors =
        terminal::is_live() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let style = if has_colors { "always" } else { "never" };
    let environment = env_logger::Env::default()
        .default_filter_or(default_level)
        .default_write_style_or(style);
    env_logger::Builder::from_env(environment)
        .target(env_logger::Target::Pipe(Box::new(terminal::StandardError)))
        .init();
}

/// One line on standard error. When that is closed there is nobody left to tell.
fn report(failure: &Failure) -> ExitCode {
    let text = failure.to_string();
    if !text.is_empty() {
        let one_line = text.lines().collect::<Vec<_>>().join(" ");
        let _ = writeln!(terminal::StandardError, "c10d: {one_line}");
    }
    ExitCode::from(failure.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}
