//! A group of a service that was restarted.

use std::sync::Arc;
use std::time::Duration;

use super::roster::{Entry, Roster};
use super::{Effect, Group, GroupState, Kept, Passed};
use crate::message::Cause;
use crate::options::{GroupOptions, RETURN_TIMEOUT_MAX};

impl Group {
    /// Continues with the state that the service has kept, and returns the first effects.
    ///
    /// A group that had made no attempt forms. A whole generation continues, and its members have `return_timeout` to
    /// send something, at most [`RETURN_TIMEOUT_MAX`]. If an attempt was under way, all its members leave it, and a new one
    /// begins. Members that were not in the last generation are unknown, and send a hello again.
    pub fn recover(options: GroupOptions, kept: Kept, now: Duration) -> (Self, Vec<Effect>) {
        let Kept {
            last,
            committed,
            end,
        } = kept;
        let mut roster = Roster::default();
        let going_on = committed.iter().filter(|_| end.is_none());
        let seats = going_on.flat_map(|record| &record.seats);
        for (rank, seat) in (0..).zip(seats) {
            let incarnation = seat.member.incarnation;
            let mut entry = Entry::new(incarnation, Arc::clone(&seat.handle), seat.step);
            entry.rank = Some(rank);
            entry.is_seen = false;
            roster.insert(seat.member, entry);
        }
        let mut effects = Vec::new();
        let state = match (end, &committed) {
            (Some(reason), _) => GroupState::Ended(reason),
            (None, Some(record)) if record.attempt == last => GroupState::Committed {
                record: Arc::clone(record),
                passed: Passed::Unknown,
                working: record.seats.len(),
                stopped_at: None,
                change: None,
                return_by: Some(now + options.return_timeout.min(RETURN_TIMEOUT_MAX)),
            },
            (None, None) if last.count() == 0 => GroupState::Forming { deadline: None },
            (None, _) => {
                effects.push(Effect::ReleaseWaits(last));
                GroupState::Breaking {
                    cause: Cause::Restarted,
                    propose_at: now + options.replace_wait,
                    end_at: now + options.below_min_timeout,
                }
            }
        };
        let mut group = Self {
            options,
            state,
            roster,
            last,
            committed,
            failed_calls: 0,
        };
        group.settle(now, &mut effects);
        group.announce(None, &mut effects);
        (group, effects)
    }
}
