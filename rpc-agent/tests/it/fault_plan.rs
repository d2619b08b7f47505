//! Faults by rules and by chance: fails, drops, duplicates or delays messages, and closes connections.
//!
//! Only decides, without I/O, sleep or clock. The agent calls it before each send and applies the decision.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use c10d_sim::fingerprint;
use rpc_agent::{AgentOptions, CallMessage, Fault, FaultInjector, WorkerId};

/// Faults that an agent injects into the messages that it sends, for tests.
///
/// Like PyTorch's faulty agent, a plan can fail or delay requests before they are sent. It can also simulate
/// a faulty network: drop or duplicate requests and responses, reorder messages by random delays, and close
/// connections.
///
/// Random faults are seeded. The fault of a message depends only on the seed, the message's direction,
/// function, receiver and bytes, and on how many times it was sent before. Other messages and the sending
/// thread have no influence, so a test that prints its seed can be replayed.
///
/// A clone shares the counters and the history of sent messages, but not the rules added later. A rule selects
/// functions by their name, or by a prefix followed by `*`; `*` alone selects all.
#[derive(Debug, Clone)]
pub(crate) struct FaultPlan {
    rules: Arc<Rules>,
    history: Arc<Mutex<History>>,
}

impl FaultPlan {
    /// An empty plan. `seed` selects the random faults.
    #[must_use]
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rules: Arc::new(Rules {
                seed,
                ..Rules::default()
            }),
            history: Arc::default(),
        }
    }

    /// Fails the first `times` sends of each distinct request to these functions.
    ///
    /// A request is distinct by worker, function and payload. Later sends pass, so a call with at least
    /// `times` retries succeeds. The first rule that matches a function applies.
    #[must_use]
    pub(crate) fn fail(mut self, functions: impl Into<String>, times: u32) -> Self {
        let pattern = Pattern(functions.into());
        Arc::make_mut(&mut self.rules).fail.push((pattern, times));
        self
    }

    /// Delays every request to these functions. Later messages overtake it, because the sender does not sleep.
    ///
    /// The first rule that matches a function applies.
    #[must_use]
    pub(crate) fn delay(mut self, functions: impl Into<String>, delay: Duration) -> Self {
        let pattern = Pattern(functions.into());
        Arc::make_mut(&mut self.rules).delay.push((pattern, delay));
        self
    }

    /// Drops this share, from 0 to 1, of all requests and of all responses. They count as sent.
    ///
    /// # Panics
    /// If the rate is not from 0 to 1.
    pub(crate) fn lose(self, rate: f64) -> Self {
        self.lose_requests(rate).lose_answers(rate)
    }

    /// Drops this share of the requests. Their functions do not run.
    pub(crate) fn lose_requests(self, rate: f64) -> Self {
        self.with_rate("lose_requests", rate, |rules| &mut rules.lose_requests)
    }

    /// Drops this share of the responses. Their functions have run.
    pub(crate) fn lose_answers(self, rate: f64) -> Self {
        self.with_rate("lose_answers", rate, |rules| &mut rules.lose_answers)
    }

    /// Sends this share of the messages two or three times.
    pub(crate) fn duplicate(self, rate: f64) -> Self {
        self.with_rate("duplicate", rate, |rules| &mut rules.duplicate)
    }

    /// Delays this share of the messages by a uniformly random time of at most `delay_max`.
    pub(crate) fn delay_randomly(mut self, rate: f64, delay_max: Duration) -> Self {
        Arc::make_mut(&mut self.rules).delay_max = delay_max;
        self.with_rate("delay_randomly", rate, |rules| &mut rules.delay_randomly)
    }

    /// Closes the connection after this share of the messages. The outcome of those calls is unknown.
    pub(crate) fn cut(self, rate: f64) -> Self {
        self.with_rate("cut", rate, |rules| &mut rules.cut)
    }

    /// Adds the plan to the options of one worker.
    pub(crate) fn of_rank(&self, rank: u32) -> impl Fn(u32, AgentOptions) -> AgentOptions + use<> {
        let plan = self.clone();
        move |of, options| match of == rank {
            true => options.with_faults(plan.clone()),
            false => options,
        }
    }

    /// The number of faults injected so far by this plan and its clones.
    #[must_use]
    pub(crate) fn injected(&self) -> InjectedFaults {
        self.with_history(|history| history.injected)
    }

    /// The fault of a message that is about to be sent. Called once per send, so once per retry.
    pub(crate) fn choose(
        &self,
        message: CallMessage,
        function: &str,
        to: WorkerId,
        payload: &[u8],
    ) -> Option<Kind> {
        let rules = &*self.rules;
        let (fails, delay) = match message {
            CallMessage::Request => (
                first_match(&rules.fail, function).unwrap_or(0),
                first_match(&rules.delay, function),
            ),
            CallMessage::Answer => (0, None),
        };
        let mut fault = None;
        if fails > 0 || rules.leave_to_chance(message) {
            let sent = (message == CallMessage::Answer, function, to.get(), payload);
            let sent = fingerprint(&sent);
            let sends_before = self.with_history(|history| history.count(sent));
            fault = if sends_before < fails {
                Some(Kind::Fail)
            } else {
                rules.draw(message, fingerprint(&(rules.seed, sent, sends_before)))
            };
        }
        let fault = fault.or(delay.map(Kind::Delay))?;
        self.with_history(|history| history.injected.count(message, fault));
        Some(fault)
    }

    fn with_rate(
        mut self,
        name: &'static str,
        rate: f64,
        field: impl FnOnce(&mut Rules) -> &mut f64,
    ) -> Self {
        let is_share = (0.0..=1.0).contains(&rate);
        assert!(
            is_share,
            "the rate of `{name}` is {rate}, must be from 0 to 1"
        );
        *field(Arc::make_mut(&mut self.rules)) = rate;
        self
    }

    fn with_history<T>(&self, use_it: impl FnOnce(&mut History) -> T) -> T {
        use_it(&mut self.history.lock().unwrap())
    }
}

impl FaultInjector for FaultPlan {
    fn decide(
        &self,
        message: CallMessage,
        function: &str,
        to: WorkerId,
        payload: &[u8],
    ) -> Option<Fault> {
        self.choose(message, function, to, payload).map(Fault::from)
    }
}

/// Numbers of faults that a [`FaultPlan`] has injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct InjectedFaults {
    /// Requests that failed before they were sent.
    pub(crate) failed: u64,
    /// Requests dropped.
    pub(crate) requests_lost: u64,
    /// Responses dropped.
    pub(crate) answers_lost: u64,
    /// Messages sent more than once.
    pub(crate) duplicated: u64,
    /// Messages delayed.
    pub(crate) delayed: u64,
    /// Connections closed.
    pub(crate) cut: u64,
}

impl InjectedFaults {
    /// The sum of all counters.
    #[must_use]
    pub(crate) fn total(&self) -> u64 {
        let lost = self.requests_lost + self.answers_lost;
        self.failed + lost + self.duplicated + self.delayed + self.cut
    }

    fn count(&mut self, message: CallMessage, fault: Kind) {
        let counter = match (fault, message) {
            (Kind::Fail, _) => &mut self.failed,
            (Kind::Lose, CallMessage::Request) => &mut self.requests_lost,
            (Kind::Lose, CallMessage::Answer) => &mut self.answers_lost,
            (Kind::Duplicate { .. }, _) => &mut self.duplicated,
            (Kind::Delay(_), _) => &mut self.delayed,
            (Kind::Cut, _) => &mut self.cut,
        };
        *counter += 1;
    }
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Fail,
    Lose,
    /// Send the message and `copies` more.
    Duplicate {
        copies: u32,
    },
    Delay(Duration),
    Cut,
}

impl From<Kind> for Fault {
    fn from(kind: Kind) -> Self {
        let (copies, after, cuts) = match kind {
            Kind::Fail => return Self::Fail,
            Kind::Lose => (0, Duration::ZERO, false),
            Kind::Duplicate { copies } => (1 + copies, Duration::ZERO, false),
            Kind::Delay(delay) => (1, delay, false),
            Kind::Cut => (1, Duration::ZERO, true),
        };
        Self::Send {
            copies,
            after,
            cuts,
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Rules {
    seed: u64,
    fail: Vec<(Pattern, u32)>,
    delay: Vec<(Pattern, Duration)>,
    lose_requests: f64,
    lose_answers: f64,
    duplicate: f64,
    delay_randomly: f64,
    delay_max: Duration,
    cut: f64,
}

impl Rules {
    fn lose(&self, message: CallMessage) -> f64 {
        match message {
            CallMessage::Request => self.lose_requests,
            CallMessage::Answer => self.lose_answers,
        }
    }

    fn leave_to_chance(&self, message: CallMessage) -> bool {
        let rates = [
            self.lose(message),
            self.duplicate,
            self.delay_randomly,
            self.cut,
        ];
        rates.iter().any(|&rate| rate > 0.0)
    }

    /// Draws at most one fault, the most severe first. Every kind is drawn each time, so that changing one rate does
    /// not change the random numbers of the other kinds.
    fn draw(&self, message: CallMessage, seed: u64) -> Option<Kind> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut happens = |rate: f64| random.f64() < rate;
        let is_cut = happens(self.cut);
        let is_lost = happens(self.lose(message));
        let is_duplicated = happens(self.duplicate);
        let is_delayed = happens(self.delay_randomly);
        let third = random.bool();
        let delay = self.delay_max.mul_f64(random.f64());
        if is_cut {
            Some(Kind::Cut)
        } else if is_lost {
            Some(Kind::Lose)
        } else if is_duplicated {
            let copies = 1 + u32::from(third);
            Some(Kind::Duplicate { copies })
        } else {
            is_delayed.then_some(Kind::Delay(delay))
        }
    }
}

/// A function name, or a prefix followed by `*`.
#[derive(Debug, Clone)]
struct Pattern(String);

impl Pattern {
    fn matches(&self, function: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(prefix) => function.starts_with(prefix),
            None => self.0 == function,
        }
    }
}

fn first_match<T: Copy>(rules: &[(Pattern, T)], function: &str) -> Option<T> {
    let rule = rules.iter().find(|(pattern, _)| pattern.matches(function));
    rule.map(|(_, value)| *value)
}

/// Sends and faults so far.
#[derive(Debug, Default)]
struct History {
    /// How many times each message was sent, by its fingerprint.
    sends: HashMap<u64, u32>,
    injected: InjectedFaults,
}

impl History {
    /// Counts a send; returns the number of earlier sends.
    fn count(&mut self, message: u64) -> u32 {
        let sends = self.sends.entry(message).or_default();
        *sends += 1;
        *sends - 1
    }
}
