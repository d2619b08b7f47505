//! Processes are killed in the middle of a write: acknowledged batches are kept, and none is torn.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::Stdio;

use c10d_journal::SqliteJournal;
use c10d_sim::seed;
use c10d_store::journal::Journal;
use c10d_store::unstable::Contents;

use crate::harness::{batch_of, child, contents_of, new_folder, random_batch, write_snapshot};

pub(crate) const FOLDER: &str = "C10D_JOURNAL_TEST_FOLDER";
pub(crate) const SEED: &str = "C10D_JOURNAL_TEST_SEED";

/// The contents after this number of batches of the history.
pub(crate) fn history(seed: u64, positions: u64) -> (fastrand::Rng, Contents) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut contents = Contents::default();
    for position in 1..=positions {
        random_batch(&mut random, &mut contents, position);
    }
    (random, contents)
}

/// Continues the history of its seed from the recovered state, and prints each durable position.
#[test]
fn appends_until_it_fails() {
    // The other tests start it, in a separate process.
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let seed = std::env::var(SEED)
        .expect("a seed")
        .parse()
        .expect("a number");
    let mut journal = SqliteJournal::open(folder).expect("opened");
    let (mut position, found) = contents_of(|visit| journal.recover(visit)).expect("intact");
    let (mut random, mut contents) = history(seed, position);
    assert_eq!(found, contents);
    println!("serves");
    loop {
        position += 1;
        let batch = random_batch(&mut random, &mut contents, position);
        let mut result = journal.append(position, &batch);
        if result.is_ok() {
            println!("durable {position}");
            if position.is_multiple_of(20) {
                result = write_snapshot(&mut journal, &contents, position);
            }
        }
        if let Err(error) = result {
            println!("failed: {error}");
            let again = journal.append(position, &batch_of(position, b"", b""));
            println!("then: {}", again.expect_err("no later success"));
            return;
        }
        std::io::stdout().flush().expect("written");
    }
}

#[test]
fn kill_in_the_middle_of_appends_and_snapshots() {
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = new_folder();
    let mut acknowledged = 0;
    for round in 1..=25 {
        let mut process = child("killed::appends_until_it_fails")
            .env(FOLDER, folder.path())
            .env(SEED, seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut left = random.u32(1..100);
        for line in lines.map_while(Result::ok) {
            if let Some(position) = line.strip_prefix("durable ") {
                acknowledged = position.parse().expect("a number");
                left = left.saturating_sub(1);
            }
            // Its last write before it noticed is read as well.
            if left == 0 {
                process.kill().expect("killed");
            }
        }
        process.wait().expect("reaped");
        assert_eq!(left, 0, "the child ended by itself");
        let mut journal = SqliteJournal::open(folder.path()).expect("opened");
        let (position, found) = contents_of(|visit| journal.recover(visit)).expect("intact");
        assert!(
            (acknowledged..=acknowledged + 1).contains(&position),
            "round {round}: {position} of {acknowledged}"
        );
        assert!(found == history(seed, position).1, "round {round}");
        acknowledged = position;
    }
    println!("{acknowledged} batches");
}

/// A file that may not grow beyond some KiB, like on a full disk: each append fails, and the durable batches remain.
#[test]
fn a_full_disk_is_an_error_and_loses_nothing() {
    let seed = seed();
    for kib in [100, 300, 1000] {
        let folder = new_folder();
        // Ignored signals stay ignored in the child: a write beyond the limit is an error.
        let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", kib * 2);
        let test = child("killed::appends_until_it_fails");
        let output = std::process::Command::new("sh")
            .args(["-c", &limited])
            .arg(test.get_program())
            .args(test.get_args())
            .env(FOLDER, folder.path())
            .env(SEED, seed.to_string())
            .output()
            .expect("run");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut durable = text
            .lines()
            .filter_map(|line| line.strip_prefix("durable "));
        let durable: u64 = durable
            .next_back()
            .expect("some")
            .parse()
            .expect("a number");
        assert!(text.contains("writing failed: File too large"), "{text}");
        assert!(
            text.contains("then: cannot append to the journal"),
            "{text}"
        );
        let mut journal = SqliteJournal::open(folder.path()).expect("opened");
        let (position, found) = contents_of(|visit| journal.recover(visit)).expect("intact");
        assert!(
            (durable..=durable + 1).contains(&position),
            "{position} of {durable}"
        );
        assert!(found == history(seed, position).1);
    }
}

/// The message has the system's error, because an operator decides by it.
#[cfg(target_os = "linux")]
#[test]
fn an_error_of_the_disk_is_named() {
    let library_folder = new_folder();
    let library = crate::harness::preloaded(library_folder.path(), "fail.c");
    for (kind, number, expected) in [
        ("write", 122, "writing failed: Disk quota exceeded"),
        ("write", 30, "writing failed: Read-only file system"),
        ("write", 5, "writing failed: Input/output error"),
        ("write", 28, "database or disk is full"),
        (
            "sync",
            122,
            "syncing to the disk failed: Disk quota exceeded",
        ),
        ("sync", 5, "syncing to the disk failed: Input/output error"),
    ] {
        let folder = new_folder();
        let output = child("killed::appends_until_it_fails")
            .env("LD_PRELOAD", &library)
            .env("C10D_FAIL", kind)
            .env("C10D_FAIL_ERRNO", number.to_string())
            .env("C10D_FAIL_AFTER", "60")
            .env(FOLDER, folder.path())
            .env(SEED, "1")
            .output()
            .expect("run");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("durable 5"), "{text}");
        assert!(text.contains(expected), "{kind} {number}: {text}");
    }
}
