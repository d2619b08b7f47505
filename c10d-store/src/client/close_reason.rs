//! Finds the reason why the server has closed the connection of an ADD or a BARRIER. The protocol has no error
//! replies, so a server closes it if the value is not a number. The client reconnects and reads the value.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;

use super::call::Call;
use super::connection::{ANSWER_TIMEOUT_MIN, Connection, Failure};
use super::pool::Lease;
use super::stream::is_closed_by_peer;
use crate::decimal::parse_decimal;
use crate::error::StoreError;
use crate::value_rules::shorten;
use crate::wire::{CHECK_READY, Opcode, RequestBuf};

/// The most time spent on it: during this time, calls on other lanes do not learn of a lost server.
const READ_TIMEOUT_MAX: Duration = Duration::from_secs(5);

impl Call<'_> {
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
