use {FindingKind as Kind, ReportState as State};

use super::fixtures::{Observed, in_c10d, node};
use super::rules::{Facts, RULES, Rule};
use super::words::doings;
use super::*;
use crate::report::{FindingKind, ReportState};

const READ: &str = "train.py:90 <module> > loader.py:17 load_batch";

/// The verdict about a node that runs these ranks, which are all ranks of the job.
fn verdict(ranks: &[Observed]) -> Verdict {
    let ranks: Vec<_> = ranks.iter().cloned().enumerate().collect();
    let node = node("vm", ranks.len(), &ranks);
    let mut evidence = Evidence::default();
    evidence.add(&node, 0, |_| true);
    judge(&evidence).expect("a verdict")
}

#[track_caller]
fn check(ranks: &[Observed], state: State, kind: Kind, culprits: &[usize], text: &str) {
    let verdict = verdict(ranks);
    let finding = verdict.finding.expect("a finding");
    assert_eq!(finding.text, text);
    assert_eq!((verdict.state, finding.kind), (state, kind));
    let named: Vec<usize> = finding.culprits.0.into_iter().collect();
    assert_eq!(named, culprits);
}

fn in_all_reduce() -> Observed {
    Observed::waits("all_reduce", 41)
}

#[test]
fn a_blocked_rank_is_named_with_its_line() {
    let waits = in_all_reduce();
    check(
        &[waits.clone(), waits.clone(), Observed::blocked(), waits],
        State::NoProgress,
        Kind::RankBlocked,
        &[2],
        "Ranks 0, 1 and 3 wait in all_reduce (train.py:41). Rank 2 does not take part: it has been blocked in read for 40 s at \
         loader.py:17 (load_batch). Look at what it waits for there; c10d stacks 2 shows all of its calls.",
    );
}

#[test]
fn a_busy_rank_is_information() {
    let waits = in_all_reduce();
    let busy = Observed::busy("train.py:90 <module> > eval.py:88 evaluate");
    check(
        &[busy, waits.clone(), waits],
        State::WaitingForBusyRank,
        Kind::WaitsForBusyRank,
        &[0],
        "Ranks 1 and 2 wait in all_reduce (train.py:41). Rank 0 is computing (100 % of a CPU) at eval.py:88 (evaluate). If that takes too long, look there.",
    );
    let waits = in_all_reduce();
    let busy = verdict(&[Observed::busy(READ), waits.clone(), waits]);
    // The age is how long the other ranks have waited, because the launcher reports the job only after some time.
    assert_eq!(busy.finding.unwrap().age_ms, Some(40_000));
    let arrived = Observed::busy(READ).with(|it| it.sample.cpu_percent = 0);
    let arrived = verdict(&[arrived, in_all_reduce()]).finding.unwrap().text;
    assert!(
        arrived
            .contains("Rank 0 is at loader.py:17 (load_batch), and was at work a few seconds ago."),
        "{arrived}"
    );
    let saves = Observed::quiet("write", "train.py:90 <module> > save.py:5 save").with(|it| {
        it.sample.idle_ms = 0;
        it.sample.io_bytes_per_second = 1 << 20;
    });
    check(
        &[saves, in_all_reduce()],
        State::WaitingForBusyRank,
        Kind::WaitsForBusyRank,
        &[0],
        "Rank 1 waits in all_reduce (train.py:41). Rank 0 is reading or writing at save.py:5 (save). If that takes too long, look there.",
    );
}

#[test]
fn ranks_in_different_calls_are_shown_with_their_lines() {
    let (reduce, cast) = (in_all_reduce(), Observed::waits("broadcast", 57));
    check(
        &[reduce.clone(), cast.clone(), reduce.clone(), cast],
        State::NoProgress,
        Kind::CallsDiffer,
        &[],
        "Ranks 0 and 2 are in all_reduce (train.py:41), ranks 1 and 3 in broadcast (train.py:57). All ranks of a group have to \
         call the same collectives in the same order: compare what leads to these lines.",
    );
    let called_from = |line: u32| {
        let call = in_c10d("all_reduce", 41).replace("train.py:90", &format!("main.py:{line}"));
        Observed::quiet("futex", &call)
    };
    let text = verdict(&[called_from(3), called_from(4)])
        .finding
        .unwrap()
        .text;
    assert!(
        text.starts_with(
            "Rank 0 is in all_reduce (train.py:41, called from main.py:3), rank 1 in all_reduce (train.py:41, called from \
             main.py:4)."
        ),
        "{text}"
    );
}

#[test]
fn one_collective_at_one_line_points_to_the_network() {
    let node = node("vm", 2, &[(0, in_all_reduce()), (1, in_all_reduce())]);
    let mut evidence = Evidence::default();
    evidence.add(&node, 0, |_| true);
    let may_be = "All ranks are in all_reduce (train.py:41). If all of them use the same group, the network or the transport is the \
        likely cause";
    let advice = "Check the network between the hosts, for example with c10d doctor.";
    let flight = "In a job of c10d run --debug-server, c10d flight shows the group of each rank.";
    for (other_groups, expected) in [
        (
            Some(0),
            format!(
                "All ranks are in all_reduce (train.py:41), so the network or the transport is the likely cause. {advice}"
            ),
        ),
        (
            Some(3),
            format!(
                "{may_be}. The job has 3 groups besides the default group, so it is also possible that ranks wait for each other in \
                 different groups. {advice} {flight}"
            ),
        ),
        (
            None,
            format!(
                "{may_be}; otherwise they may wait for each other in different groups. {advice} {flight}"
            ),
        ),
    ] {
        evidence.other_groups = other_groups;
        let verdict = judge(&evidence).unwrap();
        assert_eq!(verdict.state, State::NoProgress);
        let finding = verdict.finding.unwrap();
        assert_eq!(
            (finding.kind, finding.text),
            (Kind::TransportStalled, expected)
        );
        assert!(finding.culprits.0.is_empty());
    }
    let slow = in_all_reduce().with(|it| it.sample.io_bytes_per_second = 1 << 20);
    let slow_verdict = verdict(&[slow.clone(), slow.clone()]);
    assert_eq!(
        (slow_verdict.state, slow_verdict.finding),
        (State::Running, None)
    );
    // A thread that reports metrics.
    let reports = verdict(&[slow, in_all_reduce()]);
    assert_eq!(reports.state, State::NoProgress);
}

#[test]
fn the_state_of_a_process_is_told_with_its_line() {
    let at = |state: char| Observed::blocked().with(|it| it.sample.state = Some(state));
    let table = [
        (at('T'), "it is stopped (state T of pid 4711) at loader.py:17 (load_batch). Continue it with kill -CONT 4711."),
        (
            at('t'),
            "it is stopped by a debugger (state t of pid 4711) at loader.py:17 (load_batch). Continue it in its debugger, or \
             detach the debugger.",
        ),
        (
            at('D'),
            "it has been blocked in read for 40 s in state D at loader.py:17 (load_batch). Look for a file system, a disk or a \
             driver that does not answer.",
        ),
        (
            Observed::quiet(
                "read",
                "train.py:12 main > python3.11/bdb.py:90 trace_dispatch > python3.11/pdb.py:290 user_line > \
                 python3.11/pdb.py:380 Pdb.interaction > python3.11/cmd.py:126 Cmd.cmdloop",
            ),
            "it is in a debugger at train.py:12 (main). Continue it at its prompt, or remove the breakpoint.",
        ),
        (
            Observed::quiet(
                "poll",
                "train.py:30 main > torch/utils/data/dataloader.py:630 __next__ > torch/utils/data/dataloader.py:1132 \
                 _MultiProcessingDataLoaderIter._try_get_data > python3.11/multiprocessing/queues.py:113 get",
            )
            .with(|it| it.sample.dead_children = vec![123]),
            "it has waited for its DataLoader for 40 s at train.py:30 (main), and its DataLoader worker (pid 123) has exited. Look \
             for the reason in the kernel's log, for example for the line of the out-of-memory killer.",
        ),
        (
            Observed::quiet("futex", "train.py:30 main > python3.11/queue.py:171 get > python3.11/threading.py:327 wait"),
            "it has waited for a lock, a thread or a process for 40 s at train.py:30 (main). c10d stacks 2 shows all of its threads; \
             one of them may hold the lock.",
        ),
        (
            Observed::quiet("futex", "train.py:30 main").thread("train.py:7 flush"),
            "it has been blocked in futex for 40 s at train.py:30 (main). Its threads, the shortest stack first, are at \
             train.py:30 (main) and train.py:7 (flush). c10d stacks 2 shows all of its threads; one of them may hold the lock.",
        ),
        (
            Observed::left(),
            "it exited with code 0 50 s ago. All ranks need the same number of steps: compare the sizes of their data, or use \
             Join of PyTorch.",
        ),
    ];
    for (rank, expected) in table {
        let start = "Ranks 0 and 1 wait in all_reduce (train.py:41). Rank 2 does not take part: ";
        check(
            &[in_all_reduce(), in_all_reduce(), rank],
            State::NoProgress,
            Kind::RankBlocked,
            &[2],
            &format!("{start}{expected}"),
        );
    }
}

/// A wait for the work of an asynchronous collective shows only the user's line.
#[test]
fn a_rank_at_a_line_of_its_own_is_not_blamed() {
    let at_work_wait = Observed::quiet("futex", "train.py:30 step");
    check(
        &[at_work_wait.clone(), in_all_reduce(), in_all_reduce()],
        State::NoProgress,
        Kind::CallsDiffer,
        &[],
        "Ranks 1 and 2 are in all_reduce (train.py:41), rank 0 has been blocked in futex for 40 s at train.py:30 (step). All \
         ranks of a group have to call the same collectives in the same order: compare what leads to these lines.",
    );
    let elsewhere = Observed::quiet("futex", "train.py:50 save");
    check(
        &[at_work_wait.clone(), at_work_wait.clone(), elsewhere],
        State::NoProgress,
        Kind::AllBlocked,
        &[],
        "All ranks are blocked: ranks 0 and 1 at train.py:30 (step), rank 2 at train.py:50 (save). c10d stacks --all shows the \
         evidence about all ranks.",
    );
    check(
        &[at_work_wait.clone(), at_work_wait, Observed::blocked()],
        State::NoProgress,
        Kind::RankBlocked,
        &[2],
        "Ranks 0 and 1 have been blocked in futex for 40 s at train.py:30 (step). Rank 2 does not take part: it has been blocked \
         in read for 40 s at loader.py:17 (load_batch). Look at what it waits for there; c10d stacks 2 shows \
         all of its calls.",
    );
}

/// A server without requests is an example.
#[test]
fn ranks_that_all_wait_for_events_are_no_alarm() {
    let serves = Observed::quiet("epoll_wait", "serve.py:30 main");
    let sleeps = Observed::quiet("clock_nanosleep", "serve.py:50 main");
    check(
        &[serves.clone(), sleeps],
        State::Running,
        Kind::AllBlocked,
        &[],
        "All ranks are blocked: rank 0 at serve.py:30 (main), rank 1 at serve.py:50 (main). No rank has made progress for 40 s so \
         far. c10d stacks --all shows the evidence about all ranks.",
    );
    let reads = verdict(&[serves.clone(), Observed::blocked()]);
    assert_eq!(reads.state, State::NoProgress);
    let pauses = Observed::quiet("clock_nanosleep", "train.py:40 <module>")
        .with(|it| it.sample.blocked_ms = Some(800));
    check(
        &[pauses.clone(), pauses.clone()],
        State::Running,
        Kind::AllBlocked,
        &[],
        "All ranks pause, and wake up again and again: ranks 0 and 1 at train.py:40 (<module>). The job makes progress if its \
         steps have such a pause. Otherwise, look at what these lines wait for.",
    );
    let serves = verdict(&[pauses, serves]).finding;
    assert!(serves.is_some_and(|it| it.text.starts_with("All ranks are blocked")));
    let program = Observed::blocked().with(|it| {
        it.stacks = None;
        it.stacks_before = None;
        it.sample.command_line = Some("serve --port 80".to_owned());
    });
    let programs = verdict(&[program.clone(), program]);
    assert_eq!((programs.state, programs.finding), (State::Running, None));
}

#[test]
fn an_alarm_needs_time_and_two_samples_that_agree() {
    let early = |observed: Observed| {
        observed.with(|it| {
            it.sample.quiet_ms = 6_000;
            it.sample.idle_ms = 6_000;
        })
    };
    check(
        &[early(in_all_reduce()), early(Observed::blocked())],
        State::Running,
        Kind::RankBlocked,
        &[1],
        "Rank 0 waits in all_reduce (train.py:41). Rank 1 does not take part: it has been blocked in read at loader.py:17 \
         (load_batch). No rank has made progress for 6 s so far. Look at what it waits for there; c10d stacks 1 \
         shows all of its calls.",
    );
    let once = Observed::blocked().with(|it| it.stacks_before = None);
    let once = verdict(&[in_all_reduce(), once]);
    assert_eq!(once.state, State::Running);
    let finding = once.finding.unwrap();
    assert!(finding.culprits.0.is_empty() && finding.text.contains("for 40 s so far"));
    let moved =
        Observed::blocked().with(|it| it.stacks_before = Some(vec![READ.replace("17", "18")]));
    let moved = verdict(&[in_all_reduce(), moved]);
    assert_eq!(moved.state, State::WaitingForBusyRank);
}

#[test]
fn ranks_that_are_not_observed_are_not_blamed_and_nor_are_those_that_wait() {
    let ranks = [(0, in_all_reduce()), (1, in_all_reduce())];
    let first = node("node0", 4, &ranks);
    let second = node("node7", 4, &[(3, in_all_reduce())]);
    let mut evidence = Evidence::default();
    evidence.add(&first, 0, |_| true);
    evidence.add(&second, 60_000, |_| true);
    let other = RankEvidence::new(Seen::NotLaunched, Some("node1".to_owned()));
    evidence.ranks.insert(2, other);
    let verdict = judge(&evidence).unwrap();
    assert_eq!(verdict.state, State::PartlyObserved);
    let finding = verdict.finding.unwrap();
    assert!(finding.culprits.0.is_empty());
    assert_eq!(
        finding.text,
        "Ranks 0 and 1 wait in all_reduce (train.py:41). Rank 3 on node7: the last observation of its launcher is 60 s old. Rank 2 \
         runs under torchrun on node1: no stack. To see where ranks of torchrun are, run py-spy dump on their node, or start the node \
         with c10d run."
    );
}

#[test]
fn a_waiting_thread_may_use_the_cpu() {
    let spins = Observed::busy(&in_c10d("barrier", 41));
    let blocked = verdict(&[spins.clone(), Observed::blocked()]);
    assert_eq!(blocked.state, State::NoProgress);
    // Ranks that call barriers all the time look the same, so this is not an alarm.
    let all = verdict(&[spins.clone(), spins.clone()]);
    assert_eq!(all.state, State::Running);
    // A rank that has just used the CPU may have arrived in the call a moment ago.
    let busy = verdict(&[spins.with(|it| it.sample.idle_ms = 0), Observed::busy(READ)]);
    assert_eq!((busy.state, busy.finding), (State::Running, None));
}

#[test]
fn the_world_beyond_a_launcher_is_out_of_its_reach() {
    let ranks = [(0, in_all_reduce()), (1, Observed::blocked())];
    let report = local_hang_report(&node("vm", 4, &ranks)).unwrap();
    assert!(!report.is_stuck);
    assert_eq!(report.state, State::PartlyObserved);
    assert_eq!(
        report.headline,
        "Rank 0 waits in all_reduce (train.py:41). Rank 1 does not take part: it has been blocked in read for 40 s at \
         loader.py:17 (load_batch). Ranks 2 and 3 run on other nodes, whose observations do not arrive here. Look at what it waits for there; c10d stacks 1 shows all of its calls."
    );
    assert!(local_hang_report(&node("vm", 2, &ranks)).unwrap().is_stuck);
    let waiting = node("vm", 4, &[(0, in_all_reduce()), (1, in_all_reduce())]);
    assert_eq!(
        local_hang_report(&waiting).unwrap().headline,
        "Ranks 0 and 1 wait in all_reduce (train.py:41). Ranks 2 and 3 run on other nodes, whose observations do not arrive \
         here. The logs of the launchers on their nodes show where these ranks are."
    );
}

/// Each row has a rule of the table, and ranks to which this rule is the first that applies.
#[test]
fn each_rule_decides_about_a_job() {
    let waits = in_all_reduce;
    let spins = || Observed::busy(&in_c10d("barrier", 41));
    let failed = Observed::left().with(|it| it.end.as_mut().unwrap().exit_code = Some(1));
    let locked = Observed::quiet("futex", "train.py:30 main").thread("train.py:7 flush");
    let sends = || waits().with(|it| it.sample.io_bytes_per_second = 1 << 20);
    let table = [
        (Rule::NoEvidence, vec![waits(), failed]),
        (Rule::WaitsForBusy, vec![waits(), Observed::busy(READ)]),
        (
            Rule::AtWork,
            vec![Observed::busy(READ), Observed::busy(READ)],
        ),
        (Rule::PartlyObserved, vec![waits()]),
        (Rule::Spins, vec![spins(), waits()]),
        (Rule::Transfers, vec![sends(), sends()]),
        (Rule::AllInOneCall, vec![waits(), waits()]),
        (Rule::Absent, vec![waits(), Observed::blocked()]),
        (Rule::Locked, vec![waits(), waits(), locked]),
        (
            Rule::CallsDiffer,
            vec![waits(), Observed::waits("recv", 50)],
        ),
        (
            Rule::AllBlocked,
            vec![Observed::blocked(), Observed::blocked()],
        ),
    ];
    assert_eq!(
        table.each_ref().map(|(rule, _)| *rule),
        RULES.map(|(rule, _)| rule)
    );
    for (rule, ranks) in table {
        let ranks: Vec<_> = ranks.into_iter().enumerate().collect();
        let node = node("vm", 3, &ranks);
        let mut evidence = Evidence::default();
        evidence.add(&node, 0, |_| true);
        if rule == Rule::PartlyObserved {
            let other = RankEvidence::new(Seen::NotLaunched, None);
            evidence.ranks.insert(2, other);
        }
        let doings = doings(&evidence);
        assert_eq!(Facts::new(&doings, &evidence).rule(), rule);
    }
}

#[test]
fn a_rank_without_a_stack_is_not_blamed() {
    let unreadable = Observed::quiet("futex", READ).with(|it| {
        it.stacks = None;
        it.stacks_before = None;
        it.sample.error = Some("ptrace_scope is 3: set it to 1".to_owned());
    });
    check(
        &[in_all_reduce(), in_all_reduce(), unreadable],
        State::NoProgress,
        Kind::CallsDiffer,
        &[],
        "Ranks 0 and 1 are in all_reduce (train.py:41), rank 2 has made no progress for 40 s, and its stack cannot be read: \
         ptrace_scope is 3: set it to 1. c10d stacks --all shows the evidence about all ranks.",
    );
}

/// Rank 1 has been blocked for longer than rank 0 has waited for it.
#[test]
fn an_explanation_has_one_age() {
    let waits = |seconds: u64| in_all_reduce().with(|it| it.sample.quiet_ms = seconds * 1000);
    for (seconds, expected) in [
        (
            31,
            "been blocked in read for 31 s at loader.py:17 (load_batch). Look",
        ),
        (
            8,
            "been blocked in read at loader.py:17 (load_batch). No rank has made progress for 8 s so far. Look",
        ),
    ] {
        let found = verdict(&[waits(seconds), Observed::blocked()]);
        let text = found.finding.as_ref().map(|it| it.text.as_str());
        assert!(text.unwrap().contains(expected), "{text:?}");
        assert!(!found.doing[&1].contains("40 s"), "{}", found.doing[&1]);
        assert_eq!(found.finding.unwrap().age_ms, Some(seconds * 1000));
    }
}

#[test]
fn ranks_that_have_moved_meanwhile_are_no_alarm() {
    let in_a_later_step = in_all_reduce().with(|it| it.sample.blocked_ms = Some(8_000));
    let found = verdict(&[in_a_later_step, in_all_reduce(), Observed::blocked()]);
    assert_eq!(found.state, State::Running);
    let finding = found.finding.unwrap();
    assert!(finding.text.contains("for 8 s so far"), "{}", finding.text);
    assert_eq!(finding.age_ms, Some(8_000));
}

/// One call that writes a large tensor lasts for minutes, in which the thread runs again and again.
#[test]
fn a_blocked_thread_that_has_run_has_made_progress() {
    let runs = |it: &mut Observed| it.sample.blocked_ms = Some(100);
    let saves = Observed::quiet("write", "train.py:90 <module> > save.py:5 save").with(runs);
    let on_disk = saves.clone().with(|it| it.sample.state = Some('D'));
    for rank in [saves, on_disk] {
        let found = verdict(&[in_all_reduce(), rank]);
        assert_eq!(found.state, State::Running, "{found:?}");
    }
}

#[test]
fn branches_around_a_slow_collective_are_no_alarm() {
    let sends = |line: u32| {
        Observed::waits("broadcast", line).with(|it| {
            it.sample.idle_ms = 0;
            it.sample.io_bytes_per_second = 1 << 27;
        })
    };
    let found = verdict(&[sends(10), sends(12), sends(12)]);
    assert_eq!((found.state, found.finding), (State::Running, None));
    let pair = |function: &str| sends(0).with(|it| it.stacks = Some(vec![in_c10d(function, 20)]));
    let pair = [pair("send"), pair("recv")]
        .map(|rank| rank.with(|it| it.stacks_before.clone_from(&it.stacks)));
    let found = verdict(&pair);
    assert_eq!((found.state, found.finding), (State::Running, None));
}

/// The functions of `torch.distributed.rpc` run on other threads than the main thread, and so does the backward pass.
#[test]
fn a_call_that_other_threads_compute_is_no_wait() {
    let at_work = |main: &str| {
        Observed::quiet("futex", main).with(|it| {
            it.sample.idle_ms = 0;
            it.sample.others_cpu_percent = 100;
        })
    };
    let rpc = |line: u32, function: &str| {
        format!(
            "train.py:{line} main > torch/distributed/rpc/api.py:80 wrapper > torch/distributed/rpc/api.py:700 {function}"
        )
    };
    let caller = Observed::quiet("futex", &rpc(8, "rpc_sync"));
    let found = verdict(&[caller.clone(), at_work(&rpc(30, "shutdown"))]);
    assert_eq!(found.state, State::WaitingForBusyRank);
    let backward = "train.py:41 step > torch/autograd/graph.py:825 _engine_run_backward";
    let found = verdict(&[in_all_reduce(), at_work(backward)]);
    assert_eq!(found.state, State::WaitingForBusyRank);
    let stalled = Observed::quiet("futex", &rpc(30, "shutdown"));
    assert_eq!(verdict(&[caller, stalled]).state, State::NoProgress);
}

/// The interpreter of rank 1 lies on a file system that does not answer, so that there is no stack.
#[test]
fn a_rank_in_state_d_needs_no_stack() {
    let dead = Observed::blocked().with(|it| {
        it.stacks = None;
        it.stacks_before = None;
        it.sample.state = Some('D');
        it.sample.error = Some("the file system of its interpreter does not answer".to_owned());
    });
    check(
        &[in_all_reduce(), dead],
        State::NoProgress,
        Kind::RankBlocked,
        &[1],
        "Rank 0 waits in all_reduce (train.py:41). Rank 1 does not take part: it has been blocked in read for 40 s in state D, and \
         its stack cannot be read: the file system of its interpreter does not answer. Look for a file system, a disk or a \
         driver that does not answer.",
    );
}

/// Rank 1 polls a file that rank 0, whose threads are deadlocked, should write.
#[test]
fn a_rank_that_sleeps_is_not_blamed_for_one_whose_wait_is_not_visible() {
    let deadlocked = Observed::quiet("futex", "train.py:30 main").thread("train.py:7 flush");
    let sleeps = Observed::quiet("clock_nanosleep", "train.py:50 until_there");
    let ranks = [deadlocked, sleeps, in_all_reduce(), in_all_reduce()];
    let found = verdict(&ranks).finding.unwrap();
    assert!(found.culprits.0.is_empty(), "{}", found.text);
    assert!(
        found.text.contains("Rank 0 has been blocked in futex"),
        "{}",
        found.text
    );
    // A timed wait that was interrupted by SIGSTOP and SIGCONT.
    let continued = Observed::quiet("restart_syscall", "train.py:30 step");
    let found = verdict(&[continued, in_all_reduce(), Observed::blocked()]);
    let named: Vec<usize> = found.finding.unwrap().culprits.0.into_iter().collect();
    assert_eq!(named, [2]);
}

#[test]
fn servers_whose_main_threads_wait_for_others_are_no_alarm() {
    let queue = "serve.py:30 main > python3.11/queue.py:171 get > python3.11/threading.py:327 wait";
    let serves = Observed::quiet("futex", queue).thread("serve.py:7 handle");
    let idle = Observed::quiet("epoll_wait", "serve.py:30 main");
    for ranks in [[serves.clone(), serves], [idle, Observed::left()]] {
        assert_eq!(verdict(&ranks).state, State::Running);
    }
}

#[test]
fn the_named_rank_is_never_left_out() {
    let long = "a_very_long_name_of_a_module_or_a_function_".repeat(4);
    let at = |rank: usize| {
        let call = in_c10d("all_reduce", 41).replace("train.py", &format!("{rank}{long}.py"));
        Observed::quiet("futex", &call)
    };
    let mut ranks: Vec<Observed> = (0..9).map(at).collect();
    ranks.push(Observed::blocked());
    let text = verdict(&ranks).finding.unwrap().text;
    assert!(text.contains("Rank 9 does not take part"), "{text}");
    assert!(text.len() <= 800, "{} bytes: {text}", text.len());
    ranks.pop();
    let text = verdict(&ranks).finding.unwrap().text;
    assert!(text.len() <= 900, "{} bytes: {text}", text.len());
}

#[test]
fn a_partly_observed_job_keeps_its_explanation() {
    for length in 1..120 {
        let node = node("vm", 9, &[(0, in_all_reduce()), (1, Observed::blocked())]);
        let mut evidence = Evidence::default();
        evidence.add(&node, 0, |_| true);
        for rank in 2..9 {
            let host = format!("{rank}{}", "x".repeat(length));
            let other = RankEvidence::new(Seen::NotLaunched, Some(host));
            evidence.ranks.insert(rank, other);
        }
        let text = judge(&evidence).unwrap().finding.unwrap().text;
        let start = "Rank 0 waits in all_reduce (train.py:41). Rank 1 does not take part";
        assert!(text.starts_with(start), "{text}");
    }
}

#[test]
fn the_named_rank_comes_first_if_there_is_no_room() {
    let long = "a_very_long_name_of_a_function_".repeat(4);
    let at = |line: u32| Observed::quiet("futex", &format!("train.py:{line} {long}"));
    let mut ranks: Vec<Observed> = (0..4).flat_map(|group| [at(group), at(group)]).collect();
    ranks.push(at(0));
    ranks.push(Observed::blocked());
    let text = verdict(&ranks).finding.unwrap().text;
    assert!(text.contains("Rank 9 does not take part"), "{text}");
}
