//! The options in torchrun's `PET_RDZV_CONF` or `--rdzv-conf`: the settings of a rendezvous, and the options of `c10d run`
//! with the same names.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use c10d_journal::{EtcdDirectory, EtcdJournal, EtcdOptions, SqliteJournal};
use c10d_socket::Cancel;
use c10d_store::journal::JournalSource;
use elastic_agent::LauncherOptions;
use elastic_rendezvous::{
    C10D_SETTINGS, ParametersError, PortRange, RendezvousParameters, StoreDirectory,
};

/// After which wait of the workers a hang is explained.
const EXPLAIN_AFTER: &str = "explain_after";
/// Whether the stores have pages, and others can ask for stacks. On by default.
const STATUS: &str = "status";
const SECRET_FILE: &str = "secret_file";
const WORKERS_PORT: &str = "workers_port";
/// Whether the workers reach their store through a relay in this process.
const RELAY: &str = "relay";
/// The setting for the directory in which the serving node keeps the store of the rendezvous.
const STORE_DIR: &str = "store_dir";
/// The members of etcd and a prefix, where the store of the rendezvous is kept. The package makes an endpoint of it.
const ETCD: &str = "etcd";
const ETCD_SCHEME: &str = "etcd://";

/// How many nodes of a round are candidates to serve a store in etcd: the default of `c10d run`.
const CANDIDATES: usize = 3;

/// The setting of the rendezvous that has the workers use its store.
const WORKERS_STORE: &str = "workers_store";

/// The options that no rendezvous reads.
const OWN: [&str; 7] = [
    ETCD,
    EXPLAIN_AFTER,
    RELAY,
    SECRET_FILE,
    STATUS,
    STORE_DIR,
    WORKERS_PORT,
];

/// The options of PyTorch's other backends. A command that has them for `static` or etcd also works with this backend.
const OTHER_BACKENDS: [&str; 9] = [
    "rank",
    "protocol",
    "cacert",
    "cert",
    "key",
    "etcd_prefix",
    "ssl_cert",
    "ssl_cert_key",
    "ca_cert",
];

/// The options that no rendezvous reads.
#[derive(Debug)]
pub(crate) struct RendezvousOptions {
    /// `None` for never.
    pub(crate) explain_after: Option<Duration>,
    pub(crate) has_status: bool,
    pub(crate) secret_file: Option<PathBuf>,
}

/// An option that is unknown or has no meaning, as text.
pub(crate) struct Refused(pub(crate) String);

impl From<ParametersError> for Refused {
    fn from(error: ParametersError) -> Self {
        Self(error.to_string())
    }
}

/// Takes the options out of the settings.
pub(crate) fn take_options(
    parameters: RendezvousParameters,
) -> Result<(RendezvousParameters, RendezvousOptions), Refused> {
    let mut valid: Vec<&str> = C10D_SETTINGS.iter().copied().chain(OWN).collect();
    valid.sort_unstable();
    let known = [&valid[..], &OTHER_BACKENDS].concat();
    if let Some(key) = parameters.unknown_keys(&known).first() {
        return Err(Refused(format!(
            "unknown option {key:?} in PET_RDZV_CONF or --rdzv-conf; the options are {}",
            valid.join(", ")
        )));
    }
    let ports = parameters.get(WORKERS_PORT).map(str::parse::<PortRange>);
    let ports = ports
        .transpose()
        .map_err(|error| Refused(format!("{WORKERS_PORT}: {error}")))?;
    let after = parameters.get(EXPLAIN_AFTER).map(seconds_or_never);
    let usual = Some(LauncherOptions::DEFAULT_EXPLAIN_AFTER);
    let options = RendezvousOptions {
        explain_after: after.transpose()?.unwrap_or(usual),
        has_status: parameters.get_as_bool(STATUS)?.unwrap_or(true),
        secret_file: parameters.get(SECRET_FILE).map(PathBuf::from),
    };
    let has_relay = parameters.get_as_bool(RELAY)?.unwrap_or(false);
    let directory = parameters.get(STORE_DIR).map(PathBuf::from);
    let endpoint = parameters.endpoint();
    let etcd = endpoint.starts_with(ETCD_SCHEME);
    let etcd = etcd.then(|| endpoint.parse::<EtcdOptions>()).transpose();
    let etcd = etcd.map_err(|error| Refused(error.to_string()))?;
    let mut settings = parameters.config().clone();
    settings.retain(|key, _| C10D_SETTINGS.contains(&key.as_str()) || key == "rank");
    if directory.is_some() || etcd.is_some() {
        // One place has all of the job.
        let chosen = settings.entry(WORKERS_STORE.to_owned());
        chosen.or_insert_with(|| "rendezvous".to_owned());
    }
    let parameters = parameters
        .with_config(settings)
        .with_workers_port(ports)
        // The workers cannot follow a store in etcd.
        .with_relays(has_relay || etcd.is_some());
    let parameters = match (directory, etcd) {
        (Some(_), Some(_)) => {
            let why = "the store is kept in one of them";
            return Err(Refused(format!("{STORE_DIR} and {ETCD}: {why}")));
        }
        (Some(directory), None) => {
            let open = move |_: &Cancel| Ok(Box::new(SqliteJournal::open(&directory)?) as _);
            parameters.with_journal(JournalSource {
                open: Arc::new(open),
                on_failure: None,
            })
        }
        (None, Some(etcd)) => {
            let network = etcd.members()[0].clone();
            let lookup = Arc::new(EtcdDirectory::new(etcd.clone()));
            let journal = move |address| EtcdJournal::source(etcd.clone(), address);
            let store = StoreDirectory::new(lookup, network);
            parameters.with_store(store.with_candidates(CANDIDATES, journal))
        }
        (None, None) => parameters,
    };
    Ok((parameters, options))
}

/// `30`, `30s`, `2m` or `never`.
fn seconds_or_never(text: &str) -> Result<Option<Duration>, Refused> {
    if text == "never" {
        return Ok(None);
    }
    let (number, unit) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let seconds = number.parse::<u32>().ok().filter(|seconds| *seconds > 0);
    let seconds = seconds.ok_or_else(|| {
        let expected = "a time, for example 30s or 2m, or never";
        Refused(format!(
            "the option {EXPLAIN_AFTER} is {text:?}; expected {expected}"
        ))
    })?;
    Ok(Some(Duration::from_secs(u64::from(seconds) * unit)))
}
