//! The outcome of a case.

use std::fmt;

use crate::request::{Hex, Requests};

/// The outcome of one case, with the name of the case.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The case's name, which stays the same between versions of the cases.
    pub name: String,
    /// The command that it is about.
    pub operation: String,
    /// The verdict on the server's answer.
    pub verdict: Verdict,
}

/// The verdict on a server's answer, compared with the column's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The server answered byte for byte like the column's server.
    Same,
    /// The server does not have a weakness of PyTorch's, and answered correctly.
    Fixed,
    /// The server answered something else.
    Differs(Difference),
    /// The server did not answer, or did not close the connection, in time.
    Hangs(Difference),
    /// The column's server has no answer: its release lacks the command, or cannot be asked.
    NotAsked {
        /// The reason why not.
        why: String,
    },
    /// The case did not run: no time was left, or no connection could be made.
    NotRun {
        /// The reason why not.
        why: String,
    },
}

/// The difference between a server and its column: the last bytes sent, the expected answer, and the received answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The connection, by its name in the case.
    pub connection: String,
    /// The last bytes that were sent on the connection, in hex and in words.
    pub after: Bytes,
    /// The answer of the column's server.
    pub expected: Expected,
    /// The answer of this server.
    pub got: Bytes,
    /// Whether the server then closed the connection.
    pub is_closed: bool,
}

/// The expected answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// The reply to VALIDATE and PING, which open each connection. Without PING, COMPARE_SET takes its place.
    Handshake(Bytes),
    /// A reply with these bytes.
    Reply(Bytes),
    /// No byte until the reply to the PING (without PING: COMPARE_SET) that this suite sends next.
    NothingMore(Bytes),
    /// No answer for a while.
    Silence,
    /// The end of the connection.
    Close,
}

/// Some bytes of a connection, in a form for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bytes {
    /// The first 32 bytes, in hex.
    pub hex: String,
    /// The meaning of the bytes, if they are requests.
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
    /// Returns whether the server passes the case.
    #[must_use]
    pub fn is_pass(&self) -> bool {
        matches!(self, Self::Same | Self::Fixed | Self::NotAsked { .. })
    }

    /// Returns the name of the variant, for a table.
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

    /// Returns a sentence for a case that did not pass. `who` is the name of the server whose answers are expected.
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
