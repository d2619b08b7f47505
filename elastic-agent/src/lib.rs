//! PyTorch's elastic agent: supervises the worker processes of one node.
//!
//! An [`ElasticAgent`] joins rounds through a rendezvous handler and keeps workers running in them. It
//! is made of parts that can be used by themselves:
//!
//! - A [`WorkerGroup`] is the worker processes of one round: started together, watched, stopped
//!   together, with nothing left behind in their process groups.
//! - [`worker_environment`] and [`CommandLine`] say what a worker is told.
//! - [`LogDirectory`] says where its output goes; [`LinePrefix`] what stands before it on the console.
//! - [`ProcessFailure`] and [`Failures`] say why workers failed.
//!
//! Unix only; that no worker outlives an agent that is killed is promised on Linux only.
#![deny(unsafe_code)]

mod agent;
mod assignment;
mod command_line;
mod environment;
mod exit_barrier;
mod failure;
mod logs;
mod output;
mod ranks;
mod regular_file;
mod sys;
mod template;
mod worker;

pub use agent::{
    AgentError, AgentHandle, AgentOptions, AgentOutcome, EXIT_BARRIER_TIMEOUT, ElasticAgent,
    STOP_GRACE,
};
pub use assignment::Assignment;
pub use command_line::{CommandLine, Entrypoint};
pub use environment::{EnvironmentError, WorkerEnvironment, worker_environment};
pub use failure::{ErrorFileError, Failures, ProcessFailure, local_time_text, write_error_file};
pub use logs::{
    Destination, FilteredLog, LinePrefix, LogDirectory, LogDirectoryError, LogOptions, RoundLogs,
    StreamMap, StreamMapError, Streams, WorkerLogs, parse_line_filters,
};
pub use output::Console;
pub use ranks::{RankBlock, RanksError, RoleInfo, assign_ranks, exchange_ranks};
pub use rustix::process::Signal;
pub use worker::{
    AbandonedWorker, ExitKind, GroupPlan, Hurry, StartError, StopReport, WorkerExit, WorkerGroup,
    WorkerOutcome, WorkerPlan,
};
