//! Values of options as they are given: on the command line or in the environment.

use std::ffi::OsString;
use std::str::FromStr;

use elastic_rendezvous::{EndpointError, ParametersError};

use crate::run::devices::{DeviceKind, DevicesError};
use crate::run::restart_options::RefusedValue;
use crate::run::scheduler::Site;

/// What the plan depends on besides the options.
pub(crate) struct Surroundings<'a> {
    /// Reads an environment variable.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Counts devices, at least one.
    pub(crate) count_devices: &'a dyn Fn(DeviceKind) -> Result<usize, DevicesError>,
    /// A random number, for the id of a standalone run.
    pub(crate) seed: u64,
    /// Facts besides variables by which a scheduler is recognized.
    pub(crate) site: &'a Site<'a>,
}

/// Why options are invalid. The message is one line that names the option or variable and its value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UsageError {
    #[error("{name} is {value:?}, which is not {expected}")]
    Value {
        /// The option or the variable.
        name: String,
        /// The rejected value.
        value: String,
        /// The accepted values.
        expected: &'static str,
    },
    #[error("{name} is {word:?}, but {source}")]
    Devices {
        /// The option or the variable.
        name: String,
        /// The kind of devices, as given.
        word: String,
        /// Why they could not be counted.
        source: DevicesError,
    },
    #[error("{name}: {source}")]
    Rendezvous {
        /// The option or the variable.
        name: String,
        /// What is wrong with its value.
        source: ParametersError,
    },
    #[error("{name}: {source}")]
    Endpoint {
        /// The option or the variable.
        name: String,
        /// What is wrong with its value.
        source: EndpointError,
    },
    #[error("{name} is {node_rank}, but with {max_nodes} nodes the highest rank is {}", max_nodes - 1)]
    NodeRank {
        /// The option or the variable.
        name: String,
        /// The rank.
        node_rank: usize,
        /// The number of nodes.
        max_nodes: usize,
    },
    #[error("{scheduler}: {why}, or give {option} (--no-scheduler ignores {scheduler})")]
    Scheduler {
        /// The scheduler that was found.
        scheduler: &'static str,
        /// Why a value is unknown, and what to do.
        why: String,
        /// The option that gives the value.
        option: &'static str,
    },
    #[error(
        "{name} is {value:?}, but {scheduler} has started the {nodes} nodes on different machines, and a loopback \
         address reaches none of the others; give the host of node 0"
    )]
    Loopback {
        /// The option or the variables.
        name: String,
        /// The endpoint.
        value: String,
        /// The scheduler that was found.
        scheduler: &'static str,
        /// The number of nodes.
        nodes: usize,
    },
    #[error("--module and --no-python cannot be combined")]
    ModuleWithoutPython,
    #[error("{name} is not supported: {why}")]
    Unsupported {
        /// The option or the variable, and its value.
        name: String,
        /// The reason, or what to do instead.
        why: &'static str,
    },
    #[error("--preload is for Python: SCRIPT {} is run as a program", script.display())]
    PreloadWithoutPython {
        /// The script, as given.
        script: OsString,
    },
    #[error(
        "--preload cannot be combined with --run-path: forked workers run a script or a module"
    )]
    PreloadWithRunPath,
    #[error("no SCRIPT given: name a script or program to run")]
    NoScript,
}

impl From<RefusedValue> for UsageError {
    fn from(refused: RefusedValue) -> Self {
        Self::Value {
            name: refused.name,
            value: refused.value,
            expected: refused.expected,
        }
    }
}

/// The value of an option, and the name of the option or variable that gave it.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) name: String,
    pub(super) value: String,
}

impl Given {
    pub(super) fn refused(self, expected: &'static str) -> UsageError {
        UsageError::Value {
            name: self.name,
            value: self.value,
            expected,
        }
    }

    pub(super) fn has_no_effect(&self, why: &str) -> String {
        format!(
            "{} is {:?}, which has no effect: {why}",
            self.name, self.value
        )
    }

    /// Parses a number; ignores blanks around it.
    pub(super) fn number<T: FromStr>(self, expected: &'static str) -> Result<T, UsageError> {
        self.value
            .trim()
            .parse()
            .map_err(|_| self.refused(expected))
    }
}

impl Surroundings<'_> {
    /// The value on the command line, or else in the environment. An empty variable is a value, as with
    /// torchrun (`torch/distributed/argparse_util.py`).
    pub(super) fn given(&self, option: &str, on_command_line: Option<String>) -> Option<Given> {
        if let Some(value) = on_command_line {
            let name = format!("--{option}");
            return Some(Given { name, value });
        }
        self.variable(&format!("PET_{}", option.to_uppercase().replace('-', "_")))
    }

    pub(super) fn variable(&self, name: &str) -> Option<Given> {
        let name = name.to_owned();
        (self.variable)(&name).map(|value| Given { name, value })
    }

    pub(super) fn text(
        &self,
        option: &str,
        on_command_line: Option<String>,
        default: &str,
    ) -> String {
        self.given(option, on_command_line)
            .map_or_else(|| default.to_owned(), |given| given.value)
    }

    /// A flag's variable must be a number even if the flag is given, so that an invalid value shows at once.
    pub(super) fn flag(&self, option: &str, on_command_line: bool) -> Result<bool, UsageError> {
        let Some(given) = self.given(option, None) else {
            return Ok(on_command_line);
        };
        let number: i64 = given.number("a number, 0 for off and another for on")?;
        Ok(on_command_line || number != 0)
    }
}
