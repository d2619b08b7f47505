//! Who is alive, judged by what this node has seen with its own clock.
//!
//! PyTorch compares the times that other nodes write with its own wall clock, so a clock that is a
//! minute wrong evicts healthy nodes. Here a node is alive while what it writes keeps **changing**: for
//! how long it has not, the monotonic clock tells. What the others write is never compared with a clock
//! of ours, but for one question: whether a time that was there before we came looks so old that we had
//! better wait and see (see [`Observations::suspects`]).
//!
//! Holds nothing about rules (`decide`) and removes nobody (`apply`).

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Now;
use crate::node::NodeId;
use crate::settings::RendezvousSettings;
use crate::state::RendezvousState;
use crate::timestamp::Timestamp;

/// By how much we follow the clock of a peer that is ahead of ours; beyond that the peer is wrong.
const LEAD_MAX: Duration = Duration::from_secs(3600);

/// What a node has seen of the others so far, and when, by its own monotonic clock.
#[derive(Debug, Clone)]
pub(crate) struct Observations {
    /// The moment this node began to look; from here its own wall clock is carried on monotonically.
    start: Now,
    peers: HashMap<NodeId, Sighting>,
    deadline: Option<(Timestamp, Duration)>,
    /// The round, if it is complete, and since when we have known that.
    complete: Option<(i64, Duration)>,
    /// When we last looked.
    looked_at: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct Sighting {
    heartbeat: Timestamp,
    /// When we first saw this heartbeat.
    seen_at: Duration,
    /// From when on its silence counts.
    counted_from: Duration,
    /// Whether it was written since we began to look: we know what was there before.
    is_news: bool,
    /// Whether it may have been written long ago: it was there when we came, and looks too old.
    looked_dead: bool,
}

/// A node that has been silent for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Silent {
    pub(crate) node: NodeId,
    pub(crate) silence: Duration,
}

impl Observations {
    pub(crate) fn new(start: Now) -> Self {
        Self {
            start,
            peers: HashMap::new(),
            deadline: None,
            complete: None,
            looked_at: None,
        }
    }

    /// Takes note of a state that was just read.
    pub(crate) fn observe(
        &mut self,
        state: &RendezvousState,
        settings: &RendezvousSettings,
        now: Now,
    ) {
        let own_time = self.own_time(now);
        let dead_after = settings.dead_after();
        let is_first_look = self.looked_at.is_none();
        let was_away = self
            .looked_at
            .is_none_or(|at| now.monotonic.saturating_sub(at) > dead_after);
        self.looked_at = Some(now.monotonic);
        self.complete = match self.complete {
            _ if !state.complete => None,
            Some((round, since)) if round == state.round => Some((round, since)),
            _ => Some((state.round, now.monotonic)),
        };
        self.peers
            .retain(|node, _| state.last_heartbeats.contains_key(node));
        for (node, &heartbeat) in &state.last_heartbeats {
            let looked_dead = match self.peers.get(node) {
                Some(sighting) if sighting.heartbeat == heartbeat => continue,
                Some(_) => false,
                // Of a node that was not there a moment ago we know that it has just written.
                None => was_away && own_time.since(heartbeat) > dead_after,
            };
            let sighting = Sighting {
                heartbeat,
                seen_at: now.monotonic,
                counted_from: now.monotonic,
                is_news: !is_first_look,
                looked_dead,
            };
            self.peers.insert(node.clone(), sighting);
        }
        // A member of a complete round that has not looked since it became complete must find it
        // whole. When this time is over it has looked, and so written, or is silent itself.
        for (node, sighting) in &mut self.peers {
            sighting.counted_from = match self.complete {
                Some((_, since)) if state.participants.contains_key(node) => {
                    sighting.seen_at.max(since)
                }
                _ => sighting.seen_at,
            };
        }
        match (state.deadline, self.deadline) {
            (None, _) => self.deadline = None,
            (Some(deadline), Some((known, _))) if deadline == known => {}
            (Some(deadline), _) => self.deadline = Some((deadline, now.monotonic)),
        }
    }

    /// The nodes but `me` whose heartbeat had not changed for too long at `moment`, longest silence
    /// first.
    ///
    /// The moment is the one at which the present state was asked for, not the one at which it came:
    /// this node may have been stopped in between, and has not seen what the others wrote meanwhile.
    pub(crate) fn silent(
        &self,
        me: &NodeId,
        settings: &RendezvousSettings,
        moment: Duration,
    ) -> Vec<Silent> {
        let mut silent: Vec<Silent> = self
            .peers
            .iter()
            .filter(|(node, _)| *node != me)
            .filter(|(_, sighting)| sighting.is_silent_at(moment, settings))
            .map(|(node, sighting)| Silent {
                node: node.clone(),
                silence: moment.saturating_sub(sighting.seen_at),
            })
            .collect();
        silent.sort_by(|a, b| (b.silence, &a.node).cmp(&(a.silence, &b.node)));
        silent
    }

    /// For how long `node` has written nothing new; `None` when it is not listed, as far as we know.
    pub(crate) fn silence_of(&self, node: &NodeId, moment: Duration) -> Option<Duration> {
        let sighting = self.peers.get(node)?;
        Some(moment.saturating_sub(sighting.seen_at))
    }

    /// The participants that were there before we came, whose time looks so old that they may be long
    /// dead, or have a slow clock. Within [`RendezvousSettings::dead_after`] each either writes, or
    /// is silent. Until then a round must not be completed with them.
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
                    .is_some_and(|sighting| sighting.looked_dead)
        })
    }

    /// Whether `me` has a heartbeat that is at least one interval old.
    pub(crate) fn heartbeat_due(
        &self,
        me: &NodeId,
        settings: &RendezvousSettings,
        now: Now,
    ) -> bool {
        self.heartbeat_due_at(me, settings)
            .is_some_and(|due| due <= now.monotonic)
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

    /// When the last call ends: as long after we first saw it as we would let it last.
    pub(crate) fn last_call_ends_at(&self, settings: &RendezvousSettings) -> Option<Duration> {
        let begun_at = self.last_call_begun_at()?;
        Some(begun_at.saturating_add(settings.last_call_timeout))
    }

    /// When we first saw the present last call.
    pub(crate) fn last_call_begun_at(&self) -> Option<Duration> {
        self.deadline.map(|(_, seen_at)| seen_at)
    }

    /// When the next of the others will have been silent for too long, if it stays so. Those that are
    /// silent at `moment` already do not count.
    pub(crate) fn next_silence_at(
        &self,
        me: &NodeId,
        settings: &RendezvousSettings,
        moment: Duration,
    ) -> Option<Duration> {
        self.peers
            .iter()
            .filter(|(node, sighting)| *node != me && !sighting.is_silent_at(moment, settings))
            .map(|(_, sighting)| sighting.counted_from)
            .min()
            .map(|from| from.saturating_add(settings.dead_after()))
    }

    /// The time to write, as a heartbeat or as a deadline.
    ///
    /// PyTorch's nodes compare it with their wall clocks. So it never jumps, and it is not behind the
    /// clock of any node that was seen writing lately: a node with a fast clock does not take us for
    /// dead.
    pub(crate) fn time_to_write(&self, now: Now) -> Timestamp {
        let own = self.own_time(now);
        let fastest = self
            .peers
            .values()
            .filter(|sighting| sighting.is_news)
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

    /// The wall clock of the start, carried on by the monotonic clock.
    fn own_time(&self, now: Now) -> Timestamp {
        self.start
            .wall
            .after(now.monotonic.saturating_sub(self.start.monotonic))
    }
}

impl Sighting {
    fn is_silent_at(&self, moment: Duration, settings: &RendezvousSettings) -> bool {
        moment.saturating_sub(self.counted_from) > settings.dead_after()
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

    #[test]
    fn a_peer_whose_heartbeat_keeps_changing_is_alive_whatever_its_clock_says() {
        let (me, peer) = (node("me"), node("peer"));
        let mut observations = Observations::new(start());
        for step in 0..20_u32 {
            let now = start().after(SECOND * 5 * step);
            // An hour behind, and not even forwards.
            let heartbeat = start().wall.before(SECOND * (3600 + step));
            observations.observe(&state_of(&[(&peer, heartbeat)]), &settings(), now);
            assert_eq!(observations.silent(&me, &settings(), now.monotonic), []);
        }
    }

    #[test]
    fn a_peer_that_writes_nothing_new_is_silent_after_three_intervals_of_our_own_clock() {
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
        let expected = [Silent {
            node: peer,
            silence: SECOND * 16,
        }];
        assert_eq!(
            observations.silent(&me, &settings(), late.monotonic),
            expected
        );
    }

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
        assert!(!observations.heartbeat_due(&me, &settings(), jumped));
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

    #[test]
    fn what_we_write_keeps_up_with_a_peer_that_is_ahead_but_not_with_nonsense() {
        let peer = node("peer");
        let mut observations = Observations::new(start());
        let ahead = start().wall.after(SECOND * 60);
        observations.observe(&state_of(&[(&peer, ahead)]), &settings(), start());
        // It may have been written long ago by a clock further ahead: not evidence yet.
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
