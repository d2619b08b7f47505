//! The error of a peer that breaks the rules of a session.

/// The peer has broken the rules of a session (docs/spec/wire-extensions.md, section 9.9): it is another program, or
/// has a defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer broke the rules of the session: {what}")]
pub struct Violation {
    what: &'static str,
}

impl Violation {
    pub(crate) const fn new(what: &'static str) -> Self {
        Self { what }
    }
}
