//! Clients are judged by what they send to a store of this suite, and by what they print.

mod command;
#[cfg(test)]
mod mistakes;
mod scenario;
mod serve;
mod service;
mod store;

pub use command::ClientRun;
pub use scenario::{Scenario, scenarios};
