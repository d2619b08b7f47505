//! Asks the ranks of a job where they are in their Python code, and which collectives they have entered: for programs
//! that show a job or watch over it, and for launchers.
//!
//! The launcher of a rank's node reads the Python stacks of its workers. Without such a launcher, and for collectives,
//! a rank is asked through PyTorch's debug server: its unix socket on this host, the launcher of its node, or the
//! address that it has published. If a rank on this host shows no stacks, the state of its process is read from /proc.
//!
//! All functions block, and must not be called inside an async runtime.

mod flights;
mod job;
mod launcher;
mod probe;
mod process;
mod reach;
mod recording;
mod route;

pub use job::{Job, JobError, SAMPLE_PATH};
pub use launcher::{Question, answer};
pub use reach::Worker;
pub use recording::{RecordingError, fetch_recording};
