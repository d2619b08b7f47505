//! What lies on the pickle machine's stack.
//!
//! A value keeps what a state can need of it and nothing else: it is small, and copying it costs
//! nothing, however deep the object that Python would have built.

use super::calendar::DATETIME_BYTES;
use super::names;
use crate::timestamp::Timestamp;

/// A class that a state may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    State,
    Node,
    Datetime,
    Timezone,
    Timedelta,
}

/// A string: where its UTF-8 is in the input. Two values with equal places are one Python object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) start: u32,
    pub(super) len: u32,
}

/// A moment, and whether it names its time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Time {
    pub(super) moment: Timestamp,
    pub(super) aware: bool,
}

/// A Python object. Numbers in it are places in the machine's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Text(Text),
    /// Bytes of the length that a datetime has.
    DatetimeBytes([u8; DATETIME_BYTES]),
    OtherBytes,
    Class(Class),
    EmptyTuple,
    /// What timedelta is called with, added up: microseconds.
    TimedeltaArguments(i64),
    /// What timezone is called with: microseconds ahead of UTC.
    TimezoneArguments(i64),
    /// What datetime is called with.
    DatetimeArguments(Time),
    OtherTuple,
    /// In microseconds.
    Timedelta(i64),
    /// In microseconds ahead of UTC.
    Timezone(i64),
    Datetime(Time),
    Map(u32),
    Set(u32),
    Node(u32),
    /// There is one at most.
    State,
}

impl Class {
    /// The class of this name, if a state may name it.
    pub(super) fn named(module: &[u8], name: &[u8]) -> Option<Self> {
        const CLASSES: [(&str, &str, Class); 5] = [
            (names::RENDEZVOUS_MODULE, names::STATE, Class::State),
            (names::RENDEZVOUS_MODULE, names::NODE, Class::Node),
            (names::DATETIME, names::DATETIME, Class::Datetime),
            (names::DATETIME, names::TIMEZONE, Class::Timezone),
            (names::DATETIME, names::TIMEDELTA, Class::Timedelta),
        ];
        CLASSES
            .into_iter()
            .find(|(m, n, _)| (m.as_bytes(), n.as_bytes()) == (module, name))
            .map(|(_, _, class)| class)
    }
}

impl Value {
    /// What it is, for a message.
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
