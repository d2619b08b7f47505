//! Groups of threads over a hash store, a TCP store and a file store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use c10d::{Group, GroupError, GroupOptions, Store};
use c10d_socket::Cancel;
use c10d_store::{FileStore, HashStore, ServerOptions, StoreExt, TcpStore, TcpStoreServer};

const LIMIT: Duration = Duration::from_secs(20);
const SHORT: Option<Duration> = Some(Duration::from_millis(100));

fn options() -> GroupOptions {
    GroupOptions::default().with_timeout(LIMIT)
}

/// Runs a function in each rank of a group, each with its own store.
fn with_ranks<T: Send>(
    world_size: usize,
    store: impl Fn() -> Arc<dyn Store> + Sync,
    work: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let (store, work) = (&store, &work);
        let threads: Vec<_> = (0..world_size)
            .map(|rank| {
                scope.spawn(move || work(options().join(store(), rank, world_size).unwrap()))
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

fn in_process() -> impl Fn() -> Arc<dyn Store> {
    let store = Arc::new(HashStore::new());
    move || store.clone()
}

fn server() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap()
}

fn client(server: &TcpStoreServer) -> Arc<dyn Store> {
    Arc::new(TcpStore::connect("127.0.0.1", server.local_addr().port()).unwrap())
}

/// The work of each rank of a job.
fn train(group: &Group) {
    let world_size = group.world_size();
    for round in 0..5_u8 {
        for root in 0..world_size {
            let value = [round, u8::try_from(root).unwrap()];
            let given = (group.rank() == root).then_some(&value[..]);
            assert_eq!(group.broadcast(root, given).unwrap(), value);
        }
        group.barrier().unwrap();
        let own = vec![round; group.rank()];
        let all = group.all_gather_bytes(&own).unwrap();
        let lengths: Vec<usize> = all.iter().map(Vec::len).collect();
        assert_eq!(lengths, (0..world_size).collect::<Vec<_>>());
        assert!(all.iter().flatten().all(|byte| *byte == round));
    }
    group.finish().unwrap();
}

#[test]
fn ranks_exchange_values_over_every_kind_of_store() {
    for world_size in [1, 4] {
        with_ranks(world_size, in_process(), |group| {
            assert_eq!((group.world_size(), group.name()), (world_size, "world"));
            train(&group);
        });
    }
    let server = server();
    with_ranks(4, || client(&server), |group| train(&group));
    let folder = std::env::temp_dir().join(format!("c10d-group-{}", std::process::id()));
    let open = || -> Arc<dyn Store> { Arc::new(FileStore::open(&folder, None).unwrap()) };
    with_ranks(3, open, |group| train(&group));
    let _ = std::fs::remove_file(folder);
}

#[test]
fn keys_do_not_pile_up() {
    let server = server();
    let counts = with_ranks(
        3,
        || client(&server),
        |group| {
            let mut counts = Vec::new();
            for _ in 0..20 {
                group.all_gather_bytes(b"x").unwrap();
                group
                    .broadcast(1, (group.rank() == 1).then_some(b"y"))
                    .unwrap();
                counts.push(group.store().num_keys().unwrap());
            }
            counts
        },
    );
    // At most the keys of joining, and of two operations. Other ranks may be deleting the keys of one of them.
    for counts in counts {
        assert!(counts.iter().all(|count| *count < 30), "{counts:?}");
    }
}

#[test]
fn the_missing_ranks_are_named_on_joining() {
    let store = in_process();
    let results = thread::scope(|scope| {
        let threads = [0, 2].map(|rank| {
            let store = store();
            let options = GroupOptions::default().with_timeout(Duration::from_millis(200));
            scope.spawn(move || options.join(store, rank, 5))
        });
        threads.map(|it| it.join().unwrap())
    });
    for result in results {
        let Err(GroupError::Missing {
            ranks, operation, ..
        }) = result
        else {
            panic!("{result:?}");
        };
        assert_eq!((ranks, operation), (vec![1, 3, 4], "join"));
    }
    // Rank 0 never arrived at all.
    let error = GroupOptions::default()
        .with_timeout(SHORT)
        .join(in_process()(), 1, 2)
        .unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(
        error.to_string().contains("rank 0 of 2 is missing"),
        "{error}"
    );
}

#[test]
fn a_broadcast_names_its_root_and_its_receivers_and_goes_on_afterwards() {
    let (sender, receiver) = mpsc::channel::<()>();
    let receiver = std::sync::Mutex::new(receiver);
    with_ranks(3, in_process(), |group| match group.rank() {
        0 => {
            let error = group.broadcast_timeout(0, Some(b"id"), SHORT).unwrap_err();
            let text = error.to_string();
            let GroupError::Missing {
                ranks, processes, ..
            } = error
            else {
                panic!("{text}");
            };
            assert!(ranks.contains(&2), "{text}");
            let own = format!("rank 2 is pid {} on ", std::process::id());
            assert!(processes.iter().any(|it| it.starts_with(&own)), "{text}");
            sender.send(()).unwrap();
            // The value has been sent, so a different value is not sent.
            assert_eq!(group.broadcast(0, Some(b"id")).unwrap(), b"id");
        }
        1 => loop {
            match group.broadcast_timeout(0, None, SHORT) {
                Ok(value) => return assert_eq!(value, b"id"),
                Err(error) => assert!(error.is_timeout(), "{error}"),
            }
        },
        _ => {
            receiver.lock().unwrap().recv().unwrap();
            assert_eq!(group.broadcast(0, None).unwrap(), b"id");
            let error = group
                .broadcast_timeout(1, None, Some(Duration::ZERO))
                .unwrap_err();
            assert!(
                error.to_string().contains("rank 1 of 3 is missing"),
                "{error}"
            );
        }
    });
}

#[test]
fn a_second_process_of_a_rank_is_refused_and_harms_no_one() {
    let server = server();
    with_ranks(
        2,
        || client(&server),
        |group| {
            if group.rank() == 1 {
                let stray = GroupOptions::default()
                    .with_timeout(SHORT)
                    .join(client(&server), 1, 2);
                let Err(GroupError::Taken { rank, holder, .. }) = stray else {
                    panic!("{stray:?}");
                };
                assert_eq!(rank, 1);
                assert!(
                    holder.starts_with(&format!("pid {} on ", std::process::id())),
                    "{holder}"
                );
                let other_size =
                    GroupOptions::default()
                        .with_timeout(SHORT)
                        .join(client(&server), 1, 3);
                let error = other_size.unwrap_err();
                assert!(
                    error
                        .to_string()
                        .contains("with world size 3, rank 0 with 2"),
                    "{error}"
                );
            }
            train(&group);
        },
    );
}

#[test]
fn what_earlier_workers_left_in_the_store_does_not_matter() {
    let server = server();
    for world_size in [3, 2, 4, 4] {
        // Some of them end in the middle of an operation.
        with_ranks(
            world_size,
            || client(&server),
            |group| {
                group.barrier().unwrap();
                if group.rank() == 1 {
                    assert!(group.barrier_timeout(Some(Duration::ZERO)).is_err());
                }
            },
        );
    }
    // Some before all had come.
    let early = GroupOptions::default()
        .with_timeout(SHORT)
        .join(client(&server), 0, 4);
    assert!(early.unwrap_err().is_timeout());
    with_ranks(4, || client(&server), |group| train(&group));
}

#[test]
fn ranks_that_wait_go_over_to_the_generation_of_a_new_rank_0() {
    let server = server();
    let early = GroupOptions::default()
        .with_timeout(SHORT)
        .join(client(&server), 0, 2);
    assert!(early.unwrap_err().is_timeout());
    thread::scope(|scope| {
        // Claims its rank in the generation of the rank 0 that has ended.
        let waits = scope.spawn(|| options().join(client(&server), 1, 2).unwrap());
        let began = Instant::now();
        while client(&server)
            .list_keys()
            .unwrap()
            .iter()
            .all(|key| !key.ends_with("/member/1"))
        {
            assert!(began.elapsed() < LIMIT);
            thread::yield_now();
        }
        let first = options().join(client(&server), 0, 2).unwrap();
        let second = waits.join().unwrap();
        scope.spawn(move || train(&second));
        train(&first);
    });
}

#[test]
fn sub_groups_meet_by_name_in_any_order() {
    with_ranks(4, in_process(), |world| {
        let (row, column) = (world.rank() / 2, world.rank() % 2);
        let of_row = || {
            world
                .split(&format!("row-{row}"), &[2 * row, 2 * row + 1])
                .unwrap()
        };
        // In another order of ranks than the world's.
        let of_column = || {
            world
                .split(&format!("column-{column}"), &[2 + column, column])
                .unwrap()
        };
        let (in_row, in_column) = if column == 0 {
            let in_row = of_row();
            (in_row, of_column())
        } else {
            let in_row = thread::scope(|scope| scope.spawn(of_row).join().unwrap());
            (in_row, of_column())
        };
        assert_eq!((in_row.rank(), in_column.rank()), (column, 1 - row));
        assert_eq!(in_row.name(), format!("world/row-{row}"));
        let mine = [u8::try_from(world.rank()).unwrap()];
        let all = in_column.all_gather_bytes(&mine).unwrap().concat();
        assert_eq!(
            all.iter().map(|it| usize::from(*it)).collect::<Vec<_>>(),
            [2 + column, column]
        );
        in_row.barrier().unwrap();

        let again = world.split(&format!("row-{row}"), &[2 * row, 2 * row + 1]);
        assert!(matches!(again, Err(GroupError::Taken { .. })), "{again:?}");
        world.barrier().unwrap();
        let different: &[usize] = if world.rank() == 0 { &[0, 1] } else { &[1, 0] };
        if world.rank() < 2 {
            let result = world.split_timeout("different", different, SHORT);
            let mismatch = matches!(result, Err(GroupError::Mismatch { .. }));
            assert!(mismatch || result.is_err_and(|it| it.is_timeout()));
        }
        train(&world);
    });
}

#[test]
fn arguments_that_make_no_sense_are_refused_and_change_nothing() {
    with_ranks(2, in_process(), |group| {
        let other = 1 - group.rank();
        for (result, text) in [
            (group.broadcast(2, None).err(), "has no rank 2"),
            (
                group.broadcast(other, Some(b"x")).err(),
                "gives a value that rank",
            ),
            (group.broadcast(group.rank(), None).err(), "gives no value"),
            (
                group.split("a/b", &[0, 1]).err(),
                "the name \"a/b\" of a group must have",
            ),
            (group.split("a", &[0, 1, 0]).err(), "rank 0 is twice"),
            (group.split("a", &[0, 1, 2]).err(), "has no rank 2"),
            (group.split("a", &[other]).err(), "is not among the ranks"),
            (
                group.all_gather_bytes(&vec![0; 9 << 20]).err(),
                "the limit is 8388608",
            ),
        ] {
            let error = result.expect(text).to_string();
            assert!(error.contains(text), "{error}");
        }
        train(&group);
    });
    for (rank, world_size) in [(0, 0), (2, 2), (0, usize::MAX)] {
        let refused = options().join(in_process()(), rank, world_size);
        assert!(matches!(refused, Err(GroupError::InvalidArgument { .. })));
    }
}

#[test]
fn a_wait_can_be_interrupted_and_made_again() {
    let server = server();
    let interrupted = AtomicUsize::new(0);
    with_ranks(
        2,
        || client(&server),
        |group| {
            if group.rank() == 1 {
                group.store().wait(&["interrupted"]).unwrap();
                return group.barrier().unwrap();
            }
            let cancel = Cancel::new();
            thread::scope(|scope| {
                scope.spawn(|| cancel.cancel());
                let error = group.with_cancel(&cancel).barrier().unwrap_err();
                assert!(error.is_interrupted(), "{error}");
                interrupted.fetch_add(1, Ordering::Relaxed);
            });
            group.store().set("interrupted", "").unwrap();
            group.barrier().unwrap();
        },
    );
    assert_eq!(interrupted.into_inner(), 1);
}

#[test]
fn a_group_whose_store_is_lost_is_broken_and_says_why() {
    let server = server();
    let groups = with_ranks(2, || client(&server), |group| group);
    server.shutdown();
    let [group, _] = groups.try_into().unwrap();
    let lost = group.barrier().unwrap_err();
    assert!(matches!(lost, GroupError::Store { .. }), "{lost}");
    let broken = group.barrier().unwrap_err().to_string();
    assert!(
        broken.contains("cannot be used after an earlier failure (barrier of group"),
        "{broken}"
    );
}

#[test]
fn rank_0_hosts_the_store_of_workers_without_a_launcher() {
    // A rank 0 cannot announce a port that the system has chosen, so this process has its own address.
    let pid = std::process::id();
    let address = format!("127.77.{}.{}", pid >> 8 & 255, pid & 255);
    let hosted = AtomicUsize::new(0);
    thread::scope(|scope| {
        for rank in 0..4 {
            let (address, hosted) = (&address, &hosted);
            scope.spawn(move || {
                let variables = HashMap::from([
                    ("RANK", rank.to_string()),
                    ("WORLD_SIZE", "4".to_owned()),
                    ("MASTER_ADDR", address.clone()),
                    ("MASTER_PORT", "29500".to_owned()),
                ]);
                let group = options()
                    .init_from(&|name| variables.get(name).cloned())
                    .unwrap();
                train(&group);
                hosted.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(hosted.into_inner(), 4);
}
