//! The machine loses power: unsynced writes are lost, or present in part.
//!
//! A child's writes and syncs are recorded in order (record.c). At a random moment, each file has the content of its
//! last sync, and each sector written after it is present or not.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::thread;
use std::time::{Duration, Instant};

use c10d_journal::SqliteJournal;
use c10d_sim::seed;
use c10d_store::journal::Journal as _;

use crate::harness::{child, contents_of, new_folder, preloaded};
use crate::killed::{FOLDER, SEED, history};

const SECTOR: usize = 512;

/// Enough for several checkpoints and snapshots.
const BATCHES: u64 = 1500;

const MOMENTS: usize = 100;

/// An operation of the child on a file.
struct Step<'a> {
    kind: u8,
    file: &'a str,
    offset: usize,
    bytes: &'a [u8],
}

/// A file with the content of its last sync, and the steps after it.
#[derive(Default)]
struct Disk<'a> {
    synced: Vec<u8>,
    unsynced: Vec<&'a Step<'a>>,
    /// Its removal is durable once the directory is synced.
    is_removed: bool,
}

#[test]
fn a_power_loss_loses_nothing_that_was_acknowledged() {
    let seed = seed();
    let (_folder, log) = record(seed);
    let steps = steps_of(&log);
    assert_eq!(first_loss(&steps, seed, true), None);
    // The same, had the syncs done nothing: this test notices.
    assert_ne!(first_loss(&steps, seed, false), None);
}

/// Runs the child, and returns what it did.
fn record(seed: u64) -> (tempfile::TempDir, Vec<u8>) {
    let outside = new_folder();
    let folder = outside.path().join("journal");
    fs::create_dir(&folder).expect("made");
    let log = outside.path().join("log");
    let acknowledged = folder.join("acknowledged");
    let mut process = child("killed::appends_until_it_fails")
        .env(FOLDER, &folder)
        .env(SEED, seed.to_string())
        .env("LD_PRELOAD", preloaded(outside.path(), "record.c"))
        .env("C10D_RECORD_FOLDER", &folder)
        .env("C10D_RECORD_LOG", &log)
        .stdout(File::create(&acknowledged).expect("made"))
        .spawn()
        .expect("started");
    let began = Instant::now();
    let last = format!("durable {BATCHES}\n");
    while !fs::read_to_string(&acknowledged)
        .expect("read")
        .contains(&last)
    {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "the child is stuck"
        );
        assert!(
            process.try_wait().expect("asked").is_none(),
            "the child ended"
        );
        thread::sleep(Duration::from_millis(20));
    }
    process.kill().expect("killed");
    process.wait().expect("reaped");
    let log = fs::read(&log).expect("recorded");
    (outside, log)
}

fn steps_of(log: &[u8]) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    let mut rest = log;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let head = str::from_utf8(&rest[..end]).expect("text");
        let mut words = head.split(' ');
        let mut word = || words.next().expect("four words");
        let (kind, file) = (word().as_bytes()[0], word());
        let offset = word().parse().expect("a number");
        let length: usize = word().parse().expect("a number");
        let Some((bytes, behind)) = rest[end + 1..].split_at_checked(length) else {
            break;
        };
        steps.push(Step {
            kind,
            file,
            offset,
            bytes,
        });
        rest = behind;
    }
    steps
}

/// The loss at one of many random moments.
fn first_loss(steps: &[Step<'_>], seed: u64, do_syncs_count: bool) -> Option<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut moments: Vec<usize> = (0..MOMENTS).map(|_| random.usize(..steps.len())).collect();
    moments.sort_unstable();
    let mut moments = moments.into_iter().peekable();
    let mut disks: BTreeMap<&str, Disk<'_>> = BTreeMap::new();
    let mut acknowledged = 0;
    for (index, step) in steps.iter().enumerate() {
        while moments.next_if_eq(&index).is_some() {
            if let Err(what) = recover(&disks, acknowledged, seed, &mut random) {
                return Some(format!("after step {index}: {what}"));
            }
        }
        if step.file == "." {
            disks.retain(|_, disk| !disk.is_removed);
            continue;
        }
        let disk = disks.entry(step.file).or_default();
        match step.kind {
            b'U' => disk.is_removed = true,
            b'S' if do_syncs_count => {
                for step in std::mem::take(&mut disk.unsynced) {
                    apply(&mut disk.synced, step, &mut || true);
                }
            }
            b'S' => {}
            _ if step.file == "acknowledged" => {
                let text = str::from_utf8(step.bytes).expect("text");
                let mut durable = text
                    .lines()
                    .filter_map(|line| line.strip_prefix("durable "));
                if let Some(position) = durable.next_back() {
                    acknowledged = position.parse().expect("a number");
                }
            }
            _ => disk.unsynced.push(step),
        }
    }
    None
}

/// Carries out a write, by sectors, or a truncation, where `is_kept` says so.
fn apply(file: &mut Vec<u8>, step: &Step<'_>, is_kept: &mut impl FnMut() -> bool) {
    if step.kind == b'T' {
        if is_kept() {
            file.resize(step.offset, 0);
        }
        return;
    }
    let mut at = step.offset;
    let mut rest = step.bytes;
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(rest.len().min(SECTOR - at % SECTOR));
        if is_kept() {
            if file.len() < at + part.len() {
                file.resize(at + part.len(), 0);
            }
            file[at..at + part.len()].copy_from_slice(part);
        }
        at += part.len();
        rest = behind;
    }
}

/// Opens the content of the disks. The acknowledged batches must be there, and at most the batch after them.
fn recover(
    disks: &BTreeMap<&str, Disk<'_>>,
    acknowledged: u64,
    seed: u64,
    random: &mut fastrand::Rng,
) -> Result<(), String> {
    let folder = new_folder();
    let part = [0.0, 0.5, 0.95, 1.0][random.usize(..4)];
    for (name, disk) in disks {
        if disk.is_removed && random.f64() < part {
            continue;
        }
        let mut file = disk.synced.clone();
        for step in &disk.unsynced {
            apply(&mut file, step, &mut || random.f64() < part);
        }
        fs::write(folder.path().join(name), file).expect("written");
    }
    let mut journal = SqliteJournal::open(folder.path()).map_err(|error| error.to_string())?;
    let found = contents_of(|visit| journal.recover(visit)).map_err(|error| error.to_string())?;
    let (position, contents) = found;
    if !(acknowledged..=acknowledged + 1).contains(&position) {
        return Err(format!("{position} of {acknowledged}"));
    }
    if contents != history(seed, position).1 {
        return Err(format!("other contents at {position}"));
    }
    Ok(())
}
