//! What an agent has for its whole life.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use crossbeam_channel::{Receiver, unbounded};
use elastic_rendezvous::{RendezvousHandler, this_host};
use tempfile::TempDir;

use super::event::Listeners;
use super::forking::Forking;
use super::handle::{Event, Shared};
use super::options::AgentOptions;
use super::rounds::Told;
use crate::failure::ExitRecord;
use crate::logs::LogDirectory;
use crate::round::AgentError;
use crate::temporary;
use crate::workers_network::WorkersNetwork;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) options: AgentOptions,
    pub(super) host: String,
    pub(super) shared: Arc<Shared>,
    pub(super) events: Receiver<Event>,
    pub(super) listeners: Listeners,
    pub(super) logs: LogDirectory,
    /// Where workers report their progress.
    pub(super) progress: Option<TempDir>,
    pub(super) forking: Forking,
    /// The published end of the job, which the other nodes shall read before their store stops.
    pub(super) told: Option<Told>,
    /// The first failure of the job on any node, as far as this node has learned it.
    pub(super) first_failure: Option<ExitRecord>,
    /// Of the current round.
    pub(super) network: WorkersNetwork,
    /// How often this agent has started workers.
    pub(super) generation: u64,
}

impl Node {
    pub(super) fn new(
        options: AgentOptions,
        handler: Arc<dyn RendezvousHandler>,
    ) -> Result<Self, AgentError> {
        options.check()?;
        let needs_store = [
            (options.has_relay, "relay"),
            (options.keep.is_some(), "keep_workers"),
        ];
        let needs_store = needs_store.into_iter().find(|(is_given, _)| *is_given);
        if let Some((_, option)) = needs_store.filter(|_| !handler.has_agent_store()) {
            return Err(AgentError::InvalidOption {
                option,
                reason: "needs a workers' store that an agent serves, not the worker with rank 0",
            });
        }
        let progress = options.progress.as_ref().map(|_| private_directory());
        let progress = progress
            .transpose()
            .map_err(|source| AgentError::Progress { source })?;
        let (sender, events) = unbounded();
        Ok(Self {
            logs: LogDirectory::new(options.logs.clone(), handler.run_id()),
            host: options.host.clone().unwrap_or_else(this_host::full_name),
            options,
            progress,
            shared: Arc::new(Shared::new(handler, sender)),
            events,
            listeners: Listeners::default(),
            forking: Forking::default(),
            told: None,
            first_failure: None,
            network: WorkersNetwork::default(),
            generation: 0,
        })
    }
}

/// A temporary directory that only this user can enter, where files fit.
fn private_directory() -> io::Result<TempDir> {
    temporary::create(|place| {
        let directory = tempfile::Builder::new()
            .prefix("c10d-progress-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(place)?;
        // A full file system may have room for the directory alone.
        let probe = directory.path().join("probe");
        fs::write(&probe, "0")?;
        fs::remove_file(probe)?;
        Ok(directory)
    })
}
