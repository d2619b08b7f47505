//! The cases, as text: one JSON object a line. The README describes the format.

/// Requests and replies on one connection.
pub const SINGLE: &str = include_str!("../cases/single.jsonl");

/// Steps on several connections.
pub const SEVERAL: &str = include_str!("../cases/several.jsonl");

/// Weaknesses of PyTorch's servers. A server passes such a case with PyTorch's answer or with the right one.
pub const QUIRKS: &str = include_str!("../cases/quirks.jsonl");

/// Limits, hostile lengths, races and orders, which `cases/generate.py` writes.
pub const GENERATED: &str = include_str!("../cases/generated.jsonl");
