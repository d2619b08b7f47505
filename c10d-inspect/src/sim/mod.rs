//! Jobs for tests: a model of the store, ranks in PyTorch's order of requests.

mod script;
mod store;

pub(crate) use script::{DEFAULT, Script};
