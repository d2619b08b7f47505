//! Takes the samples: of processes, stores, directories, and of what ended jobs have left.

use std::path::Path;
use std::time::Duration;

use super::long_job::{self, Launcher};
use super::long_lived::LongLived;
use super::measures::{Csv, Measures};
use super::programs::{Programs, files_below};
use super::verdict::{Point, Rule};
use crate::failure::Failure;
use crate::process::Process;
use crate::report::Unit;

/// Memory may rise by this: the allocator keeps what a burst has needed, hash tables double, SQLite's cache has 2 MiB, and
/// a store keeps what launchers have announced.
const MEMORY: Rule = Rule::Flat {
    rise: (4 << 20) as f64,
    per_thousand: 65_536.0,
};
/// Two nodes of the long job come and go, with their connections.
const DESCRIPTORS: Rule = Rule::Flat {
    rise: 16.0,
    per_thousand: 0.0,
};
const THREADS: Rule = Rule::Flat {
    rise: 2.0,
    per_thousand: 0.0,
};
/// Servers log nothing for a job: far less than a line.
const SERVER_LOG: Rule = Rule::PerJob(50.0);
/// A node that stays logs each node that comes or goes, and each worker that dies.
const LAUNCHER_LOG: Rule = Rule::PerJob(1000.0);
/// What a store needs for a key beside its bytes (`NAME_BYTES` of its memory limit).
const BYTES_PER_KEY: f64 = 256.0;
/// A store keeps records of the connections that closed last, for `c10d why`: this many, in at most 3 MiB.
const CLOSED_KEPT: f64 = 16_384.0;
const BYTES_PER_CLOSED: f64 = (3 << 20) as f64 / CLOSED_KEPT;
/// A launcher looks at the store that it serves, and has two snapshots with these records meanwhile.
const BYTES_PER_CLOSED_OF_LOOKS: f64 = 1200.0;
/// docs/durable.md, "What it costs".
const DIRECTORY_BYTES_MAX: f64 = (128 << 20) as f64;
const DIRECTORY_FACTOR: f64 = 4.0;

/// The moment of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) seconds: f64,
    /// That have ended.
    pub(super) jobs: u64,
    /// The run is warm: the sample is judged.
    pub(super) counts: bool,
    /// How long a restarted process is not judged.
    pub(super) warm_up: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Sampler {
    pub(super) measures: Measures,
    pub(super) csv: Csv,
}

/// Of which process, and whether its sample is judged.
#[derive(Debug, Clone, Copy)]
struct Subject {
    incarnation: u32,
    is_warm: bool,
}

impl Sampler {
    fn record(
        &mut self,
        moment: Moment,
        subject: Subject,
        name: &str,
        unit: Unit,
        rule: impl Into<Option<Rule>>,
        value: f64,
    ) {
        let point = Point {
            jobs: moment.jobs as f64,
            incarnation: subject.incarnation,
            value,
        };
        self.csv.push(moment.seconds, point, name);
        if moment.counts && subject.is_warm {
            self.measures.record(name, unit, rule.into(), point);
        }
    }

    pub(super) fn store(
        &mut self,
        moment: Moment,
        programs: &Programs,
        store: &LongLived,
        directory: Option<&Path>,
    ) -> Result<(), Failure> {
        let kept = Kept::by(programs, &store.address)?;
        let (keys, bytes, data) = (kept.keys, kept.bytes, kept.memory());
        let subject = server(moment, store);
        self.process(moment, subject, store.name, store.process(), Some(data));
        let name = store.name;
        let kept = |most| Rule::PerJob(most);
        self.record(
            moment,
            whole(),
            &format!("{name}: keys"),
            Unit::Count,
            kept(10.0),
            keys,
        );
        let stored = format!("{name}: bytes of keys and values");
        self.record(moment, whole(), &stored, Unit::Bytes, kept(1500.0), bytes);
        if let Some(directory) = directory {
            let (_, on_disk) = files_below(directory);
            let wal = directory.join("journal.db-wal").metadata();
            let wal = wal.map_or(0, |it| it.len());
            let beyond = (on_disk as f64 - DIRECTORY_FACTOR * bytes).max(0.0);
            let named = |what: &str| format!("{name}: {what}");
            let limit = Rule::AtMost(DIRECTORY_BYTES_MAX);
            self.record(
                moment,
                whole(),
                &named("directory"),
                Unit::Bytes,
                None,
                on_disk as f64,
            );
            self.record(
                moment,
                whole(),
                &named("its log of writes (WAL)"),
                Unit::Bytes,
                None,
                wal as f64,
            );
            self.record(
                moment,
                whole(),
                &named("directory beyond 4 times the data"),
                Unit::Bytes,
                limit,
                beyond,
            );
        }
        self.log(moment, store.name, SERVER_LOG, &store.log);
        Ok(())
    }

    pub(super) fn server(&mut self, moment: Moment, server_: &LongLived) {
        let subject = server(moment, server_);
        self.process(moment, subject, server_.name, server_.process(), None);
        self.log(moment, server_.name, SERVER_LOG, &server_.log);
    }

    /// `workers_store`: the one of its job.
    pub(super) fn launcher(
        &mut self,
        moment: Moment,
        programs: &Programs,
        launcher: &Launcher,
        workers_store: Option<&(String, u16)>,
    ) -> Result<(), Failure> {
        let process = launcher.process();
        let served = workers_store.filter(|(_, port)| process.listens_at(*port));
        let data = match served {
            None => None,
            Some((host, port)) => {
                let kept = Kept::by(programs, &format!("{host}:{port}"))?;
                Some(kept.memory() + BYTES_PER_CLOSED_OF_LOOKS * kept.closed)
            }
        };
        self.process(moment, whole(), launcher.name, process, data);
        self.log(moment, launcher.name, LAUNCHER_LOG, &launcher.log);
        Ok(())
    }

    /// `data`: bytes of its memory that it keeps by design.
    fn process(
        &mut self,
        moment: Moment,
        subject: Subject,
        name: &str,
        process: Process,
        data: Option<f64>,
    ) {
        let bytes = |value: Option<u64>| value.unwrap_or_default() as f64;
        let count = |value: Option<usize>| value.unwrap_or_default() as f64;
        let anonymous = bytes(process.anonymous_bytes());
        let mut put = |what: &str, unit, rule: Option<Rule>, value| {
            self.record(
                moment,
                subject,
                &format!("{name}: {what}"),
                unit,
                rule,
                value,
            );
        };
        put("RSS", Unit::Bytes, None, bytes(process.resident_bytes()));
        put(
            "PSS",
            Unit::Bytes,
            None,
            bytes(process.proportional_bytes()),
        );
        match data {
            None => put("anonymous memory", Unit::Bytes, Some(MEMORY), anonymous),
            Some(data) => {
                put("anonymous memory", Unit::Bytes, None, anonymous);
                let beyond = (anonymous - data).max(0.0);
                put(
                    "the same without what it keeps",
                    Unit::Bytes,
                    Some(MEMORY),
                    beyond,
                );
            }
        }
        put(
            "descriptors",
            Unit::Count,
            Some(DESCRIPTORS),
            count(process.open_files()),
        );
        put(
            "threads",
            Unit::Count,
            Some(THREADS),
            count(process.threads()),
        );
    }

    fn log(&mut self, moment: Moment, name: &str, rule: Rule, log: &Path) {
        let bytes = log.metadata().map_or(0, |it| it.len()) as f64;
        self.record(
            moment,
            whole(),
            &format!("{name}: log"),
            Unit::Bytes,
            rule,
            bytes,
        );
    }

    /// What is left of jobs that have ended: `left` processes, and files.
    pub(super) fn leftovers(
        &mut self,
        moment: Moment,
        programs: &Programs,
        logs: &Path,
        left: usize,
        otherwise: u64,
    ) {
        let none = Rule::AtMost(0.0);
        let mut put = |name: &str, rule, value: f64| {
            self.record(moment, whole(), name, Unit::Count, rule, value);
        };
        put("processes of ended jobs", Some(none), left as f64);
        let of_long_job = programs.running();
        let of_long_job = of_long_job.iter().filter(|it| it.1 == long_job::OWNER);
        // Two nodes more or less, with two workers each.
        let flat = |rise| {
            Some(Rule::Flat {
                rise,
                per_thousand: 0.0,
            })
        };
        put(
            "processes of the long job",
            flat(8.0),
            of_long_job.count() as f64,
        );
        let (files, _) = files_below(&programs.temporary);
        put("temporary files", flat(12.0), files as f64);
        let (files, _) = files_below(logs);
        put(
            "log files of jobs that want some",
            Some(Rule::PerJob(1.0)),
            files as f64,
        );
        put(
            "jobs that ended in another way",
            Some(none),
            otherwise as f64,
        );
    }

    /// After the end of everything but the stores.
    pub(super) fn at_end(&mut self, moment: Moment, left: usize, temporary_files: usize) {
        let none = Rule::AtMost(0.0);
        self.record(
            moment,
            whole(),
            "processes at the end",
            Unit::Count,
            none,
            left as f64,
        );
        self.record(
            moment,
            whole(),
            "temporary files at the end",
            Unit::Count,
            none,
            temporary_files as f64,
        );
    }
}

/// What a store keeps by design.
#[derive(Debug, Clone, Copy)]
struct Kept {
    keys: f64,
    /// Of keys and values.
    bytes: f64,
    /// Records of closed connections.
    closed: f64,
}

impl Kept {
    fn by(programs: &Programs, store: &str) -> Result<Self, Failure> {
        let stats = programs.stats(store)?;
        let stat = |name: &str| stats.get(name).and_then(serde_json::Value::as_f64);
        let counters = ["keys", "stored_bytes", "opened", "connections"].map(stat);
        let [Some(keys), Some(bytes), Some(opened), Some(open)] = counters else {
            return Err(Failure::new("a counter of the store is missing"));
        };
        let closed = (opened - open).min(CLOSED_KEPT);
        Ok(Self {
            keys,
            bytes,
            closed,
        })
    }

    fn memory(self) -> f64 {
        BYTES_PER_KEY.mul_add(self.keys, self.bytes) + BYTES_PER_CLOSED * self.closed
    }
}

/// A measure that outlives restarts.
const fn whole() -> Subject {
    Subject {
        incarnation: 0,
        is_warm: true,
    }
}

fn server(moment: Moment, server: &LongLived) -> Subject {
    Subject {
        incarnation: server.incarnation,
        is_warm: server.incarnation == 0 || server.started.elapsed() >= moment.warm_up,
    }
}
