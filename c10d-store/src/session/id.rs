//! The names of sessions and of running stores.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use byteorder::{ByteOrder, LittleEndian};

/// The length of an id.
pub(crate) const ID_BYTES: usize = 16;

/// Names a session: 128 random bits. Whoever knows them can take over the session, so they are not logged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId([u8; ID_BYTES]);

/// Names one run of a server: 128 random bits. A server that was restarted, and has lost everything, has another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId([u8; ID_BYTES]);

impl SessionId {
    /// A new one. Two never meet: the bits are derived from the system's random numbers.
    #[must_use]
    pub fn random() -> Self {
        Self(random_bits())
    }

    /// The id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; ID_BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; ID_BYTES] {
        &self.0
    }
}

impl StoreId {
    /// "Any store": what a client says that was never connected.
    pub const ANY: Self = Self([0; ID_BYTES]);

    /// A new one.
    #[must_use]
    pub fn random() -> Self {
        Self(random_bits())
    }

    /// The id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; ID_BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; ID_BYTES] {
        &self.0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId(..)")
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for StoreId {
    /// The first half, in hex: enough to tell two servers apart in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// SipHash with a random key of 128 bits of the system. The store depends on no source of random numbers.
fn random_bits() -> [u8; ID_BYTES] {
    let random = RandomState::new();
    let mut bits = [0; ID_BYTES];
    LittleEndian::write_u64(&mut bits[..8], random.hash_one(0_u64));
    LittleEndian::write_u64(&mut bits[8..], random.hash_one(1_u64));
    bits
}
