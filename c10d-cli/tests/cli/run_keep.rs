//! `c10d run --keep-workers`: workers without Python that are members of a group, and die.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_membership::{
    Attempt, EndReason, Event, EventNumber, GroupOptions, Leave, MemberKey, Membership, Message,
    Reply,
};
use c10d_store::{Store, StoreExt, TcpStore, TcpStoreOptions};
use elastic_rendezvous::{
    C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, RendezvousHandler, RendezvousInfo,
    RendezvousSettings,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::{Ended, PROGRAM, Running, free_port, until};
use crate::run::Job;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(300);

/// The interval of a member's checks for the end of the work.
const POLL: Duration = Duration::from_millis(100);

/// A worker runs this test: it is a member of the group until the file `finish` exists, or that with its rank.
pub(crate) const MEMBER: &str =
    "exec \"$MEMBER\" --exact run_keep::a_worker_is_a_member --nocapture";

fn variable<T: FromStr>(name: &str) -> Option<T> {
    env::var(name).ok()?.parse().ok()
}

/// A process of the group. Writes a line for each generation: its rank in it and its size.
#[test]
fn a_worker_is_a_member() {
    let Ok(folder) = env::var("C10D_TEST_FOLDER").map(PathBuf::from) else {
        return;
    };
    // Beside nodes that do not keep their workers, the launcher sets its rank only.
    let id: u64 = variable("C10D_MEMBER_ID").or(variable("RANK")).unwrap();
    let incarnation = variable("C10D_MEMBER_INCARNATION").unwrap_or(1);
    let serial: u64 = variable("C10D_MEMBER_SERIAL").unwrap_or(id);
    let mut lines = OpenOptions::new();
    let name = format!("{id}-{}", std::process::id());
    let mut lines = lines
        .create(true)
        .append(true)
        .open(folder.join(name))
        .unwrap();
    let port = variable("MASTER_PORT").unwrap();
    let store = TcpStore::open(
        &env::var("MASTER_ADDR").unwrap(),
        port,
        TcpStoreOptions::default(),
    );
    let store = store.unwrap();
    let name = env::var("C10D_MEMBERSHIP_GROUP").unwrap_or_else(|_| {
        let name = store.get("c10d/membership_group").unwrap();
        String::from_utf8(name).unwrap()
    });
    let group = Membership::connect(&store, &name).unwrap();
    let mut options = GroupOptions::new(variable("C10D_MEMBERS_MIN").unwrap_or(1));
    let world_size = variable("WORLD_SIZE").unwrap();
    options.size_first = variable("C10D_MEMBERS_FIRST").unwrap_or(world_size);
    assert!(id < world_size as u64, "rank {id} of {world_size}");
    // A test may pause on a busy machine.
    options.ready_timeout = Duration::from_secs(60);
    options.ack_timeout = Duration::from_secs(60);
    options.below_min_timeout = Duration::from_millis(variable("BELOW_MIN_MS").unwrap_or(60_000));
    group.open(&options, "torch/").unwrap();
    let mut member = Member {
        group,
        key: MemberKey::new(id, incarnation),
        handle: format!("{serial}"),
        after: EventNumber::NONE,
        generation: None,
    };
    member.say(Message::Hello {
        handle: member.handle.as_str().into(),
        step: 0,
    });
    let ends = [folder.join("finish"), folder.join(format!("finish-{id}"))];
    std::thread::spawn(move || {
        until_any_exists(&ends);
        std::process::exit(0);
    });
    let last = folder.join("last");
    loop {
        if last.exists()
            && let Some(generation) = member.generation
        {
            member.say(Message::finished(generation));
        }
        if let Some(text) = member.next() {
            lines.write_all(text.as_bytes()).unwrap();
        }
    }
}

fn until_any_exists(paths: &[PathBuf]) {
    while !paths.iter().any(|path| path.exists()) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Member {
    group: Membership,
    key: MemberKey,
    handle: String,
    after: EventNumber,
    generation: Option<Attempt>,
}

impl Member {
    fn say(&self, message: Message) -> Reply {
        self.group.ask(self.key, &message, LONG).unwrap()
    }

    /// Takes part in the group's next action. Exits if the group no longer exists.
    fn next(&mut self) -> Option<String> {
        let poll = Message::Poll {
            after: self.after,
            is_leaving: false,
        };
        let (number, event) = match self.group.ask(self.key, &poll, POLL).unwrap() {
            Reply::NotYet => return None,
            // A script can crash at its exit.
            Reply::Ended(EndReason::Finished) => {
                std::process::exit(if self.key.id.0 == 1 { 7 } else { 0 });
            }
            Reply::Event(number, event) => (number, event),
            other => panic!("{other:?}"),
        };
        self.after = number;
        match event {
            Event::Propose { attempt, leave, .. } => {
                if let (Leave::AtBoundary { .. }, Some(generation)) = (leave, self.generation) {
                    let mut step = u64::from(attempt.count());
                    while self.say(Message::Boundary { generation, step }) == Reply::Proceed {
                        step += 1;
                    }
                }
                self.say(Message::Ready {
                    attempt,
                    handle: self.handle.as_str().into(),
                    step: 0,
                });
            }
            Event::Call { record, .. } => {
                self.say(Message::Ack {
                    attempt: record.attempt,
                    is_ok: true,
                });
            }
            Event::Commit { record } => {
                self.generation = Some(record.attempt);
                let rank = record.seats.iter().position(|seat| seat.member == self.key);
                return Some(format!("{} {}\n", rank.unwrap(), record.seats.len()));
            }
            Event::Break { .. } => {}
            other => panic!("{other:?}"),
        }
        None
    }
}

/// A job of members, and their output.
pub(crate) struct Members {
    pub(crate) job: Job,
    pub(crate) launcher: Option<Running>,
}

/// Shows the log of a job that a failed test leaves behind.
impl Drop for Members {
    fn drop(&mut self) {
        if let Some(launcher) = self.launcher.take() {
            launcher.signal(Signal::TERM);
            let ended = launcher.end();
            let log = ended.stderr + &self.log();
            let text = format!("{log}\n{:?}\n", self.lines());
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    }
}

impl Members {
    pub(crate) fn start(options: &[&str], environment: &[(&str, &str)], script: &str) -> Self {
        Self::start_with("--standalone", options, environment, script)
    }

    fn start_with(
        rendezvous: &str,
        options: &[&str],
        environment: &[(&str, &str)],
        script: &str,
    ) -> Self {
        let job = Job::new();
        let all = [&[rendezvous, "--keep-workers"], options].concat();
        let mut command = job.command(&all, script);
        command.env("MEMBER", env::current_exe().unwrap());
        command.envs(environment.iter().copied());
        command.stderr(File::create(job.path("log")).unwrap());
        let launcher = Some(Running::start(command));
        Self { job, launcher }
    }

    /// The last line of each process that has ever been a member, by id and process id.
    fn lines(&self) -> BTreeMap<(u64, i32), String> {
        lines_in(&self.job)
    }

    /// All processes that have begun to be members, by id.
    fn processes(&self) -> Vec<(u64, i32)> {
        let entries = fs::read_dir(self.job.path("")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let processes = names.filter_map(|name| {
            let (id, pid) = name.split_once('-')?;
            Some((id.parse().ok()?, pid.parse().ok()?))
        });
        processes.collect()
    }

    /// The process ids of the members of a generation of this size, by id, once it is there without any of `dead`.
    pub(crate) fn generation(&self, size: usize, dead: &[i32]) -> BTreeMap<u64, i32> {
        generation_in(&self.job, size, dead)
    }

    fn finish(self) -> Ended {
        fs::write(self.job.path("finish"), "").unwrap();
        self.end()
    }

    /// Finishes the job of several nodes, and checks that none of them has restarted its workers.
    pub(crate) fn finish_with<const N: usize>(self, others: [Running; N]) {
        fs::write(self.job.path("finish"), "").unwrap();
        let others = others.map(Running::end);
        for ended in others.into_iter().chain([self.end()]) {
            assert_eq!(ended.code, Some(0), "{ended:?}");
            let is_whole = !ended.stderr.contains("restarting the workers");
            assert!(is_whole, "{ended:?}");
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.job.path("log")).unwrap_or_default()
    }

    fn end(mut self) -> Ended {
        let mut ended = self.launcher.take().unwrap().end();
        ended.stderr.push_str(&self.log());
        self.job.assert_nothing_runs();
        ended
    }
}

fn lines_in(job: &Job) -> BTreeMap<(u64, i32), String> {
    let entries = fs::read_dir(job.path("")).unwrap();
    let lines = entries.filter_map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let (id, pid) = name.split_once('-')?;
        let text = fs::read_to_string(entry.path()).unwrap();
        let line = text.lines().last()?.to_owned();
        Some(((id.parse().ok()?, pid.parse().ok()?), line))
    });
    lines.collect()
}

/// Waits for a generation, like [`Members::generation`].
pub(crate) fn generation_in(job: &Job, size: usize, dead: &[i32]) -> BTreeMap<u64, i32> {
    let mut members = BTreeMap::new();
    until(&format!("{size} members without {dead:?}"), || {
        let mut lines = lines_in(job);
        lines.retain(|(_, pid), _| !dead.contains(pid));
        let ranks: BTreeMap<String, (u64, i32)> = lines
            .into_iter()
            .map(|(process, line)| (line, process))
            .collect();
        let expected = (0..size).map(|rank| format!("{rank} {size}"));
        members = expected
            .filter_map(|line| ranks.get(&line).copied())
            .collect();
        members.len() == size
    });
    members
}

pub(crate) fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn the_death_of_a_worker_restarts_that_worker_only() {
    let events = tempfile::NamedTempFile::new().unwrap();
    let file = format!("--events={}", events.path().display());
    let options = ["--nproc-per-node=3", "--max-restarts=3", &file];
    let members = Members::start(&options, &[], MEMBER);
    let first = members.generation(3, &[]);
    kill(first[&0]);
    let second = members.generation(3, &[first[&0]]);
    assert_eq!((second[&1], second[&2]), (first[&1], first[&2]));
    // Two at once.
    kill(second[&0]);
    kill(second[&2]);
    let third = members.generation(3, &[first[&0], second[&0], second[&2]]);
    assert_eq!(third[&1], first[&1]);
    let ended = members.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for text in ["restarting the workers", "other nodes"] {
        assert!(!ended.stderr.contains(text), "{ended:?}");
    }
    let text = fs::read_to_string(events.path()).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let round = lines.filter(|line| line["event"] == "round");
    let [round] = &round.collect::<Vec<_>>()[..] else {
        panic!("{text}");
    };
    assert_eq!(round["restarts_left"], 0, "{round}");
    let mut replaced = round["replaced"].as_array().unwrap().clone();
    replaced.sort_by_key(Value::as_u64);
    assert_eq!(replaced, [0, 0, 2], "{round}");
}

/// Rank 0, newcomers, several at once, and before they are members. `SEED=n` repeats the choices.
#[test]
fn a_job_survives_kills_at_random_times() {
    const WORKERS: u64 = 4;
    let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
    let options = ["--nproc-per-node=4", "--max-restarts=1000"];
    let members = Members::start(&options, &[], MEMBER);
    let mut now = members.generation(4, &[]);
    let mut dead = Vec::new();
    for _ in 0..10 {
        let survivor = random.u64(..WORKERS);
        for _ in 0..random.u8(1..4) {
            // This includes a process that has just started.
            let live = members.job.processes();
            let mut all = members.processes();
            all.retain(|(_, pid)| live.contains(pid));
            let others = all.into_iter().filter(|(id, _)| *id != survivor);
            let others: Vec<i32> = others.map(|(_, pid)| pid).collect();
            let Some(pid) = random.choice(others) else {
                continue;
            };
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            dead.push(pid);
        }
        let next = members.generation(4, &dead);
        assert_eq!(next[&survivor], now[&survivor], "a survivor has restarted");
        now = next;
    }
    let ended = members.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        !ended.stderr.contains("restarting the workers"),
        "{ended:?}"
    );
}

#[test]
fn without_a_replacement_the_job_shrinks_until_too_few_are_left() {
    let options = ["--nproc-per-node=4", "--replace=none", "--min-workers=2"];
    let members = Members::start(&options, &[], MEMBER);
    let first = members.generation(4, &[]);
    kill(first[&1]);
    let second = members.generation(3, &[first[&1]]);
    kill(first[&0]);
    let third = members.generation(2, &[first[&0], first[&1]]);
    assert_eq!([second[&3], third[&3]], [first[&3]; 2]);
    kill(first[&2]);
    let ended = members.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let why = "does not keep the other workers: 1 run on this node, and at least 2 are needed";
    assert!(ended.stderr.contains(why), "{ended:?}");
}

#[test]
fn a_job_goes_on_without_the_worker_for_which_no_restart_is_left() {
    let options = ["--nproc-per-node=3", "--max-restarts=1"];
    let members = Members::start(&options, &[], MEMBER);
    let first = members.generation(3, &[]);
    kill(first[&2]);
    let second = members.generation(3, &[first[&2]]);
    kill(second[&2]);
    let third = members.generation(2, &[first[&2], second[&2]]);
    assert_eq!((third[&0], third[&1]), (first[&0], first[&1]));
    // The other workers are then not the last to exit.
    until("the launcher knows", || {
        members.log().contains("no restart is left")
    });
    let ended = members.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Workers join and leave: a worker that exits with 0 is not replaced.
#[test]
fn a_worker_that_succeeds_is_not_replaced() {
    let options = ["--nproc-per-node=3", "--max-restarts=3"];
    let members = Members::start(&options, &[], MEMBER);
    let first = members.generation(3, &[]);
    fs::write(members.job.path("finish-1"), "").unwrap();
    members.generation(2, &[first[&1]]);
    kill(first[&0]);
    let third = members.generation(2, &[first[&0], first[&1]]);
    assert_eq!(third[&2], first[&2]);
    let ended = members.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn a_script_that_does_not_use_the_service_is_named_and_restarts_as_a_whole() {
    let job = Job::new();
    let script = "echo $RANK >> $C10D_TEST_FOLDER/starts
        [ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0
        until [ $(wc -l < $C10D_TEST_FOLDER/starts) = 2 ]; do sleep 0.01; done
        [ $RANK = 1 ] || exec sleep 1000
        exit 5";
    let options = [
        "--standalone",
        "--keep-workers",
        "--nproc-per-node=2",
        "--max-restarts=1",
    ];
    let ended = job.start(&options, script).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let why =
        "--keep-workers does not keep the other workers: no worker is a member of their group";
    assert!(ended.stderr.contains(why), "{ended:?}");
    let starts = fs::read_to_string(job.path("starts")).unwrap();
    assert_eq!(starts.lines().count(), 4, "{starts}");
}

/// They end the whole job, like without the option, although the other workers are members.
#[test]
fn final_exit_codes_and_errors_of_each_start_end_the_job() {
    let traceback = r#"printf 'Traceback (most recent call last):\n  File "/t/x.py", line 1, in <module>\n    import x\n' >&2
        echo "ModuleNotFoundError: No module named 'x'" >&2
        exit 1"#;
    for (end, reason) in [
        (
            "exit 93",
            "ended with exit code 93, after which the job is not to be restarted",
        ),
        (traceback, "would fail at each start: ModuleNotFoundError"),
    ] {
        let is_first = "[ $C10D_MEMBER_SERIAL -lt $C10D_MEMBERS_FIRST ]";
        let script = format!("{is_first} || {{ {end}\n }}\n{MEMBER}");
        let options = [
            "--nproc-per-node=2",
            "--max-restarts=9",
            "--no-restart-exit-codes=93",
        ];
        let members = Members::start(&options, &[], &script);
        let first = members.generation(2, &[]);
        kill(first[&1]);
        let ended = members.end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(reason), "{ended:?}");
    }
}

/// The rounds of a static rendezvous have one store, so that the next group needs another name there.
#[test]
fn a_group_that_has_ended_restarts_as_a_whole() {
    let static_port = format!("--master-port={}", free_port());
    for rendezvous in ["--standalone", &static_port] {
        let options = [
            "--nproc-per-node=2",
            "--max-restarts=3",
            "--min-workers=2",
            "--replace-after=600s",
        ];
        let members = Members::start_with(rendezvous, &options, &[("BELOW_MIN_MS", "1")], MEMBER);
        let first = members.generation(2, &[]);
        kill(first[&0]);
        // The other worker fails at the end of the group.
        let second = members.generation(2, &[first[&0], first[&1]]);
        assert_ne!(second[&1], first[&1]);
        let ended = members.finish();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let why =
            "does not keep the other workers: their group has ended: too few members for too long";
        assert!(ended.stderr.contains(why), "{ended:?}");
    }
}

/// The rounds begin with 0 again, and the server of the workers' store still has the earlier group.
#[test]
fn a_rendezvous_whose_store_came_back_empty_has_another_group() {
    let job = Job::with_server();
    let options = ["--keep-workers", "--nproc-per-node=2", "--max-restarts=0"];
    let [launcher, other] = [(), ()].map(|()| {
        let mut command = job.node_command(&options, MEMBER);
        command.env("MEMBER", env::current_exe().unwrap());
        Running::start(command)
    });
    let members = Members {
        job,
        launcher: Some(launcher),
    };
    let first = members.generation(4, &[]);
    let at = &members.job.server().address;
    let store = TcpStore::open(&at.ip().to_string(), at.port(), TcpStoreOptions::default());
    let emptied = store
        .unwrap()
        .delete_prefix("torch.rendezvous.job", Duration::ZERO);
    assert!(emptied.unwrap() > 0);
    let dead: Vec<i32> = first.into_values().collect();
    members.generation(4, &dead);
    fs::write(members.job.path("finish"), "").unwrap();
    for ended in [other.end(), members.end()] {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let is_evicted = ended.stderr.contains("failed: exit code");
        assert!(!is_evicted, "{ended:?}");
    }
}

/// docs/spec/rendezvous.md, PLACES 2. The node has its rank again, and meets node 0 in the same round.
#[test]
fn a_static_node_that_is_started_again_has_other_processes() {
    let job = Job::new();
    let port = free_port();
    let start = |rank: &str| {
        let options = [
            "--keep-workers",
            "--nnodes=2",
            "--nproc-per-node=2",
            "--max-restarts=0",
            "--master-addr=127.0.0.1",
            &format!("--master-port={port}"),
            &format!("--node-rank={rank}"),
        ];
        let mut command = job.command(&options, MEMBER);
        command.env("MEMBER", env::current_exe().unwrap());
        Running::start(command)
    };
    let (launcher, mut second) = (start("0"), start("1"));
    let wait = |size, dead: &[i32]| generation_in(&job, size, dead);
    let first = wait(4, &[]);
    let mut now = first.clone();
    let mut dead = Vec::new();
    for turn in 0..3 {
        second.signal(Signal::KILL);
        second.end();
        dead.extend([now[&2], now[&3]]);
        // Known as dead, or not yet.
        if turn == 1 {
            wait(2, &dead);
        }
        // As if its process had the same id, like the first process of a container.
        let store = TcpStore::connect("127.0.0.1", port).unwrap();
        assert!(store.delete_key("none/c10d/static/1").unwrap());
        second = start("1");
        now = wait(4, &dead);
        assert_eq!((now[&0], now[&1]), (first[&0], first[&1]));
    }
    fs::write(job.path("finish"), "").unwrap();
    for ended in [second.end(), launcher.end()] {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let is_whole = !ended.stderr.contains("failed: exit code");
        assert!(is_whole, "{ended:?}");
    }
}

#[test]
fn a_crash_after_the_workers_have_finished_starts_nothing_again() {
    let options = ["--nproc-per-node=3", "--max-restarts=3", "--min-workers=3"];
    let members = Members::start(&options, &[], MEMBER);
    members.generation(3, &[]);
    fs::write(members.job.path("last"), "").unwrap();
    let ended = members.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let late = "rank 1 failed after the workers had finished: its results are complete";
    assert!(ended.stderr.contains(late), "{ended:?}");
    for text in ["starts instead", "restarting the workers"] {
        assert!(!ended.stderr.contains(text), "{ended:?}");
    }
}

/// A signal ends workers, those that have replaced others too, and replacements that wait.
#[test]
fn a_signal_ends_all_workers() {
    for pause in ["--replace-after=0s", "--replace-after=600s"] {
        let options = ["--nproc-per-node=3", "--max-restarts=3", pause];
        let members = Members::start(&options, &[], MEMBER);
        let first = members.generation(3, &[]);
        kill(first[&0]);
        members.generation(if pause.ends_with("=0s") { 3 } else { 2 }, &[first[&0]]);
        members.launcher.as_ref().unwrap().signal(Signal::TERM);
        let ended = members.end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
    }
}

/// The workers of both nodes are one group, on a store that outlives each of them.
#[test]
fn workers_survive_those_of_another_node_and_its_loss() {
    let job = Job::with_server();
    let options = [
        "--keep-workers",
        "--nproc-per-node=2",
        "--max-restarts=9",
        "--workers-store=rendezvous",
    ];
    let [launcher, other] = [(), ()].map(|()| {
        let mut command = job.node_command(&options, MEMBER);
        command.env("MEMBER", env::current_exe().unwrap());
        Running::start(command)
    });
    let launcher = Some(launcher);
    let members = Members { job, launcher };
    let four = members.generation(4, &[]);
    kill(four[&0]);
    kill(four[&3]);
    let next = members.generation(4, &[four[&0], four[&3]]);
    assert_eq!((next[&1], next[&2]), (four[&1], four[&2]));
    other.signal(Signal::KILL);
    other.end();
    let mut left = BTreeMap::new();
    until("the workers of the launcher end with it", || {
        let live = members.job.processes();
        left.clone_from(&next);
        left.retain(|_, pid| live.contains(pid));
        left.len() == 2
    });
    let mut dead: Vec<i32> = next.into_values().chain([four[&0], four[&3]]).collect();
    dead.retain(|pid| left.values().all(|it| it != pid));
    assert_eq!(members.generation(2, &dead), left);
    // Once the other members count as lost, the remaining members exit.
    let ended = members.finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        !ended.stderr.contains("restarting the workers"),
        "{ended:?}"
    );
}

/// Nodes of a job with up to three, on a store that outlives each of them.
fn start_node(job: &Job, nodes: &str, options: &[&str]) -> Running {
    start_node_at(&job.server().address.to_string(), job, nodes, options)
}

/// Starts a node at this endpoint.
pub(crate) fn start_node_at(place: &str, job: &Job, nodes: &str, options: &[&str]) -> Running {
    let endpoint = format!("--rdzv-endpoint={place}");
    let common = [
        "--keep-workers",
        nodes,
        "--nproc-per-node=2",
        "--max-restarts=9",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-conf=is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=12",
        "--workers-store=rendezvous",
        &endpoint,
    ];
    let mut command = job.command(&[&common, options].concat(), MEMBER);
    command.env("MEMBER", env::current_exe().unwrap());
    Running::start(command)
}

/// Two nodes of such a job, and the members of both.
fn two_nodes(nodes: &str, options: &[&str]) -> (Members, Running) {
    let job = Job::with_server();
    let [launcher, other] = [(), ()].map(|()| start_node(&job, nodes, options));
    let members = Members {
        job,
        launcher: Some(launcher),
    };
    (members, other)
}

pub(crate) fn assert_kept(before: &BTreeMap<u64, i32>, after: &BTreeMap<u64, i32>) {
    for (id, pid) in before {
        assert_eq!(after.get(id), Some(pid), "member {id} has started again");
    }
}

#[test]
fn a_new_node_grows_a_running_job() {
    let (members, second) = two_nodes("--nnodes=2:3", &[]);
    let four = members.generation(4, &[]);
    let third = start_node(&members.job, "--nnodes=2:3", &[]);
    let six = members.generation(6, &[]);
    assert_kept(&four, &six);
    assert_eq!(six.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    let state = members.job.state().unwrap();
    assert_eq!((state.round, state.participants.len()), (0, 3));
    // Its workers are replaced like others.
    kill(six[&4]);
    let next = members.generation(6, &[six[&4]]);
    assert_eq!(next[&5], six[&5]);
    members.finish_with([second, third]);
}

/// The spare has the ranks of the lost node.
#[test]
fn a_spare_takes_the_place_of_a_lost_node() {
    let (members, second) = two_nodes("--nnodes=2", &[]);
    let four = members.generation(4, &[]);
    let spare = start_node(&members.job, "--nnodes=2", &[]);
    until("the spare is listed", || {
        members
            .job
            .state()
            .is_some_and(|it| it.redundancy_list.len() == 1)
    });
    second.signal(Signal::KILL);
    second.end();
    let mut left = four.clone();
    until("its workers end with it", || {
        let live = members.job.processes();
        left.retain(|_, pid| live.contains(pid));
        left.len() == 2
    });
    let dead: Vec<i32> = four
        .values()
        .filter(|pid| !left.values().any(|it| it == *pid))
        .copied()
        .collect();
    let next = members.generation(4, &dead);
    assert_kept(&left, &next);
    assert_eq!(next.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3]);
    members.finish_with([spare]);
}

/// docs/spec/rendezvous.md, KEEPING 1. The other nodes run on.
#[test]
fn a_node_without_the_option_is_refused_with_both_names() {
    let (members, second) = two_nodes("--nnodes=2:3", &[]);
    let four = members.generation(4, &[]);
    let endpoint = format!("--rdzv-endpoint={}", members.job.server().address);
    let options = [
        "--nnodes=2:3",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-conf=is_host=0,keep_alive_interval=1,keep_alive_max_attempt=12",
        &endpoint,
    ];
    let refused = members.job.run(&options, "exit 0");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for text in [" has --keep-workers, and ", " has not"] {
        assert!(refused.stderr.contains(text), "{refused:?}");
    }
    assert_kept(&four, &members.generation(4, &[]));
    members.finish_with([second]);
}

/// Joins like a node of torchrun: takes part in the exchange of ranks, and writes nothing else.
fn take_part_as_torchrun(address: SocketAddr) -> RendezvousInfo {
    let store = TcpStore::open(
        &address.ip().to_string(),
        address.port(),
        TcpStoreOptions::default(),
    );
    let store: Arc<dyn Store> = Arc::new(store.unwrap());
    let backend = Arc::new(C10dBackend::new(Arc::clone(&store), "job").unwrap());
    let settings = RendezvousSettings::new("job", 2, 2).unwrap();
    // Behind the other node in the order of names.
    let options = DynamicRendezvousOptions::new().with_local_addr("zz");
    let node = DynamicRendezvous::new(backend, store, settings, options).unwrap();
    let round = node.next_rendezvous().unwrap();
    assert_eq!(round.rank, 1);
    let role = r#"{"role": "default", "rank": 1, "local_world_size": 1}"#;
    round
        .store
        .set("torchelastic/role_info/1", role.as_bytes())
        .unwrap();
    round.store.get("torchelastic/assigned_ranks/1").unwrap();
    // It leaves nothing undone, and is not waited for.
    round
        .store
        .add("torchelastic/agent/terminal_state/num_members", 1)
        .unwrap();
    round
}

/// docs/spec/rendezvous.md, KEEPING 2 and 3.
#[test]
fn a_round_with_a_node_of_torchrun_does_not_keep_workers() {
    let job = Job::with_server();
    // The name is for the workers of torchrun, which get none from their launcher.
    let script = format!(
        "echo keep=$C10D_KEEP_WORKERS group=$C10D_MEMBERSHIP_GROUP; \
         {PROGRAM} store get c10d/membership_group --connect=$MASTER_ADDR:$MASTER_PORT"
    );
    let options = ["--keep-workers", "--local-addr=127.0.0.1"];
    let launcher = Running::start(job.node_command(&options, &script));
    let _round = take_part_as_torchrun(job.server().address);
    let ended = launcher.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for text in ["keep= group=\n", "job/0"] {
        assert!(ended.stdout_text().contains(text), "{ended:?}");
    }
    let warning =
        "--keep-workers is off in this round: 1 of its 2 nodes run torchrun or release 0.2";
    assert_eq!(ended.stderr.matches(warning).count(), 1, "{ended:?}");
}

/// The remaining nodes do not wait for that node in the exit barrier.
#[test]
fn a_node_that_has_entered_and_is_killed_is_not_waited_for() {
    let (members, second) = two_nodes("--nnodes=2:3", &[]);
    let four = members.generation(4, &[]);
    let third = start_node(&members.job, "--nnodes=2:3", &[]);
    let six = members.generation(6, &[]);
    for id in four.keys() {
        fs::write(members.job.path(&format!("finish-{id}")), "").unwrap();
    }
    let dead: Vec<i32> = four.values().copied().collect();
    members.generation(2, &dead);
    third.signal(Signal::KILL);
    third.end();
    let began = Instant::now();
    assert_eq!(six.len(), 6);
    for ended in [second.end(), members.end()] {
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(100));
}

/// The store is refused at the start, because it is already known that the workers' store has no membership
/// service.
#[test]
fn a_store_of_the_workers_own_is_refused() {
    let job = Job::new();
    let mut command = job.command(&["--standalone", "--keep-workers"], "exit 0");
    command.env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let why = "--keep-workers needs a workers' store that a launcher serves";
    assert!(ended.stderr.contains(why), "{ended:?}");
}
