//! `c10d relay`: runs a relay in the foreground.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use c10d_relay::{Relay, RelayOptions};
use c10d_socket::{Deadline, ListenOptions, is_loopback_name, listen};
use c10d_store::StoreAddress;
use clap::Args;
use elastic_rendezvous::Endpoint;

use crate::end_signals::EndSignals;
use crate::failure::Failure;
use crate::output::announce;
use crate::quantity::parse_duration;
use crate::secret::SecretArgs;
use crate::serve::DEFAULT_PORT;
use crate::server_address::{CONNECTION, StorePlace};

/// How often to check that the relay still runs, so that no idle process remains after a failure.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long the end waits until the processes that use the relay have closed their connections and the store has carried
/// out all of their requests. Short, since a process that does not close them is about to lose them anyway.
const LAST_REQUESTS_TIMEOUT: Duration = Duration::from_secs(1);

/// The options of `c10d relay`.
#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// Connect to this store, which `c10d` serves: HOST, HOST:PORT, or etcd://H1:2379,H2:2379/PREFIX. [default port: 29500]
    #[arg(long, value_name = "HOST[:PORT]")]
    upstream: StorePlace<Endpoint>,

    /// Listen on this loopback address; port 0 lets the system choose.
    #[arg(long, value_name = "HOST[:PORT]", default_value = "127.0.0.1:29500")]
    listen: Endpoint,

    /// Reconnect to the store for up to this time after the connection is lost, and then close the connections of all
    /// clients. [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    resume_timeout: Option<Duration>,

    /// Close the connections of all clients when the store's machine has refused new connections for this time after a
    /// loss. [default: 30s]
    ///
    /// The store has then exited. A store that continues from its journal must be back before that.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    refused_timeout: Option<Duration>,

    /// Exit when the parent process exits, so that a killed script leaves no relay behind (Linux).
    #[arg(long)]
    end_with_parent: bool,

    #[cfg(feature = "etcd")]
    #[command(flatten, next_help_heading = CONNECTION)]
    etcd: crate::etcd::EtcdAccessArgs,

    #[command(flatten, next_help_heading = CONNECTION)]
    secret: SecretArgs,
}

impl RelayArgs {
    fn upstream(&self) -> Result<StoreAddress, Failure> {
        let upstream = match &self.upstream {
            StorePlace::At(upstream) => upstream.with_default_port(DEFAULT_PORT),
            #[cfg(feature = "etcd")]
            StorePlace::Etcd(options) => return self.etcd.store(options),
        };
        if upstream.port() == 0 {
            return Err(Failure::Usage(format!(
                "--upstream is {upstream}, but no store has port 0"
            )));
        }
        Ok(upstream.into())
    }

    fn listen(&self) -> Result<Vec<TcpListener>, Failure> {
        let address = self.listen.with_default_port(DEFAULT_PORT);
        if !is_loopback_name(address.host()) {
            return Err(Failure::Usage(format!(
                "--listen is {address}, which is not a loopback address; a relay serves only processes on the same machine, \
                 so use 127.0.0.1:{}, and run a relay on each machine",
                address.port()
            )));
        }
        let options = ListenOptions::default()
            .with_host(address.host())
            .with_port(address.port());
        Ok(listen(&options)?)
    }

    fn options(&self) -> Result<RelayOptions, Failure> {
        let mut options = RelayOptions::default();
        if let Some(credentials) = self.secret.credentials()? {
            options = options.with_credentials(credentials);
        }
        if let Some(timeout) = self.resume_timeout {
            options = options.with_resume_timeout(timeout);
        }
        if let Some(timeout) = self.refused_timeout {
            options = options.with_refused_timeout(timeout);
        }
        Ok(options)
    }
}

/// Runs until SIGINT or SIGTERM. Prints one line when it accepts connections, so that a script can wait for it and read
/// the port.
pub(crate) fn run(args: &RelayArgs) -> Result<(), Failure> {
    // Before the address is printed: a signal right after that must not be missed.
    let signals = EndSignals::catch(args.end_with_parent)?;
    let upstream = args.upstream()?;
    let options = args.options()?;
    let relay = Relay::start(upstream, args.listen()?, options)?;
    announce("listening on", relay.local_addrs())?;
    while !signals.wait(CHECK_INTERVAL)? {
        if !relay.is_running() {
            return Err(Failure::ended("relay"));
        }
    }
    log::info!("received {}: stopping", signals.name());
    relay.finish(Deadline::after(Instant::now(), LAST_REQUESTS_TIMEOUT));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        relay: RelayArgs,
    }

    fn parse(words: &[&str]) -> RelayArgs {
        let words = [&["relay"], words].concat();
        Command::try_parse_from(words).expect("arguments").relay
    }

    #[test]
    fn ports_have_the_defaults_of_pytorch() {
        for (words, upstream, listen) in [
            (&["--upstream=node0"][..], "node0:29500", "127.0.0.1:29500"),
            (
                &["--upstream=[::1]:7", "--listen=localhost"],
                "[::1]:7",
                "localhost:29500",
            ),
            (
                &["--upstream=a", "--listen=127.0.0.2:0"],
                "a:29500",
                "127.0.0.2:0",
            ),
        ] {
            let args = parse(words);
            assert_eq!(args.upstream().expect("an address").to_string(), upstream);
            let given = args.listen.with_default_port(DEFAULT_PORT);
            assert_eq!(given.to_string(), listen);
        }
    }

    #[test]
    fn only_loopback_addresses_are_listened_on() {
        for host in ["0.0.0.0:0", "[::]:0", "10.0.0.1:0", "node0", ""] {
            let args = parse(&["--upstream=a", &format!("--listen={host}")]);
            match args.listen() {
                Err(failure @ Failure::Usage(_)) => {
                    assert!(failure.to_string().contains("not a loopback address"));
                }
                other => assert_eq!(host, "", "{other:?}"),
            }
        }
        for host in ["127.0.0.1:0", "127.0.0.9:0", "localhost:0"] {
            let args = parse(&["--upstream=a", &format!("--listen={host}")]);
            assert!(!args.listen().expect("a listener").is_empty());
        }
    }

    #[test]
    fn the_limits_of_a_relay_are_options() {
        let args = parse(&[
            "--upstream=a",
            "--resume-timeout=30s",
            "--refused-timeout=5s",
            "--end-with-parent",
        ]);
        assert_eq!(args.resume_timeout, Some(Duration::from_secs(30)));
        let options = args.options().expect("options");
        assert_eq!(options.refused_timeout(), Duration::from_secs(5));
        assert!(args.end_with_parent);
    }

    #[test]
    fn a_store_has_a_port() {
        let failure = parse(&["--upstream=a:0"]).upstream().unwrap_err();
        assert_eq!(failure.exit_code(), 2);
    }
}
