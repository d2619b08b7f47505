//! The options about the stores of the job: where they are kept, and which one the workers use.

use std::path::PathBuf;
#[cfg(feature = "journal")]
use std::sync::Arc;

#[cfg(feature = "journal")]
use c10d_journal::SqliteJournal;
#[cfg(feature = "journal")]
use c10d_socket::Cancel;
use c10d_socket::is_loopback_name;
#[cfg(feature = "journal")]
use c10d_store::journal::JournalSource;
use clap::Args;
use elastic_agent::LauncherOptions;
use elastic_rendezvous::{
    Endpoint, PortRange, RendezvousParameters, STATIC_BACKEND, StartWarning, WarningKind,
};

use super::arguments::{Parsed, Read, Surroundings, value_of};
use super::error::{Refusal, UsageError};
#[cfg(feature = "journal")]
use super::values::path;
use super::values::{port, whole_number};
use crate::server_address::is_in_etcd;

/// The setting of the rendezvous that chooses the workers' store.
const WORKERS_STORE: &str = "workers_store";
const RENDEZVOUS: &str = "rendezvous";
const AGENT: &str = "agent";

/// How many launchers can serve a store in etcd: two of them can be lost at once.
const CANDIDATES: usize = 3;

const NOT_IN_ETCD: &str = "the endpoint is not etcd://..";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Nodes and workers")]
pub(super) struct StoreArgs {
    /// Keep the store of the rendezvous in this directory, so that a launcher that is killed and started again continues
    /// with it.
    ///
    /// Give it to all nodes, because any of them may serve the store. The directory is created if it is missing. Implies
    /// --workers-store rendezvous.
    #[cfg(feature = "journal")]
    #[arg(hide_short_help = true, long, value_name = "DIR", default_value = "", value_parser = Read(path))]
    store_dir: Parsed<Option<PathBuf>>,

    /// With an endpoint etcd://.., let N launchers be candidates to serve the store; 0 if separate servers serve it.
    /// [default: 3]
    ///
    /// One of the candidates serves it, and another one takes over when that launcher is lost.
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = Read(whole_number))]
    store_candidates: Option<Parsed<usize>>,

    /// With an endpoint etcd://.., serve the store on this port, for example because of a firewall between the nodes.
    /// [default: a free port]
    #[arg(hide_short_help = true, long, value_name = "PORT", allow_negative_numbers = true, value_parser = Read(port))]
    store_port: Option<Parsed<u16>>,

    #[cfg(feature = "etcd")]
    #[command(flatten)]
    pub(super) candidate: crate::etcd::EtcdCandidateArgs,

    /// Serve the workers' store on this port, or on the first free port of this range, if this launcher serves it.
    ///
    /// Give it to all nodes, because each may get rank 0. The port has to be open between the nodes. [default: a free port]
    /// Example: --workers-port 29600-29609
    #[arg(hide_short_help = true, long, value_name = "N|A-B", allow_negative_numbers = true, value_parser = Read(ports))]
    workers_port: Option<Parsed<PortRange>>,

    /// Choose the store of the workers: the launcher with rank 0 serves one (agent), or they share the store of the
    /// rendezvous (rendezvous).
    ///
    /// Give the same value to all nodes. A shared store must not be used by other jobs. [default: agent, or rendezvous with
    /// --store-dir and with an endpoint etcd://..]
    #[arg(hide_short_help = true, long, value_name = "agent|rendezvous", value_parser = Read(workers_store))]
    workers_store: Option<Parsed<&'static str>>,
}

impl StoreArgs {
    /// The directory in which the rendezvous' store is kept; `None` for none.
    #[cfg(feature = "journal")]
    pub(super) fn directory(&self) -> Result<Option<PathBuf>, UsageError> {
        self.store_dir.value()
    }

    #[cfg(not(feature = "journal"))]
    #[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
    #[expect(clippy::unused_self, reason = "the same")]
    pub(super) fn directory(&self) -> Result<Option<PathBuf>, UsageError> {
        Ok(None)
    }

    /// How many launchers are candidates to serve a store in etcd; `None` for another store.
    pub(super) fn candidates(
        &self,
        is_in_etcd: bool,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<Option<usize>, UsageError> {
        let number = in_etcd(&self.store_candidates, is_in_etcd, warnings)?;
        Ok(is_in_etcd.then_some(number.unwrap_or(CANDIDATES)))
    }

    /// The port at which they serve it, if it is given.
    pub(super) fn port(
        &self,
        is_in_etcd: bool,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<Option<u16>, UsageError> {
        in_etcd(&self.store_port, is_in_etcd, warnings)
    }

    /// The rendezvous with these stores.
    pub(super) fn apply(
        &self,
        parameters: RendezvousParameters,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<RendezvousParameters, UsageError> {
        let directory = self.directory()?;
        if is_in_etcd(parameters.endpoint()) {
            let chosen = self.apply_in_etcd(&parameters, directory.is_some())?;
            return self.apply_port(chosen, warnings);
        }
        let parameters = match (&self.workers_store, &directory) {
            (Some(option), _) if parameters.backend() == STATIC_BACKEND => {
                let why = "the workers use the store of a static rendezvous";
                warnings.push(option.given.has_no_effect(why));
                parameters
            }
            (Some(option), _) => {
                let chosen = with_workers_store(&parameters, option.value()?);
                let checked = chosen.shares_store();
                checked.map_err(|error| option.given.refused(Refusal::because(error)))?;
                chosen
            }
            (None, Some(_))
                if parameters.backend() != STATIC_BACKEND
                    && parameters.get(WORKERS_STORE).is_none() =>
            {
                let implied = with_workers_store(&parameters, RENDEZVOUS);
                if implied.shares_store().is_ok() {
                    implied
                } else {
                    parameters
                }
            }
            _ => parameters,
        };
        let parameters = self.apply_port(parameters, warnings)?;
        Ok(match directory {
            #[cfg(feature = "journal")]
            Some(directory) => {
                let open = move |_: &Cancel| Ok(Box::new(SqliteJournal::open(&directory)?) as _);
                parameters.with_journal(JournalSource {
                    open: Arc::new(open),
                    on_failure: None,
                })
            }
            _ => parameters,
        })
    }

    /// The rendezvous with the port of the workers' store.
    fn apply_port(
        &self,
        parameters: RendezvousParameters,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<RendezvousParameters, UsageError> {
        let Some(option) = &self.workers_port else {
            return Ok(parameters);
        };
        let ports = option.value()?;
        let why = if parameters.backend() == STATIC_BACKEND {
            "the workers use the store of a static rendezvous, whose port --master-port or --rdzv-endpoint chooses"
        } else if is_in_etcd(parameters.endpoint()) {
            "the workers use the store in etcd, whose port --store-port chooses"
        } else if parameters.shares_store().unwrap_or(false) {
            "the workers use the rendezvous' store, whose port --rdzv-endpoint chooses"
        } else {
            return Ok(parameters.with_workers_port(ports));
        };
        warnings.push(option.given.has_no_effect(why));
        Ok(parameters)
    }

    /// Applies the options of a rendezvous whose store is in etcd. Workers use the same store.
    fn apply_in_etcd(
        &self,
        parameters: &RendezvousParameters,
        has_directory: bool,
    ) -> Result<RendezvousParameters, UsageError> {
        if has_directory {
            return Err(UsageError::Unsupported {
                name: "--store-dir with an endpoint etcd://..".to_owned(),
                why: "the store is kept in etcd",
            });
        }
        let agent = self.workers_store.as_ref().map(Parsed::value).transpose()?;
        let setting = parameters.get(WORKERS_STORE);
        if agent == Some(AGENT) || agent.is_none() && setting == Some(AGENT) {
            return Err(UsageError::Unsupported {
                name: "workers_store=agent with an endpoint etcd://..".to_owned(),
                why: "the workers' store would be lost with the node that serves it",
            });
        }
        let chosen = with_workers_store(parameters, RENDEZVOUS);
        match chosen.shares_store() {
            Ok(_) => Ok(chosen),
            Err(_) => Err(UsageError::Unsupported {
                name: "an endpoint etcd://.. with store_type=file or share_store=0".to_owned(),
                why: "the workers use the store in etcd",
            }),
        }
    }
}

/// The value of an option for a store in etcd, which has no effect on other stores.
fn in_etcd<T: Clone>(
    option: &Option<Parsed<T>>,
    is_in_etcd: bool,
    warnings: &mut Vec<StartWarning>,
) -> Result<Option<T>, UsageError> {
    match option {
        Some(option) if !is_in_etcd => {
            warnings.push(option.given.has_no_effect(NOT_IN_ETCD));
            Ok(None)
        }
        option => value_of(option),
    }
}

fn with_workers_store(parameters: &RendezvousParameters, choice: &str) -> RendezvousParameters {
    let mut config = parameters.config().clone();
    config.insert(WORKERS_STORE.to_owned(), choice.to_owned());
    parameters.clone().with_config(config)
}

fn ports(text: &str) -> Result<PortRange, Refusal> {
    text.parse().map_err(|_| {
        Refusal::IsNot("a port, 1 to 65535, or a range of ports, for example 29600-29609")
    })
}

fn workers_store(text: &str) -> Result<&'static str, Refusal> {
    match text.trim() {
        RENDEZVOUS => Ok(RENDEZVOUS),
        AGENT => Ok(AGENT),
        _ => Err(Refusal::IsNot("agent or rendezvous")),
    }
}

/// The warning about given ports that the system also gives to outgoing connections.
pub(super) fn port_warning(
    launcher: &LauncherOptions,
    store_port: Option<u16>,
    surroundings: &Surroundings<'_>,
) -> Option<StartWarning> {
    let rendezvous = &launcher.rendezvous;
    let workers = rendezvous.workers_port();
    let workers = workers.and_then(|ports| surroundings.ephemeral_ports.of_range(ports));
    let served = [
        ("--workers-port", workers),
        ("--rdzv-endpoint", served_here(rendezvous, surroundings)),
        ("--store-port", store_port),
        ("--relay-port", launcher.agent.relay_port),
    ];
    served.into_iter().find_map(|(option, port)| {
        let port = port?;
        let range = surroundings.ephemeral_ports.range_with(port)?;
        let text = format!(
            "port {port} ({option}) may be taken by an outgoing connection, because the system uses ports {}-{} for them; choose a lower port",
            range.start(),
            range.end(),
        );
        Some(StartWarning::new(WarningKind::Port, text))
    })
}

/// Returns the port of the endpoint, if this node is known to serve it without a name lookup. Returns `None` for a
/// loopback address, because a job of one machine shows at once that its port is in use.
fn served_here(rendezvous: &RendezvousParameters, surroundings: &Surroundings<'_>) -> Option<u16> {
    if rendezvous.get_as_bool("is_host") == Ok(Some(false)) {
        return None;
    }
    let endpoint: Endpoint = rendezvous.endpoint().parse().ok()?;
    let host = endpoint.host();
    if is_loopback_name(host) {
        return None;
    }
    let address = host.parse();
    let has_address = address.is_ok_and(|address| (surroundings.site.has_address)(address));
    let is_here = if rendezvous.backend() == STATIC_BACKEND {
        rendezvous.get("rank") == Some("0")
    } else {
        host == (surroundings.site.host_name)() || has_address
    };
    endpoint.port().filter(|_| is_here)
}
