//! Requests answered per second, by connections and requests in flight per connection.

use c10d_socket::TlsClient;

use super::requests;
use super::setting::Setting;
use crate::child::ServerChild;
use crate::failure::Failure;
use crate::fleet::{Fleet, Flood};
use crate::floor::{FloorArgs, FloorMode};
use crate::process::Process;
use crate::report::{Goal, Row, Samples, Unit};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// ADD of 1; each connection has a key of its own.
    Add,
    /// SET and GET of the same key, two operations; each connection has a key of its own.
    SetGet { value_bytes: usize },
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

/// The requests of a workload, encoded once.
#[derive(Debug)]
struct Batches {
    batches: Vec<Vec<u8>>,
    unit_bytes: usize,
    reply_bytes: usize,
    operations_per_unit: u64,
}

impl Throughput {
    /// Alternates between server and floor, so that other load affects both.
    pub(crate) fn measure(&self, setting: &Setting) -> Result<Row, Failure> {
        let batches = self.batches();
        let mut server = setting.fleet(self.connections, None)?;
        let mut sent = self.warm_up(&mut server)?;
        sent += batches
            .measure(&mut server, self.depth, setting, None)?
            .sent;

        let floor_child = if setting.floor {
            let command =
                FloorArgs::command_line(FloorMode::Fixed, batches.unit_bytes, batches.reply_bytes);
            Some(ServerChild::start(&command, setting.cores)?)
        } else {
            None
        };
        let mut floor = match &floor_child {
            Some(child) => Some((self.floor_fleet(child, &batches, setting)?, child.process())),
            None => None,
        };

        let mut row = Row::new(&self.name, Unit::OperationsPerSecond);
        row.goal = self.goal;
        for _ in 0..setting.rounds {
            let measured = batches.measure(&mut server, self.depth, setting, setting.process)?;
            sent += measured.sent;
            row.samples.push(measured.operations_per_second);
            row.server_cpu.extend(measured.cpu_us_per_operation);
            row.server_busy.extend(measured.busy);
            if let Some((fleet, process)) = &mut floor {
                let measured = batches.measure(fleet, self.depth, setting, Some(*process))?;
                row.floor.push(measured.operations_per_second);
                row.floor_cpu.extend(measured.cpu_us_per_operation);
            }
        }
        self.check_totals(&mut server, sent)?;
        Ok(row)
    }

    /// Alternates between connections with a secret and plain ones, to the same server. Returns the requests a second
    /// of those with the secret, and of the plain ones.
    pub(super) fn measure_both(
        &self,
        setting: &Setting,
        tls: Option<&TlsClient>,
    ) -> Result<[Samples; 2], Failure> {
        let sealed = setting.fleet(self.connections, tls)?;
        let plain = setting.fleet(self.connections, None)?;
        self.measure_in_turn(setting, [sealed, plain])
    }

    /// Alternates between two fleets. Returns the requests a second of each.
    pub(super) fn measure_in_turn(
        &self,
        setting: &Setting,
        mut fleets: [Fleet; 2],
    ) -> Result<[Samples; 2], Failure> {
        let batches = self.batches();
        let mut all = [Samples::default(), Samples::default()];
        for round in 0..=setting.rounds {
            for (fleet, samples) in fleets.iter_mut().zip(&mut all) {
                // Both may use the same keys.
                let mut sent = self.warm_up(fleet)?;
                let measured = batches.measure(fleet, self.depth, setting, None)?;
                sent += measured.sent;
                self.check_totals(fleet, sent)?;
                if round > 0 {
                    samples.push(measured.operations_per_second);
                }
            }
        }
        Ok(all)
    }

    fn key(&self, connection: usize) -> String {
        match self.kind {
            Kind::Add => format!("bench/add/{connection:05}"),
            Kind::SetGet { .. } => format!("bench/set/{connection:05}"),
        }
    }

    fn value(&self) -> Vec<u8> {
        match self.kind {
            Kind::Add => Vec::new(),
            Kind::SetGet { value_bytes } => vec![b'v'; value_bytes],
        }
    }

    fn batches(&self) -> Batches {
        let value = self.value();
        let unit = |connection| {
            let key = self.key(connection);
            match self.kind {
                Kind::Add => requests::add(&key, 1),
                Kind::SetGet { .. } => [requests::set(&key, &value), requests::get(&key)].concat(),
            }
        };
        let (reply_bytes, operations_per_unit) = match self.kind {
            Kind::Add => (8, 1),
            Kind::SetGet { .. } => (requests::blob(&value).len(), 2),
        };
        Batches {
            unit_bytes: unit(0).len(),
            batches: (0..self.connections)
                .map(|connection| unit(connection).repeat(self.depth))
                .collect(),
            reply_bytes,
            operations_per_unit,
        }
    }

    /// Sends one request on each connection and compares the whole reply; later ones are only counted.
    /// Returns the number of units sent.
    fn warm_up(&self, fleet: &mut Fleet) -> Result<u64, Failure> {
        let value = self.value();
        for connection in 0..self.connections {
            let key = self.key(connection);
            // Removes the count of an earlier run.
            fleet.call(connection, &requests::delete(&key), 8)?;
            let (request, expected) = match self.kind {
                Kind::Add => (requests::add(&key, 1), vec![1, 0, 0, 0, 0, 0, 0, 0]),
                Kind::SetGet { .. } => (
                    [requests::set(&key, &value), requests::get(&key)].concat(),
                    requests::blob(&value),
                ),
            };
            let reply = fleet.call(connection, &request, expected.len())?;
            if reply != expected {
                let detail = format!("{reply:02x?} instead of {expected:02x?}");
                return Err(fleet.links().wrong_answer("the first request", detail));
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
        Err(fleet.links().wrong_answer("ADD", detail))
    }

    fn floor_fleet(
        &self,
        child: &ServerChild,
        batches: &Batches,
        setting: &Setting,
    ) -> Result<Fleet, Failure> {
        let mut fleet = Fleet::new(child.address(), None)?;
        fleet.connect(
            self.connections,
            setting.connect_window,
            &batches.batches[0][..batches.unit_bytes],
            batches.reply_bytes,
            |_, _| Ok(()),
        )?;
        batches.measure(&mut fleet, self.depth, setting, None)?;
        Ok(fleet)
    }
}

#[derive(Debug)]
struct Measured {
    operations_per_second: f64,
    sent: u64,
    /// Processor time of the server per operation.
    cpu_us_per_operation: Option<f64>,
    /// The fraction of time in which the server used a processor.
    busy: Option<f64>,
}

impl Batches {
    fn measure(
        &self,
        fleet: &mut Fleet,
        depth: usize,
        setting: &Setting,
        process: Option<Process>,
    ) -> Result<Measured, Failure> {
        let flood = Flood {
            batches: &self.batches,
            unit_bytes: self.unit_bytes,
            reply_bytes: self.reply_bytes,
            depth,
        };
        let cpu_before = process.and_then(Process::cpu_time);
        let flooded = fleet.flood(flood, setting.round_time)?;
        let cpu_after = process.and_then(Process::cpu_time);
        let seconds = flooded.elapsed.as_secs_f64();
        let operations = (flooded.answered * self.operations_per_unit) as f64;
        let cpu_seconds = match (cpu_before, cpu_after) {
            (Some(before), Some(after)) => Some(after.saturating_sub(before).as_secs_f64()),
            _ => None,
        };
        Ok(Measured {
            operations_per_second: operations / seconds,
            sent: flooded.sent,
            cpu_us_per_operation: cpu_seconds.map(|cpu| cpu * 1e6 / operations),
            busy: cpu_seconds.map(|cpu| cpu / seconds),
        })
    }
}
