//! The messages between the launcher and the membership service of the workers' store, about the launcher's workers.

use std::time::Duration;

use c10d_membership::{
    EndReason, EventNumber, GroupStage, MemberKey, Membership, Message, Reason, Reply,
};
use c10d_socket::{Cancel, Credentials};
use c10d_store::{StoreAddress, StoreError, StoreExt, TcpStore, TcpStoreOptions};
use elastic_rendezvous::{BoardError, RendezvousInfo};

use super::handle::Shared;
use crate::places::{self, Place, ProcessId};
use crate::ranks::RoleInfo;
use crate::round::{AgentError, GroupNews};
use crate::worker::WorkerExit;

/// How long the service may take to answer. In the meantime, deaths of other workers wait.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The key of the group's name in the workers' store.
const NAME: &str = "c10d/membership_group";

/// The service answers a process that is not a member at once.
const POLL_TIMEOUT: Duration = Duration::from_secs(1);

/// The group of a round's workers, and which process each of this node's workers is.
#[derive(Debug)]
pub(super) struct GroupLink {
    name: String,
    store: StoreAddress,
    credentials: Option<Credentials>,
    cancel: Cancel,
    open: Option<Membership>,
    first_size: usize,
    /// Whether the store has had the group.
    is_known: bool,
    /// The last process of each worker, by local rank.
    processes: Vec<ProcessId>,
}

/// Which processes of the group the workers are that start.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupStart<'l> {
    pub(super) name: &'l str,
    /// The number of members that the group had at first.
    pub(super) first_size: usize,
    /// The processes, by local rank.
    pub(super) processes: &'l [ProcessId],
}

/// The name that nodes of release 0.2 give to the group of a round.
fn plain_name(round: &RendezvousInfo, shared: &Shared) -> String {
    format!("{}/{}", shared.handler.run_id(), round.round)
}

/// A name that no group has had.
fn fresh_name(round: &RendezvousInfo, shared: &Shared) -> String {
    format!("{}/{:x}", plain_name(round, shared), fastrand::u64(..))
}

/// Names the group in the workers' store, for workers of nodes that do not keep them and so give them no name: such as
/// torchrun's, and this node beside others. Nodes of release 0.2 give the same name to their workers. `is_cleared`: this node
/// has just cleared the store, so a group of that name belongs to an earlier job. A failure is logged only.
pub(super) fn publish_name(round: &RendezvousInfo, shared: &Shared, is_cleared: bool) {
    let plain = plain_name(round, shared);
    let publish = || -> Result<(), StoreError> {
        let address = round.bootstrap.address();
        let credentials = round.bootstrap.credentials.as_ref();
        let store = open_store(&address, credentials, &shared.stopping)?;
        if !is_cleared {
            return store.compare_set(NAME, b"", plain.as_bytes()).map(drop);
        }
        let name = match Membership::connect(&store, &plain)?.status()? {
            Some(_) => fresh_name(round, shared),
            None => plain,
        };
        store.set(NAME, name.as_bytes())
    };
    if let Err(error) = publish() {
        log::debug!("cannot name the membership group in the workers' store: {error}");
    }
}

fn open_store(
    address: &StoreAddress,
    credentials: Option<&Credentials>,
    cancel: &Cancel,
) -> Result<TcpStore, StoreError> {
    let mut options = TcpStoreOptions::default()
        .with_timeout(TIMEOUT)
        .with_cancel(cancel.clone());
    if let Some(credentials) = credentials {
        options = options.with_credentials(credentials.clone());
    }
    TcpStore::open_at(address, options)
}

impl GroupLink {
    /// Connects to the service of the round's group, writes which place the workers of the node have, for nodes that enter the
    /// round, and numbers the workers. Blocks for up to 10 s.
    ///
    /// # Errors
    /// [`AgentError::NoMembership`] if the store has no such service, or the errors of the exchange of ranks.
    pub(super) fn open(
        round: &RendezvousInfo,
        shared: &Shared,
        place: Place,
        node: &RoleInfo,
    ) -> Result<Self, AgentError> {
        let mut link = Self {
            name: String::new(),
            store: round.bootstrap.address(),
            credentials: round.bootstrap.credentials.clone(),
            cancel: shared.stopping.clone(),
            open: None,
            first_size: place.first_size,
            is_known: false,
            processes: Vec::new(),
        };
        let board = round.board();
        let fresh = fresh_name(round, shared);
        let name = places::group(&board, None, &fresh)?;
        // Only a round whose workers start several times can have a group that has ended.
        if link.has_ended(&name, round)? && !shared.handler.has_store_per_round() {
            link.set_name(places::group(&board, Some(&name), &fresh)?);
        }
        link.processes = places::occupy(&board, round.rank, round.has_entered, &place, node)?;
        Ok(link)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn set_name(&mut self, name: String) {
        self.name = name;
        self.open = None;
    }

    /// Makes this group the group of the link. Returns whether it has ended without finishing.
    fn has_ended(&mut self, name: &str, round: &RendezvousInfo) -> Result<bool, AgentError> {
        self.set_name(name.to_owned());
        match self.ask(Membership::status) {
            Ok(status) => Ok(status.is_some_and(
                |it| matches!(it.stage, GroupStage::Ended(reason) if reason != EndReason::Finished),
            )),
            Err(StoreError::Unsupported { .. }) => {
                let store = round.bootstrap.master.clone();
                Err(AgentError::NoMembership { store })
            }
            Err(error) => Err(BoardError::from(error).into()),
        }
    }

    /// The last start of each worker.
    pub(super) fn start(&self) -> GroupStart<'_> {
        GroupStart {
            name: &self.name,
            first_size: self.first_size,
            processes: &self.processes,
        }
    }

    /// Numbers another process of one worker; returns as [`start`](Self::start).
    pub(super) fn next_start(
        &mut self,
        local_rank: usize,
        round: &RendezvousInfo,
    ) -> Result<GroupStart<'_>, AgentError> {
        let next = places::next_starts(&round.board(), self.first_size, 1)?;
        self.processes[local_rank].start = next.start;
        Ok(self.start())
    }

    /// Says that a worker is dead, and asks how the group is after that.
    pub(super) fn dead(&mut self, exit: &WorkerExit) -> GroupNews {
        let member = self.processes[exit.local_rank].member();
        self.status_after(|group| group.dead(member).map(drop))
    }

    /// Asks how the group is.
    pub(super) fn news(&mut self) -> GroupNews {
        self.status_after(|_| Ok(()))
    }

    /// The workers of this node that the group has evicted, by local rank: not those that have left.
    pub(super) fn evicted(&mut self) -> Vec<usize> {
        let own: Vec<MemberKey> = self.processes.iter().map(|it| it.member()).collect();
        let find = |group: &Membership| {
            let members = group.status()?.map(|status| status.members);
            let members = members.unwrap_or_default();
            let mut evicted = Vec::new();
            for (local_rank, key) in own.iter().enumerate() {
                if members.iter().any(|it| it.member == *key) {
                    continue;
                }
                let poll = Message::Poll {
                    after: EventNumber::NONE,
                    is_leaving: false,
                };
                match group.ask(*key, &poll, POLL_TIMEOUT)? {
                    Reply::Evicted(Reason::Left | Reason::Dead) => {}
                    Reply::Evicted(_) => evicted.push(local_rank),
                    _ => {}
                }
            }
            Ok(evicted)
        };
        self.ask(find).unwrap_or_default()
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
        self.is_known |= matches!(status, Ok(Some(_)));
        match status {
            Err(error) => GroupNews::OutOfReach(error.to_string()),
            Ok(None) if self.is_known => {
                let why = "the workers' store has lost it: was its server restarted?";
                GroupNews::Ended(why.to_owned())
            }
            Ok(None) => GroupNews::IsEmpty,
            Ok(Some(status)) => match status.stage {
                GroupStage::Ended(EndReason::Finished) => GroupNews::Finished,
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
                let store = open_store(&self.store, self.credentials.as_ref(), &self.cancel)?;
                Membership::connect(&store, &self.name)?.with_cancel(&self.cancel)
            }
        };
        let answer = ask(&group);
        self.open = Some(group);
        answer
    }
}
