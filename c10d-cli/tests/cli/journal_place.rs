//! Where the directory of a store is while it is served.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::process::Server;

fn serve(directory: &Path) -> Server {
    let directory = format!("--dir={}", directory.display());
    Server::start_with(["store", "serve", "--port=0", &directory])
}

/// Deleted, moved, or only a file of it, while the store is used or at rest.
#[test]
fn a_server_stops_soon_after_its_directory_is_gone() {
    let outside = tempfile::tempdir().unwrap();
    let directory = outside.path().join("store");
    let moved = outside.path().join("moved");
    let remove = |name: &str| fs::remove_file(directory.join(name)).unwrap();
    type Removal<'a> = &'a dyn Fn();
    let removals: [(&str, Removal<'_>); 4] = [
        ("journal.db", &|| fs::remove_dir_all(&directory).unwrap()),
        ("journal.db", &|| fs::rename(&directory, &moved).unwrap()),
        ("journal.db", &|| remove("journal.db")),
        ("journal.db-wal", &|| remove("journal.db-wal")),
    ];
    for (name, removal) in removals {
        for is_used in [false, true] {
            let server = serve(&directory);
            server.store(&["set", "k", "v"]).assert_prints("");
            removal();
            let began = Instant::now();
            if is_used {
                let added = server.store(&["add", "n", "1"]);
                assert_ne!(added.code, Some(0), "it is acknowledged: {added:?}");
            }
            let ended = server.end();
            let took = began.elapsed();
            assert_eq!(ended.code, Some(5), "{ended:?}");
            let why = format!("{name} was deleted, moved or replaced while it was served");
            assert!(ended.stderr.contains(&why), "{ended:?}");
            // At most 0.5 s until it is noticed, 1 s until the command looks, and the load of the machine.
            assert!(took < Duration::from_secs(10), "{took:?}");
            for folder in [&directory, &moved] {
                let _ = fs::remove_dir_all(folder);
            }
        }
    }
}

/// The end of the first server does not touch the files of the second.
#[test]
fn a_directory_that_was_replaced_belongs_to_its_new_server() {
    let outside = tempfile::tempdir().unwrap();
    let directory = outside.path().join("store");
    let first = serve(&directory);
    first.store(&["set", "k", "first"]).assert_prints("");
    fs::remove_dir_all(&directory).unwrap();
    let second = serve(&directory);
    second.store(&["set", "k", "second"]).assert_prints("");
    assert_eq!(first.end().code, Some(5));
    drop(second);
    let third = serve(&directory);
    third.store(&["get", "k"]).assert_prints("second");
}
