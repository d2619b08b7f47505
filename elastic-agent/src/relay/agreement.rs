//! Agrees on the port of the relays of a round (docs/rendezvous.md, section 12.3).
//!
//! All nodes need the same one: PyTorch's workers tell each other the MASTER_PORT of rank 0. The node with group rank 0
//! proposes a port, every node counts itself, and the node that completes the count publishes how many have refused.
//! Three requests of each node for a port.

use std::io;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use c10d_store::{Store, StoreError, StoreExt};

use super::error::NodeRelayError;
use crate::exchanged::{MalformedValue, in_time};

/// How many ports are proposed. A port that was just free on one machine is in use at 127.0.0.1 of another for one in a
/// thousand, so a few suffice for a hundred nodes, and this many for thousands.
const ATTEMPTS_MAX: u32 = 32;

/// What a node adds to the count, and what in addition if it refuses the port.
const ONE: i64 = 1;
const REFUSED: i64 = 1 << 32;

/// The proposal of a node that has no further port.
const NONE: &str = "none";

/// The longest value that is read.
const VALUE_BYTES_MAX: usize = 32;

/// One node of a round, for the agreement.
pub(super) struct Member<'m> {
    /// The round's.
    pub(super) store: &'m dyn Store,
    pub(super) group_rank: usize,
    pub(super) group_world_size: usize,
    /// The port that the user has chosen.
    pub(super) fixed: Option<u16>,
    /// How long to wait for the other nodes; `None` is indefinitely.
    pub(super) timeout: Option<Duration>,
}

impl Member<'_> {
    /// Returns the port that all nodes have bound, and what this node has bound. `bind` takes a port, or 0 for any, and
    /// returns the port.
    pub(super) fn agree<L>(
        &self,
        bind: impl Fn(u16) -> io::Result<(u16, L)>,
    ) -> Result<(u16, L), NodeRelayError> {
        let started = Instant::now();
        let deadline = Deadline::after(started, self.timeout);
        let mut last = None;
        for attempt in 0.. {
            let (port, bound) = if self.group_rank == 0 {
                let (port, listener) = self.propose(attempt, last, &bind)?;
                (port, Ok(listener))
            } else {
                let port = self.proposal(attempt, last, started, deadline)?;
                (port, self.bind_proposed(port, &bind))
            };
            let refusals = self.verdict(attempt, bound.is_ok(), started, deadline)?;
            match bound {
                Ok(listener) if refusals == 0 => return Ok((port, listener)),
                Ok(_) => {}
                // Also if the others agreed before this node took part: its launcher was started again.
                Err(error) if refusals == 0 => return Err(error),
                // This node refuses every other port: so all nodes fail at once.
                Err(NodeRelayError::PortsDiffer { .. }) => {}
                Err(error) => {
                    log::warn!("refused the port that was proposed for the relays: {error}");
                }
            }
            last = Some((port, refusals));
        }
        Err(NodeRelayError::NoneProposed)
    }

    /// Proposes a port that this node has bound. After the last attempt, tells the others that there is no other.
    fn propose<L>(
        &self,
        attempt: u32,
        last: Option<(u16, u64)>,
        bind: impl Fn(u16) -> io::Result<(u16, L)>,
    ) -> Result<(u16, L), NodeRelayError> {
        let attempts_max = if self.fixed.is_some() {
            1
        } else {
            ATTEMPTS_MAX
        };
        let wanted = self.fixed.unwrap_or(0);
        let found = match last {
            Some(last) if attempt >= attempts_max => Err(self.no_free_port(last, attempt)),
            _ => bind(wanted).map_err(|source| NodeRelayError::NotBound {
                port: wanted,
                source,
            }),
        };
        let text = match &found {
            Ok((port, _)) => port.to_string(),
            Err(_) => NONE.to_owned(),
        };
        self.store.set(&key(attempt, "port"), text.as_bytes())?;
        found
    }

    /// The port that the node with group rank 0 proposes.
    fn proposal(
        &self,
        attempt: u32,
        last: Option<(u16, u64)>,
        started: Instant,
        deadline: Deadline,
    ) -> Result<u16, NodeRelayError> {
        let key = key(attempt, "port");
        let value = self.get(&key, deadline)?;
        let value = value.ok_or_else(|| NodeRelayError::NotProposed {
            waited: started.elapsed(),
        })?;
        if value == NONE.as_bytes() {
            return Err(match (last, self.fixed) {
                (Some((proposed, _)), Some(own)) if own != proposed => {
                    NodeRelayError::PortsDiffer { own, proposed }
                }
                (Some(last), _) => self.no_free_port(last, attempt),
                (None, _) => NodeRelayError::NoneProposed,
            });
        }
        parse(&value)
            .filter(|port| *port != 0)
            .ok_or_else(|| self.malformed(&key, &value, "a port from 1 to 65535"))
    }

    fn bind_proposed<L>(
        &self,
        port: u16,
        bind: impl Fn(u16) -> io::Result<(u16, L)>,
    ) -> Result<L, NodeRelayError> {
        match self.fixed {
            Some(own) if own != port => Err(NodeRelayError::PortsDiffer {
                own,
                proposed: port,
            }),
            _ => match bind(port) {
                Ok((_, listener)) => Ok(listener),
                Err(source) => Err(NodeRelayError::NotBound { port, source }),
            },
        }
    }

    /// How many nodes have refused the port, as soon as all have decided.
    fn verdict(
        &self,
        attempt: u32,
        is_bound: bool,
        started: Instant,
        deadline: Deadline,
    ) -> Result<u64, NodeRelayError> {
        let (counter, verdict) = (key(attempt, "nodes"), key(attempt, "refusals"));
        let own = if is_bound { ONE } else { ONE + REFUSED };
        let (arrived, refusals) = split(self.store.add(&counter, own)?);
        if usize::try_from(arrived) == Ok(self.group_world_size) {
            let text = refusals.to_string();
            self.store.set(&verdict, text.as_bytes())?;
            return Ok(refusals);
        }
        match self.get(&verdict, deadline)? {
            Some(value) => parse(&value)
                .ok_or_else(|| self.malformed(&verdict, &value, "a number of refusals")),
            None => Err(NodeRelayError::NodesMissing {
                arrived: split(self.store.add(&counter, 0)?).0,
                group_world_size: self.group_world_size,
                waited: started.elapsed(),
            }),
        }
    }

    /// The value of a key as soon as it exists. `None` after the deadline.
    fn get(&self, key: &str, deadline: Deadline) -> Result<Option<Vec<u8>>, NodeRelayError> {
        let left = deadline.remaining(Instant::now());
        Ok(in_time(self.store.get_timeout(key, left))?)
    }

    fn no_free_port(&self, (port, refusals): (u16, u64), attempts: u32) -> NodeRelayError {
        NodeRelayError::NoFreePort {
            port,
            refusals,
            group_world_size: self.group_world_size,
            attempts,
        }
    }

    fn malformed(&self, key: &str, value: &[u8], expected: &'static str) -> NodeRelayError {
        MalformedValue::new(self.store, key, value, expected).into()
    }
}

/// Removes the keys of an agreement from the store of an earlier round.
pub(super) fn forget(store: &dyn Store) -> Result<(), StoreError> {
    for attempt in 0..=ATTEMPTS_MAX {
        if !store.delete_key(&key(attempt, "port"))? {
            break;
        }
        store.delete_key(&key(attempt, "nodes"))?;
        store.delete_key(&key(attempt, "refusals"))?;
    }
    Ok(())
}

fn key(attempt: u32, what: &str) -> String {
    format!("c10d/relay/{attempt}/{what}")
}

/// The numbers of nodes that have decided, and that have refused.
const fn split(sum: i64) -> (u64, u64) {
    let sum = sum.unsigned_abs();
    (sum % REFUSED.unsigned_abs(), sum / REFUSED.unsigned_abs())
}

fn parse<T: std::str::FromStr>(value: &[u8]) -> Option<T> {
    if value.len() > VALUE_BYTES_MAX {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::{AtomicU16, Ordering};
    use std::thread;

    use c10d_socket::Cancel;
    use c10d_store::{HashStore, StoreHandle};

    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(20));
    const SHORT: Option<Duration> = Some(Duration::from_millis(10));

    const FREE: Range<u16> = 0..0;

    type Outcome = Result<u16, NodeRelayError>;

    /// The ports that are in use on a node, and the one that its user has chosen.
    type Node = (Range<u16>, Option<u16>);

    fn member<'m>(store: &'m dyn Store, group_rank: usize, nodes: usize) -> Member<'m> {
        Member {
            store,
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
    fn outcomes(store: &HashStore, nodes: &[Node]) -> Vec<Outcome> {
        thread::scope(|scope| {
            let count = nodes.len();
            let start = |(rank, (used, fixed)): (usize, &Node)| {
                let (used, fixed) = (used.clone(), *fixed);
                scope.spawn(move || {
                    let member = Member {
                        fixed,
                        ..member(store, rank, count)
                    };
                    agree(&member, &used)
                })
            };
            let nodes: Vec<_> = nodes.iter().enumerate().map(start).collect();
            nodes.into_iter().map(|node| node.join().unwrap()).collect()
        })
    }

    /// docs/rendezvous.md, RELAY 1.
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
            for outcome in outcomes(&HashStore::new(), &nodes) {
                assert_eq!(outcome.unwrap(), expected, "{nodes:?}");
            }
        }
    }

    /// docs/rendezvous.md, RELAY 1.
    #[test]
    fn nodes_without_a_common_port_all_fail() {
        let nodes = [(FREE, None), (5000..6000, None), (FREE, None)];
        for outcome in outcomes(&HashStore::new(), &nodes) {
            assert_eq!(
                outcome.unwrap_err().to_string(),
                "no port was free for the relays of all nodes: 1 of 3 nodes refused port 5031, the last of 32; their \
                 logs say why; choose a port that is free on every node with --relay-port"
            );
        }
    }

    /// docs/rendezvous.md, RELAY 1.
    #[test]
    fn a_chosen_port_is_the_only_attempt() {
        let nodes = [(FREE, Some(7)), (7..8, Some(7)), (FREE, Some(7))];
        for outcome in outcomes(&HashStore::new(), &nodes) {
            let error = outcome.unwrap_err().to_string();
            assert!(
                error.contains("1 of 3 nodes refused port 7, the last of 1"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_first_node_without_a_port_fails_all_at_once() {
        let nodes = [(7..8, Some(7)), (FREE, Some(7))];
        let failed = outcomes(&HashStore::new(), &nodes);
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

    /// docs/rendezvous.md, RELAY 1.
    #[test]
    fn different_chosen_ports_are_an_error_on_all_nodes() {
        let nodes = [(FREE, Some(7)), (FREE, Some(9)), (FREE, None)];
        let failed = outcomes(&HashStore::new(), &nodes);
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
        for outcome in outcomes(&HashStore::new(), &nodes) {
            outcome.unwrap_err();
        }
    }

    /// docs/rendezvous.md, RELAY 3.
    #[test]
    fn a_node_without_a_relay_is_an_error_that_says_so() {
        let store = HashStore::new();
        let with_timeout = |rank| Member {
            timeout: SHORT,
            ..member(&store, rank, 3)
        };
        let error = agree(&with_timeout(1), &FREE).unwrap_err();
        assert!(
            matches!(error, NodeRelayError::NotProposed { .. }),
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
        let store = HashStore::new().with_cancel(&cancel);
        for rank in [1, 0] {
            let error = agree(&member(&*store, rank, 2), &FREE).unwrap_err();
            assert!(matches!(error, NodeRelayError::Interrupted), "{error}");
        }
    }

    /// docs/rendezvous.md, RELAY 3.
    #[test]
    fn a_launcher_that_is_started_again_takes_the_port_of_the_others() {
        let store = HashStore::new();
        outcomes(&store, &[(FREE, None), (FREE, None), (5000..5001, None)]);
        assert_eq!(agree(&member(&store, 1, 3), &FREE).unwrap(), 5001);
        let error = agree(&member(&store, 1, 3), &(5001..5002)).unwrap_err();
        assert!(
            matches!(error, NodeRelayError::NotBound { port: 5001, .. }),
            "{error}"
        );
    }

    #[test]
    fn a_malformed_value_of_another_node_is_an_error_that_shows_it() {
        for text in ["", "0", "65536", "-1", "port"] {
            let store = HashStore::new();
            store.set("c10d/relay/0/port", text.as_bytes()).unwrap();
            let error = agree(&member(&store, 1, 2), &FREE).unwrap_err();
            assert!(
                matches!(&error, NodeRelayError::Malformed(it) if it.value == text),
                "{text}: {error}"
            );
        }
    }
}
