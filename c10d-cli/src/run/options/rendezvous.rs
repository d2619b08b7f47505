//! Chooses how nodes find each other, with torchrun 2.15's defaults (`torch/distributed/run.py`).
//!
//! Values that a scheduler's environment names are used where none is given.

use std::collections::BTreeMap;

use c10d_socket::is_loopback_name;
use elastic_rendezvous::{DEFAULT_PORT, Endpoint, RendezvousParameters, parse_config};

use super::given::{Given, UsageError};
use crate::quantity::parse_duration;
use crate::run::scheduler::{Found, Sourced};
use crate::serve::DEFAULT_PORT as STATIC_PORT;

/// The options about the rendezvous.
#[derive(Debug)]
pub(super) struct RendezvousOptions {
    pub(super) nnodes: Option<Given>,
    pub(super) backend: Option<Given>,
    pub(super) endpoint: Option<Given>,
    pub(super) run_id: Option<Given>,
    pub(super) config: Option<Given>,
    pub(super) spare_wait: Option<Given>,
    pub(super) is_standalone: bool,
    pub(super) node_rank: Option<Given>,
    pub(super) master_addr: Option<Given>,
    pub(super) master_port: Option<Given>,
    pub(super) local_addr: String,
}

/// How nodes find each other, and the rank of this one, if it has one before they do.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) parameters: RendezvousParameters,
    pub(super) node_rank: Option<usize>,
    /// Where the values are from.
    pub(super) origins: Vec<Origin>,
}

/// A value of the plan, and the option or variables that it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) from: String,
}

/// The order in which origins are shown.
const ORDER: [&str; 4] = ["nodes", "node rank", "endpoint", "run id"];

/// How the nodes find each other.
#[derive(Debug)]
enum Meeting {
    /// The job has one node.
    Alone {
        /// Whether --standalone was given; otherwise it is the default.
        asked_for: bool,
    },
    /// At a store that any node may serve; `None` for the default endpoint.
    C10d(Option<Place>),
    /// At a store that node 0 serves; each node knows its rank.
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

impl RendezvousOptions {
    /// Chooses, and warns of options without effect.
    pub(super) fn choose(
        mut self,
        found: Option<&Found>,
        seed: u64,
        warnings: &mut Vec<String>,
    ) -> Result<Chosen, UsageError> {
        let mut origins = Vec::new();
        let nodes = self.nodes(found)?;
        let (min_nodes, max_nodes) = nodes.clone().map_or(Ok((1, 1)), node_counts)?;
        origins.extend(nodes.map(|given| origin("nodes", given)));
        let mut config = self
            .config
            .take()
            .map_or(Ok(BTreeMap::new()), read_config)?;
        let run_id = self.run_id.take();
        let node_rank = self.node_rank.take();
        let local_addr = std::mem::take(&mut self.local_addr);
        let spare_wait = self.spare_wait.take();

        let meeting = self.meeting(found, max_nodes, warnings)?;
        let is_together = !matches!(meeting, Meeting::Alone { .. });
        let found_here = found.filter(|_| is_together);
        let run_id = match (&meeting, run_id) {
            (Meeting::Alone { asked_for }, given) => {
                if let Some(given) = given.filter(|_| !asked_for) {
                    warnings.push(given.has_no_effect("a job of one node gets a random id"));
                }
                random_id(seed)
            }
            (_, given) => {
                let of_scheduler =
                    || found_here.and_then(|found| found.run_id.clone().ok().map(as_given));
                match given.or_else(of_scheduler) {
                    Some(given) => {
                        origins.push(origin("run id", given.clone()));
                        given.value
                    }
                    None => "none".to_owned(),
                }
            }
        };
        let node_rank = match &meeting {
            Meeting::Static(_) => {
                let rank = match (node_rank, found_here) {
                    (Some(given), _) => Some(given),
                    (None, Some(found)) if max_nodes > 1 => {
                        Some(known(found, &found.node_rank, "--node-rank")?)
                    }
                    (None, _) => None,
                };
                let number = rank
                    .clone()
                    .map_or(Ok(0), |given| rank_among(given, max_nodes))?;
                origins.extend(rank.map(|given| origin("node rank", given)));
                config.insert("rank".to_owned(), number.to_string());
                Some(number)
            }
            // The endpoint is on the node with rank 0, which may have other names too.
            Meeting::C10d(Some(Place { is_found: true, .. })) => {
                if let Some(found) = found
                    && node_rank.is_none()
                    && found.contradiction.is_some()
                {
                    known(found, &found.node_rank, "--node-rank")?;
                }
                let of_scheduler =
                    || found.and_then(|found| found.node_rank.clone().ok().map(as_given));
                let rank = node_rank.or_else(of_scheduler);
                let number = match &rank {
                    Some(given) => Some(given.clone().number("a whole number, 0 or more")?),
                    None => None,
                };
                if let Some(number) = number {
                    let is_host = u8::from(number == 0_usize).to_string();
                    config.entry("is_host".to_owned()).or_insert(is_host);
                }
                origins.extend(rank.map(|given| origin("node rank", given)));
                number
            }
            _ => {
                if let Some(given) = node_rank {
                    let rank: usize = given.clone().number("a whole number, 0 or more")?;
                    if rank != 0 {
                        warnings
                            .push(given.has_no_effect("only the static backend uses node ranks"));
                    }
                }
                None
            }
        };
        match (&meeting, spare_wait) {
            (Meeting::Static(_), Some(given)) => {
                warnings.push(given.has_no_effect("the static backend has no spares"));
            }
            (_, Some(given)) => match parse_duration(given.value.trim()) {
                Ok(wait) => {
                    config.insert("spare_wait".to_owned(), wait.as_secs_f64().to_string());
                }
                Err(_) => return Err(given.refused("a time as in 15s or 1m, or 0")),
            },
            (_, None) => {}
        }
        let is_file = config
            .get("store_type")
            .is_some_and(|store| store.eq_ignore_ascii_case("file"));
        let (backend, place) = match meeting {
            Meeting::Alone { .. } => ("c10d", None),
            Meeting::C10d(place) => ("c10d", place),
            Meeting::Static(place) => ("static", Some(place)),
        };
        if let Some(place) = &place
            && (!is_file || backend == "static")
        {
            let endpoint = read_endpoint(&place.endpoint)?;
            if backend == "static" && endpoint.port().is_none() {
                return Err(place
                    .endpoint
                    .clone()
                    .refused("a host and a port, as in node0:29500"));
            }
            refuse_loopback(&endpoint, &place.endpoint, found_here, max_nodes)?;
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
        // PyTorch's launcher always adds it; its static backend reads it.
        config
            .entry("timeout".to_owned())
            .or_insert_with(|| "900".to_owned());
        match RendezvousParameters::new(backend, endpoint, run_id, min_nodes, max_nodes) {
            Ok(parameters) => Ok(Chosen {
                parameters: parameters.with_local_addr(local_addr).with_config(config),
                node_rank,
                origins,
            }),
            Err(source) => Err(UsageError::Rendezvous {
                name: "--nnodes".to_owned(),
                source,
            }),
        }
    }

    /// The number of nodes, as text; `None` for one node by default.
    fn nodes(&mut self, found: Option<&Found>) -> Result<Option<Given>, UsageError> {
        match (self.nnodes.take(), found) {
            (Some(given), _) => Ok(Some(given)),
            (None, Some(found)) if !self.is_standalone => {
                known(found, &found.nodes, "--nnodes").map(Some)
            }
            (None, _) => Ok(None),
        }
    }

    fn meeting(
        self,
        found: Option<&Found>,
        max_nodes: usize,
        warnings: &mut Vec<String>,
    ) -> Result<Meeting, UsageError> {
        let endpoint = self.endpoint.filter(|given| !given.value.is_empty());
        let (master_addr, master_port) = (self.master_addr, self.master_port);
        let port: u16 = match master_port.clone() {
            Some(given) => given.number("a port, 0 to 65535")?,
            None => STATIC_PORT,
        };
        let is_standalone = self.is_standalone;
        let is_given = self.backend.is_some() || master_addr.is_some() || master_port.is_some();
        let is_static = match self.backend {
            None => true,
            Some(given) => match given.value.as_str() {
                "static" => true,
                "c10d" => false,
                _ if is_standalone => false,
                _ => return Err(given.refused("c10d or static")),
            },
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
fn default_is_local(host: &str, port: u16, nodes: usize) -> String {
    format!(
        "the {nodes} nodes meet at {host}:{port}, as no endpoint is given: all of them must run on this machine; give \
         --rdzv-endpoint if they do not"
    )
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
            Err(UsageError::Loopback {
                name: given.name.clone(),
                value: given.value.clone(),
                scheduler: found.scheduler,
                nodes,
            })
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
        Ok(Sourced { value, from }) => Ok(Given {
            name: from.clone(),
            value: value.to_string(),
        }),
        Err(why) => Err(UsageError::Scheduler {
            scheduler: found.scheduler,
            why: why.clone(),
            option,
        }),
    }
}

fn as_given<T: ToString>(sourced: Sourced<T>) -> Given {
    Given {
        name: sourced.from,
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

fn node_counts(given: Given) -> Result<(usize, usize), UsageError> {
    let (min, max) = match given.value.split_once(':') {
        Some(range) => range,
        None => (given.value.as_str(), given.value.as_str()),
    };
    match (min.trim().parse(), max.trim().parse()) {
        (Ok(min), Ok(max)) if 1 <= min && min <= max => Ok((min, max)),
        _ => Err(given.refused("N or MIN:MAX with 1 <= MIN <= MAX")),
    }
}

fn read_config(given: Given) -> Result<BTreeMap<String, String>, UsageError> {
    parse_config(&given.value).map_err(|source| UsageError::Rendezvous {
        name: given.name,
        source,
    })
}

fn read_endpoint(given: &Given) -> Result<Endpoint, UsageError> {
    given.value.parse().map_err(|source| UsageError::Endpoint {
        name: given.name.clone(),
        source,
    })
}

fn rank_among(given: Given, max_nodes: usize) -> Result<usize, UsageError> {
    let node_rank = given.clone().number("a whole number, 0 or more")?;
    if node_rank < max_nodes {
        return Ok(node_rank);
    }
    Err(UsageError::NodeRank {
        name: given.name,
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
