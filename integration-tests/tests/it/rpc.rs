//! Calls and references between processes: workers are killed, stopped and restarted, and the store is killed.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_store::{StoreExt, TcpStore};
use integration_tests::eventually::eventually;
use integration_tests::process::ChildProcess;
use integration_tests::rpc_group::{BLOCK, Group, List, Programs};
use integration_tests::watchdog::Watchdog;
use rpc_agent::{Agent, AgentOptions, Outcome, Registry, RetryOptions, RpcError};
use rref::{RRef, RRefError};

const LIMIT: Duration = Duration::from_secs(180);

/// The limit for "at once" on a busy machine; a call has a timeout of 60 s, and a start 30 s.
const AT_ONCE: Duration = Duration::from_secs(20);

const PROGRAMS: Programs = Programs {
    store: env!("CARGO_BIN_EXE_store-process"),
    worker: env!("CARGO_BIN_EXE_rpc-worker"),
};

/// Creates a list at `owner`; returns the driver's reference.
fn list(group: &Group, owner: &str, items: &[i64]) -> RRef<List> {
    let created = group.driver.rrefs.call(owner, "list").remote(items);
    created.expect("the request is sent")
}

fn keep(group: &Group, worker: &str, name: &str, list: &RRef<List>) {
    let () = group.ask(worker, "keep", (name, list));
}

fn pass(group: &Group, name: &str, from: &str, to: &str) {
    let () = group.ask(from, "pass", (name, to));
}

#[test]
fn a_value_lives_until_the_last_of_three_processes_drops_its_reference() {
    let _watchdog = Watchdog::start("a_value_lives_until_the_last_reference", LIMIT);
    let group = Group::of_fixed_size(PROGRAMS, &["a", "b", "c"]);
    let sums = list(&group, "a", &[1, 2]);
    keep(&group, "b", "sums", &sums);
    drop(sums);
    pass(&group, "sums", "b", "c");
    assert!(group.ask::<_, bool>("b", "forget", "sums"));
    // Only c has a reference now; b's table entries are removed.
    assert_eq!(group.ask::<_, usize>("c", "push through", ("sums", 40)), 3);
    eventually("b has dropped its reference", || group.in_use("b") == 0);
    assert_ne!(group.in_use("a"), 0);
    // The reference returns to the owner.
    pass(&group, "sums", "c", "a");
    assert!(group.ask::<_, bool>("c", "forget", "sums"));
    eventually("c has dropped its reference", || group.in_use("c") == 0);
    assert_eq!(group.ask::<_, usize>("a", "push through", ("sums", 0)), 4);
    assert!(group.ask::<_, bool>("a", "forget", "sums"));
    group.until_empty();
    group.shutdown_clean();
}

#[test]
fn the_references_of_a_killed_user_are_released_and_those_of_others_are_not() {
    let _watchdog = Watchdog::start("the_references_of_a_killed_user", LIMIT);
    let mut group = Group::dynamic(PROGRAMS, &["a", "b", "c"]);
    for name in ["shared", "of b alone"] {
        let value = list(&group, "a", &[7]);
        keep(&group, "b", name, &value);
    }
    pass(&group, "shared", "b", "c");
    let users_at_owner = || group.ask::<_, usize>("a", "users", ());
    eventually("b holds two and c one", || users_at_owner() == 3);
    group.kill("b");
    let users_at_owner = || group.ask::<_, usize>("a", "users", ());
    eventually("c's is left", || users_at_owner() == 1);
    assert_eq!(group.ask::<_, usize>("c", "push through", ("shared", 1)), 2);
    group.kill("c");
    group.until_empty();
    group.shutdown_clean();
}

#[test]
fn users_of_a_killed_owner_get_an_error_that_names_it() {
    let _watchdog = Watchdog::start("users_of_a_killed_owner", LIMIT);
    let mut group = Group::dynamic(PROGRAMS, &["a", "b"]);
    let value = list(&group, "a", &[1]);
    value.wait_ready(Some(LIMIT)).expect("the value is created");
    keep(&group, "b", "value", &value);
    let rrefs = group.driver.rrefs.clone();
    let uncreated: RRef<List> = rrefs
        .call("a", "list unless in incarnation")
        .remote(1_u32)
        .expect("the request is sent");
    keep(&group, "b", "uncreated", &uncreated);
    group.wait_for_start("a", 1);
    // b waits for the value, and the driver calls a method on it, both without a timeout.
    let method = uncreated.call("sum").with_timeout(None).send::<_, i64>(());
    let method = method.expect("the request is sent");
    let wait = rrefs
        .call("b", "wait for")
        .with_timeout(None)
        .send::<_, ()>("uncreated");
    let wait = wait.expect("the request is sent");

    group.kill("a");
    let killed = Instant::now();
    let error = method.wait().expect_err("the owner was killed");
    assert!(matches!(error, RRefError::OwnerLost { .. }), "{error}");
    assert!(error.to_string().contains("name=a)"), "{error}");
    for error in [
        wait.wait().expect_err("the owner was killed"),
        rrefs
            .call("b", "push through")
            .run::<_, usize>(("value", 1))
            .expect_err("the owner was killed"),
    ] {
        let text = error.to_string();
        assert!(matches!(error, RRefError::Function { .. }), "{text}");
        assert!(
            text.contains("name=a)") && text.contains("is lost"),
            "{text}"
        );
    }
    assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());

    for name in ["value", "uncreated"] {
        assert!(group.ask::<_, bool>("b", "forget", name));
    }
    drop((value, uncreated));
    group.until_empty();
    group.shutdown_clean();
}

/// The retrying agent has no references, because `rref` stops an agent's retries to a worker that it knows is dead.
#[test]
fn a_call_to_a_killed_worker_has_an_unknown_outcome_and_a_retry_reaches_its_next_incarnation() {
    let _watchdog = Watchdog::start("a_call_to_a_killed_worker", LIMIT);
    let mut group = Group::dynamic(PROGRAMS, &["a", "b"]);
    let retrying = group.start_agent("retrying", 9);
    let agent = group.driver.agent.handle().clone();
    let once = agent
        .call("a", BLOCK)
        .with_timeout(None)
        .send::<_, u32>(1_u32);
    let retries = RetryOptions::default()
        .with_max_retries(1000)
        .with_retry_duration(Duration::from_millis(20))
        .with_backoff(1.0)
        .with_attempt_timeout(LIMIT);
    let again = retrying
        .handle()
        .call("a", BLOCK)
        .with_retries(&retries)
        .send::<_, u32>(1_u32);
    group.wait_for_start("a", 1);
    group.wait_for_start("a", 1);
    group.kill("a");
    let killed = Instant::now();
    let error = once.wait().expect_err("the worker was killed");
    assert!(matches!(error, RpcError::ConnectionLost { .. }), "{error}");
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("worker a (id 1)") && text.contains("outcome unknown"),
        "{text}"
    );
    assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
    // A call to a missing worker was certainly not executed.
    let error = agent
        .call("a", BLOCK)
        .run::<_, u32>(1_u32)
        .expect_err("the worker is missing");
    assert_eq!(error.outcome(), Outcome::NotExecuted, "{error}");
    assert_eq!(
        agent
            .call("b", BLOCK)
            .run::<_, u32>(2_u32)
            .expect("b still runs"),
        1
    );

    let early = again.wait_timeout(Duration::ZERO);
    assert!(
        early.is_none(),
        "the call ends before the restart: {early:?}"
    );
    group.restart("a");
    assert_eq!(again.wait().expect("the next incarnation replies"), 2);
    retrying.shutdown(AT_ONCE).expect("the agent shuts down");
    group.until_empty();
    group.shutdown_clean();
}

#[test]
fn a_group_works_without_its_store_and_its_shutdown_error_names_the_store() {
    let _watchdog = Watchdog::start("a_group_works_without_its_store", LIMIT);
    let mut group = Group::of_fixed_size(PROGRAMS, &["a", "b"]);
    // The first call between two workers connects them.
    let before = list(&group, "a", &[1]);
    keep(&group, "b", "before", &before);
    assert_eq!(group.ask::<_, usize>("b", "push through", ("before", 2)), 2);
    let store = group.kill_store();
    assert_eq!(group.ask::<_, usize>("b", "push through", ("before", 3)), 3);
    assert_eq!(before.call("sum").run::<_, i64>(()).expect("sum"), 6);
    let after = list(&group, "b", &[5]);
    keep(&group, "a", "after", &after);
    assert_eq!(group.ask::<_, usize>("a", "push through", ("after", 2)), 2);
    drop((before, after));
    assert!(group.ask::<_, bool>("b", "forget", "before"));
    assert!(group.ask::<_, bool>("a", "forget", "after"));
    group.until_empty();
    for (name, report) in group.shutdown(Duration::from_secs(2)) {
        assert_eq!(report["left"], 0, "{name}: {report}");
        for part in ["references", "agent"] {
            let text = report[part].as_str().unwrap_or_default();
            assert!(
                text.contains(&store.to_string()),
                "{name}: {part}: {report}"
            );
        }
    }
}

#[test]
fn only_calls_to_a_stopped_worker_time_out() {
    let _watchdog = Watchdog::start("only_calls_to_a_stopped_worker_time_out", LIMIT);
    let group = Group::of_fixed_size(PROGRAMS, &["a", "b"]);
    let agent = group.driver.agent.handle();
    let held = list(&group, "a", &[1]);
    held.wait_ready(Some(LIMIT)).expect("the value is created");
    keep(&group, "b", "held", &held);
    assert_eq!(group.ask::<_, usize>("b", "push through", ("held", 1)), 2);
    group.process("a").pause();
    let timeout = Duration::from_millis(300);
    let within = timeout;
    let timed_out = (0..20).map(|_| {
        agent
            .call("a", BLOCK)
            .with_timeout(within)
            .send::<_, u32>(2_u32)
    });
    let timed_out: Vec<_> = timed_out.collect();
    let read = held.call("sum").with_timeout(None).send::<_, i64>(());
    let read = read.expect("the request is sent");
    // Calls to another worker are answered meanwhile.
    for _ in 0..100 {
        assert_eq!(
            agent
                .call("b", BLOCK)
                .run::<_, u32>(2_u32)
                .expect("b still runs"),
            1
        );
    }
    for call in timed_out {
        let error = call.wait().expect_err("the worker is stopped");
        let RpcError::Timeout { after, outcome, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*after, *outcome), (timeout, Outcome::Unknown), "{error}");
    }
    // A stopped worker is not dead: after it resumes, it gets the releases and answers the calls.
    assert!(group.ask::<_, bool>("b", "forget", "held"));
    assert!(!read.is_complete());
    assert_ne!(group.in_use("b"), 0, "the release is not confirmed");
    group.process("a").resume();
    assert_eq!(read.wait().expect("the worker has resumed"), 2);
    drop(held);
    group.until_empty();
    group.shutdown_clean();
}

/// Starts a worker of a group that meets in the store at `port`.
fn start_worker(name: &str, rank: u32, world_size: u32, port: u16) -> ChildProcess {
    let mut command = Command::new(PROGRAMS.worker);
    let numbers = [rank, world_size, u32::from(port), 1];
    command
        .arg(name)
        .args(numbers.map(|number| number.to_string()));
    ChildProcess::start(format!("{name}, rank {rank}"), &mut command)
}

/// All other workers fail at once and name the worker, although a rank is missing and their own timeout is 30 s.
#[test]
fn a_worker_that_cannot_start_ends_the_start_of_the_others() {
    let _watchdog = Watchdog::start("a_worker_that_cannot_start", LIMIT);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("an address").port();
    for is_double in [true, false] {
        let mut store = ChildProcess::start("the store", Command::new(PROGRAMS.store).arg("serve"));
        let address: SocketAddr = store.read_line().parse().expect("an address");
        let client = TcpStore::connect("127.0.0.1", address.port()).expect("the store runs");
        // Of four, rank 3 never comes.
        let mut others = [0, 1].map(|rank| {
            let name = format!("worker{rank}");
            start_worker(&name, rank, 4, address.port())
        });
        client
            .wait(&["names/_NAME/worker0", "names/_NAME/worker1"])
            .expect("both workers have come");
        let began = Instant::now();
        let (name, port) = if is_double {
            ("worker1", 0)
        } else {
            ("worker2", taken)
        };
        let options = AgentOptions::new(name, 2)
            .with_host("127.0.0.1")
            .with_port(port)
            .with_world_size(4);
        let error = Agent::start(options, Registry::new(), Arc::new(client)).expect_err("it fails");
        let expected = if is_double {
            "RPC worker name worker1 is not unique. Workers 1 and 2 share the same name."
        } else {
            "cannot listen for other workers"
        };
        assert!(error.to_string().contains(expected), "{error}");
        for other in &mut others {
            assert_eq!(other.wait(LIMIT).code(), Some(1), "{}", other.stderr());
            let text = other.stderr();
            assert!(text.contains(expected), "{text}");
            assert!(
                text.contains(&format!("name={name}")) && text.contains("id=2"),
                "{text}"
            );
        }
        let took = began.elapsed();
        assert!(took < AT_ONCE, "{took:?}");
    }
}

/// In a group whose members come and go, the refused worker is not a member, and all members shut down without it.
#[test]
fn a_name_that_is_taken_delays_no_shutdown_of_a_dynamic_group() {
    let _watchdog = Watchdog::start("a_name_that_is_taken", LIMIT);
    let group = Group::dynamic(PROGRAMS, &["a", "b"]);
    let mut double = group.start_double("b", 7);
    assert_eq!(double.wait(LIMIT).code(), Some(1), "{}", double.stderr());
    let text = double.stderr();
    let expected = "RPC worker name b is not unique. Workers 2 and 7 share the same name.";
    assert!(text.contains(expected), "{text}");
    let began = Instant::now();
    group.shutdown_clean();
    let took = began.elapsed();
    assert!(took < AT_ONCE, "{took:?}");
}
