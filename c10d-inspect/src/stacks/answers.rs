//! The answers of many ranks as text.

use std::fmt::Write as _;

use super::answer::RankAnswer;
use super::dump::StackGroup;

/// The answers as lines for a terminal or a log: first the ranks that show no stacks, which are the ones to look at, then
/// the stacks, with ranks at the same lines shown once. Starts with an empty line.
#[must_use]
pub fn answers_text(answers: &[RankAnswer]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for answer in answers.iter().filter(|answer| answer.error.is_some()) {
        let _ = writeln!(text, "\n{}", answer.explanation());
    }
    for group in StackGroup::of_answers(answers) {
        let _ = writeln!(text, "\n{group}");
    }
    text
}

impl StackGroup {
    /// As [`of`](Self::of), of the ranks that show their stacks.
    #[must_use]
    pub fn of_answers(answers: &[RankAnswer]) -> Vec<Self> {
        Self::of(
            answers
                .iter()
                .filter_map(|answer| Some((answer.rank, answer.stacks.clone()?))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::Stacks;

    #[test]
    fn silent_ranks_come_first_and_equal_stacks_are_shown_once() {
        let dump = "Thread 0x01 (most recent call first):\n  File \"train.py\", line 12 in load\n";
        let at_load = |rank| RankAnswer {
            stacks: Stacks::parse_faulthandler(dump),
            ..RankAnswer::new(rank)
        };
        let silent = RankAnswer::failed(2, "it has no debug server");
        let text = answers_text(&[at_load(0), at_load(1), silent, at_load(3)]);
        let expected = "
Rank 2: it has no debug server.

Ranks 0, 1 and 3: train.py:12 in load
  main thread, most recent call last:
    train.py:12 in load
";
        assert_eq!(text, expected);
    }
}
