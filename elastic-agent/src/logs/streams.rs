//! Selects output streams of workers: the values of `--redirects` and `--tee`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// None, one or both of the two output streams of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Streams {
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
}

impl Streams {
    /// No stream.
    pub const NONE: Self = Self {
        stdout: false,
        stderr: false,
    };

    /// Both streams.
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
    /// The same for every worker.
    All(Streams),
    /// By local rank; none for a local rank that is missing.
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

/// No stream of any worker.
impl Default for StreamMap {
    fn default() -> Self {
        Self::All(Streams::NONE)
    }
}

/// What [`FromStr`] parses.
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
    /// The rejected text.
    pub text: String,
}

c10d_socket::debug_as_display!(StreamMapError);

#[cfg(test)]
mod tests {
    use super::*;

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
