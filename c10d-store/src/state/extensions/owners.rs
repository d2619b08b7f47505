//! The owners of ephemeral keys (docs/spec/wire-extensions.md, EPHEMERAL), with the keys of each, and when the next
//! sign of life is due. A slot stores the owner of its key and the will.
//!
//! A client of a session that the journal keeps stays an owner after a restart of the server. Any other owner in a
//! journal has ended with the server.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use c10d_socket::{Liveness, Silence};
use indexmap::IndexSet;

use crate::journal::batch::Effect;
use crate::message::ConnId;
use crate::moment::Moment;
use crate::session::SessionId;
use crate::state::hashing::ConnHash;
use crate::state::hashing::KeyHash;

/// The most keys of an owner: its end is one step.
pub(super) const OWNED_KEYS_MAX: usize = 1024;

/// How long a server that was busy or stopped has to read data that has arrived in the meantime: an owner that seemed
/// silent at one check is silent if it still seems silent at a second check, this much later.
const SUSPICION: Duration = Duration::from_millis(100);

/// How late a request of an owner may arrive, and how late the server may be for a check that expires the owner's
/// keys. If it is later, the server itself was busy or stopped, and the time that it has had to read is unknown.
const LATE_MAX: Duration = Duration::from_millis(20);

/// An owner of keys. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct OwnerId(u64);

/// A client of a session that the journal keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct KeptClient {
    pub(crate) session: SessionId,
    pub(crate) number: u32,
}

/// The ownership of a slot's key, which expires with the owner.
#[derive(Debug)]
pub(in crate::state) struct Ownership {
    pub(super) owner: OwnerId,
    pub(super) client: Option<KeptClient>,
    /// Empty for none.
    pub(super) will_key: Box<[u8]>,
    pub(super) will_value: Box<[u8]>,
}

impl Ownership {
    pub(super) fn new(
        owner: OwnerId,
        client: Option<KeptClient>,
        will_key: &[u8],
        will_value: &[u8],
    ) -> Self {
        Self {
            owner,
            client,
            will_key: will_key.into(),
            will_value: will_value.into(),
        }
    }

    pub(in crate::state) const fn will_bytes(&self) -> usize {
        self.will_key.len() + self.will_value.len()
    }

    /// Returns the effect that the journal keeps.
    pub(in crate::state) fn effect<'a>(&'a self, key: &'a [u8]) -> Effect<'a> {
        let client = self.client.as_ref();
        Effect::Own {
            key,
            session: client.map_or(&[], |client| client.session.as_bytes()),
            client: client.map_or(0, |client| client.number),
            will_key: &self.will_key,
            will_value: &self.will_value,
        }
    }
}

/// An owner, and its keys.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// `None` until a client of a kept session is here again.
    pub(super) conn: Option<ConnId>,
    pub(super) client: Option<KeptClient>,
    pub(super) keys: IndexSet<Arc<[u8]>, KeyHash>,
    /// The longest silence; `None` for any.
    pub(super) silence_max: Option<Duration>,
    /// Whether it has members of groups.
    pub(super) speaks: bool,
    /// The time when that was sent, or the client returned.
    pub(super) heard: Moment,
    /// Whether its keys have expired by silence since its last KEEP_ALIVE.
    pub(super) has_been_silent: bool,
    /// The time of its next check.
    check: Option<Moment>,
    /// Set if it seemed silent at the last check.
    suspicion: Option<Suspicion>,
}

/// The state of an owner that seemed silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Suspicion {
    /// The time of its last request.
    last: Moment,
    /// The server was late. The next check decides, even if it is late, because the server may always be late.
    was_late: bool,
}

impl Owner {
    /// Whether it owns nothing, and nothing is known of it.
    pub(super) fn is_idle(&self) -> bool {
        self.keys.is_empty() && self.silence_max.is_none() && !self.has_been_silent
    }

    /// The journal's effect for its silence.
    pub(super) fn silence_of<'a>(&self, client: &'a KeptClient) -> Effect<'a> {
        let millis = self.silence_max.map_or(0, |it| it.as_millis());
        Effect::Silence {
            session: client.session.as_bytes(),
            client: client.number,
            // It was received as a `u32`.
            millis: u32::try_from(millis).unwrap_or(u32::MAX),
            was_silent: self.has_been_silent,
        }
    }
}

/// The longest silence; 0 is any.
pub(super) fn silence_max(millis: u32) -> Option<Duration> {
    (millis > 0).then(|| Duration::from_millis(u64::from(millis)))
}

/// The silence of an owner that has sent nothing since `last`: it is suspect early enough for a second look.
fn silence_since(last: Moment, silence_max: Duration) -> Silence<Moment> {
    let longest = silence_max.saturating_add(LATE_MAX);
    Silence::new(last, longest).suspect_after(longest.saturating_sub(SUSPICION))
}

/// The owners of keys, and those that have asked for the end of their keys after a silence.
#[derive(Debug, Default)]
pub(super) struct Owners {
    pub(super) owners: HashMap<OwnerId, Owner>,
    last: u64,
    pub(super) by_conn: HashMap<ConnId, OwnerId, ConnHash>,
    pub(super) by_client: HashMap<KeptClient, OwnerId>,
    pub(super) checks: BTreeSet<(Moment, OwnerId)>,
    /// The owner of a recovered journal's keys whose owners ended with the server.
    pub(super) ended: Option<OwnerId>,
}

impl Owners {
    /// The owner that a connection is; `None` if it never was one.
    pub(super) fn of(&self, conn: ConnId) -> Option<OwnerId> {
        if self.by_conn.is_empty() {
            return None;
        }
        self.by_conn.get(&conn).copied()
    }

    fn insert(&mut self, owner: Owner) -> OwnerId {
        self.last += 1;
        let id = OwnerId(self.last);
        if let Some(conn) = owner.conn {
            self.by_conn.insert(conn, id);
        }
        if let Some(client) = owner.client {
            self.by_client.insert(client, id);
        }
        self.owners.insert(id, owner);
        id
    }

    /// The owner that a connection is from now on.
    pub(super) fn claim(&mut self, conn: ConnId, client: Option<KeptClient>) -> OwnerId {
        self.of(conn).unwrap_or_else(|| {
            self.insert(Owner {
                conn: Some(conn),
                client,
                ..Owner::default()
            })
        })
    }

    /// Returns the owner in a journal; without a client, the owner of all keys whose owners have ended.
    pub(super) fn recovered(&mut self, client: Option<KeptClient>) -> OwnerId {
        let known = match &client {
            Some(client) => self.by_client.get(client).copied(),
            None => self.ended,
        };
        let id = known.unwrap_or_else(|| {
            self.insert(Owner {
                client,
                ..Owner::default()
            })
        });
        if client.is_none() {
            self.ended = Some(id);
        }
        id
    }

    pub(super) fn add_key(&mut self, id: OwnerId, key: Arc<[u8]>) {
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.keys.insert(key);
        }
    }

    /// A key no longer has its owner.
    pub(super) fn remove_key(&mut self, id: OwnerId, key: &[u8]) {
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.keys.swap_remove(key);
        }
    }

    /// Removes an owner. Returns its keys.
    pub(super) fn remove(&mut self, id: OwnerId) -> IndexSet<Arc<[u8]>, KeyHash> {
        self.set_check(id, None);
        let Some(owner) = self.owners.remove(&id) else {
            return IndexSet::default();
        };
        if let Some(conn) = owner.conn {
            self.by_conn.remove(&conn);
        }
        if let Some(client) = owner.client {
            self.by_client.remove(&client);
        }
        if self.owners.is_empty() {
            *self = Self {
                last: self.last,
                ..Self::default()
            };
        }
        owner.keys
    }

    fn set_check(&mut self, id: OwnerId, at: Option<Moment>) {
        let Some(owner) = self.owners.get_mut(&id) else {
            return;
        };
        if let Some(before) = mem::replace(&mut owner.check, at) {
            self.checks.remove(&(before, id));
        }
        if let Some(at) = at {
            self.checks.insert((at, id));
        }
    }

    /// Has an owner looked at in time, if its silence matters.
    pub(super) fn watch(&mut self, id: OwnerId, now: Moment) {
        let Some(owner) = self.owners.get(&id) else {
            return;
        };
        let by = match owner.silence_max {
            Some(silence_max) if !owner.keys.is_empty() || owner.speaks => {
                silence_since(now, silence_max).suspect_at()
            }
            _ => None,
        };
        // A check that is too early schedules the next check.
        if by.is_none() || owner.check.is_none_or(|at| by.is_some_and(|by| by < at)) {
            self.set_check(id, by);
        }
    }

    /// An owner that may be silent, and when it was to be looked at.
    pub(super) fn next_check(&mut self, now: Moment) -> Option<(Moment, OwnerId)> {
        let (at, id) = *self.checks.first()?;
        if at > now {
            return None;
        }
        self.set_check(id, None);
        Some((at, id))
    }

    /// Decides about an owner whose last request arrived at this time, at a check that was due at `due`. Returns
    /// whether it is silent.
    pub(super) fn is_silent(
        &mut self,
        id: OwnerId,
        last: Moment,
        due: Moment,
        now: Moment,
    ) -> bool {
        let Some(owner) = self.owners.get_mut(&id) else {
            return false;
        };
        let Some(silence_max) = owner.silence_max else {
            return false;
        };
        let last = last.max(owner.heard);
        let before = owner.suspicion.take().filter(|it| it.last == last);
        let was_late = now > due + LATE_MAX;
        let again = now + SUSPICION;
        let (is_suspect, next) = match silence_since(last, silence_max).check(now) {
            Liveness::Lost if before.is_some_and(|it| it.was_late || !was_late) => return true,
            Liveness::Lost => (true, Some(again)),
            Liveness::Suspect { until } if was_late => (true, until.max(Some(again))),
            Liveness::Suspect { until } => (true, until),
            Liveness::Alive { until } => (false, until),
        };
        if is_suspect {
            owner.suspicion = Some(Suspicion { last, was_late });
        }
        self.set_check(id, next);
        false
    }

    /// Panics if an invariant is violated, which is a bug in this module. Returns the number of keys.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(
        &self,
        mut owner_of: impl FnMut(&[u8]) -> Option<OwnerId>,
    ) -> usize {
        let mut keys = 0;
        let mut checks = 0;
        for (id, owner) in &self.owners {
            for key in &owner.keys {
                assert_eq!(owner_of(key), Some(*id), "a key has its owner");
            }
            keys += owner.keys.len();
            checks += usize::from(owner.check.is_some());
            assert!(
                owner
                    .check
                    .is_none_or(|at| self.checks.contains(&(at, *id)))
            );
            assert!(
                owner
                    .conn
                    .is_none_or(|conn| self.by_conn.get(&conn) == Some(id))
            );
        }
        assert_eq!(checks, self.checks.len(), "no check is of no owner");
        keys
    }
}
