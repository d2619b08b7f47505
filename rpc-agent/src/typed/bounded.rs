//! Limits the nesting depth and the number of elements of a value that a peer encoded.
//!
//! postcard reserves no memory for announced lengths, and decoding stops at the end of the bytes. It has no limit for
//! two cases: elements that take no bytes, such as the elements of `Vec<()>`, and recursive types, which can be
//! nested until the stack overflows. This layer between postcard and the type's `Deserialize` counts both. It
//! supports what postcard does, and no self-describing format.

use std::cell::Cell;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// Greatest nesting depth of a value. As in `serde_json`.
const DEPTH_MAX: u32 = 128;

/// How many elements of a value may take no bytes.
const EMPTY_ELEMENTS_MAX: usize = 65_536;

/// The rest of each limit for one value.
#[derive(Debug)]
pub(super) struct Bounds {
    depth_left: Cell<u32>,
    elements_left: Cell<usize>,
    exceeded: Cell<Option<&'static str>>,
}

impl Bounds {
    /// Limits for a value of `bytes` bytes: each element takes a byte, with the exception of [`EMPTY_ELEMENTS_MAX`]
    /// elements.
    pub(super) fn of_bytes(bytes: usize) -> Self {
        Self {
            depth_left: Cell::new(DEPTH_MAX),
            elements_left: Cell::new(bytes.saturating_add(EMPTY_ELEMENTS_MAX)),
            exceeded: Cell::new(None),
        }
    }

    /// The limit that the value exceeded, if any. postcard drops the texts of custom errors.
    pub(super) fn exceeded(&self) -> Option<&'static str> {
        self.exceeded.get()
    }

    fn descend<E: Error>(&self) -> Result<Level<'_>, E> {
        match self.depth_left.get().checked_sub(1) {
            Some(left) => self.depth_left.set(left),
            None => return Err(self.exceed("it is nested deeper than 128 levels")),
        }
        Ok(Level(self))
    }

    fn take_elements<E: Error>(&self, elements: usize) -> Result<(), E> {
        match self.elements_left.get().checked_sub(elements) {
            Some(left) => self.elements_left.set(left),
            None => return Err(self.exceed("it has more elements than bytes")),
        }
        Ok(())
    }

    fn exceed<E: Error>(&self, what: &'static str) -> E {
        self.exceeded.set(Some(what));
        E::custom(what)
    }
}

/// One level of nesting; dropped when its value is decoded.
struct Level<'a>(&'a Bounds);

impl Drop for Level<'_> {
    fn drop(&mut self) {
        self.0.depth_left.set(self.0.depth_left.get() + 1);
    }
}

/// Wraps a serde trait object such as a `Deserializer` or a `Visitor`, and applies the limits inside it.
pub(super) struct Bounded<'a, T> {
    inner: T,
    bounds: &'a Bounds,
    /// For sequences and maps: whether each element is counted as it is decoded.
    counts: bool,
}

impl<'a, T> Bounded<'a, T> {
    pub(super) fn new(inner: T, bounds: &'a Bounds) -> Self {
        Self::with(inner, bounds, false)
    }

    /// Wraps the visitor of a sequence or map, whose length the peer announced.
    fn of_any_length(inner: T, bounds: &'a Bounds) -> Self {
        Self::with(inner, bounds, true)
    }

    fn with(inner: T, bounds: &'a Bounds, counts: bool) -> Self {
        Self {
            inner,
            bounds,
            counts,
        }
    }

    /// Whether elements are counted as they are decoded: elements of a known length are counted now. postcard gives
    /// the length unless it exceeds the number of remaining bytes.
    fn still_counts<E: Error>(&self, len: Option<usize>) -> Result<bool, E> {
        match len {
            Some(len) if self.counts => self.bounds.take_elements(len).map(|()| false),
            _ => Ok(self.counts),
        }
    }
}

/// Values that contain no other values.
macro_rules! leaves {
    ($($method:ident),* $(,)?) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
                self.inner.$method(visitor)
            }
        )*
    };
}

/// Values that contain other values: the wrapper of the visitor, and the type's description of them.
macro_rules! nested {
    ($($wrap:ident $method:ident($($argument:ident: $type:ty),*)),* $(,)?) => {
        $(
            fn $method<V: Visitor<'de>>(
                self,
                $($argument: $type,)*
                visitor: V,
            ) -> Result<V::Value, D::Error> {
                let _level = self.bounds.descend()?;
                self.inner.$method($($argument,)* Bounded::$wrap(visitor, self.bounds))
            }
        )*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Bounded<'_, D> {
    type Error = D::Error;

    leaves! {
        deserialize_any, deserialize_bool, deserialize_i8, deserialize_i16, deserialize_i32,
        deserialize_i64, deserialize_i128, deserialize_u8, deserialize_u16, deserialize_u32,
        deserialize_u64, deserialize_u128, deserialize_f32, deserialize_f64, deserialize_char,
        deserialize_str, deserialize_string, deserialize_bytes, deserialize_byte_buf,
        deserialize_unit, deserialize_identifier, deserialize_ignored_any,
    }

    nested! {
        new deserialize_option(),
        new deserialize_newtype_struct(name: &'static str),
        of_any_length deserialize_seq(),
        new deserialize_tuple(len: usize),
        new deserialize_tuple_struct(name: &'static str, len: usize),
        of_any_length deserialize_map(),
        new deserialize_struct(name: &'static str, fields: &'static [&'static str]),
        new deserialize_enum(name: &'static str, variants: &'static [&'static str]),
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Only the methods for values that contain others; for the rest serde's default is an error.
impl<'de, V: Visitor<'de>> Visitor<'de> for Bounded<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, some: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Bounded::new(some, self.bounds))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inside: D) -> Result<V::Value, D::Error> {
        self.inner
            .visit_newtype_struct(Bounded::new(inside, self.bounds))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<V::Value, A::Error> {
        let counts = self.still_counts(elements.size_hint())?;
        let elements = Bounded::with(elements, self.bounds, counts);
        self.inner.visit_seq(elements)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        let counts = self.still_counts(entries.size_hint())?;
        let entries = Bounded::with(entries, self.bounds, counts);
        self.inner.visit_map(entries)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Bounded::new(variant, self.bounds))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Bounded<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Bounded::new(value, self.bounds))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        if self.counts {
            self.bounds.take_elements(1)?;
        }
        self.inner
            .next_element_seed(Bounded::new(seed, self.bounds))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        if self.counts {
            self.bounds.take_elements(1)?;
        }
        self.inner.next_key_seed(Bounded::new(seed, self.bounds))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(Bounded::new(seed, self.bounds))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, 'a, A: EnumAccess<'de>> EnumAccess<'de> for Bounded<'a, A> {
    type Error = A::Error;
    type Variant = Bounded<'a, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, content) = self.inner.variant_seed(seed)?;
        Ok((value, Bounded::new(content, self.bounds)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner
            .newtype_variant_seed(Bounded::new(seed, self.bounds))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner
            .tuple_variant(len, Bounded::new(visitor, self.bounds))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner
            .struct_variant(fields, Bounded::new(visitor, self.bounds))
    }
}
