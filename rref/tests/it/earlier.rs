//! Workers of release 0.2, which take one message about a reference at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use byteorder::{ByteOrder, LittleEndian};
use bytes::Bytes;
use rpc_agent::{Registry, WorkerId};
use rref::fuzzing::{Answer, ForkData, Message};
use rref::{ForkId, GloballyUniqueId, RRef, RRefId};

use crate::common::{PATIENCE, group_with_stranger, stop, until};

const COUNT: u32 = 1000;

/// The worker of the earlier release.
const EARLIER: u32 = 2;
const INCARNATION: u64 = 77;

/// How often each user was registered and deleted at the worker.
#[derive(Default)]
struct Seen {
    registered: BTreeMap<ForkId, u32>,
    deleted: BTreeMap<ForkId, u32>,
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The functions of the release that these messages need: `rref/controls` is not one of them.
fn of_the_release(seen: &Arc<Mutex<Seen>>) -> Registry {
    let mut registry = Registry::new();
    let seen = Arc::clone(seen);
    let control = move |_: &rpc_agent::Context, payload: Bytes| {
        let (_, message) = Message::decode(&payload).unwrap();
        let mut seen = lock(&seen);
        match message {
            Message::ForkRequest { fork, .. } => {
                *seen.registered.entry(fork).or_default() += 1;
            }
            Message::UserDelete { forks } => {
                for (_, fork) in forks {
                    *seen.deleted.entry(fork).or_default() += 1;
                }
            }
            message => panic!("unexpected {message:?}"),
        }
        Ok(Answer::Ack.encode(INCARNATION).into())
    };
    registry.register_bytes("rref/control", control).unwrap();
    let alive = |_: &rpc_agent::Context, _: &[u8]| {
        let mut bytes = vec![0; 8];
        LittleEndian::write_u64(&mut bytes, INCARNATION);
        Ok(bytes)
    };
    registry.register("rref/alive", alive).unwrap();
    registry
}

fn worker(id: u32) -> WorkerId {
    WorkerId::new(id).unwrap()
}

/// A call of `keep` on worker 1, with references to values of the earlier worker.
fn call_with_references() -> Vec<u8> {
    let id = |local_id| GloballyUniqueId {
        created_on: worker(EARLIER),
        incarnation: INCARNATION,
        local_id,
    };
    let number = |bytes: &mut Vec<u8>, number: u32| {
        bytes.extend_from_slice(&[0; 4]);
        let end = bytes.len();
        LittleEndian::write_u32(&mut bytes[end - 4..], number);
    };
    let mut bytes = b"\x04keep".to_vec();
    number(&mut bytes, COUNT);
    for count in 0..u64::from(COUNT) {
        let fork = ForkData {
            owner: worker(EARLIER),
            owner_incarnation: INCARNATION,
            rref: RRefId(id(count)),
            fork: ForkId(id(1 << 48 | count)),
            parent: worker(EARLIER),
            type_name: "i64".into(),
        };
        fork.encode(&mut bytes);
    }
    let numbers: Vec<u32> = (0..COUNT).collect();
    bytes.extend_from_slice(&rpc_agent::typed::encode(&numbers).unwrap());
    bytes
}

/// Worker 1 has the references of the earlier worker, and sends all of them to worker 0, which registers them at the
/// earlier worker: first together, which that refuses, and then one by one.
#[test]
fn references_of_a_worker_of_release_0_2_are_registered_one_by_one() {
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let kept: Arc<Mutex<Vec<RRef<i64>>>> = Arc::default();
    let (workers, earlier) = group_with_stranger(of_the_release(&seen), |functions| {
        let kept = Arc::clone(&kept);
        let keep = move |_: &rref::CallContext, refs: Vec<RRef<i64>>| {
            *kept.lock().unwrap() = refs;
            Ok(())
        };
        functions.register("keep", keep).unwrap();
        let count = |_: &rref::CallContext, refs: Vec<RRef<i64>>| {
            assert!(refs.iter().all(RRef::is_confirmed));
            Ok(refs.len())
        };
        functions.register("count", count).unwrap();
    });
    let call = earlier.handle().call("worker1", "rref/run");
    call.with_timeout(PATIENCE)
        .send_bytes(call_with_references())
        .wait()
        .unwrap();
    let refs = std::mem::take(&mut *kept.lock().unwrap());
    assert_eq!(refs.len(), COUNT as usize);

    let call = workers[1].rrefs.call("worker0", "count");
    let counted = call.with_timeout(PATIENCE).run::<_, usize>(&refs);
    assert_eq!(counted.unwrap(), refs.len());
    let registered = lock(&seen).registered.clone();
    assert_eq!(registered.len(), refs.len());
    assert!(registered.values().all(|times| *times == 1));

    drop(refs);
    until("all users are deleted once, those of both workers", || {
        lock(&seen).deleted.len() == 2 * COUNT as usize
    });
    assert!(lock(&seen).deleted.values().all(|times| *times == 1));
    stop(&workers);
    earlier.shutdown_now();
}
