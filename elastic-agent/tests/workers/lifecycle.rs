//! Worker processes: start, exit, stop, and the end of the agent.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use elastic_agent::{
    CommandLine, Console, Destination, ExitKind, GroupPlan, HostPort, KillSwitch, RankBlock,
    Signal, StartError, WorkerEnvironment, WorkerGroup, WorkerLogs, WorkerPlan,
};
use rustix::process::{Pid, kill_process, kill_process_group};
use tempfile::TempDir;

use crate::second_process::{self, test_name};
use crate::util::{
    NEVER_REACHED, PATIENCE, eventually, is_alive, line_of, next, own_environment, shell, shells,
    start,
};

/// A worker that ignores SIGTERM, and writes its pid when it does.
const STUBBORN: &str = "trap '' TERM; echo $$ > $DIR/pid; while :; do sleep 1000; done";

fn signal(number: i32) -> ExitKind {
    ExitKind::Signal {
        number,
        has_dumped_core: false,
    }
}

fn file(directory: &Path, name: &str) -> PathBuf {
    directory.join(name)
}

#[test]
fn each_worker_has_its_ranks_and_a_session_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut workers = Vec::new();
    for local_rank in 0..3 {
        let assignment = RankBlock::identical(1, 2, 3).assignment(1, 2, 3, local_rank);
        let master = HostPort::new("127.0.0.1", 29500);
        let environment = WorkerEnvironment::new(own_environment(), &assignment, "job", &master);
        let script = "read pid name state parent group session rest < /proc/$$/stat
            echo $RANK $LOCAL_RANK $WORLD_SIZE $((group - $$)) $((session - $$)) $#";
        let stdout = Destination::File {
            path: file(folder.path(), &local_rank.to_string()),
            is_shown: false,
        };
        let mut worker = shell(local_rank, script);
        worker.environment = environment.into_variables();
        worker.logs = WorkerLogs {
            stdout,
            ..WorkerLogs::CONSOLE
        };
        workers.push(worker);
    }
    let (group, exits) = start(workers);
    let ended: BTreeSet<_> = (0..3).map(|_| next(&exits).local_rank).collect();
    assert_eq!(ended, BTreeSet::from([0, 1, 2]));
    let report = group.stop(Signal::TERM, NEVER_REACHED, &KillSwitch::new());
    assert!(report.failures().is_none() && report.killed.is_empty());
    for local_rank in 0..3 {
        let line = fs::read_to_string(file(folder.path(), &local_rank.to_string())).unwrap();
        assert_eq!(line, format!("{} {local_rank} 6 0 0 0\n", 3 + local_rank));
    }
}

#[test]
fn an_exit_is_noticed_while_other_workers_run() {
    let folder = tempfile::tempdir().unwrap();
    let scripts = ["sleep 1000", "exit 3", "kill -s USR1 $$"];
    let (mut group, exits) = start(shells(folder.path(), &scripts));
    let mut ended = [next(&exits), next(&exits)];
    ended.sort_by_key(|exit| exit.local_rank);
    let pids = group.pids();
    for (exit, (local_rank, kind)) in ended
        .iter()
        .zip([(1, ExitKind::Code(3)), (2, signal(Signal::USR1.as_raw()))])
    {
        assert_eq!((exit.local_rank, exit.rank), (local_rank, 10 + local_rank));
        assert_eq!((exit.exit, exit.pid), (kind, pids[local_rank]));
    }
    assert_eq!(group.running(), 1);
    let report = group.stop(Signal::TERM, NEVER_REACHED, &KillSwitch::new());
    let outcome = &report.outcomes[2];
    assert_eq!((outcome.local_rank, outcome.exit), (0, signal(15)));
    assert!(outcome.was_stopped && !report.outcomes[0].was_stopped);
    assert_eq!(next(&exits).local_rank, 0);
}

#[test]
fn the_root_cause_is_the_failed_worker_not_the_stopped_ones() {
    let folder = tempfile::tempdir().unwrap();
    let scripts = [
        "trap 'exit 7' TERM; echo > $DIR/0; while :; do sleep 0.01; done",
        "until [ -s $DIR/0 ]; do sleep 0.01; done; exit 1",
        "sleep 1000",
        "exit 0",
    ];
    let (group, exits) = start(shells(folder.path(), &scripts));
    let mut ended = [next(&exits), next(&exits)].map(|exit| exit.exit.code());
    ended.sort_unstable();
    assert_eq!(ended, [0, 1]);
    let report = group.stop(Signal::TERM, NEVER_REACHED, &KillSwitch::new());
    assert!(report.killed.is_empty() && report.abandoned.is_empty());
    let failures = report.failures().unwrap();
    assert_eq!(failures.first().local_rank, 1);
    let mut others: Vec<_> = failures
        .all()
        .iter()
        .map(|failure| (failure.local_rank, failure.exit))
        .collect();
    others.sort_by_key(|other| other.0);
    let expected = [
        (0, ExitKind::Code(7)),
        (1, ExitKind::Code(1)),
        (2, signal(15)),
    ];
    assert_eq!(others, expected);
}

#[test]
fn processes_left_by_exited_workers_are_ended() {
    let folder = tempfile::tempdir().unwrap();
    // The second child ignores SIGTERM and is killed; the last one ignores SIGINT, as all background
    // processes of a shell.
    let scripts = [
        "sleep 1000 & echo $! > $DIR/0; exit 0",
        "(trap '' TERM; echo > $DIR/ready; sleep 1000) & echo $! > $DIR/1
            until [ -s $DIR/ready ]; do sleep 0.01; done; exit 4",
        "sleep 1000 & echo $! > $DIR/2; exec sleep 1000",
    ];
    let (group, exits) = start(shells(folder.path(), &scripts));
    let left: Vec<_> = ["0", "1", "2"]
        .map(|name| line_of(&file(folder.path(), name)))
        .into();
    let _ = (next(&exits), next(&exits));
    assert!(left.iter().all(|pid| is_alive(pid)));
    let report = group.stop(
        Signal::INT,
        Some(Duration::from_secs(2)),
        &KillSwitch::new(),
    );
    assert!(!left.iter().any(|pid| is_alive(pid)));
    assert!(report.killed.is_empty(), "no worker had to be killed");
    assert_eq!(report.outcomes.last().unwrap().exit, signal(2));
}

#[test]
fn a_signal_reaches_all_processes_of_running_workers() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'echo parent > $DIR/parent; exit 0' USR1
        (trap 'echo child > $DIR/child; exit 0' USR1; echo > $DIR/ready
            while :; do sleep 0.01; done) &
        wait; while :; do sleep 0.01; done";
    let (mut group, exits) = start(shells(folder.path(), &[script]));
    line_of(&file(folder.path(), "ready"));
    group.signal(Signal::USR1);
    assert_eq!(line_of(&file(folder.path(), "parent")), "parent");
    assert_eq!(line_of(&file(folder.path(), "child")), "child");
    assert_eq!(next(&exits).exit, ExitKind::Code(0));
    assert_eq!(group.running(), 0);
    group.signal(Signal::USR1); // no worker runs
}

#[test]
fn a_stopped_worker_is_killed_too() {
    let folder = tempfile::tempdir().unwrap();
    let scripts = ["echo $$ > $DIR/pid; kill -s STOP $$; exit 0"];
    let (group, _exits) = start(shells(folder.path(), &scripts));
    let pid = line_of(&file(folder.path(), "pid"));
    eventually("the worker is stopped", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.contains(") T ")
    });
    let report = group.stop(
        Signal::TERM,
        Some(Duration::from_millis(50)),
        &KillSwitch::new(),
    );
    assert_eq!(report.killed, [0]);
}

#[test]
fn dropping_a_group_kills_it() {
    let folder = tempfile::tempdir().unwrap();
    let scripts = [STUBBORN, "sleep 1000 & echo $! > $DIR/child; sleep 1000"];
    let (group, exits) = start(shells(folder.path(), &scripts));
    let child = line_of(&file(folder.path(), "child"));
    let pid = line_of(&file(folder.path(), "pid"));
    drop(group);
    assert!(!is_alive(&child) && !is_alive(&pid));
    assert_eq!(
        [next(&exits), next(&exits)].map(|exit| exit.exit),
        [signal(9); 2]
    );
    assert!(exits.recv().is_err(), "no thread holds the callback");
}

#[test]
fn a_missing_program_is_named_and_no_worker_keeps_running() {
    let folder = tempfile::tempdir().unwrap();
    let marker = format!("marker-{}", folder.path().display());
    let script = format!("sleep 1000; : {marker}");
    let mut workers = shells(folder.path(), &[&script, &script, "exit 0"]);
    workers[1] = WorkerPlan::new(11, 1, CommandLine::new("/no/such/program", ["-x"]));
    let plan = GroupPlan::new(workers);
    let console = Console::new(Box::new(io::sink()), Box::new(io::sink()));
    let error = WorkerGroup::start(plan, console, |exit| panic!("reported: {exit:?}"));
    let error = error.unwrap_err();
    let text = "cannot start /no/such/program as local rank 1: No such file or directory";
    assert!(error.to_string().starts_with(text), "{error}");
    assert!(matches!(error, StartError::Program { local_rank: 1, .. }));
    for process in fs::read_dir("/proc").unwrap() {
        let command = fs::read(process.unwrap().path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        assert!(!command.contains(&marker), "{command}");
    }
}

#[test]
fn a_log_file_that_cannot_be_created_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let [mut worker] = <[_; 1]>::try_from(shells(folder.path(), &["exit 0"])).unwrap();
    let path = file(folder.path(), "none/stdout.log");
    let stdout = Destination::File {
        path: path.clone(),
        is_shown: true,
    };
    worker.logs = WorkerLogs {
        stdout,
        ..WorkerLogs::CONSOLE
    };
    let plan = GroupPlan::new(vec![worker]);
    let console = Console::new(Box::new(io::sink()), Box::new(io::sink()));
    let error = WorkerGroup::start(plan, console, |_| ()).unwrap_err();
    assert!(matches!(error, StartError::LogFile { path: named, .. } if named == path));
}

#[test]
fn nothing_outlives_an_agent_that_is_killed() {
    let Some(family) = Family::start(test_name!("nothing_outlives_an_agent_that_is_killed"), 1)
    else {
        return;
    };
    assert!(is_alive(&family.worker) && is_alive(&family.child));
    let guardian = guardian_of(&family.agent).unwrap();
    kill(&family.agent.id().to_string());
    family.assert_ends();
    eventually("the guardian has ended", || !is_alive(&guardian));
}

#[test]
fn nothing_outlives_an_agent_that_is_killed_while_it_starts_workers() {
    let name = test_name!("nothing_outlives_an_agent_that_is_killed_while_it_starts_workers");
    for _ in 0..20 {
        // The first worker starts long before the last.
        let Some(family) = Family::start(name, 8) else {
            return;
        };
        kill(&family.agent.id().to_string());
        family.assert_ends();
    }
}

#[test]
fn no_worker_outlives_an_agent_that_is_killed_after_its_guardian() {
    let name = test_name!("no_worker_outlives_an_agent_that_is_killed_after_its_guardian");
    let Some(family) = Family::start(name, 1) else {
        return;
    };
    kill(&guardian_of(&family.agent).unwrap());
    eventually("the agent has no guardian", || {
        guardian_of(&family.agent).is_none()
    });
    kill(&family.agent.id().to_string());
    eventually("the worker has ended", || !is_alive(&family.worker));
}

/// An agent in a second process, with its first worker and the worker's child, which both ignore SIGTERM.
struct Family {
    agent: Child,
    worker: String,
    child: String,
    _folder: TempDir,
}

impl Family {
    /// Starts `test` in a second process, in which this function is the agent and waits to be killed.
    /// Returns when the first worker's child runs; other workers may not have started yet.
    fn start(test: &str, workers: usize) -> Option<Self> {
        if let Some(directory) = second_process::part() {
            let mut scripts = vec!["exec sleep 1000"; workers];
            scripts[0] = "trap '' TERM; sleep 1000 & echo $$ > $DIR/worker; echo $! > $DIR/child
                while :; do sleep 1000; done";
            let (_group, _exits) = start(shells(&directory, &scripts));
            thread::sleep(PATIENCE);
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut agent = second_process::command(test, folder.path())
            .spawn()
            .unwrap();
        let child = second_process::line_from(&mut agent, folder.path(), "child");
        let worker = second_process::line_from(&mut agent, folder.path(), "worker");
        Some(Self {
            agent,
            worker,
            child,
            _folder: folder,
        })
    }

    #[track_caller]
    fn assert_ends(&self) {
        eventually("the worker has ended", || !is_alive(&self.worker));
        eventually("its child has ended", || !is_alive(&self.child));
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
        // Without a guardian the worker's child keeps running, and keeps the group's id in use.
        if is_alive(&self.child) {
            let group = Pid::from_raw(self.worker.parse().unwrap()).unwrap();
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn kill(pid: &str) {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// The pid of this agent's guardian.
fn guardian_of(agent: &Child) -> Option<String> {
    let agent = agent.id().to_string();
    let processes = fs::read_dir("/proc").unwrap();
    let mut names = processes.filter_map(|process| process.unwrap().file_name().into_string().ok());
    names.find(|pid| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // After the name: state, parent.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        command.split('\0').any(|word| word == "elastic-guardian")
            && after_name.split_ascii_whitespace().nth(1) == Some(&agent)
    })
}

/// The system discards the exit statuses of children if SIGCHLD is ignored at the start of a process.
#[test]
fn an_inherited_ignored_sigchld_hides_no_exit_code() {
    let name = test_name!("an_inherited_ignored_sigchld_hides_no_exit_code");
    if let Some(directory) = second_process::part() {
        let (_group, exits) = start(shells(&directory, &["exit 3"]));
        assert_eq!(next(&exits).exit, ExitKind::Code(3));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let agent = second_process::command(name, folder.path());
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "trap '' CHLD; exec \"$@\"", "sh"])
        .arg(agent.get_program())
        .args(agent.get_args())
        .envs(
            agent
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    second_process::run(shell, folder.path());
}
