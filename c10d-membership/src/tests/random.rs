//! Random histories of up to 64 members.

use c10d_sim::{Run, Seeds, panics, run};
use fastrand::Rng;

use super::process::Process;
use super::world::{Budget, Mutant, Step, World};
use crate::options::GroupOptions;

#[test]
fn many_members_at_random() {
    let seeds = Seeds::fixed(60);
    let (is_replay, count) = (seeds.is_replay(), seeds.len());
    let commits: usize = seeds.map(|seed| random_history(seed, Mutant::None)).sum();
    assert!(is_replay || commits >= 2 * count, "{commits} generations");
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
        let found = (0..60).find(|seed| panics(|| _ = random_history(*seed, mutant)));
        assert!(found.is_some(), "{mutant:?} was not found");
    }
}

/// Returns the number of generations.
fn random_history(seed: u64, mutant: Mutant) -> usize {
    let history = |world: &mut Run<World>, random: &mut Rng| {
        for _ in 0..random.usize(1..200 * world.processes.len()) {
            let Some(step) = random_step(world, random) else {
                break;
            };
            world.take(step);
        }
    };
    let world = run(|| start(seed, mutant), history, |world, _| world.end());
    world.history.commits()
}

fn start(seed: u64, mutant: Mutant) -> (World, Rng) {
    let mut random = Rng::with_seed(seed);
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
    let some = |random: &mut Rng| random.usize(0..=5 + size as usize / 8);
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
    (world, random)
}

fn random_step(world: &World, random: &mut Rng) -> Option<Step> {
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
