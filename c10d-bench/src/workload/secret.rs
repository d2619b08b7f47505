//! What a shared secret costs: the same requests to one server, with the secret and plain, in turn.

use std::time::Instant;

use c10d_socket::Credentials;

use super::setting::Setting;
use super::throughput::Throughput;
use crate::failure::Failure;
use crate::latency::{percentiles, repeat};
use crate::report::{Goal, Row, Unit, measure_in_turn};
use crate::store_server::{Access, StoreServer};
use crate::workload::setting::open_store;

/// New connections in a round: each one is a full handshake.
const HANDSHAKES: usize = 200;

/// The figures of a server that serves both kinds of clients; the floor of each row is the plain one.
pub(crate) fn secret(setting: &Setting, throughput: &Throughput) -> Result<[Row; 4], Failure> {
    let server = StoreServer::start(setting.cores, Access::PlainToo)?;
    let setting = Setting {
        server: server.address(),
        ..*setting
    };
    let tls = server.tls()?;
    let throughput = Throughput {
        name: format!("{} secret", throughput.name),
        goal: Some(Goal::RatioAtLeast(0.5)),
        ..throughput.clone()
    };
    let fleet = setting.fleet(throughput.connections, tls.as_ref())?;
    let plain = setting.fleet(throughput.connections, None)?;
    let many = throughput.measure(&setting, fleet, Some(plain))?;
    let [ping, tail, connect] = latencies(&setting, server.credentials())?;
    Ok([many, ping, tail, connect])
}

/// PING of the client library, and opening a store.
fn latencies(setting: &Setting, credentials: Option<&Credentials>) -> Result<[Row; 3], Failure> {
    let address = setting.server;
    let sealed = open_store(address, credentials)?;
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
            drop(open_store(address, credentials.filter(|_| !is_floor))?);
            times.push(started.elapsed());
        }
        let [opening, _] = percentiles(&mut times);
        Ok([p50, p99, opening])
    })?;
    Ok(rows)
}
