//! The starts of the processes of a round, simulated or not: docs/spec/rendezvous.md, PLACES 2.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use c10d_store::HashStore;
use elastic_rendezvous::RoundBoard;

use super::world::World;
use crate::places::{self, Place, ProcessId};
use crate::ranks::{RankBlock, RoleInfo};

/// The board of a round, and the starts of the processes of its group.
#[derive(Debug)]
pub(super) struct Numbers {
    board: RoundBoard,
    /// All numbers of starts, and the newest of each rank.
    starts: BTreeSet<u64>,
    newest: BTreeMap<usize, ProcessId>,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            board: RoundBoard::new(Arc::new(HashStore::new())),
            starts: BTreeSet::new(),
            newest: BTreeMap::new(),
        }
    }
}

fn node(local_world_size: usize) -> RoleInfo {
    let role = "trainer".to_owned();
    RoleInfo {
        role,
        local_world_size,
    }
}

/// The place of a node in a round of nodes with this many workers each.
fn place(index: usize, nodes: usize, workers: usize) -> Place {
    Place {
        ranks: RankBlock::identical(index, nodes, workers),
        first_size: nodes * workers,
    }
}

impl Numbers {
    /// Two processes never have the same number, and the incarnations of a worker ascend.
    fn check(&mut self, process: ProcessId) {
        assert!(self.starts.insert(process.start), "{process:?} repeats");
        let last = self.newest.insert(process.rank, process);
        assert!(
            last.is_none_or(|last| last.member().incarnation < process.member().incarnation),
            "{process:?} follows {last:?}"
        );
    }

    /// A node starts all its workers.
    fn start(&mut self, index: usize, has_entered: bool, place: &Place, workers: usize) {
        let node = node(workers);
        let processes = places::occupy(&self.board, index, has_entered, place, &node).unwrap();
        let ranks = processes.iter().map(|process| process.rank);
        let first = place.ranks.first_rank;
        assert!(ranks.eq(first..first + workers), "{processes:?}");
        for process in processes {
            self.check(process);
        }
    }

    fn replace(&mut self, place: &Place, local_rank: usize) {
        let next = places::next_starts(&self.board, place.first_size, 1).unwrap();
        self.check(ProcessId {
            rank: place.ranks.first_rank + local_rank,
            start: next.start,
        });
    }
}

impl World {
    /// A node numbers the workers that it is about to start.
    pub(super) fn number_workers(&mut self, index: usize) {
        if self.keep.is_none() {
            return;
        }
        let (place, node) = (self.place(index), &self.nodes[index]);
        let workers = node.exits.len();
        self.numbers.start(index, node.has_entered, &place, workers);
    }

    pub(super) fn number_again(&mut self, index: usize, local_rank: usize) {
        let place = self.place(index);
        self.numbers.replace(&place, local_rank);
    }

    fn place(&self, index: usize) -> Place {
        place(index, self.nodes.len(), self.nodes[index].exits.len())
    }
}

const WORKERS: usize = 2;

/// The next event in a round of two nodes, which a third node can enter.
#[derive(Debug, Clone, Copy)]
enum Next {
    /// The node with this group rank starts all its workers without entering: in a static round its launcher does so when the
    /// workers were stopped, and another launcher when the node itself was started again.
    Starts(usize),
    /// A node enters the running round in the place with this group rank.
    Enters(usize),
    Replaces(usize),
    /// A node finds that the group has ended, and names the next one.
    EndsGroup,
}

const ALL: [Next; 8] = [
    Next::Starts(0),
    Next::Starts(1),
    Next::Enters(0),
    Next::Enters(1),
    Next::Enters(2),
    Next::Replaces(0),
    Next::Replaces(1),
    Next::EndsGroup,
];

/// Carries out a history in one round, static or not.
fn carry_out(history: &[Next]) {
    let mut numbers = Numbers::default();
    let mut name = places::group(&numbers.board, None, "job/0/0").unwrap();
    for (turn, next) in history.iter().enumerate() {
        match *next {
            Next::Starts(index) => {
                numbers.start(index, false, &place(index, 2, WORKERS), WORKERS);
            }
            Next::Enters(index) => {
                // Before a node has started, no node can enter.
                if let Ok(place) = places::take(&numbers.board, index, &node(WORKERS)) {
                    numbers.start(index, true, &place, WORKERS);
                }
            }
            Next::Replaces(index) => {
                let place = place(index, 2, WORKERS);
                if numbers.newest.contains_key(&place.ranks.first_rank) {
                    numbers.replace(&place, 0);
                }
            }
            Next::EndsGroup => {
                let fresh = format!("job/0/{}", turn + 1);
                name = places::group(&numbers.board, Some(&name), &fresh).unwrap();
                assert_eq!(name, fresh);
                // Processes of another group can have the same numbers.
                numbers.starts.clear();
                numbers.newest.clear();
            }
        }
    }
}

#[test]
fn no_history_of_a_round_gives_a_number_twice() {
    const LENGTH: u32 = 5;
    let kinds = ALL.len();
    for number in 0..kinds.pow(LENGTH) {
        let history = (0..LENGTH).map(|turn| ALL[number / kinds.pow(turn) % kinds]);
        let history: Vec<Next> = history.collect();
        carry_out(&history);
    }
}

/// A node may return any number of times, in any way.
#[test]
fn a_node_that_returns_again_and_again_gives_no_number_twice() {
    let returns = [Next::Starts(1), Next::Replaces(1), Next::Enters(1)];
    let history: Vec<Next> = (0..300).map(|turn| returns[turn % 3]).collect();
    carry_out(&history);
}
