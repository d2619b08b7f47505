//! Reports of values that are still held.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rpc_agent::WorkerInfo;

use crate::context::ValueState;
use crate::id::{ForkId, RRefId};

/// The values of one worker that are held. `Display` prints one line for each value, holder and cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakReport {
    /// The owner of the values.
    pub worker: WorkerInfo,
    /// The held values.
    pub values: Vec<HeldValue>,
    /// Reference cycles through values of this worker, in the order of the references. Their values are freed
    /// by the shutdown only.
    pub cycles: Vec<Vec<RRefId>>,
}

/// A value that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldValue {
    /// The reference.
    pub rref: RRefId,
    /// The value's type; `None` before its creation or a fork has named it.
    pub type_name: Option<Arc<str>>,
    /// How far the value is.
    pub state: ValueState,
    /// Time since the reference was created or first named here.
    pub age: Duration,
    /// How many handles the program of this worker holds; clones count as one.
    pub handles: usize,
    /// The users on other workers.
    pub held_by: Vec<Holder>,
    /// The references that the value holds.
    pub holds: Vec<RRefId>,
}

/// A worker that holds a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Where the user is.
    pub worker: WorkerInfo,
    /// Its user of the reference.
    pub fork: ForkId,
    /// Time since the user was forked or registered.
    pub age: Duration,
}

impl LeakReport {
    /// Whether no value is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: values held: {}", self.worker, self.values.len())?;
        for value in &self.values {
            let type_name = value.type_name.as_deref().unwrap_or("unknown type");
            write!(
                f,
                "\n  {} `{type_name}`, {}, {} old, references here: {}",
                value.rref,
                value.state,
                seconds(value.age),
                value.handles
            )?;
            for holder in &value.held_by {
                write!(
                    f,
                    "\n    on {} for {} as {}",
                    holder.worker,
                    seconds(holder.age),
                    holder.fork
                )?;
            }
        }
        for cycle in &self.cycles {
            f.write_str("\n  a cycle:")?;
            for rref in cycle {
                write!(f, " {rref} ->")?;
            }
            if let Some(first) = cycle.first() {
                write!(f, " {first}")?;
            }
        }
        Ok(())
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}
