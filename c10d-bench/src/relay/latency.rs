//! The latency of one rank's requests through a real relay, in a process of its own on the core of the rank, beside
//! that of requests to the store itself.

use c10d_store::{Store, StoreError, StoreExt, TcpStore};

use crate::child::ServerChild;
use crate::failure::Failure;
use crate::latency::{percentiles, repeat};
use crate::report::{Goal, Row, Unit, measure_in_turn};
use crate::servers::RelayServerArgs;
use crate::store_server::StoreServer;
use crate::workload::setting::{Setting, open_store};

const KEY: &str = "bench/relay/value";
const COUNTER: &str = "bench/relay/counter";
const VALUE: [u8; 64] = [7; 64];

/// The most that a relay adds to a round trip, in microseconds.
const ADDED_MAX: f64 = 25.0;

type Operation<'o> = &'o dyn Fn(&TcpStore) -> Result<(), StoreError>;

/// Alternates between the relay and the store: the medians of GET and ADD of each round.
pub(super) fn latency(setting: &Setting, has_secret: bool) -> Result<[Row; 2], Failure> {
    let server = StoreServer::start(setting.cores, has_secret)?;
    let upstream = server.address().to_string();
    let command = RelayServerArgs::command_line(&upstream, server.secret_file_option());
    // Without cores: on that of this thread.
    let relay = ServerChild::start(&command, None)?;
    let relayed = open_store(relay.address(), None)?;
    let direct = open_store(server.address(), server.credentials())?;
    direct.set(KEY, VALUE)?;

    let time = setting.round_time / 2;
    let get = |store: &TcpStore| store.get(KEY).map(drop);
    let add = |store: &TcpStore| store.add(COUNTER, 1).map(drop);
    let mut rows = ["get p50", "add p50"].map(|name| {
        let mut row = Row::new(name, Unit::Microseconds);
        row.goal = Some(Goal::AboveFloorAtMost(ADDED_MAX));
        row
    });
    measure_in_turn(&mut rows, setting.rounds, true, |is_floor| {
        let store = if is_floor { &direct } else { &relayed };
        let median = |operation: Operation<'_>| -> Result<f64, Failure> {
            Ok(percentiles(&mut repeat(time, || operation(store))?)[0])
        };
        Ok([median(&get)?, median(&add)?])
    })?;
    Ok(rows)
}
