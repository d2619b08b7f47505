//! Latencies of the client library, on one connection.
//!
//! The other workloads send prepared bytes and so measure only the server. This one measures what a program
//! that uses `TcpStore` waits for.

use std::time::{Duration, Instant};

use c10d_socket::ConnectOptions;
use c10d_store::{StoreError, StoreExt, TcpStore, TcpStoreOptions};

use super::super::error::BenchError;
use super::super::latency::percentiles;
use super::super::report::{Row, Unit};
use super::setting::Setting;

/// Longer than any operation takes.
const SILENCE_MAX: Duration = Duration::from_secs(30);

const KEY: &str = "bench/client";
const VALUE: [u8; 64] = [7; 64];

/// Alternates PING, GET and SET: the median of each round, and for PING the 99th percentile too. The protocol
/// does not answer SET, so its time is that of sending it; an unmeasured PING follows each.
pub(in super::super) fn client(setting: &Setting) -> Result<[Row; 4], BenchError> {
    let options = TcpStoreOptions::default()
        .with_timeout(SILENCE_MAX)
        .with_connect_options(ConnectOptions::default().with_rounds_max(1));
    let (host, port) = (setting.server.ip().to_string(), setting.server.port());
    let store = TcpStore::open(&host, port, options)?;
    store.set(KEY, VALUE)?;

    let time = setting.round_time / 3;
    let ping = || store.ping().map(drop);
    let get = || store.get(KEY).map(drop);
    let set = || store.set(KEY, VALUE);
    let mut rows = ["ping p50", "ping p99", "get p50", "set p50"]
        .map(|name| Row::new(format!("client {name}"), Unit::Microseconds));
    measure(time / 2, ping, || Ok(()))?;
    for _ in 0..setting.rounds {
        let [ping_median, ping_tail] = measure(time, ping, || Ok(()))?;
        let [get_median, _] = measure(time, get, || Ok(()))?;
        let [set_median, _] = measure(time, set, ping)?;
        let medians = [ping_median, ping_tail, get_median, set_median];
        for (row, figure) in rows.iter_mut().zip(medians) {
            row.samples.push(figure);
        }
    }
    Ok(rows)
}

/// Repeats an operation for `time`, each followed by the unmeasured `after`. Returns the median and 99th
/// percentile in microseconds.
fn measure(
    time: Duration,
    operation: impl Fn() -> Result<(), StoreError>,
    after: impl Fn() -> Result<(), StoreError>,
) -> Result<[f64; 2], BenchError> {
    let mut times = Vec::new();
    let end = Instant::now() + time;
    let mut started = Instant::now();
    while times.is_empty() || started < end {
        operation()?;
        times.push(started.elapsed());
        after()?;
        started = Instant::now();
    }
    Ok(percentiles(&mut times))
}
