//! Python stacks, made readable, and ranks with the same stack shown once; and what is known about a rank that shows
//! none.
//!
//! Pure. All texts are free of control characters and short, whatever a rank sent.

mod answer;
mod answers;
mod dump;

pub use answer::{ProcessState, RankAnswer};
pub use answers::answers_text;
pub use dump::{Frame, StackGroup, Stacks, ThreadStack};
