//! Readable Python stacks, where ranks with the same stack are shown once, and the known state of a rank without
//! stacks.
//!
//! Pure. All texts are free of control characters and short, whatever a rank sent.

mod answer;
mod dump;

pub use answer::{ProcessState, RankAnswer, answers_text};
pub use dump::{Frame, StackGroup, Stacks, ThreadStack};
