//! A worker whose descriptors strangers hold.

use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, process};

use c10d_store::{FileStore, Store};
use rpc_agent::{Agent, Secret};

use crate::common::{options, registry};
use crate::few_descriptors::{self, Attacked};
use crate::raw::address_of;

const TEST: &str = "descriptors::strangers_make_room_for_workers_when_descriptors_run_out";

/// Less than the 10 s after which a handshake is closed anyway.
const CALL_TIMEOUT: Duration = Duration::from_secs(9);

fn start(rank: u32, store: &Arc<dyn Store>, secret: &Secret) -> Agent {
    let options = options(rank).with_world_size(2).with_secret(secret.clone());
    let store = store.clone_store().unwrap();
    Agent::start(options, registry(|_| {}), store).unwrap()
}

fn open(path: impl AsRef<std::path::Path>) -> Arc<dyn Store> {
    Arc::new(FileStore::open(path, None).unwrap())
}

/// Strangers that hold all descriptors of a worker, and take each free descriptor, do not keep other workers out.
#[test]
fn strangers_make_room_for_workers_when_descriptors_run_out() {
    if let Some(told) = few_descriptors::told() {
        let (secret, path) = told.split_once(' ').unwrap();
        let store = open(path);
        let _agent = start(1, &store, &Secret::from_text(secret).unwrap());
        return few_descriptors::serve(address_of(&*store, 1).0);
    }
    // They are silent, or have begun a handshake.
    for first_byte in [&[][..], b"\x16"] {
        let secret = Secret::random().unwrap();
        let path = env::temp_dir().join(format!("c10d-descriptors-{}", process::id()));
        let _ = fs::remove_file(&path);
        let store = open(&path);
        // A start waits for the other worker.
        let starting = std::thread::spawn({
            let (store, secret) = (Arc::clone(&store), secret.clone());
            move || start(0, &store, &secret)
        });
        let attacked = Attacked::start(TEST, &format!("{} {}", secret.to_text(), path.display()));
        let agent = starting.join().unwrap();
        let called = attacked.besieged(first_byte, || {
            agent
                .handle()
                .call("worker1", "echo")
                .with_timeout(CALL_TIMEOUT)
                .send_bytes("abc")
                .wait()
        });
        assert_eq!(&called.unwrap()[..], b"abc", "{first_byte:?}");
        attacked.end();
        drop(agent);
        let _ = fs::remove_file(&path);
    }
}
