//! Random histories, and what must be in the store after each of their batches.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use c10d_journal::SqliteJournal;
use c10d_store::journal::{Journal, JournalError, Recovered};
use c10d_store::unstable::{BatchWriter, Contents, Effect, effects};

/// In memory if possible: what these tests show does not depend on the disk, and a sync of it can take 10 ms.
pub(crate) fn new_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    folder.expect("a folder")
}

/// A batch of random effects, which are applied to the contents.
pub(crate) fn random_batch(
    random: &mut fastrand::Rng,
    contents: &mut Contents,
    position: u64,
) -> Vec<u8> {
    let mut writer = BatchWriter::default();
    for _ in 0..random.usize(1..5) {
        let key = format!("key {}", random.u8(..20));
        let key = key.as_bytes();
        let bytes = vec![random.u8(..); random.usize(..300)];
        let queued = contents.iter().find(|(name, _)| *name == key);
        let queued = queued.map_or(0, |(_, entry)| entry.queue.len());
        let effect = match random.u8(..10) {
            0..4 => Effect::Put { key, value: &bytes },
            4 => Effect::Delete { key },
            5 => Effect::Append { key, bytes: &bytes },
            6 | 7 if queued > 0 => Effect::Pop {
                key,
                count: random.usize(1..=queued) as u32,
            },
            _ => Effect::Push {
                key,
                element: &bytes,
            },
        };
        assert!(contents.apply(effect));
        writer.push(effect);
    }
    writer.finish(position, Vec::new())
}

/// A batch that sets one key.
pub(crate) fn batch_of(position: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut writer = BatchWriter::default();
    writer.push(Effect::Put { key, value });
    writer.finish(position, Vec::new())
}

pub(crate) fn write_snapshot(
    journal: &mut SqliteJournal,
    contents: &Contents,
    position: u64,
) -> Result<(), JournalError> {
    journal.begin_snapshot(position)?;
    for chunk in contents.to_snapshot(position) {
        journal.add_to_snapshot(&chunk)?;
    }
    journal.finish_snapshot()
}

/// Collects what a journal gives back, with every checksum checked.
pub(crate) fn contents_of(
    recover: impl FnOnce(
        &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError>,
) -> Result<(u64, Contents), JournalError> {
    let mut contents = Contents::default();
    let position = recover(&mut |recovered| {
        let (position, bytes) = match recovered {
            Recovered::Chunk { position, bytes } | Recovered::Batch { position, bytes } => {
                (position, bytes)
            }
            Recovered::Restart => {
                contents = Contents::default();
                return Ok(());
            }
        };
        let damaged = |what: String| JournalError::Damaged {
            place: String::new(),
            what,
        };
        for effect in effects(position, bytes).map_err(|error| damaged(error.to_string()))? {
            let effect = effect.map_err(|error| damaged(error.to_string()))?;
            assert!(contents.apply(effect), "{effect:?}");
        }
        Ok(())
    })?;
    Ok((position, contents))
}

/// The library of a C file of this folder, for `LD_PRELOAD`.
pub(crate) fn preloaded(folder: &Path, name: &str) -> PathBuf {
    let library = folder.join(name).with_extension("so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it")
        .join(name);
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status();
    assert!(status.expect("a C compiler").success());
    library
}

/// This program again, to run one test function as a child.
pub(crate) fn child(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("a path"));
    command.args(["--exact", test, "--nocapture"]);
    command.stdin(Stdio::null());
    command
}
