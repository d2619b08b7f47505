//! The latency of a round trip on one connection.

use super::connection::Connection;
use super::requests;
use super::setting::Setting;
use crate::child::ServerChild;
use crate::failure::Failure;
use crate::floor::{FloorArgs, FloorMode};
use crate::latency::{percentiles, repeat};
use crate::report::{Goal, Row, Unit, measure_in_turn};

/// Alternates PINGs to the server and an echo of the same bytes: the median and the 99th percentile of each
/// round.
pub(crate) fn ping(setting: &Setting) -> Result<[Row; 2], Failure> {
    let mut server = Connection::to_store(setting.server)?;
    let echo_child = if setting.floor {
        let command = FloorArgs::command_line(FloorMode::Echo, 1, 1);
        Some(ServerChild::start(&command, setting.cores)?)
    } else {
        None
    };
    let mut echo = match &echo_child {
        Some(child) => Some(Connection::open(child.address())?),
        None => None,
    };
    let ping = requests::ping();
    let mut rows = ["ping p50", "ping p99"].map(|name| Row::new(name, Unit::Microseconds));
    rows[0].goal = Some(Goal::RatioAtMost(1.15));
    measure_in_turn(&mut rows, setting.rounds, setting.floor, |is_floor| {
        let (connection, reply) = match &mut echo {
            Some(echo) if is_floor => (echo, &ping[..]),
            _ => (&mut server, &requests::HELLO_REPLY[..]),
        };
        let exchange = || connection.exchange("PING", &ping, reply);
        Ok(percentiles(&mut repeat(setting.round_time / 2, exchange)?))
    })?;
    Ok(rows)
}
