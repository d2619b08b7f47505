//! What the server's thread shares with others: counters that they read, and a limit that they set.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::journal::JournalError;

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: AtomicUsize,
    /// Connections that wait for a key, a barrier or an element of a queue.
    pub(super) waiting: AtomicUsize,
    /// The most memory of the data in bytes; 0 for no limit.
    pub(super) memory_max: AtomicUsize,
    /// Another process leads, or may.
    pub(super) is_standby: AtomicBool,
    /// Where the first client of another host has reached this one.
    pub(super) reached_at: OnceLock<IpAddr>,
    /// Why the server has stopped by itself.
    pub(super) journal_failure: OnceLock<JournalError>,
}
