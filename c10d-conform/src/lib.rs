#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod case;
pub mod cases;
mod column;
mod fence;
mod plan;
mod report;
mod request;
mod rewrite;
mod runner;
mod script;
mod trial;
mod verdict;
mod worker;

pub use case::MalformedCase;
pub use column::{COLUMNS, Column};
pub use report::Report;
pub use runner::{RunError, ServerRun};
pub use verdict::{Bytes, Difference, Expected, Outcome, Verdict};
