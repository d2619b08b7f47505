//! 16,384 ranks on 2048 hosts: all absent ranks are named, in time.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use c10d_store::Snapshot;

use super::script::DEFAULT;
use super::store::Store;
use crate::announced::{AnnouncedNode, AnnouncedProcess, AnnouncedWorker};
use crate::keys::encoded;
use crate::{FindingKind, Report, explain};

const RANKS: usize = 16_384;
const RANKS_PER_HOST: usize = 8;

fn peer(rank: usize) -> SocketAddr {
    let host = rank / RANKS_PER_HOST;
    let ip = [10, 0, (host >> 8) as u8, host as u8];
    SocketAddr::from((ip, 40_000 + (rank % RANKS_PER_HOST) as u16))
}

fn pid(rank: usize) -> u32 {
    1000 + rank as u32 % 7
}

/// All ranks but `absent` publish, then wait: in order, or for all at once.
fn snapshot(absent: &BTreeSet<usize>, is_in_order: bool, is_launched: bool) -> Snapshot {
    let mut store = Store::default();
    store.pass(Duration::from_secs(100));
    let present: Vec<usize> = (0..RANKS).filter(|rank| !absent.contains(rank)).collect();
    let mut connections = Vec::new();
    let mut value = encoded("node-0000", peer(0), RANKS);
    for &rank in &present {
        let connection = store.connect(peer(rank), pid(rank));
        store.add(connection, "init/", 1);
        // An address takes 128 kB: only the part that differs is rewritten.
        let listening = SocketAddr::new(peer(rank).ip(), 30_000 + rank as u16 % 8);
        let start = encoded(&format!("node-{:04}", rank / RANKS_PER_HOST), listening, 0);
        value[..start.len()].copy_from_slice(&start);
        store.set(connection, &format!("{DEFAULT}{rank}"), &value);
        connections.push(connection);
    }
    let keys: Vec<String> = (0..RANKS).map(|rank| format!("{DEFAULT}{rank}")).collect();
    let lowest = absent.first().copied().unwrap_or(0);
    for &connection in &connections {
        if is_in_order {
            for key in &keys[lowest.saturating_sub(8)..lowest] {
                store.get(connection, std::slice::from_ref(key));
            }
            store.wait(connection, std::slice::from_ref(&keys[lowest]));
        } else {
            let missing: Vec<String> = absent.iter().map(|&rank| keys[rank].clone()).collect();
            store.wait(connection, &missing);
        }
    }
    if is_launched {
        for host in 0..RANKS / RANKS_PER_HOST {
            let launcher = store.connect(SocketAddr::new(peer(host * 8).ip(), 39_000), 0xC10D_0000);
            store.announce(launcher, &node(host, absent));
        }
    }
    store.pass(Duration::from_secs(31));
    store.snapshot()
}

fn node(host: usize, absent: &BTreeSet<usize>) -> AnnouncedNode {
    let worker = |local: usize| {
        let rank = host * RANKS_PER_HOST + local;
        let is_connected = !absent.contains(&rank);
        AnnouncedWorker {
            rank,
            local_rank: local,
            pid: pid(rank),
            started_ago_ms: 10_000,
            processes: vec![AnnouncedProcess {
                pid: pid(rank),
                state: Some('S'),
                store_connections: if is_connected {
                    vec![peer(rank)]
                } else {
                    Vec::new()
                },
                ..AnnouncedProcess::default()
            }],
            ..AnnouncedWorker::default()
        }
    };
    AnnouncedNode {
        host: format!("node-{host}"),
        node_rank: Some(host),
        world_size: Some(RANKS),
        pid: 900,
        workers: (0..RANKS_PER_HOST).map(worker).collect(),
        ..AnnouncedNode::default()
    }
}

/// The report; with optimization, that it took less than a second of the processor, whatever else runs.
fn timed(snapshot: &Snapshot, what: &str) -> Report {
    let started = cpu_time();
    let report = explain(snapshot, None);
    let elapsed = cpu_time().saturating_sub(started);
    #[expect(clippy::print_stderr, reason = "a measurement")]
    {
        eprintln!("{what}: {elapsed:?}");
    }
    let is_in_time = elapsed < Duration::from_secs(1);
    assert!(is_in_time || cfg!(debug_assertions), "{what}: {elapsed:?}");
    report
}

/// The processor time of this thread; zero where the system does not tell.
fn cpu_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = times.split(' ').next().and_then(|time| time.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

#[test]
fn absent_ranks_of_16384_are_named_in_time() {
    let mut random = fastrand::Rng::with_seed(7);
    for (count, is_in_order, is_launched) in [
        (1, true, false),
        (13, true, true),
        (1000, true, true),
        (16, false, false),
    ] {
        let mut absent = BTreeSet::new();
        while absent.len() < count {
            absent.insert(random.usize(..RANKS));
        }
        let snapshot = snapshot(&absent, is_in_order, is_launched);
        let report = timed(
            &snapshot,
            &format!("{count} absent, launched: {is_launched}"),
        );
        let cause = &report.findings[0];
        assert_eq!(cause.kind, FindingKind::NeverConnected);
        assert_eq!(cause.culprits.0, absent);
        assert_eq!(cause.waiting.0.len(), RANKS - count);
        assert_eq!(report.findings.len(), 1);
        assert!(cause.text.len() < 1000, "{}", cause.text);
        assert_eq!(report.ranks.len(), RANKS);
        let suspects = report.ranks.iter().filter(|rank| rank.is_suspect);
        assert!(suspects.map(|rank| rank.rank).eq(absent.iter().copied()));
    }
}

#[test]
fn many_subgroups_are_explained_in_time() {
    let mut store = Store::default();
    store.pass(Duration::from_secs(100));
    let value = encoded("h", peer(0), RANKS);
    for rank in 0..RANKS {
        let connection = store.connect(peer(rank), pid(rank));
        store.add(connection, "init/", 1);
        let listening = SocketAddr::new(peer(rank).ip(), 30_000);
        store.set(connection, &format!("{DEFAULT}{rank}"), &value);
        // Groups of 8 ranks each, whose last rank never arrives.
        let stem = format!("/default_pg/0//{}//cpu//0/", 1 + rank / 8);
        if rank % 8 != 7 {
            store.set(
                connection,
                &format!("{stem}{}", rank % 8),
                &encoded("h", listening, 8),
            );
            store.wait(connection, &[format!("{stem}7")]);
        }
    }
    store.pass(Duration::from_secs(31));
    let report = timed(&store.snapshot(), "2048 incomplete groups");
    assert!(report.is_stuck);
    assert!(report.findings.len() < 100, "{}", report.findings.len());
    assert!(report.groups.len() <= 1000);
}
