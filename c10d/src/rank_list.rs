//! Ranks in words: `0-2, 5`. Pure.

use std::fmt;

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
