//! The interface of all kinds of rendezvous.

use std::fmt::{self, Debug};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use c10d_socket::HostPort;
use c10d_store::{Credentials, Store, StoreAddress, StoreError};

use crate::shell::board::RoundBoard;
use crate::values::error::RendezvousError;
use crate::values::goal::Entry;
use crate::values::node::NodeId;
use crate::values::ranks_report::RanksReport;
use crate::values::recorded_event::RecordedEvent;
use crate::values::report::{LostNode, Membership, WaitReport};
use crate::values::store_access::StoreRoute;

/// A node of a rendezvous, which joins rounds and leaves them.
///
/// All methods can be called from any thread. Extends PyTorch's `RendezvousHandler`
/// (`torch/distributed/elastic/rendezvous/api.py`) by listeners, interruptible joins, and leaving without
/// closing the rendezvous.
///
/// A handler runs one call at a time. A call waits for the one in progress, which can be a join of up to the join
/// timeout; [`interrupt`](Self::interrupt) stops a join. The stated blocking times do not include that wait, nor the
/// last store call, which a deadline does not cut short.
///
/// ```
/// use elastic_rendezvous::{RendezvousParameters, create_handler};
///
/// let parameters = RendezvousParameters::new("c10d", "127.0.0.1:0", "job-7", 1, 1)?;
/// let handler = create_handler(&parameters)?;
/// let round = handler.next_rendezvous()?;
/// assert_eq!((round.rank, round.world_size), (0, 1));
/// handler.shutdown();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait RendezvousHandler: Debug + Send + Sync {
    /// The name of the backend: `c10d`, `static`.
    fn backend(&self) -> &str;

    /// Whether an agent serves the workers' store; otherwise the worker with rank 0 does.
    fn has_agent_store(&self) -> bool;

    /// Whether keys of an earlier round are out of sight in [`RendezvousInfo::store`]; otherwise all rounds have one
    /// store.
    fn has_store_per_round(&self) -> bool {
        true
    }

    /// Leaves the current round if this node is a member, and joins the next one.
    ///
    /// Blocks until the next round is complete, for at most the join timeout, and then for at most the
    /// store's timeout until the workers' store is known. A spare node waits without a limit until it is
    /// needed or the rendezvous is closed.
    ///
    /// # Errors
    /// [`RendezvousError::Timeout`] or [`RendezvousError::RanksMissing`] when too few nodes join,
    /// [`RendezvousError::NoBootstrap`] when the workers' store is not published,
    /// [`RendezvousError::Closed`] and, for a spare, [`RendezvousError::GracefulExit`] when the rendezvous
    /// is closed, [`RendezvousError::Interrupted`] after [`interrupt`](Self::interrupt),
    /// [`RendezvousError::ShutDown`] after [`shutdown`](Self::shutdown), and the errors of the store.
    fn next_rendezvous(&self) -> Result<RendezvousInfo, RendezvousError>;

    /// Joins like [`next_rendezvous`](Self::next_rendezvous), but also enters a running round that has a free place, if
    /// its members [have opened it](crate::open_round).
    ///
    /// The node waits as a spare until the round is open, for at most 60 s after it has first seen a round that is not
    /// open. Only a dynamic rendezvous of up to 32 nodes has such rounds.
    ///
    /// # Errors
    /// The errors of [`next_rendezvous`](Self::next_rendezvous).
    fn enter_rendezvous(&self) -> Result<RendezvousInfo, RendezvousError> {
        self.next_rendezvous()
    }

    /// Reads from the store whether the rendezvous is closed. Blocks for at most the store's timeout.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`], [`RendezvousError::CorruptState`] or
    /// [`RendezvousError::ShutDown`].
    fn is_closed(&self) -> Result<bool, RendezvousError>;

    /// Closes the rendezvous for all nodes: there are no more rounds. Blocks for at most the close timeout.
    ///
    /// # Errors
    /// The errors of [`is_closed`](Self::is_closed), and [`RendezvousError::OperationTimeout`] after the close timeout.
    fn set_closed(&self) -> Result<(), RendezvousError>;

    /// Returns the number of nodes that wait for the next round, without spares; in a [group](crate::GroupStore) at
    /// most 16. Never blocks; the number is at most one second old.
    ///
    /// # Errors
    /// The errors of [`membership`](Self::membership).
    fn num_nodes_waiting(&self) -> Result<usize, RendezvousError> {
        Ok(self.membership()?.waiting.len())
    }

    /// Returns how the round of this node has changed since it joined. Never blocks; the result is at most one second
    /// old, but dead nodes are detected only after interval x attempts
    /// ([`dead_after`](crate::RendezvousSettings::dead_after)).
    ///
    /// # Errors
    /// [`RendezvousError::MembershipUnknown`] when the last access to the store failed.
    fn membership(&self) -> Result<Membership, RendezvousError>;

    /// Returns how long a node without restarts left waits for a report that its workers failed because another node
    /// was lost; `None` if the round needs all its nodes, so that the other nodes cannot continue.
    fn loss_wait(&self) -> Option<Duration> {
        None
    }

    /// When the last request began that has shown that all other members of this node's round are connected to the store,
    /// so that none of them was lost before. `None` if the store has shown nothing like that. Never blocks.
    fn members_connected_at(&self) -> Option<Instant> {
        None
    }

    /// The id of this node in [`Membership`]; `None` if the backend has no memberships.
    fn node_id(&self) -> Option<NodeId> {
        None
    }

    /// Adds a listener, which a thread of the handler calls with each later [`RendezvousEvent`]. It must not
    /// block or call the handler.
    fn add_listener(&self, listener: Listener);

    /// Makes a [`next_rendezvous`](Self::next_rendezvous) in another thread leave the rendezvous and fail
    /// with [`RendezvousError::Interrupted`]; later calls fail at once. Never blocks.
    fn interrupt(&self);

    /// Removes this node from the rendezvous without closing it, so that the other nodes continue. Blocks for
    /// at most the close timeout.
    ///
    /// # Errors
    /// The errors of [`set_closed`](Self::set_closed).
    fn leave(&self) -> Result<(), RendezvousError>;

    /// Leaves the current round of this node before [`next_rendezvous`](Self::next_rendezvous). A node uses this if it
    /// has work to do in between, and the other nodes shall not wait for that work. Blocks for at most the join
    /// timeout.
    ///
    /// # Errors
    /// The errors of [`set_closed`](Self::set_closed).
    fn exit_round(&self) -> Result<(), RendezvousError> {
        Ok(())
    }

    /// Compares with the other nodes of the job whether they keep the workers that survive another worker. Before each
    /// [`next_rendezvous`](Self::next_rendezvous), or if all rounds have [one store](Self::has_store_per_round), after the
    /// first. Blocks for at most the store's timeout; if nodes that differ have left the job, also for as long as a node may
    /// be silent.
    ///
    /// # Errors
    /// [`RendezvousError::KeepingDiffers`] if the nodes disagree about keeping workers,
    /// [`RendezvousError::Interrupted`] after an interrupt, or an error of the store.
    fn agree_on_keeping(&self, _keeps: bool) -> Result<(), RendezvousError> {
        Ok(())
    }

    /// Tells the other nodes why this one does not join at present, for their reports; `None` takes it back. Spares
    /// take its place without waiting for it. Blocks for at most the store's timeout, four times.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails.
    fn set_not_joining(&self, _why: Option<&str>) -> Result<(), RendezvousError> {
        Ok(())
    }

    /// The boards of the last two rounds, for a node that is in none of them. Blocks for at most the store's timeout.
    ///
    /// # Errors
    /// The errors of [`is_closed`](Self::is_closed).
    fn last_boards(&self) -> Result<Vec<RoundBoard>, RendezvousError> {
        Ok(Vec::new())
    }

    /// Returns how long this node keeps the store that it hosts open for nodes that have not read yet why the job is
    /// over;
    /// `None` if it hosts no store.
    fn keeps_store_for(&self) -> Option<Duration> {
        None
    }

    /// Stops all requests of this node, heartbeats and waits for changes included, because the job is over. Afterwards
    /// the loss of the store is not reported. Blocks for at most the store's timeout.
    fn detach(&self) {}

    /// Removes the values that the members of an earlier round have written for each other. A server of PyTorch keeps them. Blocks for at
    /// most the store's timeout, three times.
    ///
    /// # Errors
    /// [`RendezvousError::Connection`] when the store fails.
    fn forget_round(&self, _round: i64) -> Result<(), RendezvousError> {
        Ok(())
    }

    /// The run id of the job.
    fn run_id(&self) -> &str;

    /// Closes the rendezvous, and stops heartbeats and the handler. Returns whether closing succeeded; a
    /// failure is logged. Blocks for at most the close timeout, and for 3 s more while other nodes use a store
    /// that this process hosts.
    fn shutdown(&self) -> bool;
}

/// A callback for the events of a rendezvous.
pub type Listener = Arc<dyn Fn(&RendezvousEvent<'_>) + Send + Sync>;

/// An event that a handler reports to its [listener](Listener) while it runs.
#[derive(Debug)]
#[non_exhaustive]
pub enum RendezvousEvent<'e> {
    /// A join is waiting: about once a second, and when nodes join or leave. Every 10 s with more than 32
    /// nodes. In a [group](crate::GroupStore) after 3 s, every 10 s and at the join timeout.
    Waiting(&'e WaitReport),
    /// A static rendezvous is waiting: about once a second, and when another node has joined.
    WaitingForRanks(&'e RanksReport),
    /// This node or another has dropped a node as dead, because it wrote no heartbeat.
    NodeLost(&'e LostNode),
    /// The result of [`RendezvousHandler::membership`] may have changed.
    MembershipChanged,
    /// This node of a dynamic rendezvous has made a step that PyTorch's nodes record.
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

/// A complete round, as seen by one of its members.
#[derive(Clone)]
#[non_exhaustive]
pub struct RendezvousInfo {
    /// The number of the round.
    pub round: i64,
    /// The rendezvous' store with the prefix of this round.
    pub store: Arc<dyn Store>,
    /// This node's rank, from 0.
    pub rank: usize,
    /// The number of nodes.
    pub world_size: usize,
    /// The address of the workers' store.
    pub bootstrap: BootstrapInfo,
    /// The route of this node to the rendezvous' store.
    pub route: StoreRoute,
    /// Whether this node [entered](RendezvousHandler::enter_rendezvous) the round while it was running already. The
    /// node may then have the rank of a lost node, and some ranks below the number of nodes may be free.
    pub has_entered: bool,
    /// Whether a member of the last round that this node joined is not in this one, because it was lost or has left. In a
    /// [group](crate::GroupStore), only if this round has fewer nodes.
    pub has_lost_members: bool,
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
    /// Creates a round from its parts, for handlers in other crates.
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
            route: StoreRoute::default(),
            has_entered: false,
            has_lost_members: false,
        }
    }

    /// The board of the round, on which its members write for each other.
    #[must_use]
    pub fn board(&self) -> RoundBoard {
        RoundBoard::new(Arc::clone(&self.store))
    }
}

/// The address of the workers' store: their MASTER_ADDR and MASTER_PORT.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BootstrapInfo {
    /// The host and port of the store, as the node with rank 0 has published them: an address, if that is a node of this
    /// release.
    pub master: HostPort,
    /// The host name of the node with rank 0, which its certificate has; `None` if that node has published none, as
    /// is the case with nodes of PyTorch and of earlier releases.
    pub master_name: Option<String>,
    /// Whether the rendezvous' store is the workers' too, so that this node reaches it as [`StoreRoute`] says.
    pub is_rendezvous_store: bool,
    /// Whether an agent already serves the store; otherwise the worker with rank 0 will.
    pub is_agent_store: bool,
    /// Whether the store holds only data of workers and of the rendezvous, so that the workers' can be removed before
    /// they restart.
    pub is_workers_own: bool,
    /// The credentials that clients of the store must have, unless they are processes of its user on its machine;
    /// `None` for a store without protection.
    pub credentials: Option<Credentials>,
    /// The key of the rendezvous' state, which distinguishes the rendezvous' store from a separate store of the
    /// workers.
    pub(crate) state_key: Option<String>,
    pub(crate) at_hand: AtHand,
    /// The directory in which the store is found, if it has no fixed place.
    pub(crate) followed: Option<StoreAddress>,
}

/// A client of the store that this process has anyway.
#[derive(Debug, Clone, Default)]
pub(crate) struct AtHand(Option<Weak<dyn Store>>);

impl AtHand {
    pub(crate) fn store(&self) -> Option<Arc<dyn Store>> {
        self.0.as_ref()?.upgrade()
    }
}

/// Compares addresses, not the clients of their stores.
impl PartialEq for AtHand {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for AtHand {}

impl BootstrapInfo {
    /// Creates the address of a store without protection.
    #[must_use]
    pub fn new(master: HostPort, is_agent_store: bool, is_workers_own: bool) -> Self {
        Self {
            master,
            master_name: None,
            is_rendezvous_store: false,
            is_agent_store,
            is_workers_own,
            credentials: None,
            state_key: None,
            at_hand: AtHand::default(),
            followed: None,
        }
    }

    /// Returns the address to connect to: [`master`](Self::master), or for a moving store the address in its directory,
    /// because `master` is only its address when the round began.
    #[must_use]
    pub fn address(&self) -> StoreAddress {
        let followed = self.followed.clone();
        followed.unwrap_or_else(|| self.master.clone().into())
    }

    /// The store moves.
    pub(crate) fn with_followed(mut self, address: StoreAddress) -> Self {
        self.followed = Some(address);
        self
    }

    /// This process needs no other client of the store.
    pub(crate) fn with_at_hand(mut self, store: &Arc<dyn Store>) -> Self {
        self.at_hand = AtHand(Some(Arc::downgrade(store)));
        self
    }

    pub(crate) fn with_state_key(mut self, key: String) -> Self {
        self.state_key = Some(key);
        self
    }

    /// Sets the credentials that the store requires from its clients. Default none.
    #[must_use]
    pub fn with_credentials(mut self, credentials: impl Into<Option<Credentials>>) -> Self {
        self.credentials = credentials.into();
        self
    }
}

/// Whether the members of a running round admit other nodes: docs/spec/rendezvous.md, section 7.3. The state cannot contain this,
/// because PyTorch's nodes drop fields that they do not know.
const ENTRY: &str = "c10d/entry";
const COUNT: &str = "c10d/entry/n";

/// Release 0.2 writes `open`, and its nodes number the workers of a group in another way. So neither enters a round of the
/// other.
const OPEN: &[u8] = b"open 2";
const OVER: &[u8] = b"over";

/// Reports that this node's workers are running and tolerate new nodes. Once every node of the round has reported, the
/// round admits new nodes. A node that has entered a running round does not report: the call returns at once. Blocks
/// for at most the store's timeout, twice.
///
/// # Errors
/// [`StoreError`] when the round's store fails.
pub fn open_round(round: &RendezvousInfo) -> Result<(), StoreError> {
    if round.has_entered {
        return Ok(());
    }
    let board = round.board();
    let count = board.count(COUNT, 1)?;
    if usize::try_from(count) == Ok(round.world_size) {
        board.put_if_missing(ENTRY, OPEN)?;
    }
    Ok(())
}

/// Stops the round from admitting new nodes, because it is about to end. Nodes that wait for it stay spares. Blocks for
/// at most the store's timeout.
///
/// # Errors
/// [`StoreError`] when the round's store fails.
pub fn end_entry(round: &RendezvousInfo) -> Result<(), StoreError> {
    round.board().put(ENTRY, OVER)
}

/// Reads from the members' keys whether a round admits nodes. Blocks for at most the store's timeout, twice.
pub(crate) fn read_entry(round: &RoundBoard) -> Result<Entry, StoreError> {
    Ok(match round.read(ENTRY)?.as_deref() {
        Some(OPEN) => Entry::Open,
        Some(OVER) => Entry::Over,
        _ => Entry::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use c10d_store::HashStore;

    use super::*;

    /// docs/spec/rendezvous.md, ENTRY 1 and 2.
    #[test]
    fn the_last_member_opens_the_round_and_any_ends_that() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let prefix = Arc::clone(RoundBoard::of(&store, "job", 4).store());
        let master = BootstrapInfo::new(HostPort::new("node0", 1), true, true);
        let node = |rank| RendezvousInfo::new(4, Arc::clone(&prefix), rank, 2, master.clone());
        let entry = |round| read_entry(&RoundBoard::of(&store, "job", round)).unwrap();
        let [first, second] = [0, 1].map(node);
        assert_eq!(entry(4), Entry::Unknown);
        open_round(&first).unwrap();
        assert_eq!(entry(4), Entry::Unknown);
        let mut other = node(1);
        other.has_entered = true;
        open_round(&other).unwrap();
        assert_eq!(entry(4), Entry::Unknown);
        open_round(&second).unwrap();
        assert_eq!(entry(4), Entry::Open);
        assert_eq!(entry(3), Entry::Unknown);
        end_entry(&second).unwrap();
        assert_eq!(entry(4), Entry::Over);
    }

    /// docs/spec/rendezvous.md, ENTRY 2.
    #[test]
    fn a_round_that_has_ended_first_is_not_opened() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let board = RoundBoard::of(&store, "job", 0);
        let master = BootstrapInfo::new(HostPort::new("node0", 1), true, true);
        let round = RendezvousInfo::new(0, Arc::clone(board.store()), 0, 1, master);
        end_entry(&round).unwrap();
        open_round(&round).unwrap();
        assert_eq!(read_entry(&board).unwrap(), Entry::Over);
    }
}
