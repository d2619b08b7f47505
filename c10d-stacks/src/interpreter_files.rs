//! Whether the files of an interpreter can be read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::interpreter::Interpreter;

/// The distance between two bytes that are read of a file, which is the smallest page.
const PAGE_BYTES: usize = 4096;

impl Interpreter {
    /// Returns its name if it is built without the lock (GIL), for example `python3.13t`.
    pub(crate) fn free_threaded(&self) -> Option<&str> {
        let name = self.name.split(".so").next()?;
        let version = name.split_once("python3.")?.1;
        version.ends_with('t').then_some(name)
    }

    /// Reads a byte of each page of its files, so that a failing file system causes an error here. py-spy maps the
    /// files into this process, where the same failure would be a signal that kills this process.
    pub(crate) fn check_files(&self) -> io::Result<()> {
        for path in &self.files {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            let mut byte = [0];
            for position in (0..bytes).step_by(PAGE_BYTES) {
                // A file that has become shorter counts as a failure.
                file.read_exact_at(&mut byte, position)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn named(name: &str) -> Interpreter {
        Interpreter {
            name: name.to_owned(),
            files: vec![PathBuf::from("/nonexistent/python3")],
        }
    }

    #[test]
    fn a_missing_file_is_an_error() {
        assert!(named("python3").check_files().is_err());
    }

    #[test]
    fn an_interpreter_without_lock_is_told_by_its_name() {
        let free = named("libpython3.13t.so.1.0");
        assert_eq!(free.free_threaded(), Some("libpython3.13t"));
        for name in ["python3", "python3.11", "libpython3.12.so.1.0"] {
            assert_eq!(named(name).free_threaded(), None);
        }
    }
}
