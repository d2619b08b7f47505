//! Values as bytes: postcard, with its gaps closed.

use std::any::type_name;

use postcard::ser_flavors::Size;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::bounded::{Bounded, Bounds};

/// Why a value could not be made bytes, or bytes no value.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The value has no encoding, as a sequence that does not know its length.
    #[error("a value of type `{type_name}` cannot be encoded: {cause}")]
    Encode {
        /// The type, as Rust calls it.
        type_name: &'static str,
        /// In the words of the format.
        cause: String,
    },
    /// The bytes are no value of the type. The two sides may disagree on the type.
    #[error("{bytes} bytes are no value of type `{type_name}`: {cause}")]
    Decode {
        /// The type, as Rust calls it.
        type_name: &'static str,
        /// How many bytes there are.
        bytes: usize,
        /// In the words of the format.
        cause: String,
    },
    /// The bytes begin with a value of the type, and go on.
    #[error(
        "{bytes} bytes are no value of type `{type_name}`: the last {trailing_bytes} are left over"
    )]
    TrailingBytes {
        /// The type, as Rust calls it.
        type_name: &'static str,
        /// How many bytes there are.
        bytes: usize,
        /// How many of them come after the value.
        trailing_bytes: usize,
    },
}

/// Prints the `Display` text, so that `unwrap` and a `main` that returns the error show it.
impl std::fmt::Debug for CodecError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The bytes of a value, as typed calls send them.
///
/// # Errors
/// [`CodecError::Encode`].
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    let failed = |error: postcard::Error| CodecError::Encode {
        type_name: type_name::<T>(),
        cause: error.to_string(),
    };
    // Measuring first costs less than growing, and a vector without spare room becomes `Bytes` as it is.
    let size = postcard::serialize_with_flavor(value, Size::default()).map_err(failed)?;
    postcard::to_extend(value, Vec::with_capacity(size)).map_err(failed)
}

/// The value of which these are the bytes, all of them.
///
/// Memory is in proportion to the bytes, whatever lengths they announce. A value is nested at most 128
/// levels deep, and has at most 65,536 elements that take no bytes, as those of `Vec<()>`.
///
/// # Errors
/// [`CodecError::Decode`] and [`CodecError::TrailingBytes`].
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

    fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
        let bytes = encode(value).unwrap();
        assert_eq!(bytes, postcard::to_stdvec(value).unwrap());
        assert_eq!(bytes.capacity(), bytes.len(), "one allocation");
        assert_eq!(decode::<T>(&bytes).as_ref(), Ok(value));
    }

    #[test]
    fn values_of_all_kinds_come_back() {
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
        comes_back(&Everything {
            unit: Unit,
            wrapped: Wrapped(7),
            text: "ü".repeat(300),
            maybe: Some(None),
            shards,
            by_name: BTreeMap::from([("a".to_owned(), i128::MIN), (String::new(), 0)]),
            array: [true, false, true],
            empty: vec![(); 1000],
        });
        comes_back(&());
        comes_back(&(1_i64, -2_i64));
        comes_back(&vec![7_u8; 100_000]);
        comes_back(&HashMap::from([(1_u32, Some("x".to_owned())), (2, None)]));
    }

    #[test]
    fn a_part_of_a_value_and_a_value_with_more_behind_it_are_errors() {
        let bytes = encode(&(1_i64, "ab".to_owned())).unwrap();
        for length in 0..bytes.len() {
            let error = decode::<(i64, String)>(&bytes[..length]).unwrap_err();
            assert!(matches!(error, CodecError::Decode { .. }), "{error}");
        }
        let more = [bytes.as_slice(), &[0, 0]].concat();
        assert_eq!(
            decode::<(i64, String)>(&more).unwrap_err().to_string(),
            "6 bytes are no value of type `(i64, alloc::string::String)`: the last 2 are left over"
        );
        assert_eq!(
            decode::<bool>(&[7]).unwrap_err().to_string(),
            "1 bytes are no value of type `bool`: Found a bool that wasn't 0 or 1"
        );
    }

    #[test]
    fn an_announced_length_reserves_no_memory_and_keeps_nobody_busy() {
        // The longest length there is, and nothing behind it: the tests would not survive to allocate it.
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
            let said = error.to_string();
            assert!(said.ends_with("it has more elements than bytes"), "{said}");
        }
    }

    #[test]
    fn elements_without_bytes_are_counted_over_the_whole_value() {
        comes_back(&vec![Unit; 65_536]);
        comes_back(&vec![vec![(); 32_000], vec![(); 32_000]]);
        let many = encode(&vec![vec![(); 32_000]; 3]).unwrap();
        let said = decode::<Vec<Vec<()>>>(&many).unwrap_err().to_string();
        assert!(said.ends_with("it has more elements than bytes"), "{said}");
    }

    #[test]
    fn a_type_that_contains_itself_is_nested_128_levels_deep_at_most() {
        // Each link is a newtype and an option.
        let nested = |links: usize| [vec![1_u8; links], vec![0]].concat();
        let mut list = &decode::<List>(&nested(63)).unwrap();
        let mut links = 0;
        while let Some(next) = &list.0 {
            links += 1;
            list = next;
        }
        assert_eq!(links, 63);
        for links in [64, 1_000_000] {
            let said = decode::<List>(&nested(links)).unwrap_err().to_string();
            assert!(
                said.ends_with("it is nested deeper than 128 levels"),
                "{said}"
            );
        }
        let shards = [vec![4_u8; 1_000_000], vec![0]].concat();
        assert!(decode::<Shard>(&shards).is_err());
    }

    #[test]
    fn what_the_format_cannot_encode_is_an_error_that_names_the_type() {
        struct OfUnknownLength;
        impl Serialize for OfUnknownLength {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeSeq;
                serializer.serialize_seq(None)?.end()
            }
        }
        let said = encode(&OfUnknownLength).unwrap_err().to_string();
        assert!(
            said.contains("OfUnknownLength` cannot be encoded: "),
            "{said}"
        );
        assert!(
            said.ends_with("The length of a sequence must be known"),
            "{said}"
        );
    }

    proptest! {
        #[test]
        fn strangers_bytes_are_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(value) = decode::<Everything>(&bytes) {
                prop_assert!(value.shards.len() <= bytes.len());
            }
            let _ = decode::<Vec<Shard>>(&bytes);
        }

        #[test]
        fn what_is_decoded_is_what_postcard_decodes(bytes in prop::collection::vec(0_u8..6, 0..100)) {
            let plain = postcard::take_from_bytes::<Vec<Shard>>(&bytes);
            let ours = decode::<Vec<Shard>>(&bytes);
            match plain {
                Ok((value, [])) => prop_assert_eq!(ours, Ok(value)),
                _ => prop_assert!(ours.is_err()),
            }
        }
    }
}
