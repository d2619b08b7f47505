//! Recovery returns exactly the appended batches.

use c10d_journal::{SqliteJournal, SqliteJournalReader};
use c10d_sim::seed;
use c10d_store::journal::Journal;
use c10d_store::unstable::Contents;

use crate::harness::{batch_of, contents_of, new_folder, random_batch, write_snapshot};

/// Opens, appends, snapshots, drops and closes at random; `begin_snapshot` may be repeated or left without an end.
#[test]
fn random_histories() {
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = new_folder();
    let mut contents = Contents::default();
    let mut position = 0;
    for epoch in 1..30 {
        let mut journal = SqliteJournal::open(folder.path()).expect("opened");
        assert_eq!(journal.identity().epoch, epoch);
        let found = contents_of(|visit| journal.recover(visit)).expect("intact");
        assert_eq!(found, (position, contents.clone()));
        let mut snapshot: Option<std::vec::IntoIter<Vec<u8>>> = None;
        // The state before the last batch, once there is one.
        let mut before = None;
        for _ in 0..random.usize(..40) {
            match random.u8(..10) {
                0 => {
                    let last = (position, contents.clone());
                    let (position, contents) = match &before {
                        Some(before) if random.bool() => before,
                        _ => &last,
                    };
                    journal.begin_snapshot(*position).expect("begun");
                    snapshot = Some(contents.to_snapshot(*position).into_iter());
                }
                1 | 2 => match snapshot.as_mut().map(Iterator::next) {
                    None => {}
                    Some(Some(chunk)) => journal.add_to_snapshot(&chunk).expect("added"),
                    Some(None) => {
                        journal.finish_snapshot().expect("finished");
                        snapshot = None;
                    }
                },
                _ => {
                    before = Some((position, contents.clone()));
                    position += 1;
                    let batch = random_batch(&mut random, &mut contents, position);
                    journal.append(position, &batch).expect("appended");
                }
            }
        }
    }
    let reader = SqliteJournalReader::open(folder.path()).expect("opened");
    assert_eq!(reader.identity().epoch, 29);
    let found = contents_of(|visit| reader.recover(visit)).expect("intact");
    assert_eq!(found, (position, contents));
    assert_eq!(reader.check_structure().expect("checked"), [""; 0]);
}

/// Batches and chunks of no bytes, of exactly one row, and of several rows.
#[test]
fn blobs_of_any_length() {
    let lengths = [0, 1, (1 << 20) - 40, 1 << 20, (2 << 20) - 26, 40 << 20];
    let folder = new_folder();
    let mut journal = SqliteJournal::open(folder.path()).expect("opened");
    let mut contents = Contents::default();
    for (position, length) in (1..).zip(lengths) {
        let key = format!("{length}");
        let value = vec![7; length];
        let batch = batch_of(position, key.as_bytes(), &value);
        journal.append(position, &batch).expect("appended");
        let key = key.as_bytes();
        let effect = c10d_store::unstable::Effect::Put { key, value: &value };
        assert!(contents.apply(effect));
    }
    // Blobs as such need not be batches: of exactly one, two and no rows.
    for length in [0, 1 << 20, 2 << 20] {
        journal.begin_snapshot(6).expect("begun");
        journal.add_to_snapshot(&vec![1; length]).expect("added");
        journal.add_to_snapshot(b"end").expect("added");
        journal.finish_snapshot().expect("finished");
        let mut found = Vec::new();
        let mut collect = |recovered: c10d_store::journal::Recovered<'_>| {
            if let c10d_store::journal::Recovered::Chunk { bytes, .. } = recovered {
                found.push(bytes.len());
            }
            Ok(())
        };
        assert_eq!(journal.recover(&mut collect).expect("read"), 6);
        assert_eq!(found, [length, 3]);
    }
    write_snapshot(&mut journal, &contents, 6).expect("written");
    let batch = batch_of(7, b"", b"");
    journal.append(7, &batch).expect("appended");
    drop(journal);
    let mut journal = SqliteJournal::open(folder.path()).expect("opened");
    let found = contents_of(|visit| journal.recover(visit)).expect("intact");
    assert_eq!(found.0, 7);
    assert_eq!(found.1.len(), contents.len() + 1);
}

/// A snapshot whenever the batches since the last one exceed a limit: the file stays below a few times that.
#[test]
fn files_are_bounded() {
    const BETWEEN_SNAPSHOTS: usize = 512 << 10;
    const BATCHES: u64 = 5000;
    let folder = new_folder();
    let mut journal = SqliteJournal::open(folder.path()).expect("opened");
    let mut contents = Contents::default();
    let mut random = fastrand::Rng::with_seed(seed());
    let mut since = 0;
    for position in 1..=BATCHES {
        let batch = random_batch(&mut random, &mut contents, position);
        since += batch.len();
        journal.append(position, &batch).expect("appended");
        if since > BETWEEN_SNAPSHOTS {
            write_snapshot(&mut journal, &contents, position).expect("written");
            since = 0;
        }
    }
    drop(journal);
    let reader = SqliteJournalReader::open(folder.path()).expect("opened");
    let [database, log] = reader.file_bytes().expect("sizes");
    println!("{database} bytes");
    assert!(database < 4 * BETWEEN_SNAPSHOTS as u64, "{database}");
    assert_eq!(log, 0);
    let found = contents_of(|visit| reader.recover(visit)).expect("intact");
    assert_eq!(found, (BATCHES, contents));
}
