//! The worker processes of this node: starts them, notices their exits, stops them.
//!
//! Knows no rendezvous and no restarts: the agent decides what a failure means.

mod group;
mod guardian;
mod lifecycle;
mod outcome;
mod plan;
pub(crate) mod process_group;
mod processes;
mod slots;
mod streams;

pub use group::{AbandonedWorker, StopReport, WorkerGroup};
pub(crate) use guardian::{Guardian, Remains};
pub use outcome::{ExitKind, WorkerExit, WorkerOutcome};
pub(crate) use plan::WorkerInput;
pub use plan::{GroupPlan, SignalTarget, StartError, WorkerPlan};
pub use process_group::KillSwitch;
pub(crate) use processes::wait_for_exit;
pub(crate) use slots::WorkerSlots;
