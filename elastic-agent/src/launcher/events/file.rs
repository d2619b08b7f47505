//! A file with one JSON object per line.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::ioctl_fionbio;
use serde_json::Value;

use crate::queued_writer::{Next, QueuedWriter};

const THREAD: &str = "events";

/// Appends lines, from any thread and without waiting for a disk or a reader. Several launchers may append to one file
/// of this machine: each line is one write.
#[derive(Debug)]
pub(super) struct EventFile {
    lines: QueuedWriter<Vec<u8>>,
}

impl EventFile {
    /// Opens the file; a new one can only be read by this user. Does not wait for the reader of a pipe.
    ///
    /// # Errors
    /// Those of the system; a pipe that no process reads.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let name = path.display().to_string();
        let of_gaps = name.clone();
        let render = move |next| match next {
            Next::Item(line) => line,
            Next::Gap(dropped) => {
                log::warn!("{dropped} events are missing in {of_gaps}, which accepted no more");
                Vec::new()
            }
        };
        let mut has_failed = false;
        let lines = QueuedWriter::start(THREAD, file, Box::new(render), move |error| {
            // The job goes on without its events.
            if !std::mem::replace(&mut has_failed, true) {
                log::warn!("cannot write events to {name}: {error}");
            }
        })?;
        Ok(Self { lines })
    }

    /// Appends a line. A failure is logged once.
    pub(super) fn write(&self, line: &Value) {
        let line = format!("{line}\n").into_bytes();
        self.lines.push(line.len(), line);
    }

    /// Waits until all lines are written, unless the file accepts nothing for `stuck_max`.
    pub(super) fn finish(&self, stuck_max: Duration) {
        self.lines.finish(stuck_max);
    }
}

fn open(path: &Path) -> io::Result<File> {
    let is_pipe = std::fs::metadata(path).is_ok_and(|it| it.file_type().is_fifo());
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        // Otherwise opening a pipe waits for its reader.
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(|error| match is_pipe {
            true => io::Error::other(format!(
                "no process reads the pipe {}: start its reader first ({error})",
                path.display()
            )),
            false => error,
        })?;
    // The thread that writes waits. A terminal may be shared with programs that expect that, too.
    ioctl_fionbio(&file, false)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_pipe_without_a_reader_is_refused_and_one_that_is_not_read_delays_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            &path,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
        .unwrap();
        let error = EventFile::open(&path).unwrap_err();
        assert!(
            error.to_string().contains("no process reads the pipe"),
            "{error}"
        );

        let reader = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&path)
            .unwrap();
        let file = EventFile::open(&path).unwrap();
        // More than a pipe takes.
        for number in 0..4096 {
            file.write(&json!({ "n": number, "text": "x".repeat(100) }));
        }
        file.finish(Duration::from_millis(1));
        drop(reader);
    }

    #[test]
    fn lines_are_appended_to_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        for number in 0..2 {
            let file = EventFile::open(&path).unwrap();
            file.write(&json!({ "n": number, "text": "a\nb" }));
            file.finish(LONG);
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "{\"n\":0,\"text\":\"a\\nb\"}\n{\"n\":1,\"text\":\"a\\nb\"}\n"
        );
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(EventFile::open(&folder.path().join("none/events")).is_err());
    }
}
