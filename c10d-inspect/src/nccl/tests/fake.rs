//! A small RAS service: it has a table of processes and communicators, takes a client's lines, and answers in the form
//! of a release. Written from the formats in NVIDIA's public sources; no answer of it was recorded from a real one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

/// The releases whose forms differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Release {
    /// 2.24.3: missing members by their ranks alone, operations of all kinds together.
    V2_24,
    /// 2.28.3: missing members with their processes, operations by kind.
    V2_28,
    /// 2.28.9: JSON, in which a comma is missing.
    V2_28_9,
    /// 2.30.7: JSON.
    V2_30,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Answers,
    Silent,
    Dead,
}

#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) host: IpAddr,
    pub(super) pid: u32,
    pub(super) gpu: u32,
    pub(super) life: Life,
}

#[derive(Debug, Clone)]
pub(super) struct Rank {
    /// The rank's process, by its place.
    pub(super) process: usize,
    /// `None` if its process is no longer a member.
    pub(super) status: Option<&'static str>,
    /// `ncclResult_t` of asynchronous errors; 0 for none.
    pub(super) error: usize,
    /// How many `AllReduce` it has launched.
    pub(super) reduced: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Comm {
    pub(super) id: u64,
    pub(super) ranks: Vec<Rank>,
}

#[derive(Debug, Clone)]
pub(super) struct Fake {
    pub(super) release: Release,
    pub(super) processes: Vec<Process>,
    pub(super) comms: Vec<Comm>,
}

const OPERATIONS: [&str; 5] = [
    "Broadcast",
    "Reduce",
    "AllGather",
    "ReduceScatter",
    "AllReduce",
];

const ERRORS: [&str; 7] = [
    "",
    "Unhandled CUDA error",
    "System error",
    "Internal error",
    "Invalid argument",
    "Invalid usage",
    "Remote process error",
];

impl Fake {
    /// `nodes` hosts with as many processes each, which are one communicator in their order.
    pub(super) fn new(release: Release, nodes: u8, each: u32) -> Self {
        let mut processes = Vec::new();
        for node in 0..nodes {
            processes.extend((0..each).map(|gpu| Process {
                host: [10, 0, 0, 10 + node].into(),
                pid: 4000 + u32::from(node) * 100 + gpu,
                gpu,
                life: Life::Answers,
            }));
        }
        let all = 0..processes.len();
        let mut fake = Self {
            release,
            processes,
            comms: Vec::new(),
        };
        fake.add_comm(0x27a0_79b8_28ff_1a75, all);
        fake
    }

    pub(super) fn add_comm(&mut self, id: u64, processes: impl IntoIterator<Item = usize>) {
        let rank = |process| Rank {
            process,
            status: Some("RUNNING"),
            error: 0,
            reduced: 6650,
        };
        let ranks = processes.into_iter().map(rank).collect();
        self.comms.push(Comm { id, ranks });
    }

    /// All that the service sends to a client that has sent these lines.
    pub(super) fn answer(&self, lines: &str) -> Vec<u8> {
        let mut sent = String::new();
        let mut is_json = false;
        for line in lines.lines() {
            match line.to_ascii_lowercase().as_str() {
                "client protocol 2" => sent.push_str("SERVER PROTOCOL 2\n"),
                "timeout 1" => sent.push_str("OK\n"),
                "set format json" if self.release >= Release::V2_28_9 => {
                    is_json = true;
                    sent.push_str("OK\n");
                }
                "verbose status" => {
                    sent.push_str(&if is_json { self.json() } else { self.text() });
                    break;
                }
                _ => {
                    let _ = writeln!(sent, "ERROR: Unknown command {line}");
                }
            }
        }
        sent.into_bytes()
    }

    fn version(&self) -> &'static str {
        match self.release {
            Release::V2_24 => "2.24.3+cuda12.4",
            Release::V2_28 => "2.28.3+cuda12.9",
            Release::V2_28_9 => "2.28.9+cuda13.0",
            Release::V2_30 => "2.30.7+cuda13.3",
        }
    }

    fn with(&self, life: Life) -> Vec<&Process> {
        self.processes.iter().filter(|it| it.life == life).collect()
    }

    fn answers(&self, rank: &Rank) -> bool {
        self.processes[rank.process].life == Life::Answers
    }

    /// Members whose processes answer for this communicator.
    fn present<'c>(&self, comm: &'c Comm) -> Vec<(usize, &'c Rank)> {
        let all = comm.ranks.iter().enumerate();
        all.filter(|(_, it)| it.status.is_some() && self.answers(it))
            .collect()
    }

    fn place(&self, rank: &Rank) -> String {
        let Process { host, pid, gpu, .. } = &self.processes[rank.process];
        format!("GPU {gpu} managed by process {pid} on node {host}")
    }

    fn text(&self) -> String {
        let mut text = format!(
            "NCCL version {} compiled with CUDA 12.9\nCUDA runtime version 12090, driver version 13000\n\n\
             Job summary\n===========\n\n",
            self.version()
        );
        let mut hosts: Vec<IpAddr> = self.processes.iter().map(|it| it.host).collect();
        hosts.dedup();
        let all = self.processes.len();
        let _ = write!(
            text,
            "  Nodes  Processes         GPUs  Processes     GPUs\n(total)   per node  per process    (total)  (total)\n\
             {:7}  {:9}  {:11}  {all:9}  {all:7}\n\nCommunicators... (0.00s)\n=============\n\n",
            hosts.len(),
            all / hosts.len(),
            1,
        );
        text.push_str(
            "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    #  in group  per comm  \
             per node  per comm  in group\n",
        );
        for (number, comm) in self.comms.iter().enumerate() {
            let size = comm.ranks.len();
            let present = self.present(comm).len();
            let (status, errors) = ("RUNNING", self.errors(comm));
            let _ = writeln!(
                text,
                "{number:5}  {:8}  {:8}  {:>8}  {size:8}  {present:8}  {status:>8}  {errors:>6}",
                1,
                hosts.len(),
                size / hosts.len(),
            );
        }
        text.push_str("\nErrors\n======\n\n");
        self.write_processes(&mut text, "INCOMPLETE", &self.with(Life::Silent));
        self.write_processes(&mut text, "DEAD", &self.with(Life::Dead));
        for (number, comm) in self.comms.iter().enumerate() {
            self.write_missing(&mut text, number, comm);
            self.write_errors(&mut text, number, comm);
        }
        text.push_str("Warnings\n========\n\n");
        let timeouts = self.with(Life::Silent).len();
        if timeouts > 0 {
            let _ = writeln!(
                text,
                "TIMEOUT\n  Encountered {timeouts} communication timeout{} while gathering communicator data\n",
                plural(timeouts, "s")
            );
        }
        for (number, comm) in self.comms.iter().enumerate() {
            self.write_mismatch(&mut text, number, comm);
        }
        text
    }

    fn errors(&self, comm: &Comm) -> String {
        let mut words = Vec::new();
        if comm.ranks.iter().any(|it| !self.answers(it)) {
            words.push("INCOMPLETE");
        }
        if self.present(comm).iter().any(|(_, it)| it.error != 0) {
            words.push("ERROR");
        }
        if self.statuses(comm).len() > 1 || self.counts(comm).len() > 1 {
            words.push("MISMATCH");
        }
        match words.is_empty() {
            true => "OK".to_owned(),
            false => words.join(","),
        }
    }

    fn write_processes(&self, text: &mut String, heading: &str, processes: &[&Process]) {
        let count = processes.len();
        if count == 0 {
            return;
        }
        let _ = match heading {
            "DEAD" => writeln!(
                text,
                "DEAD\n  {count} job process{} considered dead (unreachable via the RAS network)",
                if count > 1 { "es are" } else { " is" }
            ),
            _ => writeln!(
                text,
                "INCOMPLETE\n  Missing communicator data from {count} job process{}",
                plural(count, "es")
            ),
        };
        for Process { host, pid, gpu, .. } in processes {
            let _ = writeln!(text, "  Process {pid} on node {host} managing GPU {gpu}");
        }
        text.push('\n');
    }

    fn write_missing(&self, text: &mut String, number: usize, comm: &Comm) {
        let missing = comm.ranks.iter().enumerate();
        let missing: Vec<_> = missing.filter(|(_, it)| !self.answers(it)).collect();
        let count = missing.len();
        if count == 0 {
            return;
        }
        let _ = writeln!(
            text,
            "#{number}-0 ({:016x}) INCOMPLETE\n  Missing communicator data from {count} rank{}",
            comm.id,
            plural(count, "s")
        );
        if self.release == Release::V2_24 {
            let ranks: Vec<String> = missing.iter().map(|(rank, _)| rank.to_string()).collect();
            let ranks = ranks.join(",");
            let _ = writeln!(text, "  The missing rank{}: {ranks}", plural(count, "s"));
        } else {
            for (rank, it) in missing {
                let _ = writeln!(text, "  Rank {rank} -- {}", self.place(it));
            }
        }
        text.push('\n');
    }

    fn write_errors(&self, text: &mut String, number: usize, comm: &Comm) {
        let mut errors = BTreeMap::<usize, Vec<(usize, &Rank)>>::new();
        for (rank, it) in self.present(comm) {
            if it.error != 0 {
                errors.entry(it.error).or_default().push((rank, it));
            }
        }
        let count: usize = errors.values().map(Vec::len).sum();
        if count == 0 {
            return;
        }
        let s = plural(count, "s");
        let _ = writeln!(
            text,
            "#{number}-0 ({:016x}) ERROR\n  Asynchronous error{s} on {count} rank{s}",
            comm.id
        );
        for (error, ranks) in errors {
            let reported = format!("reported {}", ERRORS[error]);
            self.write_set(text, &ranks, &reported, &reported, ranks.len() + 1);
        }
        text.push('\n');
    }

    fn statuses<'c>(&self, comm: &'c Comm) -> Vec<(&'static str, Vec<(usize, &'c Rank)>)> {
        let none = match self.release {
            Release::V2_24 => "UNKNOWN",
            _ => "NOCOMM",
        };
        let mut sets = BTreeMap::<&str, Vec<(usize, &Rank)>>::new();
        for (rank, it) in comm
            .ranks
            .iter()
            .enumerate()
            .filter(|(_, it)| self.answers(it))
        {
            let status = it.status.unwrap_or(none);
            sets.entry(status).or_default().push((rank, it));
        }
        let mut sets: Vec<_> = sets.into_iter().collect();
        sets.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
        sets
    }

    fn counts<'c>(&self, comm: &'c Comm) -> Vec<(u64, Vec<(usize, &'c Rank)>)> {
        let mut sets = BTreeMap::<u64, Vec<(usize, &Rank)>>::new();
        for (rank, it) in self.present(comm) {
            sets.entry(it.reduced).or_default().push((rank, it));
        }
        let mut sets: Vec<_> = sets.into_iter().collect();
        sets.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
        sets
    }

    fn write_mismatch(&self, text: &mut String, number: usize, comm: &Comm) {
        let (statuses, counts) = (self.statuses(comm), self.counts(comm));
        if statuses.len() < 2 && counts.len() < 2 {
            return;
        }
        let size = comm.ranks.len();
        let _ = writeln!(text, "#{number}-0 ({:016x}) MISMATCH", comm.id);
        if statuses.len() > 1 {
            text.push_str("  Communicator ranks have different status\n");
            for (status, ranks) in statuses {
                let (several, one) = (
                    format!("have status {status}"),
                    format!("has status {status}"),
                );
                if status == "UNKNOWN" {
                    let list: Vec<String> =
                        ranks.iter().map(|(rank, _)| rank.to_string()).collect();
                    let _ = match ranks.len() {
                        1 => writeln!(text, "  Rank {} {one}", list[0]),
                        count => writeln!(
                            text,
                            "  {count} ranks {several}\n  The unknown ranks: {}",
                            list.join(",")
                        ),
                    };
                } else {
                    self.write_set(text, &ranks, &several, &one, size);
                }
            }
        }
        if counts.len() > 1 {
            let kind = match self.release {
                Release::V2_24 => "collective",
                _ => "AllReduce",
            };
            let _ = writeln!(
                text,
                "  Communicator ranks have different {kind} operation counts"
            );
            for (count, ranks) in counts {
                let what = match count {
                    0 if self.release != Release::V2_24 => "not launched any operations".to_owned(),
                    count => format!("launched up to operation {count}"),
                };
                let (several, one) = (format!("have {what}"), format!("has {what}"));
                self.write_set(text, &ranks, &several, &one, size);
            }
            text.push('\n');
        }
    }

    /// Ranks with the same facts. Sets of half of all ranks or more are only counted.
    fn write_set(
        &self,
        text: &mut String,
        ranks: &[(usize, &Rank)],
        several: &str,
        one: &str,
        of: usize,
    ) {
        if let [(rank, it)] = ranks {
            let _ = writeln!(text, "  Rank {rank} {one} -- {}", self.place(it));
            return;
        }
        let _ = writeln!(text, "  {} ranks {several}", ranks.len());
        if ranks.len() * 2 < of || several.starts_with("reported") {
            for (rank, it) in ranks {
                let _ = writeln!(text, "  Rank {rank} -- {}", self.place(it));
            }
        }
    }

    fn json(&self) -> String {
        let comms: Vec<String> = self.comms.iter().map(|it| self.json_comm(it)).collect();
        format!(
            "{{\n  \"nccl_version\": \"{}\",\n  \"cuda_runtime_version\": 13000,\n  \"cuda_driver_version\": 13000,\n  \
             \"timestamp\": \"2026-03-01 09:12:04\",\n  \"communicators_count\": {},\n  \"communicators\": [\n{}\n  ],\n  \
             \"ras\": {{\n    \"collection_time_sec\": 0.002,\n    \"timeouts_count\": {}\n  }}\n}}\n",
            self.version(),
            self.comms.len(),
            comms.join(",\n"),
            self.with(Life::Silent).len(),
        )
    }

    fn json_comm(&self, comm: &Comm) -> String {
        let present = self.present(comm);
        let ranks: Vec<String> = present
            .iter()
            .map(|(rank, it)| self.json_rank(*rank, it))
            .collect();
        let missing: Vec<String> = comm
            .ranks
            .iter()
            .enumerate()
            .filter(|(_, it)| it.status.is_none() || !self.answers(it))
            .map(|(rank, it)| self.json_missing(rank, it))
            .collect();
        format!(
            "    {{\n      \"hash\": \"{:#x}\",\n      \"secondary_hash\": \"0xb7e7187447156001:0xb8242ed28a71381e\",\n      \
             \"size\": {},\n      \"ranks_count\": {},\n      \"missing_ranks_count\": {},\n      \"ranks\": [\n{}\n      \
             ],\n      \"missing_ranks\": [\n{}\n      ]\n    }}",
            comm.id,
            comm.ranks.len(),
            ranks.len(),
            missing.len(),
            ranks.join(",\n"),
            missing.join(",\n"),
        )
    }

    fn json_place(&self, rank: usize, it: &Rank) -> String {
        let Process { host, pid, gpu, .. } = &self.processes[it.process];
        format!(
            "        {{\n          \"rank\": {rank},\n          \"host\": \"{host}\",\n          \"pid\": {pid},\n          \
             \"cuda_dev\": {gpu},\n          \"nvml_dev\": {gpu}"
        )
    }

    fn json_rank(&self, rank: usize, it: &Rank) -> String {
        let counts = OPERATIONS.map(|operation| {
            let count = if operation == "AllReduce" {
                it.reduced
            } else {
                3
            };
            format!("            \"{operation}\": {count}")
        });
        format!(
            "{},\n          \"status\": {{\n            \"init_state\": {},\n            \"async_error\": {},\n            \
             \"finalize_called\": {},\n            \"destroy_flag\": false,\n            \"abort_flag\": {}\n          }},\n          \
             \"collective_counts\": {{\n{}\n          }}\n        }}",
            self.json_place(rank, it),
            if it.status == Some("INIT") { 7 } else { 0 },
            it.error,
            it.status == Some("FINALIZE"),
            it.status == Some("ABORT"),
            counts.join(",\n"),
        )
    }

    fn json_missing(&self, rank: usize, it: &Rank) -> String {
        let comma = if self.release == Release::V2_28_9 {
            ""
        } else {
            ","
        };
        let life = self.processes[it.process].life;
        format!(
            "{}{comma}\n          \"status\": {{\n            \"unresponsive\": {},\n            \"considered_dead\": {}\n          \
             }}\n        }}",
            self.json_place(rank, it),
            life != Life::Answers,
            life == Life::Dead,
        )
    }
}

fn plural(count: usize, ending: &'static str) -> &'static str {
    if count > 1 { ending } else { "" }
}
