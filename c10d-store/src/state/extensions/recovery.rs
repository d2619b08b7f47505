//! A store with a journal: recovery, and snapshots.

use super::owners::KeptClient;
use super::recorder::Recorder;
use crate::decimal::parse_decimal;
use crate::journal::batch::{BatchWriter, Effect};
use crate::message::ConnectionId;
use crate::message::{ConnId, Payload, Replies, Reply};
use crate::moment::Moment;
use crate::session::SessionId;
use crate::state::StoreState;
use crate::state::slot::Slot;
use crate::state::slot::Writer;
use crate::stored_value::Value;

impl StoreState {
    /// Carries out an effect of the journal, before requests arrive. `false` if it cannot follow those before.
    #[must_use]
    pub(crate) fn recover(&mut self, effect: Effect<'_>) -> bool {
        // This number is not used by any connection.
        let nobody = Writer {
            connection: ConnectionId::default(),
            at: Moment::default(),
        };
        match effect {
            Effect::Put { key, value } => {
                self.slots.write(key, Payload::Borrowed(value), nobody);
            }
            Effect::Append { key, bytes } => {
                self.slots.append(key, Payload::Borrowed(bytes), nobody);
            }
            Effect::Delete { key } => {
                self.delete(key);
            }
            Effect::Push { key, element } => {
                self.slots.push(key, Value::from(element));
            }
            Effect::Pop { key, count } => {
                let count = count as usize;
                return self.slots.take(key, count, usize::MAX).len() == count;
            }
            Effect::Own {
                key,
                session,
                client,
                will_key,
                will_value,
            } => {
                let client = match session {
                    [] => None,
                    session => match kept_client(session, client) {
                        None => return false,
                        client => client,
                    },
                };
                return self.recover_ownership(key, client, (will_key, will_value));
            }
            Effect::Silence {
                session,
                client,
                millis,
                was_silent,
            } => {
                let Some(client) = kept_client(session, client) else {
                    return false;
                };
                self.recover_silence(client, millis, was_silent);
            }
            Effect::Schedule {
                prefix,
                delay_millis,
            } => self.recover_schedule(prefix, delay_millis),
            Effect::Group { group, bytes } => return self.extensions.groups.recover(group, bytes),
            Effect::EndClient { session, client } => {
                let ended = kept_client(session, client);
                self.recover_end(|it| ended == Some(*it));
            }
            Effect::EndSession { session } => {
                let ended = SessionId::from_bytes(session);
                self.recover_end(|it| ended == Some(it.session));
            }
            Effect::EndWaits { prefix, server } => {
                self.extensions.missed_ends.recover(prefix, server)
            }
            // Of sessions, which the server carries over.
            Effect::BeginSession { .. } | Effect::Executed { .. } => {}
        }
        true
    }

    /// Records effects from now on; everything up to this position is durable.
    pub(crate) fn start_recording(&mut self, durable: u64) {
        self.slots.recorder = Some(Box::new(Recorder::new(durable)));
    }

    /// The recorder of changes for the journal; `None` without a journal.
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.slots.recorder.as_deref()
    }

    /// As [`recorder`](Self::recorder).
    pub(crate) fn recorder_mut(&mut self) -> Option<&mut Recorder> {
        self.slots.recorder.as_deref_mut()
    }

    /// Whether a connection waits for a reply.
    pub(crate) fn is_waiting(&self, conn: ConnId) -> bool {
        self.waiters.waiting_of(conn).is_some() || self.is_sweeping_for(conn)
    }

    /// Whether a connection waits for a name.
    pub(crate) fn has_wait(&self, conn: ConnId) -> bool {
        self.waiters.waiting_of(conn).is_some()
    }

    /// A client arrives again at a barrier, where it was counted before the server was restarted.
    pub(crate) fn wait_at_barrier(
        &mut self,
        conn: ConnId,
        key: &[u8],
        world_size: i64,
        replies: &mut impl Replies,
    ) {
        if let Some(recorder) = &mut self.slots.recorder {
            recorder.begin(conn);
        }
        let value = self.slots.get(key).and_then(Slot::value);
        let arrived = value.and_then(|value| parse_decimal(value.as_bytes()));
        self.cancel(conn);
        if arrived.is_some_and(|arrived| arrived >= world_size) {
            self.reply(replies, conn, Reply::StopWaiting);
        } else {
            self.wait_for_others(conn, key);
        }
    }

    /// Starts a snapshot for the journal, of everything up to this position, which must be the [newest](Recorder::newest).
    /// It has this version of the format, and so do the batches that begin from now on. A snapshot of observers must not
    /// be in progress.
    pub(crate) fn start_chunks(&mut self, position: u64, format: u8) {
        if let Some(recorder) = self.recorder_mut() {
            recorder.set_format(format);
        }
        let mut writer = BatchWriter::new(format);
        self.write_silences(&mut writer);
        self.extensions.sweeps.write(&mut writer);
        self.extensions.groups.write(&mut writer);
        self.extensions.missed_ends.write(&mut writer);
        self.slots.start_chunks(position, writer);
    }

    /// Copies about as many names. Returns the chunks that are finished, and whether they are the last.
    pub(crate) fn copy_chunks(&mut self, budget: usize) -> (Vec<Vec<u8>>, bool) {
        self.slots.copy_chunks(budget)
    }

    /// The bytes of keys, values and elements.
    pub(crate) const fn data_bytes(&self) -> usize {
        self.slots.stored_bytes() + self.slots.queued_bytes()
    }

    /// The replies from now on depend on the gathering batch. If they go to a client whose session is kept, they are
    /// kept in that batch as well: after a crash, the client must not repeat a request that affects other clients,
    /// even if it changes no name.
    pub(super) fn depend_on_batch(&mut self) {
        if let Some(recorder) = &mut self.slots.recorder {
            // Of no names.
            let nothing = Effect::Schedule {
                prefix: b"",
                delay_millis: 0,
            };
            recorder.record_unnamed(nothing);
        }
    }

    /// The following event does not belong to a request, and may depend on anything.
    pub(super) fn look_at_all(&mut self) {
        if let Some(recorder) = &mut self.slots.recorder {
            recorder.begin_event();
        }
    }
}

fn kept_client(session: &[u8], number: u32) -> Option<KeptClient> {
    let session = SessionId::from_bytes(session)?;
    Some(KeptClient { session, number })
}

/// Returns the state that another process recovers from a journal with all changes of this state: from a snapshot, or from
/// a batch.
#[cfg(test)]
pub(super) fn recovered(state: &mut StoreState, from_snapshot: bool) -> StoreState {
    let recorder = state.recorder_mut().expect("a journal");
    let mut kept = Vec::new();
    if from_snapshot {
        let position = recorder.newest();
        state.start_chunks(position, crate::journal::format::FORMAT_VERSION);
        let mut is_done = false;
        while !is_done {
            let chunks;
            (chunks, is_done) = state.copy_chunks(1);
            kept.extend(chunks.into_iter().map(|chunk| (position, chunk)));
        }
    } else {
        kept.extend(recorder.take_batch(&mut Vec::new()));
    }
    let mut recovered = StoreState::default();
    for (position, batch) in kept {
        for effect in crate::journal::batch::effects(position, &batch).expect("intact") {
            assert!(recovered.recover(effect.expect("intact")));
        }
    }
    recovered
}
