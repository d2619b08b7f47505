//! The launcher as a library, as programs that embed it use it, with real workers.

use std::env;
use std::fs;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use c10d_membership::{GroupOptions, MemberKey, Membership, Message};
use c10d_store::{StoreExt, TcpStore, TcpStoreOptions};
use elastic_agent::{
    AgentOptions, AgentOutcome, CommandLine, KeepOptions, Launcher, LauncherError, LauncherOptions,
    LauncherReport, Screen,
};
use elastic_rendezvous::RendezvousParameters;

const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps what is written.
#[derive(Debug, Default)]
struct Written(Mutex<String>);

impl Screen for Written {
    fn message(&self, text: &str) {
        self.text(text);
    }

    fn text(&self, text: &str) {
        self.0.lock().unwrap().push_str(text);
    }
}

/// Two workers of a shell script, on one node.
fn options(script: &str) -> LauncherOptions {
    let command = CommandLine::new("/bin/sh", ["-c", script]);
    LauncherOptions::new(AgentOptions::new(command, 2), rendezvous())
}

fn rendezvous() -> RendezvousParameters {
    RendezvousParameters::new("c10d", "127.0.0.1:0", "job", 1, 1).unwrap()
}

/// A worker whose value does not fit into the memory that its store may take. That is a failure of it alone.
fn write_too_much() {
    let port = env::var("MASTER_PORT").unwrap().parse().unwrap();
    let open = || TcpStore::connect("127.0.0.1", port).unwrap();
    let value = vec![7; 2 << 20];
    let error = open().compare_set("large", b"", &value).unwrap_err();
    assert!(error.to_string().contains("memory limit"), "{error}");
    open().set("small", "value").unwrap();
    assert_eq!(open().get("small").unwrap(), b"value");
}

/// The first process of a worker joins its group, and is stuck. It sends nothing, so the group evicts it.
fn be_stuck_as_a_member() {
    let variable = |name: &str| env::var(name).unwrap();
    let number = |name| variable(name).parse::<u64>().unwrap();
    let incarnation = number("C10D_MEMBER_INCARNATION");
    if incarnation > 1 {
        return;
    }
    let port = u16::try_from(number("MASTER_PORT")).unwrap();
    let store = TcpStore::open(&variable("MASTER_ADDR"), port, TcpStoreOptions::default());
    let group = Membership::connect(&store.unwrap(), &variable("C10D_MEMBERSHIP_GROUP"));
    let group = group.unwrap();
    group.open(&GroupOptions::new(1), "torch/").unwrap();
    let hello = Message::Hello {
        handle: "gloo".into(),
        step: 0,
    };
    let key = MemberKey::new(number("C10D_MEMBER_ID"), incarnation);
    group.ask(key, &hello, PATIENCE).unwrap();
    group.keep_alive(Duration::from_millis(50)).unwrap();
    thread::sleep(10 * PATIENCE);
}

#[test]
fn an_evicted_worker_that_is_stuck_is_killed_and_replaced() {
    const STUCK: &str = "LAUNCHER_TEST_STUCK";
    if env::var_os(STUCK).is_some() {
        return be_stuck_as_a_member();
    }
    let mut keep = KeepOptions::new(1);
    keep.members_expected_after = Duration::from_millis(50);
    keep.evicted_grace = Duration::from_millis(100);
    let test = "an_evicted_worker_that_is_stuck_is_killed_and_replaced";
    let command = CommandLine::new(env::current_exe().unwrap(), ["--exact", test]);
    let mut agent = AgentOptions::new(command, 1);
    agent.environment.push((STUCK.into(), "1".into()));
    agent.keep_workers = Some(keep);
    agent.restarts.max_restarts = Some(1);
    let report = Launcher::new(LauncherOptions::new(agent, rendezvous())).run();
    assert!(
        matches!(report.result, Ok(AgentOutcome::Succeeded)),
        "{report:?}"
    );
}

#[test]
fn the_workers_store_has_the_memory_limit() {
    const LIMITED: &str = "LAUNCHER_TEST_LIMITED";
    if env::var_os(LIMITED).is_some() {
        return write_too_much();
    }
    let test = "the_workers_store_has_the_memory_limit";
    let command = CommandLine::new(env::current_exe().unwrap(), ["--exact", test]);
    let mut agent = AgentOptions::new(command, 1);
    agent.environment.push((LIMITED.into(), "1".into()));
    let mut options = LauncherOptions::new(agent, rendezvous());
    options.store_memory_max = Some(1 << 20);
    let report = Launcher::new(options).run();
    assert!(
        matches!(report.result, Ok(AgentOutcome::Succeeded)),
        "{report:?}"
    );
}

#[test]
fn a_failure_is_reported_on_the_screen_in_the_error_file_and_to_the_caller() {
    let folder = tempfile::tempdir().unwrap();
    let error_file = folder.path().join("error.json");
    let screen = Arc::new(Written::default());
    let mut options = options("[ $RANK = 0 ] || exit 7; sleep 60");
    options.error_file = Some(error_file.clone());
    options.screen = Arc::clone(&screen) as Arc<dyn Screen>;
    let report = Launcher::new(options).run();
    assert_eq!(report.exit_code(), 1);
    let failures = report.failures().unwrap();
    assert_eq!(
        (failures.first().rank, failures.first().exit.code()),
        (1, 7)
    );
    let text = screen.0.lock().unwrap().clone();
    assert!(text.contains("exitcode  : 7"), "{text}");
    let json = fs::read_to_string(error_file).unwrap();
    assert!(
        json.contains("worker with rank 1 failed: exit code 7"),
        "{json}"
    );
}

fn refused(options: LauncherOptions) -> LauncherReport {
    let report = Launcher::new(options).run();
    assert!(report.failures().is_none(), "{report:?}");
    report
}

#[test]
fn what_cannot_start_is_told_before_anything_has_started() {
    let folder = tempfile::tempdir().unwrap();
    let error_file = folder.path().join("error.json");
    let absent = folder.path().join("absent/events");
    let mut options = options("exit 0");
    options.events_file = Some(absent);
    let report = refused(options);
    assert!(
        matches!(report.result, Err(LauncherError::Invalid(_))),
        "{report:?}"
    );
    assert_eq!(report.exit_code(), 2);

    let nothing = AgentOptions::new(CommandLine::new("/no/such/program", [""; 0]), 1);
    let mut options = LauncherOptions::new(nothing, rendezvous());
    options.error_file = Some(error_file.clone());
    let report = refused(options);
    assert!(
        matches!(report.result, Err(LauncherError::NotReady(_))),
        "{report:?}"
    );
    assert_eq!(report.exit_code(), 1);
    let json = fs::read_to_string(error_file).unwrap();
    assert!(json.contains("cannot start /no/such/program"), "{json}");
}
