//! Whether the members of a running round admit other nodes: docs/spec/rendezvous.md, section 7.3.
//!
//! The state cannot contain this, because PyTorch's nodes drop fields that they do not know.

use c10d_store::StoreError;

use crate::shell::board::RoundBoard;
use crate::shell::handler::RendezvousInfo;
use crate::values::goal::Entry;

const ENTRY: &str = "c10d/entry";
const COUNT: &str = "c10d/entry/n";

/// Release 0.2 writes `open`, and its nodes number the workers of a group in another way. So neither enters a round of the
/// other.
const OPEN: &[u8] = b"open 2";
const OVER: &[u8] = b"over";

/// Reports that this node's workers are running and tolerate new nodes. Once every node of the round has reported, the
/// round admits new nodes. A node that has entered a running round does not report: the call returns at once. Blocks
/// for at most the store's timeout, twice.
///
/// # Errors
/// [`StoreError`] when the round's store fails.
pub fn open_round(round: &RendezvousInfo) -> Result<(), StoreError> {
    if round.has_entered {
        return Ok(());
    }
    let board = round.board();
    let count = board.count(COUNT, 1)?;
    if usize::try_from(count) == Ok(round.world_size) {
        board.put_if_missing(ENTRY, OPEN)?;
    }
    Ok(())
}

/// Stops the round from admitting new nodes, because it is about to end. Nodes that wait for it stay spares. Blocks for
/// at most the store's timeout.
///
/// # Errors
/// [`StoreError`] when the round's store fails.
pub fn end_entry(round: &RendezvousInfo) -> Result<(), StoreError> {
    round.board().put(ENTRY, OVER)
}

/// Reads from the members' keys whether a round admits nodes. Blocks for at most the store's timeout, twice.
pub(crate) fn read_entry(round: &RoundBoard) -> Result<Entry, StoreError> {
    Ok(match round.read(ENTRY)?.as_deref() {
        Some(OPEN) => Entry::Open,
        Some(OVER) => Entry::Over,
        _ => Entry::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use c10d_socket::HostPort;
    use c10d_store::{HashStore, Store};

    use super::*;
    use crate::shell::handler::BootstrapInfo;

    /// docs/spec/rendezvous.md, ENTRY 1 and 2.
    #[test]
    fn the_last_member_opens_the_round_and_any_ends_that() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let prefix = Arc::clone(RoundBoard::of(&store, "job", 4).store());
        let master = BootstrapInfo::new(HostPort::new("node0", 1), true, true);
        let node = |rank| RendezvousInfo::new(4, Arc::clone(&prefix), rank, 2, master.clone());
        let entry = |round| read_entry(&RoundBoard::of(&store, "job", round)).unwrap();
        let [first, second] = [0, 1].map(node);
        assert_eq!(entry(4), Entry::Unknown);
        open_round(&first).unwrap();
        assert_eq!(entry(4), Entry::Unknown);
        let mut other = node(1);
        other.has_entered = true;
        open_round(&other).unwrap();
        assert_eq!(entry(4), Entry::Unknown);
        open_round(&second).unwrap();
        assert_eq!(entry(4), Entry::Open);
        assert_eq!(entry(3), Entry::Unknown);
        end_entry(&second).unwrap();
        assert_eq!(entry(4), Entry::Over);
    }

    /// docs/spec/rendezvous.md, ENTRY 2.
    #[test]
    fn a_round_that_has_ended_first_is_not_opened() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let board = RoundBoard::of(&store, "job", 0);
        let master = BootstrapInfo::new(HostPort::new("node0", 1), true, true);
        let round = RendezvousInfo::new(0, Arc::clone(board.store()), 0, 1, master);
        end_entry(&round).unwrap();
        open_round(&round).unwrap();
        assert_eq!(read_entry(&board).unwrap(), Entry::Over);
    }
}
