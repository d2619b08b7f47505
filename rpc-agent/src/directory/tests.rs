//! Groups of several workers over in-process and TCP stores.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use c10d_store::{HashStore, PrefixStore, ServerOptions, StoreExt, TcpStore, TcpStoreServer};

use super::*;
use crate::worker::WorkerId;

/// Timeout of all waits in the tests; reached only if a test hangs.
const PATIENCE: Duration = Duration::from_secs(30);

fn patience() -> Deadline {
    Deadline::after(Instant::now(), PATIENCE)
}

fn passed() -> Deadline {
    Deadline::at(Instant::now())
}

/// A store shared by several workers. Each worker gets its own handle.
struct Shared {
    stores: Box<dyn Fn() -> Arc<dyn Store>>,
    _server: Option<TcpStoreServer>,
}

impl Shared {
    fn hash() -> Self {
        let store = HashStore::new();
        Self {
            stores: Box::new(move || Arc::new(store.clone())),
            _server: None,
        }
    }

    fn tcp() -> Self {
        let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
        let port = server.local_addr().port();
        Self {
            stores: Box::new(move || Arc::new(TcpStore::connect("127.0.0.1", port).unwrap())),
            _server: Some(server),
        }
    }

    fn prefixed() -> Self {
        let store = HashStore::new();
        Self {
            stores: Box::new(move || {
                Arc::new(PrefixStore::new("rpc_prefix_0", Arc::new(store.clone())))
            }),
            _server: None,
        }
    }

    fn all() -> [Self; 3] {
        [Self::hash(), Self::tcp(), Self::prefixed()]
    }

    fn store(&self) -> Arc<dyn Store> {
        (self.stores)()
    }

    /// Joins a worker with incarnation 100 + id and port 4000 + id.
    fn join(
        &self,
        name: &str,
        id: u32,
        group: Option<u32>,
        by: Deadline,
    ) -> Result<Directory, DirectoryError> {
        join(self.store(), name, id, u64::from(id) + 100, group, by)
    }

    /// Joins all workers concurrently, each on its own thread.
    fn join_all(
        &self,
        workers: &[(&str, u32)],
        group: Option<u32>,
        by: Deadline,
    ) -> Vec<Result<Directory, DirectoryError>> {
        let joining: Vec<_> = workers
            .iter()
            .map(|(name, id)| {
                let (store, name, id) = (self.store(), (*name).to_owned(), *id);
                thread::spawn(move || join(store, &name, id, u64::from(id) + 100, group, by))
            })
            .collect();
        joining
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    }
}

fn join(
    store: Arc<dyn Store>,
    name: &str,
    id: u32,
    incarnation: u64,
    group: Option<u32>,
    by: Deadline,
) -> Result<Directory, DirectoryError> {
    let address = format!("127.0.0.1:{}", 4000 + id);
    let me = info(name, id);
    Directory::join(store, me, &address, incarnation, group, by, &Cancel::NEVER)
}

fn info(name: &str, id: u32) -> WorkerInfo {
    WorkerInfo::new(name, id).unwrap()
}

/// The address of a worker in the store.
fn address_of(directory: &Directory, worker: &WorkerInfo) -> Option<Address> {
    let address = directory.address_of(worker, patience(), &Cancel::NEVER);
    address.unwrap()
}

fn known(world_size: u32) -> Option<u32> {
    Some(world_size)
}

#[test]
fn workers_of_a_static_group_find_each_other() {
    for shared in Shared::all() {
        let workers = [("ps:0", 0), ("trainer-a", 1), ("trainer-b", 2)];
        let joined = shared.join_all(&workers, known(3), patience());
        for (directory, (name, id)) in joined.into_iter().zip(workers) {
            let directory = directory.unwrap();
            assert_eq!(directory.me.info, info(name, id));
            let all = workers.map(|(name, id)| info(name, id));
            assert_eq!(directory.workers(), all);
            for worker in &all {
                let by_name = directory.find(&worker.name.as_str().into());
                assert_eq!(by_name.as_ref(), Some(worker));
                let by_id = directory.find(&worker.id.into());
                assert_eq!(by_id.as_ref(), Some(worker));
                let address = address_of(&directory, worker).unwrap();
                let id = worker.id.get();
                assert_eq!(
                    address.host_port.to_string(),
                    format!("127.0.0.1:{}", 4000 + id)
                );
                assert_eq!(address.incarnation, u64::from(id) + 100);
            }
            assert_eq!(directory.find(&"nobody".into()), None);
            // All members are known, so the call returns without waiting.
            let nobody = directory.look_up(&3.into(), Deadline::NEVER).unwrap();
            assert_eq!(nobody, None);
        }
    }
}

#[test]
fn a_duplicate_name_is_an_error_on_each_rank_that_names_both_workers() {
    for shared in Shared::all() {
        let workers = [("a", 0), ("same", 1), ("b", 2), ("same", 3)];
        for joined in shared.join_all(&workers, known(4), patience()) {
            assert_eq!(
                joined.unwrap_err().to_string(),
                "RPC worker name same is not unique. Workers 1 and 3 share the same name. \
                 (1 is at 127.0.0.1:4001, 3 at 127.0.0.1:4003)"
            );
        }
    }
}

#[test]
fn a_duplicate_rank_is_an_error_on_each_waiting_worker() {
    for shared in Shared::all() {
        // Rank 2 of three never joins, because two processes were given rank 1.
        let joining = thread::scope(|scope| {
            let joining: Vec<_> = [("a", 0, 1), ("b", 1, 2), ("b", 1, 3)]
                .map(|(name, id, incarnation)| {
                    let store = shared.store();
                    scope.spawn(move || join(store, name, id, incarnation, known(3), patience()))
                })
                .into();
            joining
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .collect::<Vec<_>>()
        });
        for joined in joining {
            assert_eq!(
                joined.unwrap_err().to_string(),
                "RPC worker id 1 is not unique. Worker b and already has ID and b cannot be added. \
                 (the former is at 127.0.0.1:4001, the latter at 127.0.0.1:4001)"
            );
        }
    }
}

#[test]
fn a_start_timeout_lists_the_missing_ranks() {
    for shared in Shared::all() {
        let last = "b tcp://127.0.0.1:4019#0000000000000001";
        shared.store().set("names/19", last.as_bytes()).unwrap();
        let soon = Deadline::after(Instant::now(), Duration::from_millis(20));
        let error = shared
            .join("a", 0, known(20), soon)
            .unwrap_err()
            .to_string();
        let missing = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 2 more";
        assert!(
            error.starts_with("only 2 of 20 workers joined within "),
            "{error}"
        );
        assert!(error.contains("names/<rank>"), "{error}");
        assert!(error.ends_with(missing), "{error}");
    }
}

#[test]
fn a_rank_beyond_the_world_size_is_refused() {
    let shared = Shared::hash();
    for (rank, world_size) in [(3, 3), (0, 0), (0, 32_769)] {
        let error = shared
            .join("a", rank, known(world_size), passed())
            .unwrap_err();
        assert!(matches!(error, DirectoryError::Rank { .. }), "{error}");
    }
}

#[test]
fn static_and_dynamic_members_cannot_be_mixed() {
    for (first, second, error_text) in [
        (known(1), None, "has no world size"),
        (None, known(2), "has a world size"),
    ] {
        let shared = Shared::prefixed();
        shared.join("a", 0, first, patience()).unwrap();
        let error = shared
            .join("b", 1, second, patience())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(
                "RPC group mixes statically and dynamically initialized members which is not \
                 supported."
            ),
            "{error}"
        );
        assert!(error.contains(error_text), "{error}");
        assert!(error.contains("rpc_prefix_0/rpcIsStaticGroup"), "{error}");
    }
}

#[test]
fn a_worker_that_left_can_rejoin_at_another_address() {
    for group in [known(2), None] {
        for shared in Shared::all() {
            let mut joined = shared.join_all(&[("a", 0), ("b", 1)], group, patience());
            let b = joined.pop().unwrap().unwrap();
            let a = joined.pop().unwrap().unwrap();
            b.leave(patience(), &Cancel::NEVER).unwrap();
            assert_eq!(address_of(&a, &info("b", 1)), None);

            let back = Directory::join(
                shared.store(),
                info("b", 1),
                "[::1]:5000",
                7,
                group,
                patience(),
                &Cancel::NEVER,
            );
            assert_eq!(back.unwrap().workers(), [info("a", 0), info("b", 1)]);
            let address = address_of(&a, &info("b", 1));
            assert_eq!(address, Some(Address::new("[::1]:5000", 7).unwrap()));
            let other = info("c", 1);
            assert_eq!(address_of(&a, &other), None);
        }
    }
}

#[test]
fn an_address_that_cannot_be_connected_to_is_refused() {
    for address in ["127.0.0.1:0", "127.0.0.1", "::1:5", ""] {
        let store = Arc::new(HashStore::new());
        let joined = Directory::join(
            store.clone(),
            info("a", 0),
            address,
            1,
            known(1),
            passed(),
            &Cancel::NEVER,
        );
        let error = joined.unwrap_err();
        assert!(
            matches!(error, DirectoryError::OwnAddress { .. }),
            "{error}"
        );
        assert_eq!(store.num_keys().unwrap(), 0);
    }
}

#[test]
fn an_invalid_value_is_an_error_with_its_key() {
    let shared = Shared::prefixed();
    let store = shared.store();
    store.set("names/1", b"\xff\xff").unwrap();
    let error = shared
        .join("a", 0, known(2), patience())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "\"rpc_prefix_0/names/1\" at hash store: it is not UTF-8"
    );

    let shared = Shared::prefixed();
    let store = shared.store();
    store.set("names/_ALL_WORKER_INFOS", b"a-0,b-1,").unwrap();
    let error = shared
        .join("a", 0, None, patience())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("rpc_prefix_0/names/_ALL_WORKER_INFOS"),
        "{error}"
    );
    assert!(error.contains("line 1"), "{error}");
}

#[test]
fn many_workers_join_a_dynamic_group_at_once() {
    for shared in Shared::all() {
        let names: Vec<String> = (0..12).map(|id| format!("w-{id}-")).collect();
        let workers: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(0..).collect();
        let joined = shared.join_all(&workers, None, patience());
        for directory in joined {
            let directory = directory.unwrap();
            // Workers that joined later are found as well.
            for (name, id) in &workers {
                let found = directory.look_up(&(*name).into(), passed()).unwrap();
                assert_eq!(found, Some(info(name, *id)));
            }
            assert_eq!(directory.workers().len(), 12);
        }
    }
}

#[test]
fn workers_leave_a_dynamic_group_while_others_join() {
    for shared in Shared::all() {
        let first = shared.join_all(&[("a", 0), ("b", 1), ("c", 2)], None, patience());
        let mut first: Vec<Directory> = first.into_iter().map(Result::unwrap).collect();
        let a = first.remove(0);
        let leaving: Vec<_> = first
            .into_iter()
            .map(|directory| thread::spawn(move || directory.leave(patience(), &Cancel::NEVER)))
            .collect();
        let joined = shared.join_all(&[("d", 3), ("e", 4)], None, patience());
        assert!(joined.iter().all(Result::is_ok), "{joined:?}");
        for leaving in leaving {
            leaving.join().unwrap().unwrap();
        }
        assert_eq!(address_of(&a, &info("b", 1)), None);
        assert_eq!(a.workers(), [info("a", 0), info("d", 3), info("e", 4)]);
        assert_eq!(a.find(&"b".into()), None);
    }
}

#[test]
fn a_worker_that_joined_later_is_looked_up() {
    for shared in Shared::all() {
        let a = shared.join("a", 0, None, patience()).unwrap();
        assert_eq!(a.look_up(&"late".into(), passed()).unwrap(), None);
        let late = shared.join("late", 1, None, patience()).unwrap();
        let found = a.look_up(&"late".into(), passed()).unwrap();
        assert_eq!(found, Some(late.me.info));
    }
}

#[test]
fn a_members_name_or_id_is_refused_and_both_together_replace_it() {
    for shared in Shared::all() {
        let a = shared.join("a", 0, None, patience()).unwrap();
        shared.join("b", 1, None, patience()).unwrap();
        let refused = |name, id| {
            let joined = shared.join(name, id, None, patience());
            joined.unwrap_err().to_string()
        };
        assert_eq!(
            refused("b", 2),
            "RPC worker name b is not unique. Workers 1 and 2 share the same name. \
             (1 is at 127.0.0.1:4001, 2 at 127.0.0.1:4002)"
        );
        assert_eq!(
            refused("c", 1),
            "RPC worker id 1 is not unique. Worker b and already has ID and c cannot be added. \
             (the former is at 127.0.0.1:4001, the latter at 127.0.0.1:4001)"
        );
        let again = join(shared.store(), "b", 1, 9, None, patience());
        again.unwrap();
        let address = address_of(&a, &info("b", 1)).unwrap();
        assert_eq!(address.incarnation, 9);
        assert_eq!(a.workers().len(), 2);
    }
}

/// An agent of an earlier version may have crashed while it held its lease.
#[test]
fn a_held_lock_of_another_version_delays_nobody() {
    let shared = Shared::tcp();
    let store = shared.store();
    store.set("RpcGroupManagementToken", b"crashed").unwrap();
    let a = shared.join("a", 0, None, patience()).unwrap();
    assert_eq!(a.workers(), [info("a", 0)]);
}

#[test]
fn a_closed_store_is_an_error_with_its_key() {
    let shared = Shared::tcp();
    let store = shared.store();
    let group = known(1);
    let a = join(store.clone(), "a", 0, 1, group, patience()).unwrap();
    store.close();
    let error = a
        .address_of(&info("a", 0), patience(), &Cancel::NEVER)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("reading a worker's address: get \"names/0\""),
        "{error}"
    );
}

#[test]
fn an_earlier_list_does_not_replace_a_later_one() {
    let shared = Shared::hash();
    let a = shared.join("a", 0, None, patience()).unwrap();
    let old = a.view(Members::clone);
    shared.join("b", 1, None, patience()).unwrap();
    let id: WorkerId = info("b", 1).id;
    assert!(a.look_up(&id.into(), passed()).unwrap().is_some());
    a.learn(old);
    assert!(a.find(&id.into()).is_some());
}
