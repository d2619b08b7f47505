//! A node's actions on its workers: which effects, in which order, how long workers have to stop, and which failure it
//! blames.

use std::time::Duration;

use c10d_store::{ErrorContext, Operation, Outcome, StoreError};
use elastic_rendezvous::{BoardError, LostNode, Membership, NodeId};
use rustix::process::Signal;

use super::super::Round;
use super::super::input::{Effect, Facts, Input, Stop, Stopped};
use super::super::outcome::AgentOutcome;
use super::workers::failure;
use super::world::{FINAL, joined, settings};
use crate::failure::Failures;
use crate::job_end::{EndNotice, OwnEnd};
use crate::progress::ProgressSeen;
use crate::round::input::StuckWorkers;
use crate::round::outcome::{AgentError, RoundEnding};
use crate::worker::{ExitKind, StartError, WorkerExit};

const NOW: Duration = Duration::ZERO;

/// A round of two nodes whose two workers run.
fn running(restarts: usize) -> Round {
    let (mut round, _) = Round::begin(settings(restarts, 2), NOW);
    for input in [joined(2), Input::Prepared { keeps: true }, Input::Started] {
        round.step(NOW, input);
    }
    round
}

/// The effects of these inputs that are no log.
fn effects(round: &mut Round, inputs: impl IntoIterator<Item = Input>) -> Vec<Effect> {
    let mut all = Vec::new();
    for input in inputs {
        all.extend(round.step(NOW, input));
    }
    all.retain(|effect| !matches!(effect, Effect::Log(..)));
    all
}

fn exit(local_rank: usize, code: i32) -> Input {
    Input::WorkerExited(WorkerExit {
        local_rank,
        rank: local_rank,
        pid: 1,
        exit: ExitKind::Code(code),
        ended_at: std::time::SystemTime::UNIX_EPOCH,
    })
}

fn notice() -> EndNotice {
    OwnEnd::of("why".to_owned(), None).notice("node1", None, None)
}

fn stuck() -> Input {
    Input::Stuck(Box::new(StuckWorkers {
        silent_for: Duration::from_secs(9),
        steps: vec![(0, Some(20)), (1, Some(19))],
        shared_step: None,
    }))
}

/// The other nodes stop their workers while the workers of this node take their time.
#[test]
fn a_final_exit_code_ends_the_job_elsewhere_before_the_workers_of_this_node_are_stopped() {
    let effects = effects(&mut running(3), [exit(1, FINAL)]);
    let [
        Effect::TellFailed(_),
        Effect::PublishEnd(end),
        Effect::Close,
        Effect::Stop(_),
    ] = &effects[..]
    else {
        panic!("{effects:?}");
    };
    let expected =
        "worker with rank 1 ended with exit code 93, after which the job is not to be restarted";
    assert_eq!(end.reason, expected);
}

#[test]
fn workers_have_30_s_to_stop_or_5_if_they_are_stuck_or_their_node_is_removed() {
    let mut lost = Membership::default();
    let node = NodeId::new("node1", 1, 0);
    lost.lost = vec![LostNode::new(node, Duration::from_secs(15))];
    let mut closed = Membership::default();
    closed.is_closed = true;
    let mut evicted = Membership::default();
    evicted.is_evicted = true;
    let ended = Input::JobEnd(Some(Box::new(notice())));
    let slow = Stop::With(Signal::TERM, Duration::from_secs(30));
    let quick = Stop::With(Signal::TERM, Duration::from_secs(5));
    let membership = |it| Input::Membership(Some(Box::new(it)));
    for (inputs, expected) in [
        (vec![exit(0, 1)], slow),
        // The processes that they have left behind.
        (vec![exit(0, 0), exit(1, 0)], slow),
        (vec![exit(0, 0), exit(1, 1)], slow),
        (vec![membership(lost), Input::Finished(Some(0))], slow),
        (vec![membership(closed), ended], Stop::Gently),
        (vec![membership(evicted)], quick),
        (vec![stuck(), Input::IsFirstStuck(true)], quick),
        (vec![stuck(), Input::IsFirstStuck(false)], quick),
        (vec![Input::Signal(2)], Stop::BySignal(2)),
    ] {
        let what = format!("{inputs:?}");
        let effects = effects(&mut running(1), inputs);
        let Some(Effect::Stop(stop)) = effects.last() else {
            panic!("{what}: {effects:?}");
        };
        assert_eq!(*stop, expected, "{what}");
    }
}

/// docs/spec/rendezvous.md, END 4. A node of PyTorch that has failed closes the rendezvous, and so does a node that has finished.
#[test]
fn a_close_without_a_reason_stops_the_workers_unless_a_node_has_finished() {
    let mut closed = Membership::default();
    closed.is_closed = true;
    for (finished, is_stopped) in [(Some(0), true), (Some(1), false), (None, false)] {
        let inputs = [
            Input::Membership(Some(Box::new(closed.clone()))),
            Input::JobEnd(None),
            Input::Finished(finished),
        ];
        let effects = effects(&mut running(1), inputs);
        let stops = |it: &Effect| matches!(it, Effect::Stop(Stop::Gently));
        assert_eq!(
            effects.iter().any(stops),
            is_stopped,
            "{finished:?}: {effects:?}"
        );
    }
}

/// docs/spec/rendezvous.md, section 7.2.
#[test]
fn a_node_that_cannot_exchange_ranks_in_an_outage_joins_another_round() {
    let (mut round, _) = Round::begin(settings(0, 2), NOW);
    let lost = || StoreError::ConnectionLost {
        context: ErrorContext::new(Operation::Add, ["key"], "store", NOW),
        outcome: Outcome::Unknown,
        source: std::io::ErrorKind::ConnectionReset.into(),
    };
    let not_started = |signal| Input::NotStarted {
        error: Box::new(AgentError::Board(BoardError::Store(lost()))),
        signal,
    };
    let again = effects(&mut round, [joined(2), not_started(None)]);
    assert!(matches!(again.last(), Some(Effect::Join(_))), "{again:?}");
    let ended = effects(&mut round, [joined(2), not_started(Some(15))]);
    assert!(matches!(ended.last(), Some(Effect::Finish(_))), "{ended:?}");
}

/// docs/reference/restarts.md, "When to restart".
#[test]
fn a_start_that_the_system_refuses_counts_as_a_failure() {
    let (mut round, _) = Round::begin(settings(1, 2), NOW);
    let refused = |signal| Input::NotStarted {
        error: Box::new(AgentError::Start(StartError::LogFile {
            path: "/log".into(),
            source: std::io::ErrorKind::StorageFull.into(),
        })),
        signal,
    };
    let start = |signal| {
        [
            joined(2),
            Input::Prepared { keeps: true },
            refused(signal),
            Input::Facts(Facts::default()),
        ]
    };
    let again = effects(&mut round, start(None));
    let [.., Effect::RoundEnded(ended), Effect::Join(_)] = &again[..] else {
        panic!("{again:?}");
    };
    let why = "cannot create the log file /log: no storage space".to_owned();
    assert_eq!(ended.ending, RoundEnding::NotStarted(why));
    assert_eq!(ended.restarts_left, 0);
    // All restarts are used up. The earlier failure of a worker is the cause.
    let last = effects(&mut round, start(None));
    let Some(Effect::Finish(outcome)) = last.last() else {
        panic!("{last:?}");
    };
    assert!(
        matches!(**outcome, Err(AgentError::Start(_))),
        "{outcome:?}"
    );

    let (mut round, _) = Round::begin(settings(1, 2), NOW);
    let signalled = effects(&mut round, start(Some(15)));
    assert!(
        matches!(signalled.last(), Some(Effect::Finish(_))),
        "{signalled:?}"
    );

    // Other nodes have finished, and would not join.
    let (mut round, _) = Round::begin(settings(1, 2), NOW);
    let [joined, prepared, refused, _] = start(None);
    let finished = Input::Facts(Facts {
        finished: 1,
        ..Facts::default()
    });
    let alone = effects(&mut round, [joined, prepared, refused, finished]);
    assert!(matches!(alone.last(), Some(Effect::Finish(_))), "{alone:?}");
}

#[test]
fn a_node_goes_on_until_all_its_workers_have_succeeded() {
    let mut round = running(1);
    assert_eq!(effects(&mut round, [exit(1, 0)]).len(), 0);
    let effects = effects(&mut round, [exit(0, 0)]);
    assert!(matches!(effects[..], [Effect::Stop(_)]), "{effects:?}");
}

#[test]
fn a_stall_without_a_restart_left_ends_with_the_rank_that_is_behind() {
    let mut round = running(0);
    let progress = ProgressSeen {
        steps: vec![Some(20), Some(19)],
        ..ProgressSeen::default()
    };
    let stopped = Stopped {
        failures: Failures::new(vec![failure(0, 0, 1, true), failure(1, 1, 1, true)]),
        progress,
        ..Stopped::default()
    };
    let effects = effects(
        &mut round,
        [
            stuck(),
            Input::IsFirstStuck(true),
            Input::Facts(Facts::default()),
            Input::Stopped(Box::new(stopped)),
        ],
    );
    let Some(Effect::Finish(outcome)) = effects.last() else {
        panic!("{effects:?}");
    };
    let Ok(AgentOutcome::Ended {
        reason, failures, ..
    }) = &**outcome
    else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        reason,
        "the workers made no progress, and no restart is left"
    );
    let failures = failures.as_ref().unwrap();
    assert_eq!(failures.first().rank, 1);
    assert_eq!(
        failures.blame_reason(),
        Some("alive at step 19, without progress for 9.0 s")
    );
}

/// docs/spec/rendezvous.md, END 1.
#[test]
fn a_node_whose_workers_fail_too_ends_for_the_reason_of_the_other_node() {
    let mut round = running(3);
    let why = "node1 ended the job: why";
    let stopped = Stopped {
        failures: Failures::new(vec![failure(0, 0, 1, false)]),
        has_own_failure: true,
        ..Stopped::default()
    };
    let facts = Facts {
        job_end: Some(Box::new(notice())),
        ..Facts::default()
    };
    let effects = effects(
        &mut round,
        [
            exit(0, 1),
            Input::Stopped(Box::new(stopped)),
            Input::Facts(facts),
        ],
    );
    let [.., Effect::RoundEnded(summary), Effect::Finish(outcome)] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(summary.restarts_left, 3);
    let Ok(AgentOutcome::Ended {
        reason,
        failures,
        notice: told,
    }) = &**outcome
    else {
        panic!("{outcome:?}");
    };
    assert_eq!(told.as_deref(), Some(&notice()));
    assert_eq!(reason, why);
    assert_eq!(failures.as_ref().unwrap().first().rank, 0);
}
