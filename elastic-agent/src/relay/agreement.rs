//! Agrees on the port of the relays of a round (docs/spec/rendezvous.md, section 12.3).
//!
//! All nodes need the same one: PyTorch's workers tell each other the MASTER_PORT of rank 0. The node with group rank 0
//! proposes a port, every node counts itself, and the node that completes the count publishes how many have refused.
//! Each node makes three requests for a port.

use std::io;
use std::time::Duration;

use c10d_relay::RelayError;
use c10d_socket::HostPort;
use c10d_store::{StoreError, in_brief};
use elastic_rendezvous::{BoardError, RoundBoard, Wait};

/// The reason why the workers of a node got no relay.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NodeRelayError {
    /// The worker with rank 0 will serve the store, with PyTorch's server.
    #[error(
        "the worker with rank 0 serves the workers' store {master}, with PyTorch's server, which no relay can use: \
         a relay needs a store that a launcher of this kind serves"
    )]
    NoAgentStore {
        /// The address of the store.
        master: HostPort,
    },

    /// Nodes of the round did not take part in the choice of the port in time.
    #[error(
        "{arrived} of {group_world_size} nodes took part in the choice of the relays' port within {:.1} s: every \
         node of the round needs --relay, or relay=1 in PET_RDZV_CONF under torchrun",
        waited.as_secs_f64()
    )]
    NodesMissing {
        /// The number of nodes that took part.
        arrived: u64,
        /// The number of nodes of the round.
        group_world_size: usize,
        /// The time that this node waited.
        waited: Duration,
    },

    /// The node with group rank 0 found no port for its own relay.
    #[error("the node with group rank 0 found no port for its relay: its own error says why")]
    NoneProposed,

    /// Each proposed port was refused by at least one node.
    #[error(
        "no port was free for the relays of all nodes: {refusals} of {group_world_size} nodes refused port {port}, the \
         last of {attempts}; their logs say why; choose a port that is free on every node with --relay-port"
    )]
    NoFreePort {
        /// The last proposed port.
        port: u16,
        /// The number of nodes that refused the last port.
        refusals: u64,
        /// The number of nodes of the round.
        group_world_size: usize,
        /// The number of proposed ports.
        attempts: u32,
    },

    /// This node cannot listen on the port.
    #[error(
        "cannot listen for the relay on {}: {source}; choose a port that is free on every node with --relay-port",
        if *port == 0 {
            "a free port of 127.0.0.1".to_owned()
        } else {
            format!("port {port} of 127.0.0.1, nor of the next loopback addresses")
        }
    )]
    NotBound {
        /// The port; 0 for any.
        port: u16,
        /// The system's error at 127.0.0.1.
        source: io::Error,
    },

    /// This node and the one with group rank 0 were given different ports.
    #[error(
        "--relay-port is {own} on this node, but the node with group rank 0 has port {proposed}: give all nodes the \
         same, or none"
    )]
    PortsDiffer {
        /// The port of this node.
        own: u16,
        /// The port of the node with group rank 0.
        proposed: u16,
    },

    /// The nodes of the round could not agree on the port, or the caller interrupted the start.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// The relay cannot run.
    #[error("cannot start the relay: {0}")]
    Start(RelayError),

    /// The relay has no session with the workers' store: it is not reached, or has another secret or no sessions.
    #[error("the relay has no session with the workers' store {master} after {:.1} s: {source}", waited.as_secs_f64())]
    NotConnected {
        /// The address of the workers' store.
        master: HostPort,
        /// The time that this node waited.
        waited: Duration,
        /// The error of the relay.
        source: RelayError,
    },
}

impl From<StoreError> for NodeRelayError {
    fn from(error: StoreError) -> Self {
        Self::Board(error.into())
    }
}

c10d_socket::debug_as_display!(NodeRelayError);

/// How many ports are proposed. A port that was just free on one machine is in use at 127.0.0.1 of one in a thousand
/// other machines, so a few proposals suffice for a hundred nodes, and this number for thousands.
const ATTEMPTS_MAX: u32 = 32;

/// How long a node waits until it reports that other nodes do not take part. Shorter than the time after which a silent node
/// counts as lost.
const SILENT: Duration = Duration::from_secs(5);

/// The number that a node adds to the count, and an additional number if it refuses the port.
const ONE: i64 = 1;
const REFUSED: i64 = 1 << 32;

/// The proposal of a node that has no further port.
const NONE: &str = "none";

/// One node of a round, for the agreement.
pub(crate) struct Member<'m> {
    pub(crate) board: &'m RoundBoard,
    pub(crate) group_rank: usize,
    pub(crate) group_world_size: usize,
    /// The port that the user has chosen.
    pub(crate) fixed: Option<u16>,
    /// How long to wait for the other nodes; `None` is indefinitely.
    pub(crate) timeout: Option<Duration>,
}

/// The last proposed port, and how many nodes have refused it.
type Refused = (u16, u64);

impl Member<'_> {
    /// Returns the port that all nodes have bound, and what this node has bound. `bind` takes a port, or 0 for any, and
    /// returns the port.
    pub(crate) fn agree<L>(
        &self,
        bind: impl Fn(u16) -> io::Result<(u16, L)>,
    ) -> Result<(u16, L), NodeRelayError> {
        let wait = Wait::new(self.timeout);
        let bind = |port| bind(port).map_err(|source| NodeRelayError::NotBound { port, source });
        let mut refused = None;
        for attempt in 0.. {
            let proposal = name(attempt, "port");
            let (port, bound) = if self.group_rank == 0 {
                let found = self.next_port(attempt, refused).and_then(&bind);
                let text = found.as_ref().map(|(port, _)| port.to_string());
                self.board.put(&proposal, text.as_deref().unwrap_or(NONE))?;
                let (port, listener) = found?;
                (port, Ok(listener))
            } else {
                let value = self.await_one(attempt, &proposal, "port for the relays", wait)?;
                if value == NONE.as_bytes() {
                    return Err(self.no_proposal(attempt, refused));
                }
                let expected = "a port from 1 to 65535";
                let port = self.board.parsed(&proposal, &value, expected, |value| {
                    parse(value).filter(|port| *port != 0)
                })?;
                let accepted = self.accept(port).and_then(&bind);
                (port, accepted.map(|(_, listener)| listener))
            };
            let refusals = self.verdict(attempt, bound.is_ok(), wait)?;
            match bound {
                Ok(listener) if refusals == 0 => return Ok((port, listener)),
                Ok(_) => {}
                // The same applies if the other nodes agreed before this node took part, because its launcher was
                // restarted.
                Err(error) if refusals == 0 => return Err(error),
                // This node refuses every other port: so all nodes fail at once.
                Err(NodeRelayError::PortsDiffer { .. }) => {}
                Err(error) => {
                    let why = in_brief(&error);
                    log::warn!("refused the port that was proposed for the relays: {why}");
                }
            }
            refused = Some((port, refusals));
        }
        Err(NodeRelayError::NoneProposed)
    }

    /// The port that the node with group rank 0 tries next; 0 for any.
    fn next_port(&self, attempt: u32, refused: Option<Refused>) -> Result<u16, NodeRelayError> {
        let attempts_max = self.fixed.map_or(ATTEMPTS_MAX, |_| 1);
        match refused {
            Some(refused) if attempt >= attempts_max => Err(self.no_free_port(attempt, refused)),
            _ => Ok(self.fixed.unwrap_or(0)),
        }
    }

    /// Whether this node can have another port than its user has chosen: it cannot.
    const fn accept(&self, proposed: u16) -> Result<u16, NodeRelayError> {
        match self.fixed {
            Some(own) if own != proposed => Err(NodeRelayError::PortsDiffer { own, proposed }),
            _ => Ok(proposed),
        }
    }

    /// Returns why the node with group rank 0 proposes no further port.
    fn no_proposal(&self, attempt: u32, refused: Option<Refused>) -> NodeRelayError {
        let Some(refused) = refused else {
            return NodeRelayError::NoneProposed;
        };
        let differs = self.accept(refused.0).err();
        differs.unwrap_or_else(|| self.no_free_port(attempt, refused))
    }

    fn no_free_port(&self, attempts: u32, (port, refusals): Refused) -> NodeRelayError {
        NodeRelayError::NoFreePort {
            port,
            refusals,
            group_world_size: self.group_world_size,
            attempts,
        }
    }

    /// Returns how many nodes have refused the port, as soon as all nodes have decided.
    fn verdict(&self, attempt: u32, is_bound: bool, wait: Wait) -> Result<u64, NodeRelayError> {
        let verdict = name(attempt, "refusals");
        let own = if is_bound { ONE } else { ONE + REFUSED };
        let (arrived, refusals) = split(self.board.count(&name(attempt, "nodes"), own)?);
        if usize::try_from(arrived) == Ok(self.group_world_size) {
            self.board.put(&verdict, refusals.to_string())?;
            return Ok(refusals);
        }
        let value = self.await_one(attempt, &verdict, "number of refusals", wait)?;
        let expected = "a number of refusals";
        Ok(self.board.parsed(&verdict, &value, expected, parse)?)
    }

    /// Waits for a value of another node. A torchrun node never writes one, and counts as lost while it waits for this node,
    /// so a round without an answer is reported early.
    fn await_one(
        &self,
        attempt: u32,
        name: &str,
        what: &'static str,
        wait: Wait,
    ) -> Result<Vec<u8>, NodeRelayError> {
        let is_long = self.timeout.is_none_or(|timeout| timeout > SILENT);
        let first = match is_long {
            true => Wait::new(Some(SILENT)),
            false => wait,
        };
        let mut value = self.board.await_one(name, what, first);
        if is_long && matches!(value, Err(BoardError::Missing { .. })) {
            let arrived = self.arrived(attempt)?;
            log::warn!(
                "waiting for the relays' port: {arrived} of {} nodes take part; every node needs --relay, or relay=1 in \
                 PET_RDZV_CONF under torchrun",
                self.group_world_size,
            );
            value = self.board.await_one(name, what, wait);
        }
        value.map_err(|error| self.absent(attempt, error))
    }

    /// Returns how many nodes have taken part in an attempt.
    fn arrived(&self, attempt: u32) -> Result<u64, BoardError> {
        let sum = self.board.counted(&name(attempt, "nodes"))?;
        Ok(split(i64::try_from(sum).unwrap_or_default()).0)
    }

    /// Names the nodes that have not taken part, instead of the missing value.
    fn absent(&self, attempt: u32, error: BoardError) -> NodeRelayError {
        let BoardError::Missing { waited, .. } = error else {
            return error.into();
        };
        match self.arrived(attempt) {
            Ok(arrived) => NodeRelayError::NodesMissing {
                arrived,
                group_world_size: self.group_world_size,
                waited,
            },
            Err(error) => error.into(),
        }
    }
}

fn name(attempt: u32, what: &str) -> String {
    format!("c10d/relay/{attempt}/{what}")
}

/// The numbers of nodes that have decided, and that have refused.
const fn split(sum: i64) -> (u64, u64) {
    let sum = sum.unsigned_abs();
    (sum % REFUSED.unsigned_abs(), sum / REFUSED.unsigned_abs())
}

fn parse<T: std::str::FromStr>(value: &[u8]) -> Option<T> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::{AtomicU16, Ordering};
    use std::thread;

    use std::sync::Arc;

    use c10d_socket::Cancel;
    use c10d_store::HashStore;

    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(20));
    const SHORT: Option<Duration> = Some(Duration::from_millis(10));

    const FREE: Range<u16> = 0..0;

    type Outcome = Result<u16, NodeRelayError>;

    /// The ports that are in use on a node, and the port that its user has chosen.
    type Node = (Range<u16>, Option<u16>);

    fn empty() -> RoundBoard {
        RoundBoard::new(Arc::new(HashStore::new()))
    }

    fn member<'m>(board: &'m RoundBoard, group_rank: usize, nodes: usize) -> Member<'m> {
        Member {
            board,
            group_rank,
            group_world_size: nodes,
            fixed: None,
            timeout: LONG,
        }
    }

    /// Listens on a machine where these ports are in use, and the system picks 5000, 5001, ...
    fn agree(member: &Member<'_>, used: &Range<u16>) -> Outcome {
        let pick = AtomicU16::new(5000);
        let (port, listener) = member.agree(|port| {
            let port = match port {
                0 => pick.fetch_add(1, Ordering::Relaxed),
                port => port,
            };
            match used.contains(&port) {
                true => Err(io::ErrorKind::AddrInUse.into()),
                false => Ok((port, port)),
            }
        })?;
        assert_eq!(port, listener);
        Ok(port)
    }

    /// The outcomes of nodes, by group rank.
    fn outcomes(board: &RoundBoard, nodes: &[Node]) -> Vec<Outcome> {
        thread::scope(|scope| {
            let count = nodes.len();
            let start = |(rank, (used, fixed)): (usize, &Node)| {
                let (used, fixed) = (used.clone(), *fixed);
                scope.spawn(move || {
                    let member = Member {
                        fixed,
                        ..member(board, rank, count)
                    };
                    agree(&member, &used)
                })
            };
            let nodes: Vec<_> = nodes.iter().enumerate().map(start).collect();
            nodes.into_iter().map(|node| node.join().unwrap()).collect()
        })
    }

    /// docs/spec/rendezvous.md, RELAY 1.
    #[test]
    fn nodes_agree_on_the_first_port_that_is_free_on_all() {
        let free = || (FREE, None);
        for (nodes, expected) in [
            (vec![free()], 5000),
            (vec![free(), free(), free()], 5000),
            (vec![free(), (5000..5001, None), (5000..5002, None)], 5002),
            (vec![free(), free(), (5000..5001, None), free()], 5001),
            (vec![(FREE, Some(7)), (FREE, Some(7)), free()], 7),
        ] {
            for outcome in outcomes(&empty(), &nodes) {
                assert_eq!(outcome.unwrap(), expected, "{nodes:?}");
            }
        }
    }

    /// docs/spec/rendezvous.md, RELAY 1. A chosen port is the only attempt.
    #[test]
    fn nodes_without_a_common_port_all_fail() {
        for (fixed, used, refused) in [
            (None, 5000..6000, "port 5031, the last of 32"),
            (Some(7), 7..8, "port 7, the last of 1"),
        ] {
            let nodes = [(FREE, fixed), (used, fixed), (FREE, fixed)];
            for outcome in outcomes(&empty(), &nodes) {
                assert_eq!(
                    outcome.unwrap_err().to_string(),
                    format!(
                        "no port was free for the relays of all nodes: 1 of 3 nodes refused {refused}; their logs say \
                         why; choose a port that is free on every node with --relay-port"
                    )
                );
            }
        }
    }

    #[test]
    fn a_first_node_without_a_port_fails_all_at_once() {
        let nodes = [(7..8, Some(7)), (FREE, Some(7))];
        let failed = outcomes(&empty(), &nodes);
        assert!(
            matches!(
                failed[..],
                [
                    Err(NodeRelayError::NotBound { port: 7, .. }),
                    Err(NodeRelayError::NoneProposed)
                ]
            ),
            "{failed:?}"
        );
    }

    /// docs/spec/rendezvous.md, RELAY 1.
    #[test]
    fn different_chosen_ports_are_an_error_on_all_nodes() {
        let nodes = [(FREE, Some(7)), (FREE, Some(9)), (FREE, None)];
        let failed = outcomes(&empty(), &nodes);
        assert!(
            matches!(
                failed[..],
                [
                    Err(NodeRelayError::NoFreePort {
                        port: 7,
                        refusals: 1,
                        ..
                    }),
                    Err(NodeRelayError::PortsDiffer {
                        own: 9,
                        proposed: 7
                    }),
                    Err(NodeRelayError::NoFreePort {
                        port: 7,
                        refusals: 1,
                        ..
                    }),
                ]
            ),
            "{failed:?}"
        );
        let nodes = [(FREE, None), (FREE, Some(9))];
        for outcome in outcomes(&empty(), &nodes) {
            outcome.unwrap_err();
        }
    }

    /// docs/spec/rendezvous.md, RELAY 3.
    #[test]
    fn a_node_without_a_relay_is_an_error_that_says_so() {
        let board = empty();
        let with_timeout = |rank| Member {
            timeout: SHORT,
            ..member(&board, rank, 3)
        };
        let error = agree(&with_timeout(1), &FREE).unwrap_err();
        assert!(
            matches!(error, NodeRelayError::NodesMissing { arrived: 0, .. }),
            "{error}"
        );
        let error = agree(&with_timeout(0), &FREE).unwrap_err();
        assert!(
            matches!(error, NodeRelayError::NodesMissing { arrived: 1, .. }),
            "{error}"
        );
        let error = agree(&with_timeout(2), &FREE).unwrap_err().to_string();
        assert!(error.starts_with("2 of 3 nodes took part"), "{error}");
        assert!(
            error.contains("every node of the round needs --relay"),
            "{error}"
        );
    }

    #[test]
    fn a_cancelled_agreement_ends() {
        let cancel = Cancel::new();
        cancel.cancel();
        let board = empty().with_cancel(&cancel);
        for rank in [1, 0] {
            let error = agree(&member(&board, rank, 2), &FREE).unwrap_err();
            assert!(
                matches!(error, NodeRelayError::Board(BoardError::Interrupted)),
                "{error}"
            );
        }
    }

    /// docs/spec/rendezvous.md, RELAY 3.
    #[test]
    fn a_launcher_that_is_started_again_takes_the_port_of_the_others() {
        let board = empty();
        outcomes(&board, &[(FREE, None), (FREE, None), (5000..5001, None)]);
        assert_eq!(agree(&member(&board, 1, 3), &FREE).unwrap(), 5001);
        let error = agree(&member(&board, 1, 3), &(5001..5002)).unwrap_err();
        assert!(
            matches!(error, NodeRelayError::NotBound { port: 5001, .. }),
            "{error}"
        );
    }

    #[test]
    fn a_malformed_value_of_another_node_is_an_error_that_shows_it() {
        for text in ["", "0", "65536", "-1", "port"] {
            let board = empty();
            board.put("c10d/relay/0/port", text).unwrap();
            let error = agree(&member(&board, 1, 2), &FREE).unwrap_err();
            assert!(
                matches!(&error, NodeRelayError::Board(BoardError::Malformed { value, .. }) if value == text),
                "{text}: {error}"
            );
        }
    }
}
