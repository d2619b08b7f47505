//! The laws that every history obeys.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::process::{Life, Mesh};
use super::world::World;
use crate::group::{Effect, GroupState};
use crate::member::{Action, Ending};
use crate::message::{EndReason, Event, Reason, Reply};
use crate::record::{Attempt, MemberKey, Record};

/// The events of a history so far, for the laws.
#[derive(Debug, Clone, Default, Hash)]
pub(super) struct History {
    /// The members that began torch's call, and those at which it succeeded.
    pub(super) called: BTreeMap<Attempt, BTreeSet<MemberKey>>,
    pub(super) returned: BTreeMap<Attempt, BTreeSet<MemberKey>>,
    lists: BTreeMap<Attempt, Arc<Record>>,
    committed: BTreeMap<Attempt, Arc<Record>>,
    newest: Option<Attempt>,
    /// Processes that were reported to the service as dead or silent.
    gone: BTreeSet<MemberKey>,
    /// The newest boundary of a generation that a member has passed, and the first at which one has stopped.
    passed: BTreeMap<Attempt, u64>,
    stopped: BTreeMap<Attempt, u64>,
    /// Generations that something has happened to that may break them.
    disturbed: BTreeSet<Attempt>,
}

impl History {
    pub(super) fn noticed(&mut self, member: MemberKey) {
        self.gone.insert(member);
    }

    /// Something has happened that may break the newest generation.
    pub(super) fn disturb(&mut self) {
        self.disturbed.extend(self.newest);
    }

    /// The service has forgotten it.
    pub(super) fn forget(&mut self) {
        self.gone.clear();
    }

    fn is_disturbed(&self, generation: Option<Attempt>) -> bool {
        generation.is_none_or(|it| self.disturbed.contains(&it))
    }

    pub(super) fn commits(&self) -> usize {
        self.committed.len()
    }

    fn list(&mut self, record: &Arc<Record>) {
        let known = self
            .lists
            .entry(record.attempt)
            .or_insert_with(|| Arc::clone(record));
        assert_eq!(known, record, "a uuid has two lists");
    }
}

impl World {
    /// docs/spec/membership.md, LAW 1 to 6 and 9.
    pub(super) fn check_effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Announce(_, Event::Call { record, .. }) => {
                let is_new = !self.history.lists.contains_key(&record.attempt);
                assert!(is_new, "uuid {} comes twice", record.attempt.uuid());
                self.history.list(record);
                assert!(record.seats.len() >= self.options.size_min);
                for seat in &record.seats {
                    let process = &self.processes[self.index[&seat.member]];
                    let has_left = process.mesh == Mesh::None || process.ending().is_some();
                    assert!(
                        has_left || process.life == Life::Dead,
                        "{} is listed and has not left its mesh: {:?}",
                        seat.member,
                        process.mesh
                    );
                    assert!(!self.history.gone.contains(&seat.member), "{}", seat.member);
                }
                let handles: BTreeSet<_> = record.seats.iter().map(|it| &it.handle).collect();
                assert_eq!(handles.len(), record.seats.len(), "handles are unique");
            }
            Effect::Announce(_, Event::Commit { record }) => {
                self.history.list(record);
                let newest = self.history.committed.keys().next_back();
                let is_known = self.history.committed.contains_key(&record.attempt);
                if !is_known {
                    let same_life =
                        newest.filter(|it| it.uuid() >> 32 == record.attempt.uuid() >> 32);
                    assert!(
                        same_life.is_none_or(|it| *it < record.attempt),
                        "commits ascend"
                    );
                    // A member that has acknowledged may be dead by now.
                    let are_running = record.seats.iter().all(|seat| {
                        let process = &self.processes[self.index[&seat.member]];
                        process.is_active() && !process.wants_to_leave
                    });
                    self.history.newest = Some(record.attempt);
                    if !are_running {
                        self.history.disturb();
                    }
                }
                let returned = self.history.returned.get(&record.attempt);
                for seat in &record.seats {
                    let has_acked = returned.is_some_and(|it| it.contains(&seat.member));
                    assert!(has_acked, "{} has not acknowledged", seat.member);
                    let is_gone = self.history.gone.contains(&seat.member);
                    assert!(is_known || !is_gone, "{} is dead", seat.member);
                }
                self.history
                    .committed
                    .insert(record.attempt, Arc::clone(record));
            }
            Effect::Announce(_, Event::Ended(EndReason::Finished)) => {
                let committed = self.history.committed.values().next_back();
                for seat in committed.iter().flat_map(|record| &record.seats) {
                    let process = &self.processes[self.index[&seat.member]];
                    assert!(
                        process.has_finished || process.wants_to_leave,
                        "{} has not done its last step, and the group has finished",
                        process.key
                    );
                }
            }
            Effect::Announce(_, Event::Ended(EndReason::BelowMinimum)) => {
                let members = self.group.members().count();
                assert!(
                    members < self.options.size_min,
                    "ended with {members} members"
                );
            }
            _ => {}
        }
    }

    pub(super) fn check_action(&mut self, at: usize, action: &Action) {
        let process = &self.processes[at];
        match action {
            Action::Call { record, .. } => {
                assert_eq!(process.mesh, Mesh::None, "a call from inside of a mesh");
                assert!(record.rank_of(process.key).is_some());
                assert_eq!(self.history.lists.get(&record.attempt), Some(record));
            }
            Action::Enter { record, rank } => {
                assert_eq!(record.seats[*rank].member, process.key);
                let committed = self.history.committed.get(&record.attempt);
                assert_eq!(committed, Some(record), "entered without a commit");
                // Two halves: a member, unless it is evicted and yet to learn that, is in the newest generation.
                let is_evicted = matches!(self.event_of(process.key), Reply::Evicted(_));
                let life = record.attempt.uuid() >> 32;
                for other in self.processes.iter().filter(|it| it.is_active()) {
                    let is_later = matches!(&other.mesh, Mesh::Stepping(it)
                        if it.attempt > record.attempt && it.attempt.uuid() >> 32 == life);
                    assert!(
                        is_evicted || !is_later,
                        "{} is in a later generation",
                        other.key
                    );
                }
            }
            Action::Proceed => {
                let generation = process.attempt().expect("it is in a generation");
                let stopped = self.history.stopped.get(&generation);
                assert!(
                    stopped.is_none_or(|stop| process.step < *stop),
                    "{} passes the boundary at which another has stopped",
                    process.key
                );
                let passed = self.history.passed.entry(generation).or_default();
                *passed = (*passed).max(process.step);
            }
            Action::LeaveMesh { is_at_boundary } => {
                let is_asking = matches!(process.mesh, Mesh::AtBoundary(_))
                    && !process.wants_to_leave
                    && !process.has_finished;
                if *is_at_boundary && is_asking {
                    let generation = process.attempt().expect("it is in a generation");
                    let passed = self.history.passed.get(&generation);
                    assert!(
                        passed.is_none_or(|passed| process.step > *passed),
                        "{} stops at a boundary that another has passed",
                        process.key
                    );
                    let stop = self
                        .history
                        .stopped
                        .entry(generation)
                        .or_insert(process.step);
                    *stop = (*stop).min(process.step);
                }
                let is_working = matches!(process.mesh, Mesh::Stepping(_));
                assert!(
                    !is_working || *is_at_boundary || self.history.is_disturbed(process.attempt()),
                    "{} is torn out of a whole generation",
                    process.key
                );
            }
            Action::Over(Ending::Evicted(reason)) => {
                let was_left = *reason == Reason::Left;
                assert_eq!(
                    was_left,
                    was_left && process.wants_to_leave,
                    "{}",
                    process.key
                );
            }
            _ => {}
        }
    }

    /// Every wait of the service has an end, after every step.
    pub(super) fn check(&self) {
        let wake_at = self.group.wake_at();
        assert!(
            wake_at.is_none_or(|it| it > self.now),
            "a timer that has fired changes nothing"
        );
        let is_waiting = match self.group.state() {
            GroupState::Forming { .. } => self.group.members().next().is_some(),
            GroupState::Breaking { .. }
            | GroupState::Proposed { .. }
            | GroupState::Calling { .. }
            | GroupState::Committed {
                change: Some(_), ..
            } => true,
            GroupState::Committed { record, .. } => {
                assert_eq!(self.group.members().count(), record.seats.len());
                false
            }
            GroupState::Ended(_) => false,
        };
        assert!(!is_waiting || wake_at.is_some(), "a wait without an end");
    }

    /// docs/spec/membership.md, LAW 7 and 8: the laws that must hold when there are no further faults.
    pub(super) fn check_end(&self, able: &[usize]) {
        let generation = match self.group.state() {
            GroupState::Committed {
                record,
                change: None,
                ..
            } => Some(record),
            GroupState::Ended(_) | GroupState::Forming { .. } => None,
            state => panic!("the end is no end: {state:?}"),
        };
        // Members that finish do not wait for a process that has not joined.
        let is_finished = *self.group.state() == GroupState::Ended(EndReason::Finished);
        // Newcomers that calls failed with are no longer members, though a death may come to light later.
        let is_blamed = |at: &&usize| {
            self.processes[**at].ending() == Some(Ending::Evicted(Reason::CallsFailed))
        };
        let others: Vec<_> = able.iter().filter(|at| !is_blamed(at)).collect();
        if others.len() >= self.options.size_min && !is_finished {
            let ended = || format!("enough members, and {:?}", self.group.state());
            assert!(generation.is_some(), "{}", ended());
            for at in others {
                let process = &self.processes[*at];
                let ending = process.ending();
                assert!(process.is_active(), "{}: {ending:?}", process.key);
            }
        }
        for process in &self.processes {
            if !process.is_active() {
                continue;
            }
            let is_inside = generation.is_some_and(|it| process.is_inside(it.attempt));
            // A member that has finished leaves its mesh for a change, which may be dropped. Then it waits for the end.
            let has_finished = generation.is_some() && process.has_finished;
            assert!(
                is_inside || has_finished,
                "{} is neither in the generation nor told why not: {:?}, {:?}, {:?}",
                process.key,
                process.member,
                process.mesh,
                self.event_of(process.key),
            );
            assert!(
                !process.wants_to_leave,
                "{} wanted to leave: {:?} {:?}",
                process.key,
                process,
                self.group.state()
            );
        }
        if let Some(record) = generation {
            for seat in &record.seats {
                let process = &self.processes[self.index[&seat.member]];
                assert!(
                    process.is_active(),
                    "{} is in the generation and gone",
                    seat.member
                );
            }
        }
    }
}
