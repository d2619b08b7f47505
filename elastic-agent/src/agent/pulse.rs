//! Whether an agent's loop answers, for probes from outside (`TORCHELASTIC_HEALTH_CHECK_PORT` in PyTorch).
//!
//! Only an agent that supervises workers is asked. Whatever else it does, such as a join, has deadlines of its own, and
//! may take longer than a probe waits.

use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

use super::handle::{AgentHandle, Event};
use super::probes::Pulse;
use crate::watchdog::seconds_since_epoch;

/// How long a probe waits for the answer of an agent that is busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

impl AgentHandle {
    /// Whether the agent makes progress. Blocks for at most 1 s.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        let shared = self.shared();
        if shared.probes().begin(seconds_since_epoch()) {
            let (reply, answer): (Sender<()>, _) = bounded(1);
            // Fails when the agent is dropped: then it counts as dead in time.
            let _ = shared.events.send(Event::Probe(reply));
            let _ = answer.recv_timeout(ANSWER_TIMEOUT);
        }
        shared
            .probes()
            .pulse(shared.watchdog_progress(), seconds_since_epoch())
    }
}
