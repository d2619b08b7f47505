//! A group of ranks, and its operations.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};
use c10d_store::{Store, StoreError, StoreExt};

use crate::arrivals::Meeting;
use crate::error::GroupError;
use crate::join::{self, JoinFailure, Obstacle};
use crate::keys::{self, Kind};
use crate::sequence::{Ending, Refusal, Sequence, Turn};

/// How long a rank that hosts the store waits until the other ranks have left.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// Some or all ranks of a job, each a process. They do the same operations in the same order, one at a time.
///
/// An operation returns on all ranks when all have taken part, so no rank enters a collective of a GPU library that
/// another rank will not reach. If ranks are missing at the deadline, the error names them, and the same call can be
/// made again.
///
/// The store must outlive the group: if a rank hosts it, end with [`finish`](Self::finish).
///
/// ```no_run
/// let group = c10d::init_from_env()?;
///
/// // Rank 0 draws a seed, and all ranks get it.
/// let seed = (group.rank() == 0).then(|| 17_u64.to_le_bytes());
/// let seed = group.broadcast(0, seed.as_ref().map(|it| &it[..]))?;
/// println!("rank {} of {} has the seed {seed:?}", group.rank(), group.world_size());
///
/// group.barrier()?;
/// group.finish()?;
/// # Ok::<(), c10d::GroupError>(())
/// ```
#[derive(Debug)]
pub struct Group {
    name: String,
    membership: Membership,
    store: Arc<dyn Store>,
    /// The prefix of all keys.
    prefix: String,
    timeout: Option<Duration>,
    value_bytes_max: usize,
    sequence: Arc<Mutex<Sequence>>,
}

/// A rank's place in a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Membership {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) hosts_store: bool,
}

impl Group {
    pub(crate) fn join(
        name: &str,
        store: Arc<dyn Store>,
        membership: Membership,
        (timeout, value_bytes_max): (Option<Duration>, usize),
        began: Instant,
        deadline: Deadline,
    ) -> Result<Self, GroupError> {
        let meeting = Meeting {
            store: &*store,
            prefix: "",
            world_size: membership.world_size,
            began,
            deadline,
        };
        let joined = join::join(&meeting, name, membership.rank);
        let generation =
            joined.map_err(|failure| not_joined(failure, name, membership, &meeting))?;
        Ok(Self {
            name: name.to_owned(),
            membership,
            prefix: keys::prefix(name, generation),
            store,
            timeout,
            value_bytes_max,
            sequence: Arc::default(),
        })
    }

    /// Returns the rank of this process in this group, from 0 on.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.membership.rank
    }

    /// Returns the number of ranks in this group.
    #[must_use]
    pub const fn world_size(&self) -> usize {
        self.membership.world_size
    }

    /// Returns the name of the group. The name of a sub-group begins with its parent's name: `world/tp-0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the time limit of calls without an explicit timeout; `None` waits indefinitely.
    #[must_use]
    pub const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns the store of the group, for the program's own values. The group's keys begin with `c10d/`.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the value of rank `root` on all ranks: the root passes it, the other ranks pass `None`. Blocks for at
    /// most the timeout of the group.
    ///
    /// # Errors
    /// The errors of [`broadcast_timeout`](Self::broadcast_timeout).
    pub fn broadcast(&self, root: usize, value: Option<&[u8]>) -> Result<Vec<u8>, GroupError> {
        self.broadcast_timeout(root, value, self.timeout)
    }

    /// [`broadcast`](Self::broadcast) with an explicit time limit; `None` waits indefinitely, zero checks once.
    ///
    /// # Errors
    /// [`GroupError::Missing`] if ranks did not arrive in time, [`GroupError::TooLarge`],
    /// [`GroupError::InvalidArgument`] for a root that is not in the group, and if the root passes no value or
    /// another rank passes a value; otherwise the errors of [`barrier_timeout`](Self::barrier_timeout).
    pub fn broadcast_timeout(
        &self,
        root: usize,
        value: Option<&[u8]>,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Vec<u8>, GroupError> {
        if root >= self.world_size() {
            return Err(self.invalid(format!("has no rank {root} that could broadcast")));
        }
        match value {
            None if self.rank() == root => {
                return Err(self.invalid(format!("rank {root} broadcasts, but gives no value")));
            }
            Some(_) if self.rank() != root => {
                let detail = format!(
                    "rank {} gives a value that rank {root} broadcasts",
                    self.rank()
                );
                return Err(self.invalid(detail));
            }
            _ => {}
        }
        let kind = Kind::Broadcast { root };
        if let Some(value) = value {
            self.check_length(kind, root, value.len())?;
        }
        self.run(kind, timeout.into(), |turn, meeting, place| {
            let key = keys::value(place);
            let value = match value {
                Some(value) => {
                    if !turn.has_arrived {
                        self.store
                            .set(&key, value)
                            .map_err(|it| self.failed(kind, it))?;
                    }
                    value.to_vec()
                }
                None => match self.store.get_timeout(&key, meeting.remaining()) {
                    Ok(value) => value,
                    Err(error) if error.is_timeout() => {
                        return Err(self.missing(kind, meeting, vec![root]));
                    }
                    Err(error) => return Err(self.failed(kind, error)),
                },
            };
            self.check_length(kind, root, value.len())?;
            self.meet(turn, meeting, place)?;
            let shared = (self.rank() == root).then_some(key);
            Ok((value, shared.into_iter().collect()))
        })
    }

    /// Waits until all ranks have called this. Blocks for at most the timeout of the group.
    ///
    /// # Errors
    /// The errors of [`barrier_timeout`](Self::barrier_timeout).
    pub fn barrier(&self) -> Result<(), GroupError> {
        self.barrier_timeout(self.timeout)
    }

    /// [`barrier`](Self::barrier) with an explicit time limit; `None` waits indefinitely, zero checks once.
    ///
    /// # Errors
    /// [`GroupError::Missing`] if ranks did not arrive in time, [`GroupError::OutOfStep`] if another operation is not
    /// complete, [`GroupError::Broken`] after an earlier failure, [`GroupError::Store`] if the store failed.
    pub fn barrier_timeout(&self, timeout: impl Into<Option<Duration>>) -> Result<(), GroupError> {
        self.run(Kind::Barrier, timeout.into(), |turn, meeting, place| {
            self.meet(turn, meeting, place)?;
            Ok(((), Vec::new()))
        })
    }

    /// Returns the values of all ranks, by rank. They may have different lengths. Blocks for at most the timeout of
    /// the group.
    ///
    /// # Errors
    /// The errors of [`all_gather_bytes_timeout`](Self::all_gather_bytes_timeout).
    pub fn all_gather_bytes(&self, value: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        self.all_gather_bytes_timeout(value, self.timeout)
    }

    /// [`all_gather_bytes`](Self::all_gather_bytes) with an explicit time limit; `None` waits indefinitely, zero
    /// checks once. Each rank receives the values of all ranks: with many ranks, keep them short.
    ///
    /// # Errors
    /// The errors of [`barrier_timeout`](Self::barrier_timeout), and [`GroupError::TooLarge`].
    pub fn all_gather_bytes_timeout(
        &self,
        value: &[u8],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Vec<Vec<u8>>, GroupError> {
        /// Keys of one request.
        const KEYS_MAX: usize = 1024;
        let kind = Kind::AllGather;
        self.check_length(kind, self.rank(), value.len())?;
        self.run(kind, timeout.into(), |turn, meeting, place| {
            let failed = |error| self.failed(kind, error);
            let own = keys::value_of(place, self.rank());
            if !turn.has_arrived {
                self.store.set(&own, value).map_err(failed)?;
            }
            self.meet(turn, meeting, place)?;
            let keys: Vec<String> = (0..self.world_size())
                .map(|rank| keys::value_of(place, rank))
                .collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let mut values = Vec::with_capacity(keys.len());
            for keys in keys.chunks(KEYS_MAX) {
                let part = self.store.multi_get_timeout(keys, meeting.remaining());
                values.extend(part.map_err(failed)?);
            }
            for (rank, value) in values.iter().enumerate() {
                self.check_length(kind, rank, value.len())?;
            }
            Ok((values, vec![own]))
        })
    }

    /// Forms a group of some ranks of this group, in the order of `ranks`: the first becomes rank 0. Called by these
    /// ranks only, with the same list; returns when all have called it. Blocks for at most the timeout of the group.
    ///
    /// The name identifies the sub-group, whatever the order in which ranks make several of them. It can be used once
    /// in a group: after an error, make the sub-group with another name.
    ///
    /// # Errors
    /// [`GroupError::InvalidArgument`] for a list without this rank, with a rank twice, or with a rank outside this
    /// group; [`GroupError::Mismatch`] if another rank gives another list under this name, [`GroupError::Taken`] if
    /// this rank has used the name before, [`GroupError::Missing`] if ranks did not arrive in time,
    /// [`GroupError::Store`].
    pub fn split(&self, name: &str, ranks: &[usize]) -> Result<Self, GroupError> {
        self.split_timeout(name, ranks, self.timeout)
    }

    /// [`split`](Self::split) with an explicit time limit; `None` waits indefinitely, zero checks once.
    ///
    /// # Errors
    /// The errors of [`split`](Self::split).
    pub fn split_timeout(
        &self,
        name: &str,
        ranks: &[usize],
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Self, GroupError> {
        let began = Instant::now();
        keys::check_name(name).map_err(|detail| GroupError::InvalidArgument { detail })?;
        let mut is_member = vec![false; self.world_size()];
        for rank in ranks {
            match is_member.get_mut(*rank) {
                Some(is_member) if !*is_member => *is_member = true,
                Some(_) => return Err(self.invalid(format!("rank {rank} is twice in {name:?}"))),
                None => return Err(self.invalid(format!("has no rank {rank} for {name:?}"))),
            }
        }
        let Some(rank) = ranks.iter().position(|rank| *rank == self.rank()) else {
            return Err(self.invalid(format!(
                "rank {} is not among the ranks of {name:?}",
                self.rank()
            )));
        };
        let membership = Membership {
            rank,
            world_size: ranks.len(),
            hosts_store: false,
        };
        let group = Self {
            name: format!("{}/{name}", self.name),
            membership,
            store: Arc::clone(&self.store),
            prefix: keys::sub_prefix(&self.prefix, name),
            timeout: self.timeout,
            value_bytes_max: self.value_bytes_max,
            sequence: Arc::default(),
        };
        let deadline = Deadline::after(began, timeout);
        let meeting = group.meeting(began, deadline);
        let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
        let list = list.join(",");
        let failed = |failure| not_joined(failure, &group.name, membership, &meeting);
        match join::join_sub_group(&meeting, rank, &list).map_err(failed)? {
            Ok(()) => {}
            Err(other) => {
                let detail = format!("this rank gives the ranks {list}, another gives {other}");
                let group = group.name.clone();
                return Err(GroupError::Mismatch { group, detail });
            }
        }
        let place = keys::joined(&group.prefix);
        if let Err(error) = meeting.wait_for_all(&place) {
            if !error.is_timeout() {
                return Err(group.error("join", error));
            }
            let absent = meeting.absent(&place);
            let absent = absent.map_err(|error| group.error("join", error))?;
            return Err(group.missing_in("join", &meeting, absent));
        }
        Ok(group)
    }

    /// Waits until all ranks have called this, the last operation of a group. A rank that hosts the store returns
    /// when the other ranks have left, or after 10 s, so that it can drop the group and with it the store. Blocks for
    /// at most the timeout of the group and these 10 s.
    ///
    /// # Errors
    /// The errors of [`barrier_timeout`](Self::barrier_timeout).
    pub fn finish(&self) -> Result<(), GroupError> {
        let kind = Kind::Finish;
        self.run(kind, self.timeout, |turn, meeting, place| {
            self.meet(turn, meeting, place)?;
            let left = format!("{place}/left");
            if self.membership.hosts_store {
                if self.world_size() > 1 {
                    let left = keys::complete(&left);
                    // All have come. A rank that has ended since then needs the store no more.
                    let waited = self.store.wait_timeout(&[&left], Some(LEAVE_LIMIT));
                    if let Err(error) = waited {
                        log::warn!("group {:?}: not all ranks have left: {error}", self.name);
                    }
                }
            } else if let Err(error) = self.leave(&left) {
                // The host may have ended: it waits no longer than its limit.
                log::debug!(
                    "group {:?}: cannot say that this rank leaves: {error}",
                    self.name
                );
            }
            Ok(((), Vec::new()))
        })
    }

    /// Returns a handle to the same group whose calls `cancel` interrupts, with an error for which
    /// [`GroupError::is_interrupted`] is true. The same call can be made again, with another `Cancel`. See
    /// [`StoreHandle::with_cancel`](c10d_store::StoreHandle::with_cancel).
    #[must_use]
    pub fn with_cancel(&self, cancel: &Cancel) -> Self {
        Self {
            name: self.name.clone(),
            membership: self.membership,
            store: self.store.with_cancel(cancel),
            prefix: self.prefix.clone(),
            timeout: self.timeout,
            value_bytes_max: self.value_bytes_max,
            sequence: Arc::clone(&self.sequence),
        }
    }

    fn leave(&self, left: &str) -> Result<(), StoreError> {
        let gone = self.store.add(&keys::count(left), 1)?;
        if usize::try_from(gone) == Ok(self.world_size() - 1) {
            self.store.set(&keys::complete(left), b"1")?;
        }
        Ok(())
    }

    /// Carries out an operation, which gives its result and the keys that this rank deletes later.
    fn run<T>(
        &self,
        kind: Kind,
        timeout: Option<Duration>,
        operation: impl FnOnce(Turn, &Meeting<'_>, &str) -> Result<(T, Vec<String>), GroupError>,
    ) -> Result<T, GroupError> {
        let began = Instant::now();
        let process = self.store.check_process();
        process.map_err(|error| self.failed(kind, error))?;
        let turn = self.sequence().begin(kind);
        let turn = turn.map_err(|refusal| match refusal {
            Refusal::Unfinished(unfinished) => GroupError::OutOfStep {
                group: self.name.clone(),
                wanted: kind.name(),
                unfinished: unfinished.name(),
            },
            Refusal::Broken(cause) => GroupError::Broken {
                group: self.name.clone(),
                cause,
            },
        })?;
        let meeting = self.meeting(began, Deadline::after(began, timeout));
        let place = keys::operation(&self.prefix, turn.number, kind);
        let (result, ending) = match operation(turn, &meeting, &place) {
            Ok((value, mut keys)) => {
                if self.rank() == 0 {
                    keys.extend(Meeting::shared_keys(&place));
                }
                (Ok(value), Ending::Complete(keys))
            }
            Err(error) if error.can_go_on() => (Err(error), Ending::Unfinished),
            Err(error) => {
                let cause = error.to_string();
                (Err(error), Ending::Broken(cause))
            }
        };
        let leftovers = self.sequence().end(ending);
        for key in leftovers {
            if let Err(error) = self.store.delete_key(&key) {
                log::debug!("group {:?}: cannot delete {key:?}: {error}", self.name);
                break;
            }
        }
        result
    }

    /// Reports that this rank has arrived, and waits for the other ranks.
    fn meet(&self, turn: Turn, meeting: &Meeting<'_>, place: &str) -> Result<(), GroupError> {
        let failed = |error| self.failed(turn.kind, error);
        if !turn.has_arrived {
            meeting.arrive(place, self.rank()).map_err(failed)?;
            self.sequence().arrived();
        }
        match meeting.wait_for_all(place) {
            Err(error) if error.is_timeout() => {
                let absent = meeting.absent(place).map_err(failed)?;
                Err(self.missing(turn.kind, meeting, absent))
            }
            result => result.map_err(failed),
        }
    }

    fn meeting(&self, began: Instant, deadline: Deadline) -> Meeting<'_> {
        Meeting {
            store: &*self.store,
            prefix: &self.prefix,
            world_size: self.world_size(),
            began,
            deadline,
        }
    }

    fn check_length(&self, kind: Kind, rank: usize, bytes: usize) -> Result<(), GroupError> {
        if bytes <= self.value_bytes_max {
            return Ok(());
        }
        Err(GroupError::TooLarge {
            group: self.name.clone(),
            operation: kind.name(),
            rank,
            bytes,
            limit: self.value_bytes_max,
        })
    }

    fn missing(&self, kind: Kind, meeting: &Meeting<'_>, ranks: Vec<usize>) -> GroupError {
        self.missing_in(kind.name(), meeting, ranks)
    }

    fn missing_in(
        &self,
        operation: &'static str,
        meeting: &Meeting<'_>,
        ranks: Vec<usize>,
    ) -> GroupError {
        missing(&self.name, operation, meeting, ranks)
    }

    fn failed(&self, kind: Kind, source: StoreError) -> GroupError {
        self.error(kind.name(), source)
    }

    fn error(&self, operation: &'static str, source: StoreError) -> GroupError {
        GroupError::Store {
            group: self.name.clone(),
            operation,
            source: Box::new(source),
        }
    }

    fn invalid(&self, detail: String) -> GroupError {
        let detail = format!("group {:?}: {detail}", self.name);
        GroupError::InvalidArgument { detail }
    }

    fn sequence(&self) -> MutexGuard<'_, Sequence> {
        // The code that holds the lock does not panic.
        self.sequence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn missing(
    group: &str,
    operation: &'static str,
    meeting: &Meeting<'_>,
    ranks: Vec<usize>,
) -> GroupError {
    let processes = meeting.processes(&ranks).unwrap_or_else(|error| {
        log::debug!("group {group:?}: cannot read which processes are missing: {error}");
        Vec::new()
    });
    GroupError::Missing {
        group: group.to_owned(),
        operation,
        ranks,
        processes,
        world_size: meeting.world_size,
        elapsed: meeting.began.elapsed(),
    }
}

/// The error of a rank that could not join.
fn not_joined(
    failure: JoinFailure,
    name: &str,
    membership: Membership,
    meeting: &Meeting<'_>,
) -> GroupError {
    let failed = |source| GroupError::Store {
        group: name.to_owned(),
        operation: "join",
        source: Box::new(source),
    };
    let obstacle = match failure {
        JoinFailure::Store(source) => return failed(source),
        JoinFailure::Obstacle(obstacle) => obstacle,
    };
    match obstacle {
        Obstacle::NoGeneration => missing(name, "join", meeting, vec![0]),
        Obstacle::Absent(generation) => {
            let place = keys::joined(&keys::prefix(name, generation));
            match meeting.absent(&place) {
                Ok(absent) => missing(name, "join", meeting, absent),
                Err(source) => failed(source),
            }
        }
        Obstacle::Taken(holder) => GroupError::Taken {
            group: name.to_owned(),
            rank: membership.rank,
            holder,
        },
        Obstacle::WorldSize(other) => GroupError::Mismatch {
            group: name.to_owned(),
            detail: format!(
                "this rank was started with world size {}, rank 0 with {other}",
                membership.world_size
            ),
        },
    }
}
