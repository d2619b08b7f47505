//! Random histories of up to 64 members. `SEED=n` repeats a history, `ROUNDS=n` runs n new histories.

use std::panic::catch_unwind;

use super::process::Process;
use super::world::{Budget, Mutant, Step, World};
use crate::options::GroupOptions;

#[test]
#[expect(clippy::print_stdout, reason = "the first seed is never lost")]
fn many_members_at_random() {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("SEED and ROUNDS are numbers"))
    };
    let seeds = match (number("SEED"), number("ROUNDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(rounds)) => {
            let first = fastrand::u64(..u64::MAX / 2);
            first..first + rounds
        }
        (None, None) => 0..60,
    };
    println!(
        "SEED={} and following, {} in all",
        seeds.start,
        seeds.end - seeds.start
    );
    let mut commits = 0;
    let mut attempts = 0;
    for seed in seeds.clone() {
        let outcome = catch_unwind(|| random_history(seed, Mutant::None));
        let (committed, attempted) = outcome.unwrap_or_else(|_| {
            panic!("to repeat this history: SEED={seed}");
        });
        commits += committed;
        attempts += attempted;
    }
    println!("{commits} generations in {attempts} attempts");
    assert!(number("SEED").is_some() || commits as u64 >= 2 * (seeds.end - seeds.start));
}

/// The laws are of use: each defect breaks one.
#[test]
fn each_defect_of_the_service_or_a_process_is_found() {
    for mutant in [
        Mutant::AckForAll,
        Mutant::LeftTooEarly,
        Mutant::NotKept,
        Mutant::PassesBoundary,
        Mutant::AsksByItself,
        Mutant::NotTold,
        Mutant::NoTimer,
    ] {
        let found = (0..60).find(|seed| catch_unwind(|| random_history(*seed, mutant)).is_err());
        assert!(found.is_some(), "{mutant:?} was not found");
    }
}

/// How many generations and attempts there were.
fn random_history(seed: u64, mutant: Mutant) -> (usize, u32) {
    let mut random = fastrand::Rng::with_seed(seed);
    let size = if random.u8(..4) == 0 {
        64
    } else {
        random.u64(2..16)
    };
    let mut processes: Vec<_> = (1..=size).map(|id| Process::new(id, 1)).collect();
    for _ in 0..random.u64(0..=size / 2) {
        let id = random.u64(1..=size + 4);
        let newest = processes.iter().filter(|it| it.key.id.0 == id).count();
        processes.push(Process::new(id, newest as u64 + 1));
    }
    let mut options = GroupOptions::new(random.usize(1..=2 + processes.len() / 8));
    options.size_first = options.size_min + random.usize(0..=processes.len() / 4);
    options.replace_wait = std::time::Duration::from_secs(random.u64(0..2) * 7);
    let some = |random: &mut fastrand::Rng| random.usize(0..=5 + size as usize / 8);
    let budget = Budget {
        kills: some(&mut random),
        stops: some(&mut random),
        losses: 4 * some(&mut random),
        copies: 4 * some(&mut random),
        failing_calls: some(&mut random),
        late: random.usize(0..3),
        leaves: random.usize(0..3),
        restarts: random.usize(0..3),
        is_split: random.bool(),
        steps: random.u64(0..4),
        asks_for_changes: random.bool(),
    };
    let is_formed = random.u8(..4) > 0;
    let first = options.size_first as u64;
    let mut world = World::new(options, processes, budget);
    world.mutant = mutant;
    if is_formed && first <= size {
        world.form(|it| it.incarnation.0 == 1 && it.id.0 <= first);
    }
    for _ in 0..random.usize(1..200 * world.processes.len()) {
        let Some(step) = random_step(&world, &mut random) else {
            break;
        };
        world.take(step);
    }
    world.end();
    (world.history.commits(), world.attempts())
}

fn random_step(world: &World, random: &mut fastrand::Rng) -> Option<Step> {
    let all = world.processes.len();
    let mut steps = Vec::new();
    let first = random.usize(..all);
    if random.u8(..60) == 0 {
        steps.extend(world.faults_of(first));
        steps.extend(world.faults());
    }
    for at in (first..all).chain(0..first) {
        if !steps.is_empty() {
            break;
        }
        steps = world.steps_of(at);
    }
    if steps.is_empty() {
        steps.extend((0..all).flat_map(|at| world.faults_of(at)));
        steps.extend(world.faults());
        steps.extend(world.wake_at().map(|_| Step::Tick));
    }
    random.choice(steps)
}
