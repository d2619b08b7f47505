//! Snapshots that no sane job makes: whatever strangers send, a report is made, and it is harmless text.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use c10d_sim::Seeds;
use c10d_store::Opcode;
use c10d_store::{
    Announcement, CloseReason, Closed, ConnectionId, ConnectionRecord, KeyRecord, LastRequest,
    PendingWait, Snapshot, Version,
};
use fastrand::Rng;

use crate::announced::{
    AnnouncedNode, AnnouncedProcess, AnnouncedSample, AnnouncedWorker, WorkerEnd,
};
use crate::keys::encoded;
use crate::stacks::{Frame, Stacks, ThreadStack};
use crate::{explain, translate};

const COMMANDS: [Opcode; 10] = [
    Opcode::Set,
    Opcode::Get,
    Opcode::Add,
    Opcode::Wait,
    Opcode::MultiGet,
    Opcode::CancelWait,
    Opcode::Barrier,
    Opcode::WaitGet,
    Opcode::WaitChange,
    Opcode::QueueTake,
];

const NAMES: [&str; 4] = [
    "<script>alert(1)</script>",
    "\x1b[2J\x1b]0;x\x07",
    "a\u{202e}b\u{2066}\n",
    "vm",
];

fn key(random: &mut Rng) -> Vec<u8> {
    let number = match random.u8(..6) {
        0 => random.usize(..),
        _ => random.usize(..6),
    };
    let name = NAMES[random.usize(..NAMES.len())];
    match random.u8(..16) {
        0..=4 => format!("/default_pg/0//cpu//0/{number}").into_bytes(),
        5 => format!("/{name}/0//cpu//0/{number}").into_bytes(),
        6 => format!("/default_pg/0//{}//cpu//0/{number}", random.u8(..4)).into_bytes(),
        7 => format!("/default_pg/0//{:040x}//0/{number}", random.u8(..3)).into_bytes(),
        8 => format!("/default_pg/0//cuda//0/nccl_storekey_{number}").into_bytes(),
        9 => format!("/default_pg/0//store_based_barrier_key:{name}:last_worker").into_bytes(),
        10 => format!("/debug_server/rank{number}").into_bytes(),
        11 => format!("/none/torchelastic/assigned_ranks/{number}").into_bytes(),
        12 => format!("/rpc_prefix_0/0/{number}").into_bytes(),
        13 => b"init/".to_vec(),
        14 => (0..random.usize(..200)).map(|_| random.u8(..)).collect(),
        _ => name.as_bytes().to_vec(),
    }
}

fn value(random: &mut Rng) -> Vec<u8> {
    match random.u8(..6) {
        0..=2 => {
            let address = SocketAddr::from(([127, 0, 0, 1], random.u16(..)));
            let mut value = encoded(NAMES[random.usize(..4)], address, random.usize(..6));
            if random.u8(..8) == 0 {
                let place = random.usize(..value.len());
                value[place] = random.u8(..);
            }
            value
        }
        3 => b"[18446744073709551615, 18446744073709551615, 0, 0]".to_vec(),
        4 => random.u64(..).to_string().into_bytes(),
        _ => (0..random.usize(..300)).map(|_| random.u8(..)).collect(),
    }
}

fn moment(random: &mut Rng) -> Duration {
    match random.u8(..20) {
        0 => Duration::MAX,
        1 => Duration::ZERO,
        _ => Duration::from_millis(random.u64(..100_000)),
    }
}

fn record(random: &mut Rng, id: u64) -> ConnectionRecord {
    let peer = SocketAddr::from(([127, 0, 0, random.u8(..3)], random.u16(..)));
    let mut record = ConnectionRecord::new(ConnectionId(id), peer, moment(random));
    record.nonce = match random.u8(..4) {
        0 => None,
        1 => Some(random.u32(..)),
        _ => Some(1000 + random.u32(..4)),
    };
    if random.u8(..8) > 0 {
        record.last = Some(LastRequest {
            command: COMMANDS[random.usize(..COMMANDS.len())],
            key: key(random).into(),
            is_key_cut: random.u8(..10) == 0,
            key_count: random.usize(..3),
            number: random.i64(..),
            at: moment(random),
        });
    }
    if random.bool() {
        let missing: Vec<Arc<[u8]>> = (0..random.usize(..4)).map(|_| key(random).into()).collect();
        record.wait = Some(PendingWait {
            command: COMMANDS[random.usize(..COMMANDS.len())],
            since: moment(random),
            missing_count: random.usize(..),
            missing,
        });
    }
    record.reads = (0..random.usize(..9))
        .map(|_| Version(random.u64(..60)))
        .collect();
    record
}

fn sample(random: &mut Rng) -> AnnouncedSample {
    let name = |random: &mut Rng| {
        let name = NAMES[random.usize(..4)].repeat(random.usize(..100));
        random.bool().then_some(name)
    };
    let age = |random: &mut Rng| match random.u8(..8) {
        0 => random.u64(..),
        _ => random.u64(..60_000),
    };
    AnnouncedSample {
        taken_ago_ms: random.u64(..20_000),
        quiet_ms: age(random),
        blocked_ms: random.bool().then(|| age(random)),
        idle_ms: age(random),
        cpu_percent: random.u32(..200),
        others_cpu_percent: random.u32(..200),
        io_bytes_per_second: age(random),
        state: ['S', 'D', 'T', 't', '\u{202e}']
            .get(random.usize(..8))
            .copied(),
        waits_in: name(random),
        system_call: name(random),
        command_line: name(random),
        stacks: random.bool().then(|| random.usize(..4)),
        stacks_before: random.bool().then(|| random.usize(..4)),
        error: name(random),
        dead_children: vec![random.u32(..); random.usize(..40)],
        ..AnnouncedSample::default()
    }
}

fn stacks(random: &mut Rng) -> Stacks {
    let mut frame = || Frame {
        file: NAMES[random.usize(..4)].repeat(random.usize(..100)),
        line: random.u32(..),
        function: NAMES[random.usize(..4)].repeat(random.usize(..100)),
        is_library: random.bool(),
    };
    let mut thread = || ThreadStack {
        name: None,
        frames: (0..4).map(|_| frame()).collect(),
    };
    Stacks {
        threads: (0..3).map(|_| thread()).collect(),
        is_cut: false,
    }
}

fn announcement(random: &mut Rng) -> Vec<u8> {
    if random.u8(..4) == 0 {
        return value(random);
    }
    let workers = (0..random.usize(..6)).map(|_| AnnouncedWorker {
        rank: if random.u8(..6) == 0 {
            random.usize(..)
        } else {
            random.usize(..6)
        },
        pid: 1000 + random.u32(..4),
        started_ago_ms: random.u64(..),
        end: random.bool().then(|| WorkerEnd {
            exit_code: random.bool().then(|| random.i32(..)),
            signal: random.bool().then(|| random.i32(..)),
            ago_ms: random.u64(..),
            by_launcher: random.bool(),
        }),
        processes: vec![
            AnnouncedProcess {
                pid: 1000 + random.u32(..4),
                parent: Some(1000 + random.u32(..4)),
                command: Some(NAMES[random.usize(..4)].to_owned()),
                store_connections: vec![SocketAddr::from(([127, 0, 0, 1], random.u16(..)))],
                ..AnnouncedProcess::default()
            };
            random.usize(..4)
        ],
        sample: random.bool().then(|| sample(random)),
        ..AnnouncedWorker::default()
    });
    let workers: Vec<_> = workers.collect();
    let node = AnnouncedNode {
        workers,
        stacks: (0..random.usize(..4)).map(|_| stacks(random)).collect(),
        explain_after_ms: random.bool().then(|| random.u64(..40_000)),
        host: NAMES[random.usize(..4)].to_owned(),
        world_size: random
            .bool()
            .then(|| if random.bool() { random.usize(..) } else { 4 }),
        node_rank: random.bool().then(|| random.usize(..)),
        ..AnnouncedNode::default()
    };
    serde_json::to_vec(&node).expect("plain values")
}

fn snapshot(random: &mut Rng) -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.now = moment(random);
    let count = random.u64(..12);
    snapshot.connections = (0..count).map(|id| record(random, id)).collect();
    snapshot.closed = (20..20 + random.u64(..6))
        .map(|id| {
            let mut record = record(random, id);
            record.closed = Some(Closed {
                at: moment(random),
                reason: CloseReason::Failed,
            });
            record
        })
        .collect();
    for version in 0..random.u64(..30) {
        let writer = ConnectionId(random.u64(..30));
        let (key, value) = (key(random), value(random));
        let mut record = KeyRecord::new(&key, &value, Version(version), writer, moment(random));
        if random.bool() {
            let before = ConnectionId(random.u64(..30));
            record.previous = Some((Version(30 + version), before, moment(random)));
        }
        if random.u8(..10) == 0 {
            record.value_len = random.usize(..);
        }
        snapshot.keys.push(record);
    }
    for _ in 0..random.usize(..4) {
        snapshot.announcements.push(Announcement {
            connection: ConnectionId(random.u64(..30)),
            at: moment(random),
            bytes: announcement(random).into(),
        });
    }
    snapshot
}

#[test]
fn any_snapshot_gives_a_harmless_report() {
    for seed in Seeds::fixed(1500) {
        let mut random = Rng::with_seed(seed);
        let snapshot = snapshot(&mut random);
        let report = explain(&snapshot, None);
        let mut texts = vec![&report.headline];
        texts.extend(report.findings.iter().map(|finding| &finding.text));
        texts.extend(
            report
                .waits
                .iter()
                .flat_map(|wait| [&wait.key, &wait.meaning]),
        );
        texts.extend(report.groups.iter().map(|group| &group.name));
        texts.extend(report.nodes.iter().map(|node| &node.host));
        texts.extend(report.unknown_processes.iter().map(|process| &process.name));
        for rank in &report.ranks {
            texts.push(&rank.doing);
            texts.extend(
                [
                    &rank.host,
                    &rank.last_request,
                    &rank.waits_for,
                    &rank.debug_url,
                ]
                .into_iter()
                .flatten(),
            );
        }
        for text in texts {
            let is_harmful = |c: char| c.is_control() || matches!(c, '\u{202e}' | '\u{2066}');
            assert!(!text.contains(is_harmful), "{text:?}");
            assert!(text.len() < 4000, "{} bytes", text.len());
        }
        serde_json::to_string(&report).expect("a report can be written as JSON");
        let _ = translate(
            "remote=[127.0.0.1]:4242, keys: /default_pg/0//cpu//0/2",
            &snapshot,
        );
    }
}
