//! Which references a value holds, and which of them form cycles: the leak report.
//!
//! A value is visited by serializing it without keeping bytes. A value without an encoding hides its references.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use rpc_agent::WorkerId;

use crate::id::{GloballyUniqueId, RRefId};
use crate::packing;
use crate::protocol::{HOLDS, Message};
use crate::report::{HeldValue, Holder, LeakReport};
use crate::runtime::{RunOn, Runtime};

/// The most values that are visited in search of cycles.
const VISITED_MAX: usize = 10_000;

/// The most references that are followed in search of cycles; one that several searches reach counts each time.
const FOLLOWED_MAX: usize = 100 * VISITED_MAX;

/// How long another worker may take to report the references that a value holds.
const HOLDS_TIMEOUT: Duration = Duration::from_secs(5);

type Edges = Vec<(RRefId, WorkerId)>;

/// An edge on the wire: the owner; the reference's creator, incarnation and count.
type EncodedEdges = Vec<(u32, u32, u64, u64)>;

/// The state of a search for cycles.
struct Search<'a> {
    runtime: &'a Arc<Runtime>,
    deadline: Deadline,
    edges: HashMap<RRefId, Edges>,
    /// Workers that have not answered in time. They are not asked again.
    silent: HashSet<WorkerId>,
    /// How many references may still be followed.
    left: usize,
}

/// The values of this worker that are held, their holders, and the cycles among them. Blocks until `deadline`
/// for other workers' answers, and for locks inside this worker's values.
pub(crate) fn leak_report(runtime: &Arc<Runtime>, deadline: Deadline) -> LeakReport {
    let snapshot = runtime.step(RunOn::AgentThread, |inner, now| {
        runtime.collect_drops_in_step(inner, now);
        inner.context.snapshot(now)
    });
    let me = runtime.agent.me();
    let mut search = Search {
        runtime,
        deadline,
        edges: HashMap::new(),
        silent: HashSet::new(),
        left: FOLLOWED_MAX,
    };
    let values: Vec<HeldValue> = snapshot
        .owned
        .into_iter()
        .map(|row| {
            let held = search.held_anywhere(row.rref, me.id);
            let holds = held.iter().map(|(rref, _)| *rref).collect();
            search.edges.insert(row.rref, held);
            let held_by = row.forks.into_iter().map(|fork| Holder {
                worker: runtime.worker(fork.worker),
                fork: fork.fork,
                age: fork.age,
            });
            HeldValue {
                rref: row.rref,
                type_name: row.type_name,
                state: row.state,
                age: row.age,
                handles: row.handles,
                held_by: held_by.collect(),
                holds,
            }
        })
        .collect();
    let mut cycles: Vec<Vec<RRefId>> = Vec::new();
    let mut known: HashSet<RRefId> = HashSet::new();
    for value in &values {
        if known.contains(&value.rref) || value.holds.is_empty() {
            continue;
        }
        match search.cycle_through(value.rref, me.id) {
            Some(cycle) => {
                known.extend(&cycle);
                cycles.push(cycle);
            }
            // It is in no cycle, so other searches need not follow it.
            None if search.left > 0 => drop(search.edges.insert(value.rref, Vec::new())),
            None => break,
        }
    }
    LeakReport {
        worker: me.clone(),
        values,
        cycles,
    }
}

/// The references that a value of this worker holds.
fn held(runtime: &Arc<Runtime>, rref: RRefId) -> Edges {
    let value = runtime.lock().context.try_value(rref);
    let Some(Ok(value)) = value else {
        return Vec::new();
    };
    let cells = packing::collect(|| {
        let what = value.type_name();
        let _ = runtime.contain_panic(format_args!("the encoding of a `{what}`"), || value.visit());
    });
    cells
        .iter()
        .map(|cell| (cell.rref(), cell.owner()))
        .collect()
}

/// [`held`], as the answer to another worker.
pub(crate) fn encode_held(runtime: &Arc<Runtime>, rref: RRefId) -> Vec<u8> {
    let held: EncodedEdges = held(runtime, rref)
        .into_iter()
        .map(|(RRefId(id), owner)| {
            (
                owner.get(),
                id.created_on.get(),
                id.incarnation,
                id.local_id,
            )
        })
        .collect();
    rpc_agent::typed::encode(&held).unwrap_or_default()
}

impl Search<'_> {
    /// The references that a value of any worker holds.
    fn held_anywhere(&mut self, rref: RRefId, owner: WorkerId) -> Edges {
        let now = Instant::now();
        if self.deadline.has_passed(now) || self.silent.contains(&owner) {
            return Vec::new();
        }
        if self.runtime.is_me(owner) {
            return held(self.runtime, rref);
        }
        let left = self.deadline.remaining(now);
        let timeout = left.map_or(HOLDS_TIMEOUT, |left| {
            left.clamp(Duration::from_millis(1), HOLDS_TIMEOUT)
        });
        let payload = Message::Fetch { rref }.encode(self.runtime.incarnation);
        let call = self.runtime.agent.call(owner, HOLDS);
        let answer = call.with_timeout(timeout).send_bytes(payload).wait().ok();
        if answer.is_none() {
            self.silent.insert(owner);
        }
        let edges =
            answer.and_then(|answer| rpc_agent::typed::decode::<EncodedEdges>(&answer).ok());
        let edges = edges.unwrap_or_default().into_iter();
        edges
            .filter_map(|(owner, created_on, incarnation, local_id)| {
                let id = GloballyUniqueId {
                    created_on: WorkerId::new(created_on).ok()?,
                    incarnation,
                    local_id,
                };
                Some((RRefId(id), WorkerId::new(owner).ok()?))
            })
            .collect()
    }

    /// The shortest path from a reference back to itself.
    fn cycle_through(&mut self, start: RRefId, owner: WorkerId) -> Option<Vec<RRefId>> {
        let mut seen = HashSet::from([start]);
        // Each with the index of its predecessor.
        let mut found: Vec<(RRefId, WorkerId, usize)> = vec![(start, owner, 0)];
        let mut next = 0;
        while let Some(&(rref, owner, _)) = found.get(next) {
            if !self.edges.contains_key(&rref) {
                if self.edges.len() >= VISITED_MAX {
                    return None;
                }
                let held = self.held_anywhere(rref, owner);
                self.edges.insert(rref, held);
            }
            for &(held, owner) in self.edges.get(&rref).into_iter().flatten() {
                self.left = self.left.checked_sub(1)?;
                if held == start {
                    let mut cycle = vec![rref];
                    let mut at = next;
                    while at != 0 {
                        at = found[at].2;
                        cycle.push(found[at].0);
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                if seen.insert(held) {
                    found.push((held, owner, next));
                }
            }
            next += 1;
        }
        None
    }
}
