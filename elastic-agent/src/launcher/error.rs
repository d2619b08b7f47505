//! Why a launcher could not run a job.

use std::io;

use c10d_store::StoreError;
use c10d_store::journal::JournalError;
use elastic_rendezvous::RendezvousError;

use crate::round::AgentError;

/// Why a launcher did not run a job, or could not end it as its workers did.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LauncherError {
    /// The options cannot be used. Nothing has started.
    #[error("{0}")]
    Invalid(String),

    /// The program, the script or the directory for logs cannot be used on this node. It has not joined the others.
    #[error("{0}")]
    NotReady(String),

    /// The journal of the store that this launcher serves cannot be opened, or has failed. No worker is running, and
    /// nothing is lost that the store has confirmed.
    #[error("{0}")]
    Journal(String),

    /// The rendezvous cannot be opened. No worker has started.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),

    /// The agent failed; no worker is running.
    #[error("{source}")]
    Agent {
        /// The agent's error.
        source: Box<AgentError>,
    },

    /// The system refused something. Nothing has started.
    #[error("{what}: {source}")]
    System {
        /// The attempted action.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl LauncherError {
    pub(super) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::System {
            what: what.into(),
            source,
        }
    }

    /// An error of opening the rendezvous, of which some are mistakes in its parameters.
    pub(super) fn of_rendezvous(error: RendezvousError) -> Self {
        match error {
            RendezvousError::Parameters(_) | RendezvousError::UnknownBackend { .. } => {
                Self::Invalid(error.to_string())
            }
            error => match journal_error(&error) {
                Some(error) => Self::Journal(error.to_string()),
                None => Self::Rendezvous(error),
            },
        }
    }

    /// An error of the agent.
    pub(super) fn of_agent(source: AgentError) -> Self {
        if let AgentError::Rendezvous(error) = &source
            && let Some(error) = journal_error(error)
        {
            return Self::Journal(error.to_string());
        }
        Self::Agent {
            source: Box::new(source),
        }
    }
}

fn journal_error(error: &RendezvousError) -> Option<&JournalError> {
    match error {
        RendezvousError::Connection { source, .. } => match &**source {
            StoreError::Journal(error) => Some(error),
            _ => None,
        },
        _ => None,
    }
}

c10d_socket::debug_as_display!(LauncherError);
