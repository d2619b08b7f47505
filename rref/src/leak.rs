//! The end: what is still held, and by whom; and how all of it goes.
//!
//! Values are looked into as they are encoded, with references noted instead of forked and no bytes kept, so
//! a value without an encoding hides what it holds.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use c10d_socket::Deadline;
use rpc_agent::{Agent, CallOptions, WorkerId, WorkerInfo};

use crate::carry;
use crate::error::ShutdownError;
use crate::id::{ForkId, GloballyUniqueId, RRefId};
use crate::protocol::Message;
use crate::runtime::{HOLDS, Inner, Mode, RRefs, Runtime};

/// The most values that are looked into for cycles.
const LOOKED_INTO_MAX: usize = 10_000;

/// The most references that are followed in search of cycles, each as often as a search comes to it.
const FOLLOWED_MAX: usize = 100 * LOOKED_INTO_MAX;

/// How long another worker has to say what a value of its holds.
const HOLDS_TIMEOUT: Duration = Duration::from_secs(5);

/// The values of a worker that are still held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeakReport {
    /// Whose values.
    pub worker: WorkerInfo,
    /// One each.
    pub values: Vec<HeldValue>,
    /// References that point at each other from inside of their values, so that none of them would ever
    /// be freed: each in the order in which they point, those of other workers included.
    pub cycles: Vec<Vec<RRefId>>,
}

/// A value that is still held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldValue {
    /// The reference.
    pub rref: RRefId,
    /// The value's type, where it is known.
    pub type_name: Option<Arc<str>>,
    /// `unmade`, `running`, `promised` (to be given by the program), `ready` or `failed`.
    pub state: &'static str,
    /// How long it has been there.
    pub age: Duration,
    /// How many references the program here holds, not counting clones.
    pub handles: usize,
    /// Who else holds one.
    pub held_by: Vec<Holder>,
    /// The references inside of it.
    pub holds: Vec<RRefId>,
}

/// A worker that holds a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Who.
    pub worker: WorkerInfo,
    /// By which name.
    pub fork: ForkId,
    /// For how long.
    pub age: Duration,
}

impl LeakReport {
    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl fmt::Display for LeakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: values held: {}", self.worker, self.values.len())?;
        for value in &self.values {
            let type_name = value.type_name.as_deref().unwrap_or("of an unknown type");
            write!(
                f,
                "\n  {} `{type_name}`, {}, {} old, references here: {}",
                value.rref,
                value.state,
                seconds(value.age),
                value.handles
            )?;
            for holder in &value.held_by {
                write!(
                    f,
                    "\n    on {} for {} as {}",
                    holder.worker,
                    seconds(holder.age),
                    holder.fork
                )?;
            }
        }
        for cycle in &self.cycles {
            f.write_str("\n  a cycle:")?;
            for rref in cycle {
                write!(f, " {rref} ->")?;
            }
            if let Some(first) = cycle.first() {
                write!(f, " {first}")?;
            }
        }
        Ok(())
    }
}

impl RRefs {
    /// What is held of this worker's values, by whom and since when, and which references point at each
    /// other. Asks other workers what their values hold: one that does not say so within some seconds is not
    /// asked again. Goes through the encoding of the own values: a lock in one is waited for.
    ///
    /// # Errors
    /// [`ShutdownError::NotAttached`].
    pub fn leak_report(&self) -> Result<LeakReport, ShutdownError> {
        let runtime = self.runtime().map_err(|_| ShutdownError::NotAttached)?;
        Ok(runtime.leak_report(Deadline::NEVER))
    }

    /// Ends the references of a group of fixed size together: waits until nothing is under way anywhere; has
    /// all users deleted, whoever still holds them, and waits for the owners' answers; frees the values that
    /// nobody refers to, and waits until the others' users have gone. All workers call it, before the agent's
    /// own shutdown, which is still due. In a group whose members come and go, see [`RRefs::leave`].
    ///
    /// Blocks at most for `timeout`, and for a lock inside of a value that is held meanwhile; zero: for ever.
    /// Returns what was still held at the beginning, which is gone then. Afterwards references are of no use,
    /// after an error too: [`RRefError::Shutdown`](crate::RRefError::Shutdown).
    ///
    /// `agent` is the one that was attached, and one thread of each worker calls this.
    ///
    /// # Errors
    /// [`ShutdownError`], which names who is missing. What could be freed has been, unless it is
    /// [`ShutdownError::OtherAgent`] or [`ShutdownError::InProgress`].
    pub fn shutdown(&self, agent: &Agent, timeout: Duration) -> Result<LeakReport, ShutdownError> {
        let runtime = self.runtime().map_err(|_| ShutdownError::NotAttached)?;
        if runtime.agent.incarnation() != agent.incarnation() {
            return Err(ShutdownError::OtherAgent {
                attached: runtime.agent.me().clone(),
                given: agent.me().clone(),
            });
        }
        let _turn = runtime.take_turn_to_end()?;
        let (began, deadline) = begin(timeout);
        let barrier = || -> Result<LeakReport, ShutdownError> {
            agent.join(left(deadline))?;
            let report = runtime.leak_report(deadline);
            // Nobody deletes anything before all have looked.
            agent.join(left(deadline))?;
            Ok(report)
        };
        let report = barrier();
        let ended = runtime.end(began, deadline);
        let report = report?;
        match ended {
            Ok(()) => Ok(report),
            Err(missing) => Err(with_report(missing, report)),
        }
    }

    /// [`RRefs::shutdown`] of this worker alone, as one that leaves a group whose members come and go: does
    /// not wait for others to come to their end, but for those that hold references to values here. Also for
    /// who is left of a group that has lost a worker, and cannot end together.
    ///
    /// # Errors
    /// As [`RRefs::shutdown`].
    pub fn leave(&self, timeout: Duration) -> Result<LeakReport, ShutdownError> {
        let runtime = self.runtime().map_err(|_| ShutdownError::NotAttached)?;
        let _turn = runtime.take_turn_to_end()?;
        let (began, deadline) = begin(timeout);
        let report = runtime.leak_report(deadline);
        match runtime.end(began, deadline) {
            Ok(()) => Ok(report),
            Err(missing) => Err(with_report(missing, report)),
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

fn begin(timeout: Duration) -> (Instant, Deadline) {
    let began = Instant::now();
    let deadline = if timeout.is_zero() {
        Deadline::NEVER
    } else {
        Deadline::after(began, timeout)
    };
    (began, deadline)
}

/// What is left, as a timeout of which zero means none.
fn left(deadline: Deadline) -> Duration {
    deadline
        .remaining(Instant::now())
        .map_or(Duration::ZERO, |left| left.max(Duration::from_millis(1)))
}

struct StillThere {
    after: Duration,
    missing: Vec<String>,
}

fn with_report(still: StillThere, report: LeakReport) -> ShutdownError {
    ShutdownError::Missing {
        after: still.after,
        missing: still.missing,
        report: Box::new(report),
    }
}

type Edges = Vec<(RRefId, WorkerId)>;

/// An edge as it travels: the owner; the reference's creator, incarnation and number.
type EncodedEdges = Vec<(u32, u32, u64, u64)>;

/// What is known in a search for cycles.
struct Search {
    deadline: Deadline,
    edges: HashMap<RRefId, Edges>,
    /// Workers that have not answered in time.
    silent: HashSet<WorkerId>,
    /// How many references may still be followed.
    left: usize,
}

/// Lets others end the references when it goes.
struct Turn<'a>(&'a Runtime);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().is_ending = false;
    }
}

impl Runtime {
    fn take_turn_to_end(&self) -> Result<Turn<'_>, ShutdownError> {
        let was_ending = std::mem::replace(&mut self.lock().is_ending, true);
        if was_ending {
            return Err(ShutdownError::InProgress);
        }
        Ok(Turn(self))
    }

    /// The references that a value of this worker holds.
    fn held(&self, rref: RRefId) -> Edges {
        let value = self.lock().context.try_value(rref);
        let Some(Ok(value)) = value else {
            return Vec::new();
        };
        let what = format!("the encoding of a `{}`", value.type_name());
        let cells = carry::look(|| {
            let _ = self.contained(&what, || value.walk());
        });
        cells
            .iter()
            .map(|cell| (cell.rref(), cell.owner()))
            .collect()
    }

    pub(crate) fn encode_held(&self, rref: RRefId) -> Vec<u8> {
        let held: EncodedEdges = self
            .held(rref)
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

    /// The references that a value of any worker holds.
    fn held_anywhere(&self, rref: RRefId, owner: WorkerId, search: &mut Search) -> Edges {
        let now = Instant::now();
        if search.deadline.has_passed(now) || search.silent.contains(&owner) {
            return Vec::new();
        }
        if self.is_me(owner) {
            return self.held(rref);
        }
        let left = search.deadline.remaining(now);
        let timeout = left.map_or(HOLDS_TIMEOUT, |left| {
            left.clamp(Duration::from_millis(1), HOLDS_TIMEOUT)
        });
        let payload = Message::Fetch { rref }.encode(self.incarnation);
        let options = CallOptions::default().with_timeout(timeout);
        let answer = self
            .agent
            .call_bytes_with(owner, HOLDS, payload, options)
            .ok();
        if answer.is_none() {
            search.silent.insert(owner);
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

    fn leak_report(self: &Arc<Self>, deadline: Deadline) -> LeakReport {
        let snapshot = self.step(Mode::Elsewhere, |inner, now| {
            self.give_back(inner, now);
            inner.context.snapshot(now)
        });
        let me = self.agent.me();
        let mut search = Search {
            deadline,
            edges: HashMap::new(),
            silent: HashSet::new(),
            left: FOLLOWED_MAX,
        };
        let values: Vec<HeldValue> = snapshot
            .owned
            .into_iter()
            .map(|row| {
                let held = self.held_anywhere(row.rref, me.id, &mut search);
                let holds = held.iter().map(|(rref, _)| *rref).collect();
                search.edges.insert(row.rref, held);
                let held_by = row.forks.into_iter().map(|fork| Holder {
                    worker: self.worker(fork.worker),
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
            match self.cycle_through(value.rref, me.id, &mut search) {
                Some(cycle) => {
                    known.extend(&cycle);
                    cycles.push(cycle);
                }
                // It is in no other cycle either.
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

    /// A way from a reference back to itself.
    fn cycle_through(
        &self,
        start: RRefId,
        owner: WorkerId,
        search: &mut Search,
    ) -> Option<Vec<RRefId>> {
        let mut seen = HashSet::from([start]);
        // Each with the place of the one before it.
        let mut found: Vec<(RRefId, WorkerId, usize)> = vec![(start, owner, 0)];
        let mut next = 0;
        while let Some(&(rref, owner, _)) = found.get(next) {
            if !search.edges.contains_key(&rref) {
                if search.edges.len() >= LOOKED_INTO_MAX {
                    return None;
                }
                let held = self.held_anywhere(rref, owner, search);
                search.edges.insert(rref, held);
            }
            for &(held, owner) in search.edges.get(&rref).into_iter().flatten() {
                search.left = search.left.checked_sub(1)?;
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

    /// Deletes the users, waits for the answers, frees the values, and waits for the others.
    fn end(self: &Arc<Self>, began: Instant, deadline: Deadline) -> Result<(), StillThere> {
        self.step(Mode::Elsewhere, |inner, now| {
            inner.awaiting += 1;
            self.give_back(inner, now);
            inner.context.delete_all_users(now);
        });
        let users_gone = self.wait_for_end(deadline, |inner| inner.context.has_no_users());
        self.step(Mode::Elsewhere, |inner, now| {
            inner.context.sweep_unforked(now);
        });
        let is_drained =
            users_gone && self.wait_for_end(deadline, |inner| inner.context.is_drained());
        let mut inner = self.lock();
        inner.awaiting -= 1;
        if is_drained {
            return Ok(());
        }
        let missing = inner.context.missing();
        drop(inner);
        let missing = missing.iter().map(|missing| {
            let worker = self.worker(missing.worker);
            format!("{worker}: {} {}", missing.count, missing.what)
        });
        Err(StillThere {
            after: began.elapsed(),
            missing: missing.collect(),
        })
    }

    /// Waits until something is so, or the deadline. Whether it is so.
    fn wait_for_end(&self, deadline: Deadline, is_so: impl Fn(&Inner) -> bool) -> bool {
        let mut inner = self.lock();
        // All that changes the context are steps, and each wakes who waits here. Its ticks are steps, too.
        while !is_so(&inner) {
            let now = Instant::now();
            if deadline.has_passed(now) {
                return false;
            }
            inner = match deadline.remaining(now) {
                None => self.changed.wait(inner),
                Some(left) => self
                    .changed
                    .wait_timeout(inner, left)
                    .map(|(inner, _)| inner)
                    .map_err(|poisoned| PoisonError::new(poisoned.into_inner().0)),
            }
            .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}
