//! The options in torchrun's `PET_RDZV_CONF` or `--rdzv-conf`: the settings of a rendezvous, and the options of `c10d run`
//! with the same names.

use std::path::PathBuf;
use std::time::Duration;

use elastic_agent::LauncherOptions;
use elastic_rendezvous::{C10D_SETTINGS, ParametersError, PortRange, RendezvousParameters};

/// After which wait of the workers a hang is explained.
const EXPLAIN_AFTER: &str = "explain_after";
/// Whether the stores have pages, and others can ask for stacks. On by default.
const STATUS: &str = "status";
const SECRET_FILE: &str = "secret_file";
const WORKERS_PORT: &str = "workers_port";

/// The options that no rendezvous reads.
const OWN: [&str; 4] = [EXPLAIN_AFTER, SECRET_FILE, STATUS, WORKERS_PORT];

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
    let mut settings = parameters.config().clone();
    settings.retain(|key, _| C10D_SETTINGS.contains(&key.as_str()) || key == "rank");
    Ok((
        parameters.with_config(settings).with_workers_port(ports),
        options,
    ))
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
        let expected = "a time as in 30s or 2m, or never";
        Refused(format!(
            "the option {EXPLAIN_AFTER} is {text:?}, which is not {expected}"
        ))
    })?;
    Ok(Some(Duration::from_secs(u64::from(seconds) * unit)))
}
