//! The latency of a round trip of the client library, on one connection.

use super::setting::{Setting, open_store};
use crate::failure::Failure;
use crate::latency::{percentiles, repeat};
use crate::report::{Row, Unit, measure_in_turn};

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
