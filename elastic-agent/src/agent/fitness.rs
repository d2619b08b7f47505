//! Checks that this node is healthy before it joins a round.

use std::time::{Duration, Instant};

use c10d_socket::{Backoff, sleep};
use c10d_store::in_brief;
use elastic_rendezvous::RendezvousError;

use super::node::Node;
use crate::health;
use crate::round::AgentError;

/// How often a node that does not join checks whether the job is over.
const CLOSED_POLL_INTERVAL: Duration = Duration::from_secs(10);

impl Node {
    /// Runs the health check, if there is one, until it succeeds or the job is over. The node leaves its round before,
    /// so that the others do not wait for it longer than for any absent node.
    ///
    /// Blocks for as long as the node is not healthy; a stop signal ends it.
    pub(super) fn pass_health_check(&self) -> Result<(), AgentError> {
        let Some(check) = &self.options.health_check else {
            return Ok(());
        };
        let stop = &self.shared.stopping;
        if self.generation > 0 {
            self.shared.handler.exit_round()?;
        }
        let variables = [
            ("C10D_NODE", self.host.as_str()),
            ("TORCHELASTIC_RUN_ID", self.shared.handler.run_id()),
        ];
        let mut backoff = Backoff::new(health::pauses(), fastrand::u64(..));
        let mut has_failed = false;
        loop {
            let Some(result) = health::run(check, &variables, stop) else {
                return Err(self.interrupted());
            };
            let Err(unhealthy) = result else { break };
            let pause = backoff.next_delay();
            has_failed = true;
            log::error!(
                "this node is not joining: {unhealthy}; next check in {:.0} s{}",
                pause.as_secs_f64(),
                match unhealthy.output() {
                    output if output.is_empty() => output,
                    output => format!("; the end of its output:\n{output}"),
                }
            );
            self.announce(Some(&unhealthy.to_string()));
            if self.wait_until_closed(pause)? {
                // The join says so.
                return Ok(());
            }
        }
        if has_failed {
            log::info!("the health check succeeds again: joining");
            self.announce(None);
        }
        Ok(())
    }

    /// Waits for this long, or until the rendezvous is closed: returns whether it is.
    fn wait_until_closed(&self, pause: Duration) -> Result<bool, AgentError> {
        let begun = Instant::now();
        loop {
            let left = pause.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            let until_poll = left.min(CLOSED_POLL_INTERVAL);
            sleep(until_poll, [&self.shared.stopping]).map_err(|_| self.interrupted())?;
            if self.shared.handler.is_closed()? {
                return Ok(true);
            }
        }
    }

    fn announce(&self, why: Option<&str>) {
        if let Err(error) = self.shared.handler.set_not_joining(why) {
            let why = in_brief(&error);
            log::warn!("cannot report the health check: {why}");
        }
    }

    fn interrupted(&self) -> AgentError {
        AgentError::Rendezvous(RendezvousError::Interrupted {
            run_id: self.shared.handler.run_id().to_owned(),
        })
    }
}
