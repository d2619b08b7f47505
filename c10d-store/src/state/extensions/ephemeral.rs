//! Keys that expire with the connection that set them, or when it is silent (docs/spec/wire-extensions.md,
//! EPHEMERAL).

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexSet;

use super::owners::{KeptClient, OWNED_KEYS_MAX, OwnerId, Ownership, silence_max};
use crate::journal::batch::BatchWriter;
use crate::message::{ConnId, Payload, Replies, Reply};
use crate::moment::Moment;
use crate::session::SessionId;
use crate::state::hashing::KeyHash;
use crate::state::{StoreState, work_of};

/// There is no connection that a reply could go to.
struct Nobody;

impl Replies for Nobody {
    fn reply(&mut self, _conn: ConnId, _reply: Reply<'_>) {}
}

impl StoreState {
    /// The connection is this client of a session that the journal keeps.
    pub(crate) fn name_client(&mut self, conn: ConnId, client: KeptClient) {
        self.extensions.owners.claim(conn, Some(client));
    }

    /// A client of a session is opened. If the journal keeps it and it was an owner before the server was restarted, it is
    /// one again.
    pub(crate) fn adopt(&mut self, conn: ConnId, client: KeptClient) {
        self.extensions.directory.note_resumes(conn);
        let Some(id) = self.extensions.owners.by_client.get(&client).copied() else {
            return;
        };
        if let Some(owner) = self.extensions.owners.owners.get_mut(&id) {
            owner.conn = Some(conn);
            owner.heard = self.now;
            self.extensions.owners.by_conn.insert(conn, id);
            self.extensions.owners.watch(id, self.now);
        }
    }

    /// docs/spec/wire-extensions.md, EPHEMERAL 1.
    pub(super) fn set_ephemeral(
        &mut self,
        conn: ConnId,
        key: &[u8],
        value: &[u8],
        will: (&[u8], &[u8]),
        replies: &mut impl Replies,
    ) {
        let owner = self.extensions.owners.of(conn);
        let is_owned = match self.slots.get(key) {
            Some(slot) if slot.stored.is_some() => {
                let of_key = slot.ownership.as_ref().map(|it| it.owner);
                if of_key.is_none() || of_key != owner {
                    self.reply(replies, conn, Reply::NotOwned);
                    self.reply_value(conn, key, replies);
                    return;
                }
                true
            }
            _ => false,
        };
        let id = self.extensions.owners.claim(conn, None);
        let owner = &self.extensions.owners.owners[&id];
        if !is_owned && owner.keys.len() >= OWNED_KEYS_MAX {
            self.reply(replies, conn, Reply::TooManyOwned);
            return;
        }
        let client = owner.client;
        self.work += work_of(value) + work_of(will.1);
        let waiters = self
            .slots
            .write(key, Payload::Borrowed(value), self.writer());
        let name = self
            .slots
            .own(key, Ownership::new(id, client, will.0, will.1));
        self.extensions.owners.add_key(id, name);
        self.extensions.owners.watch(id, self.now);
        self.wake_for_value(waiters, replies);
        self.reply(replies, conn, Reply::Owned);
    }

    /// docs/spec/wire-extensions.md, EPHEMERAL 5.
    pub(super) fn keep_alive(
        &mut self,
        conn: ConnId,
        silence_max: Option<Duration>,
        replies: &mut impl Replies,
    ) {
        let was_silent = self.set_silence(conn, silence_max);
        self.reply(replies, conn, Reply::KeptAlive(!was_silent));
    }

    /// Sets the longest silence of a connection. Returns whether it has been silent for longer than the one before.
    pub(super) fn set_silence(&mut self, conn: ConnId, silence_max: Option<Duration>) -> bool {
        let known = self.extensions.owners.of(conn);
        if known.is_none() && silence_max.is_none() {
            return false;
        }
        let id = self.extensions.owners.claim(conn, None);
        let Some(owner) = self.extensions.owners.owners.get_mut(&id) else {
            return false;
        };
        let changes = owner.silence_max != silence_max || owner.has_been_silent;
        owner.silence_max = silence_max;
        owner.speaks = self.extensions.groups.is_speaker(conn);
        owner.heard = self.now;
        let was_silent = mem::take(&mut owner.has_been_silent);
        self.extensions.owners.watch(id, self.now);
        if was_silent && let Some(recorder) = &mut self.slots.recorder {
            // It reports that keys have expired.
            recorder.look_at_all();
        }
        if changes {
            self.record_silence(id);
        }
        was_silent
    }

    /// The connection speaks for members, whose end a silence is.
    pub(super) fn watch_speaker(&mut self, conn: ConnId) {
        if self.extensions.groups.is_speaker(conn)
            && let Some(id) = self.extensions.owners.of(conn)
            && let Some(owner) = self.extensions.owners.owners.get_mut(&id)
        {
            owner.speaks = true;
            self.extensions.owners.watch(id, self.now);
        }
    }

    /// Returns when [`end_silent`](Self::end_silent) is due.
    pub(crate) fn next_silence(&self) -> Option<Moment> {
        self.extensions.owners.checks.first().map(|(at, _)| *at)
    }

    /// Ends the keys of owners that were silent for too long.
    pub(crate) fn end_silent(&mut self, replies: &mut impl Replies) {
        while let Some((due, id)) = self.extensions.owners.next_check(self.now) {
            let conn = self
                .extensions
                .owners
                .owners
                .get(&id)
                .and_then(|owner| owner.conn);
            let last = conn.and_then(|conn| self.extensions.directory.last_request(conn));
            let (connection, last) = last.unwrap_or_default();
            if self.extensions.owners.is_silent(id, last, due, self.now)
                && let Some(owner) = self.extensions.owners.owners.get_mut(&id)
            {
                owner.has_been_silent = true;
                let keys = mem::take(&mut owner.keys);
                owner.speaks = false;
                self.look_at_all();
                self.requester = connection;
                self.end_keys(keys, replies);
                if let Some(conn) = conn {
                    self.end_speaker(conn, replies);
                }
                self.record_silence(id);
            }
        }
    }

    /// A connection has ended, and so do its keys. [`look_at_all`](Self::look_at_all) has been called.
    pub(super) fn end_owner(&mut self, conn: ConnId, replies: &mut impl Replies) {
        if let Some(id) = self.extensions.owners.of(conn) {
            let keys = self.extensions.owners.remove(id);
            self.end_keys(keys, replies);
        }
    }

    /// A client that has not returned after a restart of the server has ended.
    pub(crate) fn end_client(&mut self, client: KeptClient, replies: &mut impl Replies) {
        if let Some(id) = self.extensions.owners.by_client.get(&client).copied() {
            self.end_absent(id, replies);
        }
    }

    /// A session that the journal keeps has ended, and so have its clients that have not returned.
    pub(crate) fn end_clients_of(&mut self, session: SessionId, replies: &mut impl Replies) {
        let of_session = |(client, id): (&KeptClient, &OwnerId)| {
            (client.session == session).then_some((client.number, *id))
        };
        let clients = self.extensions.owners.by_client.iter();
        let mut owners: Vec<_> = clients.filter_map(of_session).collect();
        owners.sort_unstable();
        for (_, id) in owners {
            self.end_absent(id, replies);
        }
    }

    /// The owners of a recovered journal that ended with the server end. Effects are recorded already.
    pub(crate) fn end_recovered(&mut self) {
        if let Some(id) = self.extensions.owners.ended.take() {
            self.end_absent(id, &mut Nobody);
        }
        for id in self
            .extensions
            .owners
            .by_client
            .values()
            .copied()
            .collect::<Vec<_>>()
        {
            if self.extensions.owners.owners[&id].is_idle() {
                self.extensions.owners.remove(id);
            } else {
                self.extensions.owners.watch(id, self.now);
            }
        }
        self.resume_groups(&mut Nobody);
    }

    /// Carries out `Effect::Own`. `false` if the key has no value.
    pub(super) fn recover_ownership(
        &mut self,
        key: &[u8],
        client: Option<KeptClient>,
        will: (&[u8], &[u8]),
    ) -> bool {
        let slot = self.slots.get(key);
        let Some(slot) = slot.filter(|slot| slot.stored.is_some()) else {
            return false;
        };
        if let Some(before) = slot.ownership.as_ref().map(|it| it.owner) {
            self.extensions.owners.remove_key(before, key);
        }
        let id = self.extensions.owners.recovered(client);
        let name = self
            .slots
            .own(key, Ownership::new(id, client, will.0, will.1));
        self.extensions.owners.add_key(id, name);
        true
    }

    /// Carries out `Effect::Silence`.
    pub(super) fn recover_silence(&mut self, client: KeptClient, millis: u32, was_silent: bool) {
        let id = self.extensions.owners.recovered(Some(client));
        if let Some(owner) = self.extensions.owners.owners.get_mut(&id) {
            owner.silence_max = silence_max(millis);
            owner.has_been_silent = was_silent;
        }
    }

    /// A client has ended, and makes no further requests. Other effects remove its keys.
    pub(super) fn recover_end(&mut self, ended: impl Fn(&KeptClient) -> bool) {
        for owner in self.extensions.owners.owners.values_mut() {
            if owner.client.as_ref().is_some_and(&ended) {
                owner.silence_max = None;
                owner.has_been_silent = false;
            }
        }
    }

    /// Writes the state of owners that is not in the slots, for a snapshot of the journal.
    pub(super) fn write_silences(&self, writer: &mut BatchWriter) {
        for owner in self.extensions.owners.owners.values() {
            if let Some(client) = &owner.client {
                writer.push(owner.silence_of(client));
            }
        }
    }

    fn end_absent(&mut self, id: OwnerId, replies: &mut impl Replies) {
        self.look_at_all();
        self.requester = crate::message::ConnectionId::default();
        let keys = self.extensions.owners.remove(id);
        self.end_keys(keys, replies);
    }

    fn record_silence(&mut self, id: OwnerId) {
        if let Some(owner) = self.extensions.owners.owners.get(&id)
            && let Some(recorder) = &mut self.slots.recorder
            && let Some(client) = owner.client
        {
            recorder.record_unnamed(owner.silence_of(&client));
        }
    }

    /// Deletes keys, whose owner has ended, then writes their wills, then wakes: no request is carried out in
    /// between.
    fn end_keys(&mut self, keys: IndexSet<Arc<[u8]>, KeyHash>, replies: &mut impl Replies) {
        let mut wills = Vec::new();
        for key in keys {
            self.work += 1;
            let deleted = self.slots.delete(&key);
            if let Some(ownership) = deleted.and_then(|deleted| deleted.ownership)
                && !ownership.will_key.is_empty()
            {
                wills.push(ownership);
            }
        }
        let writer = self.writer();
        for will in &wills {
            let value = Payload::Borrowed(&will.will_value);
            self.work += work_of(&will.will_value);
            self.slots.write(&will.will_key, value, writer);
        }
        for will in &wills {
            let waiters = self.slots.get(&will.will_key).and_then(|it| it.waiters);
            self.wake_for_value(waiters, replies);
        }
    }
}
