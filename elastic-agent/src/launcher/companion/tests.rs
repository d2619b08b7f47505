//! The adoption of real processes, which this one starts and waits for as torchrun does.

use std::collections::BTreeMap;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::adoption::{Adoption, is_failure};
use crate::agent::{AgentEvent, StartedWorkers};
use crate::worker::{ExitKind, WorkerExit};

/// Longer than any step takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Started(Box<StartedWorkers>),
    Exited(WorkerExit),
    Failed(usize),
    Stopping,
}

fn adoption(run_id: &str) -> (Adoption, Receiver<Event>) {
    let (sender, events) = channel();
    let listener = move |event: &AgentEvent<'_>| {
        let event = match event {
            AgentEvent::WorkersStarted(started) => Event::Started(Box::new((*started).clone())),
            AgentEvent::WorkerExited(exit) => Event::Exited(**exit),
            AgentEvent::WorkerFailed(exit) => Event::Failed(exit.rank),
            AgentEvent::Stopping => Event::Stopping,
            _ => return,
        };
        let _ = sender.send(event);
    };
    let listeners = vec![Arc::new(listener) as _];
    (
        Adoption::start(run_id.to_owned(), listeners).unwrap(),
        events,
    )
}

/// Starts workers as torchrun does. Each exits with its code when its input is dropped.
fn start(run_id: &str, codes: &[i32]) -> Vec<(Child, ChildStdin)> {
    let size = codes.len().to_string();
    let start = |(rank, code): (usize, &i32)| {
        let rank = rank.to_string();
        let mut child = Command::new("sh")
            .args(["-c", &format!("read line; exit {code}")])
            .stdin(Stdio::piped())
            .envs([("RANK", &rank), ("LOCAL_RANK", &rank)])
            .envs([("WORLD_SIZE", &size), ("LOCAL_WORLD_SIZE", &size)])
            .envs([("GROUP_RANK", "0"), ("GROUP_WORLD_SIZE", "1")])
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")])
            .env("TORCHELASTIC_RUN_ID", run_id)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        (child, input)
    };
    codes.iter().enumerate().map(start).collect()
}

fn next(events: &Receiver<Event>) -> Event {
    events.recv_timeout(LIMIT).expect("an event")
}

/// Skips what is left of an earlier round.
fn next_start(events: &Receiver<Event>) -> StartedWorkers {
    loop {
        if let Event::Started(started) = next(events) {
            return *started;
        }
    }
}

#[test]
fn a_thousand_exits_are_noticed_and_left_to_the_parent() {
    let run_id = format!("exits-{}", std::process::id());
    let (adoption, events) = adoption(&run_id);
    for round in 0..50 {
        let codes: Vec<i32> = (0..20).map(|worker| (round * 20 + worker) % 256).collect();
        adoption.expect(round.into());
        let workers = start(&run_id, &codes);
        let started = next_start(&events);
        let pids: Vec<u32> = workers.iter().map(|(child, _)| child.id()).collect();
        let found: Vec<u32> = started.workers.iter().map(|worker| worker.pid).collect();
        assert_eq!((started.round, found), (round.into(), pids));
        let (children, inputs): (Vec<_>, Vec<_>) = workers.into_iter().unzip();
        drop(inputs);
        let mut exits = BTreeMap::new();
        while exits.len() < codes.len() {
            if let Event::Exited(exit) = next(&events) {
                exits.insert(exit.rank, exit.exit);
            }
        }
        let expected = codes.iter().map(|code| ExitKind::Code(*code)).enumerate();
        assert_eq!(exits, expected.collect());
        for (mut child, code) in children.into_iter().zip(codes) {
            assert_eq!(child.wait().unwrap().code(), Some(code));
        }
    }
}

#[test]
fn the_parent_may_be_faster() {
    let run_id = format!("faster-{}", std::process::id());
    let (adoption, events) = adoption(&run_id);
    adoption.expect(0);
    let codes: Vec<i32> = (0..50).collect();
    let workers = start(&run_id, &codes);
    assert!(matches!(next(&events), Event::Started(_)));
    for ((mut child, input), code) in workers.into_iter().zip(&codes) {
        drop(input);
        assert_eq!(child.wait().unwrap().code(), Some(*code));
    }
    let mut exits = 0;
    while exits < codes.len() {
        if let Event::Exited(WorkerExit { rank, exit, .. }) = next(&events) {
            assert!([ExitKind::Code(codes[rank]), ExitKind::Unknown].contains(&exit));
            exits += 1;
        }
    }
}

#[test]
fn only_the_first_failure_of_a_round_is_one() {
    let run_id = format!("failures-{}", std::process::id());
    let (adoption, events) = adoption(&run_id);
    adoption.expect(0);
    let mut workers = start(&run_id, &[0, 3, 4]);
    assert!(matches!(next(&events), Event::Started(_)));
    for rank in 0..3 {
        let (mut child, input) = workers.remove(0);
        drop(input);
        let Event::Exited(exit) = next(&events) else {
            panic!("no exit");
        };
        assert_eq!(exit.rank, rank);
        if exit.rank == 1 {
            assert_eq!(next(&events), Event::Failed(1));
            assert_eq!(next(&events), Event::Stopping);
        }
        child.wait().unwrap();
    }
    assert_eq!(adoption.end().map(|exit| exit.rank), Some(1));
    assert!(events.recv_timeout(LIMIT).is_err());
}

#[test]
fn workers_that_the_agent_stops_have_not_failed() {
    let run_id = format!("stopped-{}", std::process::id());
    let (adoption, events) = adoption(&run_id);
    adoption.expect(0);
    let mut workers = start(&run_id, &[0]);
    assert!(matches!(next(&events), Event::Started(_)));
    adoption.stop();
    assert_eq!(next(&events), Event::Stopping);
    let (mut child, _input) = workers.remove(0);
    child.kill().unwrap();
    assert!(matches!(next(&events), Event::Exited(_)));
    child.wait().unwrap();
    // The workers of the next round are new, and may fail.
    adoption.expect(1);
    let mut workers = start(&run_id, &[5]);
    assert!(matches!(next(&events), Event::Started(started) if started.round == 1));
    let (mut child, input) = workers.remove(0);
    drop(input);
    assert!(matches!(next(&events), Event::Exited(_)));
    assert_eq!(next(&events), Event::Failed(0));
    child.wait().unwrap();
    assert_eq!(adoption.end().map(|exit| exit.rank), Some(0));
}

#[test]
fn missing_workers_do_not_hold_up_the_others() {
    let run_id = format!("missing-{}", std::process::id());
    let (adoption, events) = adoption(&run_id);
    adoption.expect(0);
    let mut workers = start(&run_id, &[0, 0]);
    // Until it is reaped, a process that has exited has no environment.
    let (mut first, input) = workers.remove(0);
    drop(input);
    first.wait().unwrap();
    let started = Instant::now();
    let Event::Started(found) = next(&events) else {
        panic!("no start");
    };
    assert!(
        found.workers.iter().any(|worker| worker.rank == 1),
        "{found:?}"
    );
    drop(workers);
    drop(adoption);
    assert!(started.elapsed() < LIMIT);
}

#[test]
fn workers_that_the_agent_stops_after_an_exit_that_it_has_reaped_have_not_failed() {
    let failures = |has_lost_exit| {
        let [stopped, killed, crashed] = [15, 9, 11].map(ExitKind::signal);
        let exits = [stopped, killed, crashed, ExitKind::Code(1)];
        exits.map(|exit| is_failure(exit, has_lost_exit))
    };
    assert_eq!(failures(false), [true; 4]);
    assert_eq!(failures(true), [false, false, true, true]);
    assert!(!is_failure(ExitKind::Unknown, false) && !is_failure(ExitKind::Code(0), false));
}
