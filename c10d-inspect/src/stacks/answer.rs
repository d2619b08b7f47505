//! The answer about one rank: its Python stacks, or the reason why there are none and the state of its process.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::dump::{StackGroup, Stacks};
use crate::text::shown_up_to;

/// The most characters of a text that another host sent.
const TEXT_CHARS_MAX: usize = 400;

/// A process that uses at least this much of a core computes.
const BUSY_PERCENT: u32 = 50;

/// An answer about one rank. A launcher answers with its JSON form about its workers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RankAnswer {
    /// The rank's number in the job.
    pub rank: usize,
    /// The host's name, if known.
    pub host: Option<String>,
    /// The Python stacks of the rank's process.
    pub stacks: Option<Stacks>,
    /// The reason why there are no stacks.
    pub error: Option<String>,
    /// The collective that the rank is in, if its debug server reports this but no stacks.
    pub collective: Option<String>,
    /// The state of the rank's process, if a launcher or this host can read it.
    pub process: Option<ProcessState>,
}

/// The state of a process, read on its host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ProcessState {
    /// The id of the process.
    pub pid: u32,
    /// The state letter of /proc; `None` if there is no such process.
    pub state: Option<char>,
    /// The function of the kernel in which the process waits.
    pub waits_in: Option<String>,
    /// The system call in which the process is.
    pub system_call: Option<String>,
    /// The command line of a process that is not Python, shortened.
    pub command_line: Option<String>,
    /// The part of a core that the process used for at least a second, in percent.
    pub cpu_percent: Option<u32>,
}

impl RankAnswer {
    /// Creates an answer without any information about the rank.
    #[must_use]
    pub fn new(rank: usize) -> Self {
        Self {
            rank,
            ..Self::default()
        }
    }

    /// Creates the answer of a rank without stacks; `error` is the reason, in a clause.
    #[must_use]
    pub fn failed(rank: usize, error: impl Into<String>) -> Self {
        Self {
            error: Some(error.into()),
            ..Self::new(rank)
        }
    }

    /// Makes the texts that another host sent short and safe to print.
    #[must_use]
    pub fn cleaned(mut self) -> Self {
        let clean = |text: &mut Option<String>| {
            if let Some(text) = text {
                *text = shown_up_to(text.as_bytes(), TEXT_CHARS_MAX);
            }
        };
        clean(&mut self.host);
        clean(&mut self.error);
        clean(&mut self.collective);
        if let Some(process) = &mut self.process {
            clean(&mut process.waits_in);
            clean(&mut process.system_call);
            clean(&mut process.command_line);
        }
        self.stacks = self.stacks.map(Stacks::cleaned);
        self
    }

    /// Returns the reason why there are no stacks, in sentences, for example "Rank 2 (pid 4711 on node7): its
    /// debug server does not answer within 2 s. The process is stopped ...".
    #[must_use]
    pub fn explanation(&self) -> String {
        let mut text = format!("Rank {}", self.rank);
        let pid = self
            .process
            .as_ref()
            .map(|process| format!("pid {}", process.pid));
        match (pid, &self.host) {
            (Some(pid), Some(host)) => _ = write!(text, " ({pid} on {host})"),
            (Some(place), None) => _ = write!(text, " ({place})"),
            (None, Some(host)) => _ = write!(text, " (on {host})"),
            (None, None) => {}
        }
        let error = self.error.as_deref().unwrap_or("nothing is known about it");
        _ = write!(text, ": {}.", error.trim_end_matches('.'));
        if let Some(process) = &self.process {
            text.push(' ');
            text.push_str(&process.sentence(self.collective.is_some()));
            if let Some(line) = &process.command_line {
                _ = write!(text, " It runs: {line}");
            }
        }
        if let Some(collective) = &self.collective {
            _ = write!(text, " It is in {collective}.");
        }
        text
    }
}

impl ProcessState {
    /// Whether a signal or a debugger has stopped it.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.state, Some('T' | 't'))
    }

    /// Whether it exists and has not ended.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        !matches!(self.state, None | Some('Z' | 'X'))
    }

    /// `answers` says whether its debug server has answered a request that does not run Python.
    fn sentence(&self, answers: bool) -> String {
        let pid = self.pid;
        let mut place = self
            .waits_in
            .as_ref()
            .map_or(String::new(), |name| format!(" in {name}"));
        if let Some(call) = &self.system_call {
            _ = write!(place, ", system call {call}");
        }
        let cpu = self
            .cpu_percent
            .map_or(String::new(), |percent| format!(", {percent} % CPU"));
        let Some(state) = self.state else {
            return format!("The process {pid} does not exist anymore.");
        };
        match state {
            'T' => format!(
                "The process is stopped (state T{place}{cpu}), for example by SIGSTOP: kill -CONT {pid} continues it."
            ),
            't' => format!("A debugger has stopped the process (state t{place})."),
            'Z' | 'X' => "The process has ended, and its parent has not collected it.".to_owned(),
            'D' => format!(
                "The process waits for the system and cannot be interrupted (state D{place}{cpu}): look for a \
                 file system, disk or driver that does not answer."
            ),
            _ if answers => format!(
                "The process runs (state {state}{place}{cpu}), and C code in it holds Python's lock (GIL)."
            ),
            _ if self
                .cpu_percent
                .is_some_and(|percent| percent >= BUSY_PERCENT) =>
            {
                format!("The process computes (state {state}{cpu}).")
            }
            _ => format!("The process sleeps (state {state}{place}{cpu})."),
        }
    }
}

/// The answers as lines for a terminal or a log: first the ranks that show no stacks, then
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
    /// Groups the ranks that have stacks, like [`of`](Self::of).
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

    fn explained(state: Option<char>, cpu: u32, collective: Option<&str>) -> String {
        let answer = RankAnswer {
            host: Some("node7".to_owned()),
            collective: collective.map(str::to_owned),
            process: Some(ProcessState {
                pid: 4711,
                state,
                waits_in: Some("do_signal_stop".to_owned()),
                cpu_percent: Some(cpu),
                ..ProcessState::default()
            }),
            ..RankAnswer::failed(2, "its debug server does not answer within 2s")
        };
        answer.explanation()
    }

    #[test]
    fn a_silent_rank_is_explained_by_the_state_of_its_process() {
        let start = "Rank 2 (pid 4711 on node7): its debug server does not answer within 2s. ";
        let table = [
            (
                Some('T'),
                0,
                "The process is stopped (state T in do_signal_stop, 0 % CPU), for example by SIGSTOP: kill -CONT 4711 continues it.",
            ),
            (Some('R'), 99, "The process computes (state R, 99 % CPU)."),
            (
                Some('S'),
                0,
                "The process sleeps (state S in do_signal_stop, 0 % CPU).",
            ),
            (None, 0, "The process 4711 does not exist anymore."),
        ];
        for (state, cpu, end) in table {
            assert_eq!(explained(state, cpu, None), format!("{start}{end}"));
        }
        assert_eq!(
            explained(Some('R'), 100, Some("all_reduce, [4] float")),
            format!(
                "{start}The process runs (state R in do_signal_stop, 100 % CPU), and C code in it holds Python's \
                 lock (GIL). It is in all_reduce, [4] float."
            )
        );
        assert_eq!(
            RankAnswer::failed(3, "it has no debug server").explanation(),
            "Rank 3: it has no debug server."
        );
    }

    #[test]
    fn texts_of_another_host_are_made_safe() {
        let answer = RankAnswer {
            host: Some("\u{1b}[2J".to_owned()),
            ..RankAnswer::failed(1, "\u{202e}x".repeat(1000))
        };
        let text = answer.cleaned().explanation();
        assert!(
            text.chars().all(|c| (' '..='~').contains(&c) || c == '…') && text.len() < 6000,
            "{text}"
        );
    }

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
