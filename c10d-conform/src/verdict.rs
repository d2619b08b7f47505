//! What came of a case.

use std::fmt;

use crate::request::{Hex, Requests};

/// What came of one case, and whose it is.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The case's name, which stays the same between versions of the cases.
    pub name: String,
    /// The command that it is about.
    pub operation: String,
    /// What the server did.
    pub verdict: Verdict,
}

/// How the server compares with the column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It answered byte for byte as the column's server.
    Same,
    /// It does not have a weakness of PyTorch's, and answered right.
    Fixed,
    /// It answered something else.
    Differs(Difference),
    /// It did not answer, or did not close, in time.
    Hangs(Difference),
    /// The column's server has no answer: its release lacks the command, or cannot be asked.
    NotAsked {
        /// Why not.
        why: String,
    },
    /// The case did not run: no time was left, or no connection could be made.
    NotRun {
        /// Why not.
        why: String,
    },
}

/// What was sent, what should have followed, and what did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The connection, by its name in the case.
    pub connection: String,
    /// The last that was sent on it, in hex and in words.
    pub after: Bytes,
    /// What the column's server does.
    pub expected: Expected,
    /// What this server sent.
    pub got: Bytes,
    /// It then closed the connection.
    pub is_closed: bool,
}

/// What should have followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// The reply to VALIDATE and PING (without PING: COMPARE_SET), with which a connection opens.
    Handshake(Bytes),
    /// These bytes.
    Reply(Bytes),
    /// No byte until the reply to the PING (without PING: COMPARE_SET) that this suite sends next.
    NothingMore(Bytes),
    /// Nothing, for a while.
    Silence,
    /// The end of the connection.
    Close,
}

/// Bytes of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bytes {
    /// The first 32, in hex.
    pub hex: String,
    /// Their meaning, if they are requests.
    pub text: String,
}

impl Bytes {
    pub(crate) fn of_reply(bytes: &[u8]) -> Self {
        Self {
            hex: Hex(bytes).to_string(),
            text: String::new(),
        }
    }

    pub(crate) fn of_requests(bytes: &[u8]) -> Self {
        Self {
            hex: Hex(bytes).to_string(),
            text: Requests::of(bytes).to_string(),
        }
    }
}

impl Verdict {
    /// Whether the server passes.
    #[must_use]
    pub fn is_pass(&self) -> bool {
        matches!(self, Self::Same | Self::Fixed | Self::NotAsked { .. })
    }

    /// The name of the kind, for a table.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Fixed => "fixed",
            Self::Differs(_) => "differs",
            Self::Hangs(_) => "hangs",
            Self::NotAsked { .. } => "not asked",
            Self::NotRun { .. } => "not run",
        }
    }

    /// A sentence for a case that did not pass. `who` is whose answers are expected.
    #[must_use]
    pub fn sentence(&self, who: &str) -> String {
        match self {
            Self::Same | Self::Fixed => String::new(),
            Self::NotAsked { why } | Self::NotRun { why } => why.clone(),
            Self::Differs(difference) | Self::Hangs(difference) => {
                let Difference {
                    connection,
                    after,
                    expected,
                    got,
                    is_closed,
                } = difference;
                let after = match expected {
                    Expected::Handshake(_) => "the handshake",
                    _ => &after.text,
                };
                let wanted = match expected {
                    Expected::Handshake(bytes) | Expected::Reply(bytes) => {
                        format!("sends {bytes}")
                    }
                    Expected::NothingMore(bytes) => {
                        format!("sends nothing more and answers the next request, {bytes}")
                    }
                    Expected::Silence => "waits for the rest of the request".to_owned(),
                    Expected::Close => "closes the connection".to_owned(),
                };
                let ended = match (is_closed, matches!(self, Self::Hangs(_))) {
                    (true, _) => ", then closed the connection",
                    (false, true) => ", then nothing in time",
                    (false, false) => "",
                };
                format!(
                    "after {after} on connection {connection}, {who} {wanted}; this server sent {got}{ended}"
                )
            }
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.hex)
    }
}
