//! The rules of docs/how-to/keep-workers.md, one by one, and the order of effects.

use std::time::{Duration, SystemTime};

use elastic_rendezvous::{Membership, NodeId};
use log::Level;

use super::super::input::{Death, Effect, Facts, GroupNews, Input, Joins};
use super::super::{KeepOptions, Replacement, Round};
use super::workers::failure;
use super::world::{FINAL, joined, settings};
use crate::failure::{Failures, ProcessFailure};
use crate::restart_policy::RoundProgress;
use crate::worker::{ExitKind, WorkerExit, WorkerOutcome};

const NOW: Duration = Duration::ZERO;

/// A round whose three workers of this node run.
fn running(restarts: usize, keep: KeepOptions) -> Round {
    running_of(1, restarts, keep)
}

fn running_of(nodes: usize, restarts: usize, keep: KeepOptions) -> Round {
    let mut settings = settings(restarts, 3);
    settings.keep = Some(keep);
    let (mut round, _) = Round::begin(settings, NOW);
    for input in [
        joined(nodes),
        Input::Prepared { keeps: true },
        Input::Started,
    ] {
        round.step(NOW, input);
    }
    round
}

fn exit(local_rank: usize, code: i32) -> WorkerExit {
    WorkerExit {
        local_rank,
        rank: local_rank,
        pid: 1,
        exit: ExitKind::Code(code),
        ended_at: SystemTime::UNIX_EPOCH,
    }
}

/// A worker dies, and the group is in this state; returns the names of the effects.
fn death_of(round: &mut Round, failed: ProcessFailure, group: GroupNews) -> Vec<String> {
    let ExitKind::Code(code) = failed.exit else {
        panic!("{failed:?}");
    };
    let exit = exit(failed.local_rank, code);
    let first = names(round.step(NOW, Input::WorkerExited(exit)));
    if first != ["ReadDeath"] {
        return first;
    }
    let death = Death {
        exit,
        failures: Failures::new(vec![failed]),
        progress: RoundProgress::default(),
        group,
    };
    names(round.step(NOW, Input::Death(Box::new(death))))
}

fn death(round: &mut Round, local_rank: usize, group: GroupNews) -> Vec<String> {
    let failed = failure(local_rank, local_rank, 1, false);
    death_of(round, failed, group)
}

fn names(effects: Vec<Effect>) -> Vec<String> {
    let effects = effects.into_iter();
    let effects = effects.filter(|effect| !matches!(effect, Effect::Log(..)));
    let name = |effect| {
        let text = format!("{effect:?}");
        let end = text.find(|letter: char| !letter.is_alphanumeric());
        text[..end.unwrap_or(text.len())].to_owned()
    };
    effects.map(name).collect()
}

/// The service is notified first, because the other workers wait for that in a collective.
#[test]
fn a_dead_worker_is_replaced_while_a_restart_is_left() {
    let mut round = running(1, KeepOptions::new(1));
    assert_eq!(
        death(&mut round, 1, GroupNews::GoesOn),
        ["TellLost", "Replace"]
    );
    let replaced = Input::Replaced {
        local_rank: 1,
        pid: 2,
    };
    assert_eq!(names(round.step(NOW, replaced)), ["TellReplaced"]);
    assert_eq!(death(&mut round, 1, GroupNews::GoesOn), ["TellLost"]);
    assert_eq!(round.policy.used(), 1);
    let ends = [0, 2].map(|rank| names(round.step(NOW, Input::WorkerExited(exit(rank, 0)))));
    let [end, stop] = ["EndEntry", "Stop"].map(str::to_owned);
    assert_eq!(ends, [vec![end], vec![stop]]);
}

/// The script is named while nothing has happened yet, and not only when a death shows it.
#[test]
fn workers_that_are_no_members_in_time_are_warned_of() {
    let mut round = running(1, KeepOptions::new(1));
    assert_eq!(names(round.step(NOW, Input::MembersDue)), ["ReadGroup"]);
    let mut warnings = |group| {
        let effects = round.step(NOW, Input::Group(group, Vec::new()));
        let text = |effect: &Effect| match effect {
            Effect::Log(level, text) => Some((*level, text.clone())),
            Effect::ExpectMembers(_) => None,
            other => panic!("{other:?}"),
        };
        effects.iter().filter_map(text).collect::<Vec<_>>()
    };
    let warned = warnings(GroupNews::IsEmpty);
    assert_eq!(warned.len(), 1);
    assert_eq!(warned[0].0, Level::Warn);
    assert!(warned[0].1.contains("train.py"), "{warned:?}");
    assert!(warned[0].1.contains("c10d_rs.torch.join()"), "{warned:?}");
}

/// The workers have finished but not yet exited when a node of torchrun wants to join: the job is not done again.
#[test]
fn a_node_that_waits_does_not_restart_workers_that_have_finished() {
    let restart = ["ForkAhead", "TellRestarting", "Stop"];
    let cases: [(_, &[&str]); 3] = [
        (GroupNews::Finished, &[]),
        (GroupNews::GoesOn, &restart),
        (GroupNews::IsEmpty, &restart),
    ];
    for (group, effects) in cases {
        let mut round = running_of(2, 9, KeepOptions::new(1));
        let mut membership = Membership::default();
        membership.waiting = vec![NodeId::new("torchrun", 7, 1)];
        assert_eq!(
            names(round.step(NOW, Input::MembersChanged)),
            ["ReadMembership"]
        );
        let membership = Input::Membership(Some(Box::new(membership)));
        assert_eq!(names(round.step(NOW, membership)), ["ReadGroup"]);
        let answer = Input::Group(group, Vec::new());
        assert_eq!(names(round.step(NOW, answer)), effects);
    }
}

#[test]
fn a_replacement_waits_if_that_is_wanted() {
    let keep = KeepOptions {
        replace_after: Duration::from_secs(9),
        ..KeepOptions::new(1)
    };
    let mut round = running(9, keep);
    assert_eq!(
        death(&mut round, 0, GroupNews::GoesOn),
        ["TellLost", "ReplaceAfter"]
    );
    let due = Input::ReplaceDue { local_rank: 0 };
    assert_eq!(names(round.step(NOW, due)), ["Replace"]);
    let why = "no process is left".to_owned();
    let stopped = names(round.step(NOW, Input::NotReplaced(why)));
    assert_eq!(stopped, ["ForkAhead", "Stop"]);
}

#[test]
fn without_replacements_no_restart_is_used_until_too_few_are_left() {
    let keep = KeepOptions {
        replacement: Replacement::None,
        ..KeepOptions::new(2)
    };
    let mut round = running(9, keep);
    assert_eq!(death(&mut round, 0, GroupNews::GoesOn), ["TellLost"]);
    let stopped = death(&mut round, 1, GroupNews::GoesOn);
    assert_eq!(stopped, ["TellFailed", "ForkAhead", "Stop"]);
    assert_eq!(round.policy.used(), 0);
}

/// A process that is stuck, or stopped, does not learn that it was evicted.
#[test]
fn an_evicted_worker_that_stays_is_killed_after_its_grace() {
    let mut round = running(9, KeepOptions::new(1));
    let mut look = |seconds, evicted: &[usize]| {
        let input = Input::Group(GroupNews::GoesOn, evicted.to_vec());
        names(round.step(Duration::from_secs(seconds), input))
    };
    assert_eq!(look(60, &[]), ["ExpectMembers"]);
    assert_eq!(look(70, &[1]), ["ExpectMembers"]);
    // The worker has exited, and another worker is evicted.
    assert_eq!(look(80, &[2]), ["ExpectMembers"]);
    assert_eq!(look(100, &[1, 2]), ["ExpectMembers"]);
    assert_eq!(look(110, &[1, 2]), ["Kill", "ExpectMembers"]);
    assert_eq!(look(130, &[1]), ["Kill", "ExpectMembers"]);
    assert_eq!(
        death(&mut round, 1, GroupNews::GoesOn),
        ["TellLost", "Replace"]
    );
}

/// A node of torchrun or of release 0.2 is in the round.
#[test]
fn a_round_with_nodes_that_do_not_keep_workers_restarts_all() {
    let mut settings = settings(9, 3);
    settings.keep = Some(KeepOptions::new(1));
    let (mut round, _) = Round::begin(settings, NOW);
    round.step(NOW, joined(2));
    round.step(NOW, Input::Prepared { keeps: false });
    assert_eq!(
        names(round.step(NOW, Input::Started)),
        ["TellStarted", "ReadMembership"]
    );
    let stopped = names(round.step(NOW, Input::WorkerExited(exit(1, 1))));
    assert_eq!(stopped, ["TellFailed", "ForkAhead", "Stop"]);
}

/// The results of the job are complete.
#[test]
fn a_crash_after_the_workers_have_finished_runs_nothing_again() {
    let mut round = running(9, KeepOptions::new(2));
    assert_eq!(
        death(&mut round, 1, GroupNews::Finished),
        ["TellLost", "EndEntry"]
    );
    let end = names(round.step(NOW, Input::WorkerExited(exit(0, 0))));
    assert_eq!(end, ["EndEntry"]);
    let stop = death(&mut round, 2, GroupNews::Finished);
    assert_eq!(stop, ["TellLost", "Stop"]);
    let effects = names(round.step(NOW, Input::Stopped(Box::default())));
    assert_eq!(effects, ["RoundEnded", "EnterBarrier"]);
    assert_eq!(round.policy.used(), 0);
}

/// All have to meet again if there is nothing to come back to.
#[test]
fn a_node_without_a_group_joins_the_next_round() {
    let mut round = running_of(2, 1, KeepOptions::new(1));
    death(&mut round, 1, GroupNews::IsEmpty);
    round.step(NOW, Input::Stopped(Box::default()));
    let effects = round.step(NOW, Input::Facts(Facts::default()));
    assert!(
        matches!(effects.last(), Some(Effect::Join(Joins::Next))),
        "{effects:?}"
    );
}

#[test]
fn all_are_stopped_if_there_is_no_group_to_go_on() {
    for group in [
        GroupNews::IsEmpty,
        GroupNews::Ended("too few members".to_owned()),
        GroupNews::OutOfReach("connection refused".to_owned()),
    ] {
        let mut round = running(9, KeepOptions::new(1));
        let stopped = death(&mut round, 1, group);
        assert_eq!(stopped, ["TellFailed", "ForkAhead", "Stop"]);
        // It is counted once the other nodes' actions in the meantime are known.
        assert_eq!(round.policy.used(), 0);
    }
}

#[test]
fn final_codes_and_fatal_errors_end_the_job_as_without_it() {
    let mut round = running(9, KeepOptions::new(1));
    let failed = failure(1, 1, FINAL, false);
    let stopped = death_of(&mut round, failed, GroupNews::GoesOn);
    assert_eq!(stopped, ["TellFailed", "PublishEnd", "Close", "Stop"]);

    let mut round = running(9, KeepOptions::new(1));
    let text = "Traceback (most recent call last):\n  File \"/t/x.py\", line 1, in <module>\n    \
                import x\nModuleNotFoundError: No module named 'x'\n";
    let failed = WorkerOutcome::for_test(1, ExitKind::Code(1), 0, text);
    let failed = ProcessFailure::of(&failed);
    let stopped = death_of(&mut round, failed, GroupNews::GoesOn);
    assert_eq!(stopped, ["TellFailed", "ForkAhead", "Stop"]);
}
