//! PyTorch's `FileStore` and ours on the same file at the same time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use c10d_store::{FileStore, PrefixStore, Store, StoreExt};
use integration_tests::contract::{self, Traits};
use integration_tests::peer::{Failure, Ours, Peer};
use integration_tests::torch::{Feature, Release, Torch};
use integration_tests::watchdog::Watchdog;
use serde_json::json;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const LONG: Duration = Duration::from_secs(30);

/// Our store has no queues, and `num_keys` counts its internal key for the reference count.
const OURS: Traits = Traits {
    queues: false,
    barrier: true,
    list_keys: true,
    clone: true,
    compare_set_wakes: true,
    own_keys: 1,
    lists_only_users_keys: false,
    delete_of_missing: false,
    extended_api: true,
    add_to_text: Failure::NotANumber,
    barrier_has_default_timeout: true,
    clone_keeps_timeout: true,
    value_bytes_max: 1 << 20,
};

/// PyTorch's store (docs/spec/file-store.md, Differences from PyTorch).
const TORCHS: Traits = Traits {
    delete_of_missing: true,
    extended_api: false,
    clone_keeps_timeout: false,
    ..OURS
};

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    (folder, path)
}

fn open(path: &Path) -> FileStore {
    FileStore::open(path, None).expect("our FileStore")
}

/// Both stores run all operations, one after the other, on the same file.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn every_operation_of_both_stores_on_one_file() {
    let _watchdog = Watchdog::start("every_operation_of_both_stores_on_one_file", LIMIT);
    let (_folder, path) = folder();
    // Both stores have the file open during the whole test.
    let ours = open(&path);
    let torchs = Torch::shared().file_store(&path, None);
    let ours_with_prefix = Ours::new(PrefixStore::new("ours", Arc::new(open(&path))));
    contract::every_operation(&ours_with_prefix, &OURS);
    let traits = Traits {
        barrier_has_default_timeout: false,
        ..TORCHS.with(Release::tested())
    };
    contract::every_operation(&torchs.prefixed("torch"), &traits);

    // Both stores read the same keys and values.
    let user_keys = ours.list_keys().expect("list_keys");
    let user_keys: Vec<&str> = user_keys
        .iter()
        .map(String::as_str)
        .filter(|key| key.starts_with("ours/") || key.starts_with("torch/"))
        .collect();
    assert!(user_keys.len() > 30, "{user_keys:?}");
    assert!(torchs.check(&user_keys).expect("check"));
    let seen_by_torch = torchs.multi_get(&user_keys).expect("multi_get");
    let seen_by_us = ours.multi_get(&user_keys).expect("multi_get");
    assert!(seen_by_torch == seen_by_us);
    assert_eq!(
        torchs.num_keys().expect("num_keys"),
        ours.num_keys().expect("num_keys")
    );
    contract::add_to_text(&Ours::new(open(&path)), &torchs, &OURS);
    contract::add_to_text(&torchs, &Ours::new(ours), &TORCHS);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn both_stores_see_each_others_changes_and_wake_each_other() {
    let _watchdog = Watchdog::start(
        "both_stores_see_each_others_changes_and_wake_each_other",
        LIMIT,
    );
    let (_folder, path) = folder();
    let torchs = Torch::shared().file_store(&path, None);
    contract::two_clients(
        &Ours::new(open(&path)),
        &torchs,
        &OURS.with(Release::tested()),
    );
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn concurrent_additions_by_both_stores_are_all_counted() {
    let _watchdog = Watchdog::start("concurrent_additions_by_both_stores_are_all_counted", LIMIT);
    const TIMES: i64 = 300;
    let (_folder, path) = folder();
    let torch = Torch::shared();
    // Other records are written at the same time, so that reads of the file start at various offsets.
    let torchs = [torch.file_store(&path, None), torch.file_store(&path, None)];
    let adding: Vec<_> = torchs
        .iter()
        .map(|store| {
            store.begin(
                "add_many",
                json!({"key": "sum", "delta": 1, "times": TIMES}),
            )
        })
        .collect();
    thread::scope(|scope| {
        for number in 0..2 {
            let store = open(&path);
            scope.spawn(move || {
                for i in 0..TIMES {
                    store.add("sum", 1).expect("add");
                    store
                        .set(&format!("other/{number}"), i.to_string().as_bytes())
                        .expect("set");
                }
            });
        }
    });
    for pending in adding {
        pending.wait().result.expect("add");
    }
    let sum = (4 * TIMES).to_string();
    assert_eq!(open(&path).get("sum").expect("get"), sum.as_bytes());
    assert_eq!(torchs[0].get("sum").expect("get"), sum.as_bytes());
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn four_clients_of_both_kinds_pass_barriers() {
    let _watchdog = Watchdog::start("four_clients_of_both_kinds_pass_barriers", LIMIT);
    if !Release::tested().allows(Feature::Barrier) {
        return;
    }
    let (_folder, path) = folder();
    let torch = Torch::shared();
    let ranks: [Box<dyn Peer>; 4] = [
        Box::new(Ours::new(open(&path))),
        Box::new(torch.file_store(&path, None)),
        Box::new(Ours::new(open(&path))),
        Box::new(torch.file_store(&path, None)),
    ];
    thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(move || {
                for round in 0..5 {
                    rank.barrier(&format!("round-{round}"), 4, Some(LONG))
                        .unwrap_or_else(|e| panic!("{}: {e}", rank.name()));
                }
            });
        }
    });
}

/// docs/spec/file-store.md, Reference counting.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn the_last_store_to_close_removes_the_file() {
    let _watchdog = Watchdog::start("the_last_store_to_close_removes_the_file", LIMIT);
    let torch = Torch::shared();
    for ours_is_last in [true, false] {
        let (_folder, path) = folder();
        let ours = FileStore::open(&path, Some(2)).expect("our FileStore");
        let torchs = torch.file_store(&path, Some(2));
        torchs.set("k", b"v").expect("set");
        assert_eq!(ours.get("k").expect("get"), b"v");
        if ours_is_last {
            torchs.close();
            assert!(path.exists(), "one store is still open");
            assert_eq!(ours.get("k").expect("get"), b"v");
            drop(ours);
        } else {
            drop(ours);
            assert!(path.exists(), "one store is still open");
            assert_eq!(torchs.get("k").expect("get"), b"v");
            torchs.close();
        }
        assert!(!path.exists(), "ours is last: {ours_is_last}");
    }
}

/// Stores count even if they were never open at the same time. Without a world size the file stays.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn closed_stores_count_and_without_a_world_size_the_file_stays() {
    let _watchdog = Watchdog::start(
        "closed_stores_count_and_without_a_world_size_the_file_stays",
        LIMIT,
    );
    let torch = Torch::shared();
    let (_folder, path) = folder();
    torch.file_store(&path, Some(3)).close();
    assert!(path.exists(), "one of three");
    drop(FileStore::open(&path, Some(3)).expect("our FileStore"));
    assert!(path.exists(), "two of three");
    torch.file_store(&path, Some(3)).close();
    assert!(!path.exists(), "three of three");

    drop(open(&path));
    torch.file_store(&path, None).close();
    let records = fs::metadata(&path).expect("the file is kept");
    assert!(records.len() > 0);
}
