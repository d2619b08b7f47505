//! The events of a run, small enough to be kept: one JSON object per line.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

use super::plan::{Kind, Seat};
use crate::failure::{Context as _, Failure};

/// A pause of a rank that is longer than this ends a run of steps. Five steps.
pub(super) const PAUSE_MS: u64 = 100;

/// The number of steps from one checkpoint to the next, like in `worker.py`. A run of steps also ends
/// there.
pub(super) const CHECKPOINT_STEPS: u64 = 50;

/// The history of all sides.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct History {
    pub(super) setting: Setting,
    pub(super) sides: Vec<SideHistory>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Setting {
    pub(super) seed: u64,
    pub(super) minutes: u64,
    /// How long a step takes at least.
    #[serde(default = "step_ms_of_first_histories")]
    pub(super) step_ms: u64,
    /// Facts that readers of this file need.
    pub(super) notes: Vec<String>,
}

const fn step_ms_of_first_histories() -> u64 {
    20
}

/// Times are milliseconds since the begin of the side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SideHistory {
    pub(super) side: String,
    /// Whether survivors continue, instead of restarts.
    pub(super) keeps_ranks: bool,
    /// The undisturbed stretch.
    pub(super) calm_ms: (u64, u64),
    /// The time with faults.
    pub(super) measured_ms: (u64, u64),
    /// Whether all launchers succeeded at the end.
    pub(super) has_finished: bool,
    /// Kinds that this side or this machine does not have, one for each fault.
    pub(super) left_out: Vec<Kind>,
    #[serde(skip)]
    pub(super) faults: Vec<FaultRecord>,
    #[serde(skip)]
    pub(super) launchers: Vec<Launcher>,
    #[serde(skip)]
    pub(super) processes: Vec<Process>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FaultRecord {
    pub(super) kind: Kind,
    pub(super) at_ms: u64,
    pub(super) end_ms: u64,
    /// The ranks that it may end or evict.
    pub(super) hit: Vec<Seat>,
    /// The target of the fault.
    pub(super) what: String,
    /// Whether the fault had no target, because the job was down.
    pub(super) is_void: bool,
}

/// The exit of a launcher whose job is done.
pub(super) const SUCCESS: &str = "exit code 0";

/// The life of a launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Launcher {
    pub(super) node: usize,
    pub(super) begin_ms: u64,
    pub(super) end_ms: Option<u64>,
    pub(super) how: String,
}

/// A process that was a rank.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) node: usize,
    pub(super) local: usize,
    pub(super) pid: u32,
    pub(super) start_ms: u64,
    pub(super) joined: Vec<Joined>,
    pub(super) runs: Vec<Run>,
    pub(super) wrong: Vec<String>,
    /// How often the checkpoint could not be written.
    pub(super) unsaved: u64,
    /// The exception that ended it, and when.
    pub(super) error: Option<(String, u64)>,
    /// Whether the process has reached the end.
    pub(super) is_done: bool,
}

impl Process {
    pub(super) const fn seat(&self) -> Seat {
        Seat {
            node: self.node,
            local: self.local,
        }
    }

    /// Returns the name of the process for messages.
    pub(super) fn name(&self) -> String {
        format!(
            "rank {} of node {} (pid {})",
            self.local, self.node, self.pid
        )
    }
}

/// A process group of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Joined {
    pub(super) generation: u64,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) at_ms: u64,
}

/// Steps of a process, one after the other, without a longer pause, from one checkpoint to the next one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) generation: u64,
    pub(super) first: u64,
    pub(super) last: u64,
    /// When the first and the last step ended.
    pub(super) begin_ms: u64,
    pub(super) end_ms: u64,
    /// The state of the process after the last step.
    pub(super) chain: u64,
    pub(super) loss: f64,
    /// The checkpoint after it: how many steps it has, and when it was written.
    pub(super) saved: Option<(u64, u64)>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Setting(Setting),
    /// The following lines belong to this side.
    Side(SideHistory),
    Fault(FaultRecord),
    Launcher(Launcher),
    Process(Process),
}

impl History {
    pub(super) fn write(&self, mut to: impl Write) -> Result<(), Failure> {
        let mut write = |line: &Line| -> Result<(), Failure> {
            let text = serde_json::to_string(line)?;
            writeln!(to, "{text}").context("cannot write the history")
        };
        write(&Line::Setting(self.setting.clone()))?;
        for side in &self.sides {
            write(&Line::Side(side.clone()))?;
            for fault in &side.faults {
                write(&Line::Fault(fault.clone()))?;
            }
            for launcher in &side.launchers {
                write(&Line::Launcher(launcher.clone()))?;
            }
            for process in &side.processes {
                write(&Line::Process(process.clone()))?;
            }
        }
        Ok(())
    }

    pub(super) fn read(from: impl BufRead) -> Result<Self, Failure> {
        let mut history = Self::default();
        for (number, line) in (1_u64..).zip(from.lines()) {
            let line = line.context("cannot read the history")?;
            let line = serde_json::from_str(&line);
            let line: Line = line.with_context(|| format!("line {number} of the history"))?;
            let side = history.sides.last_mut();
            let side = side.ok_or_else(|| Failure::new(format!("line {number} is of no side")));
            match line {
                Line::Setting(setting) => history.setting = setting,
                Line::Side(side) => history.sides.push(side),
                Line::Fault(fault) => side?.faults.push(fault),
                Line::Launcher(launcher) => side?.launchers.push(launcher),
                Line::Process(process) => side?.processes.push(process),
            }
        }
        Ok(history)
    }
}
