#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod announced;
mod cause;
mod explain;
pub mod flight;
mod hang;
#[cfg(feature = "http")]
pub mod http;
mod identity;
mod index;
mod job;
mod keys;
mod launched;
mod members;
pub mod nccl;
mod nccl_names;
mod network;
mod parts;
mod progress;
mod ranks;
mod report;
pub mod report_text;
#[cfg(test)]
#[allow(dead_code, reason = "further tests use all of it")]
mod sim;
pub mod stacks;
mod symptom;
mod text;
mod translate;
mod why;
#[cfg(feature = "http")]
pub mod workers;
mod workers_stores;

pub use announced::{
    AnnouncedCause, AnnouncedMeeting, AnnouncedNode, AnnouncedProcess, AnnouncedSample,
    AnnouncedWorker, UnacknowledgedData, WorkerEnd,
};
pub use cause::{Exit, KeyWait, RootCause, root_cause};
pub use explain::explain;
pub use hang::local_hang_report;
pub use report::{
    Finding, FindingKind, Group, MembershipReport, NodeReport, Process, RankReport, RankSet,
    RankState, Report, ReportState, Sureness, WaitFor, WorkersStore,
};
pub use symptom::{is_symptom, lost_peer};
pub use translate::{published_ranks, translate};
