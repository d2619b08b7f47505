//! Jobs of four PyTorch ranks that hang, each broken in another way: `c10d why` names the ranks at fault, all of them
//! and no other.
//!
//! Each case is tested twice. With a long timeout of PyTorch, `c10d why` answers while the job hangs. With a short one,
//! all cases of `env://` run side by side, and beside the answer stands what PyTorch says when it gives up.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use c10d_inspect::{FindingKind, Report, ReportState};
use integration_tests::broken_job::{BrokenJob, Client, WORLD_SIZE};
use integration_tests::launcher::{Kind, free_address};
use integration_tests::planned_ranks::Plan;
use integration_tests::torch::{Feature, Release};
use integration_tests::watchdog::Watchdog;
use rustix::process::Signal;

/// Never expires while a test asks its questions.
const LONG: Duration = Duration::from_secs(600);

/// What PyTorch's ranks wait for each other before they give up.
const SHORT: Duration = Duration::from_secs(10);

/// The longest that `c10d why` may take on a busy machine, its start included.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The longest that nobody is named, as a rank may just be late.
const GRACE_MAX: Duration = Duration::from_secs(30);

/// How long until a report says that all is well.
const CALM_MAX: Duration = Duration::from_secs(60);

const LIMIT: Duration = Duration::from_secs(300);

/// A job of `env://` that is broken in one way.
struct Case {
    name: &'static str,
    /// Starts the job with a timeout of PyTorch, and returns when it hangs.
    hang: fn(Duration) -> BrokenJob,
    /// The kind of the first cause.
    kind: FindingKind,
    /// The ranks at fault.
    culprits: &'static [usize],
    /// What PyTorch 2.15 says when it gives up: the ranks, and a part of each one's exception. {ms} is its timeout.
    pytorch: &'static [(&'static [usize], &'static str)],
}

/// The key of the address of a rank in the default group; PyTorch's releases differ before it.
fn address_key(rank: usize) -> String {
    format!("0//cpu//0/{rank}")
}

/// Whether a connection waits for the address of `rank`, or waited for it until PyTorch gave up.
fn waits_for(rank: usize) -> impl Fn(&Client) -> bool {
    let key = address_key(rank);
    move |client| client.is_waiting() && client.has_last_key(&key)
}

/// Whether a connection has read the addresses of all ranks, so that the rank connects to them.
fn has_read_all(client: &Client) -> bool {
    client.is_reading() && client.has_last_key(&address_key(WORLD_SIZE - 1))
}

fn count(clients: &[Client], condition: impl Fn(&Client) -> bool) -> usize {
    clients.iter().filter(|client| condition(client)).count()
}

/// Waits until `number` ranks wait for the address of `rank`.
fn until_waiting(job: &mut BrokenJob, number: usize, rank: usize) {
    job.clients(&format!("{number} ranks wait for {rank}"), |clients| {
        count(clients, waits_for(rank)) == number
    });
}

/// Waits until `number` ranks have read the addresses of all ranks.
fn until_read(job: &mut BrokenJob, number: usize) {
    job.clients(
        &format!("{number} ranks have read all addresses"),
        |clients| count(clients, has_read_all) == number,
    );
}

/// Waits until ranks 1 and 3 wait for rank 2, the second member of the first group of `new_group`.
fn until_waiting_in_group(job: &mut BrokenJob) {
    job.clients("two ranks wait in a group", |clients| {
        count(clients, |client| {
            client.is_waiting() && client.has_last_key("1//cpu//0/1")
        }) == 2
    });
}

/// Waits until the connection of `rank` is closed.
fn until_closed(job: &mut BrokenJob, rank: usize) {
    let pid = job.pid(rank);
    job.clients(&format!("the connection of {rank} is closed"), |clients| {
        count(clients, |client| {
            client.pid() == Some(pid) && !client.is_open()
        }) == 1
    });
}

const NEVER_STARTED: Case = Case {
    name: "rank 2 is never started",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        job.fork(&Plan::all(timeout, &["init"]), &[0, 1, 3]);
        until_waiting(&mut job, 3, 2);
        job
    },
    kind: FindingKind::NeverConnected,
    culprits: &[2],
    pytorch: &[(
        &[0, 1, 3],
        "DistStoreError: wait timeout after {ms}ms, keys: /default_pg/0//cpu//0/2",
    )],
};

const TWO_NEVER_STARTED: Case = Case {
    name: "ranks 1 and 3 are never started",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        job.fork(&Plan::all(timeout, &["init"]), &[0, 2]);
        until_waiting(&mut job, 2, 1);
        job
    },
    kind: FindingKind::NeverConnected,
    culprits: &[1, 3],
    // Rank 3 is not mentioned.
    pytorch: &[(
        &[0, 2],
        "DistStoreError: wait timeout after {ms}ms, keys: /default_pg/0//cpu//0/1",
    )],
};

const STUCK_BEFORE_INIT: Case = Case {
    name: "rank 2 is stuck in the script before init_process_group",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let plan = Plan::all(timeout, &["init"]).but(2, &["mark:here", "sleep"]);
        job.fork(&plan, &[0, 1, 2, 3]);
        job.mark("here", 2);
        until_waiting(&mut job, 3, 2);
        job
    },
    kind: FindingKind::NeverConnected,
    culprits: &[2],
    pytorch: &[(
        &[0, 1, 3],
        "DistStoreError: wait timeout after {ms}ms, keys: /default_pg/0//cpu//0/2",
    )],
};

const WRONG_PORT: Case = Case {
    name: "rank 2 has another MASTER_PORT",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let port = format!("set:MASTER_PORT={}", free_address().port());
        let plan = Plan::all(timeout, &["init"]).but(2, &[&port, "init"]);
        job.fork(&plan, &[0, 1, 2, 3]);
        until_waiting(&mut job, 3, 2);
        job
    },
    kind: FindingKind::NeverConnected,
    culprits: &[2],
    pytorch: &[
        (
            &[0, 1, 3],
            "DistStoreError: wait timeout after {ms}ms, keys: /default_pg/0//cpu//0/2",
        ),
        (
            &[2],
            "DistNetworkError: The client socket has timed out after {ms}ms while trying to connect to",
        ),
    ],
};

const STOPPED_BEFORE_SET: Case = Case {
    name: "rank 2 is stopped after it has connected",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let plan = Plan::all(timeout, &["init"]).but(2, &["connect", "stop"]);
        job.fork(&plan, &[0, 1, 2, 3]);
        job.until_halted(2);
        until_waiting(&mut job, 3, 2);
        job
    },
    kind: FindingKind::NotPublished,
    culprits: &[2],
    pytorch: &[(
        &[0, 1, 3],
        "DistStoreError: wait timeout after {ms}ms, keys: /default_pg/0//cpu//0/2",
    )],
};

/// Halts rank 2 after it has published its address, and before it reads that of rank 0.
fn halt_after_set(timeout: Duration, signal: Signal) -> BrokenJob {
    let mut job = BrokenJob::serve();
    let plan = Plan::all(timeout, &["init", "all_reduce"]);
    job.fork(&plan, &[2]);
    until_waiting(&mut job, 1, 0);
    job.signal(2, signal);
    job.fork(&plan, &[0, 1, 3]);
    job
}

const STOPPED_AFTER_SET: Case = Case {
    name: "rank 2 is stopped after it has published its address",
    hang: |timeout| {
        let mut job = halt_after_set(timeout, Signal::STOP);
        until_read(&mut job, 3);
        job
    },
    kind: FindingKind::Frozen,
    culprits: &[2],
    pytorch: &[(&[0, 1, 3], "RuntimeError: ")],
};

const KILLED_BEFORE_SET: Case = Case {
    name: "rank 2 is killed after it has connected",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let plan = Plan::all(timeout, &["init"]).but(2, &["connect", "mark:connected", "sleep"]);
        job.fork(&plan, &[0, 1, 2, 3]);
        job.mark("connected", 2);
        until_waiting(&mut job, 3, 2);
        job.signal(2, Signal::KILL);
        until_closed(&mut job, 2);
        job
    },
    kind: FindingKind::LostInInit,
    culprits: &[2],
    pytorch: &[(
        &[0, 1, 3],
        "DistStoreError: wait timeout after {ms}ms, keys: /default_pg/0//cpu//0/2",
    )],
};

const KILLED_AFTER_SET: Case = Case {
    name: "rank 2 is killed after it has published its address",
    hang: |timeout| {
        let mut job = halt_after_set(timeout, Signal::KILL);
        until_read(&mut job, 3);
        job
    },
    kind: FindingKind::LostInInit,
    culprits: &[2],
    pytorch: &[(
        &[0, 1, 3],
        "RuntimeError: Gloo connectFullMesh failed with ",
    )],
};

const KILLED_LATER: Case = Case {
    name: "rank 2 is killed in training",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let steps = [
            "init",
            "all_reduce",
            "mark:trained",
            "await:go",
            "all_reduce",
        ];
        job.fork(&Plan::all(timeout, &steps), &[0, 1, 2, 3]);
        job.marks("trained");
        job.signal(2, Signal::KILL);
        until_closed(&mut job, 2);
        job
    },
    kind: FindingKind::LostLater,
    culprits: &[2],
    // The next collective fails at once.
    pytorch: &[(&[0, 1, 3], "RuntimeError: [")],
};

const SKIPS_A_COLLECTIVE: Case = Case {
    name: "rank 2 skips a collective",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let plan = Plan::all(
            timeout,
            &["init", "all_reduce", "mark:trained", "all_reduce"],
        )
        .but(2, &["init", "all_reduce", "mark:trained", "sleep"]);
        job.fork(&plan, &[0, 1, 2, 3]);
        job.marks("trained");
        job
    },
    kind: FindingKind::NotInTheStore,
    culprits: &[],
    pytorch: &[(&[0, 1, 3], "operation to complete")],
};

const WORLD_SIZE_5: Case = Case {
    name: "rank 2 has WORLD_SIZE=5",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let plan = Plan::all(timeout, &["init"]).but(2, &["set:WORLD_SIZE=5", "init"]);
        job.fork(&plan, &[0, 1, 2, 3]);
        until_waiting(&mut job, 1, 4);
        job
    },
    kind: FindingKind::WorldSizeDiffers,
    culprits: &[2],
    pytorch: &[(
        &[2],
        "DistStoreError: wait timeout after {ms}ms, keys: /default_pg/0//cpu//0/4",
    )],
};

const WORLD_SIZE_3: Case = Case {
    name: "rank 2 has WORLD_SIZE=3",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let plan = Plan::all(timeout, &["init", "all_reduce"])
            .but(2, &["set:WORLD_SIZE=3", "init", "all_reduce"]);
        job.fork(&plan, &[0, 1, 2, 3]);
        until_read(&mut job, 3);
        job
    },
    kind: FindingKind::WorldSizeDiffers,
    culprits: &[2],
    // Some ranks join the group and hang in the first collective, some without end.
    pytorch: &[],
};

const ALL_SAY_5: Case = Case {
    name: "all four ranks have WORLD_SIZE=5",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let plan = Plan::all(timeout, &["set:WORLD_SIZE=5", "init"]);
        job.fork(&plan, &[0, 1, 2, 3]);
        until_waiting(&mut job, 4, 4);
        job
    },
    kind: FindingKind::NeverConnected,
    culprits: &[4],
    pytorch: &[(
        &[0, 1, 2, 3],
        "DistStoreError: wait timeout after {ms}ms, keys: /default_pg/0//cpu//0/4",
    )],
};

const SAME_RANK: Case = Case {
    name: "two processes have RANK=2, and none has RANK=3",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        job.fork(&Plan::all(timeout, &["init"]), &[0, 1, 2, 2]);
        until_waiting(&mut job, 4, 3);
        job
    },
    kind: FindingKind::SameRank,
    culprits: &[2],
    // PyTorch names the wrong rank.
    pytorch: &[(
        &[0, 1, 2],
        "DistStoreError: wait timeout after {ms}ms, keys: /default_pg/0//cpu//0/3",
    )],
};

const TWO_JOBS: Case = Case {
    name: "two jobs without their rank 2 share a store",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let plan = Plan::all(timeout, &["init"]);
        job.fork(&plan, &[0, 1, 3]);
        until_waiting(&mut job, 3, 2);
        job.fork(&plan, &[0, 1, 3]);
        until_waiting(&mut job, 6, 2);
        job
    },
    kind: FindingKind::TwoJobs,
    culprits: &[0, 1, 3],
    pytorch: &[(
        &[0, 1, 3],
        "DistStoreError: wait timeout after {ms}ms, keys: /default_pg/0//cpu//0/2",
    )],
};

const STALE_ADDRESSES: Case = Case {
    name: "all ranks leave and join again, rank 3 later than the others",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let first = ["init", "all_reduce", "destroy", "mark:left"];
        let again = ["await:again", "init", "all_reduce"];
        let later = ["await:later", "init", "all_reduce"];
        let plan = Plan::all(timeout, &[first.as_slice(), &again].concat())
            .but(3, &[first.as_slice(), &later].concat());
        job.fork(&plan, &[0, 1, 2, 3]);
        job.marks("left");
        job.release("again");
        // The four connections of the first group are counted, too. The others read rank 3's old address.
        until_read(&mut job, 7);
        job
    },
    kind: FindingKind::StaleAddresses,
    culprits: &[3],
    // Refused by the closed port, or out of time in the mesh.
    pytorch: &[(&[0, 1, 2], "RuntimeError: ")],
};

const GROUP_INCOMPLETE: Case = Case {
    name: "rank 2 does not make the group of ranks 1, 2 and 3",
    hang: |timeout| {
        let mut job = BrokenJob::serve();
        let plan = Plan::all(timeout, &["init", "mark:joined", "group:1,2,3", "sleep"])
            .but(2, &["init", "mark:joined", "sleep"]);
        job.fork(&plan, &[0, 1, 2, 3]);
        job.marks("joined");
        until_waiting_in_group(&mut job);
        job
    },
    kind: FindingKind::GroupIncomplete,
    culprits: &[2],
    pytorch: &[(
        &[1, 3],
        "DistStoreError: wait timeout after {ms}ms, keys: /default_pg/0//1//cpu//0/1",
    )],
};

const CASES: &[Case] = &[
    NEVER_STARTED,
    TWO_NEVER_STARTED,
    STUCK_BEFORE_INIT,
    WRONG_PORT,
    STOPPED_BEFORE_SET,
    STOPPED_AFTER_SET,
    KILLED_BEFORE_SET,
    KILLED_AFTER_SET,
    KILLED_LATER,
    SKIPS_A_COLLECTIVE,
    WORLD_SIZE_5,
    WORLD_SIZE_3,
    ALL_SAY_5,
    SAME_RANK,
    TWO_JOBS,
    STALE_ADDRESSES,
    GROUP_INCOMPLETE,
];

/// Waits until `c10d why` names a cause of this kind first, and exactly `culprits`. Until then it names nobody else.
#[track_caller]
fn expect_named(job: &BrokenJob, name: &str, kind: FindingKind, culprits: &[usize]) {
    let started = Instant::now();
    loop {
        let answer = job.why();
        let report = &answer.report;
        let (ranks, kinds) = causes(report);
        let text = || format!("{name}:\n{}\n{report:#?}", job.why_text());
        assert!(answer.took < ANSWER_MAX, "{name}: {:?}", answer.took);
        let suspects = report.ranks.iter().filter(|rank| rank.is_suspect);
        let suspects: Vec<usize> = suspects.map(|rank| rank.rank).collect();
        // A rank that uses the CPU, because it starts, is not suspected if only its launcher shows that others wait for it.
        let suspected = match kinds.first() {
            Some(FindingKind::WaitsForBusyRank) => &[],
            _ => &ranks[..],
        };
        assert_eq!(suspects, suspected, "{}", text());
        let is_busy = report.state == ReportState::WaitingForBusyRank;
        if ranks == culprits && kinds.first() == Some(&kind) && !is_busy {
            let code = if report.is_stuck { 4 } else { 0 };
            assert_eq!(answer.code, Some(code), "{}", text());
            // A rank that left may just have been the first to finish; an old address may be refused at once, and
            // the other ranks may have noticed the lost one and failed.
            let may_be_over = matches!(
                kind,
                FindingKind::LostInInit | FindingKind::LostLater | FindingKind::StaleAddresses
            );
            let is_stuck = !culprits.is_empty();
            assert!(report.is_stuck == is_stuck || may_be_over, "{}", text());
            return;
        }
        // A launcher sees that a rank is stopped before the store shows where.
        assert!(
            (ranks.is_empty() || ranks == culprits) && started.elapsed() < GRACE_MAX,
            "{}",
            text()
        );
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until `c10d why` says that no rank waits for another. Its report is up to 1 s old, and what a launcher sees
/// of its workers 5 s, or more on a busy machine.
#[track_caller]
fn expect_calm(job: &BrokenJob) {
    let started = Instant::now();
    while job.why().code != Some(0) {
        assert!(started.elapsed() < CALM_MAX, "{}", job.why_text());
        thread::sleep(Duration::from_millis(50));
    }
}

/// The ranks that the causes name, and the causes' kinds in order.
fn causes(report: &Report) -> (Vec<usize>, Vec<FindingKind>) {
    let causes = report
        .findings
        .iter()
        .filter(|finding| !finding.is_consequence);
    let ranks = causes
        .clone()
        .flat_map(|finding| finding.culprits.0.iter().copied());
    let ranks: BTreeSet<usize> = ranks.collect();
    (
        ranks.into_iter().collect(),
        causes.map(|finding| finding.kind).collect(),
    )
}

/// A job of one node of `c10d run`.
const C10D_RUN: &[Kind] = &[Kind::C10d];

/// A job in which torchrun starts ranks 2 and 3. It tells the store nothing about them.
const WITH_TORCHRUN: &[Kind] = &[Kind::C10d, Kind::Torchrun];

/// Two nodes of `c10d run` on this machine, and the option for relays.
const TWO_NODES: &[Kind] = &[Kind::C10d, Kind::C10d];
const RELAY: &[&str] = &["--relay"];

fn allows_launchers() -> bool {
    Release::tested().allows(Feature::ElasticJobs)
}

/// One job that stands still in one way after another. Each time the rank at fault goes on when it has been named.
fn late_again_and_again(nodes: &[Kind], options: &[&str]) -> BrokenJob {
    let steps = [
        "mark:here",
        "await:init",
        "init",
        "all_reduce",
        "mark:trained",
        "await:step",
        "all_reduce",
        "mark:stepped",
        "await:group",
        "group:1,2,3",
        "mark:grouped",
        "sleep",
    ];
    let is_late = |step: &&str| ["await:init", "await:step", "await:group"].contains(step);
    let in_time: Vec<&str> = steps.into_iter().filter(|step| !is_late(step)).collect();
    let plan = Plan::all(LONG, &in_time).but(2, &steps);
    let mut job = BrokenJob::launch(nodes, &plan, options);

    until_waiting(&mut job, 3, 2);
    expect_named(&job, "stuck before init", FindingKind::NeverConnected, &[2]);
    job.release("init");

    // The others are in a collective, of which the store knows nothing.
    job.marks("trained");
    expect_calm(&job);
    job.release("step");
    job.marks("stepped");
    until_waiting_in_group(&mut job);
    expect_named(&job, "a group", FindingKind::GroupIncomplete, &[2]);
    job.release("group");
    job.marks("grouped");
    expect_calm(&job);
    job
}

/// Waits until the launcher ends because of a failure, and returns what it wrote.
fn failure_report(job: &mut BrokenJob) -> String {
    let launcher = &mut job.launchers()[0];
    assert_eq!(launcher.wait(LIMIT), Some(1));
    launcher.process().stderr()
}

/// The line with the rank of the root cause in the launcher's report.
fn root_cause(report: &str) -> &str {
    let root_cause = report.split("Root Cause").nth(1).unwrap_or_default();
    let mut lines = root_cause.lines().map(str::trim);
    lines
        .find(|line| line.starts_with("rank "))
        .unwrap_or_default()
}

/// A rank is stopped before it publishes its address.
fn stopped_before_it_published(nodes: &[Kind]) {
    let _watchdog = Watchdog::start("stopped_before_it_published", LIMIT);
    if !allows_launchers() {
        return;
    }
    let plan = Plan::all(LONG, &["mark:here", "init", "mark:joined", "sleep"]).but(
        2,
        &[
            "mark:here",
            "connect",
            "stop",
            "init",
            "mark:joined",
            "sleep",
        ],
    );
    let mut job = BrokenJob::launch(nodes, &plan, &[]);
    job.until_halted(2);
    until_waiting(&mut job, 3, 2);
    expect_named(&job, "stopped", FindingKind::NotPublished, &[2]);
    job.resume(2);
    job.marks("joined");
    expect_calm(&job);
}

/// A rank is stopped after it has published its address.
fn stopped_after_it_published(nodes: &[Kind]) {
    let _watchdog = Watchdog::start("stopped_after_it_published", LIMIT);
    if !allows_launchers() {
        return;
    }
    let plan = Plan::all(
        LONG,
        &["mark:here", "await:go", "init", "mark:joined", "sleep"],
    )
    .but(2, &["mark:here", "init", "mark:joined", "sleep"]);
    let mut job = BrokenJob::launch(nodes, &plan, &[]);
    until_waiting(&mut job, 1, 0);
    job.signal(2, Signal::STOP);
    job.release("go");
    until_read(&mut job, 3);
    expect_named(&job, "stopped", FindingKind::Frozen, &[2]);
    job.resume(2);
    job.marks("joined");
    expect_calm(&job);
}

/// A rank that has its place in the job wrong.
fn another_variable(nodes: &[Kind], variable: &str, hang: fn(&mut BrokenJob), kind: FindingKind) {
    let _watchdog = Watchdog::start("another_variable", LIMIT);
    if !allows_launchers() {
        return;
    }
    let set = format!("set:{variable}");
    let plan = Plan::all(LONG, &["mark:here", "init"]).but(2, &["mark:here", &set, "init"]);
    let mut job = BrokenJob::launch(nodes, &plan, &[]);
    hang(&mut job);
    expect_named(&job, variable, kind, &[2]);
}

fn another_world_size(nodes: &[Kind]) {
    let hang = |job: &mut BrokenJob| until_waiting(job, 1, 4);
    another_variable(nodes, "WORLD_SIZE=5", hang, FindingKind::WorldSizeDiffers);
}

fn another_port(nodes: &[Kind]) {
    let variable = format!("MASTER_PORT={}", free_address().port());
    let hang = |job: &mut BrokenJob| until_waiting(job, 3, 2);
    another_variable(nodes, &variable, hang, FindingKind::NeverConnected);
}

/// A rank is stopped in training: the store cannot know it, a launcher that announces its workers can.
fn stopped_in_training(nodes: &[Kind], options: &[&str], kind: FindingKind, culprits: &[usize]) {
    let _watchdog = Watchdog::start("stopped_in_training", LIMIT);
    if !allows_launchers() {
        return;
    }
    let steps = ["mark:here", "init", "all_reduce", "mark:trained"];
    let steps = [steps.as_slice(), &["await:go", "all_reduce", "sleep"]].concat();
    let mut job = BrokenJob::launch(nodes, &Plan::all(LONG, &steps), options);
    job.marks("trained");
    job.signal(2, Signal::STOP);
    job.release("go");
    expect_named(&job, "stopped", kind, culprits);
}

/// What a worker of a launcher has in its environment, and a process has that was started by hand with a copy of it.
const COPIED_ENVIRONMENT: [&str; 2] = [
    "set:TORCHELASTIC_USE_AGENT_STORE=True",
    "set:TORCHELASTIC_RESTART_COUNT=0",
];

/// Rank 2 of a job is late, and other processes run with copies of its workers' environment.
fn with_copies(nodes: &[Kind], copies: &[usize], waiting: usize, kind: FindingKind, at: &[usize]) {
    let _watchdog = Watchdog::start("with_copies", LIMIT);
    if !allows_launchers() {
        return;
    }
    let plan = Plan::all(LONG, &["mark:here", "init"]).but(2, &["mark:here", "sleep"]);
    let mut job = BrokenJob::launch(nodes, &plan, &[]);
    until_waiting(&mut job, 3, 2);
    let steps = [COPIED_ENVIRONMENT.as_slice(), &["init"]].concat();
    job.fork(&Plan::all(LONG, &steps), copies);
    until_waiting(&mut job, waiting, 2);
    expect_named(&job, "copies", kind, at);
}

fn two_jobs_under(nodes: &[Kind]) {
    with_copies(nodes, &[0, 1, 3], 6, FindingKind::TwoJobs, &[0, 1, 3]);
}

fn same_rank_under(nodes: &[Kind]) {
    with_copies(nodes, &[3], 4, FindingKind::SameRank, &[3]);
}

/// All ranks leave and join again, rank 1 later than the others. They fail, some at once, as its old port is closed.
fn stale_addresses_under(nodes: &[Kind]) {
    let _watchdog = Watchdog::start("stale_addresses_under", LIMIT);
    if !allows_launchers() {
        return;
    }
    let first = ["mark:here", "await:start", "init", "all_reduce", "destroy"];
    let again = |go| [first.as_slice(), &["mark:left", go, "init"]].concat();
    let plan = Plan::all(SHORT / 2, &again("await:again")).but(1, &again("await:later"));
    let mut job = BrokenJob::launch(nodes, &plan, &[]);
    job.release("start");
    job.marks("left");
    job.release("again");
    let report = failure_report(&mut job);
    assert!(
        report.contains("addresses of an earlier group were read"),
        "{report}"
    );
    assert_eq!(
        root_cause(&report),
        "rank      : 1 (local_rank: 1)",
        "{report}"
    );
}

fn run(case: &Case) {
    let _watchdog = Watchdog::start(case.name, LIMIT);
    if !Release::tested().allows(Feature::StepsOfInit) {
        return;
    }
    let job = (case.hang)(LONG);
    expect_named(&job, case.name, case.kind, case.culprits);
}

/// What PyTorch says in the end, of all cases side by side. `c10d why` still blames no other rank then.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn what_pytorch_says_when_it_gives_up() {
    let _watchdog = Watchdog::start("what_pytorch_says_when_it_gives_up", LIMIT);
    if !Release::tested().allows(Feature::ErrorTexts) {
        return;
    }
    thread::scope(|scope| {
        for case in CASES {
            scope.spawn(|| what_pytorch_says(case));
        }
    });
}

fn what_pytorch_says(case: &Case) {
    let mut job = (case.hang)(SHORT);
    job.release("go");
    for (ranks, text) in case.pytorch {
        for rank in *ranks {
            let end = job.end(*rank);
            let part = |name: &str| end[name].as_str().unwrap_or_default().to_owned();
            let said = format!("{}: {}", part("error"), part("message"));
            let text = text.replace("{ms}", &SHORT.as_millis().to_string());
            // If another rank times out first and leaves, this one says that.
            let is_victim =
                text == "operation to complete" && said.contains("Connection closed by peer");
            assert!(
                said.contains(&text) || is_victim,
                "{}: rank {rank}: {said}",
                case.name
            );
        }
    }
    let answer = job.why();
    let (ranks, _) = causes(&answer.report);
    let others = ranks.iter().filter(|rank| !case.culprits.contains(rank));
    assert_eq!(others.count(), 0, "{}:\n{}", case.name, job.why_text());
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn c10d_run_with_a_rank_that_is_late_again_and_again() {
    let _watchdog = Watchdog::start("c10d_run_with_a_late_rank", LIMIT);
    if !allows_launchers() {
        return;
    }
    let mut job = late_again_and_again(C10D_RUN, &[]);

    job.signal(2, Signal::KILL);
    let report = failure_report(&mut job);
    assert_eq!(
        root_cause(&report),
        "rank      : 2 (local_rank: 2)",
        "{report}"
    );
    assert!(report.contains("(SIGKILL)"), "{report}");
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn torchrun_with_a_rank_that_is_late_again_and_again() {
    let _watchdog = Watchdog::start("torchrun_with_a_late_rank", LIMIT);
    if !allows_launchers() {
        return;
    }
    let mut job = late_again_and_again(WITH_TORCHRUN, &[]);
    job.signal(2, Signal::KILL);
    until_closed(&mut job, 2);
    expect_named(&job, "killed", FindingKind::LostLater, &[2]);
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn relays_with_a_rank_that_is_late_again_and_again() {
    let _watchdog = Watchdog::start("relays_with_a_late_rank", LIMIT);
    if !allows_launchers() {
        return;
    }
    // Otherwise the failure stops the launcher that serves the store.
    let options = [RELAY, &["--on-job-failure=continue"]].concat();
    let mut job = late_again_and_again(TWO_NODES, &options);
    job.signal(2, Signal::KILL);
    until_closed(&mut job, 2);
    expect_named(&job, "killed", FindingKind::WorkerEnded, &[2]);
}

/// PyTorch's ranks give up, and the launcher stops the one that they waited for.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn c10d_run_reports_the_rank_that_the_others_waited_for() {
    let _watchdog = Watchdog::start("c10d_run_reports_the_rank", LIMIT);
    if !allows_launchers() {
        return;
    }
    let plan = Plan::all(SHORT, &["mark:here", "await:go", "init"]).but(2, &["mark:here", "sleep"]);
    let mut job = BrokenJob::launch(C10D_RUN, &plan, &["--explain-after=2s"]);
    job.release("go");
    let report = failure_report(&mut job);
    assert_eq!(
        root_cause(&report),
        "rank      : 2 (local_rank: 2)",
        "{report}"
    );
    assert!(
        report.contains("alive, but never reached init_process_group"),
        "{report}"
    );
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn c10d_run_reports_a_rank_killed_in_init() {
    let _watchdog = Watchdog::start("c10d_run_reports_a_rank_killed_in_init", LIMIT);
    if !allows_launchers() {
        return;
    }
    let plan = Plan::all(LONG, &["mark:here", "init"])
        .but(2, &["mark:here", "connect", "mark:connected", "sleep"]);
    let mut job = BrokenJob::launch(C10D_RUN, &plan, &[]);
    job.mark("connected", 2);
    until_waiting(&mut job, 3, 2);
    job.signal(2, Signal::KILL);
    let report = failure_report(&mut job);
    assert_eq!(
        root_cause(&report),
        "rank      : 2 (local_rank: 2)",
        "{report}"
    );
}

/// torchrun ends the neighbour of the lost rank, which has published and waits.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn torchrun_with_a_rank_killed_in_init() {
    let _watchdog = Watchdog::start("torchrun_with_a_rank_killed_in_init", LIMIT);
    if !allows_launchers() {
        return;
    }
    let plan = Plan::all(LONG, &["mark:here", "init"])
        .but(2, &["mark:here", "connect", "mark:connected", "sleep"]);
    let mut job = BrokenJob::launch(WITH_TORCHRUN, &plan, &[]);
    job.mark("connected", 2);
    until_waiting(&mut job, 3, 2);
    job.signal(2, Signal::KILL);
    until_closed(&mut job, 2);
    expect_named(&job, "killed", FindingKind::LostInInit, &[2]);
}

/// A test of one line.
macro_rules! cases {
    ($($name:ident: $run:expr;)+) => {
        $(
            #[test]
            #[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
            fn $name() {
                $run;
            }
        )+
    };
}

cases! {
    a_rank_that_never_started: run(&NEVER_STARTED);
    two_ranks_that_never_started: run(&TWO_NEVER_STARTED);
    a_rank_that_is_stuck_before_init: run(&STUCK_BEFORE_INIT);
    a_rank_with_another_port: run(&WRONG_PORT);
    a_rank_that_stopped_before_it_published: run(&STOPPED_BEFORE_SET);
    a_rank_that_stopped_after_it_published: run(&STOPPED_AFTER_SET);
    a_rank_killed_before_it_published: run(&KILLED_BEFORE_SET);
    a_rank_killed_after_it_published: run(&KILLED_AFTER_SET);
    a_rank_killed_in_training: run(&KILLED_LATER);
    a_rank_that_skips_a_collective_is_not_known_to_the_store: run(&SKIPS_A_COLLECTIVE);
    a_rank_with_a_greater_world_size: run(&WORLD_SIZE_5);
    a_rank_with_a_smaller_world_size: run(&WORLD_SIZE_3);
    a_world_size_greater_than_the_number_of_ranks: run(&ALL_SAY_5);
    two_processes_with_one_rank: run(&SAME_RANK);
    two_jobs_on_one_store: run(&TWO_JOBS);
    addresses_of_an_earlier_group: run(&STALE_ADDRESSES);
    a_rank_that_does_not_make_a_group: run(&GROUP_INCOMPLETE);
    c10d_run_with_a_rank_that_stopped_before_it_published: stopped_before_it_published(C10D_RUN);
    torchrun_with_a_rank_that_stopped_before_it_published: stopped_before_it_published(WITH_TORCHRUN);
    torchrun_with_a_rank_that_stopped_after_it_published: stopped_after_it_published(WITH_TORCHRUN);
    c10d_run_with_a_rank_that_stopped_after_it_published: stopped_after_it_published(C10D_RUN);
    c10d_run_with_a_rank_with_another_world_size: another_world_size(C10D_RUN);
    torchrun_with_a_rank_with_another_world_size: another_world_size(WITH_TORCHRUN);
    c10d_run_with_a_rank_with_another_port: another_port(C10D_RUN);
    torchrun_with_a_rank_with_another_port: another_port(WITH_TORCHRUN);
    c10d_run_with_two_jobs_in_one_store: two_jobs_under(C10D_RUN);
    torchrun_with_two_jobs_in_one_store: two_jobs_under(WITH_TORCHRUN);
    c10d_run_with_two_processes_with_one_rank: same_rank_under(C10D_RUN);
    torchrun_with_two_processes_with_one_rank: same_rank_under(WITH_TORCHRUN);
    c10d_run_with_addresses_of_an_earlier_group: stale_addresses_under(C10D_RUN);
    torchrun_with_addresses_of_an_earlier_group: stale_addresses_under(WITH_TORCHRUN);
    c10d_run_with_a_rank_stopped_in_training: stopped_in_training(C10D_RUN, &[], FindingKind::WorkerStopped, &[2]);
    torchrun_with_a_rank_stopped_in_training: stopped_in_training(WITH_TORCHRUN, &[], FindingKind::PartlyObserved, &[]);
    relays_with_a_rank_stopped_in_training: stopped_in_training(TWO_NODES, RELAY, FindingKind::WorkerStopped, &[2]);
}
