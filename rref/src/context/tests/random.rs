//! Long random histories.

use std::time::Instant;

use c10d_sim::{Run, Seeds, run};

use crate::context::Carrier;

use super::world::{Budget, Op, Step, Thread, World};

/// Generates programs: each reference is created by one thread, sent along a random tree, and dropped by each holder
/// at some time.
fn programs(random: &mut fastrand::Rng, workers: usize) -> Vec<Thread> {
    let mut threads = Vec::new();
    let mut slots = 0;
    for _ in 0..random.usize(1..8) {
        let on = random.usize(0..workers);
        let slot = slots;
        slots += 1;
        let owner = random.usize(0..workers);
        let mut setter = None;
        let create = match random.u8(0..5) {
            0 => Op::CreateLocal { slot },
            4 => {
                // One in four values is never set.
                let setters = [Op::SetValue { slot }, Op::SetValueError { slot }];
                setter = random.choice(setters).filter(|_| random.u8(0..4) != 0);
                Op::CreatePromised { slot }
            }
            1 => Op::CreateHere { slot },
            _ if owner != on => Op::CreateRemote { slot, owner },
            _ => Op::CreateLocal { slot },
        };
        let mut open = vec![(on, slot, vec![create])];
        let mut forks = random.usize(0..8);
        while let Some((on, slot, mut ops)) = open.pop() {
            while random.u8(0..4) != 0 {
                match random.u8(0..4) {
                    0 => ops.push(Op::Fetch { slot }),
                    1 => ops.push(Op::FailToSend {
                        slot,
                        to: random.usize(0..workers),
                    }),
                    _ if forks > 0 => {
                        forks -= 1;
                        let to = random.usize(0..workers);
                        ops.push(Op::Send {
                            slot,
                            to,
                            slot_there: slots,
                            carrier: if random.bool() {
                                Carrier::Call
                            } else {
                                Carrier::Answer
                            },
                        });
                        open.push((to, slots, Vec::new()));
                        slots += 1;
                    }
                    _ => {}
                }
            }
            if let Some(set) = setter.take() {
                ops.insert(random.usize(1..=ops.len()), set);
            }
            ops.push(Op::Drop { slot });
            threads.push(Thread::new(on, &ops));
        }
    }
    threads
}

fn pick(random: &mut fastrand::Rng, steps: &[Step]) -> Option<Step> {
    (!steps.is_empty()).then(|| steps[random.usize(..steps.len())])
}

fn start(seed: u64) -> (World, fastrand::Rng) {
    let mut random = fastrand::Rng::with_seed(seed);
    let workers = random.usize(3..=6);
    let threads = programs(&mut random, workers);
    let budget = Budget {
        copies: random.u32(0..20),
        stalls: random.u32(0..10),
        not_delivered: random.u32(0..3),
        failing_functions: random.u32(0..3),
        lost_calls: random.u32(0..5),
        call_copies: random.u32(0..5),
    };
    let world = World::new(workers, threads, budget, Instant::now());
    (world, random)
}

/// Takes one step; returns `false` when nothing is left to do.
fn take_step(world: &mut Run<World>, random: &mut fastrand::Rng) -> bool {
    let faults = world.faults();
    if random.u8(0..8) == 0
        && let Some(fault) = pick(random, &faults)
    {
        world.take(fault);
        return true;
    }
    let step = pick(random, &world.regular_steps());
    let step = step.or_else(|| (!world.has_elapsed()).then_some(Step::Wait));
    step.is_some_and(|step| {
        world.take(step);
        true
    })
}

/// Takes the steps that are not faults, in any order, until there are none.
fn rest(world: &mut Run<World>, random: &mut fastrand::Rng) {
    while let Some(step) = pick(random, &world.regular_steps()) {
        world.take(step);
    }
}

/// Stops the world, and takes all remaining steps.
fn stop(world: &mut Run<World>, random: &mut fastrand::Rng) {
    world.take(Step::Stop);
    rest(world, random);
    world.take(Step::Sweep);
    while take_step(world, random) {}
}

/// Runs random histories. At the end of each, no further fault happens.
fn histories(history: impl Fn(&mut Run<World>, &mut fastrand::Rng)) {
    for seed in Seeds::fixed(2000) {
        run(|| start(seed), &history, |world, _| world.end());
    }
}

#[test]
fn with_delays_copies_and_losses_each_value_is_freed_once_and_not_too_early() {
    histories(|world, random| while take_step(world, random) {});
}

#[test]
fn after_a_death_the_tables_of_the_others_become_empty() {
    histories(|world, random| {
        for _ in 0..random.usize(0..60) {
            if !take_step(world, random) {
                break;
            }
        }
        let victim = random.usize(..world.contexts.len());
        world.take(Step::Kill(victim));
        let mut survivors: Vec<usize> = (0..world.contexts.len())
            .filter(|&on| on != victim)
            .collect();
        random.shuffle(&mut survivors);
        for on in survivors {
            for _ in 0..random.usize(0..10) {
                if !world.regular_steps().is_empty() {
                    take_step(world, random);
                }
            }
            world.take(Step::ReportLoss(on, victim));
        }
        // Threads that wait for a message of the dead worker wait forever.
        rest(world, random);
        stop(world, random);
    });
}

#[test]
fn a_shutdown_at_any_time_empties_all_tables() {
    histories(|world, random| {
        for _ in 0..random.usize(0..80) {
            if !take_step(world, random) {
                break;
            }
        }
        stop(world, random);
    });
}
