//! Tests of the public API over loopback, in one test binary that links once.

mod calls;
mod common;
mod deadlines;
#[cfg(all(unix, feature = "tls"))]
mod descriptors;
mod dials;
mod fault_plan;
mod fault_plans;
mod faults;
#[cfg(all(unix, feature = "tls"))]
#[path = "../../../c10d-store/tests/it/few_descriptors.rs"]
mod few_descriptors;
mod groups;
mod handlers;
mod jobs;
mod liveness;
#[path = "../../../c10d-store/tests/it/log_lines.rs"]
mod log_lines;
mod memory;
mod own_process;
mod panics;
mod peer_death;
mod raw;
mod retries;
#[cfg(feature = "tls")]
mod sealed;
#[cfg(feature = "tls")]
mod secret;
mod shutdown;
mod soak;
mod strangers;
