//! Calls and references of workers that `init_rpc` has started.
#![cfg(feature = "rpc")]

use std::net::TcpListener;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use c10d::{GroupOptions, Rpc, RpcError, RpcMember, RpcOptions};
use c10d_store::{HashStore, Store};
use rpc_agent::AgentOptions;
use rref::{Functions, RRef, RRefError};

const PATIENCE: Duration = Duration::from_secs(60);

fn functions() -> Functions {
    let mut functions = Functions::new();
    functions
        .register("number", |_, number: i64| Ok(number))
        .unwrap();
    functions
}

fn init(url: &str, rank: usize) -> Result<Rpc, RpcError> {
    RpcOptions::default()
        .with_init_method(url, rank, 2)
        .with_agent(AgentOptions::new("", 0).with_host("127.0.0.1"))
        .with_timeout(PATIENCE)
        .init(&format!("worker{rank}"), functions())
}

#[test]
fn workers_meet_at_a_url_call_each_other_and_end_together() {
    let file = env::temp_dir().join(format!("c10d-init-rpc-{}", process::id()));
    let _ = fs::remove_file(&file);
    let url = format!("file://{}", file.display());
    thread::scope(|scope| {
        for rank in 0..2 {
            let url = &url;
            scope.spawn(move || work(init(url, rank).unwrap(), rank));
        }
    });
    let _ = fs::remove_file(&file);
}

/// The work of each of the two workers.
fn work(rpc: Rpc, rank: usize) {
    assert_eq!((rpc.group().rank(), rpc.group().world_size()), (rank, 2));
    let other = format!("worker{}", 1 - rank);
    let number: RRef<i64> = rpc.rrefs().call(&*other, "number").remote(7_i64).unwrap();
    assert_eq!(number.to_here(Some(PATIENCE)).unwrap(), 7);
    drop(number);
    assert_eq!(
        rpc.agent().handle().me().name.to_string(),
        format!("worker{rank}")
    );
    rpc.shutdown().unwrap();
}

fn join(store: &Arc<dyn Store>, name: &str, rank: u32) -> Result<RpcMember, RpcError> {
    // A size in the given options is replaced as well.
    let agent = AgentOptions::new("", 0)
        .with_world_size(7)
        .with_host("127.0.0.1");
    RpcOptions::default()
        .with_agent(agent)
        .with_timeout(PATIENCE)
        .join(Arc::clone(store), name, rank, functions())
}

fn number(from: &RpcMember, to: &str, number: i64) -> Result<i64, RRefError> {
    let call = from.rrefs().call(to, "number").with_timeout(PATIENCE);
    call.run(number)
}

/// Three workers: the third joins late, the second leaves while the first and the third continue, and a new process takes its place.
#[test]
fn workers_of_a_dynamic_group_join_late_and_leave_early() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let first = join(&store, "first", 0).unwrap();
    assert!(number(&first, "late", 1).is_err(), "it has not joined");
    let second = join(&store, "second", 1).unwrap();
    assert_eq!(number(&first, "second", 2).unwrap(), 2);

    let late = join(&store, "late", 2).unwrap();
    for from in [&first, &second, &late] {
        for to in ["first", "second", "late"] {
            assert_eq!(number(from, to, 3).unwrap(), 3);
        }
    }
    let held: RRef<i64> = late.rrefs().call("first", "number").remote(4_i64).unwrap();
    assert_eq!(held.to_here(PATIENCE).unwrap(), 4);

    let report = second.leave().unwrap();
    assert!(report.values.is_empty(), "{report}");
    assert!(number(&first, "second", 5).is_err(), "it has left");
    assert_eq!(number(&first, "late", 6).unwrap(), 6);
    assert_eq!(held.to_here(PATIENCE).unwrap(), 4);

    let again = join(&store, "second", 1).unwrap();
    assert_eq!(number(&again, "first", 7).unwrap(), 7);
    let began = Instant::now();
    while number(&late, "second", 8).is_err() {
        assert!(began.elapsed() < PATIENCE, "the new process is not called");
        thread::sleep(Duration::from_millis(10));
    }
    // A worker whose values are held waits for its holder, which leaves first.
    thread::scope(|scope| {
        let first = scope.spawn(|| first.leave().unwrap());
        drop(held);
        late.leave().unwrap();
        first.join().unwrap();
    });
    again.leave().unwrap();
}

/// Groups of one store with different names do not see each other.
#[test]
fn dynamic_groups_of_one_store_are_kept_apart_by_their_names() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let members = ["a", "b"].map(|name| {
        RpcOptions::default()
            .with_group(GroupOptions::default().with_name(name))
            .with_agent(AgentOptions::new("", 0).with_host("127.0.0.1"))
            .with_timeout(PATIENCE)
            .join(
                Arc::clone(&store),
                &format!("worker-{name}"),
                0,
                functions(),
            )
            .unwrap()
    });
    assert!(number(&members[0], "worker-b", 1).is_err());
    assert_eq!(number(&members[1], "worker-b", 1).unwrap(), 1);
    for member in members {
        member.leave().unwrap();
    }
}

/// The process of a worker. Killed if the test fails.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Rank 0 of `env://` and `tcp://` hosts the store. A worker that is given no URL takes the environment.
#[test]
fn workers_meet_at_the_address_that_their_environment_or_their_url_has() {
    const TEST: &str = "workers_meet_at_the_address_that_their_environment_or_their_url_has";
    const METHOD: &str = "C10D_TEST_INIT_METHOD";
    if let Ok(method) = env::var(METHOD) {
        let rank = env::var("RANK").unwrap().parse().unwrap();
        if method.is_empty() {
            let options = RpcOptions::default()
                .with_agent(AgentOptions::new("", 0).with_host("127.0.0.1"))
                .with_timeout(PATIENCE);
            let rpc = options.init(&format!("worker{rank}"), functions());
            return work(rpc.unwrap(), rank);
        }
        return work(init(&method, rank).unwrap(), rank);
    }
    for method in ["", "env://", "tcp://127.0.0.1:PORT"] {
        let port = free_port();
        let start = |rank: usize| {
            let worker = Command::new(env::current_exe().unwrap())
                .args([TEST, "--exact", "--nocapture"])
                .env(METHOD, method.replace("PORT", &port.to_string()))
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", "2")
                .env_remove("TORCHELASTIC_USE_AGENT_STORE")
                .spawn();
            Worker(worker.unwrap())
        };
        for mut worker in [0, 1].map(start) {
            assert!(worker.0.wait().unwrap().success(), "{method:?}");
        }
    }
}

/// A port that no process uses. It is below the range of ports for outgoing connections, so it stays free until rank
/// 0 listens on it.
fn free_port() -> u16 {
    let first = 10_000 + u16::try_from(process::id() % 10_000).unwrap();
    let is_free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
    (first..32_000).find(is_free).unwrap()
}

/// Only a worker with the secret of the group is called, although the store does not require a secret.
#[cfg(feature = "tls")]
#[test]
fn the_secret_of_the_group_is_that_of_its_calls() {
    use c10d_store::Secret;

    let file = env::temp_dir().join(format!("c10d-init-rpc-secret-{}", process::id()));
    let _ = fs::remove_file(&file);
    let url = format!("file://{}", file.display());
    let secrets = [0; 2].map(|_| Secret::random().unwrap());
    let init = |rank: usize, secret: &Secret| {
        RpcOptions::default()
            .with_init_method(&url, rank, 2)
            .with_group(
                GroupOptions::default()
                    .with_name("rpc")
                    .with_credentials(secret.clone().into()),
            )
            .with_agent(AgentOptions::new("", 0).with_host("127.0.0.1"))
            .with_timeout(PATIENCE)
            .init(&format!("worker{rank}"), functions())
            .unwrap()
    };
    let meets = |secrets: [&Secret; 2]| {
        let _ = fs::remove_file(&file);
        thread::scope(|scope| {
            let workers = [0, 1].map(|rank| {
                let init = &init;
                scope.spawn(move || init(rank, secrets[rank]))
            });
            let [first, second] = workers.map(|worker| worker.join().unwrap());
            let called: Result<i64, _> = first.rrefs().call("worker1", "number").run(7_i64);
            drop(second);
            called
        })
    };
    assert_eq!(meets([&secrets[0], &secrets[0]]).unwrap(), 7);
    let error = meets([&secrets[0], &secrets[1]]).unwrap_err();
    assert!(error.to_string().contains("secret"), "{error}");
    let _ = fs::remove_file(&file);
}

#[test]
fn the_error_says_which_step_failed() {
    let error = init("gopher://x", 0).unwrap_err();
    assert!(matches!(error, RpcError::Url(_)), "{error}");
    let error = init("file:///tmp/unused", 2).unwrap_err();
    assert!(matches!(error, RpcError::Group(_)), "{error}");
}
