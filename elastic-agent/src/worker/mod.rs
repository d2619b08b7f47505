//! The worker processes of this node: starts them, notices their exits, stops them.
//!
//! Knows no rendezvous and no restarts: the agent decides what a failure means.

mod error;
mod exit_code;
mod foreground;
mod group;
mod guardian;
mod kill_switch;
mod lifecycle;
mod outcome;
mod plan;
pub(crate) mod process_group;
mod processes;
mod report;
mod slots;
mod spawner;
mod streams;
mod waiter;

pub use error::StartError;
pub use exit_code::ExitKind;
pub use group::WorkerGroup;
pub(crate) use guardian::{Guardian, Remains};
pub use kill_switch::KillSwitch;
pub use outcome::{WorkerExit, WorkerOutcome};
pub(crate) use plan::WorkerInput;
pub use plan::{GroupPlan, SignalTarget, WorkerPlan};
pub use report::{AbandonedWorker, StopReport};
pub(crate) use slots::WorkerSlots;
pub(crate) use waiter::wait_for_exit;
