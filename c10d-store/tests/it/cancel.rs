//! Tests of calls that another thread ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::raw::{LONG, serve, wait_until};
use crate::without_extensions::WithoutExtensions;
use c10d_socket::Cancel;
use c10d_store::{
    FileStore, FileStoreOptions, HashStore, Known, Operation, PrefixStore, Store, StoreError,
    StoreExt, StoreHandle, TcpStore, TcpStoreOptions,
};
use socket2::{Domain, Socket, Type};

fn open(port: u16, options: TcpStoreOptions) -> Result<TcpStore, StoreError> {
    TcpStore::open("127.0.0.1", port, options.with_timeout(LONG))
}

/// Another thread cancels it when a call has begun to wait.
fn cancelled_by_another_thread() -> Cancel {
    let (began, begins) = channel();
    let cancel = Cancel::with_check(move || {
        // The other thread ends after the first.
        let _ = began.send(());
        false
    });
    let its = cancel.clone();
    thread::spawn(move || {
        begins.recv().expect("the call waits");
        its.cancel();
    });
    cancel
}

fn ended<T>(call: impl FnOnce(Cancel) -> Result<T, StoreError>) -> StoreError {
    match call(cancelled_by_another_thread()) {
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

fn waits_end(place: &str, store: &dyn Store, has_queues: bool) {
    use Operation as Op;
    type Call<'a> = &'a dyn Fn(&dyn Store) -> Result<(), StoreError>;
    let ended = |call: Call<'_>| ended(|cancel| call(&*store.with_cancel(&cancel)));
    let error = ended(&|store| store.get("never").map(drop));
    assert_ended(&error, Op::Get, false);
    let error = ended(&|store| store.wait(&["never"]));
    assert_ended(&error, Op::Wait, false);
    let error = ended(&|store| store.wait_timeout(&["never", "at all"], None));
    assert_ended(&error, Op::Wait, false);
    let error = ended(&|store| store.multi_get(&["never", "at all"]).map(drop));
    assert_ended(&error, Op::MultiGet, false);
    let error = ended(&|store| {
        let waited = store.wait_change("never", Known::nothing(), None);
        waited.map(drop)
    });
    assert_ended(&error, Op::WaitChange, false);
    let error = ended(&|store| store.barrier(&format!("alone {place}"), 2));
    assert_ended(&error, Op::Barrier, true);
    if has_queues {
        let error = ended(&|store| store.queue_pop("never").map(drop));
        assert_ended(&error, Op::QueuePop, false);
        let error = ended(&|store| store.queue_take("never", 2, None).map(drop));
        assert_ended(&error, Op::QueueTake, false);
    }
    // Between two polls of the value on a server without extensions.
    store.set("value", b"v").unwrap();
    let error = ended(&|store| {
        let waited = store.wait_change("value", Known::whole(b"v"), None);
        waited.map(drop)
    });
    assert_ended(&error, Op::WaitChange, false);
    // A call that waits later ends as well.
    let cancel = Cancel::new();
    cancel.cancel();
    for _ in 0..2 {
        let error = store.with_cancel(&cancel).get("never").unwrap_err();
        assert_ended(&error, Op::Get, false);
    }
    // During a wait, or just before it.
    for _ in 0..100 {
        let cancel = Cancel::new();
        let waiting = store.with_cancel(&cancel);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiting.get("never").unwrap_err());
            cancel.cancel();
            assert_ended(&waiting.join().unwrap(), Op::Get, false);
        });
    }
    // The cancel leaves nothing behind for other calls.
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
        let (asked, asks) = channel();
        let cancel = Cancel::with_check(move || {
            let count = used.add("asked", 1).unwrap();
            let _ = asked.send(());
            count >= 3
        });
        let waker = &cancel;
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..2 {
                    asks.recv().unwrap();
                    waker.wake();
                }
            });
            let error = store.with_cancel(&cancel).get("never").unwrap_err();
            assert_ended(&error, Operation::Get, false);
        });
        let used = Arc::clone(&store);
        let cancel = Cancel::with_check(move || {
            used.set("late", b"x").unwrap();
            false
        });
        assert_eq!(store.with_cancel(&cancel).get("late").unwrap(), b"x");
    }
}

/// The wait has left its connection to another thread, and taken it back.
#[test]
fn a_check_may_use_the_store_after_the_wait_gave_way() {
    let server = serve();
    let store = Arc::new(open(server.local_addr().port(), TcpStoreOptions::default()).unwrap());
    let gave_way = Arc::new(AtomicBool::new(false));
    let (used, may_end) = (Arc::clone(&store), Arc::clone(&gave_way));
    let cancel = Cancel::with_check(move || {
        may_end.load(Ordering::Acquire) && used.add("asked", 1).unwrap() >= 1
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("the wait has arrived", || server.waiting_count() == 1);
            store.add("other", 1).unwrap();
            wait_until("the wait goes on", || server.waiting_count() == 1);
            gave_way.store(true, Ordering::Release);
            cancel.wake();
        });
        let error = store.with_cancel(&cancel).get("never").unwrap_err();
        assert_ended(&error, Operation::Get, false);
    });
}

/// Waits of the same store continue, and waits with another cancel as well.
#[test]
fn a_cancel_leaves_the_waits_of_others() {
    let server = serve();
    let of_server = open(server.local_addr().port(), TcpStoreOptions::default()).unwrap();
    let stores: [&dyn Store; 2] = [&of_server, &HashStore::new()];
    for store in stores {
        let other = store.with_cancel(&Cancel::new());
        thread::scope(|scope| {
            let waits =
                [store, &*other].map(|it| scope.spawn(|| it.get_timeout("late", Some(LONG))));
            for _ in 0..100 {
                let error = ended(|cancel| store.with_cancel(&cancel).wait(&["never"]));
                assert_ended(&error, Operation::Wait, false);
                store.add("n", 1).unwrap();
            }
            store.set("late", b"x").unwrap();
            for wait in waits {
                assert_eq!(wait.join().unwrap().unwrap(), b"x");
            }
        });
    }
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
fn requests_without_a_reply_end_and_their_has_unknown_outcome() {
    use Operation as Op;
    type Call<'a> = &'a dyn Fn(&dyn Store) -> Result<(), StoreError>;
    let silent = Silent::start();
    // Each with its connection: an interrupted request costs that, and the next one would be ended while it connects.
    let ended = |call: Call<'_>| {
        let store = open(silent.port, TcpStoreOptions::default()).unwrap();
        ended(|cancel| call(&store.with_cancel(&cancel)))
    };
    // More than all buffers on the way hold.
    let large = vec![0; 4 << 20];
    let calls: [(Op, Call<'_>); 7] = [
        (Op::Add, &|store| store.add("k", 1).map(drop)),
        (Op::Check, &|store| store.check(&["k"]).map(drop)),
        (Op::CompareSet, &|store| {
            store.compare_set("k", b"", b"1").map(drop)
        }),
        (Op::DeleteKey, &|store| store.delete_key("k").map(drop)),
        (Op::NumKeys, &|store| store.num_keys().map(drop)),
        (Op::QueueLen, &|store| store.queue_len("k").map(drop)),
        (Op::Set, &|store| {
            (0..16).try_for_each(|_| store.set("k", &large))
        }),
    ];
    for (operation, call) in calls {
        assert_ended(&ended(call), operation, true);
    }
    // Its cancel has no reply either. The wait changes nothing.
    assert_ended(&ended(&|store| store.wait(&["k"])), Op::Wait, false);
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
            let error = ended(|cancel| store.with_cancel(&cancel).add("k", 1));
            // Until the thread holds the connection.
            !error.has_unknown_outcome()
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
    let silent_port = silent.local_addr().unwrap().port();
    // A bound port on which nothing listens, so that no other test gets it.
    let closed = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    closed.bind(&any.into()).unwrap();
    let closed_port = closed.local_addr().unwrap().as_socket().unwrap().port();
    let options = TcpStoreOptions::default;
    for port in [silent_port, closed_port] {
        let error = ended(|cancel| open(port, options().with_cancel(cancel)));
        assert_ended(&error, Operation::Open, false);
        let resumed = options().with_resume(LONG);
        let error = ended(|cancel| open(port, resumed.with_cancel(cancel)));
        assert_ended(&error, Operation::Open, false);
    }
    // The other worker never joins.
    let master = options().with_master(true).with_world_size(2);
    let error = ended(|cancel| open(0, master.with_cancel(cancel)));
    assert!(matches!(error, StoreError::Interrupted { .. }), "{error}");
}

#[test]
fn a_file_lock_that_another_process_holds_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = FileStore::open(&path, None).unwrap();
    let held = std::fs::File::open(&path).unwrap();
    held.lock().unwrap();
    let error = ended(|cancel| store.with_cancel(&cancel).set("k", b"1"));
    assert_ended(&error, Operation::Set, false);
    let options = FileStoreOptions::default();
    let error = ended(|cancel| FileStore::open_with(&path, &options.with_cancel(cancel)));
    assert_ended(&error, Operation::Open, false);
    held.unlock().unwrap();
    store.set("k", b"1").unwrap();
}
