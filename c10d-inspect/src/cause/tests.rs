//! Exits and their root causes. The last lines are those of gloo scripts of PyTorch 2.15, if nothing else is stated.

use super::*;

const CLOSED: &str = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by \
                      peer [127.0.0.1]:49804. This is typically caused by a remote worker crashing. Check the logs of the \
                      remote worker before reporting an error. GLHF! \u{1f3d6}\u{fe0f}";
const RESET: &str = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error \
                     [127.0.0.1]:9135: Connection reset by peer. This is typically caused by a remote worker hanging or bugs in \
                     the application.";
const WAIT: &str =
    "torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//result/1";

fn exit(rank: usize, code: i32, at_ms: i64, line: &str) -> Exit {
    Exit {
        rank,
        code: Some(code),
        at_ms,
        has_traceback: line.contains("Error: "),
        last_line: (!line.is_empty()).then(|| line.to_owned()),
        ..Exit::default()
    }
}

fn by_signal(rank: usize, number: i32, name: &str, at_ms: i64) -> Exit {
    Exit {
        code: None,
        signal: Some(number),
        signal_name: Some(name.to_owned()),
        ..exit(rank, 0, at_ms, "")
    }
}

fn stopped(rank: usize, at_ms: i64) -> Exit {
    Exit {
        is_stopped: true,
        ..by_signal(rank, 15, "SIGTERM", at_ms)
    }
}

fn on(node: usize, exit: Exit) -> Exit {
    Exit {
        node,
        host: format!("node{node}"),
        ..exit
    }
}

/// The ranks that have published these addresses.
fn rank_at(address: SocketAddr) -> Option<usize> {
    match address.port() {
        49804 => Some(1),
        9135 => Some(2),
        _ => None,
    }
}

fn found(exits: &[Exit]) -> Option<RootCause> {
    root_cause(exits, &[], Some(4), &rank_at)
}

/// The ranks, whether the first is certain, and the text.
fn told(exits: &[Exit]) -> (Vec<usize>, bool, String) {
    let cause = found(exits).unwrap();
    let ranks = cause.culprits.iter().map(|&it| exits[it].rank);
    (ranks.collect(), cause.is_certain, cause.text)
}

fn is_told(exits: &[Exit], ranks: &[usize], is_certain: bool, text: &str) {
    let expected = (ranks.to_vec(), is_certain, text.to_owned());
    assert_eq!(told(exits), expected);
    // The order of the exits in the list does not matter.
    let reversed: Vec<Exit> = exits.iter().rev().cloned().collect();
    assert_eq!(told(&reversed), expected);
}

#[test]
fn a_rank_that_exits_after_its_victims_is_the_cause_if_no_other_can_be() {
    let unknown = CLOSED.replace("49804", "1");
    let mut late = exit(3, 1, 1200, &unknown);
    late.is_stopped = true;
    let others = [exit(2, 1, 1050, &unknown), late, exit(1, 0, 1100, "")];
    let with = |symptom: &str| [&[exit(0, 1, 1000, symptom)][..], &others].concat();
    let expected = "rank 1 exited with code 0; 0.1 s before that was noticed, rank 0 lost its connection to it";
    is_told(&with(&unknown), &[1], true, expected);
    // Rank 3 may have closed the connection as well, or it is not known how it exited.
    let mut all = with(&unknown);
    all[2].last_line = None;
    let expected = "rank 0 exited with code 1: it lost its connection to another rank, perhaps to rank 1, which exited with \
                    code 0 soon after";
    is_told(&all, &[0], false, expected);
    all.remove(2);
    is_told(&all, &[0], false, expected);
    // No other rank, or several.
    let expected = "rank 0 exited with code 1: it lost its connection to another rank, and no other had exited";
    is_told(&all[..2], &[0], false, expected);
    all.push(exit(3, 0, 1100, ""));
    is_told(
        &all,
        &[0],
        false,
        &expected.replace(
            "another rank, and no other had exited",
            "another rank, and several exited with code 0 soon after",
        ),
    );
}

#[test]
fn a_rank_that_left_with_0_is_the_cause_of_lost_connections() {
    let left = exit(1, 0, 1000, "");
    let victim = exit(0, 1, 1150, CLOSED);
    let expected = "rank 1 exited with code 0, 0.1 s before rank 0 lost its connection to it";
    let all = [left.clone(), victim.clone(), stopped(2, 1200)];
    is_told(&all, &[1], true, expected);
    // The address is not known, but only one rank had exited.
    let unknown = CLOSED.replace("49804", "1");
    let all = [left.clone(), exit(0, 1, 1150, &unknown), stopped(2, 1200)];
    is_told(&all, &[1], true, expected);
    // The same with both victims: the second lost its connection to the first.
    let all = [left.clone(), victim.clone(), exit(2, 1, 1160, &unknown)];
    is_told(&all, &[1], true, expected);
    // A victim of the first victim was noticed first.
    let follower = exit(3, 1, 1100, RESET);
    let all = [left.clone(), follower, exit(2, 1, 1150, CLOSED)];
    is_told(
        &all,
        &[1],
        false,
        "rank 1 exited with code 0, 0.1 s before rank 3 lost its connection to it",
    );
    // The victim failed long after it.
    let all = [left, exit(0, 1, 61_000, CLOSED)];
    is_told(
        &all,
        &[1],
        true,
        "rank 1 exited with code 0, 60 s before rank 0 failed because it had lost its connection to it",
    );
}

#[test]
fn several_ranks_that_have_left_are_the_first_of_these() {
    let unknown = CLOSED.replace("49804", "1");
    let all = [
        exit(1, 0, 1000, ""),
        exit(2, 0, 1010, ""),
        exit(0, 1, 1150, &unknown),
    ];
    is_told(
        &all,
        &[1, 2],
        false,
        "the first of these: rank 1 exited with code 0 and rank 2 exited with code 0; rank 0 lost its connection to one of \
         them",
    );
    // A rank that left after the victim is not its cause.
    let all = [
        exit(1, 0, 1000, ""),
        exit(2, 0, 1200, ""),
        exit(0, 1, 1150, &unknown),
    ];
    assert_eq!(told(&all).0, [1]);
}

#[test]
fn a_rank_that_failed_for_its_own_reason_is_the_cause() {
    let failed = exit(1, 3, 1000, "bad shard 17");
    let expected = "rank 1 exited with code 3, 0.2 s before rank 0 lost its connection to it";
    for line in [CLOSED.to_owned(), CLOSED.replace("49804", "1")] {
        let all = [failed.clone(), exit(0, 1, 1200, &line), stopped(2, 1300)];
        is_told(&all, &[1], true, expected);
    }
    // Its end was noticed after the end of its victim, or its launcher stopped it while it ended.
    let traceback = exit(1, 1, 1400, "ValueError: bad shard 17");
    let late = "rank 1 exited with code 1; 0.2 s before that was noticed, rank 0 lost its connection to it";
    for is_stopped in [false, true] {
        let culprit = Exit {
            is_stopped,
            ..traceback.clone()
        };
        is_told(&[culprit, exit(0, 1, 1200, CLOSED)], &[1], true, late);
    }
    let killed = by_signal(1, 9, "SIGKILL", 1000);
    is_told(
        &[killed, exit(0, 1, 1200, RESET)],
        &[1],
        true,
        "rank 1 was ended by SIGKILL, 0.2 s before rank 0 lost its connection to it",
    );
    // Without a victim.
    is_told(
        &[failed, stopped(0, 1300)],
        &[1],
        true,
        "rank 1 exited with code 3",
    );
}

#[test]
fn a_rank_that_still_ran_is_not_blamed() {
    is_told(
        &[exit(0, 1, 1200, CLOSED), stopped(1, 1300)],
        &[0],
        false,
        "rank 0 exited with code 1: it lost its connection to rank 1, which had not exited",
    );
    is_told(
        &[exit(0, 1, 1200, WAIT), stopped(1, 1300)],
        &[0],
        false,
        "rank 0 exited with code 1: it gave up waiting for the key /default_pg/0//result/1",
    );
    // Two that have lost each other.
    let first = exit(2, 1, 1000, CLOSED);
    let all = [first, exit(1, 1, 1100, RESET)];
    assert_eq!(told(&all).0, [2]);
    assert!(!told(&all).1);
}

#[test]
fn a_wait_in_the_store_is_explained_by_a_rank_that_has_left() {
    is_told(
        &[
            exit(1, 0, 1000, ""),
            exit(2, 1, 6100, WAIT),
            stopped(0, 6200),
        ],
        &[1],
        true,
        "rank 1 exited with code 0, 5 s before rank 2 gave up waiting for the key /default_pg/0//result/1",
    );
    let wait = [KeyWait::new(
        2,
        "/default_pg/0//result/1".to_owned(),
        31_000,
    )];
    let live = root_cause(&[exit(1, 0, 1000, "")], &wait, Some(3), &rank_at).unwrap();
    assert_eq!(
        live.text,
        "rank 1 exited with code 0 30 s ago, and rank 2 waits for the key /default_pg/0//result/1, which it may have been \
         expected to write"
    );
    assert_eq!(root_cause(&[], &wait, Some(3), &rank_at), None);
    // A rank of another job.
    assert_eq!(
        root_cause(&[exit(7, 0, 0, "")], &wait, Some(3), &rank_at),
        None
    );
}

#[test]
fn the_order_of_two_hosts_is_not_known_within_their_clocks() {
    let failed = |node, rank, at| on(node, exit(rank, 3, at, "bad shard"));
    is_told(
        &[failed(0, 0, 1000), failed(1, 1, 1080)],
        &[0, 1],
        false,
        "the first of these: rank 0 on node0 exited with code 3 and rank 1 on node1 exited with code 3",
    );
    is_told(
        &[failed(0, 0, 1000), failed(1, 1, 1200)],
        &[0],
        true,
        "rank 0 on node0 exited with code 3",
    );
    is_told(
        &[failed(1, 1, 1000), on(0, exit(0, 1, 1200, CLOSED))],
        &[1],
        true,
        "rank 1 on node1 exited with code 3, 0.2 s before rank 0 lost its connection to it",
    );
    is_told(
        &[failed(1, 1, 1000), on(0, exit(0, 1, 1050, CLOSED))],
        &[1],
        true,
        "rank 1 on node1 exited with code 3, at about the same time as rank 0 lost its connection to it",
    );
}

#[test]
fn an_abort_at_the_end_of_a_program_is_told_as_that() {
    let aborted = Exit {
        is_at_exit: true,
        last_line: Some("terminate called without an active exception".to_owned()),
        ..by_signal(1, 6, "SIGABRT", 1000)
    };
    is_told(
        &[aborted, exit(0, 0, 900, "")],
        &[1],
        true,
        "rank 1 was ended by SIGABRT at the end of its program, where threads of its process group still ran",
    );
}

#[test]
fn without_an_own_exit_there_is_no_cause() {
    assert_eq!(found(&[]), None);
    assert_eq!(found(&[stopped(0, 0), exit(1, 0, 5, "")]), None);
}

#[test]
fn a_rank_that_gave_up_an_operation_does_not_know_who_was_missing() {
    let line = "RuntimeError: Timed out waiting 8000ms for send operation to complete";
    let exits = [
        exit(3, 1, 500, line),
        exit(0, 1, 520, line),
        exit(1, 1, 540, line),
        stopped(2, 900),
    ];
    let text = "rank 3 exited with code 1: an operation of several ranks took too long";
    is_told(&exits, &[3], false, text);
    let unknown = found(&exits).unwrap().unknown.unwrap();
    assert_eq!(
        unknown,
        ", and which rank did not take part is not known (rank 2 still ran)"
    );
    // Of ranks of other nodes nothing is known yet.
    let unknown = found(&exits[..3]).unwrap().unknown.unwrap();
    assert_eq!(unknown, ", and which rank did not take part is not known");
    // A failure with another reason is the cause.
    let failed = exit(2, 3, 100, "ValueError: bad shard 17");
    let cause = found(&[exits[0].clone(), failed]).unwrap();
    assert_eq!((cause.culprits, cause.unknown), (vec![1], None));
}
