//! What every rendezvous offers, whatever keeps its state.

use std::fmt;
use std::fmt::Debug;
use std::sync::Arc;

use c10d_socket::HostPort;
use c10d_store::Store;

use crate::error::RendezvousError;
use crate::node::NodeId;
use crate::ranks_report::RanksReport;
use crate::recorded_event::RecordedEvent;
use crate::report::{LeftNode, LostNode, WaitReport};

/// One node's part in a rendezvous.
///
/// All methods may be called from any thread. The contract is PyTorch's `RendezvousHandler`
/// (`torch/distributed/elastic/rendezvous/api.py`), with what a supervisor needs besides: to be told
/// of changes, to give up a join, to leave without ending the job for the others.
pub trait RendezvousHandler: Debug + Send + Sync {
    /// The name of the backend: `c10d`, `static`.
    fn backend(&self) -> &str;

    /// Whether the workers' store is a server that agents keep alive, so that no worker need host it.
    fn uses_agent_store(&self) -> bool;

    /// Leaves the present round if this node is in it, and joins the next one. Blocks until that is
    /// complete, for at most the join timeout.
    ///
    /// # Errors
    /// See [`RendezvousError`]; [`RendezvousError::Interrupted`] after [`interrupt`](Self::interrupt).
    fn next_rendezvous(&self) -> Result<RendezvousInfo, RendezvousError>;

    /// Whether the rendezvous is closed, asked of the store.
    ///
    /// # Errors
    /// When the store fails.
    fn is_closed(&self) -> Result<bool, RendezvousError>;

    /// Closes the rendezvous: there will be no more rounds, for any node.
    ///
    /// # Errors
    /// When the store fails or it takes longer than the close timeout.
    fn set_closed(&self) -> Result<(), RendezvousError>;

    /// How many nodes wait for the next round, spares not counted. At most a second old.
    ///
    /// # Errors
    /// When the store has failed.
    fn num_nodes_waiting(&self) -> Result<usize, RendezvousError> {
        Ok(self.membership()?.waiting.len())
    }

    /// What has become of the round that this node is in. Never blocks; at most a second old (nodes
    /// that died without a word are noticed when they have been silent for too long).
    ///
    /// # Errors
    /// When the store has failed.
    fn membership(&self) -> Result<Membership, RendezvousError>;

    /// Adds a listener, which a thread of the handler calls with each [`RendezvousEvent`] from now on. It
    /// must not block and not call the handler.
    fn add_listener(&self, listener: Listener);

    /// Makes a [`next_rendezvous`](Self::next_rendezvous) that is under way in another thread leave
    /// the rendezvous and return [`RendezvousError::Interrupted`], and later ones return it at once.
    fn interrupt(&self);

    /// Takes this node off every list, without closing the rendezvous: the others go on.
    ///
    /// # Errors
    /// When the store fails.
    fn leave(&self) -> Result<(), RendezvousError>;

    /// The job.
    fn run_id(&self) -> &str;

    /// Ends the handler: closes the rendezvous and stops giving signs of life. Whether the closing
    /// succeeded; the log says why not. Blocks for at most the close timeout.
    fn shutdown(&self) -> bool;
}

/// Is told what happens in a rendezvous.
pub type Listener = Arc<dyn Fn(&RendezvousEvent<'_>) + Send + Sync>;

/// Something that happened in a rendezvous.
#[derive(Debug)]
#[non_exhaustive]
pub enum RendezvousEvent<'e> {
    /// A join goes on waiting: about once a second, and when somebody comes or goes.
    Waiting(&'e WaitReport),
    /// A static rendezvous goes on waiting: about once a second, and when another node has joined.
    WaitingForRanks(&'e RanksReport),
    /// A node was taken for dead, by this node or another: it had written no heartbeat.
    NodeLost(&'e LostNode),
    /// [`RendezvousHandler::membership`] may have something new.
    MembershipChanged,
    /// A node of a dynamic rendezvous has made a step that PyTorch's nodes record.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use c10d_store::{HashStore, Store};
    /// use elastic_rendezvous::{
    ///     C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, RecordedEvent, RendezvousEvent,
    ///     RendezvousHandler, RendezvousSettings,
    /// };
    ///
    /// # fn main() -> Result<(), elastic_rendezvous::RendezvousError> {
    /// let store: Arc<dyn Store> = Arc::new(HashStore::new());
    /// let node = DynamicRendezvous::new(
    ///     Arc::new(C10dBackend::new(Arc::clone(&store), "job")?),
    ///     store,
    ///     RendezvousSettings::new("job", 1, 1)?,
    ///     DynamicRendezvousOptions::new().with_local_addr("127.0.0.1"),
    /// )?;
    /// let events: Arc<Mutex<Vec<RecordedEvent>>> = Arc::default();
    /// let sink = Arc::clone(&events);
    /// node.add_listener(Arc::new(move |event: &RendezvousEvent<'_>| {
    ///     if let RendezvousEvent::Recorded(event) = event {
    ///         sink.lock().expect("no panic").push((*event).clone());
    ///     }
    /// }));
    /// node.next_rendezvous()?;
    ///
    /// let events = events.lock().expect("no panic");
    /// let joined = events.last().expect("an event");
    /// assert_eq!((joined.node_state.as_str(), joined.rank), ("RUNNING", Some(0)));
    /// assert!(joined.message.ends_with("as rank 0 in a world of size 1."));
    /// # Ok(())
    /// # }
    /// ```
    Recorded(&'e RecordedEvent),
}

/// A complete round, as one of its nodes sees it.
#[derive(Clone)]
#[non_exhaustive]
pub struct RendezvousInfo {
    /// The number of the round.
    pub round: i64,
    /// The part of the rendezvous' store that belongs to this round.
    pub store: Arc<dyn Store>,
    /// This node's rank, from 0.
    pub rank: usize,
    /// The number of nodes.
    pub world_size: usize,
    /// Where the workers find their store.
    pub bootstrap: BootstrapInfo,
}

impl Debug for RendezvousInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RendezvousInfo")
            .field("round", &self.round)
            .field("store", &self.store.label())
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("bootstrap", &self.bootstrap)
            .finish()
    }
}

impl RendezvousInfo {
    /// A round by its parts, for handlers of other crates.
    #[must_use]
    pub fn new(
        round: i64,
        store: Arc<dyn Store>,
        rank: usize,
        world_size: usize,
        bootstrap: BootstrapInfo,
    ) -> Self {
        Self {
            round,
            store,
            rank,
            world_size,
            bootstrap,
        }
    }
}

/// Where the workers of a round find their store: what they get as MASTER_ADDR and MASTER_PORT.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BootstrapInfo {
    /// Host and port.
    pub master: HostPort,
    /// Whether an agent serves there already; otherwise the worker with rank 0 will.
    pub is_agent_store: bool,
    /// Whether the store holds nothing but what workers have put there, so that it may be emptied
    /// before they start again.
    pub is_workers_own: bool,
}

impl BootstrapInfo {
    /// An address for the workers, by its parts.
    #[must_use]
    pub fn new(master: HostPort, is_agent_store: bool, is_workers_own: bool) -> Self {
        Self {
            master,
            is_agent_store,
            is_workers_own,
        }
    }
}

impl Membership {
    /// How many members are no longer in the round, lost or left.
    #[must_use]
    pub fn departed(&self) -> usize {
        self.lost.len() + self.left.len()
    }
}

/// What has become of the round that a node is in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Membership {
    /// The nodes that wait for the next round; none while this one is full, as the next would have no
    /// room for them either.
    pub waiting: Vec<NodeId>,
    /// Members that were taken for dead, by this node or another: they had written no heartbeat.
    pub lost: Vec<LostNode>,
    /// Members that have left the round by themselves, to restart or for good.
    pub left: Vec<LeftNode>,
    /// Whether this node is no longer in its round: the others took it for dead, or have gone on.
    pub is_evicted: bool,
    /// Whether the rendezvous is closed.
    pub is_closed: bool,
}
