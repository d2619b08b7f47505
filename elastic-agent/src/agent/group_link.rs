//! What the launcher tells the membership service of the workers' store about its workers, and hears from it.

use std::time::Duration;

use c10d_socket::{Cancel, Credentials, HostPort};
use c10d_store::membership::{GroupStage, MemberKey, Membership};
use c10d_store::{StoreError, StoreExt, TcpStore, TcpStoreOptions};
use elastic_rendezvous::RendezvousInfo;

use super::handle::Shared;
use crate::incarnation;
use crate::ranks::RanksError;
use crate::round::{AgentError, GroupNews};
use crate::worker::WorkerExit;

/// How long the service may take to answer. Deaths of other workers wait meanwhile.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The group of a round's workers, and which process each of this node's workers is.
#[derive(Debug)]
pub(super) struct GroupLink {
    name: String,
    master: HostPort,
    credentials: Option<Credentials>,
    cancel: Cancel,
    open: Option<Membership>,
    /// The number of the start that counts for each worker, by local rank.
    incarnations: Vec<u64>,
}

impl GroupLink {
    /// Connects to the service, and counts a start of all workers of the node. Blocks for up to 10 s.
    ///
    /// # Errors
    /// [`AgentError::NoMembership`] if the store has no such service, else those of the exchange of ranks.
    pub(super) fn open(
        round: &RendezvousInfo,
        shared: &Shared,
        workers: usize,
    ) -> Result<Self, AgentError> {
        let mut link = Self {
            name: format!("{}/{}", shared.handler.run_id(), round.round),
            master: round.bootstrap.master.clone(),
            credentials: round.bootstrap.credentials.clone(),
            cancel: shared.stopping.clone(),
            open: None,
            incarnations: Vec::new(),
        };
        match link.ask(|group| group.status().map(drop)) {
            Ok(()) => {}
            Err(StoreError::Unsupported { .. }) => {
                return Err(AgentError::NoMembership { store: link.master });
            }
            Err(error) => return Err(RanksError::Store(error).into()),
        }
        link.incarnations = vec![next_start(round)?; workers];
        Ok(link)
    }

    /// The name of the group, and the number of the last start of all workers.
    pub(super) fn first_start(&self) -> (&str, u64) {
        (&self.name, self.incarnations.first().copied().unwrap_or(1))
    }

    /// Counts a start of one worker; returns as [`first_start`](Self::first_start).
    pub(super) fn next_start(
        &mut self,
        local_rank: usize,
        round: &RendezvousInfo,
    ) -> Result<(&str, u64), AgentError> {
        let start = next_start(round)?;
        self.incarnations[local_rank] = start;
        Ok((&self.name, start))
    }

    /// Says that a worker is dead, and asks how the group is after that.
    pub(super) fn dead(&mut self, exit: &WorkerExit) -> GroupNews {
        let incarnation = self.incarnations[exit.local_rank];
        let member = MemberKey::new(exit.rank as u64, incarnation);
        let say = |group: &Membership| {
            group.dead(member)?;
            group.status()
        };
        // The connection may have been lost since the last death.
        let status = self.ask(say).or_else(|_| {
            self.open = None;
            self.ask(say)
        });
        match status {
            Err(error) => GroupNews::OutOfReach(error.to_string()),
            Ok(None) => GroupNews::IsEmpty,
            Ok(Some(status)) => match status.stage {
                GroupStage::Ended(reason) => GroupNews::Ended(reason.to_string()),
                GroupStage::Forming if status.members.is_empty() => GroupNews::IsEmpty,
                _ => GroupNews::GoesOn,
            },
        }
    }

    fn ask<T>(
        &mut self,
        ask: impl Fn(&Membership) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let group = match self.open.take() {
            Some(group) => group,
            None => {
                let mut options = TcpStoreOptions::default().with_timeout(TIMEOUT);
                if let Some(credentials) = &self.credentials {
                    options = options.with_credentials(credentials.clone());
                }
                let (host, port) = (self.master.host(), self.master.port());
                let store = TcpStore::open(host, port, options)?;
                store.membership(&self.name)?.with_cancel(&self.cancel)
            }
        };
        let answer = ask(&group);
        self.open = Some(group);
        answer
    }
}

fn next_start(round: &RendezvousInfo) -> Result<u64, AgentError> {
    let start = incarnation::next(&*round.store, round.rank);
    Ok(start.map_err(RanksError::Store)?)
}
