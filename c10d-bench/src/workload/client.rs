//! Latencies of the client library, on one connection.
//!
//! The other workloads send prepared bytes and so measure only the server. This one measures what a program
//! that uses `TcpStore` waits for.

use c10d_store::StoreExt;

use super::setting::{Setting, open_store};
use crate::failure::Failure;
use crate::latency::{percentiles, repeat, repeat_with};
use crate::report::{Row, Unit, measure_in_turn};

const KEY: &str = "bench/client";
const VALUE: [u8; 64] = [7; 64];

/// Alternates PING, GET and SET: the median of each round, and for PING the 99th percentile too. The protocol
/// does not answer SET, so its time is that of sending it; an unmeasured PING follows each.
pub(crate) fn client(setting: &Setting) -> Result<[Row; 4], Failure> {
    let store = open_store(setting.server, None)?;
    store.set(KEY, VALUE)?;
    let time = setting.round_time / 3;
    let ping = || store.ping().map(drop);
    let mut rows = ["ping p50", "ping p99", "get p50", "set p50"]
        .map(|name| Row::new(format!("client {name}"), Unit::Microseconds));
    measure_in_turn(&mut rows, setting.rounds, false, |_| {
        let [ping_median, ping_tail] = percentiles(&mut repeat(time, ping)?);
        let mut gets = repeat(time, || store.get(KEY).map(drop))?;
        let mut sets = repeat_with(time, || store.set(KEY, VALUE), ping)?;
        let [get_median, set_median] = [&mut gets, &mut sets].map(|times| percentiles(times)[0]);
        Ok([ping_median, ping_tail, get_median, set_median])
    })?;
    Ok(rows)
}
