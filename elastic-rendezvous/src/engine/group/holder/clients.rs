//! The nodes that have sent the holder a request, and the status of each request.

use std::collections::BTreeMap;

use crate::engine::group::message::{Request, RequestKind};

/// How many nodes a holder notifies and remembers.
pub(super) const NODES_MAX: u32 = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Clients {
    by_index: BTreeMap<u32, Client>,
    /// The nodes with requests, in the order of arrival.
    order: BTreeMap<u64, u32>,
    arrivals: u64,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) request: Request,
    pub(super) status: Status,
    /// The heartbeat as read last. `None`: the key is missing, though a node writes it before its first request.
    pub(super) heartbeat: Option<Vec<u8>>,
    /// Whether the heartbeat has changed since the state was written last.
    pub(super) is_fresh: bool,
    /// Whether the node was listed in the stored state.
    pub(super) was_listed: bool,
    /// The request's place in the order of arrival.
    arrival: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Pending {
        is_spare: bool,
    },
    /// The answer is to be sent once the state is written.
    Decided,
    /// The node's last answer made it a member of this round.
    Member {
        round: i64,
    },
    /// The node was notified that it is no longer a member.
    Evicted,
    /// The node's request is fulfilled.
    Over,
    /// Other nodes have dropped it, or it has left without the holder. It was notified: if it lives, it repeats its
    /// request with a new number. Copies of the old request may still arrive.
    Forgotten,
}

impl Clients {
    /// Adopts a request; `is_listed`: whether the node is on a list. Returns what had become of its last one, or `None` if
    /// the request is ignored.
    pub(super) fn accept(&mut self, request: Request, is_listed: bool) -> Option<Status> {
        let index = request.index;
        let arrival = self.arrivals + 1;
        let mut status = match request.kind {
            RequestKind::Stay { round } => Status::Member { round },
            _ => Status::Pending { is_spare: false },
        };
        let before = if let Some(client) = self.by_index.get_mut(&index) {
            let last = &client.request;
            if last.node != request.node || request.number < last.number {
                return None;
            }
            let before = client.status;
            if before == Status::Forgotten && request.number == last.number {
                return None;
            }
            let is_known = match before {
                Status::Pending { .. } | Status::Decided => true,
                Status::Member { .. } => matches!(request.kind, RequestKind::Stay { .. }),
                Status::Evicted | Status::Over | Status::Forgotten => false,
            };
            if request == *last && is_known {
                return None;
            }
            if let (Status::Pending { is_spare }, Status::Pending { .. }) = (before, status) {
                status = Status::Pending { is_spare };
            }
            client.request = request;
            client.status = status;
            client.heartbeat.get_or_insert_default();
            self.order.remove(&client.arrival);
            client.arrival = arrival;
            before
        } else if self.by_index.len() >= NODES_MAX as usize {
            return None;
        } else {
            let client = Client {
                request,
                status,
                heartbeat: Some(Vec::new()),
                is_fresh: false,
                was_listed: is_listed,
                arrival,
            };
            self.by_index.insert(index, client);
            Status::Over
        };
        self.arrivals = arrival;
        self.order.insert(arrival, index);
        Some(before)
    }

    /// Forgets the requests of the nodes for which `is_gone` is true. Returns their indices and the numbers of their last
    /// requests.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&Client) -> bool) -> BTreeMap<u32, u32> {
        let clients = self.by_index.iter_mut();
        let gone = clients
            .filter(|(_, client)| client.status != Status::Forgotten && is_gone(client))
            .map(|(index, client)| {
                client.status = Status::Forgotten;
                (*index, client.request.number)
            });
        gone.collect()
    }

    pub(super) fn get(&self, index: u32) -> Option<&Client> {
        self.by_index.get(&index)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Client> {
        self.by_index.get_mut(&index)
    }

    /// The nodes in the order of their indices.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Client)> {
        self.by_index.iter().map(|(index, client)| (*index, client))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Client)> {
        let clients = self.by_index.iter_mut();
        clients.map(|(index, client)| (*index, client))
    }

    /// The indices of the nodes in the order in which their requests arrived.
    pub(super) fn in_order(&self) -> Vec<u32> {
        self.order.values().copied().collect()
    }
}
