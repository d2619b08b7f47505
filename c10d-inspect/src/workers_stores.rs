//! Finds the workers' stores of runs whose nodes meet at this store.
//!
//! The node with rank 0 of each round, including PyTorch's nodes, publishes the address:
//! `torch.rendezvous.<run>.<round>/MASTER_ADDR` and `MASTER_PORT`.

use std::collections::BTreeMap;

use c10d_store::{KeyRecord, Version};

use crate::index::Index;
use crate::keys::Family;
use crate::report::WorkersStore;
use crate::text::{decimal, shown};

/// The key of the id of the run whose workers also use this store, wherever it is served by now.
const OWNER_KEY: &[u8] = b"c10d/workers_of";

/// The most runs of one store that are reported.
const RUNS_MAX: usize = 16;

/// The longest name of a host, like in DNS.
const HOST_BYTES_MAX: usize = 253;

/// The keys that a round has published.
#[derive(Default)]
struct Round<'k> {
    addr: Option<&'k KeyRecord>,
    port: Option<&'k KeyRecord>,
}

/// The stores of each run's latest round with a store, the last published store first.
pub(crate) fn workers_stores(index: &Index<'_>) -> Vec<WorkersStore> {
    let mut rounds: BTreeMap<(&[u8], u64), Round<'_>> = BTreeMap::new();
    for (_, key) in index
        .others
        .iter()
        .filter(|(family, _)| *family == Family::ElasticMaster)
    {
        let Some((run, number, is_addr)) = parsed(&key.key) else {
            continue;
        };
        let round = rounds.entry((run, number)).or_default();
        let place = if is_addr {
            &mut round.addr
        } else {
            &mut round.port
        };
        *place = Some(key);
    }
    // The rounds are in order: a later round replaces an earlier round of the same run.
    let mut latest: BTreeMap<&[u8], (Version, WorkersStore)> = BTreeMap::new();
    for ((run, number), round) in rounds {
        let (Some(addr), Some(port)) = (round.addr, round.port) else {
            continue;
        };
        if let Some(address) = address(addr, port) {
            let store = WorkersStore {
                run_id: shown(run),
                round: number,
                address,
            };
            latest.insert(run, (port.version, store));
        }
    }
    let is_owner = |key: &&KeyRecord| without_slash(&key.key) == OWNER_KEY && is_whole(key);
    if let Some(owner) = index.snapshot.keys.iter().find(is_owner) {
        latest.remove(&*owner.value_head);
    }
    let mut latest: Vec<_> = latest.into_values().collect();
    latest.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    latest.truncate(RUNS_MAX);
    latest.into_iter().map(|(_, store)| store).collect()
}

fn without_slash(key: &[u8]) -> &[u8] {
    key.strip_prefix(b"/").unwrap_or(key)
}

fn is_whole(key: &KeyRecord) -> bool {
    key.value_len == key.value_head.len()
}

/// The run, the round, and whether the key is the host's.
fn parsed(key: &[u8]) -> Option<(&[u8], u64, bool)> {
    let path = without_slash(key).strip_prefix(b"torch.rendezvous.")?;
    let (path, is_addr) = match path.strip_suffix(b"/MASTER_ADDR") {
        Some(path) => (path, true),
        None => (path.strip_suffix(b"/MASTER_PORT")?, false),
    };
    let dot = path.iter().rposition(|&byte| byte == b'.')?;
    let number = u64::try_from(decimal(&path[dot + 1..])?).ok()?;
    Some((&path[..dot], number, is_addr))
}

/// A host and a port that can be connected to, and that are safe to show.
fn address(addr: &KeyRecord, port: &KeyRecord) -> Option<String> {
    if !is_whole(addr) || !is_whole(port) || addr.value_len > HOST_BYTES_MAX {
        return None;
    }
    let host = str::from_utf8(&addr.value_head).ok()?;
    let port = u16::try_from(decimal(&port.value_head)?).ok()?;
    let is_plain = !host.is_empty()
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte));
    (is_plain && port > 0).then(|| match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Script;

    /// The run, round and address of each store, for keys and values in the order of writing.
    fn found(keys: &[(&str, &[u8])]) -> Vec<(String, u64, String)> {
        let mut script = Script::new();
        let address = script.address();
        let writer = script.store.connect(address, 0xC10D_0000);
        for (key, value) in keys {
            script.store.set(writer, key, value);
        }
        let snapshot = script.snapshot();
        let stores = workers_stores(&Index::new(&snapshot));
        stores
            .into_iter()
            .map(|store| (store.run_id, store.round, store.address))
            .collect()
    }

    fn store(run: &str, round: u64, address: &str) -> (String, u64, String) {
        (run.to_owned(), round, address.to_owned())
    }

    #[test]
    fn the_latest_round_of_each_run_counts_and_the_newest_comes_first() {
        let keys: [(&str, &[u8]); 9] = [
            ("/torch.rendezvous.a.b.9/MASTER_ADDR", b"node0"),
            ("/torch.rendezvous.a.b.9/MASTER_PORT", b"4000"),
            ("/torch.rendezvous.a.b.10/MASTER_ADDR", b"node1"),
            ("/torch.rendezvous.a.b.10/MASTER_PORT", b"4001"),
            ("/torch.rendezvous.c.0/MASTER_PORT", b"5000"),
            ("/torch.rendezvous.c.0/MASTER_ADDR", b"fd00::1"),
            // Not complete yet.
            ("/torch.rendezvous.c.1/MASTER_ADDR", b"node2"),
            ("/torch.rendezvous.c.0/torchelastic/MASTER_ADDR", b"node3"),
            ("/torch.rendezvous.c", b"state"),
        ];
        let expected = [
            store("c", 0, "[fd00::1]:5000"),
            store("a.b", 10, "node1:4001"),
        ];
        assert_eq!(found(&keys), expected);
    }

    /// The address is the previous server's, like after a takeover.
    #[test]
    fn a_run_whose_workers_use_this_store_has_no_other() {
        let keys: [(&str, &[u8]); 5] = [
            ("/torch.rendezvous.a.0/MASTER_ADDR", b"node0"),
            ("/torch.rendezvous.a.0/MASTER_PORT", b"4000"),
            ("/torch.rendezvous.b.0/MASTER_ADDR", b"node1"),
            ("/torch.rendezvous.b.0/MASTER_PORT", b"4001"),
            ("/c10d/workers_of", b"a"),
        ];
        assert_eq!(found(&keys), [store("b", 0, "node1:4001")]);
    }

    #[test]
    fn values_of_strangers_are_no_addresses() {
        for (host, port) in [
            (&b"node0\x1b[2J"[..], &b"4000"[..]),
            (b"node0/../", b"4000"),
            (b"", b"4000"),
            (b"node0", b"0"),
            (b"node0", b"65536"),
            (b"node0", b"4000 "),
            (b"node0", b""),
            (&[b'a'; 300], b"4000"),
            (b"\xff", b"4000"),
        ] {
            let keys = [
                ("torch.rendezvous.x.0/MASTER_ADDR", host),
                ("torch.rendezvous.x.0/MASTER_PORT", port),
            ];
            assert_eq!(found(&keys), [], "{host:?} {port:?}");
        }
        let many: Vec<String> = (0..100)
            .flat_map(|run| {
                ["ADDR", "PORT"].map(|end| format!("torch.rendezvous.{run}.0/MASTER_{end}"))
            })
            .collect();
        let keys: Vec<(&str, &[u8])> = many.iter().map(|key| (key.as_str(), &b"7"[..])).collect();
        assert_eq!(found(&keys).len(), RUNS_MAX);
    }
}
