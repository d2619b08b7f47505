//! Explains why a job makes no progress, from the launchers' observations of its workers: stacks, states and CPU time.
//!
//! Pure. [`judge`] is a function from the evidence about all ranks to a verdict. Text of a worker, such as the name of
//! a file or a function, is printed, but is never evidence about other ranks.

mod activity;
mod call;
mod evidence;
mod judge;
mod network;
mod place;
mod rules;
mod words;

pub(crate) use evidence::{Evidence, RankEvidence, Seen, StoreWait};
pub use judge::local_hang_report;
pub(crate) use judge::{Verdict, judge};

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
