//! The worker processes of this node: starts them, notices their exits, stops them.
//!
//! Knows no rendezvous and no restarts: the agent decides what a failure means.

mod group;
mod guardian;
mod kill_switch;
mod lifecycle;
mod outcome;
mod plan;
pub(crate) mod process_group;
mod processes;
mod slots;
mod streams;
mod waiter;

pub use self::outcome::{ExitKind, WorkerExit, WorkerOutcome};
pub use self::plan::StartError;
pub use self::slots::{AbandonedWorker, StopReport};
pub use group::WorkerGroup;
pub(crate) use guardian::{Guardian, Remains};
pub use kill_switch::KillSwitch;
pub(crate) use plan::WorkerInput;
pub use plan::{GroupPlan, SignalTarget, WorkerPlan};
pub(crate) use slots::WorkerSlots;
pub(crate) use waiter::wait_for_exit;
