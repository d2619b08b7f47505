//! Requests answered per second, by connections and requests in flight per connection.

use super::requests;
use super::setting::Setting;
use crate::failure::Failure;
use crate::fleet::{Fleet, Flood};
use crate::report::{Goal, Row, Unit, measure_in_turn};

const VALUE: [u8; 64] = [b'v'; 64];

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// ADD of 1; each connection has its own key.
    Add,
    /// SET and GET of the same key with [`VALUE`], two operations; each connection has its own key.
    SetGet,
}

#[derive(Debug, Clone)]
pub(crate) struct Throughput {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) connections: usize,
    /// Requests (ADD) or pairs (SET and GET) in flight per connection.
    pub(crate) depth: usize,
    pub(crate) goal: Option<Goal>,
}

impl Throughput {
    /// Measures the requests a second over a fleet of `connections`, and in turn over the fleet of the floor.
    pub(crate) fn measure(
        &self,
        setting: &Setting,
        mut fleet: Fleet,
        mut floor: Option<Fleet>,
    ) -> Result<Row, Failure> {
        let batches: Vec<_> = (0..self.connections)
            .map(|connection| self.unit(connection).repeat(self.depth))
            .collect();
        let operations_per_unit = match self.kind {
            Kind::Add => 1,
            Kind::SetGet => 2,
        };
        let flood = Flood {
            batches: &batches,
            unit_bytes: batches[0].len() / self.depth,
            reply_bytes: self.reply().len(),
            depth: self.depth,
        };
        let mut rows = [Row::new(&self.name, Unit::OperationsPerSecond)];
        measure_in_turn(&mut rows, setting.rounds, floor.is_some(), |is_floor| {
            let fleet = match &mut floor {
                Some(floor) if is_floor => floor,
                _ => &mut fleet,
            };
            // Both may use the same keys.
            let sent = self.warm_up(fleet)?;
            let flooded = fleet.flood(flood, setting.round_time)?;
            self.check_totals(fleet, sent + flooded.sent)?;
            let operations = flooded.answered * operations_per_unit;
            Ok([operations as f64 / flooded.elapsed.as_secs_f64()])
        })?;
        let [mut row] = rows;
        row.goal = self.goal;
        Ok(row)
    }

    fn key(&self, connection: usize) -> String {
        match self.kind {
            Kind::Add => format!("bench/add/{connection:05}"),
            Kind::SetGet => format!("bench/set/{connection:05}"),
        }
    }

    /// A request of a connection, or a pair of them.
    fn unit(&self, connection: usize) -> Vec<u8> {
        let key = self.key(connection);
        match self.kind {
            Kind::Add => requests::add(&key, 1),
            Kind::SetGet => [requests::set(&key, &VALUE), requests::get(&key)].concat(),
        }
    }

    /// The reply to the first unit of a connection. Later ones have the same length.
    fn reply(&self) -> Vec<u8> {
        match self.kind {
            Kind::Add => vec![1, 0, 0, 0, 0, 0, 0, 0],
            Kind::SetGet => requests::blob(&VALUE),
        }
    }

    /// Sends one request on each connection and compares the whole reply; later replies are only counted.
    /// Returns the number of units sent.
    fn warm_up(&self, fleet: &mut Fleet) -> Result<u64, Failure> {
        let expected = self.reply();
        for connection in 0..self.connections {
            // Removes the count of an earlier run.
            fleet.call(connection, &requests::delete(&self.key(connection)), 8)?;
            let reply = fleet.call(connection, &self.unit(connection), expected.len())?;
            if reply != expected {
                let detail = format!("{reply:02x?} instead of {expected:02x?}");
                return Err(fleet.wrong_answer("the first request", detail));
            }
        }
        Ok(self.connections as u64)
    }

    /// Checks by the counters that every ADD was executed once.
    fn check_totals(&self, fleet: &mut Fleet, sent: u64) -> Result<(), Failure> {
        if !matches!(self.kind, Kind::Add) {
            return Ok(());
        }
        let mut total = 0;
        for connection in 0..self.connections {
            let request = requests::add(&self.key(connection), 0);
            let reply = fleet.call(connection, &request, 8)?;
            total += requests::number(&reply).unwrap_or(0);
        }
        if u64::try_from(total) == Ok(sent) {
            return Ok(());
        }
        let detail = format!("the keys add up to {total} after {sent} ADDs of 1");
        Err(fleet.wrong_answer("ADD", detail))
    }
}
