//! `c10d man`: manual pages, which `clap_mangen` makes from the definitions of commands and options.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;

use crate::failure::Failure;
use crate::output::print;

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The command whose page is printed, as in `c10d man store get`. [default: the page of c10d itself]
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,

    /// Writes the pages of all commands to this directory, one file each, and creates it if it is missing.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    out_dir: Option<PathBuf>,
}

/// Prints the page of one command of `root`, or writes those of all. The same build writes the same bytes.
pub(crate) fn run(args: &ManArgs, mut root: Command) -> Result<(), Failure> {
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
    Man::new(command.clone().override_usage(usage))
        .source(concat!("c10d ", env!("CARGO_PKG_VERSION")))
        .manual("c10d manual")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

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
}
