//! `c10d man`: manual pages, made from the definitions of commands and options.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::failure::Failure;
use crate::output::print;

const SECTION: &str = "1";

/// What the help of a command calls the list of its exit codes.
const EXIT_CODES: &str = "Exit codes:";

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
        return write_all(&root, directory).map_err(Failure::system(what));
    }
    let command = find(&root, &args.command)?;
    print(&page(command).map_err(Failure::system("cannot make the manual page"))?)
}

fn find<'a>(root: &'a Command, words: &[String]) -> Result<&'a Command, Failure> {
    words.iter().try_fold(root, |parent, word| {
        parent.find_subcommand(word).ok_or_else(|| {
            let names: Vec<_> = children(parent).map(Command::get_name).collect();
            let name = parent.get_bin_name().unwrap_or_default();
            let known = match names.is_empty() {
                true => "it has no commands".to_owned(),
                false => format!("its commands are {}", names.join(", ")),
            };
            Failure::Usage(format!("{name} has no command {word:?}: {known}"))
        })
    })
}

fn write_all(root: &Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut commands = vec![root];
    while let Some(command) = commands.pop() {
        let name = format!("{}.{SECTION}", full_name(command));
        fs::write(directory.join(name), page(command)?)?;
        commands.extend(children(command));
    }
    Ok(())
}

/// The commands below `parent` that have a page: all but hidden ones and `help`.
fn children(parent: &Command) -> impl Iterator<Item = &Command> {
    parent
        .get_subcommands()
        .filter(|child| !child.is_hide_set() && child.get_name() != "help")
}

/// As in `c10d-store-get`.
fn full_name(command: &Command) -> &str {
    command
        .get_display_name()
        .unwrap_or_else(|| command.get_name())
}

/// The page in roff. `command` has been built, so it knows its full name.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let name = full_name(command);
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section(SECTION)
        .source(concat!("c10d ", env!("CARGO_PKG_VERSION")))
        .manual("c10d manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    synopsis(command).to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|option| !option.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if children(command).next().is_some() {
        commands(command).to_writer(&mut page)?;
    }
    let notes = command.get_after_long_help();
    if let Some(text) = notes.or_else(|| command.get_after_help()) {
        notes_of(&text.to_string()).to_writer(&mut page)?;
    }
    Ok(page)
}

/// The usage as `--help` prints it. clap_mangen lists all options here, and leaves out the script of `c10d run`.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let name = command.get_bin_name().unwrap_or_default();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    match usage.strip_prefix(name) {
        Some(rest) => roff.text([bold(name), roman(rest)]),
        None => roff.text([roman(usage)]),
    };
    roff
}

fn commands(parent: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    for child in children(parent) {
        roff.control("TP", []);
        roff.text([bold(full_name(child)), roman(format!("({SECTION})"))]);
        if let Some(about) = child.get_about() {
            roff.text([roman(about.to_string())]);
        }
    }
    roff
}

/// The text below the options of a help: paragraphs, then maybe exit codes, one a line.
fn notes_of(text: &str) -> Roff {
    let (notes, codes) = text.split_once(EXIT_CODES).unwrap_or((text, ""));
    let mut roff = Roff::new();
    let paragraphs = notes.trim().split("\n\n").filter(|part| !part.is_empty());
    for (number, paragraph) in paragraphs.enumerate() {
        match number {
            0 => roff.control("SH", ["NOTES"]),
            _ => roff.control("PP", []),
        };
        let lines = paragraph.lines().map(|line| roman(line.trim()));
        roff.text(
            lines
                .flat_map(|line| [line, roman("\n")])
                .collect::<Vec<Inline>>(),
        );
    }
    if !codes.trim().is_empty() {
        roff.control("SH", ["EXIT STATUS"]);
    }
    for line in codes.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (code, meaning) = line.split_once("  ").unwrap_or(("", line));
        if !code.is_empty() {
            roff.control("TP", []);
            roff.text([bold(code)]);
        }
        roff.text([roman(meaning.trim())]);
    }
    roff
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    fn all() -> Vec<(Command, String)> {
        let mut root = Cli::command();
        root.build();
        let mut commands = vec![root];
        let mut pages = Vec::new();
        while let Some(command) = commands.pop() {
            commands.extend(children(&command).cloned());
            let page = page(&command).expect("memory can be written");
            pages.push((command, String::from_utf8(page).expect("the help is text")));
        }
        pages
    }

    #[test]
    fn each_page_has_every_option_and_command() {
        let pages = all();
        assert!(pages.len() > 30, "{}", pages.len());
        for (command, page) in &pages {
            let name = full_name(command);
            let text = page.replace("\\-", "-");
            assert!(text.contains(&format!("{name} - ")), "{name}");
            let visible = command
                .get_arguments()
                .filter(|option| !option.is_hide_set());
            for long in visible.filter_map(|option| option.get_long()) {
                assert!(text.contains(&format!("--{long}")), "{name} --{long}");
            }
            for child in children(command) {
                assert!(text.contains(full_name(child)), "{name}");
            }
        }
    }

    #[test]
    fn the_page_of_run_has_the_script_and_the_exit_codes() {
        let mut root = Cli::command();
        root.build();
        let run = find(&root, &["run".to_owned()]).expect("it exists");
        let text = String::from_utf8(page(run).expect("memory can be written"));
        let text = text.expect("the help is text").replace("\\-", "-");
        assert!(text.contains("[SCRIPT [ARGUMENT]...]"), "{text}");
        assert!(
            text.contains(".SH NOTES\nEach worker runs SCRIPT"),
            "{text}"
        );
        assert!(
            text.contains(".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\nall workers"),
            "{text}"
        );
        assert!(text.contains(".TP\n\\fB128+N\\fR\nsignal N"), "{text}");
    }

    #[test]
    fn an_unknown_command_is_refused_with_the_known_ones() {
        let mut root = Cli::command();
        root.build();
        let refusal = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
            find(&root, &words)
                .expect_err("no such command")
                .to_string()
        };
        assert!(
            refusal(&["floor"])
                .starts_with("c10d has no command \"floor\": its commands are store, run")
        );
        assert!(refusal(&["secret", "x"]).ends_with("its commands are new, token"));
        assert_eq!(
            refusal(&["why", "x"]),
            "c10d why has no command \"x\": it has no commands"
        );
    }
}
