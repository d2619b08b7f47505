//! `c10d completions`: the script with which a shell completes the commands and options of `c10d`.

use clap::{Arg, Args, Command, ValueHint};
use clap_complete::{Shell, generate};

use crate::failure::Failure;
use crate::output::print;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that reads the script.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script for `command`. The same build prints the same bytes.
pub(crate) fn run(args: &CompletionsArgs, command: Command) -> Result<(), Failure> {
    print(&script(args.shell, command))
}

fn script(shell: Shell, mut command: Command) -> Vec<u8> {
    if shell == Shell::Zsh {
        command = command.mut_subcommand("run", |run| run.arg(worker_script()));
    }
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(shell, &mut command, name, &mut script);
    script
}

/// The script of `c10d run` and its arguments, which the command line has as an unknown command. Other shells complete
/// file names where they know nothing better; zsh has to be told.
fn worker_script() -> Arg {
    Arg::new("SCRIPT")
        .num_args(0..)
        .trailing_var_arg(true)
        .value_hint(ValueHint::FilePath)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, ValueEnum};

    use super::*;
    use crate::Cli;

    fn text(shell: Shell) -> String {
        String::from_utf8(script(shell, Cli::command())).expect("the options are text")
    }

    fn options(command: &Command, found: &mut BTreeSet<String>) {
        let visible = command
            .get_arguments()
            .filter(|option| !option.is_hide_set());
        found.extend(visible.filter_map(|option| option.get_long().map(str::to_owned)));
        for child in command
            .get_subcommands()
            .filter(|child| !child.is_hide_set())
        {
            options(child, found);
        }
    }

    #[test]
    fn every_shell_completes_every_option() {
        let mut expected = BTreeSet::new();
        options(&Cli::command(), &mut expected);
        assert!(expected.len() > 80, "{expected:?}");
        for shell in Shell::value_variants() {
            let script = text(*shell);
            // fish and elvish write options without the two hyphens, or with a space between.
            let missing: Vec<_> = expected
                .iter()
                .filter(|option| !script.contains(option.as_str()))
                .collect();
            assert!(missing.is_empty(), "{shell}: {missing:?}");
        }
    }

    #[test]
    fn scripts_are_reproducible() {
        for shell in Shell::value_variants() {
            assert_eq!(text(*shell), text(*shell), "{shell}");
        }
    }
}
