//! The number of one client's bytes that may be on their way in one direction (docs/spec/wire-extensions.md, SESSION
//! 8).

use super::stream::Violation;

/// The number of bytes of one client that one side may send before the other side has used any of them.
pub const CLIENT_WINDOW_BYTES: u32 = 256 << 10;

/// Credit is returned in pieces of at least this size, so that short requests cause no credit frames.
const RETURNED_BYTES_MIN: u32 = CLIENT_WINDOW_BYTES / 2;

/// The credit of one client in both directions, at one end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    /// The bytes that this side may send.
    to_send: u32,
    /// The bytes that the other side may send.
    to_receive: u32,
    /// The bytes that this side has used and whose credit it has not returned.
    used: u32,
}

impl Default for Credit {
    fn default() -> Self {
        Self {
            to_send: CLIENT_WINDOW_BYTES,
            to_receive: CLIENT_WINDOW_BYTES,
            used: 0,
        }
    }
}

impl Credit {
    /// Returns how many bytes may be sent.
    #[must_use]
    pub const fn to_send(&self) -> usize {
        self.to_send as usize
    }

    /// Reports that bytes are being sent, at most [`to_send`](Self::to_send).
    pub fn sent(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.to_send(), "more than the credit");
        self.to_send -= narrowed(bytes).min(self.to_send);
    }

    /// Reports that the other side has returned credit.
    ///
    /// # Errors
    /// [`Violation`] if that is more than it can have.
    pub fn returned(&mut self, bytes: u32) -> Result<(), Violation> {
        match self.to_send.checked_add(bytes) {
            Some(sum) if sum <= CLIENT_WINDOW_BYTES => self.to_send = sum,
            _ => return Err(Violation::new("it returned credit that it did not have")),
        }
        Ok(())
    }

    /// Reports that bytes have arrived.
    ///
    /// # Errors
    /// [`Violation`] if the other side had no credit for them.
    pub fn received(&mut self, bytes: usize) -> Result<(), Violation> {
        match self.to_receive.checked_sub(narrowed(bytes)) {
            Some(left) => self.to_receive = left,
            None => return Err(Violation::new("it sent more of a client than it may")),
        }
        Ok(())
    }

    /// Reports that received bytes have been used. Returns the credit to return now, if any.
    #[must_use]
    pub fn used(&mut self, bytes: usize) -> Option<u32> {
        self.used += narrowed(bytes);
        if self.used < RETURNED_BYTES_MIN {
            return None;
        }
        self.to_receive += self.used;
        Some(std::mem::take(&mut self.used))
    }
}

fn narrowed(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
