//! The error of a search for a working address of a store.

use std::fmt;
use std::time::Duration;

use c10d_socket::HostPort;

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
