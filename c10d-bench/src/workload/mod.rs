//! The workloads of `c10d-bench store`, `c10d-bench relay` uses some of them.

pub(super) mod client;
pub(super) mod durable;
pub(crate) mod etcd;
pub(crate) mod job;
pub(super) mod ranks;
pub(super) mod requests;
pub(super) mod setting;
pub(super) mod throughput;
