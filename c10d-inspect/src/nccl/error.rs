//! Why an answer of the RAS service says nothing.

/// Why an answer says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclAnswerError {
    /// The answer has another form than that of any known release.
    #[error("this is no answer of NCCL's RAS service: {start}")]
    NotRas {
        /// The first bytes, escaped.
        start: String,
    },
    /// The connection ended within the answer.
    #[error("the answer of NCCL's RAS service is not complete")]
    Incomplete,
}
