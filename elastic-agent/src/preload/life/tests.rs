//! Lives of a template, in virtual time.

use proptest::prelude::*;

use super::*;

const WORKERS: u32 = 100;

fn ready() -> Input {
    Input::Reply(Reply::Ready(Vec::new()))
}

fn adopted() -> Input {
    Input::Reply(Reply::Adopted)
}

fn changed() -> Input {
    Input::Reply(Reply::Changed("/a.py".to_owned()))
}

/// A life, and the effects of its steps.
struct Story {
    life: Life,
    now: Instant,
}

impl Story {
    fn new(has_standbys: bool) -> Self {
        let now = Instant::now();
        Self {
            life: Life::new(WORKERS, has_standbys, now),
            now,
        }
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        self.life.step(self.now, input)
    }

    /// Lets time pass until the deadline.
    fn late(&mut self) -> Vec<Effect> {
        self.now = self.life.deadline().unwrap();
        self.step(Input::Tick)
    }
}

fn declined(effects: &[Effect]) -> &str {
    let mut texts = effects.iter().filter_map(|effect| match effect {
        Effect::Decline(text) => Some(text.as_str()),
        _ => None,
    });
    texts.next().unwrap()
}

#[test]
fn a_start_waits_for_the_imports_and_gets_workers() {
    let mut story = Story::new(false);
    assert_eq!(story.step(Input::Asked), []);
    assert_eq!(story.step(ready()), [Effect::Fork]);
    assert_eq!(story.step(Input::Reply(Reply::Forked(vec![7]))), []);
    assert_eq!(story.step(adopted()), [Effect::Give]);
    assert_eq!(story.step(Input::Asked), [Effect::Fork]);
    assert_eq!(story.step(adopted()), [Effect::Give]);
    assert_eq!(story.life.deadline(), None);
}

#[test]
fn standbys_are_forked_ahead_and_only_given_if_no_source_has_changed() {
    let mut story = Story::new(true);
    assert_eq!(story.step(ready()), [Effect::Fork]);
    assert_eq!(story.step(adopted()), []);
    assert_eq!(story.step(Input::Asked), [Effect::Check]);
    assert_eq!(story.step(Input::Reply(Reply::Fresh)), [Effect::Give]);
    assert_eq!(story.late(), [Effect::Fork]);
    assert_eq!(story.step(adopted()), []);
    assert_eq!(story.step(Input::Asked), [Effect::Check]);
    let effects = story.step(changed());
    assert_eq!(effects[1..], [Effect::Kill, Effect::Discard, Effect::Spawn]);
    // The start still waits.
    assert_eq!(story.step(ready()), [Effect::Fork]);
    assert_eq!(story.step(adopted()), [Effect::Give]);
}

#[test]
fn a_start_that_comes_while_standbys_are_forked_gets_them() {
    let mut story = Story::new(true);
    story.step(ready());
    assert_eq!(story.step(Input::Asked), []);
    assert_eq!(story.step(adopted()), [Effect::Give]);
    // A start that is requested before the next fork does not wait for it.
    assert_eq!(story.step(Input::Asked), [Effect::Fork]);
}

#[test]
fn standbys_that_end_are_not_given() {
    let mut story = Story::new(true);
    story.step(ready());
    story.step(adopted());
    story.step(Input::Asked);
    assert_eq!(story.step(Input::StandbysEnded), [Effect::Discard]);
    assert_eq!(story.step(Input::Reply(Reply::Fresh)), [Effect::Fork]);
    assert_eq!(story.step(adopted()), [Effect::Give]);
}

#[test]
fn a_refusal_is_final() {
    let mut story = Story::new(true);
    story.step(Input::Asked);
    let effects = story.step(Input::Reply(Reply::Refused("a thread".to_owned())));
    assert_eq!(
        effects,
        [Effect::Kill, Effect::Decline("a thread".to_owned())]
    );
    assert_eq!(
        story.step(Input::Asked),
        [Effect::Decline("a thread".to_owned())]
    );
    assert_eq!(story.life.deadline(), None);
}

#[test]
fn a_template_that_ends_is_replaced_a_few_times_in_a_row() {
    let mut story = Story::new(false);
    for _ in 0..REPLACEMENTS_MAX {
        story.step(Input::Asked);
        let effects = story.step(Input::Ended("SIGABRT".to_owned()));
        assert_eq!(declined(&effects), "the template ended: SIGABRT");
        assert_eq!(effects.last(), Some(&Effect::Spawn));
    }
    story.step(ready());
    story.step(Input::Asked);
    assert_eq!(story.step(adopted()), [Effect::Give]);
    // Workers were started, so the count restarts.
    for _ in 0..REPLACEMENTS_MAX {
        let effects = story.step(Input::Ended("SIGKILL".to_owned()));
        assert!(matches!(effects[..], [Effect::Warn(_), Effect::Spawn]));
    }
    assert_eq!(story.step(Input::Ended("SIGKILL".to_owned())), []);
    assert_eq!(
        declined(&story.step(Input::Asked)),
        "the template ended: SIGKILL"
    );
}

#[test]
fn a_template_that_hangs_costs_a_limited_time() {
    let mut story = Story::new(false);
    story.step(Input::Asked);
    let began = story.now;
    assert_eq!(
        declined(&story.late()),
        "the imports take longer than 120 s"
    );
    assert_eq!(story.now - began, IMPORT_MAX);
    // Later starts do not wait, but profit when it is ready.
    assert_eq!(
        declined(&story.step(Input::Asked)),
        "the template is still importing"
    );
    assert_eq!(story.step(ready()), []);
    assert_eq!(story.step(Input::Asked), [Effect::Fork]);
    let began = story.now;
    let effects = story.late();
    assert_eq!(declined(&effects), "the template does not answer");
    assert_eq!(effects.last(), Some(&Effect::Spawn));
    // The time is as long as the imports took, within limits, and longer for many workers.
    let extra = WORKERS * ANSWER_PER_WORKER;
    assert_eq!(story.now - began, ANSWER_MAX + extra);
    story.step(ready());
    story.step(Input::Asked);
    let began = story.now;
    story.late();
    assert_eq!(story.now - began, ANSWER_MIN + extra);
}

#[test]
fn a_stopped_template_is_not_waited_for() {
    let mut story = Story::new(false);
    story.step(Input::Asked);
    assert!(story.life.is_waiting());
    assert_eq!(declined(&story.step(Input::Stalled("stopped"))), "stopped");
    assert!(!story.life.is_waiting());
    // The template was continued.
    assert_eq!(story.step(ready()), []);
    assert_eq!(story.step(Input::Asked), [Effect::Fork]);
    let effects = story.step(Input::Stalled("stopped"));
    let [Effect::Kill, Effect::Decline(_), Effect::Spawn] = effects[..] else {
        panic!("{effects:?}")
    };
}

#[test]
fn workers_of_a_cancelled_start_are_kept() {
    let mut story = Story::new(false);
    story.step(ready());
    story.step(Input::Asked);
    story.step(Input::Cancelled);
    assert_eq!(story.step(adopted()), []);
    assert_eq!(story.step(Input::Asked), [Effect::Check]);
    assert_eq!(story.step(Input::Reply(Reply::Fresh)), [Effect::Give]);
}

fn any_input() -> impl Strategy<Value = Input> {
    prop_oneof![
        1 => Just(Input::NotSpawned("x".to_owned())),
        1 => Just(ready()),
        1 => Just(Input::Reply(Reply::Refused("r".to_owned()))),
        1 => Just(Input::Reply(Reply::Forked(vec![5]))),
        1 => Just(adopted()),
        1 => Just(Input::Reply(Reply::ForkFailed)),
        1 => Just(Input::Reply(Reply::Fresh)),
        1 => Just(changed()),
        1 => Just(Input::Ended("e".to_owned())),
        1 => Just(Input::Stalled("s")),
        4 => Just(Input::Asked),
        1 => Just(Input::Cancelled),
        1 => Just(Input::StandbysEnded),
        2 => Just(Input::Tick),
    ]
}

proptest! {
    /// Whatever a template sends, in any order: a start is answered at most once, and at the latest when nothing
    /// happens until the deadlines have passed.
    #[test]
    fn each_start_is_answered_once(
        has_standbys: bool,
        inputs in proptest::collection::vec((any_input(), 0_u64..20), 0..60),
    ) {
        let mut story = Story::new(has_standbys);
        let mut is_open = false;
        let mut has_workers = false;
        let mut inputs = inputs.into_iter();
        let mut ticks = 0;
        loop {
            let effects = match inputs.next() {
                Some((Input::Asked, _)) if is_open => continue,
                Some((Input::Cancelled, _)) => {
                    is_open = false;
                    story.step(Input::Cancelled)
                }
                Some((input, seconds)) => {
                    is_open |= input == Input::Asked;
                    has_workers |= input == adopted()
                        && matches!(story.life.state, State::Forking { .. });
                    story.now += Duration::from_secs(seconds);
                    story.step(input)
                }
                None if is_open => {
                    ticks += 1;
                    prop_assert!(ticks < 5, "{:?}", story.life);
                    story.late()
                }
                None => break,
            };
            for effect in effects {
                match effect {
                    Effect::Give => {
                        prop_assert!(is_open && has_workers);
                        (is_open, has_workers) = (false, false);
                    }
                    Effect::Decline(_) => {
                        prop_assert!(is_open);
                        is_open = false;
                    }
                    Effect::Discard => {
                        prop_assert!(has_workers);
                        has_workers = false;
                    }
                    _ => {}
                }
            }
        }
    }
}
