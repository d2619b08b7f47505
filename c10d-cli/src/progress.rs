//! `c10d progress`: a worker reports its step to its launcher.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::failure::Failure;

/// Names the file of this worker.
const FILE_VARIABLE: &str = "C10D_PROGRESS_FILE";

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    the step is written
  2    invalid arguments, or not in a worker whose launcher watches progress
  3    the file cannot be written";

/// The step that a worker has reached.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ProgressArgs {
    /// Report this step, epoch or batch number, which must increase over the course of the job.
    #[arg(value_name = "STEP")]
    step: u64,
}

/// Writes the step for the launcher.
pub(crate) fn run(args: &ProgressArgs) -> Result<(), Failure> {
    let path = env::var_os(FILE_VARIABLE).filter(|path| !path.is_empty());
    let path = path.map(PathBuf::from).ok_or_else(|| {
        Failure::Usage(format!(
            "{FILE_VARIABLE} is not set: only workers of a `c10d run` that watches progress have it, for example with \
             --progress-timeout"
        ))
    })?;
    let what = format!("cannot write {}", path.display());
    write(&path, args.step).map_err(Failure::system(what))
}

/// Replaces the file as a whole, so that the launcher never reads a part of a number.
fn write(path: &Path, step: u64) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(name);
    fs::write(&new, format!("{step}\n"))?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0-1");
        for step in [7, u64::MAX] {
            write(&path, step).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{step}\n"));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&folder.path().join("none/0"), 1).is_err());
    }
}
