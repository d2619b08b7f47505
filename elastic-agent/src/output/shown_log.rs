//! A log file as the console shows it, line by line.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::console::Sink;
use super::lines::LineSplitter;
use super::log_writer::LoggedStream;
use super::trail::{Part, Trail};
use crate::threads::lock;

/// A file that also gets the lines that contain one of some texts.
#[derive(Debug)]
pub(crate) struct LineCopy {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) filters: Vec<String>,
    /// The last line could not be written.
    pub(crate) is_failing: bool,
}

impl LineCopy {
    fn take(&mut self, prefix: &str, line: &str) {
        if !self.filters.iter().any(|filter| line.contains(filter)) {
            return;
        }
        let written = self.file.write_all(format!("{prefix}{line}\n").as_bytes());
        let was_failing = std::mem::replace(&mut self.is_failing, written.is_err());
        if let Err(error) = written
            && !was_failing
        {
            log::warn!(
                "cannot write filtered output to {}: {error}",
                self.path.display()
            );
        }
    }
}

/// A stream that is shown line by line: the parts in the log file, and between them the parts that
/// the file lacks.
#[derive(Debug)]
pub(crate) struct ShownLog {
    path: PathBuf,
    file: File,
    prefix: String,
    lines: LineSplitter,
    trail: Arc<Mutex<Trail>>,
    /// The last output was not in the file.
    pub(super) is_in_memory: bool,
}

impl ShownLog {
    /// Opens the stream's file, to be read.
    ///
    /// # Errors
    /// The error of the operating system, for example for a file that does not exist.
    pub(crate) fn open(path: &Path, prefix: String, stream: &LoggedStream) -> io::Result<Self> {
        Ok(Self {
            file: File::open(path)?,
            path: path.to_owned(),
            prefix,
            lines: LineSplitter::default(),
            trail: stream.trail(),
            is_in_memory: false,
        })
    }

    /// Shows a part of the written output; returns whether there may be more.
    pub(super) fn show_once(
        &mut self,
        buffer: &mut [u8],
        sink: &mut Sink,
        copy: &mut Option<LineCopy>,
    ) -> bool {
        let Some(part) = lock(&self.trail).pop(buffer.len() as u64) else {
            return false;
        };
        self.is_in_memory = !matches!(part, Part::File { .. });
        let lost = match part {
            Part::File { from, to } => self.show_file(from, to, buffer, sink, copy),
            Part::Memory(bytes) => {
                self.push(&bytes, sink, copy);
                0
            }
            Part::Dropped(count) => count,
        };
        if lost > 0 {
            self.end(sink, copy);
            sink.line(
                &self.prefix,
                &format!("[c10d: {lost} bytes of output are missing here]"),
            );
        }
        sink.flush();
        true
    }

    /// Shows a part of the file; returns how many bytes it no longer has, for example after a log
    /// rotation.
    fn show_file(
        &mut self,
        mut from: u64,
        to: u64,
        buffer: &mut [u8],
        sink: &mut Sink,
        copy: &mut Option<LineCopy>,
    ) -> u64 {
        while from < to {
            let room = buffer
                .len()
                .min(usize::try_from(to - from).unwrap_or(usize::MAX));
            match self.file.read_at(&mut buffer[..room], from) {
                Ok(0) => break,
                Ok(count) => {
                    self.push(&buffer[..count], sink, copy);
                    from += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    log::warn!("cannot show the log file {}: {error}", self.path.display());
                    break;
                }
            }
        }
        to - from
    }

    fn push(&mut self, bytes: &[u8], sink: &mut Sink, copy: &mut Option<LineCopy>) {
        let prefix = &self.prefix;
        self.lines.push(bytes, |line| {
            sink.line(prefix, line);
            if let Some(copy) = copy {
                copy.take(prefix, line);
            }
        });
    }

    /// Shows the last line if it has no line end.
    pub(super) fn end(&mut self, sink: &mut Sink, copy: &mut Option<LineCopy>) {
        if let Some(line) = self.lines.finish() {
            sink.unfinished_line(&self.prefix, &line);
            if let Some(copy) = copy {
                copy.take(&self.prefix, &line);
            }
            sink.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Read;

    use super::*;

    /// A stream with this log file, the received output of the console, and its console.
    fn shown(text: &str, folder: &tempfile::TempDir) -> (ShownLog, Sink, io::PipeReader) {
        let path = folder.path().join("log");
        std::fs::write(&path, text).unwrap();
        let file = File::open(&path).unwrap();
        let (near, _far) = io::pipe().unwrap();
        let stream = LoggedStream::new(near, &path, file, None).unwrap();
        let shown = ShownLog::open(&path, "[0]:".to_owned(), &stream).unwrap();
        let (console, far) = io::pipe().unwrap();
        let sink = Sink::new("test", Box::new(far), Arc::default());
        (shown, sink, console)
    }

    fn text(mut console: io::PipeReader) -> String {
        let mut text = String::new();
        console.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn lines_go_on_from_the_file_to_memory_and_back() {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, mut sink, console) = shown("one\ntw[c10d: ...]\nur\nfi", &folder);
        {
            let mut trail = lock(&log.trail);
            trail.push_file(0, 6);
            trail.push_memory(b"o\nthree\nfo");
            trail.push_file(18, 21);
            // The file has grown.
            trail.push_file(21, 23);
            trail.push_file(23, 29);
        }
        // In the smallest pieces.
        while log.show_once(&mut [0; 1], &mut sink, &mut None) {}
        log.end(&mut sink, &mut None);
        drop(sink);
        let expected = "[0]:one\n[0]:two\n[0]:three\n[0]:four\n[0]:fi";
        let lost = "\n[0]:[c10d: 1 bytes of output are missing here]\n".repeat(6);
        assert_eq!(
            text(console),
            format!("{expected}{}", lost.replace("\n\n", "\n"))
        );
    }

    #[test]
    fn a_copy_that_cannot_be_written_does_not_stop_the_console() {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, mut sink, console) = shown("a 1\nb\na 2\n", &folder);
        lock(&log.trail).push_file(0, 10);
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut copy = Some(LineCopy {
            path: "/dev/full".into(),
            file: full,
            filters: vec!["a".to_owned()],
            is_failing: false,
        });
        assert!(log.show_once(&mut [0; 64], &mut sink, &mut copy));
        drop(sink);
        assert_eq!(text(console), "[0]:a 1\n[0]:b\n[0]:a 2\n");
        assert!(copy.unwrap().is_failing);
    }
}
