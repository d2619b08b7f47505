//! Keys deleted by their prefix, and how long another connection waits meanwhile.

use std::time::{Duration, Instant};

use super::connection::Connection;
use super::requests;
use super::setting::Setting;
use crate::failure::Failure;
use crate::report::{Goal, Row, Unit};

/// The keys of a MULTI_SET.
const KEYS_AT_ONCE: usize = 10_000;

/// Measures a DELETE_PREFIX of so many keys until its reply, and the longest of the PINGs meanwhile.
pub(crate) fn prefix(setting: &Setting, keys: usize) -> Result<[Row; 2], Failure> {
    let mut deletion = Row::new(format!("delete {keys} keys by prefix"), Unit::Milliseconds);
    let mut ping = Row::new("longest ping meanwhile", Unit::Milliseconds);
    ping.goal = Some(Goal::AtMost(5.0));
    let mut asker = Connection::to_store(setting.server)?;
    let mut other = Connection::to_store(setting.server)?;
    let delete = requests::delete_prefix("bench/prefix/");
    let deleted = requests::number_reply(keys as i64);
    for _ in 0..setting.rounds {
        for start in (0..keys).step_by(KEYS_AT_ONCE) {
            let end = keys.min(start + KEYS_AT_ONCE);
            let names = (start..end).map(|key| format!("bench/prefix/{key}"));
            let set = requests::multi_set(names, b"value");
            let set = [set, requests::ping()].concat();
            asker.exchange("PING", &set, &requests::HELLO_REPLY)?;
        }
        let start = Instant::now();
        asker.send(&delete)?;
        let mut longest = Duration::ZERO;
        while !asker.has_received(deleted.len())? {
            let start = Instant::now();
            other.exchange("PING", &requests::ping(), &requests::HELLO_REPLY)?;
            longest = longest.max(start.elapsed());
        }
        let time = start.elapsed();
        asker.receive("DELETE_PREFIX", &deleted)?;
        deletion.push(false, time.as_secs_f64() * 1e3);
        ping.push(false, longest.as_secs_f64() * 1e3);
    }
    Ok([deletion, ping])
}
