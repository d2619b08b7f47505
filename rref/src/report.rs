//! Reports of values that are still held.

use std::fmt;
use std::time::Duration;

use rpc_agent::WorkerInfo;

use crate::context::HeldValue;

/// The values of one worker that are held. `Display` prints one line for each value and holder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakReport {
    /// The owner of the values.
    pub worker: WorkerInfo,
    /// The held values.
    pub values: Vec<HeldValue>,
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
        Ok(())
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}
