//! The reasons why a leader writes nothing more.

use c10d_store::journal::JournalError;

use super::layout::{Layout, Leader};

/// Found by a leader whose write etcd refuses.
pub(crate) const OVERWRITTEN: &str = "its head is not what this leader has written";

/// Why a writer can write nothing more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// This process no longer leads. Another process may lead.
    Deposed(Option<Leader>),
    /// The head is not what this leader has written.
    Overwritten,
    /// etcd refuses.
    Refused { code: u64, message: String },
    /// An answer is not one to its request.
    Broken,
}

impl Stopped {
    /// As the journal's error.
    pub(crate) fn into_error(self, layout: &Layout, operation: &'static str) -> JournalError {
        let place = layout.place();
        match self {
            Self::Deposed(leader) => JournalError::Deposed {
                place,
                reason: leader.map_or_else(
                    || "its lease has expired".to_owned(),
                    |leader| format!("{leader} leads now"),
                ),
            },
            Self::Overwritten => layout.damaged(OVERWRITTEN.to_owned()),
            Self::Refused { code, message } => {
                let advice = if message.contains("database space exceeded") {
                    "; compact and defragment etcd, then disarm its NOSPACE alarm"
                } else {
                    ""
                };
                JournalError::Engine {
                    operation,
                    place,
                    source: format!("etcd refuses: {message} (code {code}){advice}").into(),
                }
            }
            Self::Broken => JournalError::Engine {
                operation,
                place,
                source: "etcd's answer is not one to this request".into(),
            },
        }
    }
}
