//! Tests of calls that their own thread ends: `c10d_socket::interruptible`.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::raw::{LONG, wait_until};
use crate::without_extensions::WithoutExtensions;
use c10d_socket::{interruptible, is_interrupted};
use c10d_store::{
    FileStore, HashStore, Known, Operation, PrefixStore, ServerOptions, Store, StoreError,
    TcpStore, TcpStoreOptions, TcpStoreServer,
};
use socket2::{Domain, Socket, Type};

fn serve() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a free port")
}

fn open(port: u16, options: TcpStoreOptions) -> Result<TcpStore, StoreError> {
    TcpStore::open("127.0.0.1", port, options.with_timeout(LONG))
}

/// Runs a call that blocks, and ends it when its check is asked for the `count`th time.
fn ended_at<T>(count: u32, call: impl FnOnce() -> Result<T, StoreError>) -> StoreError {
    let asked = Cell::new(0);
    let check = move || {
        asked.set(asked.get() + 1);
        asked.get() >= count
    };
    match interruptible(check, call) {
        Ok(_) => panic!("the call did not block"),
        Err(error) => error,
    }
}

#[track_caller]
fn assert_ended(error: &StoreError, operation: Operation, is_unknown: bool) {
    let StoreError::Interrupted { context, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(context.operation, operation);
    assert_eq!(error.has_unknown_outcome(), is_unknown, "{error}");
    let text = "whether it took effect is unknown";
    assert_eq!(error.to_string().ends_with(text), is_unknown, "{error}");
}

type Call<'a> = &'a dyn Fn() -> Result<(), StoreError>;

fn waits_end(place: &str, store: &dyn Store, has_queues: bool) {
    use Operation as Op;
    let ended = |call: Call<'_>| ended_at(2, call);
    let error = ended(&|| store.get("never").map(drop));
    assert_ended(&error, Op::Get, false);
    let error = ended(&|| store.wait(&["never"]));
    assert_ended(&error, Op::Wait, false);
    let error = ended(&|| store.wait_timeout(&["never", "at all"], None));
    assert_ended(&error, Op::Wait, false);
    let error = ended(&|| store.multi_get(&["never", "at all"]).map(drop));
    assert_ended(&error, Op::MultiGet, false);
    let error = ended(&|| {
        let waited = store.wait_change("never", Known::nothing(), None);
        waited.map(drop)
    });
    assert_ended(&error, Op::WaitChange, false);
    let error = ended(&|| store.barrier(&format!("alone {place}"), 2));
    assert_ended(&error, Op::Barrier, true);
    if has_queues {
        let error = ended(&|| store.queue_pop("never").map(drop));
        assert_ended(&error, Op::QueuePop, false);
        let error = ended(&|| store.queue_take("never", 2, None).map(drop));
        assert_ended(&error, Op::QueueTake, false);
    }
    // None of it is left for later calls.
    let error = store
        .wait_timeout(&["never"], Some(Duration::from_millis(2)))
        .expect_err("no such key");
    assert!(error.is_timeout(), "{error}");
    if has_queues {
        store.queue_push("never", b"1").unwrap();
        assert_eq!(store.queue_pop("never").unwrap(), b"1");
    }
}

#[test]
fn waits_of_every_store_end() {
    let server = serve();
    let options = TcpStoreOptions::default;
    let store = open(server.local_addr().port(), options()).unwrap();
    waits_end("store", &store, true);
    let prefix = PrefixStore::new("prefix", Arc::new(store));
    waits_end("prefix", &prefix, true);
    assert_eq!(server.connection_count(), 1, "no connection was lost");
    let proxy = WithoutExtensions::in_front_of(server.local_addr());
    waits_end("proxy", &open(proxy.port(), options()).unwrap(), true);
    let resumed = options().with_resume(LONG);
    let resumed = open(server.local_addr().port(), resumed).unwrap();
    waits_end("resumed", &resumed, true);
    waits_end("hash", &HashStore::new(), true);
    let folder = tempfile::tempdir().unwrap();
    let file = FileStore::open(folder.path().join("store"), None).unwrap();
    waits_end("file", &file, false);
}

/// The check of a thread that waits uses the store that the thread waits in.
#[test]
fn a_check_may_use_the_store() {
    let server = serve();
    let tcp = Arc::new(open(server.local_addr().port(), TcpStoreOptions::default()).unwrap());
    let stores: [Arc<dyn Store>; 2] = [tcp, Arc::new(HashStore::new())];
    for store in stores {
        let used = Arc::clone(&store);
        let check = move || used.add("asked", 1).unwrap() == 3;
        let error = interruptible(check, || store.get("never")).unwrap_err();
        assert_ended(&error, Operation::Get, false);
        let used = Arc::clone(&store);
        let check = move || {
            used.set("late", b"x").unwrap();
            false
        };
        assert_eq!(interruptible(check, || store.get("late")).unwrap(), b"x");
    }
}

/// The wait has left its connection to another thread, and taken it back.
#[test]
fn a_check_may_use_the_store_after_the_wait_gave_way() {
    let server = serve();
    let store = Arc::new(open(server.local_addr().port(), TcpStoreOptions::default()).unwrap());
    let gave_way = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("the wait has arrived", || server.waiting_count() == 1);
            store.add("other", 1).unwrap();
            wait_until("the wait goes on", || server.waiting_count() == 1);
            gave_way.store(true, Ordering::Release);
        });
        let (used, gave_way) = (Arc::clone(&store), Arc::clone(&gave_way));
        let check = move || gave_way.load(Ordering::Acquire) && used.add("asked", 1).unwrap() == 2;
        let error = interruptible(check, || store.get("never")).unwrap_err();
        assert_ended(&error, Operation::Get, false);
    });
}

/// A server that answers the handshake and nothing else.
struct Silent {
    port: u16,
    stop: Arc<AtomicBool>,
    accepting: JoinHandle<()>,
}

impl Silent {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let accepting = thread::spawn(move || {
            let mut clients: Vec<TcpStream> = Vec::new();
            for client in listener.incoming() {
                let mut client = client.expect("a connection");
                let mut hello = [0; 10];
                // An interrupted client may have left.
                let is_greeted =
                    client.read_exact(&mut hello).is_ok() && client.write_all(&hello[6..]).is_ok();
                if is_greeted {
                    clients.push(client);
                } else if stopped.load(Ordering::Acquire) {
                    return;
                }
            }
        });
        Self {
            port,
            stop,
            accepting,
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Release);
        drop(TcpStream::connect(("127.0.0.1", self.port)).expect("it listens"));
        self.accepting.join().expect("no panic");
    }
}

#[test]
fn requests_without_a_reply_end_and_their_outcome_is_unknown() {
    use Operation as Op;
    let silent = Silent::start();
    let store = open(silent.port, TcpStoreOptions::default()).unwrap();
    let calls: [(Op, Call<'_>); 7] = [
        (Op::Add, &|| store.add("k", 1).map(drop)),
        (Op::Check, &|| store.check(&["k"]).map(drop)),
        (Op::CompareSet, &|| {
            store.compare_set("k", b"", b"1").map(drop)
        }),
        (Op::DeleteKey, &|| store.delete_key("k").map(drop)),
        (Op::NumKeys, &|| store.num_keys().map(drop)),
        (Op::QueueLen, &|| store.queue_len("k").map(drop)),
        (Op::Ping, &|| store.ping().map(drop)),
    ];
    for (operation, call) in calls {
        assert_ended(&ended_at(1, call), operation, true);
    }
    // Its cancel has no reply either. The wait changes nothing.
    assert_ended(&ended_at(1, || store.wait(&["k"])), Op::Wait, false);
    // More than all buffers on the way hold.
    let large = vec![0; 4 << 20];
    let error = ended_at(2, || (0..16).try_for_each(|_| store.set("k", &large)));
    assert_ended(&error, Op::Set, true);
    drop(store);
    silent.end();
}

#[test]
fn a_call_that_waits_for_a_connection_ends() {
    let silent = Silent::start();
    let store = open(silent.port, TcpStoreOptions::default()).unwrap();
    thread::scope(|scope| {
        let holding = scope.spawn(|| {
            let error = store.add("k", 1).unwrap_err();
            assert!(matches!(error, StoreError::Closed { .. }), "{error}");
        });
        wait_until("the other call ends", || {
            let waited = interruptible(|| true, || store.add("k", 1));
            // Until the thread holds the connection.
            matches!(waited, Err(StoreError::Interrupted { .. }))
        });
        store.close();
        holding.join().unwrap();
    });
    drop(store);
    silent.end();
}

#[test]
fn opening_ends() {
    // The system accepts connections, and nothing answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let options = TcpStoreOptions::default;
    let error = ended_at(2, || open(port, options()));
    assert_ended(&error, Operation::Open, false);
    let error = ended_at(2, || open(port, options().with_resume(LONG)));
    assert_ended(&error, Operation::Open, false);
    // A bound port on which nothing listens, so that no other test gets it.
    let closed = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    closed.bind(&any.into()).unwrap();
    let port = closed.local_addr().unwrap().as_socket().unwrap().port();
    let error = ended_at(2, || open(port, options()));
    assert_ended(&error, Operation::Open, false);
    let error = ended_at(2, || open(port, options().with_resume(LONG)));
    assert_ended(&error, Operation::Open, false);
    // The other worker never joins.
    let master = options().with_master(true).with_world_size(2);
    let error = ended_at(2, || open(0, master));
    assert_ended(&error, Operation::Open, true);
    assert!(!is_interrupted());
}

#[test]
fn a_file_lock_that_another_process_holds_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = FileStore::open(&path, None).unwrap();
    let held = std::fs::File::open(&path).unwrap();
    held.lock().unwrap();
    let error = ended_at(1, || store.set("k", b"1"));
    assert_ended(&error, Operation::Set, false);
    let error = ended_at(1, || FileStore::open(&path, None));
    assert_ended(&error, Operation::Open, false);
    held.unlock().unwrap();
    store.set("k", b"1").unwrap();
}
