//! `c10d man` and `c10d completions`: manual pages and completions, which are made from the definitions of commands and options.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Arg, Args, Command, ValueHint};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use crate::failure::Failure;
use crate::output::print;

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Print the page of this command, for example of `c10d man store get`. [default: the page of c10d itself]
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,

    /// Write the pages of all commands to this directory, one file for each, and create it if it is missing.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    out_dir: Option<PathBuf>,
}

/// Prints the page of one command of `root`, or writes the pages of all commands. The same build writes the same bytes.
pub(crate) fn print_pages(args: &ManArgs, mut root: Command) -> Result<(), Failure> {
    root.build();
    if let Some(directory) = &args.out_dir {
        let what = format!("cannot write manual pages to {}", directory.display());
        let written = fs::create_dir_all(directory).and_then(|()| write_all(&root, directory));
        return written.map_err(Failure::system(what));
    }
    let mut page = Vec::new();
    let written = man(find(&root, &args.command)?).render(&mut page);
    written.map_err(Failure::system("cannot make the manual page"))?;
    print(&page)
}

fn find<'a>(root: &'a Command, words: &[String]) -> Result<&'a Command, Failure> {
    words.iter().try_fold(root, |parent, word| {
        parent.find_subcommand(word).ok_or_else(|| {
            let name = parent.get_bin_name().unwrap_or_default();
            let text = format!("{name} has no command {word:?}: {name} --help lists its commands");
            Failure::Usage(text)
        })
    })
}

fn write_all(command: &Command, directory: &Path) -> io::Result<()> {
    man(command).generate_to(directory)?;
    let mut children = command.get_subcommands().filter(|child| has_page(child));
    children.try_for_each(|child| write_all(child, directory))
}

fn has_page(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// The page of a command that has been built.
fn man(command: &Command) -> Man {
    // As `--help` prints it: clap_mangen would list all options, and leave out the script of `c10d run`.
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    // clap_mangen leaves out the texts of options that `-h` hides.
    let command = command.clone().mut_args(|arg| arg.hide_short_help(false));
    Man::new(command.override_usage(usage))
        .source(concat!("c10d ", env!("CARGO_PKG_VERSION")))
        .manual("c10d manual")
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Print the script for this shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script for `command`. The same build prints the same bytes.
pub(crate) fn print_completions(args: &CompletionsArgs, command: Command) -> Result<(), Failure> {
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

    fn built() -> Command {
        let mut root = Cli::command();
        root.build();
        root
    }

    fn page(command: &Command) -> String {
        let mut page = Vec::new();
        man(command)
            .render(&mut page)
            .expect("memory can be written");
        let page = String::from_utf8(page).expect("the help is text");
        page.replace("\\-", "-")
    }

    #[test]
    fn each_page_has_every_option_and_command() {
        let mut commands = vec![built()];
        let mut pages = 0;
        while let Some(command) = commands.pop() {
            let text = page(&command);
            let name = command.get_display_name().unwrap_or_default();
            assert!(text.contains(&format!("{name} - ")), "{name}");
            let visible = command
                .get_arguments()
                .filter(|option| !option.is_hide_set());
            for long in visible.filter_map(|option| option.get_long()) {
                assert!(text.contains(&format!("--{long}")), "{name} --{long}");
            }
            for child in command.get_subcommands().filter(|child| has_page(child)) {
                let child_name = child.get_display_name().unwrap_or_default();
                assert!(text.contains(&format!("{child_name}(1)")), "{name}");
                commands.push(child.clone());
            }
            pages += 1;
        }
        assert!(pages > 30, "{pages}");
    }

    #[test]
    fn the_page_of_run_has_the_script_and_the_exit_codes() {
        let root = built();
        let text = page(find(&root, &["run".to_owned()]).expect("it exists"));
        for part in [
            "[SCRIPT [ARGUMENT]...]",
            "Each worker runs SCRIPT",
            "128+N  signal N",
            // `-h` hides this option.
            "Give this node its rank",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn an_unknown_command_is_refused() {
        let root = built();
        let words = ["secret", "x"].map(str::to_owned);
        assert_eq!(
            find(&root, &words)
                .expect_err("no such command")
                .to_string(),
            "c10d secret has no command \"x\": c10d secret --help lists its commands"
        );
    }

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
}
