//! The exit barrier: nodes whose workers have all succeeded wait for the other nodes.
//!
//! The names are PyTorch's (`barrier` in `torch/distributed/elastic/utils/store.py`). [`round`](crate::round) decides how long
//! a node waits.

use std::time::Duration;

use c10d_socket::Cancel;
use c10d_store::StoreError;
use elastic_rendezvous::{BoardError, RoundBoard, Wait};

const COUNT: &str = "torchelastic/agent/terminal_state/num_members";
const LAST: &str = "torchelastic/agent/terminal_state/last_member";

/// Checks in, as one of `nodes`; `None` if that is not fixed, and [`open_if`] opens the barrier. Returns whether the barrier
/// is open.
///
/// The last node sends nothing after the request that opens the barrier, because that may be the end of the store.
pub(crate) fn check_in(
    board: &RoundBoard,
    nodes: impl Into<Option<usize>>,
) -> Result<bool, StoreError> {
    let arrived = board.count(COUNT, 1)?;
    if usize::try_from(arrived).ok() != nodes.into() {
        return is_open(board);
    }
    open(board)?;
    Ok(true)
}

/// Opens the barrier for all nodes if `nodes` nodes have checked in, because the remaining nodes are lost.
pub(crate) fn open_if(board: &RoundBoard, nodes: usize) -> Result<(), StoreError> {
    // The value that torchrun writes cannot be added to.
    if checked_in(board)? >= nodes && !is_open(board)? {
        open(board)?;
    }
    Ok(())
}

fn open(board: &RoundBoard) -> Result<(), StoreError> {
    // The answer of an addition precedes the answers of the waits that it ends, while a plain write needs a second request to
    // be certain. PyTorch's server without libuv wakes waits after an addition, but not after a compare-and-set.
    board.count(LAST, 1).map(drop)
}

/// Waits until all nodes have checked in, the time has passed, or `cancel` interrupts the wait. Returns whether all
/// nodes have checked in.
pub(crate) fn wait(
    board: &RoundBoard,
    timeout: Option<Duration>,
    cancel: &Cancel,
) -> Result<bool, BoardError> {
    let board_of_wait = board.with_cancel(cancel);
    match board_of_wait.await_one(LAST, "last member", Wait::new(timeout)) {
        Ok(_) => Ok(true),
        Err(BoardError::Missing { .. }) => Ok(false),
        // The barrier may have been opened at that moment.
        Err(BoardError::Interrupted) => Ok(is_open(board)?),
        Err(error) => Err(error),
    }
}

/// Whether all nodes have checked in. Does not wait for them.
fn is_open(board: &RoundBoard) -> Result<bool, StoreError> {
    board.has(LAST)
}

/// How many nodes of the round have checked in, that is, whose workers succeeded.
pub(crate) fn checked_in(board: &RoundBoard) -> Result<usize, StoreError> {
    board.counted(COUNT)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use c10d_store::HashStore;

    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(20));

    fn empty() -> RoundBoard {
        RoundBoard::new(Arc::new(HashStore::new()))
    }

    #[test]
    fn the_last_node_opens_the_barrier_for_all() {
        let board = empty();
        assert_eq!(checked_in(&board).unwrap(), 0);
        assert!(!check_in(&board, 2).unwrap());
        std::thread::scope(|scope| {
            let first = scope.spawn(|| wait(&board, LONG, &Cancel::NEVER).unwrap());
            assert!(check_in(&board, 2).unwrap());
            assert!(wait(&board, LONG, &Cancel::NEVER).unwrap());
            assert!(first.join().unwrap());
        });
        assert_eq!(checked_in(&board).unwrap(), 2);
    }

    #[test]
    fn those_that_are_left_open_the_barrier() {
        let board = empty();
        check_in(&board, 3).unwrap();
        for (enough, is_open) in [(2, false), (1, true)] {
            open_if(&board, enough).unwrap();
            assert_eq!(
                wait(&board, Some(Duration::ZERO), &Cancel::NEVER).unwrap(),
                is_open
            );
        }
    }

    #[test]
    fn a_wait_that_ends_early_knows_whether_the_barrier_is_open() {
        let board = empty();
        let (asked, asks) = std::sync::mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let cancel = Cancel::with_check({
            let is_over = Arc::clone(&is_over);
            move || {
                let _ = asked.send(());
                is_over.load(Ordering::SeqCst)
            }
        });
        check_in(&board, 2).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&board, None, &cancel).unwrap());
            asks.recv().unwrap();
            is_over.store(true, Ordering::SeqCst);
            cancel.wake();
            assert!(!waiting.join().unwrap());
        });
        check_in(&board, 2).unwrap();
        assert!(wait(&board, None, &cancel).unwrap());
        assert!(!wait(&empty(), Some(Duration::ZERO), &Cancel::NEVER).unwrap());
    }

    #[test]
    fn a_count_that_is_no_number_is_none() {
        let board = empty();
        board.put(COUNT, b"many").unwrap();
        assert_eq!(checked_in(&board).unwrap(), 0);
    }
}
