//! Chooses how nodes find each other, with torchrun 2.15's defaults (`torch/distributed/run.py`).
//!
//! Values that a scheduler's environment names are used where none is given.

use std::collections::BTreeMap;

use c10d_socket::is_loopback_name;
use elastic_agent::scheduler::{Found, Sourced};
use elastic_rendezvous::{
    C10D_BACKEND, DEFAULT_PORT, Endpoint, EndpointError, RendezvousParameters, STATIC_BACKEND,
    StartWarning, WarningKind,
};

use super::arguments::{Origin, Parsed, Surroundings, value_of};
use super::error::{Given, Refusal, UsageError};
use super::nodes::{Backend, NodeArgs, node_counts};
use super::timeouts::STATIC_USUAL;
use super::values::whole_number;
use crate::serve::DEFAULT_PORT as STATIC_PORT;
use crate::server_address::{StorePlace, is_in_etcd};

/// The way in which nodes find each other, and the rank of this node, if it has a rank before they do.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) parameters: RendezvousParameters,
    pub(super) node_rank: Option<usize>,
    /// The origins of the values.
    pub(super) origins: Vec<Origin>,
}

/// `1` on all nodes: the worker with rank 0 serves the workers' store, instead of an agent.
const DISABLE_SHARED_STORE: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";

/// The order in which origins are shown.
const ORDER: [&str; 4] = ["nodes", "node rank", "endpoint", "run id"];

/// The way in which the nodes find each other.
#[derive(Debug)]
enum Meeting {
    /// The job has one node.
    Alone {
        /// Whether --standalone was given; otherwise it is the default.
        asked_for: bool,
    },
    /// The nodes meet at a store that any node may serve; `None` for the default endpoint.
    C10d(Option<Place>),
    /// The nodes meet at a store that node 0 serves; each node has its rank.
    Static(Place),
}

/// An endpoint.
#[derive(Debug)]
struct Place {
    endpoint: Given,
    /// Whether the scheduler names it, so that it is on the node with rank 0.
    is_found: bool,
}

impl Place {
    fn given(endpoint: Given) -> Self {
        Self {
            endpoint,
            is_found: false,
        }
    }
}

/// The source of the id of the run.
enum RunId {
    /// The id is given by an option or the scheduler.
    Given(Given),
    /// The id is random, for a job of one node.
    Random,
    /// torchrun's.
    Default,
}

/// The rank of this node before the nodes meet.
#[derive(Default)]
struct Rank {
    number: Option<usize>,
    given: Option<Given>,
}

impl NodeArgs {
    /// Chooses, and warns of options without effect.
    pub(super) fn choose(
        &self,
        found: Option<&Found>,
        surroundings: &Surroundings<'_>,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<Chosen, UsageError> {
        let mut origins = Vec::new();
        let (min_nodes, max_nodes) = match self.nodes(found)? {
            Some(nodes) => {
                origins.push(origin("nodes", nodes.given.clone()));
                nodes.value()?
            }
            None => (1, 1),
        };
        let meeting = self.meeting(found, max_nodes, warnings)?;
        let mut config = self.rdzv_conf.value()?;
        let is_together = !matches!(meeting, Meeting::Alone { .. });
        let found_here = found.filter(|_| is_together);
        let run_id = match self.run_id(&meeting, found_here, warnings) {
            RunId::Given(given) => {
                origins.push(origin("run id", given.clone()));
                given.value
            }
            RunId::Random => random_id(surroundings.seed),
            RunId::Default => "none".to_owned(),
        };
        let rank = self.rank(&meeting, found_here, max_nodes, warnings)?;
        origins.extend(rank.given.map(|given| origin("node rank", given)));
        self.add_settings(&meeting, rank.number, &mut config, warnings)?;
        let (backend, place) = match meeting {
            Meeting::Alone { .. } => (C10D_BACKEND, None),
            Meeting::C10d(place) => (C10D_BACKEND, place),
            Meeting::Static(place) => (STATIC_BACKEND, Some(place)),
        };
        let store_type = config.get("store_type");
        let is_file = store_type.is_some_and(|store| store.eq_ignore_ascii_case("file"));
        if let Some(place) = &place
            && (!is_file || backend == STATIC_BACKEND)
        {
            check_endpoint(backend, &place.endpoint, found_here, max_nodes)?;
        }
        let endpoint = match place {
            Some(place) => {
                origins.push(origin("endpoint", place.endpoint.clone()));
                place.endpoint.value
            }
            None if is_together => String::new(),
            None => "localhost:0".to_owned(),
        };
        origins.sort_by_key(|origin| ORDER.iter().position(|name| *name == origin.name));
        if backend == C10D_BACKEND && surroundings.is_on(DISABLE_SHARED_STORE) {
            config.insert("share_store".to_owned(), "0".to_owned());
        }
        // PyTorch's launcher always adds it; its static backend reads it.
        config
            .entry("timeout".to_owned())
            .or_insert_with(|| STATIC_USUAL.to_owned());
        match RendezvousParameters::new(backend, endpoint, run_id, min_nodes, max_nodes) {
            Ok(parameters) => Ok(Chosen {
                parameters: parameters
                    .with_local_addr(self.local_addr.value()?)
                    .with_config(config),
                node_rank: rank.number,
                origins,
            }),
            Err(error) => Err(Given {
                name: "--nnodes".to_owned(),
                value: format!("{min_nodes}:{max_nodes}"),
            }
            .refused(Refusal::because(error))),
        }
    }

    fn run_id(
        &self,
        meeting: &Meeting,
        found: Option<&Found>,
        warnings: &mut Vec<StartWarning>,
    ) -> RunId {
        let given = self.rdzv_id.as_ref().map(|id| id.given.clone());
        if let Meeting::Alone { asked_for } = meeting {
            if let Some(given) = given.filter(|_| !asked_for) {
                warnings.push(given.has_no_effect("a job of one node gets a random id"));
            }
            return RunId::Random;
        }
        let of_scheduler = || found?.run_id.as_ref().ok().map(as_given);
        given
            .or_else(of_scheduler)
            .map_or(RunId::Default, RunId::Given)
    }

    /// The rank of this node, if the meeting needs one or the scheduler names one.
    fn rank(
        &self,
        meeting: &Meeting,
        found: Option<&Found>,
        max_nodes: usize,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<Rank, UsageError> {
        let given = self.node_rank.clone();
        match meeting {
            Meeting::Static(_) => {
                let rank = match (given, found) {
                    (None, Some(found)) if max_nodes > 1 => {
                        Some(known(found, &found.node_rank, "--node-rank")?.read(whole_number))
                    }
                    (given, _) => given,
                };
                let number = rank
                    .as_ref()
                    .map_or(Ok(0), |it| rank_among(it, max_nodes))?;
                Ok(Rank {
                    number: Some(number),
                    given: rank.map(|rank| rank.given),
                })
            }
            // The endpoint is on the node with rank 0, which may have further names.
            Meeting::C10d(Some(Place { is_found: true, .. })) => {
                if let Some(found) = found
                    && given.is_none()
                    && found.contradiction.is_some()
                {
                    known(found, &found.node_rank, "--node-rank")?;
                }
                let of_scheduler = || found?.node_rank.as_ref().ok().map(as_given);
                let rank = given.or_else(|| Some(of_scheduler()?.read(whole_number)));
                Ok(Rank {
                    number: rank.as_ref().map(Parsed::value).transpose()?,
                    given: rank.map(|rank| rank.given),
                })
            }
            _ => {
                if let Some(rank) = given
                    && rank.value()? != 0
                {
                    let why = "only the static backend uses node ranks";
                    warnings.push(rank.given.has_no_effect(why));
                }
                Ok(Rank::default())
            }
        }
    }

    /// Adds the settings that follow from the rank of this node and the wait of a spare.
    fn add_settings(
        &self,
        meeting: &Meeting,
        rank: Option<usize>,
        config: &mut BTreeMap<String, String>,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<(), UsageError> {
        match (meeting, rank) {
            (Meeting::Static(_), Some(rank)) => {
                config.insert("rank".to_owned(), rank.to_string());
            }
            (_, Some(rank)) => {
                let is_host = u8::from(rank == 0).to_string();
                config.entry("is_host".to_owned()).or_insert(is_host);
            }
            (_, None) => {}
        }
        let Some(wait) = &self.spare_wait else {
            return Ok(());
        };
        if matches!(meeting, Meeting::Static(_)) {
            warnings.push(wait.given.has_no_effect("the static backend has no spares"));
        } else {
            let seconds = wait.value()?.as_secs_f64();
            config.insert("spare_wait".to_owned(), seconds.to_string());
        }
        Ok(())
    }

    /// The number of nodes; `None` for one node by default.
    fn nodes(&self, found: Option<&Found>) -> Result<Option<Parsed<(usize, usize)>>, UsageError> {
        match (&self.nnodes, found) {
            (Some(nodes), _) => Ok(Some(nodes.clone())),
            (None, Some(found)) if !self.standalone => {
                let given = known(found, &found.nodes, "--nnodes")?;
                Ok(Some(given.read(node_counts)))
            }
            (None, _) => Ok(None),
        }
    }

    fn meeting(
        &self,
        found: Option<&Found>,
        max_nodes: usize,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<Meeting, UsageError> {
        let is_standalone = self.standalone;
        let endpoint = self.rdzv_endpoint.as_ref().map(|it| it.given.clone());
        let endpoint = endpoint.filter(|given| !given.value.is_empty());
        let master_addr = self.master_addr.as_ref().map(|it| it.given.clone());
        let master_port = self.master_port.as_ref().map(|it| it.given.clone());
        let port = value_of(&self.master_port)?.unwrap_or(STATIC_PORT);
        let is_given =
            self.rdzv_backend.is_some() || master_addr.is_some() || master_port.is_some();
        let is_static = match &self.rdzv_backend {
            Some(backend) if !is_standalone => backend.value()? == Backend::Static,
            // Such a rendezvous has no first node.
            _ => !endpoint.as_ref().is_some_and(|it| is_in_etcd(&it.value)),
        };

        let is_one_node = max_nodes == 1 && master_port.is_none();
        // A single node needs no other, and so no endpoint that others can reach.
        let found = found.filter(|_| max_nodes > 1);
        let of_scheduler = |found: &Found| {
            Ok::<_, UsageError>(Place {
                endpoint: known(found, &found.endpoint, "--rdzv-endpoint")?,
                is_found: true,
            })
        };
        let meeting = match (endpoint, found) {
            _ if is_standalone => Meeting::Alone { asked_for: true },
            (Some(endpoint), _) if !is_static => Meeting::C10d(Some(Place::given(endpoint))),
            (Some(endpoint), _) => Meeting::Static(Place::given(endpoint)),
            (None, Some(found)) if !is_static => Meeting::C10d(Some(of_scheduler(found)?)),
            (None, None) if !is_static => {
                if max_nodes > 1 {
                    warnings.push(default_is_local("localhost", DEFAULT_PORT, max_nodes));
                }
                Meeting::C10d(None)
            }
            (None, _) if is_one_node => Meeting::Alone { asked_for: false },
            // Nodes may be replaced: the c10d rendezvous.
            (None, Some(found)) if !is_given => Meeting::C10d(Some(of_scheduler(found)?)),
            (None, Some(found)) if master_addr.is_none() => {
                let mut place = of_scheduler(found)?;
                if let Some(given) = &master_port {
                    let host = read_endpoint(&place.endpoint)?.with_default_port(port);
                    place.endpoint = Given {
                        name: format!("{}, {}", place.endpoint.name, given.name),
                        value: c10d_socket::HostPort::new(host.host(), port).to_string(),
                    };
                }
                return Ok(Meeting::Static(place));
            }
            (None, _) => {
                let host = master_addr.unwrap_or_else(|| {
                    if max_nodes > 1 {
                        warnings.push(default_is_local("127.0.0.1", port, max_nodes));
                    }
                    Given {
                        name: "--master-addr".to_owned(),
                        value: "127.0.0.1".to_owned(),
                    }
                });
                return Ok(Meeting::Static(Place::given(Given {
                    value: format!("{}:{port}", host.value),
                    name: host.name,
                })));
            }
        };
        for given in [master_addr, master_port].into_iter().flatten() {
            warnings
                .push(given.has_no_effect("only the static backend without an endpoint uses it"));
        }
        Ok(meeting)
    }
}

/// A warning about a default that fits only launchers on one machine.
fn default_is_local(host: &str, port: u16, nodes: usize) -> StartWarning {
    let text = format!(
        "the {nodes} nodes meet at {host}:{port}, so all of them must run on this machine; otherwise give --rdzv-endpoint"
    );
    StartWarning::new(WarningKind::Address, text)
}

/// Refuses an endpoint of another form than the backend needs, or an address that only leads to this host.
fn check_endpoint(
    backend: &str,
    given: &Given,
    found: Option<&Found>,
    nodes: usize,
) -> Result<(), UsageError> {
    let Some(endpoint) = endpoint_of(read_place(given)?) else {
        if backend == STATIC_BACKEND {
            let why = "the store of a static rendezvous has a fixed place; use --rdzv-backend c10d";
            return Err(given.refused(Refusal::But(why.to_owned())));
        }
        return Ok(());
    };
    if backend == STATIC_BACKEND && endpoint.port().is_none() {
        return Err(given.refused(Refusal::IsNot("a host and a port, for example node0:29500")));
    }
    refuse_loopback(&endpoint, given, found, nodes)
}

/// Returns the endpoint of a store at a fixed place; `None` for a store in etcd.
fn endpoint_of(place: StorePlace<Endpoint>) -> Option<Endpoint> {
    match place {
        StorePlace::At(endpoint) => Some(endpoint),
        #[cfg(feature = "etcd")]
        StorePlace::Etcd(_) => None,
    }
}

/// Refuses a loopback address only where it certainly is wrong: tests on one machine use it.
fn refuse_loopback(
    endpoint: &Endpoint,
    given: &Given,
    found: Option<&Found>,
    nodes: usize,
) -> Result<(), UsageError> {
    match found {
        Some(found)
            if found.has_several_hosts && nodes > 1 && is_loopback_name(endpoint.host()) =>
        {
            let why = format!(
                "{} has started the {nodes} nodes on different machines, so the other nodes cannot reach a loopback \
                 address; give the host of node 0",
                found.scheduler
            );
            Err(given.refused(Refusal::But(why)))
        }
        _ => Ok(()),
    }
}

/// The value that a scheduler names, or an error with the option that gives it.
fn known<T: ToString>(
    found: &Found,
    finding: &Result<Sourced<T>, String>,
    option: &'static str,
) -> Result<Given, UsageError> {
    match finding {
        Ok(sourced) => Ok(as_given(sourced)),
        Err(why) => Err(UsageError::Scheduler {
            scheduler: found.scheduler,
            why: why.clone(),
            option,
        }),
    }
}

fn as_given<T: ToString>(sourced: &Sourced<T>) -> Given {
    Given {
        name: sourced.from.clone(),
        value: sourced.value.to_string(),
    }
}

fn origin(name: &'static str, given: Given) -> Origin {
    Origin {
        name,
        value: given.value,
        from: given.name,
    }
}

fn read_place(given: &Given) -> Result<StorePlace<Endpoint>, UsageError> {
    let parsed = given.value.parse();
    parsed.map_err(|error: String| given.refused(Refusal::because(error)))
}

fn read_endpoint(given: &Given) -> Result<Endpoint, UsageError> {
    let parsed = given.value.parse();
    parsed.map_err(|error: EndpointError| given.refused(Refusal::because(error)))
}

fn rank_among(rank: &Parsed<usize>, max_nodes: usize) -> Result<usize, UsageError> {
    let node_rank = rank.value()?;
    if node_rank < max_nodes {
        return Ok(node_rank);
    }
    Err(UsageError::NodeRank {
        name: rank.given.name.clone(),
        node_rank,
        max_nodes,
    })
}

/// A random UUID (RFC 9562, version 4): the run id of a standalone job.
pub(super) fn random_id(seed: u64) -> String {
    let random = fastrand::Rng::with_seed(seed).u128(..);
    let digits = format!(
        "{:032x}",
        random & !VERSION_AND_VARIANT.0 | VERSION_AND_VARIANT.1
    );
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}

/// The mask of the fixed bits of a UUID, and their values.
const VERSION_AND_VARIANT: (u128, u128) = (
    0x0000_0000_0000_f000_c000_0000_0000_0000,
    0x0000_0000_0000_4000_8000_0000_0000_0000,
);
