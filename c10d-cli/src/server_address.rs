//! Which store server a command talks to.

use std::env;
use std::error::Error;
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use c10d_inspect::http::store_behind;
#[cfg(feature = "etcd")]
use c10d_journal::EtcdOptions;
use c10d_socket::{Cancel, Credentials, Deadline, HostPort, is_loopback_name};
use c10d_store::{Leader, Lookup, StoreAddress, TcpStoreOptions};
use clap::Args;

use crate::failure::Failure;
use crate::secret::SecretArgs;
use crate::serve::DEFAULT_PORT;

/// The heading of options that many commands have. Only `--help` shows them.
pub(crate) const CONNECTION: &str = "Connection";

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Connect to this server, or with etcd://H1:2379,H2:2379/PREFIX to a store in etcd. [default:
    /// $MASTER_ADDR:$MASTER_PORT]
    ///
    /// For a store in etcd, the command finds the server that leads, and follows the store when another server takes over.
    #[arg(display_order = 0, long, value_name = "HOST:PORT")]
    connect: Option<StorePlace<HostPort>>,

    #[cfg(feature = "etcd")]
    #[command(flatten, next_help_heading = CONNECTION)]
    etcd: crate::etcd::EtcdAccessArgs,

    #[command(flatten, next_help_heading = CONNECTION)]
    secret: SecretArgs,
}

impl ServerArgs {
    /// The credentials that the server requires, if the options or the environment name them.
    pub(crate) fn credentials(&self) -> Result<Option<Credentials>, Failure> {
        self.secret.credentials()
    }

    /// The server in --connect or in the environment, for a client with these credentials. In a worker with a relay,
    /// this is the relay for a client without a secret, and the store itself for a client with a secret. The address of
    /// the store is then the address that the relay has found, unless a certificate needs the name in the environment.
    pub(crate) fn target(
        &self,
        credentials: Option<&Credentials>,
    ) -> Result<StoreAddress, Failure> {
        let through = match credentials {
            Some(credentials) if !credentials.has_certificates() => {
                return self.target_of_pages(Some(credentials));
            }
            Some(_) => Through::Nothing,
            None => Through::Relay,
        };
        self.target_or(through, |name| env::var(name).ok())
    }

    /// Returns the server of the status pages, which have a password and no encryption: the store itself. The store of
    /// the environment may have moved, and may move again, so a relay that forwards to its pages is asked for their
    /// address.
    pub(crate) fn target_of_pages(
        &self,
        credentials: Option<&Credentials>,
    ) -> Result<StoreAddress, Failure> {
        let variable = |name: &str| env::var(name).ok();
        let named = self.target_or(Through::Nothing, variable)?;
        if self.connect.is_some() {
            return Ok(named);
        }
        let relay = self.target_or(Through::Relay, variable)?;
        let behind = match &relay {
            StoreAddress::At(at) if relay != named => {
                at.host().parse().ok().map(|ip| BehindRelay {
                    relay: SocketAddr::new(ip, at.port()),
                    token: credentials.and_then(Credentials::http_token),
                })
            }
            _ => None,
        };
        let found = behind.filter(|behind| behind.current().is_some());
        Ok(found.map_or(named, |behind| StoreAddress::LookedUp(Arc::new(behind))))
    }

    fn target_or(
        &self,
        through: Through,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<StoreAddress, Failure> {
        match &self.connect {
            Some(StorePlace::At(target)) => return Ok(target.clone().into()),
            #[cfg(feature = "etcd")]
            Some(StorePlace::Etcd(options)) => return self.etcd.store(options),
            None => {}
        }
        let given = |name: &str| variable(name).filter(|host| !host.is_empty());
        let Some(host) = given("MASTER_ADDR") else {
            let text =
                "no store given: use --connect HOST:PORT, or set MASTER_ADDR and MASTER_PORT";
            return Err(Failure::Usage(text.to_owned()));
        };
        // A worker's relay is on its own machine.
        let behind = given("C10D_MASTER_ADDR")
            .filter(|_| through == Through::Nothing && is_loopback_name(&host));
        let (host, port_name) = match behind {
            Some(host) => (host, "C10D_MASTER_PORT"),
            None => (host, "MASTER_PORT"),
        };
        let port = match variable(port_name) {
            None => DEFAULT_PORT,
            Some(port) => port.parse().map_err(|_| {
                Failure::Usage(format!(
                    "{port_name} is {port:?}; expected a port, 1 to 65535"
                ))
            })?,
        };
        Ok(HostPort::new(host, port).into())
    }
}

/// The server that a relay has its session with.
struct BehindRelay {
    relay: SocketAddr,
    token: Option<String>,
}

impl BehindRelay {
    fn current(&self) -> Option<SocketAddr> {
        store_behind(self.relay, self.token.as_deref())
    }
}

impl Lookup for BehindRelay {
    fn name(&self) -> String {
        format!("behind the relay {}", self.relay)
    }

    fn leader(
        &self,
        _: Deadline,
        _: &Cancel,
    ) -> Result<Option<Leader>, Box<dyn Error + Send + Sync>> {
        Ok(self.current().map(|at| Leader {
            address: HostPort::new(at.ip().to_string(), at.port()),
            // Its address tells it apart.
            epoch: 0,
        }))
    }
}

/// Formats the address without the password.
impl fmt::Debug for BehindRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BehindRelay").field(&self.relay).finish()
    }
}

/// The way in which a command in a worker reaches the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Through {
    Relay,
    Nothing,
}

/// The options of a client that has these credentials, if any.
pub(crate) fn client_options(credentials: Option<&Credentials>) -> TcpStoreOptions {
    let options = TcpStoreOptions::default();
    match credentials {
        Some(credentials) => options.with_credentials(credentials.clone()),
        None => options,
    }
}

/// `HOST:PORT`, or `etcd://H1:2379,H2:2379/PREFIX`: wherever the store with this journal is served at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StorePlace<A> {
    At(A),
    #[cfg(feature = "etcd")]
    Etcd(EtcdOptions),
}

/// Whether the address is one of a store in etcd.
pub(crate) fn is_in_etcd(address: &str) -> bool {
    address.starts_with("etcd://")
}

impl<A: FromStr<Err: Display>> FromStr for StorePlace<A> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if is_in_etcd(text) {
            #[cfg(feature = "etcd")]
            return text
                .parse()
                .map(Self::Etcd)
                .map_err(|error: c10d_journal::EtcdAddressError| error.to_string());
            #[cfg(not(feature = "etcd"))]
            return Err("this command was built without its feature `etcd`".to_owned());
        }
        text.parse()
            .map(Self::At)
            .map_err(|error: A::Err| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(connect: Option<&str>, variables: &[(&str, &str)]) -> Result<String, Failure> {
        target_through(Through::Relay, connect, variables)
    }

    fn target_through(
        through: Through,
        connect: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Result<String, Failure> {
        let args = ServerArgs {
            connect: connect.map(|text| text.parse().unwrap()),
            #[cfg(feature = "etcd")]
            etcd: crate::etcd::EtcdAccessArgs::default(),
            secret: SecretArgs::default(),
        };
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Ok(args.target_or(through, variable)?.to_string())
    }

    #[test]
    fn the_option_takes_precedence_over_the_environment() {
        let both = [("MASTER_ADDR", "::1"), ("MASTER_PORT", "1234")];
        assert_eq!(target(Some("a:1"), &both).unwrap(), "a:1");
        assert_eq!(target(None, &both).unwrap(), "[::1]:1234");
        assert_eq!(target(None, &both[..1]).unwrap(), "[::1]:29500");
    }

    #[test]
    fn a_command_in_a_worker_with_a_relay_finds_the_relay_and_the_store() {
        let variables = [
            ("MASTER_ADDR", "127.0.0.2"),
            ("MASTER_PORT", "31000"),
            ("C10D_MASTER_ADDR", "node0"),
            ("C10D_MASTER_PORT", "29511"),
        ];
        let found = |through, variables| target_through(through, None, variables).unwrap();
        assert_eq!(found(Through::Relay, &variables), "127.0.0.2:31000");
        assert_eq!(found(Through::Nothing, &variables), "node0:29511");
        assert_eq!(found(Through::Nothing, &variables[..2]), "127.0.0.2:31000");
        // The user has named another store since.
        let other = [&variables[1..], &[("MASTER_ADDR", "node7")]].concat();
        assert_eq!(found(Through::Nothing, &other), "node7:31000");
    }

    #[test]
    fn a_missing_or_malformed_target_is_a_usage_error() {
        for variables in [
            &[][..],
            &[("MASTER_ADDR", "")],
            &[("MASTER_PORT", "1")],
            &[("MASTER_ADDR", "a"), ("MASTER_PORT", "65536")],
        ] {
            let failure = target(None, variables).unwrap_err();
            assert!(matches!(failure, Failure::Usage(_)), "{failure}");
        }
    }
}
