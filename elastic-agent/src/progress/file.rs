//! Reads what a worker reports in a file.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use super::watch::Mark;
use crate::regular_file;

/// The longest file that is read for a number: 64 bits have 20 digits.
const BYTES_MAX: u64 = 64;

/// What the file says; `None` if it is missing or cannot be read.
pub(super) fn read(path: &Path) -> Option<Mark> {
    let modified = fs::metadata(path).and_then(|it| it.modified()).ok()?;
    match regular_file::read(path, BYTES_MAX) {
        Ok(bytes) => Some(mark(&bytes, modified)),
        Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => {
            Some(Mark::Modified(modified))
        }
        Err(_) => None,
    }
}

/// A decimal number with blanks around it, or else the time of the last change.
fn mark(bytes: &[u8], modified: SystemTime) -> Mark {
    let text = std::str::from_utf8(bytes).ok();
    let step = text.and_then(|text| text.trim().parse().ok());
    step.map_or(Mark::Modified(modified), Mark::Step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_is_a_step() {
        let time = SystemTime::UNIX_EPOCH;
        for (text, step) in [
            ("17", 17),
            (" 17\n", 17),
            ("0", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(mark(text.as_bytes(), time), Mark::Step(step));
        }
        for text in ["", "-1", "1.5", "step 17", "17 18", "18446744073709551616"] {
            assert_eq!(mark(text.as_bytes(), time), Mark::Modified(time), "{text}");
        }
        assert_eq!(mark(b"\xff", time), Mark::Modified(time));
    }

    #[test]
    fn a_long_file_has_only_a_time_and_a_directory_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress");
        assert_eq!(read(&path), None);
        fs::write(&path, "1".repeat(65)).unwrap();
        assert!(matches!(read(&path), Some(Mark::Modified(_))));
        fs::write(&path, "12\n").unwrap();
        assert_eq!(read(&path), Some(Mark::Step(12)));
        assert_eq!(read(folder.path()), None);
    }
}
