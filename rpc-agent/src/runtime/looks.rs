//! When the list of members may be read again. Pure.

/// One look at the list at a time, with a pause after each.
#[derive(Debug, Default)]
pub(super) struct Looks {
    is_looking: bool,
    /// When the last look ended, in milliseconds of the agent's clock.
    ended_ms: Option<u64>,
}

impl Looks {
    /// Begins a look, unless one has not ended or ended less than `pause_ms` ago.
    pub(super) fn begin(&mut self, now_ms: u64, pause_ms: u64) -> bool {
        let is_due = self.ended_ms.is_none_or(|ended_ms| {
            // A look may have ended since the caller read the clock.
            now_ms.saturating_sub(ended_ms) >= pause_ms
        });
        let begins = is_due && !self.is_looking;
        self.is_looking |= begins;
        begins
    }

    pub(super) const fn end(&mut self, now_ms: u64) {
        self.is_looking = false;
        self.ended_ms = Some(now_ms);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read_once_in_a_pause() {
        let mut looks = Looks::default();
        assert!(looks.begin(0, 50), "the first");
        assert!(!looks.begin(60, 50), "it has not ended");
        looks.end(0);
        assert!(
            !looks.begin(0, 50),
            "a look in the agent's first millisecond counts"
        );
        assert!(!looks.begin(49, 50));
        assert!(looks.begin(50, 50));
        looks.end(70);
        assert!(
            !looks.begin(69, 50),
            "the caller read the clock before the look ended"
        );
        assert!(looks.begin(120, 50));
    }
}
