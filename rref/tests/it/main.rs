//! Tests of references over real agents on loopback, in one test binary that links once.

mod again;
mod async_functions;
mod churn;
mod common;
mod confirmation;
mod destructors;
mod earlier;
mod end;
#[expect(
    dead_code,
    reason = "rpc-agent's tests need a part of it that these do not"
)]
#[path = "../../../rpc-agent/tests/it/fault_plan.rs"]
mod fault_plan;
mod faults;
mod late_value;
mod limits;
mod losses;
mod memory;
#[expect(
    dead_code,
    reason = "rpc-agent's tests need a part of it that these do not"
)]
#[path = "../../../rpc-agent/tests/it/own_process.rs"]
mod own_process;
mod panics;
mod quiet;
mod references;
mod replaced;
mod strangers;
