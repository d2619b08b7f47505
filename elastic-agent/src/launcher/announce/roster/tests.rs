use std::time::SystemTime;

use crate::agent::StartedWorker;
use c10d_socket::HostPort;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn roster(now: Instant) -> Roster {
    roster_after(EarlyExits::default(), now)
}

/// Two workers, of the pids 100 and 101.
fn roster_after(early: EarlyExits, now: Instant) -> Roster {
    let identity = NodeIdentity {
        host: "vm".to_owned(),
        pid: 7,
        run_id: "job".to_owned(),
        addresses: Vec::new(),
        debug_sockets: Some("/run/c10d".into()),
        explain_after: Some(Duration::from_secs(30)),
    };
    let workers = [(2, 0, 100), (3, 1, 101)];
    let workers = workers.map(|(rank, local, pid)| StartedWorker::new(rank, local, pid));
    let started = StartedWorkers::alone(HostPort::new("node0", 29500), workers.to_vec());
    Roster::new(identity, started, early, now)
}

fn exit(pid: u32, exit: ExitKind) -> WorkerExit {
    WorkerExit {
        local_rank: 0,
        rank: 0,
        pid,
        exit,
        ended_at: SystemTime::UNIX_EPOCH,
    }
}

fn process(pid: u32, state: char, connection: Option<&str>) -> AnnouncedProcess {
    let mut process = AnnouncedProcess::default();
    process.pid = pid;
    process.state = Some(state);
    process.store_connections = connection
        .map(|it| it.parse().unwrap())
        .into_iter()
        .collect();
    process
}

fn look(roster: &mut Roster, now: Instant, states: [(char, Option<&str>); 2]) {
    let [first, second] = states;
    let found = vec![
        vec![process(100, first.0, first.1)],
        vec![process(101, second.0, second.1)],
    ];
    assert_eq!(roster.step(now), Step::Look);
    roster.note_look(&[100, 101], found, Duration::ZERO, now);
}

const ALONE: (char, Option<&str>) = ('S', None);
const CONNECTED: (char, Option<&str>) = ('S', Some("127.0.0.1:4000"));

#[test]
fn the_start_is_announced_and_renewed_every_two_seconds_while_workers_start() {
    let start = Instant::now();
    let mut roster = roster(start);
    look(&mut roster, start, [ALONE, ALONE]);
    assert_eq!(roster.step(start), Step::Announce);
    let node = roster.announcement(start);
    assert_eq!(
        (node.host.as_str(), node.pid, node.world_size),
        ("vm", 7, Some(2))
    );
    assert_eq!((node.workers[1].rank, node.workers[1].pid), (3, 101));
    let socket = node.workers[1].debug_socket.as_deref();
    assert_eq!(socket, Some(std::path::Path::new("/run/c10d/0-1")));
    roster.note_announced(start);
    let second = start + SECOND;
    assert_eq!(roster.step(start), Step::Wait(second));
    // Whether a process runs or sleeps is not announced at once.
    look(&mut roster, second, [('R', None), ALONE]);
    assert_eq!(roster.step(second), Step::Wait(start + 2 * SECOND));
    look(&mut roster, start + 2 * SECOND, [ALONE, ALONE]);
    assert_eq!(roster.step(start + 2 * SECOND), Step::Announce);
}

#[test]
fn a_connection_is_announced_at_once_and_then_looks_are_rare() {
    let start = Instant::now();
    let mut roster = roster(start);
    look(&mut roster, start, [ALONE, ALONE]);
    roster.note_announced(start);
    let mut now = start + SECOND;
    look(&mut roster, now, [CONNECTED, ALONE]);
    assert_eq!(roster.step(now), Step::Announce);
    roster.note_announced(now);
    now += SECOND;
    look(&mut roster, now, [CONNECTED, CONNECTED]);
    assert_eq!(roster.step(now), Step::Announce);
    roster.note_announced(now);
    let mut looks = Vec::new();
    for second in 1..=9 {
        let at = now + second * SECOND;
        match roster.step(at) {
            Step::Look => {
                looks.push(second);
                look(&mut roster, at, [CONNECTED, CONNECTED]);
            }
            Step::Glance => roster.note_glance(&HashMap::new(), at),
            step => panic!("{step:?} after {second} s"),
        }
        assert_eq!(roster.step(at), Step::Wait(at + SECOND));
    }
    assert_eq!(looks, [5]);
}

#[test]
fn a_process_that_stops_is_announced_within_a_second_and_so_is_one_that_goes_on() {
    let start = Instant::now();
    let mut roster = roster(start);
    look(&mut roster, start, [CONNECTED, CONNECTED]);
    roster.note_announced(start);
    assert_eq!(roster.known(), [100, 101]);
    let mut now = start;
    let mut glance = |roster: &mut Roster, state: char| {
        now += SECOND;
        assert_eq!(roster.step(now), Step::Glance);
        roster.note_glance(&HashMap::from([(100, state)]), now);
        let state = roster.announcement(now + SECOND).workers[0].processes[0].state;
        assert_eq!(roster.announcement(now + SECOND).looked_ago_ms, 1000);
        (now, state)
    };
    // Running or sleeping is not announced.
    let (now, _) = glance(&mut roster, 'R');
    assert_eq!(roster.step(now), Step::Wait(now + SECOND));
    let (now, state) = glance(&mut roster, 'T');
    assert_eq!((roster.step(now), state), (Step::Announce, Some('T')));
    roster.note_announced(now);
    // While it is stopped, this is renewed, so that its age stays small.
    glance(&mut roster, 'T');
    let (now, _) = glance(&mut roster, 'T');
    assert_eq!(roster.step(now), Step::Announce);
    roster.note_announced(now);
    look(&mut roster, now + SECOND, [('S', CONNECTED.1), CONNECTED]);
    assert_eq!(roster.step(now + SECOND), Step::Announce);
    roster.note_announced(now + SECOND);
    assert_eq!(
        roster.step(now + SECOND),
        Step::Wait(now + 2 * SECOND),
        "as usual again"
    );
}

#[test]
fn a_workers_end_is_announced_at_once_with_its_cause() {
    let start = Instant::now();
    let mut roster = roster(start);
    look(&mut roster, start, [CONNECTED, CONNECTED]);
    roster.note_announced(start);
    let now = start + SECOND;
    let killed = ExitKind::signal(9);
    assert!(!roster.note_exit(&exit(99, killed), now));
    assert!(roster.note_exit(&exit(100, killed), now));
    assert_eq!(roster.step(now), Step::Announce);
    assert_eq!(roster.running(), [101]);
    roster.note_stopping();
    assert!(roster.note_exit(&exit(101, ExitKind::Code(1)), now));
    // A second report about the same worker, or one about a reused id, changes nothing.
    assert!(!roster.note_exit(&exit(101, ExitKind::Code(0)), now));
    let node = roster.announcement(now + SECOND);
    let end = |index: usize| node.workers[index].end.unwrap();
    assert_eq!((end(0).signal, end(0).exit_code), (Some(9), None));
    assert_eq!((end(0).ago_ms, end(0).by_launcher), (1000, false));
    assert_eq!((end(1).exit_code, end(1).by_launcher), (Some(1), true));
    assert_eq!(node.workers[0].processes, []);
    roster.note_announced(now);
    assert_eq!(roster.step(now), Step::Wait(now + RENEWAL));
}

#[test]
fn an_exit_before_the_start_is_known_is_not_lost() {
    let start = Instant::now();
    let mut early = EarlyExits::default();
    early.note(exit(100, ExitKind::Code(3)), start);
    let roster = roster_after(early, start);
    assert_eq!(roster.running(), [101]);
    assert_eq!(roster.step(start), Step::Announce);
}

#[test]
fn an_expensive_look_is_repeated_less_often() {
    let start = Instant::now();
    let mut roster = roster(start);
    let cost = Duration::from_millis(200);
    roster.note_look(&[], Vec::new(), cost, start);
    roster.note_announced(start);
    roster.next_renewal = start + 100 * SECOND;
    roster.next_glance = start + 100 * SECOND;
    assert_eq!(roster.step(start), Step::Wait(start + 10 * SECOND));
}

#[test]
fn workers_that_never_connect_stop_counting_as_starting() {
    let start = Instant::now();
    let mut roster = roster(start);
    let now = start + STARTING_MAX;
    look(&mut roster, now, [ALONE, ALONE]);
    roster.note_announced(now);
    roster.note_glance(&HashMap::new(), now + 4 * SECOND);
    assert_eq!(
        roster.step(now + 4 * SECOND),
        Step::Wait(now + 5 * SECOND),
        "a look is due"
    );
}

#[test]
fn observations_are_announced_at_once_and_not_when_they_are_old() {
    let start = Instant::now();
    let mut roster = roster(start);
    look(&mut roster, start, [('S', None), ('S', None)]);
    roster.note_announced(start);
    let sample_of = |ago| {
        let mut sample = AnnouncedSample::default();
        sample.taken_ago_ms = ago;
        sample
    };
    let found = Observations {
        samples: [(100, sample_of(20)), (101, sample_of(20))].into(),
        stacks: vec![c10d_inspect::stacks::Stacks::default()],
    };
    roster.note_observations(found, start);
    assert_eq!(roster.step(start), Step::Announce);
    assert!(roster.note_exit(&exit(101, ExitKind::Code(0)), start));
    let node = roster.announcement(start + SECOND);
    assert_eq!(node.explain_after_ms, Some(30_000));
    assert_eq!(node.stacks.len(), 1);
    assert_eq!(node.workers[0].sample, Some(sample_of(1020)));
    assert_eq!(node.workers[1].sample, None);
    let node = roster.announcement(start + OBSERVATION_AGE_MAX + SECOND);
    assert_eq!((node.stacks.len(), &node.workers[0].sample), (0, &None));
    roster.note_announced(start);
    roster.note_observations(Observations::default(), start);
    assert_eq!(roster.step(start), Step::Announce);
    assert_eq!(roster.announcement(start).workers[0].sample, None);
}
