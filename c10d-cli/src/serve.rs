//! `c10d store serve`: runs a server in the foreground.

#[cfg(feature = "etcd")]
mod candidate;
mod server;

use std::fs;
use std::net::TcpListener;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use c10d_inspect::http::{StatusOptions, StatusServer};
use c10d_socket::{Credentials, ListenError, ListenOptions, adopt_listener_raw, listen};
use c10d_store::{ServerOptions, TcpStoreServer, WireLimits, recommended_memory_max};
use clap::Args;
use server::{CHECK_INTERVAL, Served};

use crate::end_signals::EndSignals;
use crate::failure::Failure;
use crate::quantity::{ByteCount, parse_duration};
use crate::secret::SecretArgs;

/// PyTorch's default port.
pub(crate) const DEFAULT_PORT: u16 = 29500;

/// The headings of `--help`.
const LIMITS: &str = "Limits";
#[cfg(feature = "etcd")]
const ETCD: &str = "Store in etcd";
const SECURITY: &str = "Security";

/// The options of `c10d store serve`.
#[derive(Debug, Args)]
#[command(mut_arg("secret_file", |arg| arg.hide_short_help(false)))]
pub(crate) struct ServeArgs {
    /// Listen on this address or host name; `::` means all interfaces, IPv6 and IPv4.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,

    /// Listen on this port; 0 lets the system choose. [default: 29500, or that of --listen-fd]
    #[arg(long)]
    port: Option<u16>,

    /// Listen on this descriptor, a listening socket inherited from the parent process. With --port, it must be bound to
    /// that port.
    #[arg(long, value_name = "FD", conflicts_with = "host", value_parser = clap::value_parser!(i32).range(0..))]
    listen_fd: Option<RawFd>,

    /// Expect this number of workers, and warn at the start if the system cannot serve as many.
    #[arg(long, value_name = "N")]
    world_size: Option<usize>,

    /// Limit the length of a key, including the `/` that clients put before it.
    #[arg(hide_short_help = true, help_heading = LIMITS, long, value_name = "BYTES", default_value_t = ByteCount(defaults().limits().key_bytes_max))]
    key_bytes_max: ByteCount,

    /// Limit the length of a value in one request.
    #[arg(hide_short_help = true, help_heading = LIMITS, long, value_name = "BYTES", default_value_t = ByteCount(defaults().limits().value_bytes_max))]
    value_bytes_max: ByteCount,

    /// Limit the number of keys in one request.
    #[arg(hide_short_help = true, help_heading = LIMITS, long, value_name = "N", default_value_t = defaults().limits().keys_per_request_max)]
    keys_per_request_max: usize,

    /// Limit the length of a request.
    #[arg(hide_short_help = true, help_heading = LIMITS, long, value_name = "BYTES", default_value_t = ByteCount(defaults().limits().request_bytes_max))]
    request_bytes_max: ByteCount,

    /// Limit the reply bytes that wait for one peer to read them.
    #[arg(hide_short_help = true, help_heading = LIMITS, long, value_name = "BYTES", default_value_t = ByteCount(defaults().unsent_bytes_max()))]
    unsent_bytes_max: ByteCount,

    /// Limit the memory for keys, values, queues and waits; 0 for no limit. [default: 80 % of the memory or of the control
    /// group's limit]
    ///
    /// Beyond the limit, writes are refused and their connections closed. Reads and deletes continue. Unread replies and
    /// unfinished requests may take an eighth more; beyond that, the clients that hold most of it are disconnected.
    #[arg(hide_short_help = true, help_heading = LIMITS, long, value_name = "BYTES")]
    memory_max: Option<ByteCount>,

    /// Limit the number of simultaneous connections.
    #[arg(hide_short_help = true, help_heading = LIMITS, long, value_name = "N", default_value_t = defaults().connections_max())]
    connections_max: usize,

    /// Close a new connection that has not completed its handshake after this time.
    #[arg(hide_short_help = true, help_heading = LIMITS, long, value_name = "TIME", value_parser = parse_duration, default_value = "60s")]
    hello_timeout: Duration,

    /// Keep the store in this directory, and continue with the data in it. [default: the data is lost when the server
    /// exits]
    ///
    /// The directory is created if it is missing. One server can use it at a time. `c10d store verify` checks it.
    #[cfg(feature = "journal")]
    #[cfg_attr(feature = "etcd", arg(conflicts_with = "etcd"))]
    #[arg(long)]
    dir: Option<std::path::PathBuf>,

    /// Serve no status page on the store's port.
    #[arg(long)]
    no_status: bool,

    /// Also serve the status page under these names, separated by commas. It is always served for IP addresses, `localhost`
    /// and this machine's name.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        conflicts_with = "no_status"
    )]
    status_host: Vec<String>,

    /// Exit when the parent process exits, so that a killed script leaves no server behind (Linux).
    #[arg(long)]
    end_with_parent: bool,

    #[cfg(feature = "etcd")]
    #[command(flatten, next_help_heading = ETCD)]
    etcd: crate::etcd::EtcdArgs,

    #[cfg(feature = "etcd")]
    #[command(flatten, next_help_heading = ETCD)]
    candidate: crate::etcd::EtcdCandidateArgs,

    /// With --etcd, let relays and clients find this server at this name or address. [default: that of --host, or this
    /// machine's name if it listens on all interfaces]
    #[cfg(feature = "etcd")]
    #[arg(help_heading = ETCD, long, value_name = "HOST", requires = "etcd")]
    advertise: Option<String>,

    #[command(flatten, next_help_heading = SECURITY)]
    secret: SecretArgs,

    /// With a secret, also accept connections without it from processes of the same user on this machine, for example
    /// unmodified PyTorch ranks (Linux).
    #[arg(help_heading = SECURITY, long)]
    plain_from_same_user: bool,
}

impl ServeArgs {
    fn options(&self, credentials: Option<&Credentials>) -> ServerOptions {
        let mut limits = WireLimits::default();
        limits.key_bytes_max = self.key_bytes_max.0;
        limits.value_bytes_max = self.value_bytes_max.0;
        limits.keys_per_request_max = self.keys_per_request_max;
        limits.request_bytes_max = self.request_bytes_max.0;
        let options = defaults()
            .with_limits(limits)
            .with_unsent_bytes_max(self.unsent_bytes_max.0)
            .with_connections_max(self.connections_max)
            .with_handshake_timeout(self.hello_timeout);
        let memory_max = self.memory_max.map(|bytes| bytes.0);
        let options = match memory_max.or_else(recommended_memory_max) {
            None | Some(0) => options,
            Some(bytes) => options.with_memory_max(bytes),
        };
        match credentials {
            Some(credentials) => options
                .with_credentials(credentials.clone())
                .with_plain_from_same_user(self.plain_from_same_user),
            None => options,
        }
    }

    /// Puts a status page on the server's port; `None` if none is wanted.
    fn start_status(
        &self,
        server: &TcpStoreServer,
        credentials: Option<&Credentials>,
    ) -> Result<Option<Arc<StatusServer>>, Failure> {
        let token = credentials.map(Credentials::http_token);
        // Without a secret there is no word to ask for.
        if self.no_status || token == Some(None) {
            return Ok(None);
        }
        let options = StatusOptions::default()
            .with_world_size(self.world_size)
            .with_host_names(self.status_host.iter().cloned());
        let options = match token.flatten() {
            Some(token) => options.with_token(token),
            None => options,
        };
        let status = StatusServer::start(server.observer(), options)
            .map_err(Failure::system("cannot serve a status page"))?;
        server.set_http_handler(Arc::clone(&status) as _);
        Ok(Some(status))
    }

    /// The options with the journal of --dir, and what becomes of the data at the end.
    #[cfg(feature = "journal")]
    fn with_journal(&self, options: ServerOptions) -> Result<(ServerOptions, String), Failure> {
        let Some(directory) = &self.dir else {
            return Ok((options, DATA_IS_LOST.to_owned()));
        };
        let journal = c10d_journal::SqliteJournal::open(directory)?;
        let fate = format!("the store is kept in {}", directory.display());
        Ok((options.with_journal(journal), fate))
    }

    /// Returns the host at which other servers and clients find this server.
    #[cfg(feature = "etcd")]
    fn advertised_host(&self) -> String {
        match (&self.advertise, self.host.parse::<std::net::IpAddr>()) {
            (Some(host), _) => host.clone(),
            (None, Ok(address)) if address.is_unspecified() => c10d_socket::host_name(),
            (None, _) => self.host.clone(),
        }
    }

    fn listen(&self) -> Result<Vec<TcpListener>, ListenError> {
        if let Some(fd) = self.listen_fd {
            return Ok(vec![adopt_listener_raw(fd, self.port.unwrap_or(0))?]);
        }
        let options = ListenOptions::default()
            .with_host(self.host.as_str())
            .with_port(self.port.unwrap_or(DEFAULT_PORT));
        listen(&options)
    }
}

fn defaults() -> ServerOptions {
    ServerOptions::default().with_groups(c10d_membership::groups)
}

/// Serves until SIGINT or SIGTERM. Prints one line when it accepts connections, so that a script can wait
/// for it and read the port.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    // Before the address is printed: a signal right after that must not be missed.
    let signals = EndSignals::catch(args.end_with_parent)?;
    log_capacity(args, files_left());

    let credentials = args.secret.credentials()?;
    let options = args.options(credentials.as_ref());
    #[cfg(feature = "journal")]
    let (options, fate) = args.with_journal(options)?;
    #[cfg(not(feature = "journal"))]
    let fate = DATA_IS_LOST;
    let listeners = args.listen()?;
    #[cfg(feature = "etcd")]
    if let Some(etcd) = args.etcd.options()? {
        let candidate = candidate::Candidate {
            etcd: args.candidate.of(etcd),
            host: args.advertised_host(),
            listeners,
        };
        let start = |server: TcpStoreServer| {
            let status = args.start_status(&server, credentials.as_ref())?;
            Ok(Served { server, status })
        };
        return candidate.run(options, start, &signals);
    }
    let server = TcpStoreServer::serve(listeners, options)?;
    let status = args.start_status(&server, credentials.as_ref())?;
    let served = Served { server, status };
    served.announce("listening on")?;
    while !served.ends(&signals, CHECK_INTERVAL)? {}
    log::info!("received {}: stopping; {fate}", signals.name());
    served.stop();
    Ok(())
}

const DATA_IS_LOST: &str = "the data of the store is lost";

/// Logs how many connections are possible, and warns if a job of `--world-size` exceeds a limit when all
/// workers connect at once.
fn log_capacity(args: &ServeArgs, files_left: Option<u64>) {
    /// The listener, the poll descriptor, the waker, the spare one, and some reserve.
    const OWN_FILES: u64 = 16;
    let by_option = args.connections_max as u64;
    let by_system = files_left.map(|left| left.saturating_sub(OWN_FILES));
    let room = by_system.map_or(by_option, |by_system| by_system.min(by_option));
    let reason = if room == by_option {
        "--connections-max"
    } else {
        "from ulimit -Hn"
    };
    log::info!("connection limit: {room} ({reason})");
    let Some(world_size) = args.world_size.map(|size| size as u64) else {
        return;
    };
    if world_size > room {
        log::warn!("{world_size} workers exceed the connection limit of {room} ({reason})");
    }
    if let Some(backlog) = backlog_max().filter(|backlog| world_size > *backlog) {
        log::warn!(
            "{world_size} workers may connect at once, but {backlog} can queue: raise sysctl net.core.somaxconn"
        );
    }
}

fn backlog_max() -> Option<u64> {
    let text = fs::read_to_string("/proc/sys/net/core/somaxconn").ok()?;
    text.trim().parse().ok()
}

/// How many more files this process can open; `None` without a limit.
fn files_left() -> Option<u64> {
    c10d_socket::file_limit().map(|limit| limit.saturating_sub(open_now()))
}

/// How many files this process has open; an estimate without /proc.
fn open_now() -> u64 {
    const ESTIMATE: u64 = 16;
    fs::read_dir("/proc/self/fd").map_or(ESTIMATE, |files| files.count() as u64)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        serve: ServeArgs,
    }

    #[test]
    fn default_limits_are_those_of_the_library() {
        let args = Command::parse_from(["serve", "--memory-max=0"]).serve;
        assert_eq!(
            format!("{:?}", args.options(None)),
            format!("{:?}", defaults())
        );
    }

    #[test]
    fn every_limit_has_an_option() {
        let args = Command::parse_from([
            "serve",
            "--key-bytes-max=1",
            "--value-bytes-max=2KiB",
            "--keys-per-request-max=3",
            "--request-bytes-max=4",
            "--unsent-bytes-max=5",
            "--connections-max=6",
            "--memory-max=1GiB",
            "--hello-timeout=7s",
        ]);
        let options = args.serve.options(None);
        let limits = options.limits();
        assert_eq!(limits.key_bytes_max, 1);
        assert_eq!(limits.value_bytes_max, 2048);
        assert_eq!(limits.keys_per_request_max, 3);
        assert_eq!(limits.request_bytes_max, 4);
        assert_eq!(options.unsent_bytes_max(), 5);
        assert_eq!(options.connections_max(), 6);
        assert_eq!(options.memory_max(), Some(1 << 30));
        assert!(format!("{options:?}").contains("handshake_timeout: 7s"));
    }
}
