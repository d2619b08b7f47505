//! Counts what the nodes of a round ask of the store: the sum must grow with the number of nodes, not with its
//! square.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use c10d_socket::{Cancel, HostPort};
use c10d_store::{
    CompareSet, HashStore, PrefixStore, Store, StoreError, StoreExt, StoreHandle, WireLimits,
};
use elastic_rendezvous::{BoardError, BootstrapInfo, RendezvousInfo, RoundBoard, open_round};

use crate::exit_barrier;
use crate::places::{self, Place};
use crate::ranks::{RankBlock, RoleInfo, exchange_ranks};
use crate::relay::Member;

const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// The requests of one node to the store.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicUsize,
    /// Keys and values, in both directions.
    bytes: AtomicUsize,
    /// The most keys in one request.
    keys_max: AtomicUsize,
    /// The most bytes of one request and its answer.
    bytes_max: AtomicUsize,
}

impl Counts {
    fn count(&self, keys: usize, bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.keys_max.fetch_max(keys, Ordering::Relaxed);
        self.bytes_max.fetch_max(bytes, Ordering::Relaxed);
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// A handle of one node to a store in this process.
#[derive(Debug)]
struct CountingStore {
    store: HashStore,
    counts: Arc<Counts>,
    /// Whether a wait takes as long as it must, so that the counts do not depend on the machine's speed.
    is_patient: bool,
}

impl CountingStore {
    fn count(&self, keys: &[&str], value_bytes: usize) {
        let key_bytes: usize = keys.iter().map(|key| key.len()).sum();
        self.counts.count(keys.len(), key_bytes + value_bytes);
    }

    fn timeout_of(&self, timeout: Option<Duration>) -> Option<Duration> {
        if self.is_patient { LONG } else { timeout }
    }
}

fn length(values: &[Vec<u8>]) -> usize {
    values.iter().map(Vec::len).sum()
}

/// Agents use no other operation in a round.
impl Store for CountingStore {
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        self.count(&keys, pairs.iter().map(|(_, value)| value.len()).sum());
        self.store.multi_set(pairs)
    }

    fn append_bytes(&self, key: &str, _: &[u8]) -> Result<(), StoreError> {
        unreachable!("append to {key}")
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.count(&[key], 16);
        self.store.add(key, delta)
    }

    fn compare_set_bytes(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<CompareSet, StoreError> {
        self.count(&[key], expected.len() + desired.len());
        self.store.compare_set_bytes(key, expected, desired)
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        unreachable!("delete_key of {key}")
    }

    fn get_all(
        &self,
        keys: &[&str],
        timeout: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let values = self.store.get_all(keys, self.timeout_of(timeout));
        self.count(keys, values.as_ref().map_or(0, |values| length(values)));
        values
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.store.try_get(key)?;
        self.count(&[key], value.as_ref().map_or(0, Vec::len));
        Ok(value)
    }

    fn wait_all(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        self.count(keys, 0);
        self.store.wait_all(keys, self.timeout_of(timeout))
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.count(keys, 0);
        self.store.check(keys)
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        unreachable!("list_keys")
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        unreachable!("num_keys")
    }

    fn meet(&self, key: &str, _: usize, _: Option<Duration>) -> Result<(), StoreError> {
        unreachable!("barrier of {key}")
    }

    fn delete_prefix(&self, prefix: &str, _: Duration) -> Result<u64, StoreError> {
        self.count(&[prefix], 0);
        let keys = self.store.list_keys()?;
        for key in keys.iter().filter(|key| key.starts_with(prefix)) {
            self.store.delete_key(key)?;
        }
        Ok(0)
    }

    fn end_waits(&self, prefix: &str) -> Result<u64, StoreError> {
        unreachable!("end_waits of {prefix}")
    }
}

impl StoreHandle for CountingStore {
    fn label(&self) -> String {
        self.store.label()
    }

    fn timeout(&self) -> Option<Duration> {
        self.store.timeout()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        self.store.set_timeout(timeout);
    }

    fn clone_store(&self) -> Result<Arc<dyn Store>, StoreError> {
        unreachable!("clone_store")
    }

    fn with_cancel(&self, cancel: &Cancel) -> Arc<dyn Store> {
        assert!(cancel.is_never());
        Arc::new(Self {
            store: self.store.clone(),
            counts: Arc::clone(&self.counts),
            is_patient: self.is_patient,
        })
    }

    fn close(&self) {
        self.store.close();
    }
}

fn trainer(local_world_size: usize) -> RoleInfo {
    RoleInfo {
        role: "trainer".to_owned(),
        local_world_size,
    }
}

/// The board of a round, and the counts of its requests.
fn handle(store: &HashStore, is_patient: bool) -> (RoundBoard, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let store = CountingStore {
        store: store.clone(),
        counts: Arc::clone(&counts),
        is_patient,
    };
    let store = PrefixStore::new("torch.rendezvous.job.0", Arc::new(store));
    (RoundBoard::new(Arc::new(store)), counts)
}

/// Which agreements a job needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Uses {
    Ranks,
    /// Relays, and workers that survive other workers.
    Everything,
}

/// Makes all requests of an agent from the complete round to its exit. Returns whether this node clears the workers' store.
fn take_part(board: &RoundBoard, rank: usize, nodes: usize, uses: Uses) -> bool {
    if uses == Uses::Everything {
        let member = Member {
            board,
            group_rank: rank,
            group_world_size: nodes,
            fixed: None,
            timeout: LONG,
        };
        let (port, ()) = member.agree(|_| Ok((5000, ()))).expect("a port");
        assert_eq!(port, 5000);
    }
    // `clear_workers_store` does the same.
    let clears = board.is_first("c10d/clearing").expect("an answer");
    let ranks = exchange_ranks(board, rank, nodes, &trainer(8), LONG, &Cancel::NEVER);
    let ranks = ranks.expect("ranks");
    assert_eq!(ranks, RankBlock::identical(rank, nodes, 8));
    if uses == Uses::Everything {
        let first_size = ranks.world_size;
        let fresh = format!("job/0/{rank}");
        places::group(board, None, &fresh).expect("the name of a group");
        let place = Place { ranks, first_size };
        places::occupy(board, rank, false, &place, &trainer(8)).expect("to set");
        let master = BootstrapInfo::new(HostPort::new("node0", 1), true, true);
        let store = Arc::clone(board.store());
        open_round(&RendezvousInfo::new(0, store, rank, nodes, master)).expect("to open");
    }
    exit_barrier::check_in(board, nodes).expect("to check in");
    let is_open = exit_barrier::wait(board, LONG, &Cancel::NEVER).expect("an answer");
    assert!(is_open, "the exit barrier is closed");
    clears
}

/// The counts of a round, by rank.
fn round_of(nodes: usize, uses: Uses) -> Vec<Arc<Counts>> {
    let store = HashStore::new();
    let threads: Vec<_> = (0..nodes)
        .map(|rank| {
            let (board, counts) = handle(&store, true);
            let thread = thread::spawn(move || take_part(&board, rank, nodes, uses));
            (thread, counts)
        })
        .collect();
    let mut clearing = 0;
    let mut counts = Vec::new();
    for (thread, of_node) in threads {
        clearing += usize::from(thread.join().expect("no panic"));
        counts.push(of_node);
    }
    assert_eq!(clearing, 1, "nodes that clear the workers' store");
    let (board, of_forgetting) = handle(&store, true);
    board.forget().expect("to forget");
    assert_eq!(of_forgetting.requests(), 3);
    assert_eq!(store.num_keys().expect("a number"), 0);
    counts
}

/// docs/spec/rendezvous.md, RANKS 1.
#[test]
fn the_cost_of_a_round_is_linear_in_the_number_of_nodes() {
    // The last node to count itself opens the exit barrier, publishes the verdict about the port, and opens the round.
    for (uses, requests_max, bytes_max) in
        [(Uses::Ranks, 5 + 1, 600), (Uses::Everything, 13 + 2, 1400)]
    {
        let sums = [4, 16, 64].map(|nodes| {
            let counts = round_of(nodes, uses);
            let (first, others) = counts.split_first().expect("a node");
            for (rank, node) in (1..).zip(others) {
                let (requests, bytes) = (node.requests(), node.bytes());
                assert!(
                    requests <= requests_max && bytes <= bytes_max,
                    "rank {rank}: {node:?}"
                );
            }
            // The first node reads and writes the values of all nodes.
            assert!(first.requests() <= requests_max + 2, "{first:?}");
            let requests: usize = counts.iter().map(|node| node.requests()).sum();
            let bytes: usize = counts.iter().map(|node| node.bytes()).sum();
            (requests, bytes)
        });
        for pair in sums.windows(2) {
            let [(few_requests, few_bytes), (more_requests, more_bytes)] = *pair else {
                unreachable!("a window of two")
            };
            // Four times the nodes.
            assert!(2 * more_requests <= 9 * few_requests, "{sums:?}");
            assert!(2 * more_bytes <= 9 * few_bytes, "{sums:?}");
        }
    }
}

/// The store's values of all nodes but those with group rank 0 and in `missing`.
fn others_of(nodes: usize, missing: &[usize]) -> HashStore {
    let store = HashStore::new();
    for rank in (1..nodes).filter(|rank| !missing.contains(rank)) {
        let key = format!("torch.rendezvous.job.0/torchelastic/role_info/{rank}");
        let text = format!(r#"{{"role": "trainer", "rank": {rank}, "local_world_size": 8}}"#);
        store.set(&key, text).expect("to set");
    }
    store
}

/// docs/spec/rendezvous.md, RANKS 1.
#[test]
fn requests_for_10_000_nodes_stay_far_below_the_limits_of_stores() {
    const NODES: usize = 10_000;
    let (board, counts) = handle(&others_of(NODES, &[]), true);
    let block = exchange_ranks(&board, 0, NODES, &trainer(8), LONG, &Cancel::NEVER).expect("ranks");
    assert_eq!(block, RankBlock::identical(0, NODES, 8));
    let last = board
        .store()
        .get("torchelastic/assigned_ranks/9999")
        .expect("ranks");
    assert_eq!(last, b"[79992,80000,79992,80000]");
    let limits = WireLimits::default();
    assert!(counts.requests() <= 40, "{counts:?}");
    assert!(counts.keys_max.load(Ordering::Relaxed) <= limits.keys_per_request_max / 100);
    assert!(counts.bytes_max.load(Ordering::Relaxed) <= limits.request_bytes_max / 1000);
}

#[test]
fn missing_nodes_are_found_with_few_requests() {
    const NODES: usize = 10_000;
    let expected = [1, 1023, 1024, 5000, 9999];
    let (board, counts) = handle(&others_of(NODES, &expected), false);
    let timeout = Some(Duration::from_millis(10));
    let error = exchange_ranks(&board, 0, NODES, &trainer(8), timeout, &Cancel::NEVER).unwrap_err();
    let BoardError::Missing { missing, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(missing[..], expected);
    // Each missing one costs three requests for each halving of 1024 keys, and reads the values of the other half.
    assert!(counts.requests() <= 2 + 16 * 3 + 5 * 30, "{counts:?}");
}
