//! Long lists in errors.

use std::fmt;

use crate::worker::WorkerInfo;

/// How many entries are kept; the remaining entries are counted.
const ENTRIES_MAX: usize = 16;

/// The first of the ranks or workers in an error. `Display` lists up to 16 of them and the number of the remaining
/// ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortlist<T> {
    first: Vec<T>,
    count: usize,
    is_complete: bool,
}

impl<T> Shortlist<T> {
    /// `is_complete` is `false` if there may be more than these.
    pub(crate) fn new(mut entries: Vec<T>, is_complete: bool) -> Self {
        let count = entries.len();
        entries.truncate(ENTRIES_MAX);
        Self {
            first: entries,
            count,
            is_complete,
        }
    }

    /// Returns the first entries in ascending order, at most 16.
    #[must_use]
    pub fn first(&self) -> &[T] {
        &self.first
    }

    fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        write_one: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
    ) -> fmt::Result {
        for (position, entry) in self.first.iter().enumerate() {
            f.write_str(if position == 0 { "" } else { ", " })?;
            write_one(f, entry)?;
        }
        let more = self.count - self.first.len();
        match (more, self.is_complete) {
            (0, true) => Ok(()),
            (_, true) => write!(f, " and {more} more"),
            (_, false) => write!(f, " and at least {more} more"),
        }
    }
}

impl fmt::Display for Shortlist<usize> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rank ")?;
        self.write(f, |f, rank| write!(f, "{rank}"))
    }
}

impl fmt::Display for Shortlist<WorkerInfo> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, |f, WorkerInfo { id, name }| {
            write!(f, "{name} (id {id})")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_entries_are_listed_and_the_others_counted() {
        let show =
            |count, is_complete| Shortlist::new((1..=count).collect(), is_complete).to_string();
        assert_eq!(show(1, true), "rank 1");
        assert_eq!(show(3, true), "rank 1, 2, 3");
        assert!(show(16, true).ends_with(", 15, 16"));
        assert!(show(20, true).ends_with(", 15, 16 and 4 more"));
        assert!(show(20, false).ends_with(" and at least 4 more"));
        let worker = WorkerInfo::new("ps", 1).unwrap();
        assert_eq!(Shortlist::new(vec![worker], true).to_string(), "ps (id 1)");
    }
}
