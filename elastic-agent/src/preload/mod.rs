//! Workers that are forked from a process that has imported their modules already (`c10d run --preload`).
//!
//! One *template* for each agent, an interpreter, imports the modules while the node waits in the rendezvous. A start
//! of workers then costs a fork of each instead of its imports. The template's side is `bootstrap.py`.
//!
//! This module has no notion of rounds, ranks or restarts, and does not run workers: it hands [`ForkedWorkers`],
//! which wait at their gate, to [`worker`](crate::worker). That module starts workers without a template whenever no
//! forked workers are available.

#[cfg(target_os = "linux")]
mod forks;
#[cfg(target_os = "linux")]
mod keeper;
#[cfg(target_os = "linux")]
mod life;
mod options;
#[cfg(target_os = "linux")]
mod packet;
#[cfg(target_os = "linux")]
mod process;
#[cfg(not(target_os = "linux"))]
mod stub;

#[cfg(target_os = "linux")]
pub(crate) use self::forks::ForkedWorkers;
#[cfg(not(target_os = "linux"))]
pub(crate) use self::stub::{ForkedWorkers, Preloader};
#[cfg(target_os = "linux")]
pub(crate) use keeper::Preloader;
pub use options::PreloadOptions;
pub(crate) use options::{NotForked, WorkerStart};
