//! `add`, including values that are not a number. A server with TRY_ADD reports them. Other servers close the connection of an
//! ADD or a BARRIER, because the protocol has no error replies: then the client connects again and reads the value.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;

use super::call::Call;
use super::connection::{ANSWER_TIMEOUT_MIN, Connection, Failure};
use super::pool::Lease;
use super::stream::is_closed_by_peer;
use crate::decimal::parse_decimal;
use crate::error::StoreError;
use crate::value_rules::{shorten, shorten_head};
use crate::wire::{ADDED, CHECK_READY, FULL, NOT_A_NUMBER, Opcode, RequestBuf, capability};

/// The most time spent on reading the value: during this time, calls on other lanes do not learn of a lost server.
const READ_TIMEOUT_MAX: Duration = Duration::from_secs(5);

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

    /// The error of a call that adds to the number at `key`, and whose failure has not ended the pool. Ends it unless
    /// the value is not a number (docs/spec/wire-extensions.md, TRY_ADD 3, and docs/spec/wire.md, CLOSE 7). The error shows
    /// `timeout`.
    pub(super) fn explain_close(
        &self,
        lease: &mut Lease<'_>,
        key: &str,
        failure: Failure,
        timeout: Option<Duration>,
    ) -> StoreError {
        if matches!(&failure, Failure::Lost(error) if is_closed_by_peer(error)) {
            // From now: the request may have used up the call's timeout.
            let now = Instant::now();
            let deadline = Deadline::after(now, ANSWER_TIMEOUT_MIN)
                .at_least(self.deadline(timeout))
                .min(Deadline::after(now, READ_TIMEOUT_MAX));
            if let Some(value) = value_on_new_connection(lease, key, deadline)
                && parse_decimal(&value).is_none()
            {
                return self.not_a_number(shorten(&value));
            }
        }
        self.explain(lease.end_by(failure), timeout)
    }

    pub(super) fn not_a_number(&self, value: String) -> StoreError {
        StoreError::NotANumber {
            context: self.context(),
            value,
        }
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

/// Reads the value of `key` on a new connection of the same lane. `None` if the server does not answer
/// or has no value: it may be a new server at the same address.
fn value_on_new_connection(
    lease: &mut Lease<'_>,
    key: &str,
    deadline: Deadline,
) -> Option<Vec<u8>> {
    lease.reconnect(deadline).ok()?;
    let check = |connection: &mut Connection| {
        let build = |request: &mut RequestBuf<'_>| {
            request.opcode(Opcode::Check).user_keys(&[key]);
        };
        connection.ask(build, Connection::read_u8, deadline)
    };
    // PyTorch's older server closes on a GET of a missing key.
    if lease.attempt(check).ok()? != CHECK_READY {
        return None;
    }
    let get = |connection: &mut Connection| {
        let build = |request: &mut RequestBuf<'_>| {
            request.opcode(Opcode::Get).user_key(key);
        };
        connection.ask(build, Connection::read_blob, deadline)
    };
    lease.attempt(get).ok()
}
