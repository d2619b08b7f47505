//! Whether the members of a running round take other nodes in: docs/rendezvous.md, section 7.3.
//!
//! The state cannot say so: PyTorch's nodes would drop what they do not know of it. Members write keys of their round.

use std::sync::Arc;

use c10d_store::{PrefixStore, Store, StoreError, StoreExt};

use crate::shell::handler::RendezvousInfo;
use crate::values::goal::Entry;

const ENTRY_KEY: &str = "c10d/entry";
const COUNT_KEY: &str = "c10d/entry/n";
const OPEN: &[u8] = b"open";
const OVER: &[u8] = b"over";

/// Says that the workers of this node run, and that they go on if other nodes enter the round. The last node of the round
/// to say so opens it for others; one that has entered it says nothing. Blocks for at most the store's timeout, twice.
///
/// # Errors
/// Those of the store.
pub fn open_round(round: &RendezvousInfo) -> Result<(), StoreError> {
    if round.has_entered {
        return Ok(());
    }
    let count = round.store.add(COUNT_KEY, 1)?;
    if usize::try_from(count) == Ok(round.world_size) {
        round.store.compare_set(ENTRY_KEY, b"", OPEN)?;
    }
    Ok(())
}

/// Says that no other node is to enter the round, as it is about to end. Those that wait for it stay spares. Blocks for at
/// most the store's timeout.
///
/// # Errors
/// Those of the store.
pub fn end_entry(round: &RendezvousInfo) -> Result<(), StoreError> {
    round.store.set(ENTRY_KEY, OVER)
}

/// What the members of rounds have written.
#[derive(Debug)]
pub(crate) struct Entries {
    store: Arc<dyn Store>,
    run_id: String,
}

impl Entries {
    pub(crate) fn new(store: Arc<dyn Store>, run_id: &str) -> Self {
        let run_id = run_id.to_owned();
        Self { store, run_id }
    }

    /// Blocks for at most the store's timeout, twice.
    pub(crate) fn read(&self, round: i64) -> Result<Entry, StoreError> {
        let prefix = format!("torch.rendezvous.{}.{round}", self.run_id);
        let store = PrefixStore::new(prefix, Arc::clone(&self.store));
        let value = store.try_get(ENTRY_KEY)?;
        Ok(match value.as_deref() {
            Some(OPEN) => Entry::Open,
            Some(OVER) => Entry::Over,
            _ => Entry::Unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use c10d_socket::HostPort;
    use c10d_store::HashStore;

    use super::*;
    use crate::shell::handler::BootstrapInfo;

    /// docs/rendezvous.md, ENTRY 1 and 2.
    #[test]
    fn the_last_member_opens_the_round_and_any_ends_that() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let prefix = PrefixStore::new("torch.rendezvous.job.4", Arc::clone(&store));
        let prefix: Arc<dyn Store> = Arc::new(prefix);
        let master = BootstrapInfo::new(HostPort::new("node0", 1), true, true);
        let node = |rank| RendezvousInfo::new(4, Arc::clone(&prefix), rank, 2, master.clone());
        let entries = Entries::new(store, "job");
        let [first, second] = [0, 1].map(node);
        assert_eq!(entries.read(4).unwrap(), Entry::Unknown);
        open_round(&first).unwrap();
        assert_eq!(entries.read(4).unwrap(), Entry::Unknown);
        let mut other = node(1);
        other.has_entered = true;
        open_round(&other).unwrap();
        assert_eq!(entries.read(4).unwrap(), Entry::Unknown);
        open_round(&second).unwrap();
        assert_eq!(entries.read(4).unwrap(), Entry::Open);
        assert_eq!(entries.read(3).unwrap(), Entry::Unknown);
        end_entry(&second).unwrap();
        assert_eq!(entries.read(4).unwrap(), Entry::Over);
    }

    /// docs/rendezvous.md, ENTRY 2.
    #[test]
    fn a_round_that_has_ended_first_is_not_opened() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let prefix = PrefixStore::new("torch.rendezvous.job.0", Arc::clone(&store));
        let master = BootstrapInfo::new(HostPort::new("node0", 1), true, true);
        let round = RendezvousInfo::new(0, Arc::new(prefix), 0, 1, master);
        end_entry(&round).unwrap();
        open_round(&round).unwrap();
        assert_eq!(Entries::new(store, "job").read(0).unwrap(), Entry::Over);
    }
}
