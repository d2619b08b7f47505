//! The reasons why a node does not find the store of its job: another program at the endpoint, or no address that works.

use std::fmt;
use std::time::Duration;

use c10d_socket::{HostPort, ListeningProcess, printable};
use c10d_store::ListenerKind;

/// The most characters of a run's name that are shown.
const RUN_CHARS_MAX: usize = 40;

/// A program that listens at the endpoint of a rendezvous.
///
/// `Display` is a noun phrase with the known facts, such as ``an HTTP server (process 17, `python3 -m http.server`)``.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundListener {
    /// The kind of program.
    pub kind: ListenerKind,
    /// The runs that have met at this endpoint, at most 3, if it is a store that this node can read.
    pub runs: Vec<String>,
    /// The listening process, if it runs on this machine and is visible to this process.
    pub process: Option<ListeningProcess>,
    /// The run id of this node.
    pub run_id: String,
}

impl FoundListener {
    /// Whether anything listens at the endpoint.
    #[must_use]
    pub const fn is_there(&self) -> bool {
        !matches!(self.kind, ListenerKind::Nothing(_))
    }
}

impl fmt::Display for FoundListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut others = self.runs.iter().filter(|run| **run != self.run_id);
        match others.next() {
            _ if self.runs.contains(&self.run_id) => {
                f.write_str("a store of an earlier start of this job")?;
            }
            Some(run) => {
                write!(
                    f,
                    "a store of another job, \"{}\"",
                    printable(run, RUN_CHARS_MAX)
                )?;
                match others.count() {
                    0 => {}
                    more => write!(f, " and {more} more")?,
                }
            }
            None => write!(f, "{}", self.kind)?,
        }
        match &self.process {
            Some(process) => write!(f, " ({process})"),
            None => Ok(()),
        }
    }
}

/// The search for a working address failed, or was cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreachable {
    /// The addresses with the last failure of each, in a few words; without one if its attempt did not end.
    pub tried: Vec<(HostPort, Option<String>)>,
    /// The time that was spent.
    pub waited: Duration,
    /// Whether the search was cancelled before its end.
    pub is_cancelled: bool,
}

impl Unreachable {
    /// The first address with its failure, and how many more were tried, for a line of a log.
    pub(crate) fn in_brief(&self) -> String {
        let Some((address, cause)) = self.tried.first() else {
            return String::new();
        };
        let cause = cause.as_deref().unwrap_or("no answer");
        match self.tried.len() - 1 {
            0 => format!("{address} ({cause})"),
            more => format!("{address} ({cause}) and {more} more"),
        }
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (address, cause)) in self.tried.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let cause = cause.as_deref().unwrap_or("no answer");
            write!(f, "{separator}{address} ({cause})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Unreachable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_by_the_runs_that_have_met_there() {
        let found = |kind: ListenerKind, runs: &[&str]| {
            let found = FoundListener {
                kind,
                runs: runs.iter().map(|run| (*run).to_owned()).collect(),
                process: None,
                run_id: "job".to_owned(),
            };
            found.to_string()
        };
        let store = || ListenerKind::Store;
        assert_eq!(found(store(), &[]), "a store");
        assert_eq!(
            found(store(), &["x\x1b"]),
            "a store of another job, \"x\\u{1b}\""
        );
        assert_eq!(
            found(store(), &["a", "b", "c"]),
            "a store of another job, \"a\" and 2 more"
        );
        assert_eq!(
            found(store(), &["a", "job"]),
            "a store of an earlier start of this job"
        );
        assert_eq!(found(ListenerKind::Http, &[]), "an HTTP server");
    }
}
