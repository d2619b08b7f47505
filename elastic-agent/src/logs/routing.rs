//! Where the output of each worker goes.
//!
//! Decides on names only: makes no directory and opens no file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::streams::{StreamMap, Streams};

/// Where one output stream of a worker goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// To where the agent's own goes.
    Console,
    /// Nowhere.
    Discard,
    /// To a file.
    File {
        /// Which one.
        path: PathBuf,
        /// Whether its lines are shown on the console as well, each with the worker's prefix.
        is_shown: bool,
    },
}

/// The files of one worker in one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLogs {
    /// Its standard output.
    pub stdout: Destination,
    /// Its standard error.
    pub stderr: Destination,
    /// Where it may leave what its exception was.
    pub error_file: Option<PathBuf>,
}

/// How the logs of a job are kept: the launcher's options.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogOptions {
    /// The directory for the logs; a new one for temporary files unless given. The null device means
    /// no files at all.
    pub log_dir: Option<PathBuf>,
    /// What is written to files instead of the console.
    pub redirects: StreamMap,
    /// What is written to files and shown on the console with a prefix.
    pub tee: StreamMap,
    /// The only workers whose output is shown; all of them when empty.
    pub local_ranks_filter: BTreeSet<usize>,
    /// Lines of tee'd standard output that contain one of these are written to a file of their own.
    pub stdout_filters: Vec<String>,
    /// The same for standard error.
    pub stderr_filters: Vec<String>,
}

impl LogOptions {
    /// The files of one worker, in its own directory; without one there are no files, and what is to
    /// be redirected stays on the console.
    pub(super) fn route(&self, local_rank: usize, directory: Option<&Path>) -> WorkerLogs {
        let redirects = self.redirects.of(local_rank);
        let tee = self.tee.of(local_rank);
        let is_visible =
            self.local_ranks_filter.is_empty() || self.local_ranks_filter.contains(&local_rank);
        let route = |name, of: fn(Streams) -> bool| match directory {
            Some(directory) if of(redirects) || of(tee) => Destination::File {
                path: directory.join(name),
                is_shown: of(tee) && is_visible,
            },
            _ if is_visible => Destination::Console,
            _ => Destination::Discard,
        };
        WorkerLogs {
            stdout: route("stdout.log", |streams| streams.stdout),
            stderr: route("stderr.log", |streams| streams.stderr),
            error_file: directory.map(|directory| directory.join("error.json")),
        }
    }
}

/// The texts of `--duplicate-stdout-filters`: separated by commas, `,,` for a comma within one. Empty
/// ones, which every line contains, are left out.
///
/// ```
/// assert_eq!(elastic_agent::parse_line_filters("loss,lr=1,,2,"), ["loss", "lr=1,2"]);
/// ```
#[must_use]
pub fn parse_line_filters(text: &str) -> Vec<String> {
    let mut filters = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(char) = rest.next() {
        if char == ',' && rest.next_if_eq(&',').is_none() {
            filters.push(String::new());
        } else if let Some(filter) = filters.last_mut() {
            filter.push(char);
        }
    }
    filters.retain(|filter| !filter.is_empty());
    filters
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(redirects: &str, tee: &str, filter: &[usize]) -> (Destination, Destination) {
        let options = LogOptions {
            redirects: redirects.parse().unwrap(),
            tee: tee.parse().unwrap(),
            local_ranks_filter: filter.iter().copied().collect(),
            ..LogOptions::default()
        };
        let logs = options.route(1, Some(Path::new("/d")));
        assert_eq!(logs.error_file, Some("/d/error.json".into()));
        (logs.stdout, logs.stderr)
    }

    fn file(name: &str, is_shown: bool) -> Destination {
        Destination::File {
            path: Path::new("/d").join(name),
            is_shown,
        }
    }

    #[test]
    fn redirected_is_in_a_file_and_teed_is_shown_as_well() {
        use Destination::Console;
        assert_eq!(route("0", "0", &[]), (Console, Console));
        let both = (file("stdout.log", false), file("stderr.log", false));
        assert_eq!(route("3", "0", &[]), both);
        assert_eq!(route("0", "1", &[]), (file("stdout.log", true), Console));
        let mixed = (file("stdout.log", true), file("stderr.log", false));
        assert_eq!(route("1:2", "1", &[]), mixed);
        assert_eq!(route("0:3", "0:3", &[]), (Console, Console));
    }

    #[test]
    fn a_worker_that_is_filtered_out_is_seen_in_files_only() {
        use Destination::{Console, Discard};
        assert_eq!(route("0", "0", &[0]), (Discard, Discard));
        assert_eq!(route("0", "0", &[0, 1]), (Console, Console));
        let logs = (file("stdout.log", false), Discard);
        assert_eq!(route("0", "1", &[0]), logs);
        assert_eq!(route("1", "0", &[0]), logs);
    }

    #[test]
    fn without_a_directory_there_are_no_files() {
        let options = LogOptions {
            redirects: StreamMap::All(Streams::BOTH),
            tee: StreamMap::All(Streams::BOTH),
            ..LogOptions::default()
        };
        let logs = options.route(0, None);
        let expected = WorkerLogs {
            stdout: Destination::Console,
            stderr: Destination::Console,
            error_file: None,
        };
        assert_eq!(logs, expected);
    }

    #[test]
    fn two_commas_are_a_comma_in_a_filter() {
        let table: [(&str, &[&str]); 5] = [
            ("", &[]),
            ("a,b", &["a", "b"]),
            ("a,,b,c", &["a,b", "c"]),
            (",,", &[","]),
            ("a,,,b", &["a,", "b"]),
        ];
        for (text, filters) in table {
            assert_eq!(parse_line_filters(text), filters, "{text:?}");
        }
    }
}
