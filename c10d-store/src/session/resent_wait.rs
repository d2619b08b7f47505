//! A wait that goes to a restarted server (docs/spec/wire-extensions.md, SESSION 13 and END_WAITS 4).

use std::time::{Duration, Instant};

/// The bits of the age. 2^24 ms are 4.6 h, longer than a session is kept without a link.
const AGE_BITS: u32 = 24;
const AGE_MILLIS_MAX: u32 = (1 << AGE_BITS) - 1;

/// A restart of the server of a session, which continues with the restarted server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// The number of the server that had the session before; servers of one journal are numbered from 1.
    pub from: u32,
    /// The number of the restarted server.
    pub to: u32,
}

/// The time when a client sent a wait that is sent again, to a restarted server, or to the same server after the link
/// was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResentWait {
    /// The time since the client sent the wait.
    pub age: Duration,
    /// The number of starts of the store since the start of the server that had last accepted the session before the
    /// client sent the wait; 0 for the same server.
    pub starts_ago: u32,
}

impl ResentWait {
    pub(super) fn encode(self) -> u32 {
        let millis = u32::try_from(self.age.as_millis()).unwrap_or(u32::MAX);
        let starts = self.starts_ago.min(u32::MAX >> AGE_BITS);
        starts << AGE_BITS | millis.min(AGE_MILLIS_MAX)
    }

    /// Decodes the number in a [`Frame::Done`](super::Frame::Done) to the server.
    #[must_use]
    pub fn decode(number: u32) -> Self {
        Self {
            age: Duration::from_millis(u64::from(number & AGE_MILLIS_MAX)),
            starts_ago: number >> AGE_BITS,
        }
    }
}

/// The origin of a client's wait: when the client sent it, and the last server that had accepted the session before.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitOrigin {
    began: Instant,
    first_server: Option<u32>,
}

impl WaitOrigin {
    pub(super) const fn new(began: Instant) -> Self {
        Self {
            began,
            first_server: None,
        }
    }

    pub(super) fn began_by(&self, time: Instant) -> bool {
        self.began <= time
    }

    /// The wait goes to a restarted server.
    pub(super) fn resend(&mut self, restart: Restart, now: Instant) -> ResentWait {
        let first = *self.first_server.get_or_insert(restart.from);
        ResentWait {
            starts_ago: restart.to.saturating_sub(first),
            ..self.at_same_server(now)
        }
    }

    /// The link to the same server is a new one.
    pub(super) fn at_same_server(&self, now: Instant) -> ResentWait {
        ResentWait {
            age: now.saturating_duration_since(self.began),
            starts_ago: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for (millis, starts_ago) in [(0, 0), (1, 255), (u64::from(AGE_MILLIS_MAX), 1)] {
            let age = Duration::from_millis(millis);
            let resent = ResentWait { age, starts_ago };
            assert_eq!(ResentWait::decode(resent.encode()), resent);
        }
        let beyond = ResentWait {
            age: Duration::MAX,
            starts_ago: 256,
        };
        let decoded = ResentWait::decode(beyond.encode());
        assert_eq!(decoded.age.as_millis(), u128::from(AGE_MILLIS_MAX));
        assert_eq!(decoded.starts_ago, 255);
    }

    #[test]
    fn a_wait_counts_from_the_server_that_had_the_session_when_it_began() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut origin = WaitOrigin::new(at(10));
        let mut sent = |from, to, now| {
            let resent = origin.resend(Restart { from, to }, at(now));
            (resent.starts_ago, resent.age.as_secs())
        };
        assert_eq!(sent(3, 5, 14), (2, 4));
        assert_eq!(sent(5, 6, 21), (3, 11));
        let same = origin.at_same_server(at(22));
        assert_eq!((same.starts_ago, same.age.as_secs()), (0, 12));
    }
}
