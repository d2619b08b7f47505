//! Values of options: on the command line, or else in the environment.
//!
//! An option is declared once, as a field of an [`Args`](clap::Args): with its name, its help, its default and the
//! parser of its value. Its variable follows from its name, as PET_LOG_DIR from `log_dir`. A `bool` is a flag. Fields of
//! other types than `bool` and [`Parsed`] have no variable.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use c10d_socket::Credentials;
use clap::builder::{StringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, Command, Error};
use elastic_agent::devices::{Cpus, DeviceKind, DevicesError};
use elastic_agent::scheduler::Site;
use elastic_rendezvous::StartWarning;

use super::error::{Given, Refusal, UsageError};
use crate::ephemeral_ports::EphemeralPorts;
use crate::run::interpreter::Interpreter;

/// The facts outside of the options that the plan depends on: variables, processors, devices and ports.
pub(crate) struct Surroundings<'a> {
    /// Reads an environment variable.
    pub(crate) variable: Variables<'a>,
    /// All variables, which workers inherit.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The Python interpreter of scripts and modules.
    pub(crate) interpreter: Interpreter,
    /// The credentials that the stores of the job require.
    pub(crate) credentials: Option<Credentials>,
    /// Counts devices, at least one.
    pub(crate) count_devices: &'a dyn Fn(DeviceKind) -> Result<usize, DevicesError>,
    /// The processors that this process may use; `None` if they cannot be counted.
    pub(crate) count_cpus: &'a dyn Fn() -> Option<Cpus>,
    /// The ports that the system gives to outgoing connections.
    pub(crate) ephemeral_ports: EphemeralPorts,
    /// A random number, for the id of a standalone run.
    pub(crate) seed: u64,
    /// Facts that identify the scheduler, in addition to variables.
    pub(crate) site: &'a Site<'a>,
}

/// Reads an environment variable.
type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A [given](Given) value, with the result of its parser.
#[derive(Debug, Clone)]
pub(super) struct Parsed<T> {
    pub(super) given: Given,
    parsed: Result<T, Refusal>,
}

/// The parser in the declaration of an option, for example `value_parser = Read(port)`.
///
/// It never fails. Instead, [`Parsed::value`] returns the error, in one line that names the option or the variable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read<T>(pub(super) fn(&str) -> Result<T, Refusal>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Read<T> {
    type Value = Parsed<T>;

    fn parse_ref(
        &self,
        run: &Command,
        arg: Option<&Arg>,
        text: &OsStr,
    ) -> Result<Parsed<T>, Error> {
        self.parse_ref_(run, arg, text, ValueSource::CommandLine)
    }

    fn parse_ref_(
        &self,
        run: &Command,
        arg: Option<&Arg>,
        text: &OsStr,
        source: ValueSource,
    ) -> Result<Parsed<T>, Error> {
        let value = StringValueParser::new().parse_ref(run, arg, text)?;
        let name = arg.map(|arg| match source {
            ValueSource::CommandLine => format!("--{}", arg.get_long().unwrap_or_default()),
            _ => variable_of(arg),
        });
        let name = name.unwrap_or_default();
        Ok(Given { name, value }.read(self.0))
    }
}

impl Given {
    pub(super) fn read<T>(self, read: fn(&str) -> Result<T, Refusal>) -> Parsed<T> {
        Parsed {
            parsed: read(&self.value),
            given: self,
        }
    }

    pub(super) fn has_no_effect(&self, why: &str) -> StartWarning {
        let Self { name, value } = self;
        format!("{name} is {value:?}, which has no effect: {why}").into()
    }

    pub(super) fn refused(&self, refusal: Refusal) -> UsageError {
        UsageError::Value {
            given: self.clone(),
            refusal,
        }
    }
}

impl<T: Clone> Parsed<T> {
    pub(super) fn value(&self) -> Result<T, UsageError> {
        self.parsed
            .clone()
            .map_err(|refusal| self.given.refused(refusal))
    }
}

/// The value of an option that may be missing.
pub(super) fn value_of<T: Clone>(option: &Option<Parsed<T>>) -> Result<Option<T>, UsageError> {
    option.as_ref().map(Parsed::value).transpose()
}

/// Makes the variable of each option its default. An empty variable is a value, as with torchrun
/// (`torch/distributed/argparse_util.py`).
pub(crate) fn with_variables(run: Command, variable: Variables<'_>) -> Command {
    run.mut_args(|arg| match default_of(&arg, variable) {
        Some(given) if is_flag(&arg) => arg.default_value(match is_on(&given) {
            Some(true) => "true",
            // An invalid one is reported when the options are resolved.
            Some(false) | None => "false",
        }),
        Some(given) => arg.default_value(given.value),
        None => arg,
    })
}

/// A flag's variable must be a number even if the flag is given, so that an invalid value shows at once.
pub(super) fn check_flags(run: &Command, variable: Variables<'_>) -> Result<(), UsageError> {
    let flags = run.get_arguments().filter(|arg| is_flag(arg));
    let mut given = flags.filter_map(|flag| default_of(flag, variable));
    match given.find(|given| is_on(given).is_none()) {
        Some(given) => Err(given.refused(Refusal::IsNot(
            "a number: 0 for off, any other number for on",
        ))),
        None => Ok(()),
    }
}

fn default_of(arg: &Arg, variable: Variables<'_>) -> Option<Given> {
    let kind = arg.get_value_parser().type_id();
    if kind == TypeId::of::<String>() || kind == TypeId::of::<PathBuf>() {
        return None;
    }
    let name = variable_of(arg);
    variable(&name).map(|value| Given { name, value })
}

fn variable_of(arg: &Arg) -> String {
    format!("PET_{}", arg.get_id().as_str().to_uppercase())
}

fn is_flag(arg: &Arg) -> bool {
    !arg.get_action().takes_values()
}

fn is_on(given: &Given) -> Option<bool> {
    let number: Option<i64> = given.value.trim().parse().ok();
    number.map(|number| number != 0)
}

impl Surroundings<'_> {
    pub(super) fn variable(&self, name: &str) -> Option<Given> {
        let name = name.to_owned();
        (self.variable)(&name).map(|value| Given { name, value })
    }

    /// The path in a variable, unless it is empty.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        let mut variables = self.environment.iter();
        let (_, path) = variables.find(|(known, path)| known == name && !path.is_empty())?;
        Some(path.into())
    }

    /// Whether one of PyTorch's variables is `1`.
    pub(super) fn is_on(&self, name: &str) -> bool {
        (self.variable)(name).is_some_and(|value| value == "1")
    }
}

/// A value of the plan, and the option or variables that it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) from: String,
}
