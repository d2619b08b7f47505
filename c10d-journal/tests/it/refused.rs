//! Directories that cannot be served, and the messages of the errors.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use c10d_journal::{SqliteJournal, SqliteJournalReader};
use c10d_store::journal::{Journal as _, JournalError};
use rusqlite::Connection;

use crate::harness::{batch_of, child, contents_of, new_folder};

fn error_of(folder: &Path) -> JournalError {
    SqliteJournal::open(folder).expect_err("refused")
}

/// Set in the process that opens a relative path.
const RELATIVE: &str = "C10D_TEST_RELATIVE_JOURNAL";

#[test]
fn a_second_owner_is_told_the_first() {
    let folder = new_folder();
    let first = SqliteJournal::open(folder.path()).expect("opened");
    let owner = format!("is in use by process {} on ", std::process::id());
    for error in [
        error_of(folder.path()).to_string(),
        SqliteJournalReader::open(folder.path())
            .expect_err("refused")
            .to_string(),
    ] {
        assert!(error.contains(&owner), "{error}");
        assert!(error.contains(" since 2"), "{error}");
    }
    drop(first);
    let second = SqliteJournal::open(folder.path()).expect("opened");
    assert_eq!(second.identity().epoch, 2);
}

#[test]
fn the_directory_is_for_its_user_only() {
    let folder = new_folder();
    let path = folder.path().join("made/by it");
    let journal = SqliteJournal::open(&path).expect("opened");
    let mode = |path: &Path| fs::metadata(path).expect("found").mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    let files: Vec<_> = fs::read_dir(&path).expect("read").collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        assert_eq!(mode(&file.expect("read").path()), 0o600);
    }
    drop(journal);
}

#[test]
fn a_newer_format_is_refused_by_number() {
    let folder = new_folder();
    drop(SqliteJournal::open(folder.path()).expect("opened"));
    let database = Connection::open(folder.path().join("journal.db")).expect("opened");
    database
        .pragma_update(None, "user_version", 7)
        .expect("written");
    drop(database);
    let error = error_of(folder.path());
    assert!(
        matches!(
            error,
            JournalError::Newer {
                found: 7,
                known: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn files_that_are_no_journal_are_left_alone() {
    let folder = new_folder();
    let path = folder.path().join("journal.db");
    fs::write(
        &path,
        "no database, but longer than the header of one ".repeat(10),
    )
    .expect("written");
    let error = error_of(folder.path()).to_string();
    assert!(
        error.contains("is damaged: file is not a database"),
        "{error}"
    );
    assert!(fs::read(&path).expect("read").starts_with(b"no database"));

    fs::remove_file(&path).expect("removed");
    let other = Connection::open(&path).expect("opened");
    other
        .execute_batch("CREATE TABLE photos(name)")
        .expect("made");
    drop(other);
    let error = error_of(folder.path()).to_string();
    assert!(error.contains("a database of another program"), "{error}");
}

#[test]
fn a_reader_makes_nothing() {
    let folder = new_folder();
    let missing = folder.path().join("missing");
    let error = SqliteJournalReader::open(&missing).expect_err("refused");
    assert!(matches!(error, JournalError::Engine { .. }), "{error}");
    assert!(!missing.exists());
}

#[test]
fn opens_a_relative_path() {
    // The next one starts it, in another directory.
    if std::env::var_os(RELATIVE).is_none() {
        return;
    }
    SqliteJournal::open("file:store?mode=memory").expect("opened");
}

#[test]
fn a_path_is_no_uri() {
    let folder = new_folder();
    let mut process = child("refused::opens_a_relative_path");
    process.env(RELATIVE, "1");
    let output = process.current_dir(folder.path()).output().expect("run");
    assert!(output.status.success(), "{output:?}");
    let file = folder.path().join("file:store?mode=memory/journal.db");
    assert!(fs::metadata(file).expect("found").len() > 0);
}

#[test]
fn a_directory_that_cannot_be_written() {
    let folder = new_folder();
    drop(SqliteJournal::open(folder.path()).expect("opened"));
    let file = folder.path().join("journal.db");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).expect("changed");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o500)).expect("changed");
    let is_root = fs::File::options().write(true).open(&file).is_ok();
    if !is_root {
        let error = error_of(folder.path()).to_string();
        assert!(error.starts_with("cannot open the journal "), "{error}");
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).expect("changed");
    // Not even root makes a directory here.
    let error = error_of(Path::new("/proc/1/journal")).to_string();
    assert!(
        error.starts_with("cannot open the journal /proc/1/journal"),
        "{error}"
    );
}

#[test]
fn nothing_is_acknowledged_in_a_directory_that_is_gone() {
    for is_replaced in [false, true] {
        let outside = new_folder();
        let folder = outside.path().join("journal");
        let mut journal = SqliteJournal::open(&folder).expect("opened");
        journal
            .append(1, &batch_of(1, b"k", b"v"))
            .expect("appended");
        journal.check().expect("in its place");
        fs::remove_dir_all(&folder).expect("removed");
        let mut next = is_replaced.then(|| SqliteJournal::open(&folder).expect("opened"));
        let error = journal
            .append(2, &batch_of(2, b"k", b"w"))
            .expect_err("gone");
        let expected = "journal.db was deleted, moved or replaced while it was served";
        assert!(error.to_string().ends_with(expected), "{error}");
        let error = journal.check().expect_err("gone");
        assert!(error.to_string().contains("failed before"), "{error}");
        drop(journal);
        assert_eq!(folder.exists(), is_replaced);
        if let Some(mut next) = next.take() {
            // The end of the replaced journal has not changed the other journal.
            next.append(1, &batch_of(1, b"k", b"x")).expect("appended");
            drop(next);
            let mut again = SqliteJournal::open(&folder).expect("opened again");
            let (position, _) = contents_of(|visit| again.recover(visit)).expect("intact");
            assert_eq!(position, 1);
        }
    }
}
