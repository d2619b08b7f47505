//! `add`, including values that are not a number. A server with TRY_ADD reports them. Other servers
//! close the connection.

use c10d_socket::Deadline;

use super::call::Call;
use super::connection::{Connection, Failure};
use super::pool::Lease;
use crate::error::StoreError;
use crate::value_rules::shorten_head;
use crate::wire::{ADDED, FULL, NOT_A_NUMBER, Opcode, RequestBuf, capability};

/// The reply of TRY_ADD.
enum Answer {
    Sum(i64),
    /// The value is not a number; its start, in the form in which an error shows it.
    NotANumber(String),
}

impl Call<'_> {
    /// Adds to the number at `key`.
    pub(super) fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        let mut lease = self.lease(self.store_timeout())?;
        if !lease.has(capability::TRY_ADD) {
            return self.plain_add(lease, key, delta);
        }
        let answer = self.ask_on(
            &mut lease,
            |request| {
                request.opcode(Opcode::TryAdd).user_key(key).i64(delta);
            },
            read_answer,
        )?;
        match answer {
            Answer::Sum(sum) => Ok(sum),
            Answer::NotANumber(value) => Err(self.not_a_number(value)),
        }
    }

    /// ADD on PyTorch's servers, which close the connection if the value is not a number.
    fn plain_add(&self, mut lease: Lease<'_>, key: &str, delta: i64) -> Result<i64, StoreError> {
        let timeout = self.answer_timeout();
        let deadline = self.deadline(timeout);
        let added = lease.attempt(|connection| {
            let build = |request: &mut RequestBuf<'_>| {
                request.opcode(Opcode::Add).user_key(key).i64(delta);
            };
            connection.ask(build, Connection::read_i64, deadline)
        });
        added.map_err(|failure| self.explain_close(&mut lease, key, failure, timeout))
    }
}

fn read_answer(connection: &mut Connection, deadline: Deadline) -> Result<Answer, Failure> {
    match connection.read_u8(deadline)? {
        ADDED => connection.read_i64(deadline).map(Answer::Sum),
        NOT_A_NUMBER => {
            let length = connection.read_i64(deadline)?;
            let head = connection.read_blob(deadline)?;
            // No server sends a length beyond i64; it is only shown.
            let length = usize::try_from(length).unwrap_or(head.len());
            Ok(Answer::NotANumber(shorten_head(&head, length)))
        }
        FULL => Err(connection.read_refusal(deadline)),
        other => Err(Failure::Protocol(format!(
            "the reply to TRY_ADD was 0x{other:02x}"
        ))),
    }
}
