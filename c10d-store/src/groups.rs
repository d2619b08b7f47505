//! Process groups whose members agree through a store's server.

use std::time::Duration;

use crate::error::StoreError;

/// Requests to process groups, as bytes. [`Membership`](crate::membership::Membership) says what callers get.
pub trait Groups {
    /// Sends a request to a group. One that waits is a poll, and is answered when there is news; `None` if there is none in
    /// time. The answer is the reply and the list of docs/spec/wire-extensions.md, section 9.13.
    ///
    /// # Errors
    /// As [`Membership`](crate::membership::Membership).
    fn ask_group(
        &self,
        group: &str,
        request: &[u8],
        waits: bool,
        timeout: Option<Duration>,
    ) -> Result<Option<Vec<Vec<u8>>>, StoreError>;
}
