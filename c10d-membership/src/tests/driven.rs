//! A group that a test drives step by step.

use crate::group::{Effect, Group, GroupState, Input, Kept};
use crate::message::{Event, EventNumber, Message, Reason, Reply};
use crate::options::GroupOptions;
use crate::record::{Attempt, MemberKey, Nonce};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The first process of an id.
pub(super) const fn key(id: u64) -> MemberKey {
    MemberKey::new(id, 1)
}

pub(super) struct Driven {
    pub(super) group: Group,
    pub(super) now: Duration,
    /// Since they were last taken.
    pub(super) effects: Vec<Effect>,
    pub(super) kept: Option<Kept>,
    /// The processes that sent a hello last.
    keys: BTreeMap<u64, MemberKey>,
}

impl Driven {
    pub(super) fn new(options: GroupOptions) -> Self {
        Self {
            group: Group::new(options, Nonce::new(20)),
            now: seconds(100),
            effects: Vec::new(),
            kept: None,
            keys: BTreeMap::new(),
        }
    }

    /// The members 1 to `size` in their first generation.
    pub(super) fn formed(size: u64, change: impl FnOnce(&mut GroupOptions)) -> Self {
        let mut options = GroupOptions::new(1);
        options.size_first = usize::try_from(size).expect("it is small");
        change(&mut options);
        let mut driven = Self::new(options);
        for id in 1..=size {
            driven.hello(id);
        }
        driven.commit();
        driven
    }

    pub(super) fn input(&mut self, input: Input) -> Reply {
        let outcome = self.group.step(self.now, input);
        for effect in outcome.effects {
            if let Effect::Keep(kept) = &effect {
                self.kept = Some(kept.clone());
            }
            self.effects.push(effect);
        }
        outcome.reply
    }

    pub(super) fn tell(&mut self, member: MemberKey, message: Message) -> Reply {
        self.input(Input::Message(member, message))
    }

    pub(super) fn hello(&mut self, id: u64) -> Reply {
        self.hello_of(key(id))
    }

    pub(super) fn hello_of(&mut self, member: MemberKey) -> Reply {
        let handle = format!("gloo:{}", member.id.0).into();
        self.keys.insert(member.id.0, member);
        self.tell(member, Message::Hello { handle, step: 0 })
    }

    /// The attempt that is proposed or under way.
    pub(super) fn attempt(&self) -> Attempt {
        match self.group.state() {
            GroupState::Proposed { attempt, .. } => *attempt,
            GroupState::Calling { record, .. } => record.attempt,
            GroupState::Committed {
                change: Some(change),
                ..
            } => change.attempt,
            state => panic!("no attempt: {state:?}"),
        }
    }

    pub(super) fn generation(&self) -> Attempt {
        match self.group.state() {
            GroupState::Committed { record, .. } => record.attempt,
            state => panic!("no generation: {state:?}"),
        }
    }

    pub(super) fn ready(&mut self, id: u64) -> Reply {
        self.ready_at(id, 0)
    }

    pub(super) fn ready_at(&mut self, id: u64, step: u64) -> Reply {
        let attempt = self.attempt();
        let handle = format!("gloo:{id}:{}", attempt.count()).into();
        let ready = Message::Ready {
            attempt,
            handle,
            step,
        };
        self.tell(self.key_of(id), ready)
    }

    pub(super) fn ack(&mut self, id: u64, is_ok: bool) -> Reply {
        let attempt = self.attempt();
        self.tell(self.key_of(id), Message::Ack { attempt, is_ok })
    }

    pub(super) fn boundary(&mut self, id: u64, step: u64) -> Reply {
        let generation = self.generation();
        self.tell(key(id), Message::Boundary { generation, step })
    }

    pub(super) fn poll(&mut self, id: u64) -> Reply {
        let after = EventNumber::NONE;
        self.tell(
            key(id),
            Message::Poll {
                after,
                is_leaving: false,
            },
        )
    }

    pub(super) fn event(&mut self, id: u64) -> Event {
        match self.poll(id) {
            Reply::Event(_, event) => event,
            reply => panic!("no event: {reply:?}"),
        }
    }

    /// At the next timer.
    pub(super) fn wake(&mut self) {
        self.now = self.group.wake_at().expect("a timer");
        self.input(Input::Tick);
    }

    pub(super) fn dead(&mut self, id: u64) {
        self.input(Input::Dead(self.key_of(id)));
    }

    /// All are ready.
    pub(super) fn call(&mut self) {
        for id in self.ids() {
            self.ready(id);
        }
        let state = self.group.state();
        assert!(matches!(state, GroupState::Calling { .. }), "{state:?}");
    }

    /// All are ready, and acknowledge.
    pub(super) fn commit(&mut self) {
        self.call();
        for id in self.ids() {
            self.ack(id, true);
        }
        self.generation();
    }

    pub(super) fn ids(&self) -> Vec<u64> {
        self.group
            .members()
            .map(|(member, _)| member.id.0)
            .collect()
    }

    /// The ids of the list by rank.
    pub(super) fn list(&self) -> Vec<u64> {
        let (GroupState::Calling { record, .. } | GroupState::Committed { record, .. }) =
            self.group.state()
        else {
            panic!("no list: {:?}", self.group.state());
        };
        record.seats.iter().map(|seat| seat.member.id.0).collect()
    }

    /// Members that were dismissed since the effects were last taken.
    pub(super) fn dismissed(&self) -> Vec<(u64, Reason)> {
        let dismissed = self.effects.iter().filter_map(|effect| match effect {
            Effect::Dismiss(member, reason) => Some((member.id.0, *reason)),
            _ => None,
        });
        dismissed.collect()
    }

    pub(super) fn released(&self) -> Vec<Attempt> {
        let released = self.effects.iter().filter_map(|effect| match effect {
            Effect::ReleaseWaits(attempt) => Some(*attempt),
            _ => None,
        });
        released.collect()
    }

    fn key_of(&self, id: u64) -> MemberKey {
        self.keys.get(&id).copied().unwrap_or(key(id))
    }
}
