//! The event loop's part for heartbeats (docs/spec/wire-extensions.md, SESSION 18).

use std::time::{Duration, Instant};

use super::EventLoop;

/// Clients take four of them for the loss of the link.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

impl EventLoop {
    /// A session asks for heartbeats.
    pub(super) fn start_beating(&mut self) {
        self.beat_at.get_or_insert_with(Instant::now);
    }

    /// Sends a heartbeat over each link that gets them and on which nothing waits to be sent, as that is one itself.
    pub(super) fn beat(&mut self, now: Instant) {
        if self.beat_at.is_none_or(|at| at > now) {
            return;
        }
        let beating = self.sessions.beating();
        self.beat_at = (!beating.is_empty()).then(|| now + HEARTBEAT_INTERVAL);
        for (slot, link) in beating {
            if let Some(connection) = self.connections.get_mut(link)
                && !connection.has_unsent()
                && !connection.is_held()
                && let Some(session) = self.sessions.get_mut(slot)
            {
                session.stream.beat(connection.out_mut());
                self.connections.touch(link);
            }
        }
    }
}
