//! The launcher as a library, as programs that embed it use it, with real workers.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use c10d_inspect::http::{HttpRequest, Target, fetch};
use c10d_inspect::{FindingKind, Report};
use c10d_membership::{GroupOptions, MemberKey, Membership, Message};
use c10d_store::{StoreExt, TcpStore, TcpStoreOptions};
use elastic_agent::{
    AgentOptions, AgentOutcome, CommandLine, KeepOptions, Launcher, LauncherError, LauncherOptions,
    LauncherReport, Screen,
};
use elastic_rendezvous::RendezvousParameters;
use log::{Level, LevelFilter, Log, Metadata, Record};

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

/// The warnings of all tests.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Recorder;

impl Log for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() == Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            WARNINGS.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Two workers of a shell script, on one node.
fn options(script: &str) -> LauncherOptions {
    let command = CommandLine::new("/bin/sh", ["-c", script]);
    LauncherOptions::new(AgentOptions::new(command, 2), rendezvous())
}

fn rendezvous() -> RendezvousParameters {
    RendezvousParameters::new("c10d", "127.0.0.1:0", "job", 1, 1).unwrap()
}

fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the report that `c10d why` requests.
fn why(store: SocketAddr) -> Option<Report> {
    let request = HttpRequest::get(Target::Tcp(store), "/why.json");
    let answer = fetch(&request, PATIENCE).ok()?;
    serde_json::from_slice(&answer.body).ok()
}

/// The keys that the ranks of a gloo group use to publish their addresses.
const KEYS: [&str; 2] = ["/default_pg/0//cpu//0/0", "/default_pg/0//cpu//0/1"];

/// An address in gloo's form.
fn address(rank: u8) -> Vec<u8> {
    let word = |number: u8| [number, 0, 0, 0, 0, 0, 0, 0];
    // The family AF_INET, a port, 127.0.0.1.
    let mut socket = vec![2, 0, 0x90, rank, 127, 0, 0, 1];
    socket.resize(128, 0);
    [
        &word(2)[..],
        b"vm",
        &word(136),
        &socket,
        &[0xff; 8],
        &word(0),
        &word(1),
    ]
    .concat()
}

/// A worker: rank 0 waits for the address of rank 1, which is written once a file exists.
fn work(rank: &str, go: &Path) {
    let variable = |name| env::var(name).unwrap();
    if rank == "1" {
        fs::write(go.with_file_name("pid"), format!("{}\n", process::id())).unwrap();
        until("rank 1 may go on", || go.exists().then_some(()));
    }
    let port = variable("MASTER_PORT").parse().unwrap();
    let store = TcpStore::connect(&variable("MASTER_ADDR"), port).unwrap();
    let rank: usize = rank.parse().unwrap();
    store.set(KEYS[rank], address(rank as u8)).unwrap();
    fs::write(go.with_file_name("port"), format!("{port}\n")).unwrap();
    store.get(KEYS[1]).unwrap();
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

fn number<T: FromStr>(path: &Path) -> Option<T> {
    let text = fs::read_to_string(path).ok()?;
    text.strip_suffix('\n')?.parse().ok()
}

#[test]
fn its_ranks_are_named_while_others_wait_for_them() {
    const GO: &str = "LAUNCHER_TEST_GO";
    if let (Ok(rank), Some(go)) = (env::var("RANK"), env::var_os(GO)) {
        return work(&rank, Path::new(&go));
    }
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let test = "its_ranks_are_named_while_others_wait_for_them";
    let command = CommandLine::new(env::current_exe().unwrap(), ["--exact", test]);
    let mut agent = AgentOptions::new(command, 2);
    agent.environment.push((GO.into(), go.clone().into()));
    let launcher = Launcher::new(LauncherOptions::new(agent, rendezvous()));
    let running = thread::spawn(move || launcher.run());

    let pid: u32 = until("rank 1 has started", || number(&folder.path().join("pid")));
    let port: u16 = until("rank 0 has connected", || {
        number(&folder.path().join("port"))
    });
    let store = SocketAddr::from(([127, 0, 0, 1], port));
    let report = until("rank 0 is stuck", || {
        why(store).filter(|report| report.is_stuck)
    });
    let finding = &report.findings[0];
    assert_eq!(finding.kind, FindingKind::NeverConnected, "{report:?}");
    assert_eq!(finding.culprits.0, BTreeSet::from([1]), "{report:?}");
    assert!(finding.text.contains(&pid.to_string()), "{report:?}");
    fs::write(&go, "").unwrap();
    let report = running.join().unwrap();
    assert!(
        matches!(report.result, Ok(AgentOutcome::Succeeded)),
        "{report:?}"
    );
    assert_eq!(report.exit_code(), 0);
}

#[test]
fn workers_that_could_not_be_kept_are_warned_of_while_they_run() {
    log::set_logger(&Recorder).expect("no other logger in this binary");
    log::set_max_level(LevelFilter::Warn);
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script = format!("until [ -e '{}' ]; do sleep 0.01; done", go.display());
    let mut keep = KeepOptions::new(1);
    keep.members_expected_after = Duration::from_millis(1);
    let command = CommandLine::new("/bin/sh", ["-c", &script]);
    let mut agent = AgentOptions::new(command, 2);
    agent.keep_workers = Some(keep);
    let launcher = Launcher::new(LauncherOptions::new(agent, rendezvous()));
    let running = thread::spawn(move || launcher.run());
    let warning = until("a warning", || {
        let warnings = WARNINGS.lock().unwrap();
        let mut warnings = warnings.iter();
        warnings.find(|it| it.contains("--keep-workers")).cloned()
    });
    assert!(warning.contains("the workers of /bin/sh"), "{warning}");
    fs::write(&go, "").unwrap();
    assert_eq!(running.join().unwrap().exit_code(), 0);
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
