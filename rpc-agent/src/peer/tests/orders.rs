//! Explores every order of events up to a depth, and runs random histories.

use super::world::{Budget, Event, World};

/// Limit of the events in a history; a longer history is treated as endless.
const EVENTS_MAX: usize = 2_000;

/// Runs every sequence of `depth` choices, each continued in a fixed order. Returns the number of histories.
fn every_order(budget: Budget, depth: usize) -> u64 {
    let mut choices: Vec<(usize, usize)> = Vec::new();
    let mut histories = 0;
    loop {
        histories += 1;
        let mut at = 0;
        run(budget, |events| {
            if at == choices.len() && at < depth && !events.is_empty() {
                choices.push((0, events.len()));
            }
            let chosen = choices.get(at).map(|(chosen, _)| *chosen);
            at += 1;
            chosen.or_else(|| first_without_fault(events))
        });
        // Advance to the next sequence: increment the last choice that has an alternative left.
        while choices.pop_if(|(chosen, of)| *chosen + 1 == *of).is_some() {}
        match choices.last_mut() {
            Some((chosen, _)) => *chosen += 1,
            None => return histories,
        }
    }
}

fn first_without_fault(events: &[Event]) -> Option<usize> {
    // A loan of the connection is optional. A history does not begin with one.
    let is_regular = |event: &Event| !event.is_fault() && !matches!(event, Event::Lend { .. });
    events.iter().position(is_regular)
}

/// Runs one history until no event is chosen. Prints the history if it fails.
fn run(budget: Budget, mut choose: impl FnMut(&[Event]) -> Option<usize>) {
    let mut history = History(Vec::new());
    let mut world = World::new(budget);
    loop {
        let events = world.events();
        let Some(chosen) = choose(&events) else {
            break;
        };
        history.0.push(events[chosen]);
        assert!(history.0.len() < EVENTS_MAX, "the history does not end");
        world.step(events[chosen]);
    }
    world.check_at_rest();
    assert!(budget.faults > 0 || world.has_succeeded());
}

struct History(Vec<Event>);

impl Drop for History {
    #[expect(clippy::print_stderr, reason = "a test says which history failed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shown = self.0.len().min(100);
            eprintln!("history: {:#?}", &self.0[..shown]);
        }
    }
}

fn depth(usual: usize, long: usize) -> usize {
    if std::env::var_os("LONG").is_some() {
        long
    } else {
        usual
    }
}

#[test]
fn crossing_calls_end_in_every_order_without_a_fault() {
    let budget = Budget {
        calls: [1, 1],
        faults: 0,
        twice: false,
    };
    assert!(every_order(budget, depth(9, 14)) > 1_000);
}

#[test]
fn crossing_calls_end_in_every_order_with_one_fault() {
    let budget = Budget {
        calls: [1, 1],
        faults: 1,
        twice: false,
    };
    assert!(every_order(budget, depth(7, 9)) > 1_000);
}

#[test]
fn a_call_sent_twice_ends_in_every_order_with_two_faults() {
    let budget = Budget {
        calls: [1, 0],
        faults: 2,
        twice: true,
    };
    assert!(every_order(budget, depth(7, 9)) > 1_000);
}

#[test]
fn a_call_that_expires_before_there_is_a_connection_is_never_sent() {
    let mut world = World::new(Budget {
        calls: [2, 0],
        faults: 1,
        twice: false,
    });
    let call = Event::Call {
        side: 0,
        twice: false,
    };
    for event in [call, Event::Expire { side: 0 }, call] {
        world.step(event);
    }
    // Each step asserts that no call with the outcome "not executed" was executed.
    while let events = world.events()
        && let Some(next) = first_without_fault(&events)
    {
        world.step(events[next]);
    }
    world.check_at_rest();
    assert_eq!(world.executed(), [0, 1]);
}

/// `SEED=n` repeats a history, `ROUNDS=n` runs n of them.
#[test]
fn random_histories_of_many_calls_and_faults_end() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: Option<u64> = number("SEED");
    let rounds = match seed {
        Some(_) => 1,
        None => number("ROUNDS").unwrap_or(300),
    };
    for _ in 0..rounds {
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        let mut random = fastrand::Rng::with_seed(seed);
        let _printed = Seed(seed);
        let budget = Budget {
            calls: [random.u32(0..12), random.u32(0..12)],
            faults: random.u32(0..6),
            twice: random.bool(),
        };
        let mut left = random.usize(0..400);
        run(budget, |events| {
            if left == 0 || events.is_empty() {
                return first_without_fault(events);
            }
            left -= 1;
            let chosen = random.usize(..events.len());
            // Mostly prefer events other than faults, so that connections live for a while.
            if events[chosen].is_fault() && random.u32(..8) > 0 {
                return first_without_fault(events).or(Some(chosen));
            }
            Some(chosen)
        });
    }
}

struct Seed(u64);

impl Drop for Seed {
    #[expect(clippy::print_stderr, reason = "a random test says how to repeat it")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SEED={}", self.0);
        }
    }
}
