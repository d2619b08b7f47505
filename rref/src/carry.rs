//! References inside of arguments and results: what is done with them while a message is encoded or decoded.
//!
//! An [`RRef`](crate::RRef) is encoded only while a message is packed, which forks it, and decoded only while
//! one is unpacked, which receives the fork. Which message that is, a thread-local says: serde hands nothing
//! through. A message has its forks in front, and a reference among the values is a number, which of them it
//! is. So all forks of a message are received before a value is decoded, and those that no value takes,
//! because it cannot be decoded, are given back as any other reference is.

use std::any::type_name;
use std::cell::RefCell;
use std::sync::Arc;

use byteorder::{ByteOrder, LittleEndian};
use postcard::ser_flavors::Size;
use rpc_agent::WorkerId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::Carrier;
use crate::error::RRefError;
use crate::handle::Cell;
use crate::protocol::ForkData;
use crate::runtime::Runtime;

/// Said when a reference is encoded where none can be. The words are PyTorch's.
pub(crate) const NOT_IN_RPC: &str =
    "Can not pickle rref in python pickler, rref can only be pickled when using RPC";

/// The most references in one message.
pub(crate) const FORKS_MAX: usize = 65_536;

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

enum Scope {
    Packing {
        to: WorkerId,
        /// Undone if the encoding panics.
        forks: Forks,
        error: Option<RRefError>,
    },
    Unpacking {
        cells: Vec<Option<Arc<Cell>>>,
        error: Option<RRefError>,
    },
    /// Which references a value holds.
    Looking { found: Vec<Arc<Cell>> },
}

/// Puts a scope in place for the time of `f`. Values can be encoded while others are, as by a value that
/// looks into another one: each has its own.
fn within<R>(scope: Scope, f: impl FnOnce() -> R) -> (R, Scope) {
    struct Restore(Option<Scope>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let outer = self.0.take();
            // What is replaced is there after a panic only.
            drop(SCOPE.with(|scope| scope.replace(outer)));
        }
    }
    let restore = Restore(SCOPE.with(|current| current.replace(Some(scope))));
    let result = f();
    let scope = SCOPE.with(RefCell::take);
    drop(restore);
    (
        result,
        scope.unwrap_or(Scope::Looking { found: Vec::new() }),
    )
}

/// The forks of a message that is not sent yet: dropped, they are undone.
pub(crate) struct Forks {
    runtime: Arc<Runtime>,
    forks: Vec<ForkData>,
}

impl Forks {
    /// The context has committed them.
    pub(crate) fn disarm(mut self) {
        self.forks.clear();
    }

    pub(crate) fn data(&self) -> &[ForkData] {
        &self.forks
    }

    /// The message goes out now: whether it arrives is the sender's to find out.
    pub(crate) fn commit(mut self, carrier: Carrier) -> Vec<ForkData> {
        let forks = std::mem::take(&mut self.forks);
        if !forks.is_empty() {
            self.runtime.commit_forks(&forks, carrier);
        }
        forks
    }
}

impl Drop for Forks {
    fn drop(&mut self) {
        if !self.forks.is_empty() {
            self.runtime.undo_forks(&self.forks);
        }
    }
}

/// Encodes a value for a message to `to`, appended to `bytes`, with its references forked. On a failure all
/// is undone.
pub(crate) fn pack<T: Serialize + ?Sized>(
    runtime: &Arc<Runtime>,
    to: WorkerId,
    first: Option<&Arc<Cell>>,
    value: &T,
    bytes: &mut Vec<u8>,
) -> Result<Forks, RRefError> {
    pack_with(runtime, to, first, bytes, || encode(value))
}

/// [`pack`] of what `encode` encodes; `first` is a reference that is put before all others.
pub(crate) fn pack_with(
    runtime: &Arc<Runtime>,
    to: WorkerId,
    first: Option<&Arc<Cell>>,
    bytes: &mut Vec<u8>,
    encode: impl FnOnce() -> Result<Vec<u8>, String>,
) -> Result<Forks, RRefError> {
    let none = || Forks {
        runtime: Arc::clone(runtime),
        forks: Vec::new(),
    };
    let scope = Scope::Packing {
        to,
        forks: none(),
        error: None,
    };
    let (encoded, scope) = within(scope, || {
        if let Some(first) = first {
            put(first).map_err(str::to_owned)?;
        }
        encode()
    });
    let (guard, error) = match scope {
        Scope::Packing { forks, error, .. } => (forks, error),
        _ => (none(), None),
    };
    if let Some(error) = error {
        return Err(error);
    }
    let encoded = encoded.map_err(|error| RRefError::Codec(error.into()))?;
    let count = u32::try_from(guard.forks.len()).unwrap_or(u32::MAX);
    bytes.reserve(4 + guard.forks.len() * 64 + encoded.len());
    let mut head = [0; 4];
    LittleEndian::write_u32(&mut head, count);
    bytes.extend_from_slice(&head);
    for fork in &guard.forks {
        fork.encode(bytes);
    }
    bytes.extend_from_slice(&encoded);
    Ok(guard)
}

/// What a message has before its values.
pub(crate) struct Packed<'a> {
    pub(crate) forks: Vec<ForkData>,
    pub(crate) values: &'a [u8],
}

impl<'a> Packed<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, RRefError> {
        let (count, mut rest) = bytes
            .split_at_checked(4)
            .ok_or_else(|| RRefError::Codec("the message ends within its references".into()))?;
        let count = LittleEndian::read_u32(count) as usize;
        if count > FORKS_MAX {
            return Err(RRefError::Codec(
                format!("the message has {count} references, the limit is {FORKS_MAX}").into(),
            ));
        }
        let mut forks = Vec::new();
        for _ in 0..count {
            let fork = ForkData::decode(&mut rest)
                .map_err(|error| RRefError::Codec(error.to_string().into()))?;
            forks.push(fork);
        }
        Ok(Self {
            forks,
            values: rest,
        })
    }
}

/// Runs `decode`, for which the references of a message are these.
pub(crate) fn unpack_with<R>(
    cells: Vec<Arc<Cell>>,
    decode: impl FnOnce() -> R,
) -> (R, Option<RRefError>) {
    let scope = Scope::Unpacking {
        cells: cells.into_iter().map(Some).collect(),
        error: None,
    };
    match within(scope, decode) {
        (result, Scope::Unpacking { error, .. }) => (result, error),
        (result, _) => (result, None),
    }
}

/// Decodes one value, with the references that came with it.
pub(crate) fn unpack<T: DeserializeOwned>(
    cells: Vec<Arc<Cell>>,
    values: &[u8],
) -> Result<T, RRefError> {
    let (value, error) = unpack_with(cells, || rpc_agent::typed::decode(values));
    if let Some(error) = error {
        return Err(error);
    }
    value.map_err(|error| RRefError::Codec(error.to_string().into()))
}

/// The references that are met while `walk` runs.
pub(crate) fn look(walk: impl FnOnce()) -> Vec<Arc<Cell>> {
    match within(Scope::Looking { found: Vec::new() }, walk) {
        ((), Scope::Looking { found }) => found,
        _ => Vec::new(),
    }
}

/// The bytes of a value. Its length is not measured first, as that would fork each reference twice.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, String> {
    postcard::to_extend(value, Vec::new()).map_err(|error| {
        let type_name = type_name::<T>();
        format!("a value of type `{type_name}` cannot be encoded: {error}")
    })
}

/// Meets everything in a value, and keeps nothing of it: its bytes are counted only.
pub(crate) fn walk<T: Serialize + ?Sized>(value: &T) {
    // A value that cannot be encoded has been gone through up to there.
    let _ = postcard::serialize_with_flavor(value, Size::default());
}

/// Forks a reference for the message that this thread packs; returns its number there.
pub(crate) fn put(cell: &Arc<Cell>) -> Result<u32, &'static str> {
    enum Found {
        Packing(Arc<Runtime>, WorkerId, usize),
        Looking,
        Nothing,
    }
    let found = SCOPE.with_borrow_mut(|scope| match scope {
        Some(Scope::Packing { to, forks, .. }) => {
            Found::Packing(Arc::clone(&forks.runtime), *to, forks.forks.len())
        }
        Some(Scope::Looking { found }) => {
            found.push(Arc::clone(cell));
            Found::Looking
        }
        _ => Found::Nothing,
    });
    let (runtime, to, number) = match found {
        Found::Packing(runtime, to, number) => (runtime, to, number),
        Found::Looking => return Ok(0),
        Found::Nothing => return Err(NOT_IN_RPC),
    };
    // Without the scope: forking runs effects.
    let forked = if number >= FORKS_MAX {
        let what = format!("a message has at most {FORKS_MAX} references");
        Err(RRefError::Refused(what.into()))
    } else {
        cell.fork(&runtime, to)
    };
    SCOPE.with_borrow_mut(|scope| match scope {
        Some(Scope::Packing { forks, error, .. }) => match forked {
            Ok(fork) => {
                forks.forks.push(fork);
                u32::try_from(number).map_err(|_| "too many references")
            }
            Err(refused) => {
                error.get_or_insert(refused);
                Err("a reference cannot be sent")
            }
        },
        _ => Err(NOT_IN_RPC),
    })
}

/// Takes a reference of a value of type `type_name` out of the message that this thread unpacks.
pub(crate) fn take(number: u32, type_name: &str) -> Result<Arc<Cell>, &'static str> {
    SCOPE.with_borrow_mut(|scope| {
        let Some(Scope::Unpacking { cells, error }) = scope else {
            return Err(NOT_IN_RPC);
        };
        let taken = cells
            .get_mut(number as usize)
            .and_then(Option::take)
            .ok_or("the message has no such reference")?;
        if taken.type_name() != type_name {
            let what = format!(
                "a reference to a `{}` came as one to a `{type_name}`",
                taken.type_name()
            );
            error.get_or_insert(RRefError::Refused(what.into()));
            // Dropped with the others, when the message is.
            cells[number as usize] = Some(taken);
            return Err("the reference is of another type");
        }
        Ok(taken)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::{ForkId, GloballyUniqueId, RRefId};

    /// Fork data with an empty name of a type.
    const FORK_BYTES_MIN: usize = 52;

    fn id() -> impl Strategy<Value = GloballyUniqueId> {
        (0..=rpc_agent::WORKER_ID_MAX, any::<u64>(), any::<u64>()).prop_map(
            |(worker, incarnation, local_id)| GloballyUniqueId {
                created_on: WorkerId::new(worker).unwrap(),
                incarnation,
                local_id,
            },
        )
    }

    fn fork() -> impl Strategy<Value = ForkData> {
        (id(), id(), id(), "\\PC{0,20}").prop_map(|(owner, rref, fork, type_name)| ForkData {
            owner: owner.created_on,
            owner_incarnation: owner.incarnation,
            rref: RRefId(rref),
            fork: ForkId(fork),
            parent: fork.created_on,
            type_name: type_name.into(),
        })
    }

    /// The bytes of a message, as [`pack`] puts them together.
    fn message(count: u32, forks: &[ForkData], values: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        LittleEndian::write_u32(&mut bytes, count);
        for fork in forks {
            fork.encode(&mut bytes);
        }
        bytes.extend_from_slice(values);
        bytes
    }

    /// What was reserved for references is in proportion to the bytes that were there for them.
    fn is_modest(packed: &Packed<'_>, bytes: &[u8]) -> bool {
        let room = (bytes.len() - packed.values.len()) / FORK_BYTES_MIN;
        packed.forks.len() <= room && packed.forks.capacity() <= 2 * room + 4
    }

    proptest! {
        #[test]
        fn forks_and_values_come_back_unchanged_wherever_the_one_end_and_the_others_begin(
            forks in proptest::collection::vec(fork(), 0..6), values: Vec<u8>
        ) {
            let bytes = message(forks.len() as u32, &forks, &values);
            let packed = Packed::parse(&bytes).unwrap();
            prop_assert_eq!(&packed.forks, &forks);
            prop_assert_eq!(packed.values, &values[..]);
            prop_assert!(is_modest(&packed, &bytes));
            // A lower count leaves the last ones among the values, and a higher one needs them there.
            let begin = bytes.len() - values.len();
            for count in 0..forks.len() {
                let fewer = message(count as u32, &forks, &values);
                let packed = Packed::parse(&fewer).unwrap();
                prop_assert_eq!(&packed.forks, &forks[..count]);
                prop_assert!(packed.values.ends_with(&values));
                prop_assert!(packed.values.len() >= values.len() + FORK_BYTES_MIN);
            }
            let more = message(forks.len() as u32 + 1, &forks, &[]);
            prop_assert!(Packed::parse(&more).is_err());
            for end in 0..bytes.len() {
                let cut = Packed::parse(&bytes[..end]);
                prop_assert_eq!(cut.is_ok(), end >= begin, "{} of {}", end, bytes.len());
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused_within_what_they_take(
            count in prop_oneof![0..4_u32, any::<u32>(), Just(FORKS_MAX as u32)], bytes: Vec<u8>
        ) {
            for bytes in [message(count, &[], &bytes), bytes] {
                if let Ok(packed) = Packed::parse(&bytes) {
                    prop_assert!(is_modest(&packed, &bytes));
                    prop_assert!(bytes.ends_with(packed.values));
                }
            }
        }

        #[test]
        fn any_one_byte_of_a_message_can_be_another(
            forks in proptest::collection::vec(fork(), 1..3), at: prop::sample::Index, byte: u8
        ) {
            let mut bytes = message(forks.len() as u32, &forks, &[1, 2, 3]);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(packed) = Packed::parse(&bytes) {
                prop_assert!(is_modest(&packed, &bytes));
            }
        }
    }

    #[test]
    fn a_number_of_references_beyond_the_limit_is_refused_before_any_is_looked_at() {
        for count in [FORKS_MAX as u32 + 1, u32::MAX] {
            let error = Packed::parse(&message(count, &[], &[])).err().unwrap();
            let expected = format!("the message has {count} references, the limit is {FORKS_MAX}");
            assert_eq!(error.to_string(), expected);
        }
        // So many may be, but are not there.
        let error = Packed::parse(&message(FORKS_MAX as u32, &[], &[])).err();
        let error = error.unwrap().to_string();
        assert!(error.starts_with("the message ends within its"), "{error}");
    }

    #[test]
    fn as_many_references_as_there_may_be_are_parsed() {
        let worker = WorkerId::new(1).unwrap();
        let id = GloballyUniqueId {
            created_on: worker,
            incarnation: 2,
            local_id: 3,
        };
        let fork = ForkData {
            owner: worker,
            owner_incarnation: 2,
            rref: RRefId(id),
            fork: ForkId(id),
            parent: worker,
            type_name: "".into(),
        };
        let bytes = message(FORKS_MAX as u32, &vec![fork; FORKS_MAX], b"value");
        assert_eq!(bytes.len(), 4 + FORKS_MAX * FORK_BYTES_MIN + 5);
        let packed = Packed::parse(&bytes).unwrap();
        assert_eq!(packed.forks.len(), FORKS_MAX);
        assert_eq!(packed.values, b"value");
    }

    #[test]
    fn no_reference_is_taken_outside_of_a_message_or_that_it_does_not_have() {
        assert_eq!(take(0, "i64").err(), Some(NOT_IN_RPC));
        let ((), error) = unpack_with(Vec::new(), || {
            assert_eq!(
                take(0, "i64").err(),
                Some("the message has no such reference")
            );
            assert_eq!(
                take(u32::MAX, "i64").err(),
                Some("the message has no such reference")
            );
        });
        assert!(error.is_none());
        assert_eq!(take(0, "i64").err(), Some(NOT_IN_RPC));
    }

    #[test]
    fn a_message_within_a_message_and_a_panic_leave_the_outer_one_as_it_was() {
        let ((), error) = unpack_with(Vec::new(), || {
            assert!(look(|| ()).is_empty());
            let panicked =
                std::panic::catch_unwind(|| look(|| std::panic::resume_unwind(Box::new(()))));
            assert!(panicked.is_err());
            assert_eq!(
                take(0, "i64").err(),
                Some("the message has no such reference"),
                "this is still the message"
            );
        });
        assert!(error.is_none());
        assert_eq!(take(0, "i64").err(), Some(NOT_IN_RPC));
    }
}
