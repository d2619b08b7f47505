//! Which store server a command talks to.

use std::env;

use c10d_socket::{Credentials, HostPort};
use c10d_store::TcpStoreOptions;
use clap::Args;

use crate::failure::Failure;
use crate::secret::SecretArgs;
use crate::serve::DEFAULT_PORT;

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// The server of the store. [default: $MASTER_ADDR:$MASTER_PORT]
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<HostPort>,

    #[command(flatten)]
    secret: SecretArgs,
}

impl ServerArgs {
    /// What the server asks for, if the options or the environment say so.
    pub(crate) fn credentials(&self) -> Result<Option<Credentials>, Failure> {
        self.secret.credentials()
    }

    /// The server of --connect or of the environment.
    pub(crate) fn target(&self) -> Result<HostPort, Failure> {
        self.target_or(|name| env::var(name).ok())
    }

    fn target_or(&self, variable: impl Fn(&str) -> Option<String>) -> Result<HostPort, Failure> {
        if let Some(target) = &self.connect {
            return Ok(target.clone());
        }
        let Some(host) = variable("MASTER_ADDR").filter(|host| !host.is_empty()) else {
            let text =
                "no store given: use --connect HOST:PORT, or set MASTER_ADDR and MASTER_PORT";
            return Err(Failure::Usage(text.to_owned()));
        };
        let port = match variable("MASTER_PORT") {
            None => DEFAULT_PORT,
            Some(port) => port.parse().map_err(|_| {
                Failure::Usage(format!("MASTER_PORT is {port:?}, which is not a port"))
            })?,
        };
        Ok(HostPort::new(host, port))
    }
}

/// The options of a client that has these credentials, if any.
pub(crate) fn client_options(credentials: Option<&Credentials>) -> TcpStoreOptions {
    let options = TcpStoreOptions::default();
    match credentials {
        Some(credentials) => options.with_credentials(credentials.clone()),
        None => options,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(connect: Option<&str>, variables: &[(&str, &str)]) -> Result<String, Failure> {
        let args = ServerArgs {
            connect: connect.map(|text| text.parse().unwrap()),
            secret: SecretArgs::default(),
        };
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Ok(args.target_or(variable)?.to_string())
    }

    #[test]
    fn the_option_takes_precedence_over_the_environment() {
        let both = [("MASTER_ADDR", "::1"), ("MASTER_PORT", "1234")];
        assert_eq!(target(Some("a:1"), &both).unwrap(), "a:1");
        assert_eq!(target(None, &both).unwrap(), "[::1]:1234");
        assert_eq!(target(None, &both[..1]).unwrap(), "[::1]:29500");
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
