//! The service's side: one group, from its first member to its end. Pure.
//!
//! A [`Group`] takes [`Input`]s, and returns a reply and [`Effect`]s. It is in one [`GroupState`] at a time. It has no
//! store, connection, thread or clock, and does not interpret handles. Its rules are in docs/spec/membership.md.

mod messages;
mod recover;
mod roster;
mod status;
mod transitions;

use std::sync::Arc;
use std::time::Duration;

use self::roster::Roster;
pub use self::status::{GroupStage, GroupStatus, MemberStatus};
use crate::message::{Cause, EndReason, Event, EventNumber, Leave, Message, Reason, Reply, Stage};
use crate::options::GroupOptions;
use crate::record::{Attempt, MemberKey, Nonce, Record};

/// About the memory of a member or a seat, besides its handle, and of an evicted member.
const MEMBER_BYTES: usize = 256;
const EVICTED_BYTES: usize = 128;

/// The members of one process group, and the list that they agree on.
///
/// ```
/// use std::time::Duration;
///
/// use c10d_membership::{Group, GroupOptions, Input, MemberKey, Message, Nonce, Reply};
///
/// let mut group = Group::new(GroupOptions::new(2), Nonce::new(0x5eed));
/// let hello = Message::Hello { handle: "gloo:0".into(), step: 0 };
/// let outcome = group.step(Duration::ZERO, Input::Message(MemberKey::new(0, 1), hello));
/// assert_eq!(outcome.reply, Reply::Accepted);
/// assert!(group.has_member(MemberKey::new(0, 1)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group {
    options: GroupOptions,
    state: GroupState,
    roster: Roster,
    /// The newest attempt; its count is 0 before the first.
    last: Attempt,
    /// The last generation, whole or broken.
    committed: Option<Arc<Record>>,
    /// Failed calls since that generation.
    failed_calls: u32,
}

impl Group {
    /// Creates a group without members. `nonce` is new for each group that does not [`recover`](Self::recover).
    pub fn new(options: GroupOptions, nonce: Nonce) -> Self {
        Self {
            options,
            state: GroupState::Forming { deadline: None },
            roster: Roster::default(),
            last: Attempt::new(nonce, 0),
            committed: None,
            failed_calls: 0,
        }
    }

    /// Takes an input, and returns the reply and the effects. `now` is the time since any fixed moment, and never
    /// goes back.
    pub fn step(&mut self, now: Duration, input: Input) -> Outcome {
        let before = self.announcement().map(|(number, _)| number);
        let mut effects = Vec::new();
        let poll = match &input {
            Input::Message(member, message) => message.polls_after().map(|after| (*member, after)),
            _ => None,
        };
        let reply = match input {
            Input::Message(member, message) => self.message(now, member, message, &mut effects),
            Input::Dead(member) => {
                self.dead(now, member, &mut effects);
                Reply::Accepted
            }
            Input::Silent(member) => {
                self.lose(now, member, Reason::Silent, &mut effects);
                Reply::Accepted
            }
            Input::Close => {
                if !matches!(self.state, GroupState::Ended(_)) {
                    self.end(EndReason::Closed, &mut effects);
                }
                Reply::Accepted
            }
            Input::Tick => Reply::Accepted,
        };
        self.settle(now, &mut effects);
        self.announce(before, &mut effects);
        let reply = match (reply, poll) {
            // The time may have brought the event, whose announcement this poll is too late for.
            (Reply::NotYet, Some((member, after))) => self.poll(member, after),
            (reply, _) => reply,
        };
        Outcome { reply, effects }
    }

    /// Announces the event, unless it was announced.
    fn announce(&self, before: Option<EventNumber>, effects: &mut Vec<Effect>) {
        let newest = effects.iter().rev().find_map(|effect| match effect {
            Effect::Announce(number, _) => Some(*number),
            _ => None,
        });
        if let Some((number, event)) = self.announcement()
            && newest.or(before) != Some(number)
        {
            effects.push(Effect::Announce(number, event));
        }
    }

    /// Returns the answer to [`Message::Poll`], which changes nothing.
    pub fn poll(&self, member: MemberKey, after: EventNumber) -> Reply {
        if let Some(reason) = self.roster.evicted(member) {
            return Reply::Evicted(reason);
        }
        if let GroupState::Ended(reason) = self.state {
            return Reply::Ended(reason);
        }
        if self.roster.get(member).is_none() {
            return Reply::Unknown;
        }
        if let Some((number, event)) = self.unseen_generation(member, after) {
            return Reply::Event(number, event);
        }
        match self.announcement() {
            Some((number, event)) if number.is_news_after(after) && self.is_for(member) => {
                Reply::Event(number, event)
            }
            _ => Reply::NotYet,
        }
    }

    /// Returns when [`Input::Tick`] is due, if nothing happens before.
    pub fn wake_at(&self) -> Option<Duration> {
        match &self.state {
            GroupState::Forming { deadline } => *deadline,
            GroupState::Breaking {
                propose_at, end_at, ..
            } => {
                let is_enough = self.roster.len() >= self.options.size_min;
                Some(if is_enough { *propose_at } else { *end_at })
            }
            GroupState::Proposed { deadline, .. } | GroupState::Calling { deadline, .. } => {
                Some(*deadline)
            }
            GroupState::Committed {
                change, return_by, ..
            } => {
                let change = change.as_ref().map(|change| change.deadline);
                change.into_iter().chain(*return_by).min()
            }
            GroupState::Ended(_) => None,
        }
    }

    /// Returns the options that the group was made with.
    pub const fn options(&self) -> &GroupOptions {
        &self.options
    }

    /// Returns the state of the group.
    pub const fn state(&self) -> &GroupState {
        &self.state
    }

    /// Returns the processes of the group and those that wait to join it: by id, with their ranks in the last
    /// generation.
    pub fn members(&self) -> impl Iterator<Item = (MemberKey, Option<u32>)> {
        self.roster
            .iter()
            .map(|(member, entry)| (member, entry.rank))
    }

    /// Returns whether the process is in the group, or waits to join it.
    pub fn has_member(&self, member: MemberKey) -> bool {
        self.roster.get(member).is_some()
    }

    /// Returns the list of the generation, or of the last one while the group has none.
    pub const fn committed(&self) -> Option<&Arc<Record>> {
        self.committed.as_ref()
    }

    /// Returns about the most memory that the group takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let handle = self.options.handle_bytes_max;
        let committed = self.committed.as_ref().map_or(0, |it| it.seats.len());
        (self.roster.len() + committed) * (MEMBER_BYTES + handle)
            + self.roster.evicted_len() * EVICTED_BYTES
    }

    /// The event for the members now. Newcomers may need only a part: see `is_for`.
    fn announcement(&self) -> Option<(EventNumber, Event)> {
        let (attempt, stage, event) = match &self.state {
            GroupState::Forming { .. } => return None,
            GroupState::Breaking { cause, .. } => {
                let attempt = self.last;
                let cause = *cause;
                (attempt, Stage::Break, Event::Break { attempt, cause })
            }
            GroupState::Proposed {
                attempt,
                cause,
                deadline,
                ..
            } => {
                let event = Event::Propose {
                    attempt: *attempt,
                    leave: Leave::Now(*cause),
                    deadline: *deadline,
                };
                (*attempt, Stage::Propose, event)
            }
            GroupState::Calling {
                record, deadline, ..
            } => {
                let event = Event::Call {
                    record: Arc::clone(record),
                    deadline: *deadline,
                };
                (record.attempt, Stage::Call, event)
            }
            GroupState::Committed {
                change: Some(change),
                ..
            } => {
                let event = Event::Propose {
                    attempt: change.attempt,
                    leave: Leave::AtBoundary { step: change.step },
                    deadline: change.deadline,
                };
                (change.attempt, Stage::Propose, event)
            }
            GroupState::Committed { record, .. } => {
                let event = Event::Commit {
                    record: Arc::clone(record),
                };
                (record.attempt, Stage::Commit, event)
            }
            GroupState::Ended(reason) => {
                return Some((EventNumber::LAST, Event::Ended(*reason)));
            }
        };
        Some((EventNumber::new(attempt, stage), event))
    }

    /// The generation, if it is whole and its member does not know of it: a change at a boundary does not replace it.
    fn unseen_generation(
        &self,
        member: MemberKey,
        after: EventNumber,
    ) -> Option<(EventNumber, Event)> {
        let GroupState::Committed { record, .. } = &self.state else {
            return None;
        };
        let number = EventNumber::new(record.attempt, Stage::Commit);
        let is_ranked = self.roster.get(member)?.rank.is_some();
        let record = Arc::clone(record);
        (number.is_news_after(after) && is_ranked).then_some((number, Event::Commit { record }))
    }

    /// Whether the event concerns a member: lists and generations concern those that are in them.
    fn is_for(&self, member: MemberKey) -> bool {
        let Some(entry) = self.roster.get(member) else {
            return false;
        };
        match &self.state {
            GroupState::Calling { record, .. } => entry.ready == Some(record.attempt),
            GroupState::Committed { change: None, .. } => entry.rank.is_some(),
            _ => true,
        }
    }

    /// Returns the state of the last [`Effect::Keep`]; for a new group, the state that records its existence.
    pub fn kept(&self) -> Kept {
        let end = match self.state {
            GroupState::Ended(reason) => Some(reason),
            _ => None,
        };
        Kept::new(self.last, self.committed.clone(), end)
    }

    fn keep(&self, effects: &mut Vec<Effect>) {
        effects.push(Effect::Keep(self.kept()));
    }
}

/// The state of a group. Times are of the clock that its inputs are given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupState {
    /// The group has not made an attempt.
    #[non_exhaustive]
    Forming {
        /// When `size_min` members suffice, or the group closes; `None` until the first member arrives.
        deadline: Option<Duration>,
    },
    /// The previous generation or attempt is over, and no attempt is under way: members are too few, or wait for
    /// replacements.
    #[non_exhaustive]
    Breaking {
        /// The first cause of the break.
        cause: Cause,
        /// From this time on, `size_min` members continue without replacements.
        propose_at: Duration,
        /// The time when fewer than `size_min` members end the group.
        end_at: Duration,
    },
    /// The members leave their old mesh.
    #[non_exhaustive]
    Proposed {
        /// The attempt for which they send that they are ready.
        attempt: Attempt,
        /// The cause of the attempt.
        cause: Cause,
        /// How many of the members that were present when it was proposed are not ready.
        missing: usize,
        /// The time when these members are evicted.
        deadline: Duration,
    },
    /// The members are in torch's call.
    #[non_exhaustive]
    Calling {
        /// The list of the attempt.
        record: Arc<Record>,
        /// How many have not acknowledged.
        missing: usize,
        /// The time when these members are evicted.
        deadline: Duration,
    },
    /// A generation works.
    #[non_exhaustive]
    Committed {
        /// The list of the generation.
        record: Arc<Record>,
        /// The newest step boundary that was passed.
        passed: Passed,
        /// How many of its members have not done their last step.
        working: usize,
        /// The time when the first member has stopped: at a boundary for the change, or after its last step.
        stopped_at: Option<Duration>,
        /// The next attempt, for which members leave at a step boundary.
        change: Option<Change>,
        /// The time when the members of a restarted service that have not sent anything are evicted.
        return_by: Option<Duration>,
    },
    /// The group has ended; this state is final.
    Ended(EndReason),
}

/// The newest step boundary that a member of the generation has passed. The other members must pass it as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Passed {
    /// The generation has just begun.
    Nothing,
    /// The one after this step.
    Step(u64),
    /// The service was restarted and has lost the step: the next requested boundary is passed.
    Unknown,
}

impl Passed {
    /// The first step at whose boundary members can stop.
    fn first_stop(self) -> Option<u64> {
        match self {
            Self::Nothing => Some(0),
            Self::Step(step) => Some(step.saturating_add(1)),
            Self::Unknown => None,
        }
    }
}

/// A change at a step boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Change {
    /// The attempt for which members send that they are ready.
    pub attempt: Attempt,
    /// The step at whose boundary all members stop; `None` until a restarted service has learned it.
    pub step: Option<u64>,
    /// The number of members that were present when the change was proposed, and are not ready.
    pub missing: usize,
    /// Whether a member has stopped, so that the other members must stop as well.
    pub is_binding: bool,
    /// The time when the change is withdrawn, or the generation broken if the change is binding.
    pub deadline: Duration,
}

impl Change {
    /// A member has stopped. If it is the first, its generation has until `deadline`.
    fn bind(&mut self, deadline: Duration) {
        if !std::mem::replace(&mut self.is_binding, true) {
            self.deadline = deadline;
        }
    }
}

/// An input of a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Input {
    /// A member's request.
    Message(MemberKey, Message),
    /// The process has exited, as reported by its launcher.
    Dead(MemberKey),
    /// The connection or session of the process has ended, or its lease has expired: the process may still run, but is no longer
    /// a member.
    Silent(MemberKey),
    /// The owner of the group closes it.
    Close,
    /// Time has passed: due at [`Group::wake_at`].
    Tick,
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The answer to [`Input::Message`]; [`Reply::Accepted`] to the other inputs.
    pub reply: Reply,
    /// The effects, which must be carried out in this order, before the reply is sent.
    pub effects: Vec<Effect>,
}

/// An effect to carry out. The number of effects does not depend on the number of members, with one exception: there
/// is one [`Effect::Dismiss`] for each evicted member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// Make this state durable before the effects that follow. It replaces the state kept before, and is for
    /// [`Group::recover`].
    Keep(Kept),
    /// There is a new event: answer the polls that wait, each with a new call of [`Group::poll`].
    /// Most of them get this event.
    Announce(EventNumber, Event),
    /// The process is no longer a member: answer its poll, if one waits.
    Dismiss(MemberKey, Reason),
    /// Fail all waits of the store on keys of this attempt, including later waits. The attempt does not commit, or is
    /// a broken generation, and its members wait in torch's calls for a member that will not arrive.
    ReleaseWaits(Attempt),
    /// Delete the keys of all attempts before this one, which has committed.
    DeleteKeysBefore(Attempt),
}

/// The state that a service must not lose, so that no attempt repeats and a generation survives a restart.
///
/// It is written twice for each change. If a service keeps nothing, use a new [`Nonce`] at each start:
/// no uuid repeats, and the members form a new group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Kept {
    /// The newest attempt. Attempt numbers up to this one are never used again.
    pub last: Attempt,
    /// The last generation. It is whole if its attempt is `last`.
    pub committed: Option<Arc<Record>>,
    /// The reason why the group ended; `None` while it has not.
    pub end: Option<EndReason>,
}

impl Kept {
    /// Restores the state of an [`Effect::Keep`] from its parts.
    pub const fn new(
        last: Attempt,
        committed: Option<Arc<Record>>,
        end: Option<EndReason>,
    ) -> Self {
        Self {
            last,
            committed,
            end,
        }
    }
}
