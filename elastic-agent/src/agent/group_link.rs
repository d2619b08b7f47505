//! What the launcher tells the membership service of the workers' store about its workers, and hears from it.

use std::time::Duration;

use c10d_socket::{Cancel, Credentials};
use c10d_store::membership::{GroupStage, MemberKey, Membership};
use c10d_store::{StoreAddress, StoreError, StoreExt, TcpStore, TcpStoreOptions};
use elastic_rendezvous::{BoardError, RendezvousInfo};

use super::handle::Shared;
use crate::places::{self, Place};
use crate::round::{AgentError, GroupNews};
use crate::worker::WorkerExit;

/// How long the service may take to answer. Deaths of other workers wait meanwhile.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The group of a round's workers, and which process each of this node's workers is.
#[derive(Debug)]
pub(super) struct GroupLink {
    name: String,
    store: StoreAddress,
    credentials: Option<Credentials>,
    cancel: Cancel,
    open: Option<Membership>,
    first_size: usize,
    /// The number of the start that counts for each worker, by local rank.
    incarnations: Vec<u64>,
    /// A number of each process that no other one of the group ever has, by local rank.
    serials: Vec<u64>,
}

/// Which processes of the group the workers are that start.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupStart<'l> {
    pub(super) name: &'l str,
    /// How many members it had at first.
    pub(super) first_size: usize,
    /// By local rank, as the serials.
    pub(super) incarnations: &'l [u64],
    pub(super) serials: &'l [u64],
}

impl GroupLink {
    /// Connects to the service, and counts a start of all workers of the node. Blocks for up to 10 s.
    ///
    /// # Errors
    /// [`AgentError::NoMembership`] if the store has no such service, else those of the exchange of ranks.
    pub(super) fn open(
        round: &RendezvousInfo,
        shared: &Shared,
        place: Place,
        workers: usize,
    ) -> Result<Self, AgentError> {
        let mut link = Self {
            name: format!("{}/{}", shared.handler.run_id(), round.round),
            store: round.bootstrap.address(),
            credentials: round.bootstrap.credentials.clone(),
            cancel: shared.stopping.clone(),
            open: None,
            first_size: place.first_size,
            incarnations: Vec::new(),
            serials: Vec::new(),
        };
        match link.ask(|group| group.status().map(drop)) {
            Ok(()) => {}
            Err(StoreError::Unsupported { .. }) => {
                let store = round.bootstrap.master.clone();
                return Err(AgentError::NoMembership { store });
            }
            Err(error) => return Err(BoardError::from(error).into()),
        }
        let board = round.board();
        let start = places::next_start(&board, round.rank)?;
        link.incarnations = vec![start; workers];
        // Those of the first processes are their ids.
        let first = match start {
            1 if !round.has_entered => place.ranks.first_rank as u64,
            _ => places::next_serials(&board, link.first_size, workers)?,
        };
        link.serials = (first..).take(workers).collect();
        Ok(link)
    }

    /// The last start of each worker.
    pub(super) fn start(&self) -> GroupStart<'_> {
        GroupStart {
            name: &self.name,
            first_size: self.first_size,
            incarnations: &self.incarnations,
            serials: &self.serials,
        }
    }

    /// Counts a start of one worker; returns as [`start`](Self::start).
    pub(super) fn next_start(
        &mut self,
        local_rank: usize,
        round: &RendezvousInfo,
    ) -> Result<GroupStart<'_>, AgentError> {
        let board = round.board();
        self.incarnations[local_rank] = places::next_start(&board, round.rank)?;
        self.serials[local_rank] = places::next_serials(&board, self.first_size, 1)?;
        Ok(self.start())
    }

    /// Says that a worker is dead, and asks how the group is after that.
    pub(super) fn dead(&mut self, exit: &WorkerExit) -> GroupNews {
        let incarnation = self.incarnations[exit.local_rank];
        let member = MemberKey::new(exit.rank as u64, incarnation);
        self.status_after(|group| group.dead(member).map(drop))
    }

    /// Asks how the group is.
    pub(super) fn news(&mut self) -> GroupNews {
        self.status_after(|_| Ok(()))
    }

    fn status_after(&mut self, say: impl Fn(&Membership) -> Result<(), StoreError>) -> GroupNews {
        let say = |group: &Membership| {
            say(group)?;
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
                let store = TcpStore::open_at(&self.store, options)?;
                store.membership(&self.name)?.with_cancel(&self.cancel)
            }
        };
        let answer = ask(&group);
        self.open = Some(group);
        answer
    }
}
