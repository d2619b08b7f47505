//! The names of sessions and of running stores.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use byteorder::{ByteOrder, LittleEndian};

/// The length of an id.
pub(super) const ID_BYTES: usize = 16;

/// The offset of the number of the run in the id of a store with a journal.
const EPOCH_AT: usize = 8;

/// A bit in the last byte of an id: the id has random bits instead of such a number.
const WITHOUT_JOURNAL: u8 = 1 << 7;

/// Names a session: 128 random bits. They are not logged, because any process that has them can take over the
/// session.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(pub(super) [u8; ID_BYTES]);

/// Names one run of a server: 128 random bits. A server that was restarted without a journal has another name. A
/// server that was restarted with its journal has another second half, a number that rises
/// (docs/spec/wire-extensions.md, SESSION 12).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StoreId(pub(super) [u8; ID_BYTES]);

impl SessionId {
    /// A new one. The bits are derived from the system's random numbers, so two never meet.
    pub(crate) fn random() -> Self {
        Self(random_bits())
    }

    /// A name that is not random.
    #[cfg(test)]
    pub(crate) const fn nth(number: u8) -> Self {
        Self([number; ID_BYTES])
    }

    /// Restores an id from a journal; `None` if the bytes have another length.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl StoreId {
    /// Any store: the id that a client sends before it was ever accepted.
    pub(crate) const ANY: Self = Self([0; ID_BYTES]);

    /// A new one, without a journal.
    pub(crate) fn random() -> Self {
        let mut bits = random_bits();
        bits[ID_BYTES - 1] |= WITHOUT_JOURNAL;
        Self(bits)
    }

    /// Whether this is a store with a journal: no other has so small a number there.
    pub(crate) fn has_journal(self) -> bool {
        self.epoch() <= u64::from(u32::MAX)
    }

    /// Returns how often the journal of a store was opened, if it has one.
    pub(crate) fn epoch(self) -> u64 {
        LittleEndian::read_u64(&self.0[EPOCH_AT..])
    }

    /// The store of a journal, opened for the `epoch`th time.
    pub(crate) fn of_journal(store: &[u8; ID_BYTES], epoch: u64) -> Self {
        let mut id = *store;
        LittleEndian::write_u64(&mut id[EPOCH_AT..], epoch);
        Self(id)
    }

    /// Whether this is the store of the other id, or a later run of it.
    pub(crate) fn continues(self, other: Self) -> bool {
        self == other || other.is_before(self)
    }

    /// Whether this names an earlier run of the same store.
    pub(crate) fn is_before(self, other: Self) -> bool {
        self.0[..EPOCH_AT] == other.0[..EPOCH_AT] && self.epoch() < other.epoch()
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
    /// The first half, in hex: enough to distinguish two servers in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Returns 64 random bits.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(0_u64)
}

/// SipHash with a random key of 128 bits of the system. The store depends on no source of random numbers.
fn random_bits() -> [u8; ID_BYTES] {
    let random = RandomState::new();
    let mut bits = [0; ID_BYTES];
    LittleEndian::write_u64(&mut bits[..8], random.hash_one(0_u64));
    LittleEndian::write_u64(&mut bits[8..], random.hash_one(1_u64));
    bits
}
