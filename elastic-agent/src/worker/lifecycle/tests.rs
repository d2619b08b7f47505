//! Tests the stop of groups in virtual time.

use proptest::prelude::*;

use super::*;

const FAILED: ExitKind = ExitKind::Code(1);
const GRACE: Duration = Duration::from_secs(30);

fn killed_by(signal: Signal) -> ExitKind {
    ExitKind::signal(signal.as_raw())
}

/// A group, the time, and the processes in the groups of exited workers.
struct Story {
    lifecycle: Lifecycle,
    now: Instant,
    leftover: Leftover,
}

impl Story {
    /// Workers with local ranks from 0 and process ids from 100, whose groups get signals.
    fn of(workers: u32) -> Self {
        Self::with_target(workers, SignalTarget::Group)
    }

    fn with_target(workers: u32, target: SignalTarget) -> Self {
        Self {
            lifecycle: Lifecycle::new((0_usize..).zip(100..100 + workers), target),
            now: Instant::now(),
            leftover: Leftover::Nothing,
        }
    }

    /// Returns the effects of a step, without its log. Questions are answered.
    fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut all = self.lifecycle.step(self.now, input);
        while all.last() == Some(&Effect::FindLeftover) {
            all.pop();
            let answer = Input::Leftover(self.leftover);
            all.extend(self.lifecycle.step(self.now, answer));
        }
        all.retain(|effect| !matches!(effect, Effect::Log(..)));
        all
    }

    fn exit(&mut self, worker: usize, exit: ExitKind) -> Vec<Effect> {
        let at = SystemTime::UNIX_EPOCH;
        self.step(Input::Exited { worker, exit, at })
    }

    fn stop(&mut self, signal: Signal, grace: impl Into<Option<Duration>>) -> Vec<Effect> {
        let grace = grace.into();
        self.step(Input::Stop { signal, grace })
    }

    /// Lets time pass until something is to do; returns what it is, and how much time has passed.
    fn tick(&mut self) -> (Duration, Vec<Effect>) {
        let deadline = self.lifecycle.deadline().instant().unwrap();
        let passed = deadline.saturating_duration_since(self.now);
        self.now = self.now.max(deadline);
        (passed, self.step(Input::Tick))
    }

    /// Returns the time until the next effect other than a log, and this effect.
    fn wait(&mut self) -> (Duration, Vec<Effect>) {
        let mut waited = Duration::ZERO;
        loop {
            let (passed, effects) = self.tick();
            waited += passed;
            if !effects.is_empty() || self.lifecycle.is_over() {
                return (waited, effects);
            }
        }
    }

    fn killed(&self) -> Vec<usize> {
        self.lifecycle.killed(false)
    }
}

#[test]
fn running_workers_get_the_signal_and_what_others_left_behind_gets_sigterm() {
    let mut story = Story::of(3);
    assert_eq!(story.exit(1, FAILED), []);
    let expected = [
        Effect::Signal(0, Signal::USR1),
        Effect::Signal(1, Signal::TERM),
        Effect::Signal(2, Signal::USR1),
    ];
    assert_eq!(story.step(Input::SendStop(Signal::USR1)), expected);
    // The stop itself does not signal again.
    assert_eq!(story.stop(Signal::INT, GRACE), []);
    // The worker's children may have ignored the signal.
    let told = [Effect::Signal(0, Signal::TERM)];
    assert_eq!(story.exit(0, ExitKind::Code(0)), told);
    let told = [Effect::Signal(2, Signal::TERM), Effect::EndGuardian];
    assert_eq!(story.exit(2, FAILED), told);
    assert!(story.lifecycle.is_over());
    assert_eq!(story.killed(), Vec::<usize>::new());
    let exits = story.lifecycle.exits();
    let exits: Vec<_> = exits
        .map(|(worker, exit)| (worker, exit.was_stopped))
        .collect();
    assert_eq!(exits, [(1, false), (0, true), (2, true)]);
}

#[test]
fn a_worker_alone_gets_the_signal_and_the_others_of_its_group_get_the_same_one_when_it_exits() {
    for signal in [Signal::TERM, Signal::INT, Signal::USR1] {
        let mut story = Story::with_target(3, SignalTarget::Worker);
        assert_eq!(story.exit(2, FAILED), []);
        let expected = [
            Effect::SignalAlone(0, signal),
            Effect::SignalAlone(1, signal),
            Effect::Signal(2, Signal::TERM),
        ];
        assert_eq!(story.stop(signal, GRACE), expected);
        story.leftover = Leftover::Processes;
        let told = [Effect::Signal(1, signal)];
        assert_eq!(story.exit(1, ExitKind::Code(0)), told);
        assert_eq!(story.exit(0, FAILED), [Effect::Signal(0, signal)]);
        // Workers that ignore the signal are killed when the grace period ends, and not earlier.
        let killed = (0..3).map(|worker| Effect::Signal(worker, Signal::KILL));
        let killed: Vec<_> = killed.chain([Effect::EndGuardian]).collect();
        assert_eq!(story.wait(), (GRACE, killed));
    }
}

#[test]
fn a_worker_whose_group_got_the_signal_leaves_processes_that_do_not_get_it_twice() {
    let mut story = Story::of(1);
    story.stop(Signal::TERM, GRACE);
    assert_eq!(story.exit(0, FAILED), [Effect::EndGuardian]);
}

#[test]
fn a_group_that_has_ended_is_over_at_once() {
    let mut story = Story::of(2);
    story.exit(1, FAILED);
    story.exit(0, FAILED);
    let expected = [
        Effect::Signal(0, Signal::TERM),
        Effect::Signal(1, Signal::TERM),
        Effect::EndGuardian,
    ];
    assert_eq!(story.stop(Signal::TERM, GRACE), expected);
    assert!(story.lifecycle.is_over());
}

#[test]
fn what_runs_after_the_grace_period_is_killed() {
    let mut story = Story::of(2);
    story.stop(Signal::TERM, GRACE);
    story.exit(0, FAILED);
    let expected = vec![
        Effect::Signal(0, Signal::KILL),
        Effect::Signal(1, Signal::KILL),
        Effect::EndGuardian,
    ];
    assert_eq!(story.wait(), (GRACE, expected));
    assert_eq!(
        story.exit(1, killed_by(Signal::KILL)),
        [Effect::EndGuardian]
    );
    assert!(story.lifecycle.is_over());
    assert_eq!(story.killed(), [1]);
}

#[test]
fn processes_that_workers_left_behind_are_awaited_and_killed() {
    let mut story = Story::of(1);
    story.leftover = Leftover::Processes;
    story.exit(0, ExitKind::Code(0));
    story.stop(Signal::TERM, GRACE);
    assert!(!story.lifecycle.is_over());
    // Often at first, then rarely.
    assert_eq!(story.tick().0, CHECK_PAUSE_MIN);
    assert_eq!(story.tick().0, CHECK_PAUSE_MIN * 2);
    let (_, effects) = story.wait();
    let expected = [Effect::Signal(0, Signal::KILL), Effect::EndGuardian];
    assert_eq!(effects, expected);
    story.leftover = Leftover::Nothing;
    let (waited, effects) = story.tick();
    assert_eq!(
        (waited, effects),
        (CHECK_PAUSE_MIN, vec![Effect::EndGuardian])
    );
    assert!(story.lifecycle.is_over());
    // The worker had exited on its own.
    assert_eq!(story.killed(), Vec::<usize>::new());
}

#[test]
fn processes_that_cannot_be_listed_are_killed_and_not_awaited() {
    let mut story = Story::of(1);
    story.leftover = Leftover::Unknown;
    story.stop(Signal::TERM, None);
    let expected = [Effect::Signal(0, Signal::KILL), Effect::EndGuardian];
    assert_eq!(story.exit(0, FAILED), expected);
    assert!(story.lifecycle.is_over());
}

#[test]
fn killed_processes_are_abandoned_after_as_long_as_the_grace_period_or_ten_seconds() {
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    for (grace, waits) in [
        (Duration::ZERO, KILL_WAIT_MIN),
        (second, KILL_WAIT_MIN),
        (minute, minute),
    ] {
        let mut story = Story::of(1);
        story.stop(Signal::TERM, grace);
        assert_eq!(story.wait().0, grace);
        assert_eq!(story.wait(), (waits, vec![Effect::ReportUnkillable]));
        assert!(story.lifecycle.is_over());
        assert_eq!(story.lifecycle.exit(0), None);
        assert_eq!(story.killed(), [0]);
    }
}

#[test]
fn an_escalation_ends_the_grace_period_and_shortens_the_wait_for_killed_processes() {
    for grace in [None, Some(GRACE * 4)] {
        let mut story = Story::of(1);
        story.step(Input::Stop {
            signal: Signal::TERM,
            grace,
        });
        let expected = [Effect::Signal(0, Signal::KILL), Effect::EndGuardian];
        assert_eq!(story.step(Input::Escalated), expected);
        assert_eq!(story.step(Input::Escalated), []);
        assert_eq!(story.wait().0, KILL_WAIT_MIN);
    }
}

#[test]
fn a_worker_that_the_switch_kills_during_a_stop_was_killed() {
    for (is_stopped, is_escalated, exit, killed) in [
        (true, true, killed_by(Signal::KILL), &[0][..]),
        (true, false, killed_by(Signal::KILL), &[]),
        (true, true, FAILED, &[]),
        (false, true, killed_by(Signal::KILL), &[]),
    ] {
        let mut story = Story::of(1);
        if is_stopped {
            story.step(Input::SendStop(Signal::TERM));
        }
        story.exit(0, exit);
        story.stop(Signal::TERM, GRACE);
        assert_eq!(story.lifecycle.killed(is_escalated), killed, "{exit:?}");
    }
}

#[test]
fn without_a_grace_period_everything_is_killed_at_once() {
    let mut story = Story::of(2);
    story.exit(0, FAILED);
    let expected = [
        Effect::Signal(0, Signal::KILL),
        Effect::Signal(1, Signal::KILL),
        Effect::EndGuardian,
    ];
    assert_eq!(story.step(Input::Kill), expected);
    assert_eq!(story.step(Input::Kill), []);
    assert_eq!(story.wait().0, KILL_WAIT_MIN);
}

#[test]
fn a_worker_that_other_code_has_reaped_gets_no_signal() {
    let mut story = Story::of(2);
    assert_eq!(story.exit(1, ExitKind::Unknown), [Effect::Release(1)]);
    assert_eq!(
        story.stop(Signal::INT, GRACE),
        [Effect::Signal(0, Signal::INT)]
    );
    // The same holds for workers whose exits are no longer reported.
    let at = SystemTime::UNIX_EPOCH;
    let expected = [Effect::Release(0), Effect::EndGuardian];
    assert_eq!(story.step(Input::ExitsLost { at }), expected);
    assert!(story.lifecycle.is_over());
    assert_eq!(story.lifecycle.exits().count(), 2);
}

#[test]
fn a_stop_that_takes_long_says_what_it_waits_for() {
    let mut story = Story::of(2);
    story
        .lifecycle
        .step(story.now, Input::SendStop(Signal::INT));
    story.exit(0, FAILED);
    story.stop(Signal::INT, GRACE);
    let mut texts = Vec::new();
    for seconds in [2, 5] {
        let deadline = story.lifecycle.deadline().instant().unwrap();
        assert_eq!(deadline - story.now, Duration::from_secs(seconds));
        story.now = deadline;
        texts.extend(story.lifecycle.step(story.now, Input::Tick));
    }
    let text = |seconds| {
        let text = format!(
            "still waiting for local rank 1 (pid 101) to exit after SIGINT; SIGKILL in {seconds} s"
        );
        Effect::Log(Level::Warn, text)
    };
    assert_eq!(texts, [text(28), text(23)]);
}

fn any_input() -> impl Strategy<Value = Input> {
    let exits = prop_oneof![
        Just(ExitKind::Code(0)),
        Just(FAILED),
        Just(killed_by(Signal::KILL)),
        Just(ExitKind::Unknown),
    ];
    let at = SystemTime::UNIX_EPOCH;
    let exited = (0_usize..3, exits);
    let signals = prop_oneof![Just(Signal::TERM), Just(Signal::INT)];
    let graces = proptest::option::of((0_u64..100).prop_map(Duration::from_secs));
    prop_oneof![
        4 => exited.prop_map(move |(worker, exit)| Input::Exited { worker, exit, at }),
        1 => Just(Input::ExitsLost { at }),
        1 => signals.clone().prop_map(Input::SendStop),
        2 => (signals, graces).prop_map(|(signal, grace)| Input::Stop { signal, grace }),
        1 => Just(Input::Escalated),
        1 => Just(Input::Kill),
        4 => Just(Input::Tick),
    ]
}

proptest! {
    /// Checks for any order of events that no signal is sent to a group that may belong to another process, that no
    /// exit is lost or counted twice, and that after a kill the group is over within its deadlines.
    #[test]
    fn each_group_ends(
        inputs in proptest::collection::vec((any_input(), 0_u64..20, any::<bool>()), 0..30),
        is_alone in any::<bool>(),
    ) {
        let target = if is_alone { SignalTarget::Worker } else { SignalTarget::Group };
        let mut story = Story::with_target(3, target);
        let last = [(Input::Kill, 0, true)];
        let mut exited = std::collections::BTreeMap::new();
        for (input, seconds, is_anything_left) in inputs.into_iter().chain(last) {
            story.now += Duration::from_secs(seconds);
            if is_anything_left {
                story.leftover = Leftover::Processes;
            }
            for effect in story.step(input) {
                if let Effect::Signal(worker, _) | Effect::SignalAlone(worker, _) = effect {
                    prop_assert!(exited.get(&worker) != Some(&ExitKind::Unknown), "{effect:?}");
                }
            }
            match input {
                Input::Exited { worker, exit, .. } => {
                    exited.entry(worker).or_insert(exit);
                }
                Input::ExitsLost { .. } => {
                    for worker in 0..3 {
                        exited.entry(worker).or_insert(ExitKind::Unknown);
                    }
                }
                _ => {}
            }
            let seen = story.lifecycle.exits();
            let seen: std::collections::BTreeMap<_, _> =
                seen.map(|(worker, exit)| (worker, exit.kind)).collect();
            prop_assert_eq!(&seen, &exited);
            prop_assert_eq!(story.lifecycle.running(), 3 - seen.len());
        }
        let killed_at = story.now;
        while !story.lifecycle.is_over() {
            story.tick();
        }
        prop_assert!(story.now - killed_at <= Duration::from_secs(100));
    }
}
