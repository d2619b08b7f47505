//! Decides where the output of each worker goes.
//!
//! Decides on names only: creates no directory and opens no file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::streams::{StreamMap, Streams};
use crate::command_line::substitute;

/// Where one output stream of a worker goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// The agent's own stream.
    Console,
    /// Nowhere.
    Discard,
    /// It belongs to this stream of this worker alone.
    File {
        /// The file's path.
        path: PathBuf,
        /// Whether the console shows the lines as well, each with the worker's prefix. The worker then writes to a
        /// pipe, and so is not affected by a file system without space.
        is_shown: bool,
    },
}

/// Where the output of one worker goes in one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLogs {
    /// Standard output.
    pub stdout: Destination,
    /// Standard error.
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

    /// The same with both streams on the console.
    pub(crate) fn on_console(self) -> Self {
        Self {
            error_file: self.error_file,
            ..Self::CONSOLE
        }
    }
}

/// Where the output of a job's workers goes: the launcher's options.
///
/// ```
/// use elastic_agent::{LogOptions, StreamMap, Streams};
///
/// let options = LogOptions::new()
///     .with_log_dir("/var/log/job")
///     .with_tee(StreamMap::All(Streams::BOTH));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
pub struct LogOptions {
    log_dir: Option<PathBuf>,
    redirects: StreamMap,
    tee: StreamMap,
    local_ranks_filter: BTreeSet<usize>,
    pub(super) stdout_filters: Vec<String>,
    pub(super) stderr_filters: Vec<String>,
}

impl LogOptions {
    /// PyTorch's defaults: all output to the console, error files in a new temporary directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// The directory for the logs, created if missing. By default a new temporary one. `/dev/null` means
    /// no files.
    pub fn with_log_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.log_dir = Some(path.into());
        self
    }

    /// The streams that go to files instead of the console. None by default.
    pub fn with_redirects(mut self, streams: StreamMap) -> Self {
        self.redirects = streams;
        self
    }

    /// The streams that go to files, and to the console with a prefix. None by default.
    pub fn with_tee(mut self, streams: StreamMap) -> Self {
        self.tee = streams;
        self
    }

    /// The only workers whose output is shown, by local rank. Empty, the default, shows all.
    pub fn with_local_ranks_filter(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.local_ranks_filter = ranks.into_iter().collect();
        self
    }

    /// Also writes lines of tee'd standard output that contain one of these texts to
    /// `filtered_stdout.log`. None by default.
    pub fn with_stdout_filters(mut self, texts: impl IntoIterator<Item = String>) -> Self {
        self.stdout_filters = texts.into_iter().collect();
        self
    }

    /// The same for standard error and `filtered_stderr.log`.
    pub fn with_stderr_filters(mut self, texts: impl IntoIterator<Item = String>) -> Self {
        self.stderr_filters = texts.into_iter().collect();
        self
    }

    /// The directory for the logs; `None` for a new temporary one.
    #[must_use]
    pub fn log_dir(&self) -> Option<&Path> {
        self.log_dir.as_deref()
    }

    /// The streams that go to files instead of the console.
    #[must_use]
    pub const fn redirects(&self) -> &StreamMap {
        &self.redirects
    }

    /// The streams that go to files and to the console.
    #[must_use]
    pub const fn tee(&self) -> &StreamMap {
        &self.tee
    }

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
    /// The worker's role.
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
    /// without a template PyTorch's, as in `[default0]:`.
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
        let options = LogOptions::new()
            .with_redirects(redirects.parse().unwrap())
            .with_tee(tee.parse().unwrap())
            .with_local_ranks_filter(filter.iter().copied());
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
        let options = LogOptions::new()
            .with_redirects(StreamMap::All(Streams::BOTH))
            .with_tee(StreamMap::All(Streams::BOTH));
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
}
