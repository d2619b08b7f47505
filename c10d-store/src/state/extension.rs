//! Our extensions of PyTorch's store (docs/spec/wire-extensions.md): the checks before a request, and the dispatch of each
//! extension to the file that carries it out.

use super::owners::silence_max;
use super::{Refusal, StoreState};
use crate::groups::GroupRequest;
use crate::message::{ConnId, Extension, Replies, Request};
use crate::snapshot::ConnectionId;

impl StoreState {
    /// Whether [`check_request`](Self::check_request) has something to do.
    #[inline]
    pub(super) fn has_checks(&self) -> bool {
        self.slots.recorder.is_some()
            || self.memory_max.is_some()
            || !self.reserved_wakeups.is_empty()
            || !self.ended_waits.is_empty()
    }

    /// Checks a request before it is carried out. Returns whether it is done already.
    ///
    /// # Errors
    /// [`Refusal::MemoryFull`].
    pub(super) fn check_request(
        &mut self,
        conn: ConnId,
        request: &Request<'_>,
        replies: &mut impl Replies,
    ) -> Result<bool, Refusal> {
        if let Some(recorder) = &mut self.slots.recorder {
            recorder.begin(conn);
            if matches!(request, Request::GetNumKeys | Request::ListKeys) {
                recorder.look_at_all();
            }
        }
        let checked = self.check_memory(conn, request);
        // A refused request also counts as a request: a wakeup passes to the next waiter.
        if !self.reserved_wakeups.is_empty() {
            self.return_wakeup(conn, Some(request), replies);
        }
        let was_ended = self.ended_waits.remove(&conn);
        match checked {
            Err(Refusal::MemoryFull { used, limit }) if request.can_report() => {
                self.report_full(conn, request, (used, limit), replies);
                Ok(true)
            }
            Err(refusal) => Err(refusal),
            // docs/spec/wire-extensions.md, END_WAITS 2.
            Ok(()) => Ok(was_ended && matches!(request, Request::CancelWait)),
        }
    }

    /// Carries out a request that PyTorch's servers do not have.
    pub(super) fn extend(
        &mut self,
        conn: ConnId,
        extension: Extension<'_>,
        replies: &mut impl Replies,
    ) -> Result<(), Refusal> {
        match extension {
            Extension::CompareExchange {
                key,
                expected,
                desired,
            } => self.compare_exchange(conn, key, expected, desired, replies),
            Extension::TryAdd { key, delta } => self.try_add(conn, key, delta, replies),
            Extension::WaitGet { keys } => self.wait_get(conn, keys, replies),
            Extension::WaitChange {
                key,
                offset,
                length,
                known,
            } => {
                self.cancel(conn);
                self.wait_change(conn, key, offset, length, known, replies);
            }
            Extension::QueueTake { key, max } => self.queue_take(conn, key, max, replies),
            Extension::SetEphemeral {
                key,
                value,
                will_key,
                will_value,
            } => self.set_ephemeral(conn, key, value, (will_key, will_value), replies),
            Extension::KeepAlive { millis } => self.keep_alive(conn, silence_max(millis), replies),
            Extension::DeletePrefix {
                prefix,
                delay_millis,
            } => self.delete_prefix(conn, prefix, delay_millis, replies),
            Extension::EndWaits { prefix } => self.end_waits(conn, prefix, replies),
            Extension::Membership { name, bytes, waits } => {
                let request = GroupRequest {
                    conn,
                    name,
                    bytes,
                    waits,
                };
                self.ask_group(request, replies)?;
            }
            // The event loop does it: nothing in the store changes.
            Extension::Session(_) => {}
            Extension::Announce { bytes } => {
                let connection = self.requester;
                if connection != ConnectionId::default() {
                    let most = self.announced_bytes_max();
                    self.announcements
                        .put(connection, self.now, bytes.as_bytes(), most);
                }
            }
        }
        Ok(())
    }
}
