//! What a shared secret costs: the same requests to one server, with the secret and plain, in turn.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Instant;

use c10d_socket::{Credentials, Protocol, Secret, TlsClient};
use tempfile::NamedTempFile;

use super::setting::Setting;
use super::throughput::Throughput;
use crate::affinity::Cores;
use crate::child::ServerChild;
use crate::failure::{Context as _, Failure};
use crate::latency::{percentiles, repeat};
use crate::process::Process;
use crate::report::{Goal, Row, Unit, measure_in_turn};
use crate::servers::StoreServerArgs;
use crate::workload::setting::open_store;

/// New connections in a round: each one is a full handshake.
const HANDSHAKES: usize = 200;

/// The figures of a server that serves both kinds of clients; the floor of each row is the plain one.
pub(crate) fn secret(setting: &Setting, throughput: &Throughput) -> Result<[Row; 4], Failure> {
    let server = SecretServer::start_serving_plain_too(setting.cores)?;
    let setting = Setting {
        server: server.address(),
        ..*setting
    };
    let credentials = &server.credentials;
    let host = setting.server.ip().to_string();
    let tls = credentials
        .client(Protocol::Store, &host)
        .context("the secret")?;
    let many = against_plain(&setting, throughput, &tls)?;
    let [ping, tail, connect] = latencies(&setting, credentials)?;
    Ok([many, ping, tail, connect])
}

fn against_plain(
    setting: &Setting,
    throughput: &Throughput,
    tls: &TlsClient,
) -> Result<Row, Failure> {
    let [with_secret, plain] = throughput.measure_both(setting, tls)?;
    let mut row = Row::new(
        format!("{} secret", throughput.name),
        Unit::OperationsPerSecond,
    );
    row.goal = Some(Goal::RatioAtLeast(0.5));
    row.samples = with_secret;
    row.floor = plain;
    Ok(row)
}

/// PING of the client library, and opening a store.
fn latencies(setting: &Setting, credentials: &Credentials) -> Result<[Row; 3], Failure> {
    let address = setting.server;
    let sealed = open_store(address, Some(credentials))?;
    let plain = open_store(address, None)?;
    let names = ["ping p50 secret", "ping p99 secret", "open p50 secret"];
    let mut rows = names.map(|name| Row::new(name, Unit::Microseconds));
    measure_in_turn(&mut rows, setting.rounds, true, |is_floor| {
        let store = if is_floor { &plain } else { &sealed };
        let mut pings = repeat(setting.round_time / 2, || store.ping().map(drop))?;
        let [p50, p99] = percentiles(&mut pings);
        let mut times = Vec::new();
        for _ in 0..HANDSHAKES {
            let started = Instant::now();
            drop(open_store(address, (!is_floor).then_some(credentials))?);
            times.push(started.elapsed());
        }
        let [opening, _] = percentiles(&mut times);
        Ok([p50, p99, opening])
    })?;
    Ok(rows)
}

/// A server with a new secret, in a child process.
pub(crate) struct SecretServer {
    child: ServerChild,
    file: NamedTempFile,
    pub(crate) credentials: Credentials,
}

impl SecretServer {
    pub(crate) fn start(cores: Option<Cores>) -> Result<Self, Failure> {
        Self::start_with(cores, &[])
    }

    fn start_serving_plain_too(cores: Option<Cores>) -> Result<Self, Failure> {
        Self::start_with(cores, &["--plain-from-same-user"])
    }

    fn start_with(cores: Option<Cores>, options: &[&str]) -> Result<Self, Failure> {
        let secret = Secret::random().context("the secret")?;
        // Only this user may read it.
        let write = || {
            let mut file = NamedTempFile::new()?;
            file.write_all(secret.to_text().as_bytes())?;
            io::Result::Ok(file)
        };
        let file = write().context("cannot write a secret")?;
        let file_option = option(&file);
        let command = StoreServerArgs::command_line(&[&[file_option.as_str()], options].concat());
        Ok(Self {
            child: ServerChild::start(&command, cores)?,
            file,
            credentials: Credentials::from(secret),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.child.address()
    }

    pub(crate) fn process(&self) -> Process {
        self.child.process()
    }

    /// The option with which another process uses the secret.
    pub(crate) fn secret_file_option(&self) -> String {
        option(&self.file)
    }
}

fn option(file: &NamedTempFile) -> String {
    format!("--secret-file={}", file.path().display())
}
