#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod agent;
mod command_line;
pub mod devices;
mod environment;
mod exit_barrier;
mod exit_exchange;
mod failure;
mod files;
mod health;
mod job_end;
#[cfg(feature = "launcher")]
mod launcher;
mod logs;
mod output;
mod places;
mod preload;
mod progress;
#[cfg(feature = "launcher")]
mod queued_writer;
mod ranks;
mod relay;
mod restart_policy;
mod round;
#[cfg(test)]
mod round_costs_tests;
pub mod scheduler;
mod sys;
mod threads;
mod watchdog;
mod wording;
mod worker;
mod workers_network;

pub use agent::{
    AgentEvent, AgentHandle, AgentListener, AgentOptions, ElasticAgent, Pulse, RestartTimes,
    RoundRecord, StartedWorker, StartedWorkers,
};
pub use c10d_socket::HostPort;
pub use command_line::{CommandLine, Entrypoint};
pub use environment::{EnvironmentError, WorkerEnvironment};
pub use failure::{
    ErrorFileError, ExitRecord, Failures, ProcessFailure, RootExit, write_error_file,
};
pub use health::HealthCheck;
pub use job_end::EndNotice;
#[cfg(feature = "launcher")]
pub use launcher::{
    Companion, ExitLimits, Launcher, LauncherError, LauncherOptions, LauncherReport, Screen,
    StandardError, StopControl,
};
pub use logs::{
    Destination, FilteredLog, LinePrefix, LogDirectory, LogDirectoryError, LogOptions, RoundLogs,
    StreamMap, StreamMapError, Streams, WorkerLogs, parse_line_filters,
};
pub use output::Console;
pub use preload::PreloadOptions;
pub use progress::ProgressOptions;
#[cfg(feature = "launcher")]
pub use queued_writer::{Next, QueuedWriter, Render};
pub use ranks::{Assignment, RankBlock, RoleInfo, assign_ranks, exchange_ranks};
pub use relay::NodeRelayError;
pub use restart_policy::{RestartBudget, RestartRules};
pub use round::{
    AgentError, AgentOutcome, KeepOptions, Replacement, RoundCause, RoundEnding, RoundPhases,
    StuckWorkers,
};
pub use rustix::process::Signal;
pub use watchdog::WatchdogError;
pub use wording::{local_time_and_age, local_time_text};
pub use worker::{
    AbandonedWorker, ExitKind, GroupPlan, KillSwitch, SignalTarget, StartError, StopReport,
    WorkerExit, WorkerGroup, WorkerOutcome, WorkerPlan,
};
