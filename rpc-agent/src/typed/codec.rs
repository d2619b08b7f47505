//! Encodes and decodes values as postcard, with limits that postcard lacks.

use std::any::type_name;

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::bounded::{Bounded, Bounds};

/// The error of a value that could not be encoded or decoded.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The value cannot be encoded, such as a sequence of unknown length.
    #[error("a value of type `{type_name}` cannot be encoded: {cause}")]
    Encode {
        /// Rust's name of the type.
        type_name: &'static str,
        /// The error text of postcard.
        cause: String,
    },
    /// The value has more bytes than a message may have, and none of them was kept.
    #[error(
        "a value of type `{type_name}` has more bytes than message_bytes_max, which is {bytes_max}"
    )]
    TooLarge {
        /// Rust's name of the type.
        type_name: &'static str,
        /// The limit: see [`AgentOptions::with_message_bytes_max`](crate::AgentOptions::with_message_bytes_max).
        bytes_max: u64,
    },
    /// The bytes are not a value of the type. Caller and callee may use different types.
    #[error("{bytes} bytes are not a value of type `{type_name}`: {cause}")]
    Decode {
        /// Rust's name of the type.
        type_name: &'static str,
        /// Number of bytes.
        bytes: usize,
        /// The error text of postcard.
        cause: String,
    },
    /// More bytes follow a value of the type. Caller and callee may use different types.
    #[error(
        "{bytes} bytes are not a value of type `{type_name}`: the last {trailing_bytes} are left over"
    )]
    TrailingBytes {
        /// Rust's name of the type.
        type_name: &'static str,
        /// Number of bytes.
        bytes: usize,
        /// How many of them follow the value.
        trailing_bytes: usize,
    },
}

c10d_socket::debug_as_display!(CodecError);

/// Encodes a value in the format of typed calls.
///
/// # Errors
/// [`CodecError::Encode`] if the value cannot be encoded.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    encode_within(value, u64::MAX)
}

/// [`encode`] for a message of an agent with this [`AgentHandle::message_bytes_max`](crate::AgentHandle::message_bytes_max).
/// A larger value costs no memory, and no more time than the limit takes.
///
/// # Errors
/// The errors of [`encode`], and [`CodecError::TooLarge`] for a larger value.
pub fn encode_within<T: Serialize + ?Sized>(
    value: &T,
    bytes_max: u64,
) -> Result<Vec<u8>, CodecError> {
    let type_name = type_name::<T>();
    let failed = |error: postcard::Error| match error {
        // Only `Measure` is ever full.
        postcard::Error::SerializeBufferFull => CodecError::TooLarge {
            type_name,
            bytes_max,
        },
        error => CodecError::Encode {
            type_name,
            cause: error.to_string(),
        },
    };
    // Measuring first costs less than reallocating, and a vector without spare capacity becomes `Bytes`
    // without a copy.
    let size = Measure {
        bytes: 0,
        bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
    };
    let size = postcard::serialize_with_flavor(value, size).map_err(failed)?;
    postcard::to_extend(value, Vec::with_capacity(size)).map_err(failed)
}

/// Counts bytes up to a limit.
struct Measure {
    bytes: usize,
    bytes_max: usize,
}

impl Flavor for Measure {
    type Output = usize;

    fn try_push(&mut self, _: u8) -> postcard::Result<()> {
        self.try_extend(&[0])
    }

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.bytes += data.len();
        if self.bytes > self.bytes_max {
            return Err(postcard::Error::SerializeBufferFull);
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<usize> {
        Ok(self.bytes)
    }
}

/// Decodes a value in the format of typed calls from all of `bytes`.
///
/// Uses memory in proportion to the number of bytes, whatever lengths they announce. A value may be nested 128 levels
/// deep, and have 65,536 elements that take no bytes, such as the elements of `Vec<()>`.
///
/// # Errors
/// [`CodecError::Decode`] if the bytes are not a value of the type or exceed a limit,
/// [`CodecError::TrailingBytes`] if bytes follow the value.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let bounds = Bounds::of_bytes(bytes.len());
    let mut format = postcard::Deserializer::from_bytes(bytes);
    let decoded = T::deserialize(Bounded::new(&mut format, &bounds))
        .and_then(|value| format.finalize().map(|rest| (value, rest.len())));
    match decoded {
        Ok((value, 0)) => Ok(value),
        Ok((_, trailing_bytes)) => Err(CodecError::TrailingBytes {
            type_name: type_name::<T>(),
            bytes: bytes.len(),
            trailing_bytes,
        }),
        Err(error) => Err(CodecError::Decode {
            type_name: type_name::<T>(),
            bytes: bytes.len(),
            cause: match bounds.exceeded() {
                Some(what) => what.to_owned(),
                None => error.to_string(),
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap, HashSet};
    use std::fmt::Debug;

    use proptest::prelude::*;
    use serde::{Deserialize, Serializer};

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum Shard {
        None,
        Rows(Vec<f32>),
        Range { from: u64, to: u64 },
        Pair(i8, char),
        Nested(Box<Self>),
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Unit;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Wrapped(u32);

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Everything {
        unit: Unit,
        wrapped: Wrapped,
        text: String,
        maybe: Option<Option<u16>>,
        shards: Vec<Shard>,
        by_name: BTreeMap<String, i128>,
        array: [bool; 3],
        empty: Vec<()>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct List(Option<Box<Self>>);

    fn assert_survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
        let bytes = encode(value).unwrap();
        assert_eq!(bytes, postcard::to_stdvec(value).unwrap());
        assert_eq!(bytes.capacity(), bytes.len(), "one allocation");
        assert_eq!(decode::<T>(&bytes).as_ref(), Ok(value));
    }

    #[test]
    fn values_of_all_kinds_survive_encoding_and_decoding() {
        let shards = vec![
            Shard::None,
            Shard::Rows(vec![1.5, f32::MAX]),
            Shard::Range {
                from: 1,
                to: u64::MAX,
            },
            Shard::Pair(-1, 'é'),
            Shard::Nested(Box::new(Shard::Nested(Box::new(Shard::None)))),
        ];
        assert_survives(&Everything {
            unit: Unit,
            wrapped: Wrapped(7),
            text: "ü".repeat(300),
            maybe: Some(None),
            shards,
            by_name: BTreeMap::from([("a".to_owned(), i128::MIN), (String::new(), 0)]),
            array: [true, false, true],
            empty: vec![(); 1000],
        });
        assert_survives(&());
        assert_survives(&(1_i64, -2_i64));
        assert_survives(&vec![7_u8; 100_000]);
        assert_survives(&HashMap::from([(1_u32, Some("x".to_owned())), (2, None)]));
    }

    #[test]
    fn truncated_values_and_trailing_bytes_are_errors() {
        let bytes = encode(&(1_i64, "ab".to_owned())).unwrap();
        for length in 0..bytes.len() {
            let error = decode::<(i64, String)>(&bytes[..length]).unwrap_err();
            assert!(matches!(error, CodecError::Decode { .. }), "{error}");
        }
        let more = [bytes.as_slice(), &[0, 0]].concat();
        assert_eq!(
            decode::<(i64, String)>(&more).unwrap_err().to_string(),
            "6 bytes are not a value of type `(i64, alloc::string::String)`: the last 2 are left over"
        );
        assert_eq!(
            decode::<bool>(&[7]).unwrap_err().to_string(),
            "1 bytes are not a value of type `bool`: Found a bool that wasn't 0 or 1"
        );
    }

    #[test]
    fn an_announced_length_reserves_no_memory_and_costs_no_time() {
        // The maximum length without any elements. Allocating it would abort the test.
        let huge = encode(&u64::MAX).unwrap();
        assert!(decode::<Vec<u8>>(&huge).is_err());
        assert!(decode::<Vec<[u64; 32]>>(&huge).is_err());
        assert!(decode::<String>(&huge).is_err());
        assert!(decode::<HashSet<u64>>(&huge).is_err());
        for error in [
            decode::<Vec<()>>(&huge).unwrap_err(),
            decode::<HashMap<u64, u64>>(&huge).unwrap_err(),
            decode::<BTreeMap<(), ()>>(&huge).unwrap_err(),
        ] {
            let message = error.to_string();
            assert!(
                message.ends_with("it has more elements than bytes"),
                "{message}"
            );
        }
    }

    #[test]
    fn elements_without_bytes_are_limited_over_the_whole_value() {
        assert_survives(&vec![Unit; 65_536]);
        assert_survives(&vec![vec![(); 32_000], vec![(); 32_000]]);
        let many = encode(&vec![vec![(); 32_000]; 3]).unwrap();
        let message = decode::<Vec<Vec<()>>>(&many).unwrap_err().to_string();
        assert!(
            message.ends_with("it has more elements than bytes"),
            "{message}"
        );
    }

    #[test]
    fn a_recursive_type_is_nested_at_most_128_levels_deep() {
        // Each link consists of a newtype and an option.
        let nested = |links: usize| [vec![1_u8; links], vec![0]].concat();
        let mut list = &decode::<List>(&nested(63)).unwrap();
        let mut links = 0;
        while let Some(next) = &list.0 {
            links += 1;
            list = next;
        }
        assert_eq!(links, 63);
        for links in [64, 1_000_000] {
            let message = decode::<List>(&nested(links)).unwrap_err().to_string();
            assert!(
                message.ends_with("it is nested deeper than 128 levels"),
                "{message}"
            );
        }
        let shards = [vec![4_u8; 1_000_000], vec![0]].concat();
        assert!(decode::<Shard>(&shards).is_err());
    }

    #[test]
    fn a_value_beyond_the_limit_is_not_walked_to_its_end() {
        struct Endless(std::cell::Cell<u64>);
        impl Serialize for Endless {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeTuple;
                let mut bytes = serializer.serialize_tuple(1 << 40)?;
                for _ in 0..1_u64 << 40 {
                    self.0.set(self.0.get() + 1);
                    bytes.serialize_element(&7_u8)?;
                }
                bytes.end()
            }
        }
        let endless = Endless(std::cell::Cell::new(0));
        let error = encode_within(&endless, 1000).unwrap_err();
        assert!(
            matches!(
                error,
                CodecError::TooLarge {
                    bytes_max: 1000,
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(endless.0.get(), 1001);
        let bytes = [7_u8; 1000];
        assert_eq!(encode_within(&bytes[..998], 1000).unwrap().len(), 1000);
        assert!(encode_within(&bytes[..999], 1000).is_err());
    }

    #[test]
    fn a_value_that_cannot_be_encoded_is_an_error_that_names_the_type() {
        struct OfUnknownLength;
        impl Serialize for OfUnknownLength {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeSeq;
                serializer.serialize_seq(None)?.end()
            }
        }
        let message = encode(&OfUnknownLength).unwrap_err().to_string();
        assert!(
            message.contains("OfUnknownLength` cannot be encoded: "),
            "{message}"
        );
        assert!(
            message.ends_with("The length of a sequence must be known"),
            "{message}"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(value) = decode::<Everything>(&bytes) {
                prop_assert!(value.shards.len() <= bytes.len());
            }
            let _ = decode::<Vec<Shard>>(&bytes);
        }

        #[test]
        fn decoding_agrees_with_postcard(bytes in prop::collection::vec(0_u8..6, 0..100)) {
            let plain = postcard::take_from_bytes::<Vec<Shard>>(&bytes);
            let ours = decode::<Vec<Shard>>(&bytes);
            match plain {
                Ok((value, [])) => prop_assert_eq!(ours, Ok(value)),
                _ => prop_assert!(ours.is_err()),
            }
        }
    }
}
