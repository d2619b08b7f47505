//! The directories of a job's logs.
//!
//! ```text
//! <log_dir>/<run id>_<8 random characters>/attempt_<restart count>/<local rank>/stdout.log
//!                                                                              /stderr.log
//!                                                                              /error.json
//!                                                                 /filtered_stdout.log
//!                                                                 /filtered_stderr.log
//! ```
//!
//! The files themselves are created when workers start, and by workers. Files are never removed, but directories
//! without a file are, at the end.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{env, iter};

use tempfile::TempDir;

use super::routing::{LogOptions, WorkerLogs};

/// Logs may be confidential, so directories are private, like PyTorch's.
const PRIVATE: u32 = 0o700;

const RANDOM_CHARS: usize = 8;

/// The first part of the name of a temporary directory, like in PyTorch.
const TEMPORARY: &str = "torchelastic";

/// The longest part of a run id in a file name, which is limited to 255 bytes on most systems.
const RUN_ID_BYTES_MAX: usize = 100;

/// The log directory of one job on this node, with a directory for each round.
///
/// The directory is created when the first round starts. It keeps the files of earlier rounds. PyTorch overwrites the
/// files of a round that ended because nodes joined or left, because the next round has the same restart count. Here
/// each round has its own directory, for example `attempt_0.1` after `attempt_0`. A directory without a file is removed
/// after its workers have been replaced, at the latest when the next round starts, so that restarts leave no empty directories.
///
/// ```no_run
/// use elastic_agent::{LogDirectory, LogOptions, StreamMap, Streams};
///
/// let mut options = LogOptions::default();
/// options.log_dir = Some("/var/log/job".into());
/// options.tee = StreamMap::All(Streams::BOTH);
/// let mut logs = LogDirectory::new(options, "job-7");
/// let round = logs.start_round(0, 8)?;
/// assert_eq!(round.workers.len(), 8);
/// # Ok::<(), elastic_agent::LogDirectoryError>(())
/// ```
#[derive(Debug)]
pub struct LogDirectory {
    options: LogOptions,
    run_id: String,
    /// The job's own directory; `None` until it is created, and once it is removed.
    path: Option<PathBuf>,
    /// The directories of the workers, by local rank.
    workers: Vec<PathBuf>,
    /// The restart count of the last start of workers.
    restart_count: usize,
    /// The directories of the workers of an earlier round, which are removed if they are empty.
    replaced: Vec<PathBuf>,
    /// Whether no file is written, because the options do not require files and their directory could not be created.
    is_abandoned: bool,
}

/// The destinations of the output of one round's workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundLogs {
    /// The round's directory; `None` when nothing is written to files.
    pub directory: Option<PathBuf>,
    /// The destinations of each worker's output, by local rank.
    pub workers: Vec<WorkerLogs>,
    /// The file for matching lines of tee'd standard output.
    pub filtered_stdout: Option<FilteredLog>,
    /// The file for matching lines of tee'd standard error.
    pub filtered_stderr: Option<FilteredLog>,
}

/// A file for lines that contain one of some texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilteredLog {
    /// The path of the file.
    pub path: PathBuf,
    /// The texts, at least one.
    pub filters: Vec<String>,
}

/// A log directory could not be created.
#[derive(thiserror::Error)]
#[error("cannot create the log directory {}: {}", path.display(), without_path(source))]
pub struct LogDirectoryError {
    /// The directory that could not be created.
    pub path: PathBuf,
    /// The error of the operating system.
    pub source: io::Error,
}

c10d_socket::debug_as_display!(LogDirectoryError);

/// The error of a random name repeats the directory.
fn without_path(error: &io::Error) -> String {
    let text = error.to_string();
    let end = text.find(" at path ").unwrap_or(text.len());
    text[..end].to_owned()
}

impl LogDirectory {
    /// Creates the logs of a job. Directories are created by [`start_round`](Self::start_round).
    #[must_use]
    pub fn new(options: LogOptions, run_id: &str) -> Self {
        Self {
            options,
            run_id: file_name(run_id),
            path: None,
            workers: Vec::new(),
            restart_count: 0,
            replaced: Vec::new(),
            is_abandoned: false,
        }
    }

    /// Returns the job's own directory; `None` before the first round, if no output is written to files, and after
    /// [`remove_empty`](Self::remove_empty) has removed it.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The parent of the job's directory, if it also belongs to the job.
    pub(crate) fn temporary_above(&self) -> Option<&Path> {
        match self.options.log_dir.as_deref() {
            Some(_) => None,
            None => self.path()?.parent(),
        }
    }

    /// Checks before the nodes meet whether log directories can be created: creates a directory at the place of a job's
    /// directories, and removes it. Creates the directory in the options, unless it exists. Does nothing if the job can
    /// do without files. Blocks as long as the file system does.
    ///
    /// # Errors
    /// [`LogDirectoryError`] if a directory cannot be created.
    pub fn check(options: &LogOptions) -> Result<(), LogDirectoryError> {
        if is_off(options) || !is_required(options) {
            return Ok(());
        }
        let parent = match options.log_dir.as_deref() {
            Some(parent) => make_parents(parent)?,
            None => env::temp_dir(),
        };
        let path = make_random(&parent, TEMPORARY)?;
        fs::remove_dir(&path).map_err(|source| LogDirectoryError { path, source })
    }

    /// Removes the job's own directory if it contains no file. For the end of the job. Blocks as long as the file
    /// system does.
    pub fn remove_empty(&mut self) {
        let Some(path) = self.path.take() else { return };
        for round in directories_in(&path) {
            for worker in directories_in(&round) {
                remove_if_empty(&worker);
            }
            remove_if_empty(&round);
        }
        if !remove_if_empty(&path) {
            self.path = Some(path);
            return;
        }
        if self.options.log_dir.is_none()
            && let Some(temporary) = path.parent()
        {
            remove_if_empty(temporary);
        }
    }

    /// Creates the directories of a round with `local_world_size` workers. The workers of the last round must have
    /// exited. Blocks as long as the file system does.
    ///
    /// # Errors
    /// [`LogDirectoryError`]; directories that were already created stay.
    pub fn start_round(
        &mut self,
        restart_count: usize,
        local_world_size: usize,
    ) -> Result<RoundLogs, LogDirectoryError> {
        self.remove_replaced();
        self.replaced = std::mem::take(&mut self.workers);
        if std::mem::replace(&mut self.restart_count, restart_count) == restart_count {
            // Then this round can have the name of the last one.
            self.remove_replaced();
        }
        self.start_workers(restart_count, 0..local_world_size)
    }

    /// Removes the directories of the last round that have no file. Call it when the workers have started, because a file
    /// system that is busy takes some milliseconds for each directory.
    pub(crate) fn remove_replaced(&mut self) {
        for worker in self.replaced.drain(..) {
            remove_worker(&worker);
        }
    }

    /// Creates the files of one worker, which replaces a dead worker. The other workers keep running.
    pub(crate) fn replace_worker(
        &mut self,
        restart_count: usize,
        local_rank: usize,
    ) -> Result<RoundLogs, LogDirectoryError> {
        if let Some(worker) = self.workers.get(local_rank) {
            remove_worker(worker);
        }
        self.restart_count = restart_count;
        self.start_workers(restart_count, local_rank..local_rank + 1)
    }

    /// The logs of these workers only. If the options do not require files and the directory cannot be created,
    /// there are no files.
    fn start_workers(
        &mut self,
        restart_count: usize,
        local_ranks: Range<usize>,
    ) -> Result<RoundLogs, LogDirectoryError> {
        match self.create(restart_count, local_ranks.clone()) {
            Err(error) if !is_required(&self.options) => {
                log::warn!("{error}: set TMPDIR or --log-dir");
                log::debug!("without these files, reports have no exceptions of Python");
                self.is_abandoned = true;
                self.create(restart_count, local_ranks)
            }
            created => created,
        }
    }

    fn create(
        &mut self,
        restart_count: usize,
        local_ranks: Range<usize>,
    ) -> Result<RoundLogs, LogDirectoryError> {
        let directory = if self.is_abandoned || is_off(&self.options) {
            None
        } else {
            Some(make_round(self.job_directory()?, restart_count)?)
        };
        let mut workers = Vec::new();
        for local_rank in local_ranks {
            let directory = directory
                .as_ref()
                .map(|directory| directory.join(local_rank.to_string()));
            if let Some(directory) = &directory {
                make(directory)?;
                match self.workers.get_mut(local_rank) {
                    Some(worker) => worker.clone_from(directory),
                    None => self.workers.push(directory.clone()),
                }
            }
            workers.push(self.options.route(local_rank, directory.as_deref()));
        }
        let filtered = |name, filters: &Vec<String>| {
            let directory = directory.as_ref().filter(|_| !filters.is_empty())?;
            Some(FilteredLog {
                path: directory.join(name),
                filters: filters.clone(),
            })
        };
        Ok(RoundLogs {
            workers,
            filtered_stdout: filtered("filtered_stdout.log", &self.options.stdout_filters),
            filtered_stderr: filtered("filtered_stderr.log", &self.options.stderr_filters),
            directory,
        })
    }

    /// The job's own directory, created on first use.
    fn job_directory(&mut self) -> Result<&Path, LogDirectoryError> {
        let path = match self.path.take() {
            Some(path) => path,
            None => {
                let parent = match self.options.log_dir.as_deref() {
                    Some(parent) => make_parents(parent)?,
                    None => make_random(&env::temp_dir(), TEMPORARY)?,
                };
                let path = make_random(&parent, &self.run_id)?;
                if self.options.has_output() {
                    log::info!("logs of this node's workers are in {}", path.display());
                }
                path
            }
        };
        Ok(self.path.insert(path))
    }
}

fn is_off(options: &LogOptions) -> bool {
    options.log_dir.as_deref() == Some(Path::new("/dev/null"))
}

/// Whether the options require files.
fn is_required(options: &LogOptions) -> bool {
    options.log_dir.is_some() || options.has_output()
}

fn directories_in(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir()));
    directories.map(|entry| entry.path())
}

/// Removes the directory of a worker, and the directory of its round if it was the last worker there.
fn remove_worker(path: &Path) {
    if remove_if_empty(path)
        && let Some(round) = path.parent()
    {
        remove_if_empty(round);
    }
}

/// Returns whether it is removed.
fn remove_if_empty(path: &Path) -> bool {
    fs::remove_dir(path).is_ok()
}

/// Creates the directory of a round, under the first free name.
fn make_round(parent: &Path, restart_count: usize) -> Result<PathBuf, LogDirectoryError> {
    let first = format!("attempt_{restart_count}");
    let later = (1_u64..).map(|round| format!("attempt_{restart_count}.{round}"));
    make_first(parent, iter::once(first).chain(later))
}

fn make_random(parent: &Path, name: &str) -> Result<PathBuf, LogDirectoryError> {
    let made = tempfile::Builder::new()
        .prefix(&format!("{name}_"))
        .rand_bytes(RANDOM_CHARS)
        .permissions(Permissions::from_mode(PRIVATE))
        .tempdir_in(parent);
    made.map(TempDir::keep).map_err(|source| LogDirectoryError {
        path: parent.to_owned(),
        source,
    })
}

/// Creates the first of these directories that does not exist.
fn make_first(
    parent: &Path,
    names: impl Iterator<Item = String>,
) -> Result<PathBuf, LogDirectoryError> {
    let mut result = Err(LogDirectoryError {
        path: parent.to_owned(),
        source: io::ErrorKind::AlreadyExists.into(),
    });
    for name in names {
        let path = parent.join(name);
        result = make(&path).map(|()| path);
        match &result {
            Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {}
            _ => break,
        }
    }
    result
}

/// Creates the directory that the user named, unless it exists. Returns its absolute path, which stays
/// valid in workers that change their working directory.
fn make_parents(path: &Path) -> Result<PathBuf, LogDirectoryError> {
    let made = std::path::absolute(path).and_then(|absolute| {
        DirBuilder::new().recursive(true).create(&absolute)?;
        Ok(absolute)
    });
    made.map_err(|source| LogDirectoryError {
        path: path.to_owned(),
        source,
    })
}

fn make(path: &Path) -> Result<(), LogDirectoryError> {
    let made = DirBuilder::new().mode(PRIVATE).create(path);
    made.map_err(|source| LogDirectoryError {
        path: path.to_owned(),
        source,
    })
}

/// A run id as part of a file name: replaces characters other than letters, digits, `.`, `-` and `_` by
/// `_`, and truncates a long one.
fn file_name(run_id: &str) -> String {
    let mut name = String::new();
    for char in run_id.chars() {
        let is_harmless = char.is_alphanumeric() || matches!(char, '.' | '-' | '_');
        let char = if is_harmless { char } else { '_' };
        if name.len() + char.len_utf8() > RUN_ID_BYTES_MAX {
            break;
        }
        name.push(char);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::{StreamMap, Streams};

    fn options(log_dir: &Path) -> LogOptions {
        LogOptions {
            log_dir: Some(log_dir.to_owned()),
            tee: StreamMap::All(Streams::BOTH),
            stdout_filters: vec!["loss".to_owned()],
            ..LogOptions::default()
        }
    }

    #[test]
    fn each_round_has_a_directory_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let parent = folder.path().join("a/b");
        let mut logs = LogDirectory::new(options(&parent), "job 1/x");
        assert_eq!(logs.path(), None);
        let mut names = Vec::new();
        for restart_count in [0, 0, 0, 1, 1, 0] {
            let round = logs.start_round(restart_count, 2).unwrap();
            let directory = round.directory.unwrap();
            assert_eq!(directory.parent(), logs.path());
            let error_file = round.workers[1].error_file.clone().unwrap();
            assert_eq!(error_file, directory.join("1/error.json"));
            fs::write(error_file, "kept").unwrap();
            let filtered = round.filtered_stdout.unwrap();
            assert_eq!(filtered.path, directory.join("filtered_stdout.log"));
            assert_eq!(round.filtered_stderr, None);
            names.push(directory.file_name().unwrap().to_owned());
        }
        let expected = [
            "attempt_0",
            "attempt_0.1",
            "attempt_0.2",
            "attempt_1",
            "attempt_1.1",
            "attempt_0.3",
        ];
        assert_eq!(names, expected);
        let job = logs.path().unwrap();
        for name in expected {
            let kept = fs::read(job.join(name).join("1/error.json")).unwrap();
            assert_eq!(kept, b"kept");
        }
        let name = job.file_name().unwrap().to_str().unwrap();
        let random = name.strip_prefix("job_1_x_").unwrap();
        assert_eq!(random.len(), RANDOM_CHARS);
        assert_eq!(
            fs::metadata(job).unwrap().permissions().mode() & 0o777,
            PRIVATE
        );
    }

    #[test]
    fn rounds_and_workers_that_wrote_nothing_leave_no_directory() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = LogDirectory::new(options(folder.path()), "job");
        let names = |path: &Path| {
            let mut names: Vec<_> = directories_in(path)
                .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
                .collect();
            names.sort();
            names
        };
        for restart_count in [0, 0, 1, 2] {
            logs.start_round(restart_count, 2).unwrap();
        }
        let job = logs.path().unwrap().to_owned();
        // Workers do not wait for the removal.
        assert_eq!(names(&job), ["attempt_1", "attempt_2"]);
        logs.remove_replaced();
        assert_eq!(names(&job), ["attempt_2"]);
        for restart_count in 3..6 {
            let worker = logs.replace_worker(restart_count, 1).unwrap();
            assert_eq!(worker.workers.len(), 1);
            let latest = format!("attempt_{restart_count}");
            assert_eq!(names(&job), ["attempt_2", &latest]);
            assert_eq!(names(&job.join(latest)), ["1"]);
        }
        assert_eq!(names(&job.join("attempt_2")), ["0"]);
        logs.replace_worker(6, 0).unwrap();
        assert_eq!(names(&job), ["attempt_5", "attempt_6"]);
        logs.start_round(7, 2).unwrap();
        logs.remove_replaced();
        assert_eq!(names(&job), ["attempt_7"]);
    }

    #[test]
    fn a_directory_stays_if_a_file_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = LogDirectory::new(options(folder.path()), "job");
        logs.start_round(0, 2).unwrap();
        let round = logs.start_round(1, 2).unwrap();
        let job = logs.path().unwrap().to_owned();
        let file = round.workers[1].error_file.clone().unwrap();
        fs::write(&file, "kept").unwrap();
        logs.remove_empty();
        assert_eq!(logs.path(), Some(&*job));
        let left: Vec<_> = directories_in(&job).collect();
        assert_eq!(left, [round.directory.unwrap()]);
        assert_eq!(
            directories_in(&left[0]).collect::<Vec<_>>(),
            [file.parent().unwrap()]
        );

        fs::remove_file(&file).unwrap();
        logs.remove_empty();
        assert_eq!(logs.path(), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_check_leaves_nothing_but_the_named_directory() {
        let folder = tempfile::tempdir().unwrap();
        let parent = folder.path().join("a/b");
        LogDirectory::check(&options(&parent)).unwrap();
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);

        let file = parent.join("file");
        fs::write(&file, "").unwrap();
        let error = LogDirectory::check(&options(&file)).unwrap_err();
        assert_eq!(error.path, file);
        LogDirectory::check(&options(Path::new("/dev/null"))).unwrap();
    }

    #[test]
    fn the_null_device_means_no_files() {
        let mut logs = LogDirectory::new(options(Path::new("/dev/null")), "job");
        let round = logs.start_round(0, 1).unwrap();
        assert_eq!((round.directory, round.filtered_stdout), (None, None));
        assert_eq!(round.workers[0].error_file, None);
        assert_eq!(logs.path(), None);
    }

    #[test]
    fn a_file_in_place_of_the_directory_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "").unwrap();
        let error = LogDirectory::new(options(&path), "job").start_round(0, 1);
        assert_eq!(error.unwrap_err().path, path);
    }

    #[test]
    fn any_run_id_becomes_a_valid_file_name() {
        let table = [
            ("../../etc", ".._.._etc"),
            ("", ""),
            ("a\0b\nc", "a_b_c"),
            ("J\u{f6}b-1.2_3", "J\u{f6}b-1.2_3"),
        ];
        for (run_id, name) in table {
            assert_eq!(file_name(run_id), name);
        }
        assert_eq!(file_name(&"\u{20ac}x\u{f6}".repeat(1000)).len(), 100);
    }
}
