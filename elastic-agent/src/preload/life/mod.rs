//! The life of a template, as a state machine: when to start it, to fork, to hand out workers, to give up.
//!
//! Knows no process, socket or clock.

use std::time::{Duration, Instant};

use super::packet::Reply;

/// How long a start of workers waits for imports. A fresh interpreter has the same to import, so that only a template
/// that hangs costs time.
const IMPORT_MAX: Duration = Duration::from_secs(120);

/// How long a template may take to answer: as long as its imports took, since a fresh start takes no less, within these
/// limits. With a large template on a busy machine, 0.5 s were measured.
const ANSWER_MIN: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How much longer the answer to a fork may take for each worker: one by one, with as many interpreters that start on the
/// same processors.
const ANSWER_PER_WORKER: Duration = Duration::from_millis(50);

/// Standbys are forked when the workers before them have started, so as not to slow them down.
const STANDBY_DELAY: Duration = Duration::from_secs(1);

/// How often a template that exits unexpectedly is replaced before workers have been started from it.
const REPLACEMENTS_MAX: u32 = 3;

/// An event in the life of a template.
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

/// An action, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Start a template. There is none.
    Spawn,
    /// Kill the template and everything that it has forked in its process group. No [`Input::Ended`] follows.
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
    /// The template imports, until this time if starts still wait for it.
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
    /// How much longer it may take to fork.
    fork_extra: Duration,
    replacements: u32,
}

impl Life {
    /// Creates the life of a template that is [spawned](Effect::Spawn) now and forks `workers` workers for each start.
    pub(super) fn new(workers: u32, has_standbys: bool, now: Instant) -> Self {
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
            fork_extra: ANSWER_PER_WORKER * workers,
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
                // The workers may have exited in the meantime.
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

    /// Handles the exit of a template that has exited unexpectedly, or had to be killed.
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
            effects.push(Effect::Warn(format!("{why}; starting it again")));
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
            until: now + self.answer_max + self.fork_extra,
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
mod tests;
