//! Workloads of the client library on one connection: round trips, and a large value.

use std::time::{Duration, Instant};

use c10d_store::{Store, StoreExt};

use super::setting::{Setting, open_store};
use crate::failure::Failure;
use crate::report::{Row, Unit, measure_in_turn, percentiles, repeat};

/// The median and the 99th percentile of the PINGs of each round.
pub(crate) fn ping(setting: &Setting) -> Result<[Row; 2], Failure> {
    let store = open_store(setting.server, None)?;
    let mut rows = ["ping p50", "ping p99"].map(|name| Row::new(name, Unit::Microseconds));
    measure_in_turn(&mut rows, setting.rounds, false, |_| {
        let ping = || store.ping().map(drop);
        Ok(percentiles(&mut repeat(setting.round_time / 2, ping)?))
    })?;
    Ok(rows)
}

const VALUE_BYTES: usize = 4 << 20;
const KEY: &str = "bench/large";

/// Measures a SET until the answer to a PING behind it, because the protocol does not answer SET, and a GET until
/// its last byte; each as often as fits in a round.
pub(crate) fn large_values(setting: &Setting) -> Result<[Row; 2], Failure> {
    let store = open_store(setting.server, None)?;
    let value: Vec<u8> = (0..VALUE_BYTES).map(|index| (index % 251) as u8).collect();
    let mut rows =
        ["large set 4 MiB", "large get 4 MiB"].map(|name| Row::new(name, Unit::GigabytesPerSecond));
    measure_in_turn(&mut rows, setting.rounds, false, |_| {
        let mut set_time = Duration::ZERO;
        let mut get_time = Duration::ZERO;
        let mut count = 0.0;
        while set_time + get_time < setting.round_time / 2 {
            let start = Instant::now();
            store.set(KEY, &value)?;
            store.ping()?;
            let middle = Instant::now();
            let found = store.get(KEY)?;
            set_time += middle - start;
            get_time += middle.elapsed();
            if found != value {
                let detail = format!("{} bytes", found.len());
                return Err(Failure::wrong_answer(setting.server, "GET", detail));
            }
            count += 1.0;
        }
        let gigabytes = count * VALUE_BYTES as f64 / 1e9;
        Ok([set_time, get_time].map(|time| gigabytes / time.as_secs_f64()))
    })?;
    store.delete_key(KEY)?;
    Ok(rows)
}
