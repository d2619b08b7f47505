//! The latency of one rank's requests through a real relay, in a process of its own on the core of the rank, beside
//! that of requests to the store itself.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use c10d_store::{
    ConnectOptions, Credentials, Store, StoreError, StoreExt, TcpStore, TcpStoreOptions,
};

use super::super::child::ServerChild;
use super::super::error::BenchError;
use super::super::latency::percentiles;
use super::super::pair::order;
use super::super::report::{Goal, Row, Unit};
use super::super::servers::RelayServerArgs;
use super::super::workload::setting::Setting;
use super::server::Server;

/// Longer than any operation takes.
const SILENCE_MAX: Duration = Duration::from_secs(30);

const KEY: &str = "bench/relay/value";
const COUNTER: &str = "bench/relay/counter";
const VALUE: [u8; 64] = [7; 64];

/// The most that a relay adds to a round trip, in microseconds.
const ADDED_MAX: f64 = 25.0;

type Operation<'o> = &'o dyn Fn(&TcpStore) -> Result<(), StoreError>;

/// Alternates between the relay and the store: the medians of GET and ADD of each round.
pub(super) fn latency(setting: &Setting, with_secret: bool) -> Result<[Row; 2], BenchError> {
    let server = Server::start(setting.cores, with_secret)?;
    let upstream = server.address();
    let command = RelayServerArgs::command_line(upstream, server.secret_file_option());
    // Without cores: on that of this thread.
    let relay = ServerChild::start(&command, None)?;
    let relayed = open(relay.address(), None)?;
    let direct = open(server.address(), server.credentials())?;
    direct.set(KEY, VALUE)?;

    let time = setting.round_time / 2;
    let get = |store: &TcpStore| store.get(KEY).map(drop);
    let add = |store: &TcpStore| store.add(COUNTER, 1).map(drop);
    let operations: [(&str, Operation<'_>); 2] = [("get p50", &get), ("add p50", &add)];
    let mut rows = operations.map(|(name, _)| {
        let mut row = Row::new(name, Unit::Microseconds);
        row.goal = Some(Goal::AboveFloorAtMost(ADDED_MAX));
        row
    });
    for (_, operation) in operations {
        for store in [&relayed, &direct] {
            median(store, time / 4, operation)?;
        }
    }
    for round in 0..setting.rounds {
        for (row, (_, operation)) in rows.iter_mut().zip(operations) {
            for is_floor in order(round) {
                let store = if is_floor { &direct } else { &relayed };
                row.push(is_floor, median(store, time, operation)?);
            }
        }
    }
    Ok(rows)
}

fn open(address: SocketAddr, credentials: Option<&Credentials>) -> Result<TcpStore, BenchError> {
    let mut options = TcpStoreOptions::default()
        .with_timeout(SILENCE_MAX)
        .with_connect_options(ConnectOptions::default().with_rounds_max(1));
    if let Some(credentials) = credentials {
        options = options.with_credentials(credentials.clone());
    }
    let host = address.ip().to_string();
    Ok(TcpStore::open(&host, address.port(), options)?)
}

/// Repeats an operation for `time`. Returns the median in microseconds.
fn median(store: &TcpStore, time: Duration, operation: Operation<'_>) -> Result<f64, BenchError> {
    let mut times = Vec::new();
    let end = Instant::now() + time;
    let mut started = Instant::now();
    while times.is_empty() || started < end {
        operation(store)?;
        let answered = Instant::now();
        times.push(answered - started);
        started = answered;
    }
    let [p50, _] = percentiles(&mut times);
    Ok(p50)
}
