//! Errors of groups.

use std::fmt;
use std::time::Duration;

use c10d_store::StoreError;

/// The error of a group that could not form, or of an operation of a group.
///
/// After [`Missing`](Self::Missing), and after an interrupted wait, the same call can be made again: it resumes where
/// it stopped. After any other error of the store the group is [`Broken`](Self::Broken).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The environment does not name the rank of this process, or the address of the other ranks. The call had no
    /// effect.
    #[error(
        "{variable} {problem}; start the workers with `c10d run` or torchrun, or set RANK, WORLD_SIZE, \
             MASTER_ADDR and MASTER_PORT"
    )]
    Environment {
        /// The name of the variable.
        variable: &'static str,
        /// The problem with the variable.
        problem: String,
    },

    /// Some ranks did not arrive in time.
    #[error("{operation} of group {group:?}: after {:.3}s, {}", elapsed.as_secs_f64(), Absent(self))]
    Missing {
        /// The name of the group.
        group: String,
        /// The operation of the group: `join`, `broadcast`, `barrier`, `all_gather`, `finish`.
        operation: &'static str,
        /// The missing ranks, ascending. Empty if all ranks have arrived, but one was lost before it reported that.
        ranks: Vec<usize>,
        /// The processes of the first missing ranks, as far as they are known: `rank 3 is pid 17 on node1`.
        processes: Vec<String>,
        /// The number of ranks in the group.
        world_size: usize,
        /// How long this rank has waited.
        elapsed: Duration,
    },

    /// Another process has this rank: two workers were started with the same rank, or this process has joined a group
    /// of this name before. The call had no effect.
    #[error(
        "rank {rank} of group {group:?} is taken by {holder}: were two workers started with this rank, or was the \
             group joined twice?"
    )]
    Taken {
        /// The name of the group.
        group: String,
        /// The rank that both processes claim.
        rank: usize,
        /// The process that has it.
        holder: String,
    },

    /// The ranks do not agree about the group: its world size, or the ranks in a sub-group. The call had no effect.
    #[error("group {group:?}: {detail}")]
    Mismatch {
        /// The name of the group.
        group: String,
        /// The property on which the ranks do not agree.
        detail: String,
    },

    /// A value is longer than [`GroupOptions::with_value_bytes_max`](crate::GroupOptions::with_value_bytes_max) allows.
    #[error(
        "{operation} of group {group:?}: the value of rank {rank} has {bytes} bytes, the limit is {limit}"
    )]
    TooLarge {
        /// The name of the group.
        group: String,
        /// The operation of the group.
        operation: &'static str,
        /// The rank that gave the value.
        rank: usize,
        /// The length of the value.
        bytes: usize,
        /// The most bytes that one value may have.
        limit: usize,
    },

    /// An argument is invalid. The call had no effect.
    #[error("{detail}")]
    InvalidArgument {
        /// The problem with the argument.
        detail: String,
    },

    /// Another operation of this group is not complete: another thread runs it, or it was abandoned after an error
    /// that allows to repeat it. The call had no effect.
    #[error(
        "{wanted} of group {group:?}: its {unfinished} is not complete; a group does one thing at a time"
    )]
    OutOfStep {
        /// The name of the group.
        group: String,
        /// The operation that was asked for.
        wanted: &'static str,
        /// The operation that is not complete.
        unfinished: &'static str,
    },

    /// An earlier operation failed, so this rank may be out of step with the other ranks. Form a new group under
    /// another name.
    #[error("group {group:?} cannot be used after an earlier failure ({cause})")]
    Broken {
        /// The name of the group.
        group: String,
        /// The earlier failure.
        cause: String,
    },

    /// A request to the store failed.
    #[error("{operation} of group {group:?}: {source}")]
    Store {
        /// The name of the group.
        group: String,
        /// The operation of the group.
        operation: &'static str,
        /// The error of the store.
        source: Box<StoreError>,
    },
}

impl GroupError {
    /// Returns whether the error is [`Missing`](Self::Missing): ranks were missing at the deadline.
    #[must_use]
    pub const fn is_timeout(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    /// Returns whether this process [cancelled](crate::Group::with_cancel) the call.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        let Self::Store { source, .. } = self else {
            return false;
        };
        matches!(**source, StoreError::Interrupted { .. })
    }

    /// Whether the same call can resume where this call stopped.
    pub(crate) fn can_go_on(&self) -> bool {
        self.is_timeout() || self.is_interrupted()
    }
}

c10d_socket::debug_as_display!(GroupError);

/// Which ranks are missing, in words.
struct Absent<'a>(&'a GroupError);

impl fmt::Display for Absent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GroupError::Missing {
            ranks,
            processes,
            world_size,
            ..
        } = self.0
        else {
            return Ok(());
        };
        match ranks.as_slice() {
            [] => {
                f.write_str("all ranks have arrived, but one was lost before it confirmed this")?
            }
            [rank] => write!(f, "rank {rank} of {world_size} is missing")?,
            ranks => write!(
                f,
                "{} of {world_size} ranks are missing: {}",
                ranks.len(),
                RankList(ranks)
            )?,
        }
        if !processes.is_empty() {
            write!(f, " ({})", processes.join(", "))?;
        }
        Ok(())
    }
}

/// Ranges shown of a list.
const RANGES_MAX: usize = 8;

/// Shows ascending ranks, neighbours as ranges, and only the first few ranges of many.
pub(crate) struct RankList<'a>(pub(crate) &'a [usize]);

impl fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|left, right| left + 1 == *right);
        let mut shown = 0;
        for (index, run) in runs.enumerate() {
            if index == RANGES_MAX {
                return write!(f, " and {} more", self.0.len() - shown);
            }
            shown += run.len();
            if index > 0 {
                f.write_str(", ")?;
            }
            match run {
                [] => {}
                [only] => write!(f, "{only}")?,
                [first, .., last] => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(ranks: &[usize], processes: &[&str]) -> String {
        GroupError::Missing {
            group: "world".to_owned(),
            operation: "broadcast",
            ranks: ranks.to_vec(),
            processes: processes.iter().map(|&it| it.to_owned()).collect(),
            world_size: 16,
            elapsed: Duration::from_millis(1500),
        }
        .to_string()
    }

    #[test]
    fn errors_name_the_missing_ranks() {
        assert_eq!(
            missing(&[3], &["rank 3 is pid 17 on node1"]),
            "broadcast of group \"world\": after 1.500s, rank 3 of 16 is missing (rank 3 is pid 17 on node1)"
        );
        assert_eq!(
            missing(&[3, 4, 9], &[]),
            "broadcast of group \"world\": after 1.500s, 3 of 16 ranks are missing: 3-4, 9"
        );
        assert!(
            missing(&[], &[])
                .ends_with("all ranks have arrived, but one was lost before it confirmed this")
        );
    }

    #[test]
    fn neighbours_become_ranges() {
        assert_eq!(RankList(&[]).to_string(), "");
        assert_eq!(RankList(&[3]).to_string(), "3");
        assert_eq!(RankList(&[0, 1, 2, 5, 8, 9]).to_string(), "0-2, 5, 8-9");
    }

    #[test]
    fn many_ranges_are_cut() {
        let odd: Vec<usize> = (0..20).map(|index| 2 * index + 1).collect();
        let text = RankList(&odd).to_string();
        assert_eq!(text, "1, 3, 5, 7, 9, 11, 13, 15 and 12 more");
    }
}
