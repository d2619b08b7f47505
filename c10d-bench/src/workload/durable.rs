//! What a journal costs: the same requests to a server with one and to a server without, in turn; and how soon a store is
//! there again after its server was killed.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{Store, StoreExt, TcpStore, TcpStoreOptions};
use tempfile::TempDir;

use super::super::child::ServerChild;
use super::super::error::BenchError;
use super::super::latency::percentiles;
use super::super::report::{Goal, Row, Unit};
use super::super::servers::StoreServerArgs;
use super::setting::Setting;
use super::throughput::{Kind, Throughput};

/// Longer than any operation takes.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Connections of the client that writes while another one reads.
const WRITERS: usize = 16;

const REOPENED_VALUE_BYTES: usize = 100;

/// Pairs of one MULTI_SET.
const PAIRS: usize = 1000;

/// Against the server of the setting, which has no journal.
pub(in super::super) fn durable(
    setting: &Setting,
    set_get: &Throughput,
    reopened_keys: usize,
) -> Result<Vec<Row>, BenchError> {
    let directory = TempDir::new().map_err(BenchError::system("cannot make a directory"))?;
    let child = serve(directory.path(), setting)?;
    let with_journal = Setting {
        server: child.address(),
        process: Some(child.process()),
        ..*setting
    };
    let add = Throughput {
        name: "add 256".to_owned(),
        kind: Kind::Add,
        connections: 256,
        depth: 1,
        goal: None,
    };
    let mut rows = vec![
        against(setting, &with_journal, &add, 0.9)?,
        against(setting, &with_journal, set_get, 0.7)?,
        one_add(&with_journal, directory.path())?,
        clean_reads(setting, &with_journal)?,
    ];
    drop(child);
    rows.push(reopen(setting, reopened_keys)?);
    Ok(rows)
}

/// Starts a server with what is in the directory.
pub(in super::super) fn serve(
    directory: &Path,
    setting: &Setting,
) -> Result<ServerChild, BenchError> {
    let option = format!("--dir={}", directory.display());
    ServerChild::start(&StoreServerArgs::command_line(&[&option]), setting.cores)
}

fn against(
    plain: &Setting,
    with_journal: &Setting,
    throughput: &Throughput,
    goal: f64,
) -> Result<Row, BenchError> {
    let fleets = [
        with_journal.fleet(throughput.connections, None)?,
        plain.fleet(throughput.connections, None)?,
    ];
    let [samples, floor] = throughput.measure_in_turn(plain, fleets)?;
    let mut row = Row::new(
        format!("{} durable", throughput.name),
        Unit::OperationsPerSecond,
    );
    row.goal = Some(Goal::RatioAtLeast(goal));
    row.samples = samples;
    row.floor = floor;
    Ok(row)
}

/// The floor is a write of as many bytes and fdatasync(2), in the same file system.
fn one_add(setting: &Setting, directory: &Path) -> Result<Row, BenchError> {
    const BYTES: usize = 200;
    let failed = BenchError::system("cannot write a file");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(directory.join("floor"))
        .and_then(|file| file.write_all_at(&[0; 1 << 16], 0).map(|()| file))
        .map_err(failed)?;
    let store = open(setting)?;
    let mut row = Row::new("add p50 durable", Unit::Microseconds);
    row.goal = Some(Goal::AboveFloorAtMost(40.0));
    for round in 0..=setting.rounds {
        let p50 = timed(setting.round_time, || store.add("bench/one", 1).map(drop))?;
        let mut at = 0;
        let floor = timed(setting.round_time, || {
            at = (at + BYTES as u64) % (1 << 15);
            let written = file.write_all_at(&[1; BYTES], at);
            let kept = written.and_then(|()| file.sync_data());
            kept.map_err(BenchError::system("cannot write a file"))
        })?;
        if round > 0 {
            row.samples.push(p50);
            row.floor.push(floor);
        }
    }
    Ok(row)
}

/// GET of a key that nobody writes, while others are written.
fn clean_reads(plain: &Setting, with_journal: &Setting) -> Result<Row, BenchError> {
    let mut row = Row::new("get p50 beside writes", Unit::Microseconds);
    row.goal = Some(Goal::RatioAtMost(1.2));
    for round in 0..=plain.rounds {
        let durable = read_beside_writes(with_journal)?;
        let floor = read_beside_writes(plain)?;
        if round > 0 {
            row.samples.push(durable);
            row.floor.push(floor);
        }
    }
    Ok(row)
}

fn read_beside_writes(setting: &Setting) -> Result<f64, BenchError> {
    let is_over = AtomicBool::new(false);
    let reader = open(setting)?;
    reader.set("bench/clean", [7; 64])?;
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let is_over = &is_over;
                scope.spawn(move || -> Result<(), BenchError> {
                    let store = open(setting)?;
                    let key = format!("bench/write/{writer}");
                    while !is_over.load(Ordering::Relaxed) {
                        store.add(&key, 1)?;
                        // As many writes with and without a journal.
                        thread::sleep(Duration::from_millis(2));
                    }
                    Ok(())
                })
            })
            .collect();
        let p50 = timed(setting.round_time, || reader.get("bench/clean").map(drop));
        is_over.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().expect("no panic")?;
        }
        p50
    })
}

/// From the start of a server to its first answer, with the keys that it had when it was killed.
fn reopen(setting: &Setting, count: usize) -> Result<Row, BenchError> {
    let directory = TempDir::new().map_err(BenchError::system("cannot make a directory"))?;
    let child = serve(directory.path(), setting)?;
    let store = open(&Setting {
        server: child.address(),
        ..*setting
    })?;
    let value = [7; REOPENED_VALUE_BYTES];
    for first in (0..count).step_by(PAIRS) {
        let keys: Vec<String> = (first..count.min(first + PAIRS))
            .map(|key| format!("bench/reopen/{key:08}"))
            .collect();
        let pairs: Vec<(&str, &[u8])> = keys.iter().map(|key| (&**key, &value[..])).collect();
        store.multi_set(&pairs)?;
    }
    store.ping()?;
    drop((store, child));
    let mut row = Row::new(format!("reopen {count} keys"), Unit::Milliseconds);
    // The goal was set for a million.
    row.goal = (count == 1_000_000).then_some(Goal::AtMost(1500.0));
    for _ in 0..setting.rounds {
        let started = Instant::now();
        let child = serve(directory.path(), setting)?;
        let store = open(&Setting {
            server: child.address(),
            ..*setting
        })?;
        let keys = store.num_keys()?;
        row.samples.push(started.elapsed().as_secs_f64() * 1e3);
        if keys < count as u64 {
            let lost = io::Error::other(format!("{keys} keys are left"));
            return Err(BenchError::system("reopening")(lost));
        }
    }
    Ok(row)
}

fn open(setting: &Setting) -> Result<TcpStore, BenchError> {
    let options = TcpStoreOptions::default().with_timeout(SILENCE_MAX);
    let host = setting.server.ip().to_string();
    Ok(TcpStore::open(&host, setting.server.port(), options)?)
}

/// The median time of a call, in microseconds.
fn timed<E: Into<BenchError>>(
    time: Duration,
    mut call: impl FnMut() -> Result<(), E>,
) -> Result<f64, BenchError> {
    let mut times = Vec::new();
    let end = Instant::now() + time;
    while Instant::now() < end {
        let started = Instant::now();
        call().map_err(Into::into)?;
        times.push(started.elapsed());
    }
    Ok(percentiles(&mut times)[0])
}
