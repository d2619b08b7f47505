//! `c10d store verify`, `export` and `import`: the directory of a store that no server has open.

mod line;
mod verify;

use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use c10d_journal::{SqliteJournal, SqliteJournalReader};
use c10d_store::journal::Journal as _;
use c10d_store::unstable::{Contents, Effect};
use clap::{Args, Subcommand};

use self::line::Line;
use self::verify::Kept;
use crate::failure::Failure;
use crate::output::{print, printable_json};

/// The subcommands of `c10d store` that take a directory.
#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    /// Read the directory of a store that no server has open, and check whether it is intact.
    ///
    /// Changes nothing. Prints the store's id, how often it was served, its snapshot and batches, and the numbers of keys
    /// and queues. If it is damaged, the exit code is 5, and the intact part is printed.
    Verify(verify::VerifyArgs),
    /// Print the contents of a directory that no server has open: one line of JSON for each key.
    ///
    /// {"key": "/k", "value": "text", "queue": [{"value": "first"}]}, with `key_base64` or `base64` for bytes that are not
    /// UTF-8. Keys are those of the server, with the `/` that clients put before them.
    Export(DirectoryArgs),
    /// Make a directory for `c10d store serve --dir` of the lines that `c10d store export` has printed, from standard
    /// input.
    ///
    /// Imports all lines or none. Refuses a directory whose store has contents.
    Import(DirectoryArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DirectoryArgs {
    /// Use this directory, as given to `c10d store serve --dir`.
    dir: PathBuf,
}

pub(crate) fn run(command: &JournalCommand) -> Result<(), Failure> {
    match command {
        JournalCommand::Verify(args) => verify::run(args),
        JournalCommand::Export(args) => export(&args.dir),
        JournalCommand::Import(args) => import(&args.dir),
    }
}

/// Reads all lines before anything is written, and writes them as one snapshot.
fn import(directory: &Path) -> Result<(), Failure> {
    let contents = read(io::stdin().lock())?;
    // A reader that fails says no more than the opening that follows: there is no store yet, or it cannot be opened.
    if let Ok(reader) = SqliteJournalReader::open(directory) {
        let mut kept = Kept::default();
        kept.read(&reader)?;
        if !kept.is_new() {
            let place = directory.display();
            let text = format!("the store in {place} has contents: import into a new directory");
            return Err(Failure::Usage(text));
        }
    }
    let mut journal = SqliteJournal::open(directory)?;
    journal.begin_snapshot(0)?;
    for chunk in contents.to_snapshot(0) {
        journal.add_to_snapshot(&chunk)?;
    }
    Ok(journal.finish_snapshot()?)
}

fn read(input: impl BufRead) -> Result<Contents, Failure> {
    let mut contents = Contents::default();
    for (number, line) in (1..).zip(input.lines()) {
        let wrong = |what: String| Failure::Usage(format!("line {number}: {what}"));
        let line = line.map_err(|error| wrong(error.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))?;
        let (key, entry) = line.decode().map_err(wrong)?;
        let before = contents.len();
        let key = key.as_slice();
        let value = entry.value.iter().map(|value| Effect::Put { key, value });
        let queue = entry
            .queue
            .iter()
            .map(|element| Effect::Push { key, element });
        for effect in value.chain(queue) {
            assert!(contents.apply(effect), "it takes nothing away");
        }
        if contents.len() == before {
            return Err(wrong("its key is also in an earlier line".to_owned()));
        }
    }
    Ok(contents)
}

/// Lines are written in pieces of about these bytes.
const WRITE_BYTES: usize = 64 << 10;

/// Prints a line for each key. Prints nothing of a directory that is damaged.
fn export(directory: &Path) -> Result<(), Failure> {
    let reader = SqliteJournalReader::open(directory)?;
    let mut kept = Kept::default();
    kept.read(&reader)?;
    let mut text = String::new();
    for (key, entry) in kept.contents.iter() {
        let line = serde_json::to_string(&Line::new(key, entry));
        text += &printable_json(&line.expect("text and lists"));
        text.push('\n');
        if text.len() >= WRITE_BYTES {
            print(text.as_bytes())?;
            text.clear();
        }
    }
    print(text.as_bytes())
}
