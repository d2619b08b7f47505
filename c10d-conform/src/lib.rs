#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod case;
mod column;
mod fence;
mod plan;
mod report;
mod request;
mod rewrite;
mod runner;
mod script;
mod trial;
mod verdict;
mod worker;

pub use case::MalformedCase;
pub use column::{COLUMNS, Column};
pub use report::Report;
pub use runner::{RunError, ServerRun};
pub use verdict::{Bytes, Difference, Expected, Outcome, Verdict};

pub mod cases {
    //! The cases, as text: one JSON object a line. The README describes the format.

    /// Cases of requests and replies on one connection.
    pub const SINGLE: &str = include_str!("../cases/single.jsonl");

    /// Cases with steps on several connections.
    pub const SEVERAL: &str = include_str!("../cases/several.jsonl");

    /// Cases of weaknesses of PyTorch's servers. A server passes such a case with PyTorch's answer or with the right
    /// answer.
    pub const QUIRKS: &str = include_str!("../cases/quirks.jsonl");

    /// Cases of limits, hostile lengths, races and orders, which `cases/generate.py` writes.
    pub const GENERATED: &str = include_str!("../cases/generated.jsonl");
}
