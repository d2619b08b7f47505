//! One page of the database has old content, for example after a lost write, a bad sector that was remapped, or a
//! restore of a part: SQLite has no checksums, and each of its pages looks right.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use c10d_journal::{SqliteJournal, SqliteJournalReader};
use c10d_sim::seed;
use c10d_store::journal::{Journal, JournalError};
use c10d_store::unstable::{Contents, Effect};

use crate::harness::{batch_of, contents_of, new_folder, random_batch, write_snapshot};

const PAGE_BYTES: usize = 4096;

const TRIES: usize = 300;

/// More bytes than the limit of a complete check.
const LARGE_BYTES: usize = 9 << 20;

/// The contents of the files of a directory, under their names.
type Files = BTreeMap<String, Vec<u8>>;

fn files_of(folder: &Path) -> Files {
    let files = fs::read_dir(folder).expect("read");
    let file = files.map(|file| {
        let file = file.expect("read");
        let name = file.file_name().into_string().expect("text");
        (name, fs::read(file.path()).expect("read"))
    });
    file.collect()
}

fn write(folder: &Path, files: &Files) {
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).expect("written");
    }
}

/// A journal that was served many times, with all pages that its database has ever had.
#[derive(Default)]
struct History {
    position: u64,
    contents: Contents,
    epoch: u64,
    files: Files,
    /// By page number, without repetitions.
    pages: BTreeMap<usize, Vec<Vec<u8>>>,
}

impl History {
    fn note(&mut self, folder: &Path) {
        self.files = files_of(folder);
        for (page, bytes) in self.files["journal.db"].chunks(PAGE_BYTES).enumerate() {
            let versions = self.pages.entry(page).or_default();
            if !versions.iter().any(|it| it == bytes) {
                versions.push(bytes.to_vec());
            }
        }
    }

    fn append(&mut self, journal: &mut SqliteJournal, random: &mut fastrand::Rng) {
        self.position += 1;
        let batch = if random.u8(..8) == 0 {
            // It fills whole pages; zeros look like a page of SQLite without entries.
            let key = b"large";
            let value = &vec![random.u8(..2); random.usize(..40_000)];
            assert!(self.contents.apply(Effect::Put { key, value }));
            batch_of(self.position, key, value)
        } else {
            random_batch(random, &mut self.contents, self.position)
        };
        journal.append(self.position, &batch).expect("appended");
    }

    fn snapshot(&self, journal: &mut SqliteJournal) {
        write_snapshot(journal, &self.contents, self.position).expect("written");
    }

    /// The last time ends with a crash or in order.
    fn make(random: &mut fastrand::Rng, epochs: u64, is_large: bool, has_crashed: bool) -> Self {
        let folder = new_folder();
        let mut history = Self::default();
        for epoch in 1..=epochs {
            let mut journal = SqliteJournal::open(folder.path()).expect("opened");
            history.epoch = epoch;
            history.note(folder.path());
            if is_large && epoch == 1 {
                // Rows that are deleted little by little, later.
                history.position += 1;
                let batch = batch_of(history.position, b"", &vec![1; LARGE_BYTES]);
                journal.append(history.position, &batch).expect("appended");
                history.position += 1;
                let batch = batch_of(history.position, b"", b"");
                journal.append(history.position, &batch).expect("appended");
                let (key, value) = (b"", b"");
                assert!(history.contents.apply(Effect::Put { key, value }));
                history.snapshot(&mut journal);
            }
            for _ in 0..random.usize(..60) {
                history.append(&mut journal, random);
                if random.u8(..25) == 0 {
                    history.snapshot(&mut journal);
                }
            }
            history.note(folder.path());
            if epoch == epochs && has_crashed {
                // Its files were read before it closes them.
                return history;
            }
            drop(journal);
            history.note(folder.path());
        }
        history
    }

    fn read(&self, folder: &Path) -> Result<(), JournalError> {
        let reader = SqliteJournalReader::open(folder)?;
        let found = contents_of(|visit| reader.recover(visit))?;
        assert_eq!(found.0, self.position, "an old state is read");
        assert!(found.1 == self.contents, "other contents are read");
        assert_eq!(reader.identity().epoch, self.epoch, "an old epoch is read");
        Ok(())
    }

    /// A start that is refused, or has the last state. Returns whether it then continues without finding damage.
    fn serve(&self, folder: &Path, random: &mut fastrand::Rng) -> Result<bool, JournalError> {
        let mut journal = SqliteJournal::open(folder)?;
        let found = contents_of(|visit| journal.recover(visit))?;
        assert_eq!(found.0, self.position, "an old state is served");
        assert!(found.1 == self.contents, "other contents are served");
        assert_eq!(
            journal.identity().epoch,
            self.epoch + 1,
            "an epoch is repeated"
        );
        let mut next = Self {
            position: found.0,
            contents: found.1,
            epoch: self.epoch + 1,
            ..Self::default()
        };
        for _ in 0..20 {
            if next.append_or_fail(&mut journal, random).is_err() {
                return Ok(false);
            }
        }
        drop(journal);
        Ok(next.read(folder).is_ok())
    }

    fn append_or_fail(
        &mut self,
        journal: &mut SqliteJournal,
        random: &mut fastrand::Rng,
    ) -> Result<(), JournalError> {
        let mut contents = self.contents.clone();
        let position = self.position + 1;
        let batch = random_batch(random, &mut contents, position);
        journal.append(position, &batch)?;
        self.position = position;
        self.contents = contents;
        if random.u8(..10) == 0 {
            write_snapshot(journal, &self.contents, self.position)?;
        }
        Ok(())
    }
}

#[test]
fn a_stale_page_is_refused_or_harmless() {
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut refused, mut late, mut harmless) = (0, 0, 0);
    for round in 0..6 {
        let is_large = round >= 4;
        let history = History::make(&mut random, 6, is_large, round % 2 == 0);
        let last = &history.files["journal.db"];
        let stale: Vec<(usize, &Vec<u8>)> = history
            .pages
            .iter()
            .flat_map(|(page, versions)| versions.iter().map(|it| (*page, it)))
            .filter(|(page, bytes)| {
                let at = page * PAGE_BYTES;
                last.len() > at && last[at..][..PAGE_BYTES] != bytes[..]
            })
            .collect();
        for _ in 0..TRIES / 6 {
            let (page, bytes) = stale[random.usize(..stale.len())];
            let folder = new_folder();
            write(folder.path(), &history.files);
            let mut database = last.clone();
            database[page * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(bytes);
            fs::write(folder.path().join("journal.db"), database).expect("written");
            println!("round {round}, page {page}");
            let read = history.read(folder.path());
            match history.serve(folder.path(), &mut random) {
                Ok(true) => harmless += 1,
                // A large database is not checked for pages that a start does not read, such as lists of free pages.
                Ok(false) if is_large => late += 1,
                Ok(false) => panic!("the start is not refused"),
                Err(error) => {
                    refused += 1;
                    assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
                    continue;
                }
            }
            read.expect("what is served can be read");
        }
    }
    println!("{refused} refused, {late} refused late, {harmless} harmless");
    assert!(refused > 0 && harmless > 0);
}
