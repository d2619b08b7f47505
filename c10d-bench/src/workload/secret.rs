//! What a shared secret costs: the same requests to one server, with the secret and plain, in turn.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use c10d_socket::{Credentials, Protocol, Secret, TlsClient};
use c10d_store::{TcpStore, TcpStoreOptions};

use super::super::affinity::Cores;
use super::super::child::ServerChild;
use super::super::error::BenchError;
use super::super::latency::percentiles;
use super::super::process::Process;
use super::super::report::{Goal, Row, Unit};
use super::super::servers::StoreServerArgs;
use super::setting::Setting;
use super::throughput::Throughput;

/// Longer than any operation takes.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// New connections in a round: each one is a full handshake.
const HANDSHAKES: usize = 200;

/// The figures of a server that serves both kinds of clients; the floor of each row is the plain one.
pub(in super::super) fn secret(
    setting: &Setting,
    throughput: &Throughput,
) -> Result<[Row; 4], BenchError> {
    let server = SecretServer::start_serving_plain_too(setting.cores)?;
    let setting = Setting {
        server: server.address(),
        ..*setting
    };
    let credentials = &server.credentials;
    let host = setting.server.ip().to_string();
    let tls = credentials
        .client(Protocol::Store, &host)
        .map_err(unusable)?;
    let many = against_plain(&setting, throughput, &tls)?;
    let [ping, tail, connect] = latencies(&setting, credentials)?;
    Ok([many, ping, tail, connect])
}

fn against_plain(
    setting: &Setting,
    throughput: &Throughput,
    tls: &TlsClient,
) -> Result<Row, BenchError> {
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
fn latencies(setting: &Setting, credentials: &Credentials) -> Result<[Row; 3], BenchError> {
    let open = |credentials: Option<&Credentials>| {
        let options = TcpStoreOptions::default().with_timeout(SILENCE_MAX);
        let options = match credentials {
            Some(credentials) => options.with_credentials(credentials.clone()),
            None => options,
        };
        let host = setting.server.ip().to_string();
        TcpStore::open(&host, setting.server.port(), options)
    };
    let (sealed, plain) = (open(Some(credentials))?, open(None)?);
    let ping = |store: &TcpStore| -> Result<[f64; 2], BenchError> {
        let mut times = Vec::new();
        let end = Instant::now() + setting.round_time / 2;
        while Instant::now() < end {
            times.push(store.ping()?);
        }
        Ok(percentiles(&mut times))
    };
    let connect = |credentials: Option<&Credentials>| -> Result<f64, BenchError> {
        let mut times = Vec::new();
        for _ in 0..HANDSHAKES {
            let started = Instant::now();
            drop(open(credentials)?);
            times.push(started.elapsed());
        }
        Ok(percentiles(&mut times)[0])
    };
    let mut median = Row::new("ping p50 secret", Unit::Microseconds);
    let mut tail = Row::new("ping p99 secret", Unit::Microseconds);
    let mut opening = Row::new("open p50 secret", Unit::Microseconds);
    ping(&sealed)?;
    ping(&plain)?;
    for _ in 0..setting.rounds {
        let [p50, p99] = ping(&sealed)?;
        median.samples.push(p50);
        tail.samples.push(p99);
        let [p50, p99] = ping(&plain)?;
        median.floor.push(p50);
        tail.floor.push(p99);
        opening.samples.push(connect(Some(credentials))?);
        opening.floor.push(connect(None)?);
    }
    Ok([median, tail, opening])
}

/// A server with a new secret, in a child process.
pub(in super::super) struct SecretServer {
    child: ServerChild,
    file: SecretFile,
    pub(in super::super) credentials: Credentials,
}

impl SecretServer {
    pub(in super::super) fn start(cores: Option<Cores>) -> Result<Self, BenchError> {
        Self::start_with(cores, &[])
    }

    fn start_serving_plain_too(cores: Option<Cores>) -> Result<Self, BenchError> {
        Self::start_with(cores, &["--plain-from-same-user"])
    }

    fn start_with(cores: Option<Cores>, options: &[&str]) -> Result<Self, BenchError> {
        let secret = Secret::random().map_err(unusable)?;
        let file = SecretFile::create(&secret);
        let file = file.map_err(BenchError::system("cannot write a secret"))?;
        let file_option = file.option();
        let command = StoreServerArgs::command_line(&[&[file_option.as_str()], options].concat());
        Ok(Self {
            child: ServerChild::start(&command, cores)?,
            file,
            credentials: Credentials::from(secret),
        })
    }

    pub(in super::super) fn address(&self) -> SocketAddr {
        self.child.address()
    }

    pub(in super::super) fn process(&self) -> Process {
        self.child.process()
    }

    /// The option with which another process uses the secret.
    pub(in super::super) fn secret_file_option(&self) -> String {
        self.file.option()
    }
}

/// Removed when dropped.
struct SecretFile(PathBuf);

impl SecretFile {
    fn create(secret: &Secret) -> io::Result<Self> {
        let name = format!("c10d-bench-secret-{:016x}", fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let created = Self(path);
        file.write_all(secret.to_text().as_bytes())?;
        Ok(created)
    }

    fn option(&self) -> String {
        format!("--secret-file={}", self.0.display())
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        // In a folder that is cleared anyway.
        let _ = fs::remove_file(&self.0);
    }
}

pub(in super::super) fn unusable(error: c10d_socket::CredentialsError) -> BenchError {
    BenchError::system("the secret")(io::Error::other(error))
}
