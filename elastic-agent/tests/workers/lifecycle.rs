//! Worker processes from start to end.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use elastic_agent::{
    Assignment, CommandLine, Console, Destination, ExitKind, GroupPlan, Hurry, Signal, StartError,
    WorkerEnvironment, WorkerGroup, worker_environment,
};
use rustix::process::{Pid, kill_process, kill_process_group};
use tempfile::TempDir;

use crate::second_process::{self, test_name};
use crate::util::{
    FOR_EVER, PATIENCE, eventually, line_of, lives, next, own_environment, shell, shells, start,
};

/// A worker that does not heed SIGTERM, and says when it has come to that.
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
    let mut plan = GroupPlan::default();
    for local_rank in 0..3 {
        let environment = WorkerEnvironment {
            assignment: Assignment {
                rank: 3 + local_rank,
                local_rank,
                group_rank: 1,
                role_rank: 3 + local_rank,
                local_world_size: 3,
                world_size: 6,
                group_world_size: 2,
                role_world_size: 6,
            },
            role: "default",
            master_addr: "127.0.0.1",
            master_port: 29500,
            restart_count: 0,
            max_restarts: 0,
            run_id: "job",
            use_agent_store: true,
            error_file: None,
            virtual_local_rank: false,
        };
        let script = "read pid name state parent group session rest < /proc/$$/stat
            echo $RANK $LOCAL_RANK $WORLD_SIZE $((group - $$)) $((session - $$)) $#";
        let mut worker = shell(local_rank, script);
        worker.environment = worker_environment(&environment, own_environment()).unwrap();
        worker.logs.stdout = Destination::File {
            path: file(folder.path(), &local_rank.to_string()),
            is_shown: false,
        };
        plan.workers.push(worker);
    }
    let (group, exits) = start(plan);
    let ended: BTreeSet<_> = (0..3).map(|_| next(&exits).local_rank).collect();
    assert_eq!(ended, BTreeSet::from([0, 1, 2]));
    let report = group.stop(Signal::TERM, FOR_EVER, &Hurry::new());
    assert!(report.failures().is_none() && report.killed.is_empty());
    for local_rank in 0..3 {
        let line = fs::read_to_string(file(folder.path(), &local_rank.to_string())).unwrap();
        assert_eq!(line, format!("{} {local_rank} 6 0 0 0\n", 3 + local_rank));
    }
}

#[test]
fn an_end_is_noticed_while_others_run_on() {
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
    let report = group.stop(Signal::TERM, FOR_EVER, &Hurry::new());
    let outcome = &report.outcomes[2];
    assert_eq!((outcome.local_rank, outcome.exit), (0, signal(15)));
    assert!(outcome.was_stopped && !report.outcomes[0].was_stopped);
    assert_eq!(next(&exits).local_rank, 0);
}

#[test]
fn the_one_that_failed_is_first_and_those_stopped_follow() {
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
    let report = group.stop(Signal::TERM, FOR_EVER, &Hurry::new());
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
fn who_does_not_heed_the_signal_is_killed_after_the_grace() {
    let folder = tempfile::tempdir().unwrap();
    let (group, _exits) = start(shells(folder.path(), &[STUBBORN, "sleep 1000"]));
    let pid = line_of(&file(folder.path(), "pid"));
    let grace = Duration::from_millis(200);
    let started = Instant::now();
    let report = group.stop(Signal::TERM, grace, &Hurry::new());
    assert!(started.elapsed() >= grace);
    assert_eq!(report.killed, [0]);
    let ends: Vec<_> = report.outcomes.iter().map(|end| end.exit).collect();
    assert_eq!(ends, [signal(15), signal(9)]);
    assert!(!Path::new("/proc").join(pid).exists(), "it is reaped");
}

#[test]
fn somebody_in_a_hurry_ends_the_patience() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'echo told > $DIR/told' TERM; echo > $DIR/ready
        while :; do sleep 0.01; done";
    let (group, _exits) = start(shells(folder.path(), &[script]));
    line_of(&file(folder.path(), "ready"));
    let hurry = Hurry::new();
    let report = thread::scope(|scope| {
        scope.spawn(|| {
            line_of(&file(folder.path(), "told"));
            hurry.hurry();
        });
        group.stop(Signal::TERM, FOR_EVER, &hurry)
    });
    assert_eq!(report.killed, [0]);
    assert_eq!(report.outcomes[0].exit, signal(9));
}

#[test]
fn what_workers_leave_behind_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    // The second one is not asked twice; the last one does not heed an interrupt, as all that a
    // shell runs in the background.
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
    assert!(left.iter().all(|pid| lives(pid)));
    let report = group.stop(Signal::INT, Duration::from_millis(500), &Hurry::new());
    assert!(!left.iter().any(|pid| lives(pid)));
    assert!(report.killed.is_empty(), "no worker had to be killed");
    assert_eq!(report.outcomes.last().unwrap().exit, signal(2));
}

#[test]
fn what_heeds_the_signal_is_not_waited_for_any_longer() {
    let folder = tempfile::tempdir().unwrap();
    let scripts = ["sleep 1000 & sleep 1000 & echo > $DIR/ready; exec sleep 1000"];
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (group, _exits) = start(shells(folder.path(), &scripts));
        line_of(&file(folder.path(), "ready"));
        fs::remove_file(file(folder.path(), "ready")).unwrap();
        let report = group.stop(signal, FOR_EVER, &Hurry::new());
        assert!(report.killed.is_empty());
    }
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
    group.signal(Signal::USR1); // to nobody
}

#[test]
fn a_stopped_worker_is_killed_too() {
    let folder = tempfile::tempdir().unwrap();
    let scripts = ["echo $$ > $DIR/pid; kill -s STOP $$; exit 0"];
    let (group, _exits) = start(shells(folder.path(), &scripts));
    let pid = line_of(&file(folder.path(), "pid"));
    eventually("it is stopped", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.contains(") T ")
    });
    let report = group.stop(Signal::TERM, Duration::from_millis(50), &Hurry::new());
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
    assert!(!lives(&child) && !lives(&pid));
    assert_eq!(
        [next(&exits), next(&exits)].map(|exit| exit.exit),
        [signal(9); 2]
    );
    assert!(exits.recv().is_err(), "no thread holds the callback");
}

#[test]
fn a_program_that_is_not_there_is_named_and_nothing_runs_on() {
    let folder = tempfile::tempdir().unwrap();
    let marker = format!("marker-{}", folder.path().display());
    let script = format!("sleep 1000; : {marker}");
    let mut plan = shells(folder.path(), &[&script, &script, "exit 0"]);
    plan.workers[1].command = CommandLine::new("/no/such/program", ["-x"]);
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
fn a_log_file_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = shells(folder.path(), &["exit 0"]);
    let path = file(folder.path(), "none/stdout.log");
    plan.workers[0].logs.stdout = Destination::File {
        path: path.clone(),
        is_shown: true,
    };
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
    assert!(lives(&family.worker) && lives(&family.child));
    let guardian = guardian_of(&family.agent).unwrap();
    kill(&family.agent.id().to_string());
    family.assert_ends();
    eventually("the guardian is gone", || !lives(&guardian));
}

#[test]
fn nothing_outlives_an_agent_that_is_killed_while_it_starts_workers() {
    let name = test_name!("nothing_outlives_an_agent_that_is_killed_while_it_starts_workers");
    for _ in 0..20 {
        // The first one is far ahead of the last.
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
    eventually("there is no guardian", || {
        guardian_of(&family.agent).is_none()
    });
    kill(&family.agent.id().to_string());
    eventually("the worker is gone", || !lives(&family.worker));
}

/// An agent in a process of its own, to be killed, with its first worker and the worker's child, neither
/// of which heeds SIGTERM.
struct Family {
    agent: Child,
    worker: String,
    child: String,
    _folder: TempDir,
}

impl Family {
    /// Starts `test` in a second process, where this function plays the agent, gives `None` and
    /// never comes so far before it is killed. Gives a family when its child is there; workers but the
    /// first may be about to be started.
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
        eventually("the worker is gone", || !lives(&self.worker));
        eventually("its child is gone", || !lives(&self.child));
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
        // Without a guardian the worker's children stay, and keep the group's id.
        if lives(&self.child) {
            let group = Pid::from_raw(self.worker.parse().unwrap()).unwrap();
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn kill(pid: &str) {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// The guardian that this agent has started.
fn guardian_of(agent: &Child) -> Option<String> {
    let agent = agent.id().to_string();
    let processes = fs::read_dir("/proc").unwrap();
    let mut names = processes.filter_map(|process| process.unwrap().file_name().into_string().ok());
    names.find(|pid| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Behind the name come the state and the parent.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        command.split('\0').any(|word| word == "elastic-guardian")
            && after_name.split_ascii_whitespace().nth(1) == Some(&agent)
    })
}

/// A process that was started with SIGCHLD ignored is told no exit statuses by the system.
#[test]
fn an_ignored_child_signal_hides_no_exit_code() {
    let name = test_name!("an_ignored_child_signal_hides_no_exit_code");
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
