//! The parameters of a rendezvous: backend, endpoint, run id, numbers of nodes, and settings as text.
//!
//! Each backend defines which settings exist.

use std::collections::BTreeMap;
use std::time::Duration;

use c10d_socket::Cancel;
use c10d_store::journal::JournalSource;
use c10d_store::{Credentials, ServerOptions};

use crate::values::parameters_error::ParametersError;
use crate::values::port_range::PortRange;
use crate::values::settings::{READ_TIMEOUT_MIN, RendezvousSettings};
use crate::values::start_warnings::StartWarnings;
use crate::values::store_access::{ServerHook, StoreDirectory};

/// The parameters of a rendezvous, checked as far as possible without knowing the backend.
///
/// In PyTorch: `RendezvousParameters` (`torch/distributed/elastic/rendezvous/api.py`).
///
/// ```
/// use elastic_rendezvous::{RendezvousParameters, parse_config};
/// use std::time::Duration;
///
/// let parameters = RendezvousParameters::new("c10d", "node0:29400", "job7", 1, 4)?
///     .with_config(parse_config("is_host=no, join_timeout=60, jion=1")?);
/// assert_eq!(parameters.get_as_bool("is_host")?, Some(false));
/// let join_timeout = parameters.get_as_duration("join_timeout", Duration::from_secs(600))?;
/// assert_eq!(join_timeout, Duration::from_secs(60));
/// assert_eq!(parameters.unknown_keys(&["is_host", "join_timeout"]), ["jion"]);
/// # Ok::<(), elastic_rendezvous::ParametersError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct RendezvousParameters {
    backend: String,
    endpoint: String,
    run_id: String,
    min_nodes: usize,
    max_nodes: usize,
    local_addr: Option<String>,
    config: BTreeMap<String, String>,
    server_hook: Option<ServerHook>,
    credentials: Option<Credentials>,
    has_relays: bool,
    workers_port: Option<PortRange>,
    journal: Option<JournalSource>,
    store: Option<StoreDirectory>,
    start_warnings: StartWarnings,
    cancel: Cancel,
}

impl RendezvousParameters {
    /// Parameters for `min_nodes` to `max_nodes` nodes, without settings. The backend parses the endpoint; the
    /// run id may be empty if the backend needs none.
    ///
    /// # Errors
    /// [`ParametersError::NoBackend`], [`ParametersError::NoNodes`] for a minimum of 0, or
    /// [`ParametersError::NodesReversed`].
    pub fn new(
        backend: impl Into<String>,
        endpoint: impl Into<String>,
        run_id: impl Into<String>,
        min_nodes: usize,
        max_nodes: usize,
    ) -> Result<Self, ParametersError> {
        let backend = backend.into();
        if backend.is_empty() {
            return Err(ParametersError::NoBackend);
        }
        ParametersError::check_nodes(min_nodes, max_nodes)?;
        Ok(Self {
            backend,
            endpoint: endpoint.into(),
            run_id: run_id.into(),
            min_nodes,
            max_nodes,
            local_addr: None,
            config: BTreeMap::new(),
            server_hook: None,
            credentials: None,
            has_relays: false,
            workers_port: None,
            journal: None,
            store: None,
            start_warnings: StartWarnings::default(),
            cancel: Cancel::NEVER,
        })
    }

    /// Sets the address that identifies this node. Default, even for an empty text: its full host name.
    pub fn with_local_addr(mut self, local_addr: impl Into<String>) -> Self {
        self.local_addr = Some(local_addr.into()).filter(|addr| !addr.is_empty());
        self
    }

    /// Replaces all settings, for example with the result of [`parse_config`].
    pub fn with_config(mut self, config: BTreeMap<String, String>) -> Self {
        self.config = config;
        self
    }

    /// Sets one setting, which replaces its previous value.
    pub fn with_setting(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.insert(key.into(), value.into());
        self
    }

    /// Sets a callback for the store servers that this process hosts. Default: none.
    pub fn with_server_hook(mut self, hook: ServerHook) -> Self {
        self.server_hook = Some(hook);
        self
    }

    /// Sets the receiver of warnings about the start of this node. Default: each warning is logged at once.
    pub fn with_start_warnings(mut self, warnings: StartWarnings) -> Self {
        self.start_warnings = warnings;
        self
    }

    /// The warnings about the start of this node.
    pub const fn start_warnings(&self) -> &StartWarnings {
        &self.start_warnings
    }

    /// Sets the journal of the rendezvous' store, which is opened if this process serves the store, so that the store
    /// survives the process. Default: none.
    pub fn with_journal(mut self, journal: JournalSource) -> Self {
        self.journal = Some(journal);
        self
    }

    /// The journal of the rendezvous' store, if this process serves it.
    #[must_use]
    pub const fn journal(&self) -> Option<&JournalSource> {
        self.journal.as_ref()
    }

    /// Finds the store in a directory instead of at the endpoint, which is then only a name for messages. The workers
    /// need `workers_store=rendezvous` and [relays](Self::with_relays), because PyTorch's clients cannot follow a
    /// store. Default: none.
    pub fn with_store(mut self, store: StoreDirectory) -> Self {
        self.store = Some(store);
        self
    }

    /// The directory of the store, if it is found in one.
    #[must_use]
    pub const fn store(&self) -> Option<&StoreDirectory> {
        self.store.as_ref()
    }

    /// Whether the workers use the store of the rendezvous, if this node has rank 0. The store then serves only this
    /// job.
    ///
    /// This is the setting `workers_store`: `rendezvous` for true, or `agent`, the default, for false. With `agent`,
    /// the node with rank 0 serves a separate store for the workers.
    ///
    /// # Errors
    /// [`ParametersError::Setting`] for any other text, or if the store is a file or `share_store` is off.
    pub fn shares_store(&self) -> Result<bool, ParametersError> {
        let is_shared = self.read("workers_store", "rendezvous or agent", |text| match text {
            "rendezvous" => Some(true),
            "agent" => Some(false),
            _ => None,
        })?;
        let is_shared = is_shared.unwrap_or(false);
        let is_file = self
            .get("store_type")
            .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("file"));
        if is_shared && (is_file || self.get_as_bool("share_store")? == Some(false)) {
            return Err(ParametersError::Setting {
                key: "workers_store".to_owned(),
                value: "rendezvous".to_owned(),
                expected: "agent, which store_type=file and share_store=0 need",
            });
        }
        Ok(is_shared)
    }

    /// The options of a server of the rendezvous' store.
    pub(crate) fn server_options(&self) -> ServerOptions {
        let options = ServerOptions::default().with_groups(c10d_membership::groups);
        match &self.journal {
            Some(journal) => options.with_journal(journal.clone()),
            None => options,
        }
    }

    /// Sets a handle that cancels the opening of the rendezvous' store. Default [`Cancel::NEVER`].
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    pub(crate) const fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Restricts the rendezvous to processes with the same secret, or with a certificate of the same authority: the
    /// rendezvous' store serves no other clients.
    ///
    /// The workers' store of several nodes has no such protection without [relays](Self::with_relays), because
    /// PyTorch's clients cannot use credentials. The workers' store of a single node serves only the user that runs
    /// it.
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Restricts the rendezvous to processes with this shared secret, like
    /// [`with_credentials`](Self::with_credentials).
    #[cfg(feature = "tls")]
    pub fn with_secret(self, secret: c10d_store::Secret) -> Self {
        self.with_credentials(secret.into())
    }

    /// Sets whether the workers of all nodes reach their store through relays that have the credentials. The workers'
    /// store of several nodes then also serves only clients with the credentials. Must be the same on all nodes.
    /// Default false.
    pub const fn with_relays(mut self, has_relays: bool) -> Self {
        self.has_relays = has_relays;
        self
    }

    /// Sets the ports for the workers' store, if this node serves it: it takes the first free port. Has no effect if
    /// the workers use the store of the rendezvous. Default: a free port that the system chooses.
    pub fn with_workers_port(mut self, ports: impl Into<Option<PortRange>>) -> Self {
        self.workers_port = ports.into();
        self
    }

    /// Returns the ports for the workers' store; `None` for a port that the system chooses.
    #[must_use]
    pub const fn workers_port(&self) -> Option<PortRange> {
        self.workers_port
    }

    /// Whether workers use relays.
    #[must_use]
    pub const fn has_relays(&self) -> bool {
        self.has_relays
    }

    /// Returns the credentials that peers must have; `None` if every process may take part.
    #[must_use]
    pub const fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// The name of the backend, such as `c10d` or `static`; never empty.
    #[must_use]
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The endpoint as text; [`Endpoint`](crate::Endpoint) parses it, unless it is a path.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The run id of the job; may be empty.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Returns the number of nodes that suffice for a round; at least 1.
    #[must_use]
    pub fn min_nodes(&self) -> usize {
        self.min_nodes
    }

    /// Returns the number of nodes that fill a round; at least [`min_nodes`](Self::min_nodes).
    #[must_use]
    pub fn max_nodes(&self) -> usize {
        self.max_nodes
    }

    /// The configured address of this node.
    #[must_use]
    pub fn local_addr(&self) -> Option<&str> {
        self.local_addr.as_deref()
    }

    /// The callback for the store servers that this process hosts.
    #[must_use]
    pub fn server_hook(&self) -> Option<&ServerHook> {
        self.server_hook.as_ref()
    }

    /// Returns all settings, by their keys.
    #[must_use]
    pub fn config(&self) -> &BTreeMap<String, String> {
        &self.config
    }

    /// The text of the setting `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.config.get(key).map(String::as_str)
    }

    /// The setting `key` as a bool: `1`, `true`, `t`, `yes`, `y` or `0`, `false`, `f`, `no`, `n`, in
    /// any case. `None` when it is not set.
    ///
    /// # Errors
    /// [`ParametersError::Setting`] for any other text, including `on`, `off` and surrounding spaces.
    pub fn get_as_bool(&self, key: &str) -> Result<Option<bool>, ParametersError> {
        self.read(
            key,
            "yes or no (1, true, t, yes, y; 0, false, f, no, n)",
            |text| match text.to_lowercase().as_str() {
                "1" | "true" | "t" | "yes" | "y" => Some(true),
                "0" | "false" | "f" | "no" | "n" => Some(false),
                _ => None,
            },
        )
    }

    /// The setting `key` as an integer, in the syntax of Python's `int`, with surrounding spaces, a sign, and
    /// single underscores between digits (`" +1_000 "`). `None` when it is not set.
    ///
    /// # Errors
    /// [`ParametersError::Setting`] for other text, for integers beyond 64 bits, and for digits of other
    /// scripts, which Python accepts.
    pub fn get_as_int(&self, key: &str) -> Result<Option<i64>, ParametersError> {
        self.read(key, "a whole number", |text| {
            without_underscores(text.trim())?.parse().ok()
        })
    }

    /// The setting `key` as a finite number that is not negative, in the syntax of Python's `float`. `None`
    /// when it is not set.
    ///
    /// # Errors
    /// [`ParametersError::Setting`] for any other text.
    pub fn get_as_float(&self, key: &str) -> Result<Option<f64>, ParametersError> {
        self.read(key, "a finite number that is not negative", |text| {
            let number: f64 = without_underscores(text.trim())?.parse().ok()?;
            (number.is_finite() && number >= 0.0).then_some(number)
        })
    }

    /// The setting `key` as a duration: an integer of seconds above 0. `default` when it is not set.
    ///
    /// # Errors
    /// [`ParametersError::Setting`] for any other text.
    pub fn get_as_duration(
        &self,
        key: &str,
        default: Duration,
    ) -> Result<Duration, ParametersError> {
        let duration = self.read(key, "a whole number of seconds above 0", |text| {
            let seconds: u64 = without_underscores(text.trim())?.parse().ok()?;
            (seconds > 0).then_some(Duration::from_secs(seconds))
        })?;
        Ok(duration.unwrap_or(default))
    }

    /// Returns the settings that are not in `known`, in order. PyTorch ignores them silently, so they are not
    /// errors but probably typing mistakes.
    #[must_use]
    pub fn unknown_keys(&self, known: &[&str]) -> Vec<&str> {
        let keys = self.config.keys().map(String::as_str);
        keys.filter(|key| !known.contains(key)).collect()
    }

    fn read<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ParametersError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(ParametersError::Setting {
                key: key.to_owned(),
                value: value.to_owned(),
                expected,
            }),
        }
    }
}

/// Parses settings from a command line, `key=value,key=value`. Each pair is split at its first `=`, spaces
/// around keys and values are removed, and the last value of a repeated key wins.
///
/// ```
/// let config = elastic_rendezvous::parse_config(" a = 1 , b = x=y ")?;
/// assert_eq!((config["a"].as_str(), config["b"].as_str()), ("1", "x=y"));
/// # Ok::<(), elastic_rendezvous::ParametersError>(())
/// ```
///
/// # Errors
/// [`ParametersError::NoKey`] for a setting without a key, including a superfluous comma, and
/// [`ParametersError::NoValue`] for a setting without a value.
pub fn parse_config(text: &str) -> Result<BTreeMap<String, String>, ParametersError> {
    let text = text.trim();
    let mut config = BTreeMap::new();
    if text.is_empty() {
        return Ok(config);
    }
    for pair in text.split(',') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err(ParametersError::NoKey {
                config: text.to_owned(),
            });
        }
        if value.is_empty() {
            return Err(ParametersError::NoValue {
                key: key.to_owned(),
            });
        }
        config.insert(key.to_owned(), value.to_owned());
    }
    Ok(config)
}

impl RendezvousSettings {
    /// Reads the settings in `parameters`. A timeout that is not set gets its default, but so that it has an effect beside
    /// the timeouts that are set: a short join timeout shortens the default of the timeouts within a join, for example.
    ///
    /// # Errors
    /// [`ParametersError::NoRunId`] for an empty run id, [`ParametersError::Setting`] for a setting that
    /// cannot be read.
    pub fn from_parameters(parameters: &RendezvousParameters) -> Result<Self, ParametersError> {
        let defaults = Self::new(
            parameters.run_id(),
            parameters.min_nodes(),
            parameters.max_nodes(),
        )?;
        let seconds = |key, default| parameters.get_as_duration(key, default);
        let fraction = |key| -> Result<Option<Duration>, ParametersError> {
            let given = parameters.get_as_float(key)?;
            Ok(given.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()))
        };
        let attempts = "keep_alive_max_attempt";
        let keep_alive_max_attempt = match parameters.get_as_int(attempts)? {
            None => defaults.keep_alive_max_attempt,
            Some(count) => u32::try_from(count)
                .ok()
                .filter(|count| *count > 0)
                .ok_or_else(|| ParametersError::Setting {
                    key: attempts.to_owned(),
                    value: count.to_string(),
                    expected: "a number of attempts, at least 1",
                })?,
        };
        let keep_alive_interval = seconds("keep_alive_interval", defaults.keep_alive_interval)?;
        let dead_after = keep_alive_interval.saturating_mul(keep_alive_max_attempt);
        let spare_wait = fraction("spare_wait")?;
        let last_call = seconds("last_call_timeout", Duration::ZERO)?;
        let read = seconds("read_timeout", Duration::ZERO)?;
        let within_join = [dead_after, last_call, read, spare_wait.unwrap_or_default()];
        let longest = within_join.into_iter().max().unwrap_or_default();
        let join_timeout = defaults.join_timeout;
        let join_timeout = match longest > join_timeout {
            true => join_timeout.saturating_add(longest),
            false => join_timeout,
        };
        let join_timeout = seconds("join_timeout", join_timeout)?;
        let last_call_timeout = defaults.last_call_timeout.min(join_timeout / 2);
        let read_timeout = defaults
            .read_timeout
            .min(join_timeout.max(READ_TIMEOUT_MIN));
        let heartbeat_timeout = defaults.heartbeat_timeout.min(dead_after);
        Ok(Self {
            join_timeout,
            last_call_timeout: seconds("last_call_timeout", last_call_timeout)?,
            read_timeout: seconds("read_timeout", read_timeout)?,
            close_timeout: seconds("close_timeout", defaults.close_timeout)?,
            heartbeat_timeout: seconds("heartbeat_timeout", heartbeat_timeout)?,
            keep_alive_interval,
            keep_alive_max_attempt,
            cas_backoff_max: fraction("cas_backoff_max_seconds")?
                .unwrap_or(defaults.cas_backoff_max),
            spare_wait: spare_wait.unwrap_or(defaults.spare_wait.min(join_timeout / 2)),
            ..defaults
        })
    }
}

/// Converts a Python number to Rust's syntax: removes underscores, which must each be between digits.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_digit = |index: Option<usize>| {
        let byte = index.and_then(|index| bytes.get(index));
        byte.is_some_and(u8::is_ascii_digit)
    };
    let all_between_digits = bytes.iter().enumerate().all(|(index, &byte)| {
        byte != b'_' || (is_digit(index.checked_sub(1)) && is_digit(Some(index + 1)))
    });
    all_between_digits.then(|| text.replace('_', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_setting(value: &str) -> RendezvousParameters {
        let config = BTreeMap::from([("key".to_owned(), value.to_owned())]);
        RendezvousParameters::new("c10d", "", "job", 1, 1)
            .unwrap()
            .with_config(config)
    }

    #[test]
    fn wrong_parameters_are_refused_with_their_value() {
        for (backend, min_nodes, max_nodes, message) in [
            ("", 1, 1, "the name of the rendezvous backend is empty"),
            (
                "c10d",
                0,
                1,
                "the minimum number of nodes is 0, it must be at least 1",
            ),
            (
                "c10d",
                3,
                2,
                "the maximum number of nodes, 2, is below the minimum, 3",
            ),
        ] {
            let error = RendezvousParameters::new(backend, "", "", min_nodes, max_nodes);
            assert_eq!(error.unwrap_err().to_string(), message);
        }
        assert!(RendezvousParameters::new("c10d", "", "", 2, 2).is_ok());
    }

    #[test]
    fn an_empty_local_address_is_none() {
        let parameters = RendezvousParameters::new("c10d", "", "", 1, 1).unwrap();
        assert_eq!(parameters.clone().with_local_addr("").local_addr(), None);
        assert_eq!(parameters.with_local_addr("::1").local_addr(), Some("::1"));
    }

    #[test]
    fn bools_are_parsed_as_in_pytorch() {
        for text in ["1", "TRUE", "true", "t", "Yes", "y"] {
            assert_eq!(
                with_setting(text).get_as_bool("key"),
                Ok(Some(true)),
                "{text:?}"
            );
        }
        for text in ["0", "False", "F", "no", "N"] {
            assert_eq!(
                with_setting(text).get_as_bool("key"),
                Ok(Some(false)),
                "{text:?}"
            );
        }
        for text in ["on", "off", "", " 1", "1.0", "12", "-3"] {
            assert!(with_setting(text).get_as_bool("key").is_err(), "{text:?}");
        }
    }

    #[test]
    fn integers_are_parsed_as_in_python() {
        for (text, number) in [
            ("1", 1),
            (" 12 ", 12),
            ("1_0", 10),
            ("+4", 4),
            ("-3", -3),
            ("0_7", 7),
            ("007", 7),
            ("\u{a0}12\u{2003}", 12),
        ] {
            assert_eq!(
                with_setting(text).get_as_int("key"),
                Ok(Some(number)),
                "{text:?}"
            );
        }
        for text in [
            "TRUE",
            "on",
            "",
            "1.0",
            "- 3",
            "0x10",
            "1.5",
            "1__0",
            "_1",
            "1_",
            "+_1",
            "+",
            "²",
            "99999999999999999999",
        ] {
            assert!(with_setting(text).get_as_int("key").is_err(), "{text:?}");
        }
    }

    #[test]
    fn fractions_are_finite_and_not_negative() {
        for (text, number) in [
            ("0", 0.0),
            (" 1.5 ", 1.5),
            ("1e2", 100.0),
            (".5", 0.5),
            ("1_0.5", 10.5),
        ] {
            assert_eq!(
                with_setting(text).get_as_float("key"),
                Ok(Some(number)),
                "{text:?}"
            );
        }
        for text in ["", "inf", "nan", "-0.1", "1e999", "1,5", "1_.5", "half"] {
            assert!(with_setting(text).get_as_float("key").is_err(), "{text:?}");
        }
    }

    #[test]
    fn durations_are_whole_seconds_above_zero() {
        let second = Duration::from_secs(1);
        let read = |text| with_setting(text).get_as_duration("key", second);
        assert_eq!(read(" 1_0 "), Ok(Duration::from_secs(10)));
        for text in ["0", "-1", "1.5", "5s", ""] {
            assert!(read(text).is_err(), "{text:?}");
        }
        assert_eq!(
            with_setting("5").get_as_duration("other", second),
            Ok(second)
        );
        assert_eq!(
            read("0").unwrap_err().to_string(),
            "the rendezvous setting key is \"0\"; expected a whole number of seconds above 0"
        );
    }

    #[test]
    fn a_timeout_that_is_not_set_fits_the_timeouts_that_are_set() {
        type Of = fn(&RendezvousSettings) -> Duration;
        let (join, last_call): (Of, Of) = (|it| it.join_timeout, |it| it.last_call_timeout);
        let (read, spare): (Of, Of) = (|it| it.read_timeout, |it| it.spare_wait);
        let heartbeat: Of = |it| it.heartbeat_timeout;
        for (config, of, millis) in [
            ("", join, 600_000),
            ("", read, 60_000),
            ("join_timeout=20", last_call, 10_000),
            ("join_timeout=20", read, 20_000),
            ("join_timeout=20", spare, 10_000),
            ("join_timeout=1", read, 5_000),
            ("join_timeout=20,read_timeout=60", read, 60_000),
            ("join_timeout=20,spare_wait=60", spare, 60_000),
            ("keep_alive_interval=1", heartbeat, 3_000),
            ("keep_alive_interval=300", join, 1_500_000),
            ("last_call_timeout=601", join, 1_201_000),
            ("last_call_timeout=601,join_timeout=9", join, 9_000),
        ] {
            let parameters = RendezvousParameters::new("c10d", "", "job", 1, 2).unwrap();
            let parameters = parameters.with_config(parse_config(config).unwrap());
            let settings = RendezvousSettings::from_parameters(&parameters).unwrap();
            assert_eq!(of(&settings), Duration::from_millis(millis), "{config}");
        }
    }

    #[test]
    fn missing_settings_are_none() {
        let parameters = with_setting("1");
        assert_eq!(parameters.get("other"), None);
        assert_eq!(parameters.get_as_bool("other"), Ok(None));
        assert_eq!(parameters.get_as_int("other"), Ok(None));
        assert_eq!(parameters.get_as_float("other"), Ok(None));
    }

    #[test]
    fn settings_are_split_as_in_pytorch() {
        for (text, pairs) in [
            ("", &[][..]),
            (" ", &[]),
            (" a = 1 , b = x=y ", &[("a", "1"), ("b", "x=y")]),
            ("a=1,a=2", &[("a", "2")]),
            ("a==", &[("a", "=")]),
            ("a=1;b=2", &[("a", "1;b=2")]),
            ("\ta=1\n", &[("a", "1")]),
        ] {
            let expected = pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            assert_eq!(parse_config(text), Ok(expected.collect()), "{text:?}");
        }
        for text in ["a=1,", "a=1,,b=2", ",", "=1"] {
            let error = parse_config(text).unwrap_err();
            assert!(
                matches!(error, ParametersError::NoKey { .. }),
                "{text:?}: {error}"
            );
        }
        for text in ["a", "a=", "a= ", "b=1,a"] {
            let error = parse_config(text).unwrap_err();
            assert_eq!(
                error,
                ParametersError::NoValue {
                    key: "a".to_owned()
                },
                "{text:?}"
            );
        }
    }
}
