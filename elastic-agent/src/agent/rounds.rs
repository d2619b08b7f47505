//! The last rounds of this node, and the contents of their stores.

use std::ops::Range;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};
use c10d_store::in_brief;
use elastic_rendezvous::{
    NodeId, RendezvousHandler, RendezvousInfo, RoundBoard, end_entry, open_round,
};

use crate::exit_barrier;
use crate::job_end::{self, EndNotice};
use crate::round::Facts;

/// The current round and the one before, where another node may have left the reason for which it ended the job: it may do
/// so when this node is in the next round already.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    current: Option<RendezvousInfo>,
    before: Option<RoundBoard>,
    /// Whether this node is listed, in these rounds, among the nodes that confirm that they have read why the job is
    /// over.
    is_reader: [bool; 2],
    /// The id of this node in the rendezvous.
    node: Option<NodeId>,
    /// The board on which the nodes publish and read the end of the job.
    published: Option<PublishedEnd>,
    /// The last round that this node has forgotten.
    forgotten: Option<i64>,
    /// The number of the last round with a relay, and the relay's port.
    relay_port: Option<(i64, u16)>,
}

/// The place where the nodes of a round read why the job is over.
#[derive(Debug, Clone)]
pub(super) struct PublishedEnd {
    pub(super) board: RoundBoard,
    /// Whether the other nodes confirm only when their workers have exited.
    #[cfg_attr(
        not(feature = "launcher"),
        allow(dead_code, reason = "only a launcher needs it")
    )]
    pub(super) is_at_exit: bool,
    /// The number of nodes in the round.
    #[cfg_attr(
        not(feature = "launcher"),
        allow(dead_code, reason = "only a launcher needs it")
    )]
    pub(super) nodes: usize,
    /// Whether this node has to confirm.
    is_reader: bool,
}

/// The confirmation of this node that it no longer needs the store to learn why the job is over.
#[derive(Debug, Clone)]
pub(super) struct Confirmation {
    board: RoundBoard,
    node: Option<NodeId>,
}

/// How long a confirmation is repeated while the store does not answer: longer than another server takes to continue the store.
/// The process that waits for the confirmation may have exited, and otherwise it exits later without it.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);

impl Confirmation {
    /// Sends it to the node that hosts the store. A failure is logged. Blocks for at most 5 s and one request.
    pub(super) fn send(&self) {
        let deadline = Deadline::after(Instant::now(), CONFIRM_TIMEOUT);
        let is_late = Cancel::with_check(move || deadline.has_passed(Instant::now()));
        let board = self.board.with_cancel(&is_late);
        if let Err(error) = job_end::confirm(&board, self.node.as_ref()) {
            log::debug!("cannot confirm that the end of the job is known: {error}");
        }
    }
}

/// The most rounds that are forgotten at once. There are several if earlier nodes with group rank 0 were lost before they could
/// remove them.
const FORGOTTEN_MAX: i64 = 4;

/// Returns the rounds that the node with group rank 0 of the round `current` can forget, after it has forgotten the rounds up
/// to `forgotten`. A running round is never among them, however often nodes enter it. The round before is not among them
/// either, because another node may not have left it yet.
fn forgettable(current: i64, forgotten: Option<i64>) -> Range<i64> {
    let end = current.saturating_sub(1).max(0);
    let first = end.saturating_sub(FORGOTTEN_MAX).max(0);
    let next = forgotten.map_or(0, |forgotten| forgotten.saturating_add(1));
    first.max(next)..end
}

impl Rounds {
    /// This node has joined the round, or has entered it again.
    pub(super) fn add(&mut self, round: RendezvousInfo) {
        let last = self.current.replace(round);
        let number = self.current.as_ref().map(|current| current.round);
        if let Some(last) = last.filter(|last| Some(last.round) != number) {
            self.before = Some(last.board());
            self.is_reader = [false, self.is_reader[0]];
        }
    }

    /// Lists this node among those that the host of the store waits for at the end of the job. A failure is logged.
    /// Then the host exits without waiting for this node.
    pub(super) fn list_reader(&mut self, node: Option<NodeId>) {
        self.node = node;
        let is_new = !self.is_reader[0];
        let others = self.current().is_some_and(|round| round.world_size > 1);
        if let Some(board) = self.board().filter(|_| is_new && others) {
            match job_end::list_reader(&board) {
                Ok(()) => self.is_reader[0] = true,
                Err(error) => log::debug!("cannot list this node as a reader: {error}"),
            }
        }
    }

    /// Removes the values that members have written in earlier rounds. Call it when the workers have started, because nothing
    /// waits for it. A failure is logged only.
    pub(super) fn forget_old(&mut self, handler: &dyn RendezvousHandler) {
        let Some(current) = self.current.as_ref().filter(|current| current.rank == 0) else {
            return;
        };
        let mut old = forgettable(current.round, self.forgotten);
        if let Err(error) = old.try_for_each(|round| handler.forget_round(round)) {
            // This node tries again in the next round.
            return log::debug!("cannot remove what earlier rounds have left: {error}");
        }
        self.forgotten = Some(current.round.saturating_sub(2));
    }

    pub(super) const fn current(&self) -> Option<&RendezvousInfo> {
        self.current.as_ref()
    }

    /// Whether this node was in a round before the current one.
    pub(super) const fn is_later(&self) -> bool {
        self.before.is_some()
    }

    fn board(&self) -> Option<RoundBoard> {
        self.current().map(RendezvousInfo::board)
    }

    /// The port of this node's relay in the round. A node of a static rendezvous needs it, because it restarts its
    /// workers without the other nodes.
    pub(super) fn relay_port_in(&self, round: i64) -> Option<u16> {
        self.relay_port
            .filter(|(number, _)| *number == round)
            .map(|(_, port)| port)
    }

    pub(super) const fn set_relay_port(&mut self, round: i64, port: u16) {
        self.relay_port = Some((round, port));
    }

    /// Returns why a node ended the job; `None` if none did. `others` returns boards of rounds in which this node may
    /// not have been.
    pub(super) fn why_job_ended(
        &mut self,
        others: impl FnOnce() -> Vec<RoundBoard>,
    ) -> Option<EndNotice> {
        let nodes = self.current().map_or(0, |round| round.world_size);
        let own = [self.board(), self.before.clone()];
        let mut own = own.into_iter().zip(self.is_reader);
        let read = |board: Option<RoundBoard>, is_reader| {
            let board = board?;
            let notice = job_end::read(&board)?;
            let is_at_exit = notice.is_at_exit;
            let published = PublishedEnd {
                board,
                is_at_exit,
                nodes,
                is_reader,
            };
            Some((notice, published))
        };
        let found = own
            .find_map(|(board, is_reader)| read(board, is_reader))
            .or_else(|| {
                let mut others = others().into_iter();
                others.find_map(|board| read(Some(board), false))
            });
        let (notice, published) = found?;
        self.published = Some(published);
        Some(notice)
    }

    /// The confirmation that this node has read why the job is over; `None` the second time, and if no node waits for it.
    pub(super) fn take_confirmation(&mut self) -> Option<Confirmation> {
        let published = self
            .published
            .as_mut()
            .filter(|published| published.is_reader)?;
        published.is_reader = false;
        // Later reads do not confirm again.
        self.is_reader = [false; 2];
        Some(Confirmation {
            board: published.board.clone(),
            node: self.node.clone(),
        })
    }

    /// The board on which this node has read or published why the job is over.
    pub(super) fn told_board(&self) -> Option<&RoundBoard> {
        self.published.as_ref().map(|published| &published.board)
    }

    /// Whether this node has ended the job, or knows that another node has.
    pub(super) const fn has_published_end(&self) -> bool {
        self.published.is_some()
    }

    pub(super) fn take_published_end(&mut self) -> Option<PublishedEnd> {
        self.published.take()
    }

    /// Returns the number of nodes that have ended: they succeeded, or their workers failed at the end of their
    /// program. `None` if their store does not answer.
    pub(super) fn ended(&self, has_store_per_round: bool) -> Option<usize> {
        let finished = self.finished()?;
        let at_exit = match has_store_per_round {
            true => job_end::counted_at_exit(&self.board()?).ok()?,
            // Members of any round count; this node is one of them.
            false => 1,
        };
        Some(finished + at_exit)
    }

    pub(super) fn count_at_exit(&self) {
        if let Some(Err(error)) = self.board().as_ref().map(job_end::count_at_exit) {
            let why = in_brief(&error);
            log::warn!("cannot report that all workers have exited: {why}");
        }
    }

    /// How many nodes of the round have finished; `None` if its store does not answer.
    pub(super) fn finished(&self) -> Option<usize> {
        exit_barrier::checked_in(&self.board()?).ok()
    }

    /// Lets other nodes enter the round. A failure is logged: then nodes that come wait until all restart.
    pub(super) fn open(&self) {
        if let Some(Err(error)) = self.current().map(open_round) {
            log::warn!("no other node can enter the round: {}", in_brief(&error));
        }
    }

    pub(super) fn end_entry(&self) {
        if let Some(Err(error)) = self.current().map(end_entry) {
            log::warn!("cannot report the end of the round: {}", in_brief(&error));
        }
    }

    pub(super) fn facts(&mut self, has_store_per_round: bool) -> Facts {
        let job_end = self.why_job_ended(Vec::new);
        let board = self.board().filter(|_| has_store_per_round);
        Facts {
            job_end: job_end.map(Box::new),
            is_any_stuck: board.is_some_and(|board| job_end::is_any_stuck(&board)),
            finished: self.finished().unwrap_or(0),
        }
    }

    /// Counts this node among those whose workers are stuck; true for the first.
    pub(super) fn report_stuck(&self) -> bool {
        let Some(board) = self.board() else {
            return true;
        };
        job_end::report_stuck(&board).unwrap_or_else(|error| {
            log::warn!(
                "cannot report that the workers are stuck: {}",
                in_brief(&error)
            );
            true
        })
    }

    pub(super) fn publish_end(&mut self, notice: &EndNotice) {
        let Some(board) = self.board() else {
            return;
        };
        if let Err(error) = job_end::publish(&board, notice) {
            let why = in_brief(&error);
            return log::warn!("cannot report why the job stops: {why}");
        }
        self.published = Some(PublishedEnd {
            board,
            is_at_exit: notice.is_at_exit,
            nodes: self.current().map_or(0, |round| round.world_size),
            is_reader: self.is_reader[0],
        });
        if let Some(confirmation) = self.take_confirmation() {
            confirmation.send();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use c10d_socket::HostPort;
    use c10d_store::{Store, StoreExt, TcpStore, TcpStoreOptions};
    use elastic_rendezvous::{
        BootstrapInfo, C10dBackend, DynamicRendezvous, DynamicRendezvousOptions,
        RendezvousParameters, RendezvousSettings, create_handler, parse_config,
    };

    use super::*;
    use crate::ranks::{RoleInfo, exchange_ranks};

    struct Node {
        handler: DynamicRendezvous,
        rounds: Rounds,
    }

    fn server() -> Arc<dyn Store> {
        let options = TcpStoreOptions::default().with_master(true);
        Arc::new(TcpStore::open("127.0.0.1", 0, options).unwrap())
    }

    impl Node {
        fn new(store: &Arc<dyn Store>) -> Self {
            let store = store.clone_store().unwrap();
            let backend = Arc::new(C10dBackend::new(Arc::clone(&store), "job").unwrap());
            let settings = RendezvousSettings::new("job", 2, 2).unwrap();
            let options = DynamicRendezvousOptions::new()
                .with_local_addr("127.0.0.1")
                .with_shared_store(false);
            Self {
                handler: DynamicRendezvous::new(backend, store, settings, options).unwrap(),
                rounds: Rounds::default(),
            }
        }

        /// Joins a round like an agent, and returns its rank.
        fn join(&mut self) -> usize {
            let round = self.handler.next_rendezvous().unwrap();
            let own = RoleInfo {
                role: "trainer".to_owned(),
                local_world_size: 1,
            };
            let (board, rank, timeout) = (round.board(), round.rank, round.store.timeout());
            exchange_ranks(&board, rank, 2, &own, timeout, &Cancel::NEVER).unwrap();
            self.rounds.add(round);
            rank
        }
    }

    /// Returns the numbers of keys after rounds of two nodes. In each round, a new node replaces the older node if
    /// `is_oldest`, or otherwise the newer node, so that one node stays.
    fn keys_while_nodes_depart(is_oldest: bool) -> Vec<u64> {
        let store = server();
        let mut nodes = vec![Node::new(&store), Node::new(&store)];
        let mut counts = Vec::new();
        for _ in 0..150 {
            thread::scope(|scope| {
                let joins = nodes.iter_mut().map(|node| scope.spawn(|| node.join()));
                let joins: Vec<_> = joins.collect();
                let ranks = joins.into_iter().map(|join| join.join().unwrap());
                assert_eq!(ranks.sum::<usize>(), 1);
            });
            for node in &mut nodes {
                node.rounds.forget_old(&node.handler);
            }
            counts.push(store.num_keys().unwrap());
            let departed = nodes.remove(usize::from(!is_oldest));
            departed.handler.leave().unwrap();
            nodes.push(Node::new(&store));
        }
        counts
    }

    /// docs/spec/rendezvous.md, BOOT 8 and 9.
    #[test]
    fn the_store_does_not_grow_with_the_nodes_that_have_left() {
        for is_oldest in [false, true] {
            let counts = keys_while_nodes_depart(is_oldest);
            // The keys of two rounds and the last 128 notices stay.
            let (early, late) = counts.split_at(140);
            let most = early.iter().max();
            assert_eq!(late.iter().max(), most, "is_oldest={is_oldest}: {counts:?}");
        }
    }

    /// The host may exit, or lose power, before this node has stopped its workers.
    #[test]
    fn a_host_that_has_exited_gets_no_confirmation_for_long() {
        let options = TcpStoreOptions::default().with_master(true);
        let host = TcpStore::open("127.0.0.1", 0, options).unwrap();
        let endpoint = format!("127.0.0.1:{}", host.port());
        let config = parse_config("is_host=0").unwrap();
        let parameters = RendezvousParameters::new("c10d", endpoint, "job", 1, 1).unwrap();
        let handler = create_handler(&parameters.with_config(config)).unwrap();
        let board = handler.next_rendezvous().unwrap().board();
        let node = handler.node_id();
        let confirmation = Confirmation { board, node };
        confirmation.send();
        assert!(!confirmation.board.is_first("c10d/job_end/read").unwrap());
        drop(host);
        let began = Instant::now();
        confirmation.send();
        let took = began.elapsed();
        assert!(took < Duration::from_secs(11), "{took:?}");
        handler.detach();
    }

    /// A node that leaves a running round can enter it again, any number of times.
    #[test]
    fn a_round_that_runs_is_never_forgotten() {
        let store = server();
        let node = Node::new(&store);
        let mut rounds = Rounds::default();
        let keys = |round| {
            [
                "MASTER_ADDR",
                "torchelastic/role_info/0",
                "c10d/places/group",
            ]
            .map(|name| format!("torch.rendezvous.job.{round}/{name}"))
        };
        let exist = |round| keys(round).map(|key| store.check(&[&key]).unwrap());
        for key in (1..=3).flat_map(keys) {
            store.set(&key, b"1").unwrap();
        }
        for entry in 1..=5 {
            let master = BootstrapInfo::new(HostPort::new("node0", 1), true, true);
            let mut round = RendezvousInfo::new(3, Arc::clone(&store), 0, 2, master);
            round.has_entered = true;
            rounds.add(round);
            rounds.forget_old(&node.handler);
            for (round, expected) in [(1, false), (2, true), (3, true)] {
                assert_eq!(exist(round), [expected; 3], "entry {entry}, round {round}");
            }
        }
    }

    /// The previous node with rank 0 may have removed nothing, for example because it runs torchrun or was lost.
    #[test]
    fn a_node_that_gets_rank_0_removes_what_others_have_left() {
        let store = server();
        let node = Node::new(&store);
        let mut rounds = Rounds::default();
        let key = |round| format!("torch.rendezvous.job.{round}/MASTER_ADDR");
        for (number, rank) in [(1, 1), (2, 1), (3, 1), (4, 0)] {
            store.set(&key(number), b"1").unwrap();
            let master = BootstrapInfo::new(HostPort::new("node0", 1), true, true);
            rounds.add(RendezvousInfo::new(
                number,
                Arc::clone(&store),
                rank,
                2,
                master,
            ));
            rounds.forget_old(&node.handler);
            let kept = (1..=number).filter(|round| store.check(&[&key(*round)]).unwrap());
            let expected = if rank == 0 { 3..=4 } else { 1..=number };
            assert!(kept.eq(expected), "after round {number}");
        }
    }

    #[test]
    fn no_round_is_forgotten_that_a_node_can_be_in() {
        for forgotten in (-3..12).map(Some).chain([None]) {
            for current in -1..12 {
                let old = forgettable(current, forgotten);
                assert!(old.clone().all(|round| (0..current - 1).contains(&round)));
                assert!(old.end - old.start <= FORGOTTEN_MAX);
                assert!(forgotten.is_none_or(|forgotten| !old.contains(&forgotten)));
            }
        }
        // A member of all rounds removes one at a time. After it has missed some rounds, it removes several.
        assert_eq!(forgettable(5, Some(2)), 3..4);
        assert_eq!(forgettable(7, Some(2)), 3..6);
        assert_eq!(forgettable(9, None), 4..8);
        // Rounds begin with 0 again if the store was emptied.
        assert!(forgettable(1, Some(6)).is_empty());
    }
}
