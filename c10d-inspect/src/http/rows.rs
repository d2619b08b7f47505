//! Parts of a report or a snapshot, as JSON values: ranks, connections, keys.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use c10d_store::{CloseReason, ConnectionRecord, Snapshot};
use serde::{Deserialize, Serialize};

use super::counters::command_name;
use crate::text::shown_up_to;
use crate::{RankReport, Report};

/// The most rows in one answer.
pub(super) const ROWS_MAX: usize = 16_384;

/// The most ranks that a report names without `ranks=all`: as many as a person reads.
const NAMED_RANKS_MAX: usize = 1024;

/// The most waiting ranks of a finding that are listed, because their states are all the same.
const WAITING_RANKS_MAX: usize = 64;

/// The most characters of a key.
const KEY_CHARS_MAX: usize = 512;

/// The most found ranks.
const FOUND_MAX: usize = 64;

/// Returns a copy of the report with only the ranks that its findings are about: suspects, causes, and the first
/// waiting ranks.
pub(super) fn without_bystanders(report: &mut Report) -> Report {
    let mut named: BTreeSet<usize> = BTreeSet::new();
    for finding in &report.findings {
        named.extend(finding.culprits.0.iter().take(NAMED_RANKS_MAX));
        named.extend(finding.waiting.0.iter().take(WAITING_RANKS_MAX));
    }
    // The other ranks are not copied: there can be 16,384.
    let ranks = std::mem::take(&mut report.ranks);
    let mut brief = report.clone();
    report.ranks = ranks;
    let matters = |rank: &&RankReport| rank.is_suspect || named.contains(&rank.rank);
    let ranks = report.ranks.iter().filter(matters);
    brief.ranks = ranks.take(NAMED_RANKS_MAX).cloned().collect();
    brief
}

/// The rank with this number.
pub(super) fn rank(report: &Report, number: usize) -> Option<&RankReport> {
    let index = report.ranks.binary_search_by_key(&number, |rank| rank.rank);
    index.ok().map(|index| &report.ranks[index])
}

/// The ranks whose number starts with the text, or whose host, address or process id has it.
pub(super) fn find<'a>(report: &'a Report, text: &str) -> Vec<&'a RankReport> {
    let text = text.trim().to_lowercase();
    if text.is_empty() {
        return Vec::new();
    }
    let exact = text.parse().ok().and_then(|number| rank(report, number));
    let others = report.ranks.iter().filter(|rank| {
        let host = rank.host.as_deref().unwrap_or_default().to_lowercase();
        exact.is_none_or(|exact| exact.rank != rank.rank)
            && (rank.rank.to_string().starts_with(&text)
                || host.contains(&text)
                || rank.pid.is_some_and(|pid| pid.to_string() == text)
                || rank
                    .connections
                    .iter()
                    .any(|address| address.to_string().starts_with(&text)))
    });
    exact.into_iter().chain(others).take(FOUND_MAX).collect()
}

/// A connection of the store: a row of `/clients.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClientRow {
    /// The number of the connection.
    pub id: u64,
    /// The address of the peer.
    pub address: SocketAddr,
    /// The rank that it belongs to, if known.
    pub rank: Option<usize>,
    /// The process id, if the client sends it, like PyTorch's clients.
    pub pid: Option<u32>,
    /// The time since the connection was opened, in milliseconds.
    pub open_ms: u64,
    /// The number of the connection's requests.
    pub requests: u64,
    /// The command of the connection's last request.
    pub last_command: Option<String>,
    /// The key of the connection's last request.
    pub last_key: Option<String>,
    /// The time since the last request, in milliseconds.
    pub last_ms: Option<u64>,
    /// The key that the connection waits for.
    pub waits_for: Option<String>,
    /// The time for which the connection has waited, in milliseconds.
    pub waits_ms: Option<u64>,
    /// The time for which the relay of this client has had no connection, in milliseconds; `None` if it has one.
    pub away_ms: Option<u64>,
    /// The reason why the connection closed: "peer", "refused" or "failed"; `None` while it is open.
    pub closed: Option<String>,
    /// The time since the connection closed, in milliseconds.
    pub closed_ms: Option<u64>,
}

/// The page of a list.
#[derive(Debug, Serialize)]
pub(super) struct Rows<T> {
    /// The number of all rows.
    pub(super) total: usize,
    /// The number of the first row here.
    pub(super) from: usize,
    pub(super) rows: Vec<T>,
}

/// The connections, open ones first.
pub(super) fn clients(
    snapshot: &Snapshot,
    report: &Report,
    from: usize,
    count: usize,
) -> Rows<ClientRow> {
    let ranks: HashMap<SocketAddr, usize> = report
        .ranks
        .iter()
        .flat_map(|rank| rank.connections.iter().map(|address| (*address, rank.rank)))
        .collect();
    let age = |at: Duration| millis(snapshot.now.saturating_sub(at));
    let row = |record: &ConnectionRecord| ClientRow {
        id: record.id.0,
        address: record.peer,
        rank: ranks
            .get(&record.peer)
            .filter(|_| record.closed.is_none())
            .copied(),
        // PyTorch's process ids end there; this project's clients send greater numbers.
        pid: record.nonce.filter(|nonce| *nonce <= 1 << 22),
        open_ms: age(record.opened),
        requests: record.requests,
        last_command: record.last.as_ref().map(|last| command_name(last.command)),
        last_key: record
            .last
            .as_ref()
            .filter(|last| !last.key.is_empty())
            .map(|last| {
                shown_up_to(&last.key, KEY_CHARS_MAX) + if last.is_key_cut { "..." } else { "" }
            }),
        last_ms: record.last.as_ref().map(|last| age(last.at)),
        waits_for: record
            .wait
            .as_ref()
            .and_then(|wait| wait.missing.first())
            .map(|key| shown_up_to(key, KEY_CHARS_MAX)),
        waits_ms: record.wait.as_ref().map(|wait| age(wait.since)),
        away_ms: record.away_since.map(age),
        closed: record.closed.map(|closed| {
            let reason = match closed.reason {
                CloseReason::Peer => "peer",
                CloseReason::Refused => "refused",
                _ => "failed",
            };
            reason.to_owned()
        }),
        closed_ms: record.closed.map(|closed| age(closed.at)),
    };
    Rows {
        total: snapshot.connections.len() + snapshot.closed.len(),
        from,
        rows: snapshot
            .connections
            .iter()
            .chain(&snapshot.closed)
            .skip(from)
            .take(count.min(ROWS_MAX))
            .map(row)
            .collect(),
    }
}

/// A key that has a value, which is not shown: a row of `/keys.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KeyRow {
    /// The key as it is on the wire, without control characters. A key of a PyTorch client starts with `/`.
    pub key: String,
    /// A number that each write of the key changes.
    pub version: u64,
    /// The length of the key's value, in bytes.
    pub value_bytes: usize,
    /// The time since the key was written, in milliseconds.
    pub written_ms: u64,
    /// The number of the connection that wrote it.
    pub writer: u64,
}

/// The keys that start with `prefix`, in order.
pub(super) fn keys(snapshot: &Snapshot, prefix: &str, from: usize, count: usize) -> Rows<KeyRow> {
    let mut found: Vec<_> = snapshot
        .keys
        .iter()
        .filter(|record| record.key.starts_with(prefix.as_bytes()))
        .collect();
    found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Rows {
        total: found.len() + snapshot.keys_left_out,
        from,
        rows: found
            .into_iter()
            .skip(from)
            .take(count.min(ROWS_MAX))
            .map(|record| KeyRow {
                key: shown_up_to(&record.key, KEY_CHARS_MAX),
                version: record.version.0,
                value_bytes: record.value_len,
                written_ms: millis(snapshot.now.saturating_sub(record.written)),
                writer: record.writer.0,
            })
            .collect(),
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
