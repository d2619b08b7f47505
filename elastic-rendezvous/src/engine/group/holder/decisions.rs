//! Applies the pending requests to the state, by the tables of docs/spec/rendezvous.md, section 5.

use std::collections::BTreeSet;
use std::time::Duration;

use super::clients::Status;
use super::{Holder, Timer};
use crate::engine::decide::{self, Action, Context, Decision};
use crate::engine::group::message::{Answer, AnswerKind, Place, Request, RequestKind};
use crate::engine::links::RETURN_GRACE;
use crate::values::node::NodeId;
use crate::values::report::LostNode;
use crate::values::timestamp::{Now, Timestamp};

/// The maximum number of passes over the requests after a batch. In each pass, the state can change
/// for other requests.
const PASSES_MAX: usize = 8;

/// Facts that are the same for all requests of a pass.
struct Pass {
    now: Now,
    time: Timestamp,
    is_last_call_over: bool,
    has_suspects: bool,
    complete: Option<Complete>,
    /// The number of members of the last round that may claim a place in the open round.
    claims: Option<usize>,
}

/// The facts of a complete round.
struct Complete {
    has_every_rank: bool,
    same_as: i64,
    first: Option<NodeId>,
}

impl Holder {
    /// Applies the requests in order, until nothing changes any more.
    pub(super) fn decide(&mut self, now: Now) {
        self.as_of.decision = now.monotonic;
        self.drop_silent(now);
        for _ in 0..PASSES_MAX {
            // With thousands of nodes, values that are equal for all of them are computed once.
            let mut pass = Pass::new(self, now);
            let mut has_changed = false;
            for index in self.clients.in_order() {
                has_changed |= self.decide_one(index, &mut pass);
            }
            if !has_changed {
                break;
            }
            self.decider.observe_draft(now);
        }
        self.evict();
        let (observations, settings) = (&self.decider.observations, &self.decider.settings);
        let later = [
            observations.last_call_ends_at(settings),
            self.decider
                .last_round
                .precedence_until(&self.decider.state, settings),
            self.decider.all_had_time_at(),
        ];
        let margin = Duration::from_millis(1);
        let later = later
            .into_iter()
            .flatten()
            .map(|at| at.saturating_add(margin));
        match later.filter(|at| *at > now.monotonic).min() {
            Some(next) => self.timers.set(Timer::Decide, next),
            None => self.timers.cancel(Timer::Decide),
        }
        let as_of = self.as_of.oldest();
        match observations.next_silence_at(&self.me, settings, as_of) {
            Some(at) => self.timers.set(Timer::Silence, at),
            None => self.timers.cancel(Timer::Silence),
        }
    }

    fn drop_silent(&mut self, now: Now) {
        // A process that was paused has not read the writes of other nodes during the pause.
        let as_of = self.as_of.oldest();
        let mut silent = self
            .decider
            .observations
            .silent(&self.me, &self.decider.settings, as_of);
        // A node that has lost its connection is dropped only for a state that was read after that.
        let is_sure = |it: &LostNode| !it.is_disconnected || it.silence >= RETURN_GRACE;
        silent.retain(|silent| self.decider.lists(&silent.node) && is_sure(silent));
        if silent.is_empty() {
            return;
        }
        let dead: BTreeSet<&NodeId> = silent.iter().map(|silent| &silent.node).collect();
        self.forget(|client| dead.contains(&client.request.node));
        self.rounds.on_dropped(&silent);
        self.decider.remove_dead(&silent);
        self.newly_lost.append(&mut silent);
        self.draft.change();
        self.decider.observe_draft(now);
    }

    /// Decides about one request; returns whether the state has changed.
    fn decide_one(&mut self, index: u32, pass: &mut Pass) -> bool {
        let Some(client) = self.clients.get(index) else {
            return false;
        };
        let Status::Pending { is_spare } = client.status else {
            return false;
        };
        let request = client.request.clone();
        let mut has_changed = false;
        let mut is_spare_now = is_spare;
        let mut is_late = matches!(request.kind, RequestKind::JoinLate { .. });
        // Leaving a round, a place in the next one, and its end: no row leads back.
        for _ in 0..PASSES_MAX {
            let decision = self.decision(&request, is_late, pass);
            let kind = match decision.action {
                Action::Sync | Action::KeepAlive => {
                    if is_spare_now == is_spare {
                        return has_changed;
                    }
                    if is_spare_now {
                        AnswerKind::Spare
                    } else {
                        AnswerKind::NoLongerSpare
                    }
                }
                Action::Finish if request.kind.is_join() => match self.place(&request.node, pass) {
                    Some(place) => AnswerKind::Joined(place),
                    None => return has_changed,
                },
                Action::Finish => AnswerKind::Done,
                Action::ErrorClosed => AnswerKind::Closed,
                Action::ErrorTimeout => AnswerKind::TimedOut,
                Action::GracefulExit => AnswerKind::NotNeeded,
                action => {
                    if action == Action::RemoveFromRedundancyList {
                        // The node's time starts again.
                        is_late = false;
                        is_spare_now = false;
                    }
                    is_spare_now |= action == Action::AddToRedundancyList;
                    self.apply(action, &request.node, pass);
                    has_changed = true;
                    continue;
                }
            };
            let number = request.number;
            self.decided.push((index, Answer { number, kind }));
            if let Some(client) = self.clients.get_mut(index) {
                client.status = Status::Decided;
            }
            return has_changed;
        }
        has_changed
    }

    fn decision(&self, request: &Request, is_late: bool, pass: &mut Pass) -> Decision {
        let decider = &self.decider;
        let at = pass.now.monotonic;
        // Heartbeats of these nodes are not in the state, so none is due.
        let mut ctx = Context {
            deadline: if is_late {
                at.saturating_sub(Duration::from_millis(1))
            } else {
                Duration::MAX
            },
            last_call_over: pass.is_last_call_over && decider.state.deadline.is_some(),
            must_yield: request.kind.is_join() && self.must_yield(&request.node, pass),
            ..decider.context(&request.node, pass.now)
        };
        match request.kind {
            RequestKind::Join { after } | RequestKind::JoinLate { after } => {
                let leaves = decider.state.round <= after;
                let exit = decide::exit(&ctx);
                if leaves && exit.action == Action::RemoveFromParticipants {
                    return exit;
                }
                let decision = decide::join(&ctx);
                if decision.action == Action::Finish {
                    ctx.has_every_rank = pass.complete(self).has_every_rank;
                }
                decide::amend(decision, &ctx, pass.has_suspects)
            }
            // Whichever list it is on.
            RequestKind::Exit | RequestKind::Leave => decide::leave(&ctx),
            RequestKind::Close => decide::close(&ctx),
            RequestKind::Stay { .. } => decide::keep_alive(&ctx),
        }
    }

    fn apply(&mut self, action: Action, node: &NodeId, pass: &mut Pass) {
        let was_complete = self.decider.state.complete;
        let step = self.decider.apply(action, node, pass.time);
        self.steps.extend(step.map(|step| (node.clone(), step)));
        if was_complete != self.decider.state.complete {
            self.observe_last_round(pass.now);
            pass.claims = None;
        }
        if self.decider.last_round.has(node) {
            pass.claims = None;
        }
        self.draft.change();
        pass.complete = None;
    }

    /// Whether the node leaves the free places of an open round to members of the last one.
    fn must_yield(&self, node: &NodeId, pass: &mut Pass) -> bool {
        let now = pass.now;
        self.decider.must_yield(node, now, || {
            // Counting them for each of thousands of nodes would take seconds.
            *pass
                .claims
                .get_or_insert_with(|| self.decider.claimants(now).count())
        })
    }

    /// Whether all nodes that left the last round to rejoin are back.
    fn all_are_back(&self, now: Now) -> bool {
        let state = &self.decider.state;
        let members = self.rounds.members_before(state);
        let is_dropped = |node: &NodeId| self.rounds.has_dropped(node);
        self.decider.all_had_time_at().is_some()
            && state.wait_list.is_empty()
            && members.is_some_and(|it| self.decider.are_back(it, is_dropped, now))
    }

    fn place(&self, node: &NodeId, pass: &mut Pass) -> Option<Place> {
        let state = &self.decider.state;
        let rank = *state.participants.get(node)?;
        let complete = pass.complete(self);
        Some(Place {
            round: state.round,
            rank: usize::try_from(rank).ok()?,
            size: state.participants.len(),
            same_as: complete.same_as,
            first: complete.first.clone()?,
        })
    }

    /// Notifies members that were dropped by other nodes.
    fn evict(&mut self) {
        let state = &self.decider.state;
        for (index, client) in self.clients.iter_mut() {
            let Status::Member { round } = client.status else {
                continue;
            };
            let is_gone = state.complete
                && state.round == round
                && !state.participants.contains_key(&client.request.node);
            if is_gone {
                let number = client.request.number;
                let kind = AnswerKind::Evicted { round };
                self.decided.push((index, Answer { number, kind }));
                client.status = Status::Decided;
            }
        }
    }
}

impl Pass {
    fn new(holder: &Holder, now: Now) -> Self {
        let decider = &holder.decider;
        Self {
            now,
            time: decider.time_to_write(now),
            is_last_call_over: decider.has_last_call_timed_out(now) || holder.all_are_back(now),
            has_suspects: decider.has_suspects(&holder.me),
            complete: None,
            claims: None,
        }
    }

    fn complete(&mut self, holder: &Holder) -> &Complete {
        self.complete.get_or_insert_with(|| {
            let state = &holder.decider.state;
            let first = state.participants.iter().find(|(_, rank)| **rank == 0);
            Complete {
                has_every_rank: decide::has_every_rank(state),
                same_as: holder.rounds.same_as(state),
                first: first.map(|(node, _)| node.clone()),
            }
        })
    }
}
