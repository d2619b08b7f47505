//! Tests of references over real agents on loopback, in one test binary that links once.

mod again;
mod churn;
mod common;
mod destructors;
mod end;
mod faults;
mod late_value;
mod limits;
mod own_process;
mod quiet;
mod references;
mod replaced;
mod strangers;
