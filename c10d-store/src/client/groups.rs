//! Requests to process groups: MEMBERSHIP and MEMBERSHIP_POLL.

use std::time::Duration;

use super::TcpStore;
use super::call::at_least_an_answer;
use super::connection::{Follows, Waited};
use super::waiting::Repeat;
use crate::error::{Operation, StoreError};
use crate::groups::Groups;
use crate::wire::Opcode;

/// A reply and a list.
const BLOBS: usize = 2;

impl Groups for TcpStore {
    fn ask_group(
        &self,
        group: &str,
        request: &[u8],
        waits: bool,
        timeout: Option<Duration>,
    ) -> Result<Option<Vec<Vec<u8>>>, StoreError> {
        let keys = [group];
        let call = self.call(Operation::Membership, &keys, &[request])?;
        let mut lease = call.lease(timeout)?;
        if !lease.has_membership() {
            return Err(call.unsupported());
        }
        if !waits {
            let timeout = at_least_an_answer(timeout);
            let blobs = call.ask_by(
                &mut lease,
                call.deadline(timeout),
                timeout,
                |bytes| {
                    bytes.opcode(Opcode::Membership).user_key(group);
                    bytes.value(request);
                },
                |connection, deadline| connection.read_blobs(BLOBS, deadline),
            );
            return blobs.map(Some);
        }
        let follows = Follows::Values(BLOBS);
        let waited = call.wait_on(&mut lease, timeout, Repeat::Free, follows, |bytes| {
            bytes.opcode(Opcode::MembershipPoll).user_key(group);
            bytes.value(request);
        })?;
        Ok(match waited {
            Waited::TimedOut => None,
            Waited::Done(blobs) => Some(blobs),
        })
    }
}
