//! The state of a rendezvous and the observations of its nodes: the facts on which every decision depends.
//!
//! Both engines decide with it: the executor of a node that writes for itself, and the holder of a group, which writes for
//! all. They only plan when the state is read and written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::engine::decide::{Context, Entering};
use crate::engine::last_round::{LastRound, Loss, REJOIN_GRACE};
use crate::engine::links::RETURN_GRACE;
use crate::engine::observations::Observations;
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::timestamp::{Now, Timestamp};

#[derive(Debug)]
pub(crate) struct Decider {
    pub(crate) settings: RendezvousSettings,
    /// The state as it was read last, with the changes that are to be written.
    pub(crate) state: RendezvousState,
    pub(crate) observations: Observations,
    pub(crate) last_round: LastRound,
    /// The nodes that reported that they have left for good (docs/spec/rendezvous.md, section 10.2).
    pub(crate) gone: BTreeSet<NodeId>,
}

impl Decider {
    pub(crate) fn new(settings: RendezvousSettings, now: Now) -> Self {
        Self {
            settings,
            state: RendezvousState::default(),
            observations: Observations::new(now),
            last_round: LastRound::default(),
            gone: BTreeSet::new(),
        }
    }

    /// Observes the state after it was read or written.
    pub(crate) fn observe(&mut self, now: Now) {
        self.observations.observe(&self.state, &self.settings, now);
    }

    /// Observes the state before it is written.
    pub(crate) fn observe_draft(&mut self, now: Now) {
        self.observations.observe_draft(&self.state, now);
    }

    /// The time to write as a heartbeat or deadline.
    pub(crate) fn time_to_write(&self, now: Now) -> Timestamp {
        self.observations.time_to_write(now)
    }

    /// Whether the node is on a list.
    pub(crate) fn lists(&self, node: &NodeId) -> bool {
        self.state.last_heartbeats.contains_key(node)
    }

    /// The facts for a decision about `node`, for an operation without a deadline that requires nothing else.
    pub(crate) const fn context<'a>(&'a self, node: &'a NodeId, now: Now) -> Context<'a> {
        Context {
            state: &self.state,
            me: node,
            settings: &self.settings,
            now: now.monotonic,
            deadline: Duration::MAX,
            heartbeat_due: false,
            last_call_over: false,
            has_every_rank: true,
            must_yield: false,
            entering: Entering::No,
        }
    }

    /// Observes which members of the last round are there. `loss` returns whether an unlisted member counts as lost.
    pub(crate) fn observe_last_round(&mut self, now: Now, loss: impl Fn(&NodeId) -> Option<Loss>) {
        self.last_round.observe(&self.state, now.monotonic, loss);
    }

    /// Whether `node` leaves the free places of the open round to members of the last one. `claimants` returns the number of
    /// [`claimants`](Self::claimants).
    pub(crate) fn must_yield(
        &self,
        node: &NodeId,
        now: Now,
        claimants: impl FnOnce() -> usize,
    ) -> bool {
        let (state, settings) = (&self.state, &self.settings);
        self.last_round
            .must_yield(node, state, settings, now.monotonic, claimants)
    }

    /// The members of the last round that may claim a place in the open one.
    pub(crate) fn claimants(&self, now: Now) -> impl Iterator<Item = &NodeId> {
        self.last_round
            .claimants(&self.state, &self.gone, now.monotonic)
    }

    pub(crate) fn has_suspects(&self, me: &NodeId) -> bool {
        let mut suspects = self.observations.suspects(&self.state, me);
        suspects.next().is_some()
    }

    /// Whether the timeout of a last call has passed.
    pub(crate) fn has_last_call_timed_out(&self, now: Now) -> bool {
        let ends_at = self.observations.last_call_ends_at(&self.settings);
        ends_at.is_some_and(|ends_at| ends_at < now.monotonic)
    }

    /// When, in this last call, a node that left the previous round to rejoin must be listed again.
    pub(crate) fn all_had_time_at(&self) -> Option<Duration> {
        let begun_at = self.observations.last_call_begun_at()?;
        Some(begun_at.saturating_add(REJOIN_GRACE))
    }

    /// Whether all these nodes are back in the open round, or do not return (*CLOCK 5*). A last call is for nodes that start
    /// slowly: in a restart of running nodes it can end early, and later nodes join through the wait list. PyTorch waits for all of it.
    pub(crate) fn are_back<'n>(
        &self,
        nodes: impl IntoIterator<Item = &'n NodeId>,
        is_dropped: impl Fn(&NodeId) -> bool,
        now: Now,
    ) -> bool {
        let state = &self.state;
        let all_had_time = self.all_had_time_at().is_some_and(|at| at < now.monotonic);
        nodes.into_iter().all(|node| {
            let is_elsewhere =
                state.wait_list.contains(node) || state.redundancy_list.contains(node);
            state.participants.contains_key(node)
                || is_dropped(node)
                || ((all_had_time || self.gone.contains(node)) && !is_elsewhere)
        })
    }

    /// The members of the last round that another node seems to have dropped in `state`. Must run before the observations
    /// adopt `state`. `known_as_of` is when the state before it was requested.
    pub(crate) fn dropped_by_others(
        &self,
        state: &RendezvousState,
        known_as_of: Duration,
        now: Now,
    ) -> BTreeMap<NodeId, Loss> {
        let loss = |from: Duration, is_of_connection: bool| {
            Some(Loss {
                from,
                is_of_connection,
            })
        };
        let loss_of = |node: &NodeId| {
            let is_overdue = |silence: Option<Duration>| {
                silence.is_some_and(|silence| silence > self.settings.overdue_after())
            };
            if is_overdue(self.observations.silence_of(node, known_as_of)) {
                return loss(now.monotonic, false);
            }
            if let Some(at) = self.observations.links.closed_since(node) {
                return loss(at.saturating_add(RETURN_GRACE), true);
            }
            // The same holds for a live member whose clock is behind, or which is about to connect again; then it is back soon.
            let age = self.observations.age_of(node, known_as_of);
            let is_behind = is_overdue(age);
            let is_away = is_behind || self.observations.links.was_found_closed(node);
            if !is_away {
                return None;
            }
            loss(now.monotonic.saturating_add(REJOIN_GRACE), !is_behind)
        };
        self.last_round
            .members()
            .filter(|node| !state.last_heartbeats.contains_key(*node))
            .filter_map(|node| Some((node.clone(), loss_of(node)?)))
            .collect()
    }
}
