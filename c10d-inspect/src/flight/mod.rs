//! Finds the collective that each rank is in, and the first collective at which ranks differ, from PyTorch's
//! flight recorder.
//!
//! Pure: a recording is parsed from the JSON that a rank's debug server returned, times are the ranks' own.
//! All texts are free of control characters, and short, whatever a rank sent.

mod absent;
mod compare;
mod generation;
mod members;
mod recording;
mod report;

pub use generation::compare_flights;
pub use recording::{Collective, FlightError, FlightRecording};
pub use report::{FlightFinding, FlightFindingKind, FlightRank, FlightReport, GroupProgress};

#[cfg(test)]
mod tests;
