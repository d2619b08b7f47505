//! Tests of `FileStore`: file format, repair, removal and locking.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{
    FileStore, FileStoreOptions, Store, StoreError, StoreExt, StoreHandle, key_from_bytes,
};
use tempfile::TempDir;

use crate::blocked::Observed;
use crate::store_contract::{self, Features, LONG};

/// A folder for one test, and the path of a store file in it.
fn store_path() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let path = folder.path().join("store");
    (folder, path)
}

/// A record as PyTorch writes it: docs/spec/file-store.md, Records.
fn record(name: &str, value: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    for field in [name.as_bytes(), value] {
        let len = u32::try_from(field.len()).expect("short enough");
        record.extend((0..4).map(|i| (len >> (8 * i)) as u8));
        record.extend_from_slice(field);
    }
    record
}

fn append_to_file(path: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

#[test]
fn store_contract_holds() {
    let folder = tempfile::tempdir().unwrap();
    let files = std::cell::Cell::new(0);
    let make = || -> Arc<dyn Store> {
        files.set(files.get() + 1);
        let path = folder.path().join(files.get().to_string());
        Arc::new(FileStore::open(path, None).unwrap())
    };
    let features = Features {
        queues: false,
        ..Features::LOCAL
    };
    store_contract::all(&make, features);
}

/// docs/spec/file-store.md, Records: the whole file after each operation.
#[test]
fn the_file_equals_that_of_pytorch() {
    let (_folder, path) = store_path();
    let mut expected = Vec::new();
    let mut expect = |what: &str, records: &[(&str, &[u8])]| {
        for (name, value) in records {
            expected.extend(record(name, value));
        }
        assert_eq!(
            fs::read(&path).unwrap().escape_ascii().to_string(),
            expected.escape_ascii().to_string(),
            "{what}"
        );
    };
    let store = FileStore::open(&path, None).unwrap();
    expect("open", &[("refcount/", b"1")]);
    store.set("k", b"v").unwrap();
    expect("set", &[("/k", b"v")]);
    store.delete_key("k").unwrap();
    expect("delete_key", &[("-/k", b"")]);
    store.delete_key("k").unwrap();
    expect("delete_key of a missing key", &[]);
    store.add("c", 5).unwrap();
    expect("add", &[("/c", b"5")]);
    store.add("c", -7).unwrap();
    expect("add", &[("/c", b"-2")]);
    store.compare_set("c", b"-2", b"x").unwrap();
    expect("compare_set", &[("/c", b"x")]);
    store.compare_set("c", b"-2", b"y").unwrap();
    store.compare_set("missing", b"1", b"y").unwrap();
    expect("compare_set that does not match", &[]);
    store.add("c", 1).unwrap_err();
    expect("add to a value that is not a number", &[]);
    store.append("c", b"x").unwrap();
    expect("append", &[("/c", b"xx")]);
    store.multi_set(&[("-", b"1"), ("", b"")]).unwrap();
    expect("multi_set", &[("/-", b"1"), ("/", b"")]);
    let clone = store.clone_store().unwrap();
    expect("clone", &[("refcount/", b"2")]);
    drop(clone);
    expect("close", &[("cleanup/", b"1"), ("refcount/", b"1")]);
    drop(store);
    expect("close", &[("cleanup/", b"2"), ("refcount/", b"0")]);
}

#[test]
fn new_files_have_the_mode_of_pytorch() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, path) = store_path();
    let _store = FileStore::open(&path, None).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    // 0644, reduced by the umask of the process.
    assert_eq!(mode & !0o644, 0);
    assert_eq!(mode & 0o600, 0o600);
}

/// docs/spec/file-store.md, Reference counting: the last store to close removes the file.
#[test]
fn the_file_is_removed_when_all_have_closed() {
    let open = |path: &Path, world_size| FileStore::open(path, world_size).unwrap();

    for (world_size, closes_to_removal) in
        [(Some(0), 1), (Some(1), 1), (Some(3), 3), (None, usize::MAX)]
    {
        let (_folder, path) = store_path();
        // The stores open and close one after another.
        for closed in 1..=4 {
            drop(open(&path, world_size));
            let is_removed = closed >= closes_to_removal;
            assert_eq!(!path.exists(), is_removed, "{world_size:?} after {closed}");
            if is_removed {
                break;
            }
        }
    }

    // As many stores as the world size have closed, but one is still open.
    let (_folder, path) = store_path();
    let stores = [open(&path, Some(1)), open(&path, Some(1))];
    let [first, second] = stores;
    drop(first);
    assert!(path.exists());
    assert!(second.check(&[]).unwrap());
    drop(second);
    assert!(!path.exists());

    // A clone counts as another store.
    let (_folder, path) = store_path();
    let store = open(&path, Some(1));
    let clone = store.clone_store().unwrap();
    drop(store);
    assert!(path.exists());
    drop(clone);
    assert!(!path.exists());

    // Closing accepts that the file is already removed.
    let (_folder, path) = store_path();
    let store = open(&path, Some(1));
    fs::remove_file(&path).unwrap();
    drop(store);
    assert!(!path.exists());
}

/// A writer died after writing part of a record. Readers ignore that part and do not hang, and the next
/// writer removes it.
#[test]
fn a_torn_record_is_ignored_and_removed_by_the_next_writer() {
    let torn = record("/torn", b"value");
    for cut in 1..torn.len() {
        let (_folder, path) = store_path();
        let store = FileStore::open(&path, None).unwrap();
        store.set("k", b"1").unwrap();
        let whole = fs::read(&path).unwrap();
        append_to_file(&path, &torn[..cut]);

        assert_eq!(store.get("k").unwrap(), b"1", "cut at {cut}");
        assert!(!store.check(&["torn"]).unwrap());
        assert!(
            store
                .wait_timeout(&["torn"], Some(Duration::ZERO))
                .unwrap_err()
                .is_timeout()
        );
        assert_eq!(store.num_keys().unwrap(), 2);
        // A reader must not write, so the torn record is still in the file.
        assert_eq!(fs::read(&path).unwrap().len(), whole.len() + cut);

        store.set("next", b"2").unwrap();
        let repaired = [whole, record("/next", b"2")].concat();
        assert_eq!(fs::read(&path).unwrap(), repaired, "cut at {cut}");

        // Opening a store on the file also removes the torn record.
        append_to_file(&path, &torn[..cut]);
        let opened = FileStore::open(&path, None).unwrap();
        let reopened = [repaired, record("refcount/", b"2")].concat();
        assert_eq!(fs::read(&path).unwrap(), reopened, "cut at {cut}");
        assert_eq!(opened.get("next").unwrap(), b"2");
    }
}

/// The process that creates a store may end within its first write.
#[test]
fn a_file_of_a_part_of_its_first_record_is_a_new_store() {
    let first = record("refcount/", b"1");
    for cut in 0..=first.len() {
        let (_folder, path) = store_path();
        fs::write(&path, &first[..cut]).unwrap();
        let store = FileStore::open(&path, None).unwrap();
        store.set("k", b"1").unwrap();
        let other = FileStore::open(&path, None).unwrap();
        assert_eq!(other.get("k").unwrap(), b"1", "cut at {cut}");
        drop(store);
        // docs/spec/file-store.md: `refcount/` and `cleanup/` count.
        assert_eq!(other.num_keys().unwrap(), 3, "cut at {cut}");
    }
}

/// The content of a file that is not a store must not be removed as a torn record.
#[test]
fn other_files_are_not_changed() {
    for content in [
        &b"Dear diary, today I trained a model.\n"[..],
        b"\x7fELF\x02\x01\x01\0",
        &[0; 7],
    ] {
        let (_folder, path) = store_path();
        fs::write(&path, content).unwrap();
        let error = FileStore::open(&path, Some(0)).unwrap_err();
        assert!(
            matches!(error, StoreError::CorruptFile { offset: 0, .. }),
            "{error}"
        );
        assert!(!error.has_unknown_outcome());
        assert_eq!(fs::read(&path).unwrap(), content);
    }

    // The same holds for foreign bytes behind the records of an open store.
    let (_folder, path) = store_path();
    let store = FileStore::open(&path, None).unwrap();
    append_to_file(&path, b"garbage in the log");
    let content = fs::read(&path).unwrap();
    let is_corrupt = |error| matches!(error, StoreError::CorruptFile { offset: 18, .. });
    assert!(is_corrupt(store.get("k").unwrap_err()));
    assert!(is_corrupt(store.check(&["k"]).unwrap_err()));
    assert!(is_corrupt(store.set("k", b"1").unwrap_err()));
    drop(store);
    assert_eq!(fs::read(&path).unwrap(), content);
}

#[test]
fn an_unusable_path_fails_at_once() {
    let (folder, _) = store_path();
    let started = Instant::now();
    for path in [
        folder.path().join("missing/store"),
        folder.path().to_owned(),
        PathBuf::from("/dev/null"),
        PathBuf::new(),
    ] {
        let error = FileStore::open(&path, None).unwrap_err();
        assert!(matches!(error, StoreError::File { .. }), "{error}");
    }
    assert!(started.elapsed() < LONG / 2);
}

/// The next run removes and recreates the file, often with the same inode number.
#[test]
fn a_replaced_file_is_read_from_its_start() {
    let (_folder, path) = store_path();
    let store = FileStore::open(&path, None).unwrap();
    for round in 0..20 {
        let old = format!("old{round}");
        store.set(&old, b"1").unwrap();
        assert_eq!(store.get(&old).unwrap(), b"1");

        fs::remove_file(&path).unwrap();
        let other = FileStore::open(&path, None).unwrap();
        // The new file is longer than the old file, so its length does not reveal the replacement.
        other.set("new", vec![b'x'; 1000 + round]).unwrap();
        assert!(!store.check(&[&old]).unwrap(), "round {round}");
        assert_eq!(store.get("new").unwrap().len(), 1000 + round);
        assert_eq!(store.list_keys().unwrap(), ["new"]);
    }
}

#[test]
fn a_file_that_shrank_is_read_from_its_start() {
    let (_folder, path) = store_path();
    let store = FileStore::open(&path, None).unwrap();
    store.set("a", b"1").unwrap();
    let early = fs::read(&path).unwrap();
    store.set("b", b"2").unwrap();
    assert!(store.check(&["a", "b"]).unwrap());
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(early.len() as u64)
        .unwrap();
    assert!(store.check(&["a"]).unwrap());
    assert!(!store.check(&["b"]).unwrap());
    store.set("c", b"3").unwrap();
    assert_eq!(
        fs::read(&path).unwrap(),
        [early, record("/c", b"3")].concat()
    );
}

#[test]
fn a_missing_file_is_an_empty_store() {
    let (_folder, path) = store_path();
    let store = FileStore::open(&path, None).unwrap();
    store.set("k", b"1").unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!store.check(&["k"]).unwrap());
    assert_eq!(store.num_keys().unwrap(), 0);
    assert!(!store.delete_key("k").unwrap());
    assert!(!path.exists());
    assert!(
        store
            .wait_timeout(&["k"], Some(Duration::ZERO))
            .unwrap_err()
            .is_timeout()
    );
    store.set("k", b"2").unwrap();
    assert_eq!(fs::read(&path).unwrap(), record("/k", b"2"));
    assert_eq!(store.get("k").unwrap(), b"2");
}

/// Another worker holds the lock and never releases it.
#[test]
fn operations_time_out_if_the_lock_is_never_released() {
    let (_folder, path) = store_path();
    let store = FileStore::open(&path, None).unwrap();
    store.set("n", b"1").unwrap();
    store.set_timeout(Some(Duration::from_millis(10)));
    let holder = File::open(&path).unwrap();
    holder.lock().unwrap();
    // Because of this unread record, readers also need the lock.
    append_to_file(&path, &record("/late", b"1"));

    let started = Instant::now();
    let calls: [&(dyn Fn() -> Result<(), StoreError> + Sync); 6] = [
        &|| store.set("k", b""),
        &|| store.add("n", 1).map(drop),
        &|| store.delete_key("n").map(drop),
        &|| store.get("late").map(drop),
        &|| store.check(&["late"]).map(drop),
        &|| store.clone_store().map(drop),
    ];
    thread::scope(|scope| {
        for call in calls {
            scope.spawn(move || {
                let error = call().unwrap_err();
                assert!(error.is_timeout(), "{error}");
                assert!(
                    error.to_string().contains("locked by another worker"),
                    "{error}"
                );
            });
        }
    });
    assert!(
        started.elapsed() >= Duration::from_secs(1),
        "a timeout for the lock is at least 1 s"
    );
    assert!(started.elapsed() < LONG / 2);

    drop(holder);
    assert_eq!(store.get("late").unwrap(), b"1");
    assert_eq!(store.add("n", 1).unwrap(), 2);
}

/// Closing does not wait for the lock, and fails the calls that do.
#[test]
fn closing_fails_waits_for_the_lock_and_the_drop_updates_the_counts() {
    type Call = fn(&FileStore) -> Result<(), StoreError>;
    let (_folder, path) = store_path();
    let store = FileStore::open(&path, Some(1)).unwrap();
    store.set_timeout(None);
    let holder = File::open(&path).unwrap();
    holder.lock().unwrap();
    // Because of this unread record, readers also need the lock.
    append_to_file(&path, &record("/late", b"1"));
    let before = fs::read(&path).unwrap();

    thread::scope(|scope| {
        let calls: [Call; 3] = [
            |store| store.set("k", b""),
            |store| store.delete_key("k").map(drop),
            |store| store.get("late").map(drop),
        ];
        let waiting = calls.map(|call| {
            let store = &store;
            scope.spawn(move || call(store))
        });
        store.close();
        for call in waiting {
            let error = call.join().unwrap().unwrap_err();
            assert!(matches!(error, StoreError::Closed { .. }), "{error}");
        }
    });
    assert_eq!(fs::read(&path).unwrap(), before);
    holder.unlock().unwrap();
    drop(store);
    assert!(!path.exists(), "the last store removes the file");
}

/// While one thread waits for the lock, another can read the records that the store has already read.
#[test]
fn readers_of_an_unchanged_file_need_no_lock() {
    let (_folder, path) = store_path();
    let store = FileStore::open(&path, None).unwrap();
    store.set("k", b"1").unwrap();
    assert_eq!(store.get("k").unwrap(), b"1");
    let holder = File::open(&path).unwrap();
    holder.lock().unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| store.set("k", b"2"));
        assert_eq!(store.get("k").unwrap(), b"1");
        assert!(
            store
                .wait_timeout(&["late"], Some(Duration::from_millis(20)))
                .unwrap_err()
                .is_timeout()
        );
        holder.unlock().unwrap();
        writer.join().expect("no panic").unwrap();
    });
    assert_eq!(store.get("k").unwrap(), b"2");
}

/// The file is removed, and perhaps recreated, while a writer waits for its lock.
#[test]
fn nothing_is_written_to_a_removed_file() {
    for round in 0..20 {
        let (_folder, path) = store_path();
        let store = FileStore::open(&path, None).unwrap();
        let holder = File::open(&path).unwrap();
        holder.lock().unwrap();
        let is_replaced = round % 2 == 0;
        thread::scope(|scope| {
            let (started, is_started) = mpsc::channel();
            let store = &store;
            let writer = scope.spawn(move || {
                started.send(Observed::this_thread()).unwrap();
                store.set("k", b"1")
            });
            // The writer has opened the file and waits for its lock.
            is_started.recv().unwrap().wait_until_blocked();
            fs::remove_file(&path).unwrap();
            if is_replaced {
                fs::write(&path, record("/new", b"2")).unwrap();
            }
            holder.unlock().unwrap();
            writer.join().expect("no panic").unwrap();
        });
        let other = FileStore::open(&path, None).unwrap();
        assert!(other.check(&["k"]).unwrap());
        assert_eq!(other.check(&["new"]).unwrap(), is_replaced);
    }
}

#[test]
fn corrupt_bookkeeping_is_reported_and_not_overwritten() {
    let (_folder, path) = store_path();
    let content = record("refcount/", b"many");
    fs::write(&path, &content).unwrap();
    let error = FileStore::open(&path, Some(0)).unwrap_err();
    assert!(matches!(error, StoreError::NotANumber { .. }), "{error}");
    assert!(error.to_string().contains("refcount/"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), content);
}

/// Other programs may write names that `FileStore` never writes, and keys that are not UTF-8.
#[test]
fn foreign_records_are_replayed() {
    let (_folder, path) = store_path();
    let log = [
        record("stranger", b"1"),
        record("", b""),
        record("refcount/", b"4"),
        record("-stranger", b""),
        record("/k", b"1"),
    ];
    fs::write(&path, log.concat()).unwrap();
    append_to_file(&path, b"\x02\0\0\0/\xff\x01\0\0\0x");
    let store = FileStore::open(&path, None).unwrap();
    assert_eq!(store.num_keys().unwrap(), 4);
    let mut keys = store.list_keys().unwrap();
    keys.sort();
    assert_eq!(keys, ["k", &key_from_bytes(b"\xff")]);
    assert_eq!(store.get(&keys[1]).unwrap(), b"x");
    assert!(
        fs::read(&path)
            .unwrap()
            .ends_with(&record("refcount/", b"5"))
    );
}

#[test]
fn values_longer_than_one_read_are_complete() {
    let (_folder, path) = store_path();
    let store = FileStore::open(&path, None).unwrap();
    let reader = FileStore::open(&path, None).unwrap();
    for len in [65_500, 65_535, 65_536, 65_537, 1 << 20, 5 << 20] {
        let value: Vec<u8> = (0..len).map(|i: usize| (i % 253) as u8).collect();
        store.set("long", &value).unwrap();
        store.set("short", b"1").unwrap();
        assert!(reader.get("long").unwrap() == value, "{len}");
    }
    // A new store reads the whole file at once.
    let late = FileStore::open(&path, None).unwrap();
    assert_eq!(late.get("long").unwrap().len(), 5 << 20);
    assert_eq!(late.get("short").unwrap(), b"1");
}

#[test]
fn a_relative_path_becomes_absolute() {
    let (_folder, path) = store_path();
    let name = format!("file-store-{}", std::process::id());
    let options = FileStoreOptions::default()
        .with_world_size(1)
        .with_timeout(Duration::from_secs(7));
    let store = FileStore::open_with(&name, &options).unwrap();
    assert!(store.path().is_absolute());
    assert!(store.path().ends_with(&name));
    assert_eq!(store.timeout(), Some(Duration::from_secs(7)));
    let shown = store.path().to_owned();
    drop(store);
    assert!(!shown.exists());
    assert!(!path.exists());
}

/// The environment variable with the path of the store file for [`child`].
const CHILD_PATH: &str = "C10D_FILE_STORE_TEST_PATH";
const CHILD_ADDS: i64 = 200;

/// The child processes of the next test run this. Without the variable it does nothing.
#[test]
fn child() {
    let Some(path) = env::var_os(CHILD_PATH) else {
        return;
    };
    let store = FileStore::open(path, Some(3)).unwrap();
    store.set_timeout(Some(LONG));
    store.barrier("start", 2).unwrap();
    for _ in 0..CHILD_ADDS {
        store.add("n", 1).unwrap();
        store.append("log", b"x").unwrap();
    }
}

#[test]
fn adds_and_appends_of_two_processes_all_count() {
    let (_folder, path) = store_path();
    let store = FileStore::open(&path, Some(3)).unwrap();
    let children = [(), ()].map(|()| {
        Command::new(env::current_exe().unwrap())
            .args(["--exact", "file_store::child", "--test-threads", "1"])
            .env(CHILD_PATH, &path)
            .stdout(Stdio::null())
            .spawn()
            .expect("the test binary runs")
    });
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    store.set_timeout(Some(Duration::ZERO));
    assert_eq!(
        store.get("n").unwrap(),
        (2 * CHILD_ADDS).to_string().as_bytes()
    );
    assert_eq!(store.get("log").unwrap().len(), 2 * CHILD_ADDS as usize);
    drop(store);
    assert!(!path.exists(), "the last of three removes the file");
}
