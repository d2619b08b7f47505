//! The options in torchrun's `PET_RDZV_CONF` or `--rdzv-conf`: the settings of a rendezvous, and the options of `c10d run`
//! with the same names.

use std::path::PathBuf;

use elastic_rendezvous::{C10D_SETTINGS, ParametersError, PortRange, RendezvousParameters};

/// Whether the stores have pages. On by default.
const STATUS: &str = "status";
const SECRET_FILE: &str = "secret_file";
const WORKERS_PORT: &str = "workers_port";

/// The options that no rendezvous reads.
const OWN: [&str; 3] = [SECRET_FILE, STATUS, WORKERS_PORT];

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
    let options = RendezvousOptions {
        has_status: parameters.get_as_bool(STATUS)?.unwrap_or(true),
        secret_file: parameters.get(SECRET_FILE).map(PathBuf::from),
    };
    let mut settings = parameters.config().clone();
    settings.retain(|key, _| C10D_SETTINGS.contains(&key.as_str()) || key == "rank");
    Ok((
        parameters.with_config(settings).with_workers_port(ports),
        options,
    ))
}
