#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod client;
mod doctor;
mod end_signals;
mod ephemeral_ports;
#[cfg(feature = "etcd")]
mod etcd;
mod failure;
mod flight;
#[cfg(feature = "journal")]
mod journal;
mod logging;
mod output;
mod progress;
mod quantity;
mod reference;
mod relay;
mod run;
mod secret;
mod serve;
mod server_address;
mod stacks;
mod status;
mod suggestion;
mod terminal;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

const EXIT_CODES: &str = "\
Exit codes:
  0    success
  1    negative answer: the key did not exist before the timeout, the value was not written, or the queue was empty
  2    invalid arguments, or a limit of the store exceeded
  3    no connection, or connection lost, for example because the server rejected a request
  4    cannot write to standard output, for example because the disk is full
  5    the directory of a store is in use, damaged, or cannot be read or written
  141  the reader of standard output, for example `head`, closed it; no message";

const STORE_EXAMPLES: &str = "\
Examples:
  c10d store serve --host :: --port 29500
  c10d store set --connect node0:29500 greeting hello
  c10d store get --connect node0:29500 greeting
  c10d store keys --connect node0:29500
  c10d store barrier --connect node0:29500 --world-size 4 start
  c10d store lease --connect node0:29500 --timeout 1m migration -- ./migrate.sh";

const SERVE_EXAMPLES: &str = "\
Examples:
  c10d store serve
  c10d store serve --host :: --secret-file secret --dir /var/lib/c10d
  c10d store serve --host :: --etcd etcd0,etcd1,etcd2 --etcd-prefix job-17";

const EXAMPLES: &str = "\
Examples:
  c10d run --nproc-per-node gpu train.py
  c10d why --connect node0:29400";

/// The script of `c10d tour`, which shows failures of a job with commands that users can type.
#[cfg(feature = "journal")]
const TOUR: &str = include_str!("tour.sh");

/// The commands as `c10d --help` lists them.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run jobs", &["run", "doctor", "progress", "tour"]),
    ("Debug jobs", &["why", "stacks", "flight"]),
    ("Stores", &["store", "relay", "secret"]),
    ("Setup", &["completions", "man"]),
    ("Help", &["help"]),
];

/// Launch PyTorch jobs, serve their store, and find out why they hang.
#[derive(Debug, Parser)]
#[command(
    name = "c10d",
    bin_name = "c10d",
    version = env!("C10D_VERSION"),
    after_help = EXAMPLES,
    mut_subcommands = with_underscores
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what happens when a worker is killed, a worker hangs, and the store is killed.
    ///
    /// Starts three jobs of four workers, which are shell scripts, on this machine. Prints each command before it runs it.
    /// Needs neither Python nor a GPU.
    #[cfg(feature = "journal")]
    Tour,
    /// Serve a store, or send a command to a store.
    #[command(subcommand, after_help = EXIT_CODES, after_long_help = format!("{STORE_EXAMPLES}\n\n{EXIT_CODES}"))]
    Store(StoreCommand),
    /// Launch the workers of this node, like torchrun.
    Run(Box<run::options::RunOptions>),
    /// Check the machines before a job: run it on all of them at the same time.
    ///
    /// The node that the endpoint names serves a store for the check. Each node reports its limits, clock, version and names,
    /// and tries to reach the other nodes. Every problem is one sentence, with what to do about it.
    Doctor(Box<doctor::DoctorOptions>),
    /// Run a local proxy of a store, so that the ranks of this machine share one authenticated, reconnecting connection.
    ///
    /// Processes on this machine use the relay as a store, without a secret: unmodified PyTorch ranks with
    /// MASTER_ADDR=127.0.0.1, the relay's MASTER_PORT and TORCHELASTIC_USE_AGENT_STORE=True. The relay serves only
    /// processes of the user that runs it (Linux).
    Relay(relay::RelayArgs),
    /// Show which ranks a job waits for, where they run, and which line they are at.
    ///
    /// Asks the server of the store, at the store's own port. This can be the store of the rendezvous, which names the
    /// workers' store, or the workers' store itself. Needs a store that `c10d run` or `c10d store serve` serves; the ranks
    /// can be PyTorch's.
    #[command(after_help = why::EXIT_CODES, after_long_help = format!("{}\n\n{}", why::EXAMPLES, why::EXIT_CODES))]
    Why(why::WhyArgs),
    /// Show the Python stacks of ranks.
    ///
    /// Asks the launchers of `c10d run`, which read the Python stacks of their workers from outside, on Linux, without
    /// stopping them. Other ranks are asked through PyTorch's debug server, if they run one. For a rank without stacks, the
    /// reason and the state of its process are shown.
    ///
    /// Ranks at the same lines are shown once, and the smallest group first. The most recent call is last, as in a
    /// traceback.
    #[command(after_help = stacks::EXIT_CODES)]
    Stacks(stacks::StacksArgs),
    /// Compare the collectives of all ranks, and find the first difference.
    ///
    /// Compares the flight recorders of all ranks that run PyTorch's debug server (2.15 or later): with `c10d run
    /// --debug-server`, or torch.distributed.debug.start_debug_server(). They also record collectives without a GPU. The
    /// ranks of a healthy job differ by one or two collectives, so look at the times to find a hang.
    #[command(after_help = flight::EXIT_CODES)]
    Flight(flight::FlightArgs),
    /// Report this worker's current step to its launcher, for example for --progress-timeout.
    #[command(after_help = progress::EXIT_CODES)]
    Progress(progress::ProgressArgs),
    /// Create and inspect the shared secret of a job.
    #[command(subcommand)]
    Secret(secret::SecretCommand),
    /// Print a shell completion script.
    ///
    /// For bash: `c10d completions bash > ~/.local/share/bash-completion/completions/c10d`. For zsh, write `_c10d` in a
    /// directory of $fpath. For fish: `~/.config/fish/completions/c10d.fish`.
    Completions(reference::CompletionsArgs),
    /// Print a manual page, or write all of them to a directory.
    ///
    /// To read one: `c10d man run | man -l -`. For packages: `c10d man --out-dir DIR`.
    Man(reference::ManArgs),
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Serve a store until SIGINT or SIGTERM.
    ///
    /// Without --secret-file the server has no authentication and no encryption: any process that can connect can read and
    /// write everything. By default it accepts connections from this machine only.
    #[command(after_long_help = SERVE_EXAMPLES)]
    Serve(serve::ServeArgs),
    #[command(flatten)]
    Client(client::ClientCommand),
    #[cfg(feature = "journal")]
    #[command(flatten)]
    Journal(journal::JournalCommand),
}

fn main() -> ExitCode {
    let cli = parse().unwrap_or_else(|error| suggestion::complete(error, &Cli::command()).exit());
    // Servers and launchers log their progress; a client should print only its answer.
    let default_level = match cli.command {
        Command::Store(StoreCommand::Serve(_)) | Command::Relay(_) => "info",
        Command::Run(_) => run::LOG_LEVELS,
        Command::Doctor(_) => "warn,c10d::doctor=info",
        // Also logs that a connection is retried.
        Command::Store(StoreCommand::Client(_)) => "warn,c10d_socket::connect=info",
        _ => "warn",
    };
    let has_dependents = matches!(
        cli.command,
        Command::Store(StoreCommand::Serve(_)) | Command::Relay(_) | Command::Run(_)
    );
    logging::start(default_level);
    // Each connection of a store is an open file. Programs that this command starts get the previous limit.
    c10d_socket::raise_file_limit();
    if has_dependents && let Err(error) = terminal::start_queue() {
        log::warn!("a standard error that accepts no output can stop this command: {error}");
    }
    let result = match cli.command {
        Command::Store(StoreCommand::Serve(args)) => serve::run(&args),
        Command::Store(StoreCommand::Client(command)) => client::run(&command),
        #[cfg(feature = "journal")]
        Command::Store(StoreCommand::Journal(command)) => journal::run(&command),
        Command::Run(options) => return run::run(*options),
        Command::Doctor(options) => doctor::run(*options),
        Command::Relay(args) => relay::run(&args),
        #[cfg(feature = "journal")]
        Command::Tour => tour(),
        Command::Why(args) => why::run(&args),
        Command::Stacks(args) => stacks::run(&args),
        Command::Flight(args) => flight::run(&args),
        Command::Progress(args) => progress::run(&args),
        Command::Secret(command) => secret::run(&command),
        Command::Completions(args) => reference::print_completions(&args, Cli::command()),
        Command::Man(args) => reference::print_pages(&args, Cli::command()),
    };
    let code = match result {
        Ok(()) => 0,
        Err(failure) => failure.report(),
    };
    terminal::finish(terminal::STUCK_MAX);
    ExitCode::from(code)
}

/// Replaces this process by a shell that runs the script, so that the signals of the terminal reach the script.
///
/// # Errors
/// [`Failure`](failure::Failure) if this command does not find its own file, or if there is no `sh`.
#[cfg(feature = "journal")]
fn tour() -> Result<(), failure::Failure> {
    use std::os::unix::process::CommandExt;

    let error = match std::env::current_exe() {
        Ok(command) => {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", TOUR, "c10d tour"]).arg(command).exec()
        }
        Err(error) => error,
    };
    Err(failure::Failure::Usage(format!(
        "cannot run the shell of the tour: {error}"
    )))
}

fn parse() -> Result<Cli, clap::Error> {
    let mut command =
        with_groups(Cli::command()).mut_subcommands(|command| match command.get_name() {
            "run" | "doctor" => {
                run::options::with_variables(command, &|name| std::env::var(name).ok())
            }
            _ => command,
        });
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Lists the commands in groups.
fn with_groups(command: clap::Command) -> clap::Command {
    let mut built = command.clone();
    // Adds the command `help`.
    built.build();
    let mut list = String::new();
    for (heading, names) in GROUPS {
        let found = names.iter().filter_map(|name| built.find_subcommand(name));
        list.push_str(&format!("{heading}:\n"));
        for found in found {
            let about = found.get_about().map(ToString::to_string);
            list.push_str(&format!(
                "  {:12} {}\n",
                found.get_name(),
                about.unwrap_or_default()
            ));
        }
        list.push('\n');
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}{{after-help}}"
    ))
}

/// Lets the options of a command be written with underscores too, as torchrun's can.
fn with_underscores(command: clap::Command) -> clap::Command {
    command
        .mut_args(with_underscore)
        .mut_subcommands(with_underscores)
}

fn with_underscore(option: clap::Arg) -> clap::Arg {
    let name = option.get_long().filter(|name| name.contains('-'));
    match name.map(|name| name.replace('-', "_")) {
        Some(alias) => option.alias(alias),
        None => option,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_is_in_a_group() {
        let grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        for command in Cli::command().get_subcommands() {
            assert!(
                grouped.contains(&command.get_name()),
                "{}",
                command.get_name()
            );
        }
    }

    /// Only `--help` shows the options that many commands repeat, and only those are under their heading.
    #[test]
    fn the_short_help_hides_the_options_for_connections() {
        let mut commands = vec![Cli::command()];
        let mut hidden = 0;
        while let Some(command) = commands.pop() {
            for option in command.get_arguments() {
                let is_shared = option.get_long().is_some_and(|name| {
                    name.starts_with("tls-") || name.starts_with("etcd-") || name == "secret-file"
                });
                if option.get_help_heading() == Some(server_address::CONNECTION) {
                    assert!(is_shared && option.is_hide_short_help_set(), "{option}");
                    hidden += 1;
                }
            }
            commands.extend(command.get_subcommands().cloned());
        }
        assert!(hidden > 100, "{hidden}");
    }

    #[test]
    fn every_option_has_a_form_with_underscores() {
        let mut commands = vec![Cli::command()];
        let mut options = 0;
        while let Some(command) = commands.pop() {
            let arguments = command.get_arguments();
            let names = arguments.filter_map(|it| Some((it.get_long()?, it.get_all_aliases())));
            for (name, aliases) in names.filter(|(name, _)| name.contains('-')) {
                let aliases = aliases.unwrap_or_default();
                let expected = name.replace('-', "_");
                let forms = aliases.iter().filter(|alias| **alias == expected);
                assert_eq!(forms.count(), 1, "{name}: {aliases:?}");
                options += 1;
            }
            commands.extend(command.get_subcommands().cloned());
        }
        assert!(options > 50, "{options}");
    }
}
