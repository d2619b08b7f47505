//! A node of a group without a thread and a handler: its owner carries out its requests, those of many nodes at a time.
//!
//! It joins one round and stays in it. It has no listeners, notices or workers' store.

use std::sync::Arc;
use std::time::Duration;

use c10d_store::StoreError;

use crate::engine::group::{Ask as GroupAsk, GroupEngine};
use crate::engine::{Ask, Engine, Reply};
use crate::shell::access::Access;
use crate::shell::backend::RendezvousBackend;
use crate::shell::group_operations::KeyRequest;
use crate::shell::group_store::GroupStore;
use crate::shell::stored_state::StoredState;
use crate::values::clock::Now;
use crate::values::error::RendezvousError;
use crate::values::goal::Operation;
use crate::values::membership::Membership;
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;

/// A node whose owner carries out its requests.
#[derive(Debug)]
pub struct GroupNode {
    engine: GroupEngine,
    index: u32,
    group: GroupStore,
    states: StoredState,
    asked: Ask,
}

/// What a node needs next. Times are those of the readings of the clock that its methods got.
#[derive(Debug)]
pub enum Need {
    /// A request whose outcome is passed to [`GroupNode::on_value`]; of [`KeyRequest::AwaitChange`], `None` at `until`.
    Key(KeyRequest, Option<Duration>),
    /// Nothing until then: [`GroupNode::on_value`] with `None`.
    Pause(Duration),
    /// A request that the node [performs](GroupNode::perform) itself, as the holder of the lease.
    Perform,
    /// Nothing: it has its rank, and stays in its round.
    Joined {
        /// Its number, from 0.
        round: i64,
        /// The rank of the node.
        rank: usize,
        /// The number of nodes in the round.
        world_size: usize,
    },
    /// Nothing: it has not joined.
    Failed,
}

impl GroupNode {
    /// A node at the address `addr`; `None` if the store or the settings have no group. Blocks for at most the store's
    /// timeout.
    ///
    /// # Errors
    /// As [`DynamicRendezvous::new`](crate::DynamicRendezvous::new).
    pub fn open(
        backend: Arc<dyn RendezvousBackend>,
        settings: RendezvousSettings,
        addr: &str,
        now: Now,
    ) -> Result<Option<Self>, RendezvousError> {
        settings.check()?;
        let Access::Group(group, index) = Access::open(&*backend, &settings)? else {
            return Ok(None);
        };
        let me = NodeId::new(addr, i64::from(std::process::id()), i64::from(index));
        Ok(Some(Self {
            states: StoredState::new(backend, &settings.run_id),
            engine: GroupEngine::new(me, index, settings, u64::from(index), now),
            index,
            group,
            asked: Ask::Pause {
                until: Duration::MAX,
            },
        }))
    }

    /// Begins to join, for at most until `deadline`.
    pub fn join(&mut self, deadline: Duration, now: Now) {
        self.engine.begin(Operation::Join, deadline, now);
    }

    /// What the node needs next.
    pub fn step(&mut self, now: Now) -> Need {
        self.asked = self.engine.step(now);
        match &mut self.asked {
            Ask::Group(ask) => {
                let until = ask.until_mut().copied();
                match self.group.key_request(self.index, ask) {
                    Some(request) => Need::Key(request, until),
                    None => Need::Perform,
                }
            }
            Ask::Pause { until } => Need::Pause(*until),
            Ask::Report | Ask::ReadNotices | Ask::ReadEntry { .. } => {
                self.engine.on_reply(Reply::Nothing, now);
                self.step(now)
            }
            Ask::Done(Ok(answer)) => match &answer.joined {
                Some(joined) => Need::Joined {
                    round: answer.round,
                    rank: joined.rank,
                    world_size: joined.world_size,
                },
                None => Need::Failed,
            },
            Ask::Done(Err(_)) | Ask::StartAnew => Need::Failed,
            _ => Need::Perform,
        }
    }

    /// Takes the outcome of [`Need::Key`] or [`Need::Pause`].
    pub fn on_value(&mut self, value: Option<Vec<u8>>, now: Now) {
        let reply = match &self.asked {
            Ask::Group(GroupAsk::WriteHeartbeat(_) | GroupAsk::Push(_)) => Reply::Done,
            Ask::Group(GroupAsk::AwaitAnswer { .. } | GroupAsk::AwaitSummary { .. })
                if value.is_none() =>
            {
                Reply::Nothing
            }
            Ask::Group(_) => Reply::Value(value),
            _ => Reply::Nothing,
        };
        self.engine.on_reply(reply, now);
    }

    /// Continues over the connections of another backend of the same job, for requests that block.
    ///
    /// # Errors
    /// As the backend's.
    pub fn move_to(&mut self, backend: Arc<dyn RendezvousBackend>) -> Result<(), RendezvousError> {
        if let Some(group) = backend.group()? {
            self.group = group;
        }
        self.states = self.states.in_backend(backend);
        Ok(())
    }

    /// Carries out the last request itself, and blocks. One without an answer is settled as by a handler: the node gives up
    /// the lease, and the others post their requests again.
    ///
    /// # Errors
    /// As the backend's.
    pub fn perform(&mut self, clock: impl Fn() -> Now) -> Result<(), RendezvousError> {
        match self.try_perform(&clock) {
            Err(RendezvousError::Connection { source, .. })
                if matches!(*source, StoreError::NoReply { .. }) =>
            {
                log::warn!("the holder of the lease gives it up: {source}");
                self.engine.on_outage(clock());
                Ok(())
            }
            result => result,
        }
    }

    fn try_perform(&mut self, clock: &impl Fn() -> Now) -> Result<(), RendezvousError> {
        let left = |until: Duration| until.saturating_sub(clock().monotonic);
        let reply = match &mut self.asked {
            Ask::ReadState => Reply::State(self.states.read()?),
            Ask::CheckState => {
                let token = self.engine.to_write().and_then(|(_, token)| token);
                Reply::IsSame(self.states.backend().is_current(token)?)
            }
            Ask::WriteState => match self.engine.to_write() {
                Some((state, token)) => Reply::Written(self.states.write(state, token)?),
                None => Reply::Nothing,
            },
            Ask::Group(ask) => {
                let timeout = ask.until_mut().map(|until| left(*until));
                let result = self
                    .group
                    .perform(self.index, ask, timeout.unwrap_or_default());
                result.map_err(|error| self.states.failed(error))?
            }
            Ask::Pause { until } => {
                std::thread::sleep(left(*until));
                Reply::Nothing
            }
            _ => Reply::Nothing,
        };
        self.engine.on_reply(reply, clock());
        Ok(())
    }

    /// How its round has changed; `None` before it has joined.
    #[must_use]
    pub fn membership(&self) -> Option<Membership> {
        self.engine.membership()
    }
}
