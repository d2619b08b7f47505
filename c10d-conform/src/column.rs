//! The servers to compare a server with: PyTorch's releases and back ends, and ours.

use std::fmt;
use std::str::FromStr;

use crate::request::Opcode;

/// One of the servers whose answers are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    name: &'static str,
    /// The names of different answers for this server in a case, the most specific first.
    answers: &'static [&'static str],
    /// The commands on which it closes the connection.
    lacks: &'static [Opcode],
    is_pytorch: bool,
}

const QUEUES: [Opcode; 3] = [Opcode::QUEUE_PUSH, Opcode::QUEUE_POP, Opcode::QUEUE_LEN];
const SINCE_2_10: [Opcode; 2] = [Opcode::LIST_KEYS, Opcode::BARRIER];
const NEITHER: [Opcode; 5] = [
    Opcode::LIST_KEYS,
    Opcode::BARRIER,
    QUEUES[0],
    QUEUES[1],
    QUEUES[2],
];
const UP_TO_2_4: [Opcode; 6] = [
    Opcode::PING,
    Opcode::LIST_KEYS,
    Opcode::BARRIER,
    QUEUES[0],
    QUEUES[1],
    QUEUES[2],
];

/// All columns, the newest release first. A PyTorch column without `poll` in its name has the libuv back end,
/// PyTorch's default.
pub const COLUMNS: [Column; 7] = [
    Column::pytorch("torch-2.15", &["torch-2.15"], &[]),
    Column::pytorch("torch-2.9", &["torch-2.9"], &SINCE_2_10),
    Column::pytorch("torch-2.4", &["torch-2.4"], &UP_TO_2_4),
    Column::pytorch("torch-2.15-poll", &["torch-2.15-poll", "poll"], &QUEUES),
    Column::pytorch("torch-2.9-poll", &["torch-2.9-poll", "poll"], &NEITHER),
    Column::pytorch("torch-2.4-poll", &["torch-2.4-poll", "poll"], &UP_TO_2_4),
    Column {
        name: "c10d",
        answers: &["c10d"],
        lacks: &[],
        is_pytorch: false,
    },
];

impl Column {
    const fn pytorch(
        name: &'static str,
        answers: &'static [&'static str],
        lacks: &'static [Opcode],
    ) -> Self {
        Self {
            name,
            answers,
            lacks,
            is_pytorch: true,
        }
    }

    /// Returns the name, for example `torch-2.15`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Whether a quirk of PyTorch passes here, beside the right answer.
    pub(crate) const fn has_quirks(self) -> bool {
        self.is_pytorch
    }

    pub(crate) const fn answers(self) -> &'static [&'static str] {
        self.answers
    }

    pub(crate) const fn lacks(self) -> &'static [Opcode] {
        self.lacks
    }

    pub(crate) fn has_ping(self) -> bool {
        !self.lacks.contains(&Opcode::PING)
    }
}

impl Default for Column {
    /// The newest release of PyTorch.
    fn default() -> Self {
        COLUMNS[0]
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl FromStr for Column {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let with_prefix = format!("torch-{name}");
        let found = COLUMNS
            .into_iter()
            .find(|column| column.name == name || column.name == with_prefix);
        found.ok_or_else(|| {
            let names = COLUMNS.map(Self::name).join(", ");
            format!("the answers of {names} are known")
        })
    }
}
