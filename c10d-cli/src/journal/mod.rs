//! `c10d store verify`, `export` and `import`: the directory of a store that no server has open.

mod contents;
mod line;
mod transfer;
mod verify;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::failure::Failure;

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
        JournalCommand::Export(args) => transfer::export(&args.dir),
        JournalCommand::Import(args) => transfer::import(&args.dir),
    }
}
