//! Measurements: `cargo test --release -p c10d-journal --test it measure -- --ignored --nocapture --test-threads 1`.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use c10d_journal::{SqliteJournal, SqliteJournalReader};
use c10d_store::journal::{Journal, Recovered};
use c10d_store::unstable::{BatchWriter, Contents, Effect, effects};

use crate::harness::{batch_of, write_snapshot};

fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_micros();
    format!(
        "p50 {} us, p99 {} us, max {} us",
        at(0.5),
        at(0.99),
        at(1.0)
    )
}

fn folder() -> tempfile::TempDir {
    // The disk of the build, as /tmp can be memory.
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

fn bare(folder: &Path, bytes: usize, count: usize) -> Vec<Duration> {
    let mut file = File::create(folder.join("bare")).expect("made");
    let record = vec![7; bytes];
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        file.write_all(&record).expect("written");
        file.sync_data().expect("synced");
        times.push(began.elapsed());
    }
    times
}

#[test]
#[ignore = "a measurement"]
fn append() {
    let folder = folder();
    let mut journal = SqliteJournal::open(folder.path().join("journal")).expect("opened");
    let mut position = 0;
    for (bytes, count) in [(200, 2000), (64 << 10, 300)] {
        for _ in 0..4 {
            let written = quantiles(bare(folder.path(), bytes, count));
            let mut times = Vec::new();
            for _ in 0..count {
                position += 1;
                let batch = batch_of(position, b"key", &vec![position as u8; bytes - 21]);
                let began = Instant::now();
                journal.append(position, &batch).expect("appended");
                times.push(began.elapsed());
            }
            println!(
                "{bytes} bytes: append {}; write + fdatasync {written}",
                quantiles(times)
            );
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn reopen_a_million_keys() {
    let folder = folder();
    let mut contents = Contents::default();
    for number in 0..1_000_000 {
        let key = format!("key of a rank {number:07}");
        let key = key.as_bytes();
        assert!(contents.apply(Effect::Put {
            key,
            value: &[7; 100]
        }));
    }
    let began = Instant::now();
    let mut journal = SqliteJournal::open(folder.path()).expect("opened");
    let chunks = contents.to_snapshot(0);
    write_snapshot(&mut journal, &contents, 0).expect("written");
    println!("{} chunks written in {:?}", chunks.len(), began.elapsed());
    let mut position = 0;
    for number in 0..200_000 {
        let key = format!("key of a rank {:07}", number * 5);
        position += 1;
        if position <= 2000 {
            let batch = batch_of(position, key.as_bytes(), &[8; 100]);
            journal.append(position, &batch).expect("appended");
        }
    }
    // As after kill -9: no Drop.
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy).expect("made");
    for file in ["journal.db", "journal.db-wal", "owner"] {
        std::fs::copy(folder.path().join(file), copy.join(file)).expect("copied");
    }
    for _ in 0..3 {
        let began = Instant::now();
        let mut journal = SqliteJournal::open(&copy).expect("opened");
        let opened = began.elapsed();
        let mut bytes_read = 0;
        let read = journal.recover(&mut |recovered| {
            if let Recovered::Chunk { bytes, .. } | Recovered::Batch { bytes, .. } = recovered {
                bytes_read += bytes.len();
            }
            Ok(())
        });
        read.expect("read");
        let read = began.elapsed();
        let mut count = 0;
        let decoded = journal.recover(&mut |recovered| {
            if let Recovered::Chunk { position, bytes } | Recovered::Batch { position, bytes } =
                recovered
            {
                count += effects(position, bytes).expect("intact").count();
            }
            Ok(())
        });
        decoded.expect("read");
        println!(
            "opened in {opened:?}, {bytes_read} bytes read after {read:?}, again and {count} effects decoded in {:?}",
            began.elapsed() - read
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn growth_of_ten_million_overwrites() {
    const SNAPSHOT: usize = 64 << 20;
    let folder = folder();
    let mut journal = SqliteJournal::open(folder.path()).expect("opened");
    let mut contents = Contents::default();
    let mut random = fastrand::Rng::with_seed(1);
    let (mut since, mut position, mut largest) = (0, 0, [0, 0]);
    let (mut snapshot, mut snapshots) = (None, 0);
    let mut times = Vec::new();
    let began = Instant::now();
    for _ in 0..10_000_000 / 256 {
        let mut writer = BatchWriter::default();
        for _ in 0..256 {
            let key = format!("key {:05}", random.u16(..10_000));
            let value = [random.u8(..); 100];
            let effect = Effect::Put {
                key: key.as_bytes(),
                value: &value,
            };
            assert!(contents.apply(effect));
            writer.push(effect);
        }
        position += 1;
        let batch = writer.finish(position, Vec::new());
        since += batch.len();
        let started = Instant::now();
        journal.append(position, &batch).expect("appended");
        times.push(started.elapsed());
        if snapshot.is_none() && since > SNAPSHOT {
            journal.begin_snapshot(position).expect("begun");
            snapshot = Some(contents.to_snapshot(position).into_iter());
            since = 0;
        }
        match snapshot.as_mut().map(Iterator::next) {
            None => {}
            Some(Some(chunk)) => journal.add_to_snapshot(&chunk).expect("added"),
            Some(None) => {
                journal.finish_snapshot().expect("finished");
                snapshots += 1;
                snapshot = None;
            }
        }
        let bytes = |name| std::fs::metadata(folder.path().join(name)).map_or(0, |it| it.len());
        let now = [bytes("journal.db"), bytes("journal.db-wal")];
        largest = [largest[0].max(now[0]), largest[1].max(now[1])];
    }
    println!(
        "{position} batches, {snapshots} snapshots in {:?}: append {}; at most {} MiB and {} MiB of log",
        began.elapsed(),
        quantiles(times),
        largest[0] >> 20,
        largest[1] >> 20
    );
    drop(journal);
    let reader = SqliteJournalReader::open(folder.path()).expect("opened");
    println!("closed: {:?} bytes", reader.file_bytes().expect("sizes"));
}
