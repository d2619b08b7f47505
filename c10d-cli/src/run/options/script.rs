//! The options about the script, and how it is run.

use std::ffi::{OsStr, OsString};

use clap::{Args, Subcommand};
use elastic_agent::{CommandLine, Entrypoint};

use super::arguments::Surroundings;
use super::error::UsageError;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Script")]
pub(super) struct ScriptArgs {
    /// Run SCRIPT as a Python module, as `python -m` does.
    #[arg(short, long)]
    module: bool,

    /// Run SCRIPT with Python's `runpy.run_path` whatever its name: a file, a directory, or a ZIP file with a __main__.py.
    #[arg(hide_short_help = true, long)]
    run_path: bool,

    /// Run SCRIPT as a program, even if its name ends with .py.
    #[arg(hide_short_help = true, long)]
    no_python: bool,
}

/// The script and its arguments.
///
/// An external subcommand for clap: only after its name does clap leave all arguments alone, even `--help`,
/// and still report a mistyped option before it.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum Script {
    #[command(external_subcommand)]
    Command(Vec<OsString>),
}

impl ScriptArgs {
    /// The options of a script that is a file of Python.
    pub(super) const fn of_file() -> Self {
        Self {
            module: false,
            run_path: false,
            no_python: false,
        }
    }

    pub(super) fn command(
        &self,
        script: Option<Script>,
        surroundings: &Surroundings<'_>,
    ) -> Result<(Entrypoint, CommandLine), UsageError> {
        let Some(Script::Command(words)) = script else {
            return Err(UsageError::NoScript);
        };
        let mut words = words.into_iter();
        let script = words.next().ok_or(UsageError::NoScript)?;
        let entrypoint = match (self.run_path, self.module, self.no_python) {
            // As with torchrun, whatever else is given.
            (true, _, _) => Entrypoint::RunPath(script),
            (_, true, true) => return Err(UsageError::ModuleWithoutPython),
            (_, true, false) => Entrypoint::Module(script),
            (_, _, false) if is_python_file(&script) => Entrypoint::Script(script),
            _ => Entrypoint::Program(script),
        };
        let interpreter = &surroundings.interpreter.program;
        let command = CommandLine::of(&entrypoint, interpreter, words);
        Ok((entrypoint, command))
    }
}

fn is_python_file(script: &OsStr) -> bool {
    script.as_encoded_bytes().ends_with(b".py")
}
