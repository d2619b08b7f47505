//! Decides when to return freed memory to the system. Pure.

/// Less freed memory than this stays with the allocator: a job that sets and deletes a large value over and over needs it
/// again.
const RELEASED_BYTES_MIN: usize = 4 << 20;

/// The most memory of the data since the allocator was last asked to return what it keeps.
#[derive(Debug, Default)]
pub(super) struct Peak(usize);

impl Peak {
    /// Returns whether 1/32 of the peak has been freed, and at least [`RELEASED_BYTES_MIN`]; `used` then is the new
    /// peak. The allocator's work grows with the memory that it keeps, so a share of it bounds the work for each
    /// freed byte. A larger share would delay all clients while its pages are returned: 8 MiB take 2 to 4 ms.
    pub(super) fn has_fallen_to(&mut self, used: usize) -> bool {
        self.0 = self.0.max(used);
        let has_fallen = self.0 - used >= RELEASED_BYTES_MIN.max(self.0 / 32);
        if has_fallen {
            self.0 = used;
        }
        has_fallen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_freed_part_of_the_peak_is_worth_a_release() {
        const MIB: usize = 1 << 20;
        let mut peak = Peak::default();
        let releases: Vec<usize> = (0..=1024)
            .chain((0..1024).rev())
            .filter(|used| peak.has_fallen_to(used * MIB))
            .collect();
        assert_eq!(releases[..5], [992, 961, 930, 900, 871]);
        // Later in steps of the minimum.
        assert_eq!(releases[releases.len() - 3..], [8, 4, 0]);
        // Values that come and go are no peak.
        assert!(!peak.has_fallen_to(4 * MIB));
        assert!(!peak.has_fallen_to(MIB));
        assert!(peak.has_fallen_to(0));
    }
}
