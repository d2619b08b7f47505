//! The reasons why the options of `c10d run` cannot be used.

use std::ffi::OsString;
use std::fmt;

/// The reason why options are invalid. The message is one line that names the option or variable and
/// its value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UsageError {
    #[error("{}", sentence(.given, .refusal))]
    Value {
        /// The value.
        given: Given,
        /// The reason of the refusal.
        refusal: Refusal,
    },
    #[error("{name} is {node_rank}, but with {max_nodes} nodes the highest rank is {}", max_nodes - 1)]
    NodeRank {
        /// The option or the variable.
        name: String,
        /// The given rank; ranks count from 0.
        node_rank: usize,
        /// The number of nodes.
        max_nodes: usize,
    },
    #[error("{scheduler}: {why}; give {option}, or --no-scheduler to ignore {scheduler}")]
    Scheduler {
        /// The scheduler that was found.
        scheduler: &'static str,
        /// The reason why a value is unknown, and what to do.
        why: String,
        /// The option that gives the value.
        option: &'static str,
    },
    #[error("{name} is {rank}, but the job has {world_size} ranks, from 0")]
    DebugRank {
        /// The option or the variable.
        name: String,
        /// The given rank.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
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

/// The text of a value, and the option or variable that gave it.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(super) name: String,
    pub(super) value: String,
}

/// The reason why a value is refused.
#[derive(Debug, Clone)]
pub(crate) enum Refusal {
    /// The value is not this.
    IsNot(&'static str),
    /// The value could be used without this problem.
    But(String),
    /// The problem of the value; the text names the value.
    Because(String),
}

impl Refusal {
    pub(super) fn because(error: impl fmt::Display) -> Self {
        Self::Because(error.to_string())
    }
}

fn sentence(Given { name, value }: &Given, refusal: &Refusal) -> String {
    match refusal {
        Refusal::IsNot(expected) => format!("{name} is {value:?}; expected {expected}"),
        Refusal::But(why) => format!("{name} is {value:?}, but {why}"),
        Refusal::Because(why) => format!("{name}: {why}"),
    }
}
