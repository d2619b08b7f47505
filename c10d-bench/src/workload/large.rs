//! One large value, written and read back.

use std::time::{Duration, Instant};

use super::connection::Connection;
use super::requests;
use super::setting::Setting;
use crate::failure::Failure;
use crate::report::{Row, Unit, measure_in_turn};

const VALUE_BYTES: usize = 4 << 20;
const KEY: &str = "bench/large";

/// Measures a SET until the answer to a PING behind it, as the protocol does not answer SET, and a GET until
/// its last byte; each as often as fits in a round.
pub(crate) fn large_values(setting: &Setting) -> Result<[Row; 2], Failure> {
    let mut connection = Connection::to_store(setting.server)?;
    let value: Vec<u8> = (0..VALUE_BYTES).map(|index| (index % 251) as u8).collect();
    let set = [requests::set(KEY, &value), requests::ping()].concat();
    let get = requests::get(KEY);
    let expected = requests::blob(&value);
    let mut rows =
        ["large set 4 MiB", "large get 4 MiB"].map(|name| Row::new(name, Unit::GigabytesPerSecond));
    measure_in_turn(&mut rows, setting.rounds, false, |_| {
        let mut set_time = Duration::ZERO;
        let mut get_time = Duration::ZERO;
        let mut count = 0.0;
        while set_time + get_time < setting.round_time / 2 {
            let start = Instant::now();
            connection.exchange("PING", &set, &requests::HELLO_REPLY)?;
            let middle = Instant::now();
            connection.exchange("GET", &get, &expected)?;
            set_time += middle - start;
            get_time += middle.elapsed();
            count += 1.0;
        }
        let gigabytes = count * VALUE_BYTES as f64 / 1e9;
        Ok([set_time, get_time].map(|time| gigabytes / time.as_secs_f64()))
    })?;
    let deleted = requests::number_reply(1);
    connection.exchange("DELETE_KEY", &requests::delete(KEY), &deleted)?;
    Ok(rows)
}
