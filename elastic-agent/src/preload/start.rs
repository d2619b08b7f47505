//! What a forked worker is told at its gate: its command line, environment, directory and streams; and why none is forked.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::Path;
#[cfg(target_os = "linux")]
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Seek, Write},
    os::unix::ffi::OsStrExt,
};

#[cfg(target_os = "linux")]
use rustix::fs::{MemfdFlags, memfd_create};

use crate::command_line::CommandLine;

/// What one worker runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerStart<'a> {
    /// An interpreter with `-u` and a script or module.
    pub(crate) command: &'a CommandLine,
    /// The whole environment.
    pub(crate) environment: &'a [(OsString, OsString)],
    pub(crate) directory: &'a Path,
    /// Standard input, output and error.
    pub(crate) streams: [BorrowedFd<'a>; 3],
    /// Where the worker reports its process group, as a line.
    pub(crate) names: BorrowedFd<'a>,
}

#[cfg(target_os = "linux")]
impl WorkerStart<'_> {
    /// Directory, command line and environment: too long for a packet, so in a file without a name.
    ///
    /// # Errors
    /// A word contains a NUL, or the system has no descriptor or memory left.
    pub(super) fn contents(&self) -> io::Result<File> {
        let arguments = self.command.arguments();
        let count = (arguments.len() + 1).to_string();
        let mut words: Vec<&OsStr> = vec![
            self.directory.as_os_str(),
            OsStr::new(&count),
            self.command.program(),
        ];
        words.extend(arguments.iter().map(OsString::as_os_str));
        let variables: Vec<OsString> = self
            .environment
            .iter()
            .map(|(name, value)| {
                let mut variable = name.clone();
                variable.push("=");
                variable.push(value);
                variable
            })
            .collect();
        words.extend(variables.iter().map(OsString::as_os_str));
        let words: Vec<&[u8]> = words.into_iter().map(OsStr::as_bytes).collect();
        if words.iter().any(|word| word.contains(&0)) {
            let text = "an argument or a variable contains a NUL";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut file = File::from(memfd_create("worker-start", MemfdFlags::CLOEXEC)?);
        file.write_all(&words.join(&0))?;
        // Its reader shares the position.
        file.rewind()?;
        Ok(file)
    }
}

/// Why there are no forked workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotForked {
    /// The template cannot fork workers, for this reason.
    Declined(String),
    /// The caller's wait was interrupted.
    Interrupted,
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn all_words_are_in_the_contents_byte_for_byte() {
        let null = File::open("/dev/null").unwrap();
        let command = CommandLine::new("python3", ["-u", "a b.py", ""]);
        let contents = |value: &[u8]| {
            let start = WorkerStart {
                command: &command,
                environment: &[("A".into(), OsStr::from_bytes(value).to_owned())],
                directory: Path::new("/tmp"),
                streams: [null.as_fd(); 3],
                names: null.as_fd(),
            };
            let mut bytes = Vec::new();
            start.contents()?.read_to_end(&mut bytes)?;
            io::Result::Ok(bytes)
        };
        assert_eq!(
            contents(b"\xff=\n").unwrap(),
            b"/tmp\x004\0python3\0-u\0a b.py\0\0A=\xff=\n"
        );
        let long = vec![b'x'; 1 << 20];
        assert_eq!(contents(&long).unwrap().len(), (1 << 20) + 28);
        assert!(contents(b"a\0b").is_err());
    }
}
