//! A worker whose descriptors strangers hold.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, fs, io, process, thread};

use c10d_store::{FileStore, Store};
use rpc_agent::{Agent, CallOptions, Secret};

use crate::common::{options, registry};
use crate::raw::{address_of, connect};

const TEST: &str = "descriptors::strangers_make_room_for_workers_when_descriptors_run_out";

/// Environment variables of the process that strangers attack: the path of the store, and the secret.
const STORE: &str = "C10D_TEST_ATTACKED_STORE";
const SECRET: &str = "C10D_TEST_ATTACKED_SECRET";

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

/// Strangers that hold all descriptors of a worker, and take each one that is free, do not keep other workers out.
#[test]
fn strangers_make_room_for_workers_when_descriptors_run_out() {
    if let (Some(store), Ok(secret)) = (env::var_os(STORE), env::var(SECRET)) {
        let _agent = start(1, &open(store), &Secret::from_text(&secret).unwrap());
        // Until the test ends.
        let _ = io::stdin().read_line(&mut String::new());
        return;
    }
    // They are silent, or have begun a handshake.
    for first_byte in [&[][..], b"\x16"] {
        let secret = Secret::random().unwrap();
        let path = env::temp_dir().join(format!("c10d-descriptors-{}", process::id()));
        let _ = fs::remove_file(&path);
        let mut attacked = Command::new("sh")
            .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
            .arg(env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(STORE, &path)
            .env(SECRET, secret.to_text())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let store = open(&path);
        let agent = start(0, &store, &secret);
        let (address, _) = address_of(&*store, 1);
        let stranger = || -> TcpStream {
            let mut stream = connect(address);
            // It may be closed already.
            let _ = stream.write_all(first_byte);
            stream
        };
        let mut strangers: Vec<_> = (0..100).map(|_| stranger()).collect();
        let is_over = AtomicBool::new(false);
        let called = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && strangers.len() < 500 {
                    strangers.push(stranger());
                    thread::sleep(Duration::from_millis(5));
                }
            });
            let options = CallOptions::default().with_timeout(CALL_TIMEOUT);
            let called = agent
                .handle()
                .call_bytes_with("worker1", "echo", "abc", options);
            is_over.store(true, Ordering::Relaxed);
            called
        });
        assert_eq!(&called.unwrap()[..], b"abc", "{first_byte:?}");
        drop(attacked.stdin.take());
        assert!(attacked.wait().unwrap().success());
        drop(agent);
        let _ = fs::remove_file(&path);
    }
}
