//! The state of one rank as one character, as `/status.json` has it for each rank.

use crate::{RankReport, RankState};

/// The state of one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RankCell {
    /// What the rank does.
    pub state: RankState,
    /// Whether a finding names it as a cause.
    pub is_suspect: bool,
}

impl RankCell {
    /// The state of a rank.
    #[must_use]
    pub const fn of(rank: &RankReport) -> Self {
        Self {
            state: rank.state,
            is_suspect: rank.is_suspect,
        }
    }

    /// The letter of the state, in upper case if the rank is suspect.
    pub(super) const fn letter(self) -> u8 {
        let letter = match self.state {
            RankState::NotSeen => b'n',
            RankState::Starting => b's',
            RankState::Connecting => b'c',
            RankState::Waiting => b'w',
            RankState::Idle => b'i',
            RankState::Ended => b'e',
            RankState::Lost => b'l',
        };
        if self.is_suspect {
            letter.to_ascii_uppercase()
        } else {
            letter
        }
    }

    /// The state that a letter stands for. A letter of a newer server is a rank of which nothing is known.
    pub(super) const fn of_letter(letter: char) -> Self {
        let state = match letter.to_ascii_lowercase() {
            's' => RankState::Starting,
            'c' => RankState::Connecting,
            'w' => RankState::Waiting,
            'i' => RankState::Idle,
            'e' => RankState::Ended,
            'l' => RankState::Lost,
            _ => RankState::NotSeen,
        };
        Self {
            state,
            is_suspect: letter.is_ascii_uppercase(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_a_letter_of_its_own() {
        use RankState::{Connecting, Ended, Idle, Lost, NotSeen, Starting, Waiting};
        for state in [NotSeen, Starting, Connecting, Waiting, Idle, Ended, Lost] {
            for is_suspect in [false, true] {
                let cell = RankCell { state, is_suspect };
                assert_eq!(RankCell::of_letter(char::from(cell.letter())), cell);
            }
        }
        for unknown in ['-', '?', 'x', 'é'] {
            assert_eq!(RankCell::of_letter(unknown), RankCell::default());
        }
    }
}
