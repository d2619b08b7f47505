//! Finds the address at which this node reaches the workers' store, before the node starts workers.

use std::net::IpAddr;
use std::time::Duration;

use c10d_socket::{Cancel, HostPort};

use crate::shell::address_search::{ReachOptions, Reached, find_reachable};
use crate::shell::bootstrap::NotFound;
use crate::shell::handler::BootstrapInfo;
use crate::values::error::RendezvousError;
use crate::values::node::NodeId;
use crate::values::start_warnings::{StartWarnings, WarningKind};
use crate::values::store_access::StoreRoute;

/// The longest search for an address that works.
const LIMIT: Duration = Duration::from_secs(30);

/// The inputs of a search.
#[derive(Debug)]
pub(crate) struct Search<'s> {
    pub(crate) run_id: &'s str,
    /// The node with rank 0.
    pub(crate) first: &'s NodeId,
    pub(crate) route: &'s StoreRoute,
    /// The limit of the search, if it is below 30 s.
    pub(crate) limit: Duration,
    pub(crate) cancel: &'s Cancel,
    /// Gets a note if the published address does not work here.
    pub(crate) warnings: &'s StartWarnings,
}

/// A published address of the workers' store, and the address at which this node reaches that store.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    published: HostPort,
    reached: HostPort,
}

/// Returns the workers' store at an address that works from here, which may differ from the published one. `known` is
/// the result of an earlier round, and is used again if the world has not changed.
///
/// Does nothing for a store that this process serves or follows, or that a worker will serve. Blocks for at most the
/// limit of the search, and at most 30 s.
pub(crate) fn verify(
    bootstrap: BootstrapInfo,
    known: &mut Option<Known>,
    is_same_world: bool,
    search: &Search<'_>,
) -> Result<BootstrapInfo, NotFound> {
    // Where the rendezvous itself is the workers' store at the same address, its connection is the proof.
    let is_proven =
        bootstrap.is_rendezvous_store && search.route.endpoint.as_ref() == Some(&bootstrap.master);
    let is_at_hand = bootstrap.at_hand.store().is_some();
    if !bootstrap.is_agent_store || is_at_hand || bootstrap.followed.is_some() || is_proven {
        return Ok(bootstrap);
    }
    let again = known
        .as_ref()
        .filter(|known| is_same_world && known.published == bootstrap.master);
    if let Some(Known { reached, .. }) = again {
        let master = reached.clone();
        return Ok(BootstrapInfo {
            master,
            ..bootstrap
        });
    }
    let addresses = candidates(&bootstrap, search.route);
    let options = ReachOptions::new(LIMIT.min(search.limit))
        .with_owner(search.run_id)
        .with_credentials(bootstrap.credentials.clone())
        .with_log_name(format!("the workers' store of {}", search.first.named()))
        .with_cancel(search.cancel.clone());
    let reached = match find_reachable(&addresses, &options) {
        Ok(Reached { index, .. }) => addresses[index].clone(),
        Err(error) if error.is_cancelled => return Err(NotFound::Interrupted),
        Err(error) => {
            return Err(NotFound::Failed(RendezvousError::StoreUnreachable {
                node: search.first.addr.to_string(),
                port: bootstrap.master.port(),
                error,
            }));
        }
    };
    if reached != bootstrap.master {
        let text = format!(
            "the workers' store does not answer at {}: this node uses {reached}",
            bootstrap.master,
        );
        search.warnings.add(WarningKind::Route, text);
    }
    *known = Some(Known {
        published: bootstrap.master.clone(),
        reached: reached.clone(),
    });
    Ok(BootstrapInfo {
        master: reached,
        ..bootstrap
    })
}

/// Returns the addresses at which this node may reach the store, the preferred one first, each once.
fn candidates(bootstrap: &BootstrapInfo, route: &StoreRoute) -> Vec<HostPort> {
    let port = bootstrap.master.port();
    let at = |host: &str| HostPort::new(host, port);
    // An address of one link has no meaning without its interface, which a `HostPort` does not have.
    let is_usable = |ip: IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let remote = route.remote.filter(|it| is_usable(it.ip()));
    let remote = remote.map(|it| (it.ip().to_canonical().to_string(), it.port()));
    let of_rendezvous = match &route.endpoint {
        // The port in this node's endpoint leads to the same store.
        Some(endpoint) if bootstrap.is_rendezvous_store => [
            remote.map(|(host, port)| HostPort::new(host, port)),
            Some(endpoint.clone()),
        ],
        endpoint => [
            remote.map(|(host, _)| at(&host)),
            endpoint.as_ref().map(|endpoint| at(endpoint.host())),
        ],
    };
    let named = [
        Some(bootstrap.master.clone()),
        bootstrap.master_name.as_deref().map(at),
    ];
    // If this node serves the store of the rendezvous, both ends of its connection are here.
    let peers = route.peers.iter().filter(|ip| is_usable(**ip));
    let peers = peers.map(|ip| at(&ip.to_string()));
    let others = named.into_iter().chain(of_rendezvous).flatten();
    let mut candidates: Vec<HostPort> = Vec::new();
    for candidate in others.chain(peers) {
        if !candidates.contains(&candidate) {
            candidates.push(candidate);
        }
    }
    candidates
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use c10d_store::{Store, StoreExt, TcpStore, TcpStoreOptions};

    use super::*;

    fn route(endpoint: &str, remote: &str) -> StoreRoute {
        let (host, port) = endpoint.rsplit_once(':').unwrap();
        StoreRoute {
            endpoint: Some(HostPort::new(host, port.parse().unwrap())),
            remote: Some(remote.parse().unwrap()),
            ..StoreRoute::default()
        }
    }

    fn at(host: &str, port: u16) -> BootstrapInfo {
        BootstrapInfo::new(HostPort::new(host, port), true, true)
    }

    fn texts(candidates: &[HostPort]) -> Vec<String> {
        candidates.iter().map(HostPort::to_string).collect()
    }

    /// docs/spec/rendezvous.md, BOOT 15.
    #[test]
    fn the_candidates_are_each_named_once_in_the_order_of_preference() {
        let bootstrap = BootstrapInfo {
            master_name: Some("node0.example".to_owned()),
            ..at("192.168.77.5", 4000)
        };
        let found = candidates(&bootstrap, &route("head:29500", "[::ffff:10.8.8.1]:29500"));
        assert_eq!(
            texts(&found),
            [
                "192.168.77.5:4000",
                "node0.example:4000",
                "10.8.8.1:4000",
                "head:4000"
            ]
        );
        let found = candidates(
            &at("10.8.8.1", 4000),
            &route("10.8.8.1:29500", "10.8.8.1:29500"),
        );
        assert_eq!(texts(&found), ["10.8.8.1:4000"]);
        let found = candidates(&at("10.8.8.1", 4000), &StoreRoute::default());
        assert_eq!(texts(&found), ["10.8.8.1:4000"]);
        // This node serves the store of the rendezvous.
        let served = StoreRoute {
            peers: ["10.8.8.1", "fe80::2", "fd00:8::3"]
                .map(|ip| ip.parse().unwrap())
                .to_vec(),
            ..route("10.8.8.2:29500", "10.8.8.2:29500")
        };
        let found = candidates(&at("name", 4000), &served);
        let expected = [
            "name:4000",
            "10.8.8.2:4000",
            "10.8.8.1:4000",
            "[fd00:8::3]:4000",
        ];
        assert_eq!(texts(&found), expected);
    }

    /// docs/spec/rendezvous.md, BOOT 15.
    #[test]
    fn a_shared_store_is_also_reached_at_the_port_of_the_endpoint() {
        let bootstrap = BootstrapInfo {
            is_rendezvous_store: true,
            ..at("10.8.8.1", 29500)
        };
        let found = candidates(&bootstrap, &route("gateway:30678", "10.8.8.2:30678"));
        assert_eq!(
            texts(&found),
            ["10.8.8.1:29500", "10.8.8.2:30678", "gateway:30678"]
        );
    }

    fn verified(
        bootstrap: BootstrapInfo,
        route: &StoreRoute,
        known: &mut Option<Known>,
        limit: Duration,
    ) -> Result<HostPort, NotFound> {
        let search = Search {
            run_id: "job",
            first: &NodeId::new("node0", 7, 0),
            route,
            limit,
            cancel: &Cancel::NEVER,
            warnings: &StartWarnings::default(),
        };
        verify(bootstrap, known, true, &search).map(|bootstrap| bootstrap.master)
    }

    fn server() -> TcpStore {
        let options = TcpStoreOptions::default().with_master(true);
        TcpStore::open("127.0.0.1", 0, options).unwrap()
    }

    /// docs/spec/rendezvous.md, BOOT 15 and 16.
    #[test]
    fn an_address_that_does_not_work_is_replaced_and_the_answer_is_kept() {
        let store = server();
        let route = route("127.0.0.1:29500", "127.0.0.1:29500");
        let bootstrap = at("name.invalid", store.port());
        let mut known = None;
        let long = Duration::from_secs(60);
        let here = HostPort::new("127.0.0.1", store.port());
        let found = verified(bootstrap.clone(), &route, &mut known, long);
        assert_eq!(found.unwrap(), here);
        drop(store);
        assert_eq!(verified(bootstrap, &route, &mut known, long).unwrap(), here);
    }

    /// docs/spec/rendezvous.md, BOOT 17.
    #[test]
    fn the_store_of_another_job_does_not_count() {
        let store = server();
        store.set("c10d/workers_of", b"other".as_slice()).unwrap();
        let route = StoreRoute::default();
        // Long enough for one answer of the store.
        let limit = Duration::from_secs(3);
        let error = verified(at("127.0.0.1", store.port()), &route, &mut None, limit);
        let NotFound::Failed(error) = error.unwrap_err() else {
            panic!("it was not tried");
        };
        let text = error.to_string();
        assert!(
            text.contains("(the store of another job, \"other\")"),
            "{text}"
        );
        for part in ["node0", "--workers-port", "--local-addr"] {
            assert!(text.contains(part), "{text}");
        }
        store.set("c10d/workers_of", b"job".as_slice()).unwrap();
        verified(at("127.0.0.1", store.port()), &route, &mut None, limit).unwrap();
    }

    /// docs/spec/rendezvous.md, BOOT 15.
    #[test]
    fn a_store_that_needs_no_proof_is_not_asked() {
        let own: Arc<dyn Store> = Arc::new(server());
        let endpoint = route("127.0.0.1:1", "127.0.0.1:1");
        let shared = BootstrapInfo {
            is_rendezvous_store: true,
            ..at("127.0.0.1", 1)
        };
        for bootstrap in [
            at("127.0.0.1", 1).with_at_hand(&own),
            BootstrapInfo::new(HostPort::new("127.0.0.1", 1), false, false),
            shared,
        ] {
            let found = verified(bootstrap, &endpoint, &mut None, Duration::ZERO);
            assert_eq!(found.unwrap(), HostPort::new("127.0.0.1", 1));
        }
    }
}
