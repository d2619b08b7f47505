//! What the measurement and its processes of nodes tell each other: one JSON object a line, on the standard
//! input and output of the processes. Times are of the [clock](super::kernel::now) of all processes.

use std::time::Duration;

use clap::ValueEnum;
use elastic_rendezvous::Traffic;
use serde::{Deserialize, Serialize};

/// From the measurement to a process of nodes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// All nodes of the process join at once. Answered by [`Report::Joined`].
    Start,
    /// Answered by [`Report::Sum`].
    Sum,
    /// Answered by [`Report::Lost`].
    Lost,
    /// The node `victim` will be killed. Answered by [`Report::Watching`], then by [`Report::Told`], and by
    /// [`Report::Heartbeat`] if it is in this process.
    Watch { victim: String },
    /// All nodes of the process end at once. Answered by [`Report::Ended`].
    End(End),
}

/// How nodes end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum End {
    /// As launchers do when the job is over.
    Close,
    /// As launchers do after a signal.
    Leave,
}

/// From a process of nodes to the measurement.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// All nodes are connected, and their threads wait for [`Order::Start`].
    Connected,
    /// Some more nodes know their ranks.
    Joined(Joined),
    /// The sums over all nodes of the process.
    Sum(Sum),
    /// The addresses of all nodes that are no longer in the round, as far as a node of this process knows, and
    /// of those that cannot tell.
    Lost {
        addrs: Vec<String>,
    },
    Watching,
    /// The node to be killed has written a heartbeat.
    Heartbeat {
        at: Duration,
    },
    /// Some more nodes know that the killed node is lost.
    Told(Told),
    /// All nodes of the process have ended, the last one at this time.
    Ended {
        at: Duration,
    },
    /// The process cannot continue.
    Failed {
        text: String,
    },
}

/// Nodes that know their ranks.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Joined {
    /// When the last of them knew it.
    pub(super) last_at: Duration,
    pub(super) ranks: Vec<usize>,
    /// The distinct rounds of the nodes, which should be one.
    pub(super) worlds: Vec<World>,
}

/// A round as a node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct World {
    pub(super) round: i64,
    pub(super) nodes: usize,
    /// The address of the workers' store.
    pub(super) master: String,
}

/// Counters of backends.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Sum {
    pub(super) writes_tried: u64,
    pub(super) writes_done: u64,
    pub(super) state_bytes: u64,
}

/// Nodes that know that the killed node is lost.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) nodes: usize,
    pub(super) first_at: Duration,
    pub(super) last_at: Duration,
}

impl Joined {
    pub(super) fn add(&mut self, rank: usize, world: World, at: Duration) {
        self.merge(Self {
            last_at: at,
            ranks: vec![rank],
            worlds: vec![world],
        });
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.last_at = self.last_at.max(other.last_at);
        self.ranks.extend(other.ranks);
        for world in other.worlds {
            if !self.worlds.contains(&world) {
                self.worlds.push(world);
            }
        }
    }
}

impl Sum {
    pub(super) fn of(traffic: &Traffic) -> Self {
        Self {
            writes_tried: traffic.writes_tried(),
            writes_done: traffic.writes_done(),
            state_bytes: traffic.bytes(),
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.writes_tried += other.writes_tried;
        self.writes_done += other.writes_done;
        self.state_bytes += other.state_bytes;
    }
}

impl Told {
    pub(super) fn add(&mut self, at: Duration) {
        self.merge(&Self {
            nodes: 1,
            first_at: at,
            last_at: at,
        });
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.first_at = if self.nodes == 0 {
            other.first_at
        } else {
            self.first_at.min(other.first_at)
        };
        self.last_at = self.last_at.max(other.last_at);
        self.nodes += other.nodes;
    }
}
