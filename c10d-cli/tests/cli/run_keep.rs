//! `c10d run --keep-workers`: workers without Python that are members of a group, and die.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

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

/// A worker runs this test: it is a member of the group until the file `finish` exists.
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
    let end = folder.join("finish");
    std::thread::spawn(move || {
        while !end.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::process::exit(0);
    });
    loop {
        if let Some(text) = member.next() {
            lines.write_all(text.as_bytes()).unwrap();
        }
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
            Reply::Ended(EndReason::Finished) => std::process::exit(0),
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
