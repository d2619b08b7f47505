//! Which nodes run workers in which world: no two worlds exist at once for long.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;

/// How much longer than keep-alive the workers of an earlier world may run.
const GRACE: Duration = Duration::from_secs(5);

/// A world: how often the store had been emptied, and the round.
pub(super) type World = (u32, i64);

/// The nodes whose launchers can act and whose workers run.
#[derive(Debug, Default)]
pub(super) struct Worlds {
    /// The world of each node, with the time when its workers started: a node that paused in its join may
    /// start them late.
    running: BTreeMap<NodeId, (World, Duration)>,
    /// The latest world, and when its first workers started.
    latest: Option<(World, Duration)>,
}

impl Worlds {
    pub(super) fn on_start(&mut self, node: &NodeId, world: World, now: Duration) {
        self.running.insert(node.clone(), (world, now));
        if self.latest.is_none_or(|(latest, _)| latest < world) {
            self.latest = Some((world, now));
        }
    }

    pub(super) fn on_stop(&mut self, node: &NodeId) {
        self.running.remove(node);
    }

    /// docs/spec/rendezvous.md, OUTAGE 3.
    pub(super) fn check(&self, settings: &RendezvousSettings, now: Duration) {
        let Some((latest, since)) = self.latest else {
            return;
        };
        if now.saturating_sub(since) <= settings.dead_after() + GRACE {
            return;
        }
        for (node, (world, started)) in &self.running {
            let time = now - since.max(*started);
            assert!(
                *world == latest || time <= settings.dead_after() + GRACE,
                "{node} runs workers in world {world:?} for {time:?} since world {latest:?} began"
            );
        }
    }
}
