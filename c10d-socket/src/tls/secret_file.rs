//! Reads a file that only its owner may read, so that no other user has chosen or seen its content.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::CredentialsError;
use crate::cancel::Cancel;
use crate::deadline::Deadline;
use crate::loopback_user::own_user;
use crate::wait::wait_for_input;

/// A file of secrets is not longer.
const FILE_BYTES_MAX: usize = 4096;

/// How long a pipe may take to deliver all: the program that writes into it may ask another machine.
const PIPE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the first 4 KiB. Blocks for up to 10 s if it is a pipe, for example of a shell's `<(..)`.
pub(super) fn read(path: &Path) -> Result<String, CredentialsError> {
    let failed = |source| CredentialsError::File {
        path: path.to_owned(),
        source,
    };
    // Opening a pipe without a writer would block.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let mut file = options.open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    check(path, &metadata)?;
    let timeout = metadata.file_type().is_fifo().then_some(PIPE_TIMEOUT);
    let deadline = Deadline::after(Instant::now(), timeout);
    let bytes = read_by(&mut file, deadline).map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| failed(io::Error::other(error)))
}

/// Refuses what other users can read or have written.
fn check(path: &Path, metadata: &Metadata) -> Result<(), CredentialsError> {
    let invalid = |detail: String| CredentialsError::Invalid {
        origin: path.display().to_string(),
        detail,
    };
    if metadata.file_type().is_fifo() {
        return Ok(());
    }
    if !metadata.is_file() {
        return Err(invalid("is neither a file nor a pipe".to_owned()));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(CredentialsError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    // Root reads a file of any mode.
    if mode != 0o600 && mode != 0o400 {
        return Err(invalid(format!(
            "has mode {mode:04o}, not 0600 or 0400: run `chmod 600 {}`",
            path.display()
        )));
    }
    let owner = metadata.uid();
    if owner != 0 && owner != own_user() {
        return Err(invalid(format!(
            "belongs to user {owner}, who can change it: it must belong to root or to the user that reads it, {}",
            own_user()
        )));
    }
    Ok(())
}

fn read_by(file: &mut File, deadline: Deadline) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; FILE_BYTES_MAX];
    let mut filled = 0;
    while filled < bytes.len() {
        if !wait_for_input(file, deadline.remaining(Instant::now()), &Cancel::NEVER)? {
            let text = format!("it is a pipe, and nothing has come for {PIPE_TIMEOUT:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
