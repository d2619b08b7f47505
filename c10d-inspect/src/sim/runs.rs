//! A thousand random jobs: no connection is ever given a wrong rank, and no innocent rank is blamed.

use std::collections::BTreeSet;

use c10d_sim::Seeds;
use c10d_store::Snapshot;
use fastrand::Rng;

use super::world::World;
use crate::identity::Identities;
use crate::index::Index;
use crate::launched::Launched;
use crate::{FindingKind, explain};

/// How often connections of ranks were named.
#[derive(Debug, Default)]
struct Tally {
    named: usize,
    unknown: usize,
    strangers: usize,
    stuck: usize,
    blamed: usize,
}

fn has_certificates(world: &World, snapshot: &Snapshot, tally: &mut Tally) {
    let index = Index::new(snapshot);
    let launched = Launched::new(&index);
    let who = Identities::new(&index, &launched);
    for slot in 0..index.connections.len() {
        let connection = index.connections[slot];
        let truth = world.truth[&connection.id];
        match (who.identity(slot), truth) {
            (Some(named), truth) => {
                assert_eq!(
                    Some(named.rank),
                    truth,
                    "wrong name ({:?}) for {connection:#?}",
                    named.sureness
                );
                tally.named += 1;
            }
            (None, Some(_)) => tally.unknown += 1,
            (None, None) => tally.strangers += 1,
        }
    }
}

/// A rank that ends with another rank's process is not blamed, also while the report is young.
fn check_victims(world: &World, snapshot: &Snapshot) {
    if !world.is_simple {
        return;
    }
    let report = explain(snapshot, None);
    let blamed = report.findings.iter().filter(|finding| {
        matches!(
            finding.kind,
            FindingKind::LostInInit | FindingKind::LostLater
        )
    });
    let blamed: BTreeSet<usize> = blamed
        .flat_map(|finding| finding.culprits.0.iter().copied())
        .collect();
    assert!(
        blamed.is_subset(&world.faulty),
        "blames {blamed:?} of {:?}: {:#?}",
        world.faulty,
        report.findings
    );
}

fn check_culprits(world: &World, snapshot: &Snapshot, tally: &mut Tally) {
    let report = explain(snapshot, None);
    let causes = report
        .findings
        .iter()
        .filter(|finding| !finding.is_consequence);
    let culprits: BTreeSet<usize> = causes
        .flat_map(|finding| finding.culprits.0.iter().copied())
        .collect();
    if !world.is_simple {
        return;
    }
    assert!(
        culprits.is_subset(&world.faulty),
        "blames {culprits:?} of {:?}: {:#?}",
        world.faulty,
        report.findings
    );
    let missing = world.missing();
    if !missing.is_empty() {
        assert!(report.is_stuck, "{:#?}", report.findings);
        assert!(
            missing.is_subset(&culprits),
            "{missing:?} are missing: {:#?}",
            report.findings
        );
        tally.stuck += 1;
    } else if world.faulty.is_empty() {
        // A stranger's tool may wait for its own key.
        let is_quiet = |kind| matches!(kind, FindingKind::NotInTheStore | FindingKind::Key);
        assert!(
            report.findings.iter().all(|finding| is_quiet(finding.kind)),
            "{:#?}",
            report.findings
        );
    }
    tally.blamed += culprits.len();
}

#[test]
fn no_rank_is_ever_named_wrongly() {
    let mut tally = Tally::default();
    let seeds = Seeds::fixed(1000);
    let is_replay = seeds.is_replay();
    for seed in seeds {
        let mut random = Rng::with_seed(seed ^ 0x5eed);
        let mut world = World::new(seed);
        for tick in 0..60 {
            world.tick(tick, &mut random);
            if random.u8(..10) == 0 {
                let snapshot = world.store.snapshot();
                has_certificates(&world, &snapshot, &mut tally);
            }
            check_victims(&world, &world.store.snapshot());
        }
        world.settle(40, &mut random);
        let snapshot = world.store.snapshot();
        has_certificates(&world, &snapshot, &mut tally);
        check_culprits(&world, &snapshot, &mut tally);
    }
    #[expect(clippy::print_stderr, reason = "a measurement")]
    {
        eprintln!("{tally:?}");
    }
    if !is_replay {
        // A report without names would be right and useless.
        assert!(tally.named > 4 * tally.unknown, "{tally:?}");
        assert!(
            tally.strangers > 500 && tally.stuck > 100 && tally.blamed > 200,
            "{tally:?}"
        );
    }
}
