//! The settings of a node: the numbers of nodes for a round, and its timeouts.
//!
//! Nodes never exchange their settings, so all nodes of a job should use the same settings.

use std::time::Duration;

use crate::values::parameters_error::ParametersError;

/// How long a join may continue past its deadline to undo what it wrote.
pub(crate) const ROLLBACK_WINDOW: Duration = Duration::from_secs(5);

/// The least default of the timeout of one store operation. With a shorter one, a store under load would fail joins.
pub(crate) const READ_TIMEOUT_MIN: Duration = Duration::from_secs(5);

/// The settings of a dynamic rendezvous. The defaults are PyTorch's
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`).
///
/// [`DynamicRendezvous::new`](crate::DynamicRendezvous::new) refuses timeouts of zero.
///
/// ```
/// use std::time::Duration;
/// use elastic_rendezvous::RendezvousSettings;
///
/// let settings = RendezvousSettings::new("job", 2, 4)?.with_join_timeout(Duration::from_secs(60));
/// assert_eq!(settings.last_call_timeout(), Duration::from_secs(30));
/// let reversed = RendezvousSettings::new("job", 2, 1);
/// assert_eq!(
///     reversed.unwrap_err().to_string(),
///     "the maximum number of nodes, 1, is below the minimum, 2"
/// );
/// # Ok::<(), elastic_rendezvous::ParametersError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousSettings {
    pub(crate) run_id: String,
    pub(crate) min_nodes: usize,
    pub(crate) max_nodes: usize,
    pub(crate) join_timeout: Duration,
    pub(crate) last_call_timeout: Duration,
    pub(crate) read_timeout: Duration,
    /// How long closing and leaving may take.
    pub(crate) close_timeout: Duration,
    pub(crate) heartbeat_timeout: Duration,
    pub(crate) keep_alive_interval: Duration,
    pub(crate) keep_alive_max_attempt: u32,
    /// The longest random pause after a write conflict. Zero, the default, selects exponential backoff
    /// (`docs/spec/rendezvous.md`, *LOOP 3*).
    pub(crate) cas_backoff_max: Duration,
    pub(crate) spare_wait: Duration,
}

impl RendezvousSettings {
    /// Settings for a job of `min_nodes` to `max_nodes` nodes, otherwise with the defaults.
    ///
    /// # Errors
    /// [`ParametersError::NoRunId`] for an empty run id, [`ParametersError::NoNodes`] for a minimum of
    /// 0, [`ParametersError::NodesReversed`] for a maximum below the minimum.
    pub fn new(
        run_id: impl Into<String>,
        min_nodes: usize,
        max_nodes: usize,
    ) -> Result<Self, ParametersError> {
        let run_id = run_id.into();
        ParametersError::check_run_id(&run_id)?;
        ParametersError::check_nodes(min_nodes, max_nodes)?;
        Ok(Self {
            run_id,
            min_nodes,
            max_nodes,
            join_timeout: Duration::from_secs(600),
            last_call_timeout: Duration::from_secs(30),
            read_timeout: Duration::from_secs(60),
            close_timeout: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(5),
            keep_alive_max_attempt: 3,
            cas_backoff_max: Duration::ZERO,
            // This is the time until a lost node is detected.
            spare_wait: Duration::from_secs(15),
        })
    }

    /// Sets how long a join may take. Default 600 s.
    #[must_use]
    pub fn with_join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = timeout;
        self
    }

    /// Sets how long a round stays open for more nodes once `min_nodes` have joined. Default 30 s.
    #[must_use]
    pub fn with_last_call_timeout(mut self, timeout: Duration) -> Self {
        self.last_call_timeout = timeout;
        self
    }

    /// Sets the interval between heartbeats, and how many of them a node may miss before the other
    /// nodes drop it as dead. Default 5 s and 3.
    #[must_use]
    pub fn with_keep_alive(mut self, interval: Duration, max_attempt: u32) -> Self {
        self.keep_alive_interval = interval;
        self.keep_alive_max_attempt = max_attempt;
        self
    }

    /// Sets how long, after a round, its members have precedence over other nodes in the next round. Zero gives them
    /// no precedence, like in PyTorch. Default 15 s.
    #[must_use]
    pub fn with_spare_wait(mut self, wait: Duration) -> Self {
        self.spare_wait = wait;
        self
    }

    /// The run id of the job; never empty.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Returns the number of nodes that suffice for a round, once the last call is over; at least 1.
    #[must_use]
    pub fn min_nodes(&self) -> usize {
        self.min_nodes
    }

    /// Returns the number of nodes that complete a round at once; at least [`min_nodes`](Self::min_nodes).
    #[must_use]
    pub fn max_nodes(&self) -> usize {
        self.max_nodes
    }

    /// Returns how long a join may take; see [`with_join_timeout`](Self::with_join_timeout).
    #[must_use]
    pub fn join_timeout(&self) -> Duration {
        self.join_timeout
    }

    /// Returns how long a round stays open once `min_nodes` have joined; see
    /// [`with_last_call_timeout`](Self::with_last_call_timeout).
    #[must_use]
    pub fn last_call_timeout(&self) -> Duration {
        self.last_call_timeout
    }

    /// Returns the timeout of one operation of the rendezvous' store, where a backend opens that store. Default 60
    /// s.
    #[must_use]
    pub fn read_timeout(&self) -> Duration {
        self.read_timeout
    }

    /// Returns how long the write of one heartbeat may take. Default 5 s.
    #[must_use]
    pub fn heartbeat_timeout(&self) -> Duration {
        self.heartbeat_timeout
    }

    /// The interval between heartbeats; see [`with_keep_alive`](Self::with_keep_alive).
    #[must_use]
    pub fn keep_alive_interval(&self) -> Duration {
        self.keep_alive_interval
    }

    /// Returns how many heartbeats a node may miss; see [`with_keep_alive`](Self::with_keep_alive).
    #[must_use]
    pub fn keep_alive_max_attempt(&self) -> u32 {
        self.keep_alive_max_attempt
    }

    /// Returns how long members of the last round have precedence; see [`with_spare_wait`](Self::with_spare_wait).
    #[must_use]
    pub fn spare_wait(&self) -> Duration {
        self.spare_wait
    }

    /// Returns how long a node may be silent before the other nodes drop it as dead: interval x
    /// attempts.
    #[must_use]
    pub fn dead_after(&self) -> Duration {
        self.keep_alive_interval
            .saturating_mul(self.keep_alive_max_attempt)
    }

    /// The silence after which an unlisted node counts as dropped and not as departed: a live node writes once
    /// in an interval, a dropped node was silent for almost [`dead_after`](Self::dead_after).
    pub(crate) fn overdue_after(&self) -> Duration {
        self.dead_after() / 2
    }

    pub(crate) fn check(&self) -> Result<(), ParametersError> {
        for (setting, is_zero) in [
            ("join timeout", self.join_timeout.is_zero()),
            ("last call timeout", self.last_call_timeout.is_zero()),
            ("close timeout", self.close_timeout.is_zero()),
            ("heartbeat timeout", self.heartbeat_timeout.is_zero()),
            ("keep-alive interval", self.keep_alive_interval.is_zero()),
            (
                "number of keep-alive attempts",
                self.keep_alive_max_attempt == 0,
            ),
        ] {
            if is_zero {
                return Err(ParametersError::NotPositive { setting });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
impl RendezvousSettings {
    pub(crate) fn for_test(min_nodes: usize, max_nodes: usize) -> Self {
        Self::new("job", min_nodes, max_nodes).expect("a number of nodes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_run_id_and_impossible_numbers_of_nodes_are_refused() {
        let refused = |run_id: &str, min_nodes, max_nodes| {
            let settings = RendezvousSettings::new(run_id, min_nodes, max_nodes);
            settings.unwrap_err().to_string()
        };
        assert_eq!(refused("", 1, 1), "the run id is empty");
        assert_eq!(
            refused("job", 0, 1),
            "the minimum number of nodes is 0, it must be at least 1"
        );
        assert_eq!(
            refused("job", 2, 1),
            "the maximum number of nodes, 1, is below the minimum, 2"
        );
    }

    #[test]
    fn zero_timeouts_are_refused() {
        let settings = || RendezvousSettings::for_test(1, 1);
        let zero = Duration::ZERO;
        let second = Duration::from_secs(1);
        assert_eq!(settings().check(), Ok(()));
        for (refused, message) in [
            (settings().with_join_timeout(zero), "join timeout"),
            (settings().with_last_call_timeout(zero), "last call timeout"),
            (
                RendezvousSettings {
                    close_timeout: zero,
                    ..settings()
                },
                "close timeout",
            ),
            (
                RendezvousSettings {
                    heartbeat_timeout: zero,
                    ..settings()
                },
                "heartbeat timeout",
            ),
            (settings().with_keep_alive(zero, 3), "keep-alive interval"),
            (
                settings().with_keep_alive(second, 0),
                "number of keep-alive attempts",
            ),
        ] {
            assert_eq!(
                refused.check().unwrap_err().to_string(),
                format!("the {message} is 0, it must be positive")
            );
        }
        assert_eq!(settings().with_join_timeout(second).join_timeout(), second);
    }
}
