//! The marks of connected nodes, as keys of the store (docs/spec/rendezvous.md, section 10.3).
//!
//! The store itself changes the mark of a node whose connection closes. PyTorch's nodes do not know these keys.

use std::sync::Arc;

use c10d_store::{Store, StoreError, StoreExt};

use crate::engine::links::{Mark, Marks};
use crate::shell::board::read_present;
use crate::values::error::is_outage;
use crate::values::node::NodeId;

const CONNECTED: &[u8] = b"connected";
const CLOSED: &[u8] = b"closed";

/// The marks of all nodes of a rendezvous, in its store.
#[derive(Debug)]
pub struct MarkBoard {
    store: Arc<dyn Store>,
    prefix: String,
    /// The marks that were read last.
    known: Option<Known>,
    /// Whether this node has set its own mark.
    has_own: bool,
}

#[derive(Debug)]
struct Known {
    /// The value that changes with every mark.
    bell: Option<Vec<u8>>,
    nodes: Vec<NodeId>,
    marks: Marks,
}

impl MarkBoard {
    /// The marks below `prefix` in `store`.
    pub(crate) fn new(store: Arc<dyn Store>, prefix: &str) -> Self {
        Self {
            store,
            prefix: format!("{prefix}/link"),
            known: None,
            has_own: false,
        }
    }

    fn key(&self, node: &NodeId) -> String {
        let NodeId {
            addr,
            pid,
            local_id,
        } = node;
        format!("{}/{pid} {local_id} {addr}", self.prefix)
    }

    /// The key that rings the bell when the connection of the node closes. A connection has one will for each of its keys.
    fn bell_key(&self, node: &NodeId) -> String {
        format!("{}/bell", self.key(node))
    }

    /// Forgets the marks, because the store has lost its data.
    pub(crate) fn start_anew(&mut self) {
        self.known = None;
        self.has_own = false;
    }

    /// Reads the marks of these nodes: one request while no mark of any node changes. Blocks for at most the store's timeout,
    /// for each request.
    pub(crate) fn read(&mut self, nodes: Vec<NodeId>) -> Result<Marks, StoreError> {
        // Before the marks, so that a change in between is noticed by the next call.
        let bell = self.store.try_get(&self.prefix)?;
        if let Some(known) = &self.known
            && (&known.bell, &known.nodes) == (&bell, &nodes)
        {
            return Ok(known.marks.clone());
        }
        let keys: Vec<String> = nodes.iter().map(|node| self.key(node)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let values = match bell {
            Some(_) => read_present(&*self.store, &keys)?,
            None => vec![None; nodes.len()],
        };
        let values = nodes.iter().cloned().zip(values);
        let marks: Marks = values
            .map(|(node, value)| (node, mark_of(value.as_deref())))
            .collect();
        let count = |mark| marks.values().filter(|it| **it == mark).count();
        let (connected, closed) = (count(Mark::Connected), count(Mark::Closed));
        log::debug!("marks of nodes: {connected} connected, {closed} closed");
        self.known = Some(Known {
            bell,
            nodes,
            marks: marks.clone(),
        });
        Ok(marks)
    }

    /// Marks this node as connected, by a connection that the process keeps. Replaces the mark of an earlier connection, even if
    /// the store has not noticed that the connection has closed. The first mark of a node in a group replaces none, because
    /// its id is new, and wakes no node. Blocks for at most the store's timeout, five times.
    pub(crate) fn set_own(&mut self, me: &NodeId, is_in_group: bool) -> Result<(), StoreError> {
        let (key, bell_key) = (self.key(me), self.bell_key(me));
        let is_silent = is_in_group && !self.has_own;
        let store = &self.store;
        if !is_silent {
            store.delete_key(&key)?;
            store.delete_key(&bell_key)?;
        }
        self.has_own = true;
        store.set_ephemeral(&key, CONNECTED, Some((&key, CLOSED)))?;
        let closed = format!("closed {:016x}", fastrand::u64(..));
        let will = (self.prefix.as_str(), closed.as_bytes());
        store.set_ephemeral(&bell_key, CONNECTED, Some(will))?;
        if is_silent {
            return Ok(());
        }
        let connected = format!("connected {:016x}", fastrand::u64(..));
        store.set(&self.prefix, connected)
    }

    /// Whether the store answers, so that this failure concerns only the connection of the mark. Blocks for at most the store's
    /// timeout.
    pub(crate) fn is_store_in_reach(&self, error: &StoreError) -> bool {
        let is_lost = matches!(error, StoreError::ConnectionLost { .. });
        is_outage(error) && !is_lost && self.store.check(&[]).is_ok()
    }

    /// Says goodbye, so that this node does not count as lost. A failure is only logged, because the process exits.
    pub(crate) fn remove_own(&mut self, me: &NodeId) {
        if !std::mem::take(&mut self.has_own) {
            return;
        }
        for key in [self.key(me), self.bell_key(me)] {
            if let Err(error) = self.store.delete_key(&key) {
                return log::debug!("cannot remove the mark of this node: {error}");
            }
        }
    }
}

/// Reads a mark. A value that no node of this version writes does not count as a mark.
fn mark_of(value: Option<&[u8]>) -> Mark {
    match value {
        Some(CONNECTED) => Mark::Connected,
        Some(CLOSED) => Mark::Closed,
        _ => Mark::Missing,
    }
}

#[cfg(test)]
mod tests {
    use c10d_store::{TcpStore, TcpStoreOptions};

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name, 1, 0)
    }

    fn wait_for(board: &mut MarkBoard, nodes: &[NodeId], expected: &Marks) {
        while board.read(nodes.to_vec()).unwrap() != *expected {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// docs/spec/rendezvous.md, LINK 1 and 2.
    #[test]
    fn a_mark_shows_that_a_connection_has_closed_unless_the_node_said_goodbye() {
        let options = TcpStoreOptions::default().with_master(true);
        let hosted = TcpStore::open("127.0.0.1", 0, options).unwrap();
        let connect = || -> Arc<dyn Store> {
            let options = TcpStoreOptions::default();
            Arc::new(TcpStore::open("127.0.0.1", hosted.port(), options).unwrap())
        };
        let board = || MarkBoard::new(connect(), "torch.rendezvous.job");
        let (a, b, never) = (node("a"), node("b"), node("never"));
        let all = [a.clone(), b.clone(), never.clone()];
        let marks = |of_a, of_b| {
            Marks::from([
                (a.clone(), of_a),
                (b.clone(), of_b),
                (never.clone(), Mark::Missing),
            ])
        };
        let (mut first, mut second, mut reader) = (board(), board(), board());
        let none = marks(Mark::Missing, Mark::Missing);
        assert_eq!(reader.read(all.to_vec()).unwrap(), none);
        first.set_own(&a, false).unwrap();
        second.set_own(&b, false).unwrap();
        let both = marks(Mark::Connected, Mark::Connected);
        assert_eq!(reader.read(all.to_vec()).unwrap(), both);
        // The node returns over another connection, although the server may not have noticed that the first connection
        // has closed.
        let mut again = board();
        again.set_own(&a, false).unwrap();
        drop(first);
        assert_eq!(reader.read(all.to_vec()).unwrap(), both);
        second.remove_own(&b);
        drop((again, second));
        wait_for(&mut reader, &all, &marks(Mark::Closed, Mark::Missing));
    }

    /// docs/spec/rendezvous.md, LINK 7.
    #[test]
    fn the_first_mark_of_a_node_in_a_group_changes_nothing_that_other_nodes_read() {
        let options = TcpStoreOptions::default().with_master(true);
        let hosted: Arc<dyn Store> = Arc::new(TcpStore::open("127.0.0.1", 0, options).unwrap());
        let mut board = MarkBoard::new(Arc::clone(&hosted), "torch.rendezvous.job");
        board.set_own(&node("a"), true).unwrap();
        let bell = || hosted.try_get("torch.rendezvous.job/link").unwrap();
        assert_eq!(bell(), None);
        // After its connection has closed, another node may have read that.
        board.set_own(&node("a"), true).unwrap();
        assert!(bell().is_some());
        let connected = Marks::from([(node("a"), Mark::Connected)]);
        assert_eq!(board.read(vec![node("a")]).unwrap(), connected);
    }
}
