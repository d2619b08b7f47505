//! A simulated process with torch in it.

use crate::member::{Action, Ending, Member, MemberInput, MemberOptions};
use crate::message::{Message, Reply};
use crate::record::{Attempt, MemberKey, Record};
use std::sync::Arc;
use std::time::Duration;

/// The state of the process's mesh.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Mesh {
    None,
    /// In torch's call.
    Calling(Arc<Record>),
    /// The call has returned.
    Called(Arc<Record>),
    /// In a step of the generation.
    Stepping(Arc<Record>),
    /// At the boundary after a step, or behind the last one.
    AtBoundary(Arc<Record>),
    /// An exception was raised in a step.
    Raised(Arc<Record>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Unborn,
    Running,
    /// By SIGSTOP.
    Stopped,
    Dead,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) key: MemberKey,
    pub(super) member: Member,
    pub(super) life: Life,
    /// Whether the service has noticed its death or its silence.
    pub(super) is_noticed: bool,
    pub(super) mesh: Mesh,
    pub(super) must_leave: bool,
    pub(super) step: u64,
    pub(super) wants_to_leave: bool,
    /// Whether it has done its last step of the generation in which it is.
    pub(super) has_finished: bool,
    /// Answers on their way: to the message that it owes, and to its poll.
    pub(super) answer: Option<(Message, Reply)>,
    pub(super) news: Option<(Message, Reply)>,
    /// Whether it has to ask for events, whether or not there is one.
    pub(super) must_poll: bool,
    /// The uuid of its last call, which is part of its handle.
    pub(super) uuid: u64,
}

impl Process {
    pub(super) fn new(id: u64, incarnation: u64) -> Self {
        let key = MemberKey::new(id, incarnation);
        Self {
            key,
            member: Member::new(key, MemberOptions::default()),
            life: Life::Unborn,
            is_noticed: false,
            mesh: Mesh::None,
            must_leave: false,
            step: 0,
            wants_to_leave: false,
            has_finished: false,
            answer: None,
            news: None,
            must_poll: false,
            uuid: 0,
        }
    }

    pub(super) fn handle(&self) -> Arc<str> {
        let MemberKey { id, incarnation } = self.key;
        format!("gloo:{}:{}.{}", self.uuid, id.0, incarnation.0).into()
    }

    pub(super) fn join(&mut self, now: Duration) -> Vec<Action> {
        self.life = Life::Running;
        let handle = self.handle();
        let step = self.step;
        self.member.step(now, MemberInput::Join { handle, step })
    }

    /// It is out of its mesh.
    pub(super) fn left(&mut self, now: Duration) -> Vec<Action> {
        self.must_leave = false;
        self.mesh = Mesh::None;
        let handle = self.handle();
        let step = self.step;
        self.member.step(now, MemberInput::Left { handle, step })
    }

    pub(super) fn is_running(&self) -> bool {
        self.life == Life::Running
    }

    /// Whether it still takes part.
    pub(super) fn is_active(&self) -> bool {
        self.is_running() && self.member.ending().is_none()
    }

    pub(super) fn ending(&self) -> Option<Ending> {
        self.member.ending()
    }

    /// The attempt whose mesh it uses or builds.
    pub(super) fn attempt(&self) -> Option<Attempt> {
        match &self.mesh {
            Mesh::None => None,
            Mesh::Calling(record)
            | Mesh::Called(record)
            | Mesh::Stepping(record)
            | Mesh::AtBoundary(record)
            | Mesh::Raised(record) => Some(record.attempt),
        }
    }

    /// Whether it is in this generation.
    pub(super) fn is_inside(&self, generation: Attempt) -> bool {
        let is_whole = matches!(
            self.mesh,
            Mesh::Stepping(_) | Mesh::AtBoundary(_) | Mesh::Raised(_)
        );
        is_whole && !self.must_leave && self.attempt() == Some(generation)
    }
}
