//! What a node brings along of its own: how many nodes it wants, and how long it waits for what.
//!
//! Nodes never exchange their settings: all nodes of a job should use the same.

use std::time::Duration;

use crate::parameters::{ParametersError, RendezvousParameters};

/// How long after its deadline a node that joins still undoes what it wrote, before it gives up.
pub(crate) const ROLLBACK_WINDOW: Duration = Duration::from_secs(5);

/// The settings of a dynamic rendezvous, with PyTorch's defaults
/// (`torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`). A value of this type is never wrong:
/// at least one node, no fewer at most than at least, no timeout of zero.
///
/// ```
/// use std::time::Duration;
/// use elastic_rendezvous::RendezvousSettings;
///
/// let settings = RendezvousSettings::new("job", 2, 4)?.with_join_timeout(Duration::from_secs(60))?;
/// assert_eq!(settings.last_call_timeout(), Duration::from_secs(30));
/// let reversed = RendezvousSettings::new("job", 2, 1);
/// assert_eq!(
///     reversed.unwrap_err().to_string(),
///     "the greatest number of nodes is 1, less than the least, 2"
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
    pub(crate) close_timeout: Duration,
    pub(crate) heartbeat_timeout: Duration,
    pub(crate) keep_alive_interval: Duration,
    pub(crate) keep_alive_max_attempt: u32,
    pub(crate) cas_backoff_max: Duration,
}

impl RendezvousSettings {
    /// PyTorch's defaults for a job of `min_nodes` to `max_nodes` nodes.
    ///
    /// # Errors
    /// [`ParametersError::NoRunId`] for an empty run id, [`ParametersError::NoNodes`] for no nodes,
    /// [`ParametersError::NodesReversed`] for a maximum below the minimum.
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
            close_timeout: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(5),
            keep_alive_max_attempt: 3,
            cas_backoff_max: Duration::ZERO,
        })
    }

    /// The settings in `parameters`, PyTorch's defaults where there are none.
    ///
    /// # Errors
    /// [`ParametersError::NoRunId`] for an empty run id, [`ParametersError::Setting`] for a setting that
    /// cannot be read.
    pub fn from_parameters(parameters: &RendezvousParameters) -> Result<Self, ParametersError> {
        let defaults = Self::new(
            parameters.run_id(),
            parameters.min_nodes(),
            parameters.max_nodes(),
        )?;
        let seconds = |key, default| parameters.get_as_duration(key, default);
        let attempts = "keep_alive_max_attempt";
        let keep_alive_max_attempt = match parameters.get_as_int(attempts)? {
            None => defaults.keep_alive_max_attempt,
            Some(count) => u32::try_from(count)
                .ok()
                .filter(|count| *count > 0)
                .ok_or_else(|| ParametersError::Setting {
                    key: attempts.to_owned(),
                    value: count.to_string(),
                    expected: "a number of attempts, at least 1",
                })?,
        };
        let backoff = parameters.get_as_float("cas_backoff_max_seconds")?;
        Ok(Self {
            join_timeout: seconds("join_timeout", defaults.join_timeout)?,
            last_call_timeout: seconds("last_call_timeout", defaults.last_call_timeout)?,
            close_timeout: seconds("close_timeout", defaults.close_timeout)?,
            heartbeat_timeout: seconds("heartbeat_timeout", defaults.heartbeat_timeout)?,
            keep_alive_interval: seconds("keep_alive_interval", defaults.keep_alive_interval)?,
            keep_alive_max_attempt,
            cas_backoff_max: backoff
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .unwrap_or(defaults.cas_backoff_max),
            ..defaults
        })
    }

    /// Sets [`join_timeout`](Self::join_timeout).
    ///
    /// # Errors
    /// [`ParametersError::NotPositive`] for zero.
    pub fn with_join_timeout(mut self, timeout: Duration) -> Result<Self, ParametersError> {
        self.join_timeout = positive("join timeout", timeout)?;
        Ok(self)
    }

    /// Sets [`last_call_timeout`](Self::last_call_timeout).
    ///
    /// # Errors
    /// [`ParametersError::NotPositive`] for zero.
    pub fn with_last_call_timeout(mut self, timeout: Duration) -> Result<Self, ParametersError> {
        self.last_call_timeout = positive("last call timeout", timeout)?;
        Ok(self)
    }

    /// Sets [`close_timeout`](Self::close_timeout).
    ///
    /// # Errors
    /// [`ParametersError::NotPositive`] for zero.
    pub fn with_close_timeout(mut self, timeout: Duration) -> Result<Self, ParametersError> {
        self.close_timeout = positive("close timeout", timeout)?;
        Ok(self)
    }

    /// Sets [`heartbeat_timeout`](Self::heartbeat_timeout).
    ///
    /// # Errors
    /// [`ParametersError::NotPositive`] for zero.
    pub fn with_heartbeat_timeout(mut self, timeout: Duration) -> Result<Self, ParametersError> {
        self.heartbeat_timeout = positive("heartbeat timeout", timeout)?;
        Ok(self)
    }

    /// Sets [`keep_alive_interval`](Self::keep_alive_interval) and
    /// [`keep_alive_max_attempt`](Self::keep_alive_max_attempt).
    ///
    /// # Errors
    /// [`ParametersError::NotPositive`] when one is zero.
    pub fn with_keep_alive(
        mut self,
        interval: Duration,
        max_attempt: u32,
    ) -> Result<Self, ParametersError> {
        self.keep_alive_interval = positive("keep-alive interval", interval)?;
        if max_attempt == 0 {
            return Err(ParametersError::NotPositive {
                setting: "number of keep-alive attempts",
            });
        }
        self.keep_alive_max_attempt = max_attempt;
        Ok(self)
    }

    /// Sets [`cas_backoff_max`](Self::cas_backoff_max).
    #[must_use]
    pub fn with_cas_backoff_max(mut self, pause: Duration) -> Self {
        self.cas_backoff_max = pause;
        self
    }

    /// The job. Never empty.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// How many nodes suffice, after the last call; at least 1.
    #[must_use]
    pub fn min_nodes(&self) -> usize {
        self.min_nodes
    }

    /// How many nodes complete a round at once; at least [`min_nodes`](Self::min_nodes).
    #[must_use]
    pub fn max_nodes(&self) -> usize {
        self.max_nodes
    }

    /// How long a join may take. Default 600 s.
    #[must_use]
    pub fn join_timeout(&self) -> Duration {
        self.join_timeout
    }

    /// How long a round stays open for more once enough nodes have joined. Default 30 s.
    #[must_use]
    pub fn last_call_timeout(&self) -> Duration {
        self.last_call_timeout
    }

    /// How long closing and leaving may take. Default 30 s.
    #[must_use]
    pub fn close_timeout(&self) -> Duration {
        self.close_timeout
    }

    /// How long writing one heartbeat may take. Default 5 s.
    #[must_use]
    pub fn heartbeat_timeout(&self) -> Duration {
        self.heartbeat_timeout
    }

    /// How often a node writes a heartbeat. Default 5 s.
    #[must_use]
    pub fn keep_alive_interval(&self) -> Duration {
        self.keep_alive_interval
    }

    /// A node that misses this many heartbeats in a row is taken for dead. Default 3.
    #[must_use]
    pub fn keep_alive_max_attempt(&self) -> u32 {
        self.keep_alive_max_attempt
    }

    /// The longest random pause after another node was faster in writing. Zero, the default, leaves the
    /// choice to the handler (`docs/rendezvous.md`, *LOOP 3*).
    #[must_use]
    pub fn cas_backoff_max(&self) -> Duration {
        self.cas_backoff_max
    }

    /// How long a node may be silent before it is taken for dead: interval x attempts.
    #[must_use]
    pub fn dead_after(&self) -> Duration {
        self.keep_alive_interval
            .saturating_mul(self.keep_alive_max_attempt)
    }
}

#[cfg(test)]
impl RendezvousSettings {
    pub(crate) fn for_test(min_nodes: usize, max_nodes: usize) -> Self {
        Self::new("job", min_nodes, max_nodes).expect("a number of nodes")
    }
}

fn positive(setting: &'static str, timeout: Duration) -> Result<Duration, ParametersError> {
    if timeout.is_zero() {
        return Err(ParametersError::NotPositive { setting });
    }
    Ok(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pytorchs_constructor_refuses_is_refused() {
        let refused = |run_id: &str, min_nodes, max_nodes| {
            let settings = RendezvousSettings::new(run_id, min_nodes, max_nodes);
            settings.unwrap_err().to_string()
        };
        assert_eq!(refused("", 1, 1), "the run id is empty");
        assert_eq!(
            refused("job", 0, 1),
            "the least number of nodes is 0, it must be at least 1"
        );
        assert_eq!(
            refused("job", 2, 1),
            "the greatest number of nodes is 1, less than the least, 2"
        );
    }

    #[test]
    fn timeouts_are_positive() {
        let settings = || RendezvousSettings::for_test(1, 1);
        let zero = Duration::ZERO;
        let second = Duration::from_secs(1);
        for (refused, message) in [
            (settings().with_join_timeout(zero), "join timeout"),
            (settings().with_last_call_timeout(zero), "last call timeout"),
            (settings().with_close_timeout(zero), "close timeout"),
            (settings().with_heartbeat_timeout(zero), "heartbeat timeout"),
            (settings().with_keep_alive(zero, 3), "keep-alive interval"),
            (
                settings().with_keep_alive(second, 0),
                "number of keep-alive attempts",
            ),
        ] {
            assert_eq!(
                refused.unwrap_err().to_string(),
                format!("the {message} is 0, it must be positive")
            );
        }
        let settings = settings().with_join_timeout(second).unwrap();
        assert_eq!(settings.join_timeout(), second);
    }
}
