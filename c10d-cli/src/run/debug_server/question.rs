//! What is asked of the launcher. Pure.

use crate::stacks::probe::FLIGHT_PATHS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// `/stacks?rank=R`
    Stacks { rank: usize },
    /// `/flight?rank=R`, or `/flight?rank=R&recorder=1` for NCCL's recorder.
    Flight { rank: usize, recorder: usize },
}

impl Question {
    pub(super) fn parse(path: &str) -> Option<Self> {
        let (path, query) = path.split_once('?')?;
        let mut rank = None;
        let mut recorder = 0;
        for parameter in query.split('&') {
            match parameter.split_once('=')? {
                ("rank", value) => rank = Some(value.parse().ok()?),
                ("recorder", value) => recorder = value.parse().ok()?,
                _ => return None,
            }
        }
        let rank = rank?;
        match path {
            "/stacks" => Some(Self::Stacks { rank }),
            "/flight" if recorder < FLIGHT_PATHS.len() => Some(Self::Flight { rank, recorder }),
            _ => None,
        }
    }

    pub(super) const fn rank(self) -> usize {
        match self {
            Self::Stacks { rank } | Self::Flight { rank, .. } => rank,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_questions_are_understood() {
        assert_eq!(
            Question::parse("/stacks?rank=2"),
            Some(Question::Stacks { rank: 2 })
        );
        let flight = Question::Flight {
            rank: 2,
            recorder: 1,
        };
        assert_eq!(Question::parse("/flight?rank=2&recorder=1"), Some(flight));
        for path in [
            "/",
            "/stacks",
            "/stacks?rank=",
            "/stacks?rank=-1",
            "/stacks?rank=1&path=/etc",
            "/flight?rank=1&recorder=2",
            "/flight?recorder=0",
            "/handler/dump_traceback?rank=1",
            "//evil/stacks?rank=1",
        ] {
            assert_eq!(Question::parse(path), None, "{path}");
        }
    }
}
