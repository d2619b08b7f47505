//! Decides where the output of each worker goes, from the options that select streams (`--redirects`, `--tee`).
//!
//! Decides on names only: creates no directory and opens no file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::command_line::substitute;

/// A set of the two output streams of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Streams {
    /// Whether standard output is in the set.
    pub stdout: bool,
    /// Whether standard error is in the set.
    pub stderr: bool,
}

impl Streams {
    /// The empty set.
    pub const NONE: Self = Self {
        stdout: false,
        stderr: false,
    };

    /// Standard output and standard error.
    pub const BOTH: Self = Self {
        stdout: true,
        stderr: true,
    };

    /// PyTorch's numbers: 0 for none, 1 for standard output, 2 for standard error, 3 for both.
    fn from_number(text: &str) -> Option<Self> {
        let (stdout, stderr) = match text {
            "0" => (false, false),
            "1" => (true, false),
            "2" => (false, true),
            "3" => (true, true),
            _ => return None,
        };
        Some(Self { stdout, stderr })
    }
}

/// PyTorch's number.
impl fmt::Display for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", u8::from(self.stdout) + 2 * u8::from(self.stderr))
    }
}

/// The selected streams of each worker of one node.
///
/// ```
/// use elastic_agent::{StreamMap, Streams};
///
/// let map: StreamMap = "0:1,12:3".parse()?;
/// assert_eq!(map.of(12), Streams::BOTH);
/// assert_eq!(map.of(7), Streams::NONE);
/// # Ok::<(), elastic_agent::StreamMapError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamMap {
    /// Every worker has this set.
    All(Streams),
    /// Each local rank has its own set. A local rank without an entry has no streams.
    ByLocalRank(BTreeMap<usize, Streams>),
}

impl StreamMap {
    /// The selected streams of one worker.
    #[must_use]
    pub fn of(&self, local_rank: usize) -> Streams {
        match self {
            Self::All(streams) => *streams,
            Self::ByLocalRank(map) => map.get(&local_rank).copied().unwrap_or_default(),
        }
    }

    /// Whether no stream of any worker is selected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::All(streams) => *streams == Streams::NONE,
            Self::ByLocalRank(map) => map.values().all(|streams| *streams == Streams::NONE),
        }
    }
}

/// The default has no stream of any worker.
impl Default for StreamMap {
    fn default() -> Self {
        Self::All(Streams::NONE)
    }
}

/// Formats the map in the form that [`FromStr`] parses.
impl fmt::Display for StreamMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(streams) => write!(f, "{streams}"),
            Self::ByLocalRank(map) => {
                for (number, (local_rank, streams)) in map.iter().enumerate() {
                    let comma = if number == 0 { "" } else { "," };
                    write!(f, "{comma}{local_rank}:{streams}")?;
                }
                Ok(())
            }
        }
    }
}

/// A number, or pairs of a local rank and a number: `3`, or `0:1,1:2`. Unlike in PyTorch, local ranks may
/// have any number of digits. For a repeated local rank the last pair counts.
impl FromStr for StreamMap {
    type Err = StreamMapError;

    fn from_str(text: &str) -> Result<Self, StreamMapError> {
        let error = || StreamMapError {
            text: text.to_owned(),
        };
        if let Some(streams) = Streams::from_number(text) {
            return Ok(Self::All(streams));
        }
        let mut map = BTreeMap::new();
        for pair in text.split(',') {
            let (local_rank, number) = pair.split_once(':').ok_or_else(error)?;
            let is_number = local_rank.bytes().all(|byte| byte.is_ascii_digit());
            let local_rank = local_rank.parse().ok().filter(|_| is_number);
            let streams = Streams::from_number(number);
            map.insert(local_rank.ok_or_else(error)?, streams.ok_or_else(error)?);
        }
        Ok(Self::ByLocalRank(map))
    }
}

/// A text that selects no streams.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither a number from 0 to 3 nor a list such as 0:1,1:2 (local rank:number)")]
pub struct StreamMapError {
    /// The text that could not be parsed.
    pub text: String,
}

c10d_socket::debug_as_display!(StreamMapError);

/// The destination of one output stream of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// The agent's own stream.
    Console,
    /// The output is discarded.
    Discard,
    /// The output is written to a file that only this stream of this worker uses.
    File {
        /// The path of the file.
        path: PathBuf,
        /// Whether the console shows the lines as well, each with the worker's prefix. The worker then writes to a
        /// pipe, and so is not affected by a file system without space.
        is_shown: bool,
    },
}

/// The destinations of one worker's output in one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLogs {
    /// The destination of standard output.
    pub stdout: Destination,
    /// The destination of standard error.
    pub stderr: Destination,
    /// The file in which the worker may leave its exception.
    pub error_file: Option<PathBuf>,
}

impl WorkerLogs {
    /// Both streams on the console, and no error file.
    pub const CONSOLE: Self = Self {
        stdout: Destination::Console,
        stderr: Destination::Console,
        error_file: None,
    };

    /// Returns these logs with both streams on the console.
    pub(crate) fn on_console(self) -> Self {
        Self {
            error_file: self.error_file,
            ..Self::CONSOLE
        }
    }
}

/// The options for the destinations of the output of a job's workers. The defaults are PyTorch's: all output to the console,
/// error files in a new temporary directory.
///
/// ```
/// use elastic_agent::{LogOptions, StreamMap, Streams};
///
/// let mut options = LogOptions::default();
/// options.log_dir = Some("/var/log/job".into());
/// options.tee = StreamMap::All(Streams::BOTH);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
#[non_exhaustive]
pub struct LogOptions {
    /// The directory for the logs, created if missing. By default a new temporary directory. With `/dev/null`, no files
    /// are written.
    pub log_dir: Option<PathBuf>,
    /// The streams that are written to files instead of the console. None by default.
    pub redirects: StreamMap,
    /// The streams that are written to files, and to the console with a prefix. None by default.
    pub tee: StreamMap,
    /// The local ranks of the workers whose output is shown. If it is empty, the default, the output of all workers is
    /// shown.
    pub local_ranks_filter: BTreeSet<usize>,
    /// The texts whose lines of tee'd standard output are also written to `filtered_stdout.log`. Empty by default.
    pub stdout_filters: Vec<String>,
    /// The texts whose lines of tee'd standard error are also written to `filtered_stderr.log`. Empty by default.
    pub stderr_filters: Vec<String>,
}

impl LogOptions {
    /// Whether output of any worker goes to a file.
    pub(super) fn has_output(&self) -> bool {
        !self.redirects.is_empty() || !self.tee.is_empty()
    }

    /// Routes the output of one worker to files in its own directory. Without a directory nothing goes to
    /// files, and redirected output stays on the console.
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

/// Parses `--duplicate-stdout-filters`: texts separated by commas, `,,` for a comma within a text. Drops
/// empty texts, which every line contains.
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

/// The values that a prefix can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinePrefix<'a> {
    /// The role of the worker.
    pub role: &'a str,
    /// The worker's rank on this node.
    pub local_rank: usize,
    /// The worker's global rank.
    pub rank: usize,
    /// The short name of this host.
    pub host: &'a str,
}

impl LinePrefix<'_> {
    /// The prefix: `template` with `${role_name}`, `${local_rank}`, `${rank}` and `${hostname}` replaced;
    /// without a template, it is PyTorch's prefix, for example `[default0]:`.
    ///
    /// ```
    /// use elastic_agent::LinePrefix;
    ///
    /// let prefix = LinePrefix { role: "default", local_rank: 1, rank: 9, host: "node1" };
    /// assert_eq!(prefix.text(None), "[default1]:");
    /// assert_eq!(prefix.text(Some("${hostname} $rank $x ")), "node1 9 $x ");
    /// ```
    #[must_use]
    pub fn text(&self, template: Option<&str>) -> String {
        let template = template.unwrap_or("[${role_name}${local_rank}]:");
        let text = substitute(template.as_bytes(), |name| match name {
            "role_name" => Some(self.role.to_owned()),
            "local_rank" => Some(self.local_rank.to_string()),
            "rank" => Some(self.rank.to_string()),
            "hostname" => Some(self.host.to_owned()),
            _ => None,
        });
        // UTF-8 stays valid when UTF-8 replaces ASCII.
        String::from_utf8_lossy(&text).into_owned()
    }
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
    fn redirected_output_goes_to_a_file_and_teed_output_is_shown_as_well() {
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
    fn a_worker_that_is_filtered_out_writes_to_files_only() {
        use Destination::{Console, Discard};
        assert_eq!(route("0", "0", &[0]), (Discard, Discard));
        assert_eq!(route("0", "0", &[0, 1]), (Console, Console));
        let logs = (file("stdout.log", false), Discard);
        assert_eq!(route("0", "1", &[0]), logs);
        assert_eq!(route("1", "0", &[0]), logs);
    }

    #[test]
    fn without_a_directory_nothing_goes_to_files() {
        let options = LogOptions {
            redirects: StreamMap::All(Streams::BOTH),
            tee: StreamMap::All(Streams::BOTH),
            ..LogOptions::default()
        };
        assert_eq!(options.route(0, None), WorkerLogs::CONSOLE);
    }

    #[test]
    fn two_commas_are_one_comma_in_a_filter() {
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

    #[test]
    fn a_number_selects_for_all_workers_and_a_list_by_local_rank() {
        let out: StreamMap = "1".parse().unwrap();
        assert!(out.of(0).stdout && out.of(99).stdout && !out.of(99).stderr);
        let map: StreamMap = "0:3,1:0,2:1,10:2".parse().unwrap();
        let streams: Vec<_> = [0, 1, 2, 10, 3].map(|rank| map.of(rank)).into();
        let stream = |stdout, stderr| Streams { stdout, stderr };
        let expected = [
            Streams::BOTH,
            Streams::NONE,
            stream(true, false),
            stream(false, true),
            Streams::NONE,
        ];
        assert_eq!(streams, expected);
    }

    #[test]
    fn streams_are_shown_as_they_are_parsed() {
        for text in ["0", "1", "2", "3", "0:3,1:0,10:2"] {
            let map: StreamMap = text.parse().unwrap();
            assert_eq!(map.to_string(), text);
        }
    }

    #[test]
    fn any_other_text_is_rejected_and_named() {
        let table = [
            "",
            "4",
            "-1",
            "01",
            "a",
            "0:4",
            "0:1,",
            ",0:1",
            "0:",
            ":1",
            "+1:1",
            "0:1:2",
            "0 :1",
            "99999999999999999999999:1",
        ];
        for text in table {
            let error = text.parse::<StreamMap>().unwrap_err();
            assert_eq!(error.text, text);
        }
    }
}
