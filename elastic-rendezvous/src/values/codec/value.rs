//! The values on the pickle machine's stack.
//!
//! A value keeps only what a state can need of it, so it is small and cheap to copy.

use super::calendar::DATETIME_BYTES;
use super::pickle;
use crate::values::timestamp::Timestamp;

/// A class that a state may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    State,
    Node,
    Datetime,
    Timezone,
    Timedelta,
}

/// A string, by the position of its UTF-8 in the input. Equal positions are one Python object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) start: u32,
    pub(super) len: u32,
}

/// A timestamp, and whether it names its time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Time {
    pub(super) moment: Timestamp,
    pub(super) aware: bool,
}

/// A Python object. Its numbers are indices into the machine's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Text(Text),
    /// Bytes of the length of a datetime.
    DatetimeBytes([u8; DATETIME_BYTES]),
    OtherBytes,
    Class(Class),
    EmptyTuple,
    /// The arguments of timedelta, as a sum in microseconds.
    TimedeltaArguments(i64),
    /// The argument of timezone, in microseconds ahead of UTC.
    TimezoneArguments(i64),
    DatetimeArguments(Time),
    OtherTuple,
    /// A duration in microseconds.
    Timedelta(i64),
    /// A time zone in microseconds ahead of UTC.
    Timezone(i64),
    Datetime(Time),
    Map(u32),
    Set(u32),
    Node(u32),
    /// There is at most one.
    State,
}

impl Class {
    /// The class of this name, if a state may contain it.
    pub(super) fn named(module: &[u8], name: &[u8]) -> Option<Self> {
        const CLASSES: [(&str, &str, Class); 5] = [
            (pickle::RENDEZVOUS_MODULE, pickle::STATE, Class::State),
            (pickle::RENDEZVOUS_MODULE, pickle::NODE, Class::Node),
            (pickle::DATETIME, pickle::DATETIME, Class::Datetime),
            (pickle::DATETIME, pickle::TIMEZONE, Class::Timezone),
            (pickle::DATETIME, pickle::TIMEDELTA, Class::Timedelta),
        ];
        CLASSES
            .into_iter()
            .find(|(m, n, _)| (m.as_bytes(), n.as_bytes()) == (module, name))
            .map(|(_, _, class)| class)
    }
}

impl Value {
    /// The type, for messages.
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a bool",
            Self::Int(_) => "an integer",
            Self::Text(_) => "a string",
            Self::DatetimeBytes(_) | Self::OtherBytes => "bytes",
            Self::Class(_) => "a class",
            Self::EmptyTuple
            | Self::TimedeltaArguments(_)
            | Self::TimezoneArguments(_)
            | Self::DatetimeArguments(_)
            | Self::OtherTuple => "a tuple",
            Self::Timedelta(_) => "a timedelta",
            Self::Timezone(_) => "a timezone",
            Self::Datetime(_) => "a datetime",
            Self::Map(_) => "a map",
            Self::Set(_) => "a set",
            Self::Node(_) => "a node",
            Self::State => "a state",
        }
    }
}
