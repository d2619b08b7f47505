//! The life of a template, as a state machine: when to start it, to fork, to hand out workers, to give up.
//!
//! Knows no process, socket or clock.

use std::time::{Duration, Instant};

use super::message::Reply;

/// How long a start of workers waits for imports. A fresh interpreter has the same to import, so that only a template
/// that hangs costs time.
const IMPORT_MAX: Duration = Duration::from_secs(120);

/// How long a template may take to answer: as long as its imports took, since a fresh start takes no less, within these
/// limits. With a large template on a busy machine, 0.5 s were measured.
const ANSWER_MIN: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Standbys are forked when the workers before them have started, so as not to slow them down.
const STANDBY_DELAY: Duration = Duration::from_secs(1);

/// How often a template that ends by itself is replaced before workers have been started from it.
const REPLACEMENTS_MAX: u32 = 3;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    /// The process could not be started.
    NotSpawned(String),
    /// The template has sent this. [`Reply::Adopted`] only if this process has become the parent.
    Reply(Reply),
    /// The template has ended, in this way.
    Ended(String),
    /// The template does not run, though it has not ended, for this reason.
    Stalled(&'static str),
    /// A start needs workers. One start at a time asks.
    Asked,
    /// The start no longer needs them.
    Cancelled,
    /// Some of the waiting workers have ended.
    StandbysEnded,
    /// Time has passed.
    Tick,
}

/// What to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Start a template. There is none.
    Spawn,
    /// Kill the template and all that it has forked in its process group. No [`Input::Ended`] follows.
    Kill,
    /// Ask for workers.
    Fork,
    /// Ask whether sources have changed.
    Check,
    /// Give the start that has asked the forked workers.
    Give,
    /// Tell the start that has asked why there are none.
    Decline(String),
    /// Kill the forked workers.
    Discard,
    /// Tell the user.
    Warn(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Until this time, if starts still wait for it.
    Importing {
        until: Option<Instant>,
    },
    Idle,
    Checking {
        until: Instant,
    },
    Forking {
        until: Instant,
    },
    /// There is no template, and will be none, for this reason.
    Unusable(String),
}

/// The life of a template.
#[derive(Debug)]
pub(super) struct Life {
    state: State,
    is_asked: bool,
    /// Whether forked workers wait at their gate.
    has_workers: bool,
    has_standbys: bool,
    /// When to fork standbys.
    standbys_at: Option<Instant>,
    spawned_at: Instant,
    /// How long the template may take to answer.
    answer_max: Duration,
    replacements: u32,
}

impl Life {
    /// The life of a template that is [spawned](Effect::Spawn) now.
    pub(super) fn new(has_standbys: bool, now: Instant) -> Self {
        Self {
            state: State::Importing {
                until: Some(now + IMPORT_MAX),
            },
            is_asked: false,
            has_workers: false,
            has_standbys,
            standbys_at: None,
            spawned_at: now,
            answer_max: ANSWER_MAX,
            replacements: 0,
        }
    }

    /// When to call [`step`](Self::step) with [`Input::Tick`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Importing { until } => until.filter(|_| self.is_asked),
            State::Idle => self.standbys_at,
            State::Checking { until } | State::Forking { until } => Some(until),
            State::Unusable(_) => None,
        }
    }

    /// Whether a start waits for the template.
    pub(super) const fn is_waiting(&self) -> bool {
        self.is_asked
    }

    pub(super) fn step(&mut self, now: Instant, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::NotSpawned(reason) => self.give_up(reason, &mut effects),
            Input::Reply(reply) => self.on_reply(now, reply, &mut effects),
            Input::Ended(how) => {
                self.on_end(now, format!("the template ended: {how}"), &mut effects)
            }
            Input::Stalled(why) => match &mut self.state {
                State::Importing { until } => {
                    *until = None;
                    self.decline(why, &mut effects);
                }
                State::Checking { .. } | State::Forking { .. } => {
                    effects.push(Effect::Kill);
                    self.on_end(now, why.to_owned(), &mut effects);
                }
                State::Idle | State::Unusable(_) => {}
            },
            Input::Asked => {
                self.is_asked = true;
                self.on_asked(now, &mut effects);
            }
            Input::Cancelled => self.is_asked = false,
            Input::StandbysEnded => {
                if self.has_workers {
                    self.has_workers = false;
                    effects.push(Effect::Discard);
                }
            }
            Input::Tick => self.on_tick(now, &mut effects),
        }
        self.check_invariants();
        effects
    }

    fn on_asked(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        match &self.state {
            State::Importing { until: Some(_) }
            | State::Checking { .. }
            | State::Forking { .. } => {}
            State::Importing { until: None } => {
                self.decline("the template is still importing", effects);
            }
            State::Idle if self.has_workers => {
                self.state = State::Checking {
                    until: now + self.answer_max,
                };
                effects.push(Effect::Check);
            }
            State::Idle => self.fork(now, effects),
            State::Unusable(reason) => {
                let reason = reason.clone();
                self.decline(&reason, effects);
            }
        }
    }

    fn on_reply(&mut self, now: Instant, reply: Reply, effects: &mut Vec<Effect>) {
        match (reply, &self.state) {
            (Reply::Ready(_), State::Importing { .. }) => {
                self.state = State::Idle;
                let imports = now.saturating_duration_since(self.spawned_at);
                self.answer_max = imports.clamp(ANSWER_MIN, ANSWER_MAX);
                if self.is_asked || self.has_standbys {
                    self.fork(now, effects);
                }
            }
            (Reply::Refused(reason), _) => {
                effects.push(Effect::Kill);
                self.give_up(reason, effects);
            }
            (Reply::Forked(_), State::Forking { .. }) => {}
            (Reply::Adopted, State::Forking { .. }) => {
                self.state = State::Idle;
                self.has_workers = true;
                if self.is_asked {
                    self.give(now, effects);
                }
            }
            (Reply::ForkFailed, State::Forking { .. }) => {
                effects.push(Effect::Kill);
                self.on_end(
                    now,
                    "the system has no process left to fork".to_owned(),
                    effects,
                );
            }
            (Reply::Fresh, State::Checking { .. }) => {
                self.state = State::Idle;
                // The workers may have ended meanwhile.
                match self.is_asked {
                    true if self.has_workers => self.give(now, effects),
                    true => self.fork(now, effects),
                    false => {}
                }
            }
            (Reply::Changed(path), State::Checking { .. } | State::Forking { .. }) => {
                effects.push(Effect::Warn(format!(
                    "{path} has changed since it was imported: importing the modules again"
                )));
                effects.push(Effect::Kill);
                self.discard(effects);
                self.spawn(now, effects);
            }
            (reply, state) => {
                let why = format!("the template has sent {reply:?} in state {state:?}");
                effects.push(Effect::Kill);
                self.discard(effects);
                self.give_up(why, effects);
            }
        }
    }

    /// The template has ended by itself, or had to be killed.
    fn on_end(&mut self, now: Instant, why: String, effects: &mut Vec<Effect>) {
        self.discard(effects);
        if self.replacements == REPLACEMENTS_MAX {
            self.give_up(why, effects);
            return;
        }
        self.replacements += 1;
        if self.is_asked {
            self.decline(&why, effects);
        } else {
            effects.push(Effect::Warn(format!("{why}; starting another one")));
        }
        self.spawn(now, effects);
    }

    fn on_tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        match &mut self.state {
            State::Importing { until }
                if self.is_asked && until.is_some_and(|until| until <= now) =>
            {
                *until = None;
                let seconds = IMPORT_MAX.as_secs();
                self.decline(
                    &format!("the imports take longer than {seconds} s"),
                    effects,
                );
            }
            State::Idle if self.standbys_at.is_some_and(|at| at <= now) => self.fork(now, effects),
            State::Checking { until } | State::Forking { until } if *until <= now => {
                effects.push(Effect::Kill);
                self.on_end(now, "the template does not answer".to_owned(), effects);
            }
            _ => {}
        }
    }

    fn fork(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.standbys_at = None;
        if self.has_workers {
            return;
        }
        self.state = State::Forking {
            until: now + self.answer_max,
        };
        effects.push(Effect::Fork);
    }

    fn give(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        effects.push(Effect::Give);
        self.is_asked = false;
        self.has_workers = false;
        self.replacements = 0;
        self.standbys_at = self.has_standbys.then(|| now + STANDBY_DELAY);
    }

    fn spawn(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.standbys_at = None;
        self.spawned_at = now;
        self.state = State::Importing {
            until: Some(now + IMPORT_MAX),
        };
        effects.push(Effect::Spawn);
    }

    fn give_up(&mut self, why: String, effects: &mut Vec<Effect>) {
        self.discard(effects);
        self.standbys_at = None;
        self.decline(&why, effects);
        self.state = State::Unusable(why);
    }

    fn decline(&mut self, why: &str, effects: &mut Vec<Effect>) {
        if std::mem::take(&mut self.is_asked) {
            effects.push(Effect::Decline(why.to_owned()));
        }
    }

    fn discard(&mut self, effects: &mut Vec<Effect>) {
        if std::mem::take(&mut self.has_workers) {
            effects.push(Effect::Discard);
        }
    }

    /// Workers wait only for a template that lives and does not fork; a start that waits has a deadline.
    fn check_invariants(&self) {
        if self.has_workers {
            debug_assert!(
                matches!(self.state, State::Idle | State::Checking { .. }),
                "{self:?}"
            );
        }
        if self.is_asked {
            debug_assert!(self.deadline().is_some(), "{self:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ready() -> Input {
        Input::Reply(Reply::Ready(Vec::new()))
    }

    fn adopted() -> Input {
        Input::Reply(Reply::Adopted)
    }

    fn changed() -> Input {
        Input::Reply(Reply::Changed("/a.py".to_owned()))
    }

    /// A life, and what its steps have caused.
    struct Story {
        life: Life,
        now: Instant,
    }

    impl Story {
        fn new(has_standbys: bool) -> Self {
            let now = Instant::now();
            Self {
                life: Life::new(has_standbys, now),
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
        // A start that comes before the next fork does not wait for it.
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
        // Workers were started, so it counts anew.
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
        // As long as the imports took, within limits.
        assert_eq!(story.now - began, ANSWER_MAX);
        story.step(ready());
        story.step(Input::Asked);
        let began = story.now;
        story.late();
        assert_eq!(story.now - began, ANSWER_MIN);
    }

    #[test]
    fn a_stopped_template_is_not_waited_for() {
        let mut story = Story::new(false);
        story.step(Input::Asked);
        assert!(story.life.is_waiting());
        assert_eq!(declined(&story.step(Input::Stalled("stopped"))), "stopped");
        assert!(!story.life.is_waiting());
        // It was continued.
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
}
