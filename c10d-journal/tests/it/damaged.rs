//! Files that are not as they were written.

use std::fs;
use std::path::Path;

use c10d_journal::{SqliteJournal, SqliteJournalReader};
use c10d_sim::seed;
use c10d_store::journal::{Journal, JournalError};
use c10d_store::unstable::Contents;

use crate::harness::{contents_of, new_folder, random_batch, write_snapshot};

/// A journal as a killed server leaves it: a snapshot and batches in the database, batches in the log.
fn crashed(folder: &Path, random: &mut fastrand::Rng) -> (u64, Contents) {
    let live = new_folder();
    let mut journal = SqliteJournal::open(live.path()).expect("opened");
    let mut contents = Contents::default();
    for position in 1..=60 {
        if position == 30 {
            write_snapshot(&mut journal, &contents, 29).expect("written");
            drop(journal);
            journal = SqliteJournal::open(live.path()).expect("opened");
        }
        let batch = random_batch(random, &mut contents, position);
        journal.append(position, &batch).expect("appended");
    }
    for file in ["journal.db", "journal.db-wal", "owner"] {
        fs::copy(live.path().join(file), folder.join(file)).expect("copied");
    }
    // A log that is read in the middle of nothing.
    drop(journal);
    (60, contents)
}

fn read(folder: &Path) -> Result<(u64, Contents), JournalError> {
    let reader = SqliteJournalReader::open(folder)?;
    contents_of(|visit| reader.recover(visit))
}

#[test]
fn a_crashed_journal_is_read_without_a_change() {
    let folder = new_folder();
    let expected = crashed(folder.path(), &mut fastrand::Rng::with_seed(seed()));
    let files = || {
        ["journal.db", "journal.db-wal", "owner"]
            .map(|name| fs::read(folder.path().join(name)).ok())
    };
    let before = files();
    assert_eq!(read(folder.path()).expect("intact"), expected);
    assert!(files() == before, "the reader changed a file");
    let mut journal = SqliteJournal::open(folder.path()).expect("opened");
    let found = contents_of(|visit| journal.recover(visit)).expect("intact");
    assert_eq!(found, expected);
}

/// One bit is flipped at a random place of the database or of the log. The reader returns everything or an error. It
/// may also lose the last batch or two of the log, like after a crash before they were durable.
#[test]
fn a_flipped_bit_is_found_or_harmless() {
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = new_folder();
    let (_, contents) = crashed(folder.path(), &mut random);
    let (mut found, mut harmless, mut cut) = (0, 0, 0);
    for file in ["journal.db", "journal.db-wal"] {
        let path = folder.path().join(file);
        let before = fs::read(&path).expect("read");
        for _ in 0..300 {
            let mut bytes = before.clone();
            let at = random.usize(..bytes.len());
            bytes[at] ^= 1 << random.u8(..8);
            fs::write(&path, bytes).expect("written");
            match read(folder.path()) {
                Ok((60, read)) => {
                    assert!(read == contents, "{file}, byte {at}: other contents");
                    harmless += 1;
                }
                Ok((position, _)) => {
                    // 58: the mark of a commit was hit, so that two look like one.
                    let is_end = file == "journal.db-wal" && (58..60).contains(&position);
                    assert!(is_end, "{file}, byte {at}: {position}");
                    cut += 1;
                }
                Err(error) => {
                    assert!(
                        !matches!(error, JournalError::InUse { .. }),
                        "byte {at}: {error}"
                    );
                    found += 1;
                }
            }
        }
        fs::write(&path, before).expect("written");
    }
    println!("{found} found, {harmless} harmless, {cut} cut the last batch off");
    assert!(found > 200);
}

#[test]
fn a_truncated_or_missing_file_is_found() {
    let crashed_folder = new_folder();
    let expected = crashed(crashed_folder.path(), &mut fastrand::Rng::with_seed(seed()));
    let database = fs::read(crashed_folder.path().join("journal.db")).expect("read");
    let copy = || {
        let folder = new_folder();
        for file in ["journal.db", "journal.db-wal", "owner"] {
            let from = crashed_folder.path().join(file);
            fs::copy(from, folder.path().join(file)).expect("copied");
        }
        folder
    };
    let served = |folder: &Path| {
        let mut journal = SqliteJournal::open(folder)?;
        contents_of(|visit| journal.recover(visit))
    };
    let length = database.len();
    for length in [0, 10, 4096, length - 4096, length - 1] {
        let folder = copy();
        fs::write(folder.path().join("journal.db"), &database[..length]).expect("written");
        for result in [read(folder.path()), served(folder.path())] {
            match result {
                Err(JournalError::Damaged { .. }) => {}
                // The last page can be free, or in the log.
                Ok(found) if length > 4096 => {
                    assert!(found == expected, "{length}: other contents")
                }
                other => panic!("{length}: {:?}", other.map(|_| ())),
            }
        }
    }
    for (file, expected) in [
        (
            "journal.db",
            "journal.db is empty or missing, but it was served by process",
        ),
        (
            "journal.db-wal",
            "journal.db-wal, which has the newest batches, is empty or missing",
        ),
    ] {
        let folder = copy();
        fs::remove_file(folder.path().join(file)).expect("removed");
        for result in [read(folder.path()), served(folder.path())] {
            let error = result.map(|_| ()).expect_err("damaged").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

/// The error names the place of damage, and the intact data before it.
#[test]
fn a_changed_row_is_named() {
    let folder = new_folder();
    crashed(folder.path(), &mut fastrand::Rng::with_seed(seed()));
    drop(SqliteJournal::open(folder.path()).expect("opened"));
    let database = rusqlite::Connection::open(folder.path().join("journal.db")).expect("opened");
    database
        .execute("DELETE FROM batches WHERE position = 45", [])
        .expect("deleted");
    drop(database);
    let error = read(folder.path())
        .map(|_| ())
        .expect_err("damaged")
        .to_string();
    assert!(error.contains("row 45 of a batch is missing"), "{error}");
    assert!(
        error.ends_with("intact: all before it, up to position 44"),
        "{error}"
    );
}

/// The first page as SQLite writes it before there is a table. A new store would repeat every number of this store.
#[test]
fn a_database_without_tables_is_not_filled_again() {
    let empty = new_folder();
    let other = rusqlite::Connection::open(empty.path().join("journal.db")).expect("opened");
    other
        .pragma_update(None, "journal_mode", "WAL")
        .expect("set");
    drop(other);
    // Each of the two files is enough.
    for kept in ["newest", "owner"] {
        let folder = new_folder();
        crashed(folder.path(), &mut fastrand::Rng::with_seed(seed()));
        drop(SqliteJournal::open(folder.path()).expect("opened"));
        fs::copy(
            empty.path().join("journal.db"),
            folder.path().join("journal.db"),
        )
        .expect("copied");
        for name in ["newest", "owner"] {
            if name != kept {
                fs::remove_file(folder.path().join(name)).expect("removed");
            }
        }
        for error in [
            SqliteJournal::open(folder.path()).map(|_| ()),
            read(folder.path()).map(|_| ()),
        ] {
            let error = error.expect_err("damaged").to_string();
            assert!(error.ends_with("journal.db has no tables"), "{error}");
        }
    }
}
