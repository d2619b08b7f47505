//! Fault injection for tests: fails, drops, duplicates or delays messages, and closes connections.
//!
//! This module only decides, without I/O, sleep or clock. The sender asks before each send and applies the
//! decision.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian};

use crate::sync::Lock;
use crate::worker::WorkerId;

/// Most distinct messages that a plan remembers. Beyond that it forgets the oldest.
const MESSAGES_KNOWN_MAX: usize = 65_536;

/// Increment of splitmix64.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

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
/// A clone shares the counters and the history of sent messages, but not the rules added later. A rule
/// selects functions by name, or by a prefix followed by `*`; `*` alone selects all.
///
/// ```
/// use rpc_agent::{AgentOptions, FaultPlan};
/// use std::time::Duration;
///
/// let faults = FaultPlan::new(7)
///     .fail("rref.*", 3)
///     .delay("load_shard", Duration::from_millis(1500))
///     .lose_answers(0.05)?
///     .duplicate(0.01)?;
/// let options = AgentOptions::new("trainer:0", 0).with_faults(faults.clone());
/// # let _ = options;
/// // ... run the test, then check how many faults were injected:
/// assert_eq!(faults.injected().failed, 0);
/// # Ok::<(), rpc_agent::FaultPlanError>(())
/// ```
#[derive(Debug, Clone)]
pub struct FaultPlan {
    rules: Arc<Rules>,
    history: Arc<Lock<History>>,
}

impl FaultPlan {
    /// An empty plan. `seed` selects the random faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
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
    pub fn fail(mut self, functions: impl Into<String>, times: u32) -> Self {
        let pattern = Pattern(functions.into());
        Arc::make_mut(&mut self.rules).fail.push((pattern, times));
        self
    }

    /// Delays every request to these functions. Later messages overtake it, as the sender does not sleep.
    ///
    /// The first rule that matches a function applies.
    #[must_use]
    pub fn delay(mut self, functions: impl Into<String>, delay: Duration) -> Self {
        let pattern = Pattern(functions.into());
        Arc::make_mut(&mut self.rules).delay.push((pattern, delay));
        self
    }

    /// Drops this share, from 0 to 1, of all requests and of all responses. They count as sent.
    ///
    /// # Errors
    /// [`FaultPlanError::Rate`] if the rate is not from 0 to 1.
    pub fn lose(self, rate: f64) -> Result<Self, FaultPlanError> {
        self.lose_requests(rate)?.lose_answers(rate)
    }

    /// Drops this share of the requests. Their functions do not run.
    ///
    /// # Errors
    /// As [`FaultPlan::lose`].
    pub fn lose_requests(self, rate: f64) -> Result<Self, FaultPlanError> {
        self.with_rate("lose_requests", rate, |rules| &mut rules.lose_requests)
    }

    /// Drops this share of the responses. Their functions have run.
    ///
    /// # Errors
    /// As [`FaultPlan::lose`].
    pub fn lose_answers(self, rate: f64) -> Result<Self, FaultPlanError> {
        self.with_rate("lose_answers", rate, |rules| &mut rules.lose_answers)
    }

    /// Sends this share of the messages two or three times.
    ///
    /// # Errors
    /// As [`FaultPlan::lose`].
    pub fn duplicate(self, rate: f64) -> Result<Self, FaultPlanError> {
        self.with_rate("duplicate", rate, |rules| &mut rules.duplicate)
    }

    /// Delays this share of the messages by a uniformly random time of at most `delay_max`.
    ///
    /// # Errors
    /// As [`FaultPlan::lose`].
    pub fn delay_randomly(
        mut self,
        rate: f64,
        delay_max: Duration,
    ) -> Result<Self, FaultPlanError> {
        Arc::make_mut(&mut self.rules).delay_max = delay_max;
        self.with_rate("delay_randomly", rate, |rules| &mut rules.delay_randomly)
    }

    /// Closes the connection after this share of the messages. The outcome of those calls is unknown.
    ///
    /// # Errors
    /// As [`FaultPlan::lose`].
    pub fn cut(self, rate: f64) -> Result<Self, FaultPlanError> {
        self.with_rate("cut", rate, |rules| &mut rules.cut)
    }

    /// The number of faults injected so far by this plan and its clones.
    #[must_use]
    pub fn injected(&self) -> InjectedFaults {
        self.with_history(|history| history.injected)
    }

    /// The fault for a message that is about to be sent. Called once per send, so once per retry.
    /// For a response, `function` is the function that was called.
    pub(crate) fn decide(&self, leg: Leg, function: &str, to: WorkerId, payload: &[u8]) -> Fault {
        let rules = &*self.rules;
        let (fails, delay) = match leg {
            Leg::Request => (
                first_match(&rules.fail, function).unwrap_or(0),
                first_match(&rules.delay, function),
            ),
            Leg::Answer => (0, None),
        };
        let (mut fault, mut sends_before) = (Fault::Deliver, 0);
        if fails > 0 || rules.leave_to_chance(leg) {
            let message = Fingerprint::of(leg, function, to, payload);
            sends_before = self.with_history(|history| history.count(message));
            if sends_before < fails {
                fault = Fault::Fail;
            } else {
                fault = rules.draw(leg, message, sends_before);
            }
        }
        if let (Fault::Deliver, Some(delay)) = (fault, delay) {
            fault = Fault::Delay(delay);
        }
        if fault != Fault::Deliver {
            log::debug!(
                "fault injected: {fault:?} into send {} of {leg:?} of `{function}` to worker id {to}",
                u64::from(sends_before) + 1
            );
            self.with_history(|history| history.injected.count(leg, fault));
        }
        fault
    }

    fn with_rate(
        mut self,
        name: &'static str,
        rate: f64,
        field: impl FnOnce(&mut Rules) -> &mut f64,
    ) -> Result<Self, FaultPlanError> {
        if !(0.0..=1.0).contains(&rate) {
            return Err(FaultPlanError::Rate { name, rate });
        }
        *field(Arc::make_mut(&mut self.rules)) = rate;
        Ok(self)
    }

    fn with_history<T>(&self, use_it: impl FnOnce(&mut History) -> T) -> T {
        use_it(&mut self.history.lock())
    }
}

/// An invalid [`FaultPlan`] setting.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultPlanError {
    /// A rate is outside 0 to 1.
    #[error("the rate of `{name}` is {rate}, must be from 0 to 1")]
    Rate {
        /// The [`FaultPlan`] method.
        name: &'static str,
        /// The rejected value.
        rate: f64,
    },
}

c10d_socket::debug_as_display!(FaultPlanError);

/// Numbers of faults that a [`FaultPlan`] has injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct InjectedFaults {
    /// Requests that failed before they were sent.
    pub failed: u64,
    /// Requests dropped.
    pub requests_lost: u64,
    /// Responses dropped.
    pub answers_lost: u64,
    /// Messages sent more than once.
    pub duplicated: u64,
    /// Messages delayed.
    pub delayed: u64,
    /// Connections closed.
    pub cut: u64,
}

impl InjectedFaults {
    /// The sum of all counters.
    #[must_use]
    pub fn total(&self) -> u64 {
        let lost = self.requests_lost + self.answers_lost;
        self.failed + lost + self.duplicated + self.delayed + self.cut
    }

    fn count(&mut self, leg: Leg, fault: Fault) {
        let counter = match (fault, leg) {
            (Fault::Deliver, _) => return,
            (Fault::Fail, _) => &mut self.failed,
            (Fault::Lose, Leg::Request) => &mut self.requests_lost,
            (Fault::Lose, Leg::Answer) => &mut self.answers_lost,
            (Fault::Duplicate { .. }, _) => &mut self.duplicated,
            (Fault::Delay(_), _) => &mut self.delayed,
            (Fault::Cut, _) => &mut self.cut,
        };
        *counter += 1;
    }
}

/// The direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Leg {
    Request,
    Answer,
}

/// The decision about one send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Send the message without a fault.
    Deliver,
    /// Do not send the request; its call fails with `NotSent::Injected`.
    Fail,
    /// Do not send the message, but count it as sent.
    Lose,
    /// Send the message and `copies` more.
    Duplicate { copies: u32 },
    /// Send the message after this time, without blocking the sender.
    Delay(Duration),
    /// Send the message, then close its connection at once.
    Cut,
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
    fn lose(&self, leg: Leg) -> f64 {
        match leg {
            Leg::Request => self.lose_requests,
            Leg::Answer => self.lose_answers,
        }
    }

    fn leave_to_chance(&self, leg: Leg) -> bool {
        let rates = [
            self.lose(leg),
            self.duplicate,
            self.delay_randomly,
            self.cut,
        ];
        rates.iter().any(|&rate| rate > 0.0)
    }

    /// Draws at most one fault, the most severe first. Every kind is drawn each time, so that changing one
    /// rate does not change the random numbers of the others.
    fn draw(&self, leg: Leg, message: Fingerprint, sends_before: u32) -> Fault {
        let seed = mix(self.seed ^ mix(message.0 ^ mix(u64::from(sends_before))));
        let mut random = fastrand::Rng::with_seed(seed);
        let mut happens = |rate: f64| random.f64() < rate;
        let is_cut = happens(self.cut);
        let is_lost = happens(self.lose(leg));
        let is_duplicated = happens(self.duplicate);
        let is_delayed = happens(self.delay_randomly);
        let third = random.bool();
        let delay = self.delay_max.mul_f64(random.f64());
        if is_cut {
            Fault::Cut
        } else if is_lost {
            Fault::Lose
        } else if is_duplicated {
            Fault::Duplicate {
                copies: 1 + u32::from(third),
            }
        } else if is_delayed {
            Fault::Delay(delay)
        } else {
            Fault::Deliver
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
    /// How many times each message was sent.
    sends: HashMap<Fingerprint, u32>,
    /// The keys of `sends`, oldest first.
    order: VecDeque<Fingerprint>,
    injected: InjectedFaults,
}

impl History {
    /// Counts a send; returns the number of earlier ones.
    fn count(&mut self, message: Fingerprint) -> u32 {
        if let Some(sends) = self.sends.get_mut(&message) {
            let before = *sends;
            *sends = sends.saturating_add(1);
            return before;
        }
        if self.order.len() >= MESSAGES_KNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.sends.remove(&oldest);
        }
        self.order.push_back(message);
        self.sends.insert(message, 1);
        0
    }
}

/// A message's hash. Unlike the hashes of `std`, it is the same in every process and Rust version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Fingerprint(u64);

impl Fingerprint {
    fn of(leg: Leg, function: &str, to: WorkerId, payload: &[u8]) -> Self {
        let is_answer = u64::from(leg == Leg::Answer);
        Self(mix(u64::from(to.get()) << 1 | is_answer))
            .with(function.as_bytes())
            .with(payload)
    }

    fn with(self, bytes: &[u8]) -> Self {
        // The length separates adjacent fields: `ab` + `c` and `a` + `bc` differ.
        let mut state = mix(self.0 ^ bytes.len() as u64);
        for word in bytes.chunks(8) {
            let word = LittleEndian::read_uint(word, word.len());
            state = (state ^ word).wrapping_mul(GOLDEN_GAMMA).rotate_left(29);
        }
        Self(mix(state))
    }
}

/// The finalizer of splitmix64 (Steele, Lea and Flood, 2014): each input bit affects half of the output bits.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(GOLDEN_GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(id: u32) -> WorkerId {
        WorkerId::new(id).unwrap()
    }

    fn request(plan: &FaultPlan, function: &str, payload: &[u8]) -> Fault {
        plan.decide(Leg::Request, function, worker(1), payload)
    }

    fn all_faults(seed: u64) -> FaultPlan {
        FaultPlan::new(seed)
            .lose(0.1)
            .and_then(|plan| plan.duplicate(0.1))
            .and_then(|plan| plan.delay_randomly(0.1, Duration::from_millis(50)))
            .and_then(|plan| plan.cut(0.1))
            .unwrap()
    }

    #[test]
    fn an_empty_plan_delivers_every_message_and_stores_none() {
        let plan = FaultPlan::new(1);
        assert_eq!(request(&plan, "f", b"x"), Fault::Deliver);
        assert_eq!(plan.injected(), InjectedFaults::default());
        assert!(plan.history.lock().sends.is_empty());
    }

    #[test]
    fn each_distinct_request_fails_the_given_number_of_times() {
        let plan = FaultPlan::new(1).fail("f", 2);
        for payload in [b"one", b"two"] {
            let faults: Vec<_> = (0..4).map(|_| request(&plan, "f", payload)).collect();
            use Fault::{Deliver, Fail};
            assert_eq!(faults, [Fail, Fail, Deliver, Deliver], "{payload:?}");
        }
        assert_eq!(request(&plan, "g", b"one"), Fault::Deliver);
        let answer = plan.decide(Leg::Answer, "f", worker(1), b"three");
        assert_eq!(answer, Fault::Deliver);
        let elsewhere = plan.decide(Leg::Request, "f", worker(2), b"one");
        assert_eq!(elsewhere, Fault::Fail);
        assert_eq!(plan.injected().failed, 5);
        assert_eq!(plan.injected().total(), 5);
    }

    #[test]
    fn a_rule_matches_a_name_or_a_prefix_and_the_first_match_applies() {
        let plan = FaultPlan::new(1).fail("rref.fork", 0).fail("rref.*", 1);
        let all = FaultPlan::new(1).fail("*", 1);
        for (function, fault) in [
            ("rref.fork", Fault::Deliver),
            ("rref.delete", Fault::Fail),
            ("rref", Fault::Deliver),
            ("add", Fault::Deliver),
        ] {
            assert_eq!(request(&plan, function, b""), fault, "{function}");
            assert_eq!(request(&all, function, b""), Fault::Fail, "{function}");
        }
    }

    #[test]
    fn a_request_is_delayed_after_its_injected_failures() {
        let late = Duration::from_millis(1500);
        let plan = FaultPlan::new(1).delay("f", late).fail("f", 1);
        assert_eq!(request(&plan, "f", b""), Fault::Fail);
        assert_eq!(request(&plan, "f", b""), Fault::Delay(late));
        let answer = plan.decide(Leg::Answer, "f", worker(1), b"");
        assert_eq!(answer, Fault::Deliver);
        let injected = plan.injected();
        assert_eq!((injected.failed, injected.delayed), (1, 1));
    }

    #[test]
    fn rate_1_always_injects_and_rate_0_never_does() {
        let sure = |plan: Result<FaultPlan, FaultPlanError>| plan.unwrap();
        let lossy = sure(FaultPlan::new(3).lose_answers(1.0));
        let twice = sure(FaultPlan::new(3).duplicate(1.0));
        let late = sure(FaultPlan::new(3).delay_randomly(1.0, Duration::from_millis(5)));
        let cut = sure(FaultPlan::new(3).cut(1.0));
        let never = sure(FaultPlan::new(3).lose(0.0));
        for number in 0_u8..100 {
            let payload = [number];
            assert_eq!(request(&lossy, "f", &payload), Fault::Deliver);
            let answer = lossy.decide(Leg::Answer, "f", worker(1), &payload);
            assert_eq!(answer, Fault::Lose);
            assert_eq!(request(&never, "f", &payload), Fault::Deliver);
            let fault = request(&twice, "f", &payload);
            assert!(
                matches!(fault, Fault::Duplicate { copies: 1 | 2 }),
                "{fault:?}"
            );
            let Fault::Delay(delay) = request(&late, "f", &payload) else {
                panic!("not delayed");
            };
            assert!(delay <= Duration::from_millis(5));
            assert_eq!(request(&cut, "f", &payload), Fault::Cut);
        }
        assert_eq!(lossy.injected().answers_lost, 100);
        assert_eq!(lossy.injected().requests_lost, 0);
        assert_eq!(twice.injected().duplicated, 100);
        assert_eq!(late.injected().delayed, 100);
        assert_eq!(cut.injected().cut, 100);
    }

    #[test]
    fn each_kind_of_fault_occurs_at_about_its_rate() {
        let plan = all_faults(42);
        for number in 0..10_000_u32 {
            let payload = number.to_string();
            request(&plan, "f", payload.as_bytes());
        }
        let injected = plan.injected();
        // At most one fault per message: 0.1 of all are cut, 0.1 of the rest are lost, and so on.
        for (count, expected) in [
            (injected.cut, 1000),
            (injected.requests_lost, 900),
            (injected.duplicated, 810),
            (injected.delayed, 729),
        ] {
            assert!(count.abs_diff(expected) < 150, "{injected:?}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_faults_in_any_order() {
        let decide_all = |plan: &FaultPlan, order: &mut dyn Iterator<Item = u32>| {
            let mut faults: Vec<_> = order
                .map(|number| {
                    let payload = (number % 100).to_string();
                    let leg = [Leg::Request, Leg::Answer][number as usize % 2];
                    (
                        number % 100,
                        plan.decide(leg, "f", worker(3), payload.as_bytes()),
                    )
                })
                .collect();
            faults.sort_by_key(|(message, _)| *message);
            faults
        };
        let forward = decide_all(&all_faults(5), &mut (0..1000));
        assert_eq!(forward, decide_all(&all_faults(5), &mut (0..1000)));
        // Each hundred reversed: the number of earlier sends of each message stays the same.
        let mut backward =
            (0..10).flat_map(|hundred| (0..100).rev().map(move |n| 100 * hundred + n));
        assert_eq!(forward, decide_all(&all_faults(5), &mut backward));
        assert_ne!(forward, decide_all(&all_faults(6), &mut (0..1000)));
    }

    #[test]
    fn a_clone_shares_the_history() {
        let plan = FaultPlan::new(1).fail("f", 1);
        let clone = plan.clone();
        assert_eq!(request(&plan, "f", b""), Fault::Fail);
        assert_eq!(request(&clone, "f", b""), Fault::Deliver);
        assert_eq!(clone.injected(), plan.injected());
    }

    #[test]
    fn a_rate_outside_0_to_1_is_rejected() {
        for rate in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let said = FaultPlan::new(1).cut(rate).unwrap_err().to_string();
            let expected = format!("the rate of `cut` is {rate}, must be from 0 to 1");
            assert_eq!(said, expected);
        }
        assert!(FaultPlan::new(1).lose(1.5).is_err());
        assert!(
            FaultPlan::new(1)
                .delay_randomly(-1.0, Duration::MAX)
                .is_err()
        );
    }

    #[test]
    fn the_history_is_bounded() {
        let plan = FaultPlan::new(1).fail("f", 1);
        for number in 0..MESSAGES_KNOWN_MAX + 10 {
            let fault = request(&plan, "f", number.to_string().as_bytes());
            assert_eq!(fault, Fault::Fail);
        }
        let history = plan.history.lock();
        assert_eq!(history.sends.len(), MESSAGES_KNOWN_MAX);
        assert_eq!(history.order.len(), MESSAGES_KNOWN_MAX);
    }

    #[test]
    fn fingerprints_depend_on_every_field_and_its_boundaries() {
        let of =
            |leg, function, to, payload: &[u8]| Fingerprint::of(leg, function, worker(to), payload);
        let prints = [
            of(Leg::Request, "ab", 1, b"c"),
            of(Leg::Request, "a", 1, b"bc"),
            of(Leg::Request, "a", 1, b"bc\0"),
            of(Leg::Request, "a", 2, b"bc"),
            of(Leg::Answer, "a", 1, b"bc"),
            of(Leg::Request, "a", 1, b"0123456789"),
            of(Leg::Request, "a", 1, b"1123456789"),
        ];
        let distinct: std::collections::HashSet<_> = prints.iter().collect();
        assert_eq!(distinct.len(), prints.len());
    }
}
