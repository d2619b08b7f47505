//! The reasons why a launcher could not run a job.

use std::io;

use c10d_store::StoreError;
use c10d_store::journal::JournalError;
use elastic_rendezvous::RendezvousError;

use crate::round::AgentError;

/// The reason why a launcher did not run a job, or could not exit with the result of its workers.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LauncherError {
    /// The options cannot be used. The launcher has not started anything.
    #[error("{0}")]
    Invalid(String),

    /// The program, the script or the directory for logs cannot be used on this node. The node has not joined the
    /// other nodes.
    #[error("{0}")]
    NotReady(String),

    /// The journal of the store that this launcher serves cannot be opened, or has failed. All workers have exited,
    /// and no write is lost that the store has confirmed.
    #[error("{0}")]
    Journal(String),

    /// The rendezvous cannot be opened. The launcher has not started workers.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),

    /// The agent failed; no worker is running.
    #[error("{source}")]
    Agent {
        /// The error of the agent.
        source: Box<AgentError>,
    },

    /// The operating system refused an operation. The launcher has not started workers.
    #[error("{what}: {source}")]
    System {
        /// The action that was attempted, as a phrase.
        what: String,
        /// The error of the operating system.
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

    /// Converts an error of opening the rendezvous. Some of these are mistakes in its parameters.
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
