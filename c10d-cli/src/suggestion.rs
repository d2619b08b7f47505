//! Suggests the intended command for an unknown one, and options by the names that the help has.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// Adds a suggestion to an error about an unknown command: `c10d store serve` for `c10d serve`. Replaces hidden names in a
/// suggestion about an unknown option.
pub(crate) fn complete(mut error: Error, command: &Command) -> Error {
    if let Some(ContextValue::String(option)) = error.get(ContextKind::SuggestedArg)
        && let Some(name) = visible_name(option, command)
    {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(name));
    }
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    if let Some(intended) = intended(word, command) {
        let suggested = ContextValue::Strings(vec![intended]);
        error.insert(ContextKind::SuggestedSubcommand, suggested);
    }
    error
}

/// The name of the option with this alias; `None` if none has.
fn visible_name(option: &str, command: &Command) -> Option<String> {
    let alias = option.strip_prefix("--")?;
    let mut commands = vec![command];
    while let Some(command) = commands.pop() {
        let mut options = command.get_arguments();
        let named = options.find(|it| it.get_all_aliases().is_some_and(|all| all.contains(&alias)));
        if let Some(name) = named.and_then(|it| it.get_long()) {
            return Some(format!("--{name}"));
        }
        commands.extend(command.get_subcommands());
    }
    None
}

fn intended(word: &str, command: &Command) -> Option<String> {
    let name = command.get_name();
    match word {
        "launch" | "torchrun" | "run" => return Some(format!("{name} run")),
        "server" | "listen" => return Some(format!("{name} store serve")),
        _ => {}
    }
    let child = command.find_subcommand("store")?.find_subcommand(word)?;
    (!child.is_hide_set()).then(|| format!("{name} store {word}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn hidden_names_of_options_are_not_suggested() {
        for (option, name) in [
            ("--max-rest", Some("--max-restarts")),
            ("--max_restarts", Some("--max-restarts")),
            ("--eve", Some("--event-log-handler")),
            ("--max-restarts", None),
            ("--nonsense", None),
        ] {
            assert_eq!(
                visible_name(option, &Cli::command()).as_deref(),
                name,
                "{option}"
            );
        }
    }

    #[test]
    fn likely_mistakes_suggest_the_command() {
        let table = [
            ("serve", Some("c10d store serve")),
            ("server", Some("c10d store serve")),
            ("get", Some("c10d store get")),
            ("multi-set", Some("c10d store multi-set")),
            ("launch", Some("c10d run")),
            ("torchrun", Some("c10d run")),
            ("run", Some("c10d run")),
            ("nonsense", None),
        ];
        for (word, expected) in table {
            assert_eq!(
                intended(word, &Cli::command()).as_deref(),
                expected,
                "{word}"
            );
        }
    }
}
