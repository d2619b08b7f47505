//! The answers to all requests, over real connections to a real store.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_inspect::http::EventKind;
use c10d_inspect::report_text::TextStyle;
use c10d_inspect::{FindingKind, Report, explain};
use c10d_membership::{
    Attempt, Event, EventNumber, GroupOptions, MemberKey, Membership, Message, Reply, status_of,
};
use c10d_store::{SnapshotError, Store, StoreExt, TcpStore};
use serde_json::{Value, json};

use crate::canned::{Canned, healthy_job, job_without};
use crate::front::{Front, LIMIT};

const PATHS: [&str; 10] = [
    "/",
    "/status.json",
    "/why.json",
    "/why.json?ranks=all",
    "/ranks.json",
    "/clients.json",
    "/keys.json",
    "/stats.json",
    "/metrics",
    "/healthz",
];

#[test]
fn a_store_and_its_page_share_a_port() {
    let front = Front::of_a_store();
    let store = TcpStore::connect("127.0.0.1", front.address.port()).expect("a client");
    store.set("/a\u{1b}[31m<script>", b"SECRET").expect("set");
    for path in PATHS {
        let answer = front.get(path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert!(!answer.body.contains("SECRET"), "{path} shows a value");
        let is_clean = |character: char| character == '\n' || !character.is_control();
        assert!(
            answer.body.chars().all(is_clean),
            "{path} has control characters"
        );
        for header in [
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "cross-origin-resource-policy: same-origin",
            "content-security-policy: default-src 'none'; ",
        ] {
            assert!(answer.head.contains(header), "{path}: {}", answer.head);
        }
        assert!(
            !answer.head.contains("access-control"),
            "{path}: {}",
            answer.head
        );
    }
    assert_eq!(store.get("/a\u{1b}[31m<script>").expect("get"), b"SECRET");

    let keys = front.get("/keys.json?prefix=/").json();
    let key = &keys["rows"][0];
    assert_eq!(key["key"], "//a\\u{1b}[31m<script>");
    assert_eq!(key["value_bytes"], 6);
    let clients = front.get("/clients.json").json();
    let writer = clients["rows"].as_array().expect("rows").iter();
    let found: Vec<_> = writer.filter(|row| row["id"] == key["writer"]).collect();
    assert_eq!(found.len(), 1, "{clients}");
    assert_eq!(front.get("/keys.json?prefix=/b").json()["rows"], json!([]));
}

/// docs/spec/wire-extensions.md, section 9.13.
#[test]
fn a_report_says_for_which_member_a_group_waits_and_which_has_left() {
    let front = Front::of_a_store();
    let store = TcpStore::connect("127.0.0.1", front.address.port()).expect("a client");
    let group = Membership::connect(&store, "workers").expect("a group");
    group
        .open(&GroupOptions::new(2), "reconfigure/")
        .expect("opened");
    let members = [0, 7].map(|id| MemberKey::new(id, 1));
    let mut proposed = None;
    for member in members {
        let handle = format!("gloo:{}", member.id.0).into();
        let hello = Message::Hello { handle, step: 0 };
        group.ask(member, &hello, LIMIT).expect("an answer");
    }
    let poll = Message::Poll {
        after: EventNumber::NONE,
        is_leaving: false,
    };
    let reply = group.ask(members[0], &poll, LIMIT).expect("an answer");
    if let Reply::Event(_, Event::Propose { attempt, .. }) = reply {
        proposed = Some(attempt);
    }
    let ready = Message::Ready {
        attempt: proposed.expect("proposed"),
        handle: "gloo:0".into(),
        step: 0,
    };
    group.ask(members[0], &ready, LIMIT).expect("an answer");
    group.dead(MemberKey::new(3, 2)).expect("an answer");

    let text = front.get("/why.json").body;
    let report: Report = serde_json::from_str(&text).expect("a report");
    let [found] = &report.memberships[..] else {
        panic!("{text}");
    };
    assert_eq!((found.name.as_str(), found.members), ("workers", 2));
    assert_eq!((found.generation, found.attempt), (0, 1));
    assert_eq!(found.waits_for, ["member 7.1"]);
    assert!(!found.is_settled);
    assert!(!report.is_stuck, "a poll is no standstill");
    let text = report.to_text(TextStyle::PLAIN);
    let line = "workers: no generation; members leave their mesh; waits for member 7.1, for";
    assert!(text.contains(line), "{text}");
    let departure = "member 3.2 (its process has ended)";
    assert_eq!(found.departures, [departure]);
    let text = report.to_text(TextStyle::new(usize::MAX, false));
    assert!(
        text.contains(&format!("; left last: {departure}\n")),
        "{text}"
    );
}

/// A group whose ranks have each done five steps.
struct Stepping {
    group: Membership,
    generation: Attempt,
}

impl Stepping {
    fn start(store: &TcpStore, name: &str, size: usize) -> Self {
        let group = Membership::connect(store, name).expect("a group");
        let mut options = GroupOptions::new(1);
        options.size_first = size;
        group.open(&options, "reconfigure/").expect("opened");
        let nothing = Attempt::from_uuid(1 << 32).expect("an attempt");
        let mut started = Self {
            group,
            generation: nothing,
        };
        for rank in 0..size as u64 {
            started.hello(rank);
        }
        let after = EventNumber::NONE;
        let is_leaving = false;
        let proposed = started.say(0, &Message::Poll { after, is_leaving });
        let Reply::Event(_, Event::Propose { attempt, .. }) = proposed else {
            panic!("{proposed:?}");
        };
        started.generation = attempt;
        for rank in 0..size as u64 {
            started.ready(rank, attempt);
        }
        for rank in 0..size as u64 {
            started.say(
                rank,
                &Message::Ack {
                    attempt,
                    is_ok: true,
                },
            );
        }
        for rank in 0..size as u64 {
            assert_eq!(started.boundary(rank, 5), Reply::Proceed);
        }
        started
    }

    fn say(&self, rank: u64, message: &Message) -> Reply {
        let member = MemberKey::new(rank, 1);
        self.group.ask(member, message, LIMIT).expect("an answer")
    }

    fn hello(&self, rank: u64) {
        self.say(
            rank,
            &Message::Hello {
                handle: handle(rank),
                step: 0,
            },
        );
    }

    fn ready(&self, rank: u64, attempt: Attempt) {
        let (handle, step) = (handle(rank), 0);
        self.say(
            rank,
            &Message::Ready {
                attempt,
                handle,
                step,
            },
        );
    }

    fn boundary(&self, rank: u64, step: u64) -> Reply {
        let generation = self.generation;
        self.say(rank, &Message::Boundary { generation, step })
    }
}

fn handle(rank: u64) -> Arc<str> {
    format!("gloo:{rank}").into()
}

/// The report that follows after these seconds.
fn report_in(front: &Front, seconds: u64) -> Report {
    let mut snapshot = front.store.observer().snapshot(LIMIT).expect("a snapshot");
    for group in &mut snapshot.groups {
        let mut status = status_of(group).expect("a group").clone();
        let age = &mut status.stopped_for;
        *age = age.map(|age| age + Duration::from_secs(seconds));
        group.status = Arc::new(status);
    }
    explain(&snapshot, Some(3))
}

/// Two of three ranks stop for a newcomer, and the third rank counts its steps otherwise.
#[test]
fn a_report_names_both_numbers_of_ranks_that_differ_in_their_boundaries() {
    let front = Front::of_a_store();
    let store = TcpStore::connect("127.0.0.1", front.address.port()).expect("a client");
    let job = Stepping::start(&store, "workers", 3);
    job.boundary(1, 6);
    job.hello(9);
    for rank in [0, 2] {
        let stopped = job.boundary(rank, 7);
        let Reply::Change(attempt) = stopped else {
            panic!("{stopped:?}");
        };
        job.ready(rank, attempt);
    }
    // Rank 1 may write a checkpoint.
    let early = report_in(&front, 20);
    assert!(!early.is_stuck, "{early:?}");
    assert!(!early.headline.contains("not in the store"), "{early:?}");
    let late = report_in(&front, 30);
    assert!(late.is_stuck, "{late:?}");
    let [finding] = &late.findings[..] else {
        panic!("{late:?}");
    };
    assert_eq!(finding.kind, FindingKind::Boundary);
    let text = "Ranks 0 and 2 have waited at boundary(7) for 30 s, and rank 1 does not (last: boundary(6)). In group workers all ranks \
                have to call boundary after the same steps, with the same numbers.";
    assert_eq!(finding.text, text);
    assert_eq!(finding.culprits.0, BTreeSet::from([1]));
}

/// Such a rank may be in the work after the last step. If it has done more steps, it waits in a
/// collective.
#[test]
fn a_report_names_ranks_that_have_not_done_the_last_step() {
    let front = Front::of_a_store();
    let store = TcpStore::connect("127.0.0.1", front.address.port()).expect("a client");
    let job = Stepping::start(&store, "workers", 2);
    assert_eq!(
        job.say(0, &Message::finished(job.generation)),
        Reply::Accepted
    );
    for (step, last) in [(5, "boundary(5)"), (6, "boundary(6)")] {
        job.boundary(1, step);
        let report = report_in(&front, 30);
        assert_eq!(report.is_stuck, step == 6, "{report:?}");
        let text = format!(
            "Rank 0 has done the last step, after boundary(5), 30 s ago, and rank 1 has not (last: {last}). "
        );
        assert!(report.headline.starts_with(&text), "{report:?}");
    }
}

#[test]
fn only_ranks_that_matter_are_sent_unless_all_are_asked_for() {
    let front = Front::start(Canned::new(job_without(500, &[7, 300])));
    let ranks = |path: &str| -> Vec<u64> {
        let answer = front.get(path).json();
        let rows = answer.get("ranks").unwrap_or(&answer).as_array().cloned();
        let numbers = rows.expect("rows").into_iter();
        numbers
            .map(|row| row["rank"].as_u64().expect("a rank"))
            .collect()
    };
    let some = ranks("/why.json");
    assert!(
        some.contains(&7) && some.contains(&300) && some.len() < 70,
        "{some:?}"
    );
    assert_eq!(ranks("/why.json?ranks=all").len(), 500);
    assert_eq!(
        ranks("/ranks.json?from=490&count=100"),
        (490..500).collect::<Vec<_>>()
    );
    assert_eq!(ranks("/ranks.json?rank=300"), [300]);
    assert!(ranks("/ranks.json?rank=500").is_empty());
    assert_eq!(
        ranks("/ranks.json?find=node0037"),
        (296..304).collect::<Vec<_>>()
    );
    assert_eq!(ranks("/ranks.json?find=300"), [300]);

    let status = front.get("/status.json").json();
    let cells = status["cells"].as_str().expect("cells");
    assert_eq!(cells.len(), 500);
    assert_eq!(&cells[6..9], "wNw");
    assert_eq!(
        status["findings"]["entries"][0]["culprits"],
        "ranks 7 and 300"
    );
}

#[test]
fn a_page_of_a_stranger_is_refused_and_given_names_are_not() {
    let front = Front::start(Canned::new(healthy_job(4)));
    for (host, status) in [("status.example.org", 200), ("evil.example.com", 421)] {
        let request =
            format!("GET /status.json HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(front.send(&request).status, status, "{host}");
    }
}

#[test]
fn bytes_that_are_not_http_end_the_connection_only() {
    let front = Front::start(Canned::new(healthy_job(4)));
    for bytes in [
        "GARBAGE\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        &"A".repeat(100_000),
    ] {
        let mut stream = front.connect();
        // It may close before it has read everything.
        let _ = stream.write_all(bytes.as_bytes());
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
    }
    assert_eq!(front.get("/healthz").status, 200);
}

#[test]
fn the_store_is_asked_once_a_second_and_only_if_anybody_asks() {
    let canned = Canned::new(healthy_job(4));
    let front = Front::start(canned.clone());
    assert_eq!(canned.answers().snapshots, 0);
    let start = Instant::now();
    for _ in 0..40 {
        assert_eq!(front.get("/why.json").status, 200);
        assert_eq!(front.get("/metrics").status, 200);
        front.status.report(LIMIT).expect("a report");
    }
    let seconds = usize::try_from(start.elapsed().as_secs()).expect("a few");
    let (snapshots, counted) = {
        let answers = canned.answers();
        (answers.snapshots, answers.counted)
    };
    assert!(
        (1..=seconds + 1).contains(&snapshots),
        "{snapshots} in {seconds} s"
    );
    assert!(counted <= 5 * (seconds + 1), "{counted} in {seconds} s");
}

#[test]
fn a_store_that_does_not_answer_is_said_to_be_gone() {
    let canned = Canned::new(healthy_job(4));
    let front = Front::start(canned.clone());
    canned.answers().error = Some(SnapshotError::TimedOut {
        timeout: Duration::from_secs(2),
    });
    for path in ["/why.json", "/status.json", "/metrics", "/healthz"] {
        let answer = front.get(path);
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.body.contains("2s"), "{answer:?}");
    }
    assert_eq!(front.get("/").status, 200, "the page itself says it");
    canned.answers().error = None;
    let start = Instant::now();
    while front.get("/why.json").status != 200 {
        assert!(start.elapsed() < LIMIT, "an error is kept for too long");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn events_of_a_launcher_are_on_the_time_line() {
    let front = Front::start(Canned::new(job_without(4, &[2])));
    front
        .status
        .timeline()
        .push(EventKind::Restart, "restart 1: rank 2 failed");
    let status = front.get("/status.json").json();
    let events = status["timeline"].as_array().expect("events");
    let kinds: Vec<_> = events.iter().map(|event| &event["kind"]).collect();
    assert_eq!(kinds, [&Value::from("stuck"), &Value::from("restart")]);
}

#[test]
fn shutdown_ends_open_connections_and_the_store_goes_on() {
    let front = Front::of_a_store();
    let mut idle = front.connect();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("sent");
    let mut byte = [0];
    idle.read_exact(&mut byte).expect("an answer");
    let mut silent = front.connect();
    silent.write_all(b"GET").expect("sent");
    front.status.shutdown();
    for stream in [&mut idle, &mut silent] {
        // The connection is closed. A reset counts as well.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(matches!(
        front.status.report(LIMIT),
        Err(SnapshotError::Stopped)
    ));
    let mut late = front.connect();
    late.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    assert!(matches!(late.read_to_end(&mut Vec::new()), Ok(0) | Err(_)));
    let store = TcpStore::connect("127.0.0.1", front.address.port()).expect("a client");
    assert_eq!(store.add("still", 1).expect("add"), 1);
}

#[test]
fn a_store_that_ends_first_leaves_no_thread_behind() {
    let Front { store, status, .. } = Front::of_a_store();
    store.shutdown();
    assert!(matches!(status.report(LIMIT), Err(SnapshotError::Stopped)));
    drop(status);
}
