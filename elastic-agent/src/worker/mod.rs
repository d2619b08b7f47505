//! The worker processes of this node: start them, notice their ends, stop them.
//!
//! Knows no rendezvous, no restarts and no policy: what a failure means is for the agent to decide.

mod error;
mod exit;
mod group;
mod guardian;
mod hurry;
mod plan;
mod process_group;
pub(crate) mod roll;
mod spawner;
mod streams;
mod waiter;

pub use error::StartError;
pub use exit::{ExitKind, WorkerExit, WorkerOutcome};
pub use group::{AbandonedWorker, StopReport, WorkerGroup};
pub use hurry::Hurry;
pub use plan::{GroupPlan, WorkerPlan};
