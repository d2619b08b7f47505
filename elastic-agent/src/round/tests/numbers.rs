//! The numbers of the processes of a simulated round: docs/spec/rendezvous.md, PLACES 2.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use c10d_store::HashStore;
use elastic_rendezvous::RoundBoard;

use super::world::World;
use crate::places::{self, Identity, Place};
use crate::ranks::RankBlock;

/// The board of a round, and the numbers that its processes have got.
#[derive(Debug)]
pub(super) struct Numbers {
    board: RoundBoard,
    serials: BTreeSet<u64>,
    /// The newest incarnation of each rank.
    incarnations: BTreeMap<usize, u64>,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            board: RoundBoard::new(Arc::new(HashStore::new())),
            serials: BTreeSet::new(),
            incarnations: BTreeMap::new(),
        }
    }
}

impl Numbers {
    /// Two processes never have the same numbers, and the incarnations of a worker ascend.
    fn check(&mut self, rank: usize, process: Identity) {
        assert!(self.serials.insert(process.serial), "{process:?} repeats");
        let last = self.incarnations.insert(rank, process.incarnation);
        assert!(
            last.is_none_or(|last| last < process.incarnation),
            "rank {rank}: {process:?} follows incarnation {last:?}"
        );
    }
}

impl World {
    /// A node numbers the workers that it is about to start.
    pub(super) fn number_workers(&mut self, index: usize) {
        if self.keep.is_none() {
            return;
        }
        let place = self.place(index);
        let workers = self.nodes[index].exits.len();
        let processes = match self.nodes[index].has_entered {
            false => places::first_identities(&place, workers),
            true => {
                let board = &self.numbers.board;
                places::next_identities(board, place.first_size, workers).unwrap()
            }
        };
        for (rank, process) in (place.ranks.first_rank..).zip(processes) {
            self.numbers.check(rank, process);
        }
    }

    pub(super) fn number_again(&mut self, index: usize, local_rank: usize) {
        let place = self.place(index);
        let next = places::next_identities(&self.numbers.board, place.first_size, 1).unwrap();
        self.numbers
            .check(place.ranks.first_rank + local_rank, next[0]);
    }

    fn place(&self, index: usize) -> Place {
        let (nodes, workers) = (self.nodes.len(), self.nodes[index].exits.len());
        Place {
            ranks: RankBlock::identical(index, nodes, workers),
            first_size: nodes * workers,
        }
    }
}
