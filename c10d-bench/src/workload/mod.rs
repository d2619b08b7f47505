//! The workloads of `c10d-bench store`, one a file; `c10d-bench relay` uses some of them.

pub(super) mod durable;
pub(crate) mod etcd;
pub(crate) mod job;
pub(super) mod large;
pub(super) mod ping;
pub(super) mod ranks;
pub(super) mod requests;
pub(super) mod setting;
pub(super) mod throughput;
