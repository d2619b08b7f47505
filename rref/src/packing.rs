//! References inside arguments, results and values, while a message is packed or unpacked.
//!
//! An [`RRef`](crate::RRef) can be serialized only while a message is packed, which forks it, and deserialized
//! only while one is unpacked, which takes a received reference. serde passes no context through, so a
//! thread-local holds the current message.
//!
//! A message has its forks in front; among the values, a reference is the number of its fork. So all forks
//! are received before any value is decoded. References that no value takes are dropped with the message.

use std::cell::RefCell;
use std::sync::Arc;

use byteorder::{ByteOrder, LittleEndian};
use rpc_agent::WorkerId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cell::Cell;
use crate::error::RRefError;
use crate::forks::Forks;
use crate::protocol::ForkData;
use crate::runtime::Runtime;
use crate::value;

/// The error of serializing a reference outside of a message, in PyTorch's words.
pub(crate) const NOT_IN_RPC: &str =
    "Can not pickle rref in python pickler, rref can only be pickled when using RPC";

/// The most references in one message.
pub(crate) const FORKS_MAX: usize = 65_536;

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// The effect of serializing or deserializing a reference on this thread.
enum Scope {
    Packing {
        /// Undone if the encoding panics.
        forks: Forks,
        error: Option<RRefError>,
    },
    Unpacking {
        cells: Vec<Option<Arc<Cell>>>,
        error: Option<RRefError>,
    },
}

/// Runs `f` with this scope, and restores the outer one: encoding one value may encode another.
fn within<R>(scope: Scope, f: impl FnOnce() -> R) -> (R, Option<Scope>) {
    struct Restore(Option<Scope>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let outer = self.0.take();
            // Holds a scope after a panic only; it is dropped outside of the borrow.
            drop(SCOPE.with(|scope| scope.replace(outer)));
        }
    }
    let restore = Restore(SCOPE.with(|current| current.replace(Some(scope))));
    let result = f();
    let scope = SCOPE.with(RefCell::take);
    drop(restore);
    (result, scope)
}

/// Appends a value to `bytes`, with its references forked for worker `to`. A failure undoes the forks.
pub(crate) fn pack<T: Serialize + ?Sized>(
    runtime: &Arc<Runtime>,
    to: WorkerId,
    first: Option<&Arc<Cell>>,
    value: &T,
    bytes: &mut Vec<u8>,
) -> Result<Forks, RRefError> {
    let limit = runtime.agent.message_bytes_max();
    pack_with(runtime, to, first, bytes, || value::encode(value, limit))
}

/// Like [`pack`] for the output of `encode`; `first` is a reference that is put before all other references.
pub(crate) fn pack_with(
    runtime: &Arc<Runtime>,
    to: WorkerId,
    first: Option<&Arc<Cell>>,
    bytes: &mut Vec<u8>,
    encode: impl FnOnce() -> Result<Vec<u8>, String>,
) -> Result<Forks, RRefError> {
    let scope = Scope::Packing {
        forks: Forks::new(runtime, to),
        error: None,
    };
    let (encoded, scope) = within(scope, || {
        if let Some(first) = first {
            put(first).map_err(str::to_owned)?;
        }
        encode()
    });
    let (forks, error) = match scope {
        Some(Scope::Packing { forks, error }) => (forks, error),
        _ => (Forks::new(runtime, to), None),
    };
    if let Some(error) = error {
        return Err(error);
    }
    let encoded = encoded.map_err(|error| RRefError::Codec(error.into()))?;
    let count = u32::try_from(forks.data().len()).unwrap_or(u32::MAX);
    bytes.reserve(4 + forks.data().len() * 64 + encoded.len());
    let mut head = [0; 4];
    LittleEndian::write_u32(&mut head, count);
    bytes.extend_from_slice(&head);
    for fork in forks.data() {
        fork.encode(bytes);
    }
    bytes.extend_from_slice(&encoded);
    Ok(forks)
}

/// A packed message: its forks, and the encoded values behind them.
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

/// Runs `decode`, during which references are taken from `cells`.
pub(crate) fn unpack_with<R>(
    cells: Vec<Arc<Cell>>,
    decode: impl FnOnce() -> R,
) -> (R, Option<RRefError>) {
    let scope = Scope::Unpacking {
        cells: cells.into_iter().map(Some).collect(),
        error: None,
    };
    match within(scope, decode) {
        (result, Some(Scope::Unpacking { error, .. })) => (result, error),
        (result, _) => (result, None),
    }
}

/// Decodes a value with the references that arrived with it.
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

/// Forks a reference for the message that this thread packs. Returns its number in the message.
pub(crate) fn put(cell: &Arc<Cell>) -> Result<u32, &'static str> {
    let packing = SCOPE.with_borrow(|scope| match scope {
        Some(Scope::Packing { forks, .. }) => {
            Some((Arc::clone(forks.runtime()), forks.to(), forks.data().len()))
        }
        _ => None,
    });
    let (runtime, to, number) = packing.ok_or(NOT_IN_RPC)?;
    // The scope is not borrowed during this, because forking carries out effects.
    let forked = if number >= FORKS_MAX {
        let what = format!("a message has at most {FORKS_MAX} references");
        Err(RRefError::Refused(what.into()))
    } else {
        runtime.fork(cell, to)
    };
    SCOPE.with_borrow_mut(|scope| match scope {
        Some(Scope::Packing { forks, error }) => match forked {
            Ok(fork) => {
                forks.push(fork);
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

/// Takes a reference to a `type_name` out of the message that this thread unpacks.
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
                "a reference to a `{}` was received as one to a `{type_name}`",
                taken.type_name()
            );
            error.get_or_insert(RRefError::Refused(what.into()));
            // Dropped with the message, outside of the borrow.
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

    /// The size of fork data with an empty type name.
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

    /// The bytes of a message in the layout of [`pack`].
    fn message(count: u32, forks: &[ForkData], values: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        LittleEndian::write_u32(&mut bytes, count);
        for fork in forks {
            fork.encode(&mut bytes);
        }
        bytes.extend_from_slice(values);
        bytes
    }

    /// Whether the memory reserved for references is in proportion to the received bytes.
    fn is_in_proportion(packed: &Packed<'_>, bytes: &[u8]) -> bool {
        let room = (bytes.len() - packed.values.len()) / FORK_BYTES_MIN;
        packed.forks.len() <= room && packed.forks.capacity() <= 2 * room + 4
    }

    proptest! {
        #[test]
        fn packed_forks_and_values_parse_back_unchanged(
            forks in proptest::collection::vec(fork(), 0..6), values: Vec<u8>
        ) {
            let bytes = message(forks.len() as u32, &forks, &values);
            let packed = Packed::parse(&bytes).unwrap();
            prop_assert_eq!(&packed.forks, &forks);
            prop_assert_eq!(packed.values, &values[..]);
            prop_assert!(is_in_proportion(&packed, &bytes));
            // A lower count leaves forks among the values; a higher one lacks bytes.
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
        fn any_bytes_parse_or_fail_with_memory_in_proportion(
            count in prop_oneof![0..4_u32, any::<u32>(), Just(FORKS_MAX as u32)], bytes: Vec<u8>
        ) {
            for bytes in [message(count, &[], &bytes), bytes] {
                if let Ok(packed) = Packed::parse(&bytes) {
                    prop_assert!(is_in_proportion(&packed, &bytes));
                    prop_assert!(bytes.ends_with(packed.values));
                }
            }
        }

        #[test]
        fn a_message_with_any_one_byte_changed_parses_or_fails(
            forks in proptest::collection::vec(fork(), 1..3), at: prop::sample::Index, byte: u8
        ) {
            let mut bytes = message(forks.len() as u32, &forks, &[1, 2, 3]);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(packed) = Packed::parse(&bytes) {
                prop_assert!(is_in_proportion(&packed, &bytes));
            }
        }
    }

    #[test]
    fn a_count_above_the_limit_is_refused_before_any_reference_is_parsed() {
        for count in [FORKS_MAX as u32 + 1, u32::MAX] {
            let error = Packed::parse(&message(count, &[], &[])).err().unwrap();
            let expected = format!("the message has {count} references, the limit is {FORKS_MAX}");
            assert_eq!(error.to_string(), expected);
        }
        // An allowed count without the references.
        let error = Packed::parse(&message(FORKS_MAX as u32, &[], &[])).err();
        let error = error.unwrap().to_string();
        assert!(error.starts_with("the message ends within its"), "{error}");
    }

    #[test]
    fn a_message_with_the_most_references_parses() {
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
    fn a_reference_is_taken_only_from_a_message_that_has_it() {
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
    fn a_nested_message_and_a_panic_leave_the_outer_message_unchanged() {
        let ((), error) = unpack_with(Vec::new(), || {
            assert!(unpack_with(Vec::new(), || ()).1.is_none());
            let panicked = std::panic::catch_unwind(|| {
                unpack_with(Vec::new(), || std::panic::resume_unwind(Box::new(())))
            });
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
