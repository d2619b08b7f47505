//! Suggests the intended command for an unknown one.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// Adds a suggestion to an error about an unknown command: `c10d store serve` for `c10d serve`.
pub(crate) fn complete(mut error: Error, command: &Command) -> Error {
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

fn intended(word: &str, command: &Command) -> Option<String> {
    let name = command.get_name();
    match word {
        "launch" | "torchrun" | "run" => return Some(format!("{name} run")),
        "server" | "listen" => return Some(format!("{name} store serve")),
        "benchmark" => return Some(format!("{name} bench")),
        _ => {}
    }
    ["store", "bench"].into_iter().find_map(|parent| {
        let group = command.find_subcommand(parent)?;
        let child = group.find_subcommand(word)?;
        (!child.is_hide_set()).then(|| format!("{name} {parent} {word}"))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn likely_mistakes_suggest_the_command() {
        let table = [
            ("serve", Some("c10d store serve")),
            ("server", Some("c10d store serve")),
            ("get", Some("c10d store get")),
            ("multi-set", Some("c10d store multi-set")),
            ("rendezvous", Some("c10d bench rendezvous")),
            ("launch", Some("c10d run")),
            ("torchrun", Some("c10d run")),
            ("run", Some("c10d run")),
            ("floor", None),
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
