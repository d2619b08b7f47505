//! Errors that end a run.

use std::error::Error;
use std::io;

use crate::rival::Rival;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CompareError {
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },

    /// A rival's server or client could not be set up.
    #[error("{rival}: {what}: {source}")]
    Setup {
        rival: Rival,
        what: &'static str,
        source: Box<dyn Error + Send + Sync>,
    },

    #[error("{rival}: a call failed: {source}")]
    Call {
        rival: Rival,
        source: Box<dyn Error + Send + Sync>,
    },

    #[error("{rival}: wrong answer: {detail}")]
    WrongAnswer { rival: Rival, detail: String },

    #[error("{rival}: calls did not complete within {waited_ms} ms, expected {expected_ms} ms")]
    Stalled {
        rival: Rival,
        expected_ms: u128,
        waited_ms: u128,
    },
}

impl CompareError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    pub(crate) fn setup<E: Into<Box<dyn Error + Send + Sync>>>(
        rival: Rival,
        what: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Setup {
            rival,
            what,
            source: source.into(),
        }
    }

    pub(crate) fn call<E: Into<Box<dyn Error + Send + Sync>>>(
        rival: Rival,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Call {
            rival,
            source: source.into(),
        }
    }
}
