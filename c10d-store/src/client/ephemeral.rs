//! Keys that expire with their owner. They have a separate connection, so that no waiting call delays a sign that
//! this process is alive, and the connection is never closed for being unused.

use std::mem;
use std::sync::PoisonError;
use std::time::Duration;

use super::TcpStore;
use super::call::{Call, at_least_an_answer};
use super::connection::Connection;
use crate::error::{Operation, StoreError};
use crate::store::StoreHandle;
use crate::wire::{
    ENDED_BY_SILENCE, FULL, KEPT_ALIVE, NOT_OWNED, OWNED, Opcode, RequestBuf, TOO_MANY_OWNED,
    capability,
};

/// The most keys of an owner (docs/spec/wire-extensions.md, EPHEMERAL 6).
const OWNED_KEYS_MAX: usize = 1024;

/// The reply to SET_EPHEMERAL.
enum Claim {
    Owned,
    /// The value that is there.
    NotOwned(Vec<u8>),
    TooMany,
}

impl TcpStore {
    /// Implements [`Store::set_ephemeral_bytes`](crate::Store::set_ephemeral_bytes).
    pub(super) fn claim_key(
        &self,
        key: &str,
        value: &[u8],
        will: Option<(&str, &[u8])>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let (keys, values) = match &will {
            Some((will_key, will_value)) => ([key, will_key], [value, will_value]),
            None => ([key, key], [value, value]),
        };
        let count = 1 + usize::from(will.is_some());
        let call = self.call(Operation::SetEphemeral, &keys[..count], &values[..count])?;
        let (owner, _) = self.owner(&call, true)?;
        let call = call.over(&owner.handle().transport);
        let claim = call.ask(
            |request| {
                request.opcode(Opcode::SetEphemeral).user_key(key);
                request.value(value);
                match will {
                    Some((key, value)) => request.user_key(key).value(value),
                    None => request.raw_key(b"").value(b""),
                };
            },
            |connection, deadline| {
                Ok(match connection.read_u8(deadline)? {
                    OWNED => Ok(Claim::Owned),
                    NOT_OWNED => Ok(Claim::NotOwned(connection.read_blob(deadline)?)),
                    TOO_MANY_OWNED => Ok(Claim::TooMany),
                    FULL => return Err(connection.read_refusal(deadline)),
                    other => Err(other),
                })
            },
        );
        let claim = claim.inspect_err(|error| self.forget_owner(&owner, error))?;
        match claim {
            Ok(Claim::Owned) => Ok(None),
            Ok(Claim::NotOwned(value)) => Ok(Some(value)),
            Ok(Claim::TooMany) => {
                let actual = OWNED_KEYS_MAX + 1;
                Err(call.limit_exceeded("ephemeral keys of one store", actual, OWNED_KEYS_MAX))
            }
            Err(other) => {
                Err(call.protocol_error(format!("the reply to SET_EPHEMERAL was 0x{other:02x}")))
            }
        }
    }

    /// Implements [`Store::keep_alive`](crate::Store::keep_alive).
    pub(super) fn keep_owner_alive(
        &self,
        silence_max: Option<Duration>,
    ) -> Result<bool, StoreError> {
        let call = self.call_of(Operation::KeepAlive);
        let (owner, was_lost) = self.owner(&call, false)?;
        let call = call.over(&owner.handle().transport);
        // At least 1 ms: 0 is any time.
        let millis = silence_max.map_or(0, |it| it.as_millis().max(1));
        let millis = u32::try_from(millis).unwrap_or(u32::MAX);
        let answer = call.ask(
            |request: &mut RequestBuf<'_>| {
                request.opcode(Opcode::KeepAlive).u32(millis);
            },
            Connection::read_u8,
        );
        let answer = answer.inspect_err(|error| self.forget_owner(&owner, error))?;
        match answer {
            KEPT_ALIVE => Ok(!was_lost),
            ENDED_BY_SILENCE => Ok(false),
            other => Err(call.protocol_error(format!("the reply to KEEP_ALIVE was 0x{other:02x}"))),
        }
    }

    /// The owner of this store's ephemeral keys, and whether another owner was lost. If the request shows earlier
    /// writes, these are acknowledged first.
    fn owner(&self, call: &Call<'_>, shows_writes: bool) -> Result<(Self, bool), StoreError> {
        // Before its lock, which a forked child could find held.
        self.check_not_closed()?;
        let timeout = self.timeout();
        let known = self.known_owner();
        if known.is_none() || shows_writes {
            let mut lease = call.lease(timeout)?;
            if !lease.has(capability::EPHEMERAL) {
                return Err(call.unsupported());
            }
            call.acknowledge_on(&mut lease)?;
        }
        let opened = match known {
            Some(_) => None,
            None => {
                let deadline = call.deadline(at_least_an_answer(timeout));
                // It must learn that the connection is lost, and its keys with it.
                Some(self.clone_by(deadline, false)?)
            }
        };
        let (owner, was_lost) = {
            let owner = self.handle().owner.lock();
            let mut owner = owner.unwrap_or_else(PoisonError::into_inner);
            // A store that another thread has opened in the meantime is as good.
            let store = owner.store.take().or(known).or(opened);
            owner.store = store.as_ref().map(Self::share);
            (store, !shows_writes && mem::take(&mut owner.was_lost))
        };
        let Some(owner) = owner else {
            return Err(call.unsupported());
        };
        owner.set_timeout(timeout);
        // The store may have been closed in the meantime.
        if let Err(error) = self.check_not_closed() {
            owner.close();
            return Err(error);
        }
        Ok((owner.with_cancel(&self.cancel), was_lost))
    }

    /// The owner, if there is one.
    pub(super) fn known_owner(&self) -> Option<Self> {
        let owner = self.handle().owner.lock();
        let owner = owner.unwrap_or_else(PoisonError::into_inner);
        owner.store.as_ref().map(Self::share)
    }

    /// Returns another value of the same handle.
    fn share(&self) -> Self {
        self.with_cancel(&self.cancel)
    }

    /// A call without an answer has cost the owner its connection, and thus its keys. (After the loss of the connection
    /// all calls fail, unless this store connects again.)
    fn forget_owner(&self, lost: &Self, error: &StoreError) {
        let is_forgotten = match error {
            StoreError::ConnectionLost { .. } => self.handle().transport.pool.reconnects(),
            error => error.has_unknown_outcome(),
        };
        if !is_forgotten {
            return;
        }
        lost.close();
        let owner = self.handle().owner.lock();
        let mut owner = owner.unwrap_or_else(PoisonError::into_inner);
        let is_it = |store: &mut Self| std::ptr::eq(store.handle(), lost.handle());
        if owner.store.take_if(is_it).is_some() {
            owner.was_lost = true;
        }
    }
}
