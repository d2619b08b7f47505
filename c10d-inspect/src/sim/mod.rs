//! Jobs for tests: a model of the store, ranks in PyTorch's order of requests.

mod hostile;
mod large;
mod runs;
mod script;
mod store;
mod survivors;
mod world;

pub(crate) use script::{DEFAULT, Process, Script};
pub(crate) use survivors::{Entry, recorded};
