//! The reasons why the parameters of a rendezvous are refused.

/// The port of a `c10d` rendezvous whose endpoint has no port, like in PyTorch.
pub const DEFAULT_PORT: u16 = 29400;

/// The text is not an endpoint.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The host is neither a name nor an address.
    #[error(
        "invalid host {host:?} in the endpoint {endpoint:?}: neither a name nor an address (an IPv6 \
         address with a port is written [::1]:{DEFAULT_PORT})"
    )]
    Host {
        /// The endpoint that was passed.
        endpoint: String,
        /// The text in the place of the host.
        host: String,
    },

    /// The text after the last colon is not a port.
    #[error("invalid port {port:?} in the endpoint {endpoint:?}: not a number from 0 to 65535")]
    Port {
        /// The endpoint that was passed.
        endpoint: String,
        /// The text in the place of the port.
        port: String,
    },

    /// An IPv6 address without brackets, whose last group could be a port.
    #[error("the endpoint {address:?} needs brackets, for example [{address}]:{DEFAULT_PORT}")]
    BareIpv6 {
        /// The endpoint that was passed, which is only an address.
        address: String,
    },
}

c10d_socket::debug_as_display!(EndpointError);

/// An invalid parameter of a rendezvous.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParametersError {
    /// The name of the backend is empty.
    #[error("the name of the rendezvous backend is empty")]
    NoBackend,

    /// The run id is empty but the backend needs one.
    #[error("the run id is empty")]
    NoRunId,

    /// The endpoint cannot be parsed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),

    /// The endpoint has no port and the backend has no default.
    #[error("the endpoint {endpoint:?} has no port")]
    NoPort {
        /// The endpoint that was passed.
        endpoint: String,
    },

    /// The rendezvous' store is the workers' store too and has a secret, without relays.
    #[error(
        "a rendezvous of {nodes} nodes that share their store with the workers cannot have a secret without a relay on \
         each node, because PyTorch's clients cannot use a secret; add --relay, or use the c10d backend with \
         --workers-store agent"
    )]
    SecretForWorkers {
        /// The number of nodes.
        nodes: usize,
    },

    /// A store that moves cannot be used so.
    #[error(
        "the rendezvous' store has no fixed place, and workers cannot follow one: it needs relays (--relay) and \
         workers_store=rendezvous, not agent"
    )]
    StoreMoves,

    /// The minimum number of nodes is 0.
    #[error("the minimum number of nodes is {min_nodes}, it must be at least 1")]
    NoNodes {
        /// The given minimum number of nodes.
        min_nodes: usize,
    },

    /// The maximum number of nodes is below the minimum.
    #[error("the maximum number of nodes, {max_nodes}, is below the minimum, {min_nodes}")]
    NodesReversed {
        /// The given minimum number of nodes.
        min_nodes: usize,
        /// The given maximum number of nodes.
        max_nodes: usize,
    },

    /// A timeout or number is 0 but must be positive.
    #[error("the {setting} is 0, it must be positive")]
    NotPositive {
        /// The setting in words, such as `join timeout`.
        setting: &'static str,
    },

    /// A setting has no key.
    #[error(
        "a setting without a key in the rendezvous settings {config:?}; use key=value,key=value"
    )]
    NoKey {
        /// The text of all settings.
        config: String,
    },

    /// A setting has no value.
    #[error("the rendezvous setting {key:?} has no value; use key=value,key=value")]
    NoValue {
        /// The key of the setting.
        key: String,
    },

    /// A setting's value cannot be parsed.
    #[error("the rendezvous setting {key} is {value:?}; expected {expected}")]
    Setting {
        /// The key of the setting.
        key: String,
        /// The given value of the setting.
        value: String,
        /// The accepted values, in words.
        expected: &'static str,
    },
}

c10d_socket::debug_as_display!(ParametersError);

impl ParametersError {
    pub(crate) fn check_run_id(run_id: &str) -> Result<(), Self> {
        if run_id.is_empty() {
            return Err(Self::NoRunId);
        }
        Ok(())
    }

    pub(crate) fn check_nodes(min_nodes: usize, max_nodes: usize) -> Result<(), Self> {
        if min_nodes < 1 {
            return Err(Self::NoNodes { min_nodes });
        }
        if max_nodes < min_nodes {
            return Err(Self::NodesReversed {
                min_nodes,
                max_nodes,
            });
        }
        Ok(())
    }
}
