//! Handles in a forked child: each operation is an error, and dropping them has no effect on the parent.
//!
//! A separate program, because it needs `unsafe`.
#![expect(unsafe_code, reason = "fork(2) has no safe form")]

use std::error::Error;
use std::fmt::{Debug, Display};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use c10d::GroupOptions;
use c10d_membership::Membership;
use c10d_relay::{HostPort, Relay, RelayOptions};
use c10d_socket::{Cancel, Deadline};
use c10d_store::{
    FileStore, HashStore, Known, Leader, Lookup, PrefixStore, ServerOptions, Store, StoreExt,
    StoreHandle, TcpStore, TcpStoreOptions, TcpStoreServer,
};
use rpc_agent::{Agent, AgentOptions, Registry, Reply, RpcError, RpcFuture};
use rref::{Functions, RRef, RRefs};

const PATIENCE: Duration = Duration::from_secs(60);

/// A child that hangs is killed after this many seconds.
const CHILD_MAX_S: u32 = 60;

/// Returns 0 in the child, which has only this thread.
fn fork() -> libc::pid_t {
    // SAFETY: the child has a copy of this thread alone, and the C library makes its allocator usable there. It takes
    // other locks only where the tests are about exactly that, and an alarm kills such a child.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        // SAFETY: it takes a number.
        unsafe { libc::alarm(CHILD_MAX_S) };
    }
    child
}

/// Runs `work` in a forked child.
fn fork_for(work: impl FnOnce()) -> libc::pid_t {
    let child = fork();
    if child == 0 {
        exit_after(work);
    }
    child
}

/// Ends the child, with 0 if `work` does not panic.
#[expect(clippy::print_stderr, reason = "shown when the test fails")]
fn exit_after(work: impl FnOnce()) -> ! {
    let result = catch_unwind(AssertUnwindSafe(work));
    if let Err(panic) = &result {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        eprintln!("in the child: {}", text.unwrap_or("a panic"));
    }
    // SAFETY: it takes a number, and exits without running the parent's destructors.
    unsafe { libc::_exit(result.is_err().into()) }
}

/// Waits until the child has exited, and returns its status.
#[track_caller]
fn wait_for(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the status is written to valid memory.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Checks that the work of a child did not panic or hang.
#[track_caller]
fn join(child: libc::pid_t) {
    assert_eq!(wait_for(child), 0, "the child failed, or hung (14)");
}

/// Has a forked child use and drop its copies of `values`, and returns the parent's.
#[track_caller]
fn in_child<T>(values: T, work: impl FnOnce(T)) -> T {
    let mut values = Some(values);
    let child = fork_for(|| work(values.take().expect("taken once in each process")));
    join(child);
    values.expect("taken in the child only")
}

/// The error of a forked child, which names it.
#[track_caller]
fn refused<T: Debug, E: Display>(result: Result<T, E>) {
    let Err(error) = result else {
        panic!("{result:?}", result = result.map_err(|_| ()));
    };
    let (text, child) = (
        error.to_string(),
        format!("forked child {} ", process::id()),
    );
    assert!(text.contains(&child), "{text}");
}

fn serve() -> (TcpStoreServer, u16) {
    let options = ServerOptions::default().with_groups(c10d_membership::groups);
    let server = TcpStoreServer::bind("127.0.0.1:0", options).unwrap();
    let port = server.local_addr().port();
    (server, port)
}

fn refuses_everything(store: &dyn Store) {
    refused(store.set("k", "child"));
    refused(store.multi_set(&[("k", b"child".as_slice()), ("l", b"child")]));
    refused(store.append("k", "child"));
    refused(store.get("k"));
    refused(store.try_get("k"));
    refused(store.multi_get(&["k", "l"]));
    refused(store.wait(&["missing"]));
    refused(store.check(&["k"]));
    refused(store.add("n", 1));
    refused(store.compare_set("k", "parent", "child"));
    refused(store.wait_change("k", Known::whole(b"parent"), PATIENCE));
    refused(store.delete_key("k"));
    refused(store.list_keys());
    refused(store.num_keys());
    refused(store.barrier("b", 1));
    refused(store.clone_store());
    if !store.label().starts_with("file") {
        refused(store.queue_push("q", "child"));
        refused(store.try_queue_pop("q"));
        refused(store.queue_pop("q"));
        refused(store.queue_take("q", 1, PATIENCE));
        refused(store.queue_len("q"));
    }
    if store.label().starts_with("TCP") {
        refused(store.set_ephemeral("e", "child", None));
        refused(store.keep_alive(None));
        refused(store.end_waits("k"));
        refused(store.delete_prefix("k", Duration::ZERO));
        refused(Membership::connect(store, "group"));
    }
    // Without an error, and without a lock: what never changes, and the child's own copy of the timeout.
    store.set_timeout(store.timeout());
    assert!(!store.full_key("k").is_empty());
    let other = store.with_cancel(&Cancel::new());
    refused(other.get("k"));
    store.close();
}

#[test]
fn a_child_never_gets_a_value_of_its_parent_s_connection() {
    let (_server, port) = serve();
    let store = TcpStore::connect("127.0.0.1", port).unwrap();
    store.set("parent", "of the parent").unwrap();
    store.set("child", "of the child").unwrap();
    let child = fork_for(|| {
        for _ in 0..5_000 {
            refused(store.get("child"));
        }
    });
    for _ in 0..5_000 {
        assert_eq!(store.get("parent").unwrap(), b"of the parent");
    }
    join(child);
}

#[test]
fn a_child_uses_and_drops_every_kind_of_store() {
    let (server, port) = serve();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let relay = Relay::start(
        HostPort::new("127.0.0.1", port),
        vec![TcpListener::bind("127.0.0.1:0").unwrap()],
        RelayOptions::default(),
    )
    .unwrap();
    let open = |port, options| Arc::new(TcpStore::open("127.0.0.1", port, options).unwrap());
    let plain = TcpStoreOptions::default;
    let tcp = open(port, plain());
    let stores: Vec<Arc<dyn Store>> = vec![
        tcp.clone(),
        Arc::new(tcp.with_cancel(&Cancel::new())),
        tcp.clone_store().unwrap(),
        Arc::new(PrefixStore::nest("p", tcp.clone()).unwrap()),
        open(port, plain().with_resume(PATIENCE)),
        open(relay.local_addrs()[0].port(), plain()),
        open(0, plain().with_master(true).with_multi_tenant(true)),
        Arc::new(FileStore::open(&path, Some(1)).unwrap()),
        Arc::new(HashStore::new()),
    ];
    for (number, store) in stores.iter().enumerate() {
        store.set("k", "parent").unwrap();
        let owned = store.set_ephemeral(&format!("owned {number}"), "mine", None);
        assert!(owned.is_ok() || !store.label().starts_with("TCP"));
    }
    let group = GroupOptions::default().join(tcp.clone(), 0, 1).unwrap();
    let membership = Membership::connect(&*tcp, "group").unwrap();
    let observer = server.observer();
    let connections = server.connection_count();

    let handles = (stores, tcp, group, membership, observer, server, relay);
    let handles = in_child(handles, |handles| {
        let (stores, tcp, group, membership, observer, server, relay) = handles;
        for store in &stores {
            refuses_everything(&**store);
        }
        refused(tcp.ping());
        refused(tcp.announce(b"child"));
        refused(tcp.count_worker());
        assert_eq!((tcp.host(), tcp.port()), ("127.0.0.1", port));
        assert!(tcp.connection_ends().is_none());
        refused(membership.status());
        refused(group.barrier());
        refused(group.split("half", &[0]));
        refused(observer.counters(PATIENCE));
        refused(observer.snapshot(PATIENCE));
        assert_eq!(server.local_addr().port(), port);
        assert!(
            !server.is_running() && server.connection_count() == 0 && server.peers().is_empty()
        );
        assert!(!relay.is_running() && relay.connection_count() == 0);
        let waited = relay.wait_until_connected(Deadline::NEVER, &Cancel::NEVER);
        assert!(waited.is_err());
        relay.finish(Deadline::NEVER);
        // A store and a server of the child's own.
        let own = TcpStore::connect("127.0.0.1", port).unwrap();
        own.set("from the child", "x").unwrap();
        drop(own);
        TcpStore::open("127.0.0.1", 0, plain().with_master(true)).unwrap();
        server.shutdown();
        drop((stores, tcp, group, membership, observer));
    });
    let (mut stores, _tcp, group, membership, observer, server, relay) = handles;
    for (number, store) in stores.iter().enumerate() {
        store.set("k", "parent").unwrap();
        assert_eq!(store.get("k").unwrap(), b"parent", "{}", store.label());
        assert_eq!(store.clone_store().unwrap().get("k").unwrap(), b"parent");
        if store.label().starts_with("TCP") {
            let owned = store.get(&format!("owned {number}")).unwrap();
            assert_eq!(owned, b"mine", "{}", store.label());
        }
    }
    assert_eq!(stores[0].get("from the child").unwrap(), b"x");
    group.barrier().unwrap();
    membership.status().unwrap();
    observer.counters(PATIENCE).unwrap();
    // That of the clone above may not be closed yet.
    assert!(server.is_running() && server.connection_count() >= connections);
    assert!(relay.is_connected());
    assert!(path.exists());
    stores.clear();
    assert!(
        !path.exists(),
        "the parent's was the last of its world size"
    );
}

/// As the signal handlers of Python may do.
#[test]
fn a_child_that_is_forked_within_a_wait_does_not_continue_it() {
    let (_server, port) = serve();
    let forked = Arc::new(AtomicI32::new(-1));
    let check = Arc::clone(&forked);
    let cancel = Cancel::with_check(move || {
        if check.load(Ordering::SeqCst) < 0 {
            check.store(fork(), Ordering::SeqCst);
        }
        false
    });
    let store = TcpStore::connect("127.0.0.1", port).unwrap();
    let waits = store.with_cancel(&cancel);
    let other = store.clone_store().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            while forked.load(Ordering::SeqCst) < 0 {
                thread::sleep(Duration::from_millis(1));
            }
            // The child has time to take the answer of its parent.
            thread::sleep(Duration::from_millis(100));
            other.set("late", "of the parent").unwrap();
        });
        let got = waits.get("late");
        let child = forked.load(Ordering::SeqCst);
        if child == 0 {
            exit_after(|| {
                refused(got);
                drop(waits);
                refused(store.get("late"));
                drop(store);
            });
        }
        assert_eq!(got.unwrap(), b"of the parent");
        join(child);
        assert_eq!(store.get("late").unwrap(), b"of the parent");
    });
}

/// Names a server that never answers.
#[derive(Debug)]
struct Silent(HostPort);

impl Lookup for Silent {
    fn name(&self) -> String {
        "silent://test".to_owned()
    }

    fn leader(
        &self,
        _: Deadline,
        _: &Cancel,
    ) -> Result<Option<Leader>, Box<dyn Error + Send + Sync>> {
        let address = self.0.clone();
        Ok(Some(Leader { address, epoch: 1 }))
    }
}

/// The thread of the lookups during the attempt is in the parent only.
#[test]
fn a_child_that_is_forked_within_an_attempt_does_not_wait_for_a_thread_of_its_parent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let forked = Arc::new(AtomicI32::new(-1));
    let check = Arc::clone(&forked);
    let began = Instant::now();
    let cancel = Cancel::with_check(move || {
        let is_tried = began.elapsed() > Duration::from_millis(300);
        if is_tried && check.load(Ordering::SeqCst) < 0 {
            check.store(fork(), Ordering::SeqCst);
        }
        false
    });
    let directory: Arc<dyn Lookup> = Arc::new(Silent(HostPort::new("127.0.0.1", port)));
    let options = TcpStoreOptions::default()
        .with_timeout(Duration::from_secs(2))
        .with_cancel(cancel);
    let opened = TcpStore::open_at(&directory.into(), options).map(drop);
    let child = forked.load(Ordering::SeqCst);
    if child == 0 {
        exit_after(|| drop(opened.unwrap_err()));
    }
    opened.unwrap_err();
    join(child);
}

/// Its future is completed by threads that the child does not have.
#[test]
fn a_child_that_is_forked_within_a_wait_for_a_call_does_not_continue_it() {
    let answers: Arc<Mutex<Option<Reply>>> = Arc::default();
    let forked = Arc::new(AtomicI32::new(-1));
    let mut registry = Registry::new();
    let later = Arc::clone(&answers);
    registry
        .register_deferred("later", move |_, _, reply| {
            *later.lock().unwrap() = Some(reply);
        })
        .unwrap();
    let alone = HashStore::new();
    let (agent, _) = start("forks", 0, 1, &alone, registry, Functions::new());
    let call = agent.handle().call("forks", "later");
    let call = call.with_timeout(None).send_bytes("");
    let check = Arc::clone(&forked);
    let cancel = Cancel::with_check(move || {
        if check.load(Ordering::SeqCst) < 0 {
            check.store(fork(), Ordering::SeqCst);
        }
        check.load(Ordering::SeqCst) > 0
    });
    let waited = call.wait_until(Deadline::NEVER, &cancel);
    let child = forked.load(Ordering::SeqCst);
    if child == 0 {
        exit_after(|| {
            refused(waited.expect("the wait has an error"));
            drop((call, agent));
        });
    }
    assert!(waited.is_none());
    join(child);
    let arrived = || answers.lock().unwrap().take();
    let reply = std::iter::repeat_with(arrived).flatten().next();
    reply.unwrap().send(Ok(&b"x"[..]));
    assert_eq!(call.wait().unwrap(), "x");
    agent.shutdown(PATIENCE).unwrap();
}

/// The start of a multi-tenant server holds a lock, for a second if its port is being closed.
#[test]
fn a_child_starts_a_server_while_its_parent_does() {
    let open = |port| {
        let options = TcpStoreOptions::default().with_master(true);
        TcpStore::open("127.0.0.1", port, options.with_multi_tenant(true))
    };
    let port = open(0).unwrap().port();
    let take = || TcpListener::bind(("127.0.0.1", port)).ok();
    let taken = std::iter::repeat_with(take).flatten().next();
    let opening = thread::spawn(move || open(port).map(drop));
    while !opening.is_finished() {
        join(fork_for(|| drop(open(0).unwrap())));
    }
    opening.join().unwrap().unwrap_err();
    drop(taken);
}

/// Other threads hold each lock now and then when the process forks.
#[test]
fn a_child_waits_for_no_lock_of_its_parent_s_threads() {
    let (_server, port) = serve();
    let folder = tempfile::tempdir().unwrap();
    let (agent, _) = start(
        "a",
        0,
        1,
        &HashStore::new(),
        Registry::new(),
        Functions::new(),
    );
    let agent = Arc::new(agent);
    let stores: Vec<Arc<dyn Store>> = vec![
        Arc::new(TcpStore::connect("127.0.0.1", port).unwrap()),
        Arc::new(FileStore::open(folder.path().join("store"), None).unwrap()),
        Arc::new(HashStore::new()),
    ];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for store in &stores {
            for name in ["a", "b"] {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        store.set(name, "x").unwrap();
                        store.set_timeout(store.timeout());
                        let _ = store.wait_timeout(&["missing"], Duration::from_millis(2));
                    }
                });
            }
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = agent
                    .handle()
                    .call("a", "no such function")
                    .send_bytes("")
                    .wait();
                let _ = agent.handle().metrics();
            }
        });
        for _ in 0..200 {
            let child = fork_for(|| {
                for store in &stores {
                    store.timeout();
                    refused(store.get("a"));
                    store.close();
                }
                refused(agent.handle().call("a", "f").send_bytes("").wait());
                let _ = (agent.handle().metrics(), agent.handle().workers());
                drop((stores.clone(), Arc::clone(&agent)));
            });
            join(child);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// A worker of a static group; `world_size` 1 needs no other thread.
fn start(
    name: &str,
    rank: u32,
    world_size: u32,
    store: &HashStore,
    mut registry: Registry,
    functions: Functions,
) -> (Agent, RRefs) {
    let rrefs = RRefs::register(&mut registry, functions).unwrap();
    let options = AgentOptions::new(name, rank)
        .with_world_size(world_size)
        .with_host("127.0.0.1");
    let agent = Agent::start(options, registry, Arc::new(store.clone())).unwrap();
    rrefs.attach(agent.handle()).unwrap();
    (agent, rrefs)
}

/// The child of a function has its caller's connection, and would also answer.
#[test]
fn a_child_that_returns_from_a_function_ends_without_an_answer() {
    let mut registry = Registry::new();
    registry
        .register_bytes("fork", |_, _| Ok(fork().to_string().into()))
        .unwrap();
    let alone = HashStore::new();
    let (agent, _) = start("forks", 0, 1, &alone, registry, Functions::new());
    for _ in 0..3 {
        let answer = agent.handle().call("forks", "fork").send_bytes("").wait();
        let child = String::from_utf8(answer.unwrap().to_vec()).unwrap();
        let child = child.parse().unwrap();
        assert_eq!(wait_for(child) & 0x7f, libc::SIGABRT);
    }
    agent.shutdown(PATIENCE).unwrap();
}

/// A value that counts its living instances.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn a_child_drops_an_agent_and_its_references() {
    let alive = Arc::new(AtomicUsize::new(0));
    let (answer, answers) = mpsc::channel::<Reply>();
    let answer = Mutex::new(answer);
    let mut registry = Registry::new();
    registry
        .register_deferred("later", move |_, _, reply| {
            answer.lock().unwrap().send(reply).unwrap();
        })
        .unwrap();
    let mut functions = Functions::new();
    let living = Arc::clone(&alive);
    functions
        .register_opaque("make", move |_, ()| {
            living.fetch_add(1, Ordering::SeqCst);
            Ok(Counted(Arc::clone(&living)))
        })
        .unwrap();
    functions
        .register_method("count", |_, counted: &Counted, ()| {
            Ok(counted.0.load(Ordering::SeqCst))
        })
        .unwrap();
    let store = HashStore::new();
    let owner = {
        let store = store.clone();
        thread::spawn(move || start("owner", 0, 2, &store, registry, functions))
    };
    let (agent, rrefs) = start("user", 1, 2, &store, Registry::new(), Functions::new());
    let (owner, owners) = owner.join().unwrap();
    let (lost, losses) = mpsc::channel();
    let (lost, handle) = (Mutex::new(lost), agent.handle().clone());
    handle.on_peer_lost(move |worker, _| lost.lock().unwrap().send(worker.clone()).unwrap());

    let value: RRef<Counted> = rrefs.call("owner", "make").remote(()).unwrap();
    value.wait_confirmed(PATIENCE).unwrap();
    assert_eq!(value.call("count").run::<_, usize>(()).unwrap(), 1);
    let own: RRef<i64> = rrefs.rref_without_value().unwrap();
    let pending = handle.call("owner", "later").send_bytes("");
    let reply = answers.recv_timeout(PATIENCE).unwrap();
    let (promise, promised) = handle.promise::<i64>();
    let after = pending.then(|result| result.map(|_| 1));
    let waiting = own.value_future().unwrap();

    let workers = (owner, owners, agent, rrefs, value, own);
    let calls = (pending, after, promise, promised, waiting, reply);
    let handles = in_child((workers, calls), |(workers, calls)| {
        let (owner, owners, agent, rrefs, value, own) = workers;
        let (pending, after, promise, promised, waiting, reply) = calls;
        for agent in [&owner, &agent] {
            let handle = agent.handle();
            refused(handle.call("owner", "later").send_bytes("").wait());
            refused(handle.worker("owner"));
            refused(agent.join(PATIENCE));
            refused(agent.shutdown(PATIENCE));
            agent.shutdown_now();
            assert_eq!(handle.workers().len(), 1);
            handle.spawn(|| panic!("in the child"));
            handle.on_end(|| panic!("in the child"));
        }
        assert_eq!(agent.handle().incarnation_of(owner.handle().me().id), None);
        refused(pending.wait());
        refused(after.wait());
        refused(promised.wait());
        refused(pending.wait_timeout(PATIENCE).unwrap());
        let called = Arc::new(AtomicBool::new(false));
        let has_been = Arc::clone(&called);
        pending.on_complete(move |result| {
            assert!(matches!(result, Err(RpcError::OtherProcess(_))));
            has_been.store(true, Ordering::SeqCst);
        });
        assert!(called.load(Ordering::SeqCst));
        assert!(!promise.complete(Ok(1)));
        refused(RpcFuture::clone(&pending).then(|result| result).wait());
        reply.send(Ok("from the child"));

        refused(waiting.wait());
        refused(value.call("count").run::<_, usize>(()));
        refused(value.call("count").send::<_, usize>(()));
        refused(value.call("count").remote::<_, usize>(()));
        refused(value.wait_confirmed(PATIENCE));
        refused(value.wait_ready(PATIENCE));
        refused(own.local_value(PATIENCE));
        refused(own.to_here(PATIENCE));
        refused(own.set_value(7));
        refused(own.set_error("child"));
        refused(own.has_value());
        assert!(!value.is_confirmed() && !value.has_timed_out());
        assert_eq!(value.owner().id.get(), 0);
        for rrefs in [&owners, &rrefs] {
            refused(rrefs.rref(7));
            refused(rrefs.rref_without_value::<i64>());
            refused(rrefs.call("owner", "make").run::<_, i64>(()));
            refused(rrefs.call("owner", "make").remote::<_, i64>(()));
            refused(rrefs.sizes());
            refused(rrefs.leak_report());
            refused(rrefs.leave(PATIENCE));
            refused(rrefs.shutdown(&agent, PATIENCE));
            refused(rrefs.attach(agent.handle()));
        }
        drop((value, own, rrefs, owners, agent, owner));
        drop((pending, after, promise, promised, waiting));
        // An agent of the child's own.
        let alone = HashStore::new();
        let (agent, rrefs) = start("c", 0, 1, &alone, Registry::new(), Functions::new());
        assert_eq!(rrefs.rref(7).unwrap().to_here(PATIENCE).unwrap(), 7);
        agent.shutdown(PATIENCE).unwrap();
    });
    let ((owner, owners, agent, rrefs, value, own), calls) = handles;
    let (pending, after, promise, promised, waiting, reply) = calls;
    assert_eq!(value.call("count").run::<_, usize>(()).unwrap(), 1);
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    assert_eq!(owners.sizes().unwrap().forks, 1);
    reply.send(Ok("from the parent"));
    assert_eq!(pending.wait().unwrap(), "from the parent");
    assert_eq!(after.wait().unwrap(), 1);
    assert!(promise.complete(Ok(2)));
    assert_eq!(promised.wait().unwrap(), 2);
    own.set_value(7).unwrap();
    assert_eq!(*waiting.wait().unwrap(), 7);
    assert_eq!(agent.handle().metrics().connections_lost, 0);
    assert!(losses.try_recv().is_err());

    drop(value);
    let until = Instant::now() + PATIENCE;
    while alive.load(Ordering::SeqCst) > 0 {
        assert!(Instant::now() < until, "the value is not freed");
        thread::sleep(Duration::from_millis(1));
    }
    drop((own, rrefs, owners));
    thread::scope(|scope| {
        scope.spawn(|| owner.shutdown(PATIENCE).unwrap());
        agent.shutdown(PATIENCE).unwrap();
    });
}
