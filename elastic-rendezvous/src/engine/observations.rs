//! Detects dead nodes by what this node observes with its own monotonic clock.
//!
//! PyTorch compares heartbeats with its own wall clock, so a clock that is a minute wrong evicts healthy
//! nodes. Here a node is alive while its heartbeat keeps **changing**. A heartbeat is compared with the local
//! clock in one case only: to find participants that may have died before this node's first read (see
//! [`Observations::suspects`]).

use std::collections::HashMap;
use std::time::Duration;

use c10d_socket::Silence;

use crate::engine::links::Links;
use crate::values::node::NodeId;
use crate::values::report::LostNode;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::timestamp::{Now, Timestamp};

/// How far written times follow a peer whose clock is ahead. A larger difference is an error of the peer.
const LEAD_MAX: Duration = Duration::from_secs(3600);

/// A node's observations of the other nodes, with times of its monotonic clock.
#[derive(Debug)]
pub(crate) struct Observations {
    /// When this node started. Its wall clock is advanced monotonically from here.
    start: Now,
    peers: HashMap<NodeId, Sighting>,
    pub(crate) links: Links,
    round: RoundTimes,
    /// The times of the round in the last state that was read or written.
    stored_round: RoundTimes,
    /// When the state was last read.
    read_at: Option<Duration>,
    /// Whether the store was out of reach after the last read: perhaps the other nodes could not
    /// write either.
    had_outage: bool,
    /// When the state was read first after that: earlier silence does not count.
    silence_counts_from: Duration,
}

#[derive(Debug, Clone, Copy, Default)]
struct RoundTimes {
    /// The end of the last call, and when this node first saw it.
    deadline: Option<(Timestamp, Duration)>,
    /// The complete round, and when this node first saw it complete.
    complete: Option<(i64, Duration)>,
}

#[derive(Debug, Clone, Copy)]
struct Sighting {
    heartbeat: Timestamp,
    /// When this heartbeat was first seen.
    seen_at: Duration,
    /// The start of the silence that counts.
    silent_since: Duration,
    /// Whether it was written after the first read.
    is_new: bool,
    /// How much older the heartbeat is than the newest heartbeat of a participant, if both were found at the first
    /// read.
    found_age: Duration,
    /// Whether it was found at the first read and is so old that the node may be dead.
    is_suspect: bool,
}

impl Observations {
    pub(crate) fn new(start: Now) -> Self {
        Self {
            start,
            peers: HashMap::new(),
            links: Links::new(start.monotonic),
            round: RoundTimes::default(),
            stored_round: RoundTimes::default(),
            read_at: None,
            had_outage: false,
            silence_counts_from: Duration::ZERO,
        }
    }

    /// The store is out of reach.
    pub(crate) fn on_outage(&mut self) {
        self.had_outage = true;
        self.links.on_outage();
    }

    /// Adopts a state that was just read or written.
    pub(crate) fn observe(
        &mut self,
        state: &RendezvousState,
        settings: &RendezvousSettings,
        now: Now,
    ) {
        let own_time = self.own_time(now);
        let dead_after = settings.dead_after();
        let is_first_read = self.read_at.is_none();
        let was_away = self
            .read_at
            .is_none_or(|at| now.monotonic.saturating_sub(at) > dead_after);
        self.read_at = Some(now.monotonic);
        if std::mem::take(&mut self.had_outage) {
            self.silence_counts_from = now.monotonic;
        }
        self.round = self.stored_round;
        self.peers
            .retain(|node, _| state.last_heartbeats.contains_key(node));
        // A node that was not listed at the last read must just have written.
        self.adopt(state, now, !is_first_read, |heartbeat| {
            was_away && own_time.since(heartbeat) > dead_after
        });
        self.stored_round = self.round;
    }

    /// Adopts a state that is still to be written. Another node may write first: then the same has to be decided on
    /// what that node has written, so nothing is forgotten.
    pub(crate) fn observe_draft(&mut self, state: &RendezvousState, now: Now) {
        self.adopt(state, now, true, |_| false);
    }

    /// The heartbeat of `me` in the state that was adopted last was written at `at` or later, unless it was known before.
    pub(crate) fn backdate(&mut self, me: &NodeId, at: Duration) {
        if let Some(sighting) = self.peers.get_mut(me) {
            sighting.seen_at = sighting.seen_at.min(at);
        }
    }

    fn adopt(
        &mut self,
        state: &RendezvousState,
        now: Now,
        is_new: bool,
        is_suspect: impl Fn(Timestamp) -> bool,
    ) {
        self.round.complete = match self.round.complete {
            _ if !state.complete => None,
            Some((round, since)) if round == state.round => Some((round, since)),
            _ => Some((state.round, now.monotonic)),
        };
        let participants = state.participants.keys();
        let newest = participants
            .filter_map(|node| state.last_heartbeats.get(node))
            .max()
            .filter(|_| !is_new);
        for (node, &heartbeat) in &state.last_heartbeats {
            let is_suspect = match self.peers.get(node) {
                Some(sighting) if sighting.heartbeat == heartbeat => continue,
                Some(_) => false,
                None => is_suspect(heartbeat),
            };
            let sighting = Sighting {
                heartbeat,
                seen_at: now.monotonic,
                silent_since: now.monotonic,
                is_new,
                found_age: newest.map_or(Duration::ZERO, |newest| newest.since(heartbeat)),
                is_suspect,
            };
            self.peers.insert(node.clone(), sighting);
            self.links.on_heartbeat(node, now.monotonic);
        }
        // A live member must see the complete round before a silent one is dropped. After this time it has
        // read the state, and so written a heartbeat, or it is silent itself.
        for (node, sighting) in &mut self.peers {
            let silent_since = match self.round.complete {
                Some((_, since)) if state.participants.contains_key(node) => {
                    self.links.on_complete(node, since);
                    sighting.seen_at.max(since)
                }
                _ => sighting.seen_at,
            };
            sighting.silent_since = silent_since.max(self.silence_counts_from);
        }
        match (state.deadline, self.round.deadline) {
            (None, _) => self.round.deadline = None,
            (Some(deadline), Some((known, _))) if deadline == known => {}
            (Some(deadline), _) => self.round.deadline = Some((deadline, now.monotonic)),
        }
    }

    /// The listed nodes other than `me` that had been silent for too long at `moment`, or have lost their connection,
    /// longest silence first.
    ///
    /// `moment` is when the current state was requested, not when it arrived: this process may have been
    /// stopped in between and missed later heartbeats.
    pub(crate) fn silent(
        &self,
        me: &NodeId,
        settings: &RendezvousSettings,
        moment: Duration,
    ) -> Vec<LostNode> {
        let mut silent: Vec<LostNode> = self
            .peers
            .iter()
            .filter(|(node, _)| *node != me)
            .filter_map(|(node, sighting)| {
                let lost_since = self.links.lost_since(node);
                let is_silent = sighting.silence(settings).is_lost(moment);
                (is_silent || lost_since.is_some()).then(|| {
                    let since = lost_since.unwrap_or(sighting.seen_at);
                    LostNode {
                        node: node.clone(),
                        silence: moment.saturating_sub(since),
                        is_disconnected: lost_since.is_some(),
                    }
                })
            })
            .collect();
        silent.sort_by(|a, b| (b.silence, &a.node).cmp(&(a.silence, &b.node)));
        silent
    }

    /// Returns for how long `node` has written no new heartbeat, although it could; `None` if it was not listed.
    pub(crate) fn silence_of(&self, node: &NodeId, moment: Duration) -> Option<Duration> {
        let sighting = self.peers.get(node)?;
        if self.had_outage {
            return Some(Duration::ZERO);
        }
        let since = sighting.seen_at.max(self.silence_counts_from);
        Some(moment.saturating_sub(since))
    }

    /// Returns the minimum age of the last heartbeat of `node` at `moment`; `None` if it was not listed. For a
    /// heartbeat that was found at the first read, the age is wrong by the difference between the clocks of the
    /// participants, which follow the fastest clock.
    pub(crate) fn age_of(&self, node: &NodeId, moment: Duration) -> Option<Duration> {
        let found_age = self.peers.get(node)?.found_age;
        Some(self.silence_of(node, moment)?.saturating_add(found_age))
    }

    /// The participants found at the first read with a heartbeat so old that they are dead or have a slow
    /// clock. Within [`RendezvousSettings::dead_after`] each writes or is silent. Until then no round may be
    /// completed with them.
    pub(crate) fn suspects<'s>(
        &'s self,
        state: &'s RendezvousState,
        me: &'s NodeId,
    ) -> impl Iterator<Item = &'s NodeId> {
        state.participants.keys().filter(move |node| {
            *node != me
                && self
                    .peers
                    .get(*node)
                    .is_some_and(|sighting| sighting.is_suspect)
        })
    }

    /// When the next heartbeat of `me` is due, if it has one.
    pub(crate) fn heartbeat_due_at(
        &self,
        me: &NodeId,
        settings: &RendezvousSettings,
    ) -> Option<Duration> {
        let sighting = self.peers.get(me)?;
        Some(
            sighting
                .seen_at
                .saturating_add(settings.keep_alive_interval),
        )
    }

    /// When the last call ends: its timeout after this node first saw it.
    pub(crate) fn last_call_ends_at(&self, settings: &RendezvousSettings) -> Option<Duration> {
        let begun_at = self.last_call_begun_at()?;
        Some(begun_at.saturating_add(settings.last_call_timeout))
    }

    /// When this node first saw the round complete.
    pub(crate) fn complete_since(&self) -> Option<Duration> {
        self.round.complete.map(|(_, since)| since)
    }

    /// When this node first saw the current last call.
    pub(crate) fn last_call_begun_at(&self) -> Option<Duration> {
        self.round.deadline.map(|(_, seen_at)| seen_at)
    }

    /// Returns when the next node will be silent for too long, without the nodes that already are at `moment`.
    pub(crate) fn next_silence_at(
        &self,
        me: &NodeId,
        settings: &RendezvousSettings,
        moment: Duration,
    ) -> Option<Duration> {
        let others = self.peers.iter().filter(|(node, _)| *node != me);
        let silences = others.map(|(_, sighting)| sighting.silence(settings));
        let lost_at = silences.filter_map(|silence| silence.lost_at());
        lost_at.filter(|at| *at > moment).min()
    }

    /// The time to write as a heartbeat or deadline.
    ///
    /// PyTorch's nodes compare it with their wall clocks. So it never jumps, and is not behind any node that
    /// was seen writing: then a PyTorch node with a fast clock does not drop this one.
    pub(crate) fn time_to_write(&self, now: Now) -> Timestamp {
        let own = self.own_time(now);
        let fastest = self
            .peers
            .values()
            .filter(|sighting| sighting.is_new)
            .map(|sighting| {
                let age = now.monotonic.saturating_sub(sighting.seen_at);
                sighting.heartbeat.after(age)
            })
            .max();
        match fastest {
            Some(fastest) if fastest > own => fastest.min(own.after(LEAD_MAX)),
            _ => own,
        }
    }

    /// The wall clock at the start, advanced by the monotonic clock.
    fn own_time(&self, now: Now) -> Timestamp {
        self.start
            .wall
            .after(now.monotonic.saturating_sub(self.start.monotonic))
    }
}

impl Sighting {
    fn silence(&self, settings: &RendezvousSettings) -> Silence<Duration> {
        // PyTorch also keeps a node that has been silent for exactly this time.
        let longer = settings
            .dead_after()
            .saturating_add(Duration::from_nanos(1));
        Silence::new(self.silent_since, longer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn start() -> Now {
        Now {
            monotonic: Duration::from_secs(100),
            wall: Timestamp::from_micros(1_800_000_000_000_000),
        }
    }

    fn settings() -> RendezvousSettings {
        RendezvousSettings::for_test(1, 4)
    }

    fn node(name: &str) -> NodeId {
        NodeId::new(name, 1, 0)
    }

    fn state_of(nodes: &[(&NodeId, Timestamp)]) -> RendezvousState {
        let mut state = RendezvousState::default();
        for (node, heartbeat) in nodes {
            state.participants.insert((*node).clone(), 0);
            state.last_heartbeats.insert((*node).clone(), *heartbeat);
        }
        state
    }

    /// docs/spec/rendezvous.md, CLOCK 1.
    #[test]
    fn a_peer_whose_heartbeat_keeps_changing_is_alive_whatever_its_clock_says() {
        let (me, peer) = (node("me"), node("peer"));
        let mut observations = Observations::new(start());
        for step in 0..20_u32 {
            let now = start().after(SECOND * 5 * step);
            // An hour behind, and running backwards.
            let heartbeat = start().wall.before(SECOND * (3600 + step));
            observations.observe(&state_of(&[(&peer, heartbeat)]), &settings(), now);
            assert_eq!(observations.silent(&me, &settings(), now.monotonic), []);
        }
    }

    /// docs/spec/rendezvous.md, OUTAGE 4.
    #[test]
    fn after_an_outage_silence_counts_from_the_first_read() {
        let (me, peer) = (node("me"), node("peer"));
        let mut observations = Observations::new(start());
        let state = state_of(&[(&peer, start().wall), (&me, start().wall)]);
        observations.observe(&state, &settings(), start());
        observations.on_outage();
        let back = start().after(SECOND * 100);
        observations.observe(&state, &settings(), back);
        for (seconds, is_silent) in [(0, false), (15, false), (16, true)] {
            let now = back.after(SECOND * seconds);
            observations.observe(&state, &settings(), now);
            let silent = observations.silent(&me, &settings(), now.monotonic);
            assert_eq!(silent.len(), usize::from(is_silent), "after {seconds} s");
        }
    }

    /// docs/spec/rendezvous.md, CLOCK 1.
    #[test]
    fn a_peer_without_new_heartbeats_is_silent_after_three_intervals_of_the_own_clock() {
        let (me, peer) = (node("me"), node("peer"));
        let mut observations = Observations::new(start());
        // An hour ahead: PyTorch would keep it for an hour.
        let state = state_of(&[
            (&peer, start().wall.after(SECOND * 3600)),
            (&me, start().wall),
        ]);
        observations.observe(&state, &settings(), start());
        let late = start().after(SECOND * 15);
        observations.observe(&state, &settings(), late);
        assert_eq!(observations.silent(&me, &settings(), late.monotonic), []);
        let late = start().after(SECOND * 16);
        let expected = [LostNode::new(peer, SECOND * 16)];
        assert_eq!(
            observations.silent(&me, &settings(), late.monotonic),
            expected
        );
    }

    /// docs/spec/rendezvous.md, SPARE 3.
    #[test]
    fn a_found_heartbeat_is_as_old_as_the_newest_one_tells_whatever_the_own_clock_says() {
        let (late, peer) = (node("late"), node("peer"));
        let mut observations = Observations::new(start());
        let elsewhere = start().wall.before(SECOND * 3600);
        let heartbeat = elsewhere.before(SECOND * 9);
        let mut state = state_of(&[(&peer, elsewhere), (&late, heartbeat)]);
        observations.observe(&state, &settings(), start());
        let age = |observations: &Observations, seconds| {
            observations.age_of(&late, start().after(SECOND * seconds).monotonic)
        };
        assert_eq!(age(&observations, 0), Some(SECOND * 9));
        assert_eq!(age(&observations, 2), Some(SECOND * 11));
        // The peer has now been seen writing. Its clock may be a newcomer's, which the peer follows.
        let written = start().after(SECOND * 3);
        state.last_heartbeats.insert(peer.clone(), written.wall);
        observations.observe(&state, &settings(), written);
        assert_eq!(age(&observations, 3), Some(SECOND * 12));
        state
            .last_heartbeats
            .insert(late.clone(), heartbeat.after(SECOND));
        observations.observe(&state, &settings(), written);
        assert_eq!(age(&observations, 3), Some(Duration::ZERO));
        observations.observe(&state_of(&[]), &settings(), written);
        assert_eq!(age(&observations, 4), None);
    }

    /// docs/spec/rendezvous.md, CLOCK 4.
    #[test]
    fn a_wall_clock_that_jumps_changes_nothing() {
        let (me, peer) = (node("me"), node("peer"));
        let mut observations = Observations::new(start());
        let state = state_of(&[(&peer, start().wall), (&me, start().wall)]);
        observations.observe(&state, &settings(), start());
        let jumped = Now {
            monotonic: start().monotonic + SECOND,
            wall: start().wall.after(SECOND * 86_400),
        };
        observations.observe(&state, &settings(), jumped);
        assert_eq!(observations.silent(&me, &settings(), jumped.monotonic), []);
        let due = observations.heartbeat_due_at(&me, &settings());
        assert!(due.is_some_and(|due| due > jumped.monotonic));
        assert_eq!(
            observations.time_to_write(jumped),
            start().wall.after(SECOND)
        );
    }

    #[test]
    fn an_old_heartbeat_is_suspect_until_it_changes() {
        let (me, peer) = (node("me"), node("peer"));
        let mut observations = Observations::new(start());
        let old = start().wall.before(SECOND * 60);
        let state = state_of(&[(&peer, old)]);
        observations.observe(&state, &settings(), start());
        assert_eq!(
            observations.suspects(&state, &me).collect::<Vec<_>>(),
            [&peer]
        );
        let state = state_of(&[(&peer, old.after(SECOND))]);
        observations.observe(&state, &settings(), start().after(SECOND));
        assert_eq!(observations.suspects(&state, &me).next(), None);
    }

    #[test]
    fn a_fresh_heartbeat_is_not_suspect() {
        let (me, peer) = (node("me"), node("peer"));
        let mut observations = Observations::new(start());
        let state = state_of(&[(&peer, start().wall.before(SECOND * 14))]);
        observations.observe(&state, &settings(), start());
        assert_eq!(observations.suspects(&state, &me).next(), None);
    }

    /// docs/spec/rendezvous.md, CLOCK 4.
    #[test]
    fn written_times_follow_a_peer_that_is_ahead_by_up_to_an_hour() {
        let peer = node("peer");
        let mut observations = Observations::new(start());
        let ahead = start().wall.after(SECOND * 60);
        observations.observe(&state_of(&[(&peer, ahead)]), &settings(), start());
        // There is no evidence yet: a clock further ahead may have written it long ago.
        assert_eq!(observations.time_to_write(start()), start().wall);
        let now = start().after(SECOND * 5);
        let state = state_of(&[(&peer, ahead.after(SECOND * 5))]);
        observations.observe(&state, &settings(), now);
        let now = start().after(SECOND * 7);
        assert_eq!(
            observations.time_to_write(now),
            start().wall.after(SECOND * 67)
        );
        observations.observe(&state_of(&[(&peer, Timestamp::MAX)]), &settings(), now);
        assert_eq!(
            observations.time_to_write(now),
            start().wall.after(SECOND * 7 + LEAD_MAX)
        );
    }

    #[test]
    fn the_last_call_lasts_from_when_it_was_first_seen() {
        let mut observations = Observations::new(start());
        let mut state = state_of(&[]);
        state.deadline = Some(start().wall.before(SECOND * 60));
        observations.observe(&state, &settings(), start());
        observations.observe(&state, &settings(), start().after(SECOND));
        let end = start().monotonic + settings().last_call_timeout;
        assert_eq!(observations.last_call_ends_at(&settings()), Some(end));
        state.deadline = Some(start().wall);
        observations.observe(&state, &settings(), start().after(SECOND * 2));
        assert_eq!(
            observations.last_call_ends_at(&settings()),
            Some(end + SECOND * 2)
        );
        state.deadline = None;
        observations.observe(&state, &settings(), start().after(SECOND * 3));
        assert_eq!(observations.last_call_ends_at(&settings()), None);
    }
}
