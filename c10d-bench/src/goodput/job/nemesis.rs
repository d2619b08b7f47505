//! Does faults to a job, and ends them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};
use rustix::process::Signal;

use super::super::history::FaultRecord;
use super::super::plan::{Fault, Kind, NODES, RANKS_PER_NODE, Seat};
use super::{Job, Lasting, Role};
use crate::failure::Failure;
use crate::process::Process;

/// How long etcd may take to say which server serves.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

impl Job {
    /// Begins a fault.
    pub(in super::super) fn disturb(&mut self, fault: &Fault) -> Result<FaultRecord, Failure> {
        let now_ms = self.now_ms();
        let end_ms = now_ms + fault.length_ms;
        let node = fault.node();
        let mut record = FaultRecord {
            kind: fault.kind,
            at_ms: now_ms,
            end_ms,
            hit: of_node(node),
            what: format!("node {node}"),
            is_void: false,
        };
        match fault.kind {
            Kind::KillRank | Kind::KillRanks => self.kill_ranks(&fault.seats, &mut record),
            Kind::StopRank => {
                record.hit.clone_from(&fault.seats);
                let rank = self.rank(fault.seats[0]);
                record.what = names(rank.as_slice());
                record.is_void = !self.stop(rank, end_ms);
            }
            Kind::KillLauncher => record.is_void = !self.kill_node(node),
            Kind::StopLauncher => {
                let launcher = self.process(Role::Launcher(node));
                record.is_void = !self.stop(launcher, end_ms);
            }
            Kind::KillRelay => {
                let relay = self.process(Role::Relay(node));
                record.is_void = relay.is_none_or(|it| it.signal(Signal::KILL).is_err());
            }
            Kind::KillStore => self.kill_store(&mut record),
            Kind::LoseStoreHost => self.lose_store_host(end_ms, &mut record)?,
            Kind::Cut => self.cut(node, end_ms)?,
            Kind::Slow => {
                record.hit = Vec::new();
                self.hosts.set_slow(node, true)?;
                self.lasting.push((end_ms, Lasting::LinkSlow(node)));
            }
            Kind::FillDisk => {
                record.hit = Vec::new();
                record.what = "the shared folder".to_owned();
                self.hosts.fill_disk();
                self.lasting.push((end_ms, Lasting::DiskFull));
            }
        }
        Ok(record)
    }

    fn kill_ranks(&self, seats: &[Seat], record: &mut FaultRecord) {
        let ranks: Vec<_> = seats.iter().filter_map(|seat| self.rank(*seat)).collect();
        record.hit = seats.to_vec();
        record.is_void = ranks.is_empty();
        record.what = names(&ranks);
        for rank in ranks {
            let _ = rank.signal(Signal::KILL);
        }
    }

    /// Kills the candidate that serves the store; node 0 if a launcher serves it.
    fn kill_store(&self, record: &mut FaultRecord) {
        match self.serving() {
            None if self.side.keeps_ranks() => record.is_void = true,
            None => {
                record.hit = of_node(0);
                record.what = "node 0".to_owned();
                record.is_void = !self.kill_node(0);
            }
            Some(number) => {
                record.hit = Vec::new();
                record.what = format!("candidate {number}");
                let candidate = self.process(Role::Candidate(number));
                record.is_void = candidate.is_none_or(|it| it.signal(Signal::KILL).is_err());
            }
        }
    }

    /// Kills the processes of the host that serves the store, and cuts its link.
    fn lose_store_host(&mut self, end_ms: u64, record: &mut FaultRecord) -> Result<(), Failure> {
        let serving = self.serving();
        let host = serving.map_or(0, |number| Role::Candidate(number).host());
        record.is_void = serving.is_none() && self.side.keeps_ranks();
        record.hit = if host == 0 { of_node(0) } else { Vec::new() };
        record.what = format!("host {host}");
        if !record.is_void {
            self.cut(host, end_ms)?;
            self.hosts.kill(host);
        }
        Ok(())
    }

    pub(super) fn restore(&self, what: Lasting) -> Result<(), Failure> {
        match what {
            // It may have been killed in the meantime.
            Lasting::Stopped(process) => drop(process.signal(Signal::CONT)),
            Lasting::LinkDown(host) => self.hosts.set_link(host, true)?,
            Lasting::LinkSlow(host) => self.hosts.set_slow(host, false)?,
            Lasting::DiskFull => self.hosts.empty_disk(),
        }
        Ok(())
    }

    fn cut(&mut self, host: usize, end_ms: u64) -> Result<(), Failure> {
        self.lasting.push((end_ms, Lasting::LinkDown(host)));
        self.hosts.set_link(host, false)
    }

    fn stop(&mut self, process: Option<Process>, end_ms: u64) -> bool {
        let Some(process) = process else { return false };
        self.lasting.push((end_ms, Lasting::Stopped(process)));
        process.signal(Signal::STOP).is_ok()
    }

    /// Kills the launcher first, as if it alone were killed: its guardian kills the ranks, if it has a
    /// guardian.
    fn kill_node(&self, node: usize) -> bool {
        let launcher = self.process(Role::Launcher(node));
        let is_hit = launcher.is_some_and(|it| it.signal(Signal::KILL).is_ok());
        self.hosts.kill(node);
        is_hit
    }

    fn process(&self, role: Role) -> Option<Process> {
        let index = self.roles.iter().position(|it| *it == role)?;
        Some(Process(self.children[index].as_ref()?.id()))
    }

    /// The newest live process of a rank.
    fn rank(&self, seat: Seat) -> Option<Process> {
        let processes = self.records.values().map(|it| &it.0.process);
        let of_seat = processes.filter(|it| it.seat() == seat);
        let live = of_seat.filter(|it| self.hosts.has(seat.node, Process(it.pid)));
        let newest = live.max_by_key(|it| it.start_ms)?;
        Some(Process(newest.pid))
    }

    /// The candidate that serves the store.
    fn serving(&self) -> Option<usize> {
        let by = Deadline::after(Instant::now(), LOOKUP_TIMEOUT);
        let status = self.directory.as_ref()?.status(by, &Cancel::NEVER).ok()?;
        let address = status.leader?.address;
        let address_of = |number: usize, port| {
            SocketAddr::new(self.hosts.address(NODES + number), port).to_string()
        };
        let mut candidates = self.candidate_ports.iter().enumerate();
        candidates.position(|(number, port)| address_of(number, *port) == address)
    }
}

fn of_node(node: usize) -> Vec<Seat> {
    (0..RANKS_PER_NODE)
        .map(|local| Seat { node, local })
        .collect()
}

fn names(processes: &[Process]) -> String {
    let names: Vec<_> = processes.iter().map(|it| format!("pid {}", it.0)).collect();
    names.join(", ")
}
