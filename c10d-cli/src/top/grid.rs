//! How ranks are laid out as a grid of cells that fits on the screen.

use std::ops::Range;

/// The columns of a line's first rank.
pub(super) const LABEL_COLUMNS: usize = 8;

/// Lines hold multiples of this, so that their labels are easy to count from.
const CELLS_STEP: usize = 16;

/// A grid. A cell stands for one rank, or for several consecutive ones if the screen is too small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    ranks: usize,
    pub(super) cells_per_line: usize,
    pub(super) ranks_per_cell: usize,
}

impl Grid {
    /// The grid of `ranks` ranks on `columns` times `lines` characters, labels included.
    pub(super) fn new(ranks: usize, columns: usize, lines: usize) -> Self {
        let room = columns.saturating_sub(LABEL_COLUMNS).max(1);
        let cells_per_line = match room / CELLS_STEP {
            0 => room,
            steps => steps * CELLS_STEP,
        };
        let room = cells_per_line.saturating_mul(lines.max(1));
        let mut ranks_per_cell = 1;
        while ranks.div_ceil(ranks_per_cell) > room {
            ranks_per_cell *= 2;
        }
        Self {
            ranks,
            cells_per_line,
            ranks_per_cell,
        }
    }

    pub(super) const fn cells(&self) -> usize {
        self.ranks.div_ceil(self.ranks_per_cell)
    }

    /// The cell of a rank.
    pub(super) const fn cell_of(&self, rank: usize) -> usize {
        rank / self.ranks_per_cell
    }

    /// The ranks in a cell.
    pub(super) fn ranks_in(&self, cell: usize) -> Range<usize> {
        let first = cell * self.ranks_per_cell;
        first..(first + self.ranks_per_cell).min(self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_in_one_cell_of_a_grid_that_fits() {
        for ranks in [0, 1, 17, 1000, 16_384, 100_000] {
            for (columns, lines) in [(80, 24), (200, 100), (9, 1), (0, 0), (25, 3)] {
                let grid = Grid::new(ranks, columns, lines);
                assert!(grid.cells() <= grid.cells_per_line * lines.max(1));
                assert!(grid.cells_per_line + LABEL_COLUMNS <= columns.max(LABEL_COLUMNS + 1));
                let covered = (0..grid.cells()).flat_map(|cell| grid.ranks_in(cell));
                assert!(covered.eq(0..ranks));
                for rank in 0..ranks.min(100) {
                    assert!(grid.ranks_in(grid.cell_of(rank)).contains(&rank));
                }
            }
        }
    }

    #[test]
    fn a_large_screen_shows_16_384_ranks_in_a_cell_each() {
        assert_eq!(Grid::new(16_384, 200, 90).ranks_per_cell, 1);
        assert_eq!(Grid::new(16_384, 80, 20).ranks_per_cell, 16);
    }
}
