//! Finds the nodes that have lost their connection to the store, from the marks of the nodes (docs/spec/rendezvous.md,
//! section 10.3). Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::values::node::NodeId;

/// How often a node reads the marks.
pub(crate) const READ_INTERVAL: Duration = Duration::from_millis(500);

/// How long a node may be without a connection before it is lost: 2 s, and the time of its next attempt to connect.
pub(crate) const RETURN_GRACE: Duration = Duration::from_millis(2500);

/// How soon a node tries again to reach the store, so that it returns within [`RETURN_GRACE`].
pub(crate) const RETURN_PAUSE: Duration = Duration::from_millis(250);

/// Whether a node is connected, as the store records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The node has left with a goodbye, or never sets a mark, like the nodes of PyTorch.
    Missing,
    Connected,
    /// The node's connection has closed without a goodbye.
    Closed,
}

/// The marks of the nodes that were asked for.
pub(crate) type Marks = BTreeMap<NodeId, Mark>;

/// The marks of all nodes that this node has read, with times of its monotonic clock.
#[derive(Debug)]
pub(crate) struct Links {
    /// False after the store has refused a mark.
    is_supported: bool,
    read_due_at: Duration,
    /// Whether the mark of this node must be set.
    is_own_due: bool,
    /// Whether the next read counts connections that had closed before it.
    counts_found: bool,
    /// Whether this node has set its mark since its start.
    has_own: bool,
    peers: BTreeMap<NodeId, Link>,
}

/// The state of another node's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Missing,
    Connected,
    /// The connection had closed when this node read the mark first. The node may be about to return, or may have returned
    /// and left since.
    FoundClosed,
    /// When this node first saw that the connection had closed.
    Closed(Duration),
    /// The connection had closed, and the node did not return in time.
    Lost(Duration),
}

impl Links {
    pub(crate) const fn new(now: Duration) -> Self {
        Self {
            is_supported: true,
            read_due_at: now,
            is_own_due: false,
            counts_found: false,
            has_own: false,
            peers: BTreeMap::new(),
        }
    }

    /// Counts connections that had closed before the next read, because the store was not out of reach lately.
    pub(crate) const fn count_found(&mut self) {
        self.counts_found = true;
    }

    /// When the marks have to be read; `None` if the store does not support marks.
    pub(crate) fn read_due_at(&self) -> Option<Duration> {
        self.is_supported.then_some(self.read_due_at)
    }

    /// Puts the next read off, because a short join does not need it.
    pub(crate) fn delay_read(&mut self, now: Duration) {
        self.read_due_at = self.read_due_at.max(now.saturating_add(READ_INTERVAL));
    }

    /// Whether this node has to set its mark.
    pub(crate) const fn is_own_due(&self) -> bool {
        self.is_own_due
    }

    /// Records that the mark of this node is set.
    pub(crate) const fn on_set(&mut self) {
        self.is_own_due = false;
        self.has_own = true;
    }

    /// Asks for the marks again after a new heartbeat of a node that counts as lost. The node may have returned, and it sets
    /// its mark before it writes.
    pub(crate) fn on_heartbeat(&mut self, node: &NodeId, now: Duration) {
        if let Some(link) = self.peers.get_mut(node)
            && let Link::Lost(at) = *link
        {
            *link = Link::Closed(at);
            self.read_due_at = self.read_due_at.min(now);
        }
    }

    /// Counts the absence of a member from no earlier than when this node saw its round complete. Until then the other members
    /// read who is in the round.
    pub(crate) fn on_complete(&mut self, node: &NodeId, since: Duration) {
        if let Some(link) = self.peers.get_mut(node)
            && let Link::Closed(at) | Link::Lost(at) = *link
            && at < since
        {
            *link = Link::Closed(since);
            let lost_at = since.saturating_add(RETURN_GRACE);
            self.read_due_at = self.read_due_at.min(lost_at);
        }
    }

    /// Discards earlier marks after the store was out of reach, because the connections of all nodes may have closed.
    pub(crate) fn on_outage(&mut self) {
        self.counts_found = false;
        self.is_own_due |= self.has_own && self.is_supported;
        self.peers.clear();
        self.read_due_at = Duration::ZERO;
    }

    /// Adopts marks that were requested at `requested_at`; `None` if the store does not support marks. Returns whether
    /// another node was lost.
    pub(crate) fn on_read(
        &mut self,
        me: &NodeId,
        marks: Option<&Marks>,
        requested_at: Duration,
        now: Duration,
    ) -> bool {
        let Some(marks) = marks else {
            self.is_supported = false;
            self.is_own_due = false;
            self.peers.clear();
            return false;
        };
        self.is_own_due = marks.get(me) != Some(&Mark::Connected);
        self.peers.retain(|node, _| marks.contains_key(node));
        self.read_due_at = now.saturating_add(READ_INTERVAL);
        let counts_found = std::mem::take(&mut self.counts_found);
        let mut is_any_new = false;
        for (node, mark) in marks.iter().filter(|(node, _)| *node != me) {
            let link = match (mark, self.peers.get(node)) {
                (Mark::Missing, _) => Link::Missing,
                (Mark::Connected, _) => Link::Connected,
                (Mark::Closed, None) if !counts_found => Link::FoundClosed,
                (Mark::Closed, None | Some(Link::Missing | Link::Connected)) => Link::Closed(now),
                // This process may have been stopped between the two reads, so the second read must be late enough.
                (Mark::Closed, Some(Link::Closed(at)))
                    if at.saturating_add(RETURN_GRACE) <= requested_at =>
                {
                    is_any_new = true;
                    Link::Lost(*at)
                }
                (Mark::Closed, Some(known)) => *known,
            };
            if let Link::Closed(at) = link {
                let lost_at = at.saturating_add(RETURN_GRACE);
                self.read_due_at = self.read_due_at.min(lost_at.max(now));
            }
            self.peers.insert(node.clone(), link);
        }
        is_any_new
    }

    /// The nodes whose connections are first seen closed by the read that was adopted at `now`.
    pub(crate) fn newly_closed(&self, now: Duration) -> impl Iterator<Item = &NodeId> {
        let is_new = move |(_, link): &(&NodeId, &Link)| **link == Link::Closed(now);
        self.peers.iter().filter(is_new).map(|(node, _)| node)
    }

    /// Discards the mark of a node that was dropped, because it may be listed again.
    pub(crate) fn forget(&mut self, node: &NodeId) {
        self.peers.remove(node);
    }

    /// Whether the node was connected at the last read.
    pub(crate) fn is_connected(&self, node: &NodeId) -> bool {
        self.peers.get(node) == Some(&Link::Connected)
    }

    /// Returns when the node lost its connection, if that is known.
    pub(crate) fn closed_since(&self, node: &NodeId) -> Option<Duration> {
        match *self.peers.get(node)? {
            Link::Missing | Link::Connected | Link::FoundClosed => None,
            Link::Closed(at) | Link::Lost(at) => Some(at),
        }
    }

    /// Whether the connection of the node had closed when this node read its mark first.
    pub(crate) fn was_found_closed(&self, node: &NodeId) -> bool {
        self.peers.get(node) == Some(&Link::FoundClosed)
    }

    /// Returns when the node lost its connection, if it counts as lost.
    pub(crate) fn lost_since(&self, node: &NodeId) -> Option<Duration> {
        match *self.peers.get(node)? {
            Link::Lost(at) => Some(at),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn node(name: &str) -> NodeId {
        NodeId::new(name, 1, 0)
    }

    /// Reads the mark of the node `b` at each of these times, in milliseconds, and returns when it was lost.
    fn lost_at(reads: &[(u64, Mark)]) -> Option<u64> {
        let mut links = Links::new(Duration::ZERO);
        for (millis, mark) in reads {
            let marks = Marks::from([(node("b"), *mark)]);
            let at = Duration::from_millis(*millis);
            if links.on_read(&node("a"), Some(&marks), at, at) {
                assert!(links.lost_since(&node("b")).is_some());
                return Some(*millis);
            }
        }
        None
    }

    /// docs/spec/rendezvous.md, LINK 3.
    #[test]
    fn a_node_is_lost_when_its_connection_has_closed_and_it_does_not_return() {
        let (here, gone) = (Mark::Connected, Mark::Closed);
        assert_eq!(lost_at(&[(0, here), (500, gone), (2999, gone)]), None);
        assert_eq!(lost_at(&[(0, here), (500, gone), (3000, gone)]), Some(3000));
        // The node returns, and is cut again.
        let again = [(0, here), (500, gone), (2400, here), (2900, gone)];
        assert_eq!(lost_at(&[&again[..], &[(5300, gone)]].concat()), None);
        assert_eq!(lost_at(&[&again[..], &[(5400, gone)]].concat()), Some(5400));
    }

    /// docs/spec/rendezvous.md, LINK 3 and 4.
    #[test]
    fn a_node_without_a_mark_or_never_seen_connected_is_judged_by_its_heartbeats() {
        let (none, here, gone) = (Mark::Missing, Mark::Connected, Mark::Closed);
        assert_eq!(lost_at(&[(0, none), (500, none), (9000, none)]), None);
        assert_eq!(lost_at(&[(0, gone), (500, gone), (9000, gone)]), None);
        // A goodbye.
        assert_eq!(lost_at(&[(0, here), (500, none), (9000, none)]), None);
        assert_eq!(
            lost_at(&[(0, here), (500, gone), (900, none), (9000, none)]),
            None
        );
        // The node has connected and was cut off between two reads.
        assert_eq!(lost_at(&[(0, none), (500, gone), (3000, gone)]), Some(3000));
    }

    /// docs/spec/rendezvous.md, LINK 5.
    #[test]
    fn after_an_outage_of_the_store_no_mark_counts_that_was_seen_before() {
        let mut links = Links::new(Duration::ZERO);
        let marks = |mark| Marks::from([(node("a"), mark), (node("b"), mark)]);
        let read =
            |links: &mut Links, mark, at| links.on_read(&node("a"), Some(&marks(mark)), at, at);
        assert!(!read(&mut links, Mark::Connected, SECOND));
        assert!(!links.is_own_due());
        links.on_outage();
        assert_eq!(links.read_due_at(), Some(Duration::ZERO));
        for seconds in 2..30 {
            assert!(!read(&mut links, Mark::Closed, SECOND * seconds));
            assert!(links.is_own_due(), "its own connection has closed, too");
        }
    }

    /// docs/spec/rendezvous.md, LINK 9.
    #[test]
    fn a_connection_that_had_closed_before_the_first_read_counts_if_the_store_was_in_reach() {
        let (me, marks) = (node("a"), Marks::from([(node("b"), Mark::Closed)]));
        for (has_outage, is_lost) in [(false, true), (true, false)] {
            let mut links = Links::new(SECOND);
            links.count_found();
            if has_outage {
                links.on_outage();
            }
            links.on_read(&me, Some(&marks), SECOND, SECOND);
            assert_eq!(links.newly_closed(SECOND).count(), usize::from(is_lost));
            assert_eq!(
                links.on_read(&me, Some(&marks), SECOND * 4, SECOND * 4),
                is_lost
            );
            // Only the first read counts such connections.
            links.forget(&node("b"));
            links.on_read(&me, Some(&marks), SECOND * 5, SECOND * 5);
            assert!(!links.on_read(&me, Some(&marks), SECOND * 9, SECOND * 9));
        }
    }

    #[test]
    fn a_process_that_was_stopped_reads_again_before_it_decides() {
        let (me, mut links) = (node("a"), Links::new(Duration::ZERO));
        let marks = |mark| Marks::from([(node("b"), mark)]);
        links.on_read(&me, Some(&marks(Mark::Connected)), SECOND, SECOND);
        links.on_read(&me, Some(&marks(Mark::Closed)), SECOND * 2, SECOND * 2);
        // Requested at 3 s, and the answer was read at 60 s.
        assert!(!links.on_read(&me, Some(&marks(Mark::Closed)), SECOND * 3, SECOND * 60));
        assert_eq!(links.read_due_at(), Some(SECOND * 60));
        assert!(links.on_read(&me, Some(&marks(Mark::Closed)), SECOND * 60, SECOND * 60));
    }

    #[test]
    fn a_store_without_marks_is_asked_once() {
        let mut links = Links::new(Duration::ZERO);
        assert!(!links.on_read(&node("a"), None, SECOND, SECOND));
        assert_eq!(links.read_due_at(), None);
    }
}
