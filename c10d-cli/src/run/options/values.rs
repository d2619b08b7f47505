//! The parsers of values that several options have.

use super::error::Refusal;
use std::collections::BTreeSet;
use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::quantity::{ByteCount, parse_duration};

/// Parses a number; ignores blanks around it.
pub(super) fn number<T: FromStr>(text: &str, expected: &'static str) -> Result<T, Refusal> {
    text.trim().parse().map_err(|_| Refusal::IsNot(expected))
}

pub(super) fn text(text: &str) -> Result<String, Refusal> {
    Ok(text.to_owned())
}

pub(super) fn whole_number(text: &str) -> Result<usize, Refusal> {
    number(text, "a whole number, 0 or more")
}

/// A port to listen on that is the same for all nodes.
pub(super) fn port(text: &str) -> Result<u16, Refusal> {
    number(text, "a port, 1 to 65535").map(NonZero::<u16>::get)
}

pub(super) fn bytes(text: &str) -> Result<usize, Refusal> {
    number(text, "a number of bytes, for example 8GiB").map(|ByteCount(bytes)| bytes)
}

pub(super) fn positive_time(text: &str) -> Result<Duration, Refusal> {
    time_above_0(text).ok_or(Refusal::IsNot("a time above 0, for example 30s or 2m"))
}

pub(super) fn time(text: &str) -> Option<Duration> {
    parse_duration(text.trim()).ok()
}

pub(super) fn time_above_0(text: &str) -> Option<Duration> {
    time(text).filter(|time| !time.is_zero())
}

/// `None` for `never`.
pub(super) fn or_never(
    text: &str,
    read: fn(&str) -> Option<Duration>,
    expected: &'static str,
) -> Result<Option<Duration>, Refusal> {
    match text.trim() {
        "never" => Ok(None),
        text => read(text).map(Some).ok_or(Refusal::IsNot(expected)),
    }
}

/// `None` for an empty text.
pub(super) fn path(text: &str) -> Result<Option<PathBuf>, Refusal> {
    Ok((!text.is_empty()).then(|| text.into()))
}

/// Splits a list at commas into numbers.
pub(super) fn numbers<T: FromStr + Ord>(
    text: &str,
    expected: &'static str,
) -> Result<BTreeSet<T>, Refusal> {
    let entries = text.split(',').filter(|_| !text.is_empty());
    entries.map(|entry| number(entry, expected)).collect()
}

/// Splits a list at commas; drops blanks around entries, and empty entries.
pub(super) fn list(text: &str) -> Result<Vec<String>, Refusal> {
    let entries = text.split(',').map(str::trim);
    let entries = entries.filter(|entry| !entry.is_empty());
    Ok(entries.map(str::to_owned).collect())
}
